//! One plan on its way: the state machine of the module's page.

use sparkplug::value::Value;

use super::confirm::show;
use super::fight::Claim;
use super::{Actuation, Gate, Notice, Plan, Refusal, Status, Step, Write};

/// Time between two looks at whether an undo can leave, ms.
const RETRY_MS: u64 = 1_000;
/// How long an undo waits for the disk: taking back matters more than the record of it, ms.
const UNDO_DISK_MS: u64 = 5_000;

/// Where the current write stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not looked at yet.
    Due,
    /// Told, and waiting for the disk.
    Told,
    /// Out, and waiting for its confirmation.
    Sent,
    /// An undo, or a step after a restart, that can't leave now; given up at this time.
    Parked { until_ms: u64 },
    /// It may have left before a restart: the device is asked whether it shows it; given up at this time.
    Asked { until_ms: u64 },
}

#[derive(Debug)]
pub(super) struct Running {
    pub(super) plan: Plan,
    /// Index of the current write.
    pub(super) at: usize,
    /// Going backwards over the undo writes.
    pub(super) undoing: bool,
    /// Writes that may have happened and have an undo, in order.
    pub(super) done: Vec<usize>,
    pub(super) phase: Phase,
    /// When the current write became due.
    pub(super) due_ms: u64,
    sent_ms: u64,
    /// When the timer of this phase is due.
    wake_ms: u64,
    previous: Option<Value>,
    last_seen: Option<Value>,
    repeated: bool,
    /// Another deadline of the current write than its own, engine ms: part of its time passed before a restart.
    pub(super) send_by: Option<u64>,
    /// Goes on after a restart: its targets come back one after another, so that forward writes wait for them too.
    pub(super) patient: bool,
    pub(super) failed: Option<String>,
}

impl Running {
    pub(super) fn new(now_ms: u64, plan: Plan) -> Self {
        Self {
            plan,
            at: 0,
            undoing: false,
            done: Vec::new(),
            phase: Phase::Due,
            due_ms: now_ms,
            sent_ms: now_ms,
            wake_ms: now_ms,
            previous: None,
            last_seen: None,
            repeated: false,
            send_by: None,
            patient: false,
            failed: None,
        }
    }

    pub(super) fn current(&self) -> Option<&Write> {
        let write = self.plan.writes.get(self.at)?;
        if self.undoing {
            write.undo.as_deref()
        } else {
            Some(write)
        }
    }

    /// Engine time in ms after which the current forward write is not sent.
    pub(super) fn send_by_ms(&self) -> u64 {
        if let Some(send_by) = self.send_by {
            return send_by;
        }
        let ttl = self.current().and_then(|write| write.ttl_ms);
        match ttl {
            Some(ttl) if self.at > 0 => self.due_ms.saturating_add(ttl),
            _ => self.plan.deadline_ms,
        }
    }

    /// Moves to another write.
    pub(super) fn turn_to(&mut self, now_ms: u64, at: usize) {
        self.at = at;
        self.phase = Phase::Due;
        self.due_ms = now_ms;
        self.sent_ms = now_ms;
        self.repeated = false;
        self.send_by = None;
        self.previous = None;
        self.last_seen = None;
    }

    pub(super) fn step(
        &self,
        status: Status,
        reason: Option<String>,
        now_ms: u64,
        last: bool,
    ) -> Option<Step> {
        let write = self.current()?;
        let plan = &self.plan;
        let mut id = plan.id.to_string();
        if self.at > 0 {
            id.push_str(&format!(".{}", self.at + 1));
        }
        if self.undoing {
            id.push_str(".undo");
        }
        Some(Step {
            id: id.into(),
            plan: plan.id.clone(),
            position: self.at,
            of: plan.writes.len(),
            undo: self.undoing,
            target: write.target.clone(),
            metric: write.metric.clone(),
            value: write.value.clone(),
            previous: self.previous.clone(),
            by: plan.by.clone(),
            cause: plan.cause,
            status,
            reason,
            at_ms: now_ms,
            after_ms: now_ms.saturating_sub(self.sent_ms),
            last,
            ticket: None,
        })
    }
}

impl Actuation {
    /// The current write is due.
    pub(super) fn begin(&mut self, now_ms: u64, number: u64, gate: &mut dyn Gate) {
        let Some(mut running) = self.running.remove(&number) else {
            return;
        };
        let judged = self.judge(now_ms, &running, gate, true);
        match judged {
            Ok(previous) if running.plan.is_sequence() => {
                running.previous = previous;
                running.phase = Phase::Told;
                running.wake_ms = if running.undoing {
                    now_ms + UNDO_DISK_MS
                } else {
                    running.send_by_ms() + 1
                };
                self.timers.insert((running.wake_ms, number));
                if let Some(step) = running.step(Status::Sent, None, now_ms, false) {
                    self.say(Step {
                        ticket: Some(number),
                        ..step
                    });
                }
                self.running.insert(number, running);
            }
            Ok(_) => {
                self.running.insert(number, running);
                self.send(now_ms, number, gate);
            }
            Err(refusal) => {
                self.running.insert(number, running);
                self.refused(now_ms, number, refusal, gate);
            }
        }
    }

    /// The current write is on disk: what held a moment ago is asked once more.
    pub(super) fn release(&mut self, now_ms: u64, number: u64, gate: &mut dyn Gate) {
        let Some(running) = self.running.remove(&number) else {
            return;
        };
        if running.phase != Phase::Told {
            self.running.insert(number, running);
            return;
        }
        let judged = self.judge(now_ms, &running, gate, true);
        self.running.insert(number, running);
        match judged {
            Ok(_) => self.send(now_ms, number, gate),
            Err(refusal) => self.refused(now_ms, number, refusal, gate),
        }
    }

    pub(super) fn not_stored(&mut self, now_ms: u64, number: u64, gate: &mut dyn Gate) {
        let Some(running) = self.running.get(&number) else {
            return;
        };
        if running.phase != Phase::Told {
            return;
        }
        if running.undoing {
            self.release(now_ms, number, gate);
        } else {
            let refusal =
                Refusal::rejected("disk_full: a sequence is journalled before it is sent");
            self.end_current(now_ms, number, refusal, gate);
        }
    }

    /// The current write may not leave now.
    fn refused(&mut self, now_ms: u64, number: u64, refusal: Refusal, gate: &mut dyn Gate) {
        let patience = self.limits.undo_patience_ms;
        let Some(running) = self.running.get_mut(&number) else {
            return;
        };
        let waits = running.undoing || running.patient;
        if !waits || !refusal.passing {
            self.end_current(now_ms, number, refusal, gate);
            return;
        }
        let until_ms = match running.phase {
            Phase::Parked { until_ms } => until_ms,
            _ if !running.undoing => running.send_by_ms(),
            Phase::Due | Phase::Told | Phase::Sent | Phase::Asked { .. } => {
                now_ms.saturating_add(patience)
            }
        };
        if now_ms >= until_ms {
            self.end_current(now_ms, number, refusal, gate);
            return;
        }
        running.phase = Phase::Parked { until_ms };
        running.wake_ms = until_ms.min(now_ms + RETRY_MS);
        self.timers.insert((running.wake_ms, number));
    }

    /// The target is there again.
    pub(super) fn retry(&mut self, now_ms: u64, number: u64, gate: &mut dyn Gate) {
        match self.running.get(&number).map(|running| running.phase) {
            Some(Phase::Parked { .. }) => self.begin(now_ms, number, gate),
            Some(Phase::Asked { .. }) => self.ask(now_ms, number, gate),
            Some(Phase::Due | Phase::Told | Phase::Sent) | None => {}
        }
    }

    /// Whether the device shows what may have left before a restart.
    pub(super) fn ask(&mut self, now_ms: u64, number: u64, gate: &mut dyn Gate) {
        let Some(running) = self.running.get_mut(&number) else {
            return;
        };
        let (Phase::Asked { until_ms }, Some(write)) = (running.phase, running.current().cloned())
        else {
            return;
        };
        let target = write.confirm.target(&write.target);
        let shown = gate.shows(&target, &write.confirm.metric(&write.metric));
        if let Some(shown) = shown {
            if write.confirm.met_by(&write.value, &shown) {
                let reason = "restart: it had left, and the device shows it";
                return self.advance(now_ms, number, Some(reason.to_owned()), gate);
            }
            running.last_seen = Some(shown);
        }
        if now_ms >= until_ms {
            let reason = match &running.last_seen {
                Some(value) => format!(
                    "restart: it may have left, and the device shows {}",
                    show(value)
                ),
                None => "restart: it may have left, and the device showed nothing".to_owned(),
            };
            return self.timed_out(now_ms, number, reason, gate);
        }
        running.wake_ms = until_ms.min(now_ms + RETRY_MS);
        self.timers.insert((running.wake_ms, number));
    }

    fn send(&mut self, now_ms: u64, number: u64, gate: &mut dyn Gate) {
        let Some(running) = self.running.get_mut(&number) else {
            return;
        };
        let Some(write) = running.current().cloned() else {
            return;
        };
        let previous = match gate.send(&write) {
            Ok(previous) => previous,
            Err(refusal) => return self.refused(now_ms, number, refusal, gate),
        };
        let told = running.phase == Phase::Told;
        running.phase = Phase::Sent;
        running.sent_ms = now_ms;
        running.previous = previous;
        running.last_seen = None;
        running.wake_ms = now_ms + write.confirm.within_ms();
        self.timers.insert((running.wake_ms, number));
        if !running.undoing && write.undo.is_some() && running.done.last() != Some(&running.at) {
            running.done.push(running.at);
        }
        let claim = Claim {
            target: &write.target,
            metric: &write.metric,
            by: &running.plan.by,
            priority: running.plan.priority,
            value: &write.value,
        };
        self.owners.sent(now_ms, claim);
        let step = running.step(Status::Sent, None, now_ms, false);
        if !told && let Some(step) = step {
            self.say(step);
        }
        let rate = self.rate.entry(write.target.clone()).or_insert((0, 0));
        if rate.0 == now_ms / 1000 {
            rate.1 += 1;
        } else {
            *rate = (now_ms / 1000, 1);
        }
        self.watch(number, &write);
    }

    pub(super) fn watch(&mut self, number: u64, write: &Write) {
        let watched = (
            write.confirm.target(&write.target),
            write.confirm.metric(&write.metric),
        );
        let watchers = self.watching.entry(watched).or_default();
        if !watchers.contains(&number) {
            watchers.push(number);
        }
    }

    /// A value of the metric that the current write waits for.
    pub(super) fn seen(&mut self, now_ms: u64, number: u64, value: &Value, gate: &mut dyn Gate) {
        let Some(running) = self.running.get_mut(&number) else {
            return;
        };
        let Some(write) = running.current() else {
            return;
        };
        if write.confirm.met_by(&write.value, value) {
            self.advance(now_ms, number, None, gate);
        } else {
            running.last_seen = Some(value.clone());
        }
    }

    /// The target of the current write died.
    pub(super) fn lost(&mut self, now_ms: u64, number: u64, gate: &mut dyn Gate) {
        let Some(running) = self.running.get_mut(&number) else {
            return;
        };
        if running.phase != Phase::Sent {
            // What has not left is judged when it is to leave.
            return;
        }
        let repeatable = running.current().is_some_and(|write| write.repeatable);
        let reason = "offline: the target died before it confirmed";
        if running.undoing && repeatable {
            self.unwatch(number);
            self.refused(now_ms, number, Refusal::passing(reason), gate);
        } else {
            self.timed_out(now_ms, number, reason.to_owned(), gate);
        }
    }

    /// The timer of the current phase is due.
    pub(super) fn overdue(&mut self, now_ms: u64, number: u64, gate: &mut dyn Gate) {
        let Some(running) = self.running.get_mut(&number) else {
            return;
        };
        if running.wake_ms > now_ms {
            return;
        }
        match running.phase {
            Phase::Due => {}
            Phase::Told if running.undoing => self.release(now_ms, number, gate),
            Phase::Told => self.end_current(now_ms, number, Refusal::expired(), gate),
            Phase::Parked { .. } => self.begin(now_ms, number, gate),
            Phase::Asked { .. } => self.ask(now_ms, number, gate),
            Phase::Sent => self.unconfirmed(now_ms, number, gate),
        }
    }

    /// Nothing confirmed the current write in time.
    fn unconfirmed(&mut self, now_ms: u64, number: u64, gate: &mut dyn Gate) {
        let Some(running) = self.running.get_mut(&number) else {
            return;
        };
        let Some(write) = running.current().cloned() else {
            return;
        };
        // Nodes report by exception: one that was there already has nothing to say.
        let target = write.confirm.target(&write.target);
        let shown = gate.shows(&target, &write.confirm.metric(&write.metric));
        if running.last_seen.is_none()
            && shown.is_some_and(|shown| write.confirm.met_by(&write.value, &shown))
        {
            let reason = "unchanged: the device shows it, and showed it before";
            return self.advance(now_ms, number, Some(reason.to_owned()), gate);
        }
        if write.repeatable
            && !running.repeated
            && (running.undoing || now_ms <= running.send_by_ms())
        {
            running.repeated = true;
            running.phase = Phase::Due;
            self.unwatch(number);
            self.begin(now_ms, number, gate);
            return;
        }
        let reason = match &running.last_seen {
            Some(value) => format!("unconfirmed: the device last showed {}", show(value)),
            None => "unconfirmed: the device showed nothing".to_owned(),
        };
        self.timed_out(now_ms, number, reason, gate);
    }

    /// The current write is confirmed: on to the next one.
    fn advance(&mut self, now_ms: u64, number: u64, reason: Option<String>, gate: &mut dyn Gate) {
        self.unwatch(number);
        let Some(mut running) = self.running.remove(&number) else {
            return;
        };
        if running.undoing {
            let why = running.failed.clone();
            let last = running.done.is_empty();
            if let Some(step) = running.step(Status::Undone, why, now_ms, last) {
                self.say(step);
            }
            self.undo_next(now_ms, number, running, gate);
            return;
        }
        let last = running.at + 1 >= running.plan.writes.len();
        if let Some(step) = running.step(Status::Confirmed, reason, now_ms, last) {
            self.say(step);
        }
        if last {
            return;
        }
        running.turn_to(now_ms, running.at + 1);
        self.running.insert(number, running);
        self.begin(now_ms, number, gate);
    }

    fn timed_out(&mut self, now_ms: u64, number: u64, reason: String, gate: &mut dyn Gate) {
        let refusal = Refusal {
            status: Status::Timeout,
            reason,
            passing: false,
        };
        self.end_current(now_ms, number, refusal, gate);
    }

    /// The current write failed: say so, then take back what may have happened.
    pub(super) fn end_current(
        &mut self,
        now_ms: u64,
        number: u64,
        refusal: Refusal,
        gate: &mut dyn Gate,
    ) {
        self.unwatch(number);
        let Some(mut running) = self.running.remove(&number) else {
            return;
        };
        let Refusal { status, reason, .. } = refusal;
        if running.undoing {
            // An undo that fails is told and the remaining ones still run: half undone is worse than told.
            let last = running.done.is_empty();
            if let Some(step) = running.step(status, Some(reason.clone()), now_ms, last) {
                self.notice(Notice::NotUndone {
                    id: step.id.clone(),
                    target: step.target.clone(),
                    metric: step.metric.clone(),
                    reason,
                });
                self.say(step);
            }
            self.undo_next(now_ms, number, running, gate);
            return;
        }
        // A write that was sent but not confirmed may have happened: its own undo runs too, when this is a sequence.
        if !running.plan.is_sequence() {
            running.done.clear();
        }
        let last = running.done.is_empty();
        if let Some(step) = running.step(status, Some(reason.clone()), now_ms, last) {
            running.failed = Some(format!("undone since {} failed: {reason}", step.metric));
            self.say(step);
        }
        if last {
            return;
        }
        running.undoing = true;
        self.undo_next(now_ms, number, running, gate);
    }

    pub(super) fn undo_next(
        &mut self,
        now_ms: u64,
        number: u64,
        mut running: Running,
        gate: &mut dyn Gate,
    ) {
        let Some(index) = running.done.pop() else {
            return;
        };
        running.turn_to(now_ms, index);
        self.running.insert(number, running);
        self.begin(now_ms, number, gate);
    }

    fn unwatch(&mut self, number: u64) {
        let Some(running) = self.running.get(&number) else {
            return;
        };
        let Some(write) = running.current() else {
            return;
        };
        let watched = (
            write.confirm.target(&write.target),
            write.confirm.metric(&write.metric),
        );
        if let Some(numbers) = self.watching.get_mut(&watched) {
            numbers.retain(|n| *n != number);
            if numbers.is_empty() {
                self.watching.remove(&watched);
            }
        }
    }
}
