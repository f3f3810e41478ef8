//! What the bridge tells and asks the rest of the gateway.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::Deserialize;
use serde_json::Value;

use super::drain::Event;
use super::drain::resume::Loss;
use crate::buffer::record::{Key, Lane};

/// Something that people must know, as an alarm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// The lane.
    pub lane: Lane,
    /// What happened.
    pub event: Event,
}

impl Notice {
    /// A stable word for the kind of event.
    #[must_use]
    pub fn id(&self) -> &'static str {
        match self.event {
            Event::StreamLost(_) => "bridge-stream-lost",
            Event::Fenced => "bridge-fenced",
            Event::Ahead { .. } => "bridge-stream-ahead",
            Event::TookOver => "bridge-took-over",
            Event::Unsendable { .. } => "bridge-unsendable",
            Event::Hole { .. } => "bridge-hole",
            Event::FalseDuplicate { .. } => "bridge-false-duplicate",
        }
    }

    /// Whether records are lost or a person is needed.
    #[must_use]
    pub fn is_urgent(&self) -> bool {
        match self.event {
            Event::StreamLost(_)
            | Event::Fenced
            | Event::Ahead { .. }
            | Event::Unsendable { .. }
            | Event::Hole { .. } => true,
            Event::TookOver | Event::FalseDuplicate { .. } => false,
        }
    }

    /// The word of the notice that this one is the end of.
    #[must_use]
    pub fn ends(&self) -> Option<&'static str> {
        matches!(self.event, Event::TookOver).then_some("bridge-fenced")
    }

    /// One sentence for the operator.
    #[must_use]
    pub fn message(&self) -> String {
        match &self.event {
            Event::StreamLost(Loss::RolledBack { from_seq, to_seq }) => format!(
                "the stream went back from sequence {from_seq} to {to_seq}; what is still kept here is sent again"
            ),
            Event::StreamLost(Loss::Recreated { from_seq }) => format!(
                "the stream was made anew (it had reached sequence {from_seq}); what is still kept here is sent again"
            ),
            Event::Fenced => {
                "another publisher writes to this gateway's stream; sending stops until it is silent".to_owned()
            }
            Event::Ahead { record } => format!(
                "the stream holds record {record} of this journal, which has not made it yet: a copy of this gateway runs elsewhere, or its data was restored from an older copy"
            ),
            Event::TookOver => "the other publisher is silent; sending goes on".to_owned(),
            Event::Unsendable { record, cause } => {
                format!("record {record} can't be sent ({cause}); a gap record stands in its place, its bytes are in quarantine/")
            }
            Event::Hole { after, before } => format!(
                "records between {after} and {before} are no longer kept here and are missing in the stream"
            ),
            Event::FalseDuplicate { record } => {
                format!("the server takes record {record} for a duplicate although it is not in the stream")
            }
        }
    }
}

/// A write that the cloud asks for: `sparkgate.<gateway>.write.<group>.<node>.<device>`.
#[derive(Debug, Clone, PartialEq)]
pub struct WriteRequest {
    /// The caller's id; a repeated one is not a second write.
    pub id: String,
    /// Node or device.
    pub target: Key,
    /// Metrics and values, in order.
    pub metrics: Vec<(String, Value)>,
    /// How long the request is worth something, ms; `None`: the gateway's own limit.
    pub ttl_ms: Option<u64>,
    /// Who asks.
    pub by: String,
}

/// An alarm's acknowledgement from the cloud: `sparkgate.<gateway>.ack`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AckRequest {
    /// The alarm.
    pub id: String,
    /// Who acknowledges.
    #[serde(default)]
    pub by: String,
    /// A remark.
    #[serde(default)]
    pub note: Option<String>,
}

/// The answer to a request: a `command` body, or why not.
pub type Answer = Result<Value, String>;

/// Calls into the gateway. They must not block.
#[derive(Clone)]
pub struct Hooks {
    /// People must know something.
    pub notice: Arc<dyn Fn(Notice) + Send + Sync>,
    /// The cloud asks for a write; resolves when the device confirmed, or it failed.
    pub write: Arc<dyn Fn(WriteRequest) -> BoxFuture<'static, Answer> + Send + Sync>,
    /// The cloud acknowledges an alarm.
    pub ack: Arc<dyn Fn(AckRequest) -> BoxFuture<'static, Answer> + Send + Sync>,
}

impl Default for Hooks {
    /// Nothing is told, every request is refused.
    fn default() -> Self {
        let refuse = || Box::pin(std::future::ready(Err("not supported here".to_owned())));
        Self {
            notice: Arc::new(|_| {}),
            write: Arc::new(move |_| refuse()),
            ack: Arc::new(move |_| refuse()),
        }
    }
}

impl std::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hooks").finish_non_exhaustive()
    }
}
