//! Both lanes as one story.

use std::sync::Arc;

use crate::buffer::read::{LaneScan, ReadError};
use crate::buffer::record::{LANES, Lane, Record, RecordId};
use crate::buffer::shared::Shared;

/// Records of both lanes in the order of ids. Ends at the newest record; calling `next` again later gives
/// what was appended since.
pub struct Replay {
    shared: Arc<Shared>,
    data: LaneScan,
    alarms: LaneScan,
    until: RecordId,
}

impl std::fmt::Debug for Replay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replay").finish_non_exhaustive()
    }
}

impl Replay {
    pub(crate) fn new(shared: Arc<Shared>, after: RecordId) -> Self {
        let [data, alarms] = LANES.map(|lane| LaneScan::new(lane, after));
        Self {
            shared,
            data,
            alarms,
            until: RecordId::MAX,
        }
    }

    /// Skips the segments that lie outside a range of arrival times.
    pub(crate) fn within(shared: Arc<Shared>, from_ms: u64, to_ms: u64) -> Self {
        let state = shared.lock();
        let mut until = 0;
        let start = |lane: Lane| {
            let segments = state.lane(lane).segments.iter();
            let outside = |segment: &&crate::buffer::segment::Segment| {
                segment.sealed && segment.summary.max_ms < from_ms
            };
            segments
                .take_while(outside)
                .last()
                .map_or(0, |segment| segment.summary.last_id)
        };
        let [data, alarms] = LANES.map(|lane| LaneScan::new(lane, start(lane)));
        for lane in LANES {
            let memory = state.lane(lane);
            // Records in memory may be of any time; a segment that starts after the range ends the search,
            // unless a later one goes back (the wall clock stepped).
            let newest = state.ledger.lane(lane).last_id;
            let last = memory
                .segments
                .iter()
                .rfind(|segment| !segment.sealed || segment.summary.min_ms < to_ms);
            let in_memory = memory
                .hot
                .iter()
                .any(|hot| hot.record.data.received_ms < to_ms);
            let end = last.map_or(0, |segment| segment.summary.last_id);
            until = until.max(if in_memory { newest } else { end });
        }
        drop(state);
        Self {
            shared,
            data,
            alarms,
            until,
        }
    }
}

impl Iterator for Replay {
    type Item = Result<Arc<Record>, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let data = match self.data.peek(&self.shared) {
            Ok(item) => item.map_or(RecordId::MAX, |item| item.record.id),
            Err(error) => return Some(Err(error)),
        };
        let alarm = match self.alarms.peek(&self.shared) {
            Ok(item) => item.map_or(RecordId::MAX, |item| item.record.id),
            Err(error) => return Some(Err(error)),
        };
        if data.min(alarm) > self.until {
            return None;
        }
        let scan = if data <= alarm {
            &mut self.data
        } else {
            &mut self.alarms
        };
        match scan.next(&self.shared) {
            Ok(item) => item.map(|item| Ok(item.record)),
            Err(error) => Some(Err(error)),
        }
    }
}
