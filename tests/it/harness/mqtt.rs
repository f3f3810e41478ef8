//! A small blocking MQTT 3.1.1 client of the tests' own, and an edge node on top of it whose payloads are encoded
//! by `sparkplug-rs`: neither shares code with the gateway.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use sparkplug_rs::protobuf::Message as _;
use sparkplug_rs::{DataType, Payload, payload};

/// How long a client waits for what it was promised, on a machine that is busy with everything else.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A connection.
pub struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
    next: u16,
    /// Publishes that came before a SUBACK, each with its RETAIN flag.
    early: VecDeque<(Packet, bool)>,
    /// RETAIN flag of the last publish that was read.
    pub retained: bool,
    /// Whether the broker still knew the session.
    pub resumed: bool,
}

/// What arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Packet {
    Connack(u8),
    Publish { topic: String, payload: Vec<u8> },
    Puback(u16),
    Suback,
    Other(u8),
}

pub fn text(out: &mut Vec<u8>, text: &[u8]) {
    out.extend_from_slice(&u16::try_from(text.len()).unwrap().to_be_bytes());
    out.extend_from_slice(text);
}

pub fn frame(first: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![first];
    let mut length = body.len();
    loop {
        let byte = u8::try_from(length % 128).unwrap();
        length /= 128;
        out.push(if length > 0 { byte | 0x80 } else { byte });
        if length == 0 {
            break;
        }
    }
    out.extend_from_slice(body);
    out
}

impl Client {
    /// Connects with a clean session and without keep alive: a story may leave a client in silence for as long as
    /// something else takes. `will` is topic and payload, QoS 1.
    pub fn connect(address: SocketAddr, id: &str, will: Option<(&str, &[u8])>) -> Self {
        let mut body = Vec::new();
        text(&mut body, b"MQTT");
        body.push(4);
        body.push(if will.is_some() {
            0b0000_1110
        } else {
            0b0000_0010
        });
        body.extend_from_slice(&0u16.to_be_bytes());
        text(&mut body, id.as_bytes());
        if let Some((topic, payload)) = will {
            text(&mut body, topic.as_bytes());
            text(&mut body, payload);
        }
        Self::raw(address, &body)
    }

    /// Connects to a session that stays, or goes on with it.
    pub fn resume(address: SocketAddr, id: &str) -> Self {
        let mut body = Vec::new();
        text(&mut body, b"MQTT");
        body.extend_from_slice(&[4, 0, 0, 0]);
        text(&mut body, id.as_bytes());
        Self::raw(address, &body)
    }

    /// Connects with the body of a CONNECT.
    pub fn raw(address: SocketAddr, body: &[u8]) -> Self {
        let stream = TcpStream::connect(address).expect("the broker listens");
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut client = Self {
            stream,
            buffer: Vec::new(),
            next: 1,
            early: VecDeque::new(),
            retained: false,
            resumed: false,
        };
        client.send(&frame(0x10, body));
        assert_eq!(client.read(), Some(Packet::Connack(0)));
        client
    }

    /// The socket, for writes that may fail.
    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the broker reads");
    }

    /// Publishes; QoS 1 returns its packet id and does not wait for the PUBACK.
    pub fn publish(&mut self, topic: &str, payload: &[u8], qos: u8) -> u16 {
        let (bytes, id) = self.publish_bytes(topic, payload, qos);
        self.send(&bytes);
        id
    }

    /// Publishes at QoS 1 and waits for the PUBACK.
    pub fn publish_acked(&mut self, topic: &str, payload: &[u8], retain: bool) {
        let (mut bytes, id) = self.publish_bytes(topic, payload, 1);
        bytes[0] |= u8::from(retain);
        self.send(&bytes);
        self.acknowledged(id);
    }

    /// Waits for the PUBACK of `id`.
    pub fn acknowledged(&mut self, id: u16) {
        loop {
            match self.read() {
                Some(Packet::Puback(got)) if got == id => return,
                Some(_) => {}
                None => panic!("no PUBACK of {id}"),
            }
        }
    }

    pub fn publish_bytes(&mut self, topic: &str, payload: &[u8], qos: u8) -> (Vec<u8>, u16) {
        let mut body = Vec::new();
        text(&mut body, topic.as_bytes());
        let mut id = 0;
        if qos > 0 {
            id = self.next;
            self.next = self.next.checked_add(1).unwrap_or(1);
            body.extend_from_slice(&id.to_be_bytes());
        }
        body.extend_from_slice(payload);
        (frame(0x30 | (qos << 1), &body), id)
    }

    pub fn subscribe(&mut self, filter: &str, qos: u8) {
        let mut body = 9u16.to_be_bytes().to_vec();
        text(&mut body, filter.as_bytes());
        body.push(qos);
        self.send(&frame(0x82, &body));
        // A broker may send what is retained before its SUBACK (MQTT 3.8.4).
        let mut early = VecDeque::new();
        loop {
            match self.receive() {
                Some(Packet::Suback) => break,
                Some(publish @ Packet::Publish { .. }) => {
                    early.push_back((publish, self.retained));
                }
                Some(_) => {}
                None => panic!("no SUBACK"),
            }
        }
        self.early.extend(early);
    }

    /// The next packet; `None` when the broker closed the connection or nothing came in [`PATIENCE`].
    pub fn read(&mut self) -> Option<Packet> {
        if let Some((publish, retained)) = self.early.pop_front() {
            self.retained = retained;
            return Some(publish);
        }
        self.receive()
    }

    fn receive(&mut self) -> Option<Packet> {
        loop {
            if let Some((first, start, length)) = self.head()
                && self.buffer.len() >= start + length
            {
                let body: Vec<u8> = self.buffer[start..start + length].to_vec();
                self.buffer.drain(..start + length);
                match first >> 4 {
                    2 => self.resumed = body[0] & 1 == 1,
                    3 => self.retained = first & 1 == 1,
                    _ => {}
                }
                return Some(Self::packet(first, &body));
            }
            let mut chunk = [0; 16 * 1024];
            match self.stream.read(&mut chunk) {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.buffer.extend_from_slice(&chunk[..count]),
            }
        }
    }

    fn head(&self) -> Option<(u8, usize, usize)> {
        let (mut length, mut shift, mut at) = (0usize, 0, 1);
        loop {
            let byte = *self.buffer.get(at)?;
            length |= usize::from(byte & 0x7F) << shift;
            at += 1;
            shift += 7;
            if byte & 0x80 == 0 {
                return Some((self.buffer[0], at, length));
            }
        }
    }

    fn packet(first: u8, body: &[u8]) -> Packet {
        let two = |at: usize| u16::from_be_bytes([body[at], body[at + 1]]);
        match first >> 4 {
            2 => Packet::Connack(body[1]),
            3 => {
                let size = usize::from(two(0));
                let topic = String::from_utf8(body[2..2 + size].to_vec()).unwrap();
                let skip = if first & 0b110 == 0 { 0 } else { 2 };
                Packet::Publish {
                    topic,
                    payload: body[2 + size + skip..].to_vec(),
                }
            }
            4 => Packet::Puback(two(0)),
            9 => Packet::Suback,
            other => Packet::Other(other),
        }
    }
}

/// An edge node with devices, of which one speaks at a time; `seq`, `bdSeq` and aliases as the norm wants them.
pub struct Node {
    pub client: Client,
    pub group: String,
    pub name: String,
    pub device: String,
    seq: u8,
    /// First alias of each device: unique in a node.
    aliases: std::collections::HashMap<String, u64>,
}

pub fn metric(name: &str, alias: u64, kind: DataType) -> payload::Metric {
    let mut metric = payload::Metric::new();
    metric.set_name(name.to_owned());
    metric.set_alias(alias);
    metric.set_datatype(kind as u32);
    metric.set_timestamp(now_ms());
    metric
}

/// Wall clock, ms UTC.
pub fn now_ms() -> u64 {
    u64::try_from(
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_millis(),
    )
    .unwrap()
}

impl Node {
    /// Connects, and sends NBIRTH and DBIRTH with metrics `n` (Int64, alias 1) and `temp` (Double, alias 2).
    pub fn birth(address: SocketAddr, group: &str, name: &str, device: &str) -> Self {
        let death = {
            let mut payload = Payload::new();
            let mut bdseq = metric("bdSeq", 0, DataType::Int64);
            bdseq.clear_alias();
            bdseq.set_long_value(0);
            payload.metrics.push(bdseq);
            payload.write_to_bytes().unwrap()
        };
        let will = format!("spBv1.0/{group}/NDEATH/{name}");
        let client = Client::connect(address, name, Some((&will, &death)));
        let mut node = Self {
            client,
            group: group.to_owned(),
            name: name.to_owned(),
            device: device.to_owned(),
            seq: 0,
            aliases: std::collections::HashMap::new(),
        };
        let mut bdseq = metric("bdSeq", 0, DataType::Int64);
        bdseq.clear_alias();
        bdseq.set_long_value(0);
        node.send("NBIRTH", false, vec![bdseq], 0);
        node.birth_of(device);
        node
    }

    /// DBIRTH of a device, which the next messages are of.
    pub fn birth_of(&mut self, device: &str) {
        device.clone_into(&mut self.device);
        let alias = self.aliases.len() as u64 * 2 + 1;
        self.aliases.insert(device.to_owned(), alias);
        let (mut n, mut temp) = (
            metric("n", alias, DataType::Int64),
            metric("temp", alias + 1, DataType::Double),
        );
        n.set_long_value(0);
        temp.set_double_value(20.0);
        self.send("DBIRTH", true, vec![n, temp], 0);
    }

    /// Subscribes to the node's commands, as an edge node does before its birth.
    #[cfg(feature = "otlp")]
    pub fn subscribe_commands(&mut self) {
        let filter = format!("spBv1.0/{}/DCMD/{}/#", self.group, self.name);
        self.client.subscribe(&filter, 1);
    }

    /// The bytes of one DDATA that sets `n`, by alias alone.
    pub fn count_bytes(&mut self, n: u64, qos: u8) -> (Vec<u8>, u16) {
        let mut metric = payload::Metric::new();
        metric.set_alias(self.aliases[&self.device]);
        metric.set_timestamp(now_ms());
        metric.set_long_value(n);
        let payload = self.payload(vec![metric]);
        let topic = format!("spBv1.0/{}/DDATA/{}/{}", self.group, self.name, self.device);
        self.client.publish_bytes(&topic, &payload, qos)
    }

    pub fn temp(&mut self, value: f64) {
        let mut metric = payload::Metric::new();
        metric.set_alias(self.aliases[&self.device] + 1);
        metric.set_timestamp(now_ms());
        metric.set_double_value(value);
        self.send("DDATA", true, vec![metric], 0);
    }

    pub fn send(
        &mut self,
        verb: &str,
        device: bool,
        metrics: Vec<payload::Metric>,
        qos: u8,
    ) -> u16 {
        let payload = self.payload(metrics);
        let mut topic = format!("spBv1.0/{}/{verb}/{}", self.group, self.name);
        if device {
            topic.push('/');
            topic.push_str(&self.device);
        }
        self.client.publish(&topic, &payload, qos)
    }

    fn payload(&mut self, metrics: Vec<payload::Metric>) -> Vec<u8> {
        let mut payload = Payload::new();
        payload.set_timestamp(now_ms());
        payload.set_seq(u64::from(self.seq));
        self.seq = self.seq.wrapping_add(1);
        payload.metrics = metrics;
        payload.write_to_bytes().unwrap()
    }
}
