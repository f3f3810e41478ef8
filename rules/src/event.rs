//! What goes into the engine: keys, events, and the sample that patterns hold on to.

use std::fmt;
use std::sync::Arc;

use crate::value::Value;

/// Sparkplug's code for a good value.
pub const QUALITY_GOOD: i32 = 192;

/// A device or a node. A rule over a node has the node's key; a rule over a group has a key whose
/// node is empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Group id.
    pub group: Arc<str>,
    /// Edge node id; empty in the key of a group.
    pub node: Arc<str>,
    /// Device id; `None` for the node itself.
    pub device: Option<Arc<str>>,
}

impl Key {
    /// Key of a device.
    #[must_use]
    pub fn device(group: &str, node: &str, device: &str) -> Self {
        Self {
            group: group.into(),
            node: node.into(),
            device: Some(device.into()),
        }
    }

    /// Key of a node.
    #[must_use]
    pub fn node(group: &str, node: &str) -> Self {
        Self {
            group: group.into(),
            node: node.into(),
            device: None,
        }
    }

    /// Reads `group/node/device` or `group/node`; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let (group, node, device) = (parts.next()?, parts.next()?, parts.next());
        if group.is_empty() || node.is_empty() || device == Some("") || parts.next().is_some() {
            return None;
        }
        Some(match device {
            None | Some("_") => Self::node(group, node),
            Some(device) => Self::device(group, node, device),
        })
    }

    /// Whether this stands for a whole group.
    #[must_use]
    pub fn is_group(&self) -> bool {
        self.node.is_empty()
    }

    /// The device as rules name it: `_` for the node itself.
    #[must_use]
    pub fn device_name(&self) -> &str {
        self.device.as_deref().unwrap_or("_")
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.group)?;
        if !self.is_group() {
            write!(f, "/{}", self.node)?;
        }
        match &self.device {
            Some(device) => write!(f, "/{device}"),
            None => Ok(()),
        }
    }
}

/// The record and the place in it that something follows from. `(0, 0)` where no record is the
/// cause: a timer, or a person.
pub type Cause = (u64, u32);

/// What kind of event.
#[derive(Clone, Debug, PartialEq)]
pub enum EventKind {
    /// A metric's value.
    Metric,
    /// A model's score, which stands in the event's value. In expressions its `metric` is the
    /// model's name.
    Score {
        /// Name of the model.
        model: Arc<str>,
    },
    /// The vector of a text metric. In expressions its `value` is null, so that no condition on the
    /// text itself fires a second time.
    Embedding(Arc<[f32]>),
}

/// One value of one metric of one device, at the moment it arrives.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Where it comes from.
    pub key: Key,
    /// Name of the metric.
    pub metric: Arc<str>,
    /// Its value.
    pub value: Value,
    /// Sparkplug's name of the datatype, such as `Int32`; `type` in expressions.
    pub datatype: &'static str,
    /// Sparkplug quality: 192 good, 0 bad, 500 stale.
    pub quality: i32,
    /// The metric's own timestamp, ms UTC.
    pub time_ms: i64,
    /// Engine time, ms; never less than in the call before.
    pub engine_ms: u64,
    /// The payload says `is_historical`.
    pub historical: bool,
    /// A birth repeats a value that is known already: it counts for `current()` and for "there is
    /// data", and fires nothing.
    pub unchanged: bool,
    /// Id of the journal record.
    pub record: u64,
    /// Position of the metric in the record.
    pub index: u32,
    /// Metric, score or embedding.
    pub kind: EventKind,
}

/// Which kind of event a [`Sample`] was.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SampleKind {
    Metric,
    Score,
    Embedding(Arc<[f32]>),
}

/// An event as rules hold it. Cloning allocates nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Where it came from.
    pub source: Arc<Key>,
    /// Name of the metric, or of the model for a score.
    pub metric: Arc<str>,
    /// The value; null for an embedding.
    pub value: Value,
    /// The metric's own timestamp, ms UTC.
    pub time_ms: i64,
    /// Engine time of its arrival, ms.
    pub engine_ms: u64,
    /// Record and position in it.
    pub cause: Cause,
    /// Sparkplug quality.
    pub quality: i32,
    /// Whether it is history.
    pub historical: bool,
    /// Sparkplug's name of the datatype.
    pub datatype: &'static str,
    pub(crate) kind: SampleKind,
}

impl Sample {
    pub(crate) fn of(event: &Event, source: &Arc<Key>) -> Self {
        let (metric, value, kind) = match &event.kind {
            EventKind::Metric => (&event.metric, event.value.clone(), SampleKind::Metric),
            EventKind::Score { model } => (model, event.value.clone(), SampleKind::Score),
            EventKind::Embedding(vector) => (
                &event.metric,
                Value::Null,
                SampleKind::Embedding(vector.clone()),
            ),
        };
        Self {
            source: source.clone(),
            metric: metric.clone(),
            value,
            time_ms: event.time_ms,
            engine_ms: event.engine_ms,
            cause: (event.record, event.index),
            quality: event.quality,
            historical: event.historical,
            datatype: event.datatype,
            kind,
        }
    }

    /// Whether the value may be relied on.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.quality == QUALITY_GOOD
    }
}

/// Which keys a rule keeps state by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// By device; the node itself counts as one.
    Device,
    /// By node, over all its devices.
    Node,
    /// By group, over all its nodes.
    Group,
}

impl Level {
    /// From the smallest on: device, node, group.
    pub(crate) const ALL: [Self; 3] = [Self::Device, Self::Node, Self::Group];

    /// Position in [`ALL`](Self::ALL).
    pub(crate) fn number(self) -> usize {
        match self {
            Self::Device => 0,
            Self::Node => 1,
            Self::Group => 2,
        }
    }

    /// The key of this level that an event of `key` belongs to.
    pub(crate) fn of(self, key: &Key) -> Key {
        match self {
            Self::Device => key.clone(),
            Self::Node => Key {
                group: key.group.clone(),
                node: key.node.clone(),
                device: None,
            },
            Self::Group => Key {
                group: key.group.clone(),
                node: empty(),
                device: None,
            },
        }
    }

    /// The word in a rule file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Node => "node",
            Self::Group => "group",
        }
    }
}

/// The empty text, without an allocation each time.
fn empty() -> Arc<str> {
    static EMPTY: std::sync::LazyLock<Arc<str>> = std::sync::LazyLock::new(|| Arc::from(""));
    EMPTY.clone()
}
