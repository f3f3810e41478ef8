//! Snapshots of what the core knows, written beside the path of data.
//!
//! A checkpoint is one batch: the dirty nodes of the host session, the dirty keys of the rules, holds, and the
//! record id and engine time it is true for. It is taken between two messages, so that replaying the journal from
//! its id on gives the state of the crash. A thread of its own commits it; while that is busy, what is dirty
//! keeps gathering, so that a slow disk makes checkpoints rarer and never delays data.
//!
//! Invariant: a checkpoint for record *n* is committed only when the journal has *n* on disk. Otherwise a power cut
//! could leave a checkpoint ahead of the journal, whose ids would then be given twice.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::core::Core;
use crate::buffer::Journal;
use crate::buffer::record::RecordId;
use crate::clock::Now;
use crate::state::snapshot::Snapshot;
use crate::state::{Batch, Opened, StateStore};

/// Key of the meta entry.
pub const META: &[u8] = b"meta";
/// Prefix of host nodes.
pub const NODE: &[u8] = b"node/";
/// Prefix of rule keys.
pub const RULE: &[u8] = b"rule/";
/// Key of the holds.
pub const HOLDS: &[u8] = b"holds";
/// Prefix of recent alarms with their vectors; eight bytes of place follow, big-endian.
pub const TEXT: &[u8] = b"text/";
/// Key of the local writes in flight.
pub const COMMANDS: &[u8] = b"commands";

/// Time between two checkpoints, ms of engine time.
const EVERY_MS: u64 = 1_000;
/// Time between the first two exports, and after one that failed, ms.
const FIRST_EXPORT_MS: u64 = 30_000;
/// Time between later exports, ms.
const EXPORT_MS: u64 = 300_000;

/// For which record and time a checkpoint is true.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    /// Everything up to this record is in it.
    pub record: RecordId,
    /// Engine time in ms.
    pub engine_ms: u64,
    /// Highest trusted wall time seen, ms UTC.
    pub wall_ms: u64,
}

impl Meta {
    /// 24 bytes, little-endian.
    #[must_use]
    pub fn encode(self) -> Vec<u8> {
        [self.record, self.engine_ms, self.wall_ms]
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect()
    }

    /// Inverse of [`Meta::encode`].
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut words = bytes
            .chunks_exact(8)
            .map(|c| c.try_into().map(u64::from_le_bytes));
        let mut next = || words.next().and_then(Result::ok);
        Some(Self {
            record: next()?,
            engine_ms: next()?,
            wall_ms: next()?,
        })
    }
}

/// What a committed checkpoint means for the journal: from where on it is needed, when that has moved.
type KeepFrom = Option<RecordId>;

/// Asks for an export out of turn, for a backup while everything runs.
#[derive(Debug, Clone)]
pub struct ExportDoor {
    asked: Arc<AtomicBool>,
    made: watch::Receiver<Option<Snapshot>>,
    working: Arc<Mutex<Option<Instant>>>,
}

impl ExportDoor {
    /// How long the state store has been at one commit or export; `None`: it is idle.
    #[must_use]
    pub fn commit_in_flight(&self) -> Option<Duration> {
        let working = self.working.lock().unwrap_or_else(PoisonError::into_inner);
        working.map(|since| since.elapsed())
    }

    /// An export that is newer than this call; `None`: the state store refused, or has stopped.
    pub async fn fresh(&mut self) -> Option<Snapshot> {
        self.made.mark_unchanged();
        self.asked.store(true, Ordering::Release);
        self.made.changed().await.ok()?;
        self.made.borrow_and_update().clone()
    }
}

/// Exports the whole state now and then: what a damaged database is rebuilt from, together with the journal's
/// records since the older of two exports.
#[derive(Debug, Default)]
struct Exports {
    made: u32,
    next_ms: u64,
    kept: Option<RecordId>,
    asked: Arc<AtomicBool>,
    told: watch::Sender<Option<Snapshot>>,
}

impl Exports {
    fn maybe(&mut self, store: &Opened, meta: Meta) -> Option<RecordId> {
        let asked = self.asked.swap(false, Ordering::AcqRel);
        if meta.engine_ms < self.next_ms && !asked {
            return None;
        }
        let result = store.snapshot(meta.record);
        if asked {
            let newest = result
                .as_ref()
                .ok()
                .and_then(|_| store.newest_snapshot().ok().flatten());
            self.told.send_replace(newest);
        }
        match result {
            Ok(from) => {
                self.made += 1;
                // Two exports soon after a start, so that the journal is not held for long.
                let wait = if self.made < 2 {
                    FIRST_EXPORT_MS
                } else {
                    EXPORT_MS
                };
                self.next_ms = meta.engine_ms + wait;
                store.restore_ballast();
                let moved = self.kept != Some(from);
                self.kept = Some(from);
                moved.then_some(from)
            }
            Err(error) => {
                self.next_ms = meta.engine_ms + FIRST_EXPORT_MS;
                tracing::warn!(%error, "the state can't be exported; the journal is kept for longer");
                None
            }
        }
    }
}

/// Decides when, and hands batches to the thread that commits them.
pub struct Checkpointer {
    jobs: Option<SyncSender<(Batch, Meta)>>,
    done: Receiver<Result<KeepFrom, (Batch, String)>>,
    /// What a failed commit did not write; goes with the next one.
    left: Batch,
    thread: Option<std::thread::JoinHandle<()>>,
    /// Taken, and waiting for the journal's disk.
    waiting: Option<(Batch, Meta)>,
    next_ms: u64,
    busy: bool,
    wall_ms: u64,
    failures: u64,
    door: ExportDoor,
    audit: Option<crate::audit::Heads>,
}

impl Checkpointer {
    /// Starts the committing thread.
    ///
    /// # Errors
    /// The thread can't be made.
    pub fn spawn(store: Arc<Opened>) -> std::io::Result<Self> {
        let (jobs, work) = sync_channel::<(Batch, Meta)>(1);
        let (tell, done) = sync_channel(4);
        let mut exports = Exports::default();
        let door = ExportDoor {
            asked: exports.asked.clone(),
            made: exports.told.subscribe(),
            working: Arc::default(),
        };
        let working = door.working.clone();
        let thread = std::thread::Builder::new()
            .name("state".to_owned())
            .spawn(move || {
                let at = |since| {
                    *working.lock().unwrap_or_else(PoisonError::into_inner) = since;
                };
                while let Ok((batch, meta)) = work.recv() {
                    at(Some(Instant::now()));
                    crate::stall::at(crate::stall::Part::Store);
                    let outcome = match store.commit(&batch) {
                        Ok(()) => Ok(exports.maybe(&store, meta)),
                        Err(error) => Err((batch, error.to_string())),
                    };
                    at(None);
                    if tell.send(outcome).is_err() {
                        break;
                    }
                }
            })?;
        Ok(Self {
            jobs: Some(jobs),
            done,
            left: Batch::default(),
            thread: Some(thread),
            waiting: None,
            next_ms: 0,
            busy: false,
            wall_ms: 0,
            failures: 0,
            door,
            audit: None,
        })
    }

    /// For exports out of turn.
    #[must_use]
    pub fn export_door(&self) -> ExportDoor {
        self.door.clone()
    }

    /// Puts the newest entry of the audit log into each checkpoint.
    pub fn watch_audit(&mut self, heads: crate::audit::Heads) {
        self.audit = Some(heads);
    }

    /// Takes a checkpoint when one is due and the last one is committed.
    pub fn maybe(&mut self, core: &mut Core, now: Now, journal: &Journal) {
        while let Ok(outcome) = self.done.try_recv() {
            self.settle(outcome, journal);
        }
        if now.trusted {
            self.wall_ms = self.wall_ms.max(now.wall_ms);
        }
        if self.waiting.is_some() {
            self.submit(journal);
        } else if !self.busy && now.engine_ms >= self.next_ms {
            self.next_ms = now.engine_ms + EVERY_MS;
            self.take(core, now);
            self.submit(journal);
        }
    }

    fn take(&mut self, core: &mut Core, now: Now) {
        let meta = Meta {
            record: core.last_record(),
            engine_ms: now.engine_ms,
            wall_ms: self.wall_ms,
        };
        let fresh = core.take_dirty();
        let mut batch = std::mem::take(&mut self.left);
        // What is newer wins: within puts by its place, against an older put by removing that.
        batch.puts.retain(|(key, _)| !fresh.deletes.contains(key));
        batch.puts.extend(fresh.puts);
        batch.deletes.extend(fresh.deletes);
        if let Some(heads) = &self.audit {
            batch.put(crate::audit::KEY, heads.get().encode());
        }
        batch.puts.push((META.to_vec(), meta.encode()));
        self.waiting = Some((batch, meta));
    }

    fn submit(&mut self, journal: &Journal) {
        let Some((batch, meta)) = self.waiting.take() else {
            return;
        };
        if journal.durable_id() < meta.record {
            journal.want_sync();
            self.waiting = Some((batch, meta));
            return;
        }
        let Some(jobs) = &self.jobs else { return };
        match jobs.try_send((batch, meta)) {
            Ok(()) => self.busy = true,
            // One job at a time: this can only mean that the thread is gone.
            Err(TrySendError::Full((batch, _)) | TrySendError::Disconnected((batch, _))) => {
                self.left = batch
            }
        }
    }

    fn settle(&mut self, outcome: Result<KeepFrom, (Batch, String)>, journal: &Journal) {
        self.busy = false;
        match outcome {
            Ok(keep_from) => {
                if let Some(id) = keep_from {
                    journal.keep_from(id);
                }
            }
            Err((batch, error)) => {
                self.left = batch;
                self.failures += 1;
                if self.failures.is_power_of_two() {
                    tracing::error!(
                        error,
                        failures = self.failures,
                        "the state store can't be written; a restart will replay more of the journal"
                    );
                }
            }
        }
    }

    /// A last checkpoint at a clean stop; waits for it. The journal has synced everything before.
    pub fn last(mut self, core: &mut Core, now: Now, journal: &Journal) {
        for fresh in [false, true] {
            if fresh {
                if self.waiting.is_some() {
                    // The disk hangs: a newer checkpoint without what this one holds would be wrong.
                    break;
                }
                self.take(core, now);
            }
            self.submit(journal);
            if self.busy
                && let Ok(outcome) = self.done.recv()
            {
                self.settle(outcome, journal);
            }
        }
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meta_round_trips_and_refuses_short_bytes() {
        let meta = Meta {
            record: 7,
            engine_ms: u64::MAX,
            wall_ms: 3,
        };
        assert_eq!(Meta::decode(&meta.encode()), Some(meta));
        assert_eq!(Meta::decode(&meta.encode()[..23]), None);
    }
}
