//! What a host session takes in and what it tells.

use std::fmt;
use std::sync::Arc;

use crate::metric::Metric;
use crate::state::HostState;
use crate::topic::{DeviceId, NodeId};

/// One of the MQTT servers that the host is connected to; 0 is the embedded broker by convention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ServerId(pub u16);

/// A message as it came from a server.
#[derive(Debug, Clone)]
pub struct Message<'a> {
    /// Topic name.
    pub topic: &'a str,
    /// Application payload.
    pub payload: &'a [u8],
    /// Wall clock at arrival, ms UTC.
    pub received_ms: u64,
    /// MQTT client id of the publisher, where the broker can tell.
    pub client: Option<Arc<str>>,
    /// The server it came through.
    pub server: ServerId,
    /// It was delivered out of the retained store, so that it is old by definition.
    pub retained: bool,
    /// It is the publisher's will, where the broker can tell.
    pub will: bool,
    /// Handed back in the one event that settles this message.
    pub tag: u64,
}

/// A message to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transmit {
    /// Where to.
    pub server: ServerId,
    /// Topic name.
    pub topic: String,
    /// Payload.
    pub payload: Vec<u8>,
    /// 0 or 1.
    pub qos: u8,
    /// RETAIN flag.
    pub retain: bool,
}

/// The resolved content of a birth or data message.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// [`Message::tag`] of the message.
    pub tag: u64,
    /// Wall clock at arrival, ms UTC.
    pub received_ms: u64,
    /// Send time from the payload, ms UTC; the time of arrival when it has none.
    pub timestamp: u64,
    /// Sequence number.
    pub seq: Option<u8>,
    /// `bdSeq` of the session the message belongs to.
    pub bdseq: Option<u64>,
    /// Schema version of the node or device, from 1.
    pub schema: u32,
    /// Metrics in the order of the payload; several samples of one metric stay apart.
    pub metrics: Vec<Metric>,
    /// Metrics that could not be used.
    pub rejected: Vec<Rejected>,
}

/// A metric that could not be used. Its neighbours were.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// Index in the payload.
    pub index: usize,
    /// Name, if it has one or its alias is known.
    pub name: Option<Arc<str>>,
    /// Alias, if it has one.
    pub alias: Option<u64>,
    /// Why.
    pub reason: InvalidReason,
    /// The fault with its values.
    pub detail: String,
}

/// How a metric set differs from the one before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaChange {
    /// New version.
    pub version: u32,
    /// Version before; 0 for the first birth.
    pub previous: u32,
    /// What it means for readers.
    pub change: SchemaImpact,
    /// Names that are new.
    pub added: Vec<Arc<str>>,
    /// Names that are gone.
    pub removed: Vec<Arc<str>>,
    /// Names whose datatype differs.
    pub changed: Vec<Arc<str>>,
}

/// What a schema change means for readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SchemaImpact {
    /// Only new metrics.
    Additive,
    /// Numeric types became wider.
    Compatible,
    /// Metrics are gone or have another type.
    Breaking,
}

impl SchemaImpact {
    /// Stable word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Additive => "additive",
            Self::Compatible => "compatible",
            Self::Breaking => "breaking",
        }
    }
}

/// Why a node counts as dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeathCause {
    /// It published NDEATH.
    Death,
    /// The broker published its will.
    Will,
    /// The host concluded it: link lost, or silent after a restart.
    Stale,
}

impl DeathCause {
    /// Stable word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Death => "death",
            Self::Will => "will",
            Self::Stale => "stale",
        }
    }
}

macro_rules! reasons {
    ($(#[$head:meta])* $type:ident { $($(#[$doc:meta])* $name:ident = $word:literal),+ $(,)? }) => {
        $(#[$head])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $type { $($(#[$doc])* $name),+ }

        impl $type {
            /// Every one of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// Stable snake_case name, as status counters show it.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $word),+ }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

reasons! {
    /// Why a message, or one metric of it, was refused.
    InvalidReason {
        /// The topic is no Sparkplug topic.
        Topic = "topic",
        /// The payload is no Sparkplug payload.
        Payload = "payload",
        /// A compressed payload cannot be inflated within bounds.
        Compressed = "compressed",
        /// A STATE payload is malformed.
        State = "state",
        /// A retained birth, data or death: not live.
        Retained = "retained",
        /// `seq` is missing or not 0 to 255.
        Sequence = "sequence",
        /// Data or a device message of a node that has not been born.
        DataBeforeBirth = "data_before_birth",
        /// A device message of a device that has not been born since its node's birth.
        UnknownDevice = "unknown_device",
        /// It waited behind a gap that did not close.
        SequenceGap = "sequence_gap",
        /// It came after a gap and before the rebirth that the gap called for.
        AwaitingRebirth = "awaiting_rebirth",
        /// An NDEATH without `bdSeq`.
        DeathWithoutBdSeq = "death_without_bdseq",
        /// An NDEATH of a node that was never seen.
        UnknownNode = "unknown_node",
        /// A second client publishes under the identity of a live node.
        DuplicateIdentity = "duplicate_identity",
        /// The limit on nodes is reached.
        TooManyNodes = "too_many_nodes",
        /// The limit on devices of one node is reached.
        TooManyDevices = "too_many_devices",
        /// The limit on metrics is reached.
        TooManyMetrics = "too_many_metrics",
        /// Metric: the alias has no meaning for this node or device.
        UnknownAlias = "unknown_alias",
        /// Metric: the name is not in the birth and no datatype comes with it.
        UnknownMetric = "unknown_metric",
        /// Metric: neither name nor alias.
        Unnamed = "unnamed",
        /// Metric: datatype is not one of 0 to 34, or not allowed here.
        Datatype = "datatype",
        /// Metric: neither value nor `is_null`.
        MissingValue = "missing_value",
        /// Metric: the value lies in a field that cannot hold its type.
        WrongType = "wrong_type",
        /// Metric: the number does not fit its type.
        OutOfRange = "out_of_range",
        /// Metric: malformed bytes, array, DataSet or template.
        Malformed = "malformed",
        /// Metric: nested too deeply, or too many parts.
        TooLarge = "too_large",
    }
}

reasons! {
    /// Why a well-formed message has no effect.
    IgnoredReason {
        /// Delivered before.
        Duplicate = "duplicate",
        /// An NDEATH of an earlier session.
        StaleDeath = "stale_death",
        /// An NDEATH of a session that is dead already.
        RepeatedDeath = "repeated_death",
        /// Sent before the birth that is in force.
        Superseded = "superseded",
        /// A command, of this host or another.
        Command = "command",
        /// The node's session is on another server.
        OtherServer = "other_server",
    }
}

reasons! {
    /// Why a rebirth was requested.
    RebirthCause {
        /// A gap in `seq` did not close in time.
        ReorderTimeout = "reorder_timeout",
        /// Data, DBIRTH or DDEATH without NBIRTH.
        DataBeforeBirth = "data_before_birth",
        /// A device message without DBIRTH.
        UnknownDevice = "unknown_device",
        /// A metric that the birth does not name.
        UnknownMetric = "unknown_metric",
        /// An alias that the birth does not give.
        UnknownAlias = "unknown_alias",
        /// A birth gives one alias to two metrics.
        DuplicateAlias = "duplicate_alias",
        /// A payload could not be read.
        Undecodable = "undecodable",
        /// A node known from before a restart speaks, and messages are missing in between.
        Unverified = "unverified",
        /// The host's own connection was interrupted.
        Reconnected = "reconnected",
        /// An operator asked for it.
        Operator = "operator",
    }
}

/// What happened.
///
/// Each [`Message`] is settled by exactly one event that carries its tag, at once or when the gap before it has
/// closed: any of those for which [`HostEvent::tag`] is `Some`.
#[derive(Debug, Clone, PartialEq)]
pub enum HostEvent {
    /// A node was born or born again.
    NodeBirth {
        /// The node.
        node: NodeId,
        /// The same MQTT session was born before: nothing was lost in between.
        rebirth: bool,
        /// How the metric set differs, if it does.
        schema: Option<SchemaChange>,
        /// Devices that are stale until their own birth.
        // NBIRTH resets devices.
        devices: Vec<Arc<str>>,
        /// Its metrics.
        record: Record,
    },
    /// A device was born or born again.
    DeviceBirth {
        /// The device.
        device: DeviceId,
        /// It was online already in this session of its node.
        rebirth: bool,
        /// How the metric set differs, if it does.
        schema: Option<SchemaChange>,
        /// Its metrics.
        record: Record,
    },
    /// Data of node metrics.
    NodeData {
        /// The node.
        node: NodeId,
        /// The metrics.
        record: Record,
    },
    /// Data of device metrics.
    DeviceData {
        /// The device.
        device: DeviceId,
        /// The metrics.
        record: Record,
    },
    /// A node and all its devices are offline, their metrics stale.
    NodeDeath {
        /// The message, where there was one.
        tag: Option<u64>,
        /// The node.
        node: NodeId,
        /// Why.
        cause: DeathCause,
        /// `bdSeq` of the session that ended.
        bdseq: Option<u64>,
        /// When, by the host's clock, ms UTC.
        // tck-id-operational-behavior-edge-node-termination-host-action-ndeath-node-offline
        at_ms: u64,
        /// Devices that went down with it.
        devices: Vec<Arc<str>>,
    },
    /// A device is offline, its metrics stale.
    DeviceDeath {
        /// The message.
        tag: u64,
        /// The device.
        device: DeviceId,
        /// Sequence number.
        seq: Option<u8>,
        /// `bdSeq` of the node's session.
        bdseq: Option<u64>,
        /// When, by the payload's clock, ms UTC.
        // tck-id-operational-behavior-edge-node-termination-host-action-ddeath-devices-offline
        at_ms: u64,
        /// Wall clock at arrival, ms UTC.
        received_ms: u64,
    },
    /// A rebirth request is among the messages to transmit.
    RebirthRequested {
        /// The node.
        node: NodeId,
        /// Why.
        cause: RebirthCause,
        /// 1 for the first request, more for repetitions.
        attempt: u32,
    },
    /// Devices that were online before their node's birth have not been born again within the grace time.
    DevicesMissing {
        /// The node.
        node: NodeId,
        /// The devices.
        devices: Vec<Arc<str>>,
    },
    /// Two clients publish under one identity.
    // tck-id-intro-edge-node-id-uniqueness, tck-id-payloads-nbirth-edge-node-descriptor
    DuplicateIdentity {
        /// The node.
        node: NodeId,
        /// Client id of the session that is in force.
        first: Arc<str>,
        /// Client id of the other one.
        second: Arc<str>,
    },
    /// A host's presence changed or was repeated.
    HostState {
        /// The message.
        tag: u64,
        /// The host.
        host: Arc<str>,
        /// Its state.
        state: HostState,
    },
    /// Someone else publishes on this host's STATE topic, again and again.
    // tck-id-operational-behavior-host-application-host-id
    HostConflict {
        /// On this server.
        server: ServerId,
        /// Client id, where known.
        client: Option<Arc<str>>,
    },
    /// A message was refused.
    Invalid {
        /// The message.
        tag: u64,
        /// Why.
        reason: InvalidReason,
        /// Its topic.
        topic: String,
        /// The fault with its values.
        detail: String,
    },
    /// A message has no effect, and need not have.
    Ignored {
        /// The message.
        tag: u64,
        /// Why.
        reason: IgnoredReason,
        /// Its topic.
        topic: String,
    },
}

impl HostEvent {
    /// The message that this event settles.
    #[must_use]
    pub fn tag(&self) -> Option<u64> {
        match self {
            Self::NodeBirth { record, .. }
            | Self::DeviceBirth { record, .. }
            | Self::NodeData { record, .. }
            | Self::DeviceData { record, .. } => Some(record.tag),
            Self::NodeDeath { tag, .. } => *tag,
            Self::DeviceDeath { tag, .. }
            | Self::HostState { tag, .. }
            | Self::Invalid { tag, .. }
            | Self::Ignored { tag, .. } => Some(*tag),
            Self::RebirthRequested { .. }
            | Self::DevicesMissing { .. }
            | Self::DuplicateIdentity { .. }
            | Self::HostConflict { .. } => None,
        }
    }
}
