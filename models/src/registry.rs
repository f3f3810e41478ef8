//! The models that may be asked on this machine.
//!
//! A model folder holds `manifest.toml` and the files that it names. Each is read
//! under a size limit, held against its SHA-256, opened in a guarded way on the first
//! backend of the preference that takes it, and activated when its golden rows hold
//! there. A folder that fails is an error value with its place; the others load.

use crate::artifacts::EMBEDDED;
use crate::backend::{Backend, BackendId, BackendPreference};
use crate::golden::{self, Golden, GoldenError};
use crate::load::{self, open_on};
use crate::manifest::{File, MAX_FILE_BYTES, Manifest, ManifestError, Variant};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use load::{ActiveModel, ModelFiles, PassReason, PassedOver};

/// Most bytes of a manifest.
const MAX_MANIFEST: u64 = 1 << 20;
/// Most models in one registry.
pub const MAX_MODELS: usize = 64;

/// Where models come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Those that are part of the binary.
    Embedded,
    /// A model folder, or a folder of model folders.
    Dir(PathBuf),
}

/// Why a model was not activated.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file or folder cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is larger than allowed; it was not read.
    #[error("{}: larger than {limit} bytes", path.display())]
    TooLarge {
        /// Which.
        path: PathBuf,
        /// The limit.
        limit: u64,
    },
    /// The manifest is refused.
    #[error("{origin}/manifest.toml:{error}")]
    Manifest {
        /// Folder, or `built in`.
        origin: String,
        /// Place and reason.
        error: ManifestError,
    },
    /// A file that the manifest names is not there.
    #[error("{origin}: file `{file}` is missing")]
    Missing {
        /// Folder, or `built in`.
        origin: String,
        /// File name.
        file: String,
    },
    /// A file is not the one that the manifest means.
    #[error("{origin}/{file}: SHA-256 is {found}, the manifest says {expected}")]
    Hash {
        /// Folder, or `built in`.
        origin: String,
        /// File name.
        file: String,
        /// From the manifest.
        expected: String,
        /// Of the file.
        found: String,
    },
    /// Golden rows that cannot be used.
    #[error("{origin}/{file}: {error}")]
    Golden {
        /// Folder, or `built in`.
        origin: String,
        /// File name.
        file: String,
        /// Why.
        error: GoldenError,
    },
    /// No backend took the model with its golden rows.
    #[error("{origin}: no backend runs `{model}`: {}", reasons(passed_over))]
    NoBackend {
        /// Folder, or `built in`.
        origin: String,
        /// The model.
        model: Arc<str>,
        /// Every backend and why not.
        passed_over: Vec<PassedOver>,
    },
    /// Two folders hold a model of one name.
    #[error("{origin}: model `{model}` is also in {other}")]
    Duplicate {
        /// Folder that came second.
        origin: String,
        /// The model.
        model: Arc<str>,
        /// Folder that came first.
        other: String,
    },
    /// The lighter model is missing, or reads something else.
    #[error("{origin}: lighter model `{lighter}` of `{model}` {problem}")]
    Lighter {
        /// Folder, or `built in`.
        origin: String,
        /// The model.
        model: Arc<str>,
        /// The one that it names.
        lighter: Arc<str>,
        /// What is wrong.
        problem: &'static str,
    },
    /// More models than a registry holds.
    #[error("{origin}: more than {MAX_MODELS} models")]
    TooMany {
        /// The folder that was one too many.
        origin: String,
    },
}

fn reasons(list: &[PassedOver]) -> String {
    let mut text = String::new();
    for (i, p) in list.iter().enumerate() {
        let _ = write!(
            text,
            "{}{}: {}",
            if i > 0 { "; " } else { "" },
            p.backend,
            p.reason
        );
    }
    text
}

/// The activated models by name.
#[derive(Default)]
pub struct Registry {
    pub(crate) models: BTreeMap<Arc<str>, ActiveModel>,
    /// In order of preference; a runner moves to the next when one fails.
    pub(crate) backends: Vec<Arc<dyn Backend>>,
    /// Names that came from the binary, whatever version stands there now.
    pub(crate) built_in: BTreeSet<Arc<str>>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry")
            .field("models", &self.models)
            .finish_non_exhaustive()
    }
}

impl Registry {
    /// Every model of every source, or every reason why one failed. A later source
    /// replaces a built-in model of the same name.
    pub fn load(
        sources: &[Source],
        preference: &BackendPreference,
    ) -> Result<Self, Vec<LoadError>> {
        let (registry, errors) = Self::load_usable(sources, preference);
        if errors.is_empty() {
            Ok(registry)
        } else {
            Err(errors)
        }
    }

    /// The models that can be activated, and the reasons for those that cannot.
    pub fn load_usable(
        sources: &[Source],
        preference: &BackendPreference,
    ) -> (Self, Vec<LoadError>) {
        Self::load_on(sources, preference.backends())
    }

    /// [`Self::load_usable`], but the models that are given open already stand in the place
    /// of the sources' of their names, which are not opened. One whose name no source has
    /// is left out.
    pub fn load_in_place(
        sources: &[Source],
        preference: &BackendPreference,
        open: Vec<ActiveModel>,
    ) -> (Self, Vec<LoadError>) {
        let named = |model: ActiveModel| (model.files.manifest.name.clone(), model);
        let open = open.into_iter().map(named).collect();
        Self::load_with(sources, preference.backends(), open)
    }

    /// [`Self::load_usable`] on backends that the caller made, in order of preference.
    pub fn load_on(sources: &[Source], backends: Vec<Arc<dyn Backend>>) -> (Self, Vec<LoadError>) {
        Self::load_with(sources, backends, BTreeMap::new())
    }

    fn load_with(
        sources: &[Source],
        backends: Vec<Arc<dyn Backend>>,
        mut open: BTreeMap<Arc<str>, ActiveModel>,
    ) -> (Self, Vec<LoadError>) {
        let mut errors = Vec::new();
        let mut found: BTreeMap<Arc<str>, ModelFiles> = BTreeMap::new();
        for source in sources {
            for (origin, files) in read_source(source) {
                let files = match files {
                    Ok(files) => files,
                    Err(mut list) => {
                        errors.append(&mut list);
                        continue;
                    }
                };
                let name = files.manifest.name.clone();
                match found.get(&name) {
                    Some(other) if other.origin != BUILT_IN => errors.push(LoadError::Duplicate {
                        origin: files.origin,
                        model: name,
                        other: other.origin.clone(),
                    }),
                    None if found.len() >= MAX_MODELS => errors.push(LoadError::TooMany { origin }),
                    _ => {
                        found.insert(name, files);
                    }
                }
            }
        }
        let mut models = BTreeMap::new();
        let mut built_in = BTreeSet::new();
        for (name, files) in found {
            if files.origin == BUILT_IN {
                built_in.insert(name.clone());
            }
            if let Some(model) = open.remove(&name) {
                models.insert(name, model);
                continue;
            }
            match open_on(&Arc::new(files), &backends, Vec::new()) {
                Ok(model) => {
                    models.insert(name, model);
                }
                Err(error) => errors.push(error),
            }
        }
        errors.extend(lighter_problems(&models));
        let registry = Self {
            models,
            backends,
            built_in,
        };
        (registry, errors)
    }

    /// The built-in models on tract, which is always there.
    pub fn embedded() -> Result<Self, Vec<LoadError>> {
        Self::load(&[Source::Embedded], &BackendPreference::builtin())
    }

    /// Names of the models that are part of the binary.
    pub fn shipped() -> impl Iterator<Item = &'static str> {
        crate::artifacts::EMBEDDED.iter().map(|model| model.name)
    }

    /// Keeps of the built-in models those whose name is wanted, and the lighter ones that
    /// any model that stays names.
    pub fn keep(&mut self, wanted: impl Fn(&str) -> bool) {
        let built_in = &self.built_in;
        let stays = |model: &ActiveModel| {
            let name = &model.files.manifest.name;
            !built_in.contains(name) || wanted(name)
        };
        let lighter: Vec<Arc<str>> = self
            .models
            .values()
            .filter(|model| stays(model))
            .filter_map(|model| model.files.manifest.lighter.clone())
            .collect();
        self.models
            .retain(|name, model| stays(model) || lighter.contains(name));
    }

    /// One model.
    pub fn get(&self, name: &str) -> Option<&ActiveModel> {
        self.models.get(name)
    }

    /// All models, by name.
    pub fn models(&self) -> impl Iterator<Item = &ActiveModel> {
        self.models.values()
    }

    /// Their manifests, by name: what a [`crate::Windower`] binds to.
    pub fn manifests(&self) -> Vec<Arc<Manifest>> {
        self.models
            .values()
            .map(|m| m.files.manifest.clone())
            .collect()
    }
}

fn lighter_problems(models: &BTreeMap<Arc<str>, ActiveModel>) -> Vec<LoadError> {
    let mut errors = Vec::new();
    for model in models.values() {
        let manifest = &model.files.manifest;
        let Some(lighter) = &manifest.lighter else {
            continue;
        };
        let problem = match models.get(lighter) {
            None => "is not loaded",
            Some(other) if !manifest.same_window(&other.files.manifest) => {
                "reads other metrics, points or periods"
            }
            Some(other) if other.files.manifest.lighter.is_some() => "names a lighter model itself",
            Some(_) => continue,
        };
        errors.push(LoadError::Lighter {
            origin: model.files.origin.clone(),
            model: manifest.name.clone(),
            lighter: lighter.clone(),
            problem,
        });
    }
    errors
}

const BUILT_IN: &str = "built in";

fn embedded(source: &crate::artifacts::Embedded) -> Result<ModelFiles, Vec<LoadError>> {
    assemble(BUILT_IN, source.manifest, |name, _| {
        source
            .files
            .iter()
            .find(|(n, _)| *n == name)
            .map(|(_, bytes)| bytes.to_vec())
            .ok_or_else(|| LoadError::Missing {
                origin: BUILT_IN.to_owned(),
                file: name.to_owned(),
            })
    })
}

pub(crate) type Folder = (String, Result<ModelFiles, Vec<LoadError>>);

/// The model folders at `path`, by name.
fn read_dir(path: &Path) -> Vec<Folder> {
    let origin = path.display().to_string();
    if path.join("manifest.toml").is_file() {
        return vec![(origin, read_folder(path))];
    }
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries,
        Err(source) => {
            return vec![(
                origin,
                Err(vec![LoadError::Read {
                    path: path.into(),
                    source,
                }]),
            )];
        }
    };
    let mut folders: Vec<PathBuf> = entries
        .filter_map(|e| e.ok().map(|e| e.path()))
        .filter(|p| p.join("manifest.toml").is_file())
        .collect();
    folders.sort();
    folders
        .into_iter()
        .map(|p| (p.display().to_string(), read_folder(&p)))
        .collect()
}

/// Manifest and files of one model folder, sizes and hashes checked; nothing is run.
pub fn read_folder(path: &Path) -> Result<ModelFiles, Vec<LoadError>> {
    let origin = path.display().to_string();
    let manifest = read_limited(&path.join("manifest.toml"), MAX_MANIFEST).map_err(|e| vec![e])?;
    let manifest = String::from_utf8(manifest).map_err(|_| {
        vec![LoadError::Manifest {
            origin: origin.clone(),
            error: ManifestError::Syntax {
                line: 1,
                column: 1,
                message: "not UTF-8".to_owned(),
            },
        }]
    })?;
    assemble(&origin, &manifest, |name, limit| {
        read_limited(&path.join(name), limit)
    })
}

pub(crate) fn read_limited(path: &Path, limit: u64) -> Result<Vec<u8>, LoadError> {
    let read = |source| LoadError::Read {
        path: path.into(),
        source,
    };
    let file = std::fs::File::open(path).map_err(read)?;
    let meta = file.metadata().map_err(read)?;
    if !meta.is_file() {
        return Err(read(std::io::Error::from(std::io::ErrorKind::InvalidInput)));
    }
    let too_large = || LoadError::TooLarge {
        path: path.into(),
        limit,
    };
    if meta.len() > limit {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(read)?;
    if bytes.len() as u64 > limit {
        Err(too_large())
    } else {
        Ok(bytes)
    }
}

fn assemble(
    origin: &str,
    manifest: &str,
    read: impl Fn(&str, u64) -> Result<Vec<u8>, LoadError>,
) -> Result<ModelFiles, Vec<LoadError>> {
    let origin = origin.to_owned();
    let manifest = Manifest::parse(manifest).map_err(|list| {
        list.into_iter()
            .map(|error| LoadError::Manifest {
                origin: origin.clone(),
                error,
            })
            .collect::<Vec<_>>()
    })?;
    let mut files = ModelFiles {
        manifest: Arc::new(manifest),
        origin: origin.clone(),
        models: BTreeMap::new(),
        goldens: BTreeMap::new(),
    };
    let manifest = files.manifest.clone();
    let mut errors = Vec::new();
    for file in
        std::iter::once(manifest.file.clone()).chain(manifest.variants.iter().map(Variant::file))
    {
        if let Err(error) = add(&mut files, &file, &read) {
            errors.push(error);
        }
    }
    if errors.is_empty() {
        Ok(files)
    } else {
        Err(errors)
    }
}

fn add(
    files: &mut ModelFiles,
    file: &File,
    read: &impl Fn(&str, u64) -> Result<Vec<u8>, LoadError>,
) -> Result<(), LoadError> {
    let bytes = read(
        &file.path,
        MAX_FILE_BYTES.min(files.manifest.limits.memory.0),
    )?;
    let found = hex(&Sha256::digest(&bytes));
    if !found.eq_ignore_ascii_case(&file.sha256) {
        return Err(LoadError::Hash {
            origin: files.origin.clone(),
            file: file.path.clone(),
            expected: file.sha256.clone(),
            found,
        });
    }
    let golden = read(&file.golden, golden::MAX_BYTES)?;
    let golden = Golden::parse(&golden, &files.manifest).map_err(|error| LoadError::Golden {
        origin: files.origin.clone(),
        file: file.golden.clone(),
        error,
    })?;
    files.models.insert(file.path.clone(), bytes.into());
    files.goldens.insert(file.golden.clone(), Arc::new(golden));
    Ok(())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, b| {
            let _ = write!(text, "{b:02x}");
            text
        })
}

/// Opens a model folder on `preference`, for a hot swap or a shadow.
pub fn open_folder(
    path: &Path,
    preference: &BackendPreference,
) -> Result<ActiveModel, Vec<LoadError>> {
    let files = read_folder(path)?;
    open_on(&Arc::new(files), &preference.backends(), Vec::new()).map_err(|e| vec![e])
}

/// Opens the model of this name as the sources have it, as [`Registry::load`] would; none
/// when they have no such model. The others are read, not opened.
pub fn open_named(
    sources: &[Source],
    name: &str,
    preference: &BackendPreference,
) -> Option<Result<ActiveModel, LoadError>> {
    let mut found = None;
    for (_, files) in sources.iter().flat_map(read_source) {
        let Ok(files) = files else { continue };
        let free = found
            .as_ref()
            .is_none_or(|known: &ModelFiles| known.origin == BUILT_IN);
        if &*files.manifest.name == name && free {
            found = Some(files);
        }
    }
    Some(open_on(
        &Arc::new(found?),
        &preference.backends(),
        Vec::new(),
    ))
}

/// Opens files on one backend and no other.
pub(crate) fn open_alone(
    files: &Arc<ModelFiles>,
    id: BackendId,
    preference: &BackendPreference,
) -> Result<ActiveModel, LoadError> {
    open_on(files, &[preference.backend(id)], Vec::new())
}

/// The model folders of a source, files read and checked, nothing run.
pub(crate) fn read_source(source: &Source) -> Vec<Folder> {
    match source {
        Source::Embedded => EMBEDDED
            .iter()
            .map(|e| (e.name.to_owned(), embedded(e)))
            .collect(),
        Source::Dir(path) => read_dir(path),
    }
}

#[cfg(test)]
mod tests;
