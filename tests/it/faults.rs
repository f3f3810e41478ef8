//! What goes wrong between a gateway and its server, to a real process over a bad link: each record that was
//! acknowledged to a device is in the stream once, in the device's order, and a consumer can prove it.
//!
//! The long form: `SPARKGATE_RECORDS=200000 SPARKGATE_KILLS=5 SPARKGATE_FULL_SECONDS=60`, and `SPARKGATE_NATS_SERVER`
//! for another server.

use std::time::{Duration, Instant};

use crate::harness::fleet::{Fleet, Plan, check_chain, setting};
use crate::harness::gateway::Gateway;
use crate::harness::nats::{Nats, Stored};
use crate::harness::proxy::{Cut, Fault, Proxy};
use crate::harness::until;

const DATA: &str = "SPARKGATE_test";

/// 1,000 devices at 20 nodes.
fn plan(records: u64) -> Plan {
    Plan::of(records, 20, 50)
}

/// How long a fault lasts: a stimulus, nothing is waited for.
fn hold(time: Duration) {
    std::thread::park_timeout(time);
}

/// Alarms of a stream that was lost.
fn losses(nats: &Nats) -> usize {
    let alarms = nats.messages("SPARKGATE_test_ALARMS");
    let told = |m: &&Stored| m.json()["values"]["word"] == "bridge-stream-lost";
    alarms.iter().filter(told).count()
}

/// Waits until the gateway noticed what became of its stream: until then nothing may be pending.
fn told_of(nats: &Nats, count: usize) {
    until("the loss is told", 180, || {
        (losses(nats) >= count).then_some(())
    });
}

#[test]
fn kills_and_a_broken_link_lose_and_double_nothing() {
    let (records, kills) = (
        setting("SPARKGATE_RECORDS", 20_000),
        setting("SPARKGATE_KILLS", 2),
    );
    let mut nats = Nats::start();
    let proxy = Proxy::to(nats.port());
    let mut gateway = Gateway::builder().bridge(&proxy.url()).start();
    let fleet = Fleet::start(gateway.mqtt, plan(records));
    let steps = kills * 2;
    for step in 0..steps {
        fleet.reach(records * (step + 1) / (steps + 2));
        // A fault of the link, and in the midst of it a kill.
        match step % 5 {
            0 => proxy.cut(Cut::Reset),
            1 => proxy.cut(Cut::HalfClose),
            2 => proxy.set(Fault::Slow(20_000)),
            3 => proxy.set(Fault::Blackhole),
            _ => proxy.set(Fault::Mute),
        }
        if step % 2 == 0 {
            gateway.restart();
        } else {
            nats.kill();
            hold(Duration::from_millis(300));
            nats.restart();
        }
        hold(Duration::from_millis(500));
        proxy.set(Fault::None);
    }
    // Silence for longer than the bridge waits for an acknowledgement.
    proxy.set(Fault::Blackhole);
    until("the bridge gives the silent connection up", 180, || {
        let state = gateway.status()["uplink"]["state"].clone();
        (state != "ok").then_some(())
    });
    proxy.set(Fault::None);
    let account = fleet.finish();
    gateway.drained();
    let messages = nats.messages(DATA);
    assert_eq!(messages[0].prev(), 0, "the stream begins with the journal");
    account.check(&messages);
    assert!(gateway.stop().success());
}

#[test]
fn what_becomes_of_the_stream_costs_no_record() {
    let records = setting("SPARKGATE_RECORDS", 20_000) / 5;
    let mut nats = Nats::start();
    let mut gateway = Gateway::builder().bridge(&nats.url()).start();
    let mut plan = plan(records.max(2_000));
    let half = plan.records() / 2;

    // The dedupe window is shorter than the outage.
    let fleet = Fleet::start(gateway.mqtt, plan);
    fleet.reach(half / 2);
    nats.change(DATA, |stream| {
        stream.duplicate_window = Duration::from_secs(1);
    });
    fleet.reach(half);
    nats.kill();
    hold(Duration::from_millis(1_200));
    nats.restart();
    gateway.restart();
    let first = fleet.finish();
    gateway.drained();
    first.check(&nats.messages(DATA));

    // An older copy of the store comes back.
    nats.kill();
    let copy = nats.snapshot();
    nats.restart();
    let before = nats.count(DATA);
    let last = nats.messages(DATA).last().map_or(0, |m| m.record());
    plan = plan.next();
    let fleet = Fleet::start(gateway.mqtt, plan);
    fleet.reach(half);
    until("the stream is ahead of the copy", 60, || {
        let acked = gateway.status()["uplink"]["lanes"]["data"]["acked"].as_u64()?;
        (nats.count(DATA) > before && acked > last).then_some(())
    });
    nats.kill();
    nats.restore(&copy);
    nats.restart();
    let second = fleet.finish();
    told_of(&nats, 1);
    gateway.drained();
    let messages = nats.messages(DATA);
    first.check(&messages);
    second.check(&messages);

    // Deleted, in the midst of records; made again and filled with what the journal still keeps.
    plan = plan.next();
    let fleet = Fleet::start(gateway.mqtt, plan);
    fleet.reach(half);
    nats.delete(DATA);
    let third = fleet.finish();
    // Where all were through before, only what comes now shows that the stream is gone.
    plan = plan.next();
    let fourth = Fleet::start(gateway.mqtt, plan).finish();
    told_of(&nats, 2);
    gateway.drained();
    let messages = nats.messages(DATA);
    assert_eq!(messages[0].prev(), 0, "from the journal's first record on");
    for account in [&first, &second, &third, &fourth] {
        account.check(&messages);
    }

    // Purged: what was there is gone by somebody's will; what comes goes on behind it.
    plan = plan.next();
    let fleet = Fleet::start(gateway.mqtt, plan);
    fleet.reach(half);
    nats.purge(DATA);
    gateway.restart();
    fleet.finish();
    gateway.drained();
    // Deaths of nodes may still be on their way.
    let messages = until("the stream ends where the gateway says", 60, || {
        let messages = nats.messages(DATA);
        let status = gateway.check_identity();
        let acked = status["uplink"]["lanes"]["data"]["acked"].as_u64();
        (messages.last().map(Stored::record) == acked).then_some(messages)
    });
    check_chain(&messages);
    assert_eq!(losses(&nats), 2, "the rollback and the deletion, no more");
    assert!(gateway.stop().success());
}

#[test]
fn a_full_stream_keeps_devices_waiting_for_nothing_and_costs_no_record() {
    let records = setting("SPARKGATE_RECORDS", 20_000) / 5;
    let full_for = Duration::from_secs(setting("SPARKGATE_FULL_SECONDS", 3));
    let nats = Nats::start();
    let mut gateway = Gateway::builder().bridge(&nats.url()).start();
    let plan = plan(records.max(2_000));
    let fleet = Fleet::start(gateway.mqtt, plan);
    until("the stream is there", 120, || {
        (nats.count(DATA) > 0).then_some(())
    });
    nats.change(DATA, |stream| stream.max_bytes = 100_000);
    // Devices are promised everything meanwhile: it is the journal that has it. Where all had left before, it is the
    // second round that finds no room.
    let first = fleet.finish();
    let second = Fleet::start(gateway.mqtt, plan.next()).finish();
    let lane = || gateway.status()["uplink"]["lanes"]["data"].clone();
    until("the server says that it is full", 120, || {
        (lane()["state"] == "full" && lane()["detail"].as_str()?.contains("maximum bytes"))
            .then_some(())
    });
    let (began, there) = (Instant::now(), nats.count(DATA));
    until("it stays full", 3_600, || {
        gateway.check_identity();
        assert!(lane()["pending"].as_u64()? > 0);
        (began.elapsed() >= full_for && lane()["state"] == "full").then_some(())
    });
    // Nothing was forced in at the cost of what was there. One by one a message may still fit that did not as one of many.
    assert!(nats.count(DATA) >= there);
    nats.change(DATA, |stream| stream.max_bytes = -1);
    gateway.drained();
    let messages = nats.messages(DATA);
    for account in [&first, &second] {
        account.check(&messages);
    }
    assert!(gateway.stop().success());
}
