//! Stored records by time and by device, oldest first, both lanes in the order of ids.
//!
//! Segments outside of the range are not opened; inside a segment the sparse index tells which 64 KiB of
//! frames can hold something wanted, by range of arrival times and by a set of keys. What is read is decoded
//! record by record, and only what is wanted is kept. Memory is constant. Damage is skipped.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::Path;
use std::sync::{Arc, PoisonError};

use crate::buffer::codec;
#[cfg(feature = "cold")]
use crate::buffer::cold;
use crate::buffer::cold::index::{Entry, Index};
use crate::buffer::cold::{Fetch, Parts};
use crate::buffer::frame::{IndexEntry, SEGMENT_HEADER, key_bit};
use crate::buffer::read::ReadError;
use crate::buffer::record::{Key, LANES, Record, RecordId};
use crate::buffer::segment::{Segment, read_index};
use crate::buffer::shared::Shared;
use crate::buffer::storage::{DiskStorage, Storage};
use crate::buffer::tools::{Progress, ToolError, ledger, load_named, segments};
use crate::buffer::walk::{Step, Walk};

/// Which records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// Arrived at or after this time, ms UTC.
    pub from_ms: u64,
    /// Arrived before this time, ms UTC.
    pub to_ms: u64,
    /// Of this device, node or group alone.
    pub key: Option<Key>,
}

impl Selection {
    /// Everything that arrived from `from_ms` until just before `to_ms`.
    #[must_use]
    pub fn between(from_ms: u64, to_ms: u64) -> Self {
        Self {
            from_ms,
            to_ms,
            key: None,
        }
    }

    /// Of those, the records of `key`.
    #[must_use]
    pub fn of(mut self, key: Key) -> Self {
        self.key = Some(key);
        self
    }

    pub(crate) fn wants(&self, record: &Record) -> bool {
        (self.from_ms..self.to_ms).contains(&record.data.received_ms)
            && self.key.as_ref().is_none_or(|key| *key == record.data.key)
    }

    /// Whether something in this range of arrival times can be wanted.
    pub(crate) fn touches(&self, min_ms: u64, max_ms: u64) -> bool {
        min_ms < self.to_ms && max_ms >= self.from_ms
    }

    fn may_hold(&self, entry: &IndexEntry) -> bool {
        let key = self.key.as_ref().map_or(u64::MAX, key_bit);
        self.touches(entry.min_ms, entry.max_ms) && entry.keys & key != 0
    }
}

/// Reads the records of a [`Selection`].
pub struct History {
    data: LaneHistory,
    alarms: LaneHistory,
    total: u64,
}

impl std::fmt::Debug for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("History").finish_non_exhaustive()
    }
}

impl History {
    /// Reads the journal in `folder`, without its lock: beside a running gateway as well as without one.
    ///
    /// # Errors
    /// The folder or a file in it can't be read.
    pub fn open(folder: &Path, selection: Selection) -> Result<Self, ToolError> {
        Self::of_storage(Arc::new(DiskStorage::read_only(folder)?), selection)
    }

    /// The same, and what lies in the cold tier alone.
    ///
    /// # Errors
    /// The folder or a file in it can't be read, or the cold tier's configuration can't be used.
    #[cfg(feature = "cold")]
    pub fn open_with_cold(
        folder: &Path,
        cold: Option<&cold::Config>,
        selection: Selection,
    ) -> Result<Self, ToolError> {
        let storage = Arc::new(DiskStorage::read_only(folder)?);
        let mut history = Self::of_storage(Arc::clone(&storage) as Arc<dyn Storage>, selection)?;
        if let Some(config) = cold {
            let store = cold::store::Store::new(config, None)?;
            let index = Index::load(storage.as_ref()).map_err(|source| ToolError::Read {
                name: crate::buffer::cold::index::INDEX.to_owned(),
                source,
            })?;
            history.add_cold(&index, &(Arc::new(store) as Arc<dyn Fetch>));
        }
        Ok(history)
    }

    /// Puts archived segments whose files are gone in line.
    fn add_cold(&mut self, index: &Index, fetch: &Arc<dyn Fetch>) {
        for (lane, history) in LANES.into_iter().zip([&mut self.data, &mut self.alarms]) {
            let local: BTreeSet<u64> = history
                .segments
                .iter()
                .filter(|segment| segment.local)
                .map(Segment::no)
                .collect();
            history.segments.retain(|segment| segment.local);
            for entry in index
                .of(lane)
                .filter(|entry| !local.contains(&entry.segment))
            {
                if let Some(segment) = entry.segment() {
                    history.segments.push_back(segment);
                    history.cold.insert(entry.segment, Arc::clone(entry));
                }
            }
            history
                .segments
                .make_contiguous()
                .sort_by_key(|segment| segment.summary.first_id);
            history.fetch = Some(Arc::clone(fetch));
        }
    }

    pub(crate) fn of_storage(
        storage: Arc<dyn Storage>,
        selection: Selection,
    ) -> Result<Self, ToolError> {
        let mut epoch = ledger(storage.as_ref()).map(|ledger| ledger.epoch);
        let mut lanes: [VecDeque<Segment>; 2] = Default::default();
        for (lane, no, name, _) in segments(storage.as_ref())? {
            let Ok(loaded) = load_named(storage.as_ref(), lane, no, &name, epoch, false)? else {
                continue;
            };
            epoch = Some(loaded.segment.summary.header.epoch);
            if let Some(pieces) = lanes.get_mut(lane as usize) {
                pieces.push_back(loaded.segment);
            }
        }
        let memory = Default::default();
        Ok(Self::new(storage, &selection, lanes, memory))
    }

    /// What a running journal has, the records that are not on the disk yet included.
    pub(crate) fn of_journal(shared: &Shared, selection: &Selection) -> Self {
        let state = shared.lock();
        let lanes = LANES.map(|lane| state.lane(lane).segments.clone());
        let memory = LANES.map(|lane| {
            let memory = state.lane(lane);
            let unwritten = memory.queue.range(memory.written..);
            unwritten.map(|hot| Arc::clone(&hot.record)).collect()
        });
        drop(state);
        let mut history = Self::new(Arc::clone(&shared.storage), selection, lanes, memory);
        let fetch = shared
            .fetch
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let Some(fetch) = fetch {
            history.add_cold(&shared.cold(), &fetch);
        }
        history
    }

    fn new(
        storage: Arc<dyn Storage>,
        selection: &Selection,
        lanes: [VecDeque<Segment>; 2],
        memory: [VecDeque<Arc<Record>>; 2],
    ) -> Self {
        let lane = |segments: VecDeque<Segment>, mut memory: VecDeque<Arc<Record>>| {
            memory.retain(|record| selection.wants(record));
            LaneHistory {
                storage: Arc::clone(&storage),
                selection: selection.clone(),
                segments,
                memory,
                cold: BTreeMap::new(),
                fetch: None,
                parts: None,
                source: None,
                ready: VecDeque::new(),
                done: 0,
            }
        };
        let total = lanes.iter().flatten().map(|segment| segment.file_len).sum();
        let ([data, alarms], [data_memory, alarms_memory]) = (lanes, memory);
        Self {
            data: lane(data, data_memory),
            alarms: lane(alarms, alarms_memory),
            total,
        }
    }

    /// How far it has come, in bytes of segments.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress {
            done: self.data.done + self.alarms.done,
            total: self.total,
        }
    }
}

impl Iterator for History {
    type Item = Result<Arc<Record>, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let [data, alarm] = match [self.data.peek(), self.alarms.peek()] {
            [Ok(data), Ok(alarm)] => [data, alarm],
            [Err(error), _] | [_, Err(error)] => return Some(Err(error)),
        };
        let lane = match (data, alarm) {
            (None, None) => return None,
            (Some(data), Some(alarm)) if alarm < data => &mut self.alarms,
            (None, Some(_)) => &mut self.alarms,
            (Some(_), _) => &mut self.data,
        };
        lane.ready.pop_front().map(Ok)
    }
}

/// The segment that is being read.
struct Source {
    name: String,
    file: Arc<dyn crate::buffer::storage::StorageFile>,
    seed: u32,
    /// Ranges of frames that may hold something, in order.
    spans: VecDeque<(u64, u64)>,
    walk: Option<Walk>,
}

/// One lane's side.
struct LaneHistory {
    storage: Arc<dyn Storage>,
    selection: Selection,
    segments: VecDeque<Segment>,
    /// Behind the segments: what is not on the disk yet.
    memory: VecDeque<Arc<Record>>,
    /// Segments without a file, by number.
    cold: BTreeMap<u64, Arc<Entry>>,
    fetch: Option<Arc<dyn Fetch>>,
    /// The archived segment that is being read.
    parts: Option<(String, Parts)>,
    source: Option<Source>,
    ready: VecDeque<Arc<Record>>,
    done: u64,
}

impl LaneHistory {
    /// Id of the next record.
    fn peek(&mut self) -> Result<Option<RecordId>, ReadError> {
        while self.ready.is_empty() {
            if self.source.is_none() && self.parts.is_none() && !self.open_next()? {
                self.ready = std::mem::take(&mut self.memory);
                break;
            }
            self.step()?;
        }
        Ok(self.ready.front().map(|record| record.id))
    }

    fn step(&mut self) -> Result<(), ReadError> {
        if let Some((object, parts)) = &mut self.parts {
            match parts.next() {
                None => self.parts = None,
                Some(Ok(mut records)) => {
                    records.retain(|record| self.selection.wants(record));
                    self.ready = records;
                }
                Some(Err(source)) => {
                    let object = std::mem::take(object);
                    self.parts = None;
                    return Err(ReadError::Cold { object, source });
                }
            }
            return Ok(());
        }
        let Some(source) = &mut self.source else {
            return Ok(());
        };
        let Some(walk) = &mut source.walk else {
            match source.spans.pop_front() {
                Some((from, to)) => {
                    let file = Arc::clone(&source.file);
                    source.walk = Some(Walk::new(file, source.seed, from, to));
                }
                None => self.source = None,
            }
            return Ok(());
        };
        match walk.step() {
            Ok(None) => source.walk = None,
            Ok(Some(Step::Damage { .. })) => {}
            Ok(Some(Step::Frame {
                header, payload, ..
            })) => {
                let (selection, ready) = (&self.selection, &mut self.ready);
                let mut take = |record: Record| {
                    if selection.wants(&record) {
                        ready.push_back(Arc::new(record));
                    }
                };
                let decoded =
                    codec::decode_each(&payload, header.first_id, header.count, &mut take);
                if let Err(error) = decoded {
                    tracing::error!(%error, segment = source.name, "a frame cannot be decoded");
                }
            }
            Err(error) => {
                let name = source.name.clone();
                self.source = None;
                return Err(ReadError::Read {
                    name,
                    source: error,
                });
            }
        }
        Ok(())
    }

    /// Opens the next segment that may hold something; `false`: there is none.
    fn open_next(&mut self) -> Result<bool, ReadError> {
        while let Some(segment) = self.segments.pop_front() {
            self.done += segment.file_len;
            let summary = &segment.summary;
            if !self.selection.touches(summary.min_ms, summary.max_ms) {
                continue;
            }
            if !segment.local {
                let entry = self.cold.get(&segment.no()).map(Arc::clone);
                if self.open_cold(entry)? {
                    return Ok(true);
                }
                continue;
            }
            let name = segment.name();
            let file = match self.storage.open(&name) {
                Ok(file) => file,
                // Trimmed meanwhile: a file goes only after its entry is in the index.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    if self.fetch.is_none() {
                        continue;
                    }
                    let index = Index::load(self.storage.as_ref())
                        .map_err(|source| ReadError::Open { name, source })?;
                    let entry = index.get(segment.lane(), segment.no()).map(Arc::clone);
                    if self.open_cold(entry)? {
                        return Ok(true);
                    }
                    continue;
                }
                Err(source) => return Err(ReadError::Open { name, source }),
            };
            let index = match segment.sealed {
                true => read_index(file.as_ref(), segment.file_len).unwrap_or_default(),
                false => segment.index.clone(),
            };
            let spans = spans(&index, summary.data_end, &self.selection);
            self.source = Some(Source {
                name,
                file,
                seed: segment.seed(),
                spans,
                walk: None,
            });
            return Ok(true);
        }
        Ok(false)
    }

    /// Fetches an archived segment; `false`: there is none.
    fn open_cold(&mut self, entry: Option<Arc<Entry>>) -> Result<bool, ReadError> {
        let (Some(entry), Some(fetch)) = (entry, &self.fetch) else {
            return Ok(false);
        };
        let object = entry.object.clone();
        let parts = fetch.fetch(&entry).map_err(|source| ReadError::Cold {
            object: object.clone(),
            source,
        })?;
        self.parts = Some((object, parts));
        Ok(true)
    }
}

/// Ranges of frames that may hold something wanted; neighbours are joined. All frames where there is no index.
fn spans(index: &[IndexEntry], end: u64, selection: &Selection) -> VecDeque<(u64, u64)> {
    if index.is_empty() {
        return VecDeque::from([(SEGMENT_HEADER as u64, end)]);
    }
    let ends = index.iter().skip(1).map(|entry| entry.offset).chain([end]);
    let mut spans: VecDeque<(u64, u64)> = VecDeque::new();
    for (entry, to) in index.iter().zip(ends) {
        if !selection.may_hold(entry) {
            continue;
        }
        match spans.back_mut() {
            Some((_, last)) if *last == entry.offset => *last = to,
            Some(_) | None => spans.push_back((entry.offset, to)),
        }
    }
    spans
}
