//! Local writes: one path for every NCMD and DCMD, whoever asks for it.
//!
//! This is a core without I/O: requests, device values and time go in, [`Step`]s come out. What is needed from
//! outside at the moment of sending (is the node online, does the metric exist, is the interlock open) is asked
//! through a [`Gate`], so that a write is judged by what holds *then*, not by what held when a rule fired.
//!
//! A plan is one write or an ordered sequence. A single write leaves at once. A step of a sequence is told first and
//! leaves when the caller says, with [`Actuation::handle_stored`], that its [`Step`] is on disk; a sequence goes on to
//! its next write when the one before is confirmed, and when one fails, the `undo` writes of the earlier ones run in
//! reverse, each confirmed likewise. An undo whose target is away waits for it, [`Limits::undo_patience_ms`] long.
//! After a crash [`Actuation::resume`] takes a sequence back up. What may have happened is taken back, or, where the plan
//! says so, the sequence goes on with the first step that was not sent, as long as that step's time to live allows. A
//! forward step that may have left is sent again only where it is repeatable; else the device is asked whether it shows
//! it ([`Status::Confirmed`], and on), and if it does not, all is taken back.
//!
//! ```text
//!            judge ok            on disk, judge ok
//!  due ─┬─────────────► told ─────────────────────► sent ─┬─ shown ──► confirmed ─► next write, or over
//!       │ (single writes skip `told`)                     ├─ not shown ► timeout ─┐
//!       └─ refused ► rejected, expired ───────────────────┴───────────────────────┴► undo of what may have happened
//!  undo due ─┬─ refused for now ► parked, tried again on a birth and every second
//!            └─ as above, ends in `undone`, or in the reason why not and a Notice::NotUndone
//! ```
//!
//! Invariants:
//! * a write past its deadline is never sent;
//! * an id that was seen is never carried out twice, within the last [`Limits::remembered`] ids;
//! * every write that was told as `sent` ends in exactly one of `confirmed`, `timeout`, `rejected`, `expired`, `undone`;
//! * a forward write that is not repeatable is sent once at most, over restarts too;
//! * nothing here is ever called by a replay.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use sparkplug::value::Value;

mod confirm;
mod fight;
mod hold;
mod judge;
mod plan;
mod policy;
mod resume;
mod run;

pub use confirm::{Confirm, Expect};
pub use hold::{Hold, HoldError, Holds};
pub use plan::{
    Gate, Interlock, Limits, Notice, OnRestart, Plan, Refusal, Status, Step, Target, Write,
};
pub use policy::{Policy, PolicyRule, in_range};
pub use resume::{Happened, Interrupted};

use fight::Owners;
use run::Running;

/// Notices that wait to be taken; the oldest go.
const MOST_NOTICES: usize = 256;

/// All writes of a gateway. See the module's page for the contract.
#[derive(Debug, Default)]
pub struct Actuation {
    limits: Limits,
    next: u64,
    running: BTreeMap<u64, Running>,
    timers: BTreeSet<(u64, u64)>,
    watching: HashMap<(Target, Arc<str>), Vec<u64>>,
    owners: Owners,
    remembered: VecDeque<Arc<str>>,
    known: HashSet<Arc<str>>,
    rate: HashMap<Target, (u64, u32)>,
    holds: Holds,
    steps: VecDeque<Step>,
    notices: VecDeque<Notice>,
    counts: BTreeMap<&'static str, u64>,
}

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

    /// Plans that are not over.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.running.len()
    }

    /// The plan behind a step's ticket, while it is not over.
    #[must_use]
    pub fn plan(&self, ticket: u64) -> Option<&Plan> {
        self.running.get(&ticket).map(|running| &running.plan)
    }

    /// Changes the limits; what is in flight goes on.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Takes a plan; a single write leaves at once. A repeated id is ignored; `false` says so.
    pub fn handle_request(&mut self, now_ms: u64, plan: Plan, gate: &mut dyn Gate) -> bool {
        if !self.remember(&plan.id) {
            return false;
        }
        let busy = self.running.len() >= self.limits.in_flight;
        let number = self.take_number();
        self.running.insert(number, Running::new(now_ms, plan));
        if busy {
            let refusal = Refusal::rejected("busy: too many writes are in flight; try again");
            self.end_current(now_ms, number, refusal, gate);
        } else {
            self.begin(now_ms, number, gate);
        }
        true
    }

    /// Takes a plan only to tell why it is not carried out.
    pub fn refuse(&mut self, now_ms: u64, plan: Plan, refusal: Refusal, gate: &mut dyn Gate) {
        if self.remember(&plan.id) {
            let number = self.take_number();
            self.running.insert(number, Running::new(now_ms, plan));
            self.end_current(now_ms, number, refusal, gate);
        }
    }

    /// Notes a plan's id as seen, as after a restart; `false`: it was known.
    pub fn remember(&mut self, id: &Arc<str>) -> bool {
        if !self.known.insert(id.clone()) {
            return false;
        }
        self.remembered.push_back(id.clone());
        if self.remembered.len() > self.limits.remembered
            && let Some(old) = self.remembered.pop_front()
        {
            self.known.remove(&old);
        }
        true
    }

    /// What would become of a plan's writes, each on its own, if it were requested now: the value before, or why it
    /// would not be sent. Nothing is sent.
    pub fn explain(
        &mut self,
        now_ms: u64,
        plan: &Plan,
        gate: &mut dyn Gate,
    ) -> Vec<Result<Option<Value>, Refusal>> {
        let mut running = Running::new(now_ms, plan.clone());
        (0..plan.writes.len())
            .map(|at| {
                running.at = at;
                self.judge(now_ms, &running, gate, false)
            })
            .collect()
    }

    /// The step with this ticket is on disk: its write may leave.
    pub fn handle_stored(&mut self, now_ms: u64, ticket: u64, gate: &mut dyn Gate) {
        self.release(now_ms, ticket, gate);
    }

    /// The step with this ticket can't be stored.
    pub fn handle_unstored(&mut self, now_ms: u64, ticket: u64, gate: &mut dyn Gate) {
        self.not_stored(now_ms, ticket, gate);
    }

    /// A device's value arrived (live, of good quality, never historical): confirms what waits for it.
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
            self.seen(now_ms, number, value, gate);
        }
    }

    /// A target's birth: undo writes that wait for it go on.
    pub fn handle_birth(&mut self, now_ms: u64, target: &Target, gate: &mut dyn Gate) {
        for number in self.concerned(target) {
            self.retry(now_ms, number, gate);
        }
    }

    /// A target's death: what waits for it can't be confirmed any more.
    pub fn handle_death(&mut self, now_ms: u64, target: &Target, gate: &mut dyn Gate) {
        for number in self.concerned(target) {
            self.lost(now_ms, number, gate);
        }
    }

    /// Fires what is due. Early and repeated calls do nothing.
    pub fn handle_timeout(&mut self, now_ms: u64, gate: &mut dyn Gate) {
        while let Some(&(at, number)) = self.timers.first() {
            if at > now_ms {
                break;
            }
            self.timers.pop_first();
            self.overdue(now_ms, number, gate);
        }
        self.holds.expire(now_ms);
        self.owners.advance(now_ms);
        if self.rate.len() > 4096 {
            self.rate
                .retain(|_, (second, _)| *second + 1 >= now_ms / 1000);
        }
    }

    /// Engine time in ms of the next timer.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        let hold = self.holds.next_expiry();
        let timer = self.timers.first().map(|(at, _)| *at);
        [hold, timer, self.owners.deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// The next step that happened.
    pub fn poll_step(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }

    /// The next thing that a person should look at.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices
            .pop_front()
            .or_else(|| self.owners.poll_notice())
    }

    fn take_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Plans whose write in flight goes to a target or to something below it.
    fn concerned(&self, target: &Target) -> Vec<u64> {
        self.running
            .iter()
            .filter(|(_, running)| {
                running
                    .current()
                    .is_some_and(|write| target.covers(&write.target))
            })
            .map(|(number, _)| *number)
            .collect()
    }

    fn say(&mut self, step: Step) {
        *self.counts.entry(step.status.as_str()).or_default() += 1;
        self.steps.push_back(step);
    }

    fn notice(&mut self, notice: Notice) {
        if self.notices.len() >= MOST_NOTICES {
            self.notices.pop_front();
        }
        self.notices.push_back(notice);
    }
}

#[cfg(test)]
mod tests;
