//! From finished runs to matches put out: holding back, pruning, ending.

use super::heap;
use super::output::{Output, SkipMiss};
use super::path::Path;
use super::plan::{Plan, SkipTo, StageIdx};
use super::state::{KeyState, Partial};

/// Matches to prune, given one that is put out.
enum Prune {
    Nothing,
    /// Those that start before this event.
    Before(u64),
    /// Those that start with this event or before it.
    UpTo(u64),
}

impl Prune {
    fn hits(&self, partial: &Partial) -> bool {
        match *self {
            Self::Nothing => false,
            Self::Before(order) => !partial.is_waiting() && partial.start < order,
            Self::UpTo(order) => !partial.is_waiting() && partial.start <= order,
        }
    }
}

impl Plan {
    /// Puts out what can be put out: of `finished` (a heap) and the matches that were held back.
    pub(super) fn settle<E>(
        &self,
        state: &mut KeyState<E>,
        finished: &[Partial],
        ts: i64,
        out: &mut impl FnMut(Output<'_, E>),
    ) {
        for partial in finished {
            heap::push(&mut state.held, *partial);
        }
        while let Some(first) = state.held.first().copied() {
            let earliest = state.partials.first();
            if self.skip != SkipTo::None && earliest.is_some_and(|p| p.start < first.start) {
                return;
            }
            heap::pop(&mut state.held);
            let taken = Path::new(&state.arena, first.node);
            let (prune, miss) = self.prune_by(taken);
            if let Some(miss) = miss {
                out(Output::SkipMissed { taken, miss });
            }
            out(Output::Match { taken, ts });
            for list in [&mut state.partials, &mut state.held] {
                let arena = &mut state.arena;
                heap::retain(list, |partial| {
                    let hit = prune.hits(partial);
                    if hit {
                        arena.release(partial.node);
                    }
                    !hit
                });
            }
            state.arena.release(first.node);
        }
    }

    fn prune_by<E>(&self, taken: Path<'_, E>) -> (Prune, Option<SkipMiss>) {
        let first = || taken.orders().map(|(_, order)| order).min();
        let up_to = |order: Option<u64>| (order.map_or(Prune::Nothing, Prune::UpTo), None);
        let (stage, strict, target) = match self.skip {
            SkipTo::None => return (Prune::Nothing, None),
            SkipTo::Next => return up_to(first()),
            SkipTo::PastLast => return up_to(taken.orders().map(|(_, order)| order).max()),
            SkipTo::First { stage, strict } => (stage, strict, of_stage(taken, stage).last()),
            SkipTo::Last { stage, strict } => (stage, strict, of_stage(taken, stage).next()),
        };
        match target {
            None => {
                let miss = strict && stage.is_some();
                (Prune::Nothing, miss.then_some(SkipMiss::StageAbsent))
            }
            Some(order) if strict && first() == Some(order) => {
                (Prune::Nothing, Some(SkipMiss::FirstEvent))
            }
            Some(order) => (Prune::Before(order), None),
        }
    }
}

/// Order numbers of a stage's events, last first.
fn of_stage<E>(taken: Path<'_, E>, stage: Option<u16>) -> impl Iterator<Item = u64> {
    let wanted = stage.map(StageIdx);
    taken
        .orders()
        .filter(move |(stage, _)| Some(*stage) == wanted)
        .map(|(_, order)| order)
}
