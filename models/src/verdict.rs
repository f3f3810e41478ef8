//! From output numbers to a verdict, or to none.

use crate::manifest::Manifest;
use std::sync::Arc;

/// What a model says of one window.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// One of the manifest's labels.
    pub label: Arc<str>,
    /// Every output by name, in the manifest's order.
    pub outputs: Vec<(Arc<str>, f64)>,
}

/// An output that cannot be: not a number, or outside what the manifest declares.
/// Kernels have left their range on saturating inputs before (tract before 0.23.5), so
/// such a number is never passed on.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("output `{output}` is {value}, declared {low} to {high}")]
pub struct OutOfRange {
    /// The output; the first one declared when a value is missing altogether.
    pub output: Arc<str>,
    /// What came.
    pub value: f64,
    /// Declared, inclusive.
    pub low: f64,
    /// Declared, inclusive.
    pub high: f64,
}

/// Checks every output, then reads the deciding one against the levels. `values` are in
/// the manifest's order of outputs.
pub fn judge(manifest: &Manifest, values: &[f32]) -> Result<Verdict, OutOfRange> {
    let mut outputs = Vec::with_capacity(manifest.outputs.len());
    let mut deciding = f64::NAN;
    for (i, output) in manifest.outputs.iter().enumerate() {
        let value = values.get(i).map_or(f64::NAN, |v| f64::from(*v));
        let [low, high] = output.range;
        if !(low..=high).contains(&value) {
            return Err(OutOfRange {
                output: output.name.clone(),
                value,
                low,
                high,
            });
        }
        if output.name == manifest.verdict.output {
            deciding = value;
        }
        outputs.push((output.name.clone(), value));
    }
    let rule = &manifest.verdict;
    let level = rule.levels.iter().rev().find(|l| deciding >= l.at);
    Ok(Verdict {
        label: level.map_or(&rule.normal, |l| &l.label).clone(),
        outputs,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_begin_at_their_value_and_ranges_are_inclusive() {
        let text = include_str!("../artifacts/univariate-anomaly/manifest.toml");
        let manifest = Manifest::parse(text).unwrap();
        let at: Vec<f32> = manifest
            .verdict
            .levels
            .iter()
            .map(|l| l.at as f32 + 1e-6)
            .collect();
        let check = |value: f32, expect: Option<&str>| {
            let got = judge(&manifest, &[value]).ok();
            assert_eq!(got.as_ref().map(|v| &*v.label), expect, "{value}");
        };
        check(0.0, Some("normal"));
        check(at[0] - 1e-3, Some("normal"));
        check(at[0], Some("suspect"));
        check(at[1], Some("anomaly"));
        check(1.0, Some("anomaly"));
        check(1.000_001, None);
        check(-1e-6, None);
        check(f32::NAN, None);
        check(f32::INFINITY, None);
        assert!(judge(&manifest, &[]).is_err());
    }
}
