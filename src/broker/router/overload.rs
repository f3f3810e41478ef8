//! Subscribers that are slower than their publishers.

use super::bench::{Bench, Client, connect};
use super::*;
use crate::broker::codec::{Ack, Packet, Version};
use crate::broker::link::Cause;
use crate::broker::pressure::{PATIENCE, SHARE, SPARED};

/// Bound of a queue in messages.
const BOUND: usize = 640;

fn bench() -> Bench {
    let mut config = Config::default();
    config.limits.queue_messages = BOUND;
    Bench::with(&[], &config)
}

fn subscriber(bench: &mut Bench, name: &str, filter: &str, qos: Qos) -> Client {
    let client = bench.connect(connect(name));
    bench.subscribe(&client, filter, qos);
    bench.take(&client);
    client
}

fn dropped(bench: &Bench) -> u64 {
    bench.router.dropped.list().iter().map(|(_, n)| n).sum()
}

/// Publishes like a connection does: until it has to wait, at most `most`; how many.
fn burst(bench: &mut Bench, from: &Client, topic: &str, qos: Qos, most: usize) -> usize {
    let mut n = 0;
    while n < most && !from.link.is_held() {
        bench.publish(from, topic, "x", qos, 1, false);
        from.link.drain_acks(Version::V5, &mut Vec::new());
        n += 1;
    }
    n
}

/// Takes what is there and acknowledges it; how many messages.
fn read(bench: &mut Bench, client: &Client) -> usize {
    let mut n = 0;
    loop {
        let some = bench.take(client);
        if some.is_empty() {
            return n;
        }
        n += some.len();
        for next in some {
            if let Outgoing::Publish { pid, .. } = next
                && pid > 0
            {
                let ack = Ack { pid, reason: 0 };
                let packet = Packet::Puback(ack);
                bench.send(client, packet).unwrap();
            }
        }
    }
}

#[test]
fn a_subscriber_that_reads_loses_nothing_however_fast_its_publishers_are() {
    for qos in [Qos::AtMostOnce, Qos::AtLeastOnce] {
        let mut bench = bench();
        let sub = subscriber(&mut bench, "sub", "a/#", qos);
        let publishers: Vec<Client> = (0..40)
            .map(|n| bench.connect(connect(&format!("p{n}"))))
            .collect();
        let (mut sent, mut got) = (0, 0);
        for _ in 0..200 {
            for publisher in &publishers {
                sent += burst(&mut bench, publisher, "a/b", qos, BOUND);
            }
            assert!(publishers.iter().all(|p| p.link.is_held()));
            got += read(&mut bench, &sub);
            assert!(!publishers.iter().any(|p| p.link.is_held()));
        }
        assert_eq!((got, dropped(&bench)), (sent, 0), "{qos:?}");
        assert!(sent > 100 * BOUND / 2 && sub.link.stopped().is_none());
    }
}

#[test]
fn a_subscriber_that_does_not_get_on_loses_only_its_own_messages() {
    let mut bench = bench();
    let stuck = subscriber(&mut bench, "stuck", "a/#", Qos::AtMostOnce);
    let well = subscriber(&mut bench, "well", "a/#", Qos::AtMostOnce);
    let publisher = bench.connect(connect("p"));
    let mut sent = burst(&mut bench, &publisher, "a/b", Qos::AtMostOnce, BOUND);
    assert!(sent < BOUND && publisher.link.is_held());
    let mut got = read(&mut bench, &well);
    assert!(publisher.link.is_held());
    bench.pass(PATIENCE.as_secs());
    for _ in 0..10 {
        let n = burst(&mut bench, &publisher, "a/b", Qos::AtMostOnce, BOUND / 4);
        assert_eq!(n, BOUND / 4, "nobody waits for it any more");
        sent += n;
        got += read(&mut bench, &well);
    }
    assert_eq!(got, sent);
    assert_eq!(
        read(&mut bench, &stuck) as u64 + dropped(&bench),
        sent as u64
    );
    // It has caught up: it may be waited for again, in a while.
    bench.pass(SPARED.as_secs());
    burst(&mut bench, &publisher, "a/b", Qos::AtMostOnce, BOUND);
    assert!(publisher.link.is_held());
}

/// New clients that subscribe and never read, one after the other, stop a publisher once, not for ever; one that reads is
/// waited for again afterwards.
#[test]
fn a_procession_of_clients_that_never_read_does_not_stop_a_publisher() {
    let mut bench = bench();
    let publisher = bench.connect(connect("p"));
    let mut waited = 0;
    for n in 0..9 {
        let stuck = subscriber(&mut bench, &format!("s{n}"), "a", Qos::AtMostOnce);
        for _ in 0..PATIENCE.as_secs() {
            burst(&mut bench, &publisher, "a", Qos::AtMostOnce, BOUND);
            waited += u64::from(publisher.link.is_held());
            bench.pass(1);
        }
        bench.end(&stuck, Cause::Socket);
    }
    assert_eq!(waited, PATIENCE.as_secs());
    bench.pass(SPARED.as_secs());
    subscriber(&mut bench, "next", "a", Qos::AtMostOnce);
    burst(&mut bench, &publisher, "a", Qos::AtMostOnce, BOUND);
    assert!(publisher.link.is_held());
}

#[test]
fn patience_lasts_while_a_share_is_taken() {
    let mut bench = bench();
    let sub = subscriber(&mut bench, "sub", "a", Qos::AtLeastOnce);
    let publisher = bench.connect(connect("p"));
    burst(&mut bench, &publisher, "a", Qos::AtLeastOnce, BOUND);
    let take = |bench: &mut Bench, n: usize| {
        let (mut control, mut out) = (Vec::new(), Vec::new());
        for _ in 0..n {
            bench
                .router
                .take(bench.now, sub.key, 1, &mut control, &mut out);
        }
    };
    let seconds = PATIENCE.as_secs() - 1;
    for _ in 0..5 {
        take(&mut bench, BOUND / SHARE);
        bench.pass(seconds);
        assert!(publisher.link.is_held());
    }
    take(&mut bench, 1);
    bench.pass(seconds);
    assert!(!publisher.link.is_held(), "one message is not getting on");
}

#[test]
fn clients_that_wait_for_each_other_are_read() {
    let mut bench = bench();
    let a = subscriber(&mut bench, "a", "to/a", Qos::AtLeastOnce);
    let b = subscriber(&mut bench, "b", "to/b", Qos::AtLeastOnce);
    burst(&mut bench, &a, "to/b", Qos::AtLeastOnce, BOUND);
    assert!(a.link.is_held());
    burst(&mut bench, &b, "to/a", Qos::AtLeastOnce, BOUND / 2 + 5);
    assert!(!a.link.is_held() && !b.link.is_held());
    read(&mut bench, &a);
    assert!(a.link.is_held(), "b is still behind");
    // Its own messages hold nobody up.
    bench.subscribe(&a, "own", Qos::AtMostOnce);
    bench.take(&a);
    bench.end(&b, Cause::Socket);
    assert!(!a.link.is_held(), "a subscriber that is gone holds nobody");
    assert_eq!(burst(&mut bench, &a, "own", Qos::AtMostOnce, BOUND), BOUND);
}
