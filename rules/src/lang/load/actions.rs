//! What a rule does: its alarm and its commands.

use std::sync::Arc;

use super::rule::Found;
use super::{expression, template};
use crate::event::Level;
use crate::lang::def::{AlarmDef, Clear, CommandDef, CommandValue, Flap, Kind, Target};
use crate::lang::expr::{Expr, Names};
use crate::lang::reader::{At, Table, as_table};
use crate::lang::source::{Problem, Source};
use crate::lang::template::Template;
use crate::output::{Confirm, Expect, OnRestart, Priority, Undo};
use crate::value::Value;

/// Time to live of a command that names none, ms.
const DEFAULT_TTL: u64 = 5_000;
/// Wait for a confirmation that names none, ms.
const DEFAULT_CONFIRM: u64 = 5_000;
/// Priority of a command that names none.
const DEFAULT_PRIORITY: i32 = 5;
const MOST_COMMANDS: usize = 64;

pub(super) fn alarm(
    source: &mut Source<'_>,
    table: &mut Table<'_, '_>,
    found: &mut Found,
) -> Option<AlarmDef> {
    let mut table = table.table(source, "alarm")?;
    let words: Vec<&'static str> = Priority::ALL.iter().map(|p| p.as_str()).collect();
    let priority = table.word(source, "priority", &words, Priority::parse);
    let on_delay = table.duration(source, "on_delay").unwrap_or(0);
    let off_delay = table.duration(source, "off_delay").unwrap_or(0);
    deadband(source, &mut table, found);
    let latch = table.boolean(source, "latch");
    let clear = table.text(source, "clear");
    let clear = clear.and_then(|at| read_clear(source, &at, found));
    let message = match table.text(source, "message") {
        Some(at) => template(source, &at, &found.names),
        None => Template::parse("{device}", &Names::event()).ok(),
    };
    if let Some(message) = &message {
        found.uses.merge(&message.uses());
    }
    let mut text = |key| table.text(source, key).map(|at| Arc::from(at.value));
    let (cause, consequence, response) = (text("cause"), text("consequence"), text("response"));
    let flap = table
        .table(source, "flap")
        .and_then(|inner| read_flap(source, inner));
    table.finish(source);
    Some(AlarmDef {
        priority: priority.unwrap_or_default(),
        on_delay,
        off_delay,
        latch,
        clear,
        message: message?,
        cause,
        consequence,
        response,
        flap,
    })
}

/// A deadband belongs to a limit; one that stands with the alarm counts for the rule's limits.
fn deadband(source: &mut Source<'_>, table: &mut Table<'_, '_>, found: &mut Found) {
    let Some(at) = table.number(source, "deadband") else {
        return;
    };
    match &mut found.kind {
        Kind::Threshold(def) if at.value >= 0.0 => def.deadband = def.deadband.max(at.value),
        Kind::Threshold(_) => {
            let (key, needed) = ("deadband".to_owned(), "zero or more");
            source.error(at.range, Problem::Range { key, needed });
        }
        Kind::Pattern(_) | Kind::Absence(_) | Kind::Window(_) => {
            let what =
                "a deadband belongs to a threshold; write `clear` with another limit instead";
            source.error(at.range, Problem::Combination { what });
        }
    }
}

fn read_clear(source: &mut Source<'_>, at: &At<&str>, found: &mut Found) -> Option<Clear> {
    if !matches!(found.kind, Kind::Pattern(_)) {
        let what = "only a pattern's alarm has `clear`; others clear when their condition is over";
        source.error(at.range.clone(), Problem::Combination { what });
        return None;
    }
    let expr = expression(source, at, &found.names, true)?;
    let mut metrics = expr.uses.metrics.clone();
    if metrics.is_empty() {
        metrics.extend(found.main_metric.iter().cloned());
    }
    if metrics.is_empty() {
        let what =
            "say which metric clears the alarm, as in `metric == \"Temperature\" && value < 80.0`";
        source.error(at.range.clone(), Problem::Combination { what });
        return None;
    }
    let mut uses = expr.uses.clone();
    uses.metrics.clear();
    found.uses.merge(&uses);
    Some(Clear { expr, metrics })
}

fn read_flap(source: &mut Source<'_>, mut table: Table<'_, '_>) -> Option<Flap> {
    for key in ["count", "within"] {
        if !table.has(key) {
            table.missing(source, key);
        }
    }
    let count = table.integer(source, "count");
    let within = table.positive(source, "within");
    table.finish(source);
    let count = count?;
    match u32::try_from(count.value) {
        Ok(n) if (2..=64).contains(&n) => Some(Flap {
            count: n,
            within: within?,
        }),
        _ => {
            let (key, needed) = ("count".to_owned(), "from 2 to 64");
            source.error(count.range, Problem::Range { key, needed });
            None
        }
    }
}

/// What becomes of a sequence that a restart interrupts.
pub(super) fn on_restart(source: &mut Source<'_>, table: &mut Table<'_, '_>) -> OnRestart {
    let range = table.get("on_restart").map(|item| item.span());
    let words: Vec<&'static str> = OnRestart::ALL.iter().map(|w| w.as_str()).collect();
    let word = table.word(source, "on_restart", &words, OnRestart::parse);
    if let Some(range) = range
        && table.array(source, "command").len() < 2
    {
        let what = "on_restart is for several commands; a single one is never sent again";
        source.error(range, Problem::Combination { what });
    }
    word.unwrap_or_default()
}

pub(super) fn commands(
    source: &mut Source<'_>,
    table: &mut Table<'_, '_>,
    found: &mut Found,
    of: (Level, OnRestart),
) -> Vec<CommandDef> {
    let items = table.array(source, "command");
    if let Some(extra) = items.get(MOST_COMMANDS) {
        let (key, needed) = ("command".to_owned(), "a list of at most 64");
        source.error(extra.span(), Problem::Range { key, needed });
    }
    let mut commands = Vec::new();
    for item in items {
        let inner = as_table(source, "command", item);
        commands.extend(inner.and_then(|inner| command(source, inner, found, of)));
    }
    commands
}

fn command(
    source: &mut Source<'_>,
    mut table: Table<'_, '_>,
    found: &mut Found,
    (level, on_restart): (Level, OnRestart),
) -> Option<CommandDef> {
    let before = source.errors.len();
    let range = table.range.clone();
    let target = match table.table(source, "target") {
        Some(inner) => read_target(source, inner),
        None => Target::default(),
    };
    if level == Level::Group && target.node.is_none() {
        let what = "a rule over a group has no node of its own; name one in `target`";
        source.error(range, Problem::Combination { what });
    }
    let metric = table.required_text(source, "metric");
    let value = read_value(source, &mut table, found);
    let ttl = table.positive(source, "ttl").unwrap_or(DEFAULT_TTL);
    let priority = table.integer(source, "priority");
    let priority = priority.map_or(DEFAULT_PRIORITY, |at| {
        i32::try_from(at.value).unwrap_or(if at.value < 0 { i32::MIN } else { i32::MAX })
    });
    let repeatable = table.boolean(source, "repeatable");
    let allow_when = table.text(source, "allow_when");
    // After a restart nobody knows the match any more: only what is so then can be asked.
    let names = match on_restart {
        OnRestart::Undo => found.names.clone(),
        OnRestart::Finish => Names::key(),
    };
    let allow_when = allow_when.and_then(|at| expression(source, &at, &names, true));
    if let Some(expr) = &allow_when {
        found.uses.current.extend(expr.uses.current.iter().cloned());
    }
    let confirm = table.table(source, "confirm");
    let confirm = confirm.and_then(|inner| read_confirm(source, inner, value.as_ref()));
    let undo = table.table(source, "undo");
    let undo = undo.and_then(|inner| read_undo(source, inner));
    table.finish(source);
    if source.errors.len() > before {
        return None;
    }
    Some(CommandDef {
        target,
        metric: metric?.value.into(),
        value: value?,
        ttl,
        priority,
        repeatable,
        allow_when: allow_when.map(Arc::new),
        confirm,
        undo,
    })
}

fn read_target(source: &mut Source<'_>, mut table: Table<'_, '_>) -> Target {
    let mut text = |key| table.text(source, key).map(|at| Arc::from(at.value));
    let target = Target {
        group: text("group"),
        node: text("node"),
        device: text("device"),
    };
    table.finish(source);
    target
}

fn read_value(
    source: &mut Source<'_>,
    table: &mut Table<'_, '_>,
    found: &mut Found,
) -> Option<CommandValue> {
    match (table.has("value"), table.has("expr")) {
        (true, false) => table.scalar(source, "value").map(CommandValue::Fixed),
        (false, true) => {
            let at = table.text(source, "expr")?;
            let expr: Expr = expression(source, &at, &found.names, false)?;
            found.uses.current.extend(expr.uses.current.iter().cloned());
            Some(CommandValue::Computed(Box::new(expr)))
        }
        _ => {
            let what = "a command has either `value` or `expr`";
            source.error(table.range.clone(), Problem::Combination { what });
            None
        }
    }
}

fn read_confirm(
    source: &mut Source<'_>,
    mut table: Table<'_, '_>,
    value: Option<&CommandValue>,
) -> Option<Confirm> {
    let metric = table.required_text(source, "metric");
    let equals = table.scalar(source, "equals");
    let between = table.get("between").cloned();
    let within = table.positive(source, "within");
    let expect = match (equals, &between, value) {
        (Some(value), None, _) => Some(Expect::Equals(value)),
        (None, Some(item), _) => {
            let numbers: Vec<f64> = item.get_ref().as_array().map_or_else(Vec::new, |array| {
                let values = array
                    .iter()
                    .filter_map(|i| crate::lang::reader::scalar(i.get_ref()));
                values.filter_map(|v| v.as_f64()).collect()
            });
            match numbers.as_slice() {
                [low, high] if low <= high => Some(Expect::Between(*low, *high)),
                _ => {
                    let (key, needed) = ("between".to_owned(), "[low, high]");
                    source.error(item.span(), Problem::Range { key, needed });
                    None
                }
            }
        }
        // Left out: the metric must show what was written.
        (None, None, Some(CommandValue::Fixed(value))) => Some(Expect::Equals(value.clone())),
        _ => {
            let what = "confirm has either `equals` or `between`";
            source.error(table.range.clone(), Problem::Combination { what });
            None
        }
    };
    table.finish(source);
    Some(Confirm {
        metric: metric?.value.into(),
        expect: expect?,
        within_ms: within.unwrap_or(DEFAULT_CONFIRM),
    })
}

fn read_undo(source: &mut Source<'_>, mut table: Table<'_, '_>) -> Option<Undo> {
    let metric = table.required_text(source, "metric");
    if !table.has("value") {
        table.missing(source, "value");
    }
    let value: Option<Value> = table.scalar(source, "value");
    let repeatable = !table.has("repeatable") || table.boolean(source, "repeatable");
    table.finish(source);
    Some(Undo {
        metric: metric?.value.into(),
        value: value?,
        repeatable,
    })
}
