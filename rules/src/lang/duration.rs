//! Lengths of time in rule files: a number and its unit.

/// Longest duration a rule may name: ten years, in ms.
const MOST_MS: f64 = 10.0 * 365.0 * 86_400_000.0;

/// Reads `"250ms"`, `"30s"`, `"5m"`, `"1.5h"` or `"7d"` as ms; `None` for anything else, and for
/// what is negative or longer than ten years.
pub(crate) fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(end);
    let number: f64 = number.parse().ok()?;
    let factor = match unit.trim() {
        "ms" => 1.0,
        "s" => 1e3,
        "m" | "min" => 60e3,
        "h" => 3_600e3,
        "d" => 86_400e3,
        _ => return None,
    };
    let ms = (number * factor).round();
    if !(0.0..=MOST_MS).contains(&ms) {
        return None;
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "whole, and in the range just checked"
    )]
    Some(ms as u64)
}

/// Writes ms as [`parse`] reads it, in the largest unit that divides it.
pub(crate) fn format(ms: u64) -> String {
    for (unit, size) in [
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1_000),
    ] {
        if ms >= size && ms.is_multiple_of(size) {
            return format!("{}{unit}", ms / size);
        }
    }
    format!("{ms}ms")
}

#[cfg(test)]
mod tests {
    use super::{format, parse};

    #[test]
    fn a_duration_has_a_number_and_a_unit() {
        for (text, expected) in [
            ("250ms", Some(250)),
            ("30s", Some(30_000)),
            ("1.5h", Some(5_400_000)),
            ("2 min", Some(120_000)),
            ("7d", Some(604_800_000)),
            ("0s", Some(0)),
            ("30", None),
            ("s", None),
            ("-1s", None),
            ("1.2.3s", None),
            ("99999d", None),
            ("5 parsecs", None),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
    }

    #[test]
    fn written_and_read_back() {
        for ms in [0, 1, 999, 1_000, 60_000, 90_000, 3_600_000, 86_400_000] {
            assert_eq!(parse(&format(ms)), Some(ms));
        }
    }
}
