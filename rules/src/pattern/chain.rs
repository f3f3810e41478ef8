//! The short path for plain sequences: single stages joined by `next` and `followed-by`.
//!
//! Such a pattern has at most one partial match per first event, so the heap of the automaton is
//! always sorted and matches come out by start, whatever the sift rules. A sorted vector that is
//! compacted in place does the same with no heap, no waiting entry, no list of edges, and no node for
//! the event that completes a match. That the outputs are the same is property-tested.

use super::arena::NONE;
use super::eval::{Evaluator, Memo};
use super::output::Output;
use super::path::Path;
use super::spec::{CondId, Contiguity, PatternSpec, Quantifier, Skip, StageKind};
use super::state::{KeyState, Partial};

#[derive(Clone, Copy, Debug)]
struct Link {
    condition: Option<CondId>,
    /// Events that do not fit are passed over.
    relaxed: bool,
    gap: i64,
}

#[derive(Clone, Debug)]
pub(super) struct Chain {
    links: Vec<Link>,
}

impl Chain {
    /// The chain of a pattern, if it is one.
    pub(super) fn of(spec: &PatternSpec) -> Option<Self> {
        if spec.skip != Skip::None {
            return None;
        }
        let link = |(at, stage): (usize, &super::StageSpec)| {
            let StageKind::Event { condition, .. } = &stage.kind else {
                return None;
            };
            let relaxed = match stage.contiguity {
                Contiguity::Next => false,
                Contiguity::FollowedBy => at > 0,
                // The first stage's contiguity means nothing.
                Contiguity::FollowedByAny if at == 0 => false,
                _ => return None,
            };
            (stage.quantifier == Quantifier::ONCE).then_some(Link {
                condition: condition.map(|c| c.id),
                relaxed,
                gap: stage.within_gap.unwrap_or(0),
            })
        };
        let links: Option<Vec<Link>> = spec.stages.iter().enumerate().map(link).collect();
        Some(Self { links: links? })
    }

    pub(super) fn gap(&self, link: u16) -> i64 {
        self.links.get(usize::from(link)).map_or(0, |l| l.gap)
    }

    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    #[inline]
    pub(super) fn begins<E, V: Evaluator<E>>(
        &self,
        memo: &mut Memo<'_, E, V>,
        held: Path<'_, E>,
    ) -> bool {
        match self.links.first() {
            Some(link) => link.condition.is_none_or(|c| memo.ask(c, held)),
            None => false,
        }
    }
}

/// One event through all partial matches of a key. Returns whether a new match was begun.
#[inline]
pub(super) fn step<E: Clone, V: Evaluator<E>>(
    chain: &Chain,
    state: &mut KeyState<E>,
    ts: i64,
    order: u64,
    memo: &mut Memo<'_, E, V>,
    out: &mut impl FnMut(Output<'_, E>),
) -> bool {
    let last = chain.links.len() - 1;
    let arena = &mut state.arena;
    state.partials.retain(|partial| {
        let at = usize::from(partial.state);
        let Some(link) = chain.links.get(at) else {
            return false;
        };
        memo.next_partial();
        let held = Path::new(arena, partial.node);
        if link.condition.is_some_and(|c| !memo.ask(c, held)) {
            if !link.relaxed {
                arena.release(partial.node);
            }
            return link.relaxed;
        }
        if at == last {
            let taken = Path::with_tail(arena, partial.node, partial.state, memo.event(), order);
            out(Output::Match { taken, ts });
            arena.release(partial.node);
            return false;
        }
        // The partial match's reference on its node passes to the new node.
        partial.node = arena.insert(partial.state, memo.event().clone(), order, partial.node);
        partial.state += 1;
        partial.prev_ts = ts;
        true
    });
    memo.next_partial();
    if !chain.begins(memo, Path::new(arena, NONE)) {
        return false;
    }
    if last == 0 {
        let taken = Path::with_tail(arena, NONE, 0, memo.event(), order);
        out(Output::Match { taken, ts });
        return true;
    }
    let node = arena.insert(0, memo.event().clone(), order, NONE);
    state.partials.push(Partial {
        start: order,
        start_ts: ts,
        prev_ts: ts,
        node,
        state: 1,
    });
    true
}
