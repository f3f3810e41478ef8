//! Meaning of alarm and log texts as vectors.
//!
//! A text model's folder holds `embedding.toml`, the ONNX file, `vocab.txt` and golden
//! rows; `models/make/build_all.sh` makes one. A text is masked (runs of digits become
//! `#`), and the masked template is what is embedded and cached: alarms that differ in
//! their figures alone share a vector, and a vector depends on nothing but the template.
//!
//! The model loads on first use, on the embedder's own thread. One thread and a queue
//! that refuses the newest keep the order of each source.

mod cache;
mod embedder;
mod manifest;
mod model;
mod neighbours;

pub use embedder::{
    Embedder, Embedding, PhraseError, TextConfig, TextEvent, TextFailure, TextRequest, TextSource,
    TextStatus,
};
pub use manifest::{TextLimits, TextManifest, Vocabulary};
pub use model::{EmbedError, TextModel};
pub use neighbours::{Alarm, Neighbour, Neighbours};

use std::path::PathBuf;

/// The file that makes a folder one of a text model.
pub const MANIFEST: &str = "embedding.toml";

/// The folders of text models at `paths`, in order: a path itself, or folders in it.
pub fn folders(paths: &[PathBuf]) -> Vec<PathBuf> {
    let is_text = |path: &PathBuf| path.join(MANIFEST).is_file();
    let mut found = Vec::new();
    for path in paths {
        if is_text(path) {
            found.push(path.clone());
            continue;
        }
        let entries = std::fs::read_dir(path).into_iter().flatten();
        let mut inner: Vec<PathBuf> = entries.filter_map(|e| e.ok().map(|e| e.path())).collect();
        inner.retain(is_text);
        inner.sort();
        found.append(&mut inner);
    }
    found
}

/// Characters of a text that are looked at.
pub const MAX_TEXT: usize = 2000;

/// The template of a text: its first [`MAX_TEXT`] characters with every run of ASCII
/// digits, with `.`, `,` and `:` between digits, as one `#`.
pub fn mask(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(4 * MAX_TEXT));
    let mut chars = text.chars().take(MAX_TEXT).peekable();
    while let Some(c) = chars.next() {
        if !c.is_ascii_digit() {
            out.push(c);
            continue;
        }
        out.push('#');
        loop {
            while chars.next_if(char::is_ascii_digit).is_some() {}
            // A sign between digits belongs to the figure, one behind it does not.
            let mut ahead = chars.clone();
            let inner = ahead.next().is_some_and(|c| matches!(c, '.' | ',' | ':'))
                && ahead.next().is_some_and(|c| c.is_ascii_digit());
            if !inner {
                break;
            }
            chars.next();
        }
    }
    out
}

/// Cosine of two vectors of length 1; 0 when their dimensions differ.
pub fn similarity(a: &[f32], b: &[f32]) -> f32 {
    if a.len() != b.len() {
        return 0.0;
    }
    a.iter()
        .zip(b)
        .map(|(x, y)| x * y)
        .sum::<f32>()
        .clamp(-1.0, 1.0)
}

/// A vector as it goes upstream: f32, little-endian.
pub fn to_bytes(vector: &[f32]) -> Vec<u8> {
    vector.iter().flat_map(|v| v.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn figures_are_masked_and_words_are_not() {
        let check = |text: &str, expect: &str| assert_eq!(mask(text), expect, "{text}");
        check("pump 12 at 95.2 C.", "pump # at # C.");
        check("10.0.3.14:502 at 12:30:15,5", "# at #");
        check("P-101b: 7, 8. end", "P-#b: #, #. end");
        check("", "");
        check("١٢ 中", "١٢ 中");
        check("1.", "#.");
    }

    proptest! {
        #[test]
        fn a_mask_is_its_own_mask_and_bounded(text in any::<String>()) {
            let once = mask(&text);
            prop_assert_eq!(mask(&once), once.clone());
            prop_assert!(!once.chars().any(|c| c.is_ascii_digit()));
            prop_assert!(once.chars().count() <= MAX_TEXT);
        }
    }

    #[test]
    fn vectors_of_different_dimension_have_nothing_in_common() {
        assert_eq!(similarity(&[1.0, 0.0], &[1.0]), 0.0);
        assert_eq!(similarity(&[0.6, 0.8], &[0.6, 0.8]), 1.0);
        assert_eq!(to_bytes(&[1.0, -2.0]), [0, 0, 128, 63, 0, 0, 0, 192]);
    }
}
