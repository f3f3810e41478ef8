//! How a value lies in the database.
//!
//! ```text
//! key    := 'v' key                      the value, or the head of one in parts
//!         | 'p' len(key):u16be key no:u32be    one part
//! value  := version:u8 kind:u8 crc32c:u32le content
//! kind 0 := content is the value
//! kind 1 := content is parts:u32le length:u64le; the checksum covers the parts together
//! kind 2 := content is one part
//! ```
//!
//! The checksum covers version, kind, the user's key and the content, so that a value under a wrong key
//! fails too. The database moves values beyond 64 KiB to files of their own, which it neither syncs nor
//! collects as it does the rest: hence the parts.

use std::collections::BTreeMap;

/// Version of the layout.
const VERSION: u8 = 1;
/// Largest content that is written as one value.
pub(crate) const PART: usize = 60 << 10;
const HEAD: usize = 6;
const WHOLE: u8 = 0;
const SPLIT: u8 = 1;
const PIECE: u8 = 2;

/// The value of a stored key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// All of it.
    Whole(Vec<u8>),
    /// It lies in parts.
    Split { parts: u32, len: u64, crc: u32 },
}

/// Where the value of `key` lies.
pub(crate) fn value_key(key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(key.len() + 1);
    out.push(b'v');
    out.extend_from_slice(key);
    out
}

/// The user's key of a value key.
pub(crate) fn user_key(stored: &[u8]) -> Option<&[u8]> {
    stored.strip_prefix(b"v")
}

/// Where part `no` of `key` lies.
pub(crate) fn part_key(key: &[u8], no: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(key.len() + 7);
    out.push(b'p');
    out.extend_from_slice(&(key.len() as u16).to_be_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(&no.to_be_bytes());
    out
}

fn checksum(kind: u8, key: &[u8], content: &[u8]) -> u32 {
    let head = crc32c::crc32c(&[VERSION, kind]);
    crc32c::crc32c_append(crc32c::crc32c_append(head, key), content)
}

fn wrap(kind: u8, crc: u32, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD + content.len());
    out.extend_from_slice(&[VERSION, kind]);
    out.extend_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(content);
    out
}

/// What is to be written for `key`: stored keys and values, and how many parts.
pub(crate) fn encode(key: &[u8], value: &[u8]) -> (BTreeMap<Vec<u8>, Vec<u8>>, u32) {
    let mut out = BTreeMap::new();
    if value.len() <= PART {
        out.insert(
            value_key(key),
            wrap(WHOLE, checksum(WHOLE, key, value), value),
        );
        return (out, 0);
    }
    let mut parts = 0u32;
    for part in value.chunks(PART) {
        out.insert(
            part_key(key, parts),
            wrap(PIECE, checksum(PIECE, key, part), part),
        );
        parts += 1;
    }
    let mut content = parts.to_le_bytes().to_vec();
    content.extend_from_slice(&(value.len() as u64).to_le_bytes());
    content.extend_from_slice(&checksum(SPLIT, key, value).to_le_bytes());
    out.insert(
        value_key(key),
        wrap(SPLIT, checksum(SPLIT, key, &content), &content),
    );
    (out, parts)
}

fn unwrap<'a>(key: &[u8], stored: &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (head, content) = stored.split_at_checked(HEAD)?;
    let [version, kind, crc @ ..] = head else {
        return None;
    };
    let good = *version == VERSION && checksum(*kind, key, content).to_le_bytes() == *crc;
    good.then_some((*kind, content))
}

/// Reads a value or the head of one; `None` when it is damaged.
pub(crate) fn decode(key: &[u8], stored: &[u8]) -> Option<Stored> {
    match unwrap(key, stored)? {
        (WHOLE, content) => Some(Stored::Whole(content.to_vec())),
        (SPLIT, content) => {
            let parts = u32::from_le_bytes(content.get(..4)?.try_into().ok()?);
            let len = u64::from_le_bytes(content.get(4..12)?.try_into().ok()?);
            let crc = u32::from_le_bytes(content.get(12..16)?.try_into().ok()?);
            Some(Stored::Split { parts, len, crc })
        }
        _ => None,
    }
}

/// Reads one part; `None` when it is damaged.
pub(crate) fn decode_part<'a>(key: &[u8], stored: &'a [u8]) -> Option<&'a [u8]> {
    match unwrap(key, stored)? {
        (PIECE, content) => Some(content),
        _ => None,
    }
}

/// Whether parts put together are what was written.
pub(crate) fn joined(key: &[u8], value: &[u8], len: u64, crc: u32) -> bool {
    value.len() as u64 == len && checksum(SPLIT, key, value) == crc
}
