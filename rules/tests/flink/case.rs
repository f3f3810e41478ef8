//! Cases recorded from Flink CEP: reading one, running it, comparing.
//!
//! The format is described in `README.md` beside this file. Shared by the `flink` test and the `conform`
//! example.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;

use rules::pattern::{
    Bounds, CondId, Condition, Contiguity, Inner, Keyed, Output, Path, PatternSpec, Plan,
    Quantifier, Refused, Repeat, Skip, StageIdx, StageKind, StageSpec,
};
use serde_json::Value;

use super::condition::{self, Test};

/// Stage name to the `seq` of its events.
pub(crate) type Stages = BTreeMap<String, Vec<i64>>;

#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) seq: i64,
    pub(crate) ts: i64,
    pub(crate) key: Arc<str>,
    pub(crate) kind: String,
    pub(crate) value: f64,
}

/// One output: a match, a time-out or a late event, with its timestamp.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Entry {
    Match(Stages, i64),
    TimedOut(Stages, i64),
    Late(i64, i64),
}

/// Outputs by key, each list in order; or the phase (`compile` or `run`) that fails.
pub(crate) type Outcome = Result<BTreeMap<String, Vec<Entry>>, &'static str>;

#[derive(Debug)]
enum Clock {
    /// Watermark after every n-th event, this far behind the largest time.
    PerEvent { out_of_order: i64, every: usize },
    /// Watermark after so many events.
    Explicit(Vec<(usize, i64)>),
}

#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) id: String,
    pub(crate) spec: PatternSpec,
    pub(crate) tests: Vec<Test>,
    pub(crate) events: Vec<Arc<Event>>,
    clock: Clock,
    final_flush: bool,
    expected: Outcome,
}

impl Case {
    pub(crate) fn parse(line: &str) -> Result<Self, String> {
        let json: Value = serde_json::from_str(line).map_err(|e| e.to_string())?;
        let id = text(&json, "id")?.to_owned();
        Self::read(&json).map_err(|e| format!("{id}: {e}"))
    }

    fn read(json: &Value) -> Result<Self, String> {
        let mut tests = Vec::new();
        let spec = pattern(field(json, "pattern")?, &mut tests)?;
        let mut events = Vec::new();
        for event in array(json, "events")? {
            events.push(Arc::new(Event {
                seq: int(event, "seq")?,
                ts: int(event, "ts")?,
                key: text(event, "key")?.into(),
                kind: text(event, "type")?.to_owned(),
                value: field(event, "value")?
                    .as_f64()
                    .ok_or("value is no number")?,
            }));
        }
        let wm = field(json, "watermark")?;
        let clock = match text(wm, "mode")? {
            "per_event" => Clock::PerEvent {
                out_of_order: int(wm, "out_of_orderness_ms")?,
                every: optional_int(wm, "every")?.map_or(1, |n| n.max(1) as usize),
            },
            "explicit" => {
                let pair = |v: &Value| -> Option<(usize, i64)> {
                    Some((v.get(0)?.as_u64()? as usize, v.get(1)?.as_i64()?))
                };
                let at: Option<Vec<_>> = array(wm, "at")?.iter().map(pair).collect();
                Clock::Explicit(at.ok_or("watermark pairs")?)
            }
            other => return Err(format!("watermark mode {other}")),
        };
        let expected = expected(field(json, "expect")?, &events)?;
        Ok(Self {
            id: text(json, "id")?.to_owned(),
            spec,
            tests,
            events,
            clock,
            final_flush: flag(wm, "final_flush"),
            expected,
        })
    }

    /// Runs the case; `variant` may change the compiled plan.
    pub(crate) fn run(&self, variant: impl FnOnce(Plan) -> Plan) -> Outcome {
        let plan = Arc::new(variant(self.spec.compile().map_err(|_| "compile")?));
        let names = plan.stage_names().to_vec();
        let evaluate = |id: CondId, event: &Arc<Event>, held: Path<'_, Arc<Event>>| {
            let test = self.tests.get(usize::from(id.0));
            test.is_some_and(|t| condition::holds(t, event, held, &names))
        };
        let mut log: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
        let mut failed = false;
        let mut stream: Keyed<Arc<str>, Arc<Event>> = Keyed::new(plan.clone(), Bounds::NONE);
        let mut advance = |stream: &mut Keyed<_, _>, log: &mut BTreeMap<String, Vec<Entry>>, wm| {
            stream.advance(wm, &evaluate, |key: &Arc<str>, output| {
                let entry = match output {
                    Output::Match { taken, ts } => Entry::Match(stages(&names, taken), ts),
                    Output::TimedOut { taken, ts } => Entry::TimedOut(stages(&names, taken), ts),
                    Output::Evicted { .. } => return,
                    Output::SkipMissed { .. } => {
                        failed = true;
                        return;
                    }
                };
                log.entry(key.to_string()).or_default().push(entry);
            });
        };
        let mut latest = i64::MIN;
        for (n, event) in self.events.iter().enumerate() {
            if let Err(Refused::Late(key, late)) =
                stream.push(event.ts, event.key.clone(), event.clone())
            {
                let entry = Entry::Late(late.seq, late.ts);
                log.entry(key.to_string()).or_default().push(entry);
            }
            latest = latest.max(event.ts);
            let arrived = n + 1;
            match &self.clock {
                Clock::PerEvent {
                    out_of_order,
                    every,
                } => {
                    if arrived % every == 0 {
                        let wm = latest.saturating_sub(*out_of_order).saturating_sub(1);
                        advance(&mut stream, &mut log, wm);
                    }
                }
                Clock::Explicit(at) => {
                    for (_, wm) in at.iter().filter(|(count, _)| *count == arrived) {
                        advance(&mut stream, &mut log, *wm);
                    }
                }
            }
        }
        if self.final_flush {
            advance(&mut stream, &mut log, i64::MAX);
        }
        if failed { Err("run") } else { Ok(log) }
    }

    /// Compares with what Flink put out: exactly, or as sets where `strict` is false.
    pub(crate) fn compare(&self, actual: &Outcome, strict: bool) -> Result<(), String> {
        let same = match (&self.expected, actual) {
            (Ok(expected), Ok(actual)) if !strict => loose(expected) == loose(actual),
            (expected, actual) => expected == actual,
        };
        if same {
            return Ok(());
        }
        Err(format!(
            "  expected\n{}  actual\n{}",
            show(&self.expected),
            show(actual)
        ))
    }

    /// Runs the case as it is and compares.
    #[allow(
        dead_code,
        reason = "each of the two programs that share this file has its own way"
    )]
    pub(crate) fn check(&self, strict: bool) -> Result<(), String> {
        self.compare(&self.run(|plan| plan), strict)
    }
}

/// Of one key: matches as a sorted list, time-outs as a set, late events in order.
type Loose<'a> = (Vec<&'a Stages>, BTreeSet<&'a Stages>, Vec<i64>);

fn loose(log: &BTreeMap<String, Vec<Entry>>) -> BTreeMap<&String, Loose<'_>> {
    let sets = log.iter().map(|(key, entries)| {
        let (mut matches, mut timeouts, mut late) = Loose::default();
        for entry in entries {
            match entry {
                Entry::Match(stages, _) => matches.push(stages),
                Entry::TimedOut(stages, _) => {
                    timeouts.insert(stages);
                }
                Entry::Late(seq, _) => late.push(*seq),
            }
        }
        matches.sort();
        (key, (matches, timeouts, late))
    });
    sets.collect()
}

fn show(outcome: &Outcome) -> String {
    match outcome {
        Err(phase) => format!("    error while {phase}\n"),
        Ok(log) => {
            let mut text = String::new();
            for (key, entries) in log {
                for entry in entries {
                    let _ = match entry {
                        Entry::Match(stages, ts) => writeln!(text, "    {key} M {ts} {stages:?}"),
                        Entry::TimedOut(stages, ts) => {
                            writeln!(text, "    {key} T {ts} {stages:?}")
                        }
                        Entry::Late(seq, ts) => writeln!(text, "    {key} L {ts} {seq}"),
                    };
                }
            }
            text
        }
    }
}

fn stages(names: &[String], taken: Path<'_, Arc<Event>>) -> Stages {
    let mut stages = Stages::new();
    for (StageIdx(stage), event) in taken.forward() {
        let name = names.get(usize::from(stage)).cloned().unwrap_or_default();
        stages.entry(name).or_default().push(event.seq);
    }
    stages
}

fn expected(json: &Value, events: &[Arc<Event>]) -> Result<Outcome, String> {
    if let Some(error) = json.get("error") {
        return match text(error, "phase")? {
            "compile" => Ok(Err("compile")),
            "run" => Ok(Err("run")),
            other => Err(format!("phase {other}")),
        };
    }
    let keys: HashMap<i64, &str> = events.iter().map(|e| (e.seq, &*e.key)).collect();
    let mut log: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
    for entry in array(json, "log")? {
        let kind = entry.get(0).and_then(Value::as_str).ok_or("log kind")?;
        let index = entry.get(1).and_then(Value::as_u64).ok_or("log index")? as usize;
        let ts = entry.get(2).and_then(Value::as_i64).ok_or("log ts")?;
        let list = match kind {
            "M" => "matches",
            "T" => "timeouts",
            _ => "late",
        };
        let item = array(json, list)?.get(index).ok_or("log index")?;
        let (entry, seq) = if kind == "L" {
            let seq = item.as_i64().ok_or("late seq")?;
            (Entry::Late(seq, ts), Some(seq))
        } else {
            let mut stages = Stages::new();
            for (name, seqs) in item.as_object().ok_or("stages")? {
                let seqs: Option<Vec<i64>> = seqs
                    .as_array()
                    .ok_or("seqs")?
                    .iter()
                    .map(Value::as_i64)
                    .collect();
                stages.insert(name.clone(), seqs.ok_or("seq")?);
            }
            let seq = stages.values().flatten().next().copied();
            let entry = match kind {
                "M" => Entry::Match(stages, ts),
                _ => Entry::TimedOut(stages, ts),
            };
            (entry, seq)
        };
        let key = seq.and_then(|s| keys.get(&s)).copied().unwrap_or_default();
        log.entry(key.to_owned()).or_default().push(entry);
    }
    Ok(Ok(log))
}

fn pattern(json: &Value, tests: &mut Vec<Test>) -> Result<PatternSpec, String> {
    let mut stages = list(array(json, "stages")?, tests)?;
    if let Some(within) = optional_int(json, "within_ms")?
        && let Some(last) = stages.last_mut()
    {
        match within_type(json) {
            true => last.within_gap = Some(within),
            false => last.within = Some(within),
        }
    }
    let skip = field(json, "skip")?;
    let stage = || text(skip, "stage").map(str::to_owned);
    let strict = flag(skip, "throw_on_miss");
    let skip = match text(skip, "strategy")? {
        "NO_SKIP" => Skip::None,
        "SKIP_TO_NEXT" => Skip::ToNext,
        "SKIP_PAST_LAST_EVENT" => Skip::PastLast,
        "SKIP_TO_FIRST" => Skip::ToFirst {
            stage: stage()?,
            strict,
        },
        "SKIP_TO_LAST" => Skip::ToLast {
            stage: stage()?,
            strict,
        },
        other => return Err(format!("skip strategy {other}")),
    };
    Ok(PatternSpec { stages, skip })
}

fn list(stages: &[Value], tests: &mut Vec<Test>) -> Result<Vec<StageSpec>, String> {
    stages.iter().map(|s| stage(s, tests)).collect()
}

/// Whether the window is that between neighbours.
fn within_type(json: &Value) -> bool {
    json.get("within_type").and_then(Value::as_str) == Some("PREVIOUS_AND_CURRENT")
}

fn stage(json: &Value, tests: &mut Vec<Test>) -> Result<StageSpec, String> {
    let mut test = |name: &str| -> Result<Option<Condition>, String> {
        let Some(json) = json.get(name).filter(|v| !v.is_null()) else {
            return Ok(None);
        };
        let test = Test::parse(json)?;
        let condition = Condition {
            id: CondId(tests.len() as u16),
            iterative: test.is_iterative(),
        };
        tests.push(test);
        Ok(Some(condition))
    };
    let condition = test("condition")?;
    let until = test("until")?;
    let kind = match json.get("group") {
        Some(group) => {
            let inner = group.as_array().ok_or("group is no list")?;
            StageKind::Group(list(inner, tests)?)
        }
        None => StageKind::Event {
            name: text(json, "name")?.to_owned(),
            condition,
        },
    };
    let contiguity = match text(json, "contiguity")? {
        "begin" | "next" => Contiguity::Next,
        "followedBy" => Contiguity::FollowedBy,
        "followedByAny" => Contiguity::FollowedByAny,
        "notNext" => Contiguity::NotNext,
        "notFollowedBy" => Contiguity::NotFollowedBy,
        other => return Err(format!("contiguity {other}")),
    };
    let within = optional_int(json, "within_ms")?;
    Ok(StageSpec {
        kind,
        contiguity,
        quantifier: match json.get("quantifier").filter(|q| !q.is_null()) {
            Some(q) => quantifier(q)?,
            None => Quantifier::ONCE,
        },
        until,
        within: within.filter(|_| !within_type(json)),
        within_gap: within.filter(|_| within_type(json)),
    })
}

fn quantifier(json: &Value) -> Result<Quantifier, String> {
    let repeat = match json.get("kind").and_then(Value::as_str).unwrap_or("one") {
        "one" => Repeat::Once,
        "oneOrMore" => Repeat::OneOrMore,
        "timesOrMore" => Repeat::AtLeast(int(json, "n")?),
        "times" => Repeat::Times(int(json, "n")?),
        "timesRange" => Repeat::Range(int(json, "from")?, int(json, "to")?),
        other => return Err(format!("quantifier {other}")),
    };
    let inner = match json.get("inner").and_then(Value::as_str) {
        None | Some("relaxed") => Inner::Relaxed,
        Some("consecutive") => Inner::Consecutive,
        Some("allowCombinations") => Inner::Combinations,
        Some(other) => return Err(format!("inner {other}")),
    };
    Ok(Quantifier {
        repeat,
        inner,
        greedy: flag(json, "greedy"),
        optional: flag(json, "optional"),
        gap: optional_int(json, "within_ms")?,
    })
}

pub(crate) fn field<'a>(json: &'a Value, name: &str) -> Result<&'a Value, String> {
    json.get(name).ok_or_else(|| format!("no field {name}"))
}

pub(crate) fn text<'a>(json: &'a Value, name: &str) -> Result<&'a str, String> {
    let value = field(json, name)?;
    value.as_str().ok_or_else(|| format!("{name} is no string"))
}

pub(crate) fn array<'a>(json: &'a Value, name: &str) -> Result<&'a [Value], String> {
    let value = field(json, name)?.as_array();
    value
        .map(Vec::as_slice)
        .ok_or_else(|| format!("{name} is no list"))
}

fn int(json: &Value, name: &str) -> Result<i64, String> {
    let value = field(json, name)?;
    value
        .as_i64()
        .ok_or_else(|| format!("{name} is no integer"))
}

fn optional_int(json: &Value, name: &str) -> Result<Option<i64>, String> {
    match json.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(_) => int(json, name).map(Some),
    }
}

fn flag(json: &Value, name: &str) -> bool {
    json.get(name).and_then(Value::as_bool).unwrap_or(false)
}
