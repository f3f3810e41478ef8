//! kill -9 of the gateway and of nats-server in the middle of records: each one that was acknowledged is in the stream
//! once, in device order.
//!
//! The long form: `SPARKGATE_KILLS=50`.

use crate::harness::fleet::{Fleet, Plan, setting};
use crate::harness::gateway::Gateway;
use crate::harness::mqtt::Node;
use crate::harness::nats::Nats;
use crate::harness::{export, until};

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
fn kills_at_any_moment_leave_exactly_what_was_acknowledged() {
    let kills = setting("SPARKGATE_KILLS", 4);
    let mut gateway = Gateway::builder()
        .config("[buffer]\nwarm = { segment = \"256KiB\" }\n")
        .start();
    let plan = Plan::of(kills * 3_000, 3, 2);
    let fleet = Fleet::start(gateway.mqtt, plan);
    for kill in 0..kills {
        fleet.reach(plan.records() * (kill + 1) / (kills + 1));
        if kill % 3 == 1 {
            // Once more, in the midst of the recovery.
            gateway.restart_unready();
        }
        gateway.restart();
        gateway.check_identity();
    }
    fleet.finish();
    export::is_complete(&gateway, plan);
    for (node, device) in (0..plan.nodes).flat_map(|n| (0..plan.devices).map(move |d| (n, d))) {
        let path = format!("/api/devices/crash/n{node}/d{node}-{device}");
        let device = gateway.json(&path);
        let metrics = device["metrics"].as_array().expect("metrics");
        let n = metrics.iter().find(|metric| metric["name"] == "n");
        assert_eq!(
            n.map(|n| &n["value"]),
            Some(&(plan.to - 1).into()),
            "{path}"
        );
    }
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
