//! A metric as everything behind the decoder sees it: named, typed, timed.

use std::fmt;
use std::sync::Arc;

use crate::datatype::DataType;
use crate::property::PropertySet;
use crate::value::Value;

/// Where a metric's time came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TimeSource {
    /// The metric itself, as the norm wants.
    #[default]
    Metric,
    /// The payload: the metric had none.
    Payload,
    /// The host's clock at arrival: neither had one.
    Arrival,
}

/// Remarks of the decoder and the host session about one metric; a set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct MetricFlags(u16);

macro_rules! flags {
    ($($(#[$doc:meta])* $name:ident = $bit:literal, $word:literal);+ $(;)?) => {
        impl MetricFlags {
            $($(#[$doc])* pub const $name: Self = Self(1 << $bit);)+
            const WORDS: &'static [(Self, &'static str)] = &[$((Self::$name, $word)),+];
        }
    };
}

flags! {
    /// The birth does not name this metric; name and datatype are the payload's own.
    UNKNOWN_IN_BIRTH = 0, "unknown_in_birth";
    /// The payload repeats a datatype that differs from the birth's; the birth's is used.
    DATATYPE_MISMATCH = 1, "datatype_mismatch";
    /// `is_null` and a value were both there; null wins.
    NULL_WITH_VALUE = 2, "null_with_value";
    /// A rebirth repeats what was already known: rules must not fire again, counts must not grow.
    UNCHANGED = 3, "unchanged";
    /// Name or type come from a birth that is not known to be in force any more.
    UNVERIFIED = 4, "unverified";
    /// The value came in another field than its type has.
    WRONG_ARM = 5, "wrong_arm";
    /// Name and alias mean different metrics; the name is used.
    ALIAS_CONFLICT = 6, "alias_conflict";
    /// The time was in seconds and has been multiplied by 1,000.
    TIME_IN_SECONDS = 7, "time_in_seconds";
    /// The time lies more than an hour after arrival.
    TIME_IN_FUTURE = 8, "time_in_future";
    /// Quality is none of 0, 192 and 500.
    QUALITY_UNKNOWN = 9, "quality_unknown";
    /// The properties could not be read and are left out.
    PROPERTIES_INVALID = 10, "properties_invalid";
    /// Neither payload nor birth gives a datatype; the value is read by its field alone.
    NO_DATATYPE = 11, "no_datatype";
    /// The alias stood for another metric already and is not used for this one.
    ALIAS_TAKEN = 12, "alias_taken";
    /// The name occurs twice in a birth; the later one counts.
    NAME_REPEATED = 13, "name_repeated";
}

impl MetricFlags {
    /// No remark.
    pub const NONE: Self = Self(0);

    /// Whether every remark of `other` is in here.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Adds the remarks of `other`.
    pub fn insert(&mut self, other: Self) {
        self.0 |= other.0;
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The set as bits, as the journal keeps it.
    #[must_use]
    pub fn bits(self) -> u16 {
        self.0
    }

    /// Reads [`MetricFlags::bits`] back; unknown bits are dropped.
    #[must_use]
    pub fn from_bits(bits: u16) -> Self {
        let known = Self::WORDS.iter().fold(0, |all, (flag, _)| all | flag.0);
        Self(bits & known)
    }

    /// Stable snake_case words of the remarks.
    pub fn words(self) -> impl Iterator<Item = &'static str> {
        Self::WORDS
            .iter()
            .filter(move |(flag, _)| self.contains(*flag))
            .map(|(_, word)| *word)
    }
}

impl std::ops::BitOr for MetricFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for MetricFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.words()).finish()
    }
}

/// Metadata of a metric; files have their name here, parts of a file their number.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MetaData {
    /// The value is one part of several.
    pub is_multi_part: Option<bool>,
    /// Media type.
    pub content_type: Option<Arc<str>>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Number of this part.
    pub seq: Option<u64>,
    /// File name.
    pub file_name: Option<Arc<str>>,
    /// File type, such as `xml`.
    pub file_type: Option<Arc<str>>,
    /// MD5 of the data, hexadecimal.
    pub md5: Option<Arc<str>>,
    /// Free text.
    pub description: Option<Arc<str>>,
}

/// A metric with everything resolved that the payload left to the birth.
#[derive(Debug, Clone, PartialEq)]
pub struct Metric {
    /// Full name, shared with the birth's table.
    pub name: Arc<str>,
    /// Alias, when the birth gave one.
    pub alias: Option<u64>,
    /// Type, from the birth where the payload has none.
    pub datatype: DataType,
    /// Value; [`Value::Null`] only when the payload says null.
    pub value: Value,
    /// Milliseconds since 1970-01-01 UTC. The host session always fills it.
    // tck-id-payloads-metric-timestamp-in-UTC
    pub timestamp: Option<u64>,
    /// Where the time came from.
    pub time_source: TimeSource,
    /// A value of the past: it never becomes the current one.
    pub historical: bool,
    /// Not to be stored by consumers.
    pub transient: bool,
    /// The Quality property; absent means good.
    pub quality: Option<i32>,
    /// All properties, Quality included.
    pub properties: Option<Arc<PropertySet>>,
    /// Metadata.
    pub metadata: Option<Arc<MetaData>>,
    /// Remarks.
    pub flags: MetricFlags,
}

impl Metric {
    /// A live metric without time, alias or properties.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>, datatype: DataType, value: Value) -> Self {
        Self {
            name: name.into(),
            alias: None,
            datatype,
            value,
            timestamp: None,
            time_source: TimeSource::Metric,
            historical: false,
            transient: false,
            quality: None,
            properties: None,
            metadata: None,
            flags: MetricFlags::NONE,
        }
    }

    /// Sets the time, milliseconds UTC.
    #[must_use]
    pub fn at(mut self, timestamp: u64) -> Self {
        self.timestamp = Some(timestamp);
        self
    }

    /// Sets the alias.
    #[must_use]
    pub fn aliased(mut self, alias: u64) -> Self {
        self.alias = Some(alias);
        self
    }

    /// Sets the properties, and the quality from them.
    #[must_use]
    pub fn with_properties(mut self, properties: PropertySet) -> Self {
        self.quality = properties.quality();
        self.properties = Some(Arc::new(properties));
        self
    }

    /// Whether rules should see it as something new: live and not a mere repetition.
    #[must_use]
    pub fn is_news(&self) -> bool {
        !self.historical && !self.flags.contains(MetricFlags::UNCHANGED)
    }
}
