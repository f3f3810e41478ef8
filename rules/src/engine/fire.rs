//! What follows when a rule's condition comes true: match, alarm, commands.

use std::sync::Arc;

use super::Guard;
use super::context::{Context, FloodAlarm};
use super::state::{FAILURES, Failures, QUIET_MS, RuleState};
use super::world::Taken;
use crate::alarm::{Alarm, Occurrence, Timing};
use crate::event::{Cause, Key, Sample};
use crate::lang::def::{AlarmDef, CommandValue, Kind};
use crate::lang::expr::EvalError;
use crate::output::{
    AlarmAction, AlarmEvent, AlarmStatus, CommandRequest, Match, Output, Priority, Values,
};
use crate::value::Value;

/// A condition that came true.
pub(crate) struct Fire<'a> {
    /// The event it is about.
    pub(crate) event: Option<&'a Sample>,
    pub(crate) taken: Arc<Taken>,
    /// A window's columns.
    pub(crate) results: Arc<[Value]>,
    pub(crate) values: Values,
    pub(crate) cause: Cause,
    /// Event time, ms UTC.
    pub(crate) time_ms: Option<i64>,
}

/// How the alarm of a rule behaves.
pub(crate) fn timing(def: &AlarmDef, kind: &Kind) -> Timing {
    let pulse = matches!(kind, Kind::Pattern(_)) && def.clear.is_none();
    Timing::of(def, pulse && def.off_delay == 0)
}

impl Context<'_> {
    /// Puts out the match, then its commands.
    pub(crate) fn matched(&mut self, state: &mut RuleState, fire: &Fire<'_>) {
        self.rule.fires += 1;
        self.rule.last_fire_ms = Some(self.now);
        let mut causes: Vec<Cause> = fire.taken.0.iter().map(|(_, e)| e.cause).collect();
        if causes.is_empty() && fire.cause != (0, 0) {
            causes.push(fire.cause);
        }
        self.out.push(Output::Match(Match {
            rule: self.def.id.clone(),
            pack: self.def.pack.clone(),
            version: self.def.version.clone(),
            key: Key::clone(self.key),
            cause: fire.cause,
            causes,
            values: fire.values.clone(),
            engine_ms: self.now,
            time_ms: fire.time_ms,
            historical: self.history,
            dry_run: self.def.dry_run,
        }));
        // History is what was; a command is for now.
        if !self.history && !self.def.commands.is_empty() {
            self.commands(state, fire);
        }
    }

    fn commands(&mut self, state: &mut RuleState, fire: &Fire<'_>) {
        let def = self.def;
        let of = u32::try_from(def.commands.len()).unwrap_or(u32::MAX);
        let mut requests = Vec::new();
        for (position, command) in (0u32..).zip(&def.commands) {
            let value = match &command.value {
                CommandValue::Fixed(value) => Ok(value.clone()),
                CommandValue::Computed(expr) => {
                    let computed = self.scoped(fire.event, &*fire.taken, &fire.results, |scope| {
                        expr.value(scope).map(crate::lang::expr::Val::into_value)
                    });
                    computed.and_then(|value| match value {
                        Value::Null | Value::Other => Err(EvalError::WrongType {
                            operation: "command",
                            needed: "value",
                            found: value.kind(),
                        }),
                        value => Ok(value),
                    })
                }
            };
            let value = match value {
                Ok(value) => value,
                // Half a sequence is worse than none.
                Err(reason) => return self.fail(state, reason, fire.cause),
            };
            let guard = command.allow_when.as_ref().map(|expr| Guard {
                expr: expr.clone(),
                key: self.key.clone(),
                event: fire.event.cloned(),
                taken: fire.taken.clone(),
                results: fire.results.clone(),
            });
            requests.push(CommandRequest {
                rule: def.id.clone(),
                version: def.version.clone(),
                key: Key::clone(self.key),
                target: command.target.of(self.key),
                metric: command.metric.clone(),
                value,
                ttl_ms: command.ttl,
                priority: command.priority,
                repeatable: command.repeatable,
                allow_when: guard,
                confirm: command.confirm.clone(),
                undo: command.undo.clone(),
                position,
                of,
                dry_run: def.dry_run,
                durable: def.durable,
                on_restart: def.on_restart,
                cause: fire.cause,
                engine_ms: self.now,
            });
        }
        for request in requests {
            self.out.push(Output::Command(request));
        }
    }

    /// The alarm's condition is true.
    pub(crate) fn alarm_on(&mut self, state: &mut RuleState, fire: &Fire<'_>) {
        let Some(def) = &self.def.alarm else { return };
        let timing = timing(def, &self.def.kind);
        let at = self.alarm_time(fire.time_ms);
        let mut alarm = state.alarm.take().unwrap_or_default();
        let id = self.occurrence_id("alarm", fire.cause, at);
        let message = self.scoped(fire.event, &*fire.taken, &fire.results, |scope| {
            def.message.fill(scope)
        });
        let action = alarm.on(&timing, at, || Occurrence {
            id,
            message,
            values: fire.values.clone(),
            cause: fire.cause,
            time_ms: fire.time_ms,
            since: at,
        });
        self.report(&mut alarm, action, def.priority, None);
        // A match is a moment: without a condition that ends it, only time or a person does.
        let pulse = matches!(self.def.kind, Kind::Pattern(_)) && def.clear.is_none();
        if pulse && !timing.until_ack {
            let actions = alarm.off(&timing, at);
            self.report(&mut alarm, actions, def.priority, None);
        }
        state.alarm = Some(alarm);
    }

    /// The alarm's condition is false.
    pub(crate) fn alarm_off(&mut self, state: &mut RuleState, time_ms: Option<i64>) {
        let Some(def) = &self.def.alarm else { return };
        let Some(mut alarm) = state.alarm.take() else {
            return;
        };
        let at = self.alarm_time(time_ms);
        let actions = alarm.off(&timing(def, &self.def.kind), at);
        self.report(&mut alarm, actions, def.priority, None);
        state.alarm = (!alarm.is_idle()).then_some(alarm);
    }

    /// Time has come for delays, shelving and quiet times.
    pub(crate) fn alarm_time_passed(&mut self, state: &mut RuleState, at: u64) {
        if let (Some(def), Some(mut alarm)) = (&self.def.alarm, state.alarm.take()) {
            let actions = alarm.advance(&timing(def, &self.def.kind), at);
            self.report(&mut alarm, actions, def.priority, None);
            state.alarm = (!alarm.is_idle()).then_some(alarm);
        }
    }

    /// History has alarms at its own time.
    fn alarm_time(&self, time_ms: Option<i64>) -> u64 {
        match time_ms {
            Some(time) if self.history => super::state::engine(time),
            _ => self.now,
        }
    }

    /// Puts out what happened to an alarm.
    pub(crate) fn report(
        &mut self,
        alarm: &mut Alarm,
        actions: impl IntoIterator<Item = AlarmAction>,
        priority: Priority,
        person: Option<(&str, &str)>,
    ) {
        for action in actions {
            let speaker = Speaker {
                rule: &self.def.id,
                version: &self.def.version,
                key: self.key,
                priority,
                now: self.now,
                history: self.history,
                until_ack: false,
                person,
            };
            let Some(event) = speak(alarm, action, &speaker) else {
                continue;
            };
            self.out.push(Output::Alarm(event));
            if action == AlarmAction::Raise && !self.history {
                self.flooded();
            }
        }
        alarm.settle();
    }

    /// One alarm more. When a flood begins with it, one alarm of the gateway itself says so, at the key that was one
    /// too many.
    fn flooded(&mut self) {
        if let Some((flood, alarm)) = &mut self.flood
            && flood.raise(self.now)
        {
            let output = flood_begins(alarm, &self.def.id, self.key, self.now);
            self.out.push(output);
        }
    }

    /// An expression fails again and again.
    pub(crate) fn failing(&mut self, state: &mut RuleState, reason: &EvalError, cause: Cause) {
        let Some(mut failures) = state.failures.take() else {
            return;
        };
        let message: Arc<str> =
            format!("rule {} fails on {}: {reason}", self.def.id, self.key).into();
        let id = self.occurrence_id("failure", cause, self.now);
        let now = self.now;
        // Later failures change nothing in it, so that one alarm stays one record.
        if !failures.alarm.condition() {
            let action = failures.alarm.on(&Timing::default(), now, || Occurrence {
                id,
                message,
                values: vec![
                    ("reason".into(), Value::String(reason.to_string().into())),
                    ("failures".into(), Value::UInt(u64::from(FAILURES))),
                ],
                cause,
                time_ms: None,
                since: now,
            });
            self.report(&mut failures.alarm, action, Priority::Diagnostic, None);
        }
        state.failures = Some(failures);
    }

    /// Ends the failure alarm after a quiet time.
    pub(crate) fn failures_time_passed(&mut self, state: &mut RuleState, at: u64) {
        let Some(mut failures) = state.failures.take() else {
            return;
        };
        let Failures {
            last, run, alarm, ..
        } = &mut *failures;
        if last.saturating_add(QUIET_MS) > at {
            state.failures = Some(failures);
            return;
        }
        *run = 0;
        let mut alarm = std::mem::take(alarm);
        let actions = alarm.off(&Timing::default(), at);
        self.report(&mut alarm, actions, Priority::Diagnostic, None);
        if !alarm.is_idle() {
            // It waits to be acknowledged; there is nothing more for time to do.
            failures.alarm = alarm;
            failures.last = u64::MAX;
            state.failures = Some(failures);
        }
    }
}

/// A flood begins with an alarm of this rule at this key.
pub(super) fn flood_begins(
    alarm: &mut Option<FloodAlarm>,
    rule: &str,
    key: &Key,
    now: u64,
) -> Output {
    let id = super::context::occurrence_id("flood", rule, key, (0, 0), now);
    let output = flood_event(&id, key, true, now);
    *alarm = Some((id, key.clone()));
    output
}

/// Whose alarm it is, and who did something to it.
pub(super) struct Speaker<'a> {
    pub(super) rule: &'a Arc<str>,
    pub(super) version: &'a Arc<str>,
    pub(super) key: &'a Key,
    pub(super) priority: Priority,
    /// Engine time, ms.
    pub(super) now: u64,
    pub(super) history: bool,
    pub(super) until_ack: bool,
    /// Name and note.
    pub(super) person: Option<(&'a str, &'a str)>,
}

/// What happened to an alarm, as an output; `None` for one that has no occurrence.
pub(super) fn speak(
    alarm: &Alarm,
    action: AlarmAction,
    speaker: &Speaker<'_>,
) -> Option<AlarmEvent> {
    let occurrence = alarm.occurrence()?;
    let note = speaker.person.map(|(_, note)| note);
    Some(AlarmEvent {
        id: occurrence.id.clone(),
        rule: speaker.rule.clone(),
        version: speaker.version.clone(),
        event: action,
        state: alarm.status(),
        priority: speaker.priority,
        message: occurrence.message.clone(),
        key: Key::clone(speaker.key),
        timestamp: occurrence.time_ms,
        engine_ms: speaker.now,
        values: occurrence.values.clone(),
        cause: occurrence.cause,
        by: speaker.person.map(|(by, _)| by.into()),
        note: note.filter(|note| !note.is_empty()).map(Into::into),
        stale: alarm.is_stale(),
        historical: speaker.history,
        until_ack: speaker.until_ack,
    })
}

/// The alarm of the gateway itself about a flood. It asks for nothing, and nobody has to acknowledge
/// it.
pub(super) fn flood_event(id: &Arc<str>, key: &Key, on: bool, now: u64) -> Output {
    Output::Alarm(AlarmEvent {
        id: id.clone(),
        rule: "alarm-flood".into(),
        version: "1".into(),
        event: if on {
            AlarmAction::Raise
        } else {
            AlarmAction::Clear
        },
        state: if on {
            AlarmStatus::Ack
        } else {
            AlarmStatus::Normal
        },
        priority: Priority::Diagnostic,
        message: "more than 10 alarms in 10 minutes".into(),
        key: key.clone(),
        timestamp: None,
        engine_ms: now,
        values: Vec::new(),
        cause: (0, 0),
        by: None,
        note: None,
        stale: false,
        historical: false,
        until_ack: false,
    })
}
