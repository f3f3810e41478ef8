//! Records on their way up: a server that is not there yet, headers, alarms in their own stream, writes from the cloud.

use serde_json::{Value, json};

use crate::harness::gateway::Gateway;
use crate::harness::mqtt::{Node, Packet};
use crate::harness::nats::Nats;
use crate::harness::until;

/// A pack that raises an alarm and writes when `temp` is high.
const PACK: &str = r#"
[pack]
id = "hot"
version = "1.0.0"
[[rule]]
id = "too-hot"
[rule.threshold]
metric = "temp"
high = 80.0
[rule.alarm]
priority = "high"
message = "{device} is hot: {value}"
[[rule.command]]
metric = "n"
value = 7
confirm = { metric = "n", equals = 7, within = "60s" }
"#;

/// Writes the pack into a folder; the configuration that names it.
pub(crate) fn with_pack(folder: &tempfile::TempDir) -> String {
    let file = folder.path().join("pack.toml");
    std::fs::write(&file, PACK).unwrap();
    format!("[rules]\npaths = [\"{}\"]\n", file.display())
}

#[test]
fn a_server_that_is_away_at_start_gets_everything_later() {
    let mut nats = Nats::absent();
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::builder()
        .bridge(&nats.url())
        .config(&with_pack(&folder))
        .start();
    let mut node = Node::birth(gateway.mqtt, "g", "n", "d");
    for i in 0..200 {
        node.temp(f64::from(i) / 10.0);
    }
    until("records wait", 60, || {
        (gateway.status()["pending"].as_u64()? >= 202).then_some(())
    });
    let ready = gateway.json("/readyz");
    assert_eq!(
        (ready["ready"].clone(), ready["degraded"].clone()),
        (true.into(), true.into()),
        "{ready}"
    );
    nats.restart();
    gateway.drained();
    let messages = nats.messages("SPARKGATE_test");
    let temps: Vec<f64> = messages
        .iter()
        .filter(|m| m.subject == "sparkgate.test.data.g.n.d")
        .map(|m| m.json()["metrics"][0]["value"].as_f64().unwrap())
        .collect();
    assert_eq!(
        temps,
        (0..200).map(|i| f64::from(i) / 10.0).collect::<Vec<_>>()
    );
    let first = &messages[0];
    assert_eq!(first.header("ce-specversion"), "1.0");
    assert_eq!(first.header("Nats-Msg-Id"), first.header("ce-id"));
    assert!(first.header("Nats-Msg-Id").starts_with("test-"));
    gateway.check_identity();
}

#[test]
fn a_rule_writes_is_confirmed_and_tells_the_cloud() {
    let nats = Nats::start();
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::builder()
        .bridge(&nats.url())
        .config(&with_pack(&folder))
        .start();
    let mut node = Node::birth(gateway.mqtt, "g", "n", "d");
    node.client.subscribe("spBv1.0/g/DCMD/n/d", 1);
    node.temp(90.0);
    let dcmd = loop {
        match node.client.read().expect("a DCMD") {
            Packet::Publish { topic, payload } if topic == "spBv1.0/g/DCMD/n/d" => break payload,
            _ => {}
        }
    };
    let command =
        <sparkplug_rs::Payload as sparkplug_rs::protobuf::Message>::parse_from_bytes(&dcmd)
            .unwrap();
    assert_eq!(
        (command.metrics[0].alias(), command.metrics[0].long_value()),
        (1, 7)
    );
    assert!(!command.has_seq(), "commands have no seq");
    let (echo, _) = node.count_bytes(7, 0);
    node.client.send(&echo);
    let stored = until("alarm and command are stored", 60, || {
        let all = nats.messages("SPARKGATE_test_ALARMS");
        let words: Vec<(String, Value)> =
            all.iter().map(|m| (m.subject.clone(), m.json())).collect();
        words
            .iter()
            .any(|(_, body)| body["status"] == "confirmed")
            .then_some(words)
    });
    let alarm = &stored
        .iter()
        .find(|(subject, _)| subject.starts_with("sparkgate.test.alarm."))
        .unwrap()
        .1;
    assert_eq!(
        (alarm["event"].clone(), alarm["state"].clone()),
        ("raise".into(), "unack".into()),
        "{alarm}"
    );
    assert_eq!(alarm["message"], "d is hot: 90");
    // One trace joins the device's record, the alarm and the command.
    let trace = |message: &crate::harness::nats::Stored| {
        let text = message.header("traceparent");
        assert_eq!(text.len(), 55, "{text}");
        text[3..35].to_owned()
    };
    let cause = alarm["cause"].as_u64().unwrap();
    // Alarms overtake data.
    let first = until("the cause is stored too", 60, || {
        let data = nats.messages("SPARKGATE_test");
        data.iter().find(|m| m.record() == cause).map(trace)
    });
    let all = nats.messages("SPARKGATE_test_ALARMS");
    let following: Vec<_> = all.iter().filter(|m| m.json()["cause"] == cause).collect();
    assert!(following.len() >= 3, "alarm, sent, confirmed");
    for message in following {
        assert_eq!(trace(message), first, "{}", message.subject);
    }
    let statuses: Vec<&Value> = stored
        .iter()
        .filter(|(s, _)| s == "sparkgate.test.command.g.n.d")
        .map(|(_, b)| &b["status"])
        .collect();
    assert_eq!(statuses, [&json!("sent"), &json!("confirmed")]);
    assert_eq!(gateway.status()["alarms"]["unacknowledged"], 1);
    until("the decision's latency is counted", 60, || {
        (gateway.status()["decision_us"]["count"].as_u64()? >= 1).then_some(())
    });

    // People acknowledge through the socket; the record of it goes up too.
    let id = alarm["id"].as_str().unwrap();
    let (code, _, err) = gateway.tool(&["alarms", "ack", id, "--note", "seen"]);
    assert_eq!(code, 0, "{err}");
    until("the acknowledgement is stored", 60, || {
        nats.messages("SPARKGATE_test_ALARMS")
            .iter()
            .any(|m| m.json()["event"] == "ack" && m.json()["note"] == "seen")
            .then_some(())
    });
    assert_eq!(gateway.status()["alarms"]["unacknowledged"], 0);
    gateway.check_identity();
}

#[test]
fn alarms_and_their_acknowledgement_survive_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let mut gateway = Gateway::builder().config(&with_pack(&folder)).start();
    let mut node = Node::birth(gateway.mqtt, "g", "n", "d");
    node.temp(90.0);
    let id = until("the alarm is there", 60, || {
        gateway
            .json("/api/alarms")
            .as_array()?
            .first()
            .and_then(|a| a["id"].as_str())
            .map(str::to_owned)
    });
    assert_eq!(gateway.tool(&["alarms", "ack", &id]).0, 0);
    until("the write is sent", 60, || {
        let steps = gateway.json("/api/commands");
        let mut steps = steps.as_array()?.iter();
        steps.any(|step| step["status"] == "sent").then_some(())
    });
    until("the journal has synced", 60, || {
        (gateway.json("/api/buffer")["unsynced_bytes"] == 0).then_some(())
    });
    gateway.restart();
    let alarms = gateway.json("/api/alarms");
    assert_eq!(
        (alarms[0]["id"].as_str(), alarms[0]["state"].as_str()),
        (Some(id.as_str()), Some("ack")),
        "{alarms:#}"
    );
    let commands = gateway.json("/api/commands");
    let sent = commands.as_array().unwrap().iter();
    assert_eq!(
        sent.filter(|step| step["status"] == "sent").count(),
        1,
        "a replay writes nothing: {commands}"
    );
    gateway.check_identity();
    assert!(gateway.stop().success());
}

#[test]
fn a_write_that_a_kill_left_open_is_told_and_not_sent_again() {
    let nats = Nats::start();
    let folder = tempfile::tempdir().unwrap();
    let mut gateway = Gateway::builder()
        .bridge(&nats.url())
        .config(&with_pack(&folder))
        .start();
    let mut node = Node::birth(gateway.mqtt, "g", "n", "d");
    node.temp(90.0);
    let statuses = |nats: &Nats| -> Vec<String> {
        nats.messages("SPARKGATE_test_ALARMS")
            .iter()
            .filter(|m| m.subject == "sparkgate.test.command.g.n.d")
            .map(|m| m.json()["status"].as_str().unwrap().to_owned())
            .collect()
    };
    until("the write is sent", 60, || {
        (statuses(&nats) == ["sent"]).then_some(())
    });
    gateway.restart();
    until("its end is told", 60, || {
        (statuses(&nats).len() >= 2).then_some(())
    });
    assert_eq!(statuses(&nats), ["sent", "timeout"]);
    gateway.restart();
    gateway.drained();
    assert_eq!(statuses(&nats), ["sent", "timeout"], "told once");
}

#[test]
fn metrics_are_rendered_and_bounded() {
    let gateway = Gateway::builder().start();
    let _node = Node::birth(gateway.mqtt, "g", "n", "d");
    until("the device is there", 60, || {
        (gateway.status()["host"]["devices_online"] == 1).then_some(())
    });
    let mut text = String::new();
    for line in [
        "sparkgate_sparkplug_nodes{state=\"online\"} 1",
        "sparkgate_records_received_total 2",
        "sparkgate_disk_healthy 1",
        "# TYPE sparkgate_records_published_total counter",
    ] {
        text = until(line, 60, || {
            let (status, text) = crate::harness::gateway::get(gateway.admin, "/metrics").unwrap();
            assert_eq!(status, 200);
            text.lines().any(|l| l == line).then_some(text)
        });
    }
    assert!(!text.contains("\"d\""), "no series is named after a device");
}

#[test]
fn odd_names_stay_apart_and_can_be_read_back() {
    let long = "ü".repeat(100);
    let names = [
        "a.b",
        "a b",
        "a_b",
        "*",
        ">",
        "_",
        "=41",
        "A",
        "Pumpe Süd",
        " x ",
        "%20",
        &long,
    ];
    let nats = Nats::start();
    let gateway = Gateway::builder().bridge(&nats.url()).start();
    let mut node = Node::birth(gateway.mqtt, "Line 1", "n.1", names[0]);
    for name in &names[1..] {
        node.birth_of(name);
    }
    for name in names {
        name.clone_into(&mut node.device);
        node.temp(1.5);
    }
    until("everything is taken", 60, || {
        (gateway.status()["received"].as_u64()? > 2 * names.len() as u64).then_some(())
    });
    gateway.drained();
    let decode = |text: &str, mark: u8| {
        let mut bytes = Vec::new();
        let mut rest = text.bytes();
        while let Some(byte) = rest.next() {
            if byte == mark {
                let hex = [rest.next().unwrap(), rest.next().unwrap()];
                let hex = std::str::from_utf8(&hex).unwrap().to_owned();
                bytes.push(u8::from_str_radix(&hex, 16).unwrap());
            } else {
                bytes.push(byte);
            }
        }
        String::from_utf8(bytes).unwrap()
    };
    let mut found = std::collections::BTreeSet::new();
    for message in nats.messages("SPARKGATE_test") {
        let Some(place) = message.subject.strip_prefix("sparkgate.test.data.") else {
            continue;
        };
        let tokens: Vec<&str> = place.split('.').collect();
        assert_eq!(tokens[..2], ["Line=201", "n=2E1"], "{place}");
        let name = decode(tokens[2], b'=');
        assert_eq!(decode(message.header("Sparkgate-Device"), b'%'), name);
        assert!(found.insert(name), "{place} twice");
    }
    assert_eq!(found, names.iter().map(|name| (*name).to_owned()).collect());
    gateway.check_identity();
}
