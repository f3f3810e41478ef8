//! Vectors by template, bounded; the least lately used part goes.

use std::collections::HashMap;
use std::sync::Arc;

pub(super) struct Cache {
    entries: HashMap<Box<str>, (Arc<[f32]>, u64)>,
    max: usize,
    clock: u64,
}

impl Cache {
    pub(super) fn new(max: usize) -> Self {
        Self {
            entries: HashMap::new(),
            max,
            clock: 0,
        }
    }

    pub(super) fn get(&mut self, template: &str) -> Option<Arc<[f32]>> {
        self.clock += 1;
        let (vector, used) = self.entries.get_mut(template)?;
        *used = self.clock;
        Some(vector.clone())
    }

    pub(super) fn put(&mut self, template: &str, vector: Arc<[f32]>) {
        if self.max == 0 {
            return;
        }
        if self.entries.len() >= self.max {
            // A sixteenth at once: a flood of new templates costs a constant each.
            let part = (self.max / 16).max(1);
            let mut ages: Vec<u64> = self.entries.values().map(|(_, used)| *used).collect();
            let place = (part - 1).min(ages.len().saturating_sub(1));
            let limit = *ages.select_nth_unstable(place).1;
            self.entries.retain(|_, (_, used)| *used > limit);
        }
        self.clock += 1;
        self.entries.insert(template.into(), (vector, self.clock));
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_bounded_and_keeps_what_is_used() {
        let mut cache = Cache::new(32);
        let vector: Arc<[f32]> = vec![1.0].into();
        cache.put("kept", vector.clone());
        for i in 0..1000 {
            cache.put(&format!("t{i}"), vector.clone());
            assert!(cache.get("kept").is_some());
            assert!(cache.len() <= 32);
        }
        assert!(cache.get("t0").is_none() && cache.get("t999").is_some());
        let mut none = Cache::new(0);
        none.put("a", vector);
        assert_eq!(none.len(), 0);
    }
}
