//! The verdict that a daemon would come to, without a daemon: every model of a source
//! on every backend of the preference.

use crate::backend::{BackendId, BackendPreference};
use crate::load::ModelFiles;
use crate::registry::{LoadError, Source, open_alone, read_source};
use crate::text::{self, TextModel};
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// What one backend makes of a model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BackendReport {
    /// Its name.
    pub backend: &'static str,
    /// Shapes and golden rows hold there.
    pub ok: bool,
    /// Why not; names the operator, the input or the golden row.
    pub reason: Option<String>,
    /// The file that it runs, and in which arithmetic.
    pub file: String,
    /// `w8`, `qdq-int8` and so on.
    pub arithmetic: &'static str,
    /// Golden rows that were compared.
    pub golden_rows: usize,
    /// Loading and comparing, ms.
    pub load_ms: u64,
}

/// One model folder.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelReport {
    /// Folder, or `built in`.
    pub origin: String,
    /// The model; none when its manifest cannot be read.
    pub model: Option<Arc<str>>,
    /// Its version.
    pub version: Option<Arc<str>>,
    /// A daemon would activate it.
    pub ok: bool,
    /// The backend that it would run on.
    pub active_on: Option<&'static str>,
    /// What is wrong before any backend is asked: manifest, hash, size, golden form.
    pub errors: Vec<String>,
    /// Each backend, in order of preference.
    pub backends: Vec<BackendReport>,
}

/// Every model of a source.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VerifyReport {
    /// Every model would be activated, and there is at least one.
    pub ok: bool,
    /// The models.
    pub models: Vec<ModelReport>,
}

/// Checks a model folder, or a folder of model folders, as [`crate::Registry::load`]
/// does, and goes on to the backends that it would not reach.
pub fn verify(path: &Path, preference: &BackendPreference) -> VerifyReport {
    verify_source(&Source::Dir(path.into()), preference)
}

/// [`verify`] for any source.
pub fn verify_source(source: &Source, preference: &BackendPreference) -> VerifyReport {
    let mut models: Vec<_> = read_source(source)
        .into_iter()
        .map(|(origin, files)| match files {
            Ok(files) => report(Arc::new(files), preference),
            Err(errors) => ModelReport {
                origin,
                model: None,
                version: None,
                ok: false,
                active_on: None,
                errors: errors.iter().map(LoadError::to_string).collect(),
                backends: Vec::new(),
            },
        })
        .collect();
    if let Source::Dir(path) = source {
        let texts = text::folders(std::slice::from_ref(path));
        models.extend(texts.iter().map(|folder| report_text(folder, preference)));
    }
    VerifyReport {
        ok: !models.is_empty() && models.iter().all(|m| m.ok),
        models,
    }
}

fn report(files: Arc<ModelFiles>, preference: &BackendPreference) -> ModelReport {
    let manifest = &files.manifest;
    let backends: Vec<_> = preference
        .resolved()
        .into_iter()
        .map(|id| on_backend(&files, id, preference))
        .collect();
    let active_on = backends.iter().find(|b| b.ok).map(|b| b.backend);
    ModelReport {
        origin: files.origin.clone(),
        model: Some(manifest.name.clone()),
        version: Some(manifest.version.clone()),
        ok: active_on.is_some(),
        active_on,
        errors: Vec::new(),
        backends,
    }
}

fn on_backend(
    files: &Arc<ModelFiles>,
    id: BackendId,
    preference: &BackendPreference,
) -> BackendReport {
    let file = files.manifest.file_for(id.name());
    let golden_rows = files.goldens.get(&file.golden).map_or(0, |g| g.rows.len());
    let started = Instant::now();
    let result = open_alone(files, id, preference);
    let load_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let reason = result.err().map(|error| match error {
        LoadError::NoBackend { passed_over, .. } => passed_over
            .first()
            .map_or_else(String::new, |p| p.reason.to_string()),
        other => other.to_string(),
    });
    BackendReport {
        backend: id.name(),
        ok: reason.is_none(),
        reason,
        file: file.path,
        arithmetic: file.arithmetic.name(),
        golden_rows,
        load_ms,
    }
}

/// A text model's folder, by the same questions.
fn report_text(folder: &Path, preference: &BackendPreference) -> ModelReport {
    let mut report = ModelReport {
        origin: folder.display().to_string(),
        model: None,
        version: None,
        ok: false,
        active_on: None,
        errors: Vec::new(),
        backends: Vec::new(),
    };
    let manifest = match TextModel::manifest(folder) {
        Ok(manifest) => manifest,
        Err(errors) => {
            report.errors = errors.iter().map(LoadError::to_string).collect();
            return report;
        }
    };
    report.model = Some(manifest.name.clone());
    report.version = Some(manifest.version.clone());
    for id in preference.resolved() {
        let started = Instant::now();
        let opened = TextModel::open(folder, &[preference.backend(id)]);
        let load_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let (golden_rows, reason) = match opened {
            Ok(model) => (model.golden_rows(), None),
            Err(errors) => match errors.into_iter().next() {
                Some(LoadError::NoBackend { passed_over, .. }) => {
                    (0, passed_over.first().map(|p| p.reason.to_string()))
                }
                // No backend was asked: the same for each of them.
                Some(other) => {
                    report.errors = vec![other.to_string()];
                    return report;
                }
                None => (0, Some(String::new())),
            },
        };
        report.backends.push(BackendReport {
            backend: id.name(),
            ok: reason.is_none(),
            reason,
            file: manifest.file.path.clone(),
            arithmetic: manifest.file.arithmetic.name(),
            golden_rows,
            load_ms,
        });
    }
    report.active_on = report.backends.iter().find(|b| b.ok).map(|b| b.backend);
    report.ok = report.active_on.is_some();
    report
}
