//! A stored record as the rules see it: what a recovery and a replay of history feed them.

use serde_json::Value as Json;
use sparkplug::payload::ResolvedPayload;

use super::convert::{rule_event, rule_key};
use super::shard::Rules;
use crate::buffer::record::{Class, Record};

/// The body of a record that is JSON; null where it is not.
pub(super) fn body(record: &Record) -> Json {
    serde_json::from_slice(&record.body).unwrap_or(Json::Null)
}

/// The wall clock and engine time as they were, before anything of the record counts.
pub fn time(rules: &mut Rules, record: &Record) {
    if record.clock_trusted {
        rules.set_wall(record.engine_ms, record.received_ms);
    }
    rules.advance_to(record.engine_ms);
}

/// What the record tells the rules. `payload` is its body where it is a birth or data. Alarms and commands tell them
/// nothing here: what people did to alarms is another matter.
pub fn record(rules: &mut Rules, record: &Record, payload: Option<&ResolvedPayload>) {
    let (Some(group), Some(node)) = (&record.key.group, &record.key.node) else {
        return;
    };
    let key = rule_key(group, node, record.key.device.as_ref());
    match record.class {
        Class::Birth | Class::Data => {
            for (index, metric) in (0u32..).zip(payload.iter().flat_map(|p| &p.metrics)) {
                let event = rule_event(
                    &key,
                    metric,
                    record.id,
                    index,
                    record.engine_ms,
                    record.received_ms,
                );
                rules.handle_event(&event);
            }
            if record.class == Class::Birth && payload.is_some() {
                rules.handle_birth(&key, record.engine_ms);
            }
        }
        Class::Death => {
            let cause = match body(record).get("cause").and_then(Json::as_str) {
                Some("will") => rules::DeathCause::Will,
                Some("stale") => rules::DeathCause::Stale,
                Some("node") => rules::DeathCause::Node,
                _ => rules::DeathCause::Death,
            };
            rules.handle_death(&key, record.engine_ms, cause);
        }
        Class::Inference => {
            if let Some(event) = score(key, record) {
                rules.handle_event(&event);
            }
        }
        Class::Alarm
        | Class::Command
        | Class::Schema
        | Class::Embedding
        | Class::Gap
        | Class::Status
        | Class::Raw => {}
    }
}

/// A stored model result; `None` for a shadow's, which moves no rule.
fn score(key: rules::Key, record: &Record) -> Option<rules::Event> {
    let body = body(record);
    if body.get("shadow").and_then(Json::as_bool) == Some(true) {
        return None;
    }
    let text = |key: &str| body.get(key).and_then(Json::as_str).unwrap_or_default();
    let asked = Some(text("asked")).filter(|name| !name.is_empty());
    let model: std::sync::Arc<str> = asked.unwrap_or_else(|| text("model")).into();
    let time = body.pointer("/span_ms/1").and_then(Json::as_i64);
    Some(rules::Event {
        key,
        metric: model.clone(),
        value: rules::Value::Double(body.get("score").and_then(Json::as_f64).unwrap_or(f64::NAN)),
        datatype: "Double",
        quality: 192,
        time_ms: time.unwrap_or_default(),
        engine_ms: record.engine_ms,
        historical: false,
        unchanged: false,
        record: record.id,
        index: 0,
        kind: rules::EventKind::Score { model },
    })
}
