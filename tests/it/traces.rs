//! One trace from a device's message over model, rule and write to the cloud.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use sparkplug_rs::{DataType, Payload, payload, protobuf::Message as _};

use crate::harness::gateway::Gateway;
use crate::harness::mqtt::{frame, metric, now_ms, text};
use crate::harness::nats::{Nats, Stored};
use crate::harness::until;

/// What the device's program began, W3C Trace Context.
const GIVEN: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const MODEL: &str = "univariate-anomaly";
/// Samples of two of its windows.
const SAMPLES: u64 = 40;

const PACK: &str = r#"
[pack]
id = "judge"
version = "1.0.0"
[[rule]]
id = "judged"
[rule.pattern]
stages = [{ name = "any", when = 'score("univariate-anomaly") >= 0.0' }]
[rule.alarm]
message = "{device} was judged"
[[rule.command]]
metric = "temp"
value = 20.0
"#;

/// An edge node that speaks MQTT 5 and gives each message the `traceparent`.
struct Traced {
    stream: TcpStream,
    seq: u64,
}

impl Traced {
    fn birth(address: SocketAddr, device: Vec<payload::Metric>) -> Self {
        let mut stream = TcpStream::connect(address).expect("the broker listens");
        let bdseq = || {
            let mut it = metric("bdSeq", 0, DataType::Int64);
            it.clear_alias();
            it.set_long_value(0);
            vec![it]
        };
        let mut death = Payload::new();
        death.metrics = bdseq();
        let mut body = Vec::new();
        text(&mut body, b"MQTT");
        // Version 5; clean start and a will of QoS 1; 60 s; no properties, of the connection or of the will.
        body.extend_from_slice(&[5, 0b1110, 0, 60, 0]);
        text(&mut body, b"traced");
        body.push(0);
        text(&mut body, b"spBv1.0/g/NDEATH/n");
        text(&mut body, &death.write_to_bytes().expect("bytes"));
        stream.write_all(&frame(0x10, &body)).expect("CONNECT");
        let mut head = [0; 4];
        stream.read_exact(&mut head).expect("CONNACK");
        assert_eq!((head[0], head[3]), (0x20, 0), "{head:?}");
        let mut node = Self { stream, seq: 0 };
        node.publish("spBv1.0/g/NBIRTH/n", bdseq());
        node.publish("spBv1.0/g/DBIRTH/n/press", device);
        node
    }

    fn publish(&mut self, topic: &str, metrics: Vec<payload::Metric>) {
        let mut payload = Payload::new();
        payload.set_timestamp(now_ms());
        payload.set_seq(self.seq);
        self.seq = (self.seq + 1) % 256;
        payload.metrics = metrics;
        let mut property = vec![0x26];
        text(&mut property, b"traceparent");
        text(&mut property, GIVEN.as_bytes());
        let mut body = Vec::new();
        text(&mut body, topic.as_bytes());
        body.push(u8::try_from(property.len()).expect("short"));
        body.extend_from_slice(&property);
        body.extend(payload.write_to_bytes().expect("bytes"));
        self.stream.write_all(&frame(0x30, &body)).expect("PUBLISH");
    }
}

fn sample(at: u64, i: u64) -> payload::Metric {
    let mut value = metric("Temperature", 3, DataType::Double);
    value.set_timestamp(at);
    value.set_double_value(20.0 + (i as f64 * 0.7).sin() * 0.1);
    value
}

/// Trace and span.
fn ids(message: &Stored) -> (String, String) {
    let header = message.header("traceparent");
    assert_eq!(header.len(), 55, "{header}");
    (header[3..35].to_owned(), header[36..52].to_owned())
}

#[test]
fn one_trace_joins_device_model_rule_write_and_cloud() {
    let folder = tempfile::tempdir().unwrap();
    let pack = folder.path().join("judge.toml");
    std::fs::write(&pack, PACK).unwrap();
    let nats = Nats::start();
    let gateway = Gateway::builder()
        .bridge(&nats.url())
        .config(&format!(
            "[models]\nuse_shipped = [\"{MODEL}\"]\n[rules]\npaths = [\"{}\"]\n",
            pack.display()
        ))
        .start();
    let begun = now_ms() - 250 * SAMPLES;
    let mut temp = metric("temp", 2, DataType::Double);
    temp.set_double_value(20.0);
    let mut node = Traced::birth(gateway.mqtt, vec![sample(begun, 0), temp]);
    for i in 1..SAMPLES {
        node.publish("spBv1.0/g/DDATA/n/press", vec![sample(begun + 250 * i, i)]);
    }
    let followed = until("model, alarm, write and data are in the cloud", 180, || {
        let data = nats.messages("SPARKGATE_test");
        let alarms = nats.messages("SPARKGATE_test_ALARMS");
        let inference = data.iter().find(|m| m.subject.contains(".inference."))?;
        let samples = data.iter().filter(|m| m.subject.contains(".data."));
        if (samples.count() as u64) < SAMPLES - 1 {
            return None;
        }
        let cause = |m: &&Stored| m.json()["cause"] == inference.record();
        let of = |class: &str| {
            let mut found = alarms.iter().filter(|m| m.subject.contains(class));
            found.find(cause).cloned()
        };
        let (alarm, command) = (of(".alarm.")?, of(".command.")?);
        Some((data.clone(), [inference.clone(), alarm, command]))
    });
    let (data, following) = followed;
    let samples: Vec<_> = data
        .iter()
        .filter(|m| m.subject.contains(".data."))
        .collect();
    assert_eq!(samples.len() as u64, SAMPLES - 1);
    for message in samples {
        assert_eq!(message.header("traceparent"), GIVEN);
    }
    let mut spans = std::collections::HashSet::from([GIVEN[36..52].to_owned()]);
    for message in following {
        let (trace, span) = ids(&message);
        assert_eq!(trace, GIVEN[3..35], "{}", message.subject);
        assert!(message.header("traceparent").ends_with("-01"));
        assert!(spans.insert(span), "a span of its own: {}", message.subject);
    }
    gateway.check_identity();
}
