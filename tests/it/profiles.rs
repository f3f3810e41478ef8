//! What the profiles ask of a broker, and of a host's CONNECT, seen from outside: raw sockets, raw bytes.

use std::io::Read;
use std::net::TcpListener;
use std::time::Duration;

use crate::harness::gateway::Gateway;
use crate::harness::mqtt::{Client, Node, PATIENCE, Packet};
use crate::harness::nats::Nats;
use crate::harness::until;
use sparkplug_rs::protobuf::Message as _;

/// The next publish: topic, payload, RETAIN flag.
fn publish(client: &mut Client) -> (String, Vec<u8>, bool) {
    loop {
        match client.read().expect("a publish comes") {
            Packet::Publish { topic, payload } => return (topic, payload, client.retained),
            _ => continue,
        }
    }
}

#[test]
fn conformance_mqtt_qos0_and_qos1() {
    let gateway = Gateway::builder().start();
    let mut subscriber = Client::connect(gateway.mqtt, "s", None);
    subscriber.subscribe("plain/#", 1);
    let mut publisher = Client::connect(gateway.mqtt, "p", None);
    publisher.publish("plain/0", b"zero", 0);
    let id = publisher.publish("plain/1", b"one", 1);
    assert_eq!(publisher.read(), Some(Packet::Puback(id)));
    assert_eq!(
        publish(&mut subscriber),
        ("plain/0".into(), b"zero".to_vec(), false)
    );
    assert_eq!(
        publish(&mut subscriber),
        ("plain/1".into(), b"one".to_vec(), false)
    );
}

#[test]
fn conformance_mqtt_will_messages() {
    let gateway = Gateway::builder().start();
    let mut watcher = Client::connect(gateway.mqtt, "w", None);
    watcher.subscribe("will/#", 1);
    // The socket closes without DISCONNECT.
    drop(Client::connect(
        gateway.mqtt,
        "a",
        Some(("will/a", b"gone")),
    ));
    assert_eq!(publish(&mut watcher).0, "will/a");
    // Taken over: the old will, at once.
    let _old = Client::connect(gateway.mqtt, "b", Some(("will/b", b"old")));
    let _new = Client::connect(gateway.mqtt, "b", Some(("will/b", b"new")));
    assert_eq!(
        publish(&mut watcher),
        ("will/b".into(), b"old".to_vec(), false)
    );
    // DISCONNECT: none. What comes next is of somebody else.
    let mut polite = Client::connect(gateway.mqtt, "c", Some(("will/c", b"never")));
    polite.send(&[0xE0, 0]);
    assert_eq!(polite.read(), None);
    drop(Client::connect(
        gateway.mqtt,
        "d",
        Some(("will/d", b"gone")),
    ));
    assert_eq!(publish(&mut watcher).0, "will/d");
}

fn retained(client: &mut Client, topic: &str, payload: &[u8]) {
    let (mut bytes, id) = client.publish_bytes(topic, payload, 1);
    bytes[0] |= 1;
    client.send(&bytes);
    assert_eq!(client.read(), Some(Packet::Puback(id)));
}

#[test]
fn conformance_mqtt_retained() {
    let gateway = Gateway::builder().start();
    let mut publisher = Client::connect(gateway.mqtt, "p", None);
    retained(&mut publisher, "kept", b"first");
    retained(&mut publisher, "kept", b"last");
    let mut late = Client::connect(gateway.mqtt, "late", None);
    late.subscribe("kept", 1);
    assert_eq!(publish(&mut late), ("kept".into(), b"last".to_vec(), true));
    retained(&mut publisher, "kept", b"");
    assert_eq!(publish(&mut late), ("kept".into(), Vec::new(), false));
    let mut later = Client::connect(gateway.mqtt, "later", None);
    later.subscribe("kept", 1);
    later.subscribe("other", 1);
    retained(&mut publisher, "other", b"x");
    assert_eq!(publish(&mut later).0, "other", "an empty payload deletes");
}

/// Trap 33: the latest birth, byte for byte, retained under its own topic; the original is not retained; nobody else
/// writes there; all of it outlives a restart.
#[test]
fn conformance_mqtt_aware_basic_and_store() {
    let mut gateway = Gateway::builder().start();
    // A field that no version of the norm knows, so that a decoded and re-encoded payload would differ.
    let birth = |seq: u8| vec![0x08, 0x05, 0x18, seq, 0xFA, 0x3E, 0x02, 0x68, 0x69];
    let mut live = Client::connect(gateway.mqtt, "live", None);
    live.subscribe("spBv1.0/#", 1);
    let mut everything = Client::connect(gateway.mqtt, "all", None);
    everything.subscribe("#", 1);
    let mut node = Client::connect(gateway.mqtt, "n", None);
    node.publish("spBv1.0/g/NBIRTH/n", &birth(0), 0);
    node.publish("spBv1.0/g/DBIRTH/n/d", &birth(1), 0);
    node.publish("spBv1.0/g/NBIRTH/n", &birth(2), 0);
    for (verb, seq) in [("NBIRTH/n", 0), ("DBIRTH/n/d", 1), ("NBIRTH/n", 2)] {
        let want = (format!("spBv1.0/g/{verb}"), birth(seq), false);
        loop {
            let got = publish(&mut live);
            // This host's own STATE is retained, and its requests go out here too.
            if !got.0.contains("STATE") && !got.0.contains("NCMD") {
                assert_eq!(got, want);
                break;
            }
        }
    }
    // `#` does not cover topics that begin with `$`.
    everything
        .stream()
        .set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    while let Some(packet) = everything.read() {
        if let Packet::Publish { topic, .. } = packet {
            assert!(topic.starts_with("spBv1.0/"), "{topic}");
        }
    }
    // Nobody else may write there.
    let (mut forged, _) =
        node.publish_bytes("$sparkplug/certificates/spBv1.0/g/NBIRTH/n", b"forged", 0);
    forged[0] |= 1;
    let _ = std::io::Write::write_all(node.stream(), &forged);
    // It is dealt with when the connection is closed, or what comes behind it is answered.
    let _ = std::io::Write::write_all(node.stream(), &[0xC0, 0]);
    while node.read().is_some_and(|it| it != Packet::Other(13)) {}
    for restarted in [false, true] {
        if restarted {
            assert!(gateway.stop().success());
            gateway.restart();
        }
        let mut late = Client::connect(gateway.mqtt, "late", None);
        for (topic, seq) in [("NBIRTH/n", 2), ("DBIRTH/n/d", 1)] {
            let topic = format!("$sparkplug/certificates/spBv1.0/g/{topic}");
            late.subscribe(&topic, 1);
            assert_eq!(publish(&mut late), (topic, birth(seq), true), "{restarted}");
        }
        // The originals are not retained: all that is kept under the name space is STATE.
        let mut originals = Client::connect(gateway.mqtt, "originals", None);
        originals.subscribe("spBv1.0/g/#", 1);
        originals
            .stream()
            .set_read_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        while let Some(packet) = originals.read() {
            assert!(
                matches!(&packet, Packet::Publish { topic, .. } if topic.contains("NCMD")),
                "{packet:?}"
            );
        }
    }
}

/// Trap 34: the death that the broker sends for a node says when it was sent; all else in it stays, and so does a death
/// that the node publishes itself, and every other will.
#[test]
fn conformance_mqtt_aware_ndeath_timestamp() {
    let gateway = Gateway::builder().mqtt("ndeath_timestamp = true\n").start();
    // Timestamp 5, a field that no version of the norm knows, seq-less as a death is.
    let death = [0x08, 0x05, 0xFA, 0x3E, 0x02, 0x68, 0x69];
    let mut watcher = Client::connect(gateway.mqtt, "w", None);
    for filter in ["spBv1.0/g/NDEATH/#", "spBv1.0/g/DDEATH/#", "other"] {
        watcher.subscribe(filter, 1);
    }
    // Away while the death comes: what waits for it is the same.
    let body = b"\0\x04MQTT\x04\0\0\0\0\x04away".to_vec();
    let mut away = Client::raw(gateway.mqtt, &body);
    away.subscribe("spBv1.0/g/NDEATH/#", 1);
    away.send(&[0xE0, 0]);
    assert_eq!(away.read(), None);
    let before = crate::harness::mqtt::now_ms();
    drop(Client::connect(
        gateway.mqtt,
        "n",
        Some(("spBv1.0/g/NDEATH/n", &death)),
    ));
    let (topic, sent, _) = publish(&mut watcher);
    let after = crate::harness::mqtt::now_ms();
    assert_eq!(topic, "spBv1.0/g/NDEATH/n");
    let read = sparkplug_rs::Payload::parse_from_bytes(&sent).unwrap();
    assert!((before..=after).contains(&read.timestamp()), "{sent:02x?}");
    assert!(!read.has_seq());
    assert!(sent.ends_with(&death[2..]), "{sent:02x?}");
    let mut back = Client::raw(gateway.mqtt, &body);
    assert_eq!(publish(&mut back).1, sent, "the queued copy");
    for topic in ["spBv1.0/g/DDEATH/n/d", "other"] {
        let client = Client::connect(gateway.mqtt, "x", Some((topic, &death)));
        drop(client);
        assert_eq!(publish(&mut watcher), (topic.into(), death.to_vec(), false));
    }
    let mut node = Client::connect(gateway.mqtt, "n", None);
    node.publish("spBv1.0/g/NDEATH/n", &death, 0);
    assert_eq!(publish(&mut watcher).1, death, "published, not a will");
}

/// The CONNECT that the host sends to other brokers, read from the wire.
#[test]
fn message_flow_phid_sparkplug_clean_session() {
    for (protocol, level) in [("3.1.1", 4), ("5", 5)] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let config = format!(
            "[[host.server]]\nurl = \"mqtt://{}\"\nprotocol = \"{protocol}\"\nuser = \"u\"\n",
            listener.local_addr().unwrap()
        );
        let _gateway = Gateway::builder().config(&config).start();
        let (mut socket, _) = listener.accept().unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut bytes = [0; 512];
        let count = socket.read(&mut bytes).unwrap();
        let packet = &bytes[..count];
        assert_eq!(packet[0], 0x10, "CONNECT");
        let at = packet
            .windows(6)
            .position(|it| it == b"\0\x04MQTT")
            .expect("the protocol's name");
        let (version, flags) = (packet[at + 6], packet[at + 7]);
        assert_eq!(version, level);
        assert_eq!(
            flags & 0b0000_0010,
            0b0000_0010,
            "clean session, clean start"
        );
        assert_eq!(flags & 0b0011_1100, 0b0010_1100, "a will, QoS 1, retained");
        if level == 5 {
            let properties = &packet[at + 10..at + 11 + usize::from(packet[at + 10])];
            let expiry = properties.windows(5).find(|it| it[0] == 0x11);
            assert!(
                expiry.is_none_or(|it| it == [0x11, 0, 0, 0, 0]),
                "session expiry 0"
            );
        }
    }
}

/// Trap 10 and ch. 4: two publishers under one identity are noticed, named and alarmed.
#[test]
fn intro_edge_node_id_uniqueness_is_watched_and_alarmed() {
    let nats = Nats::start();
    let gateway = Gateway::builder().bridge(&nats.url()).start();
    let mut node = Node::birth(gateway.mqtt, "plant", "n1", "press");
    until("the node is online", 60, || {
        (gateway.status()["host"]["nodes_online"].as_u64()? == 1).then_some(())
    });
    let mut imposter = Client::connect(gateway.mqtt, "imposter", None);
    imposter.publish("spBv1.0/plant/NDATA/n1", &[0x08, 0x05, 0x18, 0x02], 0);
    let alarm = until("the alarm is in its stream", 60, || {
        nats.messages("SPARKGATE_test_ALARMS")
            .iter()
            .filter_map(|it| serde_json::from_slice::<serde_json::Value>(&it.payload).ok())
            .find(|it| it["rule"] == "sparkgate.host")
    });
    let message = alarm["message"].as_str().unwrap();
    for part in ["`n1`", "`imposter`", "plant/n1"] {
        assert!(message.contains(part), "{part} in {message}");
    }
    assert_eq!(alarm["priority"], "high");
    // The node itself goes on.
    node.temp(1.0);
    assert_eq!(gateway.check_identity()["duplicate_identities"], 1);
}
