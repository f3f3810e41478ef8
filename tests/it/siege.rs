//! Hostile clients around a working plant: cut connections, half packets, noise, floods, a wall of half-open CONNECTs.
//! All the while an edge node's data, acknowledged from the journal's disk, is heard by one subscriber, the gateway
//! answers, and its memory stays flat.
//! `SPARKGATE_SIEGE_SECONDS` makes it longer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::harness::gateway::{Gateway, free_address, get};
use crate::harness::mqtt::{self, Client, Node, Packet, frame};
use crate::harness::until;

/// Connections that send half a CONNECT and fall silent, at most.
const HALF_OPEN: u64 = 2000;
/// Attacks after which each kind has been seen.
const ATTACKS: u64 = 100;

/// How far it is.
#[derive(Default)]
struct Siege {
    over: AtomicBool,
    attacks: AtomicU64,
    /// Half-open CONNECTs that the broker closed.
    closed: AtomicU64,
    /// Messages of the plant.
    heard: AtomicU64,
}

impl Siege {
    fn goes_on(&self) -> bool {
        !self.over.load(Ordering::Relaxed)
    }

    /// Enough has happened; on a busy machine that takes longer.
    fn is_seen(&self) -> bool {
        let at_least =
            |count: &AtomicU64, least: u64| count.load(Ordering::Relaxed) >= least.max(1);
        at_least(&self.attacks, ATTACKS)
            && at_least(&self.closed, 1)
            && at_least(&self.heard, seconds())
    }
}

/// As many open files as may be, for this process and the gateway: how many connections the wall has then, since the
/// other stories need some too.
fn raise_file_limit() -> usize {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("the soft limit is raised to the hard one");
    let files = limit.current.unwrap_or(u64::MAX) / 4;
    usize::try_from(files.min(HALF_OPEN)).unwrap()
}

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

/// Keeps so many connections that sent half a CONNECT, and opens new ones as the broker closes them.
async fn wall(address: SocketAddr, siege: &Siege, half_open: usize) {
    while siege.goes_on() {
        let mut streams = Vec::with_capacity(half_open);
        for _ in 0..half_open {
            if let Ok(mut stream) = TcpStream::connect(address).await {
                let _ = stream.write_all(b"\x10\x20\0\x04MQ").await;
                streams.push(stream);
            }
        }
        for mut stream in streams {
            let look = Duration::from_millis(200);
            while timeout(look, stream.read(&mut [0; 8])).await.is_err() {
                if !siege.goes_on() {
                    return;
                }
            }
            siege.closed.fetch_add(1, Ordering::Relaxed);
        }
    }
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
fn plant(address: SocketAddr, siege: &Siege) -> Duration {
    let mut subscriber = Client::connect(address, "plant-subscriber", None);
    subscriber.subscribe("spBv1.0/plant/DDATA/alive/+", 1);
    let mut node = Node::birth(address, "plant", "alive", "press");
    let (mut n, mut longest) = (0u64, Duration::ZERO);
    while siege.goes_on() {
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
        siege.heard.store(n, Ordering::Relaxed);
        std::thread::park_timeout(Duration::from_millis(20));
    }
    longest
}

#[test]
fn a_plant_goes_on_among_hostile_clients() {
    let half_open = raise_file_limit();
    let web = free_address();
    let gateway = Gateway::builder()
        .config(&format!(
            "[mqtt.limits]\nconnect_timeout = \"3s\"\nsession_expiry = \"5s\"\nqueue_bytes = \"1MiB\"\n\
             [mqtt.websocket]\nlisten = [\"{web}\"]\n"
        ))
        .start();
    let (address, pid) = (gateway.mqtt, gateway.pid());
    let start = Instant::now();
    let siege = Arc::new(Siege::default());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    for seed in 0..16 {
        let siege = siege.clone();
        runtime.spawn(async move {
            let mut dice = Dice(seed);
            while siege.goes_on() {
                let address = if dice.roll(8) == 0 { web } else { address };
                let _ = timeout(Duration::from_secs(10), attack(address, &mut dice)).await;
                siege.attacks.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let wall = runtime.spawn({
        let siege = siege.clone();
        async move { wall(address, &siege, half_open).await }
    });
    let heard = std::thread::spawn({
        let siege = siege.clone();
        move || plant(address, &siege)
    });
    // Once every kind of attack has been seen and the wall has stood, memory has its height.
    let (mut early, mut late, mut settled) = (0, 0, None);
    let whole = Duration::from_secs(seconds());
    until("everything has been seen", seconds() + 300, || {
        let now = resident_kb(pid);
        if settled.is_none() {
            early = early.max(now);
            if siege.is_seen() && start.elapsed() > whole / 3 {
                settled = Some(Instant::now());
            }
        } else {
            late = late.max(now);
        }
        let answer = get(gateway.admin, "/api/status");
        assert!(
            matches!(answer, Ok((200, _))),
            "no status: {answer:?}; threads:\n{}",
            threads(pid)
        );
        if heard.is_finished() {
            println!("the plant ended early; threads:\n{}", threads(pid));
            return Some(());
        }
        std::thread::park_timeout(Duration::from_millis(200));
        settled
            .is_some_and(|since| since.elapsed() >= whole - whole / 3)
            .then_some(())
    });
    siege.over.store(true, Ordering::Relaxed);
    let longest = heard.join().expect("the plant is heard throughout");
    runtime.block_on(wall).unwrap();
    runtime.shutdown_timeout(Duration::from_secs(5));
    let status = gateway.status();
    let mqtt = &status["mqtt"];
    println!(
        "{} attacks, {} half-open CONNECTs closed; {} messages heard, longest {longest:?}; \
         resident {early} KiB, then at most {late} KiB; {mqtt:#}",
        siege.attacks.load(Ordering::Relaxed),
        siege.closed.load(Ordering::Relaxed),
        siege.heard.load(Ordering::Relaxed),
    );
    assert_eq!(mqtt["engine"], "native");
    // NBIRTH, DBIRTH and every message that was acknowledged are records.
    let heard = siege.heard.load(Ordering::Relaxed);
    assert!(status["received"].as_u64() >= Some(heard + 2), "{status:#}");
    assert!(late > 0);
    assert!(
        late < early + early / 2 + (64 << 10),
        "{early} KiB, then {late} KiB"
    );
    assert!(!gateway.log().contains("panic"), "{}", gateway.log());
    gateway.check_identity();
}
