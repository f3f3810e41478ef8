//! Thresholds.

use std::sync::Arc;

use super::Context;
use crate::engine::fire::Fire;
use crate::engine::state::{KindState, RuleState};
use crate::event::Sample;
use crate::lang::def::ThresholdDef;
use crate::lang::expr::EvalError;
use crate::output::Values;
use crate::threshold::Edge;
use crate::value::Value;

impl Context<'_> {
    pub(super) fn feed_threshold(
        &mut self,
        state: &mut RuleState,
        def: &ThresholdDef,
        sample: &Sample,
    ) {
        // Bad quality says nothing about the process; neither does null.
        if !sample.is_good() || sample.value.is_null() {
            return;
        }
        let Some(value) = sample.value.as_f64() else {
            let reason = EvalError::WrongType {
                operation: "threshold",
                needed: "number",
                found: sample.value.kind(),
            };
            return self.fail(state, reason, sample.cause);
        };
        let KindState::Threshold(threshold) = &mut state.kind else {
            return;
        };
        let edge = threshold.sample(def, value, self.now);
        // Kept for the timer, and to name the last value that was over.
        if edge.is_none() && threshold.deadline().is_none() {
            return;
        }
        state.event = Some(sample.clone());
        self.crossed(state, def, edge);
    }

    pub(super) fn crossed(
        &mut self,
        state: &mut RuleState,
        def: &ThresholdDef,
        edge: Option<Edge>,
    ) {
        let (Some(edge), KindState::Threshold(threshold)) = (edge, &state.kind) else {
            return;
        };
        let event = state.event.clone();
        let time_ms = event.as_ref().map(|event| event.time_ms);
        if edge == Edge::Off {
            state.event = None;
            return self.alarm_off(state, time_ms);
        }
        let mut values: Values = Vec::new();
        if let Some(event) = &event {
            values.push(("value".into(), event.value.clone()));
        }
        if let Some(limit) = threshold.limit(def) {
            values.push((limit.name.into(), Value::Double(limit.value)));
        }
        let fire = Fire {
            event: event.as_ref(),
            taken: Arc::default(),
            results: Arc::default(),
            values,
            cause: event.as_ref().map_or((0, 0), |event| event.cause),
            time_ms,
        };
        if edge == Edge::On {
            self.matched(state, &fire);
        }
        self.alarm_on(state, &fire);
    }
}
