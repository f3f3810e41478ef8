//! One lane's way into its stream, without I/O: what to send, what to expect, when to look again.
//!
//! # How exactly-once in order comes about
//! Every publish carries the stream sequence that it expects to follow (`Nats-Expected-Last-Sequence`).
//! The server stores it there or not at all, so a message that follows a lost one is refused by the
//! server itself; neither a retry nor a reordering can slip in. Up to a window of messages is in flight
//! with predicted sequences. Whenever the prediction may be wrong (start, a broken connection, any
//! refusal, any `duplicate: true`), everything in flight is dropped, the stream's last message is read,
//! and the flow goes on after the record that it names ([`resume`]). `Nats-Msg-Id` is a second belt.
//!
//! # Use
//! The shell calls `handle_*` with what happened and the monotonic time, then takes actions from
//! [`Drain::poll_action`] until there is none, and comes back at [`Drain::poll_timeout`].
//!
//! # Invariants
//! - A record is acknowledged to the journal only after the stream acknowledged its last part and every
//!   record before it.
//! - Nothing is published unless the stream was inspected since the last doubt.
//! - At most `window` messages and `queue` read-ahead records are held; both are dropped on a doubt,
//!   since the journal has them.

mod flight;
pub mod resume;

use std::collections::VecDeque;
use std::time::Duration;

use self::flight::{Flight, Pace, Window};
use self::resume::{Checkpoint, Loss, Mark, Suspect};
use super::status::UplinkState;
use crate::backoff::Backoff;
use crate::buffer::record::RecordId;

/// Bounds and times of one lane.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Messages in flight at most.
    pub window: usize,
    /// Messages in flight at the start of a connection and on the slowest link.
    pub min_window: usize,
    /// Delay of acknowledgements that the window aims at.
    pub target_delay: Duration,
    /// Records read at once.
    pub read_records: usize,
    /// Bytes read at once.
    pub read_bytes: usize,
    /// Messages in flight and none acknowledged for this long: the connection is dropped.
    pub stall: Duration,
    /// First wait after a failure; doubles.
    pub backoff_base: Duration,
    /// Longest wait after a failure.
    pub backoff_max: Duration,
    /// Wait between probes of a full stream.
    pub full_probe: Duration,
    /// How long another publisher must be silent before this one goes on.
    pub fence_hold: Duration,
    /// Messages a second while there is a backlog; `None`: as fast as the stream takes them.
    pub backfill_rate: Option<f64>,
    /// Messages of one atomic batch, one batch in flight; `None`: single messages.
    pub batch: Option<u32>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            window: 1024,
            min_window: 32,
            target_delay: Duration::from_millis(500),
            read_records: 512,
            read_bytes: 4 << 20,
            stall: Duration::from_secs(10),
            backoff_base: Duration::from_millis(500),
            backoff_max: Duration::from_secs(30),
            full_probe: Duration::from_secs(5),
            fence_hold: Duration::from_secs(30),
            backfill_rate: None,
            batch: None,
        }
    }
}

/// A record that the shell read and prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit {
    /// Its id.
    pub record: RecordId,
    /// The record before it in this lane of the journal.
    pub lane_prev: RecordId,
    /// It is a gap record: it explains why `lane_prev` may be missing.
    pub explains_gap: bool,
    /// What is to be done.
    pub work: Work,
}

/// What is to be done with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Send it, in this many messages.
    Send {
        /// At least 1.
        parts: u32,
    },
    /// A filter keeps it back.
    Filtered,
    /// It fits no message; a gap message takes its place.
    Unsendable,
}

/// What a published message carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// A part of the record itself.
    Part,
    /// In place of the record, which can't be sent.
    Unsendable,
    /// In place of records that are no longer kept; the mark's record is the last of them.
    Hole {
        /// The first record that may be missing.
        from: RecordId,
    },
}

/// One message to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Publish {
    /// Comes back with the acknowledgement.
    pub token: u64,
    /// Which record and part, and the record before it in the stream.
    pub mark: Mark,
    /// `Nats-Expected-Last-Sequence`.
    pub expected_last: u64,
    /// The message in flight that this one must follow, for `Nats-Expected-Last-Msg-Id`: the sequence alone
    /// would also be right behind a stranger's message that took the place of ours. `None` for the first
    /// message behind an inspection, which saw the stream's end itself. Only for streams of one replica:
    /// replicas may disagree on the last id after a restart.
    pub follows: Option<Mark>,
    /// What to send.
    pub content: Content,
    /// Whether to send `Nats-Msg-Id`. Not inside batches, and not after the server took the id for a
    /// duplicate although the message is not in the stream.
    pub msg_id: bool,
    /// Place in an atomic batch.
    pub batch: Option<BatchPlace>,
}

/// Place of a message in an atomic batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchPlace {
    /// Number of the batch; never used twice in a run.
    pub id: u64,
    /// From 1.
    pub sequence: u32,
    /// The last one: the server stores all or none.
    pub commit: bool,
}

/// What the shell must do.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Make a connection, then report `handle_connected` or `handle_connect_failed`.
    Connect,
    /// Drop the connection and whatever it still holds.
    Disconnect,
    /// Ask where the stream ends; report `handle_inspected` or `handle_inspect_failed`.
    Inspect,
    /// Read one message's headers; report `handle_looked_up`.
    LookUp {
        /// Its stream sequence.
        stream_seq: u64,
    },
    /// Read the journal; report `handle_units`.
    Read {
        /// After this record.
        after: RecordId,
        /// Comes back with the units; units of an older ticket are dropped.
        ticket: u64,
        /// The flow starts anew: what was prepared before is void.
        fresh: bool,
    },
    /// Send a message; report what comes back by its token.
    Publish(Publish),
    /// Keep this checkpoint durably before anything else is done: messages that follow may outlive us.
    Keep(Checkpoint),
    /// Tell the journal, and keep the checkpoint; it may lag behind a little.
    Ack {
        /// Everything up to here is done.
        up_to: RecordId,
        /// Records among them that the stream took since the last such action.
        published: u32,
        /// Records among them that filters kept back.
        filtered: u32,
        /// Records among them that a gap message replaced.
        unsendable: u32,
        /// Where the stream stands.
        checkpoint: Checkpoint,
    },
    /// Tell people.
    Event(Event),
}

/// What people should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The stream lost acknowledged messages; what is still kept is sent again.
    StreamLost(Loss),
    /// Another publisher writes to this stream; this one holds still.
    Fenced,
    /// The stream holds a record of this epoch that this journal has not made.
    Ahead {
        /// That record.
        record: RecordId,
    },
    /// The other publisher went silent; this one goes on.
    TookOver,
    /// A record will never be taken; a gap message goes in its place.
    Unsendable {
        /// The record.
        record: RecordId,
        /// Why, in the server's words; empty when it is too large for any message.
        cause: String,
    },
    /// Records between these two, exclusively, are no longer kept and never reached the stream as it is.
    Hole {
        /// The last record before.
        after: RecordId,
        /// The first record behind.
        before: RecordId,
    },
    /// The server calls a message a duplicate that is not in the stream; it is sent without its id.
    FalseDuplicate {
        /// The record.
        record: RecordId,
    },
}

/// Counters since start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Records acknowledged by the stream.
    pub published: u64,
    /// Records kept back by filters.
    pub filtered: u64,
    /// Records replaced by a gap message.
    pub unsendable: u64,
    /// Acknowledgements that said "duplicate".
    pub duplicates: u64,
    /// Times the stream was inspected.
    pub resyncs: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No connection; make one at this time.
    Offline { at: Duration },
    /// A connection is being made.
    Connecting,
    /// Connected; look at the stream at this time.
    Waiting { at: Duration },
    /// The stream is being looked at.
    Inspecting,
    /// Reading forward for our last message behind which another publisher wrote.
    Scanning {
        next: u64,
        last_seq: u64,
        found: Option<Mark>,
    },
    /// Publishing.
    Flowing,
    /// No more; the connection goes.
    Closed,
}

/// The state machine of one lane.
#[derive(Debug)]
pub struct Drain {
    limits: Limits,
    phase: Phase,
    state: UplinkState,
    detail: String,
    actions: VecDeque<Action>,
    backoff: Backoff,
    window: Window,
    pace: Option<Pace>,

    checkpoint: Option<Checkpoint>,
    acked: RecordId,
    head: RecordId,
    created: u64,
    suspects: Vec<Suspect>,
    confirming: Option<(u64, u64)>,
    fence: Option<(u64, Duration)>,
    ahead_told: bool,

    queue: VecDeque<Unit>,
    reading: bool,
    read_after: RecordId,
    ticket: u64,
    fresh: bool,
    exhausted: bool,
    grown: bool,
    follows: Option<RecordId>,
    stored_to: RecordId,
    parts_stored: Option<(u32, u32)>,
    next_part: u32,
    skip: u64,
    limit: RecordId,

    flight: Flight,
    expected: u64,
    prev: RecordId,
    filtered: u32,
    told: RecordId,
    paced_to: Option<Duration>,
    probe: bool,
    doubts: u32,
    batch_id: u64,
    progress_at: Duration,

    refused: Option<RecordId>,
    /// A gap message stands in for `refused` to see whether anything passes; people hear of it when it does.
    trial: Option<(RecordId, String)>,
    denials: (RecordId, u32),
    acked_since_refusal: bool,
    duplicate_of: Option<RecordId>,
    without_id: Option<RecordId>,

    counters: Counters,
}

mod input;
mod output;
mod refusal;

#[cfg(test)]
mod tests;
