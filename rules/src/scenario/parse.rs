//! Reads scenario files.

use crate::event::{Key, QUALITY_GOOD};
use crate::lang::nearest::nearest;
use crate::lang::reader::{self, At, Table, as_table, scalar, wrong};
use crate::lang::source::{Problem, Source};
use crate::lang::{LoadError, Pack};
use crate::output::AlarmAction;
use crate::value::Value;

/// What happens at a moment.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Act {
    /// Metric, value, quality.
    Set(Vec<(String, Value, i32)>),
    /// Model and score.
    Score(Vec<(String, f64)>),
    Death,
    /// Nothing, for so many ms.
    Silence(u64),
}

/// One entry of the timeline.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Step {
    pub(super) at: u64,
    pub(super) device: Key,
    pub(super) act: Act,
}

/// What is expected.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum What {
    Alarm(AlarmAction),
    Match,
    Command {
        metric: String,
        value: Option<Value>,
    },
    Nothing,
}

/// One expectation.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Expect {
    pub(super) at: u64,
    pub(super) within: u64,
    pub(super) rule: String,
    pub(super) what: What,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scenario {
    pub(super) device: Key,
    pub(super) strict: bool,
    pub(super) steps: Vec<Step>,
    pub(super) expects: Vec<Expect>,
}

pub(super) fn parse(packs: &[Pack], name: &str, text: &str) -> Result<Scenario, Vec<LoadError>> {
    let mut source = Source::new(name, text);
    let document = reader::parse(&mut source);
    if !source.errors.is_empty() {
        return Err(source.errors);
    }
    let scenario = read(&mut source, Table::new(document.get_ref(), 0..1), packs);
    match scenario {
        Some(scenario) if source.errors.is_empty() => Ok(scenario),
        _ => {
            source.errors.sort_by_key(|e| e.place);
            Err(source.errors)
        }
    }
}

fn read(source: &mut Source<'_>, mut root: Table<'_, '_>, packs: &[Pack]) -> Option<Scenario> {
    let _ = root.text(source, "description");
    let device = root.required_text(source, "device");
    let device = device.and_then(|at| device_key(source, &at));
    let strict = root.boolean(source, "strict");
    let mut steps = Vec::new();
    for item in root.array(source, "at") {
        if let Some(table) = as_table(source, "at", item) {
            steps.extend(step(source, table, device.as_ref()));
        }
    }
    let mut expects = Vec::new();
    for item in root.array(source, "expect") {
        if let Some(table) = as_table(source, "expect", item) {
            expects.extend(expect(source, table, packs));
        }
    }
    root.finish(source);
    // The order of the file counts for what happens at the same time.
    steps.sort_by_key(|step| step.at);
    expects.sort_by_key(|expect| expect.at);
    Some(Scenario {
        device: device?,
        strict,
        steps,
        expects,
    })
}

fn device_key(source: &mut Source<'_>, at: &At<&str>) -> Option<Key> {
    let key = Key::parse(at.value);
    if key.is_none() {
        let (key, needed) = ("device".to_owned(), "group/node/device");
        source.error(at.range.clone(), Problem::Range { key, needed });
    }
    key
}

fn time(source: &mut Source<'_>, table: &mut Table<'_, '_>) -> Option<u64> {
    if !table.has("t") {
        table.missing(source, "t");
    }
    table.duration(source, "t")
}

fn step(source: &mut Source<'_>, mut table: Table<'_, '_>, default: Option<&Key>) -> Option<Step> {
    let at = time(source, &mut table);
    let own = table.text(source, "device");
    let device = match own {
        Some(own) => device_key(source, &own),
        None => default.cloned(),
    };
    let range = table.range.clone();
    let set = table
        .table(source, "set")
        .map(|set| Act::Set(values(source, &set)));
    let score = table.table(source, "score").map(|scores| {
        let scores = scores.all().filter_map(|(model, item)| {
            match scalar(item.get_ref()).and_then(|v| v.as_f64()) {
                Some(score) => Some((model.value.to_owned(), score)),
                None => wrong(source, model.value, item, "a number"),
            }
        });
        Act::Score(scores.collect())
    });
    let death = table.boolean(source, "death").then_some(Act::Death);
    let silence = table.duration(source, "silence").map(Act::Silence);
    table.finish(source);
    let acts: Vec<Act> = [set, score, death, silence].into_iter().flatten().collect();
    let Ok([act]) = <[Act; 1]>::try_from(acts) else {
        let what = "an entry has one of set, score, death and silence";
        source.error(range, Problem::Combination { what });
        return None;
    };
    Some(Step {
        at: at?,
        device: device?,
        act,
    })
}

fn values(source: &mut Source<'_>, set: &Table<'_, '_>) -> Vec<(String, Value, i32)> {
    let mut values = Vec::new();
    for (metric, item) in set.all() {
        let name = metric.value.to_owned();
        if item.get_ref().is_table() {
            let Some(mut table) = as_table(source, metric.value, item) else {
                continue;
            };
            let null = table.boolean(source, "null");
            let quality = table.integer(source, "quality");
            let quality = quality.and_then(|at| i32::try_from(at.value).ok());
            let value = match null {
                true => Some(Value::Null),
                false => table.scalar(source, "value"),
            };
            table.finish(source);
            values.push((
                name,
                value.unwrap_or_default(),
                quality.unwrap_or(QUALITY_GOOD),
            ));
        } else if let Some(value) = scalar(item.get_ref()) {
            values.push((name, value, QUALITY_GOOD));
        } else {
            let _: Option<()> = wrong(source, metric.value, item, "a value");
        }
    }
    values
}

fn expect(source: &mut Source<'_>, mut table: Table<'_, '_>, packs: &[Pack]) -> Option<Expect> {
    let at = time(source, &mut table);
    let within = table.duration(source, "within").unwrap_or(0);
    let rule = table.required_text(source, "rule");
    if let Some(rule) = &rule {
        let mut known = packs.iter().flat_map(Pack::rules);
        if !known.any(|id| id == rule.value) {
            let known = packs.iter().flat_map(Pack::rules);
            let problem = Problem::UnknownName {
                what: "rule",
                name: rule.value.to_owned(),
                nearest: nearest(rule.value, known),
            };
            source.error(rule.range.clone(), problem);
        }
    }
    let words: Vec<&'static str> = AlarmAction::ALL.iter().map(|a| a.as_str()).collect();
    let alarm = table.word(source, "alarm", &words, AlarmAction::parse);
    let found = table.boolean(source, "match").then_some(What::Match);
    let command = table.table(source, "command");
    let command = command.and_then(|mut command| {
        let metric = command.required_text(source, "metric");
        let value = command.scalar(source, "value");
        command.finish(source);
        let metric = metric?.value.to_owned();
        Some(What::Command { metric, value })
    });
    let nothing = table.boolean(source, "nothing").then_some(What::Nothing);
    let range = table.range.clone();
    table.finish(source);
    let all = [alarm.map(What::Alarm), found, command, nothing];
    let all: Vec<What> = all.into_iter().flatten().collect();
    let Ok([what]) = <[What; 1]>::try_from(all) else {
        let what = "an expectation has one of alarm, match, command and nothing";
        source.error(range, Problem::Combination { what });
        return None;
    };
    Some(Expect {
        at: at?,
        within,
        rule: rule?.value.to_owned(),
        what,
    })
}
