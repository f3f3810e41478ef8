//! What the cloud asks for and what it can follow: writes that are one write over repetitions and kills, and the
//! schemas of a plant that changes.

use std::time::Duration;

use serde_json::{Value, json};
use sparkplug_rs::{DataType, Payload, protobuf::Message as _};

use crate::harness::gateway::Gateway;
use crate::harness::mqtt::{Node, Packet, metric};
use crate::harness::nats::{Nats, Stored, block_on};
use crate::harness::until;

const WRITE: &str = "sparkgate.test.write.g.n.d";

/// Asks until somebody listens: the answer.
fn ask(nats: &Nats, subject: &str, body: &Value) -> Value {
    until("an answer to the request", 120, || {
        block_on(async {
            let client = async_nats::ConnectOptions::new()
                .request_timeout(Some(Duration::from_secs(60)))
                .connect(nats.url())
                .await
                .ok()?;
            let answer = client
                .request(subject.to_owned(), body.to_string().into())
                .await;
            serde_json::from_slice(&answer.ok()?.payload).ok()
        })
    })
}

fn write(id: &str, metric: &str, value: u64) -> Value {
    json!({ "id": id, "metrics": [{ "name": metric, "value": value }], "ttl_ms": 60_000, "by": "ops" })
}

/// A device that hears its commands.
fn listening(gateway: &Gateway) -> Node {
    let mut node = Node::birth(gateway.mqtt, "g", "n", "d");
    node.client.subscribe("spBv1.0/g/DCMD/n/d", 1);
    until("the device is online", 60, || {
        (gateway.status()["host"]["devices_online"] == 1).then_some(())
    });
    node
}

/// The value of the next command.
fn commanded(node: &mut Node) -> u64 {
    loop {
        match node.client.read().expect("a command") {
            Packet::Publish { topic, payload } if topic == "spBv1.0/g/DCMD/n/d" => {
                return Payload::parse_from_bytes(&payload)
                    .expect("a payload")
                    .metrics[0]
                    .long_value();
            }
            _ => {}
        }
    }
}

/// Sends a request, lets the device see it and confirm it: what was commanded, and the answer.
fn carried_out(nats: &Nats, node: &mut Node, request: &Value) -> (u64, Value) {
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| ask(nats, WRITE, request));
        let value = commanded(node);
        let (echo, _) = node.count_bytes(value, 0);
        node.client.send(&echo);
        (value, asked.join().expect("an answer"))
    })
}

#[test]
fn a_request_is_one_write_over_repetitions_and_kills() {
    let nats = Nats::start();
    let mut gateway = Gateway::builder()
        .bridge(&nats.url())
        .config("writes = { allow = [{ metric = \"n\" }] }\n[writes]\nconfirm_timeout = \"15s\"\n")
        .start();
    let mut node = listening(&gateway);
    let (value, first) = carried_out(&nats, &mut node, &write("r1", "n", 7));
    assert_eq!(
        (value, &first["status"]),
        (7, &json!("confirmed")),
        "{first}"
    );
    assert_eq!(first["by"], "cloud:ops");

    // The answer was lost on its way, as far as the one who asked can tell.
    assert_eq!(ask(&nats, WRITE, &write("r1", "n", 7)), first);
    let refused = ask(&nats, WRITE, &write("r2", "temp", 5));
    let why = refused["error"].as_str().expect("a reason");
    assert!(why.contains("bridge.writes.allow"), "{why}");
    // Neither of them reached the device: the next command is this one.
    let (value, _) = carried_out(&nats, &mut node, &write("r3", "n", 8));
    assert_eq!(value, 8);

    until("the journal has synced", 60, || {
        (gateway.json("/api/buffer")["unsynced_bytes"] == 0).then_some(())
    });
    gateway.restart();
    let mut node = listening(&gateway);
    let again = ask(&nats, WRITE, &write("r1", "n", 7));
    assert_ne!(again["status"], "sent", "{again}");
    let (value, last) = carried_out(&nats, &mut node, &write("r4", "n", 9));
    assert_eq!((value, &last["status"]), (9, &json!("confirmed")), "{last}");
    until("what was done is in the cloud", 60, || {
        let all = nats.messages("SPARKGATE_test_ALARMS");
        let confirmed = all
            .iter()
            .map(Stored::json)
            .filter(|it| it["status"] == "confirmed");
        (confirmed.count() == 3).then_some(())
    });
    gateway.check_identity();
}

fn schemas(nats: &Nats) -> Vec<Value> {
    let all = nats.messages("SPARKGATE_test");
    all.iter()
        .filter(|m| m.subject == "sparkgate.test.schema.g.n.d")
        .map(Stored::json)
        .collect()
}

/// The bucket's entry of the device.
fn current(nats: &Nats) -> Option<Value> {
    block_on(async {
        let store = nats
            .jetstream()
            .await
            .get_key_value("SPARKGATE_SCHEMA")
            .await
            .ok()?;
        let entry = store.get("test.g.n.d").await.ok()??;
        serde_json::from_slice(&entry).ok()
    })
}

#[test]
fn a_changed_birth_is_a_schema_that_records_name() {
    let nats = Nats::start();
    let gateway = Gateway::builder().bridge(&nats.url()).start();
    let mut node = Node::birth(gateway.mqtt, "g", "n", "d");
    node.temp(1.0);
    let double = |name: &str, alias: u64| {
        let mut it = metric(name, alias, DataType::Double);
        it.set_double_value(1.0);
        it
    };
    let count = || {
        let mut it = metric("n", 1, DataType::Int64);
        it.set_long_value(0);
        it
    };
    // One metric more; then one of another type.
    node.send(
        "DBIRTH",
        true,
        vec![count(), double("temp", 2), double("rpm", 9)],
        1,
    );
    node.temp(2.0);
    let mut text = metric("rpm", 9, DataType::String);
    text.set_string_value("fast".to_owned());
    node.send("DBIRTH", true, vec![count(), double("temp", 2), text], 1);
    node.temp(3.0);
    until("three schemas and three records are stored", 60, || {
        let all = nats.messages("SPARKGATE_test");
        let data = all.iter().filter(|m| m.subject.contains(".data."));
        (schemas(&nats).len() == 3 && data.count() == 3).then_some(())
    });
    let told = schemas(&nats);
    let names = |at: usize, field: &str| {
        let list = told[at][field].as_array().expect(field);
        list.iter()
            .map(|it| {
                it.as_str()
                    .or(it["name"].as_str())
                    .expect("a name")
                    .to_owned()
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(told[0]["version"], 1);
    assert_eq!(
        (&told[1]["version"], &told[1]["previous"]),
        (&json!(2), &json!(1))
    );
    assert_eq!(told[1]["change"], "additive");
    assert_eq!(names(1, "added"), ["rpm"]);
    assert_eq!(
        (&told[2]["version"], &told[2]["change"]),
        (&json!(3), &json!("breaking"))
    );
    assert_eq!(names(2, "changed"), ["rpm"]);
    let data: Vec<String> = nats
        .messages("SPARKGATE_test")
        .iter()
        .filter(|m| m.subject == "sparkgate.test.data.g.n.d")
        .map(|m| m.header("ce-dataschema").to_owned())
        .collect();
    assert_eq!(
        data,
        ["1", "2", "3"].map(|version| format!("sparkgate:test/g/n/d?schema={version}"))
    );
    until("the bucket has the current one", 60, || {
        (current(&nats)?["version"] == 3).then_some(())
    });
    gateway.check_identity();
}
