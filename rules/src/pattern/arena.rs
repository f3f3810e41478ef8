//! The events that partial matches hold: one shared, reference-counted graph a key.
//!
//! Each node is one event in one stage and points to the node taken before it, so that partial
//! matches with a common beginning share it. A partial match, a finished match that is held back
//! and a node each count as one reference on the node they point to.
//!
//! Invariant: a node is in use exactly while its count is above zero, and its parent is in use.

use smallvec::SmallVec;

/// Index of no node: the path is empty, or the list ends.
pub(super) const NONE: u32 = u32::MAX;

/// A node in use.
#[derive(Debug)]
pub(super) struct Node<'a, E> {
    pub(super) event: &'a E,
    /// Number of the event within the key, rising with the order in which events were fed.
    pub(super) order: u64,
    pub(super) parent: u32,
    pub(super) refs: u32,
    pub(super) stage: u16,
}

// The fields stand in the variant so that its tag fits behind the stage.
#[derive(Clone, Debug)]
pub(super) enum Slot<E> {
    Used {
        event: E,
        order: u64,
        parent: u32,
        refs: u32,
        stage: u16,
    },
    Free {
        next: u32,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Arena<E> {
    /// Most keys hold one to three events at a time; those lie beside the rest of the key's state.
    slots: SmallVec<[Slot<E>; 3]>,
    free: u32,
    live: u32,
}

impl<E> Default for Arena<E> {
    fn default() -> Self {
        Self {
            slots: SmallVec::new(),
            free: NONE,
            live: 0,
        }
    }
}

impl<E> Arena<E> {
    #[inline]
    pub(super) fn get(&self, at: u32) -> Option<Node<'_, E>> {
        match self.slots.get(at as usize)? {
            Slot::Free { .. } => None,
            Slot::Used {
                event,
                order,
                parent,
                refs,
                stage,
            } => Some(Node {
                event,
                order: *order,
                parent: *parent,
                refs: *refs,
                stage: *stage,
            }),
        }
    }

    /// Adds a node with one reference, the caller's. The caller's reference on `parent` passes to
    /// the node.
    pub(super) fn insert(&mut self, stage: u16, event: E, order: u64, parent: u32) -> u32 {
        let node = Slot::Used {
            event,
            order,
            parent,
            refs: 1,
            stage,
        };
        self.live += 1;
        let at = self.free;
        if let Some(slot) = self.slots.get_mut(at as usize)
            && let Slot::Free { next } = *slot
        {
            self.free = next;
            *slot = node;
            return at;
        }
        self.slots.push(node);
        (self.slots.len() - 1) as u32
    }

    /// Adds a reference.
    pub(super) fn retain(&mut self, at: u32) {
        if let Some(Slot::Used { refs, .. }) = self.slots.get_mut(at as usize) {
            *refs += 1;
        }
    }

    /// Takes a reference away, and with the last one the node and the node's own reference.
    pub(super) fn release(&mut self, mut at: u32) {
        while let Some(slot) = self.slots.get_mut(at as usize) {
            let Slot::Used { refs, parent, .. } = slot else {
                return;
            };
            *refs -= 1;
            if *refs > 0 {
                return;
            }
            let parent = *parent;
            *slot = Slot::Free { next: self.free };
            self.free = at;
            self.live -= 1;
            at = parent;
        }
    }

    /// Reads a little of the first and the last place.
    #[inline]
    pub(super) fn touch(&self) -> u64 {
        let order = |slot: Option<&Slot<E>>| match slot {
            Some(Slot::Used { order, .. }) => *order,
            _ => 0,
        };
        order(self.slots.first()) ^ order(self.slots.last())
    }

    /// Nodes in use.
    pub(super) fn live(&self) -> usize {
        self.live as usize
    }

    /// Bytes allocated for nodes beyond the arena itself, events outside the node not counted.
    pub(super) fn bytes(&self) -> usize {
        let spilled = self.slots.spilled();
        usize::from(spilled) * self.slots.capacity() * size_of::<Slot<E>>()
    }

    /// Places of the nodes in use.
    pub(super) fn used(&self) -> impl Iterator<Item = u32> {
        let slots = (0u32..).zip(self.slots.iter());
        slots.filter_map(|(at, slot)| matches!(slot, Slot::Used { .. }).then_some(at))
    }

    /// One more than the highest place ever used.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.free = NONE;
        self.live = 0;
    }
}
