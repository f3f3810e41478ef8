//! Decision latency on the wire: DDATA → rule → DCMD through a gateway, beside a bare publish → subscribe hop through
//! mosquitto, in one run on one machine.
//!
//! Open loop: each message has its time, whatever became of those before it, and latency counts from that time, so that
//! a stall is charged to every message it holds up. Without `--rate` the saturation rate is looked for first (doubling
//! until a tenth of a second's backlog gathers or a message is lost, then halving the last step three times), on a gateway
//! of its own, and half of it is used. Each device sends two metrics: one that the rule answers, and one that a shipped
//! model reads where models are loaded.
//!
//! ```sh
//! apt-get install mosquitto
//! cargo build --release && cargo run --release --example decision -- --devices 1000 --seconds 20
//! cargo run --release --example decision -- --nats-server /usr/sbin/nats-server    # while back-filling, models loaded
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    missing_docs,
    reason = "a program that a person runs by hand: what fails ends it with its place"
)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use clap::Parser;

/// Edge nodes, each with a connection of its own.
const NODES: usize = 20;
/// Time for what is under way at the end of a phase.
const TAIL: Duration = Duration::from_secs(2);

#[derive(Debug, Parser)]
struct Args {
    /// Devices in all
    #[arg(long, default_value_t = 1000)]
    devices: usize,
    /// Messages a second [default: half of the saturation rate]
    #[arg(long)]
    rate: Option<u64>,
    /// Length of each phase, s
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Rounds of gateway and mosquitto, one after the other
    #[arg(long, default_value_t = 2)]
    rounds: usize,
    /// The gateway's program [default: beside this one]
    #[arg(long)]
    sparkgate: Option<PathBuf>,
    /// mosquitto's program
    #[arg(long, default_value = "mosquitto")]
    mosquitto: PathBuf,
    /// A nats-server: measure once more while the bridge back-fills, with the shipped models loaded
    #[arg(long)]
    nats_server: Option<PathBuf>,
}

// --- protobuf and MQTT, as little as this needs

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn read_varint(bytes: &[u8], at: &mut usize) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let byte = bytes[*at];
        *at += 1;
        value |= u64::from(byte & 0x7F) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            return value;
        }
    }
}

fn field(out: &mut Vec<u8>, number: u64, value: u64) {
    varint(out, number << 3);
    varint(out, value);
}

fn bytes_field(out: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    varint(out, number << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn wall_ms() -> u64 {
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_millis() as u64
}

/// A metric with an Int64 (datatype 4); a birth names it, data goes by alias.
fn metric(name: Option<&str>, alias: u64, value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    if let Some(name) = name {
        bytes_field(&mut out, 1, name.as_bytes());
    }
    field(&mut out, 2, alias);
    field(&mut out, 3, wall_ms());
    if name.is_some() {
        field(&mut out, 4, 4);
    }
    field(&mut out, 11, value);
    out
}

/// A Double (datatype 10) that the shipped anomaly model reads.
fn temperature(named: bool, alias: u64, number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    if named {
        bytes_field(&mut out, 1, b"Temperature");
    }
    field(&mut out, 2, alias);
    field(&mut out, 3, wall_ms());
    if named {
        field(&mut out, 4, 10);
    }
    varint(&mut out, 13 << 3 | 1);
    let value = 20.0 + (number as f64 * 0.7).sin();
    out.extend_from_slice(&value.to_le_bytes());
    out
}

fn payload(metrics: &[Vec<u8>], seq: u8) -> Vec<u8> {
    let mut out = Vec::new();
    field(&mut out, 1, wall_ms());
    for metric in metrics {
        bytes_field(&mut out, 2, metric);
    }
    field(&mut out, 3, u64::from(seq));
    out
}

/// The Int64 of the first metric of a payload.
fn value_of(bytes: &[u8]) -> Option<u64> {
    let mut at = 0;
    while at < bytes.len() {
        let key = read_varint(bytes, &mut at);
        match key & 7 {
            0 => {
                let value = read_varint(bytes, &mut at);
                if key >> 3 == 11 {
                    return Some(value);
                }
            }
            2 => {
                let length = read_varint(bytes, &mut at) as usize;
                if key >> 3 == 2 {
                    return value_of(&bytes[at..at + length]);
                }
                at += length;
            }
            1 => at += 8,
            _ => at += 4,
        }
    }
    None
}

fn frame(first: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![first];
    varint(&mut out, body.len() as u64);
    out.extend_from_slice(body);
    out
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn publish(topic: &str, payload: &[u8]) -> Vec<u8> {
    let mut body = Vec::with_capacity(topic.len() + payload.len() + 2);
    text(&mut body, topic);
    body.extend_from_slice(payload);
    frame(0x30, &body)
}

fn connect(address: SocketAddr, id: &str, will: Option<(&str, &[u8])>) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("a broker");
    stream.set_nodelay(true).unwrap();
    let mut body = Vec::new();
    text(&mut body, "MQTT");
    body.extend_from_slice(&[4, if will.is_some() { 0b1110 } else { 0b10 }, 0, 0]);
    text(&mut body, id);
    if let Some((topic, payload)) = will {
        text(&mut body, topic);
        body.extend_from_slice(&(payload.len() as u16).to_be_bytes());
        body.extend_from_slice(payload);
    }
    stream.write_all(&frame(0x10, &body)).unwrap();
    let mut connack = [0; 4];
    stream.read_exact(&mut connack).unwrap();
    assert_eq!(connack[3], 0, "refused");
    stream
}

fn subscribe(stream: &mut TcpStream, filter: &str) {
    let mut body = vec![0, 1];
    text(&mut body, filter);
    body.push(0);
    stream.write_all(&frame(0x82, &body)).unwrap();
    let mut suback = [0; 5];
    stream.read_exact(&mut suback).unwrap();
}

/// Hands on the number and arrival of each publish that comes in.
fn listen(mut stream: TcpStream, to: Sender<(u64, Instant)>) {
    std::thread::spawn(move || {
        let (mut buffer, mut chunk) = (Vec::new(), [0; 64 * 1024]);
        loop {
            let count = match stream.read(&mut chunk) {
                Ok(0) | Err(_) => return,
                Ok(count) => count,
            };
            let arrived = Instant::now();
            buffer.extend_from_slice(&chunk[..count]);
            let mut done = 0;
            while let Some((start, end)) = whole(&buffer[done..]) {
                let body = &buffer[done + start..done + end];
                if buffer[done] >> 4 == 3 {
                    let topic = usize::from(u16::from_be_bytes([body[0], body[1]]));
                    let is_state = body[2..2 + topic].windows(5).any(|w| w == b"STATE");
                    if !is_state && let Some(number) = value_of(&body[2 + topic..]) {
                        let _ = to.send((number, arrived));
                    }
                }
                done += end;
            }
            buffer.drain(..done);
        }
    });
}

/// Start and end of the first packet's body, when all of it is there.
fn whole(bytes: &[u8]) -> Option<(usize, usize)> {
    let (mut length, mut shift, mut at) = (0usize, 0, 1);
    loop {
        let byte = *bytes.get(at)?;
        length |= usize::from(byte & 0x7F) << shift;
        at += 1;
        shift += 7;
        if byte & 0x80 == 0 {
            return (bytes.len() >= at + length).then_some((at, at + length));
        }
    }
}

// --- what is measured

/// Something that answers each message with its number.
struct Loop {
    sockets: Vec<TcpStream>,
    topics: Vec<String>,
    seqs: Vec<u8>,
    answers: Receiver<(u64, Instant)>,
    next: u64,
}

impl Loop {
    /// Sparkplug nodes on a gateway.
    fn gateway(address: SocketAddr, devices: usize) -> Self {
        let (to, answers) = channel();
        let (mut sockets, mut topics, mut seqs) = (Vec::new(), Vec::new(), Vec::new());
        for n in 0..NODES {
            let mut bdseq = Vec::new();
            bytes_field(&mut bdseq, 1, b"bdSeq");
            field(&mut bdseq, 4, 4);
            field(&mut bdseq, 11, 0);
            let mut death = Vec::new();
            bytes_field(&mut death, 2, &bdseq);
            let will = format!("spBv1.0/bench/NDEATH/n{n}");
            let mut stream = connect(address, &format!("n{n}"), Some((&will, &death)));
            subscribe(&mut stream, &format!("spBv1.0/bench/DCMD/n{n}/+"));
            let mut seq = 0u8;
            let birth = publish(
                &format!("spBv1.0/bench/NBIRTH/n{n}"),
                &payload(&[bdseq], seq),
            );
            stream.write_all(&birth).unwrap();
            for d in 0..devices / NODES {
                seq = seq.wrapping_add(1);
                // An alias is unique in its node.
                let alias = d as u64 * 3 + 1;
                let metrics = [
                    metric(Some("Trigger"), alias, 0),
                    metric(Some("Act"), alias + 1, 0),
                    temperature(true, alias + 2, 0),
                ];
                let topic = format!("spBv1.0/bench/DBIRTH/n{n}/d{d}");
                stream
                    .write_all(&publish(&topic, &payload(&metrics, seq)))
                    .unwrap();
            }
            for d in 0..devices / NODES {
                topics.push(format!("spBv1.0/bench/DDATA/n{n}/d{d}"));
            }
            seqs.push(seq);
            listen(stream.try_clone().unwrap(), to.clone());
            sockets.push(stream);
        }
        Self {
            sockets,
            topics,
            seqs,
            answers,
            next: 1,
        }
    }

    /// Publishers on a bare broker, each with its subscriber.
    fn bare(address: SocketAddr, devices: usize) -> Self {
        let (to, answers) = channel();
        let (mut sockets, mut topics) = (Vec::new(), Vec::new());
        for n in 0..NODES {
            let mut subscriber = connect(address, &format!("s{n}"), None);
            subscribe(&mut subscriber, &format!("spBv1.0/bench/DDATA/n{n}/+"));
            listen(subscriber, to.clone());
            sockets.push(connect(address, &format!("n{n}"), None));
            for d in 0..devices / NODES {
                topics.push(format!("spBv1.0/bench/DDATA/n{n}/d{d}"));
            }
        }
        Self {
            sockets,
            topics,
            seqs: vec![0; NODES],
            answers,
            next: 1,
        }
    }

    fn send(&mut self, number: u64) {
        let at = number as usize % self.topics.len();
        let per_node = self.topics.len() / NODES;
        let (node, device) = (at / per_node, at % per_node);
        self.seqs[node] = self.seqs[node].wrapping_add(1);
        let alias = device as u64 * 3 + 1;
        let metrics = [
            metric(None, alias, number),
            temperature(false, alias + 2, number),
        ];
        let bytes = publish(&self.topics[at], &payload(&metrics, self.seqs[node]));
        self.sockets[node]
            .write_all(&bytes)
            .expect("the broker reads");
    }

    /// Sends at `rate` for `length`; latencies in µs, sorted, and how many were lost.
    fn run(&mut self, rate: u64, length: Duration) -> (Vec<u64>, u64) {
        let count = (rate as f64 * length.as_secs_f64()) as u64;
        let first = self.next;
        self.next += count;
        let start = Instant::now() + Duration::from_millis(50);
        let due =
            |number: u64| start + Duration::from_nanos((number - first) * 1_000_000_000 / rate);
        let mut latencies = Vec::with_capacity(count as usize);
        // An answer that comes twice counts once; those of the phase before count no more.
        let mut seen = vec![false; count as usize];
        let mut take = |latencies: &mut Vec<u64>, number: u64, arrived: Instant| {
            let place = number.checked_sub(first).map(|place| place as usize);
            let place = place.and_then(|place| seen.get_mut(place));
            if place.is_some_and(|seen| !std::mem::replace(seen, true)) {
                latencies.push(arrived.saturating_duration_since(due(number)).as_micros() as u64);
            }
        };
        for number in first..first + count {
            loop {
                let wait = due(number).saturating_duration_since(Instant::now());
                if wait.is_zero() {
                    break;
                }
                if wait > Duration::from_micros(200) {
                    std::thread::sleep(wait - Duration::from_micros(100));
                } else {
                    std::thread::yield_now();
                }
            }
            self.send(number);
            while let Ok((number, arrived)) = self.answers.try_recv() {
                take(&mut latencies, number, arrived);
            }
        }
        let deadline = Instant::now() + TAIL;
        while (latencies.len() as u64) < count {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok((number, arrived)) = self.answers.recv_timeout(left) else {
                break;
            };
            take(&mut latencies, number, arrived);
        }
        let lost = count - latencies.len() as u64;
        latencies.sort_unstable();
        (latencies, lost)
    }

    /// Whether a rate is carried without loss and without a backlog.
    fn carries(&mut self, rate: u64) -> bool {
        let (latencies, lost) = self.run(rate, Duration::from_secs(2));
        let p99 = quantile(&latencies, 0.99);
        eprintln!("  {rate}/s: p99 {p99} µs, lost {lost}");
        lost == 0 && p99 <= 100_000
    }

    /// The highest rate that is carried: doubled until it is not, then narrowed down to an eighth of the last step.
    fn saturation(&mut self) -> u64 {
        let (mut good, mut bad) = (500, 1_000);
        while bad < 400_000 && self.carries(bad) {
            (good, bad) = (bad, bad * 2);
        }
        for _ in 0..3 {
            let between = good.midpoint(bad);
            if self.carries(between) {
                good = between;
            } else {
                bad = between;
            }
        }
        good
    }
}

fn quantile(sorted: &[u64], share: f64) -> u64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or(0)
}

// --- processes

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
}

fn wait_for(address: SocketAddr) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while TcpStream::connect(address).is_err() {
        assert!(Instant::now() < deadline, "nothing listens at {address}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn start(program: &Path, args: &[&str]) -> Process {
    let child = Command::new(program)
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    Process(child)
}

fn gateway(
    args: &Args,
    folder: &Path,
    nats: Option<(SocketAddr, u64)>,
) -> (Process, SocketAddr, SocketAddr) {
    let (mqtt, admin) = (free(), free());
    let rules = folder.join("bench.toml");
    let pack = "[pack]\nid = \"bench\"\nversion = \"1.0.0\"\n[[rule]]\nid = \"act\"\n[rule.pattern]\n\
                stages = [{ name = \"hit\", when = 'metric == \"Trigger\" && value > 0' }]\n\
                [[rule.command]]\nmetric = \"Act\"\nexpr = 'hit.value'\n";
    std::fs::write(&rules, pack).unwrap();
    // The backlog of a phase goes at half of the rate beside what comes, so that it lasts.
    let more = nats.map_or(String::new(), |(nats, rate)| {
        format!(
            "[bridge]\nurls = [\"nats://{nats}\"]\nbackfill = {{ max_rate = \"{}/s\" }}\n[models]\nuse_shipped = [\"*\"]\n",
            rate + rate / 2
        )
    });
    let config = folder.join("sparkgate.toml");
    let text = format!(
        "[gateway]\nid = \"bench\"\ndata_dir = \"{}\"\n[mqtt]\nlisten = [\"{mqtt}\"]\n[admin]\nlisten = \"{admin}\"\n\
         [rules]\npaths = [\"{}\"]\n[writes]\nmax_per_second = 1000000\nconfirm_timeout = \"20ms\"\n{more}",
        folder.join("data").display(),
        rules.display(),
    );
    std::fs::write(&config, text).unwrap();
    let program = args.sparkgate.clone().unwrap_or_else(|| {
        let own = std::env::current_exe().unwrap();
        own.parent().unwrap().parent().unwrap().join("sparkgate")
    });
    let process = start(&program, &["run", "-c", &config.display().to_string()]);
    wait_for(mqtt);
    (process, mqtt, admin)
}

fn mosquitto(args: &Args, folder: &Path) -> (Process, SocketAddr) {
    let address = free();
    let config = folder.join("mosquitto.conf");
    let text = format!(
        "listener {} 127.0.0.1\nallow_anonymous true\npersistence false\nset_tcp_nodelay true\nmax_queued_messages 0\n",
        address.port()
    );
    std::fs::write(&config, text).unwrap();
    let process = start(&args.mosquitto, &["-c", &config.display().to_string()]);
    wait_for(address);
    (process, address)
}

fn status(admin: SocketAddr, path: &str) -> serde_json::Value {
    let mut stream = TcpStream::connect(admin).unwrap();
    stream
        .write_all(
            format!("GET {path} HTTP/1.0\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                .as_bytes(),
        )
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    serde_json::from_str(body.trim()).expect("JSON")
}

/// The gateway's own account, by stage.
fn stages(admin: SocketAddr) -> String {
    let status = status(admin, "/api/status");
    let stages = &status["decision_us"]["stages"];
    ["broker", "resolve", "rule", "write"]
        .iter()
        .map(|stage| format!("{stage} {}/{}", stages[stage]["p50"], stages[stage]["p99"]))
        .collect::<Vec<_>>()
        .join("  ")
}

fn row(what: &str, rate: u64, (latencies, lost): &(Vec<u64>, u64)) {
    let (p50, p99, p999) = (
        quantile(latencies, 0.5),
        quantile(latencies, 0.99),
        quantile(latencies, 0.999),
    );
    println!("{what:<44}{rate:>8}{p50:>9}{p99:>9}{p999:>9}{lost:>7}");
}

fn merge(into: &mut (Vec<u64>, u64), round: (Vec<u64>, u64)) {
    into.0.extend(round.0);
    into.0.sort_unstable();
    into.1 += round.1;
}

fn main() {
    let args = Args::parse();
    let folder = tempfile::tempdir().unwrap();
    let length = Duration::from_secs(args.seconds);
    let rate = args.rate.unwrap_or_else(|| {
        eprintln!("looking for the saturation rate");
        let folder = tempfile::tempdir().unwrap();
        let (_process, mqtt, _) = gateway(&args, folder.path(), None);
        let mut deciding = Loop::gateway(mqtt, args.devices);
        deciding.run(200, Duration::from_secs(2));
        let saturation = deciding.saturation();
        eprintln!("saturated at {saturation}/s; half of it is used");
        saturation / 2
    });
    let (process, mqtt, admin) = gateway(&args, folder.path(), None);
    let (_mosquitto, bare_at) = mosquitto(&args, folder.path());
    let mut deciding = Loop::gateway(mqtt, args.devices);
    let mut bare = Loop::bare(bare_at, args.devices);
    deciding.run(200, Duration::from_secs(2));
    bare.run(200, Duration::from_secs(2));
    let (mut decided, mut hopped) = ((Vec::new(), 0), (Vec::new(), 0));
    for _ in 0..args.rounds {
        merge(&mut hopped, bare.run(rate, length));
        merge(&mut decided, deciding.run(rate, length));
    }
    println!(
        "{:<44}{:>8}{:>9}{:>9}{:>9}{:>7}",
        "", "msg/s", "p50 µs", "p99 µs", "p99.9 µs", "lost"
    );
    row("bare publish → subscribe, mosquitto", rate, &hopped);
    row("DDATA → rule → DCMD, sparkgate", rate, &decided);
    println!("inside, p50/p99 µs: {}", stages(admin));
    drop((deciding, process));
    if let Some(server) = &args.nats_server {
        let nats = free();
        let folder = tempfile::tempdir().unwrap();
        let (_process, mqtt, admin) = gateway(&args, folder.path(), Some((nats, rate)));
        let mut deciding = Loop::gateway(mqtt, args.devices);
        eprintln!("gathering a backlog");
        deciding.run(rate, length);
        let store = folder.path().join("nats").display().to_string();
        let (host, port) = (nats.ip().to_string(), nats.port().to_string());
        let _server = start(server, &["-js", "-a", &host, "-p", &port, "-sd", &store]);
        wait_for(nats);
        let pending = || {
            status(admin, "/api/status")["pending"]
                .as_u64()
                .unwrap_or(0)
        };
        let before = pending();
        let filling = deciding.run(rate, length);
        row("the same while back-filling, models loaded", rate, &filling);
        let models = status(admin, "/api/models");
        let answers = models.as_array().into_iter().flatten();
        let answers: u64 = answers.filter_map(|model| model["runs"].as_u64()).sum();
        println!(
            "backlog {before} records before, {} after; {answers} answers of models",
            pending()
        );
        println!("inside, p50/p99 µs: {}", stages(admin));
    }
    let ratio = quantile(&decided.0, 0.5) as f64 / quantile(&hopped.0, 0.5).max(1) as f64;
    println!(
        "p50 is {ratio:.2} times the bare hop (target 1.5), p99 {} µs (target 1000)",
        quantile(&decided.0, 0.99)
    );
}
