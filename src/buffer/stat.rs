//! Figures for status, metrics and the `buffer stat` tool.

use std::time::Duration;

use serde::Serialize;

use crate::buffer::Config;
use crate::buffer::cold;
use crate::buffer::record::{LANES, Lane};
use crate::buffer::shared::State;

/// An fsync that takes longer than this makes the disk slow.
const SLOW: Duration = Duration::from_secs(1);

/// How the disk does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskState {
    /// It takes what is written.
    Ok,
    /// An fsync takes, or took, more than a second.
    Slow,
    /// No room for at least one lane. Heals by itself.
    Full,
    /// A write or fsync failed; the journal has stopped for good.
    Stopped,
}

/// What waits in a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LaneState {
    /// Records that wait, `gap` records included.
    pub pending: u64,
    /// About how many bytes they take on the disk.
    pub pending_bytes: u64,
    /// Arrival of the oldest of them, ms UTC; for records on disk that of the oldest in its segment.
    pub oldest_pending_ms: Option<u64>,
    /// Last settled record.
    pub cursor: u64,
    /// Newest record.
    pub last_id: u64,
}

impl LaneState {
    pub(crate) fn of(state: &State, lane: Lane) -> Self {
        let account = state.ledger.lane(lane);
        let memory = state.lane(lane);
        let pending = state.ledger.pending(lane);
        let mut pending_bytes = 0;
        for segment in memory.segments.iter().rev() {
            let summary = &segment.summary;
            if summary.last_id <= account.cursor {
                break;
            }
            let all = summary.ord_end.saturating_sub(summary.ord_start()).max(1);
            let open = summary
                .ord_end
                .saturating_sub(account.settled.max(summary.ord_start()));
            pending_bytes += u128::from(summary.data_end) * u128::from(open) / u128::from(all);
        }
        let unwritten = memory.queue.iter().skip(memory.written);
        pending_bytes += u128::from(
            unwritten
                .map(|hot| hot.record.data.body.len() as u64)
                .sum::<u64>(),
        );
        let in_memory = memory
            .hot_after(account.cursor)
            .and_then(|mut hot| hot.next());
        let oldest = in_memory
            .map(|hot| hot.record.data.received_ms)
            .or_else(|| {
                let mut segments = memory.segments.iter();
                segments
                    .find(|segment| segment.summary.last_id > account.cursor)
                    .map(|segment| segment.summary.min_ms)
            });
        let lost = state
            .ledger
            .lost_in(lane)
            .find(|lost| lost.id > account.cursor)
            .map(|lost| lost.first_ms);
        Self {
            pending,
            pending_bytes: u64::try_from(pending_bytes).unwrap_or(u64::MAX),
            oldest_pending_ms: oldest.into_iter().chain(lost).min().filter(|_| pending > 0),
            cursor: account.cursor,
            last_id: account.last_id,
        }
    }
}

/// Figures of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stat {
    /// Weight of the records in memory, bytes.
    pub hot_bytes: u64,
    /// Records in memory.
    pub hot_records: u64,
    /// Bytes that the segment files take, the unused rest of the last ones included.
    pub warm_bytes: u64,
    /// The quota for those.
    pub warm_max_bytes: u64,
    /// Segment files.
    pub segments: u64,
    /// Oldest arrival kept, ms UTC.
    pub oldest_ms: Option<u64>,
    /// Bytes of bodies appended since the start.
    pub bytes_in: u64,
    /// Bytes written since the start: frames, headers, trailers, the ledger.
    pub bytes_written: u64,
    /// Successful fsyncs since the start.
    pub fsyncs: u64,
    /// How long the newest took, µs.
    pub last_fsync_us: u64,
    /// How long the one under way has taken, ms.
    pub fsync_in_flight_ms: Option<u64>,
    /// Weight of the records that are not durable yet, bytes.
    pub unsynced_bytes: u64,
    /// How the disk does.
    pub disk_state: DiskState,
    /// Why it has stopped.
    pub stopped: Option<String>,
    /// Records that readers got from memory.
    pub served_hot: u64,
    /// Records that readers got from disk.
    pub served_warm: u64,
    /// Segments that went within the grace after their acknowledgement, because space ran out.
    pub grace_cut: u64,
    /// Segments that went although a state snapshot needed them, because space ran out.
    pub snapshot_overrun: u64,
    /// Lost ranges whose `gap` records are still to be delivered.
    pub gaps_pending: u64,
    /// Records that readers got from the cold tier.
    pub served_cold: u64,
    /// The cold tier; `None` where there is none.
    pub cold: Option<cold::Status>,
}

impl Stat {
    pub(crate) fn of(state: &State, config: &Config) -> Self {
        let figures = state.figures;
        let in_flight = state.syncing_since.map(|since| since.elapsed());
        let slow = figures.last_fsync_us > u64::try_from(SLOW.as_micros()).unwrap_or(u64::MAX)
            || in_flight.is_some_and(|took| took > SLOW);
        let full = LANES.iter().any(|lane| state.lane(*lane).full);
        let segments = || {
            LANES
                .into_iter()
                .flat_map(|lane| state.lane(lane).segments.iter())
                .filter(|segment| segment.local)
        };
        Self {
            hot_bytes: state.hot_bytes,
            hot_records: LANES
                .iter()
                .map(|lane| state.lane(*lane).hot.len() as u64)
                .sum(),
            warm_bytes: state.segment_bytes(),
            warm_max_bytes: config.warm_max_bytes,
            segments: segments().count() as u64,
            oldest_ms: segments()
                .map(|segment| segment.summary.min_ms)
                .min()
                .filter(|ms| *ms != u64::MAX),
            bytes_in: figures.bytes_in,
            bytes_written: figures.bytes_written,
            fsyncs: figures.fsyncs,
            last_fsync_us: figures.last_fsync_us,
            fsync_in_flight_ms: in_flight
                .map(|took| u64::try_from(took.as_millis()).unwrap_or(u64::MAX)),
            unsynced_bytes: state.queue_bytes,
            disk_state: match (&state.stopped, full, slow) {
                (Some(_), ..) => DiskState::Stopped,
                (None, true, _) => DiskState::Full,
                (None, false, true) => DiskState::Slow,
                (None, false, false) => DiskState::Ok,
            },
            stopped: state.stopped.clone(),
            served_hot: figures.served_hot,
            served_warm: figures.served_warm,
            grace_cut: figures.grace_cut,
            snapshot_overrun: figures.snapshot_overrun,
            gaps_pending: state.ledger.lost.len() as u64,
            served_cold: figures.served_cold,
            cold: None,
        }
    }
}

impl Stat {
    /// Whether the journal takes data as it should.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.disk_state == DiskState::Ok
    }
}
