//! What the engine hands to its caller.

use super::path::Path;

/// Something that happened to a partial match. The view is valid during the call only.
#[derive(Clone, Copy, Debug)]
pub enum Output<'a, E> {
    /// A match is complete.
    Match {
        /// Its events.
        taken: Path<'a, E>,
        /// Time of the event or of the advance of time that completed or released it, ms.
        ts: i64,
    },
    /// A partial match ran out of time.
    TimedOut {
        /// The events it had taken.
        taken: Path<'a, E>,
        /// When its time was over, ms: first event plus window, or last event plus gap.
        ts: i64,
    },
    /// A partial match was given up because of a limit.
    Evicted {
        /// The events it had taken.
        taken: Path<'a, E>,
        /// Time of its first event, ms.
        started: i64,
    },
    /// A strict skip strategy could not skip. The match follows as [`Output::Match`]; nothing was
    /// skipped.
    SkipMissed {
        /// The events of the match.
        taken: Path<'a, E>,
        /// Why.
        miss: SkipMiss,
    },
}

/// Why a strict skip strategy could not skip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipMiss {
    /// The stage to skip to took no event.
    StageAbsent,
    /// The stage to skip to holds the first event of the match, so it would be found again for ever.
    FirstEvent,
}

/// Limits of one key, each counting finished matches that are held back too.
///
/// When an event takes a key over a limit, the partial matches with the earliest start go, all with
/// that start at once, until the key is within its limits again. Each is put out as
/// [`Output::Evicted`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most partial matches.
    pub partials: usize,
    /// Most bytes, by [`cost`](Self::cost).
    pub bytes: usize,
    /// What one held event is reckoned at beyond its node, bytes.
    pub event_bytes: usize,
}

impl Limits {
    /// No limit.
    pub const NONE: Self = Self {
        partials: usize::MAX,
        bytes: usize::MAX,
        event_bytes: 0,
    };

    /// What a number of partial matches and held events is reckoned at, bytes.
    pub fn cost<E>(&self, partials: usize, events: usize) -> usize {
        let node = size_of::<super::arena::Slot<E>>().saturating_add(self.event_bytes);
        partials
            .saturating_mul(size_of::<super::state::Partial>())
            .saturating_add(events.saturating_mul(node))
    }
}
