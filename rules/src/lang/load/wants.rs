//! Which kinds of values a rule takes its metrics for, so that a birth can be held against it.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::rule::Found;
use crate::lang::def::{AlarmDef, CommandDef, CommandValue, Kind, Streams};
use crate::lang::expr::{Aggregate, Expr, Subject};

/// What is certain: an operand whose metric is not known by the expression itself counts only where the rule looks at
/// one metric.
pub(super) fn of(
    found: &Found,
    streams: &Streams,
    alarm: Option<&AlarmDef>,
    commands: &[CommandDef],
) -> BTreeSet<(Arc<str>, &'static str)> {
    let mut wants = BTreeSet::new();
    let only = match (streams.all, streams.metrics.len()) {
        (false, 1) => streams.metrics.first(),
        _ => None,
    };
    let stage_metrics = |stage: u16| -> Option<BTreeSet<Arc<str>>> {
        let Kind::Pattern(def) = &found.kind else {
            return None;
        };
        let condition = *def.of_stages.get(&stage)?;
        let guard = def.conditions.get(usize::from(condition))?.guard.clone();
        guard.or_else(|| only.map(|metric| [metric.clone()].into()))
    };
    let mut take = |expr: &Expr| {
        for want in &expr.wants {
            let metrics = match &want.subject {
                Subject::Metrics(metrics) => Some(metrics.clone()),
                Subject::Event => only.map(|metric| [metric.clone()].into()),
                Subject::Stage(stage) => stage_metrics(*stage),
            };
            wants.extend(
                metrics
                    .into_iter()
                    .flatten()
                    .map(|metric| (metric, want.needed)),
            );
        }
    };
    if let Kind::Pattern(def) = &found.kind {
        def.conditions.iter().for_each(&mut take);
    }
    if let Some(clear) = alarm.and_then(|alarm| alarm.clear.as_ref()) {
        take(&clear.expr);
    }
    for command in commands {
        if let CommandValue::Computed(expr) = &command.value {
            take(expr);
        }
        if let Some(expr) = &command.allow_when {
            take(expr);
        }
    }
    let texts = |aggregate: &Aggregate| {
        matches!(
            aggregate,
            Aggregate::Count | Aggregate::First | Aggregate::Last
        )
    };
    match &found.kind {
        Kind::Threshold(def) => {
            wants.insert((def.metric.clone(), NUMERIC));
        }
        Kind::Window(def) if !def.aggregates.iter().all(texts) => {
            wants.insert((def.metric.clone(), NUMERIC));
        }
        Kind::Window(_) | Kind::Pattern(_) | Kind::Absence(_) => {}
    }
    wants
}

/// A number, or a truth value that counts as 0 or 1.
pub(crate) const NUMERIC: &str = "number or bool";
