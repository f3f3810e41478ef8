//! Archiving to a folder and reading back.

use std::sync::Arc;

use sparkplug::datatype::DataType;
use sparkplug::metric::Metric;
use sparkplug::payload::encode_resolved;
use sparkplug::value::Value;

use super::archiver::{Archiver, archive};
use super::config::{Archive, Config};
use super::index::{Entry, Index};
use super::store::{Put, Store};
use super::{Fetch, table};
use crate::buffer::Selection;
use crate::buffer::crash::CrashStorage;
use crate::buffer::record::{Cause, Class, Lane, NewRecord, Record};
use crate::buffer::tests::{Rig, alarm, assert_chained, data, gap, record, small};

fn folder_config(folder: &std::path::Path) -> Config {
    toml::from_str(&format!("url = \"file://{}\"", folder.display())).expect("a configuration")
}

/// Records of all kinds: values of every column, and bodies that no column can say.
fn mixed() -> Vec<NewRecord> {
    let metrics = vec![
        Metric::new("int", DataType::Int32, Value::Int(-7))
            .at(5)
            .aliased(3),
        Metric::new("uint", DataType::UInt64, Value::UInt(u64::MAX)),
        Metric::new("float", DataType::Float, Value::Float(1.1)),
        Metric::new("double", DataType::Double, Value::Double(f64::NAN)),
        Metric::new("bool", DataType::Boolean, Value::Bool(true)),
        Metric::new("text", DataType::String, Value::String("é".into())),
        Metric::new("time", DataType::DateTime, Value::DateTime(9)),
        Metric::new("bytes", DataType::Bytes, Value::Bytes(vec![0, 255].into())),
        Metric::new("null", DataType::Int8, Value::Null),
    ];
    let mut payload = record(
        Class::Data,
        &encode_resolved(Some(4), Some(9), None, &metrics),
        1,
    );
    payload.seq = Some(9);
    payload.extra = vec![("topic".into(), "a\"b".into())];
    let mut derived = record(Class::Inference, b"{\"model\":\"m\"}", 3);
    derived.cause = Some(Cause {
        record: 1,
        rule: u64::MAX,
        index: 2,
    });
    derived.traceparent = Some("00-1-2-01".into());
    derived.key.device = None;
    vec![
        payload,
        record(Class::Data, b"\xff no payload", 2),
        derived,
        record(Class::Raw, b"raw \x00 bytes", 4),
        record(Class::Data, &encode_resolved(None, None, None, &[]), 5),
        record(Class::Embedding, &[0; 16], 6),
    ]
}

#[test]
fn table_gives_back_every_record_exactly() {
    let records: Vec<Arc<Record>> = (10..)
        .zip(mixed())
        .map(|(id, data)| {
            Arc::new(Record {
                id,
                prev: id - 1,
                data,
            })
        })
        .collect();
    let mut writer = table::Writer::new(Vec::new()).expect("a table");
    for record in &records {
        writer.put(record).expect("a row");
    }
    assert_eq!(writer.total_rows, 14);
    let bytes = writer.finish().expect("a table");
    let mut back = Vec::new();
    for part in super::store::parts(bytes.into()).expect("a table") {
        back.extend(part.expect("a part"));
    }
    assert_eq!(back, records);
}

/// Archives everything that waits, as the thread does.
fn archive_all(rig: &Rig, store: &Store, policy: Archive) -> u64 {
    let mut n = 0;
    while let Some(segment) = rig.journal.to_archive(policy) {
        let entry = archive(&rig.journal.storage(), store, "test", &segment).expect("archived");
        rig.journal.archived(entry).expect("noted");
        n += 1;
    }
    n
}

fn attach(rig: &Rig, folder: &std::path::Path, policy: Archive) -> Arc<Store> {
    let store = Arc::new(Store::new(&folder_config(folder), None).expect("a folder"));
    rig.journal
        .attach_cold(policy, Arc::clone(&store) as Arc<dyn Fetch>);
    store
}

#[test]
fn undelivered_overflow_is_drained_from_the_store_in_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut rig = Rig::new(small());
    let mut store = attach(&rig, folder.path(), Archive::Overflow);
    // Several times the quota of 64 KiB, with a restart in the middle.
    for n in 1..=6000 {
        rig.append_synced([if n % 100 == 0 { alarm(n) } else { data(n) }]);
        archive_all(&rig, &store, Archive::Overflow);
        if n == 3000 {
            rig = rig.kill();
            store = attach(&rig, folder.path(), Archive::Overflow);
        }
    }
    let counts = rig.journal.counts();
    assert!(counts.dropped.is_empty(), "{counts:?}");
    assert!(rig.journal.parked().0 > 1000);
    for (lane, wanted) in [(Lane::Data, 5940), (Lane::Alarms, 60)] {
        let records = rig.read_all(lane);
        assert_eq!(records.len(), wanted);
        assert_chained(&records);
        for record in &records {
            rig.journal.ack(lane, record.id);
        }
    }
    assert_eq!(rig.journal.counts().pending, 0);
    assert_eq!(rig.journal.parked(), (0, 0));
    assert!(rig.journal.stat().served_cold > 1000);
    rig.check();
}

#[test]
fn file_stays_until_it_is_archived_and_history_goes_on_behind_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut rig = Rig::new(small());
    let store = attach(&rig, folder.path(), Archive::All);
    for n in 1..=100 {
        rig.append_synced([data(n)]);
    }
    rig.journal.ack(Lane::Data, 100);
    rig.tick(1_000_000);
    rig.tick(2_000_000);
    assert!(rig.segments("data").len() > 3, "nothing is archived yet");
    let begun = rig.journal.history(&Selection::between(0, u64::MAX));
    assert!(archive_all(&rig, &store, Archive::All) > 2);
    rig.tick(3_000_000);
    assert_eq!(rig.segments("data").len(), 1);
    // One that began while the files were there goes on in the store.
    for all in [rig.journal.history(&Selection::between(0, u64::MAX)), begun] {
        let ids: Vec<_> = all.map(|record| record.expect("readable").id).collect();
        assert_eq!(ids, (1..=100).collect::<Vec<_>>());
    }
}

#[test]
fn upload_can_be_repeated_and_makes_nothing_twice() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut rig = Rig::new(small());
    let store = attach(&rig, folder.path(), Archive::All);
    for n in 1..=60 {
        rig.append_synced([data(n)]);
    }
    let segment = rig.journal.to_archive(Archive::All).expect("a segment");
    let storage = rig.journal.storage();
    let first = archive(&storage, &store, "test", &segment).expect("archived");
    // As after a kill before the manifest, and after one before the entry was noted.
    store.delete(&first.manifest()).expect("gone");
    assert_eq!(
        archive(&storage, &store, "test", &segment).expect("again"),
        first
    );
    assert_eq!(
        archive(&storage, &store, "test", &segment).expect("again"),
        first
    );
    let epoch = rig.journal.epoch();
    assert_eq!(
        store.manifests("test", &epoch).expect("a list"),
        std::slice::from_ref(&first)
    );
    assert_eq!(store.manifests("test", "0").expect("a list"), []);
    // Something else under the name is neither overwritten nor believed.
    store.delete(&first.object).expect("gone");
    assert_eq!(
        store.put(&first.object, "else".into()).expect("put"),
        Put::Made
    );
    assert!(archive(&storage, &store, "test", &segment).is_err());
    assert!(store.fetch(&first).is_err());
}

#[test]
fn what_was_lost_before_a_segment_in_the_store_is_told_in_its_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut rig = Rig::new(small());
    let store = attach(&rig, folder.path(), Archive::Overflow);
    let mut n = 0;
    while rig.segments("data").len() < 5 {
        n += 1;
        rig.append_synced([data(n)]);
    }
    let segments: Vec<_> = rig
        .journal
        .shared
        .lock()
        .lane(Lane::Data)
        .segments
        .iter()
        .take(3)
        .cloned()
        .collect();
    let [first, second, third] = segments.as_slice() else {
        panic!("{segments:?}")
    };
    // A reader holds the first segment, and the third one alone is stored: under pressure the second one is lost, and
    // the third one leaves the disk.
    let held = rig.journal.read(Lane::Data, 0, 3, 1 << 20);
    assert_eq!(held.expect("readable").len(), 3);
    let entry = archive(&rig.journal.storage(), &store, "test", third).expect("archived");
    rig.journal.archived(entry).expect("noted");
    while rig.journal.parked().1 == 0 {
        n += 1;
        rig.append_synced([data(n)]);
    }
    assert_eq!(rig.journal.parked().1, 1);
    for restarted in [false, true] {
        if restarted {
            rig = rig.kill();
            attach(&rig, folder.path(), Archive::Overflow);
        }
        let records = rig.read_all(Lane::Data);
        assert_chained(&records);
        let before = first.summary.received as usize;
        assert_eq!(records[before - 1].id, first.summary.last_id);
        let told = gap(&records[before]);
        assert_eq!(
            (told["from"].as_u64(), told["to"].as_u64()),
            (Some(second.summary.first_id), Some(second.summary.last_id))
        );
        assert_eq!(told["count"], second.summary.received);
        assert_eq!(records[before + 1].id, third.summary.first_id);
        assert_eq!(records.len() as u64, 1 + n - second.summary.received);
    }
    for record in rig.read_all(Lane::Data) {
        rig.journal.ack(Lane::Data, record.id);
    }
    let counts = rig.journal.counts();
    assert_eq!(
        (counts.pending, counts.dropped.values().sum::<u64>()),
        (0, second.summary.received),
        "{counts:?}"
    );
}

/// A journal whose segments are all delivered and archived but the open one.
fn archived(folder: &std::path::Path, records: u64) -> (Rig, Arc<Store>) {
    let mut rig = Rig::new(small());
    let store = attach(&rig, folder, Archive::All);
    for n in 1..=records {
        rig.append_synced([data(n)]);
        archive_all(&rig, &store, Archive::All);
        rig.journal.ack(Lane::Data, n);
    }
    rig.tick(records);
    (rig, store)
}

/// A round of the archiver.
fn round(rig: &Rig, store: &Arc<Store>, config: Config) {
    let archiver = Archiver::new(rig.journal.clone(), Arc::clone(store), config, "test");
    archiver.round(&mut true, &mut None).expect("a round");
}

/// Segments of the stored manifests, with their last records.
fn objects_in(store: &Store, rig: &Rig) -> Vec<(u64, u64)> {
    let manifests = store.manifests("test", &rig.journal.epoch());
    let mut segments: Vec<_> = manifests
        .expect("a list")
        .iter()
        .map(|entry| (entry.segment, entry.last_id))
        .collect();
    segments.sort_unstable();
    segments
}

#[test]
fn oldest_objects_go_when_there_are_too_many_bytes() {
    let folder = tempfile::tempdir().expect("a folder");
    let (rig, store) = archived(folder.path(), 200);
    let before = objects_in(&store, &rig);
    assert!(before.len() > 6, "{before:?}");
    let bytes = rig.journal.cold_status().expect("a cold tier").bytes;
    let mut config = folder_config(folder.path());
    config.max = Some(crate::config::quantity::ByteSize(bytes / 2));
    round(&rig, &store, config);
    let status = rig.journal.cold_status().expect("a cold tier");
    assert!(status.bytes <= bytes / 2 && status.bytes > bytes / 4);
    let after = objects_in(&store, &rig);
    assert_eq!(after.len() as u64, status.objects);
    assert_eq!(
        after,
        before[before.len() - after.len()..],
        "the newest stay"
    );
    // What went is not known after a restart either.
    let rig = rig.kill();
    assert_eq!(rig.journal.shared.cold().len() as u64, status.objects);
}

#[test]
fn objects_go_by_age_but_never_undelivered_ones() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut rig, store) = archived(folder.path(), 100);
    for n in 101..=200 {
        rig.append_synced([data(n)]);
    }
    archive_all(&rig, &store, Archive::All);
    let all = objects_in(&store, &rig);
    let mut config = folder_config(folder.path());
    config.retention = Some("1s".parse().expect("a span"));
    // The clock is at 200 ms: nothing is a second old.
    round(&rig, &store, config.clone());
    assert_eq!(objects_in(&store, &rig), all);
    rig.tick(3_600_000);
    rig.journal.tick(3_600_000, false);
    round(&rig, &store, config.clone());
    assert_eq!(objects_in(&store, &rig), all, "the clock is not trusted");
    rig.tick(3_600_000);
    round(&rig, &store, config);
    let undelivered: Vec<_> = all
        .iter()
        .copied()
        .filter(|(_, last)| *last > 100)
        .collect();
    assert!(!undelivered.is_empty() && undelivered.len() < all.len());
    assert_eq!(objects_in(&store, &rig), undelivered);
}

#[test]
fn while_the_store_is_away_what_is_delivered_goes_before_what_is_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut rig = Rig::new(small());
    attach(&rig, folder.path(), Archive::All);
    let mut n = 0;
    // Half of the quota is delivered, and nothing of it is stored.
    while rig.journal.stat().warm_bytes < rig.config.warm_max_bytes / 2 {
        n += 1;
        rig.append_synced([data(n)]);
    }
    rig.journal.ack(Lane::Data, n);
    let delivered = n;
    while rig
        .journal
        .cold_status()
        .expect("a cold tier")
        .missed_records
        < delivered / 2
    {
        n += 1;
        rig.append_synced([data(n)]);
    }
    let counts = rig.journal.counts();
    assert_eq!(
        (counts.pending, counts.published),
        (n - delivered, delivered)
    );
    assert!(counts.dropped.is_empty(), "{counts:?}");
    let rig = rig.kill();
    assert_eq!(rig.journal.counts(), counts);
}

#[test]
fn index_file_does_not_grow_with_what_is_gone() {
    let (rig, _) = archived(tempfile::tempdir().expect("a folder").path(), 60);
    let disk = CrashStorage::new();
    let mut index = Index::default();
    let template = Arc::clone(
        rig.journal
            .shared
            .cold()
            .of(Lane::Data)
            .next()
            .expect("one"),
    );
    let entry = |no: u64| Entry {
        segment: no,
        object: format!("object-{no}"),
        ..Entry::clone(&template)
    };
    let mut longest = 0;
    for no in 1..=4_000 {
        index.add(&disk, entry(no)).expect("room");
        if no > 20 {
            index
                .remove(&disk, &format!("object-{}", no - 20))
                .expect("room");
        }
        longest = longest.max(disk.files()["cold"].len());
    }
    let line = serde_json::to_vec(&entry(1)).expect("JSON").len() + 1;
    assert!(longest < 1_100 * line, "{longest} bytes");
    // After a power cut, and with a half-written file beside it, as before.
    let after = disk.crash(|_| false);
    after.put("cold.new", b"half".to_vec());
    let mut again = Index::load(&after).expect("readable");
    let known = |index: &Index| index.of(Lane::Data).cloned().collect::<Vec<_>>();
    assert_eq!(known(&again), known(&index));
    for no in 4_001..=6_000 {
        again.add(&after, entry(no)).expect("room");
        again
            .remove(&after, &format!("object-{}", no - 20))
            .expect("room");
    }
    assert!(!after.files().contains_key("cold.new"));
    assert_eq!(
        known(&Index::load(&after).expect("readable")),
        known(&again)
    );
}
