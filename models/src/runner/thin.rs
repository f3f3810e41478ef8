//! Leaving out the same share of every device's windows.

use crate::key::DeviceKey;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Devices that are counted; beyond it counting starts over, which costs each device at
/// most one window out of turn.
const MAX_DEVICES: usize = 20_000;

/// Same value for the same device in every run of the program.
pub(super) fn device_hash(key: &DeviceKey) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

#[derive(Debug, Default)]
pub(super) struct Thinner {
    seen: HashMap<DeviceKey, u32>,
}

impl Thinner {
    /// Whether this window is kept: one in `k` of each device, devices out of step with
    /// each other.
    pub(super) fn keeps(&mut self, key: &DeviceKey, k: u32) -> bool {
        let k = k.max(1);
        if !self.seen.contains_key(key) {
            if self.seen.len() >= MAX_DEVICES {
                self.seen.clear();
            }
            let start = (device_hash(key) % u64::from(k)) as u32;
            self.seen.insert(key.clone(), start);
        }
        match self.seen.get_mut(key) {
            Some(count) => {
                *count = count.wrapping_add(1);
                (*count).is_multiple_of(k)
            }
            None => true,
        }
    }

    pub(super) fn reset(&mut self) {
        self.seen.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_keeps_the_same_share() {
        let mut thinner = Thinner::default();
        let keys: Vec<_> = (0..50)
            .map(|i| DeviceKey::new("g", "n", &format!("d{i}")))
            .collect();
        let mut kept = vec![0; keys.len()];
        let mut per_round = Vec::new();
        for _ in 0..80 {
            let mut round = 0;
            for (i, key) in keys.iter().enumerate() {
                if thinner.keeps(key, 8) {
                    kept[i] += 1;
                    round += 1;
                }
            }
            per_round.push(round);
        }
        assert!(kept.iter().all(|n| *n == 10), "{kept:?}");
        assert!(
            per_round.iter().all(|n| *n < 25),
            "devices go out of step: {per_round:?}"
        );
    }
}
