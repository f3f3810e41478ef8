//! Sparkplug Aware: birth certificates are stored and offered by the broker
//! (tck-id-conformance-mqtt-aware-store, -nbirth-mqtt-topic, -dbirth-mqtt-topic and the two -retain ids).

use std::sync::Arc;

use bytes::Bytes;
use sparkplug::topic::{NodeVerb, Topic, TopicRef};

/// Where the broker speaks for itself; clients may not publish below it.
pub(crate) const RESERVED: &str = "$sparkplug/";

/// The certificate topic of a birth topic; `None` for any other topic.
pub(crate) fn certificate_topic(topic: &str) -> Option<Arc<str>> {
    let parsed = Topic::parse(topic).ok()?;
    parsed.certificate().map(Into::into)
}

/// Whether a topic is an edge node's death certificate.
pub(crate) fn is_ndeath(topic: &str) -> bool {
    let death = NodeVerb::Death;
    matches!(TopicRef::parse(topic), Ok(TopicRef::Node { verb, .. }) if verb == death)
}

/// A base 128 varint (protocol buffers encoding) and what follows it.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0u64;
    for (i, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return Some((value, bytes.get(i + 1..)?));
        }
    }
    None
}

/// A Sparkplug payload with another timestamp (its field 1, a varint); `None` where the bytes are no payload, which
/// then go as they came (tck-id-conformance-mqtt-aware-ndeath-timestamp).
pub(crate) fn with_timestamp(payload: &[u8], unix_ms: u64) -> Option<Bytes> {
    const TIMESTAMP: u64 = 1;
    let mut out = vec![0x08];
    let mut left = unix_ms;
    loop {
        let byte = u8::try_from(left & 0x7f).unwrap_or(0);
        left >>= 7;
        if left == 0 {
            out.push(byte);
            break;
        }
        out.push(byte | 0x80);
    }
    let mut rest = payload;
    while !rest.is_empty() {
        let (key, value) = varint(rest)?;
        let after = match key & 7 {
            0 => varint(value)?.1,
            1 => value.get(8..)?,
            2 => {
                let (length, value) = varint(value)?;
                value.get(usize::try_from(length).ok()?..)?
            }
            5 => value.get(4..)?,
            _ => return None,
        };
        let (field, _) = rest.split_at_checked(rest.len() - after.len())?;
        match (key >> 3, key & 7) {
            (TIMESTAMP, 0) => {}
            (TIMESTAMP, _) | (0, _) => return None,
            _ => out.extend_from_slice(field),
        }
        rest = after;
    }
    Some(out.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_is_replaced_and_the_rest_stays() {
        let check = |payload: &[u8], expected: Option<&[u8]>| {
            let got = with_timestamp(payload, 300);
            assert_eq!(got.as_deref(), expected, "{payload:02x?}");
        };
        check(b"", Some(b"\x08\xac\x02"));
        check(
            b"\x08\x01\x12\x02ab\x18\x05",
            Some(b"\x08\xac\x02\x12\x02ab\x18\x05"),
        );
        check(b"\x12\x02ab\x08\x01", Some(b"\x08\xac\x02\x12\x02ab"));
        check(
            b"\x21abcdefgh\x2dabcd",
            Some(b"\x08\xac\x02\x21abcdefgh\x2dabcd"),
        );
        // No payload: cut short, a group, a timestamp of another type, field 0.
        for bad in [
            &b"\x12\x05ab"[..],
            b"\x08",
            b"\x13",
            b"\x0a\x00",
            b"\x00\x01",
            b"dead",
            &[0xff; 12],
        ] {
            check(bad, None);
        }
        assert!(is_ndeath("spBv1.0/g/NDEATH/n"));
        for no in [
            "spBv1.0/g/NDEATH/n/d",
            "spBv1.0/g/DDEATH/n",
            "spBv1.0//NDEATH/n",
            "x/g/NDEATH/n",
        ] {
            assert!(!is_ndeath(no), "{no}");
        }
    }

    #[test]
    fn only_births_have_certificates() {
        let check = |topic: &str, expected: bool| {
            assert_eq!(certificate_topic(topic).is_some(), expected, "{topic}")
        };
        check("spBv1.0/g/NBIRTH/n", true);
        check("spBv1.0/g/DBIRTH/n/d", true);
        check("spBv1.0/STATE/NBIRTH/n", true);
        check("spBv1.0/g/NBIRTH/n/d", false);
        check("spBv1.0/g/DBIRTH/n", false);
        check("spBv1.0/g/DBIRTH/n/", false);
        check("spBv1.0//NBIRTH/n", false);
        check("spBv1.0/g/NDATA/n", false);
        check("spbv1.0/g/NBIRTH/n", false);
        check("$sparkplug/certificates/spBv1.0/g/NBIRTH/n", false);
        assert_eq!(
            certificate_topic("spBv1.0/g/DBIRTH/n/d").as_deref(),
            Some("$sparkplug/certificates/spBv1.0/g/DBIRTH/n/d")
        );
    }
}
