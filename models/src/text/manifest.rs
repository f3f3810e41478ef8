//! `embedding.toml`.

use crate::manifest::{File, ManifestError, Provenance};
use crate::quantity::Bytes;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A text model.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TextManifest {
    /// Name.
    pub name: Arc<str>,
    /// Version.
    pub version: Arc<str>,
    /// A line for people.
    pub title: String,
    /// Names the vector space: vectors of different spaces are never compared.
    pub vector_version: Arc<str>,
    /// Numbers of a vector.
    pub dimension: usize,
    /// Token counts for which a plan is made, rising; texts are cut at the last.
    pub sequences: Vec<usize>,
    /// String metrics whose values are embedded beside alarm texts; nothing else is.
    #[serde(default)]
    pub metrics: Vec<Arc<str>>,
    /// The ONNX file and its golden rows.
    pub file: File,
    /// The vocabulary.
    pub vocabulary: Vocabulary,
    /// What it may cost.
    pub limits: TextLimits,
    /// Where it comes from.
    pub provenance: Provenance,
}

/// `vocab.txt`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Vocabulary {
    /// File name in the manifest's folder.
    pub path: String,
    /// SHA-256 of the file, hex.
    pub sha256: String,
}

/// Bounds.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TextLimits {
    /// Weights and intermediate values of all its plans.
    pub memory: Bytes,
    /// Texts that may wait; the newest is refused beyond.
    pub queue: usize,
    /// Templates whose vectors are kept.
    pub cache: usize,
    /// Alarms among which neighbours are found.
    pub neighbours: usize,
}

impl TextManifest {
    /// Reads and checks; the first problem of the text, or every bad value.
    pub fn parse(text: &str) -> Result<Self, Vec<ManifestError>> {
        let m: Self = toml::from_str(text).map_err(|error| {
            let (line, column) =
                crate::manifest::position(text, error.span().map_or(0, |s| s.start));
            vec![ManifestError::Syntax {
                line,
                column,
                message: error.message().to_owned(),
            }]
        })?;
        let mut problems = Vec::new();
        let mut unless = |good: bool, key: &str, problem: &str| {
            if !good {
                problems.push(ManifestError::Value {
                    key: key.to_owned(),
                    problem: problem.to_owned(),
                });
            }
        };
        let rising = m
            .sequences
            .iter()
            .zip(m.sequences.iter().skip(1))
            .all(|(a, b)| a < b);
        let fit = m.sequences.iter().all(|s| (4..=512).contains(s));
        unless(
            rising && fit && !m.sequences.is_empty(),
            "sequences",
            "rising, 4 to 512",
        );
        unless((1..=4096).contains(&m.dimension), "dimension", "1 to 4096");
        unless(
            !m.name.is_empty() && !m.vector_version.is_empty(),
            "name",
            "must not be empty",
        );
        for name in [&m.file.path, &m.file.golden, &m.vocabulary.path] {
            let plain =
                !name.is_empty() && !name.contains(['/', '\\', '\0']) && !name.starts_with('.');
            unless(
                plain,
                "file.path",
                "must be a file name in the manifest's folder",
            );
        }
        unless(
            (1..=65_536).contains(&m.limits.queue),
            "limits.queue",
            "1 to 65536",
        );
        unless(
            m.limits.cache <= 1_000_000,
            "limits.cache",
            "at most 1000000",
        );
        unless(
            m.limits.neighbours <= 100_000,
            "limits.neighbours",
            "at most 100000",
        );
        if problems.is_empty() {
            Ok(m)
        } else {
            Err(problems)
        }
    }
}
