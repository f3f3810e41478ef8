//! Quantities of a manifest: a number and its unit, never a bare number.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::time::Duration;

/// Why a quantity was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// No unit, or one that is not known.
    #[error("`{text}` needs a whole number and one of the units {units}")]
    Unit {
        /// What was written.
        text: String,
        /// The units that fit here.
        units: &'static str,
    },
    /// Larger than the machine counts.
    #[error("`{text}` is too large")]
    TooLarge {
        /// What was written.
        text: String,
    },
}

const TIME_UNITS: [(&str, u64); 5] = [
    ("us", 1),
    ("ms", 1_000),
    ("s", 1_000_000),
    ("m", 60_000_000),
    ("h", 3_600_000_000),
];
const SIZE_UNITS: [(&str, u64); 4] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
];

fn parse(text: &str, units: &[(&str, u64)], names: &'static str) -> Result<u64, QuantityError> {
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit = unit.trim();
    let factor = units
        .iter()
        .find(|(name, _)| *name == unit)
        .map(|(_, factor)| *factor);
    let (Some(factor), false) = (factor, number.is_empty()) else {
        return Err(QuantityError::Unit {
            text: text.to_owned(),
            units: names,
        });
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(factor))
        .ok_or_else(|| QuantityError::TooLarge {
            text: text.to_owned(),
        })
}

/// A span of time, written `250ms`, `10s`, `2m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub Duration);

impl Span {
    /// Reads `250ms`; units us, ms, s, m, h.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        parse(text, &TIME_UNITS, "us, ms, s, m, h").map(|us| Self(Duration::from_micros(us)))
    }

    /// Whole milliseconds, saturating.
    pub fn millis(self) -> i64 {
        i64::try_from(self.0.as_millis()).unwrap_or(i64::MAX)
    }

    /// Whole microseconds, saturating.
    pub fn micros(self) -> u64 {
        u64::try_from(self.0.as_micros()).unwrap_or(u64::MAX)
    }
}

/// A number of bytes, written `32MiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Reads `32MiB`; units B, KiB, MiB, GiB.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        parse(text, &SIZE_UNITS, "B, KiB, MiB, GiB").map(Self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let us = self.micros();
        let (unit, factor) = TIME_UNITS
            .iter()
            .rev()
            .find(|(_, factor)| us.is_multiple_of(*factor) && us > 0)
            .unwrap_or(&("us", 1));
        serializer.collect_str(&format_args!("{}{unit}", us / factor))
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}B", self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_sizes_need_a_known_unit() {
        let check = |text: &str, expect: Option<u64>| {
            assert_eq!(Span::parse(text).ok().map(Span::micros), expect, "{text}");
        };
        check("250ms", Some(250_000));
        check("2 s", Some(2_000_000));
        check("1h", Some(3_600_000_000));
        check("10", None);
        check("ms", None);
        check("-1s", None);
        check("1.5s", None);
        check("99999999999999999999s", None);
        check("9999999999999999h", None);
        check("", None);
        assert_eq!(Bytes::parse("32MiB"), Ok(Bytes(32 << 20)));
        assert!(Bytes::parse("32MB").is_err());
    }

    #[test]
    fn a_span_is_written_in_its_largest_whole_unit() {
        for text in ["250ms", "10s", "90s", "2m", "3h", "7us", "0us"] {
            let span = Span::parse(text).unwrap();
            let written = serde_json::to_string(&span).unwrap();
            assert_eq!(Span::parse(written.trim_matches('"')).unwrap(), span);
        }
    }
}
