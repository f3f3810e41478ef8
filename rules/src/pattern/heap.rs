//! A binary min-heap kept in a plain list, whose *array order* is part of the contract.
//!
//! The order in which Flink visits partial matches, and with it the order of matches and time-outs
//! inside one key, is the array order of a `java.util.PriorityQueue`. So the sift rules here are
//! that queue's: an equal parent stays above, of two equal children the left one rises.

use smallvec::SmallVec;

/// An element with its place in the order.
pub(super) trait Ranked: Copy {
    /// The smallest rank is the root.
    fn rank(&self) -> u64;
}

/// Short lists lie inside the state of the key.
pub(super) type Heap<T> = SmallVec<[T; 2]>;

/// Adds an element.
pub(super) fn push<T: Ranked>(heap: &mut Heap<T>, item: T) {
    heap.push(item);
    let mut at = heap.len() - 1;
    while at > 0 {
        let parent = (at - 1) / 2;
        match (heap.get(parent), heap.get(at)) {
            (Some(above), Some(below)) if below.rank() < above.rank() => heap.swap(parent, at),
            _ => break,
        }
        at = parent;
    }
}

/// Takes the root.
pub(super) fn pop<T: Ranked>(heap: &mut Heap<T>) -> Option<T> {
    if heap.is_empty() {
        return None;
    }
    let root = heap.swap_remove(0);
    sift_down(heap, 0);
    Some(root)
}

/// Keeps what `keep` approves of. When something went, the rest is heapified anew, as a bulk removal
/// does; when nothing went, the array is untouched.
pub(super) fn retain<T: Ranked>(heap: &mut Heap<T>, mut keep: impl FnMut(&T) -> bool) {
    let before = heap.len();
    heap.retain(|item| keep(item));
    if heap.len() != before {
        for at in (0..heap.len() / 2).rev() {
            sift_down(heap, at);
        }
    }
}

fn sift_down<T: Ranked>(heap: &mut [T], mut at: usize) {
    loop {
        let left = 2 * at + 1;
        let (Some(item), Some(first)) = (heap.get(at), heap.get(left)) else {
            return;
        };
        let (child, rank) = match heap.get(left + 1) {
            Some(second) if second.rank() < first.rank() => (left + 1, second.rank()),
            _ => (left, first.rank()),
        };
        if item.rank() <= rank {
            return;
        }
        heap.swap(at, child);
        at = child;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Item(u64, u32);

    impl Ranked for Item {
        fn rank(&self) -> u64 {
            self.0
        }
    }

    fn build(ranks: &[u64]) -> Heap<Item> {
        let mut heap = Heap::new();
        for (n, rank) in (0u32..).zip(ranks) {
            push(&mut heap, Item(*rank, n));
        }
        heap
    }

    #[test]
    fn array_order_is_that_of_the_java_queue() {
        // Recorded from java.util.PriorityQueue (OpenJDK 17), elements numbered by insertion.
        let mut heap = build(&[5, 3, 5, 1, 3, 5, 1]);
        let order = |heap: &[Item]| heap.iter().map(|i| i.1).collect::<Vec<u32>>();
        assert_eq!(order(&heap), [3, 1, 6, 0, 4, 5, 2]);
        pop(&mut heap);
        assert_eq!(order(&heap), [6, 1, 2, 0, 4, 5]);
        retain(&mut heap, |i| i.0 != 3);
        assert_eq!(order(&heap), [6, 2, 0, 5]);
    }

    proptest! {
        #[test]
        fn pops_in_rank_order(ranks in proptest::collection::vec(0u64..6, 0..40)) {
            let mut heap = build(&ranks);
            let mut sorted = ranks.clone();
            sorted.sort_unstable();
            let mut popped = Vec::new();
            while let Some(item) = pop(&mut heap) {
                popped.push(item.0);
            }
            prop_assert_eq!(popped, sorted);
        }

        #[test]
        fn rebuilding_in_array_order_changes_nothing(ranks in proptest::collection::vec(0u64..6, 0..40)) {
            let heap = build(&ranks);
            let mut copy = Heap::new();
            for item in &heap {
                push(&mut copy, *item);
            }
            prop_assert_eq!(copy, heap);
        }

        #[test]
        fn retain_leaves_a_heap(ranks in proptest::collection::vec(0u64..9, 0..40), gone in 0u64..9) {
            let mut heap = build(&ranks);
            retain(&mut heap, |i| i.0 != gone);
            for at in 1..heap.len() {
                prop_assert!(heap[(at - 1) / 2].0 <= heap[at].0);
            }
        }
    }
}
