//! A queue of samples whose aggregates are known at any time: two stacks, the older one with an
//! aggregate for each of its suffixes, the newer one with a single running aggregate. Each sample
//! is merged twice in its life, nothing is ever subtracted, and so nothing drifts.

use std::collections::VecDeque;

use super::acc::{Acc, Item};
use crate::snapshot::{Corrupt, Reader, Writer};

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    items: VecDeque<Item>,
    /// `older[i]`: aggregates of the items from the i-th to the end of the older part, the oldest
    /// item's last.
    older: Vec<Acc>,
    newer: Acc,
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(crate) fn front(&self) -> Option<&Item> {
        self.items.front()
    }

    pub(crate) fn items(&self) -> impl Iterator<Item = &Item> {
        self.items.iter()
    }

    pub(crate) fn push(&mut self, item: Item) {
        self.newer.add(&item);
        self.items.push_back(item);
    }

    pub(crate) fn pop(&mut self) -> Option<Item> {
        if self.older.is_empty() {
            let mut suffix = Acc::default();
            for item in self.items.iter().rev() {
                let mut longer = Acc::default();
                longer.add(item);
                longer.merge(&suffix);
                suffix = longer;
                self.older.push(suffix.clone());
            }
            self.newer = Acc::default();
        }
        self.older.pop();
        self.items.pop_front()
    }

    /// Aggregates of everything in the queue.
    pub(crate) fn total(&self) -> Acc {
        let mut total = self.older.last().cloned().unwrap_or_default();
        total.merge(&self.newer);
        total
    }

    /// The grouping of sums is part of the state, so that a restored queue rounds like the one that
    /// was saved.
    pub(crate) fn encode(&self, to: &mut Writer) {
        to.length(self.items.len());
        self.items.iter().for_each(|item| item.encode(to));
        to.length(self.older.len());
        self.older.iter().for_each(|acc| acc.encode(to));
        self.newer.encode(to);
    }

    pub(crate) fn decode(from: &mut Reader<'_>) -> Result<Self, Corrupt> {
        let count = from.length()?;
        let items = (0..count)
            .map(|_| Item::decode(from))
            .collect::<Result<_, _>>()?;
        let count = from.length()?;
        let older = (0..count)
            .map(|_| Acc::decode(from))
            .collect::<Result<_, _>>()?;
        let queue = Self {
            items,
            older,
            newer: Acc::decode(from)?,
        };
        if queue.older.len() > queue.items.len() {
            return Err(Corrupt::Wrong { what: "window" });
        }
        Ok(queue)
    }
}
