//! A host and a fleet of nodes over links that lose, repeat, reorder and cut; seeded, in virtual time.
//!
//! Nodes run [`EdgeSession`] and encode with the generated code, so that host and nodes share no codec. After a
//! quiet time the host's view has to equal the nodes' truth. `SPARKPLUG_SEED` replays one seed,
//! `SPARKPLUG_SEEDS` sets how many are tried.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message as _;
use sparkplug::edge::{EdgeAction, EdgeConfig, EdgeSession, Kind, Outgoing, WillSpec};
use sparkplug::host::{HostConfig, HostEvent, HostSession, Message, REBIRTH, ServerId};
use sparkplug::payload::{Limits, decode};
use sparkplug::proto::{Payload, payload};
use sparkplug::{NodeId, Value};

const WALL: u64 = 1_760_000_000_000;
const DEVICES: [&str; 2] = ["d0", "d1"];

/// SplitMix64: small, seeded, the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A simulated edge node: truth to compare the host with.
struct Node {
    edge: EdgeSession,
    will: Option<WillSpec>,
    /// Value of the one metric of the node (index 0) and of each device.
    values: [i64; 3],
    /// Alias of each, dealt anew in every session.
    aliases: [u64; 3],
    present: [bool; 2],
}

fn int(
    name: Option<&str>,
    alias: Option<u64>,
    value: i64,
    at: u64,
    typed: bool,
) -> payload::Metric {
    payload::Metric {
        name: name.map(str::to_owned),
        alias,
        timestamp: Some(at),
        datatype: typed.then_some(4),
        value: Some(payload::metric::Value::LongValue(value as u64)),
        ..Default::default()
    }
}

impl Node {
    fn new(id: NodeId) -> Self {
        Self {
            edge: EdgeSession::new(EdgeConfig {
                node: id,
                primary_host: None,
                servers: 1,
                first_bdseq: 254,
            }),
            will: None,
            values: [0; 3],
            aliases: [1, 2, 3],
            present: [true; 2],
        }
    }

    fn encode(&self, out: &Outgoing, at: u64) -> (String, Vec<u8>) {
        let slot = |device: &str| 1 + DEVICES.iter().position(|it| *it == device).unwrap();
        let full = |slot: usize| {
            int(
                Some("Value"),
                Some(self.aliases[slot]),
                self.values[slot],
                at,
                true,
            )
        };
        let data = |slot: usize| int(None, Some(self.aliases[slot]), self.values[slot], at, false);
        let metrics = match &out.kind {
            Kind::NodeBirth { bdseq } => vec![
                int(Some("bdSeq"), None, i64::from(*bdseq), at, true),
                payload::Metric {
                    name: Some(REBIRTH.into()),
                    timestamp: Some(at),
                    datatype: Some(11),
                    value: Some(payload::metric::Value::BooleanValue(false)),
                    ..Default::default()
                },
                full(0),
            ],
            Kind::DeviceBirth(device) => vec![full(slot(device))],
            Kind::NodeData => vec![data(0)],
            Kind::DeviceData(device) => vec![data(slot(device))],
            Kind::DeviceDeath(_) => vec![],
            Kind::NodeDeath { bdseq } => {
                vec![int(Some("bdSeq"), None, i64::from(*bdseq), at, true)]
            }
        };
        let payload = Payload {
            timestamp: Some(at),
            metrics,
            seq: out.seq.map(|it| u64::from(it.get())),
            ..Default::default()
        };
        (out.topic.clone(), payload.encode_to_vec())
    }
}

struct World {
    random: Random,
    now: u64,
    host: HostSession,
    nodes: Vec<Node>,
    /// Messages on their way to the host, by arrival and order of sending.
    to_host: BTreeMap<(u64, u64), (String, Vec<u8>)>,
    /// Rebirth requests on their way to nodes.
    to_nodes: BTreeMap<(u64, u64), usize>,
    counter: u64,
    hostile: bool,
    requests: Vec<Vec<u64>>,
    open_tags: BTreeSet<u64>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let count = 1 + random.below(3) as usize;
        let nodes = (0..count)
            .map(|at| Node::new(NodeId::new("g", &format!("n{at}")).unwrap()))
            .collect();
        Self {
            random,
            now: 0,
            host: HostSession::new(HostConfig::default(), 0),
            nodes,
            to_host: BTreeMap::new(),
            to_nodes: BTreeMap::new(),
            counter: 0,
            hostile: true,
            requests: vec![Vec::new(); count],
            open_tags: BTreeSet::new(),
        }
    }

    /// Puts a message on the link, where it may be lost, doubled or delayed.
    fn post(&mut self, message: (String, Vec<u8>)) {
        let copies = match (self.hostile, self.random.below(40)) {
            (true, 0) => 0,
            (true, 1) => 2,
            _ => 1,
        };
        for _ in 0..copies {
            let delay = match (self.hostile, self.random.below(20)) {
                (true, 0) => self.random.below(3_000),
                (true, 1..4) => self.random.below(30),
                // In order: behind everything that is on its way.
                _ => 0,
            };
            self.counter += 1;
            self.to_host
                .insert((self.now + delay, self.counter), message.clone());
        }
    }

    fn send(&mut self, at: usize, out: &Outgoing) {
        let message = self.nodes[at].encode(out, WALL + self.now);
        self.post(message);
    }

    fn act(&mut self, at: usize, action: EdgeAction) {
        if let EdgeAction::Send(births) = action {
            for birth in births {
                self.send(at, &birth);
            }
        }
    }

    fn connect(&mut self, at: usize) {
        let mut numbers = [1, 2, 3];
        numbers.rotate_left(self.random.below(3) as usize);
        let node = &mut self.nodes[at];
        node.aliases = numbers;
        node.will = Some(node.edge.connect());
        for (slot, device) in DEVICES.iter().enumerate() {
            if node.present[slot] {
                node.edge.add_device(device);
            }
        }
        let action = node.edge.ready();
        self.act(at, action);
    }

    /// The connection breaks: the broker publishes the will. It is not lost, but it may be late.
    fn cut(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.edge.disconnected();
        if let Some(will) = node.will.take() {
            let out = Outgoing {
                topic: will.topic,
                kind: Kind::NodeDeath { bdseq: will.bdseq },
                seq: None,
            };
            let message = node.encode(&out, WALL);
            let delay = self.random.below(if self.hostile { 500 } else { 1 });
            self.counter += 1;
            self.to_host
                .insert((self.now + delay, self.counter), message);
        }
    }

    fn step(&mut self) {
        let at = self.random.below(self.nodes.len() as u64) as usize;
        let connected = self.nodes[at].will.is_some();
        match self.random.below(100) {
            _ if !connected => self.connect(at),
            0 => self.cut(at),
            1 => {
                self.cut(at);
                self.connect(at);
            }
            2 | 3 => {
                let slot = self.random.below(2) as usize;
                let node = &mut self.nodes[at];
                node.present[slot] ^= true;
                let out = if node.present[slot] {
                    node.edge.add_device(DEVICES[slot])
                } else {
                    node.edge.remove_device(DEVICES[slot])
                };
                if let Some(out) = out {
                    self.send(at, &out);
                }
            }
            4 if self.hostile => self.restart_host(),
            _ => self.data(at),
        }
    }

    fn data(&mut self, at: usize) {
        let slot = self.random.below(3) as usize;
        let node = &mut self.nodes[at];
        let out = match slot {
            0 => node.edge.node_data(),
            slot => node.edge.device_data(DEVICES[slot - 1]),
        };
        if let Some(out) = out {
            node.values[slot] += 1;
            self.send(at, &out);
        }
    }

    /// The host stops and comes back from a checkpoint.
    fn restart_host(&mut self) {
        let mut fresh = HostSession::new(HostConfig::default(), self.now);
        // All of it: a session that was never asked lists every node.
        for snapshot in self.host.dirty_nodes() {
            fresh
                .restore_node(self.now, WALL + self.now, &snapshot.bytes)
                .unwrap();
        }
        fresh.check_invariants().unwrap();
        self.host = fresh;
        self.open_tags.clear();
        for requests in &mut self.requests {
            requests.clear();
        }
    }

    fn advance(&mut self, ms: u64) {
        let until = self.now + ms;
        loop {
            let next = [
                self.to_host.keys().next().map(|it| it.0),
                self.to_nodes.keys().next().map(|it| it.0),
                self.host.poll_timeout(),
            ]
            .into_iter()
            .flatten()
            .min();
            let Some(next) = next.filter(|it| *it <= until) else {
                break;
            };
            self.now = self.now.max(next);
            self.deliver_due();
            self.host.handle_timeout(self.now);
            self.drain();
        }
        self.now = until;
    }

    fn deliver_due(&mut self) {
        while let Some(entry) = self.to_host.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let tag = entry.key().1;
            let (topic, bytes) = entry.remove();
            assert!(self.open_tags.insert(tag));
            self.host.handle_message(
                self.now,
                &Message {
                    topic: &topic,
                    payload: &bytes,
                    received_ms: WALL + self.now,
                    client: None,
                    server: ServerId(0),
                    retained: false,
                    will: false,
                    tag,
                },
            );
            self.drain();
        }
        while let Some(entry) = self.to_nodes.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let at = entry.remove();
            let action = self.nodes[at].edge.rebirth();
            self.act(at, action);
        }
    }

    fn drain(&mut self) {
        self.host.check_invariants().unwrap();
        while let Some(event) = self.host.poll_event() {
            if let Some(tag) = event.tag() {
                assert!(self.open_tags.remove(&tag), "settled twice: {event:?}");
            }
            if let HostEvent::NodeData { record, .. } | HostEvent::DeviceData { record, .. } =
                &event
            {
                // Nothing is ever handed out under an invented name.
                assert!(record.metrics.iter().all(|it| &*it.name == "Value"));
            }
        }
        while let Some(sent) = self.host.poll_transmit() {
            let payload = decode(&sent.payload, &Limits::default()).unwrap();
            assert_eq!(payload.metrics[0].name.as_deref(), Some(REBIRTH));
            let at = self
                .nodes
                .iter()
                .position(|it| sent.topic.ends_with(&format!("/{}", it.edge.node().node)))
                .unwrap();
            if let Some(last) = self.requests[at].last() {
                assert!(self.now - last >= 5_000, "two requests within the cooldown");
            }
            self.requests[at].push(self.now);
            if !(self.hostile && self.random.one_in(5)) {
                self.counter += 1;
                let delay = 1 + self.random.below(20);
                self.to_nodes.insert((self.now + delay, self.counter), at);
            }
        }
    }

    /// After a quiet time the host knows what is.
    fn settle(&mut self) {
        self.hostile = false;
        for at in 0..self.nodes.len() {
            if self.nodes[at].will.is_none() {
                self.connect(at);
            }
        }
        // Long enough for every back-off; nodes go on talking, so that gaps show.
        for _ in 0..40 {
            self.advance(20_000);
            for at in 0..self.nodes.len() {
                for _ in 0..6 {
                    self.data(at);
                }
            }
        }
        self.advance(20_000);
    }

    fn compare(&self, seed: u64) {
        for node in &self.nodes {
            let id = node.edge.node();
            let view = self.host.node(id).unwrap();
            assert!(view.own().online(), "seed {seed}: {id} is offline");
            assert!(!view.unverified(), "seed {seed}: {id} is unverified");
            assert_eq!(
                view.bdseq(),
                Some(u64::from(node.edge.bdseq())),
                "seed {seed}"
            );
            assert_eq!(
                view.own().metric("Value").unwrap().value,
                Value::Int(node.values[0]),
                "seed {seed}: {id}"
            );
            for (slot, device) in DEVICES.iter().enumerate() {
                let Some(view) = view.device(device) else {
                    assert!(!node.present[slot], "seed {seed}: {id}/{device} is unknown");
                    continue;
                };
                assert_eq!(
                    view.online(),
                    node.present[slot],
                    "seed {seed}: {id}/{device}"
                );
                if node.present[slot] {
                    let metric = view.metric("Value").unwrap();
                    assert_eq!(
                        (&metric.value, metric.stale),
                        (&Value::Int(node.values[slot + 1]), false),
                        "seed {seed}: {id}/{device}"
                    );
                }
            }
        }
        assert!(
            self.open_tags.is_empty(),
            "seed {seed}: messages never settled"
        );
    }
}

fn run(seed: u64) {
    let mut world = World::new(seed);
    for _ in 0..400 {
        world.step();
        let ms = world.random.below(60);
        world.advance(ms);
    }
    world.settle();
    world.compare(seed);
}

#[test]
fn the_hosts_view_is_the_nodes_truth_after_quiet() {
    let number = |name: &str| std::env::var(name).ok().and_then(|it| it.parse().ok());
    if let Some(seed) = number("SPARKPLUG_SEED") {
        return run(seed);
    }
    for seed in 0..number("SPARKPLUG_SEEDS").unwrap_or(200) {
        run(seed);
    }
}
