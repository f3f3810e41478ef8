//! Hostile clients around a working plant: cut connections, half packets, noise, floods, a wall of half-open CONNECTs.
//! All the while an edge node's data, acknowledged from the journal's disk, is heard by one subscriber, the gateway
//! answers, and its memory stays flat.
//! `SPARKGATE_SIEGE_SECONDS` makes it longer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::harness::gateway::{Gateway, free_address, get};
use crate::harness::mqtt::{self, Client, Node, Packet, frame};

/// The longest that a message of the plant may take on a machine that is busy with everything else.
const HEARD_WITHIN: Duration = Duration::from_secs(20);
/// Connections that send half a CONNECT and fall silent.
const HALF_OPEN: usize = 2000;

fn seconds() -> u64 {
    std::env::var("SPARKGATE_SIEGE_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(8)
}

/// A small generator (splitmix64), so that a seed means the same for ever.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn roll(&mut self, sides: usize) -> usize {
        usize::try_from(self.next() % sides as u64).unwrap()
    }

    fn noise(&mut self, most: usize) -> Vec<u8> {
        (0..1 + self.roll(most))
            .map(|_| self.next().to_le_bytes()[0])
            .collect()
    }
}

fn text(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    mqtt::text(&mut out, text.as_bytes());
    out
}

/// CONNECT with a will, v3.1.1 or v5, clean or not; client ids repeat, so that sessions are taken over.
fn connect(dice: &mut Dice) -> (Vec<u8>, bool) {
    let v5 = dice.roll(2) == 1;
    let clean = if dice.roll(4) == 0 { 0 } else { 2 };
    let mut body = text("MQTT");
    body.extend_from_slice(&[4 + u8::from(v5), 4 | clean, 0, 5]);
    let properties: &[u8] = if v5 { b"\0" } else { b"" };
    body.extend_from_slice(properties);
    body.extend(text(&format!("h{}", dice.roll(300))));
    body.extend_from_slice(properties);
    body.extend(text("hostile/will"));
    body.extend(text("gone"));
    (frame(0x10, &body), v5)
}

fn subscribe(v5: bool, filter: &str, qos: u8) -> Vec<u8> {
    let mut body = vec![0, 7];
    body.extend_from_slice(if v5 { b"\0" } else { b"" });
    body.extend(text(filter));
    body.push(qos);
    frame(0x82, &body)
}

fn publish(v5: bool, topic: &str, qos: u8, id: u16, size: usize) -> Vec<u8> {
    let mut body = text(topic);
    if qos > 0 {
        body.extend_from_slice(&id.to_be_bytes());
    }
    body.extend_from_slice(if v5 { b"\0" } else { b"" });
    body.resize(body.len() + size, b'z');
    frame(0x30 | qos << 1, &body)
}

const TOPICS: [&str; 6] = [
    "hostile/a",
    "é/x",
    "$SYS/x",
    "spBv1.0/g/NDATA/nobody",
    "hostile/a/b/c/d/e/f/g",
    "plant/alive/not",
];

/// A conversation of valid packets.
fn conversation(dice: &mut Dice) -> Vec<u8> {
    let (mut out, v5) = connect(dice);
    for _ in 0..dice.roll(12) {
        let topic = TOPICS[dice.roll(TOPICS.len())];
        let id = u16::try_from(1 + dice.roll(9)).unwrap();
        let qos = u8::try_from(dice.roll(3)).unwrap();
        let more = match dice.roll(6) {
            0 => subscribe(v5, "hostile/#", qos),
            1 => subscribe(v5, "#", qos),
            2 => vec![0xc0, 0],
            3 => frame(0x62, &id.to_be_bytes()),
            _ => publish(v5, topic, qos, id, dice.roll(3000)),
        };
        out.extend(more);
    }
    out
}

/// One attack; errors are what the broker does about it.
async fn attack(address: SocketAddr, dice: &mut Dice) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    let mut sink = [0; 4096];
    match dice.roll(6) {
        // Reset in the middle of things.
        0 => {
            stream.write_all(&conversation(dice)).await?;
            stream.set_zero_linger()?;
        }
        // Half a packet, a pause, the end.
        1 => {
            let all = conversation(dice);
            stream.write_all(&all[..dice.roll(all.len())]).await?;
            let pause = Duration::from_millis(dice.next() % 300);
            let _ = timeout(pause, stream.read(&mut sink)).await;
        }
        // Noise, from the start or after a good CONNECT.
        2 => {
            if dice.roll(2) == 0 {
                stream.write_all(&connect(dice).0).await?;
            }
            stream.write_all(&dice.noise(400)).await?;
            let _ = timeout(Duration::from_millis(50), stream.read(&mut sink)).await;
        }
        // Valid packets with a few bytes changed.
        3 => {
            let mut all = conversation(dice);
            for _ in 0..1 + dice.roll(4) {
                let place = dice.roll(all.len());
                all[place] = dice.next().to_le_bytes()[0];
            }
            stream.write_all(&all).await?;
            let _ = timeout(Duration::from_millis(100), stream.read(&mut sink)).await;
        }
        // Asks for everything, floods, and never reads.
        4 => {
            let (mut all, v5) = connect(dice);
            all.extend(subscribe(v5, ["hostile/#", "#"][dice.roll(2)], 1));
            stream.write_all(&all).await?;
            let flood = publish(v5, "hostile/flood", 0, 0, 2000).repeat(50);
            for _ in 0..40 {
                if timeout(Duration::from_secs(1), stream.write_all(&flood))
                    .await
                    .is_err()
                {
                    break;
                }
            }
        }
        // Reads everything, answers nothing.
        _ => {
            stream.write_all(&conversation(dice)).await?;
            let until = Instant::now() + Duration::from_millis(500);
            while Instant::now() < until {
                match timeout(Duration::from_millis(100), stream.read(&mut sink)).await {
                    Ok(Ok(n)) if n > 0 => {}
                    _ => break,
                }
            }
        }
    }
    Ok(())
}

/// Keeps [`HALF_OPEN`] connections that sent half a CONNECT, and opens new ones as the broker closes them.
async fn wall(address: SocketAddr, end: Instant) -> usize {
    let mut closed = 0;
    while Instant::now() < end {
        let mut streams = Vec::with_capacity(HALF_OPEN);
        for _ in 0..HALF_OPEN {
            if let Ok(mut stream) = TcpStream::connect(address).await {
                let _ = stream.write_all(b"\x10\x20\0\x04MQ").await;
                streams.push(stream);
            }
        }
        for mut stream in streams {
            let left = end.saturating_duration_since(Instant::now());
            match timeout(left, stream.read(&mut [0; 8])).await {
                Ok(_) => closed += 1,
                Err(_) => return closed,
            }
        }
    }
    closed
}

fn resident_kb(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        .expect("resident memory")
}

/// Each thread of the gateway: state, nanoseconds on a CPU and waiting for one, and where it sleeps. Waiting that grows
/// with the clock is starvation; neither growing is a hang.
fn threads(pid: u32) -> String {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let line = |task: std::fs::DirEntry| {
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let (stat, name) = (read("stat"), read("comm"));
        let state = stat
            .rsplit(") ")
            .next()
            .and_then(|rest| rest.chars().next());
        let (times, place) = (read("schedstat"), read("wchan"));
        format!("{} {state:?} {} {place}", name.trim(), times.trim())
    };
    let lines = tasks.into_iter().flatten().flatten().map(line);
    lines.collect::<Vec<_>>().join("\n")
}

/// One edge node and one subscriber; the longest that a message took, the disk included.
fn plant(address: SocketAddr, end: Instant) -> (u64, Duration) {
    let mut subscriber = Client::connect(address, "plant-subscriber", None);
    subscriber.subscribe("spBv1.0/plant/DDATA/alive/+", 1);
    let mut node = Node::birth(address, "plant", "alive", "press");
    let (mut n, mut longest) = (0u64, Duration::ZERO);
    while Instant::now() < end {
        n += 1;
        let sent = Instant::now();
        let (bytes, id) = node.count_bytes(n, 1);
        node.client.send(&bytes);
        assert_eq!(node.client.read(), Some(Packet::Puback(id)), "message {n}");
        let got = subscriber.read();
        assert!(
            matches!(&got, Some(Packet::Publish { payload, .. }) if bytes.ends_with(payload) && !payload.is_empty()),
            "message {n}: {got:?}"
        );
        // QoS 1: packet ids of the broker count from 1 and are acknowledged in order.
        let id = u16::try_from((n - 1) % 65_535 + 1).unwrap();
        subscriber.send(&frame(0x40, &id.to_be_bytes()));
        longest = longest.max(sent.elapsed());
        assert!(longest < HEARD_WITHIN, "message {n} took {longest:?}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
    (n, longest)
}

#[test]
fn a_plant_goes_on_among_hostile_clients() {
    let web = free_address();
    let gateway = Gateway::builder()
        .config(&format!(
            "[mqtt.limits]\nconnect_timeout = \"3s\"\nsession_expiry = \"5s\"\nqueue_bytes = \"1MiB\"\n\
             [mqtt.websocket]\nlisten = [\"{web}\"]\n"
        ))
        .start();
    let (address, pid) = (gateway.mqtt, gateway.pid());
    let start = Instant::now();
    let end = start + Duration::from_secs(seconds());
    let attacks = Arc::new(AtomicU64::new(0));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    for seed in 0..16 {
        let attacks = attacks.clone();
        runtime.spawn(async move {
            let mut dice = Dice(seed);
            while Instant::now() < end {
                let address = if dice.roll(8) == 0 { web } else { address };
                let _ = timeout(Duration::from_secs(10), attack(address, &mut dice)).await;
                attacks.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let wall = runtime.spawn(wall(address, end));
    let heard = std::thread::spawn(move || plant(address, end));
    // Once every kind of attack has been seen, memory has its height.
    let settled = start + Duration::from_secs(seconds()) / 3;
    let (mut early, mut late) = (0, 0);
    while Instant::now() < end && !heard.is_finished() {
        let now = resident_kb(pid);
        if Instant::now() < settled {
            early = early.max(now);
        } else {
            late = late.max(now);
        }
        let answer = get(gateway.admin, "/api/status");
        assert!(
            matches!(answer, Ok((200, _))),
            "no status: {answer:?}; threads:\n{}",
            threads(pid)
        );
        std::thread::park_timeout(Duration::from_millis(200));
    }
    if Instant::now() < end {
        println!("the plant ended early; threads:\n{}", threads(pid));
    }
    let (messages, longest) = heard.join().expect("the plant is heard throughout");
    let half_open = runtime.block_on(wall).unwrap();
    runtime.shutdown_timeout(Duration::from_secs(5));
    let status = gateway.status();
    let mqtt = &status["mqtt"];
    println!(
        "{} attacks, {half_open} half-open CONNECTs closed; {messages} messages heard, longest {longest:?}; \
         resident {early} KiB, then at most {late} KiB; {mqtt:#}",
        attacks.load(Ordering::Relaxed)
    );
    assert_eq!(mqtt["engine"], "native");
    assert!(half_open > 0, "no half-open CONNECT was closed");
    // NBIRTH, DBIRTH and every message that was acknowledged are records.
    assert!(
        status["received"].as_u64() >= Some(messages + 2),
        "{status:#}"
    );
    assert!(messages > seconds() && attacks.load(Ordering::Relaxed) > seconds());
    assert!(
        late < early + early / 2 + (64 << 10),
        "{early} KiB, then {late} KiB"
    );
    assert!(!gateway.log().contains("panic"), "{}", gateway.log());
    gateway.check_identity();
}
