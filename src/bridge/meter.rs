//! Rates and figures of one lane.

use std::time::Duration;

use tokio::time::Instant;

use super::drain::Drain;
use super::source::Backlog;
use super::status::{LaneStatus, UplinkState};

/// Rates are smoothed over about this time.
const SMOOTH: Duration = Duration::from_secs(10);

/// Figures of one lane over time.
#[derive(Debug)]
pub(super) struct Meter {
    pub(super) connects: u64,
    done: u64,
    measured_at: Instant,
    measured_done: u64,
    measured_pending: u64,
    rate: f64,
    growth: f64,
    state: UplinkState,
    since_ms: u64,
}

impl Meter {
    pub(super) fn new() -> Self {
        Self {
            connects: 0,
            done: 0,
            measured_at: Instant::now(),
            measured_done: 0,
            measured_pending: 0,
            rate: 0.0,
            growth: 0.0,
            state: UplinkState::default(),
            since_ms: crate::clock::wall_ms(),
        }
    }

    /// Records done.
    pub(super) fn count(&mut self, records: u64) {
        self.done += records;
    }

    #[allow(clippy::cast_precision_loss)] // counts of a few seconds
    fn measure(&mut self, pending: u64) {
        let elapsed = self.measured_at.elapsed();
        if elapsed < Duration::from_millis(100) {
            return;
        }
        let seconds = elapsed.as_secs_f64();
        let weight = 1.0 - (-seconds / SMOOTH.as_secs_f64()).exp();
        let rate = (self.done - self.measured_done) as f64 / seconds;
        let growth = (pending as f64 - self.measured_pending as f64) / seconds;
        self.rate += weight * (rate - self.rate);
        self.growth += weight * (growth - self.growth);
        self.measured_at = Instant::now();
        self.measured_done = self.done;
        self.measured_pending = pending;
    }

    #[allow(clippy::cast_precision_loss)] // an estimate
    pub(super) fn status(&mut self, drain: &Drain, backlog: Backlog) -> LaneStatus {
        self.measure(backlog.records);
        let (state, detail) = drain.state();
        if state != self.state {
            self.state = state;
            self.since_ms = crate::clock::wall_ms();
        }
        let (in_flight, window) = drain.in_flight();
        let counters = drain.counters();
        let drain_eta_s = if backlog.records == 0 {
            Some(0.0)
        } else {
            (self.growth < -0.01).then(|| backlog.records as f64 / -self.growth)
        };
        LaneStatus {
            state,
            since_ms: self.since_ms,
            detail: detail.to_owned(),
            pending: backlog.records,
            pending_bytes: backlog.bytes,
            oldest_ms: backlog.oldest_ms,
            in_flight,
            window,
            rate: self.rate,
            drain_eta_s,
            published: counters.published,
            filtered: counters.filtered,
            unsendable: counters.unsendable,
            duplicates: counters.duplicates,
            resyncs: counters.resyncs,
            connects: self.connects,
            acked: drain.acked(),
        }
    }
}
