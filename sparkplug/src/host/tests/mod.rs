//! The host session, driven as a broker drives it.

mod births;
mod metrics;
mod persist;
mod presence;
mod sequence;
mod writes;

use super::*;
use crate::datatype::DataType;
use crate::metric::Metric;
use crate::payload::{Form, encode};
use crate::value::Value;

/// A session under test with a clock that only moves when told to.
pub(super) struct Bench {
    pub(super) session: HostSession,
    pub(super) now: u64,
    tag: u64,
}

/// Wall time at engine time 0.
pub(super) const EPOCH: u64 = 1_700_000_000_000;

impl Bench {
    pub(super) fn new() -> Self {
        Self::with(HostConfig::default())
    }

    pub(super) fn with(config: HostConfig) -> Self {
        Self {
            session: HostSession::new(config, 0),
            now: 0,
            tag: 0,
        }
    }

    pub(super) fn wall(&self) -> u64 {
        EPOCH + self.now
    }

    /// Delivers bytes; returns the tag.
    pub(super) fn raw(&mut self, topic: &str, payload: &[u8]) -> u64 {
        self.deliver(topic, payload, |_| ())
    }

    pub(super) fn deliver(
        &mut self,
        topic: &str,
        payload: &[u8],
        change: impl FnOnce(&mut Message<'_>),
    ) -> u64 {
        self.tag += 1;
        let mut message = Message {
            topic,
            payload,
            received_ms: self.wall(),
            client: None,
            server: ServerId(0),
            retained: false,
            will: false,
            tag: self.tag,
        };
        change(&mut message);
        self.session.handle_message(self.now, &message);
        self.session.check_invariants().unwrap();
        self.tag
    }

    /// Delivers a message of node `g/n`.
    pub(super) fn send(&mut self, verb: &str, seq: u8, metrics: &[Metric]) -> u64 {
        let form = if verb.ends_with("BIRTH") {
            Form::Full
        } else {
            Form::Data
        };
        let payload = encode(Some(self.wall()), Some(seq), metrics, form);
        let topic = match verb.strip_prefix('D') {
            Some(_) => format!("spBv1.0/g/{verb}/n/d"),
            None => format!("spBv1.0/g/{verb}/n"),
        };
        self.raw(&topic, &payload)
    }

    pub(super) fn nbirth(&mut self, bdseq: u64, seq: u8) -> u64 {
        let metrics = [
            bdseq_metric(bdseq).at(self.wall()),
            double("Temp", 20.0).at(self.wall()).aliased(1),
        ];
        self.send("NBIRTH", seq, &metrics)
    }

    pub(super) fn dbirth(&mut self, seq: u8) -> u64 {
        let metric = double("Pressure", 1.0).at(self.wall()).aliased(2);
        self.send("DBIRTH", seq, &[metric])
    }

    pub(super) fn ddata(&mut self, seq: u8, value: f64) -> u64 {
        let metric = double("", value).at(self.wall()).aliased(2);
        self.send("DDATA", seq, &[metric])
    }

    pub(super) fn ndeath(&mut self, bdseq: u64) -> u64 {
        let payload = encode(Some(0), None, &[bdseq_metric(bdseq)], Form::Full);
        self.raw("spBv1.0/g/NDEATH/n", &payload)
    }

    pub(super) fn advance(&mut self, ms: u64) {
        let until = self.now + ms;
        while let Some(at) = self.session.poll_timeout().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.session.handle_timeout(self.now);
            self.session.check_invariants().unwrap();
        }
        self.now = until;
        self.session.handle_timeout(self.now);
    }

    pub(super) fn events(&mut self) -> Vec<HostEvent> {
        std::iter::from_fn(|| self.session.poll_event()).collect()
    }

    pub(super) fn transmits(&mut self) -> Vec<Transmit> {
        std::iter::from_fn(|| self.session.poll_transmit()).collect()
    }

    /// Short words for what happened, for tables.
    pub(super) fn story(&mut self) -> Vec<String> {
        self.events().iter().map(word).collect()
    }

    pub(super) fn node(&self) -> NodeView<'_> {
        self.session.node(&node_id()).unwrap()
    }

    pub(super) fn device(&self) -> DeviceView<'_> {
        self.node().device("d").unwrap()
    }
}

pub(super) fn node_id() -> NodeId {
    NodeId::new("g", "n").unwrap()
}

pub(super) fn double(name: &str, value: f64) -> Metric {
    Metric::new(name, DataType::Double, Value::Double(value))
}

pub(super) fn bdseq_metric(bdseq: u64) -> Metric {
    Metric::new("bdSeq", DataType::Int64, Value::Int(bdseq as i64))
}

fn word(event: &HostEvent) -> String {
    match event {
        HostEvent::NodeBirth { rebirth: false, .. } => "nbirth".into(),
        HostEvent::NodeBirth { rebirth: true, .. } => "nrebirth".into(),
        HostEvent::DeviceBirth { .. } => "dbirth".into(),
        HostEvent::NodeData { record, .. } => format!("ndata {}", record.seq.unwrap()),
        HostEvent::DeviceData { record, .. } => format!("ddata {}", record.seq.unwrap()),
        HostEvent::NodeDeath { cause, .. } => format!("ndeath {}", cause.as_str()),
        HostEvent::DeviceDeath { .. } => "ddeath".into(),
        HostEvent::RebirthRequested { cause, attempt, .. } => format!("rebirth {cause} {attempt}"),
        HostEvent::DevicesMissing { devices, .. } => format!("missing {}", devices.len()),
        HostEvent::DuplicateIdentity { first, second, .. } => format!("clash {first} {second}"),
        HostEvent::HostState { state, .. } => format!("state {}", state.online),
        HostEvent::HostConflict { .. } => "conflict".into(),
        HostEvent::Invalid { reason, .. } => format!("invalid {reason}"),
        HostEvent::Ignored { reason, .. } => format!("ignored {reason}"),
    }
}
