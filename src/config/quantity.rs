//! Quantities with units: `"60s"`, `"16MiB"`, `"5000/s"`. A number without a unit is refused, since a reader
//! can't tell what it means.

use std::fmt;
use std::time::Duration;

use serde::de::{Error as _, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A length of time, written as `"250ms"`, `"60s"`, `"5m"`, `"2h"` or `"7d"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// A number of bytes, written as `"512B"`, `"64KiB"`, `"16MiB"`, `"1GiB"` (or `kB`, `MB`, `GB` for powers of ten).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// A rate, written as `"5000/s"` or `"300/m"`; held as events per second.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Rate(pub f64);

/// Why a text is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// No number at the start.
    #[error("`{0}` has no number; write for example {1}")]
    NoNumber(String, &'static str),
    /// A number without a unit.
    #[error("`{0}` has no unit; write for example {1}")]
    NoUnit(String, &'static str),
    /// A unit that isn't known here.
    #[error("unknown unit `{unit}` in `{text}`; known: {known}")]
    UnknownUnit {
        /// What was written.
        text: String,
        /// The part after the number.
        unit: String,
        /// What may stand there.
        known: &'static str,
    },
    /// Larger than can be represented.
    #[error("`{0}` is too large")]
    TooLarge(String),
}

fn split(text: &str, example: &'static str) -> Result<(f64, String), QuantityError> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: f64 = number
        .parse()
        .map_err(|_| QuantityError::NoNumber(text.to_owned(), example))?;
    let unit = unit.trim().to_owned();
    if unit.is_empty() {
        return Err(QuantityError::NoUnit(text.to_owned(), example));
    }
    Ok((number, unit))
}

impl std::str::FromStr for Span {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let (number, unit) = split(text, "\"60s\"")?;
        let seconds = match unit.as_str() {
            "us" | "µs" => number / 1e6,
            "ms" => number / 1e3,
            "s" => number,
            "m" | "min" => number * 60.0,
            "h" => number * 3_600.0,
            "d" => number * 86_400.0,
            _ => {
                return Err(QuantityError::UnknownUnit {
                    text: text.to_owned(),
                    unit,
                    known: "us, ms, s, m, h, d",
                });
            }
        };
        Duration::try_from_secs_f64(seconds)
            .map(Span)
            .map_err(|_| QuantityError::TooLarge(text.to_owned()))
    }
}

impl Span {
    /// Whole milliseconds, saturating.
    #[must_use]
    pub fn as_millis(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        for (unit, size) in [
            ("d", 86_400_000),
            ("h", 3_600_000),
            ("m", 60_000),
            ("s", 1_000),
        ] {
            if ms >= size && ms.is_multiple_of(size) {
                return write!(f, "{}{unit}", ms / size);
            }
        }
        write!(f, "{ms}ms")
    }
}

impl std::str::FromStr for ByteSize {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let (number, unit) = split(text, "\"16MiB\"")?;
        let factor: f64 = match unit.as_str() {
            "B" => 1.0,
            "kB" | "KB" => 1e3,
            "MB" => 1e6,
            "GB" => 1e9,
            "TB" => 1e12,
            "KiB" => 1024.0,
            "MiB" => 1024.0 * 1024.0,
            "GiB" => 1024.0 * 1024.0 * 1024.0,
            "TiB" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
            _ => {
                return Err(QuantityError::UnknownUnit {
                    text: text.to_owned(),
                    unit,
                    known: "B, KiB, MiB, GiB, TiB, kB, MB, GB, TB",
                });
            }
        };
        let bytes = number * factor;
        if bytes >= 9.0e18 {
            return Err(QuantityError::TooLarge(text.to_owned()));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "range checked just above, and the parser takes no sign"
        )]
        Ok(Self(bytes as u64))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, size) in [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
            if self.0 >= size && self.0.is_multiple_of(size) {
                return write!(f, "{}{unit}", self.0 / size);
            }
        }
        write!(f, "{}B", self.0)
    }
}

impl std::str::FromStr for Rate {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let (number, unit) = split(text, "\"5000/s\"")?;
        match unit.as_str() {
            "/s" => Ok(Self(number)),
            "/m" | "/min" => Ok(Self(number / 60.0)),
            "/h" => Ok(Self(number / 3_600.0)),
            _ => Err(QuantityError::UnknownUnit {
                text: text.to_owned(),
                unit,
                known: "/s, /m, /h",
            }),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/s", self.0)
    }
}

struct QuantityVisitor<T> {
    example: &'static str,
    marker: std::marker::PhantomData<T>,
}

impl<T: std::str::FromStr<Err = QuantityError>> Visitor<'_> for QuantityVisitor<T> {
    type Value = T;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a quantity with its unit, such as {}", self.example)
    }
    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<T, E> {
        Err(E::custom(QuantityError::NoUnit(
            number.to_string(),
            self.example,
        )))
    }
    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<T, E> {
        Err(E::invalid_type(Unexpected::Float(number), &self))
    }
}

macro_rules! quantity_serde {
    ($type:ty, $example:literal) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(QuantityVisitor {
                    example: $example,
                    marker: std::marker::PhantomData,
                })
            }
        }
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    };
}
quantity_serde!(Span, "\"60s\"");
quantity_serde!(ByteSize, "\"16MiB\"");
quantity_serde!(Rate, "\"5000/s\"");

/// Deserializes a name of 1 to 64 letters, digits or `-`: one token of subjects, streams and message ids.
///
/// # Errors
/// Any other text, with what is allowed.
pub(crate) fn token<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    if is_token(&text) {
        Ok(text)
    } else {
        Err(D::Error::custom(format!(
            "`{text}` is not a token: write 1 to 64 of A-Z a-z 0-9 -"
        )))
    }
}

/// Whether a text is one token of 1 to 64 letters, digits or `-`.
#[must_use]
pub fn is_token(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_parse_and_print() {
        let check = |text: &str, ms: u64, shown: &str| {
            let span: Span = text.parse().unwrap();
            assert_eq!(
                (span.as_millis(), span.to_string().as_str()),
                (ms, shown),
                "{text}"
            );
        };
        check("250ms", 250, "250ms");
        check("60s", 60_000, "1m");
        check("1.5h", 5_400_000, "90m");
        check("7d", 604_800_000, "7d");
        check(" 2 h ", 7_200_000, "2h");
    }

    #[test]
    fn sizes_parse_and_print() {
        let check = |text: &str, bytes: u64, shown: &str| {
            let size: ByteSize = text.parse().unwrap();
            assert_eq!(
                (size.0, size.to_string().as_str()),
                (bytes, shown),
                "{text}"
            );
        };
        check("16MiB", 16 << 20, "16MiB");
        check("1GiB", 1 << 30, "1GiB");
        check("10kB", 10_000, "10000B");
        check("0.5KiB", 512, "512B");
    }

    #[test]
    fn missing_and_unknown_units_are_refused() {
        assert_eq!(
            "10".parse::<Span>().unwrap_err().to_string(),
            "`10` has no unit; write for example \"60s\""
        );
        assert!(
            "10 fortnights"
                .parse::<Span>()
                .unwrap_err()
                .to_string()
                .contains("known: us, ms")
        );
        assert!("MiB".parse::<ByteSize>().is_err());
        assert!("1e30GiB".parse::<ByteSize>().is_err());
        assert!("99999999999TiB".parse::<ByteSize>().is_err());
        assert!("-5s".parse::<Span>().is_err());
        assert_eq!("300/m".parse::<Rate>().unwrap(), Rate(5.0));
    }

    #[test]
    fn tokens() {
        for (text, fine) in [
            ("site-a", true),
            ("", false),
            ("a.b", false),
            ("ä", false),
            ("A9", true),
        ] {
            assert_eq!(is_token(text), fine, "{text}");
        }
        assert!(!is_token(&"x".repeat(65)));
    }
}
