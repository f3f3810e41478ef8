//! One event, or time alone, through one rule of one key.

use std::cell::RefCell;
use std::sync::Arc;

use super::context::Context;
use super::fire::Fire;
use super::state::{EventClock, KindState, Role, RuleState, clock, engine};
use super::world::{Held, Taken, View};
use crate::absence::{Absence, SILENCE};
use crate::event::{Key, Sample, SampleKind};
use crate::lang::def::{Kind, PatternDef, ThresholdDef, Time, WindowDef};
use crate::lang::expr::{EvalError, Scope};
use crate::output::{EvictReason, Late, Output, TimedOut, Values};
use crate::pattern::{self, CondId, Evaluator, Path};
use crate::threshold::Edge;
use crate::value::Value;
use crate::window::{Emission, Item, Setting};

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
enum Found {
    Match(Taken, i64),
    TimedOut(Taken, i64),
    Evicted,
}

impl Found {
    fn note(output: pattern::Output<'_, Sample>, found: &mut Vec<Self>) {
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
    fn event_time(&self) -> Option<(u64, u64)> {
        match self.def.time {
            Time::Event {
                out_of_order,
                lateness,
            } => Some((out_of_order, lateness)),
            Time::Arrival if self.history => Some((0, 0)),
            Time::Arrival => None,
        }
    }

    /// An event that this rule looks at.
    pub(crate) fn handle(&mut self, state: &mut RuleState, sample: &Sample, role: Role) {
        let Some((out_of_order, lateness)) = self.event_time() else {
            return self.feed(state, sample, clock(self.now), role);
        };
        let mut event_clock = state.clock.take().unwrap_or_default();
        let ts = sample.time_ms;
        let mark = event_clock.watermark;
        if ts <= mark {
            state.clock = Some(event_clock);
            if mark.abs_diff(ts) < lateness {
                // A window knows the time of its samples; anything else takes it as the latest.
                let windowed = matches!(state.kind, KindState::Window(_));
                self.feed(state, sample, if windowed { ts } else { mark }, role);
            } else {
                self.late(sample, mark.abs_diff(ts));
            }
            return;
        }
        let order = event_clock.order;
        event_clock.order += 1;
        event_clock
            .waiting
            .insert((ts, order), (sample.clone(), role));
        let behind = clock(out_of_order).saturating_add(1);
        event_clock.watermark = mark.max(ts.saturating_sub(behind));
        let mut overflow = 0;
        while event_clock.waiting.len() > self.limits.buffered {
            let Some(first) = event_clock.waiting.first_entry() else {
                break;
            };
            event_clock.watermark = event_clock.watermark.max(first.key().0);
            let (sample, role) = first.remove();
            overflow += 1;
            self.feed(state, &sample, sample.time_ms, role);
        }
        if overflow > 0 {
            self.evicted(EvictReason::Buffer, overflow);
        }
        self.drain(state, &mut event_clock);
        state.clock = Some(event_clock);
    }

    fn drain(&mut self, state: &mut RuleState, event_clock: &mut EventClock) {
        while let Some(first) = event_clock.waiting.first_entry() {
            if first.key().0 > event_clock.watermark {
                break;
            }
            let (sample, role) = first.remove();
            self.feed(state, &sample, sample.time_ms, role);
        }
        self.advance_kind(state, event_clock.watermark);
        if self.history {
            self.alarm_time_passed(state, engine(event_clock.watermark));
        }
    }

    fn late(&mut self, sample: &Sample, behind_ms: u64) {
        self.rule.late += 1;
        self.out.push(Output::Late(Late {
            rule: self.def.id.clone(),
            key: Key::clone(self.key),
            cause: sample.cause,
            behind_ms,
            engine_ms: self.now,
        }));
    }

    /// An event whose turn it is, at a time of the rule's clock.
    fn feed(&mut self, state: &mut RuleState, sample: &Sample, ts: i64, role: Role) {
        if role.clear {
            self.clear(state, sample);
        }
        if !role.stream {
            return;
        }
        let def = self.def;
        match &def.kind {
            Kind::Pattern(def) => self.feed_pattern(state, def, sample, ts),
            Kind::Threshold(def) => self.feed_threshold(state, def, sample),
            Kind::Absence(_) => self.data(state, sample),
            Kind::Window(def) => self.feed_window(state, def, sample, ts),
        }
    }

    fn clear(&mut self, state: &mut RuleState, sample: &Sample) {
        let clear = self.def.alarm.as_ref().and_then(|a| a.clear.as_ref());
        let (Some(clear), Some(_)) = (clear, &state.alarm) else {
            return;
        };
        // A value that can't be relied on returns nothing to normal.
        if !sample.is_good() {
            return;
        }
        match self.on_event(Some(sample), &[], |scope| clear.expr.holds(scope)) {
            Ok(true) => self.alarm_off(state, Some(sample.time_ms)),
            Ok(false) => {}
            Err(reason) => self.fail(state, reason, sample.cause),
        }
    }

    // --- pattern

    fn feed_pattern(&mut self, state: &mut RuleState, def: &PatternDef, sample: &Sample, ts: i64) {
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

    fn note_partials(&mut self, state: &RuleState, before: usize) {
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

    fn found(&mut self, state: &mut RuleState, found: Vec<Found>) {
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

    // --- threshold

    fn feed_threshold(&mut self, state: &mut RuleState, def: &ThresholdDef, sample: &Sample) {
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

    fn crossed(&mut self, state: &mut RuleState, def: &ThresholdDef, edge: Option<Edge>) {
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

    // --- absence

    fn data(&mut self, state: &mut RuleState, sample: &Sample) {
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

    fn absent(&mut self, state: &mut RuleState, why: &'static str) {
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

    // --- window

    fn feed_window(&mut self, state: &mut RuleState, def: &WindowDef, sample: &Sample, ts: i64) {
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

    fn emitted(&mut self, state: &mut RuleState, def: &WindowDef, emissions: Vec<Emission>) {
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

    // --- time

    /// Engine time has come to `now`.
    pub(crate) fn advance(&mut self, state: &mut RuleState) {
        let now = self.now;
        if self.event_time().is_none() {
            self.advance_kind(state, clock(now));
        } else if let (KindState::Threshold(_), false) = (&state.kind, self.history) {
            self.advance_kind(state, clock(now));
        }
        if !self.history {
            self.alarm_time_passed(state, now);
        }
        self.failures_time_passed(state, now);
    }

    /// The rule's clock has come to `ts`.
    fn advance_kind(&mut self, state: &mut RuleState, ts: i64) {
        let def = self.def;
        let (timed, most) = (self.event_time(), self.limits.window_samples);
        match (&mut state.kind, &def.kind) {
            (KindState::Pattern(Some(key_state)), Kind::Pattern(def)) => {
                let before = key_state.partial_matches();
                let mut found = Vec::new();
                def.plan.advance_to(key_state, ts, &mut |output| {
                    Found::note(output, &mut found);
                });
                self.note_partials(state, before);
                self.found(state, found);
            }
            (KindState::Threshold(threshold), Kind::Threshold(def)) => {
                let edge = threshold.advance(self.now);
                self.crossed(state, def, edge);
            }
            (KindState::Absence(Some(absence)), Kind::Absence(def)) => {
                let begins = absence.advance(def, self.now);
                if begins {
                    self.absent(state, SILENCE);
                }
            }
            (KindState::Window(window), Kind::Window(def)) => {
                let set = setting(def, timed, most);
                let mut emissions = Vec::new();
                window.advance(&set, ts, &mut emissions);
                self.emitted(state, def, emissions);
            }
            _ => {}
        }
    }

    // --- birth and death

    /// The device or node is there.
    pub(crate) fn born(&mut self, state: &mut RuleState) {
        let now = self.now;
        match &mut state.kind {
            KindState::Absence(absence @ None) => *absence = Some(Absence::new(now)),
            KindState::Threshold(threshold) => {
                if let Kind::Threshold(def) = &self.def.kind {
                    let edge = threshold.refresh(def, now);
                    self.crossed(state, def, edge);
                }
            }
            KindState::Absence(Some(_)) | KindState::Pattern(_) | KindState::Window(_) => {}
        }
        self.set_stale(state, false);
    }

    /// The device or node died.
    pub(crate) fn died(&mut self, state: &mut RuleState, why: &'static str) {
        let before = state.partials();
        match &mut state.kind {
            KindState::Pattern(key_state) => {
                let gone = key_state.take().map_or(0, |mut state| state.clear());
                self.note_partials(state, before);
                if gone > 0 {
                    self.evicted(EvictReason::Death, gone as u64);
                }
            }
            KindState::Threshold(threshold) => threshold.freeze(),
            KindState::Window(window) => window.stop(),
            KindState::Absence(Some(absence)) => {
                if absence.death() {
                    self.absent(state, why);
                }
                // Nothing is stale about an alarm that says the device is gone.
                return;
            }
            KindState::Absence(None) => {}
        }
        self.set_stale(state, true);
    }

    fn set_stale(&mut self, state: &mut RuleState, stale: bool) {
        let (Some(def), Some(mut alarm)) = (&self.def.alarm, state.alarm.take()) else {
            return;
        };
        let action = alarm.set_stale(stale);
        self.report(&mut alarm, action, def.priority, None);
        state.alarm = (!alarm.is_idle()).then_some(alarm);
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
