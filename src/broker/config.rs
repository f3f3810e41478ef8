//! `[mqtt]`: the embedded broker's section of the configuration, with every default in one place.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::quantity::{ByteSize, Span};

/// `[mqtt]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Which engine terminates MQTT.
    pub engine: EngineName,
    /// Plain-TCP addresses; the native engine speaks v3.1.1 and v5 on each.
    pub listen: Vec<SocketAddr>,
    /// v5 addresses of the rumqttd engine, which can't serve both versions on one port.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub listen_v5: Vec<SocketAddr>,
    /// Largest MQTT packet taken from a client, checked before memory is set aside for it.
    pub max_packet: ByteSize,
    /// Bound on everything that clients can make the broker hold.
    pub max_memory: ByteSize,
    /// What an acknowledgement of a Sparkplug publish means.
    pub ack: Ack,
    /// Who may connect without a user name.
    pub anonymous: Anonymous,
    /// `user:hash` lines as made by `sparkgate passwd`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub users_file: Option<PathBuf>,
    /// Rights of users; without it, the Sparkplug-aware defaults of `docs/broker.md` hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acl_file: Option<PathBuf>,
    /// Users who may send NCMD and DCMD to any edge node, beside those the ACL file names.
    pub command_senders: Vec<String>,
    /// TLS listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// WebSocket listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub websocket: Option<Websocket>,
    /// Bounds on clients.
    pub limits: Limits,
    /// Keep retained messages and persistent sessions on disk, in `<data_dir>/mqtt`.
    pub persistence: bool,
    /// Offer births on `$sparkplug/certificates/…` (Sparkplug Aware server).
    pub certificates: bool,
    /// Put the time of sending into the timestamp of each NDEATH that is a will (Sparkplug Aware server).
    pub ndeath_timestamp: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            engine: EngineName::Native,
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 1883))],
            listen_v5: Vec::new(),
            max_packet: ByteSize(16 << 20),
            max_memory: ByteSize(256 << 20),
            ack: Ack::Durable,
            anonymous: Anonymous::Loopback,
            users_file: None,
            acl_file: None,
            command_senders: Vec::new(),
            tls: None,
            websocket: None,
            limits: Limits::default(),
            persistence: true,
            certificates: true,
            ndeath_timestamp: false,
        }
    }
}

/// Name of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineName {
    /// The gateway's own engine.
    Native,
    /// rumqttd, where the build has cargo feature `rumqttd`; its limits are listed in `docs/broker.md`.
    Rumqttd,
}

/// What an acknowledgement of a Sparkplug publish means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ack {
    /// The record is on disk.
    Durable,
    /// The record is in memory: a power cut loses acknowledged data.
    Memory,
}

/// Who may connect without a user name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Anonymous {
    /// Clients of this machine.
    Loopback,
    /// Nobody.
    Never,
    /// Everybody: the network itself is the guard.
    Always,
}

/// `[mqtt.tls]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// Addresses, usually port 8883.
    pub listen: Vec<SocketAddr>,
    /// Certificate chain, PEM, leaf first.
    pub cert: PathBuf,
    /// Private key, PEM.
    pub key: PathBuf,
    /// Authorities of client certificates, PEM; present: clients must show one, and its common name is the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_ca: Option<PathBuf>,
    /// Revoked client certificates, PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crl: Option<PathBuf>,
}

/// `[mqtt.websocket]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Websocket {
    /// Addresses, usually port 8083; subprotocol `mqtt`.
    pub listen: Vec<SocketAddr>,
    /// Speak TLS with the certificate of `[mqtt.tls]`.
    #[serde(default)]
    pub tls: bool,
    /// Origins of web pages that may connect, such as `https://scada.example`, beside pages of this very host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub origins: Vec<String>,
}

/// `[mqtt.limits]`: bounds on what clients can take. What happens at each bound is in `docs/broker.md`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Connections in total, half-open ones included.
    pub connections: usize,
    /// Connections from one address.
    pub connections_per_address: usize,
    /// New client ids in a second, in total.
    pub new_clients_per_second: u32,
    /// Time to finish the TLS and WebSocket handshakes and send CONNECT.
    pub connect_timeout: Span,
    /// Sessions, connected or not.
    pub sessions: usize,
    /// Longest time a session lasts without a connection; also what v3.1.1's clean session 0 gets.
    pub session_expiry: Span,
    /// Subscriptions of one session.
    pub subscriptions: usize,
    /// Levels of a topic or filter.
    pub topic_levels: usize,
    /// Bytes of a topic or filter.
    pub topic_bytes: usize,
    /// QoS 1 and 2 messages under way to one client; a v5 client may ask for fewer.
    pub inflight: u16,
    /// QoS 1 and 2 publishes of one client that wait for their acknowledgement: the receive maximum told to v5
    /// clients; a v3.1.1 client above it is not read.
    pub receive_maximum: u16,
    /// Messages that wait for one session.
    pub queue_messages: usize,
    /// Bytes that wait for one session.
    pub queue_bytes: ByteSize,
    /// Retained messages.
    pub retained: usize,
    /// Topic aliases that a v5 client may set, and that the broker sets towards it (if it takes that many).
    pub topic_aliases: u16,
    /// Longest keep alive; a v5 client that asks for more or none is told this, `"0s"` for no bound.
    pub keep_alive: Span,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            connections_per_address: 10_000,
            new_clients_per_second: 10_000,
            connect_timeout: Span(Duration::from_secs(10)),
            sessions: 20_000,
            session_expiry: Span(Duration::from_secs(7 * 24 * 3600)),
            subscriptions: 1000,
            topic_levels: 32,
            topic_bytes: 4096,
            inflight: 1024,
            receive_maximum: 1024,
            queue_messages: 100_000,
            queue_bytes: ByteSize(64 << 20),
            retained: 100_000,
            topic_aliases: 32,
            keep_alive: Span(Duration::ZERO),
        }
    }
}
