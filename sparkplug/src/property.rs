//! Properties of a metric, recursive through PropertySet and PropertySetList, and the Quality property.

use std::sync::Arc;

use crate::datatype::DataType;
use crate::value::Value;

/// Key of the property that carries a metric's quality.
// tck-id-payloads-propertyset-quality-value-type
pub const QUALITY: &str = "Quality";

/// Quality codes of the norm. Other numbers are kept and flagged.
// tck-id-payloads-propertyset-quality-value-value
pub mod quality {
    /// The value is bad.
    pub const BAD: i32 = 0;
    /// The value is good; also what no Quality property means.
    pub const GOOD: i32 = 192;
    /// The node says that the value is stale. Staleness that the host concludes is kept apart from it.
    pub const STALE: i32 = 500;
}

/// Named properties, in the order of the payload.
// tck-id-payloads-propertyset-keys-array-size, tck-id-payloads-propertyset-values-array-size
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PropertySet {
    /// The properties.
    pub entries: Vec<Property>,
}

/// One property.
#[derive(Debug, Clone, PartialEq)]
pub struct Property {
    /// Its name.
    pub key: Arc<str>,
    /// Its type.
    pub datatype: DataType,
    /// Its value; [`Value::Null`] when the payload says so.
    pub value: Value,
}

impl PropertySet {
    /// The first property of that name.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Property> {
        self.entries.iter().find(|it| &*it.key == key)
    }

    /// The Quality property as a number, if there is one.
    #[must_use]
    pub fn quality(&self) -> Option<i32> {
        match self.get(QUALITY)?.value {
            Value::Int(code) => i32::try_from(code).ok(),
            Value::UInt(code) => i32::try_from(code).ok(),
            _ => None,
        }
    }
}
