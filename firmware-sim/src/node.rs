//! One edge node without I/O: what it says, when, and what commands do to it.
//!
//! Contract: [`Node::connect`] before each CONNECT gives the will; [`Node::ready`] when the subscriptions stand;
//! [`Node::handle_message`] for what arrives; [`Node::step`] as time goes by. All give messages to publish in order.

mod speak;

use std::collections::HashMap;
use std::sync::Arc;

use sparkplug::edge::{EdgeConfig, EdgeSession, Outgoing};
use sparkplug::topic::{NodeId, TopicError};

use crate::codec::{self, Form, Value};
use crate::device::{Device, Metric};
use crate::fault::Twist;
use speak::samples;

/// The metric by which a rebirth is asked for.
const REBIRTH: &str = "Node Control/Rebirth";
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
    /// Servers in its list.
    pub servers: usize,
    /// With templates, a DataSet and properties.
    pub structured: bool,
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
    leaving: bool,
    /// What devices said of themselves since the last step.
    waiting: Vec<Outgoing>,
    /// Samples kept back, by device, in order of time.
    stored: Vec<(usize, Metric, u64)>,
    structured: bool,
    /// Aliases of the template instance and the DataSet.
    structured_aliases: [Option<u64>; 2],
    rounds: u64,
    /// Counters of devices that each have one of their own, which they should not.
    device_seq: HashMap<Arc<str>, u8>,
    /// How often a rebirth raised `bdSeq`, which it should not.
    raised: u8,
    /// A device that was left out of the last rebirth, and is silent since.
    forgotten: Option<String>,
    /// When births that were asked for go out.
    late_rebirth: Option<u64>,
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
            servers: config.servers,
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
        let structured_aliases = ["Motor", "Recipe"].map(|metric| {
            config
                .structured
                .then(|| session.assign_alias(metric))
                .flatten()
        });
        Ok(Self {
            session,
            devices,
            counts: NodeCounts::default(),
            twist: Twist::default(),
            leaving: false,
            waiting: Vec::new(),
            stored: Vec::new(),
            structured: config.structured,
            structured_aliases,
            rounds: 0,
            device_seq: HashMap::new(),
            raised: 0,
            forgotten: None,
            late_rebirth: None,
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
        self.leaving = false;
        self.raised = 0;
        self.late_rebirth = None;
        if let Some(name) = self.forgotten.take() {
            self.session.add_device(&name);
        }
        self.waiting.clear();
        let bdseq = if self.twist.wrong_bdseq {
            will.bdseq.wrapping_add(7)
        } else {
            self.wire_bdseq(will.bdseq)
        };
        Will {
            topic: will.topic,
            payload: self.death(bdseq, self.twist.clock(now_ms)),
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
        let mut out = Vec::new();
        if self.twist.data_before_birth
            && let Some(device) = self.devices.first()
        {
            let topic = self
                .session
                .node()
                .device_topic(sparkplug::topic::DeviceVerb::Data, &device.name);
            let samples = samples(device.metrics(), now_ms, false);
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
        out
    }

    /// Which server of its list it wants to be connected to.
    #[must_use]
    pub fn server(&self) -> usize {
        self.session.server()
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
            let action = self.session.handle_state(topic, payload);
            return self.act(action, now_ms);
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
                    out.extend(self.answer_rebirth(now_ms));
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

    /// Lets `dt` seconds pass: one DDATA a device with what changed.
    pub fn step(&mut self, dt: f64, now_ms: u64) -> Vec<Message> {
        let waiting = std::mem::take(&mut self.waiting);
        let mut out: Vec<Message> = waiting
            .iter()
            .map(|outgoing| self.message(outgoing, now_ms))
            .collect();
        out.extend(self.late_births(now_ms));
        let speaks = self.session.is_born() && !self.twist.silent;
        if speaks {
            out.extend(self.structured_data(now_ms));
        }
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
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod traps;
