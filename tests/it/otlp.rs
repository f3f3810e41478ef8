//! Metrics and traces in a collector's own words: OpenTelemetry's protobuf package receives them.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::Value;

use crate::harness::gateway::Gateway;
use crate::harness::mqtt::Node;
use crate::harness::{tools, until};

struct Collector {
    child: Child,
    port: u16,
    requests: Receiver<Value>,
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collector() -> Collector {
    let mut child = Command::new(tools::otlp_python())
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/it/foreign/otlp_receiver.py"
        ))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the receiver starts");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let port = lines.next().unwrap().unwrap().trim().parse().unwrap();
    let (tell, requests) = channel();
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            if tell.send(serde_json::from_str(&line).unwrap()).is_err() {
                break;
            }
        }
    });
    Collector {
        child,
        port,
        requests,
    }
}

#[test]
fn a_collector_reads_the_metrics_and_the_decisions() {
    let collector = collector();
    let folder = tempfile::tempdir().unwrap();
    let pack = folder.path().join("p.toml");
    std::fs::write(
        &pack,
        "[pack]\nid = \"p\"\nversion = \"1.0.0\"\n[[rule]]\nid = \"hot\"\nscope = { device = \"*\" }\n\
         [rule.threshold]\nmetric = \"temp\"\nhigh = 85.0\n[[rule.command]]\nmetric = \"temp\"\nvalue = 20.0\n",
    )
    .unwrap();
    let gateway = Gateway::builder()
        .config(&format!(
            "[rules]\npaths = [{:?}]\n[telemetry]\notlp = \"http://127.0.0.1:{}\"\nevery = \"1s\"\n",
            pack.display().to_string(),
            collector.port
        ))
        .start();
    let mut node = Node::birth(gateway.mqtt, "g", "n", "d");
    node.subscribe_commands();
    node.temp(95.0);
    let trace = until("the gateway has a decision", 60, || {
        gateway.json("/api/traces").as_array()?.first().cloned()
    });
    let (mut received, mut spans) = (None, None);
    until("metrics and spans of the record have arrived", 60, || {
        if let Ok(request) = collector.requests.recv_timeout(Duration::from_millis(100)) {
            match request["kind"].as_str() {
                // What is exported before the first record says nothing of it yet.
                Some("metrics")
                    if request["metrics"]["sparkgate_records_received_total"]["points"][0][1]
                        .as_f64()
                        .is_some_and(|taken| taken >= 1.0) =>
                {
                    received = Some(request);
                }
                Some("metrics") => {}
                _ => {
                    let sent = request["spans"].as_array().cloned().unwrap_or_default();
                    if sent.iter().any(|s| s["name"] == "decision") {
                        spans = Some(sent);
                    }
                }
            }
        }
        (received.is_some() && spans.is_some()).then_some(())
    });
    let received = received.unwrap();
    assert_eq!(received["resource"]["service.instance.id"], "test");
    let records = &received["metrics"]["sparkgate_records_received_total"];
    assert_eq!(
        (&records["kind"], &records["monotonic"]),
        (&"sum".into(), &true.into()),
        "{received:#}"
    );
    let start = &received["metrics"]["sparkgate_start_time_seconds"];
    assert_eq!(
        (&start["kind"], &start["unit"]),
        (&"gauge".into(), &"s".into())
    );
    let spans = spans.unwrap();
    let whole = spans.iter().find(|s| s["name"] == "decision").unwrap();
    assert_eq!(
        whole["attributes"]["messaging.destination.name"],
        trace["topic"]
    );
    assert_eq!(
        whole["nanos"].as_u64().unwrap(),
        trace["written_us"].as_u64().unwrap() * 1000
    );
    assert!(
        spans
            .iter()
            .any(|s| s["name"] == "write" && s["parent"] == whole["span"])
    );
}
