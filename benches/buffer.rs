//! The journal against plain files, in one run:
//!
//! - append of 300-byte records with 50 ms group commit, against `writev` and `fdatasync` of the same bytes;
//! - a cursor's reads from disk, against a plain read of the same files;
//! - bytes written per byte of body;
//! - Parquet: rows a second into a folder, verified, and bytes a row, against JSON of the same rows;
//! - the start after a kill, by backlog: it should not grow.
//!
//! `cargo bench --bench buffer`; `SPARKGATE_BENCH_MIB` sets how much is written, `SPARKGATE_BENCH_DIR` where.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::fs::fdatasync;
use sparkgate::buffer::record::{Class, Key, Lane, NewRecord, Origin};
use sparkgate::buffer::{AppendError, Config, DiskStorage, Journal};

const BODY: usize = 300;
const GROUP: Duration = Duration::from_millis(50);
const ROUNDS: usize = 3;

fn mib() -> u64 {
    std::env::var("SPARKGATE_BENCH_MIB").map_or(256, |text| text.parse().expect("a number"))
}

fn folder() -> tempfile::TempDir {
    match std::env::var_os("SPARKGATE_BENCH_DIR") {
        Some(place) => tempfile::tempdir_in(place),
        None => tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")),
    }
    .expect("a folder")
}

fn record(n: u64, body: &Bytes) -> NewRecord {
    NewRecord {
        seq: Some((n % 256) as u8),
        ..NewRecord::new(
            Class::Data,
            Origin::Received,
            n,
            1_700_000_000_000 + n,
            Key::device("plant", "line-1", "press-7"),
            body.clone(),
        )
    }
}

fn config() -> Config {
    Config {
        sync_ms: GROUP.as_millis() as u64,
        warm_max_bytes: 64 << 30,
        ..Config::default()
    }
}

fn open(folder: &Path, config: Config) -> Journal {
    let storage = DiskStorage::open(folder).expect("a folder");
    Journal::open(Arc::new(storage), config)
        .expect("a journal")
        .0
}

fn append_all(journal: &Journal, records: u64, mut make: impl FnMut(u64) -> NewRecord) {
    for n in 1..=records {
        let mut record = Box::new(make(n));
        loop {
            match journal.append(*record) {
                Ok(_) => break,
                // The disk is behind: as a broker does, it is waited for.
                Err(AppendError::Full(back)) => {
                    record = back;
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(AppendError::Stopped) => panic!("the journal has stopped"),
            }
        }
    }
    let last = journal.last_id(Lane::Data);
    while journal.durable_id() < last {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Records a second, and bytes written per byte of body.
fn journal_appends(folder: &Path, records: u64, body: &Bytes) -> (f64, f64) {
    let journal = open(folder, config());
    let began = Instant::now();
    append_all(&journal, records, |n| record(n, body));
    let rate = records as f64 / began.elapsed().as_secs_f64();
    let stat = journal.stat();
    journal.close(Duration::from_secs(60)).expect("an end");
    (rate, stat.bytes_written as f64 / stat.bytes_in as f64)
}

/// Records a second of a file that is written in vectors and synced every 50 ms.
fn plain_appends(folder: &Path, records: u64, body: &Bytes) -> f64 {
    let mut file = File::create(folder.join("plain")).expect("a file");
    let vector: Vec<IoSlice<'_>> = (0..512).map(|_| IoSlice::new(body)).collect();
    let (began, mut synced, mut left) = (Instant::now(), Instant::now(), records as usize);
    while left > 0 {
        let some = left.min(vector.len());
        let mut slices = vector[..some].to_vec();
        let mut slices = slices.as_mut_slice();
        while !slices.is_empty() {
            let written = file.write_vectored(slices).expect("room");
            IoSlice::advance_slices(&mut slices, written);
        }
        left -= some;
        if synced.elapsed() >= GROUP || left == 0 {
            fdatasync(&file).expect("synced");
            synced = Instant::now();
        }
    }
    records as f64 / began.elapsed().as_secs_f64()
}

fn segments(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "seg"))
        .collect();
    paths.sort();
    paths
}

/// MB of bodies a second through a cursor, from disk alone.
fn cursor_reads(folder: &Path) -> f64 {
    let cold = Config {
        hot_max_bytes: 0,
        hot_ttl_ms: 0,
        ..config()
    };
    let journal = open(folder, cold);
    let (began, mut after, mut bytes) = (Instant::now(), 0, 0u64);
    loop {
        let some = journal
            .read(Lane::Data, after, 1024, 1 << 20)
            .expect("readable");
        let Some(last) = some.last() else { break };
        after = last.id;
        bytes += some
            .iter()
            .map(|record| record.body.len() as u64)
            .sum::<u64>();
    }
    bytes as f64 / 1e6 / began.elapsed().as_secs_f64()
}

/// MB of bodies a second if the same files are only read.
fn plain_reads(folder: &Path, bodies: u64) -> f64 {
    let mut buffer = vec![0; 256 << 10];
    let began = Instant::now();
    for path in segments(folder) {
        let mut file = File::open(path).expect("a file");
        while file.read(&mut buffer).expect("readable") > 0 {}
    }
    bodies as f64 / 1e6 / began.elapsed().as_secs_f64()
}

fn best(measured: impl IntoIterator<Item = f64>) -> f64 {
    measured.into_iter().fold(0.0, f64::max)
}

#[cfg(feature = "cold")]
fn parquet() {
    use sparkgate::buffer::cold;
    use sparkplug::datatype::DataType;
    use sparkplug::metric::Metric;
    use sparkplug::value::Value;

    const METRICS: u64 = 20;
    let (home, store) = (folder(), folder());
    let records = mib() * 1024;
    let payload = |n: u64| {
        let metrics: Vec<Metric> = (0..METRICS)
            .map(|m| {
                let value = 20.0 + ((n * 7 + m * 13) % 1000) as f64 / 10.0;
                Metric::new(
                    format!("Sensor/{m}"),
                    DataType::Double,
                    Value::Double(value),
                )
                .at(1_700_000_000_000 + n)
            })
            .collect();
        let sent = Some(1_700_000_000_000 + n);
        Bytes::from(sparkplug::payload::encode_resolved(
            sent,
            Some((n % 256) as u8),
            None,
            &metrics,
        ))
    };
    let journal = open(home.path(), config());
    append_all(&journal, records, |n| record(n, &payload(n)));
    journal.close(Duration::from_secs(60)).expect("an end");
    drop(journal);
    let journal = open(home.path(), config());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let config: cold::Config =
        toml::from_str(&format!("url = \"file://{}\"", store.path().display())).expect("a store");
    let began = Instant::now();
    cold::start(&journal, &config, "bench", runtime.handle().clone()).expect("a store");
    let told = loop {
        let told = journal.stat().cold.expect("a cold tier");
        if told.waiting == 0 && told.objects > 0 {
            break told;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let (rows, elapsed) = (records * METRICS, began.elapsed().as_secs_f64());
    let json =
        r#"{"name":"Sensor/7","type":"Double","value":57.3,"timestamp":1700000000000}"#.len();
    println!(
        "parquet: {:.0} rows/s archived and verified, {:.1} bytes a row; JSON of a row takes {json} bytes: {:.0}x",
        rows as f64 / elapsed,
        told.bytes as f64 / rows as f64,
        json as f64 * rows as f64 / told.bytes as f64
    );
    journal.close(Duration::from_secs(60)).expect("an end");
}

/// Opening after a kill: the last segment unsealed, the ledger as it was then.
fn recovery(body: &Bytes) {
    let sizes = [mib() / 4, mib(), mib() * 4];
    let mut first = None;
    for size in sizes {
        let home = folder();
        let journal = open(home.path(), config());
        append_all(&journal, (size << 20) / BODY as u64, |n| record(n, body));
        let open_segment = segments(home.path()).pop().expect("a segment");
        let files = [open_segment, home.path().join("ledger")];
        let images = files
            .clone()
            .map(|path| std::fs::read(path).expect("a file"));
        journal.close(Duration::from_secs(60)).expect("an end");
        drop(journal);
        let best = (0..ROUNDS)
            .map(|_| {
                for (path, image) in files.iter().zip(&images) {
                    std::fs::write(path, image).expect("room");
                }
                let began = Instant::now();
                let journal = open(home.path(), config());
                let took = began.elapsed().as_secs_f64();
                journal.close(Duration::from_secs(60)).expect("an end");
                took
            })
            .fold(f64::MAX, f64::min);
        let ratio = best / *first.get_or_insert(best);
        println!(
            "recovery: {:.1} ms with {size} MiB of backlog ({ratio:.2}x)",
            best * 1e3
        );
    }
}

fn main() {
    let body = Bytes::from((0..BODY).map(|n| ((n * 31) >> 3) as u8).collect::<Vec<_>>());
    let records = (mib() << 20) / BODY as u64;
    let (mut ours, mut plain, mut written) = (0.0f64, 0.0f64, 0.0);
    let mut kept = folder();
    for _ in 0..ROUNDS {
        let other = folder();
        plain = plain.max(plain_appends(other.path(), records, &body));
        drop(other);
        kept = folder();
        let (rate, factor) = journal_appends(kept.path(), records, &body);
        ours = ours.max(rate);
        written = factor;
    }
    println!(
        "append: {ours:.0} records/s of {BODY} bytes, writev + fdatasync {plain:.0}: {:.2}x (target 0.8x)",
        ours / plain
    );
    println!("written: {written:.3} bytes a byte (target 1.2)");
    let files = best((0..ROUNDS).map(|_| plain_reads(kept.path(), records * BODY as u64)));
    let cursor = best((0..ROUNDS).map(|_| cursor_reads(kept.path())));
    println!(
        "read: cursor {cursor:.0} MB/s, the plain files {files:.0} MB/s: {:.2}x",
        cursor / files
    );
    drop(kept);
    #[cfg(feature = "cold")]
    parquet();
    recovery(&body);
}
