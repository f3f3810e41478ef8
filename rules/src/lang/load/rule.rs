//! One rule.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Seen, actions, check_id, pattern, unique, window};
use crate::event::Level;
use crate::lang::def::{
    AbsenceDef, Kind, Limit, Pack, RuleDef, Scope, Streams, ThresholdDef, Time,
};
use crate::lang::expr::{Expr, Names, Uses};
use crate::lang::glob::Glob;
use crate::lang::reader::{At, Table, integer, wrong};
use crate::lang::source::{Problem, Source};

/// What a rule looks for, with what the rest of the rule needs to know about it.
pub(super) struct Found {
    pub(super) kind: Kind,
    /// Names for messages and commands.
    pub(super) names: Names,
    pub(super) uses: Uses,
    /// Metric of a rule that looks at a single one, or that the first stage of a pattern names.
    pub(super) main_metric: Option<Arc<str>>,
}

pub(super) fn read(
    source: &mut Source<'_>,
    mut table: Table<'_, '_>,
    pack: &Pack,
    seen: &mut Seen,
) -> Option<RuleDef> {
    let before = source.errors.len();
    let id = table.required_text(source, "id");
    if let Some(id) = &id {
        check_id(source, "rule", id.value, &id.range);
        unique(source, "rule", id.value, &id.range, &mut seen.rules);
    }
    let _ = table.text(source, "description");
    let scope = scope(source, &mut table);
    let level = table
        .word(source, "key", &["device", "node", "group"], |w| match w {
            "device" => Some(Level::Device),
            "node" => Some(Level::Node),
            "group" => Some(Level::Group),
            _ => None,
        })
        .unwrap_or(Level::Device);
    let time = time(source, &mut table);
    let historical = table.boolean(source, "historical");
    let dry_run = table.boolean(source, "dry_run");
    let durable = table.boolean(source, "durable");
    let listed = metrics(source, &mut table);
    let found = kind(source, &mut table);
    let Some(mut found) = found else {
        // What else is wrong is still worth saying, but names can't be checked without a kind.
        for known in ["alarm", "command", "on_restart"] {
            table.has(known);
        }
        table.finish(source);
        return None;
    };
    if let (Kind::Absence(_), Time::Event { .. }) = (&found.kind, time) {
        let what = "absence is a matter of the gateway's own clock; leave out time = \"event\"";
        source.error(table.range.clone(), Problem::Combination { what });
    }
    let alarm = actions::alarm(source, &mut table, &mut found);
    let on_restart = actions::on_restart(source, &mut table);
    let commands = actions::commands(source, &mut table, &mut found, (level, on_restart));
    table.finish(source);
    if source.errors.len() > before {
        return None;
    }
    let streams = streams(&found, listed);
    let wants = super::wants::of(&found, &streams, alarm.as_ref(), &commands);
    let stages: Vec<Arc<str>> = match &found.kind {
        Kind::Pattern(def) => def
            .plan
            .stage_names()
            .iter()
            .map(|n| n.as_str().into())
            .collect(),
        _ => Vec::new(),
    };
    Some(RuleDef {
        id: id?.value.into(),
        pack: pack.id.clone(),
        version: pack.version.clone(),
        scope,
        level,
        time,
        historical,
        dry_run,
        durable,
        streams,
        uses: found.uses,
        wants,
        kind: found.kind,
        stage_values: stages.iter().map(|n| format!("{n}.value").into()).collect(),
        stages,
        alarm,
        commands,
        on_restart,
    })
}

fn scope(source: &mut Source<'_>, table: &mut Table<'_, '_>) -> Scope {
    let any = || Glob::new("*");
    let mut scope = Scope {
        group: any(),
        node: any(),
        device: any(),
    };
    if let Some(mut inner) = table.table(source, "scope") {
        let mut read = |key| {
            inner
                .text(source, key)
                .map_or_else(any, |at| Glob::new(at.value))
        };
        scope.group = read("group");
        scope.node = read("node");
        scope.device = read("device");
        inner.finish(source);
    }
    scope
}

fn time(source: &mut Source<'_>, table: &mut Table<'_, '_>) -> Time {
    let event = table.word(source, "time", &["arrival", "event"], |w| match w {
        "arrival" => Some(false),
        "event" => Some(true),
        _ => None,
    });
    let out_of_order = table.duration_at(source, "out_of_order");
    let lateness = table.duration_at(source, "allowed_lateness");
    if event == Some(true) {
        return Time::Event {
            out_of_order: out_of_order.map_or(0, |at| at.value),
            lateness: lateness.map_or(0, |at| at.value),
        };
    }
    for At { range, .. } in out_of_order.into_iter().chain(lateness) {
        let what = "out_of_order and allowed_lateness need time = \"event\"";
        source.error(range, Problem::Combination { what });
    }
    Time::Arrival
}

/// The listed metrics; `None` where the rule lists none.
fn metrics(
    source: &mut Source<'_>,
    table: &mut Table<'_, '_>,
) -> Option<Option<BTreeSet<Arc<str>>>> {
    let item = table.get("metrics")?;
    if let Some(word) = item.get_ref().as_str() {
        if word != "all" {
            return wrong(source, "metrics", item, "a list of metrics, or \"all\"");
        }
        return Some(None);
    }
    let listed = table.texts(source, "metrics");
    Some(Some(listed.into_iter().map(|at| at.value.into()).collect()))
}

fn streams(found: &Found, listed: Option<Option<BTreeSet<Arc<str>>>>) -> Streams {
    let uses = &found.uses;
    let mut streams = Streams {
        models: uses.models.clone(),
        embeddings: !uses.phrases.is_empty(),
        ..Streams::default()
    };
    match listed {
        Some(None) => streams.all = true,
        Some(Some(metrics)) => streams.metrics = metrics,
        None => match &found.kind {
            Kind::Threshold(def) => {
                streams.metrics.insert(def.metric.clone());
            }
            Kind::Window(def) => {
                streams.metrics.insert(def.metric.clone());
            }
            Kind::Absence(def) => match &def.metric {
                Some(metric) => {
                    streams.metrics.insert(metric.clone());
                }
                None => streams.all = true,
            },
            Kind::Pattern(def) => {
                let named = &mut streams.metrics;
                for condition in &def.conditions {
                    named.extend(condition.uses.metrics.iter().cloned());
                }
                streams.all = named.is_empty() && streams.models.is_empty() && !streams.embeddings;
            }
        },
    }
    streams
}

fn kind(source: &mut Source<'_>, table: &mut Table<'_, '_>) -> Option<Found> {
    const WHAT: &str = "a rule has exactly one of pattern, threshold, absence and window";
    let kinds = ["pattern", "threshold", "absence", "window"];
    let present: Vec<&'static str> = kinds.into_iter().filter(|k| table.has(k)).collect();
    let [only] = present.as_slice() else {
        source.error(table.range.clone(), Problem::Combination { what: WHAT });
        return None;
    };
    let inner = table.table(source, only)?;
    match *only {
        "pattern" => pattern::read(source, inner),
        "threshold" => threshold(source, inner),
        "absence" => absence(source, inner),
        _ => window::read(source, inner),
    }
}

fn threshold(source: &mut Source<'_>, mut table: Table<'_, '_>) -> Option<Found> {
    let metric = table.required_text(source, "metric");
    let mut limits = Vec::new();
    for (name, upward) in [
        ("high_high", true),
        ("low_low", false),
        ("high", true),
        ("low", false),
    ] {
        if let Some(at) = table.number(source, name) {
            limits.push(Limit {
                name,
                value: at.value,
                upward,
            });
        }
    }
    if limits.is_empty() {
        let what = "a threshold needs at least one of high, low, high_high and low_low";
        source.error(table.range.clone(), Problem::Combination { what });
    }
    let value = |name| limits.iter().find(|l| l.name == name).map(|l| l.value);
    let (high, low) = (value("high"), value("low"));
    let ordered = |low: Option<f64>, high: Option<f64>| match (low, high) {
        (Some(low), Some(high)) => low < high,
        _ => true,
    };
    if !(ordered(low, high)
        && ordered(high, value("high_high"))
        && ordered(value("low_low"), low)
        && ordered(value("low_low"), high))
    {
        let what = "limits must rise: low_low < low < high < high_high";
        source.error(table.range.clone(), Problem::Combination { what });
    }
    let deadband = table.number(source, "deadband");
    if let Some(at) = deadband.as_ref().filter(|at| at.value < 0.0) {
        let (key, needed) = ("deadband".to_owned(), "zero or more");
        source.error(at.range.clone(), Problem::Range { key, needed });
    }
    let on_delay = table.duration(source, "on_delay").unwrap_or(0);
    let off_delay = table.duration(source, "off_delay").unwrap_or(0);
    let m_of_n = m_of_n(source, &mut table);
    table.finish(source);
    let metric: Arc<str> = metric?.value.into();
    Some(Found {
        kind: Kind::Threshold(ThresholdDef {
            metric: metric.clone(),
            limits,
            deadband: deadband.map_or(0.0, |at| at.value),
            on_delay,
            off_delay,
            m_of_n,
        }),
        names: Names::event(),
        uses: Uses::default(),
        main_metric: Some(metric),
    })
}

/// `[m, n]` with 1 <= m <= n <= 64.
fn m_of_n(source: &mut Source<'_>, table: &mut Table<'_, '_>) -> Option<(u32, u32)> {
    let item = table.get("m_of_n")?;
    let items = table.array(source, "m_of_n");
    if let [m, n] = items
        && let (Some(m), Some(n)) = (integer(m), integer(n))
        && let (Ok(m), Ok(n)) = (u32::try_from(m.value), u32::try_from(n.value))
        && (1..=n).contains(&m)
        && n <= 64
    {
        return Some((m, n));
    }
    let (key, needed) = ("m_of_n".to_owned(), "[m, n] with 1 <= m <= n <= 64");
    source.error(item.span(), Problem::Range { key, needed });
    None
}

fn absence(source: &mut Source<'_>, mut table: Table<'_, '_>) -> Option<Found> {
    let metric = table.text(source, "metric");
    if !table.has("for") {
        table.missing(source, "for");
    }
    let wait = table.positive(source, "for");
    table.finish(source);
    let metric: Option<Arc<str>> = metric
        .filter(|at| at.value != "any")
        .map(|at| at.value.into());
    Some(Found {
        kind: Kind::Absence(AbsenceDef {
            metric: metric.clone(),
            wait: wait?,
        }),
        names: Names::event(),
        uses: Uses::default(),
        main_metric: metric,
    })
}

/// What a pattern's conditions use.
pub(super) fn uses_of(conditions: &[Expr]) -> Uses {
    let mut uses = Uses::default();
    for condition in conditions {
        uses.merge(&condition.uses);
    }
    uses
}
