//! The journal as the bridge uses it: read what is next, say how far it is delivered.

use std::sync::{Arc, PoisonError};

use crate::buffer::ack::place;
use crate::buffer::journal::Journal;
use crate::buffer::read::ReadError;
use crate::buffer::record::{Lane, Record, RecordId};
use crate::buffer::shared::State;

impl Journal {
    /// Records of `lane` after `after`, in order, at most `max_records` and about `max_bytes` of bodies, but
    /// at least one where there is one. Memory first, else the disk. `gap` records stand where records are
    /// lost. Records that are not durable yet are included: a bridge uses
    /// [`read_durable`](Self::read_durable).
    ///
    /// # Errors
    /// A segment can't be opened.
    pub fn read(
        &self,
        lane: Lane,
        after: RecordId,
        max_records: usize,
        max_bytes: usize,
    ) -> Result<Vec<Arc<Record>>, ReadError> {
        self.read_until(lane, after, RecordId::MAX, max_records, max_bytes)
    }

    /// The same, durable records only: what leaves the box must not be forgotten by it.
    ///
    /// # Errors
    /// A segment can't be opened.
    pub fn read_durable(
        &self,
        lane: Lane,
        after: RecordId,
        max_records: usize,
        max_bytes: usize,
    ) -> Result<Vec<Arc<Record>>, ReadError> {
        let until = self.durable_in(lane);
        self.read_until(lane, after, until, max_records, max_bytes)
    }

    /// Every record of `lane` up to this id is on the disk; alarms do not wait for data here.
    #[must_use]
    pub fn durable_in(&self, lane: Lane) -> RecordId {
        self.shared.lock().lane(lane).synced
    }

    fn read_until(
        &self,
        lane: Lane,
        after: RecordId,
        until: RecordId,
        max_records: usize,
        max_bytes: usize,
    ) -> Result<Vec<Arc<Record>>, ReadError> {
        let fits = |record: &Record, bytes: usize| {
            record.id <= until && (bytes == 0 || bytes + record.data.body.len() <= max_bytes)
        };
        let mut records = Vec::new();
        let mut bytes = 0;
        {
            let mut state = self.shared.lock();
            let in_memory = state.lane(lane).hot_after(after).map(|hot| {
                for hot in hot.take(max_records) {
                    if !fits(&hot.record, bytes) {
                        break;
                    }
                    bytes += hot.record.data.body.len().max(1);
                    records.push(Arc::clone(&hot.record));
                }
            });
            if in_memory.is_some() {
                handed_out(&mut state, lane, &records, &[], records.len());
                return Ok(records);
            }
        }
        let scan = self.shared.scan(lane).lock();
        let mut scan = scan.unwrap_or_else(PoisonError::into_inner);
        scan.seek(&self.shared, after);
        let mut ords = Vec::new();
        let mut hot = 0;
        while records.len() < max_records {
            let Some(item) = scan.peek(&self.shared)? else {
                break;
            };
            if !fits(&item.record, bytes) {
                break;
            }
            let Some(item) = scan.next(&self.shared)? else {
                break;
            };
            bytes += item.record.data.body.len().max(1);
            hot += usize::from(item.hot);
            ords.push(item.ord_end);
            records.push(item.record);
        }
        let cold = scan.take_cold().min((records.len() - hot) as u64);
        let mut state = self.shared.lock();
        handed_out(&mut state, lane, &records, &ords, hot);
        state.figures.served_cold += cold;
        state.figures.served_warm -= cold;
        Ok(records)
    }

    /// Everything of `lane` up to `up_to` is in the stream: the cursor moves there, and what it passes counts
    /// as published. Older acks are ignored.
    pub fn ack(&self, lane: Lane, up_to: RecordId) {
        self.ack_split(lane, up_to, 0);
    }

    /// [`ack`](Self::ack), where `filtered` of the records passed were left out on purpose.
    pub fn ack_split(&self, lane: Lane, up_to: RecordId, filtered: u64) {
        let Some((id, ord)) = place(&self.shared, lane, up_to) else {
            return;
        };
        let mut state = self.shared.lock();
        let before = state.ledger.lane(lane).cursor;
        if id <= before {
            return;
        }
        state.ledger.settle(lane, id, ord, filtered);
        state.ledger_dirty = true;
        state.stamp_acked(lane);
        let memory = state.lane_mut(lane);
        let done = memory.handed.partition_point(|(handed, _)| *handed <= id);
        memory.handed.drain(..done);
    }
}

/// Notes what a reader was given.
fn handed_out(state: &mut State, lane: Lane, records: &[Arc<Record>], ords: &[u64], hot: usize) {
    let Some(last) = records.last() else { return };
    state.figures.served_hot += hot as u64;
    state.figures.served_warm += (records.len() - hot) as u64;
    let memory = state.lane_mut(lane);
    memory.read_high = memory.read_high.max(last.id);
    for (record, ord) in records.iter().zip(ords) {
        memory.hand(record.id, *ord);
    }
}
