//! kill -9 of the gateway and of nats-server in the middle of records: each one that was acknowledged is in the stream
//! once, in device order.

use crate::harness::fleet::{Fleet, Plan, setting};
use crate::harness::gateway::Gateway;
use crate::harness::mqtt::Node;
use crate::harness::nats::Nats;
use crate::harness::until;

#[test]
fn kills_lose_and_double_nothing_that_was_acknowledged() {
    let records = setting("SPARKGATE_RECORDS", 50_000);
    let mut nats = Nats::start();
    let mut gateway = Gateway::builder().bridge(&nats.url()).start();
    let fleet = Fleet::start(gateway.mqtt, Plan::of(records, 5, 1));
    for (step, what) in ["gateway", "nats", "gateway", "both", "nats"]
        .into_iter()
        .enumerate()
    {
        fleet.reach(records * (step as u64 + 1) / 6);
        if what != "gateway" {
            nats.kill();
        }
        if what != "nats" {
            gateway.restart();
        }
        if what != "gateway" {
            nats.restart();
        }
    }
    let account = fleet.finish();
    gateway.drained();
    let messages = nats.messages("SPARKGATE_test");
    assert_eq!(messages[0].prev(), 0, "the stream is complete");
    account.check(&messages);
    gateway.check_identity();
    assert!(gateway.stop().success());
}

#[test]
fn state_survives_a_kill() {
    let mut gateway = Gateway::builder().start();
    let mut node = Node::birth(gateway.mqtt, "g", "n", "d");
    until("the device is there", 60, || {
        (gateway.status()["host"]["devices_online"] == 1).then_some(())
    });
    node.temp(42.5);
    until("the value is there", 60, || {
        let device = gateway.json("/api/devices/g/n/d");
        device["metrics"]
            .as_array()?
            .iter()
            .find(|m| m["name"] == "temp" && m["value"] == 42.5)
            .map(|_| ())
    });
    until("the journal has synced", 60, || {
        let buffer = gateway.json("/api/buffer");
        (buffer["unsynced_bytes"] == 0).then_some(())
    });
    gateway.restart();
    let device = gateway.json("/api/devices/g/n/d");
    let temp = device["metrics"]
        .as_array()
        .unwrap()
        .iter()
        .find(|m| m["name"] == "temp")
        .unwrap();
    assert_eq!(
        (temp["value"].clone(), temp["stale"].clone()),
        (serde_json::json!(42.5), true.into()),
        "{device:#}"
    );
    assert_eq!(device["births"], 1);
    gateway.check_identity();
}
