//! The state file's log, written in deltas and slices, against what the router holds.

use std::collections::HashSet;

use bytes::Bytes;

use super::super::bench::{Bench, Client, connect};
use super::super::fuzz::{Owed, owed};
use super::super::simulation::Dice;
use super::{Moment, SLICE};
use crate::broker::Qos;
use crate::broker::codec::{Ack, Connect, Packet};
use crate::broker::link::Cause;
use crate::broker::outbound::Outgoing;
use crate::broker::record::decode_all;

const NAMES: [&str; 2] = ["a", "b"];

fn subscriber(name: &str) -> Connect {
    Connect {
        clean: false,
        session_expiry: 100,
        receive_maximum: 3,
        ..connect(name)
    }
}

/// What a restart would find.
fn restored(log: &[u8]) -> Bench {
    let (records, lost) = decode_all(&Bytes::copy_from_slice(log));
    assert_eq!(lost, 0);
    let mut bench = Bench::new(&[]);
    bench.router.restore(records, Moment::present());
    bench
}

fn all(owed: &Owed) -> impl Iterator<Item = &Bytes> {
    let inflight = owed
        .inflight
        .iter()
        .filter_map(|(_, payload)| payload.as_ref());
    inflight.chain(&owed.queued)
}

fn roll(dice: &mut Dice, sides: usize) -> usize {
    usize::try_from(dice.roll(sides as u64)).unwrap()
}

/// Takes what there is and answers some of it.
fn read(bench: &mut Bench, client: &Client, dice: &mut Dice) {
    for outgoing in bench.take(client) {
        if roll(dice, 3) == 0 {
            continue;
        }
        let answer = match outgoing {
            Outgoing::Publish { item, pid, .. } => match item.qos {
                Qos::AtLeastOnce => Packet::Puback(Ack { pid, reason: 0 }),
                _ => Packet::Pubrec(Ack { pid, reason: 0 }),
            },
            Outgoing::Pubrel(pid) => Packet::Pubcomp(Ack { pid, reason: 0 }),
        };
        bench.send(client, answer).unwrap();
    }
}

/// At any moment, the log gives back everything owed that was owed when all was last saved; and once all is saved,
/// exactly what is owed.
#[test]
fn the_log_alone_gives_the_state_back() {
    for seed in 0..40 {
        let mut dice = Dice(seed);
        let mut bench = Bench::new(&[]);
        bench.router.record_changes();
        let publisher = bench.connect(connect("p"));
        let mut clients: [Option<Client>; 2] = [None, None];
        for (name, client) in NAMES.iter().zip(&mut clients) {
            let fresh = bench.connect(subscriber(name));
            bench.subscribe(&fresh, "t", Qos::ExactlyOnce);
            *client = Some(fresh);
        }
        let (mut log, mut number, mut next) = (Vec::new(), 0u64, None);
        let mut safe: [HashSet<Bytes>; 2] = Default::default();
        for _ in 0..60 {
            let who = roll(&mut dice, 2);
            match (roll(&mut dice, 9), &clients[who]) {
                (0..3, _) => {
                    // More than a slice now and then.
                    let most = [6, 2 * SLICE][usize::from(roll(&mut dice, 8) == 0)];
                    for _ in 0..1 + roll(&mut dice, most) {
                        number += 1;
                        let qos = [Qos::AtMostOnce, Qos::AtLeastOnce, Qos::ExactlyOnce];
                        let qos = qos[roll(&mut dice, 3)];
                        let pid = u16::try_from(1 + number % 60_000).unwrap();
                        bench.publish(&publisher, "t", &number.to_string(), qos, pid, false);
                        let release = Packet::Pubrel(Ack { pid, reason: 0 });
                        if qos == Qos::ExactlyOnce {
                            bench.send(&publisher, release).unwrap();
                        }
                    }
                }
                (3 | 4, Some(client)) => {
                    let client = client.clone();
                    read(&mut bench, &client, &mut dice);
                }
                (5, Some(client)) => {
                    bench.end(&client.clone(), Cause::Socket);
                    clients[who] = None;
                }
                (5 | 6, None) => clients[who] = Some(bench.connect(subscriber(NAMES[who]))),
                (7, _) => {
                    // One slice; all is saved when there is none left.
                    next = bench.router.save_connected(next.unwrap_or(0), &mut log);
                }
                (8, _) if roll(&mut dice, 4) == 0 => {
                    log = bench.router.snapshot().encode();
                    next = None;
                    for (name, safe) in NAMES.iter().zip(&mut safe) {
                        *safe = all(&owed(&mut bench.router, name)).cloned().collect();
                    }
                }
                _ => {}
            }
            bench.router.encode_changes(&mut log);
            let mut after = restored(&log);
            for (name, safe) in NAMES.iter().zip(&mut safe) {
                let now: HashSet<Bytes> = all(&owed(&mut bench.router, name)).cloned().collect();
                safe.retain(|payload| now.contains(payload));
                let found: HashSet<Bytes> = all(&owed(&mut after.router, name)).cloned().collect();
                let lost: Vec<_> = safe.difference(&found).collect();
                assert!(lost.is_empty(), "seed {seed}: {name} lost {lost:?}");
            }
        }
        let mut from = Some(0);
        while let Some(at) = from {
            let before = log.len();
            from = bench.router.save_connected(at, &mut log);
            let (records, _) = decode_all(&Bytes::copy_from_slice(&log[before..]));
            assert!(
                records.len() <= SLICE + 2 * NAMES.len(),
                "a slice is bounded"
            );
        }
        let mut after = restored(&log);
        for name in NAMES {
            assert_eq!(
                owed(&mut after.router, name),
                owed(&mut bench.router, name),
                "seed {seed}: {name}"
            );
        }
    }
}

/// A message that a connected client takes at once is never written, and one that stays is written once.
#[test]
fn a_message_is_written_at_most_once() {
    let mut bench = Bench::new(&[]);
    bench.router.record_changes();
    let (s, p) = (bench.connect(subscriber("s")), bench.connect(connect("p")));
    bench.subscribe(&s, "t", Qos::AtLeastOnce);
    let mut log = Vec::new();
    bench.router.encode_changes(&mut log);
    let messages = |log: &[u8]| {
        let (records, _) = decode_all(&Bytes::copy_from_slice(log));
        let queued = |r: &&crate::broker::record::Record| {
            matches!(r, crate::broker::record::Record::Queued(..))
        };
        records.iter().filter(queued).count()
    };
    for n in 0..10 {
        bench.publish(&p, "t", "x", Qos::AtLeastOnce, n + 1, false);
        let pid = n + 1;
        assert_eq!(bench.take(&s).len(), 1);
        bench
            .send(&s, Packet::Puback(Ack { pid, reason: 0 }))
            .unwrap();
    }
    assert_eq!(bench.router.save_connected(0, &mut log), None);
    assert_eq!(messages(&log), 0);
    for n in 0..10 {
        bench.publish(&p, "t", "x", Qos::AtLeastOnce, n + 1, false);
        assert_eq!(bench.router.save_connected(0, &mut log), None);
    }
    assert_eq!(messages(&log), 10);
    bench.end(&s, Cause::Socket);
    bench.router.encode_changes(&mut log);
    assert_eq!(messages(&log), 10);
}

/// A session that a client made one that is not to be kept does not come back with a restart.
#[test]
fn a_session_that_ended_stays_ended() {
    let mut bench = Bench::new(&[]);
    bench.router.record_changes();
    let s = bench.connect(subscriber("s"));
    bench.end(&s, Cause::Socket);
    let s = bench.connect(Connect {
        session_expiry: 0,
        ..subscriber("s")
    });
    bench.end(&s, Cause::Socket);
    let mut log = Vec::new();
    bench.router.encode_changes(&mut log);
    assert!(restored(&log).router.by_client.is_empty());
}
