//! How long certificate files are good for: the broker's, which it has loaded, and the bridge's, whose files are looked
//! at again and again, since they are replaced while this runs. Nobody who asks waits for a disk.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use serde::Serialize;

use crate::broker::Validity;

/// Time between two looks at the files.
const PERIOD: Duration = Duration::from_secs(10);

/// A certificate file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Certificate {
    /// What for.
    pub name: &'static str,
    /// The file.
    pub file: PathBuf,
    /// The first end of a certificate in it, ms UTC; `None`: see `error`.
    pub not_after: Option<i64>,
    /// Why nothing is known.
    pub error: Option<String>,
}

impl From<Validity> for Certificate {
    fn from(it: Validity) -> Self {
        Self {
            name: it.what,
            file: it.file,
            not_after: Some(it.ends.saturating_mul(1000)),
            error: None,
        }
    }
}

/// The last look at a list of files.
#[derive(Debug)]
pub struct Certificates {
    seen: Arc<RwLock<Vec<Certificate>>>,
    looking: Option<tokio::task::JoinHandle<()>>,
}

impl Drop for Certificates {
    fn drop(&mut self) {
        if let Some(looking) = &self.looking {
            looking.abort();
        }
    }
}

impl Certificates {
    /// Looks once, and then again every few seconds.
    pub async fn watch(files: Vec<(&'static str, PathBuf)>) -> Self {
        let files = Arc::new(files);
        let seen = Arc::new(RwLock::new(look(files.clone()).await));
        let (own, ours) = (seen.clone(), files.clone());
        let looking = (!files.is_empty()).then(|| {
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(PERIOD).await;
                    let fresh = look(ours.clone()).await;
                    *own.write().unwrap_or_else(PoisonError::into_inner) = fresh;
                }
            })
        });
        Self { seen, looking }
    }

    /// As last seen.
    #[must_use]
    pub fn seen(&self) -> Vec<Certificate> {
        self.seen
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

async fn look(files: Arc<Vec<(&'static str, PathBuf)>>) -> Vec<Certificate> {
    let read = move || {
        files
            .iter()
            .map(|(name, file)| of_file(name, file))
            .collect()
    };
    tokio::task::spawn_blocking(read).await.unwrap_or_default()
}

fn of_file(name: &'static str, file: &std::path::Path) -> Certificate {
    match Validity::of_file(name, file) {
        Ok(validity) => validity.into(),
        Err(error) => Certificate {
            name,
            file: file.to_owned(),
            not_after: None,
            error: Some(crate::telemetry::chain(&error)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_that_can_not_be_read_is_shown_with_its_reason() {
        let folder = tempfile::tempdir().unwrap();
        let (missing, empty, good) = (
            folder.path().join("missing.pem"),
            folder.path().join("empty.pem"),
            folder.path().join("good.pem"),
        );
        std::fs::write(&empty, "nothing\n").unwrap();
        let made = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap();
        std::fs::write(&good, made.cert.pem()).unwrap();
        let files = vec![
            ("uplink client", missing.clone()),
            ("uplink authority", empty),
            ("uplink authority", good),
        ];
        let seen = Certificates::watch(files).await.seen();
        let reasons: Vec<&str> = seen
            .iter()
            .map(|c| c.error.as_deref().unwrap_or("good"))
            .collect();
        assert!(
            reasons[0].contains("missing.pem") && reasons[0].contains("No such file"),
            "{reasons:?}"
        );
        assert!(reasons[1].contains("no certificate in it"), "{reasons:?}");
        assert_eq!((reasons[2], seen[2].not_after.is_some()), ("good", true));
        assert_eq!(seen[0].file, missing);
    }
}
