//! Many sessions, all QoS, lost connections and take-overs, from a seed. Invariants at the end: at QoS 0 a message came
//! at most once, at QoS 1 at least once and at QoS 2 exactly once, in order for each publisher; every will came exactly
//! when due, at once or after its delay, and none that a client came back in time for.
//! `BROKER_SEEDS=n` runs more seeds.

use std::collections::BTreeSet;

use super::bench::{Bench, Client, connect, will};
use super::*;
use crate::broker::codec::{Ack, Connect, Packet, Publish};
use crate::broker::link::Cause;
use bytes::Bytes;

/// A small generator (splitmix64), so that a seed means the same for ever.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}

/// A subscriber as a conforming client behaves: it keeps its half of QoS 2 over connections.
struct Subscriber {
    name: String,
    qos: Qos,
    client: Option<Client>,
    open: BTreeSet<u16>,
    /// Publisher and number of each message handed to the application.
    seen: Vec<(u64, u64)>,
    wills: u64,
}

struct Publisher {
    name: String,
    qos: Qos,
    /// Will delay, seconds.
    delay: u32,
    client: Client,
    next: u64,
    /// Sent and not acknowledged to the end: number and id.
    open: Vec<(u64, u16)>,
}

/// Will delay of some publishers, seconds.
const DELAY: u32 = 30;

fn persistent(name: &str) -> Connect {
    Connect {
        clean: false,
        session_expiry: 500_000,
        ..connect(name)
    }
}

fn publisher(name: &str, delay: u32) -> Connect {
    let will = will("sim/will", "gone").map(|w| Will {
        qos: Qos::ExactlyOnce,
        delay,
        ..w
    });
    Connect {
        will,
        ..persistent(name)
    }
}

impl Subscriber {
    /// Takes what the broker sends and answers some or all of it.
    fn work(&mut self, bench: &mut Bench, dice: &mut Dice, all: bool) -> usize {
        let Some(client) = self.client.clone() else {
            return 0;
        };
        let sent = bench.take(&client);
        let n = sent.len();
        for outgoing in sent {
            let lost = !all && dice.roll(12) == 0;
            match outgoing {
                Outgoing::Publish { item, pid, .. } => {
                    let text = String::from_utf8(item.message.payload.to_vec()).unwrap();
                    let new = item.qos != Qos::ExactlyOnce || self.open.insert(pid);
                    match text.split_once(' ') {
                        Some((who, number)) if new => {
                            self.seen
                                .push((who.parse().unwrap(), number.parse().unwrap()));
                        }
                        None if new => self.wills += 1,
                        _ => {}
                    }
                    let ack = Ack { pid, reason: 0 };
                    let answer = match item.qos {
                        Qos::AtMostOnce => continue,
                        Qos::AtLeastOnce => Packet::Puback(ack),
                        Qos::ExactlyOnce => Packet::Pubrec(ack),
                    };
                    if !lost {
                        bench.send(&client, answer).unwrap();
                        if item.qos == Qos::ExactlyOnce {
                            // PUBREL comes in the control packets that follow.
                            self.open.remove(&pid);
                            bench.send(&client, Packet::Pubcomp(ack)).unwrap();
                        }
                    }
                }
                Outgoing::Pubrel(pid) => {
                    self.open.remove(&pid);
                    bench
                        .send(&client, Packet::Pubcomp(Ack { pid, reason: 0 }))
                        .unwrap();
                }
            }
            if lost {
                // Answers were lost: the connection is too, or the session would wait for ever.
                bench.end(&client, Cause::Socket);
                self.client = None;
                break;
            }
        }
        n
    }

    fn back(&mut self, bench: &mut Bench) {
        if self.client.is_none() {
            self.client = Some(bench.connect(persistent(&self.name)));
        }
    }
}

impl Publisher {
    fn publish(&self, bench: &mut Bench, who: u64, number: u64, pid: u16, dup: bool) {
        let packet = Publish {
            dup,
            qos: self.qos,
            retain: false,
            topic: "sim/data",
            pid: if self.qos == Qos::AtMostOnce { 0 } else { pid },
            payload: Bytes::from(format!("{who} {number}")),
            alias: None,
            expiry: None,
            forward: Bytes::new(),
            traceparent: None,
        };
        bench.send(&self.client, Packet::Publish(packet)).unwrap();
    }

    /// Finishes what is open, as after PUBACK or PUBREC.
    fn finish(&mut self, bench: &mut Bench) {
        bench.answer(true);
        let open = std::mem::take(&mut self.open);
        for (_, pid) in open.into_iter().filter(|_| self.qos == Qos::ExactlyOnce) {
            bench
                .send(&self.client, Packet::Pubrel(Ack { pid, reason: 0 }))
                .unwrap();
        }
    }
}

fn run(seed: u64) {
    let mut dice = Dice(seed);
    let mut bench = Bench::new(&["sim/data"]);
    let mut subscribers: Vec<Subscriber> = [Qos::AtLeastOnce, Qos::ExactlyOnce, Qos::ExactlyOnce]
        .into_iter()
        .enumerate()
        .map(|(i, qos)| {
            let name = format!("s{i}");
            let client = bench.connect(persistent(&name));
            bench.subscribe(&client, "sim/#", qos);
            Subscriber {
                name,
                qos,
                client: Some(client),
                open: BTreeSet::new(),
                seen: Vec::new(),
                wills: 0,
            }
        })
        .collect();
    let kinds = [
        (Qos::AtMostOnce, DELAY),
        (Qos::AtLeastOnce, 0),
        (Qos::ExactlyOnce, 0),
        (Qos::ExactlyOnce, DELAY),
    ];
    let mut publishers: Vec<Publisher> = kinds
        .into_iter()
        .enumerate()
        .map(|(i, (qos, delay))| {
            let name = format!("p{i}");
            let client = bench.connect(publisher(&name, delay));
            Publisher {
                name,
                qos,
                delay,
                client,
                next: 0,
                open: Vec::new(),
            }
        })
        .collect();
    let mut due = 0;
    for _ in 0..400 {
        let which = usize::try_from(dice.roll(3)).unwrap();
        match dice.roll(10) {
            0..=4 => {
                let which = usize::try_from(dice.roll(4)).unwrap();
                let p = &mut publishers[which];
                let (number, pid) = (p.next, u16::try_from(p.next % 60_000 + 1).unwrap());
                p.next += 1;
                if p.qos != Qos::AtMostOnce {
                    p.open.push((number, pid));
                }
                p.publish(&mut bench, which as u64, number, pid, false);
                if dice.roll(3) == 0 {
                    p.finish(&mut bench);
                }
            }
            5 => {
                // The old connection's will is due, by take-over or by loss, unless it may wait and the client is
                // back before its time; open publishes are sent again.
                let p = &mut publishers[usize::try_from(dice.roll(4)).unwrap()];
                let mut late = false;
                if dice.roll(2) == 0 {
                    bench.end(&p.client, Cause::Socket);
                    late = dice.roll(2) == 0;
                    bench.pass(u64::from(if late { DELAY } else { DELAY - 1 }));
                }
                due += u64::from(p.delay == 0 || late);
                p.client = bench.connect(publisher(&p.name, p.delay));
                let which = p.name.as_bytes()[1] - b'0';
                for (number, pid) in p.open.clone() {
                    p.publish(&mut bench, u64::from(which), number, pid, true);
                }
            }
            6 => {
                if let Some(client) = subscribers[which].client.take() {
                    bench.end(&client, Cause::Socket);
                }
            }
            7 => subscribers[which].back(&mut bench),
            _ => drop(subscribers[which].work(&mut bench, &mut dice, false)),
        }
    }
    for p in &mut publishers {
        p.finish(&mut bench);
    }
    for s in &mut subscribers {
        s.back(&mut bench);
        while s.work(&mut bench, &mut dice, true) > 0 {}
        for (who, p) in (0u64..).zip(&publishers) {
            let mut numbers: Vec<u64> = s
                .seen
                .iter()
                .filter(|(w, _)| *w == who)
                .map(|(_, n)| *n)
                .collect();
            match p.qos.min(s.qos) {
                Qos::AtMostOnce => {
                    assert!(
                        numbers.is_sorted_by(|a, b| a < b),
                        "seed {seed}: {numbers:?}"
                    );
                    continue;
                }
                Qos::AtLeastOnce => {
                    let mut known = BTreeSet::new();
                    numbers.retain(|n| known.insert(*n));
                }
                Qos::ExactlyOnce => {}
            }
            assert_eq!(
                numbers,
                (0..p.next).collect::<Vec<_>>(),
                "seed {seed}, {} from publisher {who}",
                s.name
            );
        }
        if s.qos == Qos::AtLeastOnce {
            assert!(s.wills >= due, "seed {seed}: {} wills, {due} due", s.wills);
        } else {
            assert_eq!(s.wills, due, "seed {seed}");
        }
    }
    assert_eq!(
        bench.router.queued_bytes, 0,
        "seed {seed}: bytes are counted out"
    );
}

#[test]
fn seeds_keep_every_promise() {
    let seeds = std::env::var("BROKER_SEEDS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(64);
    (0..seeds).for_each(run);
}
