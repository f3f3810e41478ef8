//! The journal as a queue: a day of records passes through, and the folder stays as small as what is pending.
//!
//! A day at 100 records a second: `SPARKGATE_FIFO=8640000`.

use std::path::Path;
use std::sync::Arc;

use sparkgate::buffer::record::{Class, Key, Lane, NewRecord, Origin};
use sparkgate::buffer::{Config, DiskStorage, Journal};

use crate::harness::fleet::setting;
use crate::harness::until;

/// Records that wait at any time, at most.
const PENDING: u64 = 50;
/// Bytes of a record's body.
const BODY: usize = 1_000;

fn record(n: u64) -> NewRecord {
    let mut body = n.to_string().into_bytes();
    body.resize(BODY, b'.');
    NewRecord::new(
        Class::Data,
        Origin::Received,
        n,
        1_700_000_000_000 + n,
        Key::device("g", "n", "d"),
        body,
    )
}

/// Bytes that the files of a folder take.
fn size_of(folder: &Path) -> u64 {
    std::fs::read_dir(folder)
        .expect("a folder")
        // A file may go while it is looked at.
        .filter_map(|entry| entry.ok()?.metadata().ok())
        .filter(std::fs::Metadata::is_file)
        .map(|file| file.len())
        .sum()
}

#[test]
fn a_queue_takes_no_more_room_than_what_is_pending() {
    let records = setting("SPARKGATE_FIFO", 20_000);
    let folder = tempfile::tempdir().expect("a folder");
    let config = Config {
        segment_bytes: 1 << 20,
        warm_ttl_ms: 0,
        keep_acked_ms: 0,
        hot_ttl_ms: 0,
        hot_max_bytes: 0,
        ..Config::default()
    };
    let storage = DiskStorage::open(folder.path()).expect("a folder");
    let (journal, _) = Journal::open(Arc::new(storage), config.clone()).expect("a new journal");
    // What is there apart from segments: ledger, reserve, lock.
    let fixed = size_of(folder.path());
    let limit = fixed + PENDING * (BODY as u64 + 100) + 2 * config.segment_bytes;
    let (mut read, mut largest) = (0, 0);
    while read < records {
        for n in read + 1..=(read + PENDING).min(records) {
            journal.append(record(n)).expect("room");
        }
        journal.want_sync();
        let last = journal.last_id(Lane::Data);
        until("the records are durable", 120, || {
            (journal.durable_in(Lane::Data) >= last).then_some(())
        });
        while read < last {
            let some = journal
                .read_durable(Lane::Data, read, 16, 1 << 20)
                .expect("readable");
            for found in &some {
                assert_eq!(found.data, record(found.id));
                read += 1;
                assert_eq!(found.id, read, "in order");
            }
        }
        assert!(journal.counts().pending <= PENDING);
        journal.ack(Lane::Data, read);
        if read.is_multiple_of(10 * PENDING) || read == records {
            journal.tick(read, true);
            until("what was delivered has left the folder", 60, || {
                let size = size_of(folder.path());
                (size <= limit).then(|| largest = largest.max(size))
            });
        }
    }
    let counts = journal.counts();
    assert_eq!(
        (counts.received, counts.published, counts.pending),
        (records, records, 0)
    );
    let stat = journal.stat();
    eprintln!(
        "{records} records, {} bytes written per byte, folder at most {largest} bytes (limit {limit})",
        stat.bytes_written as f64 / stat.bytes_in as f64
    );
}
