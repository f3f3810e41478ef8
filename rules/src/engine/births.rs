//! A birth held against the rules: metrics that are of another type than a rule takes them for, and names that no metric
//! has but nearly.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use super::Engine;
use crate::event::Key;
use crate::lang::def::RuleDef;
use crate::lang::nearest::nearest;

/// Findings that are kept of one rule, at most.
const MOST: usize = 32;
/// Kinds of births that are remembered; past it they are looked at again.
const MOST_KINDS: usize = 4_096;

/// Something in a birth that a rule can't work with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// A value of this type never is what the rule takes it for.
    #[error("takes `{metric}` for a {needed}; it is {found}")]
    Type {
        /// The metric.
        metric: Arc<str>,
        /// `number`, `string`, `bool`.
        needed: &'static str,
        /// Its datatype in the birth.
        found: &'static str,
    },
    /// No metric has the name that the rule names; one has nearly.
    #[error("names `{metric}`, which there is not; did you mean `{nearest}`?")]
    Name {
        /// The name in the rule.
        metric: Arc<str>,
        /// The name in the birth.
        nearest: Arc<str>,
    },
}

/// A [`Mismatch`] with its rule and the first device that showed it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: rule {rule} {mismatch}")]
pub struct Finding {
    /// Id of the rule.
    pub rule: Arc<str>,
    /// The device or node.
    pub key: Key,
    /// What does not fit.
    pub mismatch: Mismatch,
}

impl Engine {
    /// Holds the metrics of a birth (names and Sparkplug datatypes) against the rules that apply. Gives what was not
    /// found before, on any device; the rules run all the same. At most 32 findings of a rule are kept.
    pub fn check_birth(&mut self, key: &Key, metrics: &[(&str, &'static str)]) -> Vec<Finding> {
        let source = self.device_slot(key);
        let table = self.table(source);
        // Devices of one kind say the same: each kind is looked at once, until rules change.
        let mut kind = DefaultHasher::new();
        (&table.rules, metrics).hash(&mut kind);
        if self.checked.len() >= MOST_KINDS {
            self.checked.clear();
        }
        if !self.checked.insert(kind.finish()) {
            return Vec::new();
        }
        let mut fresh = Vec::new();
        for number in &table.rules {
            let Some(rule) = self.rules.get_mut(*number as usize) else {
                continue;
            };
            for mismatch in mismatches(&rule.def, metrics) {
                let known = rule.findings.iter().any(|known| known.mismatch == mismatch);
                if known || rule.findings.len() >= MOST {
                    continue;
                }
                let finding = Finding {
                    rule: rule.def.id.clone(),
                    key: key.clone(),
                    mismatch,
                };
                rule.findings.push(finding.clone());
                fresh.push(finding);
            }
        }
        fresh
    }
}

fn mismatches(def: &RuleDef, metrics: &[(&str, &'static str)]) -> Vec<Mismatch> {
    let mut found = Vec::new();
    for (metric, needed) in &def.wants {
        let datatype = metrics
            .iter()
            .find(|(name, _)| *name == &**metric)
            .map(|(_, datatype)| *datatype);
        if let Some(datatype) = datatype.filter(|datatype| !fits(datatype, needed)) {
            found.push(Mismatch::Type {
                metric: metric.clone(),
                needed,
                found: datatype,
            });
        }
    }
    for metric in def.streams.metrics.iter().chain(&def.uses.current) {
        if metrics.iter().any(|(name, _)| *name == &**metric) {
            continue;
        }
        if let Some(near) = nearest(metric, metrics.iter().map(|(name, _)| *name)) {
            let mismatch = Mismatch::Name {
                metric: metric.clone(),
                nearest: near.into(),
            };
            if !found.contains(&mismatch) {
                found.push(mismatch);
            }
        }
    }
    found
}

/// Whether values of a datatype can be what is needed (`number`, `string`, `bool`, or several words of them).
fn fits(datatype: &str, needed: &str) -> bool {
    let kind = match datatype {
        "Boolean" => "bool",
        "String" | "Text" | "UUID" => "string",
        "Int8" | "Int16" | "Int32" | "Int64" | "UInt8" | "UInt16" | "UInt32" | "UInt64"
        | "Float" | "Double" | "DateTime" => "number",
        "Unknown" => return true,
        _ => "other",
    };
    needed.split(" or ").any(|word| word == kind)
}
