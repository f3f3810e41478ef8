//! A lane's thread: collects a batch, runs it, hands out what came.

use super::drift::Drift;
use super::event::{Event, Inference, NoVerdict, Skipped};
use super::lane::{Command, Job, Lane, Purpose, State, Stats, micros, objective, skip_name};
use super::{Forward, Sink};
use crate::backend::{Backend, BackendId, RunError};
use crate::features::{Statistics, write_row};
use crate::load::{ActiveModel, PassReason, PassedOver, open_on};
use crate::manifest::Manifest;
use crate::slo::Mode;
use crate::verdict::{Verdict, judge};
use crate::windower::Reason;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

/// Failed runs in a row after which the next backend is tried; a panic counts at once.
const MAX_FAILURES: u32 = 3;
/// How long the thread sleeps at most before it looks at its objective again, while the
/// objective is missed and while it is kept.
const IDLE: Duration = Duration::from_millis(500);
const LONG_IDLE: Duration = Duration::from_secs(60);

pub(super) struct Worker {
    lane: Arc<Lane>,
    sink: Sink,
    /// Gets each answer of the active model, for its candidate.
    forward: Option<Forward>,
    backends: Vec<Arc<dyn Backend>>,
    active: Option<ActiveModel>,
    previous: Option<ActiveModel>,
    failures: u32,
    labels: Labels,
    rows: Vec<f32>,
}

/// Names of the input figures, made once for each manifest.
struct Labels(Vec<Arc<str>>);

/// What was found of one window: outputs with their verdict, and figures of its inputs.
struct Found {
    job: Job,
    verdict: Verdict,
    score: f64,
    inputs: Vec<(Arc<str>, f64)>,
}

impl Found {
    /// An output or a figure by name.
    fn figure(&self, name: &Arc<str>) -> Option<f64> {
        let mut all = self.verdict.outputs.iter().chain(&self.inputs);
        all.find(|(n, _)| n == name).map(|(_, value)| *value)
    }
}

impl Labels {
    fn of(manifest: &Manifest) -> Self {
        Self(manifest.figures())
    }

    fn describe(&self, manifest: &Manifest, points: &[f64]) -> Vec<(Arc<str>, f64)> {
        let period = manifest.window.period.0.as_secs_f64();
        let figures = points
            .chunks_exact(manifest.window.points.max(1))
            .flat_map(|channel| {
                let s = Statistics::of(channel, period);
                [s.mean, s.std, s.min, s.max, s.last]
            });
        self.0.iter().cloned().zip(figures).collect()
    }
}

impl Worker {
    pub(super) fn new(
        lane: Arc<Lane>,
        sink: Sink,
        forward: Option<Forward>,
        backends: Vec<Arc<dyn Backend>>,
        active: ActiveModel,
    ) -> Self {
        let labels = Labels::of(&active.files.manifest);
        Self {
            lane,
            sink,
            forward,
            backends,
            active: Some(active),
            previous: None,
            failures: 0,
            labels,
            rows: Vec::new(),
        }
    }

    /// Until the lane stops or the model is asked for.
    pub(super) fn run(mut self) {
        loop {
            let lane = self.lane.clone();
            let mut state = lane.lock();
            while state.queue.is_empty()
                && state.inbox.is_empty()
                && state.outbox.is_empty()
                && !state.stopping
            {
                let rest = if state.slo.mode() == Mode::Own {
                    LONG_IDLE
                } else {
                    IDLE
                };
                state = lane.wait(state, rest);
                self.look(&mut state);
            }
            if state.stopping {
                return;
            }
            let events: Vec<_> = state.outbox.drain(..).collect();
            if let Some(command) = state.inbox.pop_front() {
                drop(state);
                self.hand_out(events);
                match command {
                    Command::Swap(model) => self.swap(*model),
                    Command::Rollback => {
                        if let Some(previous) = self.previous.take() {
                            self.swap(previous);
                        }
                    }
                    Command::Surrender(to) => {
                        if let Some(model) = self.active.take() {
                            // The owner gave up waiting: the model is dropped with it.
                            let _ = to.send(model);
                        }
                        return;
                    }
                }
                continue;
            }
            if !events.is_empty() {
                drop(state);
                self.hand_out(events);
                continue;
            }
            let jobs = collect(&lane, state);
            self.batch(jobs);
        }
    }

    fn look(&self, state: &mut State) {
        let now_us = micros(self.lane.epoch, Instant::now());
        if let Some(change) = state.slo.evaluate(now_us) {
            state.tell(&self.lane.name, change);
        }
    }

    fn hand_out(&self, events: Vec<Event>) {
        for event in events {
            (self.sink)(event);
        }
    }

    /// The model and its manifest change together, between two batches: an answer never
    /// carries another version than the one that made it.
    fn swap(&mut self, model: ActiveModel) {
        let manifest = model.files.manifest.clone();
        let mut state = self.lane.lock();
        let from = std::mem::replace(&mut state.manifest, manifest.clone());
        state.backend = Some(model.backend);
        state.arithmetic = model.arithmetic;
        state.passed_over.clone_from(&model.passed_over);
        state.slo = objective(&manifest, micros(self.lane.epoch, Instant::now()));
        state.stats.drift.clear();
        state.stats.latencies.clear();
        state.stats.run_us.clear();
        self.previous = self.active.replace(model);
        state.has_previous = self.previous.is_some();
        drop(state);
        self.labels = Labels::of(&manifest);
        self.failures = 0;
        (self.sink)(Event::Swapped {
            model: self.lane.name.clone(),
            from: from.version.clone(),
            to: manifest.version.clone(),
        });
    }

    fn batch(&mut self, jobs: Vec<Job>) {
        let Some(active) = &mut self.active else {
            self.lane.lock().busy_since = None;
            return;
        };
        let manifest = active.files.manifest.clone();
        let backend = active.backend;
        let mut answered = Vec::with_capacity(jobs.len());
        let mut refused = Vec::new();
        self.rows.clear();
        for job in jobs {
            match write_row(
                &manifest,
                &job.request.points,
                &job.request.ages,
                &mut self.rows,
            ) {
                Ok(()) => answered.push(job),
                Err(_) => refused.push((job, Reason::Feature)),
            }
        }
        let started = Instant::now();
        let mut failure = None;
        let mut columns: &[Vec<f32>] = &[];
        if !answered.is_empty() {
            match active.scorer.run(&self.rows, answered.len()) {
                Ok(outputs) => columns = outputs,
                Err(error) => failure = Some(error),
            }
        }
        let ended = Instant::now();
        let mut results = Vec::with_capacity(answered.len());
        if failure.is_some() {
            refused.extend(answered.into_iter().map(|job| (job, Reason::Backend)));
        } else {
            let mut values = Vec::with_capacity(columns.len());
            for (place, job) in answered.into_iter().enumerate() {
                values.clear();
                values.extend(columns.iter().filter_map(|c| c.get(place)));
                match judge(&manifest, &values) {
                    Ok(verdict) => {
                        let score = deciding(&manifest, &verdict);
                        let inputs = self.labels.describe(&manifest, &job.request.points);
                        results.push(Found {
                            job,
                            verdict,
                            score,
                            inputs,
                        });
                    }
                    Err(_) => refused.push((job, Reason::Output)),
                }
            }
        }
        self.account(&manifest, &results, &refused, started, ended);
        for found in results {
            self.answer(&manifest, backend, found, ended);
        }
        for (job, reason) in refused {
            self.refuse(&manifest, job, reason);
        }
        match failure {
            Some(error) => self.failed(backend, &error),
            None => self.failures = 0,
        }
    }

    fn account(
        &self,
        manifest: &Manifest,
        results: &[Found],
        refused: &[(Job, Reason)],
        started: Instant,
        ended: Instant,
    ) {
        let now_us = micros(self.lane.epoch, ended);
        let mut state = self.lane.lock();
        state.busy_since = None;
        let stats = &mut state.stats;
        stats.batches += 1;
        if !results.is_empty() {
            Stats::keep(
                &mut stats.run_us,
                micros(started, ended) / results.len() as u64,
            );
        }
        for (job, reason) in refused {
            if job.purpose != Purpose::Probe {
                *stats.no_verdict.entry(reason.name()).or_insert(0) += 1;
            }
        }
        for found in results {
            let Found {
                job,
                verdict,
                score,
                ..
            } = found;
            let latency = micros(job.queued, ended);
            let stats = &mut state.stats;
            match &job.purpose {
                Purpose::Probe => {
                    if let Some(change) = state.slo.record_probe(latency, now_us) {
                        state.tell(&self.lane.name, change);
                    }
                    continue;
                }
                Purpose::Shadow {
                    verdict: other,
                    score: other_score,
                } => {
                    stats.compared += 1;
                    stats.agreed += u64::from(*other == verdict.label);
                    stats.difference += (score - other_score).abs();
                }
                Purpose::Fallback(_) => stats.fallback_answers += 1,
                Purpose::Answer => {}
            }
            stats.runs += 1;
            *stats.verdicts.entry(verdict.label.clone()).or_insert(0) += 1;
            Stats::keep(&mut stats.latencies, latency);
            stats
                .drift
                .resize_with(manifest.references.len(), Drift::default);
            for (reference, drift) in manifest.references.iter().zip(&mut stats.drift) {
                if let Some(value) = found.figure(&reference.of) {
                    drift.record(reference, value);
                }
            }
            if self.lane.candidate {
                continue;
            }
            if let Some(change) = state.slo.record(latency, now_us) {
                state.tell(&self.lane.name, change);
            }
        }
        if self.lane.candidate {
            return;
        }
        if let Some(change) = state.slo.evaluate(now_us) {
            state.tell(&self.lane.name, change);
        }
        for (reference, place) in manifest.references.iter().zip(0..) {
            let drift = state.stats.drift.get_mut(place);
            if let Some((index, moved)) = drift.and_then(|d| d.change(reference)) {
                let of = reference.of.clone();
                state.push_event(Event::Drift {
                    model: self.lane.name.clone(),
                    of,
                    index,
                    moved,
                });
            }
        }
    }

    fn answer(&self, manifest: &Arc<Manifest>, backend: BackendId, found: Found, ended: Instant) {
        let Found {
            job,
            verdict,
            score,
            inputs,
        } = found;
        let Job {
            request,
            queued,
            purpose,
        } = job;
        if purpose == Purpose::Probe {
            return;
        }
        if let (Some(forward), Purpose::Answer) = (&self.forward, &purpose) {
            forward(&request, &verdict.label, score);
        }
        let (asked, fallback, shadow) = match purpose {
            Purpose::Fallback(asked) => (asked, true, false),
            Purpose::Shadow { .. } => (manifest.name.clone(), false, true),
            Purpose::Answer | Purpose::Probe => (manifest.name.clone(), false, false),
        };
        (self.sink)(Event::Inference(Inference {
            model: manifest.name.clone(),
            asked,
            version: manifest.version.clone(),
            backend,
            inputs,
            key: request.key,
            outputs: verdict.outputs,
            score,
            verdict: verdict.label,
            latency_us: micros(queued, ended),
            fallback,
            shadow,
            record: request.record,
            span_ms: request.span_ms,
        }));
    }

    fn refuse(&self, manifest: &Manifest, job: Job, reason: Reason) {
        if job.purpose == Purpose::Probe {
            return;
        }
        (self.sink)(Event::NoVerdict(NoVerdict {
            model: manifest.name.clone(),
            version: manifest.version.clone(),
            key: job.request.key,
            reason,
            metric: None,
            time_ms: job.request.span_ms.1,
            record: job.request.record,
            fallback: matches!(job.purpose, Purpose::Fallback(_)),
            shadow: matches!(job.purpose, Purpose::Shadow { .. }),
        }));
    }

    /// A failed run. A panicked model is not asked again; after some failures neither is
    /// one that only errs. The next backend takes over, golden rows first.
    fn failed(&mut self, from: BackendId, error: &RunError) {
        self.failures += 1;
        if !matches!(error, RunError::Panicked { .. }) && self.failures < MAX_FAILURES {
            return;
        }
        self.failures = 0;
        let Some(broken) = self.active.take() else {
            return;
        };
        let reason = error.to_string();
        let mut passed_over = broken.passed_over;
        passed_over.push(PassedOver {
            backend: from,
            reason: PassReason::Failed {
                reason: reason.clone(),
            },
        });
        let opened = open_on(&broken.files, &self.backends, passed_over.clone());
        let to = opened.as_ref().ok().map(|m| m.backend);
        let mut state = self.lane.lock();
        state.backend = to;
        match opened {
            Ok(model) => {
                state.arithmetic = model.arithmetic;
                state.passed_over.clone_from(&model.passed_over);
                self.active = Some(model);
            }
            Err(_) => {
                state.passed_over = passed_over;
                let left = state.queue.len() as u64;
                state.queue.clear();
                *state
                    .stats
                    .skipped
                    .entry(skip_name(Skipped::Unavailable))
                    .or_insert(0) += left;
            }
        }
        drop(state);
        (self.sink)(Event::BackendChanged {
            model: self.lane.name.clone(),
            from,
            to,
            reason,
        });
    }
}

fn deciding(manifest: &Manifest, verdict: &Verdict) -> f64 {
    verdict
        .outputs
        .iter()
        .find(|(name, _)| *name == manifest.verdict.output)
        .map_or(f64::NAN, |(_, value)| *value)
}

/// Waits until the batch is full or the oldest request has waited for company long
/// enough, then takes it.
fn collect(lane: &Lane, mut state: MutexGuard<'_, State>) -> Vec<Job> {
    let most = state.manifest.limits.batch;
    let patience = state.manifest.limits.batch_wait.0;
    while state.queue.len() < most && state.inbox.is_empty() && !state.stopping {
        let Some(oldest) = state.queue.front() else {
            return Vec::new();
        };
        let waited = oldest.queued.elapsed();
        if waited >= patience {
            break;
        }
        state = lane.wait(state, patience - waited);
    }
    let count = state.queue.len().min(most);
    state.busy_since = Some(Instant::now());
    state.queue.drain(..count).collect()
}
