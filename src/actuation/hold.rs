//! Manual holds: "do not touch pump3 for half an hour".

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Target;

/// Most holds at a time.
const MOST_HOLDS: usize = 1024;

/// A target that nothing may write to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// The node or device; a node's hold covers its devices.
    pub target: Target,
    /// Engine time in ms at which it ends.
    pub until_ms: u64,
    /// Who asked for it.
    pub by: Arc<str>,
}

/// Why a hold was not taken.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// All places are taken.
    #[error("{MOST_HOLDS} holds are in force already; release one first")]
    TooMany,
}

/// All holds in force.
#[derive(Debug, Default)]
pub struct Holds {
    by_target: BTreeMap<Target, Hold>,
    changed: bool,
}

impl Holds {
    /// Takes or prolongs a hold.
    ///
    /// # Errors
    /// [`HoldError::TooMany`].
    pub fn set(&mut self, hold: Hold) -> Result<(), HoldError> {
        if self.by_target.len() >= MOST_HOLDS && !self.by_target.contains_key(&hold.target) {
            return Err(HoldError::TooMany);
        }
        self.by_target.insert(hold.target.clone(), hold);
        self.changed = true;
        Ok(())
    }

    /// Ends a hold before its time; whether there was one.
    pub fn release(&mut self, target: &Target) -> bool {
        let had = self.by_target.remove(target).is_some();
        self.changed |= had;
        had
    }

    /// All holds, by target.
    pub fn iter(&self) -> impl Iterator<Item = &Hold> {
        self.by_target.values()
    }

    /// Whether anything changed since the last call: the daemon writes holds to the state store then.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    pub(super) fn covering(&self, target: &Target, now_ms: u64) -> Option<&Hold> {
        let node = Target {
            device: None,
            ..target.clone()
        };
        [self.by_target.get(target), self.by_target.get(&node)]
            .into_iter()
            .flatten()
            .find(|hold| hold.until_ms > now_ms)
    }

    pub(super) fn expire(&mut self, now_ms: u64) {
        let before = self.by_target.len();
        self.by_target.retain(|_, hold| hold.until_ms > now_ms);
        self.changed |= before != self.by_target.len();
    }

    pub(super) fn next_expiry(&self) -> Option<u64> {
        self.by_target.values().map(|hold| hold.until_ms).min()
    }
}
