//! What one rule remembers of one key.

use std::collections::BTreeMap;

use crate::absence::Absence;
use crate::alarm::Alarm;
use crate::event::Sample;
use crate::lang::def::{Kind, RuleDef, Time};
use crate::pattern::KeyState;
use crate::threshold::Threshold;
use crate::window::{Setting, Window};

/// State of the kind.
#[derive(Clone, Debug)]
pub(crate) enum KindState {
    /// `None` while no partial match is held.
    Pattern(Option<Box<KeyState<Sample>>>),
    Threshold(Threshold),
    /// `None` until the key was born or heard of.
    Absence(Option<Absence>),
    Window(Window),
}

/// Event time of one rule and key: its own watermark, so that one device with a wrong clock holds
/// up nobody else.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EventClock {
    /// Every event up to here is taken to be there, ms UTC.
    pub(crate) watermark: i64,
    /// What waits, by time and order of arrival, and what it is for.
    pub(crate) waiting: BTreeMap<(i64, u64), (Sample, Role)>,
    /// Order of the next arrival.
    pub(crate) order: u64,
}

impl Default for EventClock {
    fn default() -> Self {
        Self {
            watermark: i64::MIN,
            waiting: BTreeMap::new(),
            order: 0,
        }
    }
}

/// What an event is to a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Role {
    /// One of the events the rule looks at.
    pub(crate) stream: bool,
    /// May clear its alarm.
    pub(crate) clear: bool,
}

/// Failures of a rule's expressions on one key.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Failures {
    pub(crate) count: u64,
    /// Those since the last quiet time.
    pub(crate) run: u32,
    /// Engine time of the last one, ms.
    pub(crate) last: u64,
    pub(crate) alarm: Alarm,
}

/// This many failures without a quiet time between raise an alarm.
pub(crate) const FAILURES: u32 = 3;
/// Without failures for so long, they are over, ms.
pub(crate) const QUIET_MS: u64 = 600_000;

/// Everything a rule remembers of one key.
#[derive(Clone, Debug)]
pub(crate) struct RuleState {
    pub(crate) kind: KindState,
    pub(crate) clock: Option<Box<EventClock>>,
    pub(crate) alarm: Option<Box<Alarm>>,
    /// The event that a delay or the next timer will be about.
    pub(crate) event: Option<Sample>,
    /// A window's condition held when last put out.
    pub(crate) level: bool,
    pub(crate) failures: Option<Box<Failures>>,
}

impl RuleState {
    pub(crate) fn new(def: &RuleDef) -> Self {
        Self {
            kind: match &def.kind {
                Kind::Pattern(_) => KindState::Pattern(None),
                Kind::Threshold(_) => KindState::Threshold(Threshold::default()),
                Kind::Absence(_) => KindState::Absence(None),
                Kind::Window(def) => KindState::Window(Window::new(def.kind)),
            },
            clock: None,
            alarm: None,
            event: None,
            level: false,
            failures: None,
        }
    }

    /// Whether it may be dropped and made anew without a difference.
    pub(crate) fn is_idle(&self) -> bool {
        let kind = match &self.kind {
            KindState::Pattern(state) => state.as_ref().is_none_or(|state| state.is_idle()),
            KindState::Threshold(state) => state.is_idle(),
            KindState::Absence(state) => state.is_none(),
            KindState::Window(window) => window.is_idle(),
        };
        kind && self.clock.is_none()
            && self.failures.is_none()
            && !self.level
            && self.alarm.as_ref().is_none_or(|alarm| alarm.is_idle())
    }

    pub(crate) fn partials(&self) -> usize {
        match &self.kind {
            KindState::Pattern(state) => state.as_ref().map_or(0, |state| state.partial_matches()),
            KindState::Threshold(_) | KindState::Absence(_) | KindState::Window(_) => 0,
        }
    }

    /// When time alone will do something next, ms of engine time. Event time is moved by events.
    pub(crate) fn deadline(&self, def: &RuleDef, history: bool, set: Option<&Setting<'_>>) -> u64 {
        let failures = self
            .failures
            .as_ref()
            .map_or(u64::MAX, |f| f.last.saturating_add(QUIET_MS));
        if history {
            return failures;
        }
        let alarm = self.alarm.as_ref().and_then(|alarm| alarm.deadline());
        let kind = match (&self.kind, &def.kind, def.time) {
            (KindState::Threshold(state), _, _) => state.deadline(),
            (KindState::Absence(Some(state)), Kind::Absence(def), _) => state.deadline(def),
            (KindState::Pattern(Some(state)), Kind::Pattern(def), Time::Arrival) => {
                def.plan.next_deadline(state).map(engine)
            }
            (KindState::Window(window), _, Time::Arrival) => {
                set.and_then(|set| window.deadline(set)).map(engine)
            }
            _ => None,
        };
        let due = alarm.into_iter().chain(kind).min();
        due.unwrap_or(u64::MAX).min(failures)
    }

    /// Bytes, reckoned from what is held and not from what is allocated, so that a restored state
    /// counts the same.
    pub(crate) fn cost(&self) -> usize {
        const EVENT: usize = size_of::<Sample>() + 64;
        const ALARM: usize = size_of::<Alarm>() + 512;
        let kind = match &self.kind {
            KindState::Pattern(Some(state)) => {
                size_of::<KeyState<Sample>>()
                    + 64 * state.partial_matches()
                    + EVENT * state.events()
            }
            KindState::Pattern(None) => 0,
            KindState::Threshold(_) | KindState::Absence(_) => 0,
            KindState::Window(window) => 128 * window.held(),
        };
        let waiting = self
            .clock
            .as_ref()
            .map_or(0, |c| 64 + EVENT * c.waiting.len());
        let alarm = if self.alarm.is_some() { ALARM } else { 0 };
        let failures = if self.failures.is_some() { ALARM } else { 0 };
        size_of::<Self>() + kind + waiting + alarm + failures
    }
}

/// A time of the rule's clock as engine time.
pub(crate) fn engine(ts: i64) -> u64 {
    u64::try_from(ts).unwrap_or(0)
}

/// Engine time as time of the rule's clock.
pub(crate) fn clock(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}
