//! Packets to bytes.

use super::property::id;
use super::{Qos, Version, reason};

/// CONNACK's fields; `None` leaves a property out.
#[derive(Debug, Clone, Default)]
pub(crate) struct Connack<'a> {
    pub(crate) session_present: bool,
    /// v5 reason code; translated for v3.1.1.
    pub(crate) reason: u8,
    pub(crate) session_expiry: Option<u32>,
    pub(crate) receive_maximum: Option<u16>,
    pub(crate) max_packet: Option<u32>,
    pub(crate) assigned_client: Option<&'a str>,
    pub(crate) topic_alias_max: Option<u16>,
    pub(crate) server_keep_alive: Option<u16>,
}

/// PUBLISH towards a subscriber.
#[derive(Debug, Clone)]
pub(crate) struct OutPublish<'a> {
    pub(crate) dup: bool,
    pub(crate) qos: Qos,
    pub(crate) retain: bool,
    pub(crate) pid: u16,
    /// Empty where the alias is known to the client.
    pub(crate) topic: &'a str,
    pub(crate) payload: &'a [u8],
    pub(crate) alias: Option<u16>,
    /// Seconds left.
    pub(crate) expiry: Option<u32>,
    pub(crate) subscription_ids: &'a [u32],
    pub(crate) forward: &'a [u8],
}

fn varint_len(value: usize) -> usize {
    match value {
        0..=0x7f => 1,
        0x80..=0x3fff => 2,
        0x4000..=0x1f_ffff => 3,
        _ => 4,
    }
}

fn put_varint(out: &mut Vec<u8>, mut value: usize) {
    loop {
        let byte = (value & 0x7f) as u8;
        value >>= 7;
        if value == 0 {
            out.push(byte);
            return;
        }
        out.push(byte | 0x80);
    }
}

/// Texts that reach this are at most 65,535 bytes: they came through a two-byte length or were checked.
fn put_text(out: &mut Vec<u8>, text: &str) {
    let n = u16::try_from(text.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&n.to_be_bytes());
    out.extend_from_slice(text.as_bytes().get(..usize::from(n)).unwrap_or_default());
}

/// v3.1.1's return code for a refusal.
fn return_code(code: u8) -> u8 {
    match code {
        reason::SUCCESS => 0,
        reason::UNSUPPORTED_VERSION => 1,
        reason::CLIENT_ID_INVALID => 2,
        reason::BAD_USER_OR_PASSWORD => 4,
        reason::NOT_AUTHORIZED | reason::BAD_AUTHENTICATION_METHOD => 5,
        _ => 3,
    }
}

/// Appends a CONNACK.
pub(crate) fn connack(out: &mut Vec<u8>, version: Version, c: &Connack<'_>) {
    let present = u8::from(c.session_present && c.reason == reason::SUCCESS);
    if version == Version::V311 {
        out.extend_from_slice(&[0x20, 2, present, return_code(c.reason)]);
        return;
    }
    let mut properties = Vec::new();
    if let Some(seconds) = c.session_expiry {
        properties.push(id::SESSION_EXPIRY);
        properties.extend_from_slice(&seconds.to_be_bytes());
    }
    let shorts = [
        (id::RECEIVE_MAXIMUM, c.receive_maximum),
        (id::TOPIC_ALIAS_MAXIMUM, c.topic_alias_max),
        (id::SERVER_KEEP_ALIVE, c.server_keep_alive),
    ];
    for (property, value) in shorts {
        if let Some(value) = value {
            properties.push(property);
            properties.extend_from_slice(&value.to_be_bytes());
        }
    }
    if let Some(bytes) = c.max_packet {
        properties.push(id::MAXIMUM_PACKET);
        properties.extend_from_slice(&bytes.to_be_bytes());
    }
    if let Some(client) = c.assigned_client {
        properties.push(id::ASSIGNED_CLIENT_ID);
        put_text(&mut properties, client);
    }
    out.push(0x20);
    put_varint(out, 2 + varint_len(properties.len()) + properties.len());
    out.extend_from_slice(&[present, c.reason]);
    put_varint(out, properties.len());
    out.extend_from_slice(&properties);
}

fn publish_properties_len(p: &OutPublish<'_>) -> usize {
    let ids: usize = p
        .subscription_ids
        .iter()
        .map(|n| 1 + varint_len(usize::try_from(*n).unwrap_or(usize::MAX)))
        .sum();
    p.forward.len() + ids + p.alias.map_or(0, |_| 3) + p.expiry.map_or(0, |_| 5)
}

fn publish_remaining(version: Version, p: &OutPublish<'_>) -> usize {
    let id = if p.qos == Qos::AtMostOnce { 0 } else { 2 };
    let properties = match version {
        Version::V311 => 0,
        Version::V5 => {
            let n = publish_properties_len(p);
            n + varint_len(n)
        }
    };
    2 + p.topic.len() + id + properties + p.payload.len()
}

/// Bytes that [`publish`] would append.
pub(crate) fn publish_len(version: Version, p: &OutPublish<'_>) -> usize {
    let remaining = publish_remaining(version, p);
    1 + varint_len(remaining) + remaining
}

/// Appends a PUBLISH.
pub(crate) fn publish(out: &mut Vec<u8>, version: Version, p: &OutPublish<'_>) {
    let remaining = publish_remaining(version, p);
    out.reserve(remaining + 5);
    out.push(0x30 | u8::from(p.dup) << 3 | (p.qos as u8) << 1 | u8::from(p.retain));
    put_varint(out, remaining);
    put_text(out, p.topic);
    if p.qos != Qos::AtMostOnce {
        out.extend_from_slice(&p.pid.to_be_bytes());
    }
    if version == Version::V5 {
        put_varint(out, publish_properties_len(p));
        if let Some(seconds) = p.expiry {
            out.push(id::MESSAGE_EXPIRY);
            out.extend_from_slice(&seconds.to_be_bytes());
        }
        if let Some(alias) = p.alias {
            out.push(id::TOPIC_ALIAS);
            out.extend_from_slice(&alias.to_be_bytes());
        }
        for n in p.subscription_ids {
            out.push(id::SUBSCRIPTION_ID);
            put_varint(out, usize::try_from(*n).unwrap_or(usize::MAX));
        }
        out.extend_from_slice(p.forward);
    }
    out.extend_from_slice(p.payload);
}

/// Appends PUBACK (`0x40`), PUBREC (`0x50`), PUBREL (`0x62`) or PUBCOMP (`0x70`).
pub(crate) fn packet_id_only(out: &mut Vec<u8>, version: Version, first: u8, pid: u16, code: u8) {
    let [high, low] = pid.to_be_bytes();
    if version == Version::V311 || code == reason::SUCCESS {
        out.extend_from_slice(&[first, 2, high, low]);
    } else {
        out.extend_from_slice(&[first, 3, high, low, code]);
    }
}

/// Appends a SUBACK; codes above 2 become 0x80 for v3.1.1.
pub(crate) fn suback(out: &mut Vec<u8>, version: Version, pid: u16, codes: &[u8]) {
    out.push(0x90);
    put_varint(out, 2 + usize::from(version == Version::V5) + codes.len());
    out.extend_from_slice(&pid.to_be_bytes());
    match version {
        Version::V5 => {
            out.push(0);
            out.extend_from_slice(codes);
        }
        Version::V311 => out.extend(codes.iter().map(|c| if *c > 2 { 0x80 } else { *c })),
    }
}

/// Appends an UNSUBACK; v3.1.1's has no codes.
pub(crate) fn unsuback(out: &mut Vec<u8>, version: Version, pid: u16, codes: &[u8]) {
    out.push(0xb0);
    match version {
        Version::V5 => {
            put_varint(out, 3 + codes.len());
            out.extend_from_slice(&pid.to_be_bytes());
            out.push(0);
            out.extend_from_slice(codes);
        }
        Version::V311 => {
            out.push(2);
            out.extend_from_slice(&pid.to_be_bytes());
        }
    }
}

/// Appends a PINGRESP.
pub(crate) fn pingresp(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0xd0, 0]);
}

/// Appends a DISCONNECT, which only v5 knows from a server.
pub(crate) fn disconnect(out: &mut Vec<u8>, version: Version, code: u8) {
    if version == Version::V5 {
        out.extend_from_slice(&[0xe0, 1, code]);
    }
}
