//! The broker against mosquitto (apt) and, with `--features rumqttd`, rumqttd: one run, one load program, ratios.
//!
//! `cargo bench --bench broker [--features rumqttd]`. Each engine serves from a process of its own, so that its CPU time
//! and memory are its own. What is measured: messages per second from 50 and from 1000 publishers to one `spBv1.0/#`
//! subscriber at QoS 0 and 1, 200 bytes each; latency at half of mosquitto's rate; the time that 5,000 connections
//! take, and what each takes while it is idle. `durable` acknowledges after the journal's fsync, which mosquitto has no
//! counterpart for. `BROKER_BENCH_MESSAGES` (default 200,000) and `BROKER_BENCH_SECONDS` (default 4) set the size.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::cast_precision_loss
)]

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sparkgate::broker::config::{Ack, Anonymous, Config, EngineName};
use sparkgate::broker::engine::{Engine, Setup};
use sparkgate::broker::{Delivery, PubackToken};
use sparkgate::buffer::record::{Class, Key, NewRecord, Origin};
use sparkgate::buffer::{DiskStorage, Journal};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

const PAYLOAD: usize = 200;
/// Unacknowledged QoS 1 messages of one publisher.
const WINDOW: usize = 64;
const IDLE: usize = 5000;
/// Deliveries between broker and pipeline, as in the daemon.
const INBOX: usize = 1024;
/// The subscriber has got all there will be when nothing came for this long.
const SILENCE: Duration = Duration::from_secs(8);

fn number(name: &str, default: usize) -> usize {
    let set = std::env::var(name).ok().and_then(|text| text.parse().ok());
    set.unwrap_or(default)
}

fn main() {
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    match args.first().map(String::as_str) {
        Some("serve") => runtime.block_on(serve(&args[1])),
        _ => runtime.block_on(compare()),
    }
}

// The served side.

async fn serve(name: &str) {
    let mut config = Config {
        listen: vec![([127, 0, 0, 1], 0).into()],
        anonymous: Anonymous::Always,
        ack: Ack::Memory,
        ..Config::default()
    };
    config.limits.connections = IDLE * 2;
    match name {
        "memory" => {}
        "durable" => config.ack = Ack::Durable,
        "rumqttd" => {
            config.engine = EngineName::Rumqttd;
            let free = TcpListener::bind("127.0.0.1:0").unwrap();
            config.listen = vec![free.local_addr().unwrap()];
        }
        other => panic!("no engine {other}"),
    }
    let folder = tempfile::tempdir().unwrap();
    let (sink, deliveries) = mpsc::channel(INBOX);
    let setup = Setup {
        config,
        state_dir: Some(folder.path().join("mqtt")),
        taps: vec!["spBv1.0/#".to_owned()],
        topic_check: None,
        sink,
    };
    let broker = Engine::start(setup).unwrap();
    broker.listen().await.unwrap();
    println!("{}", broker.local_addrs()[0]);
    let storage = DiskStorage::open(folder.path().join("journal")).unwrap();
    let (journal, _) =
        Journal::open(Arc::new(storage), sparkgate::buffer::Config::default()).unwrap();
    pipeline(deliveries, journal, name == "durable").await;
}

/// Journals what has to be durable and acknowledges it then; the rest is taken and forgotten.
async fn pipeline(mut deliveries: mpsc::Receiver<Delivery>, journal: Journal, durable: bool) {
    let mut synced = journal.durable();
    let mut waiting: std::collections::VecDeque<(u64, PubackToken)> = Default::default();
    let mut batch = Vec::new();
    loop {
        tokio::select! {
            n = deliveries.recv_many(&mut batch, INBOX) => if n == 0 { return },
            _ = synced.changed() => {}
        }
        for delivery in batch.drain(..) {
            let Delivery::Publish(inbound) = delivery else {
                continue;
            };
            if !durable {
                continue;
            }
            let id = journal.append(record(inbound.payload.to_vec())).unwrap().id;
            waiting.extend(inbound.ack.map(|token| (id, token)));
        }
        if !waiting.is_empty() {
            journal.want_sync();
        }
        let done = *synced.borrow_and_update();
        while waiting.front().is_some_and(|(id, _)| *id <= done) {
            if let Some((_, token)) = waiting.pop_front() {
                token.accept();
            }
        }
        // Nothing reads this journal: its space comes back at once.
        for lane in [
            sparkgate::buffer::record::Lane::Data,
            sparkgate::buffer::record::Lane::Alarms,
        ] {
            journal.ack(lane, done);
        }
        journal.keep_from(done);
    }
}

fn record(body: Vec<u8>) -> NewRecord {
    NewRecord::new(
        Class::Data,
        Origin::Received,
        0,
        0,
        Key::device("g", "n", "d"),
        body,
    )
}

/// A broker in a process of its own.
struct Served {
    child: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Served {
    fn start(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        if name == "mosquitto" {
            let free = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = free.local_addr().unwrap();
            drop(free);
            let file = folder.path().join("mosquitto.conf");
            let text = format!(
                "listener {} 127.0.0.1\nallow_anonymous true\npersistence false\nlog_dest none\n\
                 max_inflight_messages 1000\nmax_queued_messages 1000000\nset_tcp_nodelay true\n",
                address.port()
            );
            std::fs::write(&file, text).unwrap();
            let child = Command::new("mosquitto")
                .arg("-c")
                .arg(&file)
                .stderr(Stdio::null())
                .spawn()
                .expect("mosquitto: apt-get install mosquitto");
            return Self {
                child,
                address,
                _folder: folder,
            };
        }
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["serve", name])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line.trim().parse().unwrap();
        Self {
            child,
            address,
            _folder: folder,
        }
    }

    /// CPU seconds and resident KiB.
    fn usage(&self) -> (f64, f64) {
        let read = |file: &str| {
            std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).unwrap()
        };
        let stat = read("stat");
        let fields: Vec<&str> = stat
            .rsplit(')')
            .next()
            .unwrap()
            .split_whitespace()
            .collect();
        let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
        let status = read("status");
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS:"))
            .unwrap();
        (
            ticks / 100.0,
            line.split_whitespace().nth(1).unwrap().parse().unwrap(),
        )
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

// The load.

async fn connect(address: SocketAddr, id: &str) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let mut packet = vec![0x10, u8::try_from(12 + id.len()).unwrap()];
    packet.extend_from_slice(b"\0\x04MQTT\x04\x02\0\0\0");
    packet.push(u8::try_from(id.len()).unwrap());
    packet.extend_from_slice(id.as_bytes());
    stream.write_all(&packet).await?;
    let mut connack = [0; 4];
    stream.read_exact(&mut connack).await?;
    assert_eq!(connack, [0x20, 2, 0, 0]);
    Ok(stream)
}

async fn connected(address: SocketAddr, id: &str) -> TcpStream {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match connect(address, id).await {
            Ok(stream) => return stream,
            Err(error) if Instant::now() > end => panic!("{address}: {error}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// A DDATA of publisher `n` with its moment of sending in the first 8 bytes of the payload.
fn message(out: &mut Vec<u8>, n: usize, qos: u8, pid: u16, sent: Duration) {
    let topic = format!("spBv1.0/plant/DDATA/node{n}/dev");
    let length = 2 + topic.len() + 2 * usize::from(qos) + PAYLOAD;
    out.push(0x30 | qos << 1);
    out.extend_from_slice(&[
        u8::try_from(length % 128).unwrap() | 0x80,
        u8::try_from(length / 128).unwrap(),
    ]);
    out.extend_from_slice(&u16::try_from(topic.len()).unwrap().to_be_bytes());
    out.extend_from_slice(topic.as_bytes());
    if qos > 0 {
        out.extend_from_slice(&pid.to_be_bytes());
    }
    out.extend_from_slice(&u64::try_from(sent.as_nanos()).unwrap().to_be_bytes());
    out.resize(out.len() + PAYLOAD - 8, 0x5a);
}

/// Sends `count` messages, at a steady rate or as fast as the broker takes them.
async fn publisher(
    address: SocketAddr,
    n: usize,
    qos: u8,
    count: usize,
    each: Option<Duration>,
    base: Instant,
) {
    let mut stream = connected(address, &format!("p{n}")).await;
    let start = Instant::now()
        + each.map_or(Duration::ZERO, |each| {
            each * u32::try_from(n % 64).unwrap() / 64
        });
    let (mut sent, mut acked, mut rest) = (0, 0, 0);
    let mut out = Vec::new();
    let mut acks = [0; 4096];
    while sent < count {
        let due = match each {
            None => count,
            Some(each) => {
                let due = start.elapsed().as_nanos() / each.as_nanos();
                usize::try_from(due).unwrap().min(count)
            }
        };
        let room = if qos == 0 {
            WINDOW
        } else {
            WINDOW - (sent - acked)
        };
        let batch = room.min(due.saturating_sub(sent));
        if batch > 0 {
            out.clear();
            for _ in 0..batch {
                sent += 1;
                let pid = u16::try_from(sent % 65_535 + 1).unwrap();
                message(&mut out, n, qos, pid, base.elapsed());
            }
            stream.write_all(&out).await.unwrap();
        }
        if qos > 0 && (room == batch || sent == count) {
            let read = stream.read(&mut acks).await.unwrap();
            assert!(read > 0, "the broker closed");
            acked += (rest + read) / 4;
            rest = (rest + read) % 4;
        } else if let Some(each) = each {
            let next = start + each * u32::try_from(sent + 1).unwrap();
            tokio::time::sleep_until(next.into()).await;
        }
    }
    while qos > 0 && acked < sent {
        let read = stream.read(&mut acks).await.unwrap();
        acked += (rest + read) / 4;
        rest = (rest + read) % 4;
    }
    stream.write_all(b"\xe0\0").await.unwrap();
}

/// Counts what arrives; latencies in nanoseconds, and when the last one came.
async fn subscriber(
    mut stream: TcpStream,
    qos: u8,
    count: usize,
    base: Instant,
) -> (Vec<u64>, Instant) {
    let mut latencies = Vec::with_capacity(count);
    let mut buffer = Vec::with_capacity(1 << 20);
    let mut acks = Vec::new();
    let mut last = Instant::now();
    while latencies.len() < count {
        match timeout(SILENCE, stream.read_buf(&mut buffer)).await {
            Ok(Ok(n)) if n > 0 => last = Instant::now(),
            _ => break,
        }
        let now = u64::try_from(base.elapsed().as_nanos()).unwrap();
        let mut at = 0;
        while let Some((header, length)) = head(&buffer[at..]) {
            let Some(body) = buffer.get(at + header..at + header + length) else {
                break;
            };
            if buffer[at] >> 4 == 3 {
                let mut payload = 2 + usize::from(u16::from_be_bytes([body[0], body[1]]));
                if buffer[at] & 6 != 0 {
                    acks.extend_from_slice(&[0x40, 2, body[payload], body[payload + 1]]);
                    payload += 2;
                }
                let sent = u64::from_be_bytes(body[payload..payload + 8].try_into().unwrap());
                latencies.push(now.saturating_sub(sent));
            }
            at += header + length;
        }
        buffer.drain(..at);
        if qos > 0 {
            stream.write_all(&acks).await.unwrap();
            acks.clear();
        }
    }
    (latencies, last)
}

fn head(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut length = 0;
    for (i, byte) in bytes.iter().skip(1).take(4).enumerate() {
        length |= usize::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return Some((i + 2, length));
        }
    }
    None
}

struct Outcome {
    per_second: f64,
    lost: usize,
    p50_ms: f64,
    p99_ms: f64,
    cpu_us: f64,
    rss_mb: f64,
}

async fn load(
    name: &str,
    publishers: usize,
    qos: u8,
    messages: usize,
    rate: Option<f64>,
) -> Outcome {
    let served = Served::start(name);
    let each = messages / publishers;
    let all = each * publishers;
    let mut stream = connected(served.address, "subscriber").await;
    let filter = b"spBv1.0/#";
    let mut packet = vec![0x82, u8::try_from(5 + filter.len()).unwrap(), 0, 1, 0, 9];
    packet.extend_from_slice(filter);
    packet.push(qos);
    stream.write_all(&packet).await.unwrap();
    stream.read_exact(&mut [0; 5]).await.unwrap();
    let base = Instant::now();
    let (cpu, _) = served.usage();
    let receiving = tokio::spawn(subscriber(stream, qos, all, base));
    let pace = rate.map(|rate| Duration::from_secs_f64(publishers as f64 / rate));
    let address = served.address;
    let sending: Vec<_> = (0..publishers)
        .map(|n| tokio::spawn(publisher(address, n, qos, each, pace, base)))
        .collect();
    for publisher in sending {
        publisher.await.unwrap();
    }
    let (mut latencies, last) = receiving.await.unwrap();
    let (after, rss) = served.usage();
    latencies.sort_unstable();
    let at = |share: f64| {
        let place = (latencies.len() as f64 * share) as usize;
        latencies.get(place).map_or(f64::NAN, |ns| *ns as f64 / 1e6)
    };
    Outcome {
        per_second: latencies.len() as f64 / (last - base).as_secs_f64(),
        lost: all - latencies.len(),
        p50_ms: at(0.5),
        p99_ms: at(0.99),
        cpu_us: (after - cpu) * 1e6 / all as f64,
        rss_mb: rss / 1024.0,
    }
}

/// Seconds for [`IDLE`] connections, and bytes that each takes.
async fn idle(name: &str) -> (f64, f64) {
    let served = Served::start(name);
    drop(connected(served.address, "first").await);
    let (_, before) = served.usage();
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for part in 0..50 {
        let address = served.address;
        tasks.spawn(async move {
            let mut streams = Vec::new();
            for n in 0..IDLE / 50 {
                streams.push(connected(address, &format!("idle{part}-{n}")).await);
            }
            streams
        });
    }
    let streams = tasks.join_all().await;
    let seconds = start.elapsed().as_secs_f64();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (_, after) = served.usage();
    drop(streams);
    (seconds, (after - before) * 1024.0 / IDLE as f64)
}

async fn compare() {
    let mut names = vec!["mosquitto", "memory", "durable"];
    if cfg!(feature = "rumqttd") {
        names.push("rumqttd");
    }
    let messages = number("BROKER_BENCH_MESSAGES", 200_000);
    let seconds = number("BROKER_BENCH_SECONDS", 4);
    println!("{messages} messages of {PAYLOAD} bytes; ratios are to mosquitto");
    for publishers in [50, 1000] {
        for qos in [0, 1] {
            let mut base: Option<(f64, f64)> = None;
            println!("\n{publishers} publishers, QoS {qos}");
            println!(
                "            msg/s   ratio   lost  CPU µs/msg  RSS MB | half of mosquitto's: p50 ms   p99 ms   ratio   lost"
            );
            for name in &names {
                if *name == "durable" && qos == 0 {
                    continue;
                }
                let full = load(name, publishers, qos, messages, None).await;
                let (reference, _) = base.unwrap_or((full.per_second, 0.0));
                let count = (reference / 2.0 * seconds as f64) as usize;
                let half = load(name, publishers, qos, count, Some(reference / 2.0)).await;
                let (_, tail) = *base.get_or_insert((full.per_second, half.p99_ms));
                println!(
                    "{name:9} {:8.0}  {:6.2}  {:5}  {:10.2}  {:6.1} | {:27.2}  {:7.2}  {:6.2}  {:5}",
                    full.per_second,
                    full.per_second / reference,
                    full.lost,
                    full.cpu_us,
                    full.rss_mb,
                    half.p50_ms,
                    half.p99_ms,
                    half.p99_ms / tail,
                    half.lost,
                );
            }
        }
    }
    println!("\n{IDLE} idle connections: seconds to connect, bytes each");
    for name in names.iter().filter(|name| **name != "durable") {
        let (seconds, bytes) = idle(name).await;
        println!("{name:9} {seconds:6.2}  {bytes:7.0}");
    }
}
