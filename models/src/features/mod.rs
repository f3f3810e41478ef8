//! From the points of a window to the model's input tensor. Pure.
//!
//! `kind = "window"` hands the points on, centred and scaled. `kind = "features"`
//! draws numbers from them by name: `{ of = "Temperature", is = "kurtosis" }`.
//! Ratios are taken against `max(spread, floor)`, so that the noise of a quiet
//! signal is not blown up.

mod spectrum;
mod statistics;

pub use spectrum::power_spectrum;
pub use statistics::Statistics;

use crate::manifest::{Center, Manifest, TensorKind};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What is drawn from one metric's points. `m` is their mean, `s` their standard
/// deviation (population), `f` the manifest's floor, `d` their first differences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FeatureKind {
    /// `m`.
    Mean,
    /// `s`.
    Std,
    /// Square root of the mean square.
    Rms,
    /// Smallest point.
    Min,
    /// Largest point.
    Max,
    /// Largest less smallest.
    PeakToPeak,
    /// Least-squares slope per second.
    Slope,
    /// The newest point.
    Last,
    /// Seconds from the newest real sample to the end of the window.
    Age,
    /// Root mean square of `d`.
    DiffRms,
    /// `(last - m) / max(s, f)`.
    ZLast,
    /// `max|x - m| / max(s, f)`.
    Crest,
    /// `mean((x - m)^3) / max(s, f)^3`.
    Skewness,
    /// `mean((x - m)^4) / max(s, f)^4`.
    Kurtosis,
    /// Slope times the window's length, over `max(s, f)`.
    SlopeRatio,
    /// `max|d| / max(mean|d|, f)`.
    DiffRatio,
    /// Share of the power without the mean that lies in `[from, to)` Hz, against
    /// `max(power, f^2)`.
    Band,
}

/// One number of a feature tensor.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Feature {
    /// The metric.
    pub of: Arc<str>,
    /// What is drawn from it.
    pub is: FeatureKind,
    /// Lower edge of a band in Hz, inclusive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<f64>,
    /// Upper edge of a band in Hz, exclusive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<f64>,
}

impl Feature {
    /// What is wrong with it in this manifest, in words.
    pub(crate) fn check(&self, manifest: &Manifest) -> Result<(), String> {
        if !manifest.inputs.iter().any(|i| i.metric == self.of) {
            return Err(format!("`{}` is not an input", self.of));
        }
        match (self.is, self.from, self.to) {
            (FeatureKind::Band, Some(from), Some(to))
                if from >= 0.0 && from < to && to.is_finite() =>
            {
                Ok(())
            }
            (FeatureKind::Band, ..) => Err("a band needs 0 <= from < to in Hz".to_owned()),
            (_, None, None) => Ok(()),
            _ => Err("`from` and `to` belong to bands only".to_owned()),
        }
    }
}

/// Why a window became no tensor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FeatureError {
    /// The window has not the shape that the manifest declares.
    #[error("window of {found} points, expected {expected}")]
    Shape {
        /// Points that came.
        found: usize,
        /// Inputs times points of the manifest.
        expected: usize,
    },
    /// A number of the tensor is not finite in f32.
    #[error("tensor element {index} is not a finite number")]
    NotFinite {
        /// Its place in the row.
        index: usize,
    },
}

/// Appends one row of the input tensor to `row`. `points` holds the inputs one after
/// the other, oldest point first; `ages` the seconds from each input's newest real
/// sample to the end of the window. On error `row` is as before.
pub fn write_row(
    manifest: &Manifest,
    points: &[f64],
    ages: &[f64],
    row: &mut Vec<f32>,
) -> Result<(), FeatureError> {
    let per_input = manifest.window.points;
    let expected = manifest.inputs.len() * per_input;
    if points.len() != expected {
        return Err(FeatureError::Shape {
            found: points.len(),
            expected,
        });
    }
    let start = row.len();
    match manifest.tensor.kind {
        TensorKind::Window => {
            let scale = manifest.tensor.scale;
            for channel in points.chunks_exact(per_input) {
                let center = match manifest.tensor.center {
                    Center::None => 0.0,
                    Center::Mean => statistics::mean(channel),
                };
                row.extend(channel.iter().map(|x| ((x - center) / scale) as f32));
            }
        }
        TensorKind::Features => write_features(manifest, points, ages, row),
    }
    let bad = row.iter().skip(start).position(|x| !x.is_finite());
    match bad {
        Some(index) => {
            row.truncate(start);
            Err(FeatureError::NotFinite { index })
        }
        None => Ok(()),
    }
}

fn write_features(manifest: &Manifest, points: &[f64], ages: &[f64], row: &mut Vec<f32>) {
    let period = manifest.window.period.0.as_secs_f64();
    let floor = manifest.tensor.floor;
    let channels = points
        .chunks_exact(manifest.window.points)
        .zip(&manifest.inputs)
        .enumerate();
    let drawn: Vec<_> = channels
        .map(|(i, (channel, input))| {
            let age = ages.get(i).copied().unwrap_or(f64::NAN);
            let banded = manifest
                .tensor
                .features
                .iter()
                .any(|f| f.is == FeatureKind::Band && f.of == input.metric);
            let spectrum = if banded {
                power_spectrum(channel)
            } else {
                Vec::new()
            };
            (
                &input.metric,
                Statistics::of(channel, period),
                spectrum,
                age,
            )
        })
        .collect();
    for feature in &manifest.tensor.features {
        let value = drawn
            .iter()
            .find(|(metric, ..)| **metric == feature.of)
            .map_or(f64::NAN, |(_, statistics, spectrum, age)| {
                match feature.is {
                    FeatureKind::Age => *age,
                    FeatureKind::Band => spectrum::band_share(
                        spectrum,
                        manifest.window.points,
                        period,
                        feature.from.unwrap_or(0.0)..feature.to.unwrap_or(f64::INFINITY),
                        floor,
                    ),
                    kind => statistics.draw(kind, floor),
                }
            });
        row.push(value as f32);
    }
}

#[cfg(test)]
mod tests;
