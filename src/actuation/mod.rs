//! Local writes: one path for every NCMD and DCMD, whoever asks for it.
//!
//! This is a core without I/O: requests, device values and time go in, [`Step`]s come out. What is needed from
//! outside at the moment of sending (is the node online, does the metric exist, is the interlock open) is asked
//! through a [`Gate`], so that a write is judged by what holds *then*, not by what held when a rule fired.
//!
//! A plan is one write or an ordered sequence. A sequence goes on to its next write when the one before is
//! confirmed; when one fails, the `undo` writes of the earlier ones run in reverse, each confirmed likewise.
//!
//! Invariants:
//! * a write past its deadline is never sent;
//! * an id that was seen is never carried out twice, within the last [`Limits::remembered`] ids;
//! * every write that was sent ends in exactly one of `confirmed`, `timeout`, `rejected` or `undone`;
//! * nothing here is ever called by a replay.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use sparkplug::value::Value;

mod confirm;
mod hold;

pub use confirm::{Confirm, Expect};
pub use hold::{Hold, HoldError, Holds};

/// A node (`device` is `None`) or device that is written to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    /// Sparkplug group id.
    pub group: Arc<str>,
    /// Sparkplug edge node id.
    pub node: Arc<str>,
    /// Sparkplug device id; `None` for the node itself.
    pub device: Option<Arc<str>>,
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.group, self.node)?;
        match &self.device {
            Some(device) => write!(f, "/{device}"),
            None => Ok(()),
        }
    }
}

/// One write of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    /// Who is written to.
    pub target: Target,
    /// Metric name as in the birth.
    pub metric: Arc<str>,
    /// Value in the writer's terms; the host converts it to the birth's datatype or refuses it.
    pub value: Value,
    /// What counts as the device having done it.
    pub confirm: Confirm,
    /// What takes it back when a later write of the plan fails.
    pub undo: Option<Box<Write>>,
    /// Sent again once when unconfirmed.
    pub repeatable: bool,
    /// A condition that must hold when it is sent; `None`: always allowed.
    pub allow_when: Option<Interlock>,
}

/// Names an interlock; what it is, the [`Gate`] knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interlock {
    /// The plan it guards.
    pub plan: Arc<str>,
    /// Which of its writes, from 0.
    pub position: u32,
}

/// One write, or an ordered sequence of writes.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Caller's id; a repeated one is not carried out again.
    pub id: Arc<str>,
    /// Who asks: `rule:<id>@<version>`, `user:<name>`, `cloud:<name>`.
    pub by: Arc<str>,
    /// The record that caused it, 0 for people's writes.
    pub cause: u64,
    /// Higher wins a fight over one metric.
    pub priority: i32,
    /// Engine time in ms after which nothing of it is sent.
    pub deadline_ms: u64,
    /// At least one.
    pub writes: Vec<Write>,
}

/// Bounds of everything kept here.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Never send anything.
    pub read_only: bool,
    /// Writes to one target in a second.
    pub max_per_second: u32,
    /// Plans in flight; more are rejected as `busy`.
    pub in_flight: usize,
    /// Plan ids remembered to recognise a repeated request.
    pub remembered: usize,
    /// Finished steps kept for listings.
    pub history: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            read_only: false,
            max_per_second: 20,
            in_flight: 4096,
            remembered: 8192,
            history: 1000,
        }
    }
}

/// What the core asks of the outside at the moment of sending.
pub trait Gate {
    /// Sends one write. Returns the metric's value before it, or why it can't be sent, in a stable
    /// snake_case word followed by a colon and what to do.
    ///
    /// # Errors
    /// The reason, for a person.
    fn send(&mut self, write: &Write) -> Result<Option<Value>, String>;

    /// Whether an interlock holds now.
    ///
    /// # Errors
    /// The reason why it can't be told; the write is rejected then.
    fn allowed(&mut self, interlock: &Interlock) -> Result<bool, String>;
}

/// How a write stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// On its way to the device.
    Sent,
    /// The device shows what was asked for.
    Confirmed,
    /// The device did not show it in time.
    Timeout,
    /// Never sent.
    Rejected,
    /// Never sent, since its deadline passed.
    Expired,
    /// Taken back.
    Undone,
}

impl Status {
    /// The word in records and listings.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Confirmed => "confirmed",
            Self::Timeout => "timeout",
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::Undone => "undone",
        }
    }
}

/// Something that happened to a write: becomes a `command` record.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// `<plan id>` for the first write, `<plan id>.<n>` for later ones, `.undo` appended for undo writes.
    pub id: Arc<str>,
    /// The plan's id.
    pub plan: Arc<str>,
    /// Who is written to.
    pub target: Target,
    /// Metric name.
    pub metric: Arc<str>,
    /// Value asked for.
    pub value: Value,
    /// Value before, where known.
    pub previous: Option<Value>,
    /// Who asked.
    pub by: Arc<str>,
    /// Causing record, 0 for none.
    pub cause: u64,
    /// How it stands.
    pub status: Status,
    /// Why, for anything but `sent` and `confirmed`.
    pub reason: Option<String>,
    /// Engine time in ms.
    pub at_ms: u64,
    /// Engine ms since it was sent, for outcomes.
    pub after_ms: u64,
    /// The plan is over with this step.
    pub last: bool,
}

#[derive(Debug)]
struct Running {
    plan: Plan,
    /// Write in flight: index into `plan.writes`.
    at: usize,
    /// Going backwards over the undo writes.
    undoing: bool,
    /// Writes that were sent and have an undo, in order.
    done: Vec<usize>,
    sent_ms: u64,
    deadline_ms: u64,
    previous: Option<Value>,
    last_seen: Option<Value>,
    repeated: bool,
    failed: Option<String>,
}

impl Running {
    fn current(&self) -> Option<&Write> {
        let write = self.plan.writes.get(self.at)?;
        if self.undoing {
            write.undo.as_deref()
        } else {
            Some(write)
        }
    }
}

/// Who wrote a metric last: what a fight over it is decided by.
#[derive(Debug)]
struct Owner {
    priority: i32,
    by: Arc<str>,
    at_ms: u64,
}

/// All writes of a gateway. See the module's page for the contract.
#[derive(Debug, Default)]
pub struct Actuation {
    limits: Limits,
    next: u64,
    running: BTreeMap<u64, Running>,
    timers: BTreeSet<(u64, u64)>,
    watching: HashMap<(Target, Arc<str>), Vec<u64>>,
    owners: HashMap<(Target, Arc<str>), Owner>,
    remembered: VecDeque<Arc<str>>,
    known: HashMap<Arc<str>, ()>,
    rate: HashMap<Target, (u64, u32)>,
    holds: Holds,
    history: VecDeque<Step>,
    steps: VecDeque<Step>,
    counts: BTreeMap<&'static str, u64>,
}

/// How long a lower-priority rule is held off a metric after a higher one wrote it, ms.
const FIGHT_MS: u64 = 1_000;

impl Actuation {
    /// Nothing in flight.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// Manual holds of targets.
    pub fn holds(&mut self) -> &mut Holds {
        &mut self.holds
    }

    /// Steps by status since start.
    #[must_use]
    pub fn counts(&self) -> &BTreeMap<&'static str, u64> {
        &self.counts
    }

    /// The most recent steps, oldest first, at most [`Limits::history`].
    pub fn history(&self) -> impl DoubleEndedIterator<Item = &Step> {
        self.history.iter()
    }

    /// Plans that are not over.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.running.len()
    }

    /// Changes the limits; what is in flight goes on.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Takes a plan and sends its first write. A repeated id is ignored; `false` says so.
    pub fn handle_request(&mut self, now_ms: u64, plan: Plan, gate: &mut dyn Gate) -> bool {
        if self.known.contains_key(&plan.id) {
            return false;
        }
        self.known.insert(plan.id.clone(), ());
        self.remembered.push_back(plan.id.clone());
        if self.remembered.len() > self.limits.remembered
            && let Some(old) = self.remembered.pop_front()
        {
            self.known.remove(&old);
        }
        let number = self.next;
        self.next += 1;
        let running = Running {
            plan,
            at: 0,
            undoing: false,
            done: Vec::new(),
            sent_ms: now_ms,
            deadline_ms: now_ms,
            previous: None,
            last_seen: None,
            repeated: false,
            failed: None,
        };
        if self.running.len() >= self.limits.in_flight {
            self.refuse(
                now_ms,
                &running,
                Status::Rejected,
                "busy: too many writes are in flight; try again",
            );
            return true;
        }
        self.start(now_ms, number, running, gate);
        true
    }

    /// A device's value arrived (live, never historical): confirms what waits for it.
    pub fn handle_value(
        &mut self,
        now_ms: u64,
        target: &Target,
        metric: &Arc<str>,
        value: &Value,
        gate: &mut dyn Gate,
    ) {
        if self.watching.is_empty() {
            return;
        }
        let Some(numbers) = self.watching.get(&(target.clone(), metric.clone())) else {
            return;
        };
        for number in numbers.clone() {
            let Some(running) = self.running.get_mut(&number) else {
                continue;
            };
            let Some(write) = running.current() else {
                continue;
            };
            if write.confirm.met_by(&write.value, value) {
                self.advance(now_ms, number, gate);
            } else {
                running.last_seen = Some(value.clone());
            }
        }
    }

    /// A target's death: what waits for it can't be confirmed any more.
    pub fn handle_death(&mut self, now_ms: u64, target: &Target, gate: &mut dyn Gate) {
        let dead: Vec<u64> = self
            .running
            .iter()
            .filter(|(_, running)| {
                running.current().is_some_and(|write| {
                    let to = &write.target;
                    to.group == target.group
                        && to.node == target.node
                        && (target.device.is_none() || to.device == target.device)
                })
            })
            .map(|(number, _)| *number)
            .collect();
        for number in dead {
            self.fail(
                now_ms,
                number,
                "offline: the target died before it confirmed".to_owned(),
                gate,
            );
        }
    }

    /// Fires what is due. Early and repeated calls do nothing.
    pub fn handle_timeout(&mut self, now_ms: u64, gate: &mut dyn Gate) {
        while let Some(&(at, number)) = self.timers.first() {
            if at > now_ms {
                break;
            }
            self.timers.pop_first();
            let Some(running) = self.running.get_mut(&number) else {
                continue;
            };
            if running.deadline_ms > now_ms {
                continue;
            }
            let again = running.current().is_some_and(|w| w.repeatable) && !running.repeated;
            if again && now_ms <= running.plan.deadline_ms {
                running.repeated = true;
                self.send(now_ms, number, gate);
                continue;
            }
            let reason = match &running.last_seen {
                Some(value) => format!(
                    "unconfirmed: the device last showed {}",
                    confirm::show(value)
                ),
                None => "unconfirmed: the device showed nothing".to_owned(),
            };
            self.fail(now_ms, number, reason, gate);
        }
        self.holds.expire(now_ms);
        if self.rate.len() > 4096 {
            self.rate
                .retain(|_, (second, _)| *second + 1 >= now_ms / 1000);
        }
        if self.owners.len() > 4096 {
            self.owners
                .retain(|_, owner| owner.at_ms + FIGHT_MS >= now_ms);
        }
    }

    /// Engine time in ms of the next timer.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        let hold = self.holds.next_expiry();
        let timer = self.timers.first().map(|(at, _)| *at);
        match (hold, timer) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// The next step that happened.
    pub fn poll_step(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }

    fn start(&mut self, now_ms: u64, number: u64, running: Running, gate: &mut dyn Gate) {
        let Some(write) = running.current() else {
            return;
        };
        if let Err((status, reason)) = self.permit(now_ms, &running, write, gate) {
            self.refuse(now_ms, &running, status, &reason);
            return;
        }
        self.running.insert(number, running);
        self.send(now_ms, number, gate);
    }

    /// Everything that is judged before a write may leave, apart from what the host itself knows.
    fn permit(
        &self,
        now_ms: u64,
        running: &Running,
        write: &Write,
        gate: &mut dyn Gate,
    ) -> Result<(), (Status, String)> {
        let rejected = |reason: &str| Err((Status::Rejected, reason.to_owned()));
        if self.limits.read_only {
            return rejected("read_only: this gateway writes nothing ([writes] read_only)");
        }
        if !running.undoing && now_ms > running.plan.deadline_ms {
            return Err((
                Status::Expired,
                "expired: its time to live had passed".to_owned(),
            ));
        }
        if let Some(hold) = self.holds.covering(&write.target, now_ms) {
            return rejected(&format!("held: {} holds {}", hold.by, write.target));
        }
        if let Some((second, count)) = self.rate.get(&write.target)
            && *second == now_ms / 1000
            && *count >= self.limits.max_per_second
        {
            return rejected("rate_limit: too many writes to this target in a second");
        }
        if let Some(owner) = self
            .owners
            .get(&(write.target.clone(), write.metric.clone()))
            && owner.priority > running.plan.priority
            && owner.by != running.plan.by
            && now_ms < owner.at_ms + FIGHT_MS
        {
            let by = &owner.by;
            return rejected(&format!(
                "priority: {by} wrote this metric just now with a higher priority"
            ));
        }
        if let Some(interlock) = &write.allow_when
            && !running.undoing
        {
            match gate.allowed(interlock) {
                Ok(true) => {}
                Ok(false) => return rejected("interlock: allow_when does not hold"),
                Err(reason) => return rejected(&format!("interlock: {reason}")),
            }
        }
        Ok(())
    }

    fn send(&mut self, now_ms: u64, number: u64, gate: &mut dyn Gate) {
        let Some(running) = self.running.get_mut(&number) else {
            return;
        };
        let Some(write) = running.current().cloned() else {
            return;
        };
        match gate.send(&write) {
            Ok(previous) => {
                running.sent_ms = now_ms;
                running.previous = previous;
                running.last_seen = None;
                running.deadline_ms = now_ms + write.confirm.within_ms();
                self.timers.insert((running.deadline_ms, number));
                if !running.undoing
                    && write.undo.is_some()
                    && running.done.last() != Some(&running.at)
                {
                    running.done.push(running.at);
                }
                let (priority, by) = (running.plan.priority, running.plan.by.clone());
                let step = step(running, &write, Status::Sent, None, now_ms, false);
                self.say(step);
                let rate = self.rate.entry(write.target.clone()).or_insert((0, 0));
                if rate.0 == now_ms / 1000 {
                    rate.1 += 1
                } else {
                    *rate = (now_ms / 1000, 1)
                }
                self.owners.insert(
                    (write.target.clone(), write.metric.clone()),
                    Owner {
                        priority,
                        by,
                        at_ms: now_ms,
                    },
                );
                let watched = (
                    write.confirm.target(&write.target),
                    write.confirm.metric(&write.metric),
                );
                let watchers = self.watching.entry(watched).or_default();
                if !watchers.contains(&number) {
                    watchers.push(number);
                }
            }
            Err(reason) => self.end_current(now_ms, number, Status::Rejected, reason, gate),
        }
    }

    /// The write in flight is confirmed: on to the next one.
    fn advance(&mut self, now_ms: u64, number: u64, gate: &mut dyn Gate) {
        self.unwatch(number);
        let Some(mut running) = self.running.remove(&number) else {
            return;
        };
        let Some(write) = running.current().cloned() else {
            return;
        };
        if running.undoing {
            let s = step(
                &running,
                &write,
                Status::Undone,
                running.failed.clone(),
                now_ms,
                running.done.is_empty(),
            );
            self.say(s);
            self.undo_next(now_ms, number, running, gate);
            return;
        }
        let last = running.at + 1 >= running.plan.writes.len();
        let confirmed = step(&running, &write, Status::Confirmed, None, now_ms, last);
        self.say(confirmed);
        if last {
            return;
        }
        running.at += 1;
        running.repeated = false;
        let Some(write) = running.current().cloned() else {
            return;
        };
        match self.permit(now_ms, &running, &write, gate) {
            Ok(()) => {
                self.running.insert(number, running);
                self.send(now_ms, number, gate);
            }
            Err((status, reason)) => {
                self.running.insert(number, running);
                self.end_current(now_ms, number, status, reason, gate);
            }
        }
    }

    fn fail(&mut self, now_ms: u64, number: u64, reason: String, gate: &mut dyn Gate) {
        self.end_current(now_ms, number, Status::Timeout, reason, gate);
    }

    /// The write in flight failed: say so, then take back what came before.
    fn end_current(
        &mut self,
        now_ms: u64,
        number: u64,
        status: Status,
        reason: String,
        gate: &mut dyn Gate,
    ) {
        self.unwatch(number);
        let Some(mut running) = self.running.remove(&number) else {
            return;
        };
        let Some(write) = running.current().cloned() else {
            return;
        };
        if running.undoing {
            // An undo that fails is told and the remaining ones still run: half undone is worse than told.
            let s = step(
                &running,
                &write,
                status,
                Some(reason),
                now_ms,
                running.done.is_empty(),
            );
            self.say(s);
            self.undo_next(now_ms, number, running, gate);
            return;
        }
        // A write that was sent but not confirmed may have happened: its own undo runs too, when a later or
        // earlier step makes this a sequence.
        if running.plan.writes.len() == 1 {
            running.done.clear();
        }
        let last = running.done.is_empty();
        let s = step(&running, &write, status, Some(reason.clone()), now_ms, last);
        self.say(s);
        if last {
            return;
        }
        running.failed = Some(format!("undone since {} failed: {reason}", write.metric));
        running.undoing = true;
        self.undo_next(now_ms, number, running, gate);
    }

    fn undo_next(&mut self, now_ms: u64, number: u64, mut running: Running, gate: &mut dyn Gate) {
        let Some(index) = running.done.pop() else {
            return;
        };
        running.at = index;
        running.repeated = false;
        self.running.insert(number, running);
        self.send(now_ms, number, gate);
    }

    fn refuse(&mut self, now_ms: u64, running: &Running, status: Status, reason: &str) {
        let Some(write) = running.current() else {
            return;
        };
        let refused = step(
            running,
            write,
            status,
            Some(reason.to_owned()),
            now_ms,
            true,
        );
        self.say(refused);
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

    fn say(&mut self, step: Step) {
        *self.counts.entry(step.status.as_str()).or_default() += 1;
        self.history.push_back(step.clone());
        if self.history.len() > self.limits.history {
            self.history.pop_front();
        }
        self.steps.push_back(step);
    }
}

fn step(
    running: &Running,
    write: &Write,
    status: Status,
    reason: Option<String>,
    now_ms: u64,
    last: bool,
) -> Step {
    let plan = &running.plan;
    let mut id = plan.id.to_string();
    if running.at > 0 {
        id.push_str(&format!(".{}", running.at + 1));
    }
    if running.undoing {
        id.push_str(".undo");
    }
    Step {
        id: id.into(),
        plan: plan.id.clone(),
        target: write.target.clone(),
        metric: write.metric.clone(),
        value: write.value.clone(),
        previous: running.previous.clone(),
        by: plan.by.clone(),
        cause: plan.cause,
        status,
        reason,
        at_ms: now_ms,
        after_ms: now_ms.saturating_sub(running.sent_ms),
        last,
    }
}

#[cfg(test)]
mod tests;
