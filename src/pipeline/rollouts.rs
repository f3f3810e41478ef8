//! Models as rules see them: a device `#gateway/models/<model>` with figures, and one metric that can be written.
//!
//! No Sparkplug name holds a `#`, so that nothing in the field can be mistaken for it, and only a scope that writes
//! `#gateway` out sees it. Every [`EVERY_MS`] each model's figures become events: `Fallback` (Boolean), `Latency`
//! (p95, ms), `Late` (p95 over its objective), `NoVerdict` (windows that came to nothing since the last figures),
//! `Drift` (largest population stability index), and beside a shadow `Compared` (windows) and `Agreement` (share of
//! one verdict). A command with metric `Rollout` and value `promote`, `rollback` or `cancel` changes the version.

use std::sync::Arc;

use models::runner::ModelStatus;
use serde_json::{Value as Json, json};

use super::Ports;
use super::convert::{key_of_rule, stable_hash};
use super::core::Core;
use super::own;
use crate::actuation::{Plan, Status};
use crate::buffer::record::{Cause, Class, RecordId};
use crate::clock::Now;
use crate::rollout::Action;

/// The group of what the gateway says of itself.
pub const GROUP: &str = "#gateway";
/// The node of the models.
pub const NODE: &str = "models";
/// The metric that changes a version.
pub const METRIC: &str = "Rollout";
/// Time between two looks at the figures, ms.
pub const EVERY_MS: u64 = 5_000;

/// What a rule asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct Order {
    /// The model.
    pub model: Arc<str>,
    /// What to do.
    pub action: Action,
    /// The `sent` body of its record.
    body: Json,
}

/// What became of an [`Order`].
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// What was asked for.
    pub order: Order,
    /// Why not.
    pub refused: Option<String>,
}

/// Whether a plan is for the gateway's own models.
pub(super) fn is_own(plan: &Plan) -> bool {
    let own = |write: &crate::actuation::Write| &*write.target.group == GROUP;
    !plan.writes.is_empty() && plan.writes.iter().all(own)
}

fn key(model: &Arc<str>) -> rules::Key {
    rules::Key {
        group: GROUP.into(),
        node: NODE.into(),
        device: Some(model.clone()),
    }
}

/// Name, datatype and value of each figure of a model.
fn figures(status: &ModelStatus) -> Vec<(&'static str, &'static str, rules::Value)> {
    let double = rules::Value::Double;
    let millis = |us: u64| us as f64 / 1e3;
    let mut out = vec![
        (
            "Fallback",
            "Boolean",
            rules::Value::Bool(status.fallback_active),
        ),
        ("Latency", "Double", double(millis(status.p95_us))),
        (
            "Late",
            "Boolean",
            rules::Value::Bool(status.p95_us > status.objective_us),
        ),
    ];
    if let Some(drift) = status.drift.values().copied().reduce(f64::max) {
        out.push(("Drift", "Double", double(drift)));
    }
    if let Some(candidate) = status.candidate.as_ref().filter(|c| c.compared > 0) {
        // `Compared` first: a rule on `Agreement` finds it current.
        out.push(("Compared", "Double", double(candidate.compared as f64)));
        let share = candidate.agreed as f64 / candidate.compared as f64;
        out.push(("Agreement", "Double", double(share)));
    }
    out
}

/// One figure of one model.
struct Figure {
    name: Arc<str>,
    datatype: &'static str,
    value: rules::Value,
}

impl Core {
    /// Lets the rules see the models' figures, and ends the gateway's own alarms of models that they do not bear out:
    /// those of before a restart or a change of version.
    ///
    /// What moves rules is in the journal: where a rule names the models, the figures are a `status` record first.
    pub fn handle_figures(&mut self, now: Now, models: &[ModelStatus], ports: &mut dyn Ports) {
        self.end_models_alarms(now, models, ports);
        if models.is_empty() || !self.rules.names_group(GROUP) {
            self.unanswered.clear();
            return;
        }
        let all: Vec<(Arc<str>, Vec<Figure>)> = models
            .iter()
            .map(|status| {
                let mut all = figures(status);
                let unanswered = self.unanswered.remove(&status.model).unwrap_or(0);
                let unanswered = rules::Value::Double(unanswered as f64);
                all.push(("NoVerdict", "Double", unanswered));
                let all = all.into_iter().map(|(name, datatype, value)| Figure {
                    name: name.into(),
                    datatype,
                    value,
                });
                (status.model.clone(), all.collect())
            })
            .collect();
        let record = self.tell_status(now, ("figures", figures_json(&all)), ports);
        self.see_figures(now, record, all);
        self.settle(now, ports);
    }

    /// Figures of the journal move the rules again as they did.
    pub(super) fn replay_figures(&mut self, now: Now, record: RecordId, figures: &Json) {
        self.see_figures(now, record, figures_from(figures));
    }

    fn see_figures(&mut self, now: Now, record: RecordId, all: Vec<(Arc<str>, Vec<Figure>)>) {
        let mut index = 0;
        for (model, figures) in all {
            let key = key(&model);
            for figure in figures {
                self.rules.handle_event(&rules::Event {
                    key: key.clone(),
                    metric: figure.name,
                    value: figure.value,
                    datatype: figure.datatype,
                    quality: rules::QUALITY_GOOD,
                    time_ms: i64::try_from(now.wall_ms).unwrap_or(i64::MAX),
                    engine_ms: now.engine_ms,
                    historical: false,
                    unchanged: false,
                    record,
                    index,
                    kind: rules::EventKind::Metric,
                });
                index += 1;
            }
        }
    }

    fn end_models_alarms(&mut self, now: Now, models: &[ModelStatus], ports: &mut dyn Ports) {
        let of = |model: &str| models.iter().find(|status| *status.model == *model);
        for model in self.told(own::MODELS, own::OBJECTIVE) {
            if of(&model).is_none_or(|status| status.mode == models::slo::Mode::Own) {
                self.untell(now, own::MODELS, own::OBJECTIVE, &model, ports);
            }
        }
        for figure in self.told(own::MODELS, own::DRIFT) {
            let (model, name) = figure.split_once('/').unwrap_or((&figure, ""));
            let over = match of(model) {
                None => true,
                // None yet: too few windows to say anything.
                Some(status) => status
                    .drift
                    .get(name)
                    .is_some_and(|index| *index <= models::runner::DRIFT_BACK),
            };
            if over {
                self.untell(now, own::MODELS, own::DRIFT, &figure, ports);
            }
        }
    }

    /// A rule's commands to models. Each is refused or handed over; its outcome comes back later.
    pub(super) fn roll_out(
        &mut self,
        now: Now,
        plan: &Plan,
        guards: &[Option<rules::Guard>],
        ports: &mut dyn Ports,
    ) {
        for (position, write) in plan.writes.iter().enumerate() {
            let model = write.target.device.clone().unwrap_or_else(|| "_".into());
            let id = format!("{}-{}-{position}", plan.id, now.engine_ms);
            let mut body = json!({
                "id": id,
                "target": super::bodies::target(&write.target),
                "metric": &*write.metric,
                "value": super::convert::value_json(&write.value),
                "by": &*plan.by,
                "cause": plan.cause,
                "status": Status::Sent.as_str(),
                "timestamp": now.wall_ms,
            });
            let allowed = guards
                .get(position)
                .and_then(Option::as_ref)
                .is_none_or(|guard| self.rules.check(guard));
            let word = match &write.value {
                sparkplug::value::Value::String(word) => Action::parse(word),
                _ => None,
            };
            let refused = match word {
                _ if &*write.target.node != NODE || &*write.metric != METRIC => Some(
                    "only `#gateway/models/<model>` has a metric that can be written: `Rollout`",
                ),
                None => Some("`Rollout` takes promote, rollback and cancel"),
                _ if !allowed => Some("interlock"),
                _ => None,
            };
            if let Some(reason) = refused {
                self.tell_rollout(now, &model, &mut body, Some(reason), ports);
            } else if let Some(action) = word {
                self.append_rollout(now, &model, &body, ports);
                ports.roll_out(Order {
                    model,
                    action,
                    body,
                });
            }
        }
    }

    /// An order was carried out, or refused.
    pub(super) fn handle_rollout(&mut self, now: Now, outcome: Outcome, ports: &mut dyn Ports) {
        let Outcome { order, refused } = outcome;
        let mut body = order.body;
        self.tell_rollout(now, &order.model, &mut body, refused.as_deref(), ports);
    }

    fn tell_rollout(
        &mut self,
        now: Now,
        model: &Arc<str>,
        body: &mut Json,
        refused: Option<&str>,
        ports: &mut dyn Ports,
    ) {
        let status = match refused {
            None => Status::Confirmed,
            Some(_) => Status::Rejected,
        };
        if let Some(object) = body.as_object_mut() {
            object.insert("status".to_owned(), status.as_str().into());
            object.insert("timestamp".to_owned(), now.wall_ms.into());
            if let Some(reason) = refused {
                object.insert("reason".to_owned(), reason.into());
            }
        }
        tracing::info!(%model, status = status.as_str(), ?refused, "rollout by a rule");
        self.append_rollout(now, model, body, ports);
    }

    fn append_rollout(&mut self, now: Now, model: &Arc<str>, body: &Json, ports: &mut dyn Ports) {
        let text = |name: &str| body.get(name).and_then(Json::as_str).unwrap_or_default();
        let cause = Cause {
            record: body.get("cause").and_then(Json::as_u64).unwrap_or(0),
            rule: stable_hash(text("id")) ^ stable_hash(text("status")),
            index: 0,
        };
        self.append_derived(
            now,
            Class::Command,
            key_of_rule(&key(model)),
            Some(cause),
            body,
            ports,
        );
        self.note_command(body);
    }
}

fn figures_json(all: &[(Arc<str>, Vec<Figure>)]) -> Json {
    let one = |figure: &Figure| {
        json!({
            "name": &*figure.name,
            "type": figure.datatype,
            "value": super::convert::rule_json(&figure.value),
        })
    };
    all.iter()
        .map(|(model, figures)| {
            json!({"model": &**model, "metrics": figures.iter().map(one).collect::<Vec<_>>()})
        })
        .collect()
}

/// Inverse of [`figures_json`].
fn figures_from(json: &Json) -> Vec<(Arc<str>, Vec<Figure>)> {
    let one = |json: &Json| {
        let value = json.get("value")?;
        let (datatype, value) = match json.get("type")?.as_str()? {
            "Boolean" => ("Boolean", rules::Value::Bool(value.as_bool()?)),
            _ => (
                "Double",
                rules::Value::Double(super::convert::json_double(value)?),
            ),
        };
        Some(Figure {
            name: json.get("name")?.as_str()?.into(),
            datatype,
            value,
        })
    };
    let list = |json: &Json| json.as_array().cloned().unwrap_or_default();
    list(json)
        .iter()
        .filter_map(|model| {
            let name = model.get("model")?.as_str()?.into();
            let metrics = list(model.get("metrics")?);
            Some((name, metrics.iter().filter_map(one).collect()))
        })
        .collect()
}
