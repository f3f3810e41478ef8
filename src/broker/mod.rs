//! The MQTT broker seam: what the rest of the gateway knows of a broker.
//!
//! An engine terminates MQTT (sessions, wills, retained messages, rights) and hands each accepted
//! publish to the pipeline as an [`Inbound`]. The pipeline answers through the [`Handle`]. No type of
//! any broker library crosses this line, so that engines can be exchanged in configuration.
//!
//! *Invariant*: the acknowledgement of a QoS 1 or 2 publish travels as a [`PubackToken`]. It must be
//! completed; dropping it closes the session that published, so that a lost acknowledgement can never
//! pass for a delivered message.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

mod acl;
pub mod auth;
mod aware;
mod clients;
mod codec;
pub mod config;
mod connection;
pub mod engine;
#[cfg(feature = "rumqttd")]
mod engine_rumqttd;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod link;
mod listener;
mod message;
pub mod native;
mod outbound;
mod persist;
mod pressure;
mod record;
mod retained;
mod router;
mod session;
mod shell;
mod subscriptions;
mod tls;
mod topic;
mod validity;
mod websocket;

pub use acl::AclError;
pub use topic::{TopicCheck, subject_check};
pub use validity::Validity;

/// What is wrong with `[mqtt]`, each with its remedy: files that can't be used, and settings that exclude each other.
/// Nothing is bound.
#[must_use]
pub fn check(config: &config::Config) -> Vec<String> {
    let mut wrong = Vec::new();
    if let Err(error) = auth::Access::load(config) {
        wrong.push(crate::telemetry::chain(&error));
    }
    if config.anonymous == config::Anonymous::Never
        && config.users_file.is_none()
        && config.tls.is_none()
    {
        wrong.push(
            "mqtt.anonymous = \"never\" without mqtt.users_file or mqtt.tls: nobody could connect"
                .to_owned(),
        );
    }
    if let Some(error) = config.tls.as_ref().and_then(|tls| tls::load(tls).err()) {
        wrong.push(format!("mqtt.tls: {}", crate::telemetry::chain(&error)));
    }
    check_engine(config, &mut wrong);
    if config.websocket.as_ref().is_some_and(|ws| ws.tls) && config.tls.is_none() {
        wrong.push(
            "mqtt.websocket.tls without [mqtt.tls]: name cert and key there (its listen may be empty)"
                .to_owned(),
        );
    }
    wrong
}

/// What the chosen engine can't do. Settings that guard the gateway are refused where rumqttd would ignore them.
fn check_engine(config: &config::Config, wrong: &mut Vec<String>) {
    let mut refuse = |text: &str| wrong.push(text.to_owned());
    if config.engine == config::EngineName::Native {
        if !config.listen_v5.is_empty() {
            refuse(
                "mqtt.listen_v5 is for engine = \"rumqttd\": the native engine speaks v3.1.1 and v5 on mqtt.listen",
            );
        }
        return;
    }
    if cfg!(not(feature = "rumqttd")) {
        refuse(
            "mqtt.engine = \"rumqttd\" is not in this build: use \"native\", or build with `cargo build --release --features rumqttd`",
        );
        return;
    }
    let both = |address: &&SocketAddr| address.port() != 0 && config.listen.contains(address);
    if let Some(address) = config.listen_v5.iter().find(both) {
        refuse(&format!(
            "mqtt.listen and mqtt.listen_v5 both have {address}: rumqttd needs a port for each MQTT version"
        ));
    }
    if config.tls.is_some() {
        refuse(
            "mqtt.tls: the rumqttd engine has no TLS here; use \"native\" or remove the section",
        );
    }
    if config.websocket.is_some() {
        refuse(
            "mqtt.websocket: the rumqttd engine has none here; use \"native\" or remove the section",
        );
    }
    if config.acl_file.is_some() || !config.command_senders.is_empty() {
        refuse(
            "mqtt.acl_file and mqtt.command_senders: rumqttd knows no rights; use \"native\" or remove them",
        );
    }
    let mut addresses = config.listen.iter().chain(&config.listen_v5);
    if config.anonymous == config::Anonymous::Loopback
        && config.users_file.is_none()
        && addresses.any(|address| !address.ip().is_loopback())
    {
        refuse(
            "mqtt.anonymous = \"loopback\": rumqttd can't tell where a client comes from; listen on loopback alone, set mqtt.users_file, or say \"always\"",
        );
    }
}

/// MQTT quality of service (MQTT 3.1.1 section 4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Qos {
    /// At most once.
    AtMostOnce = 0,
    /// At least once.
    AtLeastOnce = 1,
    /// Exactly once.
    ExactlyOnce = 2,
}

/// One publish that the broker accepted, in the order in which its session sent it.
#[derive(Debug)]
pub struct Inbound {
    /// Topic name, already checked to be valid UTF-8 without wildcards or U+0000.
    pub topic: Arc<str>,
    /// Application payload, untouched.
    pub payload: Bytes,
    /// When the bytes were read from the socket: the start of the decision latency.
    pub received_at: Instant,
    /// Client id of the publisher; `None` where the engine cannot tell (rumqttd).
    pub client: Option<Arc<str>>,
    /// QoS of the publish; `None` where the engine cannot tell (rumqttd).
    pub qos: Option<Qos>,
    /// RETAIN flag as published.
    pub retain: bool,
    /// W3C `traceparent` from an MQTT v5 user property.
    pub traceparent: Option<Box<str>>,
    /// This publish is the publisher's will, sent by the broker.
    pub will: bool,
    /// Acknowledgement to release once the record is durable; `None` for QoS 0.
    pub ack: Option<PubackToken>,
}

/// What an engine hands to the pipeline, in order of happening.
#[derive(Debug)]
pub enum Delivery {
    /// An accepted publish that matched the gateway's own subscriptions.
    Publish(Inbound),
    /// A client came or went.
    Event(Event),
}

/// A client's coming and going.
#[derive(Debug, Clone)]
pub enum Event {
    /// A CONNECT was accepted.
    Connected {
        /// Client id, assigned by the broker where the client sent none.
        client: Arc<str>,
        /// Authenticated user, if any.
        user: Option<Arc<str>>,
        /// Peer address.
        address: SocketAddr,
        /// MQTT protocol level: 4 (v3.1.1) or 5.
        protocol: u8,
    },
    /// A connection ended.
    Disconnected {
        /// Client id.
        client: Arc<str>,
        /// Why, in a stable snake_case word such as `client`, `keep_alive`, `take_over`.
        reason: &'static str,
    },
}

/// The right to acknowledge one publish.
///
/// Completing it lets the engine send PUBACK (QoS 1) or PUBREC (QoS 2). Dropping it without completion
/// closes the publisher's session, so that the client sends the message again.
#[must_use = "an acknowledgement that is dropped closes the publisher's session"]
pub struct PubackToken(Option<Box<dyn FnOnce(AckOutcome) + Send>>);

/// How an acknowledgement ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckOutcome {
    /// The message is owned by the gateway: acknowledge it.
    Accepted,
    /// The gateway will never take this message (payload refused): acknowledge with reason code 0x99
    /// towards v5, plainly towards v3.1.1, so that the client does not send it for ever.
    Refused,
    /// The token was dropped: close the session.
    Dropped,
}

impl PubackToken {
    /// A token whose outcome is told to `done` exactly once, possibly from another thread.
    pub fn new(done: impl FnOnce(AckOutcome) + Send + 'static) -> Self {
        Self(Some(Box::new(done)))
    }

    /// Acknowledge: the record is as durable as the configuration asks.
    pub fn accept(mut self) {
        if let Some(done) = self.0.take() {
            done(AckOutcome::Accepted);
        }
    }

    /// Acknowledge, telling a v5 client that the payload was not usable.
    pub fn refuse(mut self) {
        if let Some(done) = self.0.take() {
            done(AckOutcome::Refused);
        }
    }
}

impl Drop for PubackToken {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            done(AckOutcome::Dropped);
        }
    }
}

impl std::fmt::Debug for PubackToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PubackToken")
    }
}

/// A publish by the gateway itself (NCMD, DCMD, STATE, certificates).
#[derive(Debug, Clone)]
pub struct Publish {
    /// Topic name.
    pub topic: Arc<str>,
    /// Payload.
    pub payload: Bytes,
    /// QoS towards subscribers is the lower of this and their subscription's.
    pub qos: Qos,
    /// RETAIN flag.
    pub retain: bool,
    /// Told when a copy of this publish was written to a subscriber's socket; see [`Written`].
    pub on_written: Option<Written>,
}

/// A callback for the moment at which a publish by the gateway left on a socket: the end of the decision
/// latency. Engines call it once for each subscriber, right after the write that carried the message
/// returned; an engine that can't tell calls it when the message is queued.
#[derive(Clone)]
pub struct Written(Arc<dyn Fn(Instant) + Send + Sync>);

impl Written {
    /// Wraps a callback; it must be quick, since it runs on the task that writes to the socket.
    pub fn new(f: impl Fn(Instant) + Send + Sync + 'static) -> Self {
        Self(Arc::new(f))
    }

    /// The message left at `at`.
    pub fn tell(&self, at: Instant) {
        (self.0)(at);
    }
}

impl std::fmt::Debug for Written {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Written")
    }
}

/// Why a publish by the gateway could not be handed to the engine.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The engine's queue is full; nothing was sent.
    #[error("the broker's queue is full")]
    Full,
    /// The engine has stopped; the process is about to end.
    #[error("the broker has stopped")]
    Stopped,
}

/// What an engine counts. All values since start.
#[derive(Debug, Clone, Default)]
pub struct BrokerStats {
    /// Engine name: `native` or `rumqttd`.
    pub engine: &'static str,
    /// Connections now.
    pub connections: u64,
    /// Sessions now, connected or not.
    pub sessions: u64,
    /// Retained messages now.
    pub retained: u64,
    /// Bytes of retained messages and sessions that are not on the disk yet.
    pub unsaved_bytes: u64,
    /// Publishes accepted from clients.
    pub publishes: u64,
    /// Messages dropped, by stable snake_case reason.
    pub dropped: Vec<(&'static str, u64)>,
    /// Connections, publishes and subscriptions refused, by stable snake_case reason.
    pub refused: Vec<(&'static str, u64)>,
    /// Clients that came and went; `None` where the engine cannot tell (rumqttd).
    pub clients: Option<ClientStats>,
    /// How long the files of `[mqtt.tls]` are good for.
    pub certificates: Vec<Validity>,
}

/// Comings and goings of clients since start.
#[derive(Debug, Clone, Default)]
pub struct ClientStats {
    /// Accepted CONNECTs by MQTT version.
    pub connects: Vec<(&'static str, u64)>,
    /// Ended connections by reason, as in [`Event::Disconnected`].
    pub disconnects: Vec<(&'static str, u64)>,
    /// The last ones, newest first; at most 20.
    pub recent: Vec<RecentEvent>,
}

/// A client's coming or going, and how long ago it was.
#[derive(Debug, Clone)]
pub struct RecentEvent {
    /// Time since.
    pub age: std::time::Duration,
    /// What happened.
    pub event: Event,
}

/// The gateway's side of a running engine. Cheap to clone behind an `Arc`; callable from any thread.
pub trait Handle: Send + Sync + 'static {
    /// Hands a publish to the engine without waiting. A subscriber that was subscribed before this call
    /// gets it; order among calls from one thread is kept.
    ///
    /// # Errors
    /// [`PublishError`] when the engine cannot take it; nothing was sent then.
    fn publish(&self, publish: Publish) -> Result<(), PublishError>;

    /// Whether any connected client is subscribed to this topic. `None` where the engine cannot tell.
    fn has_subscriber(&self, topic: &str) -> Option<bool>;

    /// Counters and gauges.
    fn stats(&self) -> BrokerStats;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_refused_what_it_would_ignore() {
        let check = |text: &str, expected: &[&str]| {
            let config: config::Config = toml::from_str(text).unwrap();
            let mut wrong = Vec::new();
            check_engine(&config, &mut wrong);
            assert_eq!(wrong.len(), expected.len(), "{text}: {wrong:?}");
            for (wrong, expected) in wrong.iter().zip(expected) {
                assert!(wrong.contains(expected), "{text}: {wrong}");
            }
        };
        check("", &[]);
        check(
            "listen_v5 = [\"127.0.0.1:1884\"]",
            &["mqtt.listen_v5 is for"],
        );
        let rumqttd = |text: &str, expected: &[&str]| {
            let text = format!("engine = \"rumqttd\"\n{text}");
            if cfg!(feature = "rumqttd") {
                check(&text, expected);
            } else {
                check(&text, &["--features rumqttd"]);
            }
        };
        rumqttd("", &[]);
        rumqttd("listen_v5 = [\"127.0.0.1:1884\"]", &[]);
        rumqttd(
            "listen_v5 = [\"127.0.0.1:1883\"]",
            &["both have 127.0.0.1:1883"],
        );
        rumqttd("listen = [\"0.0.0.0:1883\"]", &["mqtt.anonymous"]);
        rumqttd("listen = [\"0.0.0.0:1883\"]\nanonymous = \"always\"", &[]);
        rumqttd(
            "acl_file = \"acl\"\n[tls]\nlisten = []\ncert = \"c\"\nkey = \"k\"",
            &["mqtt.tls", "mqtt.acl_file"],
        );
    }
}
