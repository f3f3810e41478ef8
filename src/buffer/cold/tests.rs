//! Archiving to a folder and reading back.

use std::sync::Arc;

use sparkplug::datatype::DataType;
use sparkplug::metric::Metric;
use sparkplug::payload::encode_resolved;
use sparkplug::value::Value;

use super::archiver::archive;
use super::config::{Archive, Config};
use super::store::{Put, Store};
use super::{Fetch, table};
use crate::buffer::Selection;
use crate::buffer::record::{Cause, Class, Lane, NewRecord, Record};
use crate::buffer::tests::{Rig, alarm, assert_chained, data, record, small};

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
