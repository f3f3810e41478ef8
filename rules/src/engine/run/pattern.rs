//! Patterns.

use std::cell::RefCell;
use std::sync::Arc;

use super::Context;
use crate::engine::fire::Fire;
use crate::engine::state::{KindState, RuleState};
use crate::engine::world::{Held, Taken, View};
use crate::event::{Key, Sample};
use crate::lang::def::PatternDef;
use crate::lang::expr::{EvalError, Scope};
use crate::output::{EvictReason, Output, TimedOut, Values};
use crate::pattern::{self, CondId, Evaluator, Path};

/// A pattern's conditions for one event.
struct Conditions<'a> {
    def: &'a PatternDef,
    key: &'a Key,
    view: View<'a>,
    /// The first failure; a condition that fails is false.
    failure: RefCell<Option<EvalError>>,
}

impl Evaluator<Sample> for Conditions<'_> {
    fn eval(&self, condition: CondId, event: &Sample, held: Path<'_, Sample>) -> bool {
        let Some(expr) = self.def.conditions.get(usize::from(condition.0)) else {
            return false;
        };
        let held = Held(held);
        let scope = Scope {
            event: Some(event),
            key: self.key,
            stages: &held,
            world: &self.view,
            results: &[],
        };
        match expr.holds(&scope) {
            Ok(holds) => holds,
            Err(error) => {
                self.failure.borrow_mut().get_or_insert(error);
                false
            }
        }
    }
}

/// What a pattern put out, kept until its state is free again.
pub(super) enum Found {
    Match(Taken, i64),
    TimedOut(Taken, i64),
    Evicted,
}

impl Found {
    pub(super) fn note(output: pattern::Output<'_, Sample>, found: &mut Vec<Self>) {
        found.push(match output {
            pattern::Output::Match { taken, ts } => Self::Match(Taken::of(taken), ts),
            pattern::Output::TimedOut { taken, ts } => Self::TimedOut(Taken::of(taken), ts),
            pattern::Output::Evicted { .. } => Self::Evicted,
            // The match itself follows; nothing was skipped.
            pattern::Output::SkipMissed { .. } => return,
        });
    }
}

impl Context<'_> {
    pub(super) fn feed_pattern(
        &mut self,
        state: &mut RuleState,
        def: &PatternDef,
        sample: &Sample,
        ts: i64,
    ) {
        let KindState::Pattern(key_state) = &mut state.kind else {
            return;
        };
        let conditions = Conditions {
            def,
            key: self.key,
            view: self.view(),
            failure: RefCell::new(None),
        };
        let idle = key_state.as_ref().is_none_or(|state| state.is_idle());
        if idle && !def.plan.may_begin(sample, &conditions) {
            if let Some(error) = conditions.failure.into_inner() {
                self.fail(state, error, sample.cause);
            }
            return;
        }
        let limits = pattern::Limits {
            partials: self.limits.partials_per_key,
            bytes: self.limits.bytes_per_key,
            event_bytes: 64,
        };
        let key_state = key_state.get_or_insert_default();
        let before = key_state.partial_matches();
        let mut found = Vec::new();
        def.plan
            .handle_event(key_state, ts, sample, &conditions, &limits, &mut |output| {
                Found::note(output, &mut found);
            });
        let failure = conditions.failure.into_inner();
        self.note_partials(state, before);
        self.limit_rule(state, def);
        if let Some(error) = failure {
            self.fail(state, error, sample.cause);
        }
        self.found(state, found);
    }

    pub(super) fn note_partials(&mut self, state: &RuleState, before: usize) {
        let total = self.rule.partials.saturating_add(state.partials());
        self.rule.partials = total.saturating_sub(before);
    }

    /// Too many partial matches over all keys: the oldest of this key go.
    fn limit_rule(&mut self, state: &mut RuleState, def: &PatternDef) {
        let mut gone = 0;
        while self.rule.partials > self.limits.partials_per_rule {
            let KindState::Pattern(Some(key_state)) = &mut state.kind else {
                return;
            };
            let evicted = def.plan.evict_oldest(key_state, &mut |_| {});
            if evicted == 0 {
                break;
            }
            gone += evicted;
            self.rule.partials = self.rule.partials.saturating_sub(evicted);
        }
        if gone > 0 {
            self.evicted(EvictReason::RuleLimit, gone as u64);
        }
    }

    pub(super) fn found(&mut self, state: &mut RuleState, found: Vec<Found>) {
        let mut evicted = 0;
        for found in found {
            match found {
                Found::Evicted => evicted += 1,
                Found::TimedOut(taken, ts) => self.timed_out(&taken, ts),
                Found::Match(taken, ts) => {
                    let taken = Arc::new(taken);
                    let last = taken.0.last().map(|(_, sample)| sample.clone());
                    let timed = self.event_time().is_some();
                    let event_ms = last.as_ref().map(|sample| sample.time_ms);
                    let fire = Fire {
                        event: last.as_ref(),
                        values: self.stage_values(&taken),
                        taken,
                        results: Arc::default(),
                        cause: last.as_ref().map_or((0, 0), |sample| sample.cause),
                        time_ms: if timed { Some(ts) } else { event_ms },
                    };
                    self.matched(state, &fire);
                    self.alarm_on(state, &fire);
                }
            }
        }
        if evicted > 0 {
            self.evicted(EvictReason::KeyLimit, evicted);
        }
    }

    fn timed_out(&mut self, taken: &Taken, _ts: i64) {
        self.rule.timed_out += 1;
        self.out.push(Output::TimedOut(TimedOut {
            rule: self.def.id.clone(),
            version: self.def.version.clone(),
            key: Key::clone(self.key),
            values: self.stage_values(taken),
            cause: taken.0.last().map_or((0, 0), |(_, sample)| sample.cause),
            engine_ms: self.now,
        }));
    }

    /// `stage.value` of the last event of each stage that took one.
    fn stage_values(&self, taken: &Taken) -> Values {
        use crate::lang::expr::Stages as _;
        let names = (0u16..).zip(&self.def.stage_values);
        let value = |(stage, name): (u16, &Arc<str>)| {
            Some((name.clone(), taken.last(stage)?.value.clone()))
        };
        names.filter_map(value).collect()
    }
}
