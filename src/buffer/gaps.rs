//! Lost ranges: how they are booked, and the records that tell them.

use bytes::Bytes;

use crate::buffer::ledger::{Lost, MOST_LOST};
use crate::buffer::record::{Class, Key, Lane, NewRecord, Origin, Record};
use crate::buffer::segment::Hole;
use crate::buffer::shared::State;

/// The record that stands in the place of a lost range.
pub(crate) fn gap_record(lost: &Lost) -> Record {
    Record {
        id: lost.id,
        prev: lost.prev,
        data: gap_body(lost),
    }
}

/// The same before it has an id.
fn gap_body(lost: &Lost) -> NewRecord {
    let body = serde_json::json!({
        "from": lost.from,
        "to": lost.id,
        "count": lost.count,
        "first_ms": lost.first_ms,
        "last_ms": lost.last_ms,
        "cause": lost.cause,
    });
    NewRecord::new(
        Class::Gap,
        Origin::Derived,
        lost.engine_ms,
        lost.last_ms,
        Key::gateway(),
        Bytes::from(body.to_string()),
    )
}

/// Books the part of `hole` that no known lost range explains and that was still pending.
pub(crate) fn book_hole(state: &mut State, lane: Lane, hole: &Hole, cause: &str) -> Option<Lost> {
    let settled = state.ledger.lane(lane).settled;
    let mut start = hole.ord_start.max(settled);
    let mut known = true;
    while known && start < hole.ord_end {
        let cover = state
            .ledger
            .lost_in(lane)
            .find(|lost| lost.ord_start <= start && start < lost.ord_end);
        known = cover.is_some();
        if let Some(cover) = cover {
            start = cover.ord_end;
        }
    }
    if start >= hole.ord_end {
        return None;
    }
    if state.ledger.lost.len() >= MOST_LOST {
        tracing::error!(
            from = hole.prev,
            to = hole.last,
            "too many lost ranges to book one more"
        );
        return None;
    }
    let cursor = state.ledger.lane(lane).cursor;
    let lost = Lost {
        lane: lane as u8,
        prev: hole.prev.max(cursor.min(hole.last)),
        from: hole.prev.max(cursor.min(hole.last)).saturating_add(1),
        id: hole.last,
        count: hole.ord_end - start,
        ord_start: start,
        ord_end: hole.ord_end,
        first_ms: hole.first_ms.min(hole.last_ms),
        last_ms: hole.last_ms,
        engine_ms: state.now_ms,
        cause: cause.to_owned(),
        dropped: false,
        silent: lane == Lane::Alarms,
    };
    tracing::error!(
        from = lost.from,
        to = lost.id,
        count = lost.count,
        cause,
        "journal records lost"
    );
    if lost.silent {
        announce(state, &lost);
    }
    let read_high = state.lane(lane).read_high;
    state.ledger_dirty = true;
    Some(state.ledger.lose(lost, read_high))
}

/// A lost alarm is told in the data lane, where class `gap` belongs, at the place where it was noticed.
pub(crate) fn announce(state: &mut State, lost: &Lost) {
    let mut record = gap_body(lost);
    record.engine_ms = state.now_ms;
    state.admit(record);
}
