//! What several shares show, as if they were one engine.

use std::cmp::Ordering;
use std::fmt;

use super::{AlarmInfo, Counts, RuleInfo};
use crate::event::Key;

/// Keys that are shown at most.
pub(super) const MOST_KEYS: usize = 20;

impl RuleInfo {
    /// Adds what another share counted of the same rule.
    pub fn add(&mut self, other: Self) {
        self.fires += other.fires;
        self.errors += other.errors;
        self.late += other.late;
        self.timed_out += other.timed_out;
        self.evicted += other.evicted;
        self.partials += other.partials;
        self.last_fire_ms = self.last_fire_ms.max(other.last_fire_ms);
        self.findings.extend(other.findings);
    }
}

impl Counts {
    /// Adds another share's.
    pub fn add(&mut self, other: Self) {
        self.keys += other.keys;
        self.bytes += other.bytes;
        self.evicted_keys += other.evicted_keys;
        self.future_timestamps += other.future_timestamps;
        self.dropped_outputs += other.dropped_outputs;
        self.unreadable_states += other.unreadable_states;
        self.flood |= other.flood;
    }
}

impl AlarmInfo {
    /// The order of listings: unacknowledged first, then by priority, then the oldest.
    #[must_use]
    pub fn cmp_urgency(&self, other: &Self) -> Ordering {
        let first = other.unacknowledged.cmp(&self.unacknowledged);
        let then = first.then(other.priority.cmp(&self.priority));
        then.then(self.since_engine_ms.cmp(&other.since_engine_ms))
            .then_with(|| self.key.cmp(&other.key))
            .then_with(|| self.id.cmp(&other.id))
    }
}

/// A rule's plan and what it holds; its text is for people.
#[derive(Clone, Debug)]
pub struct Explained {
    pub(super) plan: String,
    pub(super) info: RuleInfo,
    /// Number of keys, and the first of them with what is held.
    pub(super) keys: (usize, Vec<(Key, String)>),
}

impl Explained {
    pub(super) fn new(plan: String, info: RuleInfo, held: Vec<(Key, String)>) -> Self {
        let count = held.len();
        let mut explained = Self {
            plan,
            info,
            keys: (count, held),
        };
        explained.shorten();
        explained
    }

    /// Adds what another share holds.
    pub fn add(&mut self, other: Self) {
        self.info.add(other.info);
        self.keys.0 += other.keys.0;
        self.keys.1.extend(other.keys.1);
        self.shorten();
    }

    fn shorten(&mut self) {
        self.keys.1.sort_unstable();
        self.keys.1.truncate(MOST_KEYS);
    }
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (info, (count, keys)) = (&self.info, &self.keys);
        f.write_str(&self.plan)?;
        writeln!(
            f,
            "state   {count} keys, {} partial matches; fired {}, failed {}, late {}, timed out {}, evicted {}",
            info.partials, info.fires, info.errors, info.late, info.timed_out, info.evicted
        )?;
        for finding in &info.findings {
            writeln!(f, "births  {} on {}", finding.mismatch, finding.key)?;
        }
        for (key, held) in keys {
            writeln!(f, "  {key}: {held}")?;
        }
        match count - keys.len() {
            0 => Ok(()),
            more => writeln!(f, "  and {more} more"),
        }
    }
}
