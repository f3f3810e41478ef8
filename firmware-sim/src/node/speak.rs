//! What a node encodes: births, data, deaths, with the faults that a scenario asks for.

use sparkplug::edge::{EdgeAction, Kind, Outgoing};

use super::{MOST_STORED, Message, Node, REBIRTH};
use crate::codec::{self, DataSet, Form, Sample, Template, Value};
use crate::device::Metric;
use crate::fault::Rebirth;

/// Name of the template definition in NBIRTH.
const MOTOR_TYPE: &str = "Types/Motor";
/// Name of its instance.
const MOTOR: &str = "Motor";
/// Name of the DataSet.
const RECIPE: &str = "Recipe";
/// Rounds between two NDATA of a node with structured metrics.
const STRUCTURED_EVERY: u64 = 10;

impl Node {
    /// What was kept back: one message a device. A device that is gone by now takes its samples with it.
    pub(super) fn history(&mut self, now_ms: u64) -> Vec<Message> {
        let stored = std::mem::take(&mut self.stored);
        let now_ms = self.twist.clock(now_ms);
        let mut out = Vec::new();
        for place in 0..self.devices.len() {
            let samples: Vec<Sample<'_>> = stored
                .iter()
                .filter(|(of, ..)| *of == place)
                .map(|(_, m, at)| Sample {
                    name: &m.name,
                    alias: m.alias,
                    value: m.value.clone(),
                    timestamp: *at,
                    unit: None,
                })
                .collect();
            let Some(device) = self.devices.get(place).filter(|_| !samples.is_empty()) else {
                continue;
            };
            let Some(outgoing) = self.session.device_data(&device.name) else {
                continue;
            };
            let seq = self.wire_seq(&outgoing);
            let payload = codec::encode(now_ms, seq, &samples, Form::Historical);
            out.push(self.finish(outgoing.topic, payload, samples.len() as u64));
        }
        out
    }

    pub(super) fn data(&mut self, place: usize, now_ms: u64) -> Option<Message> {
        let now_ms = self.twist.clock(now_ms);
        let device = self.devices.get_mut(place)?;
        device.changed().next()?;
        if self.twist.store {
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
        let seq = self.wire_seq(&outgoing);
        let device = self.devices.get_mut(place)?;
        let mut samples = samples(device.changed(), now_ms, false);
        if self.twist.unknown_alias {
            samples.push(Sample {
                alias: Some(999_999),
                ..node_sample("", Value::Int(1), now_ms)
            });
        }
        let metrics = samples.len() as u64;
        let payload = codec::encode(now_ms, seq, &samples, Form::Data);
        drop(samples);
        device.clear_changed();
        Some(self.finish(outgoing.topic, payload, metrics))
    }

    pub(super) fn act(&mut self, action: EdgeAction, now_ms: u64) -> Vec<Message> {
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

    pub(super) fn message(&mut self, outgoing: &Outgoing, now_ms: u64) -> Message {
        let now_ms = self.twist.clock(now_ms);
        if matches!(outgoing.kind, Kind::NodeBirth { .. }) {
            self.device_seq.clear();
        }
        let seq = self.wire_seq(outgoing);
        let (payload, metrics) = match &outgoing.kind {
            Kind::NodeBirth { bdseq } => {
                let samples = self.node_birth(self.wire_bdseq(*bdseq), now_ms);
                let payload = codec::encode(now_ms, seq, &samples, Form::Birth);
                let payload = codec::with_bdseq(&payload, self.twist.bdseq_type);
                (payload, samples.len() as u64)
            }
            Kind::DeviceBirth(name) => {
                let structured = self.structured;
                let device = self.devices.iter_mut().find(|d| d.name == **name);
                device.map_or_else(Default::default, |device| {
                    // A birth says everything, so nothing is left for the next data.
                    device.clear_changed();
                    let samples = samples(device.metrics(), now_ms, structured);
                    let payload = codec::encode(now_ms, seq, &samples, Form::Birth);
                    (payload, samples.len() as u64)
                })
            }
            Kind::NodeData | Kind::DeviceData(_) | Kind::DeviceDeath(_) => {
                (codec::encode(now_ms, seq, &[], Form::Data), 0)
            }
            Kind::NodeDeath { bdseq } => (self.death(self.wire_bdseq(*bdseq), now_ms), 1),
        };
        let birth = matches!(outgoing.kind, Kind::NodeBirth { .. } | Kind::DeviceBirth(_));
        Message {
            retain: birth && self.twist.retain_births,
            birth,
            ..self.finish(outgoing.topic.clone(), payload, metrics)
        }
    }

    /// `bdSeq` as it goes on the wire.
    pub(super) fn wire_bdseq(&self, right: u8) -> u8 {
        if self.twist.stuck_bdseq {
            return 0;
        }
        right.wrapping_add(self.raised)
    }

    /// Births in answer to a request, as right or as wrong as the scenario has it.
    pub(super) fn answer_rebirth(&mut self, now_ms: u64) -> Vec<Message> {
        let mut out = Vec::new();
        match self.twist.rebirth {
            Rebirth::Ignore => return out,
            Rebirth::Reconnect => {
                self.leaving = true;
                return out;
            }
            Rebirth::Late(ms) => {
                self.late_rebirth.get_or_insert(now_ms.saturating_add(ms));
                return out;
            }
            Rebirth::WithDeath if self.session.is_born() => {
                let topic = self.session.node().topic(sparkplug::topic::NodeVerb::Death);
                let payload = self.death(self.wire_bdseq(self.session.bdseq()), now_ms);
                out.push(self.finish(topic, payload, 1));
            }
            Rebirth::RaiseBdseq => self.raised = self.raised.wrapping_add(1),
            Rebirth::Answer | Rebirth::WithDeath | Rebirth::Forget => {}
        }
        if let Some(name) = self.forgotten.take() {
            // Its birth is among those that follow.
            self.session.add_device(&name);
        }
        if self.twist.rebirth == Rebirth::Forget
            && let Some(device) = self.devices.first()
            && self.session.remove_device(&device.name).is_some()
        {
            self.forgotten = Some(device.name.clone());
        }
        let action = self.session.rebirth();
        out.extend(self.act(action, now_ms));
        out
    }

    /// Births that were asked for a while ago.
    pub(super) fn late_births(&mut self, now_ms: u64) -> Vec<Message> {
        match self.late_rebirth {
            Some(due) if due <= now_ms => {
                self.late_rebirth = None;
                let action = self.session.rebirth();
                self.act(action, now_ms)
            }
            _ => Vec::new(),
        }
    }

    /// NDATA of a node with structured metrics: one member of the template, and the table.
    pub(super) fn structured_data(&mut self, now_ms: u64) -> Option<Message> {
        self.rounds += 1;
        if !self.structured || !self.rounds.is_multiple_of(STRUCTURED_EVERY) {
            return None;
        }
        let outgoing = self.session.node_data()?;
        let rounds = i32::try_from(self.rounds % 1_000_000).unwrap_or_default();
        let part = Template {
            members: vec![("rpm".to_owned(), Value::Double(f64::from(rounds)))],
            parameters: Vec::new(),
            of: Some(MOTOR_TYPE.to_owned()),
        };
        let mut samples = [
            node_sample(MOTOR, Value::Template(part), now_ms),
            node_sample(RECIPE, Value::DataSet(recipe(rounds)), now_ms),
        ];
        for (sample, alias) in samples.iter_mut().zip(self.structured_aliases) {
            sample.alias = alias;
        }
        let payload = codec::encode(
            self.twist.clock(now_ms),
            self.wire_seq(&outgoing),
            &samples,
            Form::Data,
        );
        Some(self.finish(outgoing.topic, payload, samples.len() as u64))
    }

    /// `seq` as it goes on the wire.
    fn wire_seq(&mut self, outgoing: &Outgoing) -> Option<u8> {
        let right = outgoing.seq.map(sparkplug::Seq::get)?;
        let (
            Kind::DeviceBirth(device) | Kind::DeviceData(device) | Kind::DeviceDeath(device),
            true,
        ) = (&outgoing.kind, self.twist.seq_per_device)
        else {
            return Some(right.wrapping_add(self.twist.first_seq));
        };
        let own = self.device_seq.entry(device.clone()).or_default();
        let seq = *own;
        *own = own.wrapping_add(1);
        Some(seq)
    }

    /// A message, after what a foreign encoder would do to it.
    pub(super) fn finish(&self, topic: String, mut payload: Vec<u8>, metrics: u64) -> Message {
        if self.twist.proto3 {
            payload = codec::without_zeros(&payload);
        }
        Message {
            topic,
            payload,
            retain: false,
            metrics,
            birth: false,
        }
    }

    /// An NDEATH payload.
    pub(super) fn death(&self, bdseq: u8, now_ms: u64) -> Vec<u8> {
        let sample = node_sample("bdSeq", Value::Int(i64::from(bdseq)), now_ms);
        let payload = codec::encode(now_ms, None, &[sample], Form::Birth);
        codec::with_bdseq(&payload, self.twist.bdseq_type)
    }

    fn node_birth(&self, bdseq: u8, now_ms: u64) -> Vec<Sample<'static>> {
        let mut samples = vec![
            node_sample("bdSeq", Value::Int(i64::from(bdseq)), now_ms),
            node_sample(REBIRTH, Value::Bool(false), now_ms),
            node_sample(
                "Properties/Hardware",
                Value::Text("firmware-sim".to_owned()),
                now_ms,
            ),
        ];
        if self.structured {
            let members = vec![
                ("rpm".to_owned(), Value::Double(0.0)),
                ("on".to_owned(), Value::Bool(false)),
            ];
            let template = |of: Option<&str>| {
                Value::Template(Template {
                    of: of.map(str::to_owned),
                    members: members.clone(),
                    parameters: vec![("poles".to_owned(), Value::Int32(4))],
                })
            };
            // tck-id-payloads-template-definition-nbirth
            samples.push(node_sample(MOTOR_TYPE, template(None), now_ms));
            let mut instance = node_sample(MOTOR, template(Some(MOTOR_TYPE)), now_ms);
            let mut table = node_sample(RECIPE, Value::DataSet(recipe(0)), now_ms);
            [instance.alias, table.alias] = self.structured_aliases;
            samples.extend([instance, table]);
        }
        samples
    }
}

fn recipe(rounds: i32) -> DataSet {
    let row = |step: i32, name: &str, seconds: f64| {
        vec![
            Value::Int32(step),
            Value::Text(name.to_owned()),
            Value::Double(seconds),
            Value::Bool(step == rounds % 3),
        ]
    };
    DataSet {
        columns: ["step", "name", "seconds", "active"]
            .map(str::to_owned)
            .to_vec(),
        rows: vec![
            row(0, "close", 1.5),
            row(1, "hold", 4.0),
            row(2, "open", 1.0),
        ],
    }
}

fn node_sample(name: &'static str, value: Value, timestamp: u64) -> Sample<'static> {
    Sample {
        name,
        alias: None,
        value,
        timestamp,
        unit: None,
    }
}

pub(super) fn samples<'a>(
    metrics: impl IntoIterator<Item = &'a Metric>,
    now_ms: u64,
    structured: bool,
) -> Vec<Sample<'a>> {
    metrics
        .into_iter()
        .map(|m| Sample {
            name: &m.name,
            alias: m.alias,
            value: m.value.clone(),
            timestamp: now_ms,
            unit: unit(&m.name).filter(|_| structured),
        })
        .collect()
}

/// Unit of a device's metric.
fn unit(name: &str) -> Option<&'static str> {
    match name {
        "Temperature" => Some("°C"),
        "Pressure" => Some("bar"),
        "Vibration/X" | "Vibration/Y" => Some("mm/s"),
        _ => None,
    }
}
