//! Bytes to packets.

use bytes::Bytes;

use super::property::{self, Value, id};
use super::reader::Reader;
use super::{
    Ack, Connect, DecodeError, Disconnect, Options, Packet, Publish, Qos, RetainHandling,
    Subscribe, Unsubscribe, Version, Will, reason,
};

/// Where a packet lies in a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame {
    /// First byte: type and flags.
    pub(crate) first: u8,
    /// Bytes of the fixed header.
    pub(crate) header: usize,
    /// Bytes of the whole packet.
    pub(crate) total: usize,
}

/// Finds the packet at the front of `buffer`; `None`: its fixed header is not all there yet. The limit is
/// checked on the announced length, before the packet is there.
pub(crate) fn frame(buffer: &[u8], limit: usize) -> Result<Option<Frame>, DecodeError> {
    let Some((&first, rest)) = buffer.split_first() else {
        return Ok(None);
    };
    let mut length = 0usize;
    for (i, shift) in [0, 7, 14, 21].into_iter().enumerate() {
        let Some(&byte) = rest.get(i) else {
            return Ok(None);
        };
        length |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            let header = i + 2;
            let total = header + length;
            if total > limit {
                return Err(DecodeError::TooLarge { size: total, limit });
            }
            return Ok(Some(Frame {
                first,
                header,
                total,
            }));
        }
    }
    Err(DecodeError::Malformed("remaining length is too long"))
}

/// Decodes the body of a packet. `owner` is the buffer that `body` lies in, when a payload may share it; else
/// payloads are copied.
pub(crate) fn decode<'a>(
    version: Version,
    first: u8,
    body: &'a [u8],
    owner: Option<&Bytes>,
) -> Result<Packet<'a>, DecodeError> {
    let flags = first & 0x0f;
    let kind = first >> 4;
    if kind == 3 {
        return publish(version, flags, body, owner).map(Packet::Publish);
    }
    let expected = if matches!(kind, 6 | 8 | 10) { 2 } else { 0 };
    if flags != expected {
        return Err(DecodeError::Malformed("reserved flags of the fixed header"));
    }
    let mut r = Reader::new(body);
    let packet = match kind {
        1 => Packet::Connect(Box::new(connect(&mut r)?)),
        4 => Packet::Puback(ack(version, &mut r)?),
        5 => Packet::Pubrec(ack(version, &mut r)?),
        6 => Packet::Pubrel(ack(version, &mut r)?),
        7 => Packet::Pubcomp(ack(version, &mut r)?),
        8 => Packet::Subscribe(subscribe(version, &mut r)?),
        10 => Packet::Unsubscribe(unsubscribe(version, &mut r)?),
        12 => Packet::Pingreq,
        14 => Packet::Disconnect(disconnect(version, &mut r)?),
        15 if version == Version::V5 => return Ok(Packet::Auth),
        _ => {
            return Err(DecodeError::Protocol(
                "packet type that a client may not send",
            ));
        }
    };
    if !r.is_empty() {
        return Err(DecodeError::Malformed("bytes after the end of the packet"));
    }
    Ok(packet)
}

fn qos(bits: u8) -> Result<Qos, DecodeError> {
    match bits {
        0 => Ok(Qos::AtMostOnce),
        1 => Ok(Qos::AtLeastOnce),
        2 => Ok(Qos::ExactlyOnce),
        _ => Err(DecodeError::Malformed("QoS 3")),
    }
}

fn packet_id(r: &mut Reader<'_>) -> Result<u16, DecodeError> {
    match r.u16()? {
        0 => Err(DecodeError::Protocol("packet id 0")),
        pid => Ok(pid),
    }
}

/// Whether a text may be a topic name: not empty, no wildcard.
fn is_topic_name(topic: &str) -> bool {
    !topic.is_empty() && !topic.bytes().any(|b| b == b'+' || b == b'#')
}

/// Properties of a PUBLISH or a will that subscribers get too.
#[derive(Default)]
struct Forwarded {
    raw: Vec<u8>,
    expiry: Option<u32>,
    traceparent: Option<Box<str>>,
}

impl Forwarded {
    fn take(&mut self, property: u8, value: &Value<'_>, raw: &[u8]) -> Result<(), DecodeError> {
        match (property, value) {
            (id::MESSAGE_EXPIRY, value) => {
                self.expiry = Some(value.number());
                return Ok(());
            }
            (id::PAYLOAD_FORMAT, value) => {
                value.flag()?;
            }
            (id::RESPONSE_TOPIC, Value::Text(topic)) if !is_topic_name(topic) => {
                return Err(DecodeError::TopicName);
            }
            (id::USER_PROPERTY, Value::Pair(key, text))
                if key.eq_ignore_ascii_case("traceparent") =>
            {
                self.traceparent = Some((*text).into());
            }
            _ => {}
        }
        self.raw.extend_from_slice(raw);
        Ok(())
    }
}

fn publish<'a>(
    version: Version,
    flags: u8,
    body: &'a [u8],
    owner: Option<&Bytes>,
) -> Result<Publish<'a>, DecodeError> {
    let mut r = Reader::new(body);
    let qos = qos((flags >> 1) & 3)?;
    let dup = flags & 8 != 0;
    if dup && qos == Qos::AtMostOnce {
        return Err(DecodeError::Malformed("DUP on QoS 0"));
    }
    let topic = r.text()?;
    let pid = if qos == Qos::AtMostOnce {
        0
    } else {
        packet_id(&mut r)?
    };
    let mut alias = None;
    let mut forwarded = Forwarded::default();
    if version == Version::V5 {
        const ALLOWED: &[u8] = &[
            id::PAYLOAD_FORMAT,
            id::MESSAGE_EXPIRY,
            id::CONTENT_TYPE,
            id::RESPONSE_TOPIC,
            id::CORRELATION_DATA,
            id::TOPIC_ALIAS,
            id::USER_PROPERTY,
        ];
        property::read(&mut r, ALLOWED, |property, value, raw| {
            if property == id::TOPIC_ALIAS {
                alias = Some(value.short());
                return Ok(());
            }
            forwarded.take(property, &value, raw)
        })?;
    }
    let aliased = topic.is_empty() && alias.is_some();
    if !aliased && !is_topic_name(topic) {
        return Err(DecodeError::TopicName);
    }
    let payload = match owner {
        Some(owner) => owner.slice_ref(r.rest()),
        None => Bytes::copy_from_slice(r.rest()),
    };
    Ok(Publish {
        dup,
        qos,
        retain: flags & 1 != 0,
        topic,
        pid,
        payload,
        alias,
        expiry: forwarded.expiry,
        forward: forwarded.raw.into(),
        traceparent: forwarded.traceparent,
    })
}

fn connect(r: &mut Reader<'_>) -> Result<Connect, DecodeError> {
    if r.text()? != "MQTT" {
        return Err(DecodeError::Version(3));
    }
    let version = match r.u8()? {
        4 => Version::V311,
        5 => Version::V5,
        other => return Err(DecodeError::Version(other)),
    };
    let flags = r.u8()?;
    if flags & 1 != 0 {
        return Err(DecodeError::Malformed("reserved CONNECT flag"));
    }
    let will_qos = qos((flags >> 3) & 3)?;
    let (has_will, will_retain) = (flags & 4 != 0, flags & 0x20 != 0);
    if !has_will && (will_retain || will_qos != Qos::AtMostOnce) {
        return Err(DecodeError::Malformed("will flags without a will"));
    }
    if version == Version::V311 && flags & 0xc0 == 0x40 {
        return Err(DecodeError::Malformed("password without user name"));
    }
    let mut connect = Connect {
        version,
        client: Box::default(),
        clean: flags & 2 != 0,
        keep_alive: r.u16()?,
        user: None,
        password: None,
        will: None,
        session_expiry: 0,
        receive_maximum: u16::MAX,
        max_packet: u32::MAX,
        topic_alias_max: 0,
        authentication_method: false,
    };
    if version == Version::V5 {
        connect_properties(r, &mut connect)?;
    }
    connect.client = r.text()?.into();
    if has_will {
        connect.will = Some(will(version, r, will_qos, will_retain)?);
    }
    if flags & 0x80 != 0 {
        connect.user = Some(r.text()?.into());
    }
    if flags & 0x40 != 0 {
        connect.password = Some(Bytes::copy_from_slice(r.binary()?));
    }
    Ok(connect)
}

fn connect_properties(r: &mut Reader<'_>, connect: &mut Connect) -> Result<(), DecodeError> {
    const ALLOWED: &[u8] = &[
        id::SESSION_EXPIRY,
        id::RECEIVE_MAXIMUM,
        id::MAXIMUM_PACKET,
        id::TOPIC_ALIAS_MAXIMUM,
        id::REQUEST_RESPONSE_INFO,
        id::REQUEST_PROBLEM_INFO,
        id::USER_PROPERTY,
        id::AUTHENTICATION_METHOD,
        id::AUTHENTICATION_DATA,
    ];
    property::read(r, ALLOWED, |property, value, _| {
        match property {
            id::SESSION_EXPIRY => connect.session_expiry = value.number(),
            id::RECEIVE_MAXIMUM => {
                value.not_zero()?;
                connect.receive_maximum = value.short();
            }
            id::MAXIMUM_PACKET => connect.max_packet = value.not_zero()?,
            id::TOPIC_ALIAS_MAXIMUM => connect.topic_alias_max = value.short(),
            id::REQUEST_RESPONSE_INFO | id::REQUEST_PROBLEM_INFO => {
                value.flag()?;
            }
            id::AUTHENTICATION_METHOD | id::AUTHENTICATION_DATA => {
                connect.authentication_method = true
            }
            _ => {}
        }
        Ok(())
    })
}

fn will(version: Version, r: &mut Reader<'_>, qos: Qos, retain: bool) -> Result<Will, DecodeError> {
    let mut delay = 0;
    let mut forwarded = Forwarded::default();
    if version == Version::V5 {
        const ALLOWED: &[u8] = &[
            id::WILL_DELAY,
            id::PAYLOAD_FORMAT,
            id::MESSAGE_EXPIRY,
            id::CONTENT_TYPE,
            id::RESPONSE_TOPIC,
            id::CORRELATION_DATA,
            id::USER_PROPERTY,
        ];
        property::read(r, ALLOWED, |property, value, raw| {
            if property == id::WILL_DELAY {
                delay = value.number();
                return Ok(());
            }
            forwarded.take(property, &value, raw)
        })?;
    }
    let topic = r.text()?;
    if !is_topic_name(topic) {
        return Err(DecodeError::TopicName);
    }
    Ok(Will {
        topic: topic.into(),
        payload: Bytes::copy_from_slice(r.binary()?),
        qos,
        retain,
        delay,
        expiry: forwarded.expiry,
        forward: forwarded.raw.into(),
        traceparent: forwarded.traceparent,
    })
}

fn ack(version: Version, r: &mut Reader<'_>) -> Result<Ack, DecodeError> {
    let pid = packet_id(r)?;
    let mut code = reason::SUCCESS;
    if version == Version::V5 && !r.is_empty() {
        code = r.u8()?;
        if !r.is_empty() {
            property::read(r, &[id::REASON_STRING, id::USER_PROPERTY], |_, _, _| Ok(()))?;
        }
    }
    Ok(Ack { pid, reason: code })
}

fn subscribe(version: Version, r: &mut Reader<'_>) -> Result<Subscribe, DecodeError> {
    let pid = packet_id(r)?;
    let mut subscription_id = None;
    if version == Version::V5 {
        property::read(
            r,
            &[id::SUBSCRIPTION_ID, id::USER_PROPERTY],
            |property, value, _| {
                if property == id::SUBSCRIPTION_ID {
                    subscription_id = Some(value.not_zero()?);
                }
                Ok(())
            },
        )?;
    }
    let mut filters = Vec::new();
    while !r.is_empty() {
        let filter = r.text()?;
        let bits = r.u8()?;
        let reserved = if version == Version::V5 { 0xc0 } else { 0xfc };
        if bits & reserved != 0 {
            return Err(DecodeError::Malformed("reserved subscription options"));
        }
        let options = Options {
            qos: qos(bits & 3)?,
            no_local: bits & 4 != 0,
            retain_as_published: bits & 8 != 0,
            retain_handling: match (bits >> 4) & 3 {
                0 => RetainHandling::Always,
                1 => RetainHandling::IfNew,
                2 => RetainHandling::Never,
                _ => return Err(DecodeError::Protocol("retain handling 3")),
            },
        };
        filters.push((filter.into(), options));
    }
    if filters.is_empty() {
        return Err(DecodeError::Protocol("SUBSCRIBE without a filter"));
    }
    Ok(Subscribe {
        pid,
        id: subscription_id,
        filters,
    })
}

fn unsubscribe(version: Version, r: &mut Reader<'_>) -> Result<Unsubscribe, DecodeError> {
    let pid = packet_id(r)?;
    if version == Version::V5 {
        property::read(r, &[id::USER_PROPERTY], |_, _, _| Ok(()))?;
    }
    let mut filters = Vec::new();
    while !r.is_empty() {
        filters.push(r.text()?.into());
    }
    if filters.is_empty() {
        return Err(DecodeError::Protocol("UNSUBSCRIBE without a filter"));
    }
    Ok(Unsubscribe { pid, filters })
}

fn disconnect(version: Version, r: &mut Reader<'_>) -> Result<Disconnect, DecodeError> {
    let mut disconnect = Disconnect {
        reason: reason::SUCCESS,
        session_expiry: None,
    };
    if version == Version::V311 {
        return Ok(disconnect);
    }
    if !r.is_empty() {
        disconnect.reason = r.u8()?;
        if !r.is_empty() {
            let allowed = [id::SESSION_EXPIRY, id::REASON_STRING, id::USER_PROPERTY];
            property::read(r, &allowed, |property, value, _| {
                if property == id::SESSION_EXPIRY {
                    disconnect.session_expiry = Some(value.number());
                }
                Ok(())
            })?;
        }
    }
    Ok(disconnect)
}
