//! Edge nodes that publish numbered records with QoS 1 and come back whenever their connection breaks, and the
//! account of what they were promised.

use std::collections::{HashMap, HashSet};
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::mqtt::{Node, Packet};
use super::nats::Stored;
use super::until;

/// Publishes of one node that wait for their PUBACK, at most.
const WINDOW: usize = 100;

/// A number from the environment, for the long form of a story.
pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} must be a number"))
    })
}

/// How many nodes and devices there are, and how much they say.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub nodes: usize,
    /// Devices a node.
    pub devices: usize,
    /// Records of every device: `n` from `from` to `to`, exclusively.
    pub from: u64,
    pub to: u64,
}

impl Plan {
    /// About so many records from so many devices.
    pub fn of(records: u64, nodes: usize, devices: usize) -> Self {
        let each = records / (nodes * devices) as u64;
        Self {
            nodes,
            devices,
            from: 1,
            to: each + 1,
        }
    }

    /// As many again, numbered on.
    pub fn next(self) -> Self {
        Self {
            from: self.to,
            to: self.to + self.to - self.from,
            ..self
        }
    }

    pub fn records(&self) -> u64 {
        (self.to - self.from) * (self.nodes * self.devices) as u64
    }
}

/// Nodes at work, a thread each.
pub struct Fleet {
    plan: Plan,
    threads: Vec<JoinHandle<()>>,
    acknowledged: Arc<AtomicU64>,
    promised: Promised,
    connections: Arc<AtomicU64>,
}

/// By device: every `n` for which a PUBACK came.
type Promised = Arc<Mutex<HashMap<String, HashSet<u64>>>>;

impl Fleet {
    pub fn start(address: SocketAddr, plan: Plan) -> Self {
        let acknowledged = Arc::new(AtomicU64::new(0));
        let connections = Arc::new(AtomicU64::new(0));
        let promised = Promised::default();
        let threads = (0..plan.nodes)
            .map(|node| {
                let (total, promised, connections) =
                    (acknowledged.clone(), promised.clone(), connections.clone());
                std::thread::spawn(move || {
                    work(address, plan, node, &promised, &total, &connections)
                })
            })
            .collect();
        Self {
            plan,
            threads,
            acknowledged,
            promised,
            connections,
        }
    }

    /// Records acknowledged to their nodes so far.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Waits until so many are.
    pub fn reach(&self, records: u64) {
        let records = records.min(self.plan.records());
        until("records are acknowledged", 300, || {
            (self.acknowledged() >= records).then_some(())
        });
    }

    /// Waits until every node has said all it had to say, and every word of it was acknowledged.
    pub fn finish(self) -> Account {
        for thread in self.threads {
            thread.join().expect("a node");
        }
        let promised = std::mem::take(&mut *self.promised.lock().expect("what was promised"));
        assert_eq!(promised.len(), self.plan.nodes * self.plan.devices);
        for (device, numbers) in &promised {
            assert_eq!(
                numbers.len() as u64,
                self.plan.to - self.plan.from,
                "{device}"
            );
        }
        let reconnections = self.connections.load(Ordering::Relaxed) as usize - self.plan.nodes;
        Account {
            plan: self.plan,
            promised,
            reconnections,
        }
    }
}

/// What devices were promised.
pub struct Account {
    plan: Plan,
    promised: HashMap<String, HashSet<u64>>,
    reconnections: usize,
}

impl Account {
    /// Checks what a consumer reads in one stream: every record once and in order, linked by `Sparkgate-Prev`,
    /// and in it everything that was promised, in the device's order.
    ///
    /// A node that lost its connection sends again from its first unacknowledged message; what the gateway had
    /// already is then a second message, with a `seq` of its own. So a device's numbers may step back once a
    /// reconnection, and never otherwise.
    pub fn check(&self, messages: &[Stored]) {
        check_chain(messages);
        let mut stored: HashMap<&str, Vec<u64>> = HashMap::new();
        for message in messages.iter().filter(|m| m.subject.contains(".data.")) {
            for metric in message.json()["metrics"].as_array().expect("metrics") {
                stored
                    .entry(message.header("Sparkgate-Device"))
                    .or_default()
                    .push(metric["value"].as_u64().expect("a number"));
            }
        }
        let mut back = 0;
        for (device, promised) in &self.promised {
            let got = &stored[device.as_str()];
            let found: HashSet<u64> = got.iter().copied().collect();
            if let Some(n) = promised.iter().find(|n| !found.contains(n)) {
                panic!("{device}: {n} was acknowledged and is not stored");
            }
            // What it said before and after is another account's.
            let own: Vec<u64> = got
                .iter()
                .copied()
                .filter(|n| (self.plan.from..self.plan.to).contains(n))
                .collect();
            back += own.windows(2).filter(|pair| pair[1] <= pair[0]).count();
        }
        let most = self.reconnections * self.promised.len();
        assert!(back <= most, "{back} steps back");
    }
}

/// Records rise, and each names the one before it.
pub fn check_chain(messages: &[Stored]) {
    let mut last: Option<u64> = None;
    for message in messages {
        let record = message.record();
        if let Some(last) = last {
            assert!(
                record > last,
                "record {record} after {last} at {}",
                message.seq
            );
            assert_eq!(message.prev(), last, "what record {record} follows");
        }
        last = Some(record);
    }
}

fn work(
    address: SocketAddr,
    plan: Plan,
    index: usize,
    promised: &Promised,
    total: &AtomicU64,
    connections: &AtomicU64,
) {
    let name = format!("n{index}");
    let devices: Vec<String> = (0..plan.devices).map(|i| format!("d{index}-{i}")).collect();
    let (mut next, end) = (0, (plan.to - plan.from) * plan.devices as u64);
    while next < end {
        let mut node = until("the broker is there", 120, || {
            std::net::TcpStream::connect(address).ok()?;
            std::panic::catch_unwind(|| {
                let mut node = Node::birth(address, "crash", &name, &devices[0]);
                for device in &devices[1..] {
                    node.birth_of(device);
                }
                node
            })
            .ok()
        });
        connections.fetch_add(1, Ordering::Relaxed);
        next = publish(&mut node, &devices, plan.from, next, end, promised, total);
    }
}

/// Publishes messages `from` to `end` until done or the connection breaks; returns the first that must be sent
/// next: what was not acknowledged is sent again, as a client does.
fn publish(
    node: &mut Node,
    devices: &[String],
    first: u64,
    from: u64,
    end: u64,
    promised: &Promised,
    total: &AtomicU64,
) -> u64 {
    let mut flying: Vec<(u16, u64)> = Vec::new();
    let mut next = from;
    loop {
        while flying.len() < WINDOW && next < end {
            devices[next as usize % devices.len()].clone_into(&mut node.device);
            let (bytes, id) = node.count_bytes(first + next / devices.len() as u64, 1);
            if node.client.stream().write_all(&bytes).is_err() {
                return flying.first().map_or(next, |(_, at)| *at);
            }
            flying.push((id, next));
            next += 1;
        }
        if flying.is_empty() {
            return next;
        }
        match node.client.read() {
            Some(Packet::Puback(id)) => {
                let at = flying
                    .iter()
                    .position(|(i, _)| *i == id)
                    .expect("a known packet id");
                let (_, k) = flying.remove(at);
                let device = &devices[k as usize % devices.len()];
                let new = promised
                    .lock()
                    .expect("what was promised")
                    .entry(device.clone())
                    .or_default()
                    .insert(first + k / devices.len() as u64);
                if new {
                    total.fetch_add(1, Ordering::Relaxed);
                }
            }
            Some(_) => {}
            None => return flying.first().map_or(next, |(_, at)| *at),
        }
    }
}
