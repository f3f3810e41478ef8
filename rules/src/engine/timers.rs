//! Timers: each key has one, for the earliest of what its rules wait for.

use super::run::setting;
use super::share::{OWN_ORDER, Place, timer_order};
use super::slot::Lane;
use super::{Engine, SWEEP_MS, SlotId};
use crate::event::Level;
use crate::lang::def::Kind;

impl Engine {
    /// When [`advance_to`](Self::advance_to) does something next, ms of engine time.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        let timer = self.timers.first().map(|(at, _)| *at);
        let flood = self.flood.deadline().filter(|_| self.share.alone());
        let own = self.owns.deadline();
        timer.into_iter().chain(flood).chain(own).min()
    }

    /// Time has come to `engine_ms`: fires what was due, in the order of due times. Earlier than the last call counts as the last call.
    pub fn advance_to(&mut self, engine_ms: u64) {
        loop {
            let timer = self.poll_timeout().filter(|at| *at <= engine_ms);
            let until = timer.unwrap_or(engine_ms);
            if self.next_sweep <= until {
                // The last round before what comes next finds everything that those before it would
                // have found.
                let at = until / SWEEP_MS * SWEEP_MS;
                self.next_sweep = at.saturating_add(SWEEP_MS);
                self.pass(at);
                self.sweep();
                continue;
            }
            let Some(at) = timer else { break };
            self.pass(at);
            if self.share.alone() {
                self.calm(at);
            }
            if self.owns.deadline().is_some_and(|due| due <= at) {
                self.out.place.order = OWN_ORDER;
                self.advance_own(at);
            }
            for slot in self.due(at) {
                self.fire(slot);
            }
        }
        self.now = self.now.max(engine_ms);
        self.last_input = (self.now, self.input);
        self.out.place = Place {
            at: self.now,
            input: self.input,
            order: 0,
        };
    }

    /// It is `at`, for timers. What one puts out comes after the input that set it for the very time at which it came.
    fn pass(&mut self, at: u64) {
        self.now = self.now.max(at);
        let (last, input) = self.last_input;
        self.out.place = Place {
            at: self.now,
            input: if last == self.now { input } else { 0 },
            order: u64::MAX,
        };
    }

    /// Takes the timers due at `at`, in the order of their places: the order in which keys were first seen is not the
    /// same after a restart.
    fn due(&mut self, at: u64) -> Vec<SlotId> {
        let mut due = Vec::new();
        while let Some((first, id)) = self.timers.first().copied() {
            if first > at {
                break;
            }
            self.timers.pop_first();
            if let Some(slot) = self.slot_mut(id) {
                slot.armed = u64::MAX;
                due.push(id);
            }
        }
        if due.len() > 1 {
            due.sort_by_cached_key(|id| {
                let slot = self.slot(*id);
                slot.map(|slot| (timer_order(&slot.key), slot.level, slot.key.clone()))
            });
        }
        due
    }

    fn fire(&mut self, id: SlotId) {
        let now = self.now;
        let Some(slot) = self.slot(id) else {
            return;
        };
        let lanes: Vec<Lane> = slot
            .states
            .iter()
            .map(|(lane, _)| *lane)
            .filter(|lane| self.deadline(id, *lane) <= now)
            .collect();
        let order = timer_order(&slot.key);
        let source = match slot.level {
            Level::Device => id,
            Level::Node => self.devices.get(&slot.key).copied().unwrap_or(id),
            Level::Group => id,
        };
        self.out.place.order = order;
        for lane in lanes {
            // One step may fire several of the rule's timers; each has its turn at its own time.
            let cost = self.step(id, source, lane, |context, state| context.advance(state));
            self.changed(id, cost);
        }
        self.arm(id);
    }

    fn deadline(&self, id: SlotId, lane: Lane) -> u64 {
        let rule = self.rules.get(lane.rule as usize);
        let state = self.slot(id).and_then(|slot| slot.state(lane));
        let (Some(rule), Some(state)) = (rule, state) else {
            return u64::MAX;
        };
        if !rule.enabled {
            return u64::MAX;
        }
        let set = match &rule.def.kind {
            Kind::Window(def) => Some(setting(def, None, self.limits.window_samples)),
            Kind::Pattern(_) | Kind::Threshold(_) | Kind::Absence(_) => None,
        };
        state.deadline(&rule.def, lane.history, set.as_ref())
    }

    /// Sets the timer of a key for one of its rules, if it is needed earlier than it stands. One
    /// that stands too early does no harm: it finds nothing due and is set anew.
    pub(super) fn arm_lane(&mut self, id: SlotId, lane: Lane) {
        let due = self.deadline(id, lane);
        self.arm_at(id, due);
    }

    /// Sets the timer of a key for all of its rules.
    pub(super) fn arm(&mut self, id: SlotId) {
        let Some(slot) = self.slot(id) else {
            return;
        };
        let lanes = slot.states.iter().map(|(lane, _)| self.deadline(id, *lane));
        let due = lanes.min().unwrap_or(u64::MAX);
        self.arm_at(id, due);
    }

    fn arm_at(&mut self, id: SlotId, due: u64) {
        let Some(slot) = self.slots.get_mut(id as usize).and_then(Option::as_mut) else {
            return;
        };
        if due < slot.armed {
            self.timers.remove(&(slot.armed, id));
            self.timers.insert((due, id));
            slot.armed = due;
        }
    }

    pub(super) fn disarm(&mut self, id: SlotId) {
        if let Some(slot) = self.slot_mut(id) {
            let armed = std::mem::replace(&mut slot.armed, u64::MAX);
            self.timers.remove(&(armed, id));
        }
    }
}
