//! Where an acknowledgement lands: from a record id to how many records of the lane lie before it.

use crate::buffer::read::LaneScan;
use crate::buffer::record::{Lane, RecordId};
use crate::buffer::shared::{Shared, State};

/// Where an ack of `up_to` moves the cursor, and the ordinal after that place. Reads from disk when a
/// bridge resumes at a place that this process has not handed out.
pub(crate) fn place(shared: &Shared, lane: Lane, up_to: RecordId) -> Option<(RecordId, u64)> {
    let (before, target) = {
        let state = shared.lock();
        match place_in_memory(&state, lane, up_to) {
            Place::Known(id, ord) => return Some((id, ord)),
            Place::Nowhere => return None,
            Place::OnDisk {
                segment_prev,
                ord_start,
            } => ((segment_prev, ord_start), up_to),
        }
    };
    let mut scan = LaneScan::new(lane, before.0);
    let mut ord = before.1;
    loop {
        match scan.next(shared) {
            Ok(Some(item)) if item.record.id <= target => ord = item.ord_end,
            Ok(_) => return Some((up_to, ord)),
            Err(error) => {
                tracing::error!(%error, lane = ?lane, "an acknowledgement cannot be placed");
                return None;
            }
        }
    }
}

/// Where an id lies.
enum Place {
    /// The cursor moves to this id, whose ordinal end is known.
    Known(RecordId, u64),
    /// Inside this segment.
    OnDisk {
        segment_prev: RecordId,
        ord_start: u64,
    },
    /// Nothing that could be acknowledged.
    Nowhere,
}

fn place_in_memory(state: &State, lane: Lane, up_to: RecordId) -> Place {
    let account = state.ledger.lane(lane);
    if up_to <= account.cursor {
        return Place::Nowhere;
    }
    if up_to >= account.last_id {
        return Place::Known(account.last_id, account.ord_end());
    }
    // Lost meanwhile: the `gap` record that took the place is still to be sent.
    for lost in state.ledger.lost_in(lane) {
        if lost.id == up_to {
            return Place::Known(lost.id, lost.ord_end);
        }
        if lost.prev < up_to && up_to < lost.id {
            return Place::Known(lost.prev, lost.ord_start);
        }
    }
    let memory = state.lane(lane);
    if up_to >= memory.hot_floor {
        let after = memory.hot.partition_point(|hot| hot.record.id <= up_to);
        let ord = memory
            .hot
            .get(after)
            .map_or(account.ord_end(), |next| next.ord);
        return Place::Known(up_to, ord);
    }
    if let Ok(at) = memory.handed.binary_search_by_key(&up_to, |(id, _)| *id)
        && let Some((id, ord)) = memory.handed.get(at)
    {
        return Place::Known(*id, *ord);
    }
    match memory
        .segments
        .iter()
        .find(|segment| segment.summary.last_id >= up_to)
    {
        Some(segment) if segment.summary.last_id == up_to => {
            Place::Known(up_to, segment.summary.ord_end)
        }
        // What lies in the cold tier is not fetched for this: the cursor waits before it.
        Some(segment) if !segment.local => {
            let (id, ord) = (segment.summary.header.prev, segment.summary.ord_start());
            if id > account.cursor {
                Place::Known(id, ord)
            } else {
                Place::Nowhere
            }
        }
        Some(segment) => Place::OnDisk {
            segment_prev: segment.summary.header.prev,
            ord_start: segment.summary.ord_start(),
        },
        None => Place::Nowhere,
    }
}
