//! The engine behind real sockets.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::*;
use crate::broker::{Delivery, Event};

mod secure;

/// Queue bound of a subscriber, far below what is sent.
const BOUND: usize = 100;
const PUBLISHERS: usize = 4;
const EACH: usize = 5_000;
const DEADLINE: Duration = Duration::from_secs(60);

async fn connected(address: SocketAddr, id: u8) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let connect = [&b"\x10\x0D\0\x04MQTT\x04\x02\0\0\0\x01"[..], &[id]].concat();
    stream.write_all(&connect).await.unwrap();
    let mut connack = [0; 4];
    stream.read_exact(&mut connack).await.unwrap();
    assert_eq!(connack, [0x20, 2, 0, 0]);
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_paused_publishers_sent_before_they_closed_arrives_in_full() {
    let mut config = Config {
        listen: vec![([127, 0, 0, 1], 0).into()],
        ..Config::default()
    };
    config.limits.queue_messages = BOUND;
    let (sink, _deliveries) = mpsc::channel(16);
    let broker = NativeBroker::start(Setup {
        config,
        state_dir: None,
        taps: Vec::new(),
        topic_check: None,
        sink,
    })
    .unwrap();
    broker.listen().await.unwrap();
    let address = broker.local_addrs()[0];
    let mut subscriber = connected(address, b's').await;
    subscriber
        .write_all(b"\x82\x06\0\x01\0\x01t\0")
        .await
        .unwrap();
    let mut suback = [0; 5];
    subscriber.read_exact(&mut suback).await.unwrap();

    let mut message = b"\x30\x67\0\x01t".to_vec();
    message.resize(2 + 0x67, b'x');
    let all = message.repeat(EACH);
    let publishers = (0..PUBLISHERS).map(|n| {
        let all = all.clone();
        tokio::spawn(async move {
            let id = b'0' + u8::try_from(n).unwrap();
            connected(address, id).await.write_all(&all).await.unwrap();
        })
    });
    let publishers: Vec<_> = publishers.collect();
    let mut got = vec![0; all.len() * PUBLISHERS];
    let read = timeout(DEADLINE, subscriber.read_exact(&mut got)).await;
    assert!(read.is_ok_and(|read| read.is_ok()), "{:?}", broker.stats());
    assert!(got.chunks(message.len()).all(|one| one == message));
    for publisher in publishers {
        publisher.await.unwrap();
    }
    assert_eq!(broker.stats().dropped, []);
    broker.stop(Instant::now() + DEADLINE).await;
}

/// A pipeline that is behind stops publishes, nothing else: pings are answered and acknowledgements taken, also behind
/// publishes that wait, and all of these arrive in their order afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_publisher_gets_its_pings_answered() {
    const ALL: usize = 200;
    let config = Config {
        listen: vec![([127, 0, 0, 1], 0).into()],
        ..Config::default()
    };
    let (sink, mut deliveries) = mpsc::channel(4);
    let broker = NativeBroker::start(Setup {
        config,
        state_dir: None,
        taps: vec!["t".to_owned()],
        topic_check: None,
        sink,
    })
    .unwrap();
    broker.listen().await.unwrap();
    let mut publisher = connected(broker.local_addrs()[0], b'p').await;
    let one = |n: usize| {
        let number = u16::try_from(n).unwrap().to_be_bytes();
        [&b"\x30\x05\0\x01t"[..], &number].concat()
    };
    let mut answered = async |sent: &[u8], pings: usize| {
        publisher.write_all(sent).await.unwrap();
        let mut answers = vec![0; 2 * pings];
        let read = timeout(DEADLINE, publisher.read_exact(&mut answers)).await;
        assert!(read.is_ok_and(|read| read.is_ok()), "{:?}", broker.stats());
        assert_eq!(answers, b"\xd0\0".repeat(pings));
    };
    // Nobody takes a delivery: with the first answer the pipeline is full.
    let first: Vec<u8> = (0..ALL / 2).flat_map(one).chain(*b"\xc0\0").collect();
    answered(&first, 1).await;
    let rest = (ALL / 2..ALL).flat_map(|n| [one(n), b"\xc0\0".to_vec()].concat());
    answered(&rest.collect::<Vec<_>>(), ALL / 2).await;
    // It leaves in mid-pause: what it sent still comes first.
    publisher.write_all(b"\xe0\0").await.unwrap();
    drop(publisher);
    let mut got = Vec::new();
    let mut left = None;
    while left.is_none() {
        match timeout(DEADLINE, deliveries.recv()).await.unwrap().unwrap() {
            Delivery::Publish(inbound) => got.push(inbound.payload.to_vec()),
            Delivery::Event(Event::Disconnected { reason, .. }) => left = Some(reason),
            Delivery::Event(_) => {}
        }
    }
    let expect = (0..ALL).map(|n| u16::try_from(n).unwrap().to_be_bytes().to_vec());
    assert_eq!(got, expect.collect::<Vec<_>>());
    assert_eq!(left, Some("client"));
    broker.stop(Instant::now() + DEADLINE).await;
}
