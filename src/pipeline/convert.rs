//! Between vocabularies: the only file that knows two crates' words at once.

use std::sync::Arc;

use serde_json::Value as Json;
use sparkplug::metric::{Metric, MetricFlags};
use sparkplug::value::Value;

use crate::actuation::Target;
use crate::buffer::record::Key;

/// A Sparkplug value as rules see it: numbers, texts, booleans and null; everything else is opaque.
#[must_use]
pub fn rule_value(value: &Value) -> rules::Value {
    match value {
        Value::Null => rules::Value::Null,
        Value::Int(v) => rules::Value::Int(*v),
        Value::UInt(v) | Value::DateTime(v) => rules::Value::UInt(*v),
        Value::Float(v) => rules::Value::Double(f64::from(*v)),
        Value::Double(v) => rules::Value::Double(*v),
        Value::Bool(v) => rules::Value::Bool(*v),
        Value::String(v) => rules::Value::String(v.clone()),
        Value::Bytes(_)
        | Value::DataSet(_)
        | Value::Template(_)
        | Value::Array(_)
        | Value::PropertySet(_)
        | Value::PropertySetList(_) => rules::Value::Other,
    }
}

/// A rule's value as the host writes it; the host makes the birth's datatype of it.
#[must_use]
pub fn write_value(value: &rules::Value) -> Value {
    match value {
        rules::Value::Null | rules::Value::Other => Value::Null,
        rules::Value::Bool(v) => Value::Bool(*v),
        rules::Value::Int(v) => Value::Int(*v),
        rules::Value::UInt(v) => Value::UInt(*v),
        rules::Value::Double(v) => Value::Double(*v),
        rules::Value::String(v) => Value::String(v.clone()),
    }
}

/// A value from JSON, as people and the cloud write it. Numbers that are strings stay strings; the host refuses
/// them for a number metric unless they read as one.
#[must_use]
pub fn json_value(json: &Json) -> Option<Value> {
    Some(match json {
        Json::Null => Value::Null,
        Json::Bool(v) => Value::Bool(*v),
        Json::Number(n) => match (n.as_i64(), n.as_u64(), n.as_f64()) {
            (Some(v), _, _) => Value::Int(v),
            (None, Some(v), _) => Value::UInt(v),
            (None, None, Some(v)) => Value::Double(v),
            (None, None, None) => return None,
        },
        Json::String(v) => Value::String(v.as_str().into()),
        Json::Array(_) | Json::Object(_) => return None,
    })
}

/// A value as JSON, by the rules of the streams' bodies: 64-bit integers beyond 2^53, NaN and the infinities are
/// strings, bytes are base64.
#[must_use]
pub fn value_json(value: &Value) -> Json {
    // One writer for all of it: what the page shows is what the cloud gets.
    serde_json::from_str(&super::encode::value_json(value)).unwrap_or(Json::Null)
}

/// A double as JSON; what JSON can't say is a string.
#[must_use]
pub fn double_json(value: f64) -> Json {
    serde_json::Number::from_f64(value).map_or_else(
        || {
            let word = match (value.is_nan(), value > 0.0) {
                (true, _) => "NaN",
                (false, true) => "Infinity",
                (false, false) => "-Infinity",
            };
            Json::String(word.to_owned())
        },
        Json::Number,
    )
}

/// Inverse of [`double_json`].
#[must_use]
pub fn json_double(json: &Json) -> Option<f64> {
    match json {
        Json::String(word) => word.parse().ok(),
        other => other.as_f64(),
    }
}

/// A rule's value as JSON.
#[must_use]
pub fn rule_json(value: &rules::Value) -> Json {
    match value {
        rules::Value::Other => Json::Null,
        other => value_json(&write_value(other)),
    }
}

/// One metric as an event of the rules.
#[must_use]
pub fn rule_event(
    key: &rules::Key,
    metric: &Metric,
    record: u64,
    index: u32,
    engine_ms: u64,
    wall_ms: u64,
) -> rules::Event {
    rules::Event {
        key: key.clone(),
        metric: metric.name.clone(),
        value: rule_value(&metric.value),
        datatype: metric.datatype.as_str(),
        quality: metric.quality.unwrap_or(192),
        time_ms: i64::try_from(metric.timestamp.unwrap_or(wall_ms)).unwrap_or(i64::MAX),
        engine_ms,
        historical: metric.historical,
        unchanged: metric.flags.contains(MetricFlags::UNCHANGED),
        record,
        index,
        kind: rules::EventKind::Metric,
    }
}

/// The rules' key of a node or device.
#[must_use]
pub fn rule_key(group: &Arc<str>, node: &Arc<str>, device: Option<&Arc<str>>) -> rules::Key {
    rules::Key {
        group: group.clone(),
        node: node.clone(),
        device: device.cloned(),
    }
}

/// The journal's key of a node or device.
#[must_use]
pub fn record_key(group: &Arc<str>, node: &Arc<str>, device: Option<&Arc<str>>) -> Key {
    Key {
        group: Some(group.clone()),
        node: Some(node.clone()),
        device: device.cloned(),
    }
}

/// The journal's key of a rule's key; that of the gateway's own alarms has no group.
#[must_use]
pub fn key_of_rule(key: &rules::Key) -> Key {
    if key.is_group() {
        return Key {
            group: Some(&key.group).filter(|group| !group.is_empty()).cloned(),
            node: None,
            device: None,
        };
    }
    record_key(&key.group, &key.node, key.device.as_ref())
}

/// The models' key; node-level metrics have device `_`.
#[must_use]
pub fn model_key(
    group: &Arc<str>,
    node: &Arc<str>,
    device: Option<&Arc<str>>,
) -> models::DeviceKey {
    models::DeviceKey {
        group: group.clone(),
        node: node.clone(),
        device: device.cloned().unwrap_or_else(|| Arc::from("_")),
    }
}

/// The rules' key of a model's key, the inverse of [`model_key`].
#[must_use]
pub fn rule_key_of_model(key: &models::DeviceKey) -> rules::Key {
    rule_key(
        &key.group,
        &key.node,
        Some(&key.device).filter(|device| &***device != "_"),
    )
}

/// One metric as a sample of the models.
#[must_use]
pub fn model_sample(metric: &Metric, record: u64, received_ms: u64) -> models::Sample<'_> {
    let value = match (&metric.value, metric.quality) {
        (_, Some(quality)) if quality != 192 => models::SampleValue::Bad,
        (Value::Null, _) => models::SampleValue::Null,
        (Value::Bool(v), _) => models::SampleValue::Boolean(*v),
        (value, _) => value
            .as_f64()
            .map_or(models::SampleValue::Other, models::SampleValue::Number),
    };
    models::Sample {
        metric: &metric.name,
        value,
        time_ms: i64::try_from(metric.timestamp.unwrap_or(received_ms)).unwrap_or(i64::MAX),
        record,
    }
}

/// A model's answer as an event of the rules. `record` is the inference's own record.
#[must_use]
pub fn score_event(
    key: rules::Key,
    inference: &models::Inference,
    record: u64,
    engine_ms: u64,
) -> rules::Event {
    rules::Event {
        key,
        metric: inference.asked.clone(),
        value: rules::Value::Double(inference.score),
        datatype: "Double",
        quality: 192,
        time_ms: inference.span_ms.1,
        engine_ms,
        historical: false,
        unchanged: false,
        record,
        index: 0,
        kind: rules::EventKind::Score {
            model: inference.asked.clone(),
        },
    }
}

/// The actuation's target of a rule's key.
#[must_use]
pub fn target_of_rule(key: &rules::Key) -> Target {
    Target {
        group: key.group.clone(),
        node: key.node.clone(),
        device: key.device.clone(),
    }
}

/// A stable 64-bit hash of a rule or model id (FNV-1a), for [`crate::buffer::record::Cause`]. It is stored, so it
/// may never change.
#[must_use]
pub fn stable_hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_keeps_what_numbers_cannot() {
        for (value, json) in [
            (
                Value::UInt(u64::MAX),
                serde_json::json!("18446744073709551615"),
            ),
            (Value::UInt(1 << 53), serde_json::json!(1u64 << 53)),
            (
                Value::Int(-9_007_199_254_740_993),
                serde_json::json!("-9007199254740993"),
            ),
            (Value::Int(-12), serde_json::json!(-12)),
            (Value::Float(1.1), serde_json::json!(1.1)),
            (Value::Double(f64::NAN), serde_json::json!("NaN")),
            (
                Value::Double(f64::NEG_INFINITY),
                serde_json::json!("-Infinity"),
            ),
            (
                Value::Bytes(vec![0u8, 255].into()),
                serde_json::json!("AP8="),
            ),
            (Value::Null, Json::Null),
        ] {
            assert_eq!(value_json(&value), json, "{value:?}");
        }
    }

    #[test]
    fn hashes_are_those_on_disk() {
        assert_eq!(stable_hash(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(stable_hash("a"), 0xaf63_dc4c_8601_ec8c);
    }
}
