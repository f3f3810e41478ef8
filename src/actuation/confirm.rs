//! What counts as a device having done what was written.

use std::sync::Arc;

use sparkplug::value::Value;

use super::Target;

/// What a confirming metric must show.
#[derive(Debug, Clone, PartialEq)]
pub enum Expect {
    /// The written value.
    Written,
    /// This value.
    Equals(Value),
    /// A number from the first to the second, both included.
    Between(f64, f64),
}

/// How a write is confirmed.
#[derive(Debug, Clone, PartialEq)]
pub struct Confirm {
    /// Whose value is looked at; `None`: the written target's.
    pub target: Option<Target>,
    /// Metric that is looked at; `None`: the written one.
    pub metric: Option<Arc<str>>,
    /// What must be shown.
    pub expect: Expect,
    /// Longest wait in ms.
    pub within_ms: u64,
}

impl Confirm {
    /// Confirmed by the written metric showing the written value within `within_ms`.
    #[must_use]
    pub fn by_echo(within_ms: u64) -> Self {
        Self {
            target: None,
            metric: None,
            expect: Expect::Written,
            within_ms,
        }
    }

    pub(super) fn within_ms(&self) -> u64 {
        self.within_ms
    }

    pub(super) fn target(&self, written: &Target) -> Target {
        self.target.clone().unwrap_or_else(|| written.clone())
    }

    pub(super) fn metric(&self, written: &Arc<str>) -> Arc<str> {
        self.metric.clone().unwrap_or_else(|| written.clone())
    }

    pub(super) fn met_by(&self, written: &Value, shown: &Value) -> bool {
        let wanted = match &self.expect {
            Expect::Written => written,
            Expect::Equals(value) => value,
            Expect::Between(low, high) => {
                return number(shown).is_some_and(|v| v >= *low && v <= *high);
            }
        };
        // Integers of every width are exact, beyond 2^53 too.
        if let (Some(a), Some(b)) = (integer(wanted), integer(shown)) {
            return a == b;
        }
        match (number(wanted), number(shown)) {
            // A Float metric shows the nearest 32-bit value of what was written; infinity is itself.
            (Some(a), Some(b)) => {
                a.total_cmp(&b).is_eq() || (a - b).abs() <= f64::from(f32::EPSILON) * a.abs()
            }
            _ => wanted == shown,
        }
    }
}

fn integer(value: &Value) -> Option<i128> {
    match value {
        Value::Int(v) => Some(i128::from(*v)),
        Value::UInt(v) | Value::DateTime(v) => Some(i128::from(*v)),
        _ => None,
    }
}

pub(super) fn number(value: &Value) -> Option<f64> {
    #[expect(
        clippy::cast_precision_loss,
        reason = "confirmation compares as doubles, as rules do"
    )]
    match value {
        Value::Int(v) => Some(*v as f64),
        Value::UInt(v) | Value::DateTime(v) => Some(*v as f64),
        Value::Float(v) => Some(f64::from(*v)),
        Value::Double(v) => Some(*v),
        _ => None,
    }
}

pub(super) fn show(value: &Value) -> String {
    match (number(value), value) {
        (Some(v), _) => v.to_string(),
        (None, Value::Bool(v)) => v.to_string(),
        (None, Value::String(v)) => format!("{v:?}"),
        (None, Value::Null) => "null".to_owned(),
        (None, _) => "another value".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_exact_and_floats_are_their_nearest() {
        let float = |v: f64| Value::Float(v as f32);
        for (written, shown, met) in [
            (Value::Int(100_000_000), Value::Int(100_000_010), false),
            (Value::Int(-5), Value::Int(-5), true),
            (Value::Int(7), Value::UInt(7), true),
            (Value::UInt(u64::MAX), Value::UInt(u64::MAX - 1), false),
            (
                Value::DateTime(1_780_272_000_000),
                Value::DateTime(1_780_272_000_001),
                false,
            ),
            (Value::Double(0.1), float(0.1), true),
            (Value::Double(0.1), Value::Double(0.11), false),
            (Value::Int(3), Value::Double(3.0), true),
            (
                Value::Double(f64::INFINITY),
                Value::Double(f64::INFINITY),
                true,
            ),
            (Value::Bool(true), Value::Bool(false), false),
        ] {
            let confirm = Confirm::by_echo(1);
            assert_eq!(
                confirm.met_by(&written, &shown),
                met,
                "{written:?} {shown:?}"
            );
        }
    }
}
