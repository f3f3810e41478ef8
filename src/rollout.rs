//! Which version of a model answers: changed by command or by rule, and kept over restarts.
//!
//! A version is a folder that an operator puts down and leaves in place. `rollout.json` in the data folder says
//! which folder is active, which was before it, and which one is beside it; without an entry a model is what the
//! configuration says. A folder that can't be used at a start is said and left out: then the configured version runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use models::runner::RolloutError;
use models::{BackendPreference, Runner, Source, registry};
use serde::{Deserialize, Serialize};

/// What to do with a model's versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The candidate becomes the active version.
    Promote,
    /// The version before the active one comes back.
    Rollback,
    /// The candidate goes.
    Cancel,
}

impl Action {
    /// The word in rules, paths and verbs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Promote => "promote",
            Self::Rollback => "rollback",
            Self::Cancel => "cancel",
        }
    }

    /// From the word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Promote, Self::Rollback, Self::Cancel]
            .into_iter()
            .find(|action| action.as_str() == word)
    }
}

/// A version.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Version {
    /// What the configuration says.
    #[default]
    Configured,
    /// The model of a folder.
    Folder(PathBuf),
}

/// What is kept of one model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
struct Entry {
    active: Version,
    /// Before the active one; nothing before the first promotion.
    previous: Option<Version>,
    candidate: Option<Candidate>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
struct Candidate {
    folder: PathBuf,
    canary_percent: u8,
}

/// Why a version was not changed.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The runner says no.
    #[error(transparent)]
    Runner(#[from] RolloutError),
    /// The folder's model is not right on this machine.
    #[error("{0}")]
    Model(String),
    /// The path says nothing to a daemon with another working folder.
    #[error("{}: give an absolute path that the gateway can read", .0.display())]
    Path(PathBuf),
    /// It was done, and will be forgotten by a restart.
    #[error("done, but not kept for the next start: {}: {source}", file.display())]
    Keep {
        /// Where it belongs.
        file: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
}

fn told(errors: &[models::LoadError]) -> String {
    let all: Vec<String> = errors.iter().map(ToString::to_string).collect();
    all.join("; ")
}

/// Changes versions, one at a time.
#[derive(Debug)]
pub struct Rollouts {
    runner: Arc<Runner>,
    sources: Vec<Source>,
    preference: BackendPreference,
    file: PathBuf,
    entries: Mutex<BTreeMap<String, Entry>>,
}

fn read(file: &Path) -> Result<BTreeMap<String, Entry>, String> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(format!("{}: {error}", file.display())),
    };
    serde_json::from_str(&text).map_err(|error| {
        format!(
            "{}: {error}; delete it to run the configured versions",
            file.display()
        )
    })
}

/// The promoted versions, opened, and the reasons for those that can't be used.
pub fn promoted(
    file: &Path,
    preference: &BackendPreference,
) -> (Vec<registry::ActiveModel>, Vec<String>) {
    let entries = match read(file) {
        Ok(entries) => entries,
        Err(problem) => return (Vec::new(), vec![problem]),
    };
    let (mut models, mut problems) = (Vec::new(), Vec::new());
    for (name, entry) in &entries {
        let Version::Folder(folder) = &entry.active else {
            continue;
        };
        match registry::open_folder(folder, preference) {
            Ok(model) if *model.files.manifest.name == **name => models.push(model),
            Ok(model) => problems.push(format!(
                "{}: is `{}` now, `{name}` was promoted from there; the configured version runs",
                folder.display(),
                model.files.manifest.name
            )),
            Err(errors) => problems.push(format!(
                "promoted version of `{name}`: {}; the configured version runs",
                told(&errors)
            )),
        }
    }
    (models, problems)
}

impl Rollouts {
    /// Over a running runner; candidates that were beside it before a restart are put there again.
    #[must_use]
    pub fn new(
        runner: Arc<Runner>,
        sources: Vec<Source>,
        preference: BackendPreference,
        file: PathBuf,
    ) -> Self {
        let entries = read(&file).unwrap_or_else(|problem| {
            let aside = file.with_extension("json.unreadable");
            let kept = std::fs::rename(&file, &aside);
            tracing::error!(problem, ?kept, aside = %aside.display(), "roll-outs begin anew");
            BTreeMap::new()
        });
        for (name, entry) in &entries {
            let Some(candidate) = &entry.candidate else {
                continue;
            };
            let opened = registry::open_folder(&candidate.folder, &preference);
            let problem = match opened.map(|model| runner.shadow(model, candidate.canary_percent)) {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => error.to_string(),
                Err(errors) => told(&errors),
            };
            tracing::error!(
                model = name,
                problem,
                "the candidate is not beside it any more"
            );
        }
        Self {
            runner,
            sources,
            preference,
            file,
            entries: Mutex::new(entries),
        }
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the model of a folder beside the active version of its name: scored and compared, or, with a share,
    /// answering for that percentage of devices. Returns the model's name.
    ///
    /// # Errors
    /// [`Refused`]; then nothing has changed.
    pub fn shadow(&self, folder: &Path, canary_percent: u8) -> Result<Arc<str>, Refused> {
        if !folder.is_absolute() {
            return Err(Refused::Path(folder.to_path_buf()));
        }
        let model = registry::open_folder(folder, &self.preference)
            .map_err(|errors| Refused::Model(told(&errors)))?;
        let name = model.files.manifest.name.clone();
        let mut entries = self.entries();
        self.runner.shadow(model, canary_percent)?;
        entries.entry(name.to_string()).or_default().candidate = Some(Candidate {
            folder: folder.to_path_buf(),
            canary_percent: canary_percent.min(100),
        });
        self.keep(&entries)?;
        Ok(name)
    }

    /// Promotes the candidate, goes back, or takes the candidate away. May wait seconds for a running batch.
    ///
    /// # Errors
    /// [`Refused`]; but for [`Refused::Keep`] nothing has changed.
    pub fn apply(&self, name: &str, action: Action) -> Result<(), Refused> {
        let mut entries = self.entries();
        let mut entry = entries.get(name).cloned().unwrap_or_default();
        match action {
            Action::Promote => {
                self.runner.promote(name)?;
                let promoted = entry.candidate.take();
                let version = promoted.map_or(Version::Configured, |c| Version::Folder(c.folder));
                let before = std::mem::replace(&mut entry.active, version);
                entry.previous = Some(before);
            }
            Action::Rollback => {
                let before = entry.previous.clone();
                if let Err(error) = self.runner.rollback(name) {
                    // After a restart the version before is a folder's name only.
                    let (RolloutError::NoPrevious { .. }, Some(version)) = (&error, &before) else {
                        return Err(error.into());
                    };
                    self.runner.swap(self.open(name, version)?)?;
                }
                if let Some(version) = before {
                    entry.previous = Some(std::mem::replace(&mut entry.active, version));
                }
            }
            Action::Cancel => {
                self.runner.drop_candidate(name)?;
                entry.candidate = None;
            }
        }
        entries.insert(name.to_owned(), entry);
        self.keep(&entries)
    }

    fn open(&self, name: &str, version: &Version) -> Result<registry::ActiveModel, Refused> {
        match version {
            Version::Folder(folder) => registry::open_folder(folder, &self.preference)
                .map_err(|errors| Refused::Model(told(&errors))),
            Version::Configured => registry::open_named(&self.sources, name, &self.preference)
                .ok_or_else(|| Refused::Model(format!("`{name}` is not configured any more")))?
                .map_err(|error| Refused::Model(error.to_string())),
        }
    }

    /// Whole or not at all: a temporary file, synced and renamed.
    fn keep(&self, entries: &BTreeMap<String, Entry>) -> Result<(), Refused> {
        let write =
            || crate::data_folder::replace(&self.file, &serde_json::to_vec_pretty(entries)?);
        write().map(drop).map_err(|source| Refused::Keep {
            file: self.file.clone(),
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_back_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rollout.json");
        let entry = Entry {
            active: Version::Folder("/models/a".into()),
            previous: Some(Version::Configured),
            candidate: Some(Candidate {
                folder: "/models/b".into(),
                canary_percent: 10,
            }),
        };
        let entries: BTreeMap<String, Entry> = [
            ("one".to_owned(), entry),
            ("two".to_owned(), Entry::default()),
        ]
        .into();
        std::fs::write(&file, serde_json::to_vec(&entries).unwrap()).unwrap();
        assert_eq!(read(&file).unwrap(), entries);
        std::fs::write(&file, "{").unwrap();
        assert!(read(&file).unwrap_err().contains("delete it"));
    }

    #[test]
    fn a_version_that_is_gone_leaves_the_configured_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rollout.json");
        let text = r#"{"univariate-anomaly":{"active":{"folder":"/nonexistent"}},"unknown":{}}"#;
        std::fs::write(&file, text).unwrap();
        let (models, problems) = promoted(&file, &BackendPreference::builtin());
        assert!(models.is_empty());
        assert!(
            problems.len() == 1 && problems[0].contains("configured version runs"),
            "{problems:?}"
        );
    }
}
