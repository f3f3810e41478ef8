//! STATE: the host's own life.

use super::*;
use crate::state::HostState;

const SERVER: ServerId = ServerId(0);

fn states(bench: &mut Bench) -> Vec<(String, HostState)> {
    bench
        .transmits()
        .into_iter()
        .map(|it| {
            assert_eq!((it.qos, it.retain), (1, true));
            (it.topic, HostState::parse(&it.payload).unwrap())
        })
        .collect()
}

fn state(online: bool, timestamp: u64) -> HostState {
    HostState {
        online,
        timestamp: Some(timestamp),
    }
}

const TOPIC: &str = "spBv1.0/STATE/sparkgate";

#[test]
fn host_topic_phid_birth_payload_timestamp_equals_the_will() {
    let mut bench = Bench::new();
    let connect = bench.session.connect(SERVER, 0, EPOCH);
    let will = connect.will.expect("a will");
    assert_eq!(will.topic, TOPIC);
    assert_eq!((will.qos, will.retain), (1, true));
    assert_eq!(HostState::parse(&will.payload), Ok(state(false, EPOCH)));
    assert_eq!(connect.filters, ["spBv1.0/#", TOPIC]);
    assert!(bench.transmits().is_empty());
    bench.session.subscribed(SERVER, 70);
    assert_eq!(states(&mut bench), [(TOPIC.into(), state(true, EPOCH))]);
    // A new CONNECT, a new time.
    bench.session.disconnected(SERVER, 80, EPOCH + 80);
    let connect = bench.session.connect(SERVER, 90, EPOCH + 90);
    assert_eq!(
        HostState::parse(&connect.will.expect("a will").payload),
        Ok(state(false, EPOCH + 90))
    );
}

#[test]
fn message_flow_hid_sparkplug_state_message_delivered() {
    let mut bench = Bench::new();
    bench.session.connect(SERVER, 0, EPOCH);
    let offline = |ts| HostState::body(false, ts);
    // Before the birth, and out of the store: not answered.
    bench.raw(TOPIC, &offline(1));
    bench.session.subscribed(SERVER, 0);
    bench.deliver(TOPIC, &offline(1), |it| it.retained = true);
    assert_eq!(states(&mut bench).len(), 1);
    for ts in [EPOCH - 1, EPOCH, EPOCH + 1] {
        bench.raw(TOPIC, &offline(ts));
        assert_eq!(states(&mut bench), [(TOPIC.into(), state(true, EPOCH))]);
    }
    // Its own online, and another host's offline: nothing.
    bench.raw(TOPIC, &HostState::body(true, EPOCH));
    bench.raw("spBv1.0/STATE/other", &offline(1));
    assert!(states(&mut bench).is_empty());
}

#[test]
fn host_topic_phid_death_payload_timestamp_disconnect_clean() {
    let mut bench = Bench::new();
    bench.session.connect(SERVER, 0, EPOCH);
    bench.session.subscribed(SERVER, 0);
    bench.transmits();
    let death = bench.session.stop(SERVER, EPOCH + 500).expect("a death");
    assert_eq!(
        HostState::parse(&death.payload),
        Ok(state(false, EPOCH + 500))
    );
    // Its own death comes back: it stays dead.
    bench.raw(TOPIC, &death.payload);
    assert!(bench.transmits().is_empty());
}

#[test]
fn operational_behavior_host_application_host_id_taken_twice_is_reported_not_fought_for_ever() {
    let mut bench = Bench::new();
    bench.session.connect(SERVER, 0, EPOCH);
    bench.session.subscribed(SERVER, 0);
    for _ in 0..50 {
        bench.raw(TOPIC, &HostState::body(false, EPOCH));
    }
    assert_eq!(states(&mut bench).len(), 11);
    let conflicts = bench.story().iter().filter(|it| *it == "conflict").count();
    assert_eq!(conflicts, 1);
}

#[test]
fn host_topic_phid_birth_message_comes_before_any_command() {
    let mut bench = Bench::new();
    bench.session.connect(SERVER, 0, EPOCH);
    bench.ddata(3, 1.0);
    bench.advance(3_000);
    assert!(bench.transmits().is_empty());
    bench.session.subscribed(SERVER, bench.now);
    let topics: Vec<String> = bench.transmits().into_iter().map(|it| it.topic).collect();
    assert_eq!(topics, [TOPIC, "spBv1.0/g/NCMD/n"]);
}

#[test]
fn operational_behavior_host_application_multi_server_timestamp_and_loss_of_one_link() {
    let mut bench = Bench::new();
    let other = ServerId(1);
    for (server, at) in [(SERVER, 0), (other, 7)] {
        let connect = bench.session.connect(server, at, EPOCH + at);
        assert_eq!(
            HostState::parse(&connect.will.expect("a will").payload),
            Ok(state(false, EPOCH + at))
        );
        bench.session.subscribed(server, at);
    }
    bench.nbirth(0, 0);
    let birth = encode(
        Some(EPOCH),
        Some(0),
        &[bdseq_metric(0).at(EPOCH)],
        Form::Full,
    );
    bench.deliver("spBv1.0/g/NBIRTH/m", &birth, |it| it.server = other);
    bench.session.disconnected(other, 100, EPOCH + 100);
    let stale = |bench: &Bench, node: &str| {
        let id = NodeId::new("g", node).unwrap();
        let view = bench.session.device(&id, None).unwrap();
        view.metrics().iter().all(|it| it.stale)
    };
    assert!(!stale(&bench, "n"));
    assert!(stale(&bench, "m"));
    // Back again: what may have been missed is asked for, after the birth.
    bench.transmits();
    bench.session.connect(other, 200, EPOCH + 200);
    bench.session.subscribed(other, 210);
    let topics: Vec<String> = bench.transmits().into_iter().map(|it| it.topic).collect();
    assert_eq!(topics, [TOPIC, "spBv1.0/g/NCMD/m"]);
}

#[test]
fn nothing_is_sent_through_a_server_that_is_only_expected() {
    let mut bench = Bench::new();
    bench.session.expect(SERVER);
    bench.ddata(3, 1.0);
    bench.advance(3_000);
    assert!(bench.transmits().is_empty());
    assert_eq!(bench.session.servers(), [SERVER]);
    bench.session.connect(SERVER, bench.now, EPOCH);
    bench.session.subscribed(SERVER, bench.now);
    assert_eq!(bench.transmits().len(), 2);
}

#[test]
fn a_host_that_is_not_primary_says_nothing_of_itself() {
    let config = HostConfig {
        publish_state: false,
        ..HostConfig::default()
    };
    let mut bench = Bench::with(config);
    assert_eq!(bench.session.connect(SERVER, 0, EPOCH).will, None);
    bench.session.subscribed(SERVER, 0);
    bench.raw(TOPIC, &HostState::body(false, EPOCH));
    assert!(bench.transmits().is_empty());
    assert_eq!(bench.session.stop(SERVER, EPOCH + 1), None);
}

#[test]
fn a_malformed_state_is_counted() {
    let mut bench = Bench::new();
    for payload in [
        &b"OFFLINE"[..],
        b"{\"online\":\"true\",\"timestamp\":1}",
        b"{\"online\":true,\"timestamp\":\"1\"}",
        b"{\"online\":true}",
    ] {
        bench.raw(TOPIC, payload);
    }
    assert_eq!(bench.story(), ["invalid state"; 4]);
}
