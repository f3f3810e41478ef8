//! One receiver without I/O: which alarms make a message, when it goes, and when it is tried again.
//!
//! *In*: [`handle_alarm`](Channel::handle_alarm), [`handle_timeout`](Channel::handle_timeout),
//! [`handle_sent`](Channel::handle_sent), [`handle_failed`](Channel::handle_failed). *Out*:
//! [`poll_message`](Channel::poll_message), [`poll_timeout`](Channel::poll_timeout). Time is engine time; the wall clock
//! decides about quiet hours alone, and only while it is trusted.
//!
//! Invariants: one message is in flight at most; while this runs it stays the same until it is delivered or given up, so
//! that a receiver can tell a repeated one by its id. What is not settled yet (delivered, given up, or not to be told) is part of
//! [`progress`](Channel::progress), from which a restart goes on; it is bounded by what may wait.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use serde::Serialize;

use super::config::Priority;
use super::quiet::Quiet;
use crate::buffer::record::RecordId;
use crate::clock::Now;

/// Alarms that wait at one receiver, at most.
const MOST_WAITING: usize = 1_000;
/// Alarms in one message, at most.
const MOST_IN_MESSAGE: usize = 200;
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
    /// The receiver refuses: somebody must change a setting. It is still tried, seldom.
    Refused,
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

/// What a receiver was told, as it is kept over restarts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// Everything up to here is settled,
    pub cursor: RecordId,
    /// but for these.
    pub pending: BTreeSet<RecordId>,
}

impl Progress {
    /// After which record a restart reads.
    #[must_use]
    pub fn start(&self) -> RecordId {
        let first = self.pending.first().map(|first| first.saturating_sub(1));
        first.map_or(self.cursor, |first| first.min(self.cursor))
    }

    /// Text of one line, true for one epoch of the journal.
    #[must_use]
    pub fn encode(&self, epoch: &str) -> String {
        let ids = std::iter::once(&self.cursor).chain(&self.pending);
        ids.fold(epoch.to_owned(), |text, id| format!("{text} {id}"))
    }

    /// Inverse of [`encode`](Self::encode); `None` for another epoch.
    #[must_use]
    pub fn decode(text: &str, epoch: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let mut ids = (words.next()? == epoch).then(|| words.map(str::parse))?;
        Some(Self {
            cursor: ids.next()?.ok()?,
            pending: ids.collect::<Result<_, _>>().ok()?,
        })
    }
}

#[derive(Debug)]
struct Flight {
    message: Message,
    records: Vec<RecordId>,
    since_ms: u64,
    tries: u32,
    /// `None` while it is being sent.
    next_ms: Option<u64>,
}

/// See the module.
#[derive(Debug)]
pub struct Channel {
    settings: Settings,
    /// Alarms with the engine time at which they are due, oldest first.
    waiting: VecDeque<(u64, Alarm)>,
    flight: Option<Flight>,
    seen: RecordId,
    /// What a restart found unsettled and has not read again yet.
    again: BTreeSet<RecordId>,
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
            seen: progress.cursor,
            again: progress.pending,
            left_out: 0,
            counts: Counts::default(),
        }
    }

    /// Something happened to an alarm; `None` for a record that is no alarm.
    pub fn handle_alarm(&mut self, now: Now, record: RecordId, alarm: Option<Alarm>) {
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
        let old = |flight: &mut Flight| {
            flight.next_ms.is_some() && now.engine_ms.saturating_sub(flight.since_ms) >= most
        };
        if let Some(flight) = self.flight.take_if(old) {
            self.counts.given_up += 1;
            self.left_out += flight.message.entries.len() as u64;
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) and [`poll_message`](Self::poll_message) may have something to
    /// do, ms of engine time.
    #[must_use]
    pub fn poll_timeout(&self, now: Now) -> Option<u64> {
        if let Some(flight) = &self.flight {
            return flight.next_ms;
        }
        let due = self.waiting.iter().map(|(due, _)| *due).min()?;
        // Held back by quiet hours: their end is found by looking, whatever the wall clock does meanwhile.
        Some(if due <= now.engine_ms {
            now.engine_ms.saturating_add(LOOK_MS)
        } else {
            due
        })
    }

    /// The message that is to be sent now; it is in flight from here on.
    pub fn poll_message(&mut self, now: Now) -> Option<Message> {
        if let Some(flight) = &mut self.flight {
            let due = flight.next_ms.is_some_and(|at| at <= now.engine_ms);
            if !due {
                return None;
            }
            flight.next_ms = None;
            return Some(flight.message.clone());
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
        let records = taken.iter().map(|alarm| alarm.record).collect();
        let message = message(taken, std::mem::take(&mut self.left_out))?;
        self.flight = Some(Flight {
            records,
            message: message.clone(),
            since_ms: now.engine_ms,
            tries: 0,
            next_ms: None,
        });
        Some(message)
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
        self.left_out += count;
        self.counts.left_out += count;
    }

    /// The message in flight has not arrived.
    pub fn handle_failed(&mut self, now: Now, failure: Failure) {
        let Some(flight) = &mut self.flight else {
            return;
        };
        self.counts.failed += 1;
        let most = self.settings.retry_max_ms.max(RETRY_MS);
        let wait = match failure {
            Failure::Transient => (RETRY_MS << flight.tries.min(20)).min(most),
            Failure::Refused => most,
        };
        flight.tries = flight.tries.saturating_add(1);
        flight.next_ms = Some(now.engine_ms.saturating_add(wait));
    }

    /// Where a restart goes on.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let flight = self.flight.iter().flat_map(|flight| &flight.records);
        let waiting = self.waiting.iter().map(|(_, alarm)| &alarm.record);
        Progress {
            cursor: self.seen,
            pending: flight.chain(waiting).chain(&self.again).copied().collect(),
        }
    }

    /// Alarms that wait, and those in flight.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.waiting.len() + self.flight.as_ref().map_or(0, |f| f.message.entries.len())
    }

    /// Counts since start.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }
}

/// One entry an occurrence, the most urgent first, then by record.
fn message(alarms: Vec<Alarm>, left_out: u64) -> Option<Message> {
    let first = alarms.iter().map(|a| a.record).min()?;
    let last = alarms.iter().map(|a| a.record).max()?;
    let mut entries: Vec<Entry> = Vec::new();
    for alarm in alarms {
        match entries.iter_mut().find(|entry| entry.alarm.id == alarm.id) {
            Some(entry) => {
                entry.events.push(alarm.event.clone());
                entry.alarm = alarm;
            }
            None => entries.push(Entry {
                events: vec![alarm.event.clone()],
                alarm,
            }),
        }
    }
    entries.sort_by_key(|entry| (std::cmp::Reverse(entry.alarm.priority), entry.alarm.record));
    Some(Message {
        span: (first, last),
        entries,
        left_out,
    })
}

#[cfg(test)]
mod tests;
