//! Windows.

use std::sync::Arc;

use super::Context;
use crate::engine::fire::Fire;
use crate::engine::state::{KindState, RuleState};
use crate::event::Sample;
use crate::lang::def::WindowDef;
use crate::lang::expr::EvalError;
use crate::output::EvictReason;
use crate::value::Value;
use crate::window::{Emission, Item, Setting};

impl Context<'_> {
    pub(super) fn feed_window(
        &mut self,
        state: &mut RuleState,
        def: &WindowDef,
        sample: &Sample,
        ts: i64,
    ) {
        if !sample.is_good() || sample.value.is_null() {
            return;
        }
        let item = Item {
            ts,
            value: sample.value.clone(),
        };
        let text = matches!(item.value, Value::String(_));
        let fits = match item.number() {
            Some(v) => !v.is_nan(),
            None => text && def.aggregates.iter().all(counts_texts),
        };
        if !fits {
            if !matches!(item.value, Value::Double(_)) {
                let reason = EvalError::WrongType {
                    operation: "window",
                    needed: "number",
                    found: item.value.kind(),
                };
                self.fail(state, reason, sample.cause);
            }
            return;
        }
        let set = setting(def, self.event_time(), self.limits.window_samples);
        let KindState::Window(window) = &mut state.kind else {
            return;
        };
        let mut emissions = Vec::new();
        let gone = window.add(&set, item, &mut emissions);
        state.event = Some(sample.clone());
        if gone > 0 {
            self.evicted(EvictReason::KeyLimit, gone);
        }
        self.emitted(state, def, emissions);
    }

    pub(super) fn emitted(
        &mut self,
        state: &mut RuleState,
        def: &WindowDef,
        emissions: Vec<Emission>,
    ) {
        for emission in emissions {
            let cause = state.event.as_ref().map_or((0, 0), |event| event.cause);
            let columns = def.columns.iter().map(|(_, expr)| {
                self.on_event(None, &emission.results, |scope| {
                    expr.value(scope).map(crate::lang::expr::Val::into_value)
                })
            });
            let columns: Result<Arc<[Value]>, EvalError> = columns.collect();
            let holds = columns.and_then(|columns| {
                let holds = match &def.when {
                    None => Ok(emission.full),
                    Some(when) => self.on_event(None, &columns, |scope| when.holds(scope)),
                };
                holds.map(|holds| (holds, columns))
            });
            let (holds, results) = match holds {
                Ok(found) => found,
                Err(reason) => {
                    self.fail(state, reason, cause);
                    continue;
                }
            };
            let rises = holds && (def.when.is_none() || !state.level);
            let falls = !holds && state.level;
            state.level = holds && def.when.is_some();
            let event = state.event.clone();
            if falls {
                self.alarm_off(state, event.map(|event| event.time_ms));
                continue;
            }
            if !holds {
                continue;
            }
            let values = def.columns.iter().zip(results.iter());
            let fire = Fire {
                event: event.as_ref(),
                taken: Arc::default(),
                values: values
                    .map(|((name, _), v)| (name.clone(), v.clone()))
                    .collect(),
                results,
                cause,
                time_ms: match self.event_time() {
                    Some(_) => Some(emission.ts),
                    None => event.as_ref().map(|event| event.time_ms),
                },
            };
            if rises {
                self.matched(state, &fire);
            }
            self.alarm_on(state, &fire);
        }
    }
}

/// How a rule's window is run.
pub(crate) fn setting(def: &WindowDef, event_time: Option<(u64, u64)>, most: usize) -> Setting<'_> {
    Setting {
        kind: def.kind,
        aggregates: &def.aggregates,
        empty: event_time.is_none(),
        lateness: event_time.map_or(0, |(_, lateness)| lateness),
        most,
    }
}

/// Aggregates that need no number.
fn counts_texts(aggregate: &crate::lang::expr::Aggregate) -> bool {
    use crate::lang::expr::Aggregate;
    matches!(
        aggregate,
        Aggregate::Count | Aggregate::First | Aggregate::Last
    )
}
