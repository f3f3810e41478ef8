//! Tests of the journal. `Rig` runs it without a thread on storage in memory, so that each round of the
//! writer, each crash and each fault happens exactly where a test puts it.

mod codec;
mod faults;
mod model;
mod policy;
mod reading;
mod shapes;
mod threads;
mod tools;

use std::sync::Arc;

use bytes::Bytes;

use crate::buffer::crash::CrashStorage;
use crate::buffer::record::{Class, Key, Lane, NewRecord, Origin, Record, RecordId};
use crate::buffer::writer::Writer;
use crate::buffer::{Config, Journal, Recovery};

/// A record of `class` with `body`, at `ms` of both clocks.
pub(super) fn record(class: Class, body: &[u8], ms: u64) -> NewRecord {
    NewRecord::new(
        class,
        if class == Class::Data {
            Origin::Received
        } else {
            Origin::Derived
        },
        ms,
        1_700_000_000_000 + ms,
        Key::device("plant", "line", "press"),
        Bytes::copy_from_slice(body),
    )
}

pub(super) fn data(n: u64) -> NewRecord {
    record(Class::Data, format!("data {n}").as_bytes(), n)
}

pub(super) fn alarm(n: u64) -> NewRecord {
    record(Class::Alarm, format!("alarm {n}").as_bytes(), n)
}

/// Small limits: a few records a segment.
pub(super) fn small() -> Config {
    Config {
        hot_ttl_ms: 1000,
        hot_max_bytes: 4 << 10,
        warm_ttl_ms: 0,
        warm_max_bytes: 64 << 10,
        sync_ms: 3_600_000,
        segment_bytes: 2 << 10,
        keep_acked_ms: 0,
        ledger_ms: 0,
        reserve_bytes: 0,
        min_free_bytes: 0,
        unwritten_max_bytes: 1 << 20,
    }
}

/// A journal that is stepped by hand.
pub(super) struct Rig {
    pub(super) journal: Journal,
    pub(super) writer: Writer,
    pub(super) recovery: Recovery,
    pub(super) disk: CrashStorage,
    pub(super) config: Config,
}

impl Rig {
    pub(super) fn new(config: Config) -> Self {
        Self::open(CrashStorage::new(), config)
    }

    pub(super) fn open(disk: CrashStorage, config: Config) -> Self {
        let storage = Arc::new(disk.clone());
        let (journal, writer, recovery) =
            Journal::open_stepped(storage, config.clone()).expect("always starts");
        let rig = Self {
            journal,
            writer,
            recovery,
            disk,
            config,
        };
        rig.check();
        rig
    }

    /// The identity holds at any moment.
    pub(super) fn check(&self) {
        let counts = self.journal.counts();
        assert!(counts.balanced(), "{counts:?}");
    }

    pub(super) fn append(&self, record: NewRecord) -> RecordId {
        let id = self.journal.append(record).expect("room").id;
        self.check();
        id
    }

    /// A round with fsync.
    pub(super) fn sync(&mut self) {
        self.journal.want_sync();
        self.writer.round(false).expect("a healthy disk");
        self.check();
    }

    pub(super) fn append_synced(
        &mut self,
        records: impl IntoIterator<Item = NewRecord>,
    ) -> Vec<RecordId> {
        let ids = records
            .into_iter()
            .map(|record| self.append(record))
            .collect();
        self.sync();
        ids
    }

    pub(super) fn tick(&mut self, now_ms: u64) {
        self.journal.tick(now_ms, true);
        self.writer.round(false).expect("a healthy disk");
        self.check();
    }

    pub(super) fn close(mut self) -> CrashStorage {
        self.writer.round(true).expect("a healthy disk");
        self.disk
    }

    /// Power cut without any luck: only what was synced is left.
    pub(super) fn power_cut(self) -> Self {
        let disk = self.disk.crash(|_| false);
        Self::open(disk, self.config)
    }

    pub(super) fn kill(self) -> Self {
        let disk = self.disk.kill();
        Self::open(disk, self.config)
    }

    pub(super) fn read_all(&self, lane: Lane) -> Vec<Arc<Record>> {
        let mut after = 0;
        let mut all = Vec::new();
        loop {
            let some = self
                .journal
                .read(lane, after, 7, 1 << 20)
                .expect("readable");
            let Some(last) = some.last() else { return all };
            after = last.id;
            all.extend(some);
        }
    }

    pub(super) fn bodies(&self, lane: Lane) -> Vec<String> {
        self.read_all(lane)
            .iter()
            .map(|record| text(record))
            .collect()
    }

    /// Names of segments of `lane`.
    pub(super) fn segments(&self, lane: &str) -> Vec<String> {
        self.disk
            .files()
            .into_keys()
            .filter(|name| name.starts_with(lane))
            .collect()
    }
}

pub(super) fn text(record: &Record) -> String {
    String::from_utf8_lossy(&record.data.body).into_owned()
}

/// The chain of `prev` is whole: the stream proves its own completeness.
pub(super) fn assert_chained(records: &[Arc<Record>]) {
    for pair in records.windows(2) {
        let [before, after] = pair else { continue };
        assert_eq!(after.prev, before.id, "{after:?}");
        assert!(after.id > before.id);
    }
}

/// The body of a `gap` record.
pub(super) fn gap(record: &Record) -> serde_json::Value {
    assert_eq!(record.data.class, Class::Gap);
    serde_json::from_slice(&record.data.body).expect("JSON")
}
