//! The values that rules see.

use std::sync::Arc;

/// A value of a metric, in the rules' own vocabulary.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Value {
    /// No value: null in the payload, or never seen.
    #[default]
    Null,
    /// A boolean.
    Bool(bool),
    /// A signed integer of any width.
    Int(i64),
    /// An unsigned integer of any width, or a date and time in ms since 1970 UTC.
    UInt(u64),
    /// A floating-point number of either width.
    Double(f64),
    /// A text.
    String(Arc<str>),
    /// Anything that expressions can't look into: bytes, arrays, data sets, templates. It equals
    /// nothing, not even itself, and counts as a wrong type wherever a number or text is needed.
    Other,
}

impl Value {
    /// The value as a number, integers rounded to the nearest double; `None` for null, booleans,
    /// texts and opaque values.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "asked for: the nearest double of a 64-bit integer"
    )]
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Int(v) => Some(*v as f64),
            Self::UInt(v) => Some(*v as f64),
            Self::Double(v) => Some(*v),
            Self::Null | Self::Bool(_) | Self::String(_) | Self::Other => None,
        }
    }

    /// Whether this is null.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// Word for messages: `null`, `bool`, `number`, `string` or `opaque`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "bool",
            Self::Int(_) | Self::UInt(_) | Self::Double(_) => "number",
            Self::String(_) => "string",
            Self::Other => "opaque",
        }
    }

    /// Whether two values are the same to a rule that asks for equality: numbers by value across
    /// widths, NaN and opaque values never.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        use crate::lang::expr::Val;
        match (self, other) {
            (Self::Null, Self::Null) => true,
            (a, b) => Val::from(a).equals(&Val::from(b)),
        }
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(v) => write!(f, "{v}"),
            Self::Int(v) => write!(f, "{v}"),
            Self::UInt(v) => write!(f, "{v}"),
            Self::Double(v) => write!(f, "{v}"),
            Self::String(v) => f.write_str(v),
            Self::Other => f.write_str("?"),
        }
    }
}

impl From<f64> for Value {
    fn from(v: f64) -> Self {
        Self::Double(v)
    }
}

impl From<bool> for Value {
    fn from(v: bool) -> Self {
        Self::Bool(v)
    }
}

impl From<i64> for Value {
    fn from(v: i64) -> Self {
        Self::Int(v)
    }
}

impl From<&str> for Value {
    fn from(v: &str) -> Self {
        Self::String(v.into())
    }
}
