//! What may be written at all, and within which bounds: the site's word, beside what the birth says.

use sparkplug::value::Value;

use super::confirm::number;
use super::{Refusal, Target};
use crate::config::Glob;

/// Allows, forbids and bounds writes. The first rule that fits a write decides; where none fits, the default does.
#[derive(Debug, Clone)]
pub struct Policy {
    /// What holds where no rule fits.
    pub allow_by_default: bool,
    /// In order.
    pub rules: Vec<PolicyRule>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            allow_by_default: true,
            rules: Vec::new(),
        }
    }
}

/// One rule of a [`Policy`]; globs over names, device `_` is the node itself.
#[derive(Debug, Clone)]
pub struct PolicyRule {
    /// Group id.
    pub group: Glob,
    /// Edge node id.
    pub node: Glob,
    /// Device id.
    pub device: Glob,
    /// Metric name.
    pub metric: Glob,
    /// Who asks, such as `cloud:*`.
    pub by: Glob,
    /// Whether the write may be made.
    pub allow: bool,
    /// Smallest number.
    pub min: Option<f64>,
    /// Largest number.
    pub max: Option<f64>,
}

impl Policy {
    /// Judges one write.
    ///
    /// # Errors
    /// `not_writable` or `range`, with the bound.
    pub(super) fn judge(
        &self,
        target: &Target,
        metric: &str,
        value: &Value,
        by: &str,
    ) -> Result<(), Refusal> {
        let device = target.device.as_deref().unwrap_or("_");
        let fitting = self.rules.iter().find(|rule| {
            rule.group.matches(&target.group)
                && rule.node.matches(&target.node)
                && rule.device.matches(device)
                && rule.metric.matches(metric)
                && rule.by.matches(by)
        });
        let allowed = fitting.map_or(self.allow_by_default, |rule| rule.allow);
        if !allowed {
            return Err(Refusal::rejected(format!(
                "not_writable: [[writes.policy]] forbids {by} to write {metric} of {target}"
            )));
        }
        let bounds = fitting.map_or((None, None), |rule| (rule.min, rule.max));
        in_range(value, bounds, "[[writes.policy]]")
    }
}

/// Whether a number lies within bounds; what is no number always does, and NaN never.
///
/// # Errors
/// `range`, with the bound and whose it is.
pub fn in_range(
    value: &Value,
    (min, max): (Option<f64>, Option<f64>),
    whose: &str,
) -> Result<(), Refusal> {
    let Some(wanted) = number(value) else {
        return Ok(());
    };
    let above = min.is_none_or(|min| wanted >= min);
    let below = max.is_none_or(|max| wanted <= max);
    if above && below {
        return Ok(());
    }
    let show = |bound: Option<f64>| bound.map_or("none".to_owned(), |bound| bound.to_string());
    Err(Refusal::rejected(format!(
        "range: {wanted} is outside of {} to {} ({whose})",
        show(min),
        show(max)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(metric: &str, by: &str, allow: bool, bounds: (Option<f64>, Option<f64>)) -> PolicyRule {
        PolicyRule {
            group: Glob::new("*"),
            node: Glob::new("*"),
            device: Glob::new("*"),
            metric: Glob::new(metric),
            by: Glob::new(by),
            allow,
            min: bounds.0,
            max: bounds.1,
        }
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let policy = Policy {
            allow_by_default: false,
            rules: vec![
                rule("Safety/*", "*", false, (None, None)),
                rule("*", "cloud:*", false, (None, None)),
                rule("Speed", "*", true, (Some(0.0), Some(1500.0))),
            ],
        };
        let target = Target {
            group: "g".into(),
            node: "n".into(),
            device: None,
        };
        for (metric, value, by, word) in [
            (
                "Safety/Stop",
                Value::Bool(true),
                "user:anna",
                "not_writable",
            ),
            ("Speed", Value::Int(10), "cloud:noc", "not_writable"),
            ("Speed", Value::Int(10), "user:anna", ""),
            ("Speed", Value::Int(1501), "rule:r@1", "range"),
            ("Speed", Value::Double(-0.1), "rule:r@1", "range"),
            ("Speed", Value::Double(f64::NAN), "rule:r@1", "range"),
            ("Speed", Value::String("fast".into()), "rule:r@1", ""),
            ("Other", Value::Int(1), "rule:r@1", "not_writable"),
        ] {
            let judged = policy.judge(&target, metric, &value, by);
            let got = judged.err().map(|r| r.reason).unwrap_or_default();
            assert_eq!(got.split(':').next(), Some(word), "{metric} {by}: {got}");
        }
    }
}
