//! Aliases of one edge node: a number stands for a metric from one NBIRTH to the next, or NDEATH.
//!
//! An alias is unique over the node and all its devices and means nothing on another node, hence one table a node.
// tck-id-payloads-alias-uniqueness

use hashbrown::HashMap;

/// Which metric an alias stands for: indexes into the node's own tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AliasTarget {
    /// 0 for the node itself, device index + 1 for a device.
    pub entity: u32,
    /// Index of the metric within the entity.
    pub metric: u32,
}

/// Aliases below this are looked up by index; devices number from 0 or 1, so nearly all are.
const DENSE: u64 = 8192;

/// Alias table of one node. Bounded by the limits on metrics, which its caller keeps.
#[derive(Debug, Clone, Default)]
pub struct AliasTable {
    dense: Vec<Option<AliasTarget>>,
    sparse: HashMap<u64, AliasTarget>,
    len: usize,
}

impl AliasTable {
    /// What `alias` stands for.
    #[must_use]
    pub fn get(&self, alias: u64) -> Option<AliasTarget> {
        match self.slot(alias) {
            Some(slot) => self.dense.get(slot).copied().flatten(),
            None => self.sparse.get(&alias).copied(),
        }
    }

    /// Gives `alias` a meaning; the earlier one, if any, is returned and stays in force.
    pub fn insert(&mut self, alias: u64, target: AliasTarget) -> Option<AliasTarget> {
        if let Some(taken) = self.get(alias) {
            return Some(taken);
        }
        self.len += 1;
        match self.slot(alias) {
            Some(slot) => {
                if self.dense.len() <= slot {
                    self.dense.resize(slot + 1, None);
                }
                if let Some(entry) = self.dense.get_mut(slot) {
                    *entry = Some(target);
                }
            }
            None => {
                self.sparse.insert(alias, target);
            }
        }
        None
    }

    /// Forgets the aliases of one entity, as its next birth does.
    pub fn remove_entity(&mut self, entity: u32) {
        let mut removed = 0;
        for slot in &mut self.dense {
            if slot.is_some_and(|it| it.entity == entity) {
                *slot = None;
                removed += 1;
            }
        }
        let before = self.sparse.len();
        self.sparse.retain(|_, it| it.entity != entity);
        self.len -= removed + before - self.sparse.len();
    }

    /// Forgets all, as NBIRTH and NDEATH do.
    pub fn clear(&mut self) {
        self.dense.clear();
        self.sparse.clear();
        self.len = 0;
    }

    /// How many aliases have a meaning.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none has.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn slot(&self, alias: u64) -> Option<usize> {
        if alias < DENSE {
            usize::try_from(alias).ok()
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_large_aliases_live_and_go_alike() {
        let mut table = AliasTable::default();
        let target = |entity, metric| AliasTarget { entity, metric };
        for (at, alias) in [0, 1, 8191, 8192, u64::MAX].into_iter().enumerate() {
            let entity = at as u32 % 2;
            assert_eq!(table.insert(alias, target(entity, 7)), None);
            // The first meaning stays.
            assert_eq!(table.insert(alias, target(9, 9)), Some(target(entity, 7)));
            assert_eq!(table.get(alias), Some(target(entity, 7)));
        }
        assert_eq!(table.len(), 5);
        table.remove_entity(0);
        assert_eq!(table.len(), 2);
        assert_eq!(table.get(0), None);
        assert_eq!(table.get(8192), Some(target(1, 7)));
        table.clear();
        assert!(table.is_empty());
    }
}
