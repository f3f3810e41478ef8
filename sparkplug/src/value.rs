//! Values with the sign, width and type that the birth gave them.

use std::sync::Arc;

use bytes::Bytes;

use crate::array::Array;
use crate::dataset::DataSet;
use crate::datatype::DataType;
use crate::property::PropertySet;
use crate::template::Template;

/// A value of a metric, property, cell or parameter. The datatype beside it says which width it has.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Value {
    /// Null, said explicitly. It is neither zero nor the last value.
    #[default]
    Null,
    /// Int8, Int16, Int32, Int64.
    Int(i64),
    /// UInt8, UInt16, UInt32, UInt64.
    UInt(u64),
    /// Float; NaN and the infinities included.
    Float(f32),
    /// Double; NaN and the infinities included.
    Double(f64),
    /// Boolean.
    Bool(bool),
    /// String, Text, UUID.
    String(Arc<str>),
    /// DateTime, milliseconds since 1970-01-01 UTC.
    DateTime(u64),
    /// Bytes, File.
    Bytes(Bytes),
    /// DataSet.
    DataSet(Arc<DataSet>),
    /// Template.
    Template(Arc<Template>),
    /// Any of the array types.
    Array(Arc<Array>),
    /// PropertySet; in properties only.
    PropertySet(Arc<PropertySet>),
    /// PropertySetList; in properties only.
    PropertySetList(Arc<[PropertySet]>),
}

impl Value {
    /// Whether it is null.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// Any number as a double; 64-bit integers may lose digits. `None` for all else, Boolean and DateTime
    /// included.
    #[must_use]
    #[allow(clippy::cast_precision_loss)]
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Int(v) => Some(*v as f64),
            Self::UInt(v) => Some(*v as f64),
            Self::Float(v) => Some(f64::from(*v)),
            Self::Double(v) => Some(*v),
            _ => None,
        }
    }

    /// Text, when it is String, Text or UUID.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(v) => Some(v),
            _ => None,
        }
    }

    /// Equal bit for bit: NaN equals the same NaN, 0.0 differs from -0.0. Used to tell whether a birth says
    /// anything new.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Float(a), Self::Float(b)) => a.to_bits() == b.to_bits(),
            (Self::Double(a), Self::Double(b)) => a.to_bits() == b.to_bits(),
            _ => self == other,
        }
    }

    /// Turns a value that a rule or an operator gave into exactly what a metric of type `datatype` holds.
    ///
    /// A whole number converts between integer and floating types when nothing is lost; Null fits any type.
    ///
    /// # Errors
    /// [`CoerceError`] when the kind is wrong or the number does not fit.
    // tck-id-operational-behavior-data-commands-ncmd-metric-value,
    // tck-id-operational-behavior-data-commands-dcmd-metric-value
    pub fn coerce(&self, datatype: DataType) -> Result<Self, CoerceError> {
        let wrong = CoerceError::Kind { datatype };
        if let Some((min, max)) = datatype.integer_range() {
            let whole = match self {
                Self::Null => return Ok(Self::Null),
                Self::Int(v) => i128::from(*v),
                Self::UInt(v) | Self::DateTime(v) => i128::from(*v),
                Self::Float(v) => whole(f64::from(*v)).ok_or(CoerceError::Fraction { datatype })?,
                Self::Double(v) => whole(*v).ok_or(CoerceError::Fraction { datatype })?,
                _ => return Err(wrong),
            };
            if !(min..=max).contains(&whole) {
                return Err(CoerceError::Range { datatype });
            }
            return if min < 0 {
                i64::try_from(whole).map(Self::Int)
            } else if datatype == DataType::DateTime {
                u64::try_from(whole).map(Self::DateTime)
            } else {
                u64::try_from(whole).map(Self::UInt)
            }
            .map_err(|_| CoerceError::Range { datatype });
        }
        match (datatype, self) {
            (_, Self::Null) => Ok(Self::Null),
            (DataType::Float, Self::Float(v)) => Ok(Self::Float(*v)),
            (DataType::Float, v) => {
                let wide = v.as_f64().ok_or(wrong)?;
                #[allow(
                    clippy::cast_possible_truncation,
                    reason = "a Float holds the nearest value"
                )]
                let narrow = wide as f32;
                if narrow.is_infinite() && wide.is_finite() {
                    Err(CoerceError::Range { datatype })
                } else {
                    Ok(Self::Float(narrow))
                }
            }
            (DataType::Double, v) => v.as_f64().map(Self::Double).ok_or(wrong),
            (DataType::Boolean, Self::Bool(v)) => Ok(Self::Bool(*v)),
            (DataType::String | DataType::Text | DataType::UUID, Self::String(v)) => {
                Ok(Self::String(v.clone()))
            }
            (DataType::Bytes | DataType::File, Self::Bytes(v)) => Ok(Self::Bytes(v.clone())),
            (DataType::DataSet, Self::DataSet(v)) => Ok(Self::DataSet(v.clone())),
            (DataType::Template, Self::Template(v)) => Ok(Self::Template(v.clone())),
            (datatype, Self::Array(v)) if v.datatype() == datatype => Ok(Self::Array(v.clone())),
            _ => Err(wrong),
        }
    }
}

/// Why a value cannot be written to a metric of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CoerceError {
    /// The value is of another kind, text for a number for example.
    #[error("the value is of the wrong kind for {datatype}")]
    Kind {
        /// The metric's type.
        datatype: DataType,
    },
    /// The number lies outside of the type's range.
    #[error("the value does not fit into {datatype}")]
    Range {
        /// The metric's type.
        datatype: DataType,
    },
    /// The number is not whole, or not a number.
    #[error("{datatype} holds whole numbers only")]
    Fraction {
        /// The metric's type.
        datatype: DataType,
    },
}

/// `v` as an integer when it is one and lies well inside of i128.
fn whole(v: f64) -> Option<i128> {
    #[allow(
        clippy::cast_possible_truncation,
        reason = "checked to be whole and small"
    )]
    (v.fract() == 0.0 && v.abs() < 1e30).then_some(v as i128)
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

impl From<u64> for Value {
    fn from(v: u64) -> Self {
        Self::UInt(v)
    }
}

impl From<f32> for Value {
    fn from(v: f32) -> Self {
        Self::Float(v)
    }
}

impl From<f64> for Value {
    fn from(v: f64) -> Self {
        Self::Double(v)
    }
}

impl From<&str> for Value {
    fn from(v: &str) -> Self {
        Self::String(v.into())
    }
}
