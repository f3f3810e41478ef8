//! The Sparkplug Host Application, without I/O.
//!
//! [`HostSession`] takes messages and the time, and gives back events, messages to publish and the moment at
//! which it wants to be called again. Inside, each edge node is a state machine of its own (`node`, `apply`,
//! `resolve`); this file routes to them and keeps their timers.

mod apply;
mod config;
mod entity;
mod event;
mod identity;
mod invariants;
mod node;
mod persist;
mod presence;
mod rebirth;
mod recycle;
mod resolve;
mod view;
mod write;

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::hash::Hash;

use hashbrown::{Equivalent, HashMap};

pub use apply::BDSEQ;
pub use config::{HostConfig, HostLimits, RebirthPolicy};
pub use entity::MetricState;
pub use event::{
    DeathCause, HostEvent, IgnoredReason, InvalidReason, Message, RebirthCause, Record, Rejected,
    SchemaChange, SchemaImpact, ServerId, Transmit,
};
pub use persist::{RecordKind, RestoreError, Snapshot};
pub use presence::Connect;
pub use rebirth::REBIRTH;
pub use view::{DeviceView, NodeView};
pub use write::WriteError;

use crate::payload::raw::RawPayload;
use crate::seq::Seq;
use crate::topic::{DeviceVerb, NodeId, NodeVerb, TopicRef};
use apply::bdseq_of;
use node::{Cx, Incoming, Node, Verb};
use presence::Presence;
use rebirth::Pace;
use resolve::{open, reason_of_decode};

/// All that a host application knows of its edge nodes.
///
/// # Calling it
/// Inputs are the `handle_*` methods, [`connect`](Self::connect), [`subscribed`](Self::subscribed),
/// [`disconnected`](Self::disconnected), [`stop`](Self::stop), [`write`](Self::write) and
/// [`rebirth`](Self::rebirth). After each one, drain [`poll_event`](Self::poll_event) and
/// [`poll_transmit`](Self::poll_transmit), then arm a timer for [`poll_timeout`](Self::poll_timeout) and call
/// [`handle_timeout`](Self::handle_timeout) when it is due; an early or repeated call does nothing.
///
/// `now` is engine time in milliseconds: it never goes back and need not be wall time. Wall time comes with
/// messages and in `wall_ms` arguments, and is data: nothing is timed by it.
///
/// Every message is settled by exactly one event with its tag ([`HostEvent::tag`]).
#[derive(Debug)]
pub struct HostSession {
    config: HostConfig,
    nodes: Vec<Node>,
    index: HashMap<NodeId, u32>,
    timers: BTreeSet<(u64, u32)>,
    events: VecDeque<HostEvent>,
    transmits: VecDeque<Transmit>,
    presence: Presence,
    pace: Pace,
    dirty: Vec<u32>,
    /// Bytes that wait and metrics, over all nodes.
    parked_total: usize,
    metrics_total: usize,
    /// At most so many metrics lie in lists that were given back.
    spared: usize,
    /// Wall time minus engine time, from the latest input that had both.
    wall_offset: i64,
}

/// A node descriptor that borrows from a topic.
#[derive(Hash)]
struct NodeKey<'a> {
    group: &'a str,
    node: &'a str,
}

impl Equivalent<NodeId> for NodeKey<'_> {
    fn equivalent(&self, id: &NodeId) -> bool {
        &*id.group == self.group && &*id.node == self.node
    }
}

impl HostSession {
    /// A session that knows no node. `now`: engine time, ms.
    #[must_use]
    pub fn new(config: HostConfig, now: u64) -> Self {
        Self {
            presence: Presence::new(config.host_id.clone(), config.publish_state),
            config,
            nodes: Vec::new(),
            index: HashMap::new(),
            timers: BTreeSet::new(),
            events: VecDeque::new(),
            transmits: VecDeque::new(),
            pace: Pace::new(now),
            dirty: Vec::new(),
            parked_total: 0,
            metrics_total: 0,
            spared: 0,
            wall_offset: 0,
        }
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> &HostConfig {
        &self.config
    }

    /// Puts another configuration in force. The host id, and whether STATE is published, stay what they were: it takes
    /// a new connection to change them.
    pub fn reconfigure(&mut self, config: HostConfig) {
        self.config = HostConfig {
            host_id: self.config.host_id.clone(),
            publish_state: self.config.publish_state,
            ..config
        };
    }

    /// Takes one message.
    pub fn handle_message(&mut self, now: u64, message: &Message<'_>) {
        self.note_wall(now, message.received_ms);
        // tck-id-topic-structure: parsed once, here
        let topic = match TopicRef::parse(message.topic) {
            Ok(topic) => topic,
            Err(error) => return self.invalid(message, InvalidReason::Topic, error.to_string()),
        };
        match topic {
            // STATE is JSON and is split off before anything reads protobuf.
            TopicRef::State { host } => {
                self.presence.handle_state(
                    now,
                    message,
                    host,
                    &mut self.events,
                    &mut self.transmits,
                );
            }
            TopicRef::Node {
                verb: NodeVerb::Command,
                ..
            }
            | TopicRef::Device {
                verb: DeviceVerb::Command,
                ..
            } => self.ignored(message, IgnoredReason::Command),
            _ if message.retained => {
                let detail = "delivered from the retained store, so that it is not live";
                self.invalid(message, InvalidReason::Retained, detail);
            }
            TopicRef::Node { verb, group, node } => {
                let verb = match verb {
                    NodeVerb::Birth => return self.node_birth(now, message, group, node),
                    NodeVerb::Death => return self.node_death(now, message, group, node),
                    NodeVerb::Data | NodeVerb::Command => Verb::NodeData,
                };
                self.sequenced(now, message, verb, group, node, None);
            }
            TopicRef::Device {
                verb,
                group,
                node,
                device,
            } => {
                let verb = match verb {
                    DeviceVerb::Birth => Verb::DeviceBirth,
                    DeviceVerb::Death => Verb::DeviceDeath,
                    DeviceVerb::Data | DeviceVerb::Command => Verb::DeviceData,
                };
                self.sequenced(now, message, verb, group, node, Some(device));
            }
        }
    }

    fn sequenced(
        &mut self,
        now: u64,
        message: &Message<'_>,
        verb: Verb,
        group: &str,
        node: &str,
        device: Option<&str>,
    ) {
        let header = RawPayload::parse(message.payload, &self.config.limits.payload);
        let Some(at) = self.node_or_insert(message, group, node) else {
            return;
        };
        let apart = device.is_some_and(|device| self.speaks_apart(at, message, verb, device));
        if !apart && !self.admit(now, at, message) {
            return;
        }
        let header = match header {
            Ok(header) => header,
            Err(error) => {
                self.on_node(now, at, |node, cx| node.want(cx, RebirthCause::Undecodable));
                return self.invalid(message, reason_of_decode(&error), error.to_string());
            }
        };
        // tck-id-payloads-sequence-num-always-included: a proto3 encoder leaves 0 out, so that missing means 0
        let wire = match header.seq {
            Some(wire) => wire,
            None if header.uuid.is_some() => self.inner_seq(&header),
            None => 0,
        };
        let Some(seq) = Seq::from_wire(wire) else {
            let detail = format!("seq {wire} is not 0 to 255");
            return self.invalid(message, InvalidReason::Sequence, detail);
        };
        let incoming = Incoming {
            verb,
            device,
            payload: header,
            timestamp: header.timestamp,
            received_ms: message.received_ms,
            tag: message.tag,
            seq,
        };
        self.on_node(now, at, |node, cx| {
            // A device's own client may share the node's counter or have one of its own: its messages are in order by
            // themselves, and move the node's counter only where they fit it.
            if apart && seq != node.expected {
                node.apply(cx, &incoming);
            } else {
                node.handle_sequenced(cx, incoming);
            }
        });
    }

    /// `seq` of a compressed payload whose envelope has none.
    fn inner_seq(&self, payload: &RawPayload<'_>) -> u64 {
        let limits = &self.config.limits.payload;
        open(payload, limits)
            .ok()
            .and_then(|it| it.payload(limits).ok().and_then(|it| it.seq))
            .unwrap_or_default()
    }

    fn node_birth(&mut self, now: u64, message: &Message<'_>, group: &str, node: &str) {
        let config = self.config.limits.payload;
        let Some(at) = self.node_or_insert(message, group, node) else {
            return;
        };
        let read = RawPayload::parse(message.payload, &config)
            .and_then(|header| open(&header, &config).map(|opened| (header, opened)));
        match read {
            Ok((header, opened)) => {
                self.watch_identity(now, at, message);
                self.on_node(now, at, |node, cx| {
                    node.handle_birth(cx, message, &header, &opened);
                });
            }
            Err(error) => {
                self.on_node(now, at, |node, cx| node.want(cx, RebirthCause::Undecodable));
                self.invalid(message, reason_of_decode(&error), error.to_string());
            }
        }
    }

    fn node_death(&mut self, now: u64, message: &Message<'_>, group: &str, node: &str) {
        let Some(at) = self.index.get(&NodeKey { group, node }).copied() else {
            let detail = "NDEATH of a node that was never seen";
            return self.invalid(message, InvalidReason::UnknownNode, detail);
        };
        let limits = self.config.limits.payload;
        let bdseq = match RawPayload::parse(message.payload, &limits)
            .and_then(|header| open(&header, &limits))
            .and_then(|opened| opened.payload(&limits).map(|raw| bdseq_of(&raw)))
        {
            Ok(bdseq) => bdseq,
            Err(error) => {
                return self.invalid(message, reason_of_decode(&error), error.to_string());
            }
        };
        if self.is_foreign(at, message) {
            return self.ignored(message, IgnoredReason::StaleDeath);
        }
        self.on_node(now, at, |node, cx| node.handle_death(cx, message, bdseq));
    }

    /// Lets time act. Early or repeated calls do nothing.
    pub fn handle_timeout(&mut self, now: u64) {
        while let Some((deadline, at)) = self.timers.first().copied() {
            if deadline > now {
                break;
            }
            self.timers.pop_first();
            if let Some(node) = self.nodes.get_mut(at as usize) {
                node.armed = None;
            }
            let wall = self.wall(now);
            self.on_node(now, at, |node, cx| node_timeout(node, cx, wall));
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called, engine time.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        self.timers.first().map(|(deadline, _)| *deadline)
    }

    /// The next thing that happened.
    pub fn poll_event(&mut self) -> Option<HostEvent> {
        self.events.pop_front()
    }

    /// The next message to publish.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    /// Asks a node for a rebirth now, whatever the cooldown says, because `cause` is a person's wish.
    ///
    /// # Errors
    /// [`WriteError::UnknownNode`], or [`WriteError::CommandsDisabled`] when nothing may be sent to devices.
    pub fn rebirth(
        &mut self,
        node: &NodeId,
        now: u64,
        cause: RebirthCause,
    ) -> Result<(), WriteError> {
        if !self.config.command_devices {
            return Err(WriteError::CommandsDisabled);
        }
        let at = *self.index.get(node).ok_or(WriteError::UnknownNode)?;
        self.on_node(now, at, |node, cx| node.rebirth.force(cx.now, cause));
        Ok(())
    }

    fn invalid(&mut self, message: &Message<'_>, reason: InvalidReason, detail: impl Into<String>) {
        self.events.push_back(HostEvent::Invalid {
            tag: message.tag,
            reason,
            topic: message.topic.to_owned(),
            detail: detail.into(),
        });
    }

    fn ignored(&mut self, message: &Message<'_>, reason: IgnoredReason) {
        self.events.push_back(HostEvent::Ignored {
            tag: message.tag,
            reason,
            topic: message.topic.to_owned(),
        });
    }

    /// Tells the session what time it is, for the timestamps of what it sends on its own account.
    pub fn note_wall(&mut self, now: u64, wall_ms: u64) {
        self.wall_offset = wall_ms.cast_signed().wrapping_sub(now.cast_signed());
    }

    fn wall(&self, now: u64) -> u64 {
        now.wrapping_add_signed(self.wall_offset)
    }

    fn node_or_insert(&mut self, message: &Message<'_>, group: &str, node: &str) -> Option<u32> {
        if let Some(at) = self.index.get(&NodeKey { group, node }) {
            return Some(*at);
        }
        if self.nodes.len() >= self.config.limits.max_nodes {
            let detail = format!("limit {}", self.config.limits.max_nodes);
            self.invalid(message, InvalidReason::TooManyNodes, detail);
            return None;
        }
        let id = NodeId {
            group: group.into(),
            node: node.into(),
        };
        Some(self.insert(Node::new(id, message.server)))
    }

    fn insert(&mut self, node: Node) -> u32 {
        let at = self.nodes.len() as u32;
        self.index.insert(node.id.clone(), at);
        self.nodes.push(node);
        at
    }

    /// Runs one mutation of a node and settles what follows from it: requests due, timer, list of changes.
    fn on_node(&mut self, now: u64, at: u32, mutate: impl FnOnce(&mut Node, &mut Cx<'_>)) {
        let wall = self.wall(now);
        let Some(node) = self.nodes.get_mut(at as usize) else {
            return;
        };
        let mut cx = Cx {
            config: &self.config,
            events: &mut self.events,
            now,
            parked_elsewhere: self.parked_total - node.parked_bytes,
            metrics_elsewhere: self.metrics_total - node.metric_count,
        };
        let (parked, metrics) = (cx.parked_elsewhere, cx.metrics_elsewhere);
        mutate(node, &mut cx);
        self.parked_total = parked + node.parked_bytes;
        self.metrics_total = metrics + node.metric_count;
        if node.rebirth.due(now) && self.presence.is_ready(node.server) {
            let may = if node.rebirth.slotted() {
                now
            } else {
                self.pace.reserve(now, &self.config.rebirth)
            };
            if may > now {
                node.rebirth.postpone(may);
            } else {
                let (cause, attempt) = node.rebirth.sent(now, &self.config.rebirth);
                // tck-id-operational-behavior-data-commands-ncmd-rebirth-verb, tck-id-topics-ncmd-mqtt
                self.transmits.push_back(Transmit {
                    server: node.server,
                    topic: node.id.topic(NodeVerb::Command),
                    payload: rebirth::request(wall),
                    qos: 0,
                    retain: false,
                });
                self.events.push_back(HostEvent::RebirthRequested {
                    node: node.id.clone(),
                    cause,
                    attempt,
                });
            }
        }
        // A request that waits for the host's own birth is taken up by `subscribed`.
        let blocked = node.rebirth.due(now);
        let deadline = node
            .next_deadline()
            .filter(|deadline| !(blocked && *deadline <= now));
        if node.armed != deadline {
            if let Some(old) = node.armed {
                self.timers.remove(&(old, at));
            }
            if let Some(new) = deadline {
                self.timers.insert((new, at));
            }
            node.armed = deadline;
        }
        if !node.listed {
            node.listed = true;
            self.dirty.push(at);
        }
        #[cfg(debug_assertions)]
        self.check_node(at);
    }
}

fn node_timeout(node: &mut Node, cx: &mut Cx<'_>, wall_ms: u64) {
    if node.reorder_deadline.is_some_and(|at| at <= cx.now) {
        node.give_up(cx);
    }
    if node.verify_deadline.is_some_and(|at| at <= cx.now) {
        node.die(cx, None, DeathCause::Stale, wall_ms);
    }
    if node.awaited.as_ref().is_some_and(|(at, _)| *at <= cx.now)
        && let Some((_, devices)) = node.awaited.take()
    {
        cx.events.push_back(HostEvent::DevicesMissing {
            node: node.id.clone(),
            devices,
        });
    }
}
