//! The path of a message: MQTT bytes in, records, commands and model requests out.
//!
//! [`core::Core`] is the whole of it without I/O: it takes publishes, model results, requests and time, and acts
//! through [`Ports`]. [`task`] is the thread that owns a core and gives it real ports. [`convert`] is the only
//! file that knows the vocabularies of two crates at once.
//!
//! ```text
//! Inbound ─ HostSession ─ HostEvent ─ journal (id) ─ rules ─┬─ alarm ─ journal
//!                                          │                ├─ write ─ broker, journal
//!                                          │                └─ score event ◄─ journal ◄─ model result
//!                                          ├─ windows ─ model request ─ runner
//!                                          └─ texts ─ embedder ─ embedding ─ journal ─ rules
//! ```

pub mod ack;
pub mod bodies;
pub mod checkpoint;
pub mod convert;
pub mod core;
pub mod decisions;
mod derived;
pub mod encode;
pub mod feed;
mod gate;
mod host_events;
pub mod latency;
mod open_writes;
pub mod own;
pub mod recover;
pub mod remote;
pub mod rollouts;
pub mod shard;
pub mod subject;
pub mod task;
#[cfg(test)]
mod tests;
pub mod texts;
pub mod trace;
mod writes;

use std::sync::Arc;
use std::time::Instant;

use crate::buffer::record::{NewRecord, Record};

/// What a core does to the outside. Real ports are the journal, the broker and the model runner; a simulation
/// gives its own.
pub trait Ports {
    /// Appends a record; it is readable at once and durable later.
    fn append(&mut self, record: NewRecord) -> Appended;

    /// Publishes to the devices' broker. `stamp` says when the bytes that led to it passed the stages, if there were
    /// any.
    ///
    /// # Errors
    /// Why it can't leave.
    fn publish(
        &mut self,
        transmit: sparkplug::host::Transmit,
        stamp: Option<latency::Stamp>,
    ) -> Result<(), Unsent>;

    /// A reading of the clock that latencies are measured with.
    fn mark(&self) -> Instant;

    /// Hands a window to the models. Never waits: what can't be taken is counted there.
    fn infer(&mut self, request: models::Request);

    /// Hands a text over to be embedded. Never waits: what can't be taken is counted there.
    fn embed(&mut self, request: models::text::TextRequest);

    /// Starts to change a model's version; what became of it comes back as [`Answer::Rollout`].
    fn roll_out(&mut self, order: rollouts::Order);

    /// Counts a record that could not be appended, so that the counters' identity holds.
    fn dropped(&mut self, record: &NewRecord, reason: &'static str);
}

/// Why a message to devices did not leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unsent {
    /// The queue to the broker is full.
    #[error("the queue to the node's broker is full")]
    Full,
    /// The connection, or the embedded broker, is gone.
    #[error("the connection to the node's broker is gone")]
    Gone,
}

/// What comes back from threads that a core has asked.
#[derive(Debug)]
pub enum Answer {
    /// Of a model.
    Model(models::Event),
    /// Of the text model.
    Text(models::text::TextEvent),
    /// Of a change of version.
    Rollout(rollouts::Outcome),
}

/// How an append went.
#[derive(Debug)]
pub enum Appended {
    /// In the journal under an id.
    Stored(Arc<Record>),
    /// No room on disk now; the record comes back.
    Full(Box<NewRecord>),
    /// The journal has stopped for good; the process is about to end, and nothing is acknowledged any more.
    Stopped,
}
