//! Names of devices as tokens of NATS subjects and KV keys, reversibly.
//!
//! Sparkplug ids may hold any character but `+`, `#` and `/`: dots, spaces, `*`, `>` and all of Unicode. NATS
//! subjects may not. Each name becomes one token: bytes of its UTF-8 outside `A-Z a-z 0-9 -` are written `=XX`
//! with upper-case hexadecimal digits. What stands for "none" is a lone `_`, which no escaped name can be.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::buffer::record::{Class, Key};

/// First token of every subject.
pub const ROOT: &str = "sparkgate";
/// Longest subject in bytes; names that need more are refused at the broker.
pub const MAX_LENGTH: usize = 1000;
/// The token of a missing name.
pub const NONE: &str = "_";

/// Why a token is no escaped name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnescapeError {
    /// A token has at least one character.
    #[error("empty token")]
    Empty,
    /// A character that escaping never writes.
    #[error("byte {at} is neither a letter, a digit, '-' nor an escape")]
    Character {
        /// Its position.
        at: usize,
    },
    /// `=` is followed by something else than two upper-case hexadecimal digits, or by an escape that was not
    /// necessary.
    #[error("bad escape at byte {at}")]
    Escape {
        /// Position of the `=`.
        at: usize,
    },
    /// The bytes are not UTF-8.
    #[error("not UTF-8")]
    Utf8,
}

/// A subject would be too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("names need a subject of {length} bytes, at most {MAX_LENGTH} are possible")]
pub struct TooLong {
    /// Bytes needed.
    pub length: usize,
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}

/// Appends `name` as one token.
pub fn escape_into(out: &mut String, name: &str) {
    for byte in name.bytes() {
        if is_plain(byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string can't fail.
            let _ = write!(out, "={byte:02X}");
        }
    }
}

/// `name` as one token.
#[must_use]
pub fn escape(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 8);
    escape_into(&mut out, name);
    out
}

/// The name that a token stands for.
///
/// # Errors
/// [`UnescapeError`] for whatever [`escape`] does not write.
pub fn unescape(token: &str) -> Result<String, UnescapeError> {
    if token.is_empty() {
        return Err(UnescapeError::Empty);
    }
    let mut bytes = Vec::with_capacity(token.len());
    let mut rest = token.as_bytes();
    loop {
        let at = token.len() - rest.len();
        match rest {
            [] => break,
            [b'=', high, low, tail @ ..] => {
                let byte = hex(*high)
                    .zip(hex(*low))
                    .map(|(high, low)| high << 4 | low)
                    .filter(|byte| !is_plain(*byte))
                    .ok_or(UnescapeError::Escape { at })?;
                bytes.push(byte);
                rest = tail;
            }
            [b'=', ..] => return Err(UnescapeError::Escape { at }),
            [byte, tail @ ..] if is_plain(*byte) => {
                bytes.push(*byte);
                rest = tail;
            }
            _ => return Err(UnescapeError::Character { at }),
        }
    }
    String::from_utf8(bytes).map_err(|_| UnescapeError::Utf8)
}

fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

fn push_key(out: &mut String, key: &Key) {
    for name in [&key.group, &key.node, &key.device] {
        out.push('.');
        match name {
            Some(name) => escape_into(out, name),
            None => out.push_str(NONE),
        }
    }
}

/// `sparkgate.<gateway>.<class>.<group>.<node>.<device>`.
#[must_use]
pub fn subject(gateway: &str, class: Class, key: &Key) -> String {
    let mut out = String::with_capacity(96);
    out.push_str(ROOT);
    out.push('.');
    out.push_str(gateway);
    out.push('.');
    out.push_str(class.as_str());
    push_key(&mut out, key);
    out
}

/// `<gateway>.<group>.<node>.<device>`: the key of a device in the KV buckets.
#[must_use]
pub fn kv_key(gateway: &str, key: &Key) -> String {
    let mut out = String::with_capacity(64);
    out.push_str(gateway);
    push_key(&mut out, key);
    out
}

/// Reads the last three tokens of a subject or KV key back.
///
/// # Errors
/// [`UnescapeError`] when one of them is no escaped name; [`UnescapeError::Empty`] when there are fewer.
pub fn parse_key(subject: &str) -> Result<Key, UnescapeError> {
    let mut tokens = subject.rsplit('.');
    let mut next = || match tokens.next() {
        None => Err(UnescapeError::Empty),
        Some(NONE) => Ok(None),
        Some(token) => unescape(token).map(|name| Some(Arc::from(name))),
    };
    let (device, node, group) = (next()?, next()?, next()?);
    Ok(Key {
        group,
        node,
        device,
    })
}

/// Whether every subject of these names is short enough.
///
/// # Errors
/// [`TooLong`].
pub fn check_length(
    gateway: &str,
    group: &str,
    node: &str,
    device: Option<&str>,
) -> Result<(), TooLong> {
    let escaped = |name: &str| -> usize {
        name.bytes()
            .map(|byte| if is_plain(byte) { 1 } else { 3 })
            .sum()
    };
    // The longest class is "inference" or "embedding"; five dots.
    let length = ROOT.len()
        + gateway.len()
        + "inference".len()
        + 5
        + escaped(group)
        + escaped(node)
        + device.map_or(NONE.len(), escaped);
    if length > MAX_LENGTH {
        return Err(TooLong { length });
    }
    Ok(())
}

/// Percent-encodes a name for a header: `%`, control and non-ASCII characters, leading and trailing spaces.
/// Everything else stays readable.
pub fn percent_into(out: &mut String, name: &str) {
    let last = name.len().wrapping_sub(1);
    for (at, byte) in name.bytes().enumerate() {
        let edge_space = byte == b' ' && (at == 0 || at == last);
        if byte == b'%' || !(b' '..0x7F).contains(&byte) || edge_space {
            let _ = write!(out, "%{byte:02X}");
        } else {
            out.push(char::from(byte));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn named_cases() {
        for (name, token) in [
            ("press-7", "press-7"),
            ("a.b", "a=2Eb"),
            ("a b", "a=20b"),
            ("*", "=2A"),
            (">", "=3E"),
            ("_", "=5F"),
            ("=41", "=3D41"),
            ("A", "A"),
            ("Pumpe Süd", "Pumpe=20S=C3=BCd"),
            (" trailing ", "=20trailing=20"),
        ] {
            assert_eq!(escape(name), token);
            assert_eq!(unescape(token).as_deref(), Ok(name));
        }
        let long = "x".repeat(200);
        assert_eq!(unescape(&escape(&long)), Ok(long));
    }

    #[test]
    fn only_what_escape_writes_is_read() {
        for (token, error) in [
            ("", UnescapeError::Empty),
            ("_", UnescapeError::Character { at: 0 }),
            ("a.b", UnescapeError::Character { at: 1 }),
            ("=41", UnescapeError::Escape { at: 0 }),
            ("=2e", UnescapeError::Escape { at: 0 }),
            ("ab=2", UnescapeError::Escape { at: 2 }),
            ("=FF", UnescapeError::Utf8),
        ] {
            assert_eq!(unescape(token), Err(error), "{token}");
        }
    }

    #[test]
    fn subjects_and_keys_go_both_ways() {
        let key = Key {
            group: Some("Line 1".into()),
            node: Some("gw.07".into()),
            device: None,
        };
        let subject = subject("site-a", Class::Birth, &key);
        assert_eq!(subject, "sparkgate.site-a.birth.Line=201.gw=2E07._");
        assert_eq!(parse_key(&subject), Ok(key.clone()));
        assert_eq!(parse_key(&kv_key("site-a", &key)), Ok(key));
    }

    #[test]
    fn the_longest_subject_is_counted_exactly() {
        let key = |device: &str| Key {
            group: Some("g".into()),
            node: Some("n".into()),
            device: Some(device.into()),
        };
        for device in ["d", "ü", &"ü".repeat(160), &"ü".repeat(170)] {
            let length = subject("site-a", Class::Inference, &key(device)).len();
            assert_eq!(
                check_length("site-a", "g", "n", Some(device)).is_ok(),
                length <= MAX_LENGTH
            );
        }
    }

    #[test]
    fn headers_stay_readable_and_safe() {
        let mut out = String::new();
        percent_into(&mut out, " Pumpe Süd 100% ");
        assert_eq!(out, "%20Pumpe S%C3%BCd 100%25%20");
    }

    proptest! {
        #[test]
        fn escaping_round_trips(name in "\\PC{1,40}|[\\x00-\\x7f]{1,20}") {
            let token = escape(&name);
            prop_assert!(token.bytes().all(|b| is_plain(b) || b == b'='));
            prop_assert_ne!(&token, NONE);
            prop_assert_eq!(unescape(&token), Ok(name));
        }

        #[test]
        fn different_names_have_different_tokens(a in "\\PC{1,8}", b in "\\PC{1,8}") {
            prop_assert_eq!(a == b, escape(&a) == escape(&b));
        }
    }
}
