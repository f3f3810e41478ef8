//! One edge node without I/O: what it says, when, and what commands do to it.
//!
//! Contract: [`Node::connect`] before each CONNECT gives the will; [`Node::ready`] when the subscriptions stand;
//! [`Node::handle_message`] for what arrives; [`Node::step`] as time goes by. All give messages to publish in order.

use std::sync::Arc;

use sparkplug::edge::{EdgeAction, EdgeConfig, EdgeSession, Kind, Outgoing};
use sparkplug::topic::{NodeId, TopicError};

use crate::codec::{self, Form, Sample, Value};
use crate::device::{Device, Metric};
use crate::fault::Twist;

/// The metric by which a rebirth is asked for.
const REBIRTH: &str = "Node Control/Rebirth";

/// A message to publish, QoS 0; births and data are never retained by a conforming node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Topic name.
    pub topic: String,
    /// Payload.
    pub payload: Vec<u8>,
    /// RETAIN flag; only a fault sets it.
    pub retain: bool,
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
    /// Messages handed out.
    pub messages: u64,
    /// Metrics in them.
    pub metrics: u64,
    /// NBIRTH and DBIRTH among them.
    pub births: u64,
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
        Ok(Self { session, devices, counts: NodeCounts::default(), twist: Twist::default() })
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
        let mut out = Vec::new();
        if self.twist.data_before_birth
            && let Some(device) = self.devices.first()
        {
            let topic = self.session.node().device_topic(sparkplug::topic::DeviceVerb::Data, &device.name);
            let seq = Some(200);
            out.push(Message { topic, payload: codec::encode(now_ms, seq, &samples(device.metrics(), now_ms), Form::Data), retain: false });
        }
        out.extend(self.act(action, now_ms));
        out
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
            let action = self.session.handle_state(topic, payload);
            return self.act(action, now_ms);
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
                    let action = self.session.rebirth();
                    out.extend(self.act(action, now_ms));
                }
                (Some(device), name, Some(value)) => {
                    let done = self.device_mut(device).is_some_and(|d| d.write(name, command.alias, value));
                    self.counts.writes += u64::from(done);
                    if done {
                        out.extend(self.data(device, now_ms));
                    }
                }
                _ => {}
            }
        }
        out
    }

    /// Lets `dt` seconds pass: one DDATA a device with what changed.
    pub fn step(&mut self, dt: f64, now_ms: u64) -> Vec<Message> {
        let names: Vec<String> = self.devices.iter().map(|d| d.name.clone()).collect();
        let mut out = Vec::new();
        for name in names {
            if let Some(device) = self.device_mut(&name) {
                device.step(dt);
            }
            if self.session.is_born() && !self.twist.silent {
                out.extend(self.data(&name, now_ms));
            }
        }
        out
    }

    fn data(&mut self, device: &str, now_ms: u64) -> Option<Message> {
        let changed = self.device_mut(device)?.take_changed();
        if changed.is_empty() {
            return None;
        }
        let outgoing = self.session.device_data(device)?;
        if self.twist.skip_seq {
            self.session.next_seq();
            self.twist.skip_seq = false;
        }
        let now_ms = self.twist.clock(now_ms);
        let mut samples = samples(&changed, now_ms);
        if self.twist.unknown_alias {
            samples.push(Sample { name: "", alias: Some(999_999), value: Value::Int(1), timestamp: now_ms });
        }
        self.counts.messages += 1;
        self.counts.metrics += samples.len() as u64;
        let payload = codec::encode(now_ms, outgoing.seq.map(sparkplug::Seq::get), &samples, Form::Data);
        Some(Message { topic: outgoing.topic, payload, retain: false })
    }

    fn act(&mut self, action: EdgeAction, now_ms: u64) -> Vec<Message> {
        match action {
            EdgeAction::None => Vec::new(),
            EdgeAction::Send(list) => list.iter().map(|outgoing| self.message(outgoing, now_ms)).collect(),
            EdgeAction::Leave { death, server: _ } => death.iter().map(|outgoing| self.message(outgoing, now_ms)).collect(),
        }
    }

    fn message(&mut self, outgoing: &Outgoing, now_ms: u64) -> Message {
        let now_ms = self.twist.clock(now_ms);
        let seq = outgoing.seq.map(sparkplug::Seq::get);
        self.counts.messages += 1;
        let payload = match &outgoing.kind {
            Kind::NodeBirth { bdseq } => {
                self.counts.births += 1;
                let samples = [
                    Sample { name: "bdSeq", alias: None, value: Value::Int(i64::from(*bdseq)), timestamp: now_ms },
                    Sample { name: REBIRTH, alias: None, value: Value::Bool(false), timestamp: now_ms },
                    Sample { name: "Properties/Hardware", alias: None, value: Value::Text("firmware-sim".to_owned()), timestamp: now_ms },
                ];
                self.counts.metrics += samples.len() as u64;
                codec::encode(now_ms, seq, &samples, Form::Birth)
            }
            Kind::DeviceBirth(name) => {
                self.counts.births += 1;
                let mut count = 0;
                let payload = self.devices.iter_mut().find(|d| d.name == **name).map(|device| {
                    // A birth says everything, so nothing is left for the next data.
                    device.take_changed();
                    count = device.metrics().len() as u64;
                    codec::encode(now_ms, seq, &samples(device.metrics(), now_ms), Form::Birth)
                });
                self.counts.metrics += count;
                payload.unwrap_or_default()
            }
            Kind::NodeData | Kind::DeviceData(_) | Kind::DeviceDeath(_) => codec::encode(now_ms, seq, &[], Form::Data),
            Kind::NodeDeath { bdseq } => death(*bdseq, now_ms),
        };
        let birth = matches!(outgoing.kind, Kind::NodeBirth { .. } | Kind::DeviceBirth(_));
        Message { topic: outgoing.topic.clone(), payload, retain: birth && self.twist.retain_births }
    }
}

fn samples(metrics: &[Metric], now_ms: u64) -> Vec<Sample<'_>> {
    metrics
        .iter()
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
}
