//! One MQTT connection, whatever its version: rumqttc's two clients under one face.
//!
//! Nothing here mends a broken connection. rumqttc would connect again with the will of before; STATE needs a new one
//! each time, so that a connection that ends is dropped with its client.
//!
//! `EventLoop::poll` must not be dropped half way: a request that it took from its queue and that waits for room in the
//! socket would be gone. It lives on inside a stream here, so that whoever stops waiting for the next event loses nothing.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt};
use rumqttc::{TlsConfiguration, Transport, v5};
use sparkplug::host::Transmit;

use super::config::{Address, Protocol};

/// Requests that wait in rumqttc: acknowledgements and what is published.
pub(super) const QUEUE: usize = 8_192;
/// Unacknowledged publishes that a v5 server may have in flight towards us.
const RECEIVE_MAXIMUM: u16 = 1_024;

/// What a connection is made of.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) address: Address,
    pub(super) protocol: Protocol,
    pub(super) client_id: String,
    pub(super) credentials: Option<(String, String)>,
    pub(super) keep_alive: Duration,
    pub(super) tls: Option<Arc<rumqttc::tokio_rustls::rustls::ClientConfig>>,
    pub(super) max_packet: usize,
}

/// What happened on a connection.
pub(super) enum Happening {
    /// CONNACK: accepted.
    Connected,
    /// SUBACK; whether the subscription was granted.
    Subscribed(bool),
    /// A publish.
    Publish(Publish),
    /// A QoS 1 publish of ours is the server's now.
    Acknowledged,
    /// DISCONNECT is on its way.
    Disconnected,
    /// Nothing that matters here.
    Other,
}

/// A publish, with what is needed to acknowledge it.
pub(super) struct Publish {
    /// As it came; not checked.
    pub(super) topic: Bytes,
    pub(super) payload: Bytes,
    pub(super) qos: u8,
    pub(super) retain: bool,
    pub(super) traceparent: Option<Box<str>>,
    pub(super) token: Token,
}

/// The right to acknowledge one publish on the connection it came by.
pub(super) enum Token {
    V3(Box<rumqttc::Publish>),
    V5(Box<v5::mqttbytes::v5::Publish>),
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum WireError {
    #[error(transparent)]
    V3(#[from] Box<rumqttc::ConnectionError>),
    #[error(transparent)]
    V5(#[from] Box<v5::ConnectionError>),
    #[error("the network client's queue is full")]
    Full,
    #[error("the server refused the subscription; give this client the right to read spBv1.0/#")]
    NotGranted,
    #[error("no answer in {} s", .0.as_secs())]
    Silent(Duration),
    #[error("a message could not be taken; it is left unacknowledged")]
    Withheld,
    #[error("the connection has ended")]
    Over,
}

enum Client {
    V3(rumqttc::AsyncClient),
    V5(v5::AsyncClient),
}

type Happenings = Pin<Box<dyn Stream<Item = Result<Happening, WireError>> + Send>>;

pub(super) struct Wire {
    client: Client,
    happenings: Happenings,
}

impl Wire {
    /// Prepares a connection; the first [`Wire::poll`] makes it.
    // tck-id-message-flow-phid-sparkplug-clean-session-311, tck-id-message-flow-phid-sparkplug-clean-session-50
    pub(super) fn new(settings: &Settings, will: Option<&Transmit>) -> Self {
        let Address { host, port, .. } = &settings.address;
        let transport = match &settings.tls {
            None => Transport::Tcp,
            Some(config) => Transport::Tls(TlsConfiguration::Rustls(config.clone())),
        };
        match settings.protocol {
            Protocol::V3 => {
                let mut options = rumqttc::MqttOptions::new(&settings.client_id, host, *port);
                options
                    .set_clean_session(true)
                    .set_keep_alive(settings.keep_alive)
                    .set_manual_acks(true)
                    .set_transport(transport)
                    .set_max_packet_size(settings.max_packet, settings.max_packet);
                if let Some((user, password)) = &settings.credentials {
                    options.set_credentials(user, password);
                }
                if let Some(will) = will {
                    options.set_last_will(rumqttc::LastWill::new(
                        &will.topic,
                        will.payload.clone(),
                        rumqttc::QoS::AtLeastOnce,
                        will.retain,
                    ));
                }
                let (client, events) = rumqttc::AsyncClient::new(options, QUEUE);
                let happenings = stream::unfold(Some(events), |events| async move {
                    let mut events = events?;
                    match events.poll().await {
                        Ok(event) => Some((Ok(of_v3(event)), Some(events))),
                        Err(error) => Some((Err(WireError::from(Box::new(error))), None)),
                    }
                });
                Self {
                    client: Client::V3(client),
                    happenings: Box::pin(happenings),
                }
            }
            Protocol::V5 => {
                let mut options = v5::MqttOptions::new(&settings.client_id, host, *port);
                let max_packet = u32::try_from(settings.max_packet).unwrap_or(u32::MAX);
                options
                    .set_clean_start(true)
                    .set_session_expiry_interval(Some(0))
                    .set_receive_maximum(Some(RECEIVE_MAXIMUM))
                    .set_keep_alive(settings.keep_alive)
                    .set_manual_acks(true)
                    .set_transport(transport)
                    .set_max_packet_size(Some(max_packet));
                if let Some((user, password)) = &settings.credentials {
                    options.set_credentials(user, password);
                }
                if let Some(will) = will {
                    options.set_last_will(v5::mqttbytes::v5::LastWill::new(
                        &will.topic,
                        will.payload.clone(),
                        v5::mqttbytes::QoS::AtLeastOnce,
                        will.retain,
                        None,
                    ));
                }
                let (client, events) = v5::AsyncClient::new(options, QUEUE);
                let happenings = stream::unfold(Some(events), |events| async move {
                    let mut events = events?;
                    match events.poll().await {
                        Ok(event) => Some((Ok(of_v5(event)), Some(events))),
                        Err(error) => Some((Err(WireError::from(Box::new(error))), None)),
                    }
                });
                Self {
                    client: Client::V5(client),
                    happenings: Box::pin(happenings),
                }
            }
        }
    }

    /// The next thing that happens; after an error, nothing more. It may be dropped at any time: the next call goes on
    /// where this one stopped.
    pub(super) async fn poll(&mut self) -> Result<Happening, WireError> {
        self.happenings.next().await.unwrap_or(Err(WireError::Over))
    }

    /// Subscribes with QoS 1; the answer is [`Happening::Subscribed`].
    pub(super) fn subscribe(&self, filter: &str) -> Result<(), WireError> {
        match &self.client {
            Client::V3(client) => client
                .try_subscribe(filter, rumqttc::QoS::AtLeastOnce)
                .map_err(|_| WireError::Full),
            Client::V5(client) => client
                .try_subscribe(filter, v5::mqttbytes::QoS::AtLeastOnce)
                .map_err(|_| WireError::Full),
        }
    }

    /// Publishes at QoS 0 or 1.
    pub(super) fn publish(&self, transmit: Transmit) -> Result<(), WireError> {
        let Transmit {
            topic,
            payload,
            qos,
            retain,
            ..
        } = transmit;
        match &self.client {
            Client::V3(client) => {
                let qos = match qos {
                    0 => rumqttc::QoS::AtMostOnce,
                    _ => rumqttc::QoS::AtLeastOnce,
                };
                client
                    .try_publish(topic, qos, retain, payload)
                    .map_err(|_| WireError::Full)
            }
            Client::V5(client) => {
                let qos = match qos {
                    0 => v5::mqttbytes::QoS::AtMostOnce,
                    _ => v5::mqttbytes::QoS::AtLeastOnce,
                };
                client
                    .try_publish(topic, qos, retain, payload)
                    .map_err(|_| WireError::Full)
            }
        }
    }

    /// Acknowledges a publish that came by this connection.
    pub(super) fn acknowledge(&self, token: &Token) -> Result<(), WireError> {
        match (&self.client, token) {
            (Client::V3(client), Token::V3(publish)) => {
                client.try_ack(publish).map_err(|_| WireError::Full)
            }
            (Client::V5(client), Token::V5(publish)) => {
                client.try_ack(publish).map_err(|_| WireError::Full)
            }
            // A token lives no longer than its connection.
            _ => Ok(()),
        }
    }

    /// Asks for DISCONNECT.
    pub(super) fn disconnect(&self) -> Result<(), WireError> {
        match &self.client {
            Client::V3(client) => client.try_disconnect().map_err(|_| WireError::Full),
            Client::V5(client) => client.try_disconnect().map_err(|_| WireError::Full),
        }
    }
}

fn of_v3(event: rumqttc::Event) -> Happening {
    use rumqttc::{Event, Outgoing, Packet, SubscribeReasonCode};
    match event {
        Event::Incoming(Packet::ConnAck(_)) => Happening::Connected,
        Event::Incoming(Packet::SubAck(ack)) => Happening::Subscribed(
            ack.return_codes
                .iter()
                .all(|code| matches!(code, SubscribeReasonCode::Success(_))),
        ),
        Event::Incoming(Packet::Publish(publish)) => Happening::Publish(Publish {
            topic: Bytes::copy_from_slice(publish.topic.as_bytes()),
            payload: publish.payload.clone(),
            qos: publish.qos as u8,
            retain: publish.retain,
            traceparent: None,
            token: Token::V3(Box::new(publish)),
        }),
        Event::Incoming(Packet::PubAck(_)) => Happening::Acknowledged,
        Event::Outgoing(Outgoing::Disconnect) => Happening::Disconnected,
        _ => Happening::Other,
    }
}

fn of_v5(event: v5::Event) -> Happening {
    use v5::Event;
    use v5::mqttbytes::v5::{Packet, SubscribeReasonCode};
    match event {
        Event::Incoming(Packet::ConnAck(_)) => Happening::Connected,
        Event::Incoming(Packet::SubAck(ack)) => Happening::Subscribed(
            ack.return_codes
                .iter()
                .all(|code| matches!(code, SubscribeReasonCode::Success(_))),
        ),
        Event::Incoming(Packet::Publish(publish)) => Happening::Publish(Publish {
            topic: publish.topic.clone(),
            payload: publish.payload.clone(),
            qos: publish.qos as u8,
            retain: publish.retain,
            traceparent: publish.properties.as_ref().and_then(|properties| {
                properties
                    .user_properties
                    .iter()
                    .find(|(key, _)| key == "traceparent")
                    .map(|(_, value)| value.as_str().into())
            }),
            token: Token::V5(Box::new(publish)),
        }),
        Event::Incoming(Packet::PubAck(_)) => Happening::Acknowledged,
        Event::Outgoing(rumqttc::Outgoing::Disconnect) => Happening::Disconnected,
        _ => Happening::Other,
    }
}
