//! MQTT 3.1.1 and 5.0 packets on the wire, server side.
//!
//! Pure: bytes in, packets out, and the reverse. Decoding borrows topic names from the input and allocates only
//! for what outlives it. Every length is checked before it is used; a packet that breaks the norm is a
//! [`DecodeError`], which carries the reason code that a v5 client is told.

mod decode;
mod encode;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod property;
mod reader;

#[cfg(test)]
mod tests;

use bytes::Bytes;

use super::Qos;

pub(crate) use decode::{decode, frame};
pub(crate) use encode::{
    Connack, OutPublish, connack, disconnect, packet_id_only, pingresp, publish, publish_len,
    suback, unsuback,
};

/// Protocol version of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// MQTT 3.1.1, protocol level 4.
    V311,
    /// MQTT 5.0, protocol level 5.
    V5,
}

impl Version {
    pub(crate) fn level(self) -> u8 {
        match self {
            Self::V311 => 4,
            Self::V5 => 5,
        }
    }
}

/// Reason codes of MQTT 5.0 (section 2.4).
pub(crate) mod reason {
    pub(crate) const SUCCESS: u8 = 0x00;
    pub(crate) const NO_SUBSCRIPTION_EXISTED: u8 = 0x11;
    pub(crate) const MALFORMED: u8 = 0x81;
    pub(crate) const PROTOCOL_ERROR: u8 = 0x82;
    pub(crate) const UNSUPPORTED_VERSION: u8 = 0x84;
    pub(crate) const CLIENT_ID_INVALID: u8 = 0x85;
    pub(crate) const BAD_USER_OR_PASSWORD: u8 = 0x86;
    pub(crate) const NOT_AUTHORIZED: u8 = 0x87;
    pub(crate) const SERVER_UNAVAILABLE: u8 = 0x88;
    pub(crate) const SERVER_SHUTTING_DOWN: u8 = 0x8B;
    pub(crate) const BAD_AUTHENTICATION_METHOD: u8 = 0x8C;
    pub(crate) const KEEP_ALIVE_TIMEOUT: u8 = 0x8D;
    pub(crate) const SESSION_TAKEN_OVER: u8 = 0x8E;
    pub(crate) const TOPIC_FILTER_INVALID: u8 = 0x8F;
    pub(crate) const TOPIC_NAME_INVALID: u8 = 0x90;
    pub(crate) const PACKET_ID_NOT_FOUND: u8 = 0x92;
    pub(crate) const RECEIVE_MAXIMUM_EXCEEDED: u8 = 0x93;
    pub(crate) const TOPIC_ALIAS_INVALID: u8 = 0x94;
    pub(crate) const PACKET_TOO_LARGE: u8 = 0x95;
    pub(crate) const QUOTA_EXCEEDED: u8 = 0x97;
    pub(crate) const PAYLOAD_FORMAT_INVALID: u8 = 0x99;
    pub(crate) const CONNECTION_RATE_EXCEEDED: u8 = 0x9F;
}

/// A packet from a client.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Packet<'a> {
    Connect(Box<Connect>),
    Publish(Publish<'a>),
    Puback(Ack),
    Pubrec(Ack),
    Pubrel(Ack),
    Pubcomp(Ack),
    Subscribe(Subscribe),
    Unsubscribe(Unsubscribe),
    Pingreq,
    Disconnect(Disconnect),
    Auth,
}

/// CONNECT.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Connect {
    pub(crate) version: Version,
    /// Empty: the server assigns one.
    pub(crate) client: Box<str>,
    pub(crate) clean: bool,
    /// Seconds; 0: none.
    pub(crate) keep_alive: u16,
    pub(crate) user: Option<Box<str>>,
    pub(crate) password: Option<Bytes>,
    pub(crate) will: Option<Will>,
    /// Seconds, v5 alone.
    pub(crate) session_expiry: u32,
    /// v5; 65,535 where the client said nothing.
    pub(crate) receive_maximum: u16,
    /// v5; `u32::MAX` where the client said nothing.
    pub(crate) max_packet: u32,
    /// v5; 0 where the client said nothing.
    pub(crate) topic_alias_max: u16,
    /// v5 enhanced authentication was asked for.
    pub(crate) authentication_method: bool,
}

/// The will of a CONNECT.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Will {
    pub(crate) topic: Box<str>,
    pub(crate) payload: Bytes,
    pub(crate) qos: Qos,
    pub(crate) retain: bool,
    /// Seconds.
    pub(crate) delay: u32,
    /// Message expiry, seconds.
    pub(crate) expiry: Option<u32>,
    /// Properties to pass on, as they came.
    pub(crate) forward: Bytes,
    pub(crate) traceparent: Option<Box<str>>,
}

/// PUBLISH.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Publish<'a> {
    pub(crate) dup: bool,
    pub(crate) qos: Qos,
    pub(crate) retain: bool,
    /// Empty where an alias stands for it.
    pub(crate) topic: &'a str,
    /// 0 for QoS 0.
    pub(crate) pid: u16,
    pub(crate) payload: Bytes,
    pub(crate) alias: Option<u16>,
    /// Message expiry, seconds.
    pub(crate) expiry: Option<u32>,
    /// Payload format, content type, response topic, correlation data and user properties, as they came.
    pub(crate) forward: Bytes,
    pub(crate) traceparent: Option<Box<str>>,
}

/// PUBACK, PUBREC, PUBREL or PUBCOMP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ack {
    pub(crate) pid: u16,
    pub(crate) reason: u8,
}

/// SUBSCRIBE.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Subscribe {
    pub(crate) pid: u16,
    /// Subscription identifier.
    pub(crate) id: Option<u32>,
    pub(crate) filters: Vec<(Box<str>, Options)>,
}

/// Subscription options (MQTT 5.0 section 3.8.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) qos: Qos,
    pub(crate) no_local: bool,
    pub(crate) retain_as_published: bool,
    pub(crate) retain_handling: RetainHandling,
}

/// Which retained messages a SUBSCRIBE asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetainHandling {
    /// All that match.
    Always,
    /// All that match, if the subscription is new.
    IfNew,
    /// None.
    Never,
}

/// UNSUBSCRIBE.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Unsubscribe {
    pub(crate) pid: u16,
    pub(crate) filters: Vec<Box<str>>,
}

/// DISCONNECT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Disconnect {
    pub(crate) reason: u8,
    /// A new session expiry, seconds.
    pub(crate) session_expiry: Option<u32>,
}

/// Why bytes are not a packet that a client may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DecodeError {
    /// The bytes break the packet format.
    #[error("malformed packet: {0}")]
    Malformed(&'static str),
    /// The packet is well formed, but not allowed.
    #[error("protocol error: {0}")]
    Protocol(&'static str),
    /// The packet is larger than allowed.
    #[error("packet of {size} bytes is above the limit of {limit}")]
    TooLarge {
        /// Whole packet, bytes.
        size: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// CONNECT asks for a protocol level that is not spoken here.
    #[error("unsupported protocol level {0}")]
    Version(u8),
    /// A topic name holds a wildcard.
    #[error("topic name is not valid")]
    TopicName,
}

impl DecodeError {
    /// Reason code for a v5 client.
    pub(crate) fn reason(self) -> u8 {
        match self {
            Self::Malformed(_) => reason::MALFORMED,
            Self::Protocol(_) => reason::PROTOCOL_ERROR,
            Self::TooLarge { .. } => reason::PACKET_TOO_LARGE,
            Self::Version(_) => reason::UNSUPPORTED_VERSION,
            Self::TopicName => reason::TOPIC_NAME_INVALID,
        }
    }
}
