//! What the cold tier asks of the journal and tells it.

use std::io;
use std::sync::{Arc, PoisonError};

use super::config::Archive;
use super::index::Entry;
use super::{Fetch, Status};
use crate::buffer::Journal;
use crate::buffer::record::LANES;
use crate::buffer::segment::Segment;
use crate::buffer::storage::Storage;

impl Journal {
    /// From now on segments are archived and fetched.
    pub(crate) fn attach_cold(&self, archive: Archive, fetch: Arc<dyn Fetch>) {
        let mut slot = self
            .shared
            .fetch
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *slot = Some(fetch);
        self.shared.lock().archive = Some(archive);
    }

    pub(crate) fn storage(&self) -> Arc<dyn Storage> {
        Arc::clone(&self.shared.storage)
    }

    pub(crate) fn is_closing(&self) -> bool {
        let state = self.shared.lock();
        state.closing || state.stopped.is_some()
    }

    /// Nothing is known of the store yet.
    pub(crate) fn cold_index_is_new(&self) -> bool {
        self.shared.cold().len() == 0
    }

    pub(crate) fn set_cold_error(&self, error: Option<String>) {
        self.shared.lock().cold_error = error;
    }

    /// The next segment to archive, oldest first.
    pub(crate) fn to_archive(&self, archive: Archive) -> Option<Segment> {
        let config = &self.shared.config;
        let state = self.shared.lock();
        // Early enough that the upload of a few segments fits in before the quota is reached.
        let pressed = state.segment_bytes() >= config.warm_max_bytes / 4 * 3
            || LANES.iter().any(|lane| state.lane(*lane).full);
        if archive == Archive::Overflow && !pressed {
            return None;
        }
        let waiting = |segment: &&Segment| {
            segment.sealed && segment.local && !segment.archived && segment.summary.first_id > 0
        };
        LANES
            .into_iter()
            .filter_map(|lane| {
                let cursor = state.ledger.lane(lane).cursor;
                state.lane(lane).segments.iter().find(|segment| {
                    waiting(segment)
                        && (archive == Archive::All || segment.summary.last_id > cursor)
                })
            })
            .min_by_key(|segment| segment.summary.last_id)
            .cloned()
    }

    /// A segment is stored and verified: noted durably, and its file may go.
    pub(crate) fn archived(&self, entry: Entry) -> io::Result<()> {
        let lane = entry.lane();
        let (no, last_id) = (entry.segment, entry.last_id);
        let held = {
            let mut index = self.shared.cold();
            index.add(self.shared.storage.as_ref(), entry)?;
            index.held()
        };
        let mut state = self.shared.lock();
        state.cold_held = held;
        if let Some(lane) = lane {
            for segment in &mut state.lane_mut(lane).segments {
                if segment.no() == no && segment.summary.last_id == last_id {
                    segment.archived = true;
                }
            }
        }
        Ok(())
    }

    /// The oldest object that is too old or too much. What is undelivered stays.
    pub(crate) fn cold_surplus(
        &self,
        retention_ms: Option<u64>,
        most: Option<u64>,
    ) -> Option<Arc<Entry>> {
        let index = self.shared.cold();
        let state = self.shared.lock();
        let oldest = LANES
            .into_iter()
            .filter_map(|lane| {
                let entry = index.of(lane).next()?;
                (entry.last_id <= state.ledger.lane(lane).cursor).then_some(entry)
            })
            .min_by_key(|entry| entry.max_ms)?;
        let much = most.is_some_and(|most| index.bytes() > most);
        let old = retention_ms.is_some_and(|retention| {
            state.clock_trusted && oldest.engine_ms.saturating_add(retention) < state.now_ms
        });
        (much || old).then(|| Arc::clone(oldest))
    }

    /// An object was removed from the store.
    pub(crate) fn forget_cold(&self, object: &str) -> io::Result<()> {
        let held = {
            let mut index = self.shared.cold();
            index.remove(self.shared.storage.as_ref(), object)?;
            index.held()
        };
        self.shared.lock().cold_held = held;
        Ok(())
    }

    /// Undelivered records that lie in the cold tier alone, and the segments that hold them.
    #[must_use]
    pub fn parked(&self) -> (u64, u64) {
        let state = self.shared.lock();
        let parked = LANES
            .into_iter()
            .flat_map(|lane| state.lane(lane).segments.iter())
            .filter(|segment| !segment.local);
        parked.fold((0, 0), |(records, segments), segment| {
            let inside = segment.summary.received + segment.summary.derived;
            (records + inside, segments + 1)
        })
    }

    /// How the cold tier does; `None` where there is none.
    pub(crate) fn cold_status(&self) -> Option<Status> {
        let (_, parked) = self.parked();
        let state = self.shared.lock();
        let archive = state.archive?;
        let (objects, bytes) = state.cold_held;
        let waiting = LANES
            .into_iter()
            .flat_map(|lane| state.lane(lane).segments.iter())
            .filter(|segment| segment.sealed && segment.local && !segment.archived)
            .count() as u64;
        Some(Status {
            objects,
            bytes,
            waiting: if archive == Archive::All { waiting } else { 0 },
            parked,
            missed_records: state.figures.cold_missed,
            error: state.cold_error.clone(),
        })
    }
}
