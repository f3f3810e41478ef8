//! What stays here: metrics that are dropped or thinned out before they go upstream.
//!
//! A decision about a record is kept until the record is acknowledged, since after a doubt the same record
//! is read again: judged anew, its values would look like repetitions of themselves and be lost.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use sparkplug::metric::Metric;
use sparkplug::payload::ResolvedPayload;

use super::config::{Filter, Match};
use crate::buffer::record::{Class, Key, Record, RecordId};

/// Values remembered at most; metrics beyond pass unthinned.
const MAX_VALUES: usize = 200_000;

/// What is left of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    Whole,
    Nothing,
    /// Kept metrics, by their position.
    Some(Box<[bool]>),
}

/// The last value sent of one metric.
#[derive(Debug, Clone, Copy)]
struct Last {
    value: Option<f64>,
    engine_ms: u64,
}

/// Filters and what they remember.
#[derive(Debug, Default)]
pub struct Filters {
    rules: Vec<Filter>,
    last: HashMap<Key, HashMap<Arc<str>, Last>>,
    values: usize,
    decided: VecDeque<(RecordId, Verdict)>,
}

impl Filters {
    /// Filters by the configuration.
    #[must_use]
    pub fn new(rules: Vec<Filter>) -> Self {
        Self {
            rules,
            ..Self::default()
        }
    }

    /// Whether nothing is ever kept back.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Forgets decisions about records that are acknowledged.
    pub fn acknowledged(&mut self, up_to: RecordId) {
        while self.decided.front().is_some_and(|(id, _)| *id <= up_to) {
            self.decided.pop_front();
        }
    }

    /// Takes out of `payload` what stays here. `false`: nothing is left, and the record stays as a whole.
    pub fn apply(&mut self, record: &Record, payload: &mut ResolvedPayload) -> bool {
        let verdict = self.verdict(record, &payload.metrics);
        match verdict {
            Verdict::Whole => true,
            Verdict::Nothing => false,
            Verdict::Some(kept) => {
                let mut kept = kept.iter().copied();
                payload.metrics.retain(|_| kept.next().unwrap_or(true));
                true
            }
        }
    }

    fn verdict(&mut self, record: &Record, metrics: &[Metric]) -> Verdict {
        if let Ok(at) = self.decided.binary_search_by_key(&record.id, |(id, _)| *id)
            && let Some((_, verdict)) = self.decided.get(at)
        {
            return verdict.clone();
        }
        let verdict = self.judge(record, metrics);
        if self.decided.back().is_none_or(|(id, _)| *id < record.id) {
            self.decided.push_back((record.id, verdict.clone()));
        }
        verdict
    }

    fn judge(&mut self, record: &Record, metrics: &[Metric]) -> Verdict {
        let kept: Box<[bool]> = metrics
            .iter()
            .map(|metric| self.keep(record, metric))
            .collect();
        // A birth or an empty message says something even without metrics.
        if kept.iter().all(|kept| *kept) {
            Verdict::Whole
        } else if record.class == Class::Data && !kept.contains(&true) {
            Verdict::Nothing
        } else {
            Verdict::Some(kept)
        }
    }

    fn keep(&mut self, record: &Record, metric: &Metric) -> bool {
        let Some(rule) = self
            .rules
            .iter()
            .find(|rule| fits(&rule.matches, &record.key, &metric.name))
        else {
            return true;
        };
        if rule.drop {
            return false;
        }
        // Samples of the past are an account of their own; thinning is about the present.
        if metric.historical {
            return true;
        }
        let now = record.engine_ms;
        let value = metric.value.as_f64();
        let device = self.last.get_mut(&record.key);
        let before = device.as_ref().and_then(|device| device.get(&metric.name));
        if let Some(before) = before.copied().filter(|_| record.class == Class::Data) {
            let age = now.saturating_sub(before.engine_ms);
            let overdue = rule.max_interval.is_some_and(|max| age >= max.as_millis());
            let too_soon = rule.min_interval.is_some_and(|min| age < min.as_millis());
            let moved = match (rule.deadband, before.value, value) {
                (Some(band), Some(before), Some(value)) => (value - before).abs() > band,
                _ => true,
            };
            if !overdue && (too_soon || !moved) {
                return false;
            }
        }
        let last = Last {
            value,
            engine_ms: now,
        };
        if before.is_some() {
            if let Some(device) = device {
                device.insert(metric.name.clone(), last);
            }
        } else if self.values < MAX_VALUES {
            self.values += 1;
            self.last
                .entry(record.key.clone())
                .or_default()
                .insert(metric.name.clone(), last);
        }
        true
    }
}

/// Whether a metric of a device is meant. A missing glob fits all; device `_` is the node itself.
#[must_use]
pub fn fits(it: &Match, key: &Key, metric: &str) -> bool {
    let name = |pattern: &Option<String>, name: Option<&Arc<str>>| {
        pattern
            .as_deref()
            .is_none_or(|pattern| glob(pattern, name.map_or("_", |name| name)))
    };
    name(&it.group, key.group.as_ref())
        && name(&it.node, key.node.as_ref())
        && name(&it.device, key.device.as_ref())
        && it
            .metric
            .as_deref()
            .is_none_or(|pattern| glob(pattern, metric))
}

/// `*` for any run of characters, `?` for one. Time is at most the product of the lengths.
pub(crate) fn glob(pattern: &str, name: &str) -> bool {
    let (mut p, mut n) = (pattern.chars(), name.chars());
    let mut retry: Option<(std::str::Chars<'_>, std::str::Chars<'_>)> = None;
    loop {
        let at_n = n.clone();
        match (p.next(), n.next()) {
            (None, None) => return true,
            (Some('*'), _) => {
                retry = Some((p.clone(), at_n.clone()));
                n = at_n;
            }
            (Some('?'), Some(_)) => {}
            (Some(a), Some(b)) if a == b => {}
            (_, _) => {
                let Some((star, mut from)) = retry.take() else {
                    return false;
                };
                if from.next().is_none() {
                    return false;
                }
                (p, n) = (star.clone(), from.clone());
                retry = Some((star, from));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sparkplug::datatype::DataType;
    use sparkplug::value::Value;

    use super::*;
    use crate::buffer::record::{NewRecord, Origin};
    use crate::config::quantity::Span;

    fn record(id: u64, class: Class, engine_ms: u64) -> Record {
        Record {
            id,
            prev: id - 1,
            data: NewRecord::new(
                class,
                Origin::Received,
                engine_ms,
                0,
                Key {
                    group: Some("g".into()),
                    node: Some("n".into()),
                    device: None,
                },
                bytes::Bytes::new(),
            ),
        }
    }

    fn rule(metric: &str) -> Filter {
        Filter {
            matches: Match {
                metric: Some(metric.to_owned()),
                ..Match::default()
            },
            ..Filter::default()
        }
    }

    fn left(filters: &mut Filters, id: u64, ms: u64, metrics: &[(&str, f64)]) -> Option<usize> {
        let mut payload = ResolvedPayload {
            metrics: metrics
                .iter()
                .map(|(name, value)| Metric::new(*name, DataType::Double, Value::Double(*value)))
                .collect(),
            ..ResolvedPayload::default()
        };
        filters
            .apply(&record(id, Class::Data, ms), &mut payload)
            .then_some(payload.metrics.len())
    }

    #[test]
    fn globs() {
        for (pattern, name, fits) in [
            ("*", "", true),
            ("Debug/*", "Debug/x/y", true),
            ("Debug/*", "debug/x", false),
            ("*/Temp*", "a/b/Temperature", true),
            ("a?c", "aüc", true),
            ("a*b*c", "axxbyybzc", true),
            ("a*b", "axxc", false),
            ("", "x", false),
        ] {
            assert_eq!(glob(pattern, name), fits, "{pattern} {name}");
        }
    }

    #[test]
    fn dropped_metrics_and_records_stay_here() {
        let drop = Filter {
            drop: true,
            ..rule("Debug/*")
        };
        let mut filters = Filters::new(vec![drop]);
        assert_eq!(
            left(&mut filters, 1, 0, &[("Debug/a", 1.0), ("T", 1.0)]),
            Some(1)
        );
        assert_eq!(left(&mut filters, 2, 0, &[("Debug/a", 1.0)]), None);
        assert_eq!(left(&mut filters, 3, 0, &[]), Some(0));
    }

    #[test]
    fn deadband_and_intervals() {
        let thin = Filter {
            deadband: Some(0.5),
            min_interval: Some(Span(Duration::from_secs(10))),
            max_interval: Some(Span(Duration::from_secs(60))),
            ..rule("T")
        };
        let mut filters = Filters::new(vec![thin]);
        assert_eq!(
            left(&mut filters, 1, 0, &[("T", 1.0)]),
            Some(1),
            "first value"
        );
        assert_eq!(
            left(&mut filters, 2, 5_000, &[("T", 9.0)]),
            None,
            "too soon"
        );
        assert_eq!(
            left(&mut filters, 3, 15_000, &[("T", 1.4)]),
            None,
            "within the band"
        );
        assert_eq!(
            left(&mut filters, 4, 16_000, &[("T", 1.6)]),
            Some(1),
            "moved"
        );
        assert_eq!(
            left(&mut filters, 5, 80_000, &[("T", 1.6)]),
            Some(1),
            "overdue"
        );
        // Read again after a doubt: the same decisions.
        assert_eq!(left(&mut filters, 4, 16_000, &[("T", 1.6)]), Some(1));
        assert_eq!(left(&mut filters, 3, 15_000, &[("T", 1.4)]), None);
        filters.acknowledged(5);
        assert!(filters.decided.is_empty());
    }
}
