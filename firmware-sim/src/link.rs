//! One connection of a node, of either version of MQTT: rumqttc for 3.1.1, `mqtt5` for 5.

use std::pin::Pin;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use rumqttc::tokio_rustls::TlsConnector;
use rumqttc::tokio_rustls::rustls::pki_types::ServerName;
use rumqttc::{
    AsyncClient, Event, LastWill, MqttOptions, Packet, QoS, TlsConfiguration, Transport,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::mqtt5::{Connect, Mqtt5, Mqtt5Error, WITH_WILL};
use crate::node::Will;
use crate::transport::Broker;

/// rumqttc's own limit of 10 KiB is too small for births; 16 MiB is what brokers take.
const MAX_PACKET: usize = 16 << 20;

/// MQTT version.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Protocol {
    /// 3.1.1: a node that leaves publishes its death, and DISCONNECT drops the will.
    #[default]
    V3,
    /// 5: a node that leaves does so with reason 0x04, and the server sends its will.
    V5,
}

/// What happened on a connection.
pub(crate) enum Heard {
    Connected,
    Subscribed,
    Publish { topic: String, payload: Vec<u8> },
    Other,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error(transparent)]
    V3(#[from] Box<rumqttc::ConnectionError>),
    #[error(transparent)]
    V5(#[from] Mqtt5Error),
    #[error("left")]
    Left,
}

type Events = Pin<Box<dyn futures_util::Stream<Item = Result<Heard, LinkError>> + Send>>;

/// A connection; dropping it closes the socket without DISCONNECT, so that the broker sends the will.
///
/// rumqttc's `poll` loses what it is about to write when it is dropped half way; it lives on inside a stream, so that
/// whoever stops waiting for the next event loses nothing.
pub(crate) enum Link {
    V3(AsyncClient, Events),
    V5(Mqtt5),
}

fn heard(event: Event) -> Heard {
    match event {
        Event::Incoming(Packet::ConnAck(_)) => Heard::Connected,
        Event::Incoming(Packet::SubAck(_)) => Heard::Subscribed,
        Event::Incoming(Packet::Publish(publish)) => Heard::Publish {
            topic: publish.topic,
            payload: publish.payload.to_vec(),
        },
        _ => Heard::Other,
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

async fn open(broker: Broker, tls: Option<Transport>) -> std::io::Result<Box<dyn Stream>> {
    let socket = TcpStream::connect((broker.host.as_str(), broker.port)).await?;
    socket.set_nodelay(true)?;
    let Some(Transport::Tls(TlsConfiguration::Rustls(config))) = tls.filter(|_| broker.tls) else {
        return Ok(Box::new(socket));
    };
    let name = ServerName::try_from(broker.host).map_err(std::io::Error::other)?;
    let secured = TlsConnector::from(config).connect(name, socket).await?;
    Ok(Box::new(secured))
}

impl Link {
    /// Prepares a connection; [`Link::poll`] makes it. `queue`: messages that may wait.
    pub(crate) fn new(
        protocol: Protocol,
        broker: &Broker,
        tls: Option<&Transport>,
        client_id: String,
        will: Will,
        queue: usize,
    ) -> Self {
        if protocol == Protocol::V5 {
            let connect = Connect {
                client_id,
                will_topic: will.topic,
                will_payload: will.payload,
            };
            return Self::V5(Mqtt5::new(
                connect,
                queue,
                open(broker.clone(), tls.cloned()),
            ));
        }
        let mut options = MqttOptions::new(client_id, &broker.host, broker.port);
        let transport = match tls {
            Some(transport) if broker.tls => transport.clone(),
            _ => Transport::Tcp,
        };
        options
            .set_keep_alive(Duration::from_secs(30))
            .set_clean_session(true)
            .set_transport(transport)
            .set_max_packet_size(MAX_PACKET, MAX_PACKET)
            .set_last_will(LastWill::new(
                will.topic,
                will.payload,
                QoS::AtLeastOnce,
                false,
            ));
        let (client, events) = AsyncClient::new(options, queue);
        let events = stream::unfold(Some(events), |events| async move {
            let mut events = events?;
            match events.poll().await {
                Ok(event) => Some((Ok(heard(event)), Some(events))),
                Err(error) => Some((Err(LinkError::from(Box::new(error))), None)),
            }
        });
        Self::V3(client, Box::pin(events))
    }

    /// The next thing that happens; after an error, nothing more.
    pub(crate) async fn poll(&mut self) -> Result<Heard, LinkError> {
        match self {
            Self::V3(_, events) => events.next().await.unwrap_or(Err(LinkError::Left)),
            Self::V5(connection) => match connection.poll().await {
                Some(heard) => Ok(heard?),
                None => Err(LinkError::Left),
            },
        }
    }

    /// Subscribes with QoS 1. Whether there was room for it.
    pub(crate) fn subscribe(&self, filter: &str) -> bool {
        match self {
            Self::V3(client, _) => client.try_subscribe(filter, QoS::AtLeastOnce).is_ok(),
            Self::V5(connection) => connection.subscribe(filter),
        }
    }

    /// Publishes at QoS 0, as the norm wants. Whether there was room for it.
    pub(crate) fn publish(&self, topic: String, payload: Vec<u8>, retain: bool) -> bool {
        match self {
            Self::V3(client, _) => client
                .try_publish(topic, QoS::AtMostOnce, retain, payload)
                .is_ok(),
            Self::V5(connection) => connection.publish(topic, payload, retain),
        }
    }

    /// Sends what is queued and DISCONNECT. With 5, the server then sends the will.
    // tck-id-operational-behavior-edge-node-intentional-disconnect-packet,
    // tck-id-payloads-ndeath-will-message-publisher-disconnect-mqtt50, -mqtt311
    pub(crate) async fn leave(mut self) {
        let asked = match &self {
            Self::V3(client, _) => client.try_disconnect().is_ok(),
            Self::V5(connection) => connection.leave(WITH_WILL),
        };
        if asked {
            let done = async { while self.poll().await.is_ok() {} };
            let _ = tokio::time::timeout(Duration::from_secs(2), done).await;
        }
    }
}
