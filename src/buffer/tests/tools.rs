//! Looking at, exporting and repairing a folder.

use std::sync::Arc;

use super::{Rig, alarm, data, gap, small};
use crate::buffer::crash::CrashStorage;
use crate::buffer::record::Lane;
use crate::buffer::tools::{export, repair_in, report};
use crate::buffer::{History, Selection};

fn filled() -> CrashStorage {
    let mut rig = Rig::new(small());
    for n in 1..=60 {
        rig.append_synced([if n % 10 == 0 { alarm(n) } else { data(n) }]);
    }
    rig.journal.ack(Lane::Data, 12);
    rig.close()
}

/// A copy with one byte of the first frames changed.
fn damaged() -> CrashStorage {
    let disk = filled();
    let name = "data-00000000000000000001.seg";
    let mut bytes = disk.files()[name].clone();
    let at = bytes.len() / 2;
    bytes[at] ^= 0x20;
    disk.put(name, bytes);
    disk
}

#[test]
fn intact_folder_verifies() {
    let disk = filled();
    for full in [false, true] {
        let mut last = None;
        let report = report(&disk, full, &mut |progress| last = Some(progress)).expect("readable");
        assert!(report.intact, "{report:?}");
        assert_eq!(
            report
                .segments
                .iter()
                .map(|segment| segment.records)
                .sum::<u64>(),
            60
        );
        assert_eq!(report.counts.expect("a ledger").pending, 49);
        assert_eq!(report.cursors, Some([12, 0]));
        assert!(last.is_some_and(|progress| progress.done == progress.total));
        assert_eq!(
            report.segments.iter().all(|segment| segment.frames > 0),
            full
        );
    }
}

#[test]
fn verify_finds_what_stat_does_not_look_at() {
    let disk = damaged();
    assert!(report(&disk, false, &mut |_| {}).expect("readable").intact);
    let report = report(&disk, true, &mut |_| {}).expect("readable");
    assert!(!report.intact);
    let lost: Vec<_> = report
        .segments
        .iter()
        .flat_map(|segment| &segment.lost)
        .collect();
    assert_eq!(lost.len(), 1);
    assert_eq!(lost[0].count, 1);
}

#[test]
fn export_gives_a_range_in_order_and_skips_damage() {
    let base = 1_700_000_000_000;
    let ids = |disk: &CrashStorage, from: u64, to: u64| {
        let mut ids = Vec::new();
        let selection = Selection::between(base + from, base + to);
        let disk = Arc::new(disk.clone());
        let n = export(
            History::of_storage(disk, selection).expect("readable"),
            &mut |_| {},
            &mut |record| {
                ids.push(record.id);
                Ok(())
            },
        );
        assert_eq!(n.expect("readable"), ids.len() as u64);
        ids
    };
    let disk = filled();
    assert_eq!(ids(&disk, 0, 1000), (1..=60).collect::<Vec<_>>());
    assert_eq!(ids(&disk, 25, 35), (25..35).collect::<Vec<_>>());
    assert_eq!(ids(&damaged(), 0, 1000).len(), 59);
    let refused = export(
        History::of_storage(Arc::new(disk), Selection::between(0, u64::MAX)).expect("readable"),
        &mut |_| {},
        &mut |_| Err(std::io::ErrorKind::BrokenPipe.into()),
    );
    assert!(refused.is_err());
}

#[test]
fn repair_books_the_damage_so_that_the_next_start_tells_it() {
    let disk = damaged();
    let repaired = repair_in(Arc::new(disk.clone()), &mut |_| {}).expect("writable");
    assert!(repaired.frames_checked > 50);
    let rig = Rig::open(disk, small());
    let lost: u64 = rig.journal.counts().dropped.values().sum();
    assert_eq!(lost, repaired.gaps.iter().map(|gap| gap.count).sum::<u64>());
    let told = rig
        .read_all(Lane::Data)
        .iter()
        .filter(|record| record.data.origin == crate::buffer::record::Origin::Derived)
        .map(|record| gap(record)["count"].as_u64())
        .sum::<Option<u64>>();
    assert_eq!(told, Some(lost));
}
