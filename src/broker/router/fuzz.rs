//! Stories of a few clients, read from any bytes: packets, lost connections, time that passes, a pipeline that answers
//! or does not, a restart. What must hold is checked after each step.

#![allow(clippy::indexing_slicing, reason = "a test's body")]

use std::sync::Arc;

use bytes::Bytes;

use super::bench::{Bench, Client, connect};
use super::{Moment, Router};
use crate::broker::codec::{
    Ack, Connect, Options, Packet, Publish, RetainHandling, Subscribe, Unsubscribe, Version, Will,
    decode, frame,
};
use crate::broker::config::Config;
use crate::broker::link::Cause;
use crate::broker::record::decode_all;
use crate::broker::{Publish as FromGateway, Qos};
use crate::config::quantity::ByteSize;

const NAMES: [&str; 4] = ["a", "b", "c", ""];
const TOPICS: [&str; 8] = [
    "t",
    "t/u",
    "tap/x",
    "é/x",
    "$SYS/x",
    "/",
    "t/u/v/w",
    "tap/NBIRTH",
];
const FILTERS: [&str; 8] = [
    "#",
    "t/+",
    "t",
    "$share/g/t/#",
    "$share/h/#",
    "+/u",
    "a/#/b",
    "tap/#",
];
const MEMORY: usize = 300 << 10;

/// Bytes as choices; zeros when they run out.
struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::from(self.byte()) % all.len()]
    }

    fn qos(&mut self) -> Qos {
        self.of(&[Qos::AtMostOnce, Qos::AtLeastOnce, Qos::ExactlyOnce])
    }

    fn bytes(&mut self) -> &'a [u8] {
        let n = usize::from(self.byte()).min(self.0.len());
        let (bytes, rest) = self.0.split_at(n);
        self.0 = rest;
        bytes
    }

    fn connect(&mut self) -> Connect {
        let will = self.flag().then(|| Will {
            topic: self.of(&TOPICS).into(),
            payload: Bytes::from_static(b"will"),
            qos: self.qos(),
            retain: self.flag(),
            delay: self.of(&[0, 0, 3, 60, u32::MAX]),
            expiry: self.of(&[None, Some(2)]),
            forward: Bytes::new(),
            traceparent: None,
        });
        Connect {
            version: self.of(&[Version::V5, Version::V311]),
            clean: self.flag(),
            will,
            session_expiry: self.of(&[0, 5, 1000, u32::MAX]),
            receive_maximum: self.of(&[u16::MAX, 1, 3]),
            max_packet: self.of(&[u32::MAX, 40]),
            topic_alias_max: self.of(&[0, 2]),
            ..connect(self.of(&NAMES))
        }
    }

    fn packet(&mut self) -> Packet<'a> {
        let pid = u16::from(self.byte() % 6) + 1;
        let ack = Ack {
            pid,
            reason: self.of(&[0, 0, 0, 0x80]),
        };
        match self.byte() % 9 {
            0 | 1 => {
                let alias = self.of(&[None, None, None, Some(0), Some(1), Some(2), Some(9)]);
                let topic = if alias.is_some() && self.flag() {
                    ""
                } else {
                    self.of(&TOPICS)
                };
                let size = usize::from(self.byte()) * usize::from(self.of(&[1u8, 1, 1, 128]));
                Packet::Publish(Publish {
                    dup: self.flag(),
                    qos: self.qos(),
                    retain: self.flag(),
                    topic,
                    pid,
                    payload: Bytes::from(vec![b'x'; size]),
                    alias,
                    expiry: self.of(&[None, None, Some(0), Some(4)]),
                    forward: Bytes::new(),
                    traceparent: None,
                })
            }
            2 => Packet::Subscribe(Subscribe {
                pid,
                id: self.of(&[None, Some(7)]),
                filters: (0..=self.byte() % 3)
                    .map(|_| (self.of(&FILTERS).into(), self.options()))
                    .collect(),
            }),
            3 => Packet::Unsubscribe(Unsubscribe {
                pid,
                filters: vec![self.of(&FILTERS).into()],
            }),
            4 => Packet::Puback(ack),
            5 => Packet::Pubrec(ack),
            6 => Packet::Pubrel(ack),
            7 => Packet::Pubcomp(ack),
            _ => Packet::Pingreq,
        }
    }

    fn options(&mut self) -> Options {
        Options {
            qos: self.qos(),
            no_local: self.flag(),
            retain_as_published: self.flag(),
            retain_handling: self.of(&[
                RetainHandling::Always,
                RetainHandling::IfNew,
                RetainHandling::Never,
            ]),
        }
    }
}

/// What holds between any two steps.
fn check(router: &Router) {
    let sessions = || router.sessions.iter().flatten();
    let bytes: usize = sessions().map(|s| s.outbound.bytes()).sum();
    assert_eq!(router.queued_bytes, bytes, "bytes in queues");
    assert!(
        router.memory() <= MEMORY + MEMORY / 4,
        "{} bytes held",
        router.memory()
    );
    let attached = sessions().filter_map(|s| Some((s, s.attached.as_ref()?)));
    assert_eq!(
        router.connections,
        attached.clone().count() as u64,
        "connections"
    );
    assert_eq!(router.by_client.len(), sessions().count(), "sessions");
    for (session, attached) in attached {
        assert!(session.outbound.under_way() <= usize::from(attached.receive_maximum));
        assert!(session.will_due.is_none() && session.expires.is_none());
    }
}

/// Reads a story from the bytes and plays it.
pub(crate) fn sessions(bytes: &[u8]) {
    let mut config = Config {
        max_memory: ByteSize(MEMORY as u64),
        ..Config::default()
    };
    config.limits.queue_messages = 16;
    config.limits.queue_bytes = ByteSize(128 << 10);
    config.limits.receive_maximum = 4;
    config.limits.topic_levels = 3;
    config.limits.retained = 5;
    config.limits.topic_aliases = 2;
    let mut bench = Bench::with(&["tap/#"], &config);
    bench.router.record_changes();
    let mut choices = Choices(bytes);
    let mut clients: Vec<Client> = Vec::new();
    while !choices.0.is_empty() {
        let which = usize::from(choices.byte());
        // One that was taken over may still speak: its task has not noticed yet.
        let client = clients.get(which % clients.len().max(1)).cloned();
        match (choices.byte() % 12, client) {
            (0, _) => {
                let request = choices.connect();
                clients.extend(bench.try_connect(request).ok());
                if clients.len() > 8 {
                    // Its task ends late; by now its session may be another connection's.
                    let first = clients.remove(0);
                    bench.end(&first, Cause::Socket);
                }
            }
            (1, _) => bench.pass(u64::from(choices.byte() % 16)),
            (2, _) => bench.answer(choices.flag()),
            (3, _) => restart(&mut bench, &config),
            (4, _) => {
                // Full is an answer too.
                let _ = bench.router.publish(
                    bench.now,
                    FromGateway {
                        topic: choices.of(&TOPICS).into(),
                        payload: Bytes::from(vec![0; usize::from(choices.byte())]),
                        qos: choices.qos(),
                        retain: choices.flag(),
                        on_written: None,
                    },
                );
            }
            (5, Some(client)) => {
                let cause = [
                    Cause::Client,
                    Cause::ClientWithWill,
                    Cause::Socket,
                    Cause::KeepAlive,
                ];
                let cause = client.link.stopped().unwrap_or(choices.of(&cause));
                bench.end(&client, cause);
            }
            (6 | 7, Some(client)) => {
                let (mut control, mut out) = (Vec::new(), Vec::new());
                let budget = usize::from(choices.byte()) * 64;
                bench
                    .router
                    .take(bench.now, client.key, budget, &mut control, &mut out);
                client.link.drain_acks(client.version, &mut control);
            }
            (8, Some(client)) => {
                let raw = choices.bytes();
                if let Ok(Some(found)) = frame(raw, 1 << 10)
                    && let Some(body) = raw.get(found.header..found.total)
                    && let Ok(packet) = decode(client.version, found.first, body, None)
                {
                    let _ = bench.send(&client, packet);
                }
            }
            (_, Some(client)) => {
                let packet = choices.packet();
                let _ = bench.send(&client, packet);
            }
            (_, None) => {}
        }
        check(&bench.router);
    }
    finish(&mut bench, &clients);
}

/// What is written of the state reads back as the same state.
fn restart(bench: &mut Bench, config: &Config) {
    let written = bench.router.snapshot().encode();
    let (records, lost) = decode_all(&Bytes::from(written));
    assert_eq!(lost, 0, "bytes of the state file that do not read back");
    let mut fresh = Bench::with(&["tap/#"], config);
    fresh.router.restore(records, Moment::present());
    let persistent = bench
        .router
        .sessions
        .iter()
        .flatten()
        .filter(|s| s.is_persistent());
    assert_eq!(
        fresh.router.by_client.len(),
        persistent.count(),
        "sessions over a restart"
    );
    assert_eq!(
        fresh.router.retained.len(),
        bench.router.retained.len(),
        "retained over a restart"
    );
    let clients: Vec<Arc<str>> = fresh.router.by_client.keys().cloned().collect();
    for client in clients {
        assert_eq!(
            owed(&mut fresh.router, &client),
            owed(&mut bench.router, &client),
            "messages of {client} over a restart"
        );
    }
    check(&fresh.router);
    let mut changes = Vec::new();
    bench.router.encode_changes(&mut changes);
    assert_eq!(decode_all(&Bytes::from(changes)).1, 0, "changes read back");
}

/// What a session owes its client at QoS 1 and 2.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Owed {
    /// Packet ids and payloads; without one where only PUBREL is left.
    pub(super) inflight: Vec<(u16, Option<Bytes>)>,
    pub(super) queued: Vec<Bytes>,
}

/// See [`Owed`]; nothing for a session that is not there.
pub(super) fn owed(router: &mut Router, client: &str) -> Owed {
    let index = router.by_client.get(client).copied();
    let Some(session) = index.and_then(|index| router.session_mut(index)) else {
        return Owed::default();
    };
    // A copy, so that nothing counts as saved that is not.
    let (messages, progress) = session.outbound.clone().whole();
    let payload = |order: u64| {
        let (_, item) = messages.iter().find(|(at, _)| *at == order)?;
        Some(item.message.payload.clone())
    };
    let inflight = progress.inflight.iter();
    let queued = messages.iter().filter(|(at, _)| *at >= progress.head);
    Owed {
        inflight: inflight
            .map(|(pid, _, order)| (*pid, order.and_then(payload)))
            .collect(),
        queued: queued
            .map(|(_, item)| item.message.payload.clone())
            .collect(),
    }
}

/// Whatever happened, everything ends, nothing is left behind, and the broker serves the next client.
fn finish(bench: &mut Bench, clients: &[Client]) {
    for client in clients {
        bench.end(client, Cause::Socket);
    }
    bench.answer(true);
    for _ in 0..3 {
        bench.pass(8 * 24 * 3600);
    }
    let next = bench.router.poll_timeout();
    assert!(
        next.is_none_or(|at| at > bench.now),
        "a timer that is due for ever"
    );
    assert_eq!(
        bench.router.by_client.len(),
        0,
        "sessions that should have ended"
    );
    assert_eq!(bench.router.queued_bytes, 0);
    for topic in TOPICS {
        let found = bench.router.subscriptions.find(topic);
        assert!(
            found.hits.is_empty() && found.groups.is_empty(),
            "subscription left at {topic}"
        );
    }
    let (sub, publisher) = (bench.connect(connect("sub")), bench.connect(connect("pub")));
    bench.subscribe(&sub, "alive", Qos::AtLeastOnce);
    bench.take(&sub);
    bench.publish(&publisher, "alive", "x", Qos::AtLeastOnce, 1, false);
    assert_eq!(bench.take(&sub).len(), 1, "publish to receive");
}
