//! When a node is asked for a rebirth: one request a reason, a cooldown, growing intervals while it does not
//! answer, and a rate over all nodes.

use super::config::RebirthPolicy;
use super::event::RebirthCause;
use crate::datatype::DataType;
use crate::metric::Metric;
use crate::payload::{Form, encode};
use crate::value::Value;

/// The metric by which a rebirth is requested: always by name, never by alias.
// tck-id-operational-behavior-data-commands-ncmd-rebirth-name
pub const REBIRTH: &str = "Node Control/Rebirth";

/// Payload of a rebirth request.
// tck-id-operational-behavior-data-commands-ncmd-rebirth-value, tck-id-topics-ncmd-timestamp
pub(super) fn request(wall_ms: u64) -> Vec<u8> {
    let metric = Metric::new(REBIRTH, DataType::Boolean, Value::Bool(true)).at(wall_ms);
    encode(Some(wall_ms), None, &[metric], Form::Full)
}

/// Rebirth requests to one node.
#[derive(Debug, Clone, Default)]
pub(super) struct Rebirth {
    /// Asked for and not sent yet.
    wanted: Option<RebirthCause>,
    /// Sent and not answered yet.
    pending: bool,
    /// When to send, or to repeat.
    deadline: Option<u64>,
    /// A slot of the common rate was reserved.
    slotted: bool,
    attempts: u32,
    last_sent: Option<u64>,
    last_cause: Option<RebirthCause>,
}

impl Rebirth {
    /// There is a reason to ask. While a request is open, further reasons add nothing.
    pub(super) fn want(&mut self, now: u64, cause: RebirthCause, policy: &RebirthPolicy) {
        if !policy.enabled || self.pending || self.wanted.is_some() {
            return;
        }
        let wait = interval(self.attempts, policy);
        let free = self.last_sent.map_or(now, |sent| sent.saturating_add(wait));
        // Calm for another interval: the node got it right in between.
        if self.last_sent.is_some() && now >= free.saturating_add(wait) {
            self.attempts = 0;
        }
        self.wanted = Some(cause);
        self.deadline = Some(free.max(now));
    }

    /// Whether a request should leave now.
    pub(super) fn due(&self, now: u64) -> bool {
        (self.wanted.is_some() || self.pending) && self.deadline.is_some_and(|at| at <= now)
    }

    pub(super) fn slotted(&self) -> bool {
        self.slotted
    }

    /// The common rate allows it only at `at`.
    pub(super) fn postpone(&mut self, at: u64) {
        self.deadline = Some(at);
        self.slotted = true;
    }

    /// A request left. Returns its cause and number.
    pub(super) fn sent(&mut self, now: u64, policy: &RebirthPolicy) -> (RebirthCause, u32) {
        let cause = self
            .wanted
            .take()
            .or(self.last_cause)
            .unwrap_or(RebirthCause::Operator);
        self.attempts = self.attempts.saturating_add(1);
        self.last_sent = Some(now);
        self.last_cause = Some(cause);
        self.slotted = false;
        self.pending = self.attempts <= policy.retries;
        self.deadline = self
            .pending
            .then(|| now.saturating_add(interval(self.attempts, policy)));
        (cause, self.attempts)
    }

    /// An operator's request goes out whatever the cooldown says.
    pub(super) fn force(&mut self, now: u64, cause: RebirthCause) {
        self.wanted = Some(cause);
        self.deadline = Some(now);
        self.slotted = true;
    }

    /// NBIRTH came, or the node died: nothing is open any more. The cooldown stays.
    pub(super) fn settle(&mut self) {
        self.wanted = None;
        self.pending = false;
        self.deadline = None;
        self.slotted = false;
    }

    pub(super) fn open(&self) -> bool {
        self.pending || self.wanted.is_some()
    }

    pub(super) fn deadline(&self) -> Option<u64> {
        self.deadline
    }

    pub(super) fn last_cause(&self) -> Option<RebirthCause> {
        self.last_cause
    }

    pub(super) fn restore_cause(&mut self, cause: Option<RebirthCause>) {
        self.last_cause = cause;
    }
}

/// Wait after the `attempts`th request.
fn interval(attempts: u32, policy: &RebirthPolicy) -> u64 {
    if attempts == 0 {
        return 0;
    }
    let doubled = policy
        .cooldown_ms
        .saturating_mul(1 << (attempts - 1).min(32));
    doubled.min(policy.max_interval_ms.max(policy.cooldown_ms))
}

/// The rate over all nodes: a virtual schedule that hands out the next free moment.
#[derive(Debug, Clone)]
pub(super) struct Pace {
    next: u64,
}

impl Pace {
    pub(super) fn new(now: u64) -> Self {
        Self { next: now }
    }

    /// When the next request may leave.
    pub(super) fn reserve(&mut self, now: u64, policy: &RebirthPolicy) -> u64 {
        let step = 1_000 / u64::from(policy.per_second.clamp(1, 1_000));
        let ahead = step * u64::from(policy.burst.saturating_sub(1));
        let at = self.next.max(now);
        self.next = at.saturating_add(step);
        at.saturating_sub(ahead).max(now)
    }
}
