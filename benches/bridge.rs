//! Records a second from a journal into a stream until the server has acknowledged them, against async-nats with
//! the same bodies and headers, a window of 1024 acknowledgements and no guard of order; and against what an
//! ordered consumer reads of the same stream. Every round has servers of its own and every measurement a process of
//! its own, so that CPU and memory are those of one thing.
//!
//! `cargo bench --bench bridge`; `SPARKGATE_RECORDS` sets how many, `SPARKGATE_ROUNDS` how often.

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
#[path = "../tests/it/harness/ports.rs"]
#[allow(unreachable_pub)]
mod ports;

use std::collections::VecDeque;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream::{self, consumer::pull::OrderedConfig, message::PublishMessage};
use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};
use sparkgate::{bridge, buffer};

use self::journal::Journal;
use self::nats::Nats;
use crate::bridge::{Config, Hooks, Parts, publisher};

const STREAM: &str = "SPARKGATE_bench";
const WINDOW: usize = 1024;

/// What is measured, each in a process of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Part {
    /// The bridge drains a journal of this many records into the stream at `to`.
    Bridge,
    /// An ordered consumer reads the stream at `to`.
    Consumer,
    /// async-nats publishes what the stream at `from` holds to the one at `to`.
    Client,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Task {
    part: Part,
    records: usize,
    from: String,
    to: String,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Measured {
    /// Records a second.
    rate: f64,
    /// µs of CPU a record.
    cpu_us: f64,
    /// Most resident memory while it ran, MiB, and what of it was there before.
    peak: f64,
    before: f64,
}

/// CPU seconds of this process so far.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    // USER_HZ is 100 on every architecture that the kernel has today.
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

/// MiB of one line of `/proc/self/status`.
fn memory(line: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let found = status.lines().find(|l| l.starts_with(line)).unwrap();
    found
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<f64>()
        .unwrap()
        / 1024.0
}

/// Begins when everything that is not measured is ready.
struct Meter {
    began: Instant,
    cpu: f64,
    before: f64,
}

impl Meter {
    fn start() -> Self {
        Self {
            before: memory("VmRSS"),
            cpu: cpu(),
            began: Instant::now(),
        }
    }

    fn stop(self, records: usize) -> Measured {
        let seconds = self.began.elapsed().as_secs_f64();
        Measured {
            rate: records as f64 / seconds,
            cpu_us: (cpu() - self.cpu) * 1e6 / records as f64,
            peak: memory("VmHWM"),
            before: self.before,
        }
    }
}

/// Drains a journal into a new stream.
async fn drain(task: &Task) -> Measured {
    let journal = Arc::new(Journal::new());
    journal.append_data(task.records, 1_000);
    let mut config = Config {
        urls: vec![task.to.clone()],
        ..Config::default()
    };
    config.state.enabled = false;
    let folder = tempfile::tempdir().unwrap();
    let meter = Meter::start();
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
    while bridge.status().data.published < task.records as u64 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let measured = meter.stop(task.records);
    bridge.stop(Duration::from_secs(1)).await;
    measured
}

/// Reads what is there; does nothing with it.
async fn read(task: &Task) -> Measured {
    let context = jetstream::new(async_nats::connect(&task.to).await.unwrap());
    let meter = Meter::start();
    let stream = context.get_stream(STREAM).await.unwrap();
    let consumer = stream
        .create_consumer(OrderedConfig::default())
        .await
        .unwrap();
    let messages = consumer.messages().await.unwrap();
    let mut taken = messages.take(task.records);
    let mut bytes = 0;
    while let Some(message) = taken.next().await {
        bytes += message.unwrap().payload.len();
    }
    assert!(bytes > task.records);
    meter.stop(task.records)
}

/// The same messages by the client alone.
async fn plain(task: &Task) -> Measured {
    let messages = nats::read_all_at(&task.from, STREAM).await;
    assert_eq!(messages.len(), task.records);
    let client = async_nats::ConnectOptions::new()
        .client_capacity(8192)
        .connect(&task.to)
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
        .into_iter()
        .map(|message| {
            let mut headers = HeaderMap::new();
            for (name, value) in &message.headers {
                if !name.starts_with("Nats-Expected") {
                    headers.insert(name.as_str(), value.as_str());
                }
            }
            (message.subject, headers, message.payload)
        })
        .collect();
    let meter = Meter::start();
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
    meter.stop(task.records)
}

/// This process is one of the parts: measures it and says what it was.
fn work(task: &Task) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let measured = runtime.block_on(async {
        match task.part {
            Part::Bridge => drain(task).await,
            Part::Consumer => read(task).await,
            Part::Client => plain(task).await,
        }
    });
    println!("{}", serde_json::to_string(&measured).unwrap());
}

const TASK: &str = "SPARKGATE_BENCH_TASK";

fn run(part: Part, records: usize, from: &Nats, to: &Nats) -> Measured {
    let task = Task {
        part,
        records,
        from: from.url(),
        to: to.url(),
    };
    let output = Command::new(std::env::current_exe().unwrap())
        .env(TASK, serde_json::to_string(&task).unwrap())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{part:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |n| n.parse().unwrap())
}

fn median(mut ratios: Vec<f64>) -> f64 {
    ratios.sort_by(f64::total_cmp);
    ratios[ratios.len() / 2]
}

fn main() {
    if let Ok(task) = std::env::var(TASK) {
        return work(&serde_json::from_str(&task).unwrap());
    }
    let records = setting("SPARKGATE_RECORDS", 200_000);
    let rounds = setting("SPARKGATE_ROUNDS", 5).max(1);
    println!(
        "{records} records, {rounds} rounds; rates in 1/s, CPU of the process in µs a record, most resident memory in MiB \
         and (in brackets) what was held before: the journal or the messages to send"
    );
    let (mut client, mut consumer, mut cpu) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        let (ours, theirs) = (Nats::start(), Nats::start());
        // The bridge comes first, since the others need what it stored; who runs on the quieter machine is chance.
        let bridge = run(Part::Bridge, records, &ours, &ours);
        let reading = run(Part::Consumer, records, &ours, &ours);
        let plain = run(Part::Client, records, &ours, &theirs);
        for (name, it) in [
            ("bridge", &bridge),
            ("async-nats", &plain),
            ("ordered consumer", &reading),
        ] {
            println!(
                "{} {name:<17} {:>9.0}/s {:>6.1} µs {:>6.0} MiB ({:.0})",
                round + 1,
                it.rate,
                it.cpu_us,
                it.peak,
                it.before
            );
        }
        client.push(bridge.rate / plain.rate);
        consumer.push(bridge.rate / reading.rate);
        cpu.push(bridge.cpu_us / plain.cpu_us);
    }
    println!(
        "medians: bridge / async-nats without a guard {:.2} (target 0.8), CPU a record {:.2}; bridge / ordered consumer {:.2}",
        median(client),
        median(cpu),
        median(consumer)
    );
}
