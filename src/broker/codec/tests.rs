use proptest::prelude::*;

use super::fuzz::packets as fuzz_packets;
use super::*;

fn check(version: Version, bytes: &[u8], expected: Result<Packet<'_>, DecodeError>) {
    let found = frame(bytes, 1024).unwrap().unwrap();
    assert_eq!(found.total, bytes.len());
    assert_eq!(
        decode(version, found.first, &bytes[found.header..], None),
        expected,
        "{bytes:02x?}"
    );
}

#[test]
fn packets_that_break_the_format_are_refused() {
    use DecodeError::{Malformed, Protocol, TopicName};
    let v4 = Version::V311;
    check(v4, b"\x36\x05\x00\x01a\x00\x01", Err(Malformed("QoS 3")));
    check(v4, b"\x38\x03\x00\x01a", Err(Malformed("DUP on QoS 0")));
    check(
        v4,
        b"\x30\x04\xff\xffab",
        Err(Malformed("packet ends early")),
    );
    check(v4, b"\x30\x04\x00\x02a+", Err(TopicName));
    check(v4, b"\x30\x02\x00\x00", Err(TopicName));
    check(
        v4,
        b"\x30\x05\x00\x03a\x00b",
        Err(Malformed("string holds U+0000")),
    );
    check(
        v4,
        b"\x30\x04\x00\x02\xff\xfe",
        Err(Malformed("string is not UTF-8")),
    );
    check(
        v4,
        b"\x32\x05\x00\x01a\x00\x00",
        Err(Protocol("packet id 0")),
    );
    check(
        v4,
        b"\x80\x06\x00\x01\x00\x01a\x00",
        Err(Malformed("reserved flags of the fixed header")),
    );
    check(
        v4,
        b"\x82\x02\x00\x01",
        Err(Protocol("SUBSCRIBE without a filter")),
    );
    check(
        v4,
        b"\x82\x06\x00\x01\x00\x01a\x04",
        Err(Malformed("reserved subscription options")),
    );
    check(
        v4,
        b"\xe0\x01\x00",
        Err(Malformed("bytes after the end of the packet")),
    );
    check(
        v4,
        b"\xf0\x00",
        Err(Protocol("packet type that a client may not send")),
    );
    check(
        v4,
        b"\x20\x02\x00\x00",
        Err(Protocol("packet type that a client may not send")),
    );
    let v5 = Version::V5;
    check(
        v5,
        b"\x30\x08\x00\x01a\x04\x01\x00\x01\x00",
        Err(Protocol("property is repeated")),
    );
    check(
        v5,
        b"\x30\x06\x00\x01a\x02\x0b\x01",
        Err(Protocol("property is not allowed here")),
    );
    check(
        v5,
        b"\xe0\x01\x04",
        Ok(Packet::Disconnect(Disconnect {
            reason: 4,
            session_expiry: None,
        })),
    );
}

#[test]
fn the_announced_length_is_checked_before_the_bytes_are_there() {
    assert_eq!(
        frame(b"\x30\xff\xff\xff\x7f", 1024),
        Err(DecodeError::TooLarge {
            size: 268_435_460,
            limit: 1024
        })
    );
    assert_eq!(
        frame(b"\x30\xff\xff\xff\xff\x7f", 1024),
        Err(DecodeError::Malformed("remaining length is too long"))
    );
    assert_eq!(frame(b"\x30\xff", 1024), Ok(None));
}

proptest! {
    #[test]
    fn no_bytes_break_the_decoder(
        kind in 0u8..16, flags in 0u8..16, body in proptest::collection::vec(any::<u8>(), 0..120),
    ) {
        let mut packet = vec![kind << 4 | flags, u8::try_from(body.len()).unwrap()];
        packet.extend(&body);
        fuzz_packets(&packet);
        fuzz_packets(&body);
    }

    #[test]
    fn what_is_sent_to_a_subscriber_reads_back(
        topic in "[a-zé/]{1,40}", payload in proptest::collection::vec(any::<u8>(), 0..300),
        qos in 0u8..3, retain in any::<bool>(), expiry in proptest::option::of(any::<u32>()),
        alias in proptest::option::of(1u16..), v5 in any::<bool>(),
    ) {
        let version = if v5 { Version::V5 } else { Version::V311 };
        let qos = [Qos::AtMostOnce, Qos::AtLeastOnce, Qos::ExactlyOnce][usize::from(qos)];
        let packet = OutPublish {
            dup: false, qos, retain, pid: 7, topic: &topic, payload: &payload, alias, expiry,
            subscription_ids: &[], forward: b"\x26\x00\x01k\x00\x01v",
        };
        let mut out = Vec::new();
        publish(&mut out, version, &packet);
        prop_assert_eq!(out.len(), publish_len(version, &packet));
        let found = frame(&out, 1 << 20).unwrap().unwrap();
        let Packet::Publish(back) = decode(version, found.first, &out[found.header..], None).unwrap() else {
            panic!("not a PUBLISH");
        };
        prop_assert_eq!((back.topic, &back.payload[..], back.qos, back.retain), (&*topic, &payload[..], qos, retain));
        if v5 {
            prop_assert_eq!((back.alias, back.expiry, &back.forward[..]), (alias, expiry, packet.forward));
        }
    }
}
