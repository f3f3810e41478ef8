//! The handle that everybody holds.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{broadcast, watch};

use crate::buffer::Config;
use crate::buffer::errors::{AppendError, BatchError, CloseError};
use crate::buffer::history::{History, Selection};
use crate::buffer::ledger::Counts;
use crate::buffer::read::{LaneScan, ReadError};
use crate::buffer::record::{Cause, LANES, Lane, NewRecord, Origin, Record, RecordId};
use crate::buffer::recovery::{OpenError, Recovered, Recovery, recover};
use crate::buffer::replay::{Follow, Replay};
use crate::buffer::shared::{Shared, State};
use crate::buffer::stat::{LaneState, Stat};
use crate::buffer::storage::Storage;
use crate::buffer::writer::{FRAME_TARGET, Writer};

/// Records that a slow subscriber of the tap may fall behind before it misses some.
const TAP: usize = 1024;
/// How long dropping the last handle waits for the writer.
const DROP_WAIT: Duration = Duration::from_secs(30);

/// Ends the writer when the last handle goes.
struct Guard {
    shared: Arc<Shared>,
    thread: OnceLock<JoinHandle<()>>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let ended = close(&self.shared, DROP_WAIT);
        // The thread holds the storage, and with it the folder's lock, a moment longer than it says. One that is stuck
        // in the disk is not waited for.
        if !matches!(ended, Err(CloseError::TimedOut(_)))
            && let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

/// The journal. Cheap to clone; every method takes `&self` and holds its lock for memory work only, except
/// where reading from disk is said.
#[derive(Clone)]
pub struct Journal {
    pub(in crate::buffer) shared: Arc<Shared>,
    guard: Arc<Guard>,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal")
            .field("durable", &self.durable_id())
            .finish_non_exhaustive()
    }
}

impl Journal {
    /// Recovers what lies in `storage` and starts the writer.
    ///
    /// Engine time goes on from [`Recovery::engine_ms_base`].
    ///
    /// # Errors
    /// The configuration can't work, or the folder can't be read or written. Damage is no error.
    pub fn open(storage: Arc<dyn Storage>, config: Config) -> Result<(Self, Recovery), OpenError> {
        let (journal, writer, recovery) = Self::open_stepped(storage, config)?;
        let thread = std::thread::Builder::new().name("journal".to_owned());
        journal.shared.lock().closed = false;
        match thread.spawn(move || writer.run()) {
            Ok(thread) => {
                let _ = journal.guard.thread.set(thread);
            }
            Err(error) => {
                journal.shared.lock().closed = true;
                return Err(OpenError::Thread(error));
            }
        }
        Ok((journal, recovery))
    }

    /// The same without a thread: the caller runs the writer's rounds.
    pub(crate) fn open_stepped(
        storage: Arc<dyn Storage>,
        config: Config,
    ) -> Result<(Self, Writer, Recovery), OpenError> {
        config.check().map_err(OpenError::Config)?;
        let Recovered {
            mut state,
            ledger,
            reserve,
            report,
            cold,
        } = recover(storage.as_ref(), &config)?;
        // Until a thread runs there is nobody to wait for.
        state.closed = true;
        state.cold_held = cold.held();
        let durable = state.durable();
        let appended = LANES.map(|lane| watch::Sender::new(state.ledger.lane(lane).last_id));
        let shared = Arc::new(Shared {
            config,
            storage,
            state: Mutex::new(state),
            wake: Condvar::new(),
            durable: watch::Sender::new(durable),
            appended,
            failed: watch::Sender::new(None),
            tap: broadcast::Sender::new(TAP),
            scans: LANES.map(|lane| Mutex::new(LaneScan::new(lane, 0))),
            cold: Mutex::new(cold),
            fetch: Mutex::new(None),
        });
        let writer = Writer::new(Arc::clone(&shared), ledger, reserve);
        let guard = Arc::new(Guard {
            shared: Arc::clone(&shared),
            thread: OnceLock::new(),
        });
        Ok((Self { shared, guard }, writer, report))
    }

    /// Gives `record` its id and makes it visible to readers at once; it is on the disk when
    /// [`durable_id`](Self::durable_id) reaches its id. Never waits for the disk.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub fn append(&self, record: NewRecord) -> Result<Arc<Record>, AppendError> {
        let lane = record.class.lane();
        let mut state = self.shared.lock();
        if state.stopped.is_some() || state.closing {
            return Err(AppendError::Stopped);
        }
        if !has_room(
            &state,
            &self.shared.config,
            lane,
            crate::buffer::codec::weight(&record),
        ) {
            return Err(AppendError::Full(Box::new(record)));
        }
        let record = state.admit(record);
        self.publish(state, std::slice::from_ref(&record));
        Ok(record)
    }

    /// Takes all of `records` or none; their ids follow each other.
    ///
    /// # Errors
    /// See [`BatchError`].
    pub fn append_batch(&self, records: Vec<NewRecord>) -> Result<Vec<Arc<Record>>, BatchError> {
        let mut state = self.shared.lock();
        if state.stopped.is_some() || state.closing {
            return Err(BatchError::Stopped);
        }
        let total: u64 = records.iter().map(crate::buffer::codec::weight).sum();
        let mut lanes = records.iter().map(|record| record.class.lane());
        if !lanes.all(|lane| has_room(&state, &self.shared.config, lane, total)) {
            return Err(BatchError::Full(records));
        }
        let records: Vec<_> = records
            .into_iter()
            .map(|record| state.admit(record))
            .collect();
        self.publish(state, &records);
        Ok(records)
    }

    /// Tells readers of new records and wakes the writer where it should not wait.
    fn publish(&self, mut state: std::sync::MutexGuard<'_, State>, records: &[Arc<Record>]) {
        state.evict(&self.shared.config);
        // The writer sleeps until the group is due; it must learn of the first record of a group, of a full
        // frame, and of an alarm.
        let first = std::mem::take(&mut state.wake_writer);
        let alarm = records
            .iter()
            .any(|record| record.data.class.lane() == Lane::Alarms);
        let wake = first || alarm || state.unwritten_bytes >= FRAME_TARGET;
        drop(state);
        if wake {
            self.shared.wake.notify_all();
        }
        for record in records {
            self.shared
                .appended(record.data.class.lane())
                .send_if_modified(|last| {
                    let newer = *last < record.id;
                    *last = (*last).max(record.id);
                    newer
                });
            if self.shared.tap.receiver_count() > 0 {
                // Without a subscriber there is nobody to tell; a slow one misses records and is told so.
                let _ = self.shared.tap.send(Arc::clone(record));
            }
        }
    }

    /// Every record up to this id is on the disk.
    #[must_use]
    pub fn durable_id(&self) -> RecordId {
        self.shared.lock().durable()
    }

    /// Follows [`durable_id`](Self::durable_id).
    #[must_use]
    pub fn durable(&self) -> watch::Receiver<RecordId> {
        self.shared.durable.subscribe()
    }

    /// An acknowledgement waits for the newest record: the next fsync starts as soon as the disk is free,
    /// and covers everything appended until then.
    pub fn want_sync(&self) {
        let mut state = self.shared.lock();
        if state.waiting_since.is_some() && !state.want_sync {
            state.want_sync = true;
            drop(state);
            self.shared.wake.notify_all();
        }
    }

    /// The reason, once the writer has stopped for good: the process must then end non-zero.
    #[must_use]
    pub fn failed(&self) -> watch::Receiver<Option<String>> {
        self.shared.failed.subscribe()
    }

    /// Follows the newest record of `lane`.
    #[must_use]
    pub fn appended(&self, lane: Lane) -> watch::Receiver<RecordId> {
        self.shared.appended(lane).subscribe()
    }

    /// A reader of `lane` of its own, which the bridge's bookkeeping knows nothing of.
    #[must_use]
    pub fn follow(&self, lane: Lane, after: RecordId) -> Follow {
        Follow::new(Arc::clone(&self.shared), lane, after)
    }

    /// The journal's epoch in hexadecimal: random, new after a rebuild, part of every message id.
    #[must_use]
    pub fn epoch(&self) -> String {
        crate::buffer::frame::epoch_hex(&self.shared.lock().ledger.epoch)
    }

    /// Last record of `lane` that is settled.
    #[must_use]
    pub fn cursor(&self, lane: Lane) -> RecordId {
        self.shared.lock().ledger.lane(lane).cursor
    }

    /// Newest record of `lane`.
    #[must_use]
    pub fn last_id(&self, lane: Lane) -> RecordId {
        self.shared.lock().ledger.lane(lane).last_id
    }

    /// Counts `n` records that never got in, as received or derived and as dropped.
    pub fn dropped(&self, origin: Origin, reason: &'static str, n: u64) {
        let mut state = self.shared.lock();
        match origin {
            Origin::Received => state.ledger.refused_received += n,
            Origin::Derived => state.ledger.refused_derived += n,
        }
        state.ledger.drop_more(reason, n);
        state.ledger_dirty = true;
    }

    /// One consistent snapshot of the account.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.lock().ledger.counts()
    }

    /// What waits in `lane`.
    #[must_use]
    pub fn lane_state(&self, lane: Lane) -> LaneState {
        LaneState::of(&self.shared.lock(), lane)
    }

    /// `false`: nothing leaves the box, and records age out as `filtered`. The default is `true`.
    pub fn set_bridged(&self, bridged: bool) {
        self.shared.lock().bridged = bridged;
    }

    /// Both lanes after `after` in the order of ids, from disk and memory; `gap` records stand where records
    /// are lost. Reads as it goes, in constant memory.
    #[must_use]
    pub fn replay(&self, after: RecordId) -> Replay {
        Replay::new(Arc::clone(&self.shared), after)
    }

    /// Causes of all derived records after `after`: what a replay must not make again.
    ///
    /// # Errors
    /// A segment can't be opened.
    pub fn derived_causes(&self, after: RecordId) -> Result<HashSet<Cause>, ReadError> {
        let mut causes = HashSet::new();
        for record in self.replay(after) {
            causes.extend(record?.data.cause);
        }
        Ok(causes)
    }

    /// The oldest state snapshot needs the records after `id`: no segment with one of them goes by age. Kept
    /// over restarts; before the first call nothing is held.
    pub fn keep_from(&self, id: RecordId) {
        let mut state = self.shared.lock();
        state.ledger.keep_from = id;
        state.ledger_dirty = true;
    }

    /// Stored records of `selection`, oldest first, both lanes, as of now. Reads from disk as it goes, in
    /// constant memory.
    #[must_use]
    pub fn history(&self, selection: &Selection) -> History {
        History::of_journal(&self.shared, selection)
    }

    /// The newest `n` records in memory, oldest first.
    #[must_use]
    pub fn recent(&self, n: usize) -> Vec<Arc<Record>> {
        let state = self.shared.lock();
        let newest = |lane: Lane| {
            state
                .lane(lane)
                .hot
                .iter()
                .rev()
                .take(n)
                .map(|hot| Arc::clone(&hot.record))
        };
        let mut records: Vec<_> = LANES.into_iter().flat_map(newest).collect();
        records.sort_unstable_by_key(|record| record.id);
        records.drain(..records.len().saturating_sub(n));
        records
    }

    /// Every record from now on, as it is appended. A subscriber more than 1024 behind misses records and is
    /// told how many.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Record>> {
        self.shared.tap.subscribe()
    }

    /// Figures for status and metrics.
    #[must_use]
    pub fn stat(&self) -> Stat {
        let mut stat = Stat::of(&self.shared.lock(), &self.shared.config);
        stat.cold = self.cold_status();
        stat
    }

    /// To be called about every second: ageing, trimming, quota, the ledger, another attempt where the disk
    /// was full. `now_ms` is engine time. While the wall clock is not trusted nothing goes by age.
    pub fn tick(&self, now_ms: u64, clock_trusted: bool) {
        let mut state = self.shared.lock();
        state.now_ms = state.now_ms.max(now_ms);
        // Not a change of its own: an idle gateway writes nothing.
        state.ledger.engine_ms = state.ledger.engine_ms.max(now_ms);
        state.clock_trusted = clock_trusted;
        state.maintain = true;
        state.evict(&self.shared.config);
        drop(state);
        self.shared.wake.notify_all();
    }

    /// Writes and syncs what waits, seals the segments, ends the writer. Appends are refused from now on.
    ///
    /// # Errors
    /// The writer had stopped, there is no room, or it takes longer than `limit`.
    pub fn close(&self, limit: Duration) -> Result<(), CloseError> {
        close(&self.shared, limit)
    }
}

fn close(shared: &Shared, limit: Duration) -> Result<(), CloseError> {
    let started = Instant::now();
    let mut state = shared.lock();
    state.closing = true;
    shared.wake.notify_all();
    while !state.closed {
        let left = limit.saturating_sub(started.elapsed());
        if left.is_zero() {
            return Err(CloseError::TimedOut(limit));
        }
        state = shared
            .wake
            .wait_timeout(state, left)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
    }
    if let Some(reason) = &state.stopped {
        return Err(CloseError::Stopped(reason.clone()));
    }
    match LANES.iter().map(|lane| state.lane(*lane).queue.len()).sum() {
        0 => Ok(()),
        unwritten => Err(CloseError::Unwritten(unwritten)),
    }
}

/// Alarms have a queue limit twice that of data, so that a data backlog never refuses one.
fn has_room(state: &State, config: &Config, lane: Lane, weight: u64) -> bool {
    let limit = match lane {
        Lane::Data => config.unwritten_max_bytes,
        Lane::Alarms => config.unwritten_max_bytes.saturating_mul(2),
    };
    // A single record larger than the limit is taken when nothing else waits.
    let waits = state.queue_bytes;
    !state.lane(lane).full && (waits == 0 || waits + weight <= limit)
}
