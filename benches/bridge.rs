//! Records a second from a journal into a stream until the server has acknowledged them, against async-nats with
//! the same bodies and headers, a window of 1024 acknowledgements and no guard of order; and against what an
//! ordered consumer reads of the same stream. Every round has a server of its own.
//!
//! `cargo bench --bench bridge`; `SPARKGATE_RECORDS` sets how many.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "../src/bridge/tests/journal.rs"]
#[allow(dead_code, unreachable_pub)]
mod journal;
#[path = "../tests/it/harness/nats.rs"]
#[allow(dead_code, unreachable_pub)]
mod nats;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream::{self, message::PublishMessage};
use sparkgate::{bridge, buffer};

use self::journal::Journal;
use self::nats::Nats;
use crate::bridge::{Config, Hooks, Parts, publisher};

const STREAM: &str = "SPARKGATE_bench";
const WINDOW: usize = 1024;
const ROUNDS: usize = 3;

/// CPU seconds of this process so far, and its resident MiB.
fn used() -> (f64, f64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS")).unwrap();
    let kib: f64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    (ticks / 100.0, kib / 1024.0)
}

struct Measured {
    rate: f64,
    cpu_us: f64,
    rss: f64,
}

fn measured(records: usize, began: Instant, cpu: f64) -> Measured {
    let (after, rss) = used();
    Measured {
        rate: records as f64 / began.elapsed().as_secs_f64(),
        cpu_us: (after - cpu) * 1e6 / records as f64,
        rss,
    }
}

/// Drains a journal of `records` into a new stream.
async fn drain(nats: &Nats, records: usize) -> Measured {
    let journal = Arc::new(Journal::new());
    journal.append_data(records, 1_000);
    let mut config = Config {
        urls: vec![nats.url()],
        ..Config::default()
    };
    config.state.enabled = false;
    let folder = tempfile::tempdir().unwrap();
    let (began, (cpu, _)) = (Instant::now(), used());
    let bridge = bridge::spawn(
        Parts {
            limits: config.limits(),
            gateway: "bench".to_owned(),
            source: journal.clone(),
            memory: journal,
            data_dir: folder.path().to_owned(),
            hooks: Hooks {
                notice: Arc::new(|notice| panic!("{}", notice.message())),
                write: Arc::new(|_| Box::pin(async { Err("none here".to_owned()) })),
                ack: Arc::new(|_| Box::pin(async { Err("none here".to_owned()) })),
            },
            config: config.clone(),
        },
        publisher::Nats::new(config, "bench", "e1"),
    );
    while bridge.status().data.published < records as u64 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let measured = measured(records, began, cpu);
    bridge.stop(Duration::from_secs(1)).await;
    measured
}

/// What a consumer reads back, and how fast.
async fn read(nats: &Nats, records: usize) -> (Vec<nats::Stored>, Measured) {
    let (began, (cpu, _)) = (Instant::now(), used());
    let messages = nats.read_all(STREAM).await;
    assert_eq!(messages.len(), records);
    (messages, measured(records, began, cpu))
}

/// The same messages by the client alone.
async fn plain(nats: &Nats, messages: &[nats::Stored]) -> Measured {
    let client = async_nats::ConnectOptions::new()
        .client_capacity(8192)
        .connect(nats.url())
        .await
        .unwrap();
    let mut context = jetstream::new(client);
    context.set_timeout(Duration::from_secs(30));
    context
        .create_stream(jetstream::stream::Config {
            name: STREAM.to_owned(),
            subjects: vec!["sparkgate.bench.>".to_owned()],
            ..Default::default()
        })
        .await
        .unwrap();
    let ready: Vec<_> = messages
        .iter()
        .map(|message| {
            let mut headers = HeaderMap::new();
            for (name, value) in &message.headers {
                if !name.starts_with("Nats-Expected") {
                    headers.insert(name.as_str(), value.as_str());
                }
            }
            (message.subject.clone(), headers, message.payload.clone())
        })
        .collect();
    let (began, (cpu, _)) = (Instant::now(), used());
    let mut flying = VecDeque::with_capacity(WINDOW);
    for (subject, headers, payload) in ready {
        if flying.len() == WINDOW {
            let ack: jetstream::context::PublishAckFuture = flying.pop_front().unwrap();
            ack.await.unwrap();
        }
        let message = PublishMessage::build().headers(headers).payload(payload);
        flying.push_back(context.send_publish(subject, message).await.unwrap());
    }
    for ack in flying {
        ack.await.unwrap();
    }
    measured(messages.len(), began, cpu)
}

fn main() {
    let records: usize = std::env::var("SPARKGATE_RECORDS").map_or(200_000, |n| n.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let mut ratios: Vec<(f64, f64)> = Vec::new();
    println!(
        "{records} records, {ROUNDS} rounds; rates in 1/s, CPU of this process in µs a record, RSS in MiB"
    );
    for _ in 0..ROUNDS {
        let nats = Nats::start();
        let ours = runtime.block_on(drain(&nats, records));
        let (messages, reading) = runtime.block_on(read(&nats, records));
        drop(nats);
        let nats = Nats::start();
        let theirs = runtime.block_on(plain(&nats, &messages));
        for (name, it) in [
            ("bridge", &ours),
            ("async-nats", &theirs),
            ("ordered consumer", &reading),
        ] {
            println!(
                "{name:<17} {:>9.0}/s {:>6.1} µs {:>6.0} MiB",
                it.rate, it.cpu_us, it.rss
            );
        }
        ratios.push((ours.rate / theirs.rate, ours.rate / reading.rate));
    }
    ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (client, consumer) = ratios[ROUNDS / 2];
    println!(
        "bridge / async-nats without a guard: {client:.2} (target 0.8); bridge / ordered consumer: {consumer:.2}"
    );
}
