//! The newest decisions, each as a small trace: from the socket read of the message that caused it, over the rule's
//! decision, to the socket write of the command. Kept in a ring for boxes without a collector; with cargo feature
//! `otlp` they are sent to one as well.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// Decisions kept; the oldest goes first.
const KEPT: usize = 512;

/// One decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// Its place in the order of traces, from 1.
    pub number: u64,
    /// Topic of the command.
    pub topic: Arc<str>,
    /// When the cause was read, µs since 1970.
    pub start_us: u64,
    /// From there until the command was handed to the broker, µs.
    pub decided_us: u64,
    /// From there until its bytes were written, µs.
    pub written_us: u64,
}

/// The ring.
#[derive(Debug, Clone, Default)]
pub struct Decisions(Arc<Mutex<Ring>>);

#[derive(Debug, Default)]
struct Ring {
    newest: u64,
    traces: VecDeque<Decision>,
}

impl Decisions {
    /// Adds one whose command was written at `written`.
    pub fn add(&self, topic: Arc<str>, read: Instant, decided: Instant, written: Instant) {
        let us = |from: Instant, to: Instant| {
            u64::try_from(to.saturating_duration_since(from).as_micros()).unwrap_or(u64::MAX)
        };
        let wall = SystemTime::now()
            .checked_sub(read.elapsed())
            .and_then(|at| at.duration_since(UNIX_EPOCH).ok())
            .map_or(0, |d| u64::try_from(d.as_micros()).unwrap_or(u64::MAX));
        let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ring.newest += 1;
        if ring.traces.len() == KEPT {
            ring.traces.pop_front();
        }
        let number = ring.newest;
        ring.traces.push_back(Decision {
            number,
            topic,
            start_us: wall,
            decided_us: us(read, decided),
            written_us: us(read, written),
        });
    }

    /// Those after `number`, oldest first.
    #[must_use]
    pub fn after(&self, number: u64) -> Vec<Decision> {
        let ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let newer = ring.traces.iter().filter(|t| t.number > number);
        newer.cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_ring_keeps_the_newest() {
        let traces = Decisions::default();
        let read = Instant::now();
        for i in 0..KEPT as u64 + 10 {
            let at = |us| read + Duration::from_micros(us);
            traces.add("t".into(), read, at(i), at(2 * i));
        }
        let all = traces.after(0);
        assert_eq!(all.len(), KEPT);
        assert_eq!(all[0].number, 11);
        let last = traces.after(KEPT as u64 + 9);
        assert_eq!(
            (last.len(), last[0].decided_us, last[0].written_us),
            (1, KEPT as u64 + 9, 2 * (KEPT as u64 + 9))
        );
    }
}
