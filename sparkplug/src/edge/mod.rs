//! The edge node's side of the norm, without I/O and without a codec.
//!
//! [`EdgeSession`] decides what to send: which message, with which `seq` and `bdSeq`, on which topic. Its caller
//! fills in the metrics and encodes them with a codec of its own, so that a simulated device and the gateway
//! cannot share a mistake in the wire format.

mod primary;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::host::REBIRTH;
use crate::seq::Seq;
use crate::state::{HostState, legacy_topic};
use crate::topic::{DeviceVerb, NodeId, NodeVerb, state_topic};
pub use primary::HostChange;
use primary::Primary;

/// Configuration of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EdgeConfig {
    /// Who it is.
    pub node: NodeId,
    /// Host without which it stays silent, if any.
    pub primary_host: Option<Arc<str>>,
    /// How many servers its list has; it walks them in turn.
    pub servers: usize,
    /// `bdSeq` of the first CONNECT; the norm starts at 0, nodes that remember go on.
    pub first_bdseq: u8,
}

/// The will of one CONNECT: an NDEATH with one metric, `bdSeq`, Int64, and no `seq`.
// tck-id-message-flow-edge-node-birth-publish-will-message-qos, -will-message-will-retained
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WillSpec {
    /// NDEATH topic.
    pub topic: String,
    /// `bdSeq` of this connection.
    pub bdseq: u8,
    /// Always 1.
    pub qos: u8,
    /// Always false.
    pub retain: bool,
}

/// What kind of message to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// NBIRTH: all node metrics, `bdSeq` (Int64) and `Node Control/Rebirth` = false among them.
    NodeBirth {
        /// The will's.
        bdseq: u8,
    },
    /// DBIRTH: all metrics of the device.
    DeviceBirth(Arc<str>),
    /// NDATA.
    NodeData,
    /// DDATA.
    DeviceData(Arc<str>),
    /// DDEATH: no metrics.
    DeviceDeath(Arc<str>),
    /// NDEATH, published on purpose: `bdSeq` alone.
    NodeDeath {
        /// The will's.
        bdseq: u8,
    },
}

/// A message to send, QoS 0 and not retained, always.
// tck-id-topics-nbirth-mqtt, tck-id-topics-ndata-mqtt, tck-id-topics-dbirth-mqtt, tck-id-topics-ddata-mqtt,
// tck-id-topics-ddeath-mqtt
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// Topic name.
    pub topic: String,
    /// Which message.
    pub kind: Kind,
    /// `seq`; NDEATH has none.
    pub seq: Option<Seq>,
}

/// What the session wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EdgeAction {
    /// Nothing.
    None,
    /// Send these, in order: the births.
    Send(Vec<Outgoing>),
    /// Publish the death, disconnect, and connect to the next server.
    // tck-id-operational-behavior-edge-node-termination-host-offline-reconnect,
    // tck-id-message-flow-edge-node-birth-publish-phid-offline
    Leave {
        /// NDEATH to publish first; `None` when the node was not born.
        death: Option<Outgoing>,
        /// Index of the server to try next.
        server: usize,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Disconnected,
    /// CONNECT sent, subscriptions not confirmed.
    Connecting,
    /// Waiting for the primary host.
    Waiting,
    Born,
}

/// One edge node's session.
///
/// [`connect`](Self::connect) before each CONNECT, [`ready`](Self::ready) when the subscriptions stand,
/// [`handle_state`](Self::handle_state) for STATE messages, [`rebirth`](Self::rebirth) when asked for one,
/// [`disconnected`](Self::disconnected) when the connection is gone. Data methods give `None` while the node may
/// not speak.
#[derive(Debug, Clone)]
pub struct EdgeSession {
    config: EdgeConfig,
    phase: Phase,
    server: usize,
    bdseq: u8,
    connected_before: bool,
    seq: Seq,
    primary: Primary,
    /// What the host said on this connection before the subscriptions stood.
    early: Option<HostChange>,
    devices: Vec<Arc<str>>,
    next_alias: u64,
}

impl EdgeSession {
    /// A node that has not connected yet.
    #[must_use]
    pub fn new(config: EdgeConfig) -> Self {
        Self {
            primary: Primary::new(config.servers),
            bdseq: config.first_bdseq,
            config,
            phase: Phase::Disconnected,
            server: 0,
            connected_before: false,
            seq: Seq::default(),
            early: None,
            devices: Vec::new(),
            next_alias: 1,
        }
    }

    /// Who it is.
    #[must_use]
    pub fn node(&self) -> &NodeId {
        &self.config.node
    }

    /// `bdSeq` of the current or last connection.
    #[must_use]
    pub fn bdseq(&self) -> u8 {
        self.bdseq
    }

    /// Index of the server in use.
    #[must_use]
    pub fn server(&self) -> usize {
        self.server
    }

    /// Whether births are out and data may follow.
    #[must_use]
    pub fn is_born(&self) -> bool {
        self.phase == Phase::Born
    }

    /// A CONNECT is about to be sent: the will for it. Every CONNECT counts, also one that fails.
    // tck-id-topics-nbirth-bdseq-increment,
    // tck-id-message-flow-edge-node-birth-publish-will-message-payload-bdSeq
    pub fn connect(&mut self) -> WillSpec {
        if self.connected_before {
            self.bdseq = self.bdseq.wrapping_add(1);
        }
        self.connected_before = true;
        self.early = None;
        self.phase = Phase::Connecting;
        WillSpec {
            topic: self.config.node.topic(NodeVerb::Death),
            bdseq: self.bdseq,
            qos: 1,
            retain: false,
        }
    }

    /// Filters to subscribe to with QoS 1 before [`ready`](Self::ready): commands to the node and its devices,
    /// and the primary host's STATE in both forms.
    // tck-id-message-flow-edge-node-ncmd-subscribe, tck-id-message-flow-device-dcmd-subscribe
    #[must_use]
    pub fn filters(&self) -> Vec<String> {
        let node = &self.config.node;
        let mut filters = vec![
            node.topic(NodeVerb::Command),
            node.device_topic(DeviceVerb::Command, "+"),
        ];
        if let Some(host) = &self.config.primary_host {
            filters.push(state_topic(host));
            filters.push(legacy_topic(host));
        }
        filters
    }

    /// The subscriptions stand: births, unless the primary host has to come first.
    // tck-id-message-flow-edge-node-birth-publish-phid-wait
    pub fn ready(&mut self) -> EdgeAction {
        if self.phase != Phase::Connecting {
            return EdgeAction::None;
        }
        self.phase = Phase::Waiting;
        if self.config.primary_host.is_none() {
            return EdgeAction::Send(self.births());
        }
        // STATE is retained: it may have come with the first SUBACK, before the last.
        match std::mem::take(&mut self.early) {
            Some(HostChange::Online) => EdgeAction::Send(self.births()),
            Some(HostChange::Offline) if self.config.servers > 1 => self.leave(),
            Some(HostChange::Offline | HostChange::Old) | None => EdgeAction::None,
        }
    }

    /// A message on a STATE topic, of 3.0 or of 2.2.
    // tck-id-message-flow-edge-node-birth-publish-phid-wait-id, -phid-wait-online, -phid-offline
    pub fn handle_state(&mut self, topic: &str, payload: &[u8]) -> EdgeAction {
        let Some(host) = &self.config.primary_host else {
            return EdgeAction::None;
        };
        let state = if topic == state_topic(host) {
            HostState::parse(payload).ok()
        } else if topic == legacy_topic(host) {
            HostState::parse_legacy(payload)
        } else {
            None
        };
        let Some(state) = state else {
            return EdgeAction::None;
        };
        match (self.primary.handle(self.server, state), self.phase) {
            (HostChange::Old, _) => EdgeAction::None,
            (change, Phase::Connecting) => {
                self.early = Some(change);
                EdgeAction::None
            }
            (HostChange::Online, Phase::Waiting) => EdgeAction::Send(self.births()),
            // With one server there is none to walk to: a node that waits already keeps its connection.
            (HostChange::Offline, Phase::Waiting) if self.config.servers <= 1 => EdgeAction::None,
            (HostChange::Offline, Phase::Waiting | Phase::Born) => self.leave(),
            _ => EdgeAction::None,
        }
    }

    /// Whether the primary host is known to be up on the present server; true without one.
    #[must_use]
    pub fn host_online(&self) -> bool {
        self.config.primary_host.is_none() || self.primary.is_online(self.server)
    }

    /// A host asked for a rebirth: all births again, same `bdSeq`, no death, no new connection.
    // tck-id-operational-behavior-data-commands-rebirth-action-1, -action-2, -action-3
    pub fn rebirth(&mut self) -> EdgeAction {
        if self.is_born() {
            EdgeAction::Send(self.births())
        } else {
            EdgeAction::None
        }
    }

    /// All births: what [`ready`](Self::ready), [`rebirth`](Self::rebirth) and the host's coming send.
    // tck-id-message-flow-device-birth-publish-nbirth-wait, tck-id-payloads-dbirth-order
    fn births(&mut self) -> Vec<Outgoing> {
        self.phase = Phase::Born;
        // tck-id-topics-nbirth-seq-num
        self.seq = Seq::new(0);
        let bdseq = self.bdseq;
        let mut births = vec![Outgoing {
            topic: self.config.node.topic(NodeVerb::Birth),
            kind: Kind::NodeBirth { bdseq },
            seq: Some(self.next_seq()),
        }];
        for device in self.devices.clone() {
            births.push(self.of_device(
                DeviceVerb::Birth,
                Kind::DeviceBirth(device.clone()),
                &device,
            ));
        }
        births
    }

    /// `seq` of the next message; each call uses one up.
    pub fn next_seq(&mut self) -> Seq {
        let seq = self.seq;
        self.seq = seq.next();
        seq
    }

    /// NDATA.
    pub fn node_data(&mut self) -> Option<Outgoing> {
        self.is_born().then(|| Outgoing {
            topic: self.config.node.topic(NodeVerb::Data),
            kind: Kind::NodeData,
            seq: Some(self.next_seq()),
        })
    }

    /// DDATA of a device that is there.
    pub fn device_data(&mut self, device: &str) -> Option<Outgoing> {
        let device = self.find(device)?;
        self.is_born()
            .then(|| self.of_device(DeviceVerb::Data, Kind::DeviceData(device.clone()), &device))
    }

    /// A device is there from now on. Its DBIRTH, when the node is born; otherwise it comes with the births.
    pub fn add_device(&mut self, device: &str) -> Option<Outgoing> {
        let device = match self.find(device) {
            Some(device) => device,
            None => {
                let device: Arc<str> = device.into();
                self.devices.push(device.clone());
                device
            }
        };
        self.is_born().then(|| {
            self.of_device(
                DeviceVerb::Birth,
                Kind::DeviceBirth(device.clone()),
                &device,
            )
        })
    }

    /// A device is gone. Its DDEATH, when the node is born.
    // tck-id-operational-behavior-device-ddeath
    pub fn remove_device(&mut self, device: &str) -> Option<Outgoing> {
        let device = self.find(device)?;
        self.devices.retain(|it| *it != device);
        self.is_born().then(|| {
            self.of_device(
                DeviceVerb::Death,
                Kind::DeviceDeath(device.clone()),
                &device,
            )
        })
    }

    /// The node leaves on purpose: NDEATH to publish before DISCONNECT. `None` when it was not born.
    // tck-id-operational-behavior-edge-node-intentional-disconnect-ndeath, tck-id-topics-ndeath-seq
    pub fn death(&mut self) -> Option<Outgoing> {
        let born = self.is_born();
        self.phase = Phase::Disconnected;
        let bdseq = self.bdseq;
        born.then(|| Outgoing {
            topic: self.config.node.topic(NodeVerb::Death),
            kind: Kind::NodeDeath { bdseq },
            seq: None,
        })
    }

    /// The connection is gone without our doing.
    pub fn disconnected(&mut self) {
        self.phase = Phase::Disconnected;
    }

    // tck-id-operational-behavior-primary-application-state-with-multiple-servers-walk
    fn leave(&mut self) -> EdgeAction {
        let death = self.death();
        self.server = (self.server + 1) % self.config.servers.max(1);
        EdgeAction::Leave {
            death,
            server: self.server,
        }
    }

    /// An alias for a metric, unique over the node and all its devices; none for the rebirth metric.
    // tck-id-payloads-alias-uniqueness, tck-id-operational-behavior-data-commands-rebirth-name-aliases
    pub fn assign_alias(&mut self, metric: &str) -> Option<u64> {
        (metric != REBIRTH).then(|| {
            let alias = self.next_alias;
            self.next_alias += 1;
            alias
        })
    }

    /// Devices in the order in which they came.
    #[must_use]
    pub fn devices(&self) -> &[Arc<str>] {
        &self.devices
    }

    fn find(&self, device: &str) -> Option<Arc<str>> {
        self.devices.iter().find(|it| &***it == device).cloned()
    }

    fn of_device(&mut self, verb: DeviceVerb, kind: Kind, device: &str) -> Outgoing {
        Outgoing {
            topic: self.config.node.device_topic(verb, device),
            kind,
            seq: Some(self.next_seq()),
        }
    }
}
