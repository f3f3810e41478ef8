//! What goes in and what comes out.

use crate::backend::BackendId;
use crate::key::DeviceKey;
use crate::slo::Mode;
use crate::windower::Reason;
use std::sync::Arc;

/// One window to be scored.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The model that is asked.
    pub model: Arc<str>,
    /// Whose window.
    pub key: DeviceKey,
    /// Points of each input one after the other, in the manifest's order and units.
    pub points: Arc<[f64]>,
    /// Seconds from each input's newest real sample to the end of the window.
    pub ages: Arc<[f64]>,
    /// First and last point, ms since the epoch.
    pub span_ms: (i64, i64),
    /// The record that completed the window.
    pub record: u64,
}

/// Why a request was not taken. Counted by the runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Skipped {
    /// No model of this name.
    #[error("no such model")]
    UnknownModel,
    /// The window has not the model's shape.
    #[error("the window does not fit the model")]
    WrongShape,
    /// The queue is full and its policy refuses the newest.
    #[error("queue full")]
    QueueFull,
    /// Left out to keep the latency objective; every device loses the same share.
    #[error("thinned to keep the latency objective")]
    Thinned,
    /// No backend runs the model any more.
    #[error("no backend runs the model")]
    Unavailable,
    /// The runner is stopping.
    #[error("stopping")]
    Stopping,
}

/// An answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Inference {
    /// The model that answered.
    pub model: Arc<str>,
    /// The model that was asked; another one when `fallback`.
    pub asked: Arc<str>,
    /// Version of the model that answered.
    pub version: Arc<str>,
    /// Where it ran.
    pub backend: BackendId,
    /// Whose window.
    pub key: DeviceKey,
    /// `<metric>:mean`, `:std`, `:min`, `:max`, `:last` of each input over the window.
    pub inputs: Vec<(Arc<str>, f64)>,
    /// Every output, in the manifest's order.
    pub outputs: Vec<(Arc<str>, f64)>,
    /// The output that decides.
    pub score: f64,
    /// One of the manifest's labels.
    pub verdict: Arc<str>,
    /// From request to answer, us.
    pub latency_us: u64,
    /// The lighter model answered.
    pub fallback: bool,
    /// A candidate's answer beside the active one's; nothing may act on it.
    pub shadow: bool,
    /// The record that completed the window.
    pub record: u64,
    /// First and last point, ms since the epoch.
    pub span_ms: (i64, i64),
}

/// Why there is no answer; counted, and fit for an alarm.
#[derive(Debug, Clone, PartialEq)]
pub struct NoVerdict {
    /// The model.
    pub model: Arc<str>,
    /// Its version.
    pub version: Arc<str>,
    /// Whose window.
    pub key: DeviceKey,
    /// Why.
    pub reason: Reason,
    /// The input at fault, when one is.
    pub metric: Option<Arc<str>>,
    /// Time of the sample or of the window's end, ms since the epoch.
    pub time_ms: i64,
    /// The record that led to it.
    pub record: u64,
    /// The lighter model was to answer.
    pub fallback: bool,
    /// A candidate was to answer.
    pub shadow: bool,
}

/// Everything that a runner tells its owner.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// An answer.
    Inference(Inference),
    /// A request that came to nothing.
    NoVerdict(NoVerdict),
    /// The latency objective is missed or kept again; an alarm while `to` is not
    /// [`Mode::Own`].
    Objective {
        /// The model.
        model: Arc<str>,
        /// Who answers instead, for [`Mode::Lighter`].
        lighter: Option<Arc<str>>,
        /// Before.
        from: Mode,
        /// From now on.
        to: Mode,
        /// What was measured, us.
        p95_us: u64,
        /// What was promised, us.
        objective_us: u64,
    },
    /// A backend failed while running and the next one took over; none took over when
    /// `to` is none.
    BackendChanged {
        /// The model.
        model: Arc<str>,
        /// The one that failed.
        from: BackendId,
        /// The one that took over.
        to: Option<BackendId>,
        /// In the failed backend's words.
        reason: String,
    },
    /// A figure has moved away from where the model was validated, or come back; an alarm
    /// while `moved`. Judged by the population stability index, 0.25 and 0.1.
    Drift {
        /// The model.
        model: Arc<str>,
        /// The output, or `<metric>:<figure>`.
        of: Arc<str>,
        /// The index.
        index: f64,
        /// Away, or back.
        moved: bool,
    },
    /// Another version answers from now on.
    Swapped {
        /// The model.
        model: Arc<str>,
        /// Version before.
        from: Arc<str>,
        /// Version from now on.
        to: Arc<str>,
    },
}
