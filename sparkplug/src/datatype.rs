//! Datatype codes of the norm, chapter 6: 0 to 34.

use std::fmt;

macro_rules! datatypes {
    ($($(#[$doc:meta])* $name:ident = $code:literal),+ $(,)?) => {
        /// Type of a metric, property, DataSet column or template parameter.
        // tck-id-payloads-metric-datatype-value
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum DataType { $($(#[$doc])* $name = $code),+ }

        impl DataType {
            /// Every datatype, by code.
            pub const ALL: [Self; 35] = [$(Self::$name),+];

            /// The norm's name, such as `Int32`; [`DataType::from_name`] reads it back.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),+ }
            }
        }
    };
}

datatypes! {
    /// Unknown: in the enumeration, not allowed in births.
    Unknown = 0,
    /// Signed, 8 bits.
    Int8 = 1,
    /// Signed, 16 bits.
    Int16 = 2,
    /// Signed, 32 bits.
    Int32 = 3,
    /// Signed, 64 bits.
    Int64 = 4,
    /// Unsigned, 8 bits.
    UInt8 = 5,
    /// Unsigned, 16 bits.
    UInt16 = 6,
    /// Unsigned, 32 bits.
    UInt32 = 7,
    /// Unsigned, 64 bits.
    UInt64 = 8,
    /// IEEE 754, 32 bits.
    Float = 9,
    /// IEEE 754, 64 bits.
    Double = 10,
    /// True or false.
    Boolean = 11,
    /// UTF-8 text.
    String = 12,
    /// Milliseconds since 1970-01-01 UTC.
    DateTime = 13,
    /// UTF-8 text, meant to be long.
    Text = 14,
    /// UUID as text.
    UUID = 15,
    /// Table.
    DataSet = 16,
    /// Bytes.
    Bytes = 17,
    /// Bytes of a file; its name is in the metadata.
    File = 18,
    /// Template definition or instance.
    Template = 19,
    /// Set of properties; in properties only.
    PropertySet = 20,
    /// List of property sets; in properties only.
    PropertySetList = 21,
    /// Packed little-endian i8.
    Int8Array = 22,
    /// Packed little-endian i16.
    Int16Array = 23,
    /// Packed little-endian i32.
    Int32Array = 24,
    /// Packed little-endian i64.
    Int64Array = 25,
    /// Packed u8.
    UInt8Array = 26,
    /// Packed little-endian u16.
    UInt16Array = 27,
    /// Packed little-endian u32.
    UInt32Array = 28,
    /// Packed little-endian u64.
    UInt64Array = 29,
    /// Packed little-endian f32.
    FloatArray = 30,
    /// Packed little-endian f64.
    DoubleArray = 31,
    /// Little-endian u32 count, then bits, most significant first.
    BooleanArray = 32,
    /// Strings, each ended by a zero byte.
    StringArray = 33,
    /// Packed little-endian u64 milliseconds.
    DateTimeArray = 34,
}

/// A code that the norm does not define.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("datatype {0} is not one of 0 to 34")]
pub struct UnknownDataType(pub u32);

impl TryFrom<u32> for DataType {
    type Error = UnknownDataType;

    fn try_from(code: u32) -> Result<Self, UnknownDataType> {
        usize::try_from(code)
            .ok()
            .and_then(|code| Self::ALL.get(code).copied())
            .ok_or(UnknownDataType(code))
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl DataType {
    /// The code on the wire.
    #[must_use]
    pub fn code(self) -> u32 {
        u32::from(self as u8)
    }

    /// Reads the norm's name, such as `Int32`; case matters.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.as_str() == name)
    }

    /// Basic types, 1 to 14: all that DataSet columns and template parameters may have.
    // tck-id-payloads-dataset-types-value, tck-id-payloads-template-parameter-type-value
    #[must_use]
    pub fn is_basic(self) -> bool {
        matches!(self.code(), 1..=14)
    }

    /// Types that a property may have: the basic ones, PropertySet and PropertySetList.
    // tck-id-payloads-metric-propertyvalue-type-value
    #[must_use]
    pub fn is_property(self) -> bool {
        self.is_basic() || matches!(self, Self::PropertySet | Self::PropertySetList)
    }

    /// Types that a metric may have: all but Unknown and the two that only properties have.
    #[must_use]
    pub fn is_metric(self) -> bool {
        !matches!(
            self,
            Self::Unknown | Self::PropertySet | Self::PropertySetList
        )
    }

    /// Int8 to UInt64, Float, Double.
    #[must_use]
    pub fn is_numeric(self) -> bool {
        matches!(self.code(), 1..=10)
    }

    /// Packed array types, 22 to 34.
    #[must_use]
    pub fn is_array(self) -> bool {
        matches!(self.code(), 22..=34)
    }

    /// Inclusive range of the integer types.
    #[must_use]
    pub fn integer_range(self) -> Option<(i128, i128)> {
        Some(match self {
            Self::Int8 => (i8::MIN.into(), i8::MAX.into()),
            Self::Int16 => (i16::MIN.into(), i16::MAX.into()),
            Self::Int32 => (i32::MIN.into(), i32::MAX.into()),
            Self::Int64 => (i64::MIN.into(), i64::MAX.into()),
            Self::UInt8 => (0, u8::MAX.into()),
            Self::UInt16 => (0, u16::MAX.into()),
            Self::UInt32 => (0, u32::MAX.into()),
            Self::UInt64 | Self::DateTime => (0, u64::MAX.into()),
            _ => return None,
        })
    }
}
