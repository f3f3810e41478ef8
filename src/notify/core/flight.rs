//! Messages on their way, and what of them is kept over restarts.

use std::collections::BTreeSet;

use super::{Alarm, Entry, Message};
use crate::buffer::record::RecordId;

/// What a receiver was told, as it is kept over restarts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// Everything up to here is settled,
    pub cursor: RecordId,
    /// but for these that wait,
    pub pending: BTreeSet<RecordId>,
    /// and these messages that were tried, each with its records in order.
    pub messages: Vec<Vec<RecordId>>,
}

impl Progress {
    /// After which record a restart reads.
    #[must_use]
    pub fn start(&self) -> RecordId {
        let waiting = self.pending.first().into_iter();
        let first = waiting.chain(self.messages.iter().flatten()).min();
        first.map_or(self.cursor, |first| {
            first.saturating_sub(1).min(self.cursor)
        })
    }

    /// Text of one line, true for one epoch of the journal.
    #[must_use]
    pub fn encode(&self, epoch: &str) -> String {
        let ids = std::iter::once(&self.cursor).chain(&self.pending);
        let waiting = ids.fold(epoch.to_owned(), |text, id| format!("{text} {id}"));
        self.messages.iter().fold(waiting, |text, message| {
            let ids = message.iter();
            ids.fold(text + " |", |text, id| format!("{text} {id}"))
        })
    }

    /// Inverse of [`encode`](Self::encode); `None` for another epoch.
    #[must_use]
    pub fn decode(text: &str, epoch: &str) -> Option<Self> {
        let (of, ids) = text.split_once(' ')?;
        let mut parts = (of == epoch).then(|| ids.split(" |"))?;
        let ids = |part: &str| -> Option<Vec<RecordId>> {
            part.split_whitespace().map(|id| id.parse().ok()).collect()
        };
        let first = ids(parts.next()?)?;
        let (cursor, pending) = first.split_first()?;
        Some(Self {
            cursor: *cursor,
            pending: pending.iter().copied().collect(),
            messages: parts.map(ids).collect::<Option<_>>()?,
        })
    }
}

/// A message that is tried until it is settled.
#[derive(Debug)]
pub(super) struct Flight {
    alarms: Vec<Alarm>,
    pub(super) message: Message,
    pub(super) since_ms: u64,
    pub(super) tries: u32,
    /// `None` while it is being sent.
    pub(super) next_ms: Option<u64>,
}

impl Flight {
    /// `None` without an alarm.
    pub(super) fn new(alarms: Vec<Alarm>, left_out: u64, now_ms: u64) -> Option<Self> {
        Some(Self {
            message: message(&alarms, left_out)?,
            alarms,
            since_ms: now_ms,
            tries: 0,
            next_ms: Some(now_ms),
        })
    }

    pub(super) fn records(&self) -> impl Iterator<Item = RecordId> {
        self.alarms.iter().map(|alarm| alarm.record)
    }

    /// Its first and second half of occurrences; `None` for one alone.
    pub(super) fn halves(&self, now_ms: u64) -> Option<[Self; 2]> {
        let half = self.message.entries.len() / 2;
        let first = self
            .message
            .entries
            .get(..half)
            .filter(|half| !half.is_empty())?;
        let (first, second): (Vec<Alarm>, Vec<Alarm>) = self
            .alarms
            .iter()
            .cloned()
            .partition(|alarm| first.iter().any(|entry| entry.alarm.id == alarm.id));
        let mut first = Self::new(first, self.message.left_out, now_ms)?;
        let mut second = Self::new(second, 0, now_ms)?;
        (first.since_ms, second.since_ms) = (self.since_ms, self.since_ms);
        Some([first, second])
    }
}

/// A message that a restart puts together again.
#[derive(Debug)]
pub(super) struct Regroup {
    pub(super) missing: BTreeSet<RecordId>,
    pub(super) found: Vec<Alarm>,
}

/// One entry an occurrence, the most urgent first, then by record.
fn message(alarms: &[Alarm], left_out: u64) -> Option<Message> {
    let first = alarms.iter().map(|a| a.record).min()?;
    let last = alarms.iter().map(|a| a.record).max()?;
    let mut entries: Vec<Entry> = Vec::new();
    for alarm in alarms {
        match entries.iter_mut().find(|entry| entry.alarm.id == alarm.id) {
            Some(entry) => {
                entry.events.push(alarm.event.clone());
                entry.alarm = alarm.clone();
            }
            None => entries.push(Entry {
                events: vec![alarm.event.clone()],
                alarm: alarm.clone(),
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
