//! Alarm floods: more than a person can deal with.

use std::collections::VecDeque;

use crate::snapshot::{Corrupt, Reader, Writer};

/// Span over which raises are counted, ms.
pub(crate) const SPAN_MS: u64 = 600_000;
/// More raises than this in the span are a flood (ISA-18.2 counts ten alarms in ten minutes).
pub(crate) const MOST: usize = 10;
/// The flood is over when there were fewer than this in the span.
const CALM: usize = 5;

/// Counts raises over all keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Flood {
    /// Engine times of the last raises, ms; never more than [`MOST`] + 1.
    raises: VecDeque<u64>,
    on: bool,
    /// Since it was last saved; not part of the snapshot.
    changed: bool,
}

impl Flood {
    /// An alarm was raised. Returns whether a flood begins with it.
    pub(crate) fn raise(&mut self, now: u64) -> bool {
        self.forget(now);
        self.raises.push_back(now);
        self.changed = true;
        if self.raises.len() > MOST + 1 {
            self.raises.pop_front();
        }
        let begins = !self.on && self.raises.len() > MOST;
        self.on |= begins;
        begins
    }

    /// Engine time has come to `now`. Returns whether the flood is over.
    pub(crate) fn advance(&mut self, now: u64) -> bool {
        self.forget(now);
        let over = self.on && self.raises.len() < CALM;
        self.on &= !over;
        over
    }

    /// Whether it changed since the last call.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    pub(crate) fn is_on(&self) -> bool {
        self.on
    }

    /// When [`advance`](Self::advance) may find it over, ms.
    pub(crate) fn deadline(&self) -> Option<u64> {
        let last = self.raises.len().checked_sub(CALM)?;
        let at = self.raises.get(last).filter(|_| self.on)?;
        Some(at.saturating_add(SPAN_MS).saturating_add(1))
    }

    fn forget(&mut self, now: u64) {
        let old = |at: &u64| now.saturating_sub(*at) > SPAN_MS;
        while self.raises.front().is_some_and(old) {
            self.raises.pop_front();
        }
    }

    pub(crate) fn encode(&self, to: &mut Writer) {
        to.flags(&[self.on]);
        to.length(self.raises.len());
        self.raises.iter().for_each(|at| to.number(*at));
    }

    pub(crate) fn decode(from: &mut Reader<'_>) -> Result<Self, Corrupt> {
        let [on] = from.flags()?;
        let count = from.length()?;
        let raises = (0..count)
            .map(|_| from.number())
            .collect::<Result<_, _>>()?;
        Ok(Self {
            raises,
            on,
            changed: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_eleventh_alarm_in_ten_minutes_is_a_flood() {
        let mut flood = Flood::default();
        for n in 0..10 {
            assert!(!flood.raise(n * 1_000));
        }
        assert!(flood.raise(10_000));
        assert!(!flood.raise(11_000), "it goes on");
        let calm = flood.deadline().unwrap();
        assert!(!flood.advance(calm - 1));
        assert!(flood.advance(calm));
        assert_eq!(flood.deadline(), None);
    }

    #[test]
    fn a_steady_trickle_is_none() {
        let mut flood = Flood::default();
        assert!((0..100).all(|n| !flood.raise(n * 61_000)));
    }
}
