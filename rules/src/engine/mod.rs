//! The engine: events of many devices through many rules, with keyed state.
//!
//! # Contract
//! *In*: [`handle_event`](Engine::handle_event), [`handle_birth`](Engine::handle_birth),
//! [`handle_death`](Engine::handle_death), [`advance_to`](Engine::advance_to), and what people do
//! ([`ack_alarm`](Engine::ack_alarm) and its neighbours). *Out*: after each of them take everything
//! from [`poll_output`](Engine::poll_output); [`poll_timeout`](Engine::poll_timeout) tells when to
//! call `advance_to` next. A spurious call does nothing.
//!
//! Time is engine time, an argument of every call, and never runs backwards. Each call first fires
//! the timers that were due before it, at their own times, so that outputs depend on what goes in
//! and when it happened, and not on when the caller found the time to say so.
//!
//! # Keys
//! A rule keeps state by device, by node, or by group. What a device's events mean to which rules is
//! found out once, and shared by all devices to which the same rules apply. An event costs one
//! look-up and the rules that look at its metric; one that matches nothing allocates nothing.
//!
//! # Time
//! A rule in arrival time runs an event the moment it comes, at engine time. A rule in event time
//! has a watermark for each key. History (`historical` events) reaches only the rules that ask for
//! it, in a lane of its own: its own state, in event time, with no commands.
//!
//! # Death and bad quality
//! When a device dies its partial matches go, and `current()` knows nothing of it until it is born
//! again. Alarms stay as they are, marked stale: nobody knows that anything returned to normal. A
//! sample whose quality is not good moves no threshold, window or absence and clears no alarm;
//! patterns may ask for `quality`.
//!
//! # Alarms of the program itself
//! What the gateway has to tell of itself is raised and cleared by name
//! ([`raise_own`](Engine::raise_own)), and is listed and operated as a rule's alarms are.
//!
//! # Bounds
//! [`Limits`]; what goes is counted and put out.
//!
//! # Shares
//! [`Engine::share`] makes one of several engines that divide the keys among them: each keeps the state of the keys that
//! are its own, and the last-known values that rules over its nodes and groups ask for. What they put out has a
//! [`Place`], by which their outputs come in one order, whatever runs them when.
//!
//! # Snapshots
//! [`dirty_keys`](Engine::dirty_keys) gives what changed, key by key;
//! [`restore`](Engine::restore) takes it back. Restored state and the events since give the very
//! outputs that the uninterrupted run gives.

mod births;
mod context;
mod evict;
mod fire;
mod keys;
mod life;
mod limits;
mod listing;
mod merge;
mod own;
mod people;
mod persist;
mod reload;
mod route;
mod run;
mod share;
mod slot;
mod state;
#[cfg(test)]
mod tests;
mod timers;
mod world;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

pub use births::{Finding, Mismatch};
pub use limits::Limits;
pub use listing::{AlarmInfo, Counts, RuleInfo};
pub use merge::Explained;
pub use own::OwnAlarm;
pub use share::{Lent, Place, Router, Share};

use context::{Context, Outbox, Rule};
use route::{Route, Table};
use slot::{Lane, Slot, signed};
use state::RuleState;
use world::{LastValues, Phrases, Taken, View};

use crate::alarm::Flood;
use crate::event::{Event, EventKind, Key, Level, Sample};
use crate::lang::def::{Pack, RuleDef};
use crate::lang::expr::{Expr, Scope};
use crate::lang::glob::Glob;
use crate::output::Output;
use crate::value::Value;

/// How a device or node died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeathCause {
    /// It said so.
    Death,
    /// Its will did: the connection broke.
    Will,
    /// The host gave it up.
    Stale,
    /// Its node died.
    Node,
}

impl DeathCause {
    /// The word in records and in the values of an absence.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Death => "death",
            Self::Will => "will",
            Self::Stale => "stale",
            Self::Node => "node",
        }
    }
}

/// A condition to be asked later: a command's `allow_when`, with what its match held.
#[derive(Clone, Debug)]
pub struct Guard {
    expr: Arc<Expr>,
    key: Arc<Key>,
    event: Option<Sample>,
    taken: Arc<Taken>,
    results: Arc<[Value]>,
}

impl Guard {
    /// The key whose values it looks at.
    #[must_use]
    pub fn source(&self) -> &Key {
        self.event.as_ref().map_or(&self.key, |event| &event.source)
    }

    /// The condition as it was written.
    #[must_use]
    pub fn text(&self) -> &str {
        self.expr.text()
    }
}

type SlotId = u32;

/// See the module.
#[derive(Debug)]
pub struct Engine {
    share: Share,
    limits: Limits,
    /// Engine time, ms.
    now: u64,
    /// Number of the input at hand.
    input: u64,
    /// Time and number of the last input.
    last_input: (u64, u64),
    /// Wall clock minus engine clock, ms, as far as known.
    wall_offset: Option<i64>,
    rules: Vec<Rule>,
    defs: Vec<Arc<RuleDef>>,
    slots: Vec<Option<Slot>>,
    free: Vec<SlotId>,
    devices: HashMap<Arc<Key>, SlotId>,
    nodes: HashMap<Arc<Key>, SlotId>,
    groups: HashMap<Arc<Key>, SlotId>,
    tables: HashMap<Box<[u32]>, Arc<Table>>,
    /// Kinds of births (rules and metrics) that were held against the rules, as hashes.
    checked: HashSet<u64>,
    timers: BTreeSet<(u64, SlotId)>,
    next_sweep: u64,
    out: Outbox,
    dirty: Vec<SlotId>,
    /// Snapshots of keys that are forgotten.
    gone: BTreeSet<Vec<u8>>,
    phrases: Phrases,
    flood: Flood,
    flood_alarm: Option<(Arc<str>, Key)>,
    /// Alarms of the program around the engine.
    owns: own::Owns,
    /// The engine's own entry is to be saved.
    own_dirty: bool,
    /// Keys that hold state.
    stateful: usize,
    /// Those of them that are another share's, of which last-known values are kept.
    lent: usize,
    /// Bytes of state.
    bytes: usize,
    /// Timestamps that were ahead of the wall clock.
    future: u64,
    evicted_keys: u64,
    /// Rules that are switched off, also such as are not loaded now.
    disabled: BTreeSet<Arc<str>>,
    unreadable: u64,
}

/// Keys are looked at for their age each time this much engine time has passed, ms.
const SWEEP_MS: u64 = 60_000;

impl Engine {
    /// An engine without state, at engine time 0.
    #[must_use]
    pub fn new(packs: Vec<Pack>, limits: Limits) -> Self {
        Self::share(packs, limits, Share::default())
    }

    /// As [`new`](Self::new), for some of the keys. Limits over all keys are divided evenly.
    #[must_use]
    pub fn share(packs: Vec<Pack>, limits: Limits, share: Share) -> Self {
        let limits = share.of_limits(limits);
        let mut engine = Self {
            share,
            limits,
            now: 0,
            input: 0,
            last_input: (0, 0),
            wall_offset: None,
            rules: Vec::new(),
            defs: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
            devices: HashMap::new(),
            nodes: HashMap::new(),
            groups: HashMap::new(),
            tables: HashMap::new(),
            checked: HashSet::new(),
            timers: BTreeSet::new(),
            next_sweep: SWEEP_MS,
            out: Outbox {
                queue: VecDeque::new(),
                most: limits.outputs,
                dropped: 0,
                place: Place::default(),
            },
            dirty: Vec::new(),
            gone: BTreeSet::new(),
            phrases: HashMap::new(),
            flood: Flood::default(),
            flood_alarm: None,
            owns: own::Owns::default(),
            own_dirty: false,
            stateful: 0,
            lent: 0,
            bytes: 0,
            future: 0,
            evicted_keys: 0,
            disabled: BTreeSet::new(),
            unreadable: 0,
        };
        engine.reload(packs);
        engine
    }

    /// Takes the next output.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.out.queue.pop_front().map(|(_, output)| output)
    }

    /// As [`poll_output`](Self::poll_output), with the output's place among those of all shares.
    pub fn poll_placed(&mut self) -> Option<(Place, Output)> {
        self.out.queue.pop_front()
    }

    /// Engine time, ms.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Tells the wall clock (ms UTC) at an engine time, once it can be believed. Timestamps further
    /// ahead of it than [`Limits::future_ms`] are then taken as its time and counted. In a replay,
    /// give the times at which records were received.
    pub fn set_wall(&mut self, engine_ms: u64, wall_ms: u64) {
        let offset = state::clock(wall_ms).saturating_sub(state::clock(engine_ms));
        // Kept to the second, so that a clock that is being slewed does not touch the state.
        let near = |known: i64| known.abs_diff(offset) < 1_000;
        if !self.wall_offset.is_some_and(near) {
            self.wall_offset = Some(offset);
            self.own_dirty = true;
        }
    }

    /// Wall clock minus engine clock, ms, as far as known; see [`set_wall`](Self::set_wall).
    #[must_use]
    pub fn wall_offset(&self) -> Option<i64> {
        self.wall_offset
    }

    /// Gives the vectors of phrases that rules compare with; see [`phrases`](Self::phrases).
    pub fn set_phrase(&mut self, phrase: &str, vector: &[f32]) {
        self.phrases.insert(phrase.into(), vector.into());
    }

    /// The phrases that rules name in `similar`, sorted.
    #[must_use]
    pub fn phrases(&self) -> Vec<Arc<str>> {
        let all = self
            .defs
            .iter()
            .flat_map(|def| def.uses.phrases.iter().cloned());
        all.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Whether a rule of this id names `similar` anywhere.
    #[must_use]
    pub fn compares_texts(&self, rule: &str) -> bool {
        self.defs
            .iter()
            .any(|def| *def.id == *rule && !def.uses.phrases.is_empty())
    }

    /// Whether a rule's scope names this group, one of what the gateway says of itself.
    #[must_use]
    pub fn names_group(&self, group: &str) -> bool {
        let named = |scope: &Glob| scope.as_str().starts_with('#') && scope.matches(group);
        self.defs.iter().any(|def| named(&def.scope.group))
    }

    /// The models that rules name in `score`, sorted.
    #[must_use]
    pub fn models(&self) -> Vec<Arc<str>> {
        let all = self
            .defs
            .iter()
            .flat_map(|def| def.uses.models.iter().cloned());
        all.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// A command's condition again, without the match that asked for it: after a restart. `None`: the rule is gone, or
    /// its command at that position (from 0) has another condition.
    #[must_use]
    pub fn guard(&self, rule: &str, position: usize, text: &str, source: Key) -> Option<Guard> {
        let def = self.defs.iter().find(|def| &*def.id == rule)?;
        let expr = def.commands.get(position)?.allow_when.clone()?;
        (expr.text() == text).then(|| Guard {
            expr,
            key: Arc::new(source),
            event: None,
            taken: Arc::new(Taken(Vec::new())),
            results: Arc::from([]),
        })
    }

    /// Whether a command's condition holds now. A condition that has no result does not.
    #[must_use]
    pub fn check(&self, guard: &Guard) -> bool {
        let source = guard
            .event
            .as_ref()
            .map_or(&guard.key, |event| &event.source);
        let nothing = LastValues::new();
        let slot = self.devices.get(&**source).and_then(|id| self.slot(*id));
        let view = View {
            last: slot.map_or(&nothing, |slot| &slot.last),
            now: self.now,
            phrases: &self.phrases,
        };
        let scope = Scope {
            event: guard.event.as_ref(),
            key: &guard.key,
            stages: &*guard.taken,
            world: &view,
            results: &guard.results,
        };
        guard.expr.holds(&scope).unwrap_or(false)
    }

    /// One value of one metric.
    pub fn handle_event(&mut self, event: &Event) {
        self.advance_to(event.engine_ms);
        let source = self.device_slot(&event.key);
        let table = self.table(source);
        let stream = table.stream(event);
        if stream.routes.is_empty() && !stream.remembers() {
            return;
        }
        let now = self.now;
        let limit = self.wall_offset.map(|offset| {
            let wall = state::clock(now).saturating_add(offset);
            (wall, wall.saturating_add(self.limits.future_ms))
        });
        let ahead = limit.filter(|(_, most)| event.time_ms > *most);
        if ahead.is_some() {
            self.future += 1;
        }
        let Some(slot) = self.slot_mut(source) else {
            return;
        };
        if slot.is_empty() {
            slot.touched = now;
        }
        let own = slot.own;
        let mut sample = Sample::of(event, &slot.key);
        if let Some((wall, _)) = ahead {
            sample.time_ms = wall;
        }
        if own.keeps(stream)
            && event.kind == EventKind::Metric
            && !event.historical
            && sample.is_good()
        {
            let cost = slot.remember(&event.metric, &event.value, now);
            self.changed(source, Some(cost));
        }
        // What changes is settled once a key, not once a rule.
        let mut costs = [None; 3];
        for route in &stream.routes {
            if event.historical && !route.historical || !own.has(route.level) {
                continue;
            }
            self.out.place.order = u64::from(route.rule);
            let place = route.level.number();
            if let (Some((target, cost)), Some(sum)) = (
                self.route(source, *route, &sample, event),
                costs.get_mut(place),
            ) {
                let (_, before) = sum.unwrap_or((target, 0));
                *sum = Some((target, before + cost));
            }
        }
        self.out.place.order = u64::MAX;
        for (target, cost) in costs.into_iter().flatten() {
            self.changed(target, Some(cost));
        }
    }

    /// Gives the key whose state changed, and by how many bytes.
    fn route(
        &mut self,
        source: SlotId,
        route: Route,
        sample: &Sample,
        event: &Event,
    ) -> Option<(SlotId, isize)> {
        let rule = self.rules.get(route.rule as usize).filter(|r| r.enabled)?;
        let absence = matches!(rule.def.kind, crate::lang::def::Kind::Absence(_));
        // A birth that repeats what is known is a sign of life and nothing else.
        if event.unchanged && !absence {
            return None;
        }
        let lane = Lane {
            rule: route.rule,
            history: event.historical,
        };
        let target = match route.level {
            Level::Device => source,
            level => self.slot_of(level, &event.key, source),
        };
        let cost = self.step(target, source, lane, |context, state| {
            context.handle(state, sample, route.role);
        })?;
        Some((target, cost))
    }

    /// Runs a step of one rule for one key. `source` is the device whose last-known values count.
    /// Returns by how many bytes the key's state changed; `None` if there was and is none.
    fn step(
        &mut self,
        target: SlotId,
        source: SlotId,
        lane: Lane,
        run: impl FnOnce(&mut Context<'_>, &mut RuleState),
    ) -> Option<isize> {
        let def = self.defs.get(lane.rule as usize)?.clone();
        let slot = self.slot_mut(target)?;
        let (mut known, key) = (slot.take(lane), slot.key.clone());
        let before = known.as_ref().map_or(0, |state| state.cost());
        let was_known = known.is_some();
        let mut fresh = None;
        let state = match &mut known {
            Some(state) => &mut **state,
            None => fresh.insert(RuleState::new(&def)),
        };
        let nothing = LastValues::new();
        let last = self.slots.get(source as usize).and_then(Option::as_ref);
        let rule = self.rules.get_mut(lane.rule as usize)?;
        let mut context = Context {
            rule,
            def: &def,
            key: &key,
            last: last.map_or(&nothing, |slot| &slot.last),
            phrases: &self.phrases,
            out: &mut self.out,
            flood: self
                .share
                .alone()
                .then_some((&mut self.flood, &mut self.flood_alarm)),
            limits: &self.limits,
            now: self.now,
            history: lane.history,
        };
        run(&mut context, state);
        let idle = state.is_idle();
        let after = if idle { 0 } else { state.cost() };
        if idle && !was_known {
            return None;
        }
        // An idle state is forgotten; a new one moves into memory of its own only now.
        let kept = if idle {
            None
        } else {
            known.or_else(|| fresh.map(Box::new))
        };
        let now = self.now;
        if let Some(slot) = self.slot_mut(target) {
            slot.put(lane, kept);
            // Before anything is given up, so that this key is not taken for an old one.
            slot.touched = now;
        }
        self.arm_lane(target, lane);
        Some(signed(after) - signed(before))
    }
}
