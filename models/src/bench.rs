//! How fast each model is on each backend of this machine, by batch.

use crate::backend::{BackendId, BackendPreference};
use crate::features::write_row;
use crate::golden::Golden;
use crate::load::ModelFiles;
use crate::registry::{LoadError, Source, open_alone, read_source};
use crate::text::{self, TextModel};
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Tokens of the texts that are measured.
const TOKENS: [usize; 3] = [32, 64, 128];

/// How long each figure is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BenchConfig {
    /// Runs before measuring.
    pub warm_up: usize,
    /// Runs at most.
    pub runs: usize,
    /// Time at most.
    pub limit: Duration,
}

impl Default for BenchConfig {
    fn default() -> Self {
        Self {
            warm_up: 20,
            runs: 2000,
            limit: Duration::from_secs(2),
        }
    }
}

/// One batch size of one backend.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Timing {
    /// Windows in a run.
    pub batch: usize,
    /// Tokens of the text, for a text model.
    pub tokens: Option<usize>,
    /// Runs measured.
    pub runs: usize,
    /// Median of a run, us.
    pub p50_us: f64,
    /// 99th percentile of a run, us.
    pub p99_us: f64,
    /// Median for each window, us.
    pub p50_us_per_window: f64,
    /// Times the median of onnxruntime on the CPU in the same report, where that is found.
    pub to_onnxruntime: Option<f64>,
}

/// One backend of one model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BackendBench {
    /// Its name.
    pub backend: &'static str,
    /// `w8`, `qdq-int8` and so on.
    pub arithmetic: &'static str,
    /// Why there is no figure.
    pub reason: Option<String>,
    /// By batch.
    pub timings: Vec<Timing>,
}

/// One model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelBench {
    /// Folder, or `built in`.
    pub origin: String,
    /// The model; none when its files cannot be used.
    pub model: Option<Arc<str>>,
    /// Its version.
    pub version: Option<Arc<str>>,
    /// What is wrong with the files.
    pub errors: Vec<String>,
    /// Each backend, in order of preference.
    pub backends: Vec<BackendBench>,
}

/// Figures of a source on this machine; one thread, one run after the other.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BenchReport {
    /// Architecture that this binary was built for.
    pub arch: &'static str,
    /// Built with optimisation; figures without it say little.
    pub optimised: bool,
    /// The models.
    pub models: Vec<ModelBench>,
}

/// Measures every model of a source on every backend of the preference, on the golden
/// rows' windows.
pub fn bench(source: &Source, preference: &BackendPreference, config: &BenchConfig) -> BenchReport {
    let mut models: Vec<ModelBench> = read_source(source)
        .into_iter()
        .map(|(origin, files)| match files {
            Ok(files) => one(Arc::new(files), preference, config),
            Err(errors) => ModelBench {
                origin,
                model: None,
                version: None,
                errors: errors.iter().map(LoadError::to_string).collect(),
                backends: Vec::new(),
            },
        })
        .collect();
    if let Source::Dir(path) = source {
        let texts = text::folders(std::slice::from_ref(path));
        models.extend(
            texts
                .iter()
                .map(|folder| one_text(folder, preference, config)),
        );
    }
    models.iter_mut().for_each(compare);
    BenchReport {
        arch: std::env::consts::ARCH,
        optimised: !cfg!(debug_assertions),
        models,
    }
}

fn one(files: Arc<ModelFiles>, preference: &BackendPreference, config: &BenchConfig) -> ModelBench {
    let manifest = files.manifest.clone();
    let backends = preference
        .resolved()
        .into_iter()
        .map(|id| {
            let arithmetic = manifest.file_for(id.name()).arithmetic.name();
            let mut bench = BackendBench {
                backend: id.name(),
                arithmetic,
                reason: None,
                timings: Vec::new(),
            };
            let golden = files.goldens.get(&manifest.file_for(id.name()).golden);
            match (open_alone(&files, id, preference), golden) {
                (Ok(mut model), Some(golden)) => {
                    for batch in manifest.batches() {
                        let rows = windows(&files, golden, batch);
                        let scorer = &mut model.scorer;
                        let run = || {
                            scorer
                                .run(&rows, batch)
                                .map(drop)
                                .map_err(|e| e.to_string())
                        };
                        match measure(run, batch, config) {
                            Ok(timing) => bench.timings.push(timing),
                            Err(reason) => bench.reason = Some(reason),
                        }
                    }
                }
                (Err(LoadError::NoBackend { passed_over, .. }), _) => {
                    bench.reason = passed_over.first().map(|p| p.reason.to_string());
                }
                (Err(error), _) => bench.reason = Some(error.to_string()),
                (Ok(_), None) => bench.reason = Some("no golden rows".to_owned()),
            }
            bench
        })
        .collect();
    ModelBench {
        origin: files.origin.clone(),
        model: Some(manifest.name.clone()),
        version: Some(manifest.version.clone()),
        errors: Vec::new(),
        backends,
    }
}

/// Fills in how each figure stands to onnxruntime's.
fn compare(model: &mut ModelBench) {
    let own = |backend: &&BackendBench| backend.backend == BackendId::OrtCpu.name();
    let Some(base) = model.backends.iter().find(own).map(|b| b.timings.clone()) else {
        return;
    };
    for timing in model.backends.iter_mut().flat_map(|b| &mut b.timings) {
        let same = |t: &&Timing| t.batch == timing.batch && t.tokens == timing.tokens;
        timing.to_onnxruntime = base.iter().find(same).map(|t| timing.p50_us / t.p50_us);
    }
}

fn one_text(folder: &Path, preference: &BackendPreference, config: &BenchConfig) -> ModelBench {
    let mut bench = ModelBench {
        origin: folder.display().to_string(),
        model: None,
        version: None,
        errors: Vec::new(),
        backends: Vec::new(),
    };
    let said = |errors: Vec<LoadError>| errors.iter().map(LoadError::to_string).collect();
    let manifest = match TextModel::manifest(folder) {
        Ok(manifest) => manifest,
        Err(errors) => {
            bench.errors = said(errors);
            return bench;
        }
    };
    bench.model = Some(manifest.name.clone());
    bench.version = Some(manifest.version.clone());
    for id in preference.resolved() {
        let mut own = BackendBench {
            backend: id.name(),
            arithmetic: manifest.file.arithmetic.name(),
            reason: None,
            timings: Vec::new(),
        };
        match TextModel::open(folder, &[preference.backend(id)]) {
            Ok(mut model) => {
                for tokens in TOKENS {
                    // One token a word, and one at each end.
                    let text = "pump ".repeat(tokens - 2);
                    let run = || model.embed(&text).map(drop).map_err(|e| e.to_string());
                    match measure(run, 1, config) {
                        Ok(timing) => own.timings.push(Timing {
                            tokens: Some(tokens),
                            ..timing
                        }),
                        Err(reason) => own.reason = Some(reason),
                    }
                }
            }
            Err(errors) => {
                let errors: Vec<String> = said(errors);
                own.reason = Some(errors.join("; "));
            }
        }
        bench.backends.push(own);
    }
    bench
}

fn windows(files: &ModelFiles, golden: &Golden, batch: usize) -> Vec<f32> {
    let manifest = &files.manifest;
    let ages = vec![0.0; manifest.inputs.len()];
    let mut rows = Vec::new();
    for row in golden.rows.iter().cycle().take(batch) {
        // Golden rows have been through this at load.
        let _ = write_row(manifest, &golden.points(row, manifest), &ages, &mut rows);
    }
    rows
}

fn measure(
    mut run: impl FnMut() -> Result<(), String>,
    batch: usize,
    config: &BenchConfig,
) -> Result<Timing, String> {
    for _ in 0..config.warm_up {
        run()?;
    }
    let mut times = Vec::with_capacity(config.runs);
    let begun = Instant::now();
    while times.len() < config.runs.max(1) && (times.is_empty() || begun.elapsed() < config.limit) {
        let started = Instant::now();
        run()?;
        times.push(started.elapsed());
    }
    times.sort_unstable();
    let at = |percent: usize| {
        let place = (times.len() * percent).div_ceil(100).saturating_sub(1);
        times.get(place).map_or(f64::NAN, |t| t.as_secs_f64() * 1e6)
    };
    let p50_us = at(50);
    Ok(Timing {
        batch,
        tokens: None,
        runs: times.len(),
        p50_us,
        p99_us: at(99),
        p50_us_per_window: p50_us / batch as f64,
        to_onnxruntime: None,
    })
}
