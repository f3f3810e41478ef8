//! MQTT 5.0 properties (section 2.2.2).

use super::DecodeError;
use super::reader::Reader;

/// Identifiers.
pub(super) mod id {
    pub(in super::super) const PAYLOAD_FORMAT: u8 = 0x01;
    pub(in super::super) const MESSAGE_EXPIRY: u8 = 0x02;
    pub(in super::super) const CONTENT_TYPE: u8 = 0x03;
    pub(in super::super) const RESPONSE_TOPIC: u8 = 0x08;
    pub(in super::super) const CORRELATION_DATA: u8 = 0x09;
    pub(in super::super) const SUBSCRIPTION_ID: u8 = 0x0B;
    pub(in super::super) const SESSION_EXPIRY: u8 = 0x11;
    pub(in super::super) const ASSIGNED_CLIENT_ID: u8 = 0x12;
    pub(in super::super) const SERVER_KEEP_ALIVE: u8 = 0x13;
    pub(in super::super) const AUTHENTICATION_METHOD: u8 = 0x15;
    pub(in super::super) const AUTHENTICATION_DATA: u8 = 0x16;
    pub(in super::super) const REQUEST_PROBLEM_INFO: u8 = 0x17;
    pub(in super::super) const WILL_DELAY: u8 = 0x18;
    pub(in super::super) const REQUEST_RESPONSE_INFO: u8 = 0x19;
    pub(in super::super) const REASON_STRING: u8 = 0x1F;
    pub(in super::super) const RECEIVE_MAXIMUM: u8 = 0x21;
    pub(in super::super) const TOPIC_ALIAS_MAXIMUM: u8 = 0x22;
    pub(in super::super) const TOPIC_ALIAS: u8 = 0x23;
    pub(in super::super) const USER_PROPERTY: u8 = 0x26;
    pub(in super::super) const MAXIMUM_PACKET: u8 = 0x27;
}

/// A property's value.
pub(super) enum Value<'a> {
    Number(u32),
    Text(&'a str),
    Binary,
    Pair(&'a str, &'a str),
}

impl Value<'_> {
    /// The number; 0 for other types, which a table of identifiers rules out.
    pub(super) fn number(&self) -> u32 {
        match self {
            Self::Number(n) => *n,
            _ => 0,
        }
    }

    /// The number as two bytes; identifiers of that type never hold more.
    pub(super) fn short(&self) -> u16 {
        u16::try_from(self.number()).unwrap_or(u16::MAX)
    }

    /// The number, which must be 0 or 1.
    pub(super) fn flag(&self) -> Result<bool, DecodeError> {
        match self.number() {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Protocol("property is neither 0 nor 1")),
        }
    }

    /// The number, which must not be 0.
    pub(super) fn not_zero(&self) -> Result<u32, DecodeError> {
        match self.number() {
            0 => Err(DecodeError::Protocol("property must not be 0")),
            n => Ok(n),
        }
    }
}

/// Reads a property block, calling `each` with identifier, value and raw bytes. Identifiers outside `allowed`
/// and repeated ones (user properties apart) are errors.
pub(super) fn read<'a>(
    reader: &mut Reader<'a>,
    allowed: &[u8],
    mut each: impl FnMut(u8, Value<'a>, &'a [u8]) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    let length = reader.varint()?;
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length == 0 {
        return Ok(());
    }
    let block = reader.take(length)?;
    let mut inner = Reader::new(block);
    let mut seen = 0u64;
    while !inner.is_empty() {
        let before = inner.rest();
        let id = inner.u8()?;
        if !allowed.contains(&id) {
            return Err(DecodeError::Protocol("property is not allowed here"));
        }
        let bit = 1u64.checked_shl(u32::from(id)).unwrap_or(0);
        if id != id::USER_PROPERTY && seen & bit != 0 {
            return Err(DecodeError::Protocol("property is repeated"));
        }
        seen |= bit;
        let value = value(id, &mut inner)?;
        let used = before.len() - inner.rest().len();
        each(id, value, before.get(..used).unwrap_or_default())?;
    }
    Ok(())
}

fn value<'a>(id: u8, reader: &mut Reader<'a>) -> Result<Value<'a>, DecodeError> {
    Ok(match id {
        id::PAYLOAD_FORMAT | id::REQUEST_PROBLEM_INFO | id::REQUEST_RESPONSE_INFO => {
            Value::Number(u32::from(reader.u8()?))
        }
        id::RECEIVE_MAXIMUM | id::TOPIC_ALIAS_MAXIMUM | id::TOPIC_ALIAS => {
            Value::Number(u32::from(reader.u16()?))
        }
        id::MESSAGE_EXPIRY | id::SESSION_EXPIRY | id::WILL_DELAY | id::MAXIMUM_PACKET => {
            Value::Number(reader.u32()?)
        }
        id::SUBSCRIPTION_ID => Value::Number(reader.varint()?),
        id::CONTENT_TYPE | id::RESPONSE_TOPIC | id::AUTHENTICATION_METHOD | id::REASON_STRING => {
            Value::Text(reader.text()?)
        }
        id::CORRELATION_DATA | id::AUTHENTICATION_DATA => {
            reader.binary()?;
            Value::Binary
        }
        id::USER_PROPERTY => Value::Pair(reader.text()?, reader.text()?),
        _ => return Err(DecodeError::Malformed("unknown property")),
    })
}
