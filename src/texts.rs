//! The text model's way into the gateway: where it is, and the vectors of the rules' phrases.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use models::BackendPreference;
use models::text::{Embedder, TextConfig, TextEvent, TextManifest, TextModel};

use crate::pipeline::task::CoreHandle;

/// How long the start waits for all phrases together; later ones are made while the gateway runs.
const START: Duration = Duration::from_secs(10);
/// How long a reload waits for one phrase.
const PATIENCE: Duration = Duration::from_secs(120);
/// How to get a text model.
pub const REMEDY: &str = "make it with models/make/build_text.sh FOLDER (Python 3, 90 MB from PyPI) and name FOLDER in [models] paths";

/// A text model that is configured; it loads on first use.
#[derive(Debug, Clone)]
pub struct Setup {
    folder: PathBuf,
    /// Its manifest.
    pub manifest: TextManifest,
}

/// The text model at the configured paths.
///
/// # Errors
/// More than one, or a manifest that can't be read.
pub fn find(paths: &[PathBuf]) -> Result<Option<Setup>, Vec<String>> {
    let mut folders = models::text::folders(paths).into_iter();
    let Some(folder) = folders.next() else {
        return Ok(None);
    };
    if let Some(other) = folders.next() {
        return Err(vec![format!(
            "{}: a second text model beside {}; a gateway has one space of vectors",
            other.display(),
            folder.display()
        )]);
    }
    match TextModel::manifest(&folder) {
        Ok(manifest) => Ok(Some(Setup { folder, manifest })),
        Err(errors) => Err(errors.iter().map(ToString::to_string).collect()),
    }
}

/// What is wrong when rules compare texts and no model can.
#[must_use]
pub fn missing(phrases: &[Arc<str>]) -> Option<String> {
    let first = phrases.first()?;
    Some(format!(
        "a rule says similar(\"{first}\") and no text model is in [models] paths: it never matches. {REMEDY}"
    ))
}

impl Setup {
    /// Starts the embedder.
    ///
    /// # Errors
    /// No thread.
    pub fn start(
        &self,
        preference: &BackendPreference,
        sink: impl Fn(TextEvent) + Send + 'static,
    ) -> anyhow::Result<Embedder> {
        Embedder::spawn(&self.folder, preference, TextConfig::default(), sink).map_err(|errors| {
            let all: Vec<String> = errors.iter().map(ToString::to_string).collect();
            anyhow::anyhow!("text model: {}", all.join("; "))
        })
    }
}

/// Gives rules their phrases before anything moves them; whether they have all. The model loads here when rules
/// compare texts at all, so that a replay comes to the matches that were.
pub fn at_start(
    embedder: &Embedder,
    phrases: &[Arc<str>],
    mut set: impl FnMut(&str, &[f32]),
) -> bool {
    let deadline = Instant::now() + START;
    let mut all = true;
    for phrase in phrases {
        match embedder.phrase(phrase, deadline.saturating_duration_since(Instant::now())) {
            Ok(vector) => set(phrase, &vector),
            Err(error) => {
                all = false;
                tracing::warn!(phrase = &**phrase, %error, "a phrase has no vector yet");
            }
        }
    }
    all
}

/// Gives the running engine the phrases of its rules; for a reload, and for what the start did not wait for.
pub async fn supply(core: CoreHandle, embedder: Option<Embedder>) {
    let Ok(phrases) = core.ask(|core, _, _| core.rules().phrases()).await else {
        return;
    };
    let Some(embedder) = embedder else {
        if let Some(problem) = missing(&phrases) {
            tracing::error!(problem, "rules compare texts");
        }
        return;
    };
    for phrase in phrases {
        let (asked, text) = (embedder.clone(), phrase.clone());
        let vector = tokio::task::spawn_blocking(move || asked.phrase(&text, PATIENCE)).await;
        match vector {
            Ok(Ok(vector)) => {
                let set = core.ask(move |core, _, _| core.rules().set_phrase(&phrase, &vector));
                if set.await.is_err() {
                    return;
                }
            }
            Ok(Err(error)) => tracing::error!(phrase = &*phrase, %error, "similar() has no vector"),
            Err(error) => tracing::error!(phrase = &*phrase, %error, "similar() has no vector"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said_with_its_remedy() {
        assert_eq!(missing(&[]), None);
        let text = missing(&["bearing noise".into()]).unwrap();
        assert!(text.contains("similar(\"bearing noise\")") && text.contains("build_text.sh"));
    }

    #[test]
    fn one_text_model_is_found_and_two_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let paths = [folder.path().to_path_buf()];
        assert!(find(&paths).unwrap().is_none());
        for name in ["a", "b"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
            std::fs::write(folder.path().join(name).join("embedding.toml"), "x = 1").unwrap();
        }
        assert!(find(&paths).unwrap_err()[0].contains("second text model"));
        std::fs::remove_dir_all(folder.path().join("b")).unwrap();
        let errors = find(&paths).unwrap_err();
        assert!(
            errors[0].contains("embedding.toml") || errors[0].contains("manifest"),
            "{errors:?}"
        );
    }
}
