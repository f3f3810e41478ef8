//! The journal with its thread, on a real folder.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{alarm, data, small};
use crate::buffer::record::Lane;
use crate::buffer::{Config, DiskStorage, Journal, Recovery, StorageError};

fn open(dir: &std::path::Path, config: Config) -> (Journal, Recovery) {
    let storage = DiskStorage::open(dir).expect("a folder");
    Journal::open(Arc::new(storage), config).expect("always starts")
}

/// On a machine that is busy with everything else.
const PATIENCE: Duration = Duration::from_secs(180);

fn wait_for(what: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !what() {
        assert!(Instant::now() < deadline, "it never came");
        // Others may have but this core to do it.
        std::thread::park_timeout(Duration::from_micros(200));
    }
}

fn quick() -> Config {
    Config {
        sync_ms: 5,
        warm_max_bytes: 8 << 20,
        segment_bytes: 64 << 10,
        ..small()
    }
}

#[test]
fn group_is_synced_by_itself() {
    let dir = tempfile::tempdir().expect("a folder");
    let (journal, _) = open(dir.path(), quick());
    let id = journal.append(data(1)).expect("room").id;
    wait_for(|| journal.durable_id() == id);
}

#[test]
fn waiting_acknowledgement_starts_the_sync() {
    let dir = tempfile::tempdir().expect("a folder");
    let (journal, _) = open(
        dir.path(),
        Config {
            sync_ms: 3_600_000,
            ..quick()
        },
    );
    let id = journal.append(data(1)).expect("room").id;
    journal.want_sync();
    wait_for(|| journal.durable_id() == id);
    let id = journal.append(alarm(2)).expect("room").id;
    wait_for(|| journal.durable_id() == id);
}

#[test]
fn writers_readers_and_acks_at_once_keep_the_account() {
    let dir = tempfile::tempdir().expect("a folder");
    let (journal, _) = open(dir.path(), quick());
    let writers: Vec<_> = (0..3)
        .map(|_| {
            let journal = journal.clone();
            std::thread::spawn(move || {
                for n in 0..2000 {
                    let record = if n % 50 == 0 { alarm(n) } else { data(n) };
                    while journal.append(record.clone()).is_err() {
                        std::thread::yield_now();
                    }
                    if n % 7 == 0 {
                        journal.want_sync();
                    }
                }
            })
        })
        .collect();
    let reader = |lane: Lane, total: usize| {
        let journal = journal.clone();
        std::thread::spawn(move || {
            let mut ids = BTreeSet::new();
            let mut after = 0;
            let deadline = Instant::now() + PATIENCE;
            while ids.len() < total {
                assert!(Instant::now() < deadline);
                let records = journal
                    .read_durable(lane, after, 64, 1 << 20)
                    .expect("readable");
                for record in &records {
                    assert_eq!(record.prev, after);
                    after = record.id;
                    assert!(ids.insert(record.id));
                }
                journal.ack(lane, after);
                assert!(journal.counts().balanced());
                if records.is_empty() {
                    std::thread::yield_now();
                }
            }
        })
    };
    let readers = [reader(Lane::Data, 3 * 1960), reader(Lane::Alarms, 3 * 40)];
    let done = || {
        writers.iter().all(|writer| writer.is_finished())
            && readers.iter().all(|reader| reader.is_finished())
    };
    let now = std::cell::Cell::new(0);
    wait_for(|| {
        now.set(now.get() + 1);
        journal.tick(now.get(), true);
        done()
    });
    for thread in writers.into_iter().chain(readers) {
        thread.join().expect("no failed assertion");
    }
    let counts = journal.counts();
    assert_eq!((counts.pending, counts.published), (0, 6000));
    journal.close(PATIENCE).expect("a clean end");
    drop(journal);
    let (journal, recovery) = open(dir.path(), quick());
    assert!(recovery.clean);
    assert_eq!(journal.counts(), counts);
}

#[test]
fn closed_journal_takes_nothing_and_dropping_it_frees_the_folder() {
    let dir = tempfile::tempdir().expect("a folder");
    let (journal, first) = open(dir.path(), quick());
    journal.append(data(1)).expect("room");
    assert!(matches!(
        DiskStorage::open(dir.path()),
        Err(StorageError::InUse { .. })
    ));
    journal.close(PATIENCE).expect("a clean end");
    assert!(journal.append(data(2)).is_err());
    assert_eq!(journal.durable_id(), 1);
    drop(journal);
    wait_for(|| DiskStorage::open(dir.path()).is_ok());
    let (journal, again) = open(dir.path(), quick());
    assert_eq!((again.last_id, again.epoch), (1, first.epoch));
    assert_eq!(
        journal
            .read(Lane::Data, 0, 10, 1000)
            .expect("readable")
            .len(),
        1
    );
}
