//! What people do to alarms and rules.

use super::context::Context;
use super::fire::timing;
use super::slot::Lane;
use super::state::RuleState;
use super::{Engine, SlotId};
use crate::alarm::{Alarm, AlarmError, Occurrence, Timing};
use crate::event::{Key, Level};
use crate::output::{AlarmAction, AlarmStatus, Priority};

/// Whose alarm in a state.
#[derive(Clone, Copy)]
enum Which {
    Own,
    Failing,
}

impl Engine {
    /// Acknowledges an alarm. Gives its state afterwards.
    ///
    /// Alarms are named by the id of their occurrence, or as `rule@group/node/device`.
    ///
    /// # Errors
    /// No such alarm, or its state does not allow it.
    pub fn ack_alarm(
        &mut self,
        id: &str,
        by: &str,
        note: &str,
        engine_ms: u64,
    ) -> Result<AlarmStatus, AlarmError> {
        self.person(id, by, note, engine_ms, |alarm, timing, now, _| {
            alarm.ack(timing, by, note, now)
        })
    }

    /// Shelves an alarm for so long, or with 0 until it clears.
    ///
    /// # Errors
    /// As for [`ack_alarm`](Self::ack_alarm), and for more than [`Limits::shelve_ms`](super::Limits).
    pub fn shelve_alarm(
        &mut self,
        id: &str,
        by: &str,
        for_ms: u64,
        engine_ms: u64,
    ) -> Result<AlarmStatus, AlarmError> {
        let span = (for_ms > 0).then_some(for_ms);
        self.person(id, by, "", engine_ms, |alarm, _, now, most| {
            alarm.shelve(by, span, most, now).map(|action| vec![action])
        })
    }

    /// Ends shelving.
    ///
    /// # Errors
    /// As for [`ack_alarm`](Self::ack_alarm).
    pub fn unshelve_alarm(
        &mut self,
        id: &str,
        by: &str,
        engine_ms: u64,
    ) -> Result<AlarmStatus, AlarmError> {
        self.person(id, by, "", engine_ms, |alarm, _, _, _| {
            alarm.unshelve().map(|action| vec![action])
        })
    }

    /// Suppresses an alarm, or ends that.
    ///
    /// # Errors
    /// As for [`ack_alarm`](Self::ack_alarm).
    pub fn suppress_alarm(
        &mut self,
        id: &str,
        by: &str,
        on: bool,
        engine_ms: u64,
    ) -> Result<AlarmStatus, AlarmError> {
        self.person(id, by, "", engine_ms, |alarm, _, _, _| {
            alarm.suppress(on).map(|action| vec![action])
        })
    }

    /// Takes an alarm out of service, or puts it back.
    ///
    /// # Errors
    /// As for [`ack_alarm`](Self::ack_alarm).
    pub fn service_alarm(
        &mut self,
        id: &str,
        by: &str,
        out: bool,
        engine_ms: u64,
    ) -> Result<AlarmStatus, AlarmError> {
        self.person(id, by, "", engine_ms, |alarm, _, _, _| {
            alarm.service(out).map(|action| vec![action])
        })
    }

    /// Resets a latched alarm whose condition is over.
    ///
    /// # Errors
    /// As for [`ack_alarm`](Self::ack_alarm).
    pub fn reset_alarm(
        &mut self,
        id: &str,
        by: &str,
        engine_ms: u64,
    ) -> Result<AlarmStatus, AlarmError> {
        self.person(id, by, "", engine_ms, |alarm, _, _, _| {
            alarm.reset().map(|action| vec![action])
        })
    }

    /// Switches a rule on or off; what it holds is kept. Returns whether there is such a rule. The
    /// choice is part of the snapshot.
    pub fn set_enabled(&mut self, rule: &str, on: bool) -> bool {
        let Some(found) = self.rules.iter_mut().find(|r| &*r.def.id == rule) else {
            return false;
        };
        found.enabled = on;
        let id = found.def.id.clone();
        if on {
            self.disabled.remove(&id);
        } else {
            self.disabled.insert(id);
        }
        self.own_dirty = true;
        // Timers that the rule was not allowed to have.
        for id in (0u32..).take(self.slots.len()) {
            self.arm(id);
        }
        true
    }

    fn person(
        &mut self,
        id: &str,
        by: &str,
        note: &str,
        engine_ms: u64,
        act: impl FnOnce(&mut Alarm, &Timing, u64, u64) -> Result<Vec<AlarmAction>, AlarmError>,
    ) -> Result<AlarmStatus, AlarmError> {
        self.advance_to(engine_ms);
        let unknown = || AlarmError::Unknown { id: id.to_owned() };
        if self.names_own(id) {
            let most = self.limits.shelve_ms;
            let done = self.person_own(id, (by, note), |alarm, timing, now| {
                act(alarm, timing, now, most)
            });
            return done.unwrap_or_else(|| Err(unknown()));
        }
        let (slot, lane, which) = self.find_alarm(id).ok_or_else(unknown)?;
        let most = self.limits.shelve_ms;
        let mut result = Err(unknown());
        let cost = self.step(slot, slot, lane, |context, state| {
            result = context.person(state, which, (by, note), |alarm, timing, now| {
                act(alarm, timing, now, most)
            });
        });
        self.changed(slot, cost);
        result
    }

    fn find_alarm(&mut self, id: &str) -> Option<(SlotId, Lane, Which)> {
        if let Some((rule, key)) = id.split_once('@') {
            return self.addressed(rule, key);
        }
        let is = |alarm: &Alarm| alarm.occurrence().is_some_and(|o| &*o.id == id);
        (0u32..).zip(&self.slots).find_map(|(number, slot)| {
            slot.as_ref()?.states().find_map(|(lane, state)| {
                if state.alarm.as_deref().is_some_and(is) {
                    return Some((number, lane, Which::Own));
                }
                let failing = state.failures.as_ref().is_some_and(|f| is(&f.alarm));
                failing.then_some((number, lane, Which::Failing))
            })
        })
    }

    /// `rule@group/node/device`, of a key that is known; the alarm may be normal.
    fn addressed(&mut self, rule: &str, key: &str) -> Option<(SlotId, Lane, Which)> {
        let (number, def) = (0u32..).zip(&self.defs).find(|(_, def)| &*def.id == rule)?;
        def.alarm.as_ref()?;
        let level = def.level;
        let key = match level {
            Level::Group => Key {
                group: key.into(),
                node: "".into(),
                device: None,
            },
            Level::Device | Level::Node => Key::parse(key)?,
        };
        let slot = *self.index(level).get(&key)?;
        if self.slot(slot)?.is_lent() {
            return None;
        }
        let lane = Lane {
            rule: number,
            history: false,
        };
        Some((slot, lane, Which::Own))
    }
}

impl Context<'_> {
    fn person(
        &mut self,
        state: &mut RuleState,
        which: Which,
        person: (&str, &str),
        act: impl FnOnce(&mut Alarm, &Timing, u64) -> Result<Vec<AlarmAction>, AlarmError>,
    ) -> Result<AlarmStatus, AlarmError> {
        let now = self.now;
        let own = self
            .def
            .alarm
            .as_ref()
            .filter(|_| matches!(which, Which::Own));
        let (timing, priority) = match own {
            Some(def) => (timing(def, &self.def.kind), def.priority),
            None => (Timing::default(), Priority::Diagnostic),
        };
        let mut alarm = match which {
            Which::Own => state.alarm.take().map(|alarm| *alarm),
            Which::Failing => state
                .failures
                .as_mut()
                .map(|f| std::mem::take(&mut f.alarm)),
        }
        .unwrap_or_default();
        let result = act(&mut alarm, &timing, now).map(|actions| {
            if alarm.occurrence().is_none() {
                // A normal alarm is held: what it would be called.
                let message = self.on_event(None, &[], |scope| {
                    own.map_or_else(Default::default, |def| def.message.fill(scope))
                });
                alarm.name(Occurrence {
                    id: self.occurrence_id("alarm", (0, 0), now),
                    message,
                    values: Vec::new(),
                    cause: (0, 0),
                    time_ms: None,
                    since: now,
                });
            }
            let status = alarm.status();
            self.report(&mut alarm, actions, priority, Some(person));
            status
        });
        match which {
            Which::Own => state.alarm = (!alarm.is_idle()).then(|| Box::new(alarm)),
            Which::Failing => {
                if let Some(failures) = &mut state.failures {
                    failures.alarm = alarm;
                    // Nothing is left to wait for.
                    if failures.alarm.is_idle() && failures.last == u64::MAX {
                        state.failures = None;
                    }
                }
            }
        }
        result
    }
}
