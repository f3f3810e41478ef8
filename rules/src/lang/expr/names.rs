//! Which names an expression may use, and which it does.

use std::collections::BTreeSet;
use std::sync::Arc;

/// What an expression is for; decides which names are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On an event, with stages in a pattern.
    Event,
    /// A window's column: aggregates over its values.
    Column,
    /// Over a window's columns.
    Columns,
    /// On a key, when nothing of the event is known any more.
    Key,
}

/// The names known where an expression stands.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(crate) place: Place,
    /// Stages by number.
    pub(crate) stages: Vec<String>,
    /// Columns of a window by number.
    pub(crate) columns: Vec<String>,
    /// Aggregates that earlier columns have asked for.
    pub(crate) aggregates: Vec<Aggregate>,
}

impl Names {
    pub(crate) fn event() -> Self {
        Self {
            place: Place::Event,
            stages: Vec::new(),
            columns: Vec::new(),
            aggregates: Vec::new(),
        }
    }

    pub(crate) fn with_stages(stages: Vec<String>) -> Self {
        Self {
            stages,
            ..Self::event()
        }
    }

    /// In a window's column, behind columns that use these aggregates.
    pub(crate) fn column_after(aggregates: Vec<Aggregate>) -> Self {
        Self {
            place: Place::Column,
            aggregates,
            ..Self::event()
        }
    }

    pub(crate) fn key() -> Self {
        Self {
            place: Place::Key,
            ..Self::event()
        }
    }

    pub(crate) fn columns(columns: Vec<String>) -> Self {
        Self {
            place: Place::Columns,
            columns,
            ..Self::event()
        }
    }

    pub(crate) fn stage(&self, name: &str) -> Option<u16> {
        position(&self.stages, name)
    }

    pub(crate) fn column_number(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|c| c == name)
    }

    /// The variables that are known here.
    pub(crate) fn variables(&self) -> impl Iterator<Item = &str> {
        let event: &[&str] = match self.place {
            Place::Event => &VARIABLES,
            Place::Column => &["value"],
            Place::Columns | Place::Key => &["group", "node", "device"],
        };
        event
            .iter()
            .copied()
            .chain(self.stages.iter().map(String::as_str))
            .chain(self.columns.iter().map(String::as_str))
    }
}

fn position(names: &[String], name: &str) -> Option<u16> {
    u16::try_from(names.iter().position(|n| n == name)?).ok()
}

/// Variables of an event.
pub(crate) const VARIABLES: [&str; 9] = [
    "metric",
    "value",
    "type",
    "quality",
    "time",
    "group",
    "node",
    "device",
    "historical",
];

/// Fields of a stage.
pub(crate) const FIELDS: [&str; 8] = [
    "value", "time", "metric", "type", "quality", "group", "node", "device",
];

/// Functions on events.
pub(crate) const FUNCTIONS: [&str; 23] = [
    "first",
    "last",
    "count",
    "sum",
    "avg",
    "min",
    "max",
    "current",
    "score",
    "similar",
    "size",
    "double",
    "int",
    "string",
    "abs",
    "sqrt",
    "floor",
    "ceil",
    "round",
    "duration",
    "startsWith",
    "endsWith",
    "contains",
];

/// Aggregates of a window.
pub(crate) const AGGREGATES: [&str; 10] = [
    "count",
    "sum",
    "avg",
    "min",
    "max",
    "stddev",
    "percentile",
    "rate",
    "first",
    "last",
];

/// An aggregate over the values of a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Aggregate {
    Count,
    Sum,
    Avg,
    Min,
    Max,
    Stddev,
    /// 0 to 100.
    Percentile(f64),
    Rate,
    First,
    Last,
}

/// What an expression looks at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uses {
    /// Metrics that `metric` is compared with.
    pub(crate) metrics: BTreeSet<Arc<str>>,
    /// Models named in `score`.
    pub(crate) models: BTreeSet<Arc<str>>,
    /// Phrases named in `similar`.
    pub(crate) phrases: BTreeSet<Arc<str>>,
    /// Metrics named in `current`.
    pub(crate) current: BTreeSet<Arc<str>>,
    /// Stages whose events matter.
    pub(crate) stages: BTreeSet<u16>,
    /// `metric` stands somewhere.
    pub(crate) metric: bool,
    /// Aggregates in a column, by number.
    pub(crate) aggregates: Vec<Aggregate>,
}

impl Uses {
    pub(crate) fn merge(&mut self, other: &Self) {
        self.metrics.extend(other.metrics.iter().cloned());
        self.models.extend(other.models.iter().cloned());
        self.phrases.extend(other.phrases.iter().cloned());
        self.current.extend(other.current.iter().cloned());
        self.stages.extend(other.stages.iter().copied());
        self.metric |= other.metric;
    }
}
