//! Opening one model in a guarded way: on the first backend on which its golden rows
//! hold, with the reason for each one passed over.

use crate::backend::{
    Backend, BackendError, BackendId, Element, Model, ModelSource, RunError, TensorData,
    TensorSpec, panic_message,
};
use crate::golden::{Golden, GoldenError};
use crate::manifest::{Arithmetic, Manifest};
use crate::registry::LoadError;
use serde::Serialize;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// A load that takes longer is given up: drivers have been seen to hang.
const LOAD_LIMIT: Duration = Duration::from_secs(120);

/// Manifest and files of one model, hashes checked. The bytes stay, so that a model can
/// move to another backend at run time when the first one fails.
#[derive(Debug, Clone)]
pub struct ModelFiles {
    /// The manifest.
    pub manifest: Arc<Manifest>,
    /// Folder, or `built in`.
    pub origin: String,
    /// Model files by name.
    pub(crate) models: BTreeMap<String, Arc<[u8]>>,
    /// Golden rows by file name.
    pub(crate) goldens: BTreeMap<String, Arc<Golden>>,
}

/// Why a backend was passed over.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PassReason {
    /// It did not take the model.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// It took the model and answers otherwise.
    #[error(transparent)]
    Golden(#[from] GoldenError),
    /// Loading did not come back.
    #[error("loading did not finish in {seconds} s")]
    Stuck {
        /// How long was waited.
        seconds: u64,
    },
    /// It failed while running, after it had been active.
    #[error("failed while running: {reason}")]
    Failed {
        /// In the backend's words.
        reason: String,
    },
}

/// A backend that does not run the model, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct PassedOver {
    /// Which backend.
    pub backend: BackendId,
    /// Why.
    pub reason: PassReason,
}

impl Serialize for PassedOver {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut s = serializer.serialize_struct("PassedOver", 2)?;
        s.serialize_field("backend", self.backend.name())?;
        s.serialize_field("reason", &self.reason.to_string())?;
        s.end()
    }
}

/// A model that may be asked: hash, shapes and golden rows hold on its backend.
pub struct ActiveModel {
    /// Its files.
    pub files: Arc<ModelFiles>,
    /// Where it runs.
    pub backend: BackendId,
    /// Which arithmetic the chosen file runs in.
    pub arithmetic: Arithmetic,
    /// Backends before it in the preference, and why not.
    pub passed_over: Vec<PassedOver>,
    pub(crate) scorer: Scorer,
}

impl std::fmt::Debug for ActiveModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ActiveModel")
            .field("name", &self.files.manifest.name)
            .field("version", &self.files.manifest.version)
            .field("backend", &self.backend)
            .finish_non_exhaustive()
    }
}

/// An open model together with its planned batches: any number of rows is run as the
/// fewest planned batches, and a panic of the backend is an error.
pub(crate) struct Scorer {
    model: Box<dyn Model>,
    /// Largest first; ends with 1.
    batches: Vec<usize>,
    width: usize,
    chunk: Vec<Vec<f32>>,
    outputs: Vec<Vec<f32>>,
}

impl Scorer {
    pub(crate) fn new(model: Box<dyn Model>, manifest: &Manifest) -> Self {
        let mut batches = manifest.batches();
        batches.reverse();
        let width = manifest.row_shape().iter().product();
        let outputs = vec![Vec::new(); manifest.outputs.len()];
        Self {
            model,
            batches,
            width,
            chunk: Vec::new(),
            outputs,
        }
    }

    /// `rows` holds `count` rows. Gives one vector of `count` numbers for each output.
    pub(crate) fn run(&mut self, rows: &[f32], count: usize) -> Result<&[Vec<f32>], RunError> {
        if rows.len() != count * self.width {
            return Err(RunError::Shape);
        }
        for output in &mut self.outputs {
            output.clear();
        }
        let mut rest = rows;
        while !rest.is_empty() {
            let left = rest.len() / self.width;
            let batch = self
                .batches
                .iter()
                .copied()
                .find(|b| *b <= left)
                .unwrap_or(1);
            let Some((head, tail)) = rest.split_at_checked(batch * self.width) else {
                return Err(RunError::Shape);
            };
            rest = tail;
            let Self { model, chunk, .. } = self;
            // The model is not used again after a panic: its owner drops it.
            catch_unwind(AssertUnwindSafe(|| {
                model.run(batch, &[TensorData::F32(head)], chunk)
            }))
            .map_err(|p| RunError::Panicked {
                message: panic_message(&*p),
            })??;
            for (all, part) in self.outputs.iter_mut().zip(&self.chunk) {
                if part.len() != batch {
                    return Err(RunError::Shape);
                }
                all.extend_from_slice(part);
            }
        }
        Ok(&self.outputs)
    }
}

/// Opens `files` on the first of `backends` on which the golden rows hold. Backends in
/// `failed` are not tried; their reasons are kept.
pub(crate) fn open_on(
    files: &Arc<ModelFiles>,
    backends: &[Arc<dyn Backend>],
    failed: Vec<PassedOver>,
) -> Result<ActiveModel, LoadError> {
    let manifest = &files.manifest;
    let mut passed_over = failed;
    for backend in backends {
        let id = backend.id();
        if passed_over.iter().any(|p| p.backend == id) {
            continue;
        }
        let file = manifest.file_for(id.name());
        let (Some(bytes), Some(golden)) = (
            files.models.get(&file.path),
            files.goldens.get(&file.golden),
        ) else {
            return Err(LoadError::Missing {
                origin: files.origin.clone(),
                file: file.path,
            });
        };
        let source = ModelSource {
            bytes: bytes.clone(),
            inputs: vec![TensorSpec {
                name: manifest.tensor.name.clone(),
                element: Element::F32,
                row: manifest.row_shape(),
            }],
            outputs: manifest
                .outputs
                .iter()
                .map(|o| o.name.to_string())
                .collect(),
            batches: manifest.batches(),
            memory: manifest.limits.memory.0,
        };
        let (backend, manifest, golden) = (backend.clone(), manifest.clone(), golden.clone());
        match guarded(move || check(&*backend, &source, &manifest, &golden)) {
            Ok(scorer) => {
                return Ok(ActiveModel {
                    files: files.clone(),
                    backend: id,
                    arithmetic: file.arithmetic,
                    passed_over,
                    scorer,
                });
            }
            Err(reason) => passed_over.push(PassedOver {
                backend: id,
                reason,
            }),
        }
    }
    Err(LoadError::NoBackend {
        origin: files.origin.clone(),
        model: manifest.name.clone(),
        passed_over,
    })
}

fn check(
    backend: &dyn Backend,
    source: &ModelSource,
    manifest: &Manifest,
    golden: &Golden,
) -> Result<Scorer, PassReason> {
    let model = backend.load(source)?;
    let mut scorer = Scorer::new(model, manifest);
    golden.check(manifest, &mut scorer)?;
    Ok(scorer)
}

/// Loads and checks on a thread of its own: a panic is caught, a hang is left behind.
pub(crate) fn guarded<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PassReason> + Send + 'static,
) -> Result<T, PassReason> {
    let (tx, rx) = mpsc::sync_channel(1);
    let spawned = std::thread::Builder::new()
        .name("model-load".into())
        .stack_size(16 << 20)
        .spawn(move || {
            let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|p| {
                Err(BackendError::Panicked {
                    message: panic_message(&*p),
                }
                .into())
            });
            // The receiver is gone when loading was given up.
            let _ = tx.send(result);
        });
    if let Err(error) = spawned {
        return Err(BackendError::Unavailable {
            reason: format!("no thread: {error}"),
        }
        .into());
    }
    match rx.recv_timeout(LOAD_LIMIT) {
        Ok(result) => result,
        Err(_) => Err(PassReason::Stuck {
            seconds: LOAD_LIMIT.as_secs(),
        }),
    }
}
