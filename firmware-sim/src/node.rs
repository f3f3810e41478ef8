//! One edge node without I/O: what it says, when, and what commands do to it.
//!
//! Contract: [`Node::connect`] before each CONNECT gives the will; [`Node::ready`] when the subscriptions stand;
//! [`Node::handle_message`] for what arrives; [`Node::step`] as time goes by. All give messages to publish in order.

use std::sync::Arc;

use sparkplug::edge::{EdgeAction, EdgeConfig, EdgeSession, Kind, Outgoing};
use sparkplug::state::HostState;
use sparkplug::topic::{NodeId, TopicError};

use crate::codec::{self, Form, Sample, Value};
use crate::device::{Device, Metric};
use crate::fault::{Rebirth, Twist};

/// The metric by which a rebirth is asked for.
const REBIRTH: &str = "Node Control/Rebirth";
/// Topics a host's STATE can come on: that of 3.0 and that of 2.2.
const STATE_TOPICS: usize = 2;

/// Most samples that a node keeps back; newer ones are not kept, as in a device whose memory is full.
const MOST_STORED: usize = 20_000;

/// A message to publish, QoS 0; births and data are never retained by a conforming node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Topic name.
    pub topic: String,
    /// Payload.
    pub payload: Vec<u8>,
    /// RETAIN flag; only a fault sets it.
    pub retain: bool,
    /// Metrics in the payload.
    pub metrics: u64,
    /// Whether it is an NBIRTH or a DBIRTH.
    pub birth: bool,
}

/// The will of one CONNECT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Will {
    /// NDEATH topic.
    pub topic: String,
    /// NDEATH with this connection's `bdSeq`.
    pub payload: Vec<u8>,
}

/// What a node looks like.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Sparkplug group id.
    pub group: String,
    /// Edge node id.
    pub name: String,
    /// Device ids.
    pub devices: Vec<String>,
    /// Metrics of each device.
    pub metrics: usize,
    /// Seed of all signals.
    pub seed: u64,
    /// Place in the fleet: makes this node's signals its own.
    pub place: u64,
    /// Host without which it stays silent.
    pub primary_host: Option<String>,
}

/// What a node counts since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeCounts {
    /// Command metrics received.
    pub commands: u64,
    /// Of these, those that took effect.
    pub writes: u64,
    /// Rebirths on request.
    pub rebirths: u64,
}

/// One edge node.
#[derive(Debug, Clone)]
pub struct Node {
    session: EdgeSession,
    devices: Vec<Device>,
    counts: NodeCounts,
    twist: Twist,
    /// Whether [`Node::ready`] was called for this connection.
    ready: bool,
    /// STATE that came before the last SUBACK: retained messages may overtake it.
    early: Vec<(String, Vec<u8>)>,
    /// Timestamp of the host's latest death, as long as it is away.
    host_left: Option<u64>,
    leaving: bool,
    /// What devices said of themselves since the last step.
    waiting: Vec<Outgoing>,
    /// Samples kept back, by device, in order of time.
    stored: Vec<(usize, Metric, u64)>,
}

impl Node {
    /// A node that has not connected yet.
    ///
    /// # Errors
    /// An id that can't be a topic level.
    pub fn new(config: &NodeConfig) -> Result<Self, TopicError> {
        let mut session = EdgeSession::new(EdgeConfig {
            node: NodeId::new(&config.group, &config.name)?,
            primary_host: config.primary_host.as_deref().map(Arc::from),
            servers: 1,
            first_bdseq: 0,
        });
        let devices = config
            .devices
            .iter()
            .zip(0u64..)
            .map(|(name, i)| {
                session.add_device(name);
                let place = config.place.wrapping_mul(1009).wrapping_add(i);
                Device::new(name, config.seed, place, config.metrics, |metric| session.assign_alias(metric))
            })
            .collect();
        Ok(Self { session, devices, counts: NodeCounts::default(), twist: Twist::default(), ready: false, early: Vec::new(), host_left: None, leaving: false, waiting: Vec::new(), stored: Vec::new() })
    }

    /// Counts since the start.
    #[must_use]
    pub fn counts(&self) -> NodeCounts {
        self.counts
    }

    /// Devices, for looking at their truth.
    #[must_use]
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// A device dies; its DDEATH goes out with the next [`Node::step`]. Its data ends until [`Node::device_birth`].
    pub fn device_death(&mut self, name: &str) {
        let outgoing = self.session.remove_device(name);
        self.waiting.extend(outgoing);
    }

    /// A device that had died is born again with the next [`Node::step`].
    pub fn device_birth(&mut self, name: &str) {
        let outgoing = self.session.add_device(name);
        self.waiting.extend(outgoing);
    }

    /// A device, for scenarios.
    pub fn device_mut(&mut self, name: &str) -> Option<&mut Device> {
        self.devices.iter_mut().find(|d| d.name == name)
    }

    /// Faults that change what is encoded.
    pub fn twist(&mut self) -> &mut Twist {
        &mut self.twist
    }

    /// Whether births are out and data may follow.
    #[must_use]
    pub fn is_born(&self) -> bool {
        self.session.is_born()
    }

    /// Before each CONNECT, also a repeated one: its will has the next `bdSeq`.
    pub fn connect(&mut self, now_ms: u64) -> Will {
        let will = self.session.connect();
        self.ready = false;
        self.leaving = false;
        self.early.clear();
        self.waiting.clear();
        let bdseq = if self.twist.wrong_bdseq { will.bdseq.wrapping_add(7) } else { will.bdseq };
        Will { topic: will.topic, payload: death(bdseq, now_ms) }
    }

    /// Filters to subscribe to, QoS 1.
    #[must_use]
    pub fn filters(&self) -> Vec<String> {
        self.session.filters()
    }

    /// The subscriptions stand: the births, unless a primary host has to come first.
    pub fn ready(&mut self, now_ms: u64) -> Vec<Message> {
        let action = self.session.ready();
        self.ready = true;
        let mut out = Vec::new();
        if self.twist.data_before_birth
            && let Some(device) = self.devices.first()
        {
            let topic = self.session.node().device_topic(sparkplug::topic::DeviceVerb::Data, &device.name);
            let samples = samples(device.metrics(), now_ms);
            let payload = codec::encode(now_ms, Some(200), &samples, Form::Data);
            out.push(Message { topic, payload, retain: false, metrics: samples.len() as u64, birth: false });
        }
        out.extend(self.act(action, now_ms));
        for (topic, payload) in std::mem::take(&mut self.early) {
            out.extend(self.handle_message(&topic, &payload, now_ms));
        }
        out
    }

    /// Whether the primary host went away: once the messages are out, the connection is to be closed with DISCONNECT
    /// and made anew.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// The connection is gone.
    pub fn disconnected(&mut self) {
        self.session.disconnected();
    }

    /// Leaves on purpose: NDEATH to publish before DISCONNECT.
    pub fn leave(&mut self, now_ms: u64) -> Option<Message> {
        let death = self.session.death()?;
        Some(self.message(&death, now_ms))
    }

    /// A command or a STATE message.
    pub fn handle_message(&mut self, topic: &str, payload: &[u8], now_ms: u64) -> Vec<Message> {
        if topic.starts_with("spBv1.0/STATE/") || topic.starts_with("STATE/") {
            if !self.ready {
                self.early.retain(|(known, _)| known != topic);
                if self.early.len() < STATE_TOPICS {
                    self.early.push((topic.to_owned(), payload.to_vec()));
                }
                return Vec::new();
            }
            return self.handle_state(topic, payload, now_ms);
        }
        // A command that can't be read is ignored: a node must survive what it does not know.
        let Ok(commands) = codec::commands(payload) else { return Vec::new() };
        self.counts.commands += commands.len() as u64;
        let device = topic.splitn(5, '/').nth(4).map(str::to_owned);
        let mut out = Vec::new();
        for command in commands {
            match (&device, command.name.as_deref(), &command.value) {
                (None, Some(REBIRTH), Some(Value::Bool(true))) => {
                    self.counts.rebirths += 1;
                    if self.twist.rebirth == Rebirth::Ignore {
                        continue;
                    }
                    if self.twist.rebirth == Rebirth::WithDeath && self.session.is_born() {
                        let topic = self.session.node().topic(sparkplug::topic::NodeVerb::Death);
                        let payload = death(self.session.bdseq(), now_ms);
                        out.push(Message { topic, payload, retain: false, metrics: 1, birth: false });
                    }
                    let action = self.session.rebirth();
                    out.extend(self.act(action, now_ms));
                }
                (Some(device), name, Some(value)) => {
                    let Some(place) = self.devices.iter().position(|d| d.name == *device) else { continue };
                    let done = self.devices.get_mut(place).is_some_and(|d| d.write(name, command.alias, value));
                    self.counts.writes += u64::from(done);
                    if done {
                        out.extend(self.data(place, now_ms));
                    }
                }
                _ => {}
            }
        }
        out
    }

    /// With one server there is none to walk to: a node that waits already keeps its connection.
    fn handle_state(&mut self, topic: &str, payload: &[u8], now_ms: u64) -> Vec<Message> {
        let state = HostState::parse(payload).ok().or_else(|| HostState::parse_legacy(payload));
        if let Some(state) = state
            && !self.session.is_born()
        {
            if state.online {
                if matches!((self.host_left, state.timestamp), (Some(left), Some(came)) if came < left) {
                    return Vec::new();
                }
                self.host_left = None;
            } else {
                self.host_left = self.host_left.max(state.timestamp);
                return Vec::new();
            }
        }
        let action = self.session.handle_state(topic, payload);
        self.act(action, now_ms)
    }

    /// Lets `dt` seconds pass: one DDATA a device with what changed.
    pub fn step(&mut self, dt: f64, now_ms: u64) -> Vec<Message> {
        let waiting = std::mem::take(&mut self.waiting);
        let mut out: Vec<Message> = waiting.iter().map(|outgoing| self.message(outgoing, now_ms)).collect();
        let speaks = self.session.is_born() && !self.twist.silent;
        if speaks && !self.twist.store && !self.stored.is_empty() {
            out.extend(self.history(now_ms));
        }
        for place in 0..self.devices.len() {
            if let Some(device) = self.devices.get_mut(place) {
                device.step(dt);
            }
            if speaks {
                out.extend(self.data(place, now_ms));
            }
        }
        out
    }

    /// What was kept back: one message a device. A device that is gone by now takes its samples with it.
    fn history(&mut self, now_ms: u64) -> Vec<Message> {
        let stored = std::mem::take(&mut self.stored);
        let mut out = Vec::new();
        for (place, device) in self.devices.iter().enumerate() {
            let samples: Vec<Sample<'_>> = stored
                .iter()
                .filter(|(of, ..)| *of == place)
                .map(|(_, m, at)| Sample { name: &m.name, alias: m.alias, value: m.value.clone(), timestamp: *at })
                .collect();
            if samples.is_empty() {
                continue;
            }
            let Some(outgoing) = self.session.device_data(&device.name) else { continue };
            let seq = outgoing.seq.map(sparkplug::Seq::get);
            let payload = codec::encode(self.twist.clock(now_ms), seq, &samples, Form::Historical);
            out.push(Message { topic: outgoing.topic, payload, retain: false, metrics: samples.len() as u64, birth: false });
        }
        out
    }

    fn data(&mut self, place: usize, now_ms: u64) -> Option<Message> {
        let device = self.devices.get_mut(place)?;
        device.changed().next()?;
        if self.twist.store {
            let now_ms = self.twist.clock(now_ms);
            let room = MOST_STORED.saturating_sub(self.stored.len());
            self.stored.extend(device.changed().take(room).map(|metric| (place, metric.clone(), now_ms)));
            device.clear_changed();
            return None;
        }
        let outgoing = self.session.device_data(&device.name)?;
        if self.twist.skip_seq {
            self.session.next_seq();
            self.twist.skip_seq = false;
        }
        let now_ms = self.twist.clock(now_ms);
        let mut samples = samples(device.changed(), now_ms);
        if self.twist.unknown_alias {
            samples.push(Sample { name: "", alias: Some(999_999), value: Value::Int(1), timestamp: now_ms });
        }
        let metrics = samples.len() as u64;
        let payload = codec::encode(now_ms, outgoing.seq.map(sparkplug::Seq::get), &samples, Form::Data);
        drop(samples);
        device.clear_changed();
        Some(Message { topic: outgoing.topic, payload, retain: false, metrics, birth: false })
    }

    fn act(&mut self, action: EdgeAction, now_ms: u64) -> Vec<Message> {
        match action {
            EdgeAction::None => Vec::new(),
            EdgeAction::Send(list) => list.iter().map(|outgoing| self.message(outgoing, now_ms)).collect(),
            EdgeAction::Leave { death, server: _ } => {
                self.leaving = true;
                death.iter().map(|outgoing| self.message(outgoing, now_ms)).collect()
            }
        }
    }

    fn message(&mut self, outgoing: &Outgoing, now_ms: u64) -> Message {
        let now_ms = self.twist.clock(now_ms);
        let seq = outgoing.seq.map(sparkplug::Seq::get);
        let mut metrics = 0;
        let payload = match &outgoing.kind {
            Kind::NodeBirth { bdseq } => {
                let samples = [
                    Sample { name: "bdSeq", alias: None, value: Value::Int(i64::from(*bdseq)), timestamp: now_ms },
                    Sample { name: REBIRTH, alias: None, value: Value::Bool(false), timestamp: now_ms },
                    Sample { name: "Properties/Hardware", alias: None, value: Value::Text("firmware-sim".to_owned()), timestamp: now_ms },
                ];
                metrics = samples.len() as u64;
                codec::encode(now_ms, seq, &samples, Form::Birth)
            }
            Kind::DeviceBirth(name) => {
                let payload = self.devices.iter_mut().find(|d| d.name == **name).map(|device| {
                    // A birth says everything, so nothing is left for the next data.
                    device.clear_changed();
                    metrics = device.metrics().len() as u64;
                    codec::encode(now_ms, seq, &samples(device.metrics(), now_ms), Form::Birth)
                });
                payload.unwrap_or_default()
            }
            Kind::NodeData | Kind::DeviceData(_) | Kind::DeviceDeath(_) => codec::encode(now_ms, seq, &[], Form::Data),
            Kind::NodeDeath { bdseq } => {
                metrics = 1;
                death(*bdseq, now_ms)
            }
        };
        let birth = matches!(outgoing.kind, Kind::NodeBirth { .. } | Kind::DeviceBirth(_));
        Message { topic: outgoing.topic.clone(), payload, retain: birth && self.twist.retain_births, metrics, birth }
    }
}

fn samples<'a>(metrics: impl IntoIterator<Item = &'a Metric>, now_ms: u64) -> Vec<Sample<'a>> {
    metrics
        .into_iter()
        .map(|m| Sample { name: &m.name, alias: m.alias, value: m.value.clone(), timestamp: now_ms })
        .collect()
}

fn death(bdseq: u8, now_ms: u64) -> Vec<u8> {
    let sample = Sample { name: "bdSeq", alias: None, value: Value::Int(i64::from(bdseq)), timestamp: now_ms };
    codec::encode(now_ms, None, &[sample], Form::Birth)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sparkplug_rs::Payload;
    use sparkplug_rs::protobuf::Message as _;

    fn node() -> Node {
        Node::new(&NodeConfig {
            group: "g".into(),
            name: "n".into(),
            devices: vec!["a".into(), "b".into()],
            metrics: 10,
            seed: 1,
            place: 0,
            primary_host: None,
        })
        .unwrap()
    }

    fn payload(bytes: &[u8]) -> Payload {
        Payload::parse_from_bytes(bytes).unwrap()
    }

    #[test]
    fn births_come_in_order_with_one_seq_for_all() {
        let mut node = node();
        let will = node.connect(5);
        let births = node.ready(5);
        let topics: Vec<&str> = births.iter().map(|m| m.topic.as_str()).collect();
        assert_eq!(topics, ["spBv1.0/g/NBIRTH/n", "spBv1.0/g/DBIRTH/n/a", "spBv1.0/g/DBIRTH/n/b"]);
        let seqs: Vec<u64> = births.iter().map(|m| payload(&m.payload).seq()).collect();
        assert_eq!(seqs, [0, 1, 2]);
        assert_eq!(payload(&will.payload).metrics[0].long_value(), payload(&births[0].payload).metrics[0].long_value());
        assert!(!payload(&will.payload).has_seq());
        let aliases: Vec<u64> = births[1..].iter().flat_map(|m| payload(&m.payload).metrics.iter().map(|x| x.alias()).collect::<Vec<_>>()).collect();
        let mut unique = aliases.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), aliases.len(), "aliases are unique over the node");
    }

    #[test]
    fn bdseq_rises_with_every_connect() {
        let mut node = node();
        let all: Vec<u64> = (0..3).map(|_| payload(&node.connect(1).payload).metrics[0].long_value()).collect();
        assert_eq!(all, [0, 1, 2]);
    }

    #[test]
    fn a_rebirth_repeats_births_without_death_and_with_the_same_bdseq() {
        let mut node = node();
        node.connect(1);
        node.ready(1);
        node.step(0.1, 2);
        let ask = codec::encode(3, None, &[Sample { name: REBIRTH, alias: None, value: Value::Bool(true), timestamp: 3 }], Form::Birth);
        let again = node.handle_message("spBv1.0/g/NCMD/n", &ask, 3);
        assert_eq!(again.len(), 3);
        let birth = payload(&again[0].payload);
        assert_eq!((birth.seq(), birth.metrics[0].long_value()), (0, 0));
    }

    #[test]
    fn a_write_is_echoed_at_once_and_unknown_commands_are_survived() {
        let mut node = node();
        node.connect(1);
        node.ready(1);
        let write = codec::encode(3, None, &[Sample { name: "Cooling/Enable", alias: None, value: Value::Bool(true), timestamp: 3 }], Form::Birth);
        let echo = node.handle_message("spBv1.0/g/DCMD/n/a", &write, 3);
        assert_eq!(echo.len(), 1);
        assert_eq!(echo[0].topic, "spBv1.0/g/DDATA/n/a");
        assert!(node.handle_message("spBv1.0/g/DCMD/n/zzz", &write, 3).is_empty());
        assert!(node.handle_message("spBv1.0/g/NCMD/n", &[1, 2, 3], 3).is_empty());
        assert_eq!(node.counts().writes, 1);
    }

    #[test]
    fn seq_wraps_after_255() {
        let mut node = node();
        node.connect(1);
        node.ready(1);
        let mut last = 2;
        for i in 0..600 {
            for message in node.step(0.1, i) {
                let seq = payload(&message.payload).seq();
                assert_eq!(seq, (last + 1) % 256);
                last = seq;
            }
        }
    }

    #[test]
    fn a_node_leaves_with_its_host_and_waits_for_it_with_the_next_bdseq() {
        let mut node = Node::new(&NodeConfig {
            group: "g".into(),
            name: "n".into(),
            devices: vec!["a".into()],
            metrics: 10,
            seed: 1,
            place: 0,
            primary_host: Some("h".into()),
        })
        .unwrap();
        let topic = "spBv1.0/STATE/h";
        let state = |online: bool, at: u64| format!("{{\"online\":{online},\"timestamp\":{at}}}").into_bytes();
        node.connect(1);
        assert!(node.handle_message(topic, &state(true, 5), 1).is_empty(), "not before the subscriptions stand");
        assert_eq!(node.ready(1).len(), 2, "but it is not forgotten");
        let death = node.handle_message(topic, &state(false, 6), 2);
        assert_eq!(death.iter().map(|m| m.topic.as_str()).collect::<Vec<_>>(), ["spBv1.0/g/NDEATH/n"]);
        assert!(node.is_leaving() && !node.is_born());
        node.disconnected();

        assert_eq!(payload(&node.connect(3).payload).metrics[0].long_value(), 1);
        assert!(node.ready(3).is_empty());
        assert!(node.handle_message(topic, &state(false, 7), 3).is_empty());
        assert!(!node.is_leaving(), "waiting needs no new connection");
        assert!(node.handle_message(topic, &state(true, 6), 4).is_empty(), "older than the death");
        let births = node.handle_message(topic, &state(true, 8), 5);
        assert_eq!(payload(&births[0].payload).metrics[0].long_value(), 1);
    }

    #[test]
    fn a_device_dies_and_is_born_again_without_a_gap_in_seq() {
        let mut node = node();
        node.connect(1);
        let mut all = node.ready(1);
        node.device_death("a");
        let dead = node.step(0.1, 2);
        let topics: Vec<&str> = dead.iter().map(|m| m.topic.as_str()).collect();
        assert_eq!(topics, ["spBv1.0/g/DDEATH/n/a", "spBv1.0/g/DDATA/n/b"]);
        all.extend(dead);
        node.device_birth("a");
        let alive = node.step(0.1, 3);
        assert_eq!(alive[0].topic, "spBv1.0/g/DBIRTH/n/a");
        all.extend(alive);
        let seqs: Vec<u64> = all.iter().map(|m| payload(&m.payload).seq()).collect();
        assert_eq!(seqs, (0..all.len() as u64).collect::<Vec<_>>());
    }

    #[test]
    fn a_rebirth_request_can_be_ignored_or_answered_with_a_death() {
        let ask = codec::encode(3, None, &[Sample { name: REBIRTH, alias: None, value: Value::Bool(true), timestamp: 3 }], Form::Birth);
        for (how, first, count) in [(Rebirth::Ignore, None, 0), (Rebirth::WithDeath, Some("spBv1.0/g/NDEATH/n"), 4)] {
            let mut node = node();
            node.connect(1);
            node.ready(1);
            node.twist().rebirth = how;
            let out = node.handle_message("spBv1.0/g/NCMD/n", &ask, 3);
            assert_eq!((out.first().map(|m| m.topic.as_str()), out.len()), (first, count), "{how:?}");
        }
    }

    #[test]
    fn data_kept_back_comes_later_as_historical_with_its_own_timestamps() {
        let mut node = node();
        node.connect(1);
        node.ready(1);
        node.twist().store = true;
        assert!((2..5).all(|at| node.step(0.1, at).is_empty()));
        node.twist().store = false;
        let out = node.step(0.1, 9);
        assert_eq!(out.len(), 4, "history of two devices, then their data");
        let history = payload(&out[0].payload);
        assert!(history.metrics.iter().all(|m| m.is_historical()));
        let alias = history.metrics[0].alias();
        let times: Vec<u64> = history.metrics.iter().filter(|m| m.alias() == alias).map(|m| m.timestamp()).collect();
        assert_eq!(times, [2, 3, 4]);
        assert!(payload(&out[2].payload).metrics.iter().all(|m| !m.is_historical()));
    }
}
