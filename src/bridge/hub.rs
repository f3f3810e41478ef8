//! The hub: one stream in which a company reads the streams of many gateways.
//!
//! It is made of `sources` only. A gateway never publishes to it: its own streams have one writer each, and the
//! servers copy from them, over leaf nodes and clusters, in order and with their own memory of where they were.
//! `doctor` compares; `doctor --fix` adds this gateway's two streams to what is there, and nothing else.

use std::time::Duration;

use serde_json::{Value, json};

use super::ask::{Ask, AskError};
use super::config::{Config, Hub};
use super::doctor::{Level, Questions, Report, Trouble};
use super::stream;
use crate::buffer::record::LANES;

/// A source that has said nothing for longer than this is told.
const SILENT: Duration = Duration::from_secs(60);

/// This gateway's streams, as sources of the hub.
#[must_use]
pub fn sources(hub: &Hub, gateway: &str) -> Vec<Value> {
    LANES
        .into_iter()
        .map(|lane| {
            let mut source = json!({ "name": stream::name(gateway, lane) });
            if let (Some(domain), Some(source)) = (&hub.domain, source.as_object_mut()) {
                source.insert(
                    "external".to_owned(),
                    json!({ "api": format!("$JS.{domain}.API"), "deliver": "" }),
                );
            }
            source
        })
        .collect()
}

/// The request that makes a hub of this gateway alone; the next ones are added to it.
#[must_use]
pub fn create(config: &Config, hub: &Hub, gateway: &str) -> Value {
    json!({
        "name": hub.stream,
        "description": "sparkgate: what all gateways say, by sources only",
        "retention": "limits",
        "storage": "file",
        // What is full here must not hold up a site: the gateways' own streams keep what they have.
        "discard": "old",
        "max_consumers": -1,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 0,
        "max_msg_size": -1,
        "num_replicas": config.replicas,
        "allow_direct": true,
        "sources": sources(hub, gateway),
    })
}

/// The request that adds to `actual` what is missing of this gateway; `None` when nothing is.
#[must_use]
pub fn update(hub: &Hub, gateway: &str, actual: &Value) -> Option<Value> {
    let mut config = actual.as_object()?.clone();
    let there = actual.get("sources").and_then(Value::as_array);
    let mut all: Vec<Value> = there.cloned().unwrap_or_default();
    let before = all.len();
    for source in sources(hub, gateway) {
        if !all.iter().any(|other| same(other, &source)) {
            all.push(source);
        }
    }
    (all.len() > before).then(|| {
        config.insert("sources".to_owned(), Value::Array(all));
        Value::Object(config)
    })
}

/// By name and by the place it is in: two sites may not share a name, but two domains may.
fn same(one: &Value, other: &Value) -> bool {
    let api = |source: &Value| source.pointer("/external/api").cloned();
    one.get("name") == other.get("name") && api(one) == api(other)
}

/// Makes the hub as declared.
pub(super) async fn mend(
    ask: &Ask,
    config: &Config,
    hub: &Hub,
    gateway: &str,
) -> Result<(), AskError> {
    let name = &hub.stream;
    match ask.api(&format!("STREAM.INFO.{name}"), &Value::Null).await {
        Ok(info) => {
            let actual = info.get("config").unwrap_or(&Value::Null);
            if let Some(request) = update(hub, gateway, actual) {
                ask.api(&format!("STREAM.UPDATE.{name}"), &request).await?;
            }
        }
        Err(AskError::Refused(refusal)) if refusal.err_code == 10059 => {
            let request = create(config, hub, gateway);
            ask.api(&format!("STREAM.CREATE.{name}"), &request).await?;
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Says how the hub is.
pub(super) async fn look(
    report: &mut Report,
    questions: &mut Questions,
    config: &Config,
    hub: &Hub,
    gateway: &str,
) {
    let what = format!("hub {}", hub.stream);
    let request = |verb: &str, body: &Value| {
        Some(format!(
            "nats req '$JS.API.STREAM.{verb}.{}' '{body}'",
            hub.stream
        ))
    };
    let info = match questions
        .api(&format!("STREAM.INFO.{}", hub.stream), &Value::Null)
        .await
    {
        Ok(info) => info,
        Err(Trouble::Missing) => {
            report.say(Level::Error, what, "not there").mend =
                request("CREATE", &create(config, hub, gateway));
            return;
        }
        Err(trouble) => {
            trouble.tell(report, what, gateway);
            return;
        }
    };
    let actual = info.get("config").cloned().unwrap_or(Value::Null);
    let subjects = actual.get("subjects").and_then(Value::as_array);
    if let Some(subjects) = subjects.filter(|list| !list.is_empty()) {
        let finding = report.say(
            Level::Error,
            format!("{what}, subjects"),
            Value::Array(subjects.clone()).to_string(),
        );
        finding.should =
            Some("none: a hub that takes subjects stores records twice, out of order".to_owned());
    }
    if let Some(body) = update(hub, gateway, &actual) {
        let finding = report.say(
            Level::Error,
            format!("{what}, sources"),
            "this gateway's streams are missing",
        );
        finding.mend = request("UPDATE", &body);
        return;
    }
    for wanted in sources(hub, gateway) {
        let name = wanted
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let all = info.get("sources").and_then(Value::as_array);
        let source = all.and_then(|all| all.iter().find(|source| same(source, &wanted)));
        if let Some(error) = source.and_then(|source| source.get("error")) {
            report.say(
                Level::Error,
                format!("{what}, source {name}"),
                error.to_string(),
            );
            continue;
        }
        let number = |field: &str| source.and_then(|source| source.get(field)?.as_i64());
        let lag = number("lag").unwrap_or(0);
        // Nanoseconds since its last word; -1: never.
        let active = number("active").unwrap_or(-1);
        let (level, heard) = match u64::try_from(active) {
            Err(_) => (Level::Note, ", not heard of yet"),
            Ok(ns) if Duration::from_nanos(ns) > SILENT => {
                (Level::Warning, ", not heard of for a minute")
            }
            Ok(_) => (Level::Ok, ""),
        };
        report.say(
            level,
            format!("{what}, source {name}"),
            format!("{lag} messages behind{heard}"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(domain: Option<&str>) -> Hub {
        Hub {
            domain: domain.map(str::to_owned),
            ..Hub::default()
        }
    }

    #[test]
    fn a_hub_grows_by_one_gateway_at_a_time_and_keeps_the_rest() {
        let config = Config::default();
        let mut actual = create(&config, &hub(None), "a");
        assert_eq!(update(&hub(None), "a", &actual), None);
        actual["max_age"] = json!(7);
        let grown = update(&hub(None), "b", &actual).unwrap();
        let names: Vec<_> = grown["sources"]
            .as_array()
            .unwrap()
            .iter()
            .map(|source| source["name"].as_str().unwrap())
            .collect();
        assert_eq!(
            names,
            [
                "SPARKGATE_a",
                "SPARKGATE_a_ALARMS",
                "SPARKGATE_b",
                "SPARKGATE_b_ALARMS"
            ]
        );
        assert_eq!(grown["max_age"], 7);
        assert_eq!(grown.get("subjects"), None);
    }

    #[test]
    fn the_same_name_in_another_domain_is_another_source() {
        let actual = create(&Config::default(), &hub(Some("north")), "a");
        assert_eq!(actual["sources"][0]["external"]["api"], "$JS.north.API");
        assert_eq!(update(&hub(Some("north")), "a", &actual), None);
        let grown = update(&hub(Some("south")), "a", &actual).unwrap();
        assert_eq!(grown["sources"].as_array().unwrap().len(), 4);
    }
}
