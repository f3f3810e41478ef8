//! What an operator sees of each model.

use super::lane::{Lane, State};
use crate::load::PassedOver;
use crate::slo::Mode;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A model's state and its counters since the runner began.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelStatus {
    /// Name.
    pub model: Arc<str>,
    /// Version that answers.
    pub version: Arc<str>,
    /// A line for people.
    pub title: String,
    /// Trained on invented data.
    pub demonstration: bool,
    /// Where it runs; none when no backend runs it any more.
    pub backend: Option<&'static str>,
    /// Which arithmetic the file runs in.
    pub arithmetic: &'static str,
    /// Backends before it in the preference, and why not.
    pub passed_over: Vec<PassedOver>,
    /// Who answers.
    pub mode: Mode,
    /// The lighter model, when one is declared.
    pub lighter: Option<Arc<str>>,
    /// The lighter model answers for it now.
    pub fallback_active: bool,
    /// Times that it gave way.
    pub degraded: u64,
    /// Promised latency, us.
    pub objective_us: u64,
    /// Median of the newest latencies, request to answer, us.
    pub p50_us: u64,
    /// 95th percentile of the newest latencies, us.
    pub p95_us: u64,
    /// Median time of a run for each of its windows, us.
    pub run_p50_us: u64,
    /// Answers.
    pub runs: u64,
    /// Runs of the backend.
    pub batches: u64,
    /// Answers given for a heavier model.
    pub fallback_answers: u64,
    /// Runs that only measured.
    pub probes: u64,
    /// Requests that wait.
    pub queued: usize,
    /// Answers by verdict.
    pub verdicts: BTreeMap<Arc<str>, u64>,
    /// Requests not taken, by reason.
    pub skipped: BTreeMap<&'static str, u64>,
    /// Requests that came to nothing, by reason.
    pub no_verdict: BTreeMap<&'static str, u64>,
    /// Population stability index by figure, against the manifest's references; none while
    /// too few windows were scored.
    pub drift: BTreeMap<Arc<str>, f64>,
    /// A version before this one is kept for rollback.
    pub can_roll_back: bool,
    /// The version beside it.
    pub candidate: Option<CandidateStatus>,
}

/// A candidate beside the active version.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CandidateStatus {
    /// Share of devices that it answers for, percent; 0 for a pure shadow.
    pub canary_percent: u8,
    /// Windows that both scored.
    pub compared: u64,
    /// Of these, those with one verdict.
    pub agreed: u64,
    /// Mean distance of the deciding outputs.
    pub mean_difference: f64,
    /// Its own state.
    pub status: Box<ModelStatus>,
}

fn percentile(values: impl Iterator<Item = u64>, percent: usize) -> u64 {
    let mut all: Vec<u64> = values.collect();
    if all.is_empty() {
        return 0;
    }
    let place = ((all.len() * percent).div_ceil(100))
        .saturating_sub(1)
        .min(all.len() - 1);
    *all.select_nth_unstable(place).1
}

pub(super) fn of(lane: &Lane) -> ModelStatus {
    let state = lane.lock();
    let State {
        manifest,
        stats,
        slo,
        ..
    } = &*state;
    ModelStatus {
        model: lane.name.clone(),
        version: manifest.version.clone(),
        title: manifest.title.clone(),
        demonstration: manifest.demonstration,
        backend: state.backend.map(|b| b.name()),
        arithmetic: state.arithmetic.name(),
        passed_over: state.passed_over.clone(),
        mode: slo.mode(),
        lighter: manifest.lighter.clone(),
        fallback_active: slo.mode() == Mode::Lighter,
        degraded: stats.degraded,
        objective_us: slo.objective_us(),
        p50_us: percentile(stats.latencies.iter().copied(), 50),
        p95_us: percentile(stats.latencies.iter().copied(), 95),
        run_p50_us: percentile(stats.run_us.iter().copied(), 50),
        runs: stats.runs,
        batches: stats.batches,
        fallback_answers: stats.fallback_answers,
        probes: stats.probes,
        queued: state.queue.len(),
        verdicts: stats.verdicts.clone(),
        skipped: stats.skipped.clone(),
        no_verdict: stats.no_verdict.clone(),
        drift: manifest
            .references
            .iter()
            .zip(&stats.drift)
            .filter_map(|(reference, drift)| Some((reference.of.clone(), drift.index(reference)?)))
            .collect(),
        can_roll_back: state.has_previous,
        candidate: None,
    }
}

pub(super) fn of_candidate(lane: &Lane, canary_percent: u8) -> CandidateStatus {
    let status = Box::new(of(lane));
    let state = lane.lock();
    let compared = state.stats.compared;
    CandidateStatus {
        canary_percent,
        compared,
        agreed: state.stats.agreed,
        mean_difference: if compared > 0 {
            state.stats.difference / compared as f64
        } else {
            0.0
        },
        status,
    }
}
