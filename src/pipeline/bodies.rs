//! JSON bodies of derived records, by the contract's table of classes.

use serde_json::{Map, Value as Json, json};

use super::convert::{double_json, rule_json, value_json};
use crate::actuation::{Step, Target};

/// A target as in `command` bodies.
#[must_use]
pub fn target(target: &Target) -> Json {
    let mut out = Map::new();
    out.insert("group".to_owned(), Json::String(target.group.to_string()));
    out.insert("node".to_owned(), Json::String(target.node.to_string()));
    if let Some(device) = &target.device {
        out.insert("device".to_owned(), Json::String(device.to_string()));
    }
    Json::Object(out)
}

/// Body of a `command` record. `latency_us` is measured inside from the socket read of the cause for `sent`, and
/// from sending to the outcome for everything after it.
#[must_use]
pub fn command(step: &Step, latency_us: Option<u64>, wall_ms: u64) -> Json {
    let mut out = Map::new();
    out.insert("id".to_owned(), Json::String(step.id.to_string()));
    out.insert("target".to_owned(), target(&step.target));
    out.insert("metric".to_owned(), Json::String(step.metric.to_string()));
    out.insert("value".to_owned(), value_json(&step.value));
    if let Some(previous) = &step.previous {
        out.insert("previous".to_owned(), value_json(previous));
    }
    out.insert("by".to_owned(), Json::String(step.by.to_string()));
    if step.cause != 0 {
        out.insert("cause".to_owned(), step.cause.into());
    }
    out.insert(
        "status".to_owned(),
        Json::String(step.status.as_str().to_owned()),
    );
    if let Some(reason) = &step.reason {
        out.insert("reason".to_owned(), Json::String(reason.clone()));
    }
    if let Some(us) = latency_us {
        out.insert("latency_us".to_owned(), us.into());
    }
    if step.of > 1 {
        out.insert(
            "sequence".to_owned(),
            json!({
                "plan": step.plan.as_ref(), "step": step.position + 1, "of": step.of, "undo": step.undo,
                "last": step.last,
            }),
        );
    }
    out.insert("timestamp".to_owned(), wall_ms.into());
    Json::Object(out)
}

/// Body of an `alarm` record.
#[must_use]
pub fn alarm(event: &rules::AlarmEvent, wall_ms: u64) -> Json {
    let values: Map<String, Json> = event
        .values
        .iter()
        .map(|(name, value)| (name.to_string(), rule_json(value)))
        .collect();
    let mut out = Map::new();
    out.insert("id".to_owned(), Json::String(event.id.to_string()));
    out.insert("rule".to_owned(), Json::String(event.rule.to_string()));
    out.insert(
        "version".to_owned(),
        Json::String(event.version.to_string()),
    );
    out.insert(
        "event".to_owned(),
        Json::String(event.event.as_str().to_owned()),
    );
    out.insert(
        "state".to_owned(),
        Json::String(event.state.as_str().to_owned()),
    );
    out.insert(
        "priority".to_owned(),
        Json::String(event.priority.as_str().to_owned()),
    );
    out.insert(
        "message".to_owned(),
        Json::String(event.message.to_string()),
    );
    out.insert("timestamp".to_owned(), wall_ms.into());
    out.insert("values".to_owned(), Json::Object(values));
    if event.cause.0 != 0 {
        out.insert("cause".to_owned(), event.cause.0.into());
    }
    if let Some(by) = &event.by {
        out.insert("by".to_owned(), Json::String(by.to_string()));
    }
    if let Some(note) = event.note.as_ref().filter(|note| !note.is_empty()) {
        out.insert("note".to_owned(), Json::String(note.to_string()));
    }
    if event.stale {
        out.insert("stale".to_owned(), true.into());
    }
    if event.until_ack {
        // A replay makes the same alarm of it.
        out.insert("until".to_owned(), "ack".into());
    }
    Json::Object(out)
}

/// Body of an `inference` record.
#[must_use]
pub fn inference(inference: &models::Inference) -> Json {
    let inputs: Map<String, Json> = inference
        .inputs
        .iter()
        .map(|(name, value)| (name.to_string(), double_json(*value)))
        .collect();
    let outputs: Map<String, Json> = inference
        .outputs
        .iter()
        .map(|(name, value)| (name.to_string(), double_json(*value)))
        .collect();
    json!({
        "model": inference.model.as_ref(),
        "asked": inference.asked.as_ref(),
        "version": inference.version.as_ref(),
        "backend": inference.backend.to_string(),
        "inputs": inputs,
        "outputs": outputs,
        "verdict": inference.verdict.as_ref(),
        "score": double_json(inference.score),
        "span_ms": [inference.span_ms.0, inference.span_ms.1],
        "latency_us": inference.latency_us,
        "fallback": inference.fallback,
        "shadow": inference.shadow,
    })
}

/// Body of a `death` record; `cause` is `death`, `will`, `stale` or `node`.
#[must_use]
pub fn death(timestamp_ms: u64, bdseq: Option<u64>, cause: &str) -> Json {
    let mut out = Map::new();
    out.insert("timestamp".to_owned(), timestamp_ms.into());
    if let Some(bdseq) = bdseq {
        out.insert("bdseq".to_owned(), bdseq.into());
    }
    out.insert("cause".to_owned(), Json::String(cause.to_owned()));
    Json::Object(out)
}
