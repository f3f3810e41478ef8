//! One event, or an advance of time, through the automaton.

use smallvec::SmallVec;

use super::arena::NONE;
use super::chain;
use super::eval::{Evaluator, Memo};
use super::heap;
use super::output::{Limits, Output};
use super::path::Path;
use super::plan::{Act, Kind, Plan, State};
use super::state::{KeyState, List, Partial};

impl Plan {
    /// Feeds one event of the key.
    ///
    /// Time first advances to `ts` ([`advance_to`](Self::advance_to)), so partial matches that are
    /// over time out before the event is seen. A `ts` before the latest time given counts as that
    /// time. Returns whether a new match was begun.
    pub fn handle_event<E: Clone, V: Evaluator<E>>(
        &self,
        state: &mut KeyState<E>,
        ts: i64,
        event: &E,
        evaluator: &V,
        limits: &Limits,
        out: &mut impl FnMut(Output<'_, E>),
    ) -> bool {
        // Once for each time: what the first of several events of one time leaves over is still there
        // for the others.
        if ts > state.now {
            self.advance_to(state, ts, out);
        }
        let ts = state.now;
        let mut memo = Memo::new(evaluator, event, self.stateless);
        let order = state.order;
        state.order += 1;
        let begun = match &self.chain {
            Some(chain) => chain::step(chain, state, ts, order, &mut memo, out),
            None => self.step(state, ts, order, &mut memo, out),
        };
        self.enforce(state, limits, out);
        begun
    }

    /// Whether an event could begin a match of a key that has no state.
    ///
    /// `false` is certain: such an event needs no state to be made for it.
    pub fn may_begin<E, V: Evaluator<E>>(&self, event: &E, evaluator: &V) -> bool {
        let nothing = super::arena::Arena::default();
        let held = Path::new(&nothing, NONE);
        let mut memo = Memo::new(evaluator, event, self.stateless);
        if let Some(chain) = &self.chain {
            return chain.begins(&mut memo, held);
        }
        let Some(start) = self.states.get(usize::from(self.start)) else {
            return false;
        };
        start
            .edges
            .iter()
            .any(|e| matches!(e.act, Act::Take { .. }) && memo.test(&e.test, held))
    }

    /// Advances the time of the key: partial matches that are over time out, and absences at the end
    /// of a pattern become matches. Matches come before time-outs.
    ///
    /// A time before the latest one given changes nothing.
    pub fn advance_to<E>(
        &self,
        state: &mut KeyState<E>,
        ts: i64,
        out: &mut impl FnMut(Output<'_, E>),
    ) {
        state.now = state.now.max(ts);
        if !self.may_expire(state, ts) {
            return;
        }
        let mut finished = List::new();
        let mut timed_out = Vec::new();
        for partial in renew(&mut state.partials) {
            match self.expired(&partial, ts) {
                None => heap::push(&mut state.partials, partial),
                Some(_) if self.kind(partial.state) == Kind::Pending => {
                    heap::push(&mut finished, partial);
                }
                Some(deadline) => timed_out.push((partial, deadline)),
            }
        }
        if finished.is_empty() && timed_out.is_empty() {
            return;
        }
        self.settle(state, &finished, ts, out);
        for (partial, ts) in timed_out {
            let taken = Path::new(&state.arena, partial.node);
            out(Output::TimedOut { taken, ts });
            state.arena.release(partial.node);
        }
    }

    /// Gives up the partial matches of the key that start with its earliest event.
    ///
    /// Returns how many there were.
    pub fn evict_oldest<E>(
        &self,
        state: &mut KeyState<E>,
        out: &mut impl FnMut(Output<'_, E>),
    ) -> usize {
        let oldest = |list: &[Partial]| list.first().filter(|p| !p.is_waiting()).map(|p| p.start);
        let starts = [oldest(&state.partials), oldest(&state.held)];
        let Some(start) = starts.into_iter().flatten().min() else {
            return 0;
        };
        let mut evicted = 0;
        for list in [&mut state.partials, &mut state.held] {
            let arena = &mut state.arena;
            heap::retain(list, |partial| {
                if partial.start != start {
                    return true;
                }
                let taken = Path::new(arena, partial.node);
                let started = partial.start_ts;
                out(Output::Evicted { taken, started });
                arena.release(partial.node);
                evicted += 1;
                false
            });
        }
        evicted
    }

    fn enforce<E>(
        &self,
        state: &mut KeyState<E>,
        limits: &Limits,
        out: &mut impl FnMut(Output<'_, E>),
    ) {
        let over = |state: &KeyState<E>| {
            let entries = state.partials.len() + state.held.len();
            limits.cost::<E>(entries, state.arena.live()) > limits.bytes
                || (entries > limits.partials && state.partial_matches() > limits.partials)
        };
        while over(state) && self.evict_oldest(state, out) > 0 {}
    }

    fn kind(&self, state: u16) -> Kind {
        match self.states.get(usize::from(state)) {
            Some(state) if self.chain.is_none() => state.kind,
            _ => Kind::Normal,
        }
    }

    fn step<E: Clone, V: Evaluator<E>>(
        &self,
        state: &mut KeyState<E>,
        ts: i64,
        order: u64,
        memo: &mut Memo<'_, E, V>,
        out: &mut impl FnMut(Output<'_, E>),
    ) -> bool {
        if state.partials.is_empty() {
            state.partials.push(Partial::waiting(self.start));
        }
        let mut finished = List::new();
        let mut begun = false;
        for partial in renew(&mut state.partials) {
            memo.next_partial();
            let mut step = Step {
                plan: self,
                state,
                ts,
                order,
                finished: &mut finished,
            };
            begun |= step.run(partial, memo);
            if partial.is_waiting() {
                heap::push(&mut state.partials, partial);
            } else {
                state.arena.release(partial.node);
            }
        }
        self.settle(state, &finished, ts, out);
        begun
    }
}

/// Empties the list, whose place the next generation grows in, and returns what was in it.
fn renew(partials: &mut List) -> SmallVec<[Partial; 8]> {
    let old = SmallVec::from_slice(partials);
    partials.clear();
    old
}

/// One event through one partial match.
struct Step<'a, E> {
    plan: &'a Plan,
    state: &'a mut KeyState<E>,
    ts: i64,
    order: u64,
    finished: &'a mut List,
}

impl<E: Clone> Step<'_, E> {
    fn run<V: Evaluator<E>>(&mut self, from: Partial, memo: &mut Memo<'_, E, V>) -> bool {
        let plan = self.plan;
        let Some(node) = plan.states.get(usize::from(from.state)) else {
            return false;
        };
        // An absence that is hit ends the run; what the same event completes counts all the same.
        let stopped = node.stops && self.stops(node, from, memo);
        let mut begun = false;
        let mut at = 0;
        while let Some(edge) = node.edges.get(at) {
            at += 1;
            let passes = memo.test(&edge.test, Path::new(&self.state.arena, from.node));
            match edge.act {
                Act::Proceed { otherwise } if !passes => at = usize::from(otherwise),
                Act::Take { stage, target } if passes => {
                    begun |= from.is_waiting();
                    self.take(from, stage, target, stopped, memo);
                }
                Act::Ignore { target } if passes && !from.is_waiting() => {
                    let next = Partial {
                        state: target,
                        ..from
                    };
                    self.go_on(next, stopped);
                }
                _ => {}
            }
        }
        begun
    }

    fn stops<V: Evaluator<E>>(
        &self,
        node: &State,
        from: Partial,
        memo: &mut Memo<'_, E, V>,
    ) -> bool {
        let held = Path::new(&self.state.arena, from.node);
        let mut at = 0;
        while let Some(edge) = node.edges.get(at) {
            at += 1;
            match edge.act {
                Act::Stop if memo.test(&edge.test, held) => return true,
                Act::Proceed { otherwise } if !memo.test(&edge.test, held) => {
                    at = usize::from(otherwise);
                }
                _ => {}
            }
        }
        false
    }

    fn take<V: Evaluator<E>>(
        &mut self,
        from: Partial,
        stage: u16,
        target: u16,
        stopped: bool,
        memo: &mut Memo<'_, E, V>,
    ) {
        let ends = self.opens_exit(target, from, memo);
        let (start, start_ts) = if from.is_waiting() {
            (self.order, self.ts)
        } else {
            (from.start, from.start_ts)
        };
        self.state.arena.retain(from.node);
        let event = memo.event().clone();
        let node = self.state.arena.insert(stage, event, self.order, from.node);
        let next = Partial {
            start,
            start_ts,
            prev_ts: self.ts,
            node,
            state: target,
        };
        self.go_on(next, stopped);
        if ends {
            self.state.arena.retain(node);
            heap::push(self.finished, next);
        }
        self.state.arena.release(node);
    }

    /// Adds a partial match to the next generation, or to the finished ones.
    fn go_on(&mut self, next: Partial, stopped: bool) {
        let is_final = self.plan.kind(next.state) == Kind::Final;
        if stopped && !is_final {
            return;
        }
        self.state.arena.retain(next.node);
        if is_final {
            heap::push(self.finished, next);
        } else {
            heap::push(&mut self.state.partials, next);
        }
    }

    /// Whether the end can be reached from `target` with no further event.
    fn opens_exit<V: Evaluator<E>>(
        &self,
        target: u16,
        from: Partial,
        memo: &mut Memo<'_, E, V>,
    ) -> bool {
        let Some(state) = self.plan.states.get(usize::from(target)) else {
            return false;
        };
        let held = Path::new(&self.state.arena, from.node);
        let mut at = 0;
        while let Some(exit) = state.exits.get(at) {
            at += 1;
            let passes = memo.test(&exit.test, held);
            match exit.otherwise {
                None if passes => return true,
                Some(otherwise) if !passes => at = usize::from(otherwise),
                _ => {}
            }
        }
        false
    }
}
