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
}

impl std::fmt::Debug for Replay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replay").finish_non_exhaustive()
    }
}

impl Replay {
    pub(crate) fn new(shared: Arc<Shared>, after: RecordId) -> Self {
        let [data, alarms] = LANES.map(|lane| LaneScan::local(lane, after));
        Self {
            shared,
            data,
            alarms,
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

/// Records of one lane in order, for a reader that holds nothing back: what it has not read may leave the disk, and a
/// `gap` record then stands in its place. Ends at the newest record; calling `next` again later gives what was appended
/// since.
pub struct Follow {
    shared: Arc<Shared>,
    scan: LaneScan,
}

impl std::fmt::Debug for Follow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follow").finish_non_exhaustive()
    }
}

impl Follow {
    pub(crate) fn new(shared: Arc<Shared>, lane: Lane, after: RecordId) -> Self {
        Self {
            shared,
            scan: LaneScan::new(lane, after),
        }
    }
}

impl Iterator for Follow {
    type Item = Result<Arc<Record>, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.scan.next(&self.shared) {
            Ok(item) => item.map(|item| Ok(item.record)),
            Err(error) => Some(Err(error)),
        }
    }
}
