//! Verbs that ask a running gateway.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::{Value, json};

use super::client::{Client, block_on};
use super::{Listing, Output, Reach, table};
use crate::config::quantity::Span;
use crate::telemetry::chain;

#[derive(Debug, Subcommand)]
pub(super) enum DevicesVerb {
    /// All nodes and devices
    List(Listing),
    /// One node or device with its metrics
    Show {
        /// group/node or group/node/device; percent-encode a `/` inside a name
        target: String,
        #[command(flatten)]
        listing: Listing,
    },
    /// Ask a node for its births
    Rebirth {
        /// group/node
        target: String,
        #[command(flatten)]
        reach: Reach,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum CommandsVerb {
    /// The most recent writes, newest last
    List(Listing),
}

/// Fetches a listing and prints it as rows, or as the JSON that came.
pub(super) fn list(
    listing: &Listing,
    path: &str,
    heading: &[&str],
    row: impl Fn(&Value) -> Vec<String>,
) -> anyhow::Result<()> {
    let client = Client::new(&listing.reach)?;
    let answer = block_on(client.get(path))?;
    match listing.output {
        Output::Json => println!("{answer:#}"),
        Output::Table => {
            let rows: Vec<Vec<String>> = answer
                .as_array()
                .map(|items| items.iter().map(row).collect())
                .unwrap_or_default();
            table::print(heading, &rows);
        }
    }
    Ok(())
}

/// `g/n[/d]` as a path below `/api/devices/`; names stay percent-encoded as typed, other characters are encoded.
fn target_path(target: &str) -> anyhow::Result<String> {
    let parts: Vec<String> = target.split('/').map(encode).collect();
    if !(2..=3).contains(&parts.len()) || parts.iter().any(String::is_empty) {
        anyhow::bail!("`{target}` is not group/node or group/node/device");
    }
    Ok(format!("/api/devices/{}", parts.join("/")))
}

/// p50 and p99 of a decision's stages; `at` looks into the status.
pub(super) fn stages(at: impl Fn(&str) -> String) -> String {
    let of_stage = |stage| {
        let of = |quantile| at(&format!("/decision_us/stages/{stage}/{quantile}"));
        format!("{stage} {}/{}", of("p50"), of("p99"))
    };
    crate::pipeline::latency::STAGES.map(of_stage).join("  ")
}

pub(super) fn encode(part: &str) -> String {
    let mut out = String::new();
    for byte in part.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'%' => {
                out.push(char::from(byte))
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// Why clients left, and the last that came or went.
fn mqtt_clients(mqtt: &Value) {
    let at = |path: &str| mqtt.pointer(path);
    if let Some(reasons) = at("/clients/disconnects").and_then(Value::as_object)
        && !reasons.is_empty()
    {
        let list: Vec<String> = reasons
            .iter()
            .map(|(why, n)| format!("{why} {n}"))
            .collect();
        println!("           left: {}", list.join("  "));
    }
    if let Some(last) = at("/clients/recent/0") {
        let word = |key: &str| table::cell(last.get(key));
        let how = if last.get("reason").is_some() {
            word("reason")
        } else {
            word("address")
        };
        println!(
            "           last: {} {} {how} {}",
            word("client"),
            word("event"),
            short_time(last.get("at"))
        );
    }
}

/// Certificates that end within 30 days or can't be read, the last reload, and what waits for a restart.
fn attention(answer: &Value) {
    let list = |path: &str| answer.pointer(path).and_then(Value::as_array).cloned();
    for certificate in list("/certificates").unwrap_or_default() {
        let name = table::cell(certificate.get("name"));
        let ends = certificate.get("not_after").and_then(Value::as_i64);
        let now = answer.get("time").and_then(Value::as_i64).unwrap_or(0);
        match ends.map(|ends| (ends - now).div_euclid(86_400_000)) {
            None => println!(
                "certificate {name}: {}",
                table::cell(certificate.get("error"))
            ),
            Some(days) if days < 0 => println!("certificate {name}: expired"),
            Some(days) if days < 30 => println!("certificate {name}: {days} days left"),
            Some(_) => {}
        }
    }
    let mistakes = answer
        .pointer("/configured/mistakes")
        .and_then(Value::as_u64);
    if let Some(mistakes) = mistakes.filter(|mistakes| *mistakes > 0) {
        println!("config     the last reload was refused: {mistakes} mistakes, see the log");
    }
    for change in list("/configured/restart").unwrap_or_default() {
        let side = |key: &str| {
            change
                .get(key)
                .and_then(Value::as_str)
                .unwrap_or("nothing")
                .to_owned()
        };
        let key = table::cell(change.get("key"));
        println!("restart    {key} from {} to {}", side("from"), side("to"));
    }
}

/// A moment in words: `12s ago`.
pub(super) fn short_time(value: Option<&Value>) -> String {
    value
        .and_then(Value::as_u64)
        .filter(|ms| *ms > 0)
        .map_or_else(
            || "-".to_owned(),
            |ms| {
                let now = std::time::SystemTime::now()
                    .duration_since(std::time::UNIX_EPOCH)
                    .map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(0));
                format!("{} ago", table::age(now.saturating_sub(ms) / 1000))
            },
        )
}

pub(super) fn name_of(item: &Value) -> String {
    if item.get("group").is_some_and(Value::is_null) {
        return "gateway".to_owned();
    }
    let mut name = format!(
        "{}/{}",
        table::cell(item.get("group")),
        table::cell(item.get("node"))
    );
    if let Some(device) = item.get("device").and_then(Value::as_str) {
        name.push('/');
        name.push_str(device);
    }
    name
}

pub(super) fn devices(verb: DevicesVerb) -> anyhow::Result<()> {
    match verb {
        DevicesVerb::List(listing) => list(
            &listing,
            "/api/devices",
            &[
                "DEVICE",
                "STATE",
                "SINCE",
                "BIRTHS",
                "DEATHS",
                "BDSEQ",
                "SEQ",
                "SCHEMA",
                "SERVER",
                "LAST REBIRTH CAUSE",
            ],
            |item| {
                let online = item.get("online").and_then(Value::as_bool).unwrap_or(false);
                vec![
                    name_of(item),
                    if online { "online" } else { "offline" }.to_owned(),
                    short_time(item.get("since")),
                    table::cell(item.get("births")),
                    table::cell(item.get("deaths")),
                    table::cell(item.get("bdseq")),
                    table::cell(item.get("last_seq")),
                    table::cell(item.get("schema")),
                    table::cell(item.get("server")),
                    table::cell(item.get("last_rebirth_cause")),
                ]
            },
        ),
        DevicesVerb::Show { target, listing } => {
            let answer = block_on(Client::new(&listing.reach)?.get(&target_path(&target)?))?;
            if listing.output == Output::Json {
                println!("{answer:#}");
                return Ok(());
            }
            println!("{}", name_of(&answer));
            for key in [
                "online",
                "since",
                "births",
                "deaths",
                "bdseq",
                "last_seq",
                "last_rebirth_cause",
                "latency_ms",
                "schema",
                "server",
                "client",
            ] {
                if let Some(value) = answer.get(key) {
                    let shown = if key == "since" {
                        short_time(Some(value))
                    } else {
                        table::cell(Some(value))
                    };
                    println!("  {key:<20}{shown}");
                }
            }
            let metrics = answer
                .get("metrics")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default();
            let rows: Vec<Vec<String>> = metrics
                .iter()
                .map(|m| {
                    vec![
                        table::cell(m.get("name")),
                        table::cell(m.get("type")),
                        table::cell(m.get("value")),
                        short_time(m.get("timestamp")),
                        if m.get("stale").and_then(Value::as_bool) == Some(true) {
                            "stale"
                        } else {
                            "good"
                        }
                        .to_owned(),
                    ]
                })
                .collect();
            println!();
            table::print(&["METRIC", "TYPE", "VALUE", "AGE", "STATE"], &rows);
            Ok(())
        }
        DevicesVerb::Rebirth { target, reach } => {
            let path = target_path(&target)?;
            block_on(Client::new(&reach)?.post(&format!("{path}/rebirth"), &json!({})))?;
            eprintln!("rebirth of {target} was asked for");
            Ok(())
        }
    }
}

pub(super) fn write(
    target: &str,
    assignment: &str,
    ttl: Span,
    dry_run: bool,
    listing: &Listing,
) -> ExitCode {
    let wrote = || -> anyhow::Result<Value> {
        let Some((metric, value)) = assignment.split_once('=') else {
            anyhow::bail!("`{assignment}` is not METRIC=VALUE");
        };
        // Whatever is JSON is taken as JSON (true, 4.5, null, "text"); the rest is a text.
        let value: Value =
            serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
        let mut body =
            json!({"metrics": [{"name": metric, "value": value}], "ttl_ms": ttl.as_millis()});
        if dry_run && let Some(object) = body.as_object_mut() {
            object.insert("dry_run".to_owned(), true.into());
        }
        let path = format!("{}/write", target_path(target)?);
        block_on(Client::new(&listing.reach)?.post(&path, &body))
    };
    match wrote() {
        Ok(answer) => {
            let status = table::cell(answer.get("status"));
            // A dry run tells what would become of its one step.
            let told = answer.pointer("/steps/0").unwrap_or(&answer);
            let would = told.get("would").and_then(Value::as_str);
            if listing.output == Output::Json {
                println!("{answer:#}");
            } else {
                let reason = told
                    .get("reason")
                    .and_then(Value::as_str)
                    .map(|r| format!(" ({r})"));
                let status =
                    would.map_or(status.clone(), |would| format!("dry run, would: {would}"));
                println!(
                    "{target} {assignment}: {status}{}",
                    reason.unwrap_or_default()
                );
            }
            if status == "confirmed" || would == Some("send") {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        Err(error) => {
            eprintln!("sparkgate: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

pub(super) fn commands(verb: CommandsVerb) -> anyhow::Result<()> {
    let CommandsVerb::List(listing) = verb;
    list(
        &listing,
        "/api/commands",
        &[
            "ID", "TARGET", "METRIC", "OLD", "VALUE", "STATUS", "BY", "CAUSE", "LATENCY", "REASON",
        ],
        |item| {
            vec![
                table::cell(item.get("id")),
                item.get("target").map(name_of).unwrap_or_default(),
                table::cell(item.get("metric")),
                table::cell(item.get("previous")),
                table::cell(item.get("value")),
                table::cell(item.get("status")),
                table::cell(item.get("by")),
                table::cell(item.get("cause")),
                item.get("latency_us")
                    .and_then(Value::as_u64)
                    .map_or("-".into(), |us| format!("{us} µs")),
                table::cell(item.get("reason")),
            ]
        },
    )
}

pub(super) fn hold(target: &str, period: Span, reach: &Reach) -> anyhow::Result<()> {
    let path = format!("{}/hold", target_path(target)?);
    block_on(Client::new(reach)?.post(&path, &json!({"for_ms": period.as_millis()})))?;
    if period.as_millis() == 0 {
        eprintln!("{target} is released");
    } else {
        eprintln!("nothing writes to {target} for {period}");
    }
    Ok(())
}

pub(super) fn tap(filter: Option<&str>, reach: &Reach) -> anyhow::Result<()> {
    use std::io::Write;
    let path = match filter {
        Some(filter) => format!("/api/events?tap={}", encode(filter)),
        None => "/api/events?tap=*".to_owned(),
    };
    let client = Client::new(reach)?;
    // A closed pipe (`tap | head`) ends the tap quietly, as every filter program does.
    block_on(client.stream(&path, |line| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{line}").and_then(|()| out.flush()).is_ok()
    }))
}

pub(super) fn status(listing: &Listing) -> anyhow::Result<()> {
    let answer = block_on(Client::new(&listing.reach)?.get("/api/status"))?;
    if listing.output == Output::Json {
        println!("{answer:#}");
        return Ok(());
    }
    let at = |path: &str| table::cell(answer.pointer(path));
    let number = |path: &str| answer.pointer(path).and_then(Value::as_u64).unwrap_or(0);
    let map = |path: &str| {
        answer
            .pointer(path)
            .and_then(Value::as_object)
            .filter(|m| !m.is_empty())
            .map_or("none".to_owned(), |m| {
                m.iter()
                    .map(|(k, v)| format!("{k} {v}"))
                    .collect::<Vec<_>>()
                    .join(", ")
            })
    };
    println!(
        "sparkgate {}  {}  up {}",
        at("/version"),
        at("/gateway"),
        table::age(number("/uptime_s"))
    );
    println!();
    println!(
        "records    received {}  derived {}  published {}  pending {}  filtered {}",
        at("/received"),
        at("/derived"),
        at("/published"),
        at("/pending"),
        at("/filtered")
    );
    println!("dropped    {}", map("/dropped"));
    println!(
        "invalid    {}  duplicates {}",
        map("/invalid"),
        at("/duplicates")
    );
    println!(
        "devices    nodes {} of {} online  devices {} of {} online",
        at("/host/nodes_online"),
        at("/host/nodes"),
        at("/host/devices_online"),
        at("/host/devices")
    );
    if answer.pointer("/decision_us/count") == Some(&json!(0)) {
        println!("decision   no rule has written yet");
    } else {
        println!(
            "decision   p50 {} µs  p99 {} µs  p99.9 {} µs",
            at("/decision_us/p50"),
            at("/decision_us/p99"),
            at("/decision_us/p999")
        );
        println!("  p50/p99  {} µs", stages(at));
    }
    println!(
        "uplink     {}  {}",
        at("/uplink/state"),
        backlog(answer.get("uplink").unwrap_or(&Value::Null))
    );
    println!(
        "buffer     hot {}  warm {}  disk {}",
        table::bytes(number("/buffer/hot_bytes")),
        table::bytes(number("/buffer/warm_bytes")),
        at("/buffer/disk")
    );
    println!(
        "mqtt       {}  connections {}",
        at("/mqtt/engine"),
        at("/mqtt/connections")
    );
    mqtt_clients(answer.get("mqtt").unwrap_or(&Value::Null));
    for server in answer
        .pointer("/host/servers")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let at = |key| table::cell(server.get(key));
        println!(
            "server     {}  {}  received {}  sent {}  lost {}",
            at("url"),
            at("state"),
            at("received"),
            at("sent"),
            at("lost")
        );
    }
    println!(
        "alarms     active {}  unacknowledged {}",
        at("/alarms/active"),
        at("/alarms/unacknowledged")
    );
    for model in answer
        .get("models")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        println!(
            "model      {} {}  {}  runs {}  p95 {} µs",
            table::cell(model.get("model")),
            table::cell(model.get("version")),
            table::cell(model.get("backend")),
            table::cell(model.get("runs")),
            table::cell(model.get("p95_us"))
        );
    }
    attention(&answer);
    Ok(())
}

/// What waits for the cloud and until when, from the status' `uplink`.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // seconds, never negative
fn backlog(uplink: &Value) -> String {
    let Some(lanes) = uplink.get("lanes").and_then(Value::as_object) else {
        return String::new();
    };
    let sum = |field: &str| -> f64 {
        let of = |lane: &Value| lane.get(field).and_then(Value::as_f64);
        lanes.values().filter_map(of).sum()
    };
    let age = |field: &str| {
        let seconds = uplink.get(field).and_then(Value::as_f64)?;
        Some(table::age(seconds as u64))
    };
    let records = sum("pending");
    if records < 1.0 {
        return "nothing waits".to_owned();
    }
    format!(
        "{records} records wait, {}, oldest {}, {:.0}/s, {}",
        table::bytes(sum("pending_bytes") as u64),
        age("oldest_pending_s").unwrap_or_else(|| "-".to_owned()),
        sum("rate"),
        age("drain_eta_s").map_or("will not drain".to_owned(), |eta| format!("gone in {eta}")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_become_paths() {
        assert_eq!(
            target_path("plant A/n1/Pumpe Süd").unwrap(),
            "/api/devices/plant%20A/n1/Pumpe%20S%C3%BCd"
        );
        assert_eq!(target_path("g/n%2Fx").unwrap(), "/api/devices/g/n%2Fx");
        for bad in ["g", "g/n/d/x", "g//d", ""] {
            assert!(target_path(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_backlog_is_told_with_its_end_or_without() {
        let lane = |pending: u64| serde_json::json!({"pending": pending, "pending_bytes": 2048, "rate": 5.5});
        let check = |pending: u64, eta: Value, said: &str| {
            let uplink = serde_json::json!({
                "oldest_pending_s": 61.0, "drain_eta_s": eta,
                "lanes": {"data": lane(pending), "alarms": lane(0)},
            });
            let text = backlog(&uplink);
            assert!(text.contains(said), "{text}");
        };
        check(0, 0.0.into(), "nothing waits");
        check(7, Value::Null, "will not drain");
        check(7, 90.0.into(), "7 records wait");
        check(7, 90.0.into(), "gone in");
        assert_eq!(backlog(&serde_json::json!({"state": "none"})), "");
    }
}
