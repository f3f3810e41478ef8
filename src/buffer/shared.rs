//! What the journal's handles and its writer thread share.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::{broadcast, watch};

use crate::buffer::Config;
use crate::buffer::codec::weight;
use crate::buffer::cold::index::Index;
use crate::buffer::cold::{Archive, Fetch, Parts};
use crate::buffer::ledger::Ledger;
use crate::buffer::read::{LaneScan, ReadError};
use crate::buffer::record::{LANES, Lane, NewRecord, Record, RecordId};
use crate::buffer::segment::Segment;
use crate::buffer::storage::Storage;

/// Batches handed out from disk whose ordinals are remembered, so that an ack needs no read.
const HANDED: usize = 8192;

/// A record in memory.
#[derive(Debug, Clone)]
pub(crate) struct HotRecord {
    pub(crate) ord: u64,
    pub(crate) weight: u64,
    pub(crate) record: Arc<Record>,
}

/// One lane in memory.
#[derive(Debug, Default)]
pub(crate) struct LaneMemory {
    /// Oldest first; the last one may be the one being written.
    pub(crate) segments: VecDeque<Segment>,
    /// Recent records, oldest first; every record that is not durable yet is among them.
    pub(crate) hot: VecDeque<HotRecord>,
    /// Newest record that has left the hot tier: everything after it is in `hot`.
    pub(crate) hot_floor: RecordId,
    /// Records that are not durable yet, oldest first.
    pub(crate) queue: VecDeque<HotRecord>,
    /// How many of them, from the front, lie in a segment.
    pub(crate) written: usize,
    /// Newest durable record.
    pub(crate) synced: RecordId,
    /// No segment could be made for the next frame.
    pub(crate) full: bool,
    /// Newest record that a reader of this lane was given.
    pub(crate) read_high: RecordId,
    /// Ids and ordinal ends of records handed out from disk, newest last.
    pub(crate) handed: VecDeque<(RecordId, u64)>,
    /// Number of the next segment.
    pub(crate) next_no: u64,
}

impl LaneMemory {
    /// Records in memory after `after`, when none of them has left it.
    pub(crate) fn hot_after(&self, after: RecordId) -> Option<impl Iterator<Item = &HotRecord>> {
        if after < self.hot_floor {
            return None;
        }
        let from = self.hot.partition_point(|hot| hot.record.id <= after);
        Some(self.hot.range(from..))
    }

    pub(crate) fn hand(&mut self, id: RecordId, ord_end: u64) {
        if self.handed.back().is_none_or(|(last, _)| *last < id) {
            if self.handed.len() == HANDED {
                self.handed.pop_front();
            }
            self.handed.push_back((id, ord_end));
        }
    }
}

/// Figures of the process, for [`Stat`](crate::buffer::Stat).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Figures {
    pub(crate) bytes_in: u64,
    pub(crate) bytes_written: u64,
    pub(crate) fsyncs: u64,
    pub(crate) last_fsync_us: u64,
    pub(crate) served_hot: u64,
    pub(crate) served_warm: u64,
    pub(crate) grace_cut: u64,
    pub(crate) snapshot_overrun: u64,
    pub(crate) cold_missed: u64,
    pub(crate) served_cold: u64,
}

/// Everything behind the one lock. Held for memory work only, never over I/O.
pub(crate) struct State {
    pub(crate) ledger: Ledger,
    /// The ledger changed since it was last written.
    pub(crate) ledger_dirty: bool,
    /// Engine time at which it was.
    pub(crate) ledger_saved_ms: u64,
    /// The writer sleeps and must learn of what was appended.
    pub(crate) wake_writer: bool,
    /// Cursors as last synced: a segment may go only when they are past it.
    pub(crate) synced_cursors: [RecordId; 2],
    data: LaneMemory,
    alarms: LaneMemory,
    pub(crate) next_id: RecordId,
    pub(crate) hot_bytes: u64,
    pub(crate) queue_bytes: u64,
    pub(crate) unwritten_bytes: u64,
    /// Engine time as of the last tick or record.
    pub(crate) now_ms: u64,
    pub(crate) clock_trusted: bool,
    pub(crate) bridged: bool,
    pub(crate) want_sync: bool,
    pub(crate) maintain: bool,
    pub(crate) closing: bool,
    pub(crate) closed: bool,
    /// When the oldest record that isn't durable was appended.
    pub(crate) waiting_since: Option<Instant>,
    /// An fsync is under way since then.
    pub(crate) syncing_since: Option<Instant>,
    pub(crate) stopped: Option<String>,
    pub(crate) figures: Figures,
    /// Undelivered segments given up so far: readers throw away what they have read ahead.
    pub(crate) drops: u64,
    /// Which segments go to the cold tier; `None`: there is none.
    pub(crate) archive: Option<Archive>,
    /// Objects in the cold tier and their bytes: known here, since the index is locked over its file.
    pub(crate) cold_held: (u64, u64),
    /// Why the cold tier's last attempt failed.
    pub(crate) cold_error: Option<String>,
}

impl State {
    pub(crate) fn new(
        ledger: Ledger,
        next_id: RecordId,
        data: LaneMemory,
        alarms: LaneMemory,
    ) -> Self {
        Self {
            now_ms: ledger.engine_ms,
            ledger,
            ledger_saved_ms: 0,
            wake_writer: false,
            ledger_dirty: true,
            synced_cursors: [0, 0],
            data,
            alarms,
            next_id,
            hot_bytes: 0,
            queue_bytes: 0,
            unwritten_bytes: 0,
            clock_trusted: false,
            bridged: true,
            want_sync: false,
            maintain: false,
            closing: false,
            closed: false,
            waiting_since: None,
            syncing_since: None,
            stopped: None,
            figures: Figures::default(),
            drops: 0,
            archive: None,
            cold_held: (0, 0),
            cold_error: None,
        }
    }

    pub(crate) fn lane(&self, lane: Lane) -> &LaneMemory {
        match lane {
            Lane::Data => &self.data,
            Lane::Alarms => &self.alarms,
        }
    }

    pub(crate) fn lane_mut(&mut self, lane: Lane) -> &mut LaneMemory {
        match lane {
            Lane::Data => &mut self.data,
            Lane::Alarms => &mut self.alarms,
        }
    }

    /// Gives `data` its id and makes it visible. The caller has checked that there is room.
    pub(crate) fn admit(&mut self, data: NewRecord) -> Arc<Record> {
        let lane = data.class.lane();
        let id = self.next_id;
        self.next_id += 1;
        let account = self.ledger.lane_mut(lane);
        let ord = account.ord_end();
        match data.origin {
            crate::buffer::record::Origin::Received => account.received += 1,
            crate::buffer::record::Origin::Derived => account.derived += 1,
        }
        let prev = std::mem::replace(&mut account.last_id, id);
        self.ledger.last_id = id;
        self.ledger.engine_ms = self.ledger.engine_ms.max(data.engine_ms);
        self.now_ms = self.now_ms.max(data.engine_ms);
        self.ledger_dirty = true;
        let weight = weight(&data);
        let record = Arc::new(Record { id, prev, data });
        let hot = HotRecord {
            ord,
            weight,
            record: Arc::clone(&record),
        };
        let memory = self.lane_mut(lane);
        memory.hot.push_back(hot.clone());
        memory.queue.push_back(hot);
        self.hot_bytes += weight;
        self.queue_bytes += weight;
        self.unwritten_bytes += weight;
        self.figures.bytes_in += record.data.body.len() as u64;
        if self.waiting_since.is_none() {
            self.waiting_since = Some(Instant::now());
            self.wake_writer = true;
        }
        record
    }

    /// Everything up to this id is on the disk.
    pub(crate) fn durable(&self) -> RecordId {
        let waiting = LANES
            .iter()
            .filter_map(|lane| self.lane(*lane).queue.front());
        waiting
            .map(|hot| hot.record.id - 1)
            .min()
            .unwrap_or(self.ledger.last_id)
    }

    /// Lets go of what is too old or too much. Records that are not durable stay.
    pub(crate) fn evict(&mut self, config: &Config) {
        let horizon = self.now_ms.saturating_sub(config.hot_ttl_ms);
        loop {
            let oldest = LANES
                .into_iter()
                .filter_map(|lane| {
                    let memory = self.lane(lane);
                    let front = memory
                        .hot
                        .front()
                        .filter(|hot| hot.record.id <= memory.synced)?;
                    Some((front.record.id, front.record.data.engine_ms, lane))
                })
                .min_by_key(|(id, ..)| *id);
            let Some((id, engine_ms, lane)) = oldest else {
                return;
            };
            if self.hot_bytes <= config.hot_max_bytes && engine_ms >= horizon {
                return;
            }
            let memory = self.lane_mut(lane);
            memory.hot_floor = id;
            let weight = memory.hot.pop_front().map_or(0, |hot| hot.weight);
            self.hot_bytes = self.hot_bytes.saturating_sub(weight);
        }
    }

    /// Bytes of all segment files.
    pub(crate) fn segment_bytes(&self) -> u64 {
        LANES
            .iter()
            .flat_map(|lane| &self.lane(*lane).segments)
            .filter(|segment| segment.local)
            .map(|segment| segment.file_len)
            .sum()
    }

    /// Stamps the segments that the cursor has passed.
    pub(crate) fn stamp_acked(&mut self, lane: Lane) {
        let cursor = self.ledger.lane(lane).cursor;
        let now = self.now_ms;
        // What lies in the cold tier alone is followed until it is delivered.
        self.lane_mut(lane)
            .segments
            .retain(|segment| segment.local || segment.summary.last_id > cursor);
        for segment in &mut self.lane_mut(lane).segments {
            if segment.summary.last_id > cursor {
                break;
            }
            segment.acked_at.get_or_insert(now);
        }
    }
}

pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) state: Mutex<State>,
    /// Wakes the writer, and whoever waits for it to end.
    pub(crate) wake: Condvar,
    pub(crate) durable: watch::Sender<RecordId>,
    pub(crate) appended: [watch::Sender<RecordId>; 2],
    pub(crate) failed: watch::Sender<Option<String>>,
    pub(crate) tap: broadcast::Sender<Arc<Record>>,
    /// The readers that follow each lane from disk.
    pub(crate) scans: [Mutex<LaneScan>; 2],
    /// What lies in the cold tier. Locked alone or before `state`, also over its file.
    pub(crate) cold: Mutex<Index>,
    /// Reads from there.
    pub(crate) fetch: Mutex<Option<Arc<dyn Fetch>>>,
}

impl Shared {
    /// The lock. A panic while it was held can only have come from a failed allocation; the counters are
    /// updated in one go, so the state is still whole.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn cold(&self) -> MutexGuard<'_, Index> {
        self.cold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The records of an archived segment. Waits for the network.
    pub(crate) fn fetch(&self, lane: Lane, no: u64) -> Result<Parts, ReadError> {
        let entry = self.cold().get(lane, no).map(Arc::clone);
        let fetch = self
            .fetch
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let failed = |object: &str, source| ReadError::Cold {
            object: object.to_owned(),
            source,
        };
        match (entry, fetch) {
            (Some(entry), Some(fetch)) => fetch
                .fetch(&entry)
                .map_err(|error| failed(&entry.object, error)),
            (Some(entry), None) => Err(failed(&entry.object, io::ErrorKind::NotConnected.into())),
            (None, _) => Err(failed("", io::ErrorKind::NotFound.into())),
        }
    }

    pub(crate) fn appended(&self, lane: Lane) -> &watch::Sender<RecordId> {
        let [data, alarms] = &self.appended;
        match lane {
            Lane::Data => data,
            Lane::Alarms => alarms,
        }
    }

    pub(crate) fn scan(&self, lane: Lane) -> &Mutex<LaneScan> {
        let [data, alarms] = &self.scans;
        match lane {
            Lane::Data => data,
            Lane::Alarms => alarms,
        }
    }
}
