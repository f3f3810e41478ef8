//! From a value field to a [`Value`] of a known type.

use std::sync::Arc;

use bytes::Bytes;

use super::Limits;
use super::nested;
use super::raw::{Arm, RawMetric};
use crate::array::{Array, ArrayError};
use crate::dataset::DataSetError;
use crate::datatype::DataType;
use crate::metric::{MetaData, MetricFlags};
use crate::property::PropertySet;
use crate::template::Template;
use crate::value::Value;
use crate::wire::WireError;

/// Why one metric, property or member cannot be used. Its neighbours can.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MetricError {
    /// Its bytes are malformed.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// Its datatype is not one of the norm.
    // tck-id-payloads-metric-datatype-value
    #[error("datatype {0} is not one of 0 to 34")]
    DataType(u32),
    /// Its datatype exists but is not allowed in this place.
    #[error("datatype {0} is not allowed here")]
    Misplaced(DataType),
    /// It has neither a value nor `is_null`.
    #[error("neither a value nor is_null")]
    NoValue,
    /// Its value lies in a field that cannot hold its type.
    #[error("the value field does not fit {0}")]
    Arm(DataType),
    /// Its number fits its type in no encoding in use.
    #[error("the number does not fit into {0}")]
    Range(DataType),
    /// Its array is malformed.
    #[error(transparent)]
    Array(#[from] ArrayError),
    /// Its DataSet is malformed.
    #[error("malformed DataSet")]
    DataSet(DataSetFault),
    /// Its template has a member or parameter without a name.
    #[error("template member or parameter without a name")]
    Unnamed,
    /// Keys and values of a property set differ in number.
    #[error("{keys} property keys and {values} values")]
    Properties {
        /// Number of keys.
        keys: usize,
        /// Number of values.
        values: usize,
    },
    /// Nested deeper than [`Limits::max_depth`].
    #[error("nested too deeply")]
    Depth,
    /// More parts than [`Limits::max_elements`].
    #[error("too many cells, members or properties")]
    Elements,
}

/// What is wrong with a DataSet, short enough to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataSetFault {
    /// Columns, types and their stated number disagree.
    Columns,
    /// A column's type is no basic one.
    Type,
    /// A row has the wrong number of cells.
    Row,
    /// A cell does not fit its column.
    Cell,
}

impl From<&DataSetError> for DataSetFault {
    fn from(error: &DataSetError) -> Self {
        match error {
            DataSetError::Columns { .. } => Self::Columns,
            DataSetError::Type { .. } => Self::Type,
            DataSetError::Row { .. } => Self::Row,
            DataSetError::Cell { .. } => Self::Cell,
        }
    }
}

/// What is left of the allowance for nested parts of one payload.
#[derive(Debug)]
pub(crate) struct Budget {
    elements: usize,
    max_depth: usize,
    /// The bytes are the journal's: remarks in them are our own.
    pub(crate) journal: bool,
}

impl Budget {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            elements: limits.max_elements,
            max_depth: limits.max_depth,
            journal: false,
        }
    }

    pub(crate) fn of_journal(limits: &Limits) -> Self {
        Self {
            journal: true,
            ..Self::new(limits)
        }
    }

    pub(crate) fn element(&mut self) -> Result<(), MetricError> {
        self.elements = self.elements.checked_sub(1).ok_or(MetricError::Elements)?;
        Ok(())
    }

    pub(crate) fn enter(&self, depth: usize) -> Result<usize, MetricError> {
        if depth >= self.max_depth {
            Err(MetricError::Depth)
        } else {
            Ok(depth + 1)
        }
    }
}

/// What the birth, or a template definition, knows of a metric.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hint<'a> {
    pub(crate) datatype: Option<DataType>,
    pub(crate) properties: Option<&'a PropertySet>,
    pub(crate) template: Option<&'a Template>,
    /// Definitions of the node, to find the one that a template instance names.
    pub(crate) definitions: Option<&'a dyn Definitions>,
}

impl Hint<'_> {
    pub(crate) const NONE: Self = Self {
        datatype: None,
        properties: None,
        template: None,
        definitions: None,
    };
}

/// Where template definitions are looked up by name.
pub(crate) trait Definitions: std::fmt::Debug {
    fn definition(&self, name: &str) -> Option<&Template>;
}

/// A metric's value and what hangs on it.
#[derive(Debug)]
pub(crate) struct Filled {
    pub(crate) datatype: DataType,
    pub(crate) value: Value,
    pub(crate) quality: Option<i32>,
    pub(crate) properties: Option<Arc<PropertySet>>,
    pub(crate) metadata: Option<Arc<MetaData>>,
    pub(crate) flags: MetricFlags,
}

/// Joins a metric's bytes with what is known of it.
#[inline]
pub(crate) fn fill(
    raw: &RawMetric<'_>,
    hint: &Hint<'_>,
    budget: &mut Budget,
    depth: usize,
) -> Result<Filled, MetricError> {
    let mut flags = MetricFlags::NONE;
    let datatype = match (hint.datatype, raw.datatype) {
        (Some(known), None) => known,
        // tck-id-payloads-metric-datatype-not-req: a repeated type is accepted, the birth's counts
        (Some(known), Some(sent)) => {
            if sent != known.code() {
                flags.insert(MetricFlags::DATATYPE_MISMATCH);
            }
            known
        }
        (None, Some(sent)) => {
            DataType::try_from(sent).map_err(|error| MetricError::DataType(error.0))?
        }
        (None, None) => {
            flags.insert(MetricFlags::NO_DATATYPE);
            natural(&raw.arm)
        }
    };
    let value = if raw.null {
        if raw.arm != Arm::None {
            flags.insert(MetricFlags::NULL_WITH_VALUE);
        }
        Value::Null
    } else {
        of_arm(datatype, &raw.arm, hint, budget, depth, &mut flags)?
    };
    let mut filled = Filled {
        datatype,
        value,
        quality: None,
        properties: None,
        metadata: None,
        flags,
    };
    if raw.properties.is_some() || raw.metadata.is_some() {
        attach(&mut filled, raw, hint, budget, depth)?;
    }
    Ok(filled)
}

#[cold]
fn attach(
    filled: &mut Filled,
    raw: &RawMetric<'_>,
    hint: &Hint<'_>,
    budget: &mut Budget,
    depth: usize,
) -> Result<(), MetricError> {
    if let Some(bytes) = raw.metadata {
        filled.metadata = Some(Arc::new(nested::metadata(bytes)?));
    }
    if let Some(bytes) = raw.properties {
        // A value is worth more than its properties: unreadable ones are left out and flagged.
        match nested::property_set(bytes, hint.properties, budget, depth) {
            Ok(properties) => {
                filled.quality = properties.quality();
                if filled
                    .quality
                    .is_some_and(|it| !matches!(it, 0 | 192 | 500))
                {
                    filled.flags.insert(MetricFlags::QUALITY_UNKNOWN);
                }
                filled.properties = Some(Arc::new(properties));
            }
            Err(error @ (MetricError::Depth | MetricError::Elements)) => return Err(error),
            Err(_) => filled.flags.insert(MetricFlags::PROPERTIES_INVALID),
        }
    }
    Ok(())
}

/// The type that a value field has by itself.
pub(crate) fn natural(arm: &Arm<'_>) -> DataType {
    match arm {
        Arm::Int(_) => DataType::UInt32,
        Arm::Long(_) => DataType::UInt64,
        Arm::Float(_) => DataType::Float,
        Arm::Double(_) => DataType::Double,
        Arm::Bool(_) => DataType::Boolean,
        Arm::Text(_) => DataType::String,
        Arm::Bytes(_) => DataType::Bytes,
        Arm::DataSet(_) => DataType::DataSet,
        Arm::Template(_) => DataType::Template,
        Arm::PropertySet(_) => DataType::PropertySet,
        Arm::PropertySetList(_) => DataType::PropertySetList,
        Arm::None | Arm::Extension => DataType::Unknown,
    }
}

/// A number or Boolean, small enough for registers: it becomes a [`Value`] where it is stored.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scalar {
    Int(i64),
    UInt(u64),
    Float(f32),
    Double(f64),
    Bool(bool),
    DateTime(u64),
}

impl Scalar {
    /// Puts it where a value was; the same kind as before needs no drop of the old one.
    #[inline(always)]
    pub(crate) fn store(self, place: &mut Value) {
        match (place, self) {
            (Value::Double(old), Self::Double(new)) => *old = new,
            (Value::Float(old), Self::Float(new)) => *old = new,
            (Value::Int(old), Self::Int(new)) => *old = new,
            (Value::UInt(old), Self::UInt(new)) => *old = new,
            (Value::Bool(old), Self::Bool(new)) => *old = new,
            (place, new) => *place = new.into(),
        }
    }
}

impl From<Scalar> for Value {
    #[inline(always)]
    fn from(scalar: Scalar) -> Self {
        match scalar {
            Scalar::Int(v) => Self::Int(v),
            Scalar::UInt(v) => Self::UInt(v),
            Scalar::Float(v) => Self::Float(v),
            Scalar::Double(v) => Self::Double(v),
            Scalar::Bool(v) => Self::Bool(v),
            Scalar::DateTime(v) => Self::DateTime(v),
        }
    }
}

/// The number or Boolean in `arm`, when it lies in the field that its type has and fits: no allocation, no error.
/// Everything else is for [`of_arm`].
#[inline(always)]
pub(crate) fn scalar(datatype: DataType, arm: &Arm<'_>) -> Option<Scalar> {
    Some(match (datatype, arm) {
        (DataType::Double, Arm::Double(v)) => Scalar::Double(*v),
        (DataType::Float, Arm::Float(v)) => Scalar::Float(*v),
        (DataType::Boolean, Arm::Bool(v)) => Scalar::Bool(*v),
        (DataType::Int8 | DataType::Int16 | DataType::Int32, Arm::Int(v)) => {
            Scalar::Int(signed(datatype, u64::from(*v)).ok()?)
        }
        (DataType::Int64, Arm::Long(v)) => Scalar::Int(v.cast_signed()),
        (DataType::UInt8 | DataType::UInt16 | DataType::UInt32, Arm::Int(v)) => {
            Scalar::UInt(unsigned(datatype, u64::from(*v)).ok()?)
        }
        (DataType::UInt64, Arm::Long(v)) => Scalar::UInt(*v),
        (DataType::DateTime, Arm::Long(v)) => Scalar::DateTime(*v),
        _ => return None,
    })
}

/// The value in `arm`, read as `datatype`.
#[inline]
pub(crate) fn of_arm(
    datatype: DataType,
    arm: &Arm<'_>,
    hint: &Hint<'_>,
    budget: &mut Budget,
    depth: usize,
    flags: &mut MetricFlags,
) -> Result<Value, MetricError> {
    if let Some(scalar) = scalar(datatype, arm) {
        return Ok(scalar.into());
    }
    Ok(match (datatype, arm) {
        (DataType::String | DataType::Text | DataType::UUID, Arm::Text(v)) => {
            Value::String(Arc::from(*v))
        }
        (DataType::Bytes | DataType::File, Arm::Bytes(v)) => {
            Value::Bytes(Bytes::copy_from_slice(v))
        }
        (_, Arm::None) => return Err(MetricError::NoValue),
        _ => return rare(datatype, arm, hint, budget, depth, flags),
    })
}

/// Structured values, and values in the field of another type, as old encoders write them.
#[cold]
fn rare(
    datatype: DataType,
    arm: &Arm<'_>,
    hint: &Hint<'_>,
    budget: &mut Budget,
    depth: usize,
    flags: &mut MetricFlags,
) -> Result<Value, MetricError> {
    let structured = match (datatype, arm) {
        (DataType::DataSet, Arm::DataSet(bytes)) => {
            Value::DataSet(Arc::new(nested::dataset(bytes, budget)?))
        }
        (DataType::Template, Arm::Template(bytes)) => {
            Value::Template(Arc::new(nested::template(bytes, hint, budget, depth)?))
        }
        (DataType::PropertySet, Arm::PropertySet(bytes)) => Value::PropertySet(Arc::new(
            nested::property_set(bytes, hint.properties, budget, depth)?,
        )),
        (DataType::PropertySetList, Arm::PropertySetList(bytes)) => {
            Value::PropertySetList(nested::property_set_list(bytes, budget, depth)?.into())
        }
        (array, Arm::Bytes(bytes)) if array.is_array() => {
            Value::Array(Arc::new(Array::decode(array, bytes)?))
        }
        (DataType::Unknown, arm) => {
            let natural = natural(arm);
            if natural == DataType::Unknown {
                return Err(MetricError::NoValue);
            }
            return of_arm(natural, arm, hint, budget, depth, flags);
        }
        _ => Value::Null,
    };
    if !structured.is_null() {
        return Ok(structured);
    }
    flags.insert(MetricFlags::WRONG_ARM);
    Ok(match (datatype, arm) {
        // Old Java and JavaScript encoders put UInt32 into long_value; others do the like with any integer.
        (DataType::Int8 | DataType::Int16 | DataType::Int32, Arm::Long(v)) => {
            Value::Int(signed(datatype, *v)?)
        }
        (DataType::UInt8 | DataType::UInt16 | DataType::UInt32, Arm::Long(v)) => {
            Value::UInt(unsigned(datatype, *v)?)
        }
        // In their own field, but out of range.
        (
            DataType::Int8
            | DataType::Int16
            | DataType::Int32
            | DataType::UInt8
            | DataType::UInt16
            | DataType::UInt32,
            Arm::Int(_),
        ) => return Err(MetricError::Range(datatype)),
        // A 64-bit integer in the 32-bit field was a 32-bit one at its sender, so that its sign is bit 31.
        (DataType::Int64, Arm::Int(v)) => Value::Int(i64::from(v.cast_signed())),
        (DataType::UInt64, Arm::Int(v)) => Value::UInt(u64::from(*v)),
        (DataType::DateTime, Arm::Int(v)) => Value::DateTime(u64::from(*v)),
        (DataType::Boolean, Arm::Int(v @ (0 | 1))) => Value::Bool(*v == 1),
        (DataType::Boolean, Arm::Long(v @ (0 | 1))) => Value::Bool(*v == 1),
        (DataType::Double, Arm::Float(v)) => Value::Double(f64::from(*v)),
        (DataType::Float, Arm::Double(v)) => Value::Double(*v)
            .coerce(DataType::Float)
            .map_err(|_| MetricError::Range(datatype))?,
        _ => return Err(MetricError::Arm(datatype)),
    })
}

/// Two's complement of 8, 16 or 32 bits out of an unsigned field. Senders write -1 of an Int8 as 0xFF, as
/// 0xFFFF_FFFF or, in a long, as 64 ones: each is cut to the width and sign-extended. Anything else does not fit.
#[inline]
fn signed(datatype: DataType, v: u64) -> Result<i64, MetricError> {
    let bits = match datatype {
        DataType::Int8 => 8,
        DataType::Int16 => 16,
        _ => 32,
    };
    let half = 1u64 << (bits - 1);
    let narrow = v < half << 1;
    let extended32 = v <= u64::from(u32::MAX) && v >= (1 << 32) - half;
    let extended64 = v >= u64::MAX - (half - 1);
    if !(narrow || extended32 || extended64) {
        return Err(MetricError::Range(datatype));
    }
    Ok((v << (64 - bits)).cast_signed() >> (64 - bits))
}

#[inline]
fn unsigned(datatype: DataType, v: u64) -> Result<u64, MetricError> {
    let max = match datatype {
        DataType::UInt8 => u64::from(u8::MAX),
        DataType::UInt16 => u64::from(u16::MAX),
        _ => u64::from(u32::MAX),
    };
    if v <= max {
        Ok(v)
    } else {
        Err(MetricError::Range(datatype))
    }
}
