//! A loaded text model: from a template to a vector.

use super::manifest::TextManifest;
use super::similarity;
use crate::backend::{
    Backend, BackendError, BackendId, Element, Model, ModelSource, TensorData, TensorSpec,
};
use crate::golden::{self, GoldenError};
use crate::load::{PassReason, PassedOver, guarded};
use crate::manifest::{MAX_FILE_BYTES, ManifestError};
use crate::registry::{LoadError, hex, read_limited};
use crate::tokenizer::Tokenizer;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::path::Path;
use std::sync::Arc;

/// Why a text has no vector.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum EmbedError {
    /// The backend failed.
    #[error("{reason}")]
    Backend {
        /// In its words.
        reason: String,
    },
    /// The vector is not of length 1, or not finite.
    #[error("the vector's length is {length}, not 1")]
    Length {
        /// Its length.
        length: f32,
    },
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct GoldenText {
    tolerance: f64,
    rows: Vec<GoldenRow>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct GoldenRow {
    text: String,
    ids: Vec<i64>,
    vector: Vec<f32>,
    nearest_to: Option<String>,
}

/// Files of a text model, hashes checked; nothing is run.
pub(super) struct TextFiles {
    pub(super) manifest: Arc<TextManifest>,
    origin: String,
    model: Arc<[u8]>,
    vocabulary: Arc<str>,
    golden: Arc<GoldenText>,
}

impl TextFiles {
    /// The manifest alone: cheap, for starting up.
    pub(super) fn manifest(folder: &Path) -> Result<TextManifest, Vec<LoadError>> {
        let origin = folder.display().to_string();
        let bytes = read_limited(&folder.join(super::MANIFEST), 1 << 20).map_err(|e| vec![e])?;
        let text = String::from_utf8_lossy(&bytes);
        TextManifest::parse(&text).map_err(|list| {
            list.into_iter()
                .map(|error| LoadError::Manifest {
                    origin: origin.clone(),
                    error,
                })
                .collect()
        })
    }

    pub(super) fn read(folder: &Path) -> Result<Self, Vec<LoadError>> {
        let manifest = Self::manifest(folder)?;
        let origin = folder.display().to_string();
        let read = |name: &str, sha256: Option<&str>, limit: u64| -> Result<Vec<u8>, LoadError> {
            let bytes = read_limited(&folder.join(name), limit)?;
            let found = hex(&Sha256::digest(&bytes));
            match sha256 {
                Some(expected) if !found.eq_ignore_ascii_case(expected) => Err(LoadError::Hash {
                    origin: origin.clone(),
                    file: name.to_owned(),
                    expected: expected.to_owned(),
                    found,
                }),
                _ => Ok(bytes),
            }
        };
        let all = || -> Result<Self, LoadError> {
            let file = &manifest.file;
            let model = read(
                &file.path,
                Some(&file.sha256),
                MAX_FILE_BYTES.min(manifest.limits.memory.0),
            )?;
            let vocabulary = read(
                &manifest.vocabulary.path,
                Some(&manifest.vocabulary.sha256),
                32 << 20,
            )?;
            let vocabulary = String::from_utf8(vocabulary).map_err(|_| LoadError::Manifest {
                origin: origin.clone(),
                error: ManifestError::Value {
                    key: "vocabulary.path".to_owned(),
                    problem: "the file is not UTF-8".to_owned(),
                },
            })?;
            let golden = read(&file.golden, None, golden::MAX_BYTES)?;
            let bad = |error| LoadError::Golden {
                origin: origin.clone(),
                file: file.golden.clone(),
                error,
            };
            let golden: GoldenText = serde_json::from_slice(&golden).map_err(|e| {
                bad(GoldenError::Syntax {
                    message: e.to_string(),
                })
            })?;
            let labelled = golden
                .rows
                .iter()
                .filter(|r| r.nearest_to.is_some())
                .count();
            if labelled == 0 || golden.rows.len() > golden::MAX_ROWS {
                return Err(bad(GoldenError::Count {
                    rows: golden.rows.len(),
                    labelled,
                }));
            }
            if !golden.tolerance.is_finite() || golden.tolerance < 0.0 {
                return Err(bad(GoldenError::Tolerance));
            }
            Ok(Self {
                manifest: Arc::new(manifest.clone()),
                origin: origin.clone(),
                model: model.into(),
                vocabulary: vocabulary.into(),
                golden: Arc::new(golden),
            })
        };
        all().map_err(|e| vec![e])
    }
}

/// A text model on the backend on which its golden rows hold.
pub struct TextModel {
    /// Its manifest.
    pub manifest: Arc<TextManifest>,
    /// Where it runs.
    pub backend: BackendId,
    /// Backends before it in the preference, and why not.
    pub passed_over: Vec<PassedOver>,
    golden_rows: usize,
    runner: Plans,
}

impl std::fmt::Debug for TextModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TextModel")
            .field("backend", &self.backend)
            .finish_non_exhaustive()
    }
}

struct Plans {
    tokenizer: Arc<Tokenizer>,
    /// One for each sequence, shortest first.
    plans: Vec<(usize, Box<dyn Model>)>,
    dimension: usize,
    ids: Vec<i64>,
    mask: Vec<i64>,
    outputs: Vec<Vec<f32>>,
}

impl Plans {
    fn load(backend: &dyn Backend, files: &TextFiles) -> Result<Self, PassReason> {
        let manifest = &files.manifest;
        let tokenizer =
            Tokenizer::parse(&files.vocabulary).map_err(|e| BackendError::Malformed {
                problem: e.to_string(),
            })?;
        let mut plans = Vec::with_capacity(manifest.sequences.len());
        for &sequence in &manifest.sequences {
            let input = |name: &str| TensorSpec {
                name: name.to_owned(),
                element: Element::I64,
                row: vec![sequence],
            };
            let source = ModelSource {
                bytes: files.model.clone(),
                inputs: vec![input("input_ids"), input("attention_mask")],
                outputs: vec!["sentence_embedding".to_owned()],
                batches: vec![1],
                memory: manifest.limits.memory.0,
            };
            plans.push((sequence, backend.load(&source)?));
        }
        Ok(Self {
            tokenizer: Arc::new(tokenizer),
            plans,
            dimension: manifest.dimension,
            ids: Vec::new(),
            mask: Vec::new(),
            outputs: Vec::new(),
        })
    }

    fn embed(&mut self, template: &str) -> Result<Vec<f32>, EmbedError> {
        let longest = self.plans.last().map_or(0, |(n, _)| *n);
        let tokens = self.tokenizer.encode(template, longest);
        let Self {
            plans,
            ids,
            mask,
            outputs,
            ..
        } = self;
        let none = || EmbedError::Backend {
            reason: "no plan".to_owned(),
        };
        let (length, model) = plans
            .iter_mut()
            .find(|(n, _)| *n >= tokens.len())
            .ok_or_else(none)?;
        ids.clear();
        ids.extend_from_slice(&tokens);
        ids.resize(*length, 0);
        mask.clear();
        mask.resize(tokens.len(), 1);
        mask.resize(*length, 0);
        model
            .run(1, &[TensorData::I64(ids), TensorData::I64(mask)], outputs)
            .map_err(|e| EmbedError::Backend {
                reason: e.to_string(),
            })?;
        let vector = outputs.first().cloned().unwrap_or_default();
        let length = vector.iter().map(|v| v * v).sum::<f32>().sqrt();
        // Also false for NaN and for a vector of another dimension.
        if vector.len() == self.dimension && (length - 1.0).abs() < 1e-2 {
            Ok(vector)
        } else {
            Err(EmbedError::Length { length })
        }
    }

    fn check(&mut self, golden: &GoldenText) -> Result<(), GoldenError> {
        let longest = self.plans.last().map_or(0, |(n, _)| *n);
        let mut vectors: Vec<(&str, Vec<f32>)> = Vec::with_capacity(golden.rows.len());
        for (row, item) in golden.rows.iter().enumerate() {
            if self.tokenizer.encode(&item.text, longest) != item.ids {
                return Err(GoldenError::Tokens { row });
            }
            let vector = self.embed(&item.text).map_err(|e| GoldenError::Run {
                row,
                reason: e.to_string(),
            })?;
            let off = vector
                .iter()
                .zip(&item.vector)
                .map(|(a, b)| f64::from((a - b).abs()));
            let distance = off.fold(0.0, f64::max);
            if vector.len() != item.vector.len() || distance > golden.tolerance {
                return Err(GoldenError::Vector { row, distance });
            }
            vectors.push((&item.text, vector));
        }
        // The label: which of the other labels' texts is nearest.
        let anchors: Vec<&str> = golden
            .rows
            .iter()
            .filter_map(|r| r.nearest_to.as_deref())
            .collect();
        for (row, item) in golden.rows.iter().enumerate() {
            let Some(expected) = &item.nearest_to else {
                continue;
            };
            let Some((_, own)) = vectors.get(row) else {
                continue;
            };
            let nearest = vectors
                .iter()
                .filter(|(text, _)| anchors.contains(text))
                .max_by(|(_, a), (_, b)| similarity(a, own).total_cmp(&similarity(b, own)));
            let found = nearest.map_or("", |(text, _)| *text);
            if found != expected {
                return Err(GoldenError::Nearest {
                    row,
                    expected: expected.clone(),
                    found: found.to_owned(),
                });
            }
        }
        Ok(())
    }
}

impl TextModel {
    /// The manifest of a folder; nothing else is read.
    pub fn manifest(folder: &Path) -> Result<TextManifest, Vec<LoadError>> {
        TextFiles::manifest(folder)
    }

    /// Reads a folder, checks hashes, and loads on the first backend on which the golden
    /// rows hold. Takes a second or so; no thread that others wait for should do it.
    pub fn open(folder: &Path, backends: &[Arc<dyn Backend>]) -> Result<Self, Vec<LoadError>> {
        let files = Arc::new(TextFiles::read(folder)?);
        let mut passed_over = Vec::new();
        for backend in backends {
            let (own, shared) = (backend.clone(), files.clone());
            let loaded = guarded(move || {
                let mut plans = Plans::load(&*own, &shared)?;
                plans.check(&shared.golden)?;
                Ok(plans)
            });
            match loaded {
                Ok(runner) => {
                    let manifest = files.manifest.clone();
                    return Ok(Self {
                        manifest,
                        backend: backend.id(),
                        passed_over,
                        golden_rows: files.golden.rows.len(),
                        runner,
                    });
                }
                Err(reason) => passed_over.push(PassedOver {
                    backend: backend.id(),
                    reason,
                }),
            }
        }
        Err(vec![LoadError::NoBackend {
            origin: files.origin.clone(),
            model: files.manifest.name.clone(),
            passed_over,
        }])
    }

    /// Golden rows that held.
    pub fn golden_rows(&self) -> usize {
        self.golden_rows
    }

    /// The vector of a template; see [`super::mask`].
    pub fn embed(&mut self, template: &str) -> Result<Vec<f32>, EmbedError> {
        self.runner.embed(template)
    }
}
