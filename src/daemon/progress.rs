//! What feeds the service manager's watchdog: progress, not a timer.
//!
//! The pipeline's loop must go round, the journal must take what it was given, the state store must answer. Disks may
//! be slow: whatever hangs in the kernel's hands gets [`PATIENCE`] before it counts as stuck.

use std::time::{Duration, Instant};

/// A write, sync or commit in flight counts as progress for this long.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// A look at the running parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Seen {
    /// Rounds of the pipeline's loop.
    pub(super) beats: u64,
    /// Whether the broker answered.
    pub(super) broker: bool,
    /// Newest record on disk.
    pub(super) durable: u64,
    /// Bytes that the journal has taken and not yet synced.
    pub(super) unsynced: u64,
    /// How long an fsync of the journal has been in flight.
    pub(super) fsync: Option<Duration>,
    /// How long a commit of the state store has been in flight.
    pub(super) commit: Option<Duration>,
}

/// Which part stands still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stuck {
    /// The pipeline's thread.
    Pipeline,
    /// The broker's core.
    Broker,
    /// An fsync of the journal.
    Fsync,
    /// The journal's writer: bytes wait, nothing becomes durable, and no fsync is to blame.
    Writer,
    /// The state store.
    Store,
}

impl Stuck {
    /// For the log.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Pipeline => "the pipeline's thread",
            Self::Broker => "the broker",
            Self::Fsync => "an fsync of the journal",
            Self::Writer => "the journal's writer",
            Self::Store => "the state store",
        }
    }
}

/// Compares one look with the last.
#[derive(Debug)]
pub(super) struct Progress {
    patience: Duration,
    beats: Option<u64>,
    durable: u64,
    /// When something last became durable, or nothing waited.
    moved: Instant,
}

impl Progress {
    /// Begins at `now`.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            patience: crate::stall::patience(PATIENCE),
            beats: None,
            durable: 0,
            moved: now,
        }
    }

    /// Whether everything moved since the last look.
    ///
    /// # Errors
    /// The part that did not; the watchdog is not to be fed then.
    pub(super) fn look(&mut self, now: Instant, seen: Seen) -> Result<(), Stuck> {
        if seen.durable != self.durable || seen.unsynced == 0 {
            (self.durable, self.moved) = (seen.durable, now);
        }
        if self.beats.replace(seen.beats) == Some(seen.beats) {
            return Err(Stuck::Pipeline);
        }
        if !seen.broker {
            return Err(Stuck::Broker);
        }
        let late = |since: Option<Duration>| since.is_some_and(|since| since > self.patience);
        if late(seen.fsync) {
            Err(Stuck::Fsync)
        } else if late(seen.commit) {
            Err(Stuck::Store)
        } else if now.saturating_duration_since(self.moved) > self.patience {
            Err(Stuck::Writer)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(looks: &[(u64, Seen)], expected: Result<(), Stuck>) {
        let start = Instant::now();
        let mut progress = Progress::new(start);
        let mut last = Ok(());
        for (at, seen) in looks {
            last = progress.look(start + Duration::from_secs(*at), *seen);
        }
        assert_eq!(last, expected, "{looks:?}");
    }

    #[test]
    fn only_what_stands_still_stops_the_feeding() {
        let secs = |s| Some(Duration::from_secs(s));
        let seen = |beats| Seen {
            beats,
            broker: true,
            ..Seen::default()
        };
        check(&[(0, seen(1)), (10, seen(2))], Ok(()));
        check(&[(0, seen(1)), (10, seen(1))], Err(Stuck::Pipeline));
        let mute = Seen {
            broker: false,
            ..seen(1)
        };
        check(&[(0, mute)], Err(Stuck::Broker));
        // An fsync of 30 s is a slow disk, and only degrades.
        for (fsync, expected) in [(30, Ok(())), (120, Ok(())), (121, Err(Stuck::Fsync))] {
            let seen = Seen {
                fsync: secs(fsync),
                unsynced: 9,
                ..seen(1)
            };
            check(&[(0, seen)], expected);
        }
        // A deadlocked store.
        let stuck = Seen {
            commit: secs(121),
            ..seen(1)
        };
        check(&[(0, stuck)], Err(Stuck::Store));
        // A writer that takes bytes and syncs nothing.
        let waiting = |beats, durable| Seen {
            unsynced: 9,
            durable,
            ..seen(beats)
        };
        check(&[(0, waiting(1, 5)), (100, waiting(2, 5))], Ok(()));
        check(
            &[(0, waiting(1, 5)), (121, waiting(2, 5))],
            Err(Stuck::Writer),
        );
        check(&[(0, waiting(1, 5)), (121, waiting(2, 6))], Ok(()));
    }
}
