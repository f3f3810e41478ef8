//! What a step of a rule works with, and where its outputs go.

use std::collections::VecDeque;
use std::sync::Arc;

use super::limits::Limits;
use super::share::Place;
use super::state::{Failures, RuleState};
use super::world::{LastValues, Phrases, View};
use crate::alarm::Flood;
use crate::event::{Cause, Key, Sample};
use crate::lang::def::{Fnv, RuleDef};
use crate::lang::expr::{EvalError, NoStages, Scope, Stages};
use crate::output::{EvalFailure, EvictReason, Evicted, Output};
use crate::value::Value;

/// A rule and what it has done so far.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) def: Arc<RuleDef>,
    pub(crate) enabled: bool,
    pub(crate) fires: u64,
    pub(crate) errors: u64,
    pub(crate) late: u64,
    pub(crate) timed_out: u64,
    pub(crate) evicted: u64,
    pub(crate) last_fire_ms: Option<u64>,
    /// Partial matches over all keys.
    pub(crate) partials: usize,
    /// What births showed that does not fit.
    pub(crate) findings: Vec<super::births::Finding>,
}

impl Rule {
    pub(crate) fn new(def: Arc<RuleDef>) -> Self {
        Self {
            def,
            enabled: true,
            fires: 0,
            errors: 0,
            late: 0,
            timed_out: 0,
            evicted: 0,
            last_fire_ms: None,
            partials: 0,
            findings: Vec::new(),
        }
    }
}

/// Outputs that wait to be taken.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pub(crate) queue: VecDeque<(Place, Output)>,
    pub(crate) most: usize,
    pub(crate) dropped: u64,
    /// Place of what is put out now.
    pub(crate) place: Place,
}

impl Outbox {
    /// When nobody takes outputs, the newest ones go.
    pub(crate) fn push(&mut self, output: Output) {
        if self.queue.len() < self.most {
            self.queue.push_back((self.place, output));
        } else {
            self.dropped += 1;
        }
    }
}

/// Id and key of the alarm about a flood.
pub(crate) type FloodAlarm = (Arc<str>, Key);

/// One step of one rule for one key.
pub(crate) struct Context<'a> {
    pub(crate) rule: &'a mut Rule,
    pub(crate) def: &'a RuleDef,
    /// Key of the rule's state.
    pub(crate) key: &'a Arc<Key>,
    pub(crate) last: &'a LastValues,
    pub(crate) phrases: &'a Phrases,
    pub(crate) out: &'a mut Outbox,
    /// Counts raises, and the flood's alarm while there is one; `None` where raises are counted over several shares.
    pub(crate) flood: Option<(&'a mut Flood, &'a mut Option<FloodAlarm>)>,
    pub(crate) limits: &'a Limits,
    /// Engine time, ms: of the event, or the timer's due time.
    pub(crate) now: u64,
    /// The lane of historical samples: in event time, without commands.
    pub(crate) history: bool,
}

impl<'a> Context<'a> {
    pub(crate) fn view(&self) -> View<'a> {
        View {
            last: self.last,
            now: self.now,
            phrases: self.phrases,
        }
    }

    /// Runs something on a scope.
    pub(crate) fn scoped<T>(
        &self,
        event: Option<&Sample>,
        stages: &dyn Stages,
        results: &[Value],
        run: impl FnOnce(&Scope<'_>) -> T,
    ) -> T {
        let view = self.view();
        run(&Scope {
            event,
            key: self.key,
            stages,
            world: &view,
            results,
        })
    }

    /// As [`scoped`](Self::scoped), for rules without stages.
    pub(crate) fn on_event<T>(
        &self,
        event: Option<&Sample>,
        results: &[Value],
        run: impl FnOnce(&Scope<'_>) -> T,
    ) -> T {
        self.scoped(event, &NoStages, results, run)
    }

    /// An expression had no result: counted, put out, and an alarm when it repeats.
    pub(crate) fn fail(&mut self, state: &mut RuleState, reason: EvalError, cause: Cause) {
        self.rule.errors += 1;
        let failures = state.failures.get_or_insert_default();
        let Failures {
            count, run, last, ..
        } = &mut **failures;
        *count += 1;
        *run = run.saturating_add(1);
        *last = self.now;
        let (count, run) = (*count, *run);
        self.out.push(Output::EvalError(EvalFailure {
            rule: self.def.id.clone(),
            key: Key::clone(self.key),
            reason: reason.clone(),
            count,
            cause,
            engine_ms: self.now,
        }));
        if run >= super::state::FAILURES {
            self.failing(state, &reason, cause);
        }
    }

    pub(crate) fn evicted(&mut self, reason: EvictReason, count: u64) {
        self.rule.evicted += count;
        self.out.push(Output::Evicted(Evicted {
            rule: Some(self.def.id.clone()),
            key: Key::clone(self.key),
            reason,
            count,
            engine_ms: self.now,
        }));
    }

    /// Id of an occurrence: the same again when the same inputs are replayed.
    pub(crate) fn occurrence_id(&self, what: &str, cause: Cause, at: u64) -> Arc<str> {
        occurrence_id(what, &self.def.id, self.key, cause, at)
    }
}

/// Id of an occurrence: the same again when the same inputs are replayed.
pub(super) fn occurrence_id(what: &str, rule: &str, key: &Key, cause: Cause, at: u64) -> Arc<str> {
    let mut hash = Fnv::new();
    for text in [what, rule, &key.group, &key.node] {
        hash.text(text);
    }
    hash.text(key.device.as_deref().unwrap_or(""));
    hash.number(cause.0);
    hash.number(u64::from(cause.1));
    hash.number(at);
    format!("{:016x}", hash.0).into()
}
