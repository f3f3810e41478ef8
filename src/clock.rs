//! The two clocks of a gateway.
//!
//! *Engine time* drives every timer: a base that was persisted plus the monotonic clock since start. It never
//! steps and goes on over restarts. *Wall time* is data: it may step, and right after a boot without a network it
//! may be wrong by years. Until it is trusted, records are marked and nothing expires by age.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// No real wall time lies before this source was written: 2026-11-01, ms UTC.
const BUILT_AFTER_MS: u64 = 1_793_491_200_000;
/// A wall clock that moved this much more or less than the monotonic one has stepped, ms.
const STEP_MS: i128 = 5_000;
/// systemd-timesyncd touches this file once it has synchronised.
const SYNCHRONIZED: &str = "/run/systemd/timesync/synchronized";

/// One reading of both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Engine time in ms.
    pub engine_ms: u64,
    /// Wall time in ms UTC.
    pub wall_ms: u64,
    /// Whether the wall time may be believed.
    pub trusted: bool,
}

/// Reads both clocks.
#[derive(Debug)]
pub struct Clock {
    start: Instant,
    base_ms: u64,
    wall_at_start_ms: u64,
    floor_ms: u64,
    /// Elapsed ms at which the synchronisation is looked at again, and what it was: a file system call a message would
    /// be too much.
    look_again_ms: AtomicU64,
    synchronised: AtomicBool,
}

/// Time between two looks at the synchronisation, ms.
const LOOK_MS: u64 = 1_000;

impl Clock {
    /// Continues from the engine time of the last run. `last_wall_ms` is the highest trusted wall time that was
    /// persisted: a clock that shows less has gone backwards.
    #[must_use]
    pub fn continue_from(engine_ms: u64, last_wall_ms: u64) -> Self {
        Self {
            start: Instant::now(),
            base_ms: engine_ms,
            wall_at_start_ms: wall_ms(),
            floor_ms: last_wall_ms.max(BUILT_AFTER_MS),
            look_again_ms: AtomicU64::new(0),
            synchronised: AtomicBool::new(false),
        }
    }

    /// Both clocks now.
    #[must_use]
    pub fn now(&self) -> Now {
        let elapsed = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        let wall_ms = wall_ms();
        let drift = i128::from(wall_ms) - i128::from(self.wall_at_start_ms) - i128::from(elapsed);
        if elapsed >= self.look_again_ms.load(Ordering::Relaxed) {
            self.look_again_ms
                .store(elapsed.saturating_add(LOOK_MS), Ordering::Relaxed);
            self.synchronised
                .store(Path::new(SYNCHRONIZED).exists(), Ordering::Relaxed);
        }
        let synchronised = self.synchronised.load(Ordering::Relaxed);
        Now {
            engine_ms: self.base_ms.saturating_add(elapsed),
            wall_ms,
            trusted: synchronised || (wall_ms >= self.floor_ms && drift.abs() < STEP_MS),
        }
    }

    /// Engine time alone, in ms.
    #[must_use]
    pub fn engine_ms(&self) -> u64 {
        self.base_ms
            .saturating_add(u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// The instant at which the engine time is reached; `None` beyond what can be represented.
    #[must_use]
    pub fn instant_of(&self, engine_ms: u64) -> Option<Instant> {
        let ahead = engine_ms.saturating_sub(self.base_ms);
        self.start
            .checked_add(std::time::Duration::from_millis(ahead))
    }
}

/// Wall clock, ms UTC; 0 before 1970.
pub(crate) fn wall_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_time_goes_on_from_the_last_run() {
        let clock = Clock::continue_from(1_000_000, 0);
        let before = Instant::now();
        let now = clock.now();
        assert!(now.engine_ms >= 1_000_000);
        assert!(clock.instant_of(now.engine_ms + 10).unwrap() > before);
    }

    #[test]
    fn a_wall_clock_behind_the_last_run_is_not_trusted() {
        let clock = Clock::continue_from(0, u64::MAX);
        assert!(!clock.now().trusted || Path::new(SYNCHRONIZED).exists());
    }
}
