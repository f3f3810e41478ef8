//! Values inside an expression, and what operators make of them.

use std::cmp::Ordering;
use std::sync::Arc;

use super::EvalError;
use crate::value::Value;

/// A value while an expression runs; borrows texts from the event.
#[derive(Clone, Debug)]
pub(crate) enum Val<'a> {
    Null,
    Bool(bool),
    /// Any integer, exact: wide enough for both 64-bit kinds.
    Int(i128),
    Double(f64),
    Str(&'a str),
    Text(Arc<str>),
    Other,
}

impl<'a> From<&'a Value> for Val<'a> {
    fn from(value: &'a Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(v) => Self::Bool(*v),
            Value::Int(v) => Self::Int(i128::from(*v)),
            Value::UInt(v) => Self::Int(i128::from(*v)),
            Value::Double(v) => Self::Double(*v),
            Value::String(v) => Self::Str(v),
            Value::Other => Self::Other,
        }
    }
}

impl Val<'_> {
    /// The value to keep. An integer that neither 64-bit kind holds becomes a double.
    pub(crate) fn into_value(self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(v) => Value::Bool(v),
            Self::Int(v) => match (i64::try_from(v), u64::try_from(v)) {
                (Ok(v), _) => Value::Int(v),
                (_, Ok(v)) => Value::UInt(v),
                _ => Value::Double(to_f64(v)),
            },
            Self::Double(v) => Value::Double(v),
            Self::Str(v) => Value::String(v.into()),
            Self::Text(v) => Value::String(v),
            Self::Other => Value::Other,
        }
    }

    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "bool",
            Self::Int(_) | Self::Double(_) => "number",
            Self::Str(_) | Self::Text(_) => "string",
            Self::Other => "opaque",
        }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Str(v) => Some(v),
            Self::Text(v) => Some(v),
            _ => None,
        }
    }

    pub(crate) fn number(&self) -> Option<f64> {
        match self {
            Self::Int(v) => Some(to_f64(*v)),
            Self::Double(v) => Some(*v),
            _ => None,
        }
    }

    /// Equality of two values that are both there. Null, NaN and opaque values equal nothing;
    /// values of different kinds are simply not equal.
    pub(crate) fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => a == b,
            _ => matches!(self.order(other), Ok(Some(Ordering::Equal))),
        }
    }

    /// Whether `==` and `!=` have anything to say: not with null, nor NaN.
    pub(crate) fn comparable(&self) -> bool {
        match self {
            Self::Null => false,
            Self::Double(v) => !v.is_nan(),
            _ => true,
        }
    }

    /// Order of two numbers or two texts; `None` where null or NaN is involved.
    pub(crate) fn order(&self, other: &Self) -> Result<Option<Ordering>, EvalError> {
        Ok(match (self, other) {
            (Self::Null, _) | (_, Self::Null) => None,
            (Self::Int(a), Self::Int(b)) => Some(a.cmp(b)),
            (Self::Double(a), Self::Double(b)) => a.partial_cmp(b),
            (Self::Int(a), Self::Double(b)) => exact(*a, *b),
            (Self::Double(a), Self::Int(b)) => exact(*b, *a).map(Ordering::reverse),
            (a, b) => match (a.text(), b.text()) {
                (Some(a), Some(b)) => Some(a.cmp(b)),
                _ => {
                    return Err(EvalError::WrongTypes {
                        operation: "comparison",
                        left: a.kind(),
                        right: b.kind(),
                    });
                }
            },
        })
    }
}

/// Compares an integer with a double without rounding either.
fn exact(int: i128, double: f64) -> Option<Ordering> {
    /// Beyond this every double is larger than any product of 64-bit integers that is kept exact.
    const FAR: f64 = 1.7e38;
    if double.is_nan() {
        return None;
    }
    if double >= FAR {
        return Some(Ordering::Less);
    }
    if double <= -FAR {
        return Some(Ordering::Greater);
    }
    let floor = double.floor();
    #[expect(
        clippy::cast_possible_truncation,
        reason = "whole, and within the range just checked"
    )]
    let whole = floor as i128;
    Some(int.cmp(&whole).then(if double > floor {
        Ordering::Less
    } else {
        Ordering::Equal
    }))
}

#[expect(
    clippy::cast_precision_loss,
    reason = "asked for: the nearest double of an integer"
)]
pub(crate) fn to_f64(v: i128) -> f64 {
    v as f64
}

/// The four operations and remainder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arith {
    Add,
    Sub,
    Mul,
    Div,
    Rem,
}

impl Arith {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Add => "+",
            Self::Sub => "-",
            Self::Mul => "*",
            Self::Div => "/",
            Self::Rem => "%",
        }
    }

    /// Null with anything is null. Integers stay exact under `+ - * %`; `/` is always the division
    /// of doubles, so that `7 / 2` is 3.5 whatever width a device declares. `+` joins texts.
    pub(crate) fn apply<'a>(self, a: &Val<'a>, b: &Val<'a>) -> Result<Val<'a>, EvalError> {
        if let (Val::Null, _) | (_, Val::Null) = (a, b) {
            return Ok(Val::Null);
        }
        if let (Val::Int(a), Val::Int(b)) = (a, b)
            && let Some(exact) = self.integers(*a, *b)?
        {
            return Ok(Val::Int(exact));
        }
        if let (Some(a), Some(b)) = (a.number(), b.number()) {
            return self.doubles(a, b).map(Val::Double);
        }
        if self == Self::Add
            && let (Some(a), Some(b)) = (a.text(), b.text())
        {
            return Ok(Val::Text([a, b].concat().into()));
        }
        Err(EvalError::WrongTypes {
            operation: self.word(),
            left: a.kind(),
            right: b.kind(),
        })
    }

    /// `None` where the result is not an exact integer: the doubles have it then.
    fn integers(self, a: i128, b: i128) -> Result<Option<i128>, EvalError> {
        Ok(match self {
            Self::Add => a.checked_add(b),
            Self::Sub => a.checked_sub(b),
            Self::Mul => a.checked_mul(b),
            Self::Div => None,
            Self::Rem if b == 0 => return Err(EvalError::DivisionByZero),
            Self::Rem => a.checked_rem(b),
        })
    }

    fn doubles(self, a: f64, b: f64) -> Result<f64, EvalError> {
        Ok(match self {
            Self::Add => a + b,
            Self::Sub => a - b,
            Self::Mul => a * b,
            Self::Div | Self::Rem if b == 0.0 => return Err(EvalError::DivisionByZero),
            Self::Div => a / b,
            Self::Rem => a % b,
        })
    }
}
