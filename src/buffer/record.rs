//! The unit of the journal: one record a Sparkplug message, alarm, command, inference or gap.

use std::sync::Arc;

use bytes::Bytes;

/// Strictly rising id of a record in one journal epoch; the first is 1.
pub type RecordId = u64;

/// What a record is. The class decides its subject, its lane and what goes first when space runs out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Class {
    /// NDATA or DDATA.
    Data = 1,
    /// NBIRTH or DBIRTH.
    Birth = 2,
    /// NDEATH or DDEATH, or what the host concluded from silence.
    Death = 3,
    /// A changed metric set.
    Schema = 4,
    /// A model's result.
    Inference = 5,
    /// A text's vector.
    Embedding = 6,
    /// Records that are lost or can't be sent, named in their place.
    Gap = 7,
    /// Presence of this gateway.
    Status = 8,
    /// A forwarded message of a topic that isn't Sparkplug's.
    Raw = 9,
    /// An ISA-18.2 alarm event.
    Alarm = 10,
    /// A local write and its outcome.
    Command = 11,
}

/// Which of the gateway's two JetStream streams a record goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Lane {
    /// `SPARKGATE_<gateway>`: a device's story, in order.
    Data = 0,
    /// `SPARKGATE_<gateway>_ALARMS`: alarms and commands, never behind a backlog of data.
    Alarms = 1,
}

impl Lane {
    /// The word in file names, object keys and figures.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Alarms => "alarms",
        }
    }

    /// Inverse of [`as_str`](Self::as_str).
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        LANES.into_iter().find(|lane| lane.as_str() == name)
    }
}

/// Both lanes.
pub const LANES: [Lane; 2] = [Lane::Data, Lane::Alarms];

impl Class {
    /// The token in subjects and CloudEvents types.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Birth => "birth",
            Self::Death => "death",
            Self::Schema => "schema",
            Self::Inference => "inference",
            Self::Embedding => "embedding",
            Self::Gap => "gap",
            Self::Status => "status",
            Self::Raw => "raw",
            Self::Alarm => "alarm",
            Self::Command => "command",
        }
    }

    /// The lane this class travels in.
    #[must_use]
    pub fn lane(self) -> Lane {
        match self {
            Self::Alarm | Self::Command => Lane::Alarms,
            Self::Data
            | Self::Birth
            | Self::Death
            | Self::Schema
            | Self::Inference
            | Self::Embedding
            | Self::Gap
            | Self::Status
            | Self::Raw => Lane::Data,
        }
    }

    /// Inverse of [`as_str`](Self::as_str).
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        (1..=u8::MAX)
            .map_while(Self::from_u8)
            .find(|class| class.as_str() == name)
    }

    /// Inverse of `as u8`.
    #[must_use]
    pub fn from_u8(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Data,
            2 => Self::Birth,
            3 => Self::Death,
            4 => Self::Schema,
            5 => Self::Inference,
            6 => Self::Embedding,
            7 => Self::Gap,
            8 => Self::Status,
            9 => Self::Raw,
            10 => Self::Alarm,
            11 => Self::Command,
            _ => return None,
        })
    }
}

/// Whether a record came from outside or was made here; the two sides of the counters' identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Origin {
    /// One accepted MQTT message.
    Received = 0,
    /// Made by the gateway: alarm, command, inference, gap, schema, status.
    Derived = 1,
}

/// Whose record it is. `node` is `None` for group- and gateway-level records, `device` is `None` for
/// node-level ones.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Sparkplug group id; `None` for gateway-level records.
    pub group: Option<Arc<str>>,
    /// Sparkplug edge node id.
    pub node: Option<Arc<str>>,
    /// Sparkplug device id.
    pub device: Option<Arc<str>>,
}

impl Key {
    /// The gateway itself.
    #[must_use]
    pub const fn gateway() -> Self {
        Self {
            group: None,
            node: None,
            device: None,
        }
    }

    /// A device.
    #[must_use]
    pub fn device(group: &str, node: &str, device: &str) -> Self {
        Self {
            group: Some(group.into()),
            node: Some(node.into()),
            device: Some(device.into()),
        }
    }
}

/// What made a derived record. `(record, rule, index)` is unique, so that a replay after a crash appends
/// only what is not there yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cause {
    /// The record that moved the rule or fed the model.
    pub record: RecordId,
    /// Stable hash of the rule or model id.
    pub rule: u64,
    /// Position among what this rule made of this record.
    pub index: u32,
}

/// A record before the journal gave it an id.
#[derive(Debug, Clone, PartialEq)]
pub struct NewRecord {
    /// Kind of record.
    pub class: Class,
    /// Received or derived.
    pub origin: Origin,
    /// Engine time in ms: a persisted base plus the monotonic clock; never steps, goes on over restarts.
    pub engine_ms: u64,
    /// Wall clock at arrival, ms UTC.
    pub received_ms: u64,
    /// Whether the wall clock was trusted at `received_ms`.
    pub clock_trusted: bool,
    /// Whose record it is.
    pub key: Key,
    /// Sparkplug `seq`, where the message carries one.
    pub seq: Option<u8>,
    /// Sparkplug `bdSeq` of NBIRTH and NDEATH.
    pub bdseq: Option<u64>,
    /// Version of the metric set that this record was resolved with.
    pub schema: Option<u32>,
    /// What made it; `None` for received records.
    pub cause: Option<Cause>,
    /// W3C traceparent, 55 bytes.
    pub traceparent: Option<Box<str>>,
    /// `data` and `birth`: the resolved Sparkplug payload (protobuf; every metric with name and datatype).
    /// `embedding`: little-endian f32. `raw`: the MQTT payload. Every other class: the JSON body.
    pub body: Bytes,
    /// Headers of its own: the topic of a `raw` record, model and vector version of an `embedding`.
    pub extra: Vec<(Box<str>, Box<str>)>,
}

impl NewRecord {
    /// A record of so much, at these times of a trusted clock; everything else is absent.
    #[must_use]
    pub fn new(
        class: Class,
        origin: Origin,
        engine_ms: u64,
        received_ms: u64,
        key: Key,
        body: impl Into<Bytes>,
    ) -> Self {
        Self {
            class,
            origin,
            engine_ms,
            received_ms,
            clock_trusted: true,
            key,
            seq: None,
            bdseq: None,
            schema: None,
            cause: None,
            traceparent: None,
            body: body.into(),
            extra: Vec::new(),
        }
    }
}

/// A record in the journal.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Strictly rising id.
    pub id: RecordId,
    /// The record before it in the same lane (0 for the first): `Sparkgate-Prev`.
    pub prev: RecordId,
    /// Everything else.
    pub data: NewRecord,
}

impl std::ops::Deref for Record {
    type Target = NewRecord;
    fn deref(&self) -> &NewRecord {
        &self.data
    }
}
