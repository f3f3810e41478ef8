//! A backlog on a slow link: alarms go first, and the status says whether it will ever be over.
//!
//! The long form: `SPARKGATE_BACKLOG=100000`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::delivery::with_pack;
use crate::harness::fleet::{Fleet, Plan, setting};
use crate::harness::gateway::Gateway;
use crate::harness::mqtt::Node;
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
