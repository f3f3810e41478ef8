//! Data that stays away: one key's state.

use crate::lang::def::AbsenceDef;
use crate::snapshot::{Corrupt, Reader, Writer};

/// Why an absence begins, when nothing came in time; after a death the cause of death stands there.
pub(crate) const SILENCE: &str = "silence";

/// What one key remembers of an absence rule. It begins with the key's first birth or value, so
/// that a device which never existed is not missed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Absence {
    /// Engine time of the last value, ms.
    last: u64,
    absent: bool,
}

impl Absence {
    pub(crate) fn new(now: u64) -> Self {
        Self {
            last: now,
            absent: false,
        }
    }

    /// A value came. Returns whether it ends an absence.
    pub(crate) fn data(&mut self, now: u64) -> bool {
        self.last = now;
        std::mem::take(&mut self.absent)
    }

    /// The source died. Returns whether an absence begins with it.
    pub(crate) fn death(&mut self) -> bool {
        !std::mem::replace(&mut self.absent, true)
    }

    /// Engine time of the last value, ms.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    pub(crate) fn absent(&self) -> bool {
        self.absent
    }

    pub(crate) fn deadline(&self, def: &AbsenceDef) -> Option<u64> {
        (!self.absent).then(|| self.last.saturating_add(def.wait))
    }

    /// Time has come to `now`. Returns whether an absence begins.
    pub(crate) fn advance(&mut self, def: &AbsenceDef, now: u64) -> bool {
        let begins = self.deadline(def).is_some_and(|due| due <= now);
        self.absent |= begins;
        begins
    }

    pub(crate) fn encode(&self, to: &mut Writer) {
        to.number(self.last);
        to.flags(&[self.absent]);
    }

    pub(crate) fn decode(from: &mut Reader<'_>) -> Result<Self, Corrupt> {
        let last = from.number()?;
        let [absent] = from.flags()?;
        Ok(Self { last, absent })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fires_once_and_clears_on_return() {
        let def = AbsenceDef {
            metric: None,
            wait: 60,
        };
        let mut state = Absence::new(0);
        assert!(!state.advance(&def, 59));
        assert!(!state.data(30));
        assert_eq!(state.deadline(&def), Some(90));
        assert!(state.advance(&def, 90));
        assert!(!state.advance(&def, 1_000), "only once");
        assert_eq!(state.deadline(&def), None);
        assert!(!state.death(), "missed already");
        assert!(state.data(2_000));
        assert!(state.death(), "a death needs no wait");
    }
}
