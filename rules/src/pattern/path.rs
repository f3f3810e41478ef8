//! The events of one partial or whole match, in order, without copying them.

use super::arena::{Arena, NONE, Node};
use super::plan::StageIdx;

/// What a partial or whole match has taken: pairs of stage and event, first to last.
///
/// A view into the state of the key; cheap to make and to copy. Walking it backwards costs nothing,
/// walking it forwards first collects as many 4-byte numbers as there are events (on the stack up to
/// [`INLINE`] of them).
#[derive(Debug)]
pub struct Path<'a, E> {
    arena: &'a Arena<E>,
    last: u32,
    /// An event behind `last` that is not in the arena.
    tail: Option<(StageIdx, &'a E, u64)>,
}

impl<E> Clone for Path<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for Path<'_, E> {}

/// Up to this many events a forward walk allocates nothing.
pub const INLINE: usize = 16;

impl<'a, E> Path<'a, E> {
    pub(super) fn new(arena: &'a Arena<E>, last: u32) -> Self {
        Self {
            arena,
            last,
            tail: None,
        }
    }

    pub(super) fn with_tail(
        arena: &'a Arena<E>,
        last: u32,
        stage: u16,
        event: &'a E,
        order: u64,
    ) -> Self {
        Self {
            arena,
            last,
            tail: Some((StageIdx(stage), event, order)),
        }
    }

    /// Whether nothing was taken.
    pub fn is_empty(&self) -> bool {
        self.last == NONE && self.tail.is_none()
    }

    /// How many events were taken.
    pub fn len(&self) -> usize {
        self.backward().count()
    }

    /// All events, the last one first.
    pub fn backward(&self) -> Backward<'a, E> {
        Backward {
            nodes: self.nodes(),
            tail: self.tail,
        }
    }

    /// All events, the first one first.
    pub fn forward(&self) -> Forward<'a, E> {
        let mut inline = [NONE; INLINE];
        let mut spill = Vec::new();
        let mut count = 0;
        let mut at = self.last;
        while let Some(node) = self.arena.get(at) {
            match inline.get_mut(count) {
                Some(place) => *place = at,
                None => spill.push(at),
            }
            count += 1;
            at = node.parent;
        }
        Forward {
            arena: self.arena,
            inline,
            spill,
            left: count,
            tail: self.tail,
        }
    }

    /// The events of one stage, the first one first.
    pub fn stage(&self, stage: StageIdx) -> impl Iterator<Item = &'a E> {
        self.forward()
            .filter_map(move |(s, e)| (s == stage).then_some(e))
    }

    /// The last event of a stage.
    pub fn last(&self, stage: StageIdx) -> Option<&'a E> {
        self.backward().find(|(s, _)| *s == stage).map(|(_, e)| e)
    }

    /// The first event of a stage.
    pub fn first(&self, stage: StageIdx) -> Option<&'a E> {
        self.backward()
            .filter(|(s, _)| *s == stage)
            .last()
            .map(|(_, e)| e)
    }

    /// How many events a stage has taken.
    pub fn count(&self, stage: StageIdx) -> usize {
        self.backward().filter(|(s, _)| *s == stage).count()
    }

    /// Stage and order number of each event, the last one first.
    pub(super) fn orders(&self) -> impl Iterator<Item = (StageIdx, u64)> + use<'a, E> {
        let tail = self.tail.map(|(stage, _, order)| (stage, order));
        tail.into_iter()
            .chain(self.nodes().map(|n| (StageIdx(n.stage), n.order)))
    }

    fn nodes(&self) -> Nodes<'a, E> {
        Nodes {
            arena: self.arena,
            at: self.last,
        }
    }
}

#[derive(Debug)]
struct Nodes<'a, E> {
    arena: &'a Arena<E>,
    at: u32,
}

impl<'a, E> Iterator for Nodes<'a, E> {
    type Item = Node<'a, E>;

    fn next(&mut self) -> Option<Self::Item> {
        let node = self.arena.get(self.at)?;
        self.at = node.parent;
        Some(node)
    }
}

/// Iterator of [`Path::backward`].
#[derive(Debug)]
pub struct Backward<'a, E> {
    nodes: Nodes<'a, E>,
    tail: Option<(StageIdx, &'a E, u64)>,
}

impl<'a, E> Iterator for Backward<'a, E> {
    type Item = (StageIdx, &'a E);

    fn next(&mut self) -> Option<Self::Item> {
        if let Some((stage, event, _)) = self.tail.take() {
            return Some((stage, event));
        }
        let node = self.nodes.next()?;
        Some((StageIdx(node.stage), node.event))
    }
}

/// Iterator of [`Path::forward`].
#[derive(Debug)]
pub struct Forward<'a, E> {
    arena: &'a Arena<E>,
    /// Node numbers, last event first; beyond [`INLINE`] they go on in `spill`.
    inline: [u32; INLINE],
    spill: Vec<u32>,
    left: usize,
    tail: Option<(StageIdx, &'a E, u64)>,
}

impl<'a, E> Iterator for Forward<'a, E> {
    type Item = (StageIdx, &'a E);

    fn next(&mut self) -> Option<Self::Item> {
        let Some(place) = self.left.checked_sub(1) else {
            let (stage, event, _) = self.tail.take()?;
            return Some((stage, event));
        };
        self.left = place;
        let at = match self.inline.get(place) {
            Some(at) => *at,
            None => *self.spill.get(place - INLINE)?,
        };
        let node = self.arena.get(at)?;
        Some((StageIdx(node.stage), node.event))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let count = self.left + usize::from(self.tail.is_some());
        (count, Some(count))
    }
}

impl<E> ExactSizeIterator for Forward<'_, E> {}
