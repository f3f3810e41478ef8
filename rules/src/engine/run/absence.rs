//! Absences.

use std::sync::Arc;

use super::Context;
use crate::absence::Absence;
use crate::engine::fire::Fire;
use crate::engine::state::{KindState, RuleState};
use crate::event::{Sample, SampleKind};
use crate::value::Value;

impl Context<'_> {
    pub(super) fn data(&mut self, state: &mut RuleState, sample: &Sample) {
        if !sample.is_good() || sample.kind != SampleKind::Metric {
            return;
        }
        let now = self.now;
        let KindState::Absence(absence) = &mut state.kind else {
            return;
        };
        let ends = absence.get_or_insert_with(|| Absence::new(now)).data(now);
        state.event = Some(sample.clone());
        if ends {
            self.alarm_off(state, Some(sample.time_ms));
        }
    }

    pub(super) fn absent(&mut self, state: &mut RuleState, why: &'static str) {
        let KindState::Absence(Some(absence)) = &state.kind else {
            return;
        };
        let silent = self.now.saturating_sub(absence.last());
        let event = state.event.clone();
        let fire = Fire {
            event: event.as_ref(),
            taken: Arc::default(),
            results: Arc::default(),
            values: vec![
                ("reason".into(), why.into()),
                ("silent_ms".into(), Value::UInt(silent)),
            ],
            cause: event.as_ref().map_or((0, 0), |event| event.cause),
            time_ms: None,
        };
        self.matched(state, &fire);
        self.alarm_on(state, &fire);
    }
}
