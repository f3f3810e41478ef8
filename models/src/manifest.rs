//! What a model reads, means, may cost and comes from: `manifest.toml`.
//!
//! Unknown keys are refused and every quantity has a unit. [`Manifest::parse`]
//! checks what the text alone can tell; whether the file keeps the promise is
//! checked when it is loaded.

mod check;

use crate::features::Feature;
use crate::quantity::{Bytes, Span};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Most points that a window may hold, and channels that it may have.
pub const MAX_POINTS: usize = 8192;
/// Most metrics that one model may read.
pub const MAX_INPUTS: usize = 64;
/// Largest model file that any manifest may declare, in bytes.
pub const MAX_FILE_BYTES: u64 = 256 << 20;

/// What is told of each input's points: mean, standard deviation, smallest, largest,
/// newest.
pub const FIGURES: [&str; 5] = ["mean", "std", "min", "max", "last"];

/// Why a manifest was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ManifestError {
    /// Not TOML, an unknown key, or a value of the wrong type.
    #[error("{line}:{column}: {message}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// The parser's words.
        message: String,
    },
    /// A value that cannot be used.
    #[error("{key}: {problem}")]
    Value {
        /// The key, dotted.
        key: String,
        /// What is wrong with it and what would do.
        problem: String,
    },
}

/// A whole manifest.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The name by which rules, status and records call it.
    pub name: Arc<str>,
    /// Its version; two versions may run side by side as active and shadow.
    pub version: Arc<str>,
    /// A line for people.
    pub title: String,
    /// True when it was trained on invented data.
    #[serde(default)]
    pub demonstration: bool,
    /// The model that answers while this one misses its objective.
    pub lighter: Option<Arc<str>>,
    /// The file that any backend may run.
    pub file: File,
    /// Files for particular backends, tried before `file`.
    #[serde(default, rename = "variant")]
    pub variants: Vec<Variant>,
    /// How samples become a window.
    pub window: Window,
    /// The metrics, in the order of the tensor's channels.
    #[serde(rename = "input")]
    pub inputs: Vec<Input>,
    /// How a window becomes the model's input.
    pub tensor: TensorInput,
    /// What comes out.
    #[serde(rename = "output")]
    pub outputs: Vec<Output>,
    /// Which output decides, and from where on.
    pub verdict: VerdictRule,
    /// How fast it has to be.
    pub objective: Objective,
    /// What it may cost.
    pub limits: Limits,
    /// What inputs and outputs looked like where the model was validated.
    #[serde(default, rename = "reference")]
    pub references: Vec<Reference>,
    /// Where it comes from.
    pub provenance: Provenance,
}

/// Which arithmetic a file runs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arithmetic {
    /// f32 weights and arithmetic.
    F32,
    /// int8 weights, dequantised at load; f32 arithmetic.
    W8,
    /// int8 weights and activations between QuantizeLinear and DequantizeLinear.
    QdqInt8,
    /// int8 with activation scales found at run time: results change with the batch.
    DynamicInt8,
}

impl Arithmetic {
    /// As the manifest writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::W8 => "w8",
            Self::QdqInt8 => "qdq-int8",
            Self::DynamicInt8 => "dynamic-int8",
        }
    }
}

/// One model file beside the manifest.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// File name in the manifest's folder; no path separators.
    pub path: String,
    /// SHA-256 of the file, hex.
    pub sha256: String,
    /// Which arithmetic it runs in.
    pub arithmetic: Arithmetic,
    /// Golden rows of this file.
    pub golden: String,
}

/// A file for particular backends.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// Backend names such as `ort:tensorrt`.
    pub backends: Vec<String>,
    /// File name in the manifest's folder.
    pub path: String,
    /// SHA-256 of the file, hex.
    pub sha256: String,
    /// Which arithmetic it runs in.
    pub arithmetic: Arithmetic,
    /// Golden rows of this file.
    pub golden: String,
}

impl Variant {
    /// The file that the variant names.
    pub fn file(&self) -> File {
        File {
            path: self.path.clone(),
            sha256: self.sha256.clone(),
            arithmetic: self.arithmetic,
            golden: self.golden.clone(),
        }
    }
}

/// How irregular samples become evenly spaced points.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resample {
    /// A straight line between the two samples around a point.
    Linear,
    /// The last sample at or before a point.
    Hold,
}

/// How samples become a window.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Points of one window.
    pub points: usize,
    /// Points from the start of one window to the start of the next.
    pub hop: usize,
    /// Time between two points; a multiple of 1 ms.
    pub period: Span,
    /// How points come from samples.
    pub resample: Resample,
    /// A longer silence of a metric breaks the window.
    pub max_gap: Span,
    /// How long a metric that reports only changes stands at its last value while
    /// the model's other metrics go on; at most `max_gap`.
    pub hold: Span,
    /// A sample older than this on arrival is not scored.
    pub max_age: Span,
}

/// The class of Sparkplug datatypes that an input takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Datatype {
    /// Any integer or floating point type.
    Number,
    /// Boolean, as 0 and 1.
    Boolean,
}

/// One metric that the model reads.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// Sparkplug metric name, exact.
    pub metric: Arc<str>,
    /// Which datatypes fit.
    pub datatype: Datatype,
    /// Unit, for people.
    #[serde(default)]
    pub unit: String,
    /// Values outside are not scored; inclusive.
    pub range: [f64; 2],
}

/// What the model's input tensor is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TensorKind {
    /// The points: `[batch, inputs, points]` f32.
    Window,
    /// Numbers drawn from the points: `[batch, features]` f32.
    Features,
}

/// What is taken from each point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Center {
    /// Nothing.
    None,
    /// The channel's mean over the window.
    Mean,
}

/// The model's input tensor.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TensorInput {
    /// Name of the graph's input.
    pub name: String,
    /// Points or features.
    pub kind: TensorKind,
    /// For `window`: what is taken from each point.
    #[serde(default = "TensorInput::no_center")]
    pub center: Center,
    /// For `window`: what each point is then divided by.
    #[serde(default = "TensorInput::unit_scale")]
    pub scale: f64,
    /// For `features`: the least spread that ratios are taken against, in the metric's unit.
    #[serde(default = "TensorInput::unit_scale")]
    pub floor: f64,
    /// For `features`: what is drawn from the points, in the tensor's order.
    #[serde(default)]
    pub features: Vec<Feature>,
}

impl TensorInput {
    fn no_center() -> Center {
        Center::None
    }

    fn unit_scale() -> f64 {
        1.0
    }
}

/// One output of the graph: a single number a window.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// Name of the graph's output.
    pub name: Arc<str>,
    /// What it means, such as `anomaly`.
    pub meaning: String,
    /// Unit, for people.
    #[serde(default)]
    pub unit: String,
    /// What it can be; anything else is no verdict. Inclusive.
    pub range: [f64; 2],
}

/// A verdict that begins at a value.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Level {
    /// The verdict.
    pub label: Arc<str>,
    /// From this value on.
    pub at: f64,
}

/// Which output decides.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct VerdictRule {
    /// The output's name; never guessed from the order.
    pub output: Arc<str>,
    /// The verdict below every level.
    pub normal: Arc<str>,
    /// Rising.
    pub levels: Vec<Level>,
}

/// How fast the model has to be.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Objective {
    /// 95 % of answers come sooner after the request than this.
    pub latency_p95: Span,
    /// Over windows of this length.
    pub window: Span,
}

/// Which request makes room when a queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenFull {
    /// The one that has waited longest: the newest window says most.
    DropOldest,
    /// The one that arrives.
    RefuseNew,
}

/// What a model may cost.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Weights and intermediate values of all its plans.
    pub memory: Bytes,
    /// Requests that may wait.
    pub queue: usize,
    /// Which request makes room.
    pub when_full: WhenFull,
    /// Most windows in one run.
    pub batch: usize,
    /// How long the first request of a batch waits for company.
    pub batch_wait: Span,
}

/// One figure over the validation set, against which its drift is told.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Reference {
    /// An output's name, or `<metric>:mean`, `:std`, `:min`, `:max` or `:last`.
    pub of: Arc<str>,
    /// Inner edges, rising.
    pub bins: Vec<f64>,
    /// Share of each bin, one more than edges.
    pub shares: Vec<f64>,
}

/// Where a model comes from.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// SPDX expression of the weights.
    pub licence: String,
    /// What made it.
    pub script: String,
    /// Seed of that script.
    pub seed: u64,
    /// What it was trained on.
    pub data: String,
}

pub(crate) fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |l| l.chars().count()) + 1;
    (line, column)
}

impl Manifest {
    /// Reads and checks a manifest. The first problem of the text, or every bad value.
    pub fn parse(text: &str) -> Result<Self, Vec<ManifestError>> {
        let manifest: Self = toml::from_str(text).map_err(|error| {
            let (line, column) = position(text, error.span().map_or(0, |s| s.start));
            vec![ManifestError::Syntax {
                line,
                column,
                message: error.message().to_owned(),
            }]
        })?;
        let problems = check::problems(&manifest);
        if problems.is_empty() {
            Ok(manifest)
        } else {
            Err(problems)
        }
    }

    /// Rows of the input tensor: its shape without the batch.
    pub fn row_shape(&self) -> Vec<usize> {
        match self.tensor.kind {
            TensorKind::Window => vec![self.inputs.len(), self.window.points],
            TensorKind::Features => vec![self.tensor.features.len()],
        }
    }

    /// Batches for which a plan is made: 1, 8 and the limit.
    pub fn batches(&self) -> Vec<usize> {
        let mut sizes = vec![1, 8, self.limits.batch];
        sizes.retain(|n| *n <= self.limits.batch);
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// The file that `backend` runs: the first variant that names it, else `file`.
    pub fn file_for(&self, backend: &str) -> File {
        self.variants
            .iter()
            .find(|v| v.backends.iter().any(|b| b == backend))
            .map_or_else(|| self.file.clone(), Variant::file)
    }

    /// Names of the figures of a window's inputs, in the order of
    /// [`crate::Inference::inputs`].
    pub fn figures(&self) -> Vec<Arc<str>> {
        let of = |metric: &str| FIGURES.map(|what| Arc::from(format!("{metric}:{what}")));
        self.inputs.iter().flat_map(|i| of(&i.metric)).collect()
    }

    /// Whether a request made for `self` can be answered by `other`: same metrics,
    /// same points in time.
    pub fn same_window(&self, other: &Self) -> bool {
        let metrics = |m: &Self| {
            m.inputs
                .iter()
                .map(|i| i.metric.clone())
                .collect::<Vec<_>>()
        };
        metrics(self) == metrics(other)
            && self.window.points == other.window.points
            && self.window.period == other.window.period
            && self.window.resample == other.window.resample
    }
}

#[cfg(test)]
mod tests;
