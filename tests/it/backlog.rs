//! A backlog on a slow link: alarms go first, and the status says whether it will ever be over.
//!
//! The long form: `SPARKGATE_BACKLOG=100000`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::delivery::with_pack;
use crate::harness::fleet::{Fleet, Plan, setting};
use crate::harness::gateway::Gateway;
use crate::harness::mqtt::{Client, Node, Packet};
use crate::harness::nats::Nats;
use crate::harness::proxy::{Fault, Proxy};
use crate::harness::until;

/// A record with its headers takes about this on the wire, its acknowledgement included.
const RECORD_BYTES: u32 = 1_100;

/// So many records every 50 ms from a device of its own, until it is told 0.
fn live(address: std::net::SocketAddr, pace: Arc<AtomicU64>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut node = Node::birth(address, "live", "live", "live");
        loop {
            match pace.load(Ordering::Relaxed) {
                0 => return,
                count => (0..count).for_each(|_| node.temp(20.0)),
            }
            std::thread::park_timeout(Duration::from_millis(50));
        }
    })
}

/// When the server stored each message of a stream, ns since 1970.
fn stored_at(nats: &Nats, stream: &str) -> Vec<i128> {
    let messages = nats.messages(stream);
    messages.iter().map(|message| message.stored_ns).collect()
}

#[test]
fn an_alarm_overtakes_the_backlog_and_the_status_says_when_it_ends() {
    let backlog = setting("SPARKGATE_BACKLOG", 10_000);
    let folder = tempfile::tempdir().unwrap();
    let mut nats = Nats::absent();
    let proxy = Proxy::to(nats.port());
    let gateway = Gateway::builder()
        .bridge(&proxy.url())
        .config(&with_pack(&folder))
        .start();
    Fleet::start(gateway.mqtt, Plan::of(backlog, 10, 10)).finish();
    let mut node = Node::birth(gateway.mqtt, "g", "hot", "oven");

    proxy.set(Fault::Slow(100 * RECORD_BYTES));
    nats.restart();
    // 20 a second, a fifth of what the link carries.
    let pace = Arc::new(AtomicU64::new(1));
    let live = live(gateway.mqtt, pace.clone());
    let data = || nats.count("SPARKGATE_test");
    until("the backlog is on its way", 120, || {
        (data() > 0).then_some(())
    });
    // Nothing moves until the alarm is there, so that what goes before it had left the gateway already.
    proxy.set(Fault::Blackhole);
    let before = data();
    node.temp(95.0);
    until("the alarm waits", 60, || {
        let raised = !gateway.json("/api/alarms").as_array()?.is_empty();
        let lanes = gateway.status()["uplink"]["lanes"].clone();
        (raised && lanes["alarms"]["pending"].as_u64()? > 0).then_some(())
    });
    proxy.set(Fault::Slow(100 * RECORD_BYTES));
    let alarm = until("the alarm is in its stream", 120, || {
        stored_at(&nats, "SPARKGATE_test_ALARMS").first().copied()
    });
    let all = stored_at(&nats, "SPARKGATE_test");
    let overtaken = all.iter().filter(|at| **at < alarm).count() as u64 - before;
    eprintln!("{overtaken} records of the backlog went before the alarm");
    // What the link carries in two seconds.
    assert!(
        overtaken <= 200,
        "{overtaken} records went before the alarm"
    );

    let eta = || gateway.status()["uplink"]["lanes"]["data"]["drain_eta_s"].clone();
    until("an estimate of the end", 120, || eta().as_f64());
    // 200 a second against 20.
    pace.store(10, Ordering::Relaxed);
    proxy.set(Fault::Slow(20 * RECORD_BYTES));
    until("it is said that it will not drain", 120, || {
        eta().is_null().then_some(())
    });
    proxy.set(Fault::None);
    pace.store(0, Ordering::Relaxed);
    live.join().unwrap();
    gateway.drained();
    crate::harness::fleet::check_chain(&nats.messages("SPARKGATE_test"));
}

/// Publishes `records` messages of 4 KiB below `factory/`, QoS 1.
fn publish_raw(address: std::net::SocketAddr, records: u64) {
    let mut client = Client::connect(address, "press", None);
    let payload = vec![b'.'; 4 << 10];
    let (mut sent, mut acked) = (0, 0);
    while acked < records {
        while sent < records && sent - acked < 200 {
            client.publish("factory/press", &payload, 1);
            sent += 1;
        }
        match client.read() {
            Some(Packet::Puback(_)) => acked += 1,
            Some(_) => {}
            None => panic!("the broker is gone after {acked}"),
        }
    }
}

/// Most resident memory so far, MiB.
fn peak_mib(gateway: &Gateway) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", gateway.pid())).unwrap();
    let line = status.lines().find(|l| l.starts_with("VmHWM")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib / 1024
}

/// The long form: `SPARKGATE_BACKLOG_MIB=2048`.
#[test]
fn a_backlog_costs_neither_the_start_nor_memory() {
    let records = setting("SPARKGATE_BACKLOG_MIB", 48) * 256;
    let nats = Nats::absent();
    let mut gateway = Gateway::builder()
        .bridge(&nats.url())
        .config("raw = [\"factory/#\"]\n[buffer]\nwarm = { max = \"8GiB\" }\n")
        // Beyond it, allocations fail and the process ends.
        .wrapper(&["prlimit", "--data=536870912"])
        .start();
    publish_raw(gateway.mqtt, records);
    // A checkpoint has been taken behind most of it; a kill is the harder end.
    let pending = gateway.check_identity()["pending"].as_u64().unwrap();
    assert!(pending >= records);
    until("the state is on the disk", 60, || {
        let status = gateway.status();
        (status["buffer"]["disk"] == "ok" && status["withheld"] == 0).then_some(())
    });
    let began = Instant::now();
    gateway.restart();
    let (ready, peak) = (began.elapsed(), peak_mib(&gateway));
    eprintln!(
        "{} MiB of backlog: ready after {ready:?}, {peak} MiB resident at most",
        records / 256
    );
    assert!(peak < 128, "{peak} MiB");
    assert!(gateway.check_identity()["pending"].as_u64() >= Some(pending));
}
