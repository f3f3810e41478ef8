//! The power goes: whatever was promised before is there afterwards, and whatever is there starts.
//!
//! One story leaves the journal's fdatasync out and must lose something: without it the others would prove nothing.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::Value;
use sparkgate::buffer::record::{Class, Key, NewRecord, Origin};
use sparkgate::buffer::storage::Entry;
use sparkgate::buffer::{Config, DiskStorage, Journal, Storage, StorageFile};
use sparkgate::state::{self, Batch, StateStore};

use crate::harness::gateway::Gateway;
use crate::harness::mqtt::{Client, Node, Packet};
use crate::harness::powercut::{PowerCut, rounds};
use crate::harness::until;

/// Promises made before the power goes, in round `round`.
fn promised(round: usize) -> u64 {
    200 + 137 * (round as u64 % 7)
}

fn record(n: u64) -> NewRecord {
    let alarm = n.is_multiple_of(50);
    NewRecord::new(
        if alarm { Class::Alarm } else { Class::Data },
        if alarm {
            Origin::Derived
        } else {
            Origin::Received
        },
        n,
        1_700_000_000_000 + n,
        Key::device("g", "n", "d"),
        format!("{n} {}", "x".repeat(200)),
    )
}

/// Small segments, so that some are sealed and made in each round.
fn config() -> Config {
    Config {
        segment_bytes: 64 << 10,
        warm_max_bytes: 32 << 20,
        sync_ms: 5,
        reserve_bytes: 1 << 20,
        min_free_bytes: 1 << 20,
        ..Config::default()
    }
}

/// Appends until the power is gone; returns what was durable before.
fn journal_until_cut(disk: &PowerCut, storage: Arc<dyn Storage>, least: u64) -> u64 {
    let (journal, _) = Journal::open(storage, config()).expect("a new journal");
    let mut n = 0;
    loop {
        n += 1;
        if journal.append(record(n)).is_err() {
            until("there is room again", 60, || {
                journal.append(record(n)).ok().map(|_| ())
            });
        }
        if n.is_multiple_of(7) {
            journal.want_sync();
        }
        if n.is_multiple_of(400) {
            // The disk may be slow: no further ahead of it than a few segments.
            until("the disk keeps up", 60, || {
                (journal.durable_id() + 400 > n || journal.durable_id() >= least).then_some(())
            });
        }
        let durable = journal.durable_id();
        if durable >= least {
            disk.cut();
            return durable;
        }
    }
}

/// Whether everything up to `durable` is there, as it was.
fn journal_is_whole(folder: &Path, durable: u64) -> bool {
    let storage = DiskStorage::open(folder).expect("the folder");
    let (journal, recovery) = Journal::open(Arc::new(storage), config()).expect("it always starts");
    assert!(journal.counts().balanced());
    let mut found = 0;
    for stored in journal.replay(0) {
        let stored = stored.expect("readable");
        if stored.id > durable {
            continue;
        }
        if stored.data != record(stored.id) {
            eprintln!("record {} is another: {stored:?}", stored.id);
            return false;
        }
        found += 1;
    }
    if found != durable {
        eprintln!("{found} of {durable} durable records are there: {recovery:?}");
    }
    found == durable
}

#[test]
fn journal_keeps_what_was_durable() {
    for round in 0..rounds(3) {
        let Some(mut disk) = PowerCut::new(64) else {
            return;
        };
        let folder = disk.path().join("journal");
        let storage = Arc::new(DiskStorage::open(&folder).expect("a folder"));
        let durable = journal_until_cut(&disk, storage, promised(round));
        disk.remount();
        assert!(journal_is_whole(&folder, durable), "round {round}");
    }
}

/// A disk whose fsync does nothing.
struct Careless(DiskStorage);
struct CarelessFile(Arc<dyn StorageFile>);

impl StorageFile for CarelessFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, bytes)
    }
    fn truncate(&self, len: u64) -> io::Result<()> {
        self.0.truncate(len)
    }
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
}

impl Storage for Careless {
    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn StorageFile>> {
        Ok(Arc::new(CarelessFile(self.0.create(name, len)?)))
    }
    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        Ok(Arc::new(CarelessFile(self.0.open(name)?)))
    }
    fn list(&self) -> io::Result<Vec<Entry>> {
        self.0.list()
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }
    fn rename(&self, name: &str, to: &str) -> io::Result<()> {
        self.0.rename(name, to)
    }
    fn quarantine(&self, name: &str) -> io::Result<String> {
        self.0.quarantine(name)
    }
    fn sync_dir(&self) -> io::Result<()> {
        self.0.sync_dir()
    }
    fn free_space(&self) -> io::Result<u64> {
        self.0.free_space()
    }
}

#[test]
fn journal_without_fdatasync_loses_what_it_called_durable() {
    let Some(mut disk) = PowerCut::new(64) else {
        return;
    };
    let folder = disk.path().join("journal");
    let storage = Arc::new(Careless(DiskStorage::open(&folder).expect("a folder")));
    let durable = journal_until_cut(&disk, storage, promised(0));
    disk.remount();
    assert!(
        !journal_is_whole(&folder, durable),
        "the power cut is no power cut: nothing was synced, and nothing is lost"
    );
}

fn state_options() -> state::Options {
    state::Options {
        ballast_bytes: 1 << 20,
        ..state::Options::default()
    }
}

/// Keys that each commit writes.
const KEYS: u64 = 50;

fn commit(n: u64) -> Batch {
    let mut batch = Batch::default();
    for key in 0..KEYS {
        // Small ones: large values lie in files of their own, whose sync would take the rest along.
        let mut value = n.to_le_bytes().to_vec();
        value.resize(300, n as u8);
        batch.put(format!("key {key}"), value);
    }
    batch
}

/// Commits until the power is gone; returns the last commit that was promised.
fn state_until_cut(disk: &PowerCut, folder: &Path, least: u64) -> u64 {
    let store = state::open(folder, state_options()).expect("a new store");
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let promised = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0;
            while !stop.load(Ordering::Acquire) {
                n += 1;
                if store.commit(&commit(n)).is_err() {
                    break;
                }
                done.store(n, Ordering::Release);
            }
        });
        until("enough is committed", 60, || {
            (done.load(Ordering::Acquire) >= least).then_some(())
        });
        let promised = done.load(Ordering::Acquire);
        disk.cut();
        stop.store(true, Ordering::Release);
        promised
    });
    // The database writes once more when it is dropped, and panics where it can't.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(store)));
    promised
}

/// Whether the newest commit that was promised is there, or a later one, and that one whole.
fn state_is_whole(folder: &Path, promised: u64) -> bool {
    let store = state::open(folder, state_options()).expect("it always starts");
    if !matches!(store.source, state::Source::Database) {
        return false;
    }
    let found: Vec<u64> = (0..KEYS)
        .filter_map(|key| {
            store
                .get(format!("key {key}").as_bytes())
                .expect("readable")
        })
        .filter_map(|value| Some(u64::from_le_bytes(value.get(..8)?.try_into().ok()?)))
        .collect();
    found.len() as u64 == KEYS
        && found.iter().all(|n| Some(n) == found.first())
        && found.first().is_some_and(|n| *n >= promised)
}

#[test]
fn state_keeps_what_was_committed() {
    for round in 0..rounds(3) {
        let Some(mut disk) = PowerCut::new(64) else {
            return;
        };
        let folder = disk.path().join("state");
        let least = 5 + 3 * (round as u64 % 5);
        let promised = state_until_cut(&disk, &folder, least);
        disk.remount();
        assert!(state_is_whole(&folder, promised), "round {round}");
    }
}

/// The whole gateway: every message that was acknowledged to its publisher is in the journal, and what the host
/// knows is not older.
#[test]
fn gateway_keeps_what_it_acknowledged() {
    for round in 0..rounds(2) {
        let Some(mut disk) = PowerCut::new(160) else {
            return;
        };
        let mut gateway = Gateway::builder()
            .data_dir(&disk.path().join("data"))
            .config("[buffer]\nwarm = { max = \"64MiB\", segment = \"1MiB\" }\n")
            .start();
        let mut node = Node::birth(gateway.mqtt, "g", "n", "d");
        let mut acked = 0;
        while acked < promised(round) {
            let (bytes, id) = node.count_bytes(acked + 1, 1);
            node.client.send(&bytes);
            loop {
                match node.client.read() {
                    Some(Packet::Puback(got)) if got == id => break,
                    Some(_) => {}
                    None => panic!("no PUBACK for {}", acked + 1),
                }
            }
            acked += 1;
        }
        disk.cut();
        gateway.kill();
        disk.remount();
        gateway.restart();
        gateway.check_identity();
        let (code, out, errors) = gateway.tool(&["buffer", "export"]);
        assert_eq!(code, 0, "{errors}");
        let mut counted: Vec<u64> = out
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("JSON"))
            .filter(|line| line["class"] == "data")
            .flat_map(|line| {
                line["body"]["metrics"]
                    .as_array()
                    .cloned()
                    .unwrap_or_default()
            })
            .filter_map(|metric| metric["value"].as_u64())
            .collect();
        counted.sort_unstable();
        counted.dedup();
        assert_eq!(counted, (1..=acked).collect::<Vec<_>>(), "round {round}");
        let device = gateway.json("/api/devices/g/n/d");
        let known = device["metrics"]
            .as_array()
            .expect("metrics")
            .iter()
            .find_map(|metric| metric["value"].as_u64());
        assert_eq!(known, Some(acked), "round {round}: {device:#}");
        gateway.kill();
    }
}

fn acknowledged(client: &mut Client, topic: &str, payload: &[u8], retain: bool) {
    let (mut bytes, id) = client.publish_bytes(topic, payload, 1);
    bytes[0] |= u8::from(retain);
    client.send(&bytes);
    assert_eq!(client.read(), Some(Packet::Puback(id)));
}

/// The broker's own state: retained messages and the queue of an absent client are there, as far as they were synced.
/// The writer syncs what it wrote before it writes more, so that what lies before a mark is durable once the file shows
/// a second mark, sent after the first was seen there.
#[test]
fn broker_keeps_retained_messages_and_queues() {
    let work = |n: u64| format!("work {n}").into_bytes();
    for round in 0..rounds(2) {
        let Some(mut disk) = PowerCut::new(160) else {
            return;
        };
        let data = disk.path().join("data");
        let mut gateway = Gateway::builder()
            .data_dir(&data)
            .config("[buffer]\nwarm = { max = \"64MiB\", segment = \"1MiB\" }\n")
            .start();
        let kept = b"\0\x04MQTT\x04\0\0\0\0\x04away";
        let mut away = Client::raw(gateway.mqtt, kept);
        away.subscribe("work", 1);
        away.send(&[0xE0, 0]);
        assert_eq!(away.read(), None);
        let mut publisher = Client::connect(gateway.mqtt, "p", None);
        let count = promised(round);
        for n in 0..count {
            acknowledged(&mut publisher, "work", &work(n), false);
            let topic = format!("kept/{}", n % 100);
            acknowledged(&mut publisher, &topic, &work(n), true);
        }
        acknowledged(&mut publisher, "kept/0", b"", true);
        for mark in ["the first mark", "the second mark"] {
            acknowledged(&mut publisher, "mark", mark.as_bytes(), true);
            until(mark, 60, || {
                let file = std::fs::read(data.join("mqtt/state.log")).ok()?;
                file.windows(mark.len())
                    .any(|it| it == mark.as_bytes())
                    .then_some(())
            });
        }
        disk.cut();
        gateway.kill();
        disk.remount();
        gateway.restart();
        let mut away = Client::raw(gateway.mqtt, kept);
        for n in 0..count {
            let expected = Packet::Publish {
                topic: "work".to_owned(),
                payload: work(n),
            };
            assert_eq!(away.read(), Some(expected), "round {round}");
            let id = u16::try_from(n + 1).unwrap().to_be_bytes();
            away.send(&[0x40, 2, id[0], id[1]]);
        }
        let mut late = Client::connect(gateway.mqtt, "late", None);
        for n in (0..100).rev() {
            late.subscribe(&format!("kept/{n}"), 1);
            if n == 0 {
                late.subscribe("mark", 1);
            }
            let last = (0..count).rev().find(|it| it % 100 == n).unwrap();
            let (topic, payload) = match n {
                0 => ("mark".to_owned(), b"the second mark".to_vec()),
                _ => (format!("kept/{n}"), work(last)),
            };
            let Some(Packet::Publish {
                topic: got,
                payload: bytes,
            }) = late.read()
            else {
                panic!("round {round}: nothing retained at {topic}");
            };
            // The second mark may be on its way still: the first one is enough.
            assert_eq!(got, topic);
            assert!(
                bytes == payload || bytes == b"the first mark",
                "round {round}"
            );
        }
        gateway.kill();
    }
}
