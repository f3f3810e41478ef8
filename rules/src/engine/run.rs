//! One event, or time alone, through one rule of one key.

mod absence;
mod pattern;
mod threshold;
mod window;

pub(super) use window::setting;

use super::context::Context;
use super::state::{EventClock, KindState, Role, RuleState, clock, engine};
use crate::absence::{Absence, SILENCE};
use crate::event::{Key, Sample};
use crate::lang::def::{Kind, Time};
use crate::output::{EvictReason, Late, Output};
use pattern::Found;

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
