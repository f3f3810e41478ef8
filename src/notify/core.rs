//! One receiver without I/O: which alarms make a message, when it goes, and when it is tried again.
//!
//! *In*: [`handle_alarm`](Channel::handle_alarm), [`handle_timeout`](Channel::handle_timeout),
//! [`handle_sent`](Channel::handle_sent), [`handle_failed`](Channel::handle_failed). *Out*:
//! [`poll_message`](Channel::poll_message), [`poll_timeout`](Channel::poll_timeout). Time is engine time; the wall clock
//! decides about quiet hours alone, and only while it is trusted.
//!
//! Invariants: one message is in flight at most; it stays the same until it is delivered or given up, over a restart
//! too, so that a receiver can tell a repeated one by its id. What is not settled yet (delivered, given up, or not to be
//! told) is part of [`progress`](Channel::progress), with what makes each message that was tried: it is to be kept before
//! a message is sent for the first time, a restart goes on from it, and it is bounded by what may wait.
//!
//! A message that the receiver finds unfit (too large, say) is halved until it finds the alarm that is; that one is set
//! aside and tried again seldom, so that it holds up nothing else.

mod flight;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use serde::Serialize;

use flight::{Flight, Regroup};
use rules::Priority;

pub use flight::Progress;

use super::quiet::Quiet;
use crate::buffer::record::RecordId;
use crate::clock::Now;

/// Alarms that wait at one receiver, at most.
const MOST_WAITING: usize = 1_000;
/// Alarms in one message, at most.
const MOST_IN_MESSAGE: usize = 200;
/// Messages that are set aside, at most.
const MOST_ASIDE: usize = 64;
/// Wait after the first failure, ms; doubled for each further one.
const RETRY_MS: u64 = 1_000;
/// Time between two looks at the wall clock while alarms are held back, ms.
const LOOK_MS: u64 = 15_000;

/// What happened to an alarm.
#[derive(Debug, Clone, PartialEq)]
pub struct Alarm {
    /// Id of the record.
    pub record: RecordId,
    /// Id of the occurrence.
    pub id: Arc<str>,
    /// `raise`, `clear` and so on.
    pub event: Arc<str>,
    /// Priority.
    pub priority: Priority,
    /// `group/node[/device]`.
    pub source: Arc<str>,
    /// For people.
    pub message: Arc<str>,
    /// Body of the record.
    pub body: Arc<serde_json::Value>,
}

/// One occurrence in a message.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// What happened last.
    pub alarm: Alarm,
    /// Everything that happened since the last message, in order.
    pub events: Vec<Arc<str>>,
}

/// What a receiver is told at once.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Records of the first and the last alarm in it; a repeated message has the same.
    pub span: (RecordId, RecordId),
    /// Occurrences, most urgent first.
    pub entries: Vec<Entry>,
    /// Alarms that are left out, since too many waited.
    pub left_out: u64,
}

/// Whether what failed may succeed soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The receiver can't be reached, or is busy.
    Transient,
    /// The receiver refuses whatever comes: somebody must change a setting. It is still tried, seldom.
    Refused,
    /// The receiver takes messages, but not this one.
    Unfit,
}

/// What a receiver wants.
#[derive(Debug, Clone)]
pub struct Settings {
    /// See [`super::Config`].
    pub group_ms: u64,
    /// See [`super::Config`].
    pub at_once: Priority,
    /// See [`super::Config`].
    pub retry_max_ms: u64,
    /// See [`super::Config`].
    pub give_up_ms: u64,
    /// See [`super::Config`].
    pub quiet: Option<Quiet>,
    /// Alarms below it are not told.
    pub min_priority: Priority,
    /// Whether it is told that an alarm is over.
    pub clears: bool,
}

/// Counts since start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Messages delivered.
    pub sent: u64,
    /// Tries that failed.
    pub failed: u64,
    /// Messages given up.
    pub given_up: u64,
    /// Alarms left out since too many waited.
    pub left_out: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Channel {
    settings: Settings,
    /// Alarms with the engine time at which they are due, oldest first.
    waiting: VecDeque<(u64, Alarm)>,
    flight: Option<Flight>,
    /// Messages that are tried when nothing else is in flight.
    aside: VecDeque<Flight>,
    seen: RecordId,
    /// What a restart found waiting and has not read again yet,
    again: BTreeSet<RecordId>,
    /// and the same of messages that were tried.
    regroup: Vec<Regroup>,
    left_out: u64,
    counts: Counts,
}

impl Channel {
    /// A receiver that goes on from a [`Progress`].
    #[must_use]
    pub fn new(settings: Settings, progress: Progress) -> Self {
        Self {
            settings,
            waiting: VecDeque::new(),
            flight: None,
            aside: VecDeque::new(),
            seen: progress.cursor,
            again: progress.pending,
            regroup: progress
                .messages
                .into_iter()
                .map(|records| Regroup {
                    missing: records.into_iter().collect(),
                    found: Vec::new(),
                })
                .collect(),
            left_out: 0,
            counts: Counts::default(),
        }
    }

    /// Something happened to an alarm; `None` for a record that is no alarm.
    pub fn handle_alarm(&mut self, now: Now, record: RecordId, alarm: Option<Alarm>) {
        if !self.regroup.is_empty() && self.regrouped(now.engine_ms, record, alarm.as_ref()) {
            return;
        }
        if record > self.seen {
            self.seen = record;
        } else if !self.again.remove(&record) {
            return;
        }
        let Some(alarm) = alarm.filter(|alarm| self.wants(alarm)) else {
            return;
        };
        let wait = if alarm.priority >= self.settings.at_once {
            0
        } else {
            self.settings.group_ms
        };
        let due = now.engine_ms.saturating_add(wait);
        if wait == 0
            && let Some(at) = self
                .flight
                .as_mut()
                .and_then(|flight| flight.next_ms.as_mut())
        {
            // What failed before is tried now, so that the urgent one does not sit out its pause.
            *at = (*at).min(now.engine_ms);
        }
        self.waiting.push_back((due, alarm));
        if self.waiting.len() > MOST_WAITING {
            self.leave_one_out();
        }
    }

    /// Whether a record belongs to a message that was tried before a restart. Records come in order: what is missing
    /// before it does not come any more.
    fn regrouped(&mut self, now_ms: u64, record: RecordId, alarm: Option<&Alarm>) -> bool {
        let mut known = false;
        for message in &mut self.regroup {
            message.missing = message.missing.split_off(&record);
            if message.missing.remove(&record) {
                known = true;
                message.found.extend(alarm.cloned());
            }
        }
        self.take_regrouped(now_ms);
        known
    }

    /// Messages whose records are all there again.
    fn take_regrouped(&mut self, now_ms: u64) {
        let (whole, rest) = std::mem::take(&mut self.regroup)
            .into_iter()
            .partition(|message| message.missing.is_empty());
        self.regroup = rest;
        let whole: Vec<Regroup> = whole;
        let flights = whole
            .into_iter()
            .filter_map(|message| Flight::new(message.found, 0, now_ms));
        self.aside.extend(flights);
    }

    fn wants(&self, alarm: &Alarm) -> bool {
        let told = match &*alarm.event {
            // What was shelved or suppressed says so in its state: somebody decided not to be told.
            "raise" => {
                let state = alarm.body.get("state").and_then(serde_json::Value::as_str);
                !matches!(state, Some("shelved" | "suppressed" | "out-of-service"))
            }
            "clear" => self.settings.clears,
            _ => false,
        };
        told && alarm.priority >= self.settings.min_priority
    }

    /// The oldest of the least urgent goes.
    fn leave_one_out(&mut self) {
        let least = self.waiting.iter().map(|(_, a)| a.priority).min();
        let at = self
            .waiting
            .iter()
            .position(|(_, a)| Some(a.priority) == least);
        if at.and_then(|at| self.waiting.remove(at)).is_some() {
            self.left_out += 1;
            self.counts.left_out += 1;
        }
    }

    /// Time has come to `now`: gives up what is too old.
    pub fn handle_timeout(&mut self, now: Now) {
        let most = self.settings.give_up_ms;
        let old = |flight: &Flight| {
            flight.next_ms.is_some() && now.engine_ms.saturating_sub(flight.since_ms) >= most
        };
        if let Some(flight) = self.flight.take_if(|flight| old(flight)) {
            self.give_up(&flight);
        }
        let aside = std::mem::take(&mut self.aside);
        let (given_up, aside): (VecDeque<_>, _) = aside.into_iter().partition(old);
        self.aside = aside;
        given_up.iter().for_each(|flight| self.give_up(flight));
    }

    fn give_up(&mut self, flight: &Flight) {
        self.counts.given_up += 1;
        self.left_out += flight.message.entries.len() as u64;
    }

    /// When [`handle_timeout`](Self::handle_timeout) and [`poll_message`](Self::poll_message) may have something to
    /// do, ms of engine time.
    #[must_use]
    pub fn poll_timeout(&self, now: Now) -> Option<u64> {
        if let Some(flight) = &self.flight {
            return flight.next_ms;
        }
        let aside = self.aside.iter().filter_map(|flight| flight.next_ms).min();
        let due = self.waiting.iter().map(|(due, _)| *due).min();
        // Held back by quiet hours: their end is found by looking, whatever the wall clock does meanwhile.
        let look = now.engine_ms.saturating_add(LOOK_MS);
        let due = due.map(|due| if due <= now.engine_ms { look } else { due });
        due.into_iter().chain(aside).min()
    }

    /// The message that is to be sent now; it is in flight from here on. The [`progress`](Self::progress) is to be kept
    /// first, so that the message is the same after a crash.
    pub fn poll_message(&mut self, now: Now) -> Option<Message> {
        if let Some(flight) = &mut self.flight {
            let due = flight.next_ms.is_some_and(|at| at <= now.engine_ms);
            if !due {
                return None;
            }
            flight.next_ms = None;
            return Some(flight.message.clone());
        }
        let due = |flight: &Flight| flight.next_ms.is_some_and(|at| at <= now.engine_ms);
        if let Some(at) = self.aside.iter().position(due) {
            let flight = self.aside.remove(at)?;
            return Some(self.fly(flight));
        }
        let quiet = self
            .settings
            .quiet
            .as_ref()
            .filter(|q| now.trusted && q.holds(now.wall_ms));
        let held = quiet.map(|quiet| quiet.except);
        let free = |alarm: &Alarm| held.is_none_or(|except| alarm.priority >= except);
        let due = |(due, alarm): &(u64, Alarm)| *due <= now.engine_ms && free(alarm);
        if !self.waiting.iter().any(due) {
            return None;
        }
        let mut taken = Vec::new();
        let mut left = VecDeque::new();
        for (due, alarm) in std::mem::take(&mut self.waiting) {
            if free(&alarm) && taken.len() < MOST_IN_MESSAGE {
                taken.push(alarm);
            } else {
                left.push_back((due, alarm));
            }
        }
        self.waiting = left;
        let flight = Flight::new(taken, std::mem::take(&mut self.left_out), now.engine_ms)?;
        Some(self.fly(flight))
    }

    fn fly(&mut self, mut flight: Flight) -> Message {
        flight.next_ms = None;
        let message = flight.message.clone();
        self.flight = Some(flight);
        message
    }

    /// The message in flight has arrived.
    pub fn handle_sent(&mut self) {
        if self.flight.take().is_some() {
            self.counts.sent += 1;
        }
    }

    /// Up to `count` alarms left the disk before they were read; a gap stands in their place.
    pub fn handle_lost(&mut self, record: RecordId, count: u64) {
        self.seen = self.seen.max(record);
        self.again = self.again.split_off(&record.saturating_add(1));
        for message in &mut self.regroup {
            message.missing = message.missing.split_off(&record.saturating_add(1));
        }
        self.take_regrouped(0);
        self.left_out += count;
        self.counts.left_out += count;
    }

    /// The message in flight has not arrived.
    pub fn handle_failed(&mut self, now: Now, failure: Failure) {
        let Some(mut flight) = self.flight.take() else {
            return;
        };
        self.counts.failed += 1;
        let most = self.settings.retry_max_ms.max(RETRY_MS);
        let wait = match failure {
            Failure::Transient => (RETRY_MS << flight.tries.min(20)).min(most),
            Failure::Refused | Failure::Unfit => most,
        };
        flight.tries = flight.tries.saturating_add(1);
        flight.next_ms = Some(now.engine_ms.saturating_add(wait));
        if failure != Failure::Unfit {
            self.flight = Some(flight);
            return;
        }
        match flight.halves(now.engine_ms) {
            Some(halves) => halves
                .into_iter()
                .rev()
                .for_each(|half| self.aside.push_front(half)),
            None => self.aside.push_back(flight),
        }
        while self.aside.len() > MOST_ASIDE {
            // What has been tried longest.
            let oldest = self
                .aside
                .iter()
                .enumerate()
                .max_by_key(|(_, flight)| flight.tries);
            let Some(flight) = oldest
                .map(|(at, _)| at)
                .and_then(|at| self.aside.remove(at))
            else {
                break;
            };
            self.give_up(&flight);
        }
    }

    /// Where a restart goes on.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let waiting = self.waiting.iter().map(|(_, alarm)| &alarm.record);
        let flights = self.flight.iter().chain(&self.aside);
        let tried = flights.map(|flight| flight.records().collect());
        let regroup = self.regroup.iter().map(|message| {
            let found = message.found.iter().map(|alarm| alarm.record);
            found.chain(message.missing.iter().copied()).collect()
        });
        Progress {
            cursor: self.seen,
            pending: waiting.chain(&self.again).copied().collect(),
            messages: tried.chain(regroup).collect(),
        }
    }

    /// A message that its receiver does not take stands aside.
    #[must_use]
    pub fn has_aside(&self) -> bool {
        !self.aside.is_empty()
    }

    /// Alarms that wait, and those in flight.
    #[must_use]
    pub fn pending(&self) -> usize {
        let flights = self.flight.iter().chain(&self.aside);
        let tried: usize = flights.map(|flight| flight.message.entries.len()).sum();
        self.waiting.len() + tried
    }

    /// Counts since start.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }
}

#[cfg(test)]
mod tests;
