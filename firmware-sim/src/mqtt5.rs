//! An MQTT 5 connection that can leave with any reason code, which rumqttc's can't: the norm wants 0x04 of a node that
//! leaves on purpose, so that the server sends its will.
//!
//! It speaks what an edge node needs and no more: CONNECT with a will, SUBSCRIBE, PUBLISH at QoS 0 outwards and at QoS 0
//! or 1 inwards, PINGREQ, DISCONNECT. One task owns the socket; dropping the connection closes it without DISCONNECT.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::link::Heard;

/// The node wants the server to send its will (MQTT 5, 3.14.2.1).
pub(crate) const WITH_WILL: u8 = 0x04;
/// Bytes of the largest packet that is read.
const MAX_PACKET: usize = 16 << 20;
/// Time between two PINGREQ; CONNECT says double.
const PING: Duration = Duration::from_secs(15);
/// How long a connection may take to stand.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a CONNECT says.
pub(crate) struct Connect {
    pub(crate) client_id: String,
    pub(crate) will_topic: String,
    pub(crate) will_payload: Vec<u8>,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Mqtt5Error {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("the server refused the connection with reason {0:#04x}")]
    Refused(u8),
    #[error("the server left with reason {0:#04x}")]
    Left(u8),
    #[error("no answer to CONNECT")]
    Silent,
    #[error("packet of type {0} is not as MQTT 5 has it")]
    Malformed(u8),
}

enum Order {
    Subscribe(String),
    Publish {
        topic: String,
        payload: Vec<u8>,
        retain: bool,
    },
    Leave(u8),
}

/// A connection.
pub(crate) struct Mqtt5 {
    orders: mpsc::Sender<Order>,
    heard: mpsc::Receiver<Result<Heard, Mqtt5Error>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Mqtt5 {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Mqtt5 {
    /// Starts to connect over what `open` gives.
    pub(crate) fn new<S>(
        connect: Connect,
        queue: usize,
        open: impl Future<Output = std::io::Result<S>> + Send + 'static,
    ) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (orders, taken) = mpsc::channel(queue);
        let (tell, heard) = mpsc::channel(64);
        let task = tokio::spawn(async move {
            if let Err(error) = live(connect, open, taken, &tell).await {
                // Nobody listens to a connection that was dropped.
                let _ = tell.send(Err(error)).await;
            }
        });
        Self {
            orders,
            heard,
            task,
        }
    }

    /// The next thing that happens; `None` after DISCONNECT was sent. Can be cancelled.
    pub(crate) async fn poll(&mut self) -> Option<Result<Heard, Mqtt5Error>> {
        self.heard.recv().await
    }

    /// Subscribes with QoS 1. Whether there was room for it.
    pub(crate) fn subscribe(&self, filter: &str) -> bool {
        self.orders
            .try_send(Order::Subscribe(filter.to_owned()))
            .is_ok()
    }

    /// Publishes at QoS 0. Whether there was room for it.
    pub(crate) fn publish(&self, topic: String, payload: Vec<u8>, retain: bool) -> bool {
        self.orders
            .try_send(Order::Publish {
                topic,
                payload,
                retain,
            })
            .is_ok()
    }

    /// DISCONNECT with a reason, after everything that is queued. Whether there was room for it.
    pub(crate) fn leave(&self, reason: u8) -> bool {
        self.orders.try_send(Order::Leave(reason)).is_ok()
    }
}

async fn live<S: AsyncRead + AsyncWrite + Unpin>(
    connect: Connect,
    open: impl Future<Output = std::io::Result<S>>,
    mut orders: mpsc::Receiver<Order>,
    tell: &mpsc::Sender<Result<Heard, Mqtt5Error>>,
) -> Result<(), Mqtt5Error> {
    let opened = async {
        let mut socket = open.await?;
        socket.write_all(&connect_packet(&connect)).await?;
        Ok::<S, std::io::Error>(socket)
    };
    let socket = tokio::time::timeout(PATIENCE, opened)
        .await
        .map_err(|_| Mqtt5Error::Silent)??;
    let (mut reading, mut writing) = tokio::io::split(socket);
    let mut input = Input::default();
    let mut pid: u16 = 0;
    let mut pings = tokio::time::interval_at(tokio::time::Instant::now() + PING, PING);
    loop {
        while let Some((first, body)) = input.packet()? {
            if let Some(answer) = answer(first, &body)? {
                writing.write_all(&answer).await?;
            }
            if let Some(heard) = heard(first, &body)? {
                let _ = tell.send(Ok(heard)).await;
            }
        }
        tokio::select! {
            count = reading.read(&mut input.chunk) => {
                let count = count?;
                if count == 0 {
                    return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
                }
                input.take(count);
            }
            order = orders.recv() => match order {
                None => return Ok(()),
                Some(Order::Subscribe(filter)) => {
                    pid = pid.checked_add(1).unwrap_or(1);
                    writing.write_all(&subscribe_packet(pid, &filter)).await?;
                }
                Some(Order::Publish { topic, payload, retain }) => {
                    writing.write_all(&publish_packet(&topic, &payload, retain)).await?;
                }
                Some(Order::Leave(reason)) => {
                    writing.write_all(&[0xE0, 1, reason]).await?;
                    writing.shutdown().await?;
                    return Ok(());
                }
            },
            _ = pings.tick() => writing.write_all(&[0xC0, 0]).await?,
        }
    }
}

/// Bytes that have arrived and are not taken apart yet.
struct Input {
    chunk: Vec<u8>,
    bytes: Vec<u8>,
}

impl Default for Input {
    fn default() -> Self {
        Self {
            chunk: vec![0; 16 * 1024],
            bytes: Vec::new(),
        }
    }
}

impl Input {
    fn take(&mut self, count: usize) {
        self.bytes
            .extend_from_slice(self.chunk.get(..count).unwrap_or_default());
    }

    /// The first whole packet: its first byte and its body.
    fn packet(&mut self) -> Result<Option<(u8, Vec<u8>)>, Mqtt5Error> {
        let Some((first, rest)) = self.bytes.split_first() else {
            return Ok(None);
        };
        let first = *first;
        let Some((length, used)) = varint(rest).map_err(|()| Mqtt5Error::Malformed(first >> 4))?
        else {
            return Ok(None);
        };
        if length > MAX_PACKET {
            return Err(Mqtt5Error::Malformed(first >> 4));
        }
        let Some(body) = rest.get(used..used + length) else {
            return Ok(None);
        };
        let body = body.to_vec();
        self.bytes.drain(..1 + used + length);
        Ok(Some((first, body)))
    }
}

/// A variable byte integer and how many bytes it has; `None` when they are not all there.
fn varint(bytes: &[u8]) -> Result<Option<(usize, usize)>, ()> {
    let mut value = 0;
    for (at, byte) in bytes.iter().take(4).enumerate() {
        value |= usize::from(byte & 0x7F) << (7 * at);
        if byte & 0x80 == 0 {
            return Ok(Some((value, at + 1)));
        }
    }
    if bytes.len() < 4 { Ok(None) } else { Err(()) }
}

fn answer(first: u8, body: &[u8]) -> Result<Option<Vec<u8>>, Mqtt5Error> {
    // PUBLISH at QoS 1: PUBACK with its packet id.
    if first & 0xF6 != 0x32 {
        return Ok(None);
    }
    let (_, at) = text(body).ok_or(Mqtt5Error::Malformed(3))?;
    match body.get(at..at + 2) {
        Some([high, low]) => Ok(Some(vec![0x40, 2, *high, *low])),
        _ => Err(Mqtt5Error::Malformed(3)),
    }
}

fn heard(first: u8, body: &[u8]) -> Result<Option<Heard>, Mqtt5Error> {
    let wrong = Mqtt5Error::Malformed(first >> 4);
    match first >> 4 {
        2 => match body.get(1) {
            Some(0) => Ok(Some(Heard::Connected)),
            Some(reason) => Err(Mqtt5Error::Refused(*reason)),
            None => Err(wrong),
        },
        3 => {
            let (topic, mut at) = text(body).ok_or(wrong)?;
            if first & 0b110 != 0 {
                at += 2;
            }
            let rest = body.get(at..).unwrap_or_default();
            let Ok(Some((length, used))) = varint(rest) else {
                return Err(Mqtt5Error::Malformed(3));
            };
            Ok(Some(Heard::Publish {
                topic,
                payload: rest.get(used + length..).unwrap_or_default().to_vec(),
            }))
        }
        9 => Ok(Some(Heard::Subscribed)),
        14 => Err(Mqtt5Error::Left(body.first().copied().unwrap_or(0))),
        _ => Ok(None),
    }
}

/// A text at the start of bytes, and where it ends.
fn text(bytes: &[u8]) -> Option<(String, usize)> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    let length = usize::from(u16::from_be_bytes(*length));
    let text = std::str::from_utf8(rest.get(..length)?).ok()?;
    Some((text.to_owned(), 2 + length))
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(bytes.get(..usize::from(length)).unwrap_or_default());
}

fn framed(first: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![first];
    let mut length = body.len();
    loop {
        let byte = u8::try_from(length % 128).unwrap_or_default();
        length /= 128;
        out.push(if length > 0 { byte | 0x80 } else { byte });
        if length == 0 {
            break;
        }
    }
    out.extend_from_slice(body);
    out
}

/// tck-id-message-flow-edge-node-birth-publish-connect: clean start, session expiry 0, a will of QoS 1 that is not
/// retained.
fn connect_packet(connect: &Connect) -> Vec<u8> {
    let mut body = Vec::new();
    put(&mut body, b"MQTT");
    body.extend_from_slice(&[5, 0b0000_1110]);
    let keep_alive = u16::try_from(PING.as_secs() * 2).unwrap_or(u16::MAX);
    body.extend_from_slice(&keep_alive.to_be_bytes());
    // No properties: the session ends with the connection.
    body.push(0);
    put(&mut body, connect.client_id.as_bytes());
    body.push(0);
    put(&mut body, connect.will_topic.as_bytes());
    put(&mut body, &connect.will_payload);
    framed(0x10, &body)
}

fn subscribe_packet(pid: u16, filter: &str) -> Vec<u8> {
    let mut body = pid.to_be_bytes().to_vec();
    body.push(0);
    put(&mut body, filter.as_bytes());
    body.push(1);
    framed(0x82, &body)
}

fn publish_packet(topic: &str, payload: &[u8], retain: bool) -> Vec<u8> {
    let mut body = Vec::with_capacity(topic.len() + payload.len() + 3);
    put(&mut body, topic.as_bytes());
    body.push(0);
    body.extend_from_slice(payload);
    framed(0x30 | u8::from(retain), &body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connect() -> Connect {
        Connect {
            client_id: "c".to_owned(),
            will_topic: "w".to_owned(),
            will_payload: vec![7, 8],
        }
    }

    #[test]
    fn packets_are_as_mqtt_5_has_them() {
        assert_eq!(
            connect_packet(&connect()),
            [
                0x10, 22, 0, 4, b'M', b'Q', b'T', b'T', 5, 0x0E, 0, 30, 0, 0, 1, b'c', 0, 0, 1,
                b'w', 0, 2, 7, 8
            ]
        );
        assert_eq!(
            subscribe_packet(3, "a/#"),
            [0x82, 9, 0, 3, 0, 0, 3, b'a', b'/', b'#', 1]
        );
        assert_eq!(publish_packet("t", &[9], true), [0x31, 5, 0, 1, b't', 0, 9]);
    }

    /// A server that says what it is told to, and what it read.
    #[tokio::test]
    async fn it_connects_answers_and_leaves_with_its_will() {
        let (client, mut server) = tokio::io::duplex(1 << 16);
        let mut node = Mqtt5::new(connect(), 8, async move { Ok(client) });
        let mut bytes = vec![0; 24];
        server.read_exact(&mut bytes).await.unwrap();
        assert_eq!(bytes, connect_packet(&connect()));
        server.write_all(&[0x20, 3, 0, 0, 0]).await.unwrap();
        assert!(matches!(node.poll().await, Some(Ok(Heard::Connected))));
        // A publish at QoS 1, in two pieces.
        server.write_all(&[0x32, 7, 0, 1, b't']).await.unwrap();
        server.write_all(&[0, 5, 0, 42]).await.unwrap();
        let Some(Ok(Heard::Publish { topic, payload })) = node.poll().await else {
            panic!("no publish");
        };
        assert_eq!((topic.as_str(), &payload[..]), ("t", &[42][..]));
        assert!(node.subscribe("x"));
        assert!(node.publish("t".to_owned(), vec![1], false));
        assert!(node.leave(WITH_WILL));
        let mut rest = Vec::new();
        server.read_to_end(&mut rest).await.unwrap();
        let mut expected = vec![0x40, 2, 0, 5];
        expected.extend(subscribe_packet(1, "x"));
        expected.extend(publish_packet("t", &[1], false));
        expected.extend([0xE0, 1, 0x04]);
        assert_eq!(rest, expected);
        assert!(node.poll().await.is_none());
    }

    #[tokio::test]
    async fn a_refusal_tells_its_reason_and_nonsense_ends_it() {
        for (answer, shown) in [
            (&[0x20, 3, 0, 0x87, 0][..], "0x87"),
            (&[0x20, 0xFF, 0xFF, 0xFF, 0xFF], "type 2"),
            (&[0x30, 2, 0, 9], "type 3"),
            (&[0xE0, 1, 0x8E], "0x8e"),
        ] {
            let (client, mut server) = tokio::io::duplex(1 << 16);
            let mut node = Mqtt5::new(connect(), 8, async move { Ok(client) });
            server.write_all(answer).await.unwrap();
            let Some(Err(error)) = node.poll().await else {
                panic!("no error");
            };
            assert!(error.to_string().contains(shown), "{error}");
        }
    }
}
