//! The rules of MQTT, one by one.

use super::bench::{Bench, Client, connect, will};
use super::*;
use crate::broker::Event;
use crate::broker::codec::{Ack, Connect, Disconnect, Packet, Will, reason};
use crate::broker::link::Cause;

#[test]
fn a_subscriber_gets_the_lower_qos() {
    for (published, subscribed) in [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 1),
        (1, 2),
        (2, 0),
        (2, 1),
        (2, 2),
    ] {
        let all = [Qos::AtMostOnce, Qos::AtLeastOnce, Qos::ExactlyOnce];
        let mut bench = Bench::new(&[]);
        let (s, p) = (bench.connect(connect("s")), bench.connect(connect("p")));
        bench.subscribe(&s, "t", all[subscribed]);
        bench.publish(&p, "t", "x", all[published], 1, false);
        assert_eq!(bench.got(&s), [format!("x q{}", published.min(subscribed))]);
    }
}

/// Ends a connection in some way and tells which wills went out.
fn wills(act: impl FnOnce(&mut Bench, &Client)) -> Vec<String> {
    let mut bench = Bench::new(&[]);
    let watcher = bench.connect(connect("watcher"));
    bench.subscribe(&watcher, "w", Qos::AtLeastOnce);
    let node = bench.connect(Connect {
        will: will("w", "old"),
        ..connect("node")
    });
    act(&mut bench, &node);
    bench.got(&watcher)
}

#[test]
fn wills_go_out_exactly_when_due() {
    let leave = |reason| {
        Packet::Disconnect(Disconnect {
            reason,
            session_expiry: None,
        })
    };
    let old = vec!["old q1".to_owned()];
    assert_eq!(wills(|b, n| b.end(n, Cause::Socket)), old);
    assert_eq!(wills(|b, n| b.end(n, Cause::KeepAlive)), old);
    assert_eq!(wills(|b, n| assert!(b.send(n, Packet::Auth).is_err())), old);
    assert_eq!(wills(|b, n| assert!(b.send(n, leave(4)).is_err())), old);
    assert!(wills(|b, n| assert!(b.send(n, leave(0)).is_err())).is_empty());
    assert!(wills(|b, n| b.end(n, Cause::Shutdown)).is_empty());
    let taken = wills(|b, n| {
        let new = b.connect(Connect {
            will: will("w", "new"),
            ..connect("node")
        });
        b.publish(&new, "w", "birth", Qos::AtLeastOnce, 1, false);
        b.end(n, Cause::Socket);
        b.end(&new, Cause::Socket);
    });
    assert_eq!(taken, ["old q1", "birth q1", "new q1"]);
}

#[test]
fn a_refused_connect_leaves_no_will() {
    let mut bench = Bench::new(&[]);
    let watcher = bench.connect(connect("watcher"));
    bench.subscribe(&watcher, "#", Qos::AtLeastOnce);
    let foreign = Connect {
        user: Some("g/n".into()),
        will: will("spBv1.0/g/NDEATH/other", "x"),
        ..connect("a")
    };
    assert_eq!(
        bench.try_connect(foreign).err(),
        Some(reason::NOT_AUTHORIZED)
    );
    let reserved = Connect {
        will: will("$sparkplug/certificates/x", "x"),
        ..connect("a")
    };
    assert_eq!(
        bench.try_connect(reserved).err(),
        Some(reason::NOT_AUTHORIZED)
    );
    let method = Connect {
        authentication_method: true,
        will: will("w", "x"),
        ..connect("a")
    };
    assert_eq!(
        bench.try_connect(method).err(),
        Some(reason::BAD_AUTHENTICATION_METHOD)
    );
    assert!(bench.got(&watcher).is_empty());
}

#[test]
fn a_client_id_can_not_be_taken_by_another_user() {
    let mut bench = Bench::new(&[]);
    let first = bench.connect(Connect {
        user: Some("g/n".into()),
        ..connect("id")
    });
    assert!(
        bench
            .try_connect(Connect {
                user: Some("g/m".into()),
                ..connect("id")
            })
            .is_err()
    );
    assert_eq!(first.link.stopped(), None);
    bench.connect(Connect {
        user: Some("g/n".into()),
        ..connect("id")
    });
    assert_eq!(first.link.stopped(), Some(Cause::TakeOver));
}

#[test]
fn a_delayed_will_waits_and_is_dropped_when_the_client_returns() {
    for (back_after, expected) in [(3, 0), (9, 1)] {
        let mut bench = Bench::new(&[]);
        let watcher = bench.connect(connect("watcher"));
        bench.subscribe(&watcher, "w", Qos::AtLeastOnce);
        let delayed = will("w", "x").map(|w| Will { delay: 5, ..w });
        let request = Connect {
            will: delayed,
            session_expiry: 100,
            clean: false,
            ..connect("node")
        };
        let node = bench.connect(request.clone());
        bench.end(&node, Cause::Socket);
        bench.pass(back_after);
        let node = bench.connect(Connect {
            will: None,
            ..request
        });
        bench.end(&node, Cause::Client);
        bench.pass(20);
        assert_eq!(
            bench.got(&watcher).len(),
            expected,
            "back after {back_after} s"
        );
    }
}

#[test]
fn sessions_keep_messages_until_they_expire() {
    for (away, expected) in [(5, vec!["1 q1", "2 q2"]), (20, vec![])] {
        let mut bench = Bench::new(&[]);
        let request = Connect {
            session_expiry: 10,
            clean: false,
            ..connect("s")
        };
        let (s, p) = (bench.connect(request.clone()), bench.connect(connect("p")));
        bench.subscribe(&s, "t", Qos::ExactlyOnce);
        bench.end(&s, Cause::Socket);
        bench.publish(&p, "t", "0", Qos::AtMostOnce, 0, false);
        bench.publish(&p, "t", "1", Qos::AtLeastOnce, 1, false);
        bench.publish(&p, "t", "2", Qos::ExactlyOnce, 2, false);
        bench.pass(away);
        let s = bench.connect(request);
        assert_eq!(bench.got(&s), expected, "away for {away} s");
    }
}

#[test]
fn unacknowledged_messages_come_again_with_dup_before_the_rest() {
    let mut bench = Bench::new(&[]);
    let request = Connect {
        session_expiry: 10,
        clean: false,
        receive_maximum: 2,
        ..connect("s")
    };
    let (s, p) = (bench.connect(request.clone()), bench.connect(connect("p")));
    bench.subscribe(&s, "t", Qos::AtLeastOnce);
    for n in 1..=4 {
        bench.publish(&p, "t", &n.to_string(), Qos::AtLeastOnce, n, false);
    }
    assert_eq!(bench.got(&s), ["1 q1", "2 q1"]);
    let s = bench.connect(request);
    assert_eq!(bench.got(&s), ["1 q1 dup", "2 q1 dup"]);
    for pid in [1, 2] {
        bench
            .send(&s, Packet::Puback(Ack { pid, reason: 0 }))
            .unwrap();
    }
    assert_eq!(bench.got(&s), ["3 q1", "4 q1"]);
}

#[test]
fn acknowledgements_wait_for_the_pipeline_and_a_lost_one_closes_the_session() {
    let mut bench = Bench::new(&["spBv1.0/#"]);
    let p = bench.connect(connect("p"));
    bench.publish(&p, "spBv1.0/g/DDATA/n/d", "1", Qos::AtLeastOnce, 1, false);
    bench.publish(&p, "other", "2", Qos::AtLeastOnce, 2, false);
    assert!(bench.acks(&p).is_empty(), "the second waits for the first");
    bench.answer(true);
    assert_eq!(bench.acks(&p), [0x40, 2, 0, 1, 0x40, 2, 0, 2]);
    bench.publish(&p, "spBv1.0/g/DDATA/n/d", "3", Qos::AtLeastOnce, 3, false);
    bench.answer(false);
    assert_eq!(p.link.stopped(), Some(Cause::AckLost));
}

#[test]
fn a_repeated_qos_2_publish_is_handed_over_once() {
    let mut bench = Bench::new(&["t"]);
    let s = bench.connect(connect("s"));
    bench.subscribe(&s, "t", Qos::ExactlyOnce);
    let request = Connect {
        session_expiry: 10,
        clean: false,
        ..connect("p")
    };
    let p = bench.connect(request.clone());
    bench.publish(&p, "t", "x", Qos::ExactlyOnce, 7, false);
    let again = bench.connect(request);
    bench.publish(&again, "t", "x", Qos::ExactlyOnce, 7, false);
    let publishes = bench
        .pipeline
        .iter()
        .filter(|d| matches!(d, Delivery::Publish(_)))
        .count();
    assert_eq!(publishes, 1);
    bench.answer(true);
    assert_eq!(bench.acks(&again), [0x50, 2, 0, 7]);
    assert_eq!(bench.got(&s), ["x q2"]);
    bench
        .send(&again, Packet::Pubrel(Ack { pid: 7, reason: 0 }))
        .unwrap();
    bench.publish(&again, "t", "y", Qos::ExactlyOnce, 7, false);
    assert_eq!(bench.got(&s), ["y q2"]);
}

#[test]
fn birth_certificates_are_offered_and_clients_can_not_forge_them() {
    let mut bench = Bench::new(&["spBv1.0/#"]);
    let live = bench.connect(connect("live"));
    bench.subscribe(&live, "$sparkplug/certificates/#", Qos::AtLeastOnce);
    let all = bench.connect(connect("all"));
    bench.subscribe(&all, "#", Qos::AtLeastOnce);
    let node = bench.connect(connect("node"));
    bench.publish(
        &node,
        "spBv1.0/g/NBIRTH/n",
        "birth",
        Qos::AtMostOnce,
        0,
        false,
    );
    bench.publish(
        &node,
        "$sparkplug/certificates/spBv1.0/g/NBIRTH/n",
        "forged",
        Qos::AtLeastOnce,
        1,
        true,
    );
    assert_eq!(bench.acks(&node), [0x40, 3, 0, 1, reason::NOT_AUTHORIZED]);
    assert_eq!(bench.got(&live), ["birth q0"]);
    assert_eq!(bench.got(&all), ["birth q0"]);
    let late = bench.connect(connect("late"));
    bench.subscribe(
        &late,
        "$sparkplug/certificates/spBv1.0/+/NBIRTH/+",
        Qos::AtLeastOnce,
    );
    bench.subscribe(&late, "spBv1.0/#", Qos::AtLeastOnce);
    assert_eq!(bench.got(&late), ["birth q0 retain"]);
}

#[test]
fn only_a_retained_empty_payload_deletes() {
    let mut bench = Bench::new(&[]);
    let p = bench.connect(connect("p"));
    bench.publish(&p, "t", "v", Qos::AtLeastOnce, 1, true);
    bench.publish(&p, "t", "", Qos::AtLeastOnce, 2, false);
    let s = bench.connect(connect("s"));
    bench.subscribe(&s, "t", Qos::AtLeastOnce);
    bench.subscribe(&s, "t", Qos::AtLeastOnce);
    assert_eq!(bench.got(&s), ["v q1 retain", "v q1 retain"]);
    bench.publish(&p, "t", "", Qos::AtLeastOnce, 3, true);
    bench.subscribe(&s, "t", Qos::AtLeastOnce);
    assert_eq!(bench.got(&s), [" q1"]);
}

#[test]
fn state_is_the_same_after_a_restart() {
    let mut bench = Bench::new(&[]);
    let request = Connect {
        session_expiry: 100,
        clean: false,
        ..connect("s")
    };
    let (s, p) = (bench.connect(request.clone()), bench.connect(connect("p")));
    bench.subscribe(&s, "t/#", Qos::AtLeastOnce);
    bench.publish(&p, "t/kept", "r", Qos::AtLeastOnce, 1, true);
    assert_eq!(bench.got(&s), ["r q1"]);
    bench.end(&s, Cause::Socket);
    bench.publish(&p, "t/1", "queued", Qos::AtLeastOnce, 2, false);
    let (records, lost) =
        crate::broker::record::decode_all(&bench.router.snapshot().encode().into());
    assert_eq!(lost, 0);
    let mut after = Bench::new(&[]);
    after.router.restore(records, Moment::present());
    let s = after.connect(request);
    assert_eq!(after.got(&s), ["r q1 dup", "queued q1"]);
    let n = after.connect(connect("new"));
    after.subscribe(&n, "t/kept", Qos::AtMostOnce);
    assert_eq!(after.got(&n), ["r q0 retain"]);
    let connected = |d: &Delivery| matches!(d, Delivery::Event(Event::Connected { .. }));
    assert_eq!(after.pipeline.iter().filter(|d| connected(d)).count(), 2);
}

#[test]
fn an_ndeath_that_is_sent_says_when() {
    let death = |topic: &str, ndeath_timestamp: bool| {
        let config = Config {
            ndeath_timestamp,
            ..Config::default()
        };
        let mut bench = Bench::with(&[], &config);
        let host = bench.connect(connect("host"));
        bench.subscribe(&host, "#", Qos::AtLeastOnce);
        let will = will(topic, "\x08\x01\x18\x07");
        let node = bench.connect(Connect {
            will,
            ..connect("node")
        });
        bench.take(&host);
        bench.end(&node, Cause::Socket);
        let sent = bench.take(&host);
        let [Outgoing::Publish { item, .. }] = &sent[..] else {
            panic!("{sent:?}");
        };
        item.message.payload.to_vec()
    };
    let (old, new) = (b"\x08\x01\x18\x07", b"\x08\xac\x02\x18\x07");
    assert_eq!(death("spBv1.0/g/NDEATH/n", true), new);
    assert_eq!(death("spBv1.0/g/NDEATH/n", false), old);
    assert_eq!(death("other", true), old);
}

#[test]
fn new_rights_end_what_they_no_longer_allow() {
    let acl = |text: &str| crate::broker::acl::Acl::parse(text, Vec::new()).unwrap();
    let narrow = acl("[anonymous]\npublish = [\"a/#\"]\nsubscribe = [\"a/#\", \"b\"]");
    let mut bench = Bench::new(&[]);
    let (s, p) = (bench.connect(connect("s")), bench.connect(connect("p")));
    for filter in ["a/b", "b", "c", "$share/g/c"] {
        bench.subscribe(&s, filter, Qos::AtMostOnce);
    }
    let send = |bench: &mut Bench| {
        for topic in ["a/b", "b", "c"] {
            bench.publish(&p, topic, topic, Qos::AtMostOnce, 0, false);
        }
        bench.got(&s)
    };
    assert_eq!(send(&mut bench), ["a/b q0", "b q0", "c q0", "c q0"]);
    bench
        .router
        .renew_rights(|user, client| narrow.rights(user, client));
    assert_eq!(
        send(&mut bench),
        ["a/b q0"],
        "b and c may not be published any more"
    );
    assert_eq!(bench.router.clients.refused(), [("publish_rights", 2)]);
    let wide = acl("");
    bench
        .router
        .renew_rights(|user, client| wide.rights(user, client));
    assert_eq!(
        send(&mut bench),
        ["a/b q0", "b q0"],
        "the subscriptions to c are gone"
    );
}

#[test]
fn a_clean_session_that_is_taken_over_is_not_gone_on_with() {
    for (first, kept) in [(0, false), (100, true)] {
        let mut bench = Bench::new(&[]);
        let old = bench.connect(Connect {
            session_expiry: first,
            ..connect("c")
        });
        bench.subscribe(&old, "t", Qos::AtLeastOnce);
        let new = bench.connect(Connect {
            clean: false,
            session_expiry: 100,
            ..connect("c")
        });
        assert_eq!(old.link.stopped(), Some(Cause::TakeOver));
        assert_eq!(bench.router.has_subscriber("t"), kept, "expiry {first}");
        let (mut control, mut out) = (Vec::new(), Vec::new());
        bench
            .router
            .take(bench.now, new.key, 1 << 10, &mut control, &mut out);
        assert_eq!(control[2] == 1, kept, "session present, expiry {first}");
    }
}
