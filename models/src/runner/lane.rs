//! One model's queue and what is known about it. Everything here is short work under a
//! lock that is never held while a model runs, so that submitting never waits for one.

use super::drift::Drift;
use super::event::{Event, Request, Skipped};
use super::thin::Thinner;
use crate::backend::BackendId;
use crate::load::{ActiveModel, PassedOver};
use crate::manifest::{Arithmetic, Manifest, WhenFull};
use crate::slo::{Change, Mode, Slo};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// Latencies that the percentiles of the status are drawn from.
const KEEP: usize = 512;
/// Events that may wait for the lane's thread.
const MAX_OUTBOX: usize = 256;

/// What is to become of a request's result.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Purpose {
    /// Handed out.
    Answer,
    /// Handed out as the answer of a lighter model for the one that was asked.
    Fallback(Arc<str>),
    /// Thrown away: it only shows how fast the model is now.
    Probe,
    /// Handed out as a shadow and compared with the active model's answer.
    Shadow {
        /// The active model's verdict.
        verdict: Arc<str>,
        /// The active model's deciding output.
        score: f64,
    },
}

#[derive(Debug)]
pub(super) struct Job {
    pub(super) request: Request,
    pub(super) queued: Instant,
    pub(super) purpose: Purpose,
}

/// What the owner asks of a lane's thread.
pub(super) enum Command {
    Swap(Box<ActiveModel>),
    Rollback,
    /// Hand the model over and end.
    Surrender(mpsc::SyncSender<ActiveModel>),
}

#[derive(Debug, Default)]
pub(super) struct Stats {
    pub(super) runs: u64,
    pub(super) batches: u64,
    pub(super) fallback_answers: u64,
    pub(super) probes: u64,
    pub(super) degraded: u64,
    pub(super) skipped: BTreeMap<&'static str, u64>,
    pub(super) no_verdict: BTreeMap<&'static str, u64>,
    pub(super) verdicts: BTreeMap<Arc<str>, u64>,
    pub(super) latencies: VecDeque<u64>,
    pub(super) run_us: VecDeque<u64>,
    /// One for each of the manifest's references.
    pub(super) drift: Vec<Drift>,
    pub(super) compared: u64,
    pub(super) agreed: u64,
    pub(super) difference: f64,
}

impl Stats {
    pub(super) fn skip(&mut self, reason: &'static str) {
        *self.skipped.entry(reason).or_insert(0) += 1;
    }

    pub(super) fn keep(list: &mut VecDeque<u64>, value: u64) {
        if list.len() >= KEEP {
            list.pop_front();
        }
        list.push_back(value);
    }
}

pub(super) struct State {
    pub(super) queue: VecDeque<Job>,
    pub(super) manifest: Arc<Manifest>,
    /// None once no backend runs the model any more.
    pub(super) backend: Option<BackendId>,
    pub(super) arithmetic: Arithmetic,
    pub(super) passed_over: Vec<PassedOver>,
    pub(super) has_previous: bool,
    pub(super) slo: Slo,
    pub(super) stats: Stats,
    pub(super) busy_since: Option<Instant>,
    pub(super) inbox: VecDeque<Command>,
    pub(super) outbox: VecDeque<Event>,
    pub(super) stopping: bool,
    thinner: Thinner,
}

/// What became of a request at the door.
#[derive(Debug)]
pub(super) enum Admission {
    /// It waits in the queue.
    Queued,
    /// The lighter model is to answer it.
    Lighter(Arc<str>, Request),
}

pub(super) struct Lane {
    pub(super) name: Arc<str>,
    /// A candidate's lane: nobody else answers for it, and it raises no alarm.
    pub(super) candidate: bool,
    pub(super) epoch: Instant,
    state: Mutex<State>,
    wake: Condvar,
}

pub(super) fn micros(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.saturating_duration_since(from).as_micros()).unwrap_or(u64::MAX)
}

impl Lane {
    pub(super) fn new(model: &ActiveModel, epoch: Instant, candidate: bool) -> Self {
        let manifest = model.files.manifest.clone();
        Self {
            name: manifest.name.clone(),
            candidate,
            epoch,
            state: Mutex::new(State {
                queue: VecDeque::new(),
                slo: objective(&manifest, micros(epoch, Instant::now())),
                manifest,
                backend: Some(model.backend),
                arithmetic: model.arithmetic,
                passed_over: model.passed_over.clone(),
                has_previous: false,
                stats: Stats::default(),
                busy_since: None,
                inbox: VecDeque::new(),
                outbox: VecDeque::new(),
                stopping: false,
                thinner: Thinner::default(),
            }),
            wake: Condvar::new(),
        }
    }

    /// A panic under the lock leaves counters at worst one step behind.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn notify(&self) {
        self.wake.notify_all();
    }

    pub(super) fn wait<'a>(
        &self,
        guard: MutexGuard<'a, State>,
        limit: Duration,
    ) -> MutexGuard<'a, State> {
        self.wake
            .wait_timeout(guard, limit)
            .unwrap_or_else(PoisonError::into_inner)
            .0
    }

    /// A request for an answer: queued, left out, or to be sent to the lighter model.
    pub(super) fn admit(
        &self,
        request: Request,
        purpose: Purpose,
        now: Instant,
    ) -> Result<Admission, Skipped> {
        let mut state = self.lock();
        let result = state.admit(&self.name, request, purpose, now, micros(self.epoch, now));
        if let Err(reason) = &result {
            state.stats.skip(skip_name(*reason));
        }
        drop(state);
        self.notify();
        result
    }

    /// A request that comes by another way than [`Self::admit`].
    pub(super) fn enqueue(&self, job: Job) -> Result<(), Skipped> {
        let mut state = self.lock();
        let result = state.enqueue(job);
        if let Err(reason) = &result {
            state.stats.skip(skip_name(*reason));
        }
        drop(state);
        self.notify();
        result
    }

    pub(super) fn command(&self, command: Command) {
        self.lock().inbox.push_back(command);
        self.notify();
    }
}

pub(super) fn objective(manifest: &Manifest, now_us: u64) -> Slo {
    let objective = &manifest.objective;
    Slo::new(
        objective.latency_p95.micros(),
        objective.window.micros(),
        manifest.lighter.is_some(),
        now_us,
    )
}

pub(super) fn skip_name(skipped: Skipped) -> &'static str {
    match skipped {
        Skipped::UnknownModel => "unknown-model",
        Skipped::WrongShape => "wrong-shape",
        Skipped::QueueFull => "queue-full",
        Skipped::Thinned => "thinned",
        Skipped::Unavailable => "unavailable",
        Skipped::Stopping => "stopping",
    }
}

impl State {
    fn admit(
        &mut self,
        name: &Arc<str>,
        request: Request,
        purpose: Purpose,
        now: Instant,
        now_us: u64,
    ) -> Result<Admission, Skipped> {
        self.check(&request)?;
        // A run that does not come back makes no latency: what it has taken so far counts.
        if let Some(taken) = self.busy_since.map(|since| micros(since, now))
            && taken > self.slo.objective_us()
            && let Some(change) = self.slo.record(taken, now_us)
        {
            self.tell(name, change);
        }
        match self.slo.mode() {
            Mode::Lighter => {
                if let Some(lighter) = self.manifest.lighter.clone() {
                    self.probe(&request, now, now_us);
                    return Ok(Admission::Lighter(lighter, request));
                }
            }
            Mode::Thin(k) if !self.thinner.keeps(&request.key, k) => return Err(Skipped::Thinned),
            Mode::Thin(_) | Mode::Own => {}
        }
        self.enqueue(Job {
            request,
            queued: now,
            purpose,
        })?;
        Ok(Admission::Queued)
    }

    fn probe(&mut self, request: &Request, now: Instant, now_us: u64) {
        if self.queue.is_empty() && self.busy_since.is_none() && self.slo.wants_probe(now_us) {
            self.stats.probes += 1;
            self.queue.push_back(Job {
                request: request.clone(),
                queued: now,
                purpose: Purpose::Probe,
            });
        }
    }

    fn check(&self, request: &Request) -> Result<(), Skipped> {
        if self.stopping {
            return Err(Skipped::Stopping);
        }
        if self.backend.is_none() {
            return Err(Skipped::Unavailable);
        }
        let inputs = self.manifest.inputs.len();
        let fits = request.points.len() == inputs * self.manifest.window.points
            && request.ages.len() == inputs;
        if fits {
            Ok(())
        } else {
            Err(Skipped::WrongShape)
        }
    }

    fn enqueue(&mut self, job: Job) -> Result<(), Skipped> {
        self.check(&job.request)?;
        if self.queue.len() >= self.manifest.limits.queue {
            match self.manifest.limits.when_full {
                WhenFull::RefuseNew => return Err(Skipped::QueueFull),
                WhenFull::DropOldest => {
                    self.queue.pop_front();
                    self.stats.skip(skip_name(Skipped::QueueFull));
                }
            }
        }
        self.queue.push_back(job);
        Ok(())
    }

    /// Notes a change of who answers; the lane's thread hands the event out.
    pub(super) fn tell(&mut self, name: &Arc<str>, change: Change) {
        self.thinner.reset();
        if change.to != Mode::Own && change.from == Mode::Own {
            self.stats.degraded += 1;
        }
        let lighter = self
            .manifest
            .lighter
            .clone()
            .filter(|_| change.to == Mode::Lighter);
        self.push_event(Event::Objective {
            model: name.clone(),
            lighter,
            from: change.from,
            to: change.to,
            p95_us: change.p95_us,
            objective_us: self.slo.objective_us(),
        });
    }

    pub(super) fn push_event(&mut self, event: Event) {
        if self.outbox.len() >= MAX_OUTBOX {
            self.outbox.pop_front();
        }
        self.outbox.push_back(event);
    }
}
