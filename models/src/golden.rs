//! Rows with known outputs: proof that a model means on this machine and backend what
//! it meant where it was made. At least one row carries the verdict it must get, so
//! that a flipped label convention cannot pass.

use crate::features::{FeatureError, write_row};
use crate::load::Scorer;
use crate::manifest::Manifest;
use crate::verdict::{OutOfRange, judge};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Most rows that a golden file may hold.
pub const MAX_ROWS: usize = 1000;
/// Most bytes of a golden file.
pub const MAX_BYTES: u64 = 64 << 20;

/// How far an output may be off: `absolute + relative * |expected|`.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tolerance {
    /// In the output's unit.
    pub absolute: f64,
    /// Share of the expected value.
    pub relative: f64,
}

impl Tolerance {
    /// Whether `found` is near enough to `expected`.
    pub fn allows(&self, expected: f64, found: f64) -> bool {
        (found - expected).abs() <= self.absolute + self.relative * expected.abs()
    }
}

/// One window and what comes of it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Points by metric, in the metrics' own units.
    pub window: BTreeMap<String, Vec<f64>>,
    /// Expected value by output; a list of one.
    pub outputs: BTreeMap<String, Vec<f64>>,
    /// The verdict that it must get.
    pub label: Option<String>,
}

/// A golden file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Golden {
    /// What computed the outputs, for people.
    pub source: String,
    /// How far outputs may be off.
    pub tolerance: Tolerance,
    /// The rows.
    pub rows: Vec<Row>,
}

/// Why golden rows do not hold, or are none.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GoldenError {
    /// Not JSON of the expected form.
    #[error("golden rows cannot be read: {message}")]
    Syntax {
        /// The parser's words.
        message: String,
    },
    /// None, too many, or none with a label.
    #[error(
        "{rows} golden rows, {labelled} with a label; 1 to 1000 are needed, at least one with a label"
    )]
    Count {
        /// Rows.
        rows: usize,
        /// Rows with a label.
        labelled: usize,
    },
    /// A tolerance that accepts anything, or nothing.
    #[error("golden tolerance must be finite and not negative")]
    Tolerance,
    /// A row's window or outputs are not the manifest's.
    #[error("golden row {row}: {name} does not fit the manifest")]
    Row {
        /// Which row, from 0.
        row: usize,
        /// Metric or output.
        name: String,
    },
    /// A row's window became no tensor.
    #[error("golden row {row}: {error}")]
    Feature {
        /// Which row, from 0.
        row: usize,
        /// Why.
        error: FeatureError,
    },
    /// The model failed on a row.
    #[error("golden row {row}: {reason}")]
    Run {
        /// Which row, from 0.
        row: usize,
        /// In the backend's words.
        reason: String,
    },
    /// An output is too far off.
    #[error("golden row {row}, batch {batch}: output `{output}` is {found}, expected {expected}")]
    Output {
        /// Which row, from 0.
        row: usize,
        /// In a run of how many rows.
        batch: usize,
        /// The output.
        output: String,
        /// From the golden file.
        expected: f64,
        /// From the backend.
        found: f64,
    },
    /// An output is outside its declared range.
    #[error("golden row {row}: {error}")]
    Range {
        /// Which row, from 0.
        row: usize,
        /// Which output and value.
        error: OutOfRange,
    },
    /// A text is cut into other tokens.
    #[error("golden row {row}: the text is cut into other tokens")]
    Tokens {
        /// Which row, from 0.
        row: usize,
    },
    /// A text's vector is too far off.
    #[error("golden row {row}: a number of the vector is {distance} off")]
    Vector {
        /// Which row, from 0.
        row: usize,
        /// The largest distance.
        distance: f64,
    },
    /// Another text is nearest.
    #[error("golden row {row}: nearest is `{found}`, expected `{expected}`")]
    Nearest {
        /// Which row, from 0.
        row: usize,
        /// From the golden file.
        expected: String,
        /// From the vectors.
        found: String,
    },
    /// The verdict is another one.
    #[error("golden row {row}: verdict `{found}`, expected `{expected}`")]
    Label {
        /// Which row, from 0.
        row: usize,
        /// From the golden file.
        expected: String,
        /// From the outputs and the manifest.
        found: String,
    },
}

impl Golden {
    /// Reads a golden file and holds its form against the manifest.
    pub fn parse(bytes: &[u8], manifest: &Manifest) -> Result<Self, GoldenError> {
        let golden: Self = serde_json::from_slice(bytes).map_err(|e| GoldenError::Syntax {
            message: e.to_string(),
        })?;
        let labelled = golden.rows.iter().filter(|r| r.label.is_some()).count();
        if labelled == 0 || golden.rows.len() > MAX_ROWS {
            return Err(GoldenError::Count {
                rows: golden.rows.len(),
                labelled,
            });
        }
        let tolerance = [golden.tolerance.absolute, golden.tolerance.relative];
        if !tolerance.iter().all(|t| t.is_finite() && *t >= 0.0) {
            return Err(GoldenError::Tolerance);
        }
        for (row, item) in golden.rows.iter().enumerate() {
            let bad = |name: &str| GoldenError::Row {
                row,
                name: format!("`{name}`"),
            };
            for input in &manifest.inputs {
                let points = item.window.get(&*input.metric).map_or(0, Vec::len);
                if points != manifest.window.points {
                    return Err(bad(&input.metric));
                }
            }
            for output in &manifest.outputs {
                if item.outputs.get(&*output.name).map_or(0, Vec::len) != 1 {
                    return Err(bad(&output.name));
                }
            }
        }
        Ok(golden)
    }

    /// The points of one row in the manifest's order of inputs.
    pub fn points(&self, row: &Row, manifest: &Manifest) -> Vec<f64> {
        manifest
            .inputs
            .iter()
            .flat_map(|i| {
                row.window
                    .get(&*i.metric)
                    .map(Vec::as_slice)
                    .unwrap_or_default()
            })
            .copied()
            .collect()
    }

    /// Runs every row alone and all rows in runs of each planned batch.
    pub(crate) fn check(
        &self,
        manifest: &Manifest,
        scorer: &mut Scorer,
    ) -> Result<(), GoldenError> {
        let ages = vec![0.0; manifest.inputs.len()];
        let mut tensors = Vec::with_capacity(self.rows.len());
        for (row, item) in self.rows.iter().enumerate() {
            let mut tensor = Vec::new();
            write_row(manifest, &self.points(item, manifest), &ages, &mut tensor)
                .map_err(|error| GoldenError::Feature { row, error })?;
            tensors.push(tensor);
        }
        for batch in manifest.batches() {
            for start in (0..self.rows.len()).step_by(batch) {
                // A short last chunk is filled up by going round.
                let ids: Vec<usize> = (start..start + batch)
                    .map(|i| i % self.rows.len())
                    .collect();
                let rows: Vec<f32> = ids
                    .iter()
                    .filter_map(|i| tensors.get(*i))
                    .flatten()
                    .copied()
                    .collect();
                let outputs = scorer.run(&rows, batch).map_err(|e| GoldenError::Run {
                    row: start,
                    reason: e.to_string(),
                })?;
                for (place, row) in ids.iter().enumerate() {
                    if let Some(item) = self.rows.get(*row) {
                        let values: Vec<f32> = outputs
                            .iter()
                            .filter_map(|o| o.get(place))
                            .copied()
                            .collect();
                        self.compare(manifest, item, *row, batch, &values)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn compare(
        &self,
        manifest: &Manifest,
        item: &Row,
        row: usize,
        batch: usize,
        values: &[f32],
    ) -> Result<(), GoldenError> {
        for (output, value) in manifest.outputs.iter().zip(values) {
            let expected = item
                .outputs
                .get(&*output.name)
                .and_then(|v| v.first())
                .copied();
            let (expected, found) = (expected.unwrap_or(f64::NAN), f64::from(*value));
            if !self.tolerance.allows(expected, found) {
                let output = output.name.to_string();
                return Err(GoldenError::Output {
                    row,
                    batch,
                    output,
                    expected,
                    found,
                });
            }
        }
        let verdict = judge(manifest, values).map_err(|error| GoldenError::Range { row, error })?;
        match &item.label {
            Some(label) if **label != *verdict.label => Err(GoldenError::Label {
                row,
                expected: label.clone(),
                found: verdict.label.to_string(),
            }),
            _ => Ok(()),
        }
    }
}
