//! Alarms by ISA-18.2: the state of one alarm of one key.
//!
//! The condition of a rule goes in ([`Alarm::on`], [`Alarm::off`]), as do time and what people do;
//! what comes out are [`AlarmAction`]s for the caller to report. Shelved, suppressed and
//! out-of-service alarms go on being evaluated and reported, with the state that says so, so that
//! nothing is lost while nobody looks.
//!
//! | from | condition on | condition off | acknowledge | reset |
//! |---|---|---|---|---|
//! | normal | unack | | refused | refused |
//! | unack | | rtn-unack, or latched-unack | ack | refused |
//! | ack | | normal, or latched-ack | refused | refused |
//! | rtn-unack | unack, a new occurrence | | normal | refused |
//! | latched-unack | unack, a new occurrence | | latched-ack | rtn-unack |
//! | latched-ack | unack, a new occurrence | | refused | normal |

mod flood;
mod people;
mod store;
#[cfg(test)]
mod tests;

pub(crate) use flood::Flood;
pub use people::AlarmError;
pub(crate) use store::read_cause;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::event::Cause;
use crate::lang::def::{AlarmDef, Flap};
use crate::output::{AlarmAction, AlarmStatus, Values};

/// How an alarm behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Timing {
    pub(crate) on_delay: u64,
    pub(crate) off_delay: u64,
    pub(crate) latch: bool,
    /// Nothing but an acknowledgement ends it.
    pub(crate) until_ack: bool,
    pub(crate) flap: Option<Flap>,
}

impl Timing {
    pub(crate) fn of(def: &AlarmDef, until_ack: bool) -> Self {
        Self {
            on_delay: def.on_delay,
            off_delay: def.off_delay,
            latch: def.latch,
            until_ack,
            flap: def.flap,
        }
    }
}

/// One occurrence: what was so when the condition came true.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Occurrence {
    pub(crate) id: Arc<str>,
    pub(crate) message: Arc<str>,
    pub(crate) values: Values,
    pub(crate) cause: Cause,
    /// Event time of the cause, ms UTC.
    pub(crate) time_ms: Option<i64>,
    /// When it was raised, engine time in ms.
    pub(crate) since: u64,
}

/// Who acknowledged, and what he wrote.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Acked {
    pub(crate) by: Arc<str>,
    pub(crate) note: Arc<str>,
    pub(crate) at: u64,
}

/// How long an alarm is shelved.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shelf {
    /// Engine time in ms; `None`: until it clears.
    pub(crate) until: Option<u64>,
    pub(crate) by: Arc<str>,
}

/// One alarm of one key.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Alarm {
    /// The occurrence that is not over, or the last one while a person holds the alarm.
    occurrence: Option<Occurrence>,
    /// The occurrence that `on_delay` keeps waiting.
    candidate: Option<Occurrence>,
    active: bool,
    latched: bool,
    /// Returned or active, and nobody has seen it.
    unacked: bool,
    acked: Option<Acked>,
    /// The condition changes `active` at this engine time, ms.
    due: Option<u64>,
    /// Condition as it is now.
    condition: bool,
    shelf: Option<Shelf>,
    suppressed: bool,
    out_of_service: bool,
    stale: bool,
    /// Times of the last raises; only with flap detection.
    raises: VecDeque<u64>,
}

impl Alarm {
    pub(crate) fn status(&self) -> AlarmStatus {
        if self.out_of_service {
            AlarmStatus::OutOfService
        } else if self.suppressed {
            AlarmStatus::Suppressed
        } else if self.shelf.is_some() {
            AlarmStatus::Shelved
        } else {
            self.bare_status()
        }
    }

    /// The state below shelving, suppression and service.
    pub(crate) fn bare_status(&self) -> AlarmStatus {
        match (self.active, self.latched, self.unacked) {
            (true, _, true) => AlarmStatus::Unack,
            (true, _, false) => AlarmStatus::Ack,
            (false, true, true) => AlarmStatus::LatchedUnack,
            (false, true, false) => AlarmStatus::LatchedAck,
            (false, false, true) => AlarmStatus::RtnUnack,
            (false, false, false) => AlarmStatus::Normal,
        }
    }

    /// Nothing to remember: the alarm may be dropped and made anew.
    pub(crate) fn is_idle(&self) -> bool {
        self.status() == AlarmStatus::Normal && self.candidate.is_none() && self.raises.is_empty()
    }

    pub(crate) fn is_active(&self) -> bool {
        self.active
    }

    pub(crate) fn is_unacked(&self) -> bool {
        self.unacked
    }

    pub(crate) fn is_stale(&self) -> bool {
        self.stale
    }

    pub(crate) fn acked(&self) -> Option<&Acked> {
        self.acked.as_ref()
    }

    pub(crate) fn shelf(&self) -> Option<&Shelf> {
        self.shelf.as_ref()
    }

    pub(crate) fn occurrence(&self) -> Option<&Occurrence> {
        self.occurrence.as_ref()
    }

    /// The earliest engine time at which [`advance`](Self::advance) does something, ms.
    pub(crate) fn deadline(&self) -> Option<u64> {
        let shelf = self.shelf.as_ref().and_then(|shelf| shelf.until);
        self.due.into_iter().chain(shelf).min()
    }

    /// The condition is true. `make` gives the occurrence it would be, or what has changed in it.
    pub(crate) fn on(
        &mut self,
        timing: &Timing,
        now: u64,
        make: impl FnOnce() -> Occurrence,
    ) -> Option<AlarmAction> {
        self.condition = true;
        if self.active {
            // A return that was under way did not happen.
            self.due = None;
            return self.change(make());
        }
        if self.candidate.is_none() {
            self.candidate = Some(make());
        }
        if timing.on_delay == 0 {
            return self.raise(timing, now);
        }
        self.due.get_or_insert(now.saturating_add(timing.on_delay));
        None
    }

    /// The condition is false.
    pub(crate) fn off(&mut self, timing: &Timing, now: u64) -> Vec<AlarmAction> {
        self.condition = false;
        self.candidate = None;
        if !self.active {
            self.due = None;
            return Vec::new();
        }
        let delay = timing.off_delay.max(self.calm(timing, now));
        if delay == 0 {
            return self.clear(timing);
        }
        self.due.get_or_insert(now.saturating_add(delay));
        Vec::new()
    }

    /// Whether the condition was true when last heard of.
    pub(crate) fn condition(&self) -> bool {
        self.condition
    }

    /// Engine time has come to `now`: delays and shelving end.
    pub(crate) fn advance(&mut self, timing: &Timing, now: u64) -> Vec<AlarmAction> {
        let mut actions = Vec::new();
        if self.due.is_some_and(|due| due <= now) {
            self.due = None;
            if self.condition && !self.active {
                actions.extend(self.raise(timing, now));
            } else if !self.condition && self.active {
                actions.extend(self.clear(timing));
            }
        }
        let over = |shelf: &Shelf| shelf.until.is_some_and(|until| until <= now);
        if self.shelf.as_ref().is_some_and(over) {
            self.shelf = None;
            actions.push(AlarmAction::Unshelve);
        }
        self.forget_raises(timing, now);
        actions
    }

    /// The source died, or is good again. A dead source returns nothing to normal: a return that
    /// waits for its delay is called off, and so is a raise.
    pub(crate) fn set_stale(&mut self, stale: bool) -> Option<AlarmAction> {
        if stale {
            self.due = None;
            self.candidate = None;
            self.condition = self.active;
        }
        let changed = std::mem::replace(&mut self.stale, stale) != stale;
        (changed && self.occurrence.is_some()).then_some(AlarmAction::Change)
    }

    fn raise(&mut self, timing: &Timing, now: u64) -> Option<AlarmAction> {
        let mut occurrence = self.candidate.take()?;
        occurrence.since = now;
        self.occurrence = Some(occurrence);
        self.due = None;
        (self.active, self.unacked, self.latched) = (true, true, false);
        self.acked = None;
        if let Some(flap) = timing.flap {
            self.raises.push_back(now);
            while self.raises.len() > flap.count as usize {
                self.raises.pop_front();
            }
        }
        Some(AlarmAction::Raise)
    }

    fn change(&mut self, new: Occurrence) -> Option<AlarmAction> {
        let occurrence = self.occurrence.as_mut()?;
        if occurrence.message == new.message {
            return None;
        }
        occurrence.message = new.message;
        occurrence.values = new.values;
        occurrence.cause = new.cause;
        occurrence.time_ms = new.time_ms;
        Some(AlarmAction::Change)
    }

    fn clear(&mut self, timing: &Timing) -> Vec<AlarmAction> {
        self.active = false;
        self.due = None;
        self.latched = timing.latch;
        let mut actions = vec![AlarmAction::Clear];
        if self.shelf.as_ref().is_some_and(|s| s.until.is_none()) {
            self.shelf = None;
            actions.push(AlarmAction::Unshelve);
        }
        actions
    }

    /// How long the condition must stay away because the alarm comes and goes too often, ms.
    fn calm(&self, timing: &Timing, now: u64) -> u64 {
        match timing.flap {
            Some(flap)
                if self.raises.len() >= flap.count as usize
                    && self
                        .raises
                        .front()
                        .is_some_and(|first| now.saturating_sub(*first) <= flap.within) =>
            {
                flap.within
            }
            _ => 0,
        }
    }

    fn forget_raises(&mut self, timing: &Timing, now: u64) {
        let within = timing.flap.map_or(0, |flap| flap.within);
        let old = |first: &u64| now.saturating_sub(*first) > within;
        while self.raises.front().is_some_and(old) {
            self.raises.pop_front();
        }
    }

    /// Names an alarm that a person holds while it is normal.
    pub(crate) fn name(&mut self, occurrence: Occurrence) {
        self.occurrence = Some(occurrence);
    }

    /// Forgets an occurrence that is over, after it was reported.
    pub(crate) fn settle(&mut self) {
        if self.status() == AlarmStatus::Normal {
            self.occurrence = None;
            self.acked = None;
        }
    }
}
