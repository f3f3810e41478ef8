//! What was expected beside what happened.

use std::fmt;

use super::parse::{Expect, Scenario, What};
use crate::lang::duration;
use crate::output::AlarmAction;
use crate::value::Value;

/// Something a rule did.
#[derive(Clone, Debug, PartialEq)]
pub struct Happening {
    /// Time since the scenario's beginning, ms.
    pub at_ms: u64,
    /// Id of the rule.
    pub rule: String,
    pub(super) kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    Match,
    Alarm(AlarmAction, String),
    Command(String, Value),
    /// Shown, never expected.
    Other(String),
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Match => f.write_str("match"),
            Self::Alarm(action, message) => write!(f, "alarm {action} \"{message}\""),
            Self::Command(metric, value) => write!(f, "command {metric} = {value}"),
            Self::Other(what) => f.write_str(what),
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Alarm(action) => write!(f, "alarm {action}"),
            Self::Match => f.write_str("match"),
            Self::Command {
                metric,
                value: Some(value),
            } => write!(f, "command {metric} = {value}"),
            Self::Command {
                metric,
                value: None,
            } => write!(f, "command {metric}"),
            Self::Nothing => f.write_str("nothing"),
        }
    }
}

/// Whether one expectation was met.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Time of the expectation, ms.
    pub at_ms: u64,
    /// Id of the rule.
    pub rule: String,
    /// What was expected, in words.
    pub expected: String,
    /// Whether it was met.
    pub met: bool,
}

/// Result of a scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Name of the scenario.
    pub name: String,
    /// Every expectation, in order of time.
    pub outcomes: Vec<Outcome>,
    /// What the rules did, each with whether it was expected.
    pub happened: Vec<(Happening, bool)>,
    strict: bool,
}

impl Report {
    /// Whether everything expected happened, nothing happened where nothing was to, and, in a strict
    /// scenario, nothing else.
    #[must_use]
    pub fn passed(&self) -> bool {
        let surprised = |(happening, expected): &(Happening, bool)| {
            !expected && !matches!(happening.kind, Kind::Other(_))
        };
        self.outcomes.iter().all(|outcome| outcome.met)
            && !(self.strict && self.happened.iter().any(surprised))
    }
}

/// The timeline: `ok` and `MISSING` are expectations, `+` is what happened besides.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {}",
            self.name,
            if self.passed() { "passed" } else { "FAILED" }
        )?;
        let outcomes = self.outcomes.iter().map(|outcome| {
            let mark = if outcome.met { "ok" } else { "MISSING" };
            (
                outcome.at_ms,
                0,
                mark,
                &outcome.rule,
                outcome.expected.clone(),
            )
        });
        let happened = self.happened.iter().filter(|(_, expected)| !expected);
        let happened = happened.map(|(happening, _)| {
            (
                happening.at_ms,
                1,
                "+",
                &happening.rule,
                happening.kind.to_string(),
            )
        });
        let mut lines: Vec<_> = outcomes.chain(happened).collect();
        lines.sort_by_key(|(at, order, ..)| (*at, *order));
        for (at, _, mark, rule, what) in lines {
            let at = duration::format(at);
            write!(f, "\n  {mark:<7} {at:>8}  {rule}: {what}")?;
        }
        Ok(())
    }
}

pub(super) fn compare(name: &str, scenario: Scenario, happened: Vec<Happening>) -> Report {
    let mut happened: Vec<(Happening, bool)> = happened.into_iter().map(|h| (h, false)).collect();
    let mut met: Vec<bool> = Vec::new();
    for expect in &scenario.expects {
        met.push(expect.what == What::Nothing || take(expect, &mut happened));
    }
    for (n, expect) in scenario.expects.iter().enumerate() {
        if expect.what == What::Nothing {
            let earlier = scenario.expects.iter().take(n).rev();
            let since = earlier
                .filter(|e| e.rule == expect.rule && e.what != What::Nothing)
                .map(|e| e.at.saturating_add(e.within).saturating_add(1))
                .next()
                .unwrap_or(0);
            let quiet = !happened.iter().any(|(h, expected)| {
                !expected
                    && h.rule == expect.rule
                    && (since..=expect.at).contains(&h.at_ms)
                    && !matches!(h.kind, Kind::Other(_))
            });
            if let Some(met) = met.get_mut(n) {
                *met = quiet;
            }
        }
    }
    let outcomes = scenario.expects.into_iter().zip(met);
    Report {
        name: name.to_owned(),
        outcomes: outcomes
            .map(|(expect, met)| Outcome {
                at_ms: expect.at,
                expected: expect.what.to_string(),
                rule: expect.rule,
                met,
            })
            .collect(),
        happened,
        strict: scenario.strict,
    }
}

/// Finds the first happening that meets an expectation and meets no other.
fn take(expect: &Expect, happened: &mut [(Happening, bool)]) -> bool {
    let span = expect.at..=expect.at.saturating_add(expect.within);
    let found = happened.iter_mut().find(|(h, taken)| {
        !taken && h.rule == expect.rule && span.contains(&h.at_ms) && fits(&expect.what, &h.kind)
    });
    match found {
        Some((_, taken)) => {
            *taken = true;
            true
        }
        None => false,
    }
}

fn fits(what: &What, kind: &Kind) -> bool {
    match (what, kind) {
        (What::Match, Kind::Match) => true,
        (What::Alarm(expected), Kind::Alarm(action, _)) => expected == action,
        (What::Command { metric, value }, Kind::Command(written, sent)) => {
            metric == written && value.as_ref().is_none_or(|value| value.same(sent))
        }
        _ => false,
    }
}
