//! Checkpoint, restore, replay.

use super::*;
use crate::metric::MetricFlags;
use crate::payload::{decode_resolved, encode_resolved};

fn live() -> Bench {
    let mut bench = Bench::new();
    bench.nbirth(3, 0);
    bench.dbirth(1);
    bench.ddata(2, 5.0);
    bench.events();
    bench
}

fn restored(snapshots: &[Snapshot]) -> Bench {
    let mut bench = Bench::new();
    for snapshot in snapshots {
        bench
            .session
            .restore_node(0, EPOCH, &snapshot.bytes)
            .unwrap();
    }
    bench.session.check_invariants().unwrap();
    assert!(bench.events().is_empty());
    bench
}

#[test]
fn what_comes_back_is_unverified_until_the_node_goes_on_where_it_was() {
    let mut before = live();
    let mut snapshots = before.session.dirty_nodes();
    assert_eq!(snapshots.len(), 2);
    assert!(before.session.dirty_nodes().is_empty());
    snapshots.reverse();
    let mut bench = restored(&snapshots);
    assert!(bench.node().unverified());
    assert_eq!(bench.node().bdseq(), Some(3));
    let metric = bench.device().metric("Pressure").unwrap();
    assert_eq!(
        (metric.value.clone(), metric.stale),
        (Value::Double(5.0), true)
    );
    bench.ddata(3, 6.0);
    assert_eq!(bench.story(), ["ddata 3"]);
    assert!(!bench.node().unverified());
    assert!(!bench.device().metric("Pressure").unwrap().stale);
}

#[test]
fn messages_missed_while_down_lead_to_one_request_and_a_mark() {
    let mut bench = restored(&live().session.dirty_nodes());
    bench.ddata(9, 6.0);
    bench.ddata(10, 7.0);
    let events = bench.events();
    let marks: Vec<bool> = events
        .iter()
        .filter_map(|event| match event {
            HostEvent::DeviceData { record, .. } => {
                Some(record.metrics[0].flags.contains(MetricFlags::UNVERIFIED))
            }
            _ => None,
        })
        .collect();
    assert_eq!(marks, [true, true]);
    assert_eq!(bench.transmits().len(), 1);
}

#[test]
fn a_node_that_never_returns_is_declared_dead() {
    let mut bench = restored(&live().session.dirty_nodes());
    bench.advance(300_000);
    assert_eq!(bench.story(), ["ndeath stale"]);
    assert!(!bench.device().online());
}

#[test]
fn records_after_the_checkpoint_are_replayed_silently() {
    let mut before = Bench::new();
    before.nbirth(3, 0);
    let snapshots = before.session.dirty_nodes();
    before.events();
    before.dbirth(1);
    before.ddata(2, 5.0);
    let mut after = restored(&snapshots);
    for event in before.events() {
        let (kind, record) = match event {
            HostEvent::DeviceBirth { record, .. } => (RecordKind::Birth, record),
            HostEvent::DeviceData { record, .. } => (RecordKind::Data, record),
            other => panic!("{other:?}"),
        };
        let bytes = encode_resolved(
            Some(record.timestamp),
            record.seq,
            record.bdseq,
            &record.metrics,
        );
        let payload = decode_resolved(&bytes).unwrap();
        after
            .session
            .apply_record(0, kind, &node_id(), Some("d"), EPOCH, &payload);
    }
    assert!(after.events().is_empty());
    assert!(after.transmits().is_empty());
    after.ddata(3, 8.0);
    assert_eq!(after.story(), ["ddata 3"]);
    assert_eq!(
        after.device().metric("Pressure").unwrap().value,
        Value::Double(8.0)
    );
}

#[test]
fn damaged_snapshots_are_refused() {
    let snapshots = live().session.dirty_nodes();
    let mut bench = Bench::new();
    for at in 0..snapshots[0].bytes.len() {
        let mut bytes = snapshots[0].bytes.clone();
        bytes[at] ^= 0x55;
        let _ = bench.session.restore_node(0, EPOCH, &bytes);
        let _ = bench.session.restore_node(0, EPOCH, &bytes[..at]);
    }
    assert!(matches!(
        bench.session.restore_node(0, EPOCH, &[0x08, 9]),
        Err(RestoreError::Version(9))
    ));
}

#[test]
fn a_gap_that_was_open_is_still_open_after_a_restart() {
    let mut before = live();
    before.ddata(4, 6.0);
    before.advance(2_000);
    let mut bench = restored(&before.session.dirty_nodes());
    // Goes on without a gap, but not from where the gap was.
    bench.ddata(3, 6.0);
    assert_eq!(bench.story(), ["ddata 3", "rebirth unverified 1"]);
    assert!(bench.node().unverified());
}

#[test]
fn while_unverified_the_later_time_is_the_current_value() {
    let mut bench = restored(&live().session.dirty_nodes());
    for (seq, at, value) in [(20, 50, 7.0), (9, 40, 6.0)] {
        bench.now = at;
        let metric = double("", value).at(EPOCH + at).aliased(2);
        let data = encode(Some(EPOCH + at), Some(seq), &[metric], Form::Data);
        bench.raw("spBv1.0/g/DDATA/n/d", &data);
    }
    let state = bench.device().metric("Pressure").unwrap();
    assert_eq!(state.value, Value::Double(7.0));
}
