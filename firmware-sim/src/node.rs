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
                Device::new(name, config.seed, place, config.metrics, |metric| {
                    session.assign_alias(metric)
                })
            })
            .collect();
        Ok(Self {
            session,
            devices,
            counts: NodeCounts::default(),
            twist: Twist::default(),
            ready: false,
            early: Vec::new(),
            host_left: None,
            leaving: false,
            waiting: Vec::new(),
            stored: Vec::new(),
        })
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
        let bdseq = if self.twist.wrong_bdseq {
            will.bdseq.wrapping_add(7)
        } else {
            will.bdseq
        };
        Will {
            topic: will.topic,
            payload: death(bdseq, now_ms),
        }
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
            let topic = self
                .session
                .node()
                .device_topic(sparkplug::topic::DeviceVerb::Data, &device.name);
            let samples = samples(device.metrics(), now_ms);
            let payload = codec::encode(now_ms, Some(200), &samples, Form::Data);
            out.push(Message {
                topic,
                payload,
                retain: false,
                metrics: samples.len() as u64,
                birth: false,
            });
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
        let Ok(commands) = codec::commands(payload) else {
            return Vec::new();
        };
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
                        out.push(Message {
                            topic,
                            payload,
                            retain: false,
                            metrics: 1,
                            birth: false,
                        });
                    }
                    let action = self.session.rebirth();
                    out.extend(self.act(action, now_ms));
                }
                (Some(device), name, Some(value)) => {
                    let Some(place) = self.devices.iter().position(|d| d.name == *device) else {
                        continue;
                    };
                    let done = self
                        .devices
                        .get_mut(place)
                        .is_some_and(|d| d.write(name, command.alias, value));
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
        let state = HostState::parse(payload)
            .ok()
            .or_else(|| HostState::parse_legacy(payload));
        if let Some(state) = state
            && !self.session.is_born()
        {
            if state.online {
                if matches!((self.host_left, state.timestamp), (Some(left), Some(came)) if came < left)
                {
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
        let mut out: Vec<Message> = waiting
            .iter()
            .map(|outgoing| self.message(outgoing, now_ms))
            .collect();
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
                .map(|(_, m, at)| Sample {
                    name: &m.name,
                    alias: m.alias,
                    value: m.value.clone(),
                    timestamp: *at,
                })
                .collect();
            if samples.is_empty() {
                continue;
            }
            let Some(outgoing) = self.session.device_data(&device.name) else {
                continue;
            };
            let seq = outgoing.seq.map(sparkplug::Seq::get);
            let payload = codec::encode(self.twist.clock(now_ms), seq, &samples, Form::Historical);
            out.push(Message {
                topic: outgoing.topic,
                payload,
                retain: false,
                metrics: samples.len() as u64,
                birth: false,
            });
        }
        out
    }

    fn data(&mut self, place: usize, now_ms: u64) -> Option<Message> {
        let device = self.devices.get_mut(place)?;
        device.changed().next()?;
        if self.twist.store {
            let now_ms = self.twist.clock(now_ms);
            let room = MOST_STORED.saturating_sub(self.stored.len());
            self.stored.extend(
                device
                    .changed()
                    .take(room)
                    .map(|metric| (place, metric.clone(), now_ms)),
            );
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
            samples.push(Sample {
                name: "",
                alias: Some(999_999),
                value: Value::Int(1),
                timestamp: now_ms,
            });
        }
        let metrics = samples.len() as u64;
        let payload = codec::encode(
            now_ms,
            outgoing.seq.map(sparkplug::Seq::get),
            &samples,
            Form::Data,
        );
        drop(samples);
        device.clear_changed();
        Some(Message {
            topic: outgoing.topic,
            payload,
            retain: false,
            metrics,
            birth: false,
        })
    }

    fn act(&mut self, action: EdgeAction, now_ms: u64) -> Vec<Message> {
        match action {
            EdgeAction::None => Vec::new(),
            EdgeAction::Send(list) => list
                .iter()
                .map(|outgoing| self.message(outgoing, now_ms))
                .collect(),
            EdgeAction::Leave { death, server: _ } => {
                self.leaving = true;
                death
                    .iter()
                    .map(|outgoing| self.message(outgoing, now_ms))
                    .collect()
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
                    Sample {
                        name: "bdSeq",
                        alias: None,
                        value: Value::Int(i64::from(*bdseq)),
                        timestamp: now_ms,
                    },
                    Sample {
                        name: REBIRTH,
                        alias: None,
                        value: Value::Bool(false),
                        timestamp: now_ms,
                    },
                    Sample {
                        name: "Properties/Hardware",
                        alias: None,
                        value: Value::Text("firmware-sim".to_owned()),
                        timestamp: now_ms,
                    },
                ];
                metrics = samples.len() as u64;
                codec::encode(now_ms, seq, &samples, Form::Birth)
            }
            Kind::DeviceBirth(name) => {
                let payload = self
                    .devices
                    .iter_mut()
                    .find(|d| d.name == **name)
                    .map(|device| {
                        // A birth says everything, so nothing is left for the next data.
                        device.clear_changed();
                        metrics = device.metrics().len() as u64;
                        codec::encode(now_ms, seq, &samples(device.metrics(), now_ms), Form::Birth)
                    });
                payload.unwrap_or_default()
            }
            Kind::NodeData | Kind::DeviceData(_) | Kind::DeviceDeath(_) => {
                codec::encode(now_ms, seq, &[], Form::Data)
            }
            Kind::NodeDeath { bdseq } => {
                metrics = 1;
                death(*bdseq, now_ms)
            }
        };
        let birth = matches!(outgoing.kind, Kind::NodeBirth { .. } | Kind::DeviceBirth(_));
        Message {
            topic: outgoing.topic.clone(),
            payload,
            retain: birth && self.twist.retain_births,
            metrics,
            birth,
        }
    }
}

fn samples<'a>(metrics: impl IntoIterator<Item = &'a Metric>, now_ms: u64) -> Vec<Sample<'a>> {
    metrics
        .into_iter()
        .map(|m| Sample {
            name: &m.name,
            alias: m.alias,
            value: m.value.clone(),
            timestamp: now_ms,
        })
        .collect()
}

fn death(bdseq: u8, now_ms: u64) -> Vec<u8> {
    let sample = Sample {
        name: "bdSeq",
        alias: None,
        value: Value::Int(i64::from(bdseq)),
        timestamp: now_ms,
    };
    codec::encode(now_ms, None, &[sample], Form::Birth)
}

#[cfg(test)]
mod tests;
