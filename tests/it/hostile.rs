//! Bad input: counted by reason, visible, and harmless to its neighbours.

use serde_json::Value;

use crate::harness::gateway::Gateway;
use crate::harness::mqtt::{Client, Node};
use crate::harness::until;

fn invalid(gateway: &Gateway, reason: &str) -> u64 {
    gateway.status()["invalid"]
        .get(reason)
        .and_then(Value::as_u64)
        .unwrap_or(0)
}

#[test]
fn bad_messages_are_counted_and_neighbours_unharmed() {
    let gateway = Gateway::builder().start();
    let mut good = Node::birth(gateway.mqtt, "plant", "good", "press");
    let mut bad = Client::connect(gateway.mqtt, "bad", None);

    // Not a payload at all, cut short, and a topic with too few levels.
    bad.publish("spBv1.0/plant/NBIRTH/random", &[0xFF; 64], 0);
    bad.publish("spBv1.0/plant/DDATA/good", &[], 0);
    bad.publish("spBv1.0/plant/NDATA", &[], 0);
    // Data of a node that was never born.
    bad.publish("spBv1.0/plant/NDATA/ghost", &[0x18, 0x05], 0);
    // QoS 1: refused for good, so acknowledged; otherwise the client would send it for ever.
    let id = bad.publish("spBv1.0/plant/NBIRTH/random", &[0xFF; 64], 1);
    assert_eq!(bad.read(), Some(crate::harness::mqtt::Packet::Puback(id)));

    // In a payload of the good node: an unknown alias and datatype 99 beside a good metric.
    let mut fine = sparkplug_rs::payload::Metric::new();
    fine.set_alias(2);
    fine.set_double_value(33.5);
    let mut alias = sparkplug_rs::payload::Metric::new();
    alias.set_alias(4711);
    alias.set_int_value(1);
    let mut datatype = sparkplug_rs::payload::Metric::new();
    datatype.set_name("odd".into());
    datatype.set_datatype(99);
    datatype.set_int_value(1);
    good.send("DDATA", true, vec![alias, datatype, fine], 0);

    until("everything is counted", 60, || {
        let fine = [
            "payload",
            "topic",
            "data_before_birth",
            "unknown_alias",
            "datatype",
        ]
        .iter()
        .all(|reason| invalid(&gateway, reason) > 0);
        fine.then_some(())
    });
    let device = until("the good value is taken", 60, || {
        let device = gateway.json("/api/devices/plant/good/press");
        let mut metrics = device["metrics"].as_array()?.iter();
        let taken = metrics.any(|m| m["name"] == "temp" && m["value"] == 33.5);
        taken.then_some(device)
    });
    assert_eq!(device["online"], true);
    gateway.check_identity();
}

#[test]
fn names_that_are_no_subject_tokens_have_their_own_subjects() {
    let gateway = Gateway::builder().start();
    let names = ["a.b", "a b", "_", "=41", "Pumpe Süd", ">x", "*x"];
    let mut nodes = Vec::new();
    for name in names {
        nodes.push(Node::birth(gateway.mqtt, "g", name, name));
    }
    until("all are known", 60, || {
        (gateway.status()["host"]["devices_online"] == names.len()).then_some(())
    });
    let known: Vec<String> = gateway
        .json("/api/devices")
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|d| d["device"].as_str().map(str::to_owned))
        .collect();
    for name in names {
        assert!(known.iter().any(|k| k == name), "{name} in {known:?}");
    }
    let device = gateway.json("/api/devices/g/Pumpe%20S%C3%BCd/Pumpe%20S%C3%BCd");
    assert_eq!(device["device"], "Pumpe Süd");
}

#[test]
fn a_write_without_a_token_is_refused_over_tcp_and_taken_over_the_socket() {
    let gateway = Gateway::builder().start();
    let _node = Node::birth(gateway.mqtt, "g", "n", "d");
    until("the device is there", 60, || {
        (gateway.status()["host"]["devices_online"] == 1).then_some(())
    });
    let (status, body) = crate::harness::gateway::request(
        gateway.admin,
        "POST",
        "/api/devices/g/n/d/write",
        "",
        "{\"metrics\":[{\"name\":\"temp\",\"value\":1}]}",
    )
    .unwrap();
    assert_eq!(status, 403, "{body}");
    // The device of this test never echoes: the write is sent and ends as a timeout, which the tool says.
    let (code, out, _) = gateway.tool(&["write", "g/n/d", "temp=1", "-o", "json"]);
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (code, answer["status"].as_str()),
        (1, Some("timeout")),
        "{answer}"
    );
    let (code, out, _) = gateway.tool(&["write", "g/n/d", "nope=1", "-o", "json"]);
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (code, answer["status"].as_str()),
        (1, Some("rejected")),
        "{answer}"
    );
}
