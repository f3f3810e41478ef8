//! Reading back: from memory where it can be, else from the segments, past damage and lost ranges.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use crate::buffer::codec;
use crate::buffer::cold::Parts;
use crate::buffer::frame::{SEGMENT_HEADER, Summary};
use crate::buffer::gaps::{book_hole, gap_record};
use crate::buffer::ledger::Lost;
use crate::buffer::record::{Lane, Record, RecordId};
use crate::buffer::segment::{Hole, read_index};
use crate::buffer::shared::{Shared, State};
use crate::buffer::walk::{Step, Walk};

/// Records taken from memory at once.
const HOT_BATCH: usize = 256;

/// Why records can't be read. Damage is not an error: it is skipped and told by a `gap` record.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A segment can't be opened (too many open files, a failing disk).
    #[error("cannot open journal segment {name}")]
    Open {
        /// File name in the journal's folder.
        name: String,
        /// What the system says.
        source: io::Error,
    },
    /// An archived segment can't be fetched.
    #[error("cannot fetch {object} from the cold tier")]
    Cold {
        /// Key of the object.
        object: String,
        /// What the store says.
        source: io::Error,
    },
    /// A segment can't be read.
    #[error("cannot read journal segment {name}")]
    Read {
        /// File name in the journal's folder.
        name: String,
        /// What the system says.
        source: io::Error,
    },
}

/// A record and its place in the lane.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    pub(crate) record: Arc<Record>,
    pub(crate) ord_end: u64,
    pub(crate) hot: bool,
}

/// A segment that is being walked.
struct Source {
    walk: From,
    summary: Summary,
}

/// Where its records come from.
enum From {
    Disk(Walk),
    Cold(Parts),
}

/// Follows one lane. Sequential reads go on where the last one ended.
pub(crate) struct LaneScan {
    lane: Lane,
    after: RecordId,
    /// Ordinal of the next record, once one was seen.
    expect: Option<u64>,
    /// Record before that one.
    prev: RecordId,
    prev_ms: u64,
    source: Option<Source>,
    ready: VecDeque<Item>,
    /// Given-up segments as of what has been read ahead.
    drops: u64,
    /// Segments in the cold tier are passed over.
    local_only: bool,
    /// Records that came from the cold tier.
    cold: u64,
}

impl LaneScan {
    pub(crate) fn new(lane: Lane, after: RecordId) -> Self {
        Self {
            lane,
            after,
            expect: None,
            prev: after,
            prev_ms: 0,
            source: None,
            ready: VecDeque::new(),
            drops: 0,
            local_only: false,
            cold: 0,
        }
    }

    /// The same for what must not wait for the network.
    pub(crate) fn local(lane: Lane, after: RecordId) -> Self {
        Self {
            local_only: true,
            ..Self::new(lane, after)
        }
    }

    /// Records that came from the cold tier since the last call.
    pub(crate) fn take_cold(&mut self) -> u64 {
        std::mem::take(&mut self.cold)
    }

    /// Goes on after `after`; keeps what was read when that is where it stands.
    pub(crate) fn seek(&mut self, shared: &Shared, after: RecordId) {
        let drops = shared.lock().drops;
        if drops != self.drops {
            *self = Self::new(self.lane, after);
            self.drops = drops;
        }
        while self
            .ready
            .front()
            .is_some_and(|item| item.record.id <= after)
        {
            if let Some(item) = self.ready.pop_front() {
                self.after = item.record.id;
            }
        }
        if self.after != after {
            *self = Self::new(self.lane, after);
            self.drops = drops;
        }
    }

    /// The next record without taking it.
    pub(crate) fn peek(&mut self, shared: &Shared) -> Result<Option<&Item>, ReadError> {
        while self.ready.is_empty() {
            if !self.fill(shared)? {
                return Ok(None);
            }
        }
        Ok(self.ready.front())
    }

    /// Takes the next record.
    pub(crate) fn next(&mut self, shared: &Shared) -> Result<Option<Item>, ReadError> {
        self.peek(shared)?;
        let item = self.ready.pop_front();
        if let Some(item) = &item {
            self.after = item.record.id;
        }
        Ok(item)
    }

    /// Last id that has been looked at, taken or not.
    fn seen(&self) -> RecordId {
        self.ready
            .back()
            .map_or(self.after, |item| item.record.id)
            .max(self.after)
    }

    /// Reads on; `false`: there is nothing more.
    fn fill(&mut self, shared: &Shared) -> Result<bool, ReadError> {
        if self.source.is_none() && !self.locate(shared)? {
            return Ok(!self.ready.is_empty());
        }
        let Some(source) = &mut self.source else {
            return Ok(true);
        };
        let walk = match &mut source.walk {
            From::Disk(walk) => walk,
            From::Cold(parts) => {
                match parts.next() {
                    Some(Ok(records)) => {
                        // Ordinals go on: what a damaged segment lacked is missing at its end.
                        // A lost range may lie before the segment: its own start is the least.
                        let ord = self.expect.unwrap_or(0).max(source.summary.ord_start());
                        self.cold += records.len() as u64;
                        self.take_frame(shared, ord, records.into());
                    }
                    Some(Err(error)) => {
                        let object = format!("segment {}", source.summary.header.no);
                        self.source = None;
                        return Err(ReadError::Cold {
                            object,
                            source: error,
                        });
                    }
                    None => self.finish(shared),
                }
                return Ok(true);
            }
        };
        match walk.step() {
            Ok(Some(Step::Frame {
                header, payload, ..
            })) => match codec::decode(&payload, header.first_id, header.count) {
                Ok(records) => self.take_frame(shared, header.ord, records),
                Err(error) => {
                    tracing::error!(%error, lane = ?self.lane, "a frame cannot be decoded")
                }
            },
            Ok(Some(Step::Damage { .. })) => {}
            Ok(None) => self.finish(shared),
            Err(error) => {
                // A sector that can't be read is damage like any other: what follows it is still worth having.
                tracing::error!(%error, lane = ?self.lane, offset = walk.offset(), "a segment cannot be read");
                self.finish(shared);
            }
        }
        Ok(true)
    }

    fn take_frame(&mut self, shared: &Shared, ord: u64, records: Vec<Arc<Record>>) {
        let Some((first, last)) = records.first().zip(records.last()) else {
            return;
        };
        let hole = Hole {
            ord_start: self.expect.unwrap_or(ord),
            ord_end: ord,
            prev: self.prev,
            last: first.prev,
            first_ms: if self.prev_ms == 0 {
                first.data.received_ms
            } else {
                self.prev_ms
            },
            last_ms: first.data.received_ms,
        };
        self.weave(shared, &hole, first.id);
        self.expect = Some(ord + records.len() as u64);
        self.prev = last.id;
        self.prev_ms = last.data.received_ms;
        let seen = self.seen();
        for (ord_end, record) in (ord + 1..).zip(records) {
            if record.id > seen {
                self.ready.push_back(Item {
                    record,
                    ord_end,
                    hot: false,
                });
            }
        }
    }

    /// Books what is missing before `next`, and puts the `gap` records of that place in line.
    fn weave(&mut self, shared: &Shared, hole: &Hole, next: RecordId) {
        let seen = self.seen();
        let mut state = shared.lock();
        if hole.ord_end > hole.ord_start {
            book_hole(&mut state, self.lane, hole, "damaged");
        }
        let between = |lost: &&Lost| !lost.silent && lost.id > seen && lost.id < next;
        let gaps: Vec<Item> = state
            .ledger
            .lost_in(self.lane)
            .filter(between)
            .map(gap_item)
            .collect();
        drop(state);
        self.ready.extend(gaps);
    }

    /// The end of a segment: what its summary promises and the frames did not hold is lost.
    fn finish(&mut self, shared: &Shared) {
        let Some(source) = self.source.take() else {
            return;
        };
        let summary = source.summary;
        let hole = Hole {
            ord_start: self.expect.unwrap_or(summary.ord_end),
            ord_end: summary.ord_end,
            prev: self.prev,
            last: summary.last_id,
            first_ms: if self.prev_ms == 0 {
                summary.min_ms
            } else {
                self.prev_ms
            },
            last_ms: summary.max_ms,
        };
        self.weave(shared, &hole, summary.last_id + 1);
        if self.ready.is_empty() {
            self.after = self.after.max(summary.last_id);
        }
        self.expect = Some(self.expect.unwrap_or(summary.ord_end).max(summary.ord_end));
        self.prev = summary.last_id;
    }

    /// Puts what is not in a segment in line; the next ordinal to come follows from it.
    fn take_items(&mut self, items: Vec<Item>) -> bool {
        let Some(last) = items.last() else {
            return false;
        };
        self.expect = Some(last.ord_end);
        self.prev = last.record.id;
        self.prev_ms = last.record.data.received_ms;
        self.ready.extend(items);
        true
    }

    /// Finds the segment that holds the next record, or takes records from memory.
    fn locate(&mut self, shared: &Shared) -> Result<bool, ReadError> {
        let after = self.seen();
        let passes_cold;
        let (segment, name) = {
            let state = shared.lock();
            let memory = state.lane(self.lane);
            if let Some(items) = hot_items(&state, self.lane, after) {
                drop(state);
                return Ok(self.take_items(items));
            }
            let local_only = self.local_only;
            let holds = |segment: &&crate::buffer::segment::Segment| {
                segment.summary.last_id > after && (segment.local || !local_only)
            };
            passes_cold = local_only && memory.segments.iter().any(|segment| !segment.local);
            match memory.segments.iter().find(holds) {
                Some(segment) => (segment.clone(), segment.name()),
                None => {
                    // Trimmed up to the hot tier: only lost ranges and memory are left.
                    let floor = memory.hot_floor;
                    let between =
                        |lost: &&Lost| !lost.silent && lost.id > after && lost.id <= floor;
                    let gaps: Vec<Item> = state
                        .ledger
                        .lost_in(self.lane)
                        .filter(between)
                        .map(gap_item)
                        .collect();
                    let gaps = if gaps.is_empty() {
                        hot_items(&state, self.lane, floor).unwrap_or_default()
                    } else {
                        gaps
                    };
                    drop(state);
                    return Ok(self.take_items(gaps));
                }
            }
        };
        let summary = segment.summary;
        if !segment.local {
            let parts = shared.fetch(self.lane, segment.no())?;
            if self.expect.is_none() || after >= summary.first_id {
                self.expect = Some(summary.ord_start());
                self.prev = summary.header.prev;
            }
            self.source = Some(Source {
                walk: From::Cold(parts),
                summary,
            });
            return Ok(true);
        }
        let file = match shared.storage.open(&name) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return self.vanished(shared, &segment);
            }
            Err(source) => return Err(ReadError::Open { name, source }),
        };
        let mut offset = SEGMENT_HEADER as u64;
        let mut expect = summary.ord_start();
        let mut prev = summary.header.prev;
        if after >= summary.first_id {
            let index = match segment.sealed {
                true => read_index(file.as_ref(), segment.file_len).unwrap_or_default(),
                false => segment.index.clone(),
            };
            let before = index.partition_point(|entry| entry.first_id <= after);
            if let Some(entry) = before.checked_sub(1).and_then(|at| index.get(at)) {
                (offset, expect, prev) = (entry.offset, entry.ord, after);
            }
        }
        // Ordinals are continued from the segment before, so that a missing segment shows.
        if self.expect.is_none() || after >= summary.first_id || passes_cold {
            self.expect = Some(expect);
            self.prev = prev;
        }
        let walk = Walk::new(file, segment.seed(), offset, summary.data_end);
        self.source = Some(Source {
            walk: From::Disk(walk),
            summary,
        });
        Ok(true)
    }

    /// The file of a listed segment is gone: trimmed this very moment, or removed by hand.
    fn vanished(
        &mut self,
        shared: &Shared,
        segment: &crate::buffer::segment::Segment,
    ) -> Result<bool, ReadError> {
        let summary = segment.summary;
        let still_listed = {
            let mut state = shared.lock();
            let segments = &mut state.lane_mut(self.lane).segments;
            let before = segments.len();
            segments.retain(|other| other.no() != segment.no() || !other.sealed || !other.local);
            segments.len() < before
        };
        if !still_listed {
            return Ok(true);
        }
        tracing::error!(
            segment = segment.name(),
            "a journal segment was removed from outside"
        );
        let hole = Hole {
            ord_start: summary.ord_start(),
            ord_end: summary.ord_end,
            prev: summary.header.prev,
            last: summary.last_id,
            first_ms: summary.min_ms,
            last_ms: summary.max_ms,
        };
        self.weave(shared, &hole, summary.last_id + 1);
        self.expect = Some(summary.ord_end);
        self.prev = summary.last_id;
        if self.ready.is_empty() {
            self.after = self.after.max(summary.last_id);
        }
        Ok(true)
    }
}

/// Records of `lane` in memory after `after`; `None` where some of them have left it.
fn hot_items(state: &State, lane: Lane, after: RecordId) -> Option<Vec<Item>> {
    let hot = state.lane(lane).hot_after(after)?;
    let item = |hot: &crate::buffer::shared::HotRecord| Item {
        record: Arc::clone(&hot.record),
        ord_end: hot.ord + 1,
        hot: true,
    };
    Some(hot.take(HOT_BATCH).map(item).collect())
}

fn gap_item(lost: &Lost) -> Item {
    Item {
        record: Arc::new(gap_record(lost)),
        ord_end: lost.ord_end,
        hot: false,
    }
}
