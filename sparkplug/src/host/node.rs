//! One edge node: its session, its sequence, what waits behind a gap.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;

use super::config::HostConfig;
use super::entity::Entity;
use super::event::{HostEvent, IgnoredReason, InvalidReason, RebirthCause, ServerId};
use super::rebirth::Rebirth;
use crate::alias::AliasTable;
use crate::payload::Limits;
use crate::payload::raw::RawPayload;
use crate::payload::value::Definitions;
use crate::seq::Seq;
use crate::template::Template;
use crate::topic::{DeviceVerb, NodeId, NodeVerb};

/// Surroundings of one call.
#[derive(Debug)]
pub(super) struct Cx<'a> {
    pub(super) config: &'a HostConfig,
    pub(super) events: &'a mut VecDeque<HostEvent>,
    /// Engine time, ms.
    pub(super) now: u64,
    /// Bytes that wait in the other nodes.
    pub(super) parked_elsewhere: usize,
    /// Metrics of the other nodes.
    pub(super) metrics_elsewhere: usize,
}

/// What kind of message of a node it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    NodeData,
    DeviceBirth,
    DeviceData,
    DeviceDeath,
}

/// A message of a node, with what its header says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Incoming<'a> {
    pub(super) verb: Verb,
    pub(super) device: Option<&'a str>,
    /// Its payload, read as far as the top level; compressed or not.
    pub(super) payload: RawPayload<'a>,
    pub(super) timestamp: Option<u64>,
    pub(super) received_ms: u64,
    pub(super) tag: u64,
    pub(super) seq: Seq,
}

impl Incoming<'_> {
    pub(super) fn topic(&self, node: &NodeId) -> String {
        match (self.verb, self.device) {
            (Verb::DeviceBirth, Some(device)) => node.device_topic(DeviceVerb::Birth, device),
            (Verb::DeviceData, Some(device)) => node.device_topic(DeviceVerb::Data, device),
            (Verb::DeviceDeath, Some(device)) => node.device_topic(DeviceVerb::Death, device),
            _ => node.topic(NodeVerb::Data),
        }
    }
}

/// A message that waits for those before it.
#[derive(Debug, Clone)]
pub(super) struct Parked {
    pub(super) verb: Verb,
    pub(super) device: Option<Arc<str>>,
    pub(super) payload: Vec<u8>,
    pub(super) timestamp: Option<u64>,
    pub(super) received_ms: u64,
    pub(super) tag: u64,
    pub(super) seq: Seq,
}

impl Parked {
    pub(super) fn incoming(&self) -> Incoming<'_> {
        Incoming {
            verb: self.verb,
            device: self.device.as_deref(),
            // It was read before it was parked, with the limits of then: no second verdict.
            payload: RawPayload::parse(&self.payload, &Limits::UNBOUNDED).unwrap_or_default(),
            timestamp: self.timestamp,
            received_ms: self.received_ms,
            tag: self.tag,
            seq: self.seq,
        }
    }
}

/// How far the session of a node can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// No birth in force: never seen, or dead.
    Unborn,
    /// Birth in force, `seq` followed.
    Live,
    /// Birth known from before a restart or an interruption; names and types hold until proven otherwise.
    Unverified,
    /// A gap did not close; data is refused until NBIRTH, or until then.
    Gap { until: u64 },
}

/// Enough of a delivered message to know it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Delivered {
    seq: Seq,
    timestamp: Option<u64>,
    len: usize,
}

/// How many delivered messages are remembered to tell a late duplicate from a broken counter.
const REMEMBERED: usize = 32;

/// The NBIRTH in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BirthMark {
    pub(super) timestamp: Option<u64>,
    pub(super) seq: Seq,
    pub(super) bdseq: Option<u64>,
    pub(super) len: usize,
    /// Engine time of its arrival.
    pub(super) at: u64,
}

/// Template definitions of a node, by the name of their metric.
#[derive(Debug, Clone, Default)]
pub(super) struct DefinitionTable(pub(super) HashMap<Arc<str>, Arc<Template>>);

impl Definitions for DefinitionTable {
    fn definition(&self, name: &str) -> Option<&Template> {
        self.0.get(name).map(|it| &**it)
    }
}

/// State of one edge node.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) id: NodeId,
    pub(super) server: ServerId,
    pub(super) client: Option<Arc<str>>,
    pub(super) phase: Phase,
    /// While unverified: nothing is known to be missing.
    intact: bool,
    pub(super) bdseq: Option<u64>,
    /// The `seq` that comes next.
    pub(super) expected: Seq,
    pub(super) birth: Option<BirthMark>,
    /// 0 is the node itself, device `i` is `i + 1`.
    pub(super) entities: Vec<Entity>,
    pub(super) devices: Vec<Arc<str>>,
    pub(super) device_index: HashMap<Arc<str>, u32>,
    pub(super) aliases: AliasTable,
    pub(super) definitions: DefinitionTable,
    pub(super) parked: Vec<Parked>,
    pub(super) parked_bytes: usize,
    /// Metrics of all entities together.
    pub(super) metric_count: usize,
    pub(super) reorder_deadline: Option<u64>,
    pub(super) rebirth: Rebirth,
    /// Devices that were online before NBIRTH, and when their absence is reported.
    pub(super) awaited: Option<(u64, Vec<Arc<str>>)>,
    pub(super) verify_deadline: Option<u64>,
    /// Deadline in the session's timer table.
    pub(super) armed: Option<u64>,
    /// When a second identity was last reported.
    pub(super) clash_reported: Option<u64>,
    pub(super) previous_client: Option<(Arc<str>, u64)>,
    /// Devices that have an MQTT client of their own, with its id.
    pub(super) device_clients: HashMap<Arc<str>, Arc<str>>,
    delivered: [Option<Delivered>; REMEMBERED],
    delivered_at: usize,
    /// Session fields have changed since the last checkpoint.
    pub(super) dirty: bool,
    /// Is in the session's list of changed nodes.
    pub(super) listed: bool,
}

impl Node {
    pub(super) fn new(id: NodeId, server: ServerId) -> Self {
        Self {
            id,
            server,
            client: None,
            phase: Phase::Unborn,
            intact: true,
            bdseq: None,
            expected: Seq::default(),
            birth: None,
            entities: vec![Entity::default()],
            devices: Vec::new(),
            device_index: HashMap::new(),
            aliases: AliasTable::default(),
            definitions: DefinitionTable::default(),
            parked: Vec::new(),
            parked_bytes: 0,
            metric_count: 0,
            reorder_deadline: None,
            rebirth: Rebirth::default(),
            awaited: None,
            verify_deadline: None,
            armed: None,
            clash_reported: None,
            previous_client: None,
            device_clients: HashMap::new(),
            delivered: [None; REMEMBERED],
            delivered_at: 0,
            dirty: true,
            listed: false,
        }
    }

    pub(super) fn want(&mut self, cx: &Cx<'_>, cause: RebirthCause) {
        if cx.config.command_devices {
            self.rebirth.want(cx.now, cause, &cx.config.rebirth);
        }
    }

    pub(super) fn invalid(
        &self,
        cx: &mut Cx<'_>,
        message: &Incoming<'_>,
        reason: InvalidReason,
        detail: impl Into<String>,
    ) {
        cx.events.push_back(HostEvent::Invalid {
            tag: message.tag,
            reason,
            topic: message.topic(&self.id),
            detail: detail.into(),
        });
    }

    pub(super) fn ignored(&self, cx: &mut Cx<'_>, message: &Incoming<'_>, reason: IgnoredReason) {
        cx.events.push_back(HostEvent::Ignored {
            tag: message.tag,
            reason,
            topic: message.topic(&self.id),
        });
    }

    /// A message that takes part in the node's sequence.
    // tck-id-payloads-sequence-num-incrementing, tck-id-payloads-ddeath-seq-number
    pub(super) fn handle_sequenced(&mut self, cx: &mut Cx<'_>, message: Incoming<'_>) {
        if let Phase::Gap { until } = self.phase
            && (until <= cx.now || !cx.config.rebirth.enabled || !cx.config.command_devices)
        {
            self.distrust(false);
        }
        match self.phase {
            Phase::Live => self.live(cx, message),
            Phase::Unverified => self.unverified(cx, message),
            Phase::Unborn => {
                self.park(cx, &message);
                if cx.config.reorder_timeout_ms == 0 {
                    self.give_up(cx);
                }
            }
            Phase::Gap { .. } => {
                self.invalid(
                    cx,
                    &message,
                    InvalidReason::AwaitingRebirth,
                    "waiting for the rebirth that a gap called for",
                );
            }
        }
    }

    /// Names and types may be outdated. The first message decides: where it goes on where the last one ended,
    /// nothing is missing and the birth that we know is in force; where not, only the next birth helps.
    fn unverified(&mut self, cx: &mut Cx<'_>, message: Incoming<'_>) {
        if self.was_delivered(&message) {
            return self.ignored(cx, &message, IgnoredReason::Duplicate);
        }
        if message.seq != self.expected && self.predates_birth(cx, message.timestamp) {
            return self.ignored(cx, &message, IgnoredReason::Superseded);
        }
        if self.intact && message.seq == self.expected {
            self.phase = Phase::Live;
        } else {
            self.intact = false;
            self.want(cx, RebirthCause::Unverified);
        }
        self.revive(message.received_ms);
        self.deliver(cx, &message);
    }

    /// From here on messages are taken unverified; `intact`: none is known to be missing.
    pub(super) fn distrust(&mut self, intact: bool) {
        self.phase = Phase::Unverified;
        self.intact = intact;
    }

    /// Messages are known to be missing since the birth in force.
    pub(super) fn is_broken(&self) -> bool {
        match self.phase {
            Phase::Unborn => false,
            // What waits is not in a checkpoint.
            Phase::Live => !self.parked.is_empty(),
            Phase::Unverified => !self.intact,
            Phase::Gap { .. } => true,
        }
    }

    fn live(&mut self, cx: &mut Cx<'_>, message: Incoming<'_>) {
        if message.seq == self.expected {
            self.deliver(cx, &message);
            if !self.parked.is_empty() {
                self.drain(cx);
            }
            return;
        }
        let twin = self.parked.iter().any(|it| it.seq == message.seq);
        if twin || self.was_delivered(&message) {
            return self.ignored(cx, &message, IgnoredReason::Duplicate);
        }
        // Sent before the birth in force and overtaken by it: its number belongs to the earlier count.
        if self.predates_birth(cx, message.timestamp) {
            return self.ignored(cx, &message, IgnoredReason::Superseded);
        }
        self.park(cx, &message);
        if cx.config.reorder_timeout_ms == 0 {
            self.give_up(cx);
        }
    }

    /// Whether a message with that send time, arriving soon after NBIRTH, was sent before it. Only then are
    /// node times compared, so that a node whose clock steps back is not shut out.
    pub(super) fn predates_birth(&self, cx: &Cx<'_>, timestamp: Option<u64>) -> bool {
        let (Some(birth), Some(sent)) = (self.birth, timestamp) else {
            return false;
        };
        cx.now.saturating_sub(birth.at) <= cx.config.reorder_timeout_ms
            && birth.timestamp.is_some_and(|born| sent < born)
    }

    // tck-id-operational-behavior-host-reordering-start: the deadline runs from the first one out of order
    fn park(&mut self, cx: &mut Cx<'_>, message: &Incoming<'_>) {
        if !self.has_room(cx, message) {
            // No room to wait any longer: as if the time were up.
            self.give_up(cx);
            if self.phase != Phase::Unborn {
                return self.handle_sequenced(cx, *message);
            }
            if !self.has_room(cx, message) {
                let detail = "no room to hold it until the birth";
                return self.invalid(cx, message, InvalidReason::DataBeforeBirth, detail);
            }
        }
        self.parked_bytes += message.payload.bytes.len();
        self.parked.push(Parked {
            verb: message.verb,
            device: message.device.map(Arc::from),
            payload: message.payload.bytes.to_vec(),
            timestamp: message.timestamp,
            received_ms: message.received_ms,
            tag: message.tag,
            seq: message.seq,
        });
        let deadline = cx.now.saturating_add(cx.config.reorder_timeout_ms);
        self.reorder_deadline.get_or_insert(deadline);
    }

    fn has_room(&self, cx: &Cx<'_>, message: &Incoming<'_>) -> bool {
        let limits = &cx.config.limits;
        let bytes = self.parked_bytes + message.payload.bytes.len();
        self.parked.len() < limits.max_parked
            && bytes <= limits.max_parked_bytes
            && cx.parked_elsewhere + bytes <= limits.max_parked_total
    }

    /// Delivers what follows without a gap.
    // tck-id-operational-behavior-host-reordering-success
    pub(super) fn drain(&mut self, cx: &mut Cx<'_>) {
        while let Some(at) = self.parked.iter().position(|it| it.seq == self.expected) {
            let next = self.parked.swap_remove(at);
            self.parked_bytes -= next.payload.len();
            self.deliver(cx, &next.incoming());
        }
        if self.parked.is_empty() {
            self.reorder_deadline = None;
        }
    }

    /// The gap did not close: what waits is dropped, one rebirth is requested.
    // tck-id-operational-behavior-host-reordering-rebirth
    pub(super) fn give_up(&mut self, cx: &mut Cx<'_>) {
        self.reorder_deadline = None;
        let (reason, cause, detail) = if self.phase == Phase::Unborn {
            (
                InvalidReason::DataBeforeBirth,
                RebirthCause::DataBeforeBirth,
                "no birth came in time".to_owned(),
            )
        } else {
            (
                InvalidReason::SequenceGap,
                RebirthCause::ReorderTimeout,
                format!("seq {} did not come in time", self.expected),
            )
        };
        let asks = cx.config.rebirth.enabled && cx.config.command_devices;
        if self.phase == Phase::Unborn || asks {
            for parked in self.take_parked() {
                self.invalid(cx, &parked.incoming(), reason, detail.clone());
            }
            if self.phase == Phase::Live {
                let until = cx.now.saturating_add(cx.config.gap_patience_ms);
                self.phase = Phase::Gap { until };
                self.dirty = true;
            }
        } else {
            // Nothing may be asked of this node, so that waiting for a birth would be waiting for ever.
            self.distrust(false);
            for parked in self.take_parked() {
                self.handle_sequenced(cx, parked.incoming());
            }
        }
        self.want(cx, cause);
    }

    /// What waits, in the order of `seq`.
    pub(super) fn take_parked(&mut self) -> Vec<Parked> {
        self.reorder_deadline = None;
        self.parked_bytes = 0;
        let mut parked = std::mem::take(&mut self.parked);
        parked.sort_by_key(|it| self.expected.ahead(it.seq));
        parked
    }

    fn deliver(&mut self, cx: &mut Cx<'_>, message: &Incoming<'_>) {
        self.expected = message.seq.next();
        self.dirty = true;
        self.delivered_at = (self.delivered_at + 1) % REMEMBERED;
        if let Some(slot) = self.delivered.get_mut(self.delivered_at) {
            *slot = Some(Delivered {
                seq: message.seq,
                timestamp: message.timestamp,
                len: message.payload.bytes.len(),
            });
        }
        self.apply(cx, message);
    }

    fn was_delivered(&self, message: &Incoming<'_>) -> bool {
        self.delivered.contains(&Some(Delivered {
            seq: message.seq,
            timestamp: message.timestamp,
            len: message.payload.bytes.len(),
        }))
    }

    pub(super) fn forget_delivered(&mut self) {
        self.delivered = [None; REMEMBERED];
    }

    /// A node that was taken for offline by silence alone speaks again.
    fn revive(&mut self, received_ms: u64) {
        self.verify_deadline = None;
        if let Some(own) = self.entities.first_mut()
            && !own.online
        {
            own.online = true;
            own.since_ms = received_ms;
            own.dirty = true;
        }
    }

    /// The link through which the node is known is gone: values are stale, names and types may be outdated.
    pub(super) fn interrupt(&mut self, cx: &mut Cx<'_>, wall_ms: u64) {
        for parked in self.take_parked() {
            self.ignored(cx, &parked.incoming(), IgnoredReason::Superseded);
        }
        for entity in &mut self.entities {
            entity.stale(wall_ms);
        }
        self.distrust(true);
        self.rebirth.settle();
        self.awaited = None;
        self.verify_deadline = Some(cx.now.saturating_add(cx.config.restore_patience_ms));
        self.dirty = true;
    }

    /// Index of a device's entity.
    pub(super) fn device(&self, name: &str) -> Option<u32> {
        self.device_index.get(name).copied()
    }

    /// Index of a device's entity, made when there is room for it.
    pub(super) fn device_or_insert(&mut self, name: &str, max: usize) -> Option<u32> {
        if let Some(index) = self.device(name) {
            return Some(index);
        }
        if self.devices.len() >= max {
            return None;
        }
        let name: Arc<str> = name.into();
        self.devices.push(name.clone());
        let index = self.devices.len() as u32;
        self.entities.push(Entity::default());
        self.device_index.insert(name, index);
        self.dirty = true;
        Some(index)
    }

    /// The earliest moment at which time alone changes something.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        [
            self.reorder_deadline,
            self.rebirth.deadline(),
            self.awaited.as_ref().map(|(at, _)| *at),
            self.verify_deadline,
        ]
        .into_iter()
        .flatten()
        .min()
    }
}
