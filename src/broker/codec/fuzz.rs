//! Any bytes at the codec's boundary.

#![allow(clippy::indexing_slicing, reason = "a test's body")]

use bytes::Bytes;

use super::{Packet, Version, decode, frame};

/// Finds everything a client may send in any bytes: nothing may panic, a frame is the same however much of it has come,
/// a payload is the same whether it is copied or shared, and a CONNECT's version is one that is spoken here.
pub(crate) fn packets(bytes: &[u8]) {
    for version in [Version::V311, Version::V5] {
        let mut rest = bytes;
        while let Ok(Some(found)) = frame(rest, 1 << 20) {
            for short in 0..found.header.min(rest.len()) {
                assert_eq!(frame(&rest[..short], 1 << 20), Ok(None), "not yet a frame");
            }
            if found.total > rest.len() {
                break;
            }
            let body = &rest[found.header..found.total];
            let owner = Bytes::copy_from_slice(body);
            let copied = decode(version, found.first, body, None);
            assert_eq!(copied, decode(version, found.first, &owner, Some(&owner)));
            match copied {
                Ok(Packet::Connect(connect)) => assert!(matches!(connect.version.level(), 4 | 5)),
                Ok(Packet::Publish(publish)) => {
                    assert!(!publish.topic.contains(['+', '#', '\0']), "{publish:?}");
                    assert!(publish.payload.len() <= body.len());
                }
                Ok(_) => {}
                Err(error) => assert!(error.reason() >= 0x80 && !error.to_string().is_empty()),
            }
            rest = &rest[found.total..];
        }
    }
}
