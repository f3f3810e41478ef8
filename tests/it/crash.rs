//! kill -9 of the gateway and of nats-server in the middle of records: each one that was acknowledged is in the stream
//! once, in device order.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::harness::gateway::Gateway;
use crate::harness::mqtt::{Node, Packet};
use crate::harness::nats::Nats;
use crate::harness::until;

const DEVICES: usize = 5;
const RECORDS: u64 = 50_000;
/// Publishes of one device that wait for their PUBACK, at most.
const WINDOW: usize = 100;

/// What a device was promised: the highest `n` for which a PUBACK came, and everything below it.
type Promised = Arc<Mutex<HashMap<String, Vec<u64>>>>;

/// Publishes `n` from `from` to `to` with QoS 1 until done or the connection breaks; returns the next `n` to send.
/// What was sent and not acknowledged is sent again by the caller, as a client does.
fn publish(
    node: &mut Node,
    from: u64,
    to: u64,
    promised: &Promised,
    total: &AtomicU64,
) -> (u64, bool) {
    let mut flying: Vec<(u16, u64)> = Vec::new();
    let mut next = from;
    loop {
        while flying.len() < WINDOW && next < to {
            let (bytes, id) = node.count_bytes(next, 1);
            if std::io::Write::write_all(node.client.stream(), &bytes).is_err() {
                return (flying.first().map_or(next, |(_, n)| *n), false);
            }
            flying.push((id, next));
            next += 1;
        }
        if flying.is_empty() {
            return (next, true);
        }
        match node.client.read() {
            Some(Packet::Puback(id)) => {
                let at = flying
                    .iter()
                    .position(|(i, _)| *i == id)
                    .expect("a known packet id");
                let (_, n) = flying.remove(at);
                promised
                    .lock()
                    .unwrap()
                    .entry(node.device.clone())
                    .or_default()
                    .push(n);
                total.fetch_add(1, Ordering::Relaxed);
            }
            Some(_) => {}
            None => return (flying.first().map_or(next, |(_, n)| *n), false),
        }
    }
}

#[test]
fn kills_lose_and_double_nothing_that_was_acknowledged() {
    let mut nats = Nats::start();
    let mut gateway = Gateway::builder().bridge(&nats.url()).start();
    let promised: Promised = Arc::default();
    let total = Arc::new(AtomicU64::new(0));
    let address = gateway.mqtt;
    let threads: Vec<_> = (0..DEVICES)
        .map(|i| {
            let (promised, total) = (promised.clone(), total.clone());
            std::thread::spawn(move || {
                let (name, device) = (format!("n{i}"), format!("d{i}"));
                let mut next = 1;
                let end = RECORDS / DEVICES as u64 + 1;
                while next < end {
                    let connected = until("the broker is there", 60, || {
                        std::net::TcpStream::connect(address)
                            .ok()
                            .map(|_| ())
                            .and_then(|()| {
                                std::panic::catch_unwind(|| {
                                    Node::birth(address, "crash", &name, &device)
                                })
                                .ok()
                            })
                    });
                    let mut node = connected;
                    (next, _) = publish(&mut node, next, end, &promised, &total);
                }
            })
        })
        .collect();

    for (at, what) in [
        (8_000, "gateway"),
        (16_000, "nats"),
        (24_000, "gateway"),
        (32_000, "both"),
        (40_000, "nats"),
    ] {
        until("records are acknowledged", 120, || {
            (total.load(Ordering::Relaxed) >= at).then_some(())
        });
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
    for thread in threads {
        thread.join().expect("a device");
    }
    until("everything has left", 120, || {
        // The identity of counters holds at any moment, not only at rest.
        let status = gateway.check_identity();
        (status["pending"] == 0).then_some(())
    });

    let mut stored: HashMap<String, Vec<u64>> = HashMap::new();
    let mut last_record = 0;
    for message in nats.messages("SPARKGATE_test") {
        let record: u64 = message.record();
        assert!(
            record > last_record,
            "records rise: {record} after {last_record}"
        );
        let prev: u64 = message.prev();
        assert_eq!(prev, last_record, "the stream is complete");
        last_record = record;
        if !message.subject.starts_with("sparkgate.test.data.") {
            continue;
        }
        let body: Value = serde_json::from_slice(&message.payload).unwrap();
        for metric in body["metrics"].as_array().unwrap() {
            let n = metric["value"].as_u64().unwrap();
            stored
                .entry(message.header("Sparkgate-Device").to_owned())
                .or_default()
                .push(n);
        }
    }
    for (device, mut promised) in promised.lock().unwrap().drain() {
        let got = &stored[&device];
        promised.sort_unstable();
        promised.dedup();
        assert_eq!(promised.len() as u64, RECORDS / DEVICES as u64, "{device}");
        for n in &promised {
            assert!(
                got.contains(n),
                "{device}: {n} was acknowledged and is not stored"
            );
        }
        // A client that lost its connection sends again from its first unacknowledged message; what the gateway had
        // already is then a second message, with a `seq` of its own. Within one session order is strict.
        let mut breaks = 0;
        for pair in got.windows(2) {
            if pair[1] <= pair[0] {
                breaks += 1;
            }
        }
        assert!(
            breaks <= 3,
            "{device}: {breaks} steps back for 3 reconnections"
        );
    }
    gateway.check_identity();
    assert!(gateway.stop().success());
}

#[test]
fn state_survives_a_kill() {
    let mut gateway = Gateway::builder().start();
    let mut node = Node::birth(gateway.mqtt, "g", "n", "d");
    until("the device is there", 10, || {
        (gateway.status()["host"]["devices_online"] == 1).then_some(())
    });
    node.temp(42.5);
    until("the value is there", 10, || {
        let device = gateway.json("/api/devices/g/n/d");
        device["metrics"]
            .as_array()?
            .iter()
            .find(|m| m["name"] == "temp" && m["value"] == 42.5)
            .map(|_| ())
    });
    until("the journal has synced", 10, || {
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
