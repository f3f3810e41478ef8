//! A backlog on a slow link: alarms go first, and the status says whether it will ever be over.
//!
//! The long form: `SPARKGATE_BACKLOG=100000`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::delivery::with_pack;
use crate::harness::fleet::{Fleet, Plan, setting};
use crate::harness::gateway::Gateway;
use crate::harness::mqtt::Node;
use crate::harness::nats::Nats;
use crate::harness::proxy::{Fault, Proxy};
use crate::harness::until;

/// A record with its headers takes about this on the wire, its acknowledgement included.
const RECORD_BYTES: u32 = 1_100;

/// 50 records a second until it is told to stop, from a device of its own.
fn live(address: std::net::SocketAddr, stop: Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut node = Node::birth(address, "live", "live", "live");
        while !stop.load(Ordering::Relaxed) {
            node.temp(20.0);
            std::thread::park_timeout(Duration::from_millis(20));
        }
    })
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
    let stop = Arc::new(AtomicBool::new(false));
    let live = live(gateway.mqtt, stop.clone());
    let data = || nats.count("SPARKGATE_test");
    until("the backlog is on its way", 120, || {
        (data() > 0).then_some(())
    });
    let (before, raised) = (data(), Instant::now());
    node.temp(95.0);
    until("the alarm is in its stream", 60, || {
        (nats.count("SPARKGATE_test_ALARMS") > 0).then_some(())
    });
    let (overtaken, took) = (data() - before, raised.elapsed());
    eprintln!("alarm after {took:?}; {overtaken} records of the backlog went meanwhile");
    // What the link carries in two seconds, whatever else this machine does.
    assert!(
        overtaken <= 200,
        "{overtaken} records went before the alarm"
    );

    let eta = || gateway.status()["uplink"]["lanes"]["data"]["drain_eta_s"].clone();
    until("an estimate of the end", 120, || eta().as_f64());
    proxy.set(Fault::Slow(20 * RECORD_BYTES));
    until("it is said that it will not drain", 120, || {
        eta().is_null().then_some(())
    });
    proxy.set(Fault::None);
    stop.store(true, Ordering::Relaxed);
    live.join().unwrap();
    until("everything has left", 300, || {
        (gateway.check_identity()["pending"] == 0).then_some(())
    });
    crate::harness::fleet::check_chain(&nats.messages("SPARKGATE_test"));
}
