//! Plays a timeline through an engine.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::parse::{Act, Scenario, Step};
use super::report::{Happening, Kind};
use crate::engine::{DeathCause, Engine, Limits};
use crate::event::{Event, EventKind, Key, QUALITY_GOOD};
use crate::lang::Pack;
use crate::output::Output;
use crate::value::Value;

/// Wall time of a scenario's beginning, ms UTC: the begin of a day, so that windows of any length
/// begin with the scenario.
const BEGIN_MS: i64 = 19_676 * 86_400_000;

struct Player {
    engine: Engine,
    alive: BTreeSet<Key>,
    record: u64,
    happened: Vec<Happening>,
}

/// What the rules did, in order.
pub(super) fn play(packs: &[Pack], scenario: &Scenario) -> Vec<Happening> {
    let mut player = Player {
        engine: Engine::new(packs.to_vec(), Limits::default()),
        alive: BTreeSet::new(),
        record: 0,
        happened: Vec::new(),
    };
    player.bear(&scenario.device, 0);
    for step in &scenario.steps {
        player.step(step);
        player.drain();
    }
    let ends = scenario.steps.iter().map(|step| match step.act {
        Act::Silence(ms) => step.at.saturating_add(ms),
        Act::Set(_) | Act::Score(_) | Act::Death => step.at,
    });
    let expected = scenario
        .expects
        .iter()
        .map(|e| e.at.saturating_add(e.within));
    player
        .engine
        .advance_to(ends.chain(expected).max().unwrap_or(0));
    player.drain();
    player.happened
}

impl Player {
    fn bear(&mut self, device: &Key, at: u64) {
        if self.alive.insert(device.clone()) {
            self.engine.handle_birth(device, at);
        }
    }

    fn step(&mut self, step: &Step) {
        match &step.act {
            Act::Silence(_) => self.engine.advance_to(step.at),
            Act::Death => {
                self.alive.remove(&step.device);
                self.engine
                    .handle_death(&step.device, step.at, DeathCause::Death);
            }
            Act::Set(values) => {
                self.bear(&step.device, step.at);
                self.record += 1;
                for (index, (metric, value, quality)) in (0u32..).zip(values) {
                    let event = Event {
                        value: value.clone(),
                        quality: *quality,
                        index,
                        ..self.event(step, metric, EventKind::Metric)
                    };
                    self.engine.handle_event(&event);
                }
            }
            Act::Score(scores) => {
                self.bear(&step.device, step.at);
                self.record += 1;
                for (index, (model, score)) in (0u32..).zip(scores) {
                    let kind = EventKind::Score {
                        model: model.as_str().into(),
                    };
                    let event = Event {
                        value: Value::Double(*score),
                        index,
                        ..self.event(step, model, kind)
                    };
                    self.engine.handle_event(&event);
                }
            }
        }
    }

    fn event(&self, step: &Step, metric: &str, kind: EventKind) -> Event {
        Event {
            key: step.device.clone(),
            metric: Arc::from(metric),
            value: Value::Null,
            datatype: "Unknown",
            quality: QUALITY_GOOD,
            time_ms: BEGIN_MS.saturating_add_unsigned(step.at),
            engine_ms: step.at,
            historical: false,
            unchanged: false,
            record: self.record,
            index: 0,
            kind,
        }
    }

    fn drain(&mut self) {
        while let Some(output) = self.engine.poll_output() {
            let (at, rule, kind) = match output {
                Output::Match(m) => (m.engine_ms, m.rule, Kind::Match),
                Output::Alarm(a) => {
                    let message = a.message.to_string();
                    (a.engine_ms, a.rule, Kind::Alarm(a.event, message))
                }
                Output::Command(c) => {
                    let metric = c.metric.to_string();
                    (c.engine_ms, c.rule, Kind::Command(metric, c.value))
                }
                Output::EvalError(e) => (e.engine_ms, e.rule, Kind::Other(e.reason.to_string())),
                Output::TimedOut(t) => (t.engine_ms, t.rule, Kind::Other("timed out".to_owned())),
                Output::Late(l) => (l.engine_ms, l.rule, Kind::Other("late event".to_owned())),
                Output::Evicted(e) => {
                    let Some(rule) = e.rule else { continue };
                    (
                        e.engine_ms,
                        rule,
                        Kind::Other(format!("evicted: {}", e.reason)),
                    )
                }
            };
            self.happened.push(Happening {
                at_ms: at,
                rule: rule.to_string(),
                kind,
            });
        }
    }
}
