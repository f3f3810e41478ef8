//! The store for tests: a map.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::state::{Batch, Pairs, StateError, StateStore, check_key};

/// Keeps everything in memory and forgets it when dropped.
#[derive(Debug, Default)]
pub struct MemoryStore {
    map: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
}

impl StateStore for MemoryStore {
    fn commit(&self, batch: &Batch) -> Result<(), StateError> {
        let keys = batch.puts.iter().map(|(key, _)| key).chain(&batch.deletes);
        for key in keys {
            check_key(key)?;
        }
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        for key in &batch.deletes {
            map.remove(key);
        }
        map.extend(batch.puts.iter().cloned());
        Ok(())
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StateError> {
        Ok(self
            .map
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(key)
            .cloned())
    }

    fn scan_prefix(&self, prefix: &[u8]) -> Pairs<'_> {
        let map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        let pairs: Vec<_> = map
            .range(prefix.to_vec()..)
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, value)| Ok((key.clone(), value.clone())))
            .collect();
        Box::new(pairs.into_iter())
    }
}
