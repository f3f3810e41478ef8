//! Local writes whose end the journal does not hold yet: what a crash leaves to tell or to take back.
//!
//! The `command` records of the journal carry all that is needed. A body without `sequence` is a single write: `sent`
//! opens it, every other status closes it. The bodies of a sequence are kept until the one whose `sequence.last` is
//! true; the first of them holds the whole `plan`.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};
use sparkplug::value::Value;

use super::bodies;
use super::convert::value_json;
use crate::actuation::{
    Confirm, Expect, Happened, Interlock, Interrupted, OnRestart, Plan, Status, Target, Write,
};
use crate::clock::Now;

/// Single writes and plans without an end.
#[derive(Debug, Default)]
pub(super) struct OpenWrites {
    singles: BTreeMap<String, Json>,
    plans: BTreeMap<String, Vec<Json>>,
    changed: bool,
}

/// What a crash left.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// `sent` bodies of single writes, and of sequences that can't be read.
    pub(super) singles: Vec<Json>,
    /// Sequences to take up again, each with the interlocks of its writes.
    pub(super) sequences: Vec<(Interrupted, Vec<Option<Interlocked>>)>,
}

/// An interlock as the journal holds it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Interlocked {
    /// The condition as it was written.
    pub(super) text: String,
    /// Whose values it looks at.
    pub(super) source: rules::Key,
}

fn text<'a>(body: &'a Json, pointer: &str) -> Option<&'a str> {
    body.pointer(pointer).and_then(Json::as_str)
}

impl OpenWrites {
    /// Takes a `command` body, in the order of the journal.
    pub(super) fn note(&mut self, body: &Json) {
        let (Some(id), Some(status)) = (text(body, "/id"), text(body, "/status")) else {
            return;
        };
        self.changed = true;
        if let Some(plan) = text(body, "/sequence/plan") {
            let last = body.pointer("/sequence/last").and_then(Json::as_bool) == Some(true);
            if last {
                self.plans.remove(plan);
            } else if body.get("plan").is_some() || self.plans.contains_key(plan) {
                let bodies = self.plans.entry(plan.to_owned()).or_default();
                bodies.push(body.clone());
            }
        } else if status == Status::Sent.as_str() {
            self.singles.insert(id.to_owned(), body.clone());
        } else {
            self.singles.remove(id);
        }
    }

    /// All bodies, for the checkpoint, if anything changed since the last call.
    pub(super) fn take_changed(&mut self) -> Option<Json> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let bodies = self.singles.values().chain(self.plans.values().flatten());
        Some(Json::Array(bodies.cloned().collect()))
    }

    /// Everything that is open, to be dealt with. It stays noted until its end is.
    pub(super) fn left(&self, now: Now) -> Left {
        let mut left = Left {
            singles: self.singles.values().cloned().collect(),
            sequences: Vec::new(),
        };
        for (id, bodies) in &self.plans {
            match interrupted(id, bodies, now) {
                Some(sequence) => left.sequences.push(sequence),
                None => left.singles.extend(bodies.last().cloned()),
            }
        }
        left
    }
}

fn interrupted(
    id: &str,
    bodies: &[Json],
    now: Now,
) -> Option<(Interrupted, Vec<Option<Interlocked>>)> {
    let shown = bodies.first()?.get("plan")?;
    let plan = plan_from(id, shown)?;
    let newest = bodies.last()?.get("timestamp").and_then(Json::as_u64);
    // Engine time does not count while nothing runs.
    let idle_ms = newest
        .filter(|_| now.trusted)
        .and_then(|at| now.wall_ms.checked_sub(at));
    let writes = shown.get("writes")?.as_array()?;
    let interlocks = writes.iter().map(interlock_from).collect();
    let steps = bodies
        .iter()
        .filter_map(|body| {
            Some(Happened {
                position: usize::try_from(body.pointer("/sequence/step")?.as_u64()?)
                    .ok()?
                    .checked_sub(1)?,
                undo: body.pointer("/sequence/undo")?.as_bool()?,
                status: Status::parse(text(body, "/status")?)?,
            })
        })
        .collect();
    let interrupted = Interrupted {
        plan,
        steps,
        idle_ms,
    };
    Some((interrupted, interlocks))
}

/// A plan as the first record of its sequence holds it; `guards` are the interlocks of its writes, where they have any.
pub(super) fn plan_json(plan: &Plan, guards: &[Option<rules::Guard>]) -> Json {
    let guards = guards.iter().chain(std::iter::repeat(&None));
    let writes = plan.writes.iter().zip(guards).map(|(write, guard)| {
        let mut json = write_json(write);
        if let (Some(guard), Some(object)) = (guard, json.as_object_mut()) {
            let source = super::convert::target_of_rule(guard.source());
            object.insert("allow_when".to_owned(), guard.text().into());
            object.insert("source".to_owned(), bodies::target(&source));
        }
        json
    });
    let mut json = json!({
        "by": plan.by.as_ref(),
        "cause": plan.cause,
        "priority": plan.priority,
        "writes": writes.collect::<Vec<_>>(),
    });
    if plan.on_restart == OnRestart::Finish
        && let Some(object) = json.as_object_mut()
    {
        object.insert("on_restart".to_owned(), "finish".into());
    }
    json
}

fn interlock_from(write: &Json) -> Option<Interlocked> {
    let source = target_from(write.get("source")?)?;
    Some(Interlocked {
        text: text(write, "/allow_when")?.to_owned(),
        source: super::convert::rule_key(&source.group, &source.node, source.device.as_ref()),
    })
}

fn write_json(write: &Write) -> Json {
    let mut out = Map::new();
    out.insert("target".to_owned(), bodies::target(&write.target));
    out.insert("metric".to_owned(), write.metric.as_ref().into());
    put_value(&mut out, "value", &write.value);
    let mut confirm = Map::new();
    confirm.insert("within_ms".to_owned(), write.confirm.within_ms.into());
    if let Some(metric) = &write.confirm.metric {
        confirm.insert("metric".to_owned(), metric.as_ref().into());
    }
    if let Some(target) = &write.confirm.target {
        confirm.insert("target".to_owned(), bodies::target(target));
    }
    match &write.confirm.expect {
        Expect::Written => {}
        Expect::Equals(value) => put_value(&mut confirm, "equals", value),
        Expect::Between(low, high) => {
            confirm.insert("between".to_owned(), json!([low, high]));
        }
    }
    out.insert("confirm".to_owned(), Json::Object(confirm));
    if let Some(undo) = &write.undo {
        out.insert("undo".to_owned(), write_json(undo));
    }
    out.insert("repeatable".to_owned(), write.repeatable.into());
    if let Some(ttl_ms) = write.ttl_ms {
        out.insert("ttl_ms".to_owned(), ttl_ms.into());
    }
    Json::Object(out)
}

/// JSON has one kind of number; the kind is kept beside it.
fn put_value(out: &mut Map<String, Json>, key: &str, value: &Value) {
    let kind = match value {
        Value::Int(_) => "int",
        Value::UInt(_) | Value::DateTime(_) => "uint",
        Value::Float(_) | Value::Double(_) => "double",
        _ => "",
    };
    out.insert(key.to_owned(), value_json(value));
    if !kind.is_empty() {
        out.insert(format!("{key}_kind"), kind.into());
    }
}

fn value_from(json: &Json, key: &str) -> Option<Value> {
    let value = json.get(key)?;
    let digits = || match value {
        Json::String(text) => text.clone(),
        other => other.to_string(),
    };
    match json.get(format!("{key}_kind")).and_then(Json::as_str) {
        Some("int") => digits().parse().ok().map(Value::Int),
        Some("uint") => digits().parse().ok().map(Value::UInt),
        Some("double") => digits().parse().ok().map(Value::Double),
        _ => super::convert::json_value(value),
    }
}

/// A plan read back; its deadline is over: what goes on has the time that its step is given.
fn plan_from(id: &str, json: &Json) -> Option<Plan> {
    let writes: Option<Vec<Write>> = json
        .get("writes")?
        .as_array()?
        .iter()
        .zip(0..)
        .map(|(json, position)| {
            let mut write = write_from(json)?;
            write.allow_when = json.get("allow_when").map(|_| Interlock {
                plan: id.into(),
                position,
            });
            Some(write)
        })
        .collect();
    Some(Plan {
        id: id.into(),
        by: text(json, "/by")?.into(),
        cause: json.get("cause")?.as_u64()?,
        priority: i32::try_from(json.get("priority")?.as_i64()?).ok()?,
        deadline_ms: 0,
        writes: writes?,
        on_restart: match text(json, "/on_restart") {
            Some("finish") => OnRestart::Finish,
            _ => OnRestart::Undo,
        },
    })
}

fn write_from(json: &Json) -> Option<Write> {
    let confirm = json.get("confirm")?;
    let expect = if confirm.get("equals").is_some() {
        Expect::Equals(value_from(confirm, "equals")?)
    } else if let Some(bounds) = confirm.get("between") {
        Expect::Between(bounds.get(0)?.as_f64()?, bounds.get(1)?.as_f64()?)
    } else {
        Expect::Written
    };
    let undo = match json.get("undo") {
        Some(undo) => Some(Box::new(write_from(undo)?)),
        None => None,
    };
    Some(Write {
        target: target_from(json.get("target")?)?,
        metric: text(json, "/metric")?.into(),
        value: value_from(json, "value")?,
        confirm: Confirm {
            target: confirm.get("target").and_then(target_from),
            metric: text(confirm, "/metric").map(Into::into),
            expect,
            within_ms: confirm.get("within_ms")?.as_u64()?,
        },
        undo,
        repeatable: json.get("repeatable")?.as_bool()?,
        allow_when: None,
        ttl_ms: json.get("ttl_ms").and_then(Json::as_u64),
    })
}

/// Inverse of [`bodies::target`].
pub(super) fn target_from(json: &Json) -> Option<Target> {
    Some(Target {
        group: text(json, "/group")?.into(),
        node: text(json, "/node")?.into(),
        device: text(json, "/device").map(Into::into),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(value: Value, expect: Expect) -> Write {
        let target = Target {
            group: "g".into(),
            node: "n".into(),
            device: Some("d".into()),
        };
        Write {
            target: target.clone(),
            metric: "M".into(),
            value,
            confirm: Confirm {
                target: Some(target),
                metric: Some("S".into()),
                expect,
                within_ms: 7,
            },
            undo: None,
            repeatable: true,
            allow_when: None,
            ttl_ms: None,
        }
    }

    #[test]
    fn plans_come_back_as_they_were() {
        for value in [
            Value::Int(i64::MIN),
            Value::UInt(u64::MAX),
            Value::Double(5.0),
            Value::Double(f64::INFINITY),
            Value::Bool(true),
            Value::String("12".into()),
            Value::Null,
        ] {
            let mut first = write(value.clone(), Expect::Equals(value));
            first.undo = Some(Box::new(write(Value::Double(0.1), Expect::Written)));
            let plan = Plan {
                id: "p".into(),
                by: "rule:r@1".into(),
                cause: 9,
                priority: -3,
                deadline_ms: 0,
                writes: vec![first, write(Value::Bool(false), Expect::Between(1.0, 2.5))],
                on_restart: OnRestart::Finish,
            };
            let text = plan_json(&plan, &[]).to_string();
            let json: Json = serde_json::from_str(&text).unwrap();
            assert_eq!(plan_from("p", &json), Some(plan), "{text}");
        }
    }

    #[test]
    fn what_has_no_end_is_left() {
        let mut open = OpenWrites::default();
        let body = |id: &str, status: &str| json!({"id": id, "status": status});
        let step = |step: u64, undo: bool, status: &str, last: bool| {
            json!({
                "id": "s", "status": status,
                "sequence": {"plan": "s", "step": step, "of": 2, "undo": undo, "last": last},
            })
        };
        open.note(&body("a", "sent"));
        open.note(&body("b", "sent"));
        open.note(&body("a", "confirmed"));
        let plan = Plan {
            id: "s".into(),
            by: "user:x".into(),
            cause: 0,
            priority: 1,
            deadline_ms: 0,
            writes: vec![
                write(Value::Int(1), Expect::Written),
                write(Value::Int(2), Expect::Written),
            ],
            on_restart: OnRestart::Undo,
        };
        let mut first = step(1, false, "sent", false);
        first["plan"] = plan_json(&plan, &[]);
        open.note(&first);
        open.note(&step(1, false, "confirmed", false));
        let mut newest = step(2, false, "sent", false);
        newest["timestamp"] = 4_000.into();
        open.note(&newest);
        let saved = open.take_changed().unwrap();
        assert_eq!(open.take_changed(), None);

        let mut again = OpenWrites::default();
        for body in saved.as_array().unwrap() {
            again.note(body);
        }
        let now = |trusted| Now {
            engine_ms: 1,
            wall_ms: 4_700,
            trusted,
        };
        let left = again.left(now(true));
        assert_eq!(left.singles, [body("b", "sent")]);
        assert_eq!(left.sequences.len(), 1);
        let (interrupted, interlocks) = &left.sequences[0];
        assert_eq!(interrupted.plan, plan);
        assert_eq!(interrupted.steps.len(), 3);
        assert_eq!(interrupted.idle_ms, Some(700));
        assert_eq!(interlocks, &[None, None]);
        let (interrupted, _) = &again.left(now(false)).sequences[0];
        assert_eq!(interrupted.idle_ms, None, "the clock is not to be trusted");
        again.note(&step(1, true, "undone", true));
        assert!(again.left(now(true)).sequences.is_empty());
    }
}
