//! A thread that turns the journal's records into entries, behind the path of data.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value as Json;

use super::{Entry, Head, Log};
use crate::buffer::Journal;
use crate::buffer::record::{Class, LANES, Record};

/// Records between the pipeline and the log; when it is full, the thread reads the journal instead.
const QUEUE: usize = 8_192;
/// How often the thread looks at what is durable.
const LOOK: Duration = Duration::from_millis(50);
/// Entries written and synced at once.
const BATCH: usize = 512;

/// The entry that a record makes, if it makes one.
#[must_use]
pub fn entry_of(record: &Record) -> Option<Entry> {
    let body = || serde_json::from_slice::<Json>(&record.body).unwrap_or(Json::Null);
    let (what, body) = match record.class {
        Class::Command => ("command", body()),
        Class::Alarm => {
            let body = body();
            // What rules do to alarms is in the journal; what people do belongs here.
            body.get("by")?;
            ("alarm", body)
        }
        Class::Status => ("action", body().get("action")?.clone()),
        Class::Data
        | Class::Birth
        | Class::Death
        | Class::Schema
        | Class::Inference
        | Class::Embedding
        | Class::Gap
        | Class::Raw => return None,
    };
    Some(Entry {
        record: record.id,
        at_ms: record.received_ms,
        what,
        body,
    })
}

enum Message {
    Record(Arc<Record>),
    /// Every record up to this one was sent.
    Mark(u64),
}

/// The newest entry, shared.
#[derive(Debug, Clone, Default)]
pub struct Heads(Arc<Mutex<Head>>);

impl Heads {
    /// Now.
    #[must_use]
    pub fn get(&self) -> Head {
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .clone()
    }

    fn set(&self, head: Head) {
        *self
            .0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = head;
    }
}

/// The pipeline's end.
#[derive(Debug, Clone)]
pub struct Sender {
    to: SyncSender<Message>,
    behind: Arc<AtomicBool>,
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Record(record) => write!(f, "record {}", record.id),
            Self::Mark(id) => write!(f, "mark {id}"),
        }
    }
}

impl Sender {
    /// A record that was appended. Never waits.
    pub fn record(&self, record: &Arc<Record>) {
        if matches!(record.class, Class::Command | Class::Alarm | Class::Status) {
            self.send(Message::Record(record.clone()));
        }
    }

    /// Every record up to this one was given to [`Sender::record`].
    pub fn mark(&self, id: u64) {
        self.send(Message::Mark(id));
    }

    fn send(&self, message: Message) {
        if let Err(TrySendError::Full(_)) = self.to.try_send(message) {
            self.behind.store(true, Ordering::Release);
        }
    }
}

/// A running thread. It ends when every [`Sender`] is gone, after what it was sent.
pub struct Follower {
    heads: Heads,
    thread: std::thread::JoinHandle<()>,
}

/// Takes from the journal what is durable there and not in `log` yet, records behind `through` of `known` alone: a
/// checkpoint may be newer than the log, and the ids of writes must be known before the first request.
#[must_use]
pub fn catch_up(log: Log, journal: &Journal, known: &Head) -> Log {
    let durable = journal.durable_id();
    let mut state = Following::new(log, journal.clone());
    if !state.log.is_broken() {
        state.through = state.through.max(known.through.min(durable));
    }
    state.catch_up(durable);
    state.log
}

impl Follower {
    /// Starts the thread; it first takes from the journal what the log does not have.
    ///
    /// # Errors
    /// The thread can't be made.
    pub fn spawn(log: Log, journal: Journal) -> std::io::Result<(Self, Sender)> {
        let (to, from) = sync_channel(QUEUE);
        let mut state = Following::new(log, journal);
        let (behind, heads) = (state.behind.clone(), state.heads.clone());
        let thread = std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || state.run(&from))?;
        Ok((Self { heads, thread }, Sender { to, behind }))
    }

    /// The newest entry.
    #[must_use]
    pub fn heads(&self) -> Heads {
        self.heads.clone()
    }

    /// Waits for the thread's end; every [`Sender`] must be gone.
    pub fn join(self) {
        if self.thread.join().is_err() {
            tracing::error!("the audit's thread panicked");
        }
    }
}

struct Following {
    log: Log,
    journal: Journal,
    behind: Arc<AtomicBool>,
    /// Up to this record the journal is read, once it is durable so far; the queue waits until then.
    catch_to: Option<u64>,
    waiting: VecDeque<Message>,
    heads: Heads,
    through: u64,
    failures: u64,
}

impl Following {
    fn new(log: Log, journal: Journal) -> Self {
        let heads = Heads::default();
        heads.set(log.head());
        let newest = LANES.iter().map(|lane| journal.last_id(*lane)).max();
        Self {
            // A journal that began anew, after a restore, gives its ids again.
            through: log.last_record().min(newest.unwrap_or(0)),
            log,
            journal,
            behind: Arc::new(AtomicBool::new(true)),
            catch_to: None,
            waiting: VecDeque::new(),
            heads,
            failures: 0,
        }
    }

    fn run(&mut self, from: &Receiver<Message>) {
        loop {
            let mut open = true;
            if self.waiting.len() < QUEUE {
                match from.recv_timeout(LOOK) {
                    Ok(message) => {
                        self.waiting.push_back(message);
                        self.waiting.extend(from.try_iter().take(QUEUE));
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => open = false,
                }
            } else {
                std::thread::park_timeout(LOOK);
            }
            if self.behind.swap(false, Ordering::AcqRel) {
                let newest = LANES.iter().map(|lane| self.journal.last_id(*lane)).max();
                self.catch_to = self.catch_to.max(newest);
            }
            if let Some(to) = self.catch_to
                && to <= self.journal.durable_id()
                && self.catch_up(to)
            {
                self.catch_to = None;
            }
            while self.catch_to.is_none() && self.write() {}
            if !open {
                return;
            }
        }
    }

    /// Reads from the journal what the queue could not hold; whether all of it is in the log now.
    fn catch_up(&mut self, to: u64) -> bool {
        let (mut entries, mut through) = (Vec::new(), self.through);
        for record in self.journal.replay(self.through) {
            let record = match record {
                Ok(record) => record,
                Err(error) => {
                    tracing::error!(%error, "the journal can't be read for the audit log");
                    return false;
                }
            };
            if record.id > to {
                break;
            }
            entries.extend(entry_of(&record));
            through = record.id;
            if entries.len() >= BATCH {
                if !self.append(&mut entries) {
                    return false;
                }
                self.through = through;
            }
        }
        if !self.append(&mut entries) {
            return false;
        }
        self.through = through;
        true
    }

    /// Writes what is durable by now; whether there may be more.
    fn write(&mut self) -> bool {
        let durable = self.journal.durable_id();
        let (mut entries, mut taken, mut through) = (Vec::new(), 0, self.through);
        for message in &self.waiting {
            let id = match message {
                Message::Record(record) => record.id,
                Message::Mark(id) => *id,
            };
            if id > durable || entries.len() >= BATCH {
                break;
            }
            taken += 1;
            if let Message::Record(record) = message
                && id > self.through
            {
                entries.extend(entry_of(record));
            }
            through = through.max(id);
        }
        if taken == 0 || !self.append(&mut entries) {
            return false;
        }
        self.waiting.drain(..taken);
        self.through = through;
        self.heads.set(Head {
            through,
            ..self.log.head()
        });
        true
    }

    fn append(&mut self, entries: &mut Vec<Entry>) -> bool {
        if entries.is_empty() {
            return true;
        }
        match self.log.append(entries) {
            Ok(()) => {
                self.failures = 0;
                entries.clear();
                self.heads.set(self.log.head());
                true
            }
            Err(error) => {
                self.failures += 1;
                if self.failures.is_power_of_two() {
                    tracing::error!(%error, failures = self.failures, "the audit log can't be written; it is tried again");
                }
                self.behind.store(true, Ordering::Release);
                false
            }
        }
    }
}
