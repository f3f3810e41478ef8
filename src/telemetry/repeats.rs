//! Keeps one busy place in the program from flooding the log: beyond [`MOST`] lines in [`WINDOW`] its further lines are
//! left out and counted. Each place has its own count, so that a flood hides nothing else.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing_subscriber::layer::{Context, Filter};

/// Lines of one place in a window.
const MOST: u32 = 20;
/// Length of a window.
const WINDOW: Duration = Duration::from_secs(10);

static SUPPRESSED: AtomicU64 = AtomicU64::new(0);

/// Lines left out since the start.
#[must_use]
pub fn suppressed() -> u64 {
    SUPPRESSED.load(Ordering::Relaxed)
}

/// Bounded by the number of places in the program.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    places: Mutex<HashMap<Identifier, (Instant, u32)>>,
}

impl Repeats {
    fn passes(&self, place: Identifier, now: Instant) -> bool {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, count) = places.entry(place).or_insert((now, 0));
        if now.saturating_duration_since(*since) >= WINDOW {
            (*since, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
        *count <= MOST
    }
}

impl<S> Filter<S> for Repeats {
    fn enabled(&self, _: &tracing::Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &tracing::Event<'_>, _: &Context<'_, S>) -> bool {
        let passes = self.passes(event.metadata().callsite(), Instant::now());
        if !passes {
            SUPPRESSED.fetch_add(1, Ordering::Relaxed);
        }
        passes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Callsite;

    #[test]
    fn a_flood_is_cut_and_begins_anew_with_the_next_window() {
        struct Place(u8);
        impl Callsite for Place {
            fn set_interest(&self, _: tracing::subscriber::Interest) {}
            fn metadata(&self) -> &tracing::Metadata<'_> {
                unreachable!("never asked for (place {})", self.0)
            }
        }
        static ONE: Place = Place(1);
        static TWO: Place = Place(2);
        let (one, two) = (Identifier(&ONE), Identifier(&TWO));
        let repeats = Repeats::default();
        let start = Instant::now();
        let passed = (0..100)
            .filter(|_| repeats.passes(one.clone(), start))
            .count();
        assert_eq!(passed, MOST as usize);
        assert!(repeats.passes(two, start), "another place is not held");
        assert!(repeats.passes(one, start + WINDOW));
    }
}
