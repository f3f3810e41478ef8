//! The engine as a whole.

mod alarms;
mod births;
mod bounds;
mod faults;
mod own;
mod replay;
mod shares;
mod time;

use super::*;
use crate::load_packs;
use crate::output::{AlarmAction, AlarmStatus, EvictReason, Match};

/// Wall time at engine time 0, ms UTC.
const WALL: i64 = 1_700_006_400_000;

/// An engine with rules (the text behind `[pack]`), a clock and what came out.
struct Plant {
    engine: Engine,
    record: u64,
}

fn packs(rules: &str) -> Vec<Pack> {
    let text = format!("[pack]\nid = \"p\"\nversion = \"1\"\n{rules}");
    load_packs(&[("pack.toml".to_owned(), text)]).unwrap_or_else(|errors| {
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        panic!("{}", errors.join("\n"))
    })
}

impl Plant {
    fn new(rules: &str) -> Self {
        Self::with(rules, Limits::default())
    }

    fn with(rules: &str, limits: Limits) -> Self {
        Self {
            engine: Engine::new(packs(rules), limits),
            record: 0,
        }
    }

    fn event(&mut self, at: u64, device: &str, metric: &str, value: Value) -> Event {
        self.record += 1;
        Event {
            key: Key::device("g", "n", device),
            metric: metric.into(),
            value,
            datatype: "Double",
            quality: 192,
            time_ms: WALL + i64::try_from(at).unwrap(),
            engine_ms: at,
            historical: false,
            unchanged: false,
            record: self.record,
            index: 0,
            kind: EventKind::Metric,
        }
    }

    fn set(&mut self, at: u64, device: &str, metric: &str, value: impl Into<Value>) -> &mut Self {
        let event = self.event(at, device, metric, value.into());
        self.engine.handle_event(&event);
        self
    }

    fn death(&mut self, at: u64, device: &str) -> &mut Self {
        let key = Key::device("g", "n", device);
        self.engine.handle_death(&key, at, DeathCause::Death);
        self
    }

    fn birth(&mut self, at: u64, device: &str) -> &mut Self {
        self.engine.handle_birth(&Key::device("g", "n", device), at);
        self
    }

    fn run_to(&mut self, at: u64) -> &mut Self {
        self.engine.advance_to(at);
        self
    }

    fn outputs(&mut self) -> Vec<Output> {
        std::iter::from_fn(|| self.engine.poll_output()).collect()
    }

    /// What came out, in short: `5 rule device match`, `5 rule device raise unack "message"`.
    fn said(&mut self) -> Vec<String> {
        self.outputs().iter().map(short).collect()
    }
}

fn short(output: &Output) -> String {
    let of = |at: u64, rule: &str, key: &Key, what: String| {
        format!("{at} {rule} {} {what}", key.device_name())
    };
    match output {
        Output::Match(m) => of(m.engine_ms, &m.rule, &m.key, "match".to_owned()),
        Output::Alarm(a) => {
            let stale = if a.stale { " stale" } else { "" };
            let what = format!("{} {}{stale} \"{}\"", a.event, a.state, a.message);
            of(a.engine_ms, &a.rule, &a.key, what)
        }
        Output::Command(c) => {
            let what = format!("command {} {} = {}", c.target, c.metric, c.value);
            of(c.engine_ms, &c.rule, &c.key, what)
        }
        Output::TimedOut(t) => of(t.engine_ms, &t.rule, &t.key, "timed out".to_owned()),
        Output::Late(l) => of(
            l.engine_ms,
            &l.rule,
            &l.key,
            format!("late {}", l.behind_ms),
        ),
        Output::EvalError(e) => of(e.engine_ms, &e.rule, &e.key, format!("error {}", e.reason)),
        Output::Evicted(e) => {
            let rule = e.rule.as_deref().unwrap_or("*");
            of(
                e.engine_ms,
                rule,
                &e.key,
                format!("evicted {} {}", e.count, e.reason),
            )
        }
    }
}

fn matches(outputs: &[Output]) -> Vec<&Match> {
    let only = |output: &'_ Output| matches!(output, Output::Match(_));
    outputs
        .iter()
        .filter(|o| only(o))
        .filter_map(|o| match o {
            Output::Match(m) => Some(m),
            _ => None,
        })
        .collect()
}
