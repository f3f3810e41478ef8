//! Running models on threads of their own.
//!
//! Each model has a lane: a bounded queue with the manifest's policy and one thread. A
//! slow or hung model delays its own lane and nothing else; submitting takes a short
//! lock and never waits for a model. Requests of many devices are collected into one
//! run, up to the manifest's batch and for at most its `batch_wait`.
//!
//! When a model misses its latency objective ([`crate::slo`]), its requests go to the
//! declared lighter model's lane and come back marked `fallback`. When a backend fails
//! or panics, the next one of the preference takes over after its golden rows hold.
//!
//! A candidate version scores beside the active one (shadow), or answers for a share of
//! the devices (canary); promotion swaps it in between two batches, and the version
//! before it is kept for rollback.
//!
//! Events are handed out on the lanes' threads: a sink that blocks delays that lane.

mod drift;
mod event;
mod lane;
mod status;
mod thin;
mod worker;

pub use drift::BACK as DRIFT_BACK;
pub use event::{Event, Inference, NoVerdict, Request, Skipped};
pub use status::{CandidateStatus, ModelStatus};

use crate::backend::Backend;
use crate::load::ActiveModel;
use crate::registry::Registry;
use lane::{Admission, Command, Job, Lane, Purpose};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use worker::Worker;

/// Where events go. Called on the models' threads.
pub type Sink = Arc<dyn Fn(Event) + Send + Sync>;
type Forward = Arc<dyn Fn(&Request, &Arc<str>, f64) + Send + Sync>;

/// How a [`Runner`] behaves beyond what each manifest says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunnerConfig {
    /// Golden-like runs of each model before it takes requests, so that the first answer
    /// is not the slowest.
    pub warm_up: usize,
}

impl Default for RunnerConfig {
    fn default() -> Self {
        Self { warm_up: 3 }
    }
}

/// Why a runner did not start.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The system gave no thread.
    #[error("no thread for model `{model}`: {source}")]
    Thread {
        /// The model.
        model: Arc<str>,
        /// Why.
        source: std::io::Error,
    },
}

/// Why a roll-out command was refused.
#[derive(Debug, thiserror::Error)]
pub enum RolloutError {
    /// No model of this name runs.
    #[error("no model `{model}` runs")]
    UnknownModel {
        /// The name.
        model: String,
    },
    /// The new version reads other metrics, points or periods; that takes a restart.
    #[error("version {version} of `{model}` reads other inputs; restart to change them")]
    InputsDiffer {
        /// The model.
        model: Arc<str>,
        /// The new version.
        version: Arc<str>,
    },
    /// There is no candidate.
    #[error("`{model}` has no candidate")]
    NoCandidate {
        /// The model.
        model: Arc<str>,
    },
    /// There is no version before this one.
    #[error("`{model}` has no version to go back to")]
    NoPrevious {
        /// The model.
        model: Arc<str>,
    },
    /// The candidate did not come free; it still runs a batch.
    #[error("the candidate of `{model}` did not come free in {seconds} s")]
    Busy {
        /// The model.
        model: Arc<str>,
        /// How long was waited.
        seconds: u64,
    },
    /// The system gave no thread.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
}

struct Slot {
    lane: Arc<Lane>,
    candidate: Arc<RwLock<Option<Candidate>>>,
}

struct Candidate {
    lane: Arc<Lane>,
    canary_percent: u8,
}

struct Inner {
    slots: BTreeMap<Arc<str>, Slot>,
    backends: Vec<Arc<dyn Backend>>,
    sink: Sink,
    epoch: Instant,
    threads: Mutex<Vec<JoinHandle<()>>>,
    unknown: Mutex<u64>,
}

/// The models' threads. Cloning gives another handle; [`Runner::stop`] ends them, and so
/// does dropping the last handle, without waiting.
#[derive(Clone)]
pub struct Runner {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runner")
            .field("models", &self.inner.slots.keys())
            .finish_non_exhaustive()
    }
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// How long a promotion waits for the candidate's current batch.
const SURRENDER: Duration = Duration::from_secs(10);

impl Runner {
    /// Starts a thread for each model of the registry.
    pub fn spawn(
        registry: Registry,
        config: RunnerConfig,
        sink: impl Fn(Event) + Send + Sync + 'static,
    ) -> Result<Self, SpawnError> {
        let sink: Sink = Arc::new(sink);
        let epoch = Instant::now();
        let Registry {
            models, backends, ..
        } = registry;
        let mut slots = BTreeMap::new();
        let mut threads = Vec::with_capacity(models.len());
        for (name, mut model) in models {
            warm_up(&mut model, config.warm_up);
            let lane = Arc::new(Lane::new(&model, epoch, false));
            let candidate = Arc::new(RwLock::new(None));
            let forward = forward_to(candidate.clone());
            let worker = Worker::new(
                lane.clone(),
                sink.clone(),
                Some(forward),
                backends.clone(),
                model,
            );
            threads.push(start(worker, &name)?);
            slots.insert(name, Slot { lane, candidate });
        }
        let inner = Inner {
            slots,
            backends,
            sink,
            epoch,
            threads: Mutex::new(threads),
            unknown: Mutex::new(0),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Hands a window over. Never waits for a model; an error is counted in the status.
    pub fn try_submit(&self, request: Request) -> Result<(), Skipped> {
        let now = Instant::now();
        let Some(slot) = self.inner.slots.get(&request.model) else {
            *self
                .inner
                .unknown
                .lock()
                .unwrap_or_else(PoisonError::into_inner) += 1;
            return Err(Skipped::UnknownModel);
        };
        if let Some(candidate) = read(&slot.candidate).as_ref()
            && candidate.canary_percent > 0
            && thin::device_hash(&request.key) % 100 < u64::from(candidate.canary_percent)
        {
            return candidate.lane.enqueue(Job {
                request,
                queued: now,
                purpose: Purpose::Answer,
            });
        }
        match slot.lane.admit(request, Purpose::Answer, now)? {
            Admission::Queued => Ok(()),
            Admission::Lighter(lighter, request) => {
                let asked = slot.lane.name.clone();
                let Some(slot) = self.inner.slots.get(&lighter) else {
                    return Err(Skipped::UnknownModel);
                };
                // A lighter model has no lighter one: it queues or thins.
                slot.lane
                    .admit(request, Purpose::Fallback(asked), now)
                    .map(|_| ())
            }
        }
    }

    /// Requests for models that do not exist.
    pub fn unknown(&self) -> u64 {
        *self
            .inner
            .unknown
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Every model, by name.
    pub fn status(&self) -> Vec<ModelStatus> {
        self.inner
            .slots
            .values()
            .map(|slot| {
                let mut status = status::of(&slot.lane);
                status.candidate = read(&slot.candidate)
                    .as_ref()
                    .map(|c| status::of_candidate(&c.lane, c.canary_percent));
                status
            })
            .collect()
    }

    /// Replaces the active version between two batches. The one before it is kept for
    /// [`Self::rollback`]. An [`Event::Swapped`] tells when it happened.
    pub fn swap(&self, model: ActiveModel) -> Result<(), RolloutError> {
        let slot = self.slot(&model.files.manifest.name)?;
        same_inputs(slot, &model)?;
        slot.lane.command(Command::Swap(Box::new(model)));
        Ok(())
    }

    /// Lets a version score beside the active one. With `canary_percent` above 0 it
    /// answers for that share of the devices, and scores nothing else; a pure shadow's
    /// answers are marked and nothing may act on them. Replaces an earlier candidate.
    pub fn shadow(&self, model: ActiveModel, canary_percent: u8) -> Result<(), RolloutError> {
        let name = model.files.manifest.name.clone();
        let slot = self.slot(&name)?;
        same_inputs(slot, &model)?;
        let lane = Arc::new(Lane::new(&model, self.inner.epoch, true));
        let inner = &self.inner;
        let worker = Worker::new(
            lane.clone(),
            inner.sink.clone(),
            None,
            inner.backends.clone(),
            model,
        );
        let thread = start(worker, &name)?;
        let mut threads = inner.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|t| !t.is_finished());
        threads.push(thread);
        drop(threads);
        let candidate = Candidate {
            lane,
            canary_percent: canary_percent.min(100),
        };
        if let Some(old) = write(&slot.candidate).replace(candidate) {
            stop_lane(&old.lane);
        }
        Ok(())
    }

    /// Takes the candidate away.
    pub fn drop_candidate(&self, model: &str) -> Result<(), RolloutError> {
        let slot = self.slot(model)?;
        match write(&slot.candidate).take() {
            Some(old) => {
                stop_lane(&old.lane);
                Ok(())
            }
            None => Err(RolloutError::NoCandidate {
                model: slot.lane.name.clone(),
            }),
        }
    }

    /// Makes the candidate the active version. Waits for the candidate's current batch.
    pub fn promote(&self, model: &str) -> Result<(), RolloutError> {
        let slot = self.slot(model)?;
        let name = slot.lane.name.clone();
        let candidate = write(&slot.candidate).take();
        let Some(candidate) = candidate else {
            return Err(RolloutError::NoCandidate { model: name });
        };
        let (tx, rx) = mpsc::sync_channel(1);
        candidate.lane.command(Command::Surrender(tx));
        match rx.recv_timeout(SURRENDER) {
            Ok(model) => {
                stop_lane(&candidate.lane);
                slot.lane.command(Command::Swap(Box::new(model)));
                Ok(())
            }
            Err(_) => {
                stop_lane(&candidate.lane);
                Err(RolloutError::Busy {
                    model: name,
                    seconds: SURRENDER.as_secs(),
                })
            }
        }
    }

    /// Goes back to the version before the last swap; doing it twice undoes it.
    pub fn rollback(&self, model: &str) -> Result<(), RolloutError> {
        let slot = self.slot(model)?;
        if !slot.lane.lock().has_previous {
            return Err(RolloutError::NoPrevious {
                model: slot.lane.name.clone(),
            });
        }
        slot.lane.command(Command::Rollback);
        Ok(())
    }

    /// Ends the threads. A thread that does not end within `limit` is left behind; true
    /// when all have ended. Requests that still wait are not answered.
    pub fn stop(&self, limit: Duration) -> bool {
        self.inner.stop();
        let deadline = Instant::now() + limit;
        let mut threads = std::mem::take(
            &mut *self
                .inner
                .threads
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        while !threads.is_empty() && Instant::now() < deadline {
            threads.retain(|t| !t.is_finished());
            if !threads.is_empty() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        threads.is_empty()
    }

    fn slot(&self, model: &str) -> Result<&Slot, RolloutError> {
        self.inner
            .slots
            .get(model)
            .ok_or_else(|| RolloutError::UnknownModel {
                model: model.to_owned(),
            })
    }
}

impl Inner {
    fn stop(&self) {
        for slot in self.slots.values() {
            stop_lane(&slot.lane);
            if let Some(candidate) = read(&slot.candidate).as_ref() {
                stop_lane(&candidate.lane);
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop();
    }
}

fn stop_lane(lane: &Lane) {
    lane.lock().stopping = true;
    lane.notify();
}

fn same_inputs(slot: &Slot, model: &ActiveModel) -> Result<(), RolloutError> {
    let manifest = &model.files.manifest;
    if slot.lane.lock().manifest.same_window(manifest) {
        return Ok(());
    }
    Err(RolloutError::InputsDiffer {
        model: manifest.name.clone(),
        version: manifest.version.clone(),
    })
}

fn start(worker: Worker, name: &Arc<str>) -> Result<JoinHandle<()>, SpawnError> {
    // Linux shows 15 bytes of it.
    let short: String = name.chars().take(9).collect();
    std::thread::Builder::new()
        .name(format!("model-{short}"))
        .spawn(move || {
            crate::step_back();
            worker.run();
        })
        .map_err(|source| SpawnError::Thread {
            model: name.clone(),
            source,
        })
}

/// Each answer of the active version goes on to a pure shadow. A full queue of the
/// shadow costs comparisons and nothing else.
fn forward_to(candidate: Arc<RwLock<Option<Candidate>>>) -> Forward {
    Arc::new(move |request, verdict, score| {
        if let Some(c) = read(&candidate).as_ref()
            && c.canary_percent == 0
        {
            let purpose = Purpose::Shadow {
                verdict: verdict.clone(),
                score,
            };
            // Counted by the shadow's lane.
            let _ = c.lane.enqueue(Job {
                request: request.clone(),
                queued: Instant::now(),
                purpose,
            });
        }
    })
}

fn warm_up(model: &mut ActiveModel, runs: usize) {
    let manifest = model.files.manifest.clone();
    let width: usize = manifest.row_shape().iter().product();
    for batch in manifest.batches() {
        let rows = vec![0.0; width * batch];
        for _ in 0..runs {
            // A failure shows on the first request, where it is handled.
            let _ = model.scorer.run(&rows, batch);
        }
    }
}

#[cfg(test)]
mod tests;
