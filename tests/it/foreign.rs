//! Three Sparkplug clients that none of us wrote, through the whole gateway into JetStream: names, types, values and
//! times arrive as they were sent.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::harness::gateway::Gateway;
use crate::harness::nats::Nats;
use crate::harness::{tools, until};

/// What one client says it sent: message kind, name, type, value, timestamp.
fn run(mut command: Command, expected: usize) -> (Vec<Value>, std::process::Child) {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .expect("the client starts");
    let out = BufReader::new(child.stdout.take().unwrap());
    let said: Vec<Value> = out
        .lines()
        .take(expected)
        .map(|l| serde_json::from_str(&l.unwrap()).unwrap())
        .collect();
    assert_eq!(said.len(), expected, "the client ended early");
    (said, child)
}

fn script(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/it/foreign")
        .join(name)
}

/// The value as the contract shows it in JSON.
fn shown(value: &Value) -> Value {
    match value.as_i64() {
        Some(v) if v.unsigned_abs() > 1 << 53 => Value::String(v.to_string()),
        _ => match value.as_u64() {
            Some(v) if v > 1 << 53 => Value::String(v.to_string()),
            _ => value.clone(),
        },
    }
}

fn same(sent: &Value, got: &Value) -> bool {
    match (sent.as_f64(), got.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => sent == got,
    }
}

/// Every metric of a subject's records, by (class, name, timestamp).
fn stored(nats: &Nats, class: &str, device: &str) -> Vec<Value> {
    let tail = device.replace('/', ".");
    let subject = format!("sparkgate.test.{class}.foreign.{tail}");
    nats.messages("SPARKGATE_test")
        .into_iter()
        .filter(|m| m.subject == subject)
        .flat_map(|m| {
            let body: Value = serde_json::from_slice(&m.payload).unwrap();
            body["metrics"].as_array().unwrap().clone()
        })
        .collect()
}

fn compare(nats: &Nats, device: &str, said: &[Value], prefix: &str) {
    let wanted = |all: &[Value], sent: &Value| {
        let name = format!("{prefix}{}", sent["name"].as_str().unwrap());
        all.iter()
            .find(|m| m["name"] == name.as_str() && m["timestamp"] == sent["timestamp"])
            .cloned()
    };
    let all = until("everything is in the stream", 60, || {
        let all: Vec<Value> = ["birth", "data"]
            .iter()
            .flat_map(|class| stored(nats, class, device))
            .collect();
        said.iter()
            .all(|sent| wanted(&all, sent).is_some())
            .then_some(all)
    });
    for sent in said {
        let name = format!("{prefix}{}", sent["name"].as_str().unwrap());
        let value = shown(&sent["value"]);
        let found = wanted(&all, sent).unwrap();
        if sent["type"] != "Null" {
            assert_eq!(found["type"], sent["type"], "{name}");
        }
        if sent["type"] == "Bytes" {
            assert_eq!(found["value"], "AP8Q", "{name}");
        } else {
            assert!(
                same(&value, &found["value"]),
                "{name}: sent {value}, stored {}",
                found["value"]
            );
        }
        assert!(found.get("value").is_some(), "value is never left out");
    }
}

fn end(mut child: std::process::Child) {
    drop(child.stdin.take());
    until("the client ends", 60, || child.try_wait().unwrap());
}

#[test]
fn pysparkplug_arrives_as_sent() {
    let nats = Nats::start();
    let gateway = Gateway::builder().bridge(&nats.url()).start();
    let mut command = Command::new(tools::python());
    command
        .arg(script("pysparkplug_node.py"))
        .arg(gateway.mqtt.port().to_string());
    let (said, child) = run(command, 28);
    compare(&nats, "py-node.py-dev", &said, "");
    end(child);
    // The client leaves with DISCONNECT after its own NDEATH or by its will: either way its device is offline.
    until("the node is offline", 60, || {
        (gateway.json("/api/devices/foreign/py-node")["online"] == false).then_some(())
    });
    gateway.check_identity();
}

#[test]
fn mqtt_spb_wrapper_arrives_as_sent() {
    let nats = Nats::start();
    let gateway = Gateway::builder().bridge(&nats.url()).start();
    let mut command = Command::new(tools::python());
    command
        .arg(script("mqtt_spb_wrapper_node.py"))
        .arg(gateway.mqtt.port().to_string());
    let (said, child) = run(command, 29);
    // This library puts births of device data under a prefix of its own; data comes without it.
    let birth: Vec<Value> = said
        .iter()
        .filter(|m| m["message"] == "birth")
        .cloned()
        .collect();
    let data: Vec<Value> = said
        .iter()
        .filter(|m| m["message"] == "data")
        .cloned()
        .collect();
    compare(&nats, "spb-node.spb-dev", &birth, "DATA/");
    compare(&nats, "spb-node.spb-dev", &data, "");
    let tables: Vec<Value> = ["birth", "data"]
        .iter()
        .flat_map(|class| stored(&nats, class, "spb-node.spb-dev"))
        .filter(|m| m["type"] == "DataSet")
        .collect();
    assert!(!tables.is_empty());
    for table in tables {
        assert_eq!(
            table["value"]["columns"],
            serde_json::json!(["Temperature", "Status"]),
            "{table}"
        );
        assert_eq!(table["value"]["rows"][1][1], "warm", "{table}");
    }
    end(child);
    gateway.check_identity();
}

#[test]
fn the_javascript_client_arrives_as_sent() {
    let nats = Nats::start();
    let gateway = Gateway::builder().bridge(&nats.url()).start();
    let mut command = Command::new("node");
    command
        .arg(script("sparkplug_client_node.cjs"))
        .arg(gateway.mqtt.port().to_string())
        .env("NODE_PATH", tools::node_modules());
    let (said, child) = run(command, 39);
    compare(&nats, "js-node.js-dev", &said, "");
    let table = stored(&nats, "birth", "js-node.js-dev")
        .into_iter()
        .find(|m| m["type"] == "DataSet")
        .unwrap();
    assert_eq!(
        table["value"]["rows"],
        serde_json::json!([[1, "one"], [-2, "zwei"]]),
        "{table}"
    );
    end(child);
    until("the node is offline", 60, || {
        (gateway.json("/api/devices/foreign/js-node")["online"] == false).then_some(())
    });
    gateway.check_identity();
}
