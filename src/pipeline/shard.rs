//! The rules over worker threads, sharded by key.
//!
//! With one worker, the default, an event is evaluated by the thread that read it, with no hop. With more, each worker
//! owns an engine with the state of its share of the keys ([`rules::Share`]); nothing is shared and nothing is locked.
//! Inputs go to the workers of their keys over bounded queues, in pieces; [`Rules::join`] waits until every worker has
//! done all of them and merges what they put out by its [`rules::Place`], so that what comes out, and in which order, is
//! a function of what went in and does not depend on threads. The workers evaluate while the core reads on, up to the
//! next join; the task joins after every few messages.
//!
//! Until [`Rules::start`] the engines are run by the caller, as in a recovery. Snapshots are by key and the same for any
//! number of workers.

mod questions;
mod worker;

use std::collections::VecDeque;
use std::sync::Arc;

use rules::{DeathCause, Engine, Event, Key, Limits, Output, Pack, Place, Router, Share};
use worker::{Holder, Input, Worker, harvest, run};

/// Every worker is told the time this often, for keys that have grown old, ms.
const SWEEP_MS: u64 = 60_000;

struct Holding {
    holder: Holder,
    /// It was given something since the last join.
    moved: bool,
    timeout: Option<u64>,
}

/// See the module.
pub struct Rules {
    shares: Vec<Holding>,
    router: Router,
    merged: VecDeque<Output>,
    /// Engine time, ms.
    now: u64,
    input: u64,
    swept: u64,
    flood: Option<u64>,
    /// Wall clock minus engine clock that the workers know, ms.
    wall: Option<i64>,
    failed: bool,
}

impl From<Engine> for Rules {
    fn from(engine: Engine) -> Self {
        Self::of(vec![engine], Router::new(&[], 1))
    }
}

impl Rules {
    /// Rules without state over so many workers.
    #[must_use]
    pub fn new(packs: Vec<Pack>, limits: Limits, workers: u32) -> Self {
        let of = workers.max(1);
        let router = Router::new(&packs, of);
        let share = |index| Engine::share(packs.clone(), limits, Share::new(index, of));
        Self::of((0..of).map(share).collect(), router)
    }

    fn of(engines: Vec<Engine>, router: Router) -> Self {
        let holding = |engine| Holding {
            holder: Holder::Here(Box::new(engine)),
            moved: false,
            timeout: None,
        };
        Self {
            shares: engines.into_iter().map(holding).collect(),
            router,
            merged: VecDeque::new(),
            now: 0,
            input: 0,
            swept: 0,
            flood: None,
            wall: None,
            failed: false,
        }
    }

    /// Gives each share a thread of its own, if there are several.
    ///
    /// # Errors
    /// A thread can't be made.
    pub fn start(&mut self) -> std::io::Result<()> {
        if self.shares.len() < 2 {
            return Ok(());
        }
        let shares = std::mem::take(&mut self.shares);
        for (number, mut share) in shares.into_iter().enumerate() {
            if let Holder::Here(engine) = share.holder {
                share.holder = Holder::Thread(Worker::start(number, *engine)?);
            }
            share.moved = true;
            self.shares.push(share);
        }
        Ok(())
    }

    /// Whether what comes out has to be waited for with [`join`](Self::join).
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shares.len() > 1
    }

    /// A worker is gone: what its keys would do is not known any more, and the process is to end.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.failed
    }

    fn alone(&mut self) -> Option<&mut Engine> {
        match self.shares.as_mut_slice() {
            [
                Holding {
                    holder: Holder::Here(engine),
                    ..
                },
            ] => Some(engine),
            _ => None,
        }
    }

    // --- inputs

    /// See [`Engine::handle_event`].
    pub fn handle_event(&mut self, event: &Event) {
        if let Some(engine) = self.alone() {
            return engine.handle_event(event);
        }
        self.now = self.now.max(event.engine_ms);
        self.give(&event.key, || Input::Event(Box::new(event.clone())));
    }

    /// See [`Engine::handle_birth`].
    pub fn handle_birth(&mut self, key: &Key, engine_ms: u64) {
        if let Some(engine) = self.alone() {
            return engine.handle_birth(key, engine_ms);
        }
        self.now = self.now.max(engine_ms);
        self.give(key, || Input::Birth(key.clone(), engine_ms));
    }

    /// See [`Engine::handle_death`].
    pub fn handle_death(&mut self, key: &Key, engine_ms: u64, cause: DeathCause) {
        if let Some(engine) = self.alone() {
            return engine.handle_death(key, engine_ms, cause);
        }
        self.now = self.now.max(engine_ms);
        self.give(key, || Input::Death(key.clone(), engine_ms, cause));
    }

    fn give(&mut self, key: &Key, make: impl Fn() -> Input) {
        self.input += 1;
        let mut failed = false;
        for share in self.router.shares(key) {
            let Some(share) = self.shares.get_mut(share as usize) else {
                continue;
            };
            share.moved = true;
            match &mut share.holder {
                Holder::Here(engine) => run(engine, self.input, make()),
                Holder::Thread(worker) => failed |= !worker.give(self.input, make()),
            }
        }
        self.failed |= failed;
    }

    /// See [`Engine::advance_to`]; with several workers at the next [`join`](Self::join).
    pub fn advance_to(&mut self, engine_ms: u64) {
        if let Some(engine) = self.alone() {
            return engine.advance_to(engine_ms);
        }
        self.now = self.now.max(engine_ms);
    }

    /// See [`Engine::set_wall`].
    pub fn set_wall(&mut self, engine_ms: u64, wall_ms: u64) {
        if let Some(engine) = self.alone() {
            return engine.set_wall(engine_ms, wall_ms);
        }
        // Most calls tell nothing new, and no worker needs to hear of them.
        let signed = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
        let offset = signed(wall_ms).saturating_sub(signed(engine_ms));
        if self
            .wall
            .is_some_and(|known| known.abs_diff(offset) < 1_000)
        {
            return;
        }
        let known = self.each(move |engine| {
            engine.set_wall(engine_ms, wall_ms);
            engine.wall_offset()
        });
        self.wall = known.into_iter().flatten().next();
    }

    // --- outputs

    /// See [`Engine::poll_output`]. With several workers: what was there at the last [`join`](Self::join).
    pub fn poll_output(&mut self) -> Option<Output> {
        match self.alone() {
            Some(engine) => engine.poll_output(),
            None => self.merged.pop_front(),
        }
    }

    /// See [`Engine::poll_timeout`]. With several workers: as of the last [`join`](Self::join).
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        if let [
            Holding {
                holder: Holder::Here(engine),
                ..
            },
        ] = self.shares.as_slice()
        {
            return engine.poll_timeout();
        }
        let timers = self.shares.iter().filter_map(|share| share.timeout);
        timers.chain(self.flood).min()
    }

    /// Waits until every worker has done what it was given and the timers due by now, and merges what came out.
    pub fn join(&mut self) {
        if self.alone().is_some() {
            return;
        }
        let now = self.now;
        let sweep = now / SWEEP_MS > self.swept / SWEEP_MS;
        let mut waited = Vec::new();
        for (number, share) in self.shares.iter_mut().enumerate() {
            if share.moved || sweep || share.timeout.is_some_and(|at| at <= now) {
                share.moved = false;
                self.failed |= !share.holder.ask_to_join(now);
                waited.push(number);
            }
        }
        if waited.is_empty() && self.flood.is_none_or(|at| at > now) {
            return;
        }
        self.swept = now;
        let mut outputs = Vec::new();
        for number in waited {
            outputs.extend(self.joined(number));
        }
        outputs.sort_by_key(|(place, _)| *place);
        let raises: Vec<_> = outputs.iter().filter_map(|(_, o)| raise(o)).collect();
        self.merged.extend(outputs.into_iter().map(|(_, o)| o));
        if !raises.is_empty() || self.flood.is_some_and(|at| at <= now) {
            self.on(0, move |engine| engine.note_raises(&raises, now));
            if let Some(first) = self.shares.first_mut() {
                self.failed |= !first.holder.ask_to_join(now);
            }
            let told = self.joined(0);
            self.merged.extend(told.into_iter().map(|(_, o)| o));
        }
    }

    fn joined(&mut self, number: usize) -> Vec<(Place, Output)> {
        let Some(share) = self.shares.get_mut(number) else {
            return Vec::new();
        };
        let done = match &mut share.holder {
            Holder::Here(engine) => Some(harvest(engine, self.now)),
            Holder::Thread(worker) => worker.done.recv().ok(),
        };
        self.failed |= done.is_none();
        let done = done.unwrap_or_default();
        share.timeout = done.timeout;
        if number == 0 {
            self.flood = done.flood;
        }
        done.outputs
    }
}

/// What counts towards a flood.
fn raise(output: &Output) -> Option<(u64, Arc<str>, Key)> {
    match output {
        Output::Alarm(event)
            if event.event == rules::AlarmAction::Raise
                && !event.historical
                && !super::own::is_own(event) =>
        {
            Some((event.engine_ms, event.rule.clone(), event.key.clone()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
