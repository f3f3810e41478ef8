//! Crash shapes: what a power cut, a kill or a bad disk can leave, one test each.

use std::collections::BTreeMap;

use super::{Rig, alarm, assert_chained, data, gap, small, text};
use crate::buffer::Config;
use crate::buffer::crash::CrashStorage;
use crate::buffer::frame::{SEGMENT_HEADER, TRAILER};
use crate::buffer::record::{Class, Lane};
use crate::buffer::recovery::ID_JUMP;

fn with(files: BTreeMap<String, Vec<u8>>) -> CrashStorage {
    let disk = CrashStorage::new();
    for (name, bytes) in files {
        disk.put(&name, bytes);
    }
    disk
}

/// The only segment of a lane.
fn only(files: &BTreeMap<String, Vec<u8>>, lane: &str) -> String {
    let mut names = files.keys().filter(|name| name.starts_with(lane));
    let name = names.next().expect("a segment").clone();
    assert!(names.next().is_none());
    name
}

fn roomy() -> Config {
    Config {
        segment_bytes: 64 << 10,
        warm_max_bytes: 1 << 20,
        ..small()
    }
}

#[test]
fn empty_folder_starts_with_a_new_epoch() {
    let rig = Rig::new(small());
    assert_eq!(rig.recovery.last_id, 0);
    assert_eq!(rig.recovery.epoch.len(), 32);
    assert_ne!(rig.recovery.epoch, Rig::new(small()).recovery.epoch);
    assert_eq!(rig.append(data(1)), 1);
}

#[test]
fn clean_close_goes_on_with_the_next_id() {
    let mut rig = Rig::new(small());
    let epoch = rig.recovery.epoch.clone();
    rig.append_synced([data(1), alarm(2), data(3)]);
    let rig = Rig::open(rig.close(), small());
    assert!(rig.recovery.clean);
    assert_eq!(rig.recovery.epoch, epoch);
    assert_eq!(rig.recovery.engine_ms_base, 3);
    assert_eq!(
        rig.recovery.frames_checked, 0,
        "sealed segments are not read"
    );
    assert_eq!(rig.append(data(4)), 4);
    assert_eq!(rig.bodies(Lane::Data), ["data 1", "data 3", "data 4"]);
    assert_eq!(rig.bodies(Lane::Alarms), ["alarm 2"]);
}

#[test]
fn power_cut_keeps_what_was_synced_and_reuses_no_id() {
    let mut rig = Rig::new(small());
    rig.append_synced((1..=5).map(data));
    rig.append(data(6));
    let rig = rig.power_cut();
    assert_eq!(rig.bodies(Lane::Data).len(), 5);
    assert!(rig.append(data(7)) > ID_JUMP);
    assert_chained(&rig.read_all(Lane::Data));
}

#[test]
fn kill_keeps_what_was_written() {
    let mut rig = Rig::new(small());
    rig.append_synced((1..=5).map(data));
    let rig = rig.kill();
    assert_eq!(rig.bodies(Lane::Data).len(), 5);
    let again = rig.kill();
    assert_eq!(again.bodies(Lane::Data).len(), 5);
}

#[test]
fn torn_tail_is_cut_at_every_byte() {
    let mut rig = Rig::new(roomy());
    rig.append_synced((1..=3).map(data));
    let before = rig.disk.files();
    let name = only(&before, "data");
    rig.append_synced((4..=6).map(data));
    let after = rig.disk.files();
    let changed = |a: &[u8], b: &[u8]| {
        let first = a
            .iter()
            .zip(b)
            .position(|(a, b)| a != b)
            .expect("a new frame");
        let last = a
            .iter()
            .zip(b)
            .rposition(|(a, b)| a != b)
            .expect("a new frame");
        (first, last + 1)
    };
    let (start, end) = changed(&before[&name], &after[&name]);
    for cut in start..end {
        for shorter in [false, true] {
            let mut files = after.clone();
            let bytes = files.get_mut(&name).expect("the segment");
            if shorter {
                bytes.truncate(cut)
            } else {
                bytes[cut..].fill(0)
            }
            // The ledger of the first three.
            files.insert("ledger".to_owned(), before["ledger"].clone());
            let rig = Rig::open(with(files), roomy());
            assert_eq!(
                rig.bodies(Lane::Data),
                ["data 1", "data 2", "data 3"],
                "cut at {cut}"
            );
            assert!(!rig.recovery.clean);
            assert_eq!(rig.recovery.torn_bytes > 0, cut > start, "cut at {cut}");
        }
    }
}

#[test]
fn flipped_bit_in_the_middle_of_the_tail_loses_that_frame_alone() {
    let mut rig = Rig::new(roomy());
    rig.append_synced([data(1), data(2)]);
    let one = rig.disk.files();
    let name = only(&one, "data");
    rig.append_synced([data(3), data(4), data(5)]);
    let two = rig.disk.files();
    rig.append_synced([data(6)]);
    let files = rig.disk.files();
    let start = one[&name]
        .iter()
        .zip(&two[&name])
        .position(|(a, b)| a != b)
        .expect("a frame");
    for at in (start..start + 60).step_by(7) {
        let mut files = files.clone();
        files.get_mut(&name).expect("the segment")[at] ^= 0x10;
        let rig = Rig::open(with(files), roomy());
        let records = rig.read_all(Lane::Data);
        let bodies: Vec<_> = records.iter().map(|record| text(record)).collect();
        assert_eq!(
            (&*bodies[0], &*bodies[1], &*bodies[3]),
            ("data 1", "data 2", "data 6")
        );
        let gap = gap(&records[2]);
        assert_eq!(
            (
                gap["from"].as_u64(),
                gap["to"].as_u64(),
                gap["count"].as_u64()
            ),
            (Some(3), Some(5), Some(3))
        );
        assert_chained(&records);
        assert_eq!(rig.recovery.gaps.len(), 1);
        assert_eq!(rig.journal.counts().dropped["lost"], 3);
        assert_eq!(rig.journal.counts().pending, 4);
    }
}

#[test]
fn damage_in_a_sealed_segment_is_found_by_the_reader_and_told_in_place() {
    let mut rig = Rig::new(roomy());
    rig.append_synced([data(1)]);
    let one = rig.disk.files();
    let name = only(&one, "data");
    rig.append_synced([data(2), data(3)]);
    rig.append_synced([data(4)]);
    let mut files = rig.close().files();
    let start = one[&name]
        .iter()
        .zip(&files[&name])
        .position(|(a, b)| a != b)
        .expect("a frame");
    files.get_mut(&name).expect("the segment")[start + 50] ^= 1;
    let rig = Rig::open(with(files), roomy());
    assert!(rig.recovery.clean);
    assert_eq!(rig.journal.counts().pending, 4, "nobody has read it yet");
    let records = rig.read_all(Lane::Data);
    assert_eq!(records.len(), 3);
    assert_eq!(gap(&records[1])["count"], 2);
    assert_chained(&records);
    rig.check();
    assert_eq!(rig.journal.counts().pending, 3);
    // Reading again books nothing again, in this process or the next.
    assert_eq!(rig.read_all(Lane::Data), records);
    let rig = Rig::open(rig.close(), roomy());
    assert_eq!(rig.read_all(Lane::Data), records);
    rig.journal.ack(Lane::Data, records[1].id);
    rig.check();
    assert_eq!(
        (rig.journal.counts().pending, rig.journal.counts().published),
        (1, 2)
    );
}

#[test]
fn damage_at_the_end_of_a_sealed_segment_is_told() {
    let mut rig = Rig::new(roomy());
    rig.append_synced([data(1)]);
    let one = rig.disk.files();
    let name = only(&one, "data");
    rig.append_synced([data(2), data(3)]);
    let mut files = rig.close().files();
    let start = one[&name]
        .iter()
        .zip(&files[&name])
        .position(|(a, b)| a != b)
        .expect("a frame");
    files.get_mut(&name).expect("the segment")[start] ^= 1;
    let rig = Rig::open(with(files), roomy());
    let records = rig.read_all(Lane::Data);
    assert_eq!(records.len(), 2);
    assert_eq!(gap(&records[1])["count"], 2);
    assert_eq!(records[1].id, 3);
    rig.check();
}

#[test]
fn zero_length_segment_is_set_aside() {
    let mut rig = Rig::new(small());
    rig.append_synced([data(1)]);
    let mut files = rig.close().files();
    files.insert("data-00000000000000000009.seg".to_owned(), Vec::new());
    let rig = Rig::open(with(files), small());
    assert_eq!(rig.recovery.quarantined.len(), 1);
    assert!(
        rig.disk
            .files()
            .contains_key("quarantine/data-00000000000000000009.seg")
    );
    assert_eq!(rig.bodies(Lane::Data), ["data 1"]);
    assert!(rig.append(data(2)) >= 2);
}

#[test]
fn random_bytes_for_a_segment_are_set_aside() {
    let mut rig = Rig::new(small());
    rig.append_synced([data(1)]);
    let mut files = rig.close().files();
    let noise = (0..5000u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    files.insert("alarms-00000000000000000001.seg".to_owned(), noise);
    let rig = Rig::open(with(files), small());
    assert_eq!(
        rig.recovery.quarantined[0].reason,
        "no header and no valid frame"
    );
    assert_eq!(rig.bodies(Lane::Data), ["data 1"]);
}

#[test]
fn segment_of_another_journal_is_set_aside() {
    let mut other = Rig::new(small());
    other.append_synced([data(100)]);
    let foreign = other.close().files();
    let mut rig = Rig::new(small());
    rig.append_synced([data(1)]);
    let mut files = rig.close().files();
    let bytes = foreign["data-00000000000000000001.seg"].clone();
    files.insert("data-00000000000000000001.seg".to_owned(), bytes);
    let rig = Rig::open(with(files), small());
    assert_eq!(
        rig.recovery.quarantined[0].reason,
        "belongs to another journal"
    );
    // Its own segment is gone, and the ledger knows that.
    assert_eq!(gap(&rig.read_all(Lane::Data)[0])["count"], 1);
}

#[test]
fn segment_that_was_never_used_goes() {
    let mut rig = Rig::new(small());
    rig.append_synced([data(1)]);
    let mut files = rig.close().files();
    files.insert("data-00000000000000000002.seg".to_owned(), vec![0; 2048]);
    let rig = Rig::open(with(files), small());
    assert!(rig.recovery.quarantined.is_empty());
    assert_eq!(rig.segments("data"), ["data-00000000000000000001.seg"]);
    assert_eq!(rig.bodies(Lane::Data), ["data 1"]);
}

#[test]
fn damaged_header_of_a_sealed_segment_is_read_from_its_trailer() {
    let mut rig = Rig::new(small());
    rig.append_synced([data(1), data(2)]);
    let mut files = rig.close().files();
    files
        .get_mut("data-00000000000000000001.seg")
        .expect("a segment")[..SEGMENT_HEADER]
        .fill(0xff);
    let rig = Rig::open(with(files), small());
    assert_eq!(rig.bodies(Lane::Data), ["data 1", "data 2"]);
}

#[test]
fn damaged_header_of_the_tail_is_no_loss() {
    let mut rig = Rig::new(roomy());
    rig.append_synced([data(1), data(2)]);
    let mut files = rig.disk.files();
    files
        .get_mut("data-00000000000000000001.seg")
        .expect("a segment")[..SEGMENT_HEADER]
        .fill(0xff);
    let rig = Rig::open(with(files), roomy());
    assert_eq!(rig.bodies(Lane::Data), ["data 1", "data 2"]);
    assert_eq!(rig.journal.counts().pending, 2);
}

#[test]
fn damaged_trailer_means_reading_the_frames() {
    let mut rig = Rig::new(small());
    rig.append_synced([data(1), data(2)]);
    let mut files = rig.close().files();
    let bytes = files
        .get_mut("data-00000000000000000001.seg")
        .expect("a segment");
    let at = bytes.len() - TRAILER / 2;
    bytes[at] ^= 1;
    let rig = Rig::open(with(files), small());
    assert_eq!(rig.recovery.frames_checked, 1);
    assert_eq!(rig.bodies(Lane::Data), ["data 1", "data 2"]);
}

#[test]
fn missing_index_means_reading_from_the_top() {
    let mut rig = Rig::new(roomy());
    for n in 1..=9 {
        rig.append_synced([data(n)]);
    }
    let mut files = rig.close().files();
    let bytes = files
        .get_mut("data-00000000000000000001.seg")
        .expect("a segment");
    let at = bytes.len() - TRAILER - 5;
    bytes[at] ^= 1;
    let rig = Rig::open(with(files), roomy());
    assert!(rig.recovery.clean);
    let after_five = rig
        .journal
        .read(Lane::Data, 5, 100, 1 << 20)
        .expect("readable");
    assert_eq!(
        after_five
            .iter()
            .map(|record| record.id)
            .collect::<Vec<_>>(),
        [6, 7, 8, 9]
    );
}

#[test]
fn missing_ledger_makes_everything_pending_again() {
    let mut rig = Rig::new(small());
    rig.append_synced((1..=40).map(data));
    rig.journal.ack(Lane::Data, 30);
    rig.tick(100_000);
    let epoch = rig.recovery.epoch.clone();
    let mut files = rig.close().files();
    files.remove("ledger");
    let rig = Rig::open(with(files), small());
    assert!(rig.recovery.ledger_rebuilt);
    assert_eq!(rig.recovery.epoch, epoch, "told by the segments");
    let left = rig.read_all(Lane::Data);
    assert_eq!(left.last().map(|record| record.id), Some(40));
    assert_eq!(rig.journal.counts().pending, left.len() as u64);
    assert_eq!(rig.journal.counts().received, 40);
}

#[test]
fn damaged_ledger_is_set_aside_and_the_older_slot_serves_first() {
    let mut rig = Rig::new(small());
    rig.append_synced((1..=4).map(data));
    rig.journal.ack(Lane::Data, 2);
    rig.tick(10);
    rig.journal.ack(Lane::Data, 3);
    let files = rig.close().files();
    let slots = [0, 256 << 10];
    for slot in slots {
        let mut files = files.clone();
        files.get_mut("ledger").expect("a ledger")[slot + 30] ^= 1;
        let rig = Rig::open(with(files), small());
        assert!(!rig.recovery.ledger_rebuilt);
        assert!((2..=3).contains(&rig.journal.cursor(Lane::Data)));
    }
    let mut files = files;
    for slot in slots {
        files.get_mut("ledger").expect("a ledger")[slot + 30] ^= 1;
    }
    let rig = Rig::open(with(files), small());
    assert!(rig.recovery.ledger_rebuilt);
    assert_eq!(rig.recovery.quarantined[0].name, "ledger");
    assert_eq!(rig.bodies(Lane::Data).len(), 4);
}

#[test]
fn missing_segment_in_the_middle_is_told_in_place() {
    let mut rig = Rig::new(small());
    for n in 1..=200 {
        rig.append_synced([data(n)]);
    }
    let mut files = rig.close().files();
    let names: Vec<_> = files
        .keys()
        .filter(|name| name.starts_with("data"))
        .cloned()
        .collect();
    assert!(names.len() > 3);
    files.remove(&names[1]);
    let rig = Rig::open(with(files), small());
    assert_eq!(rig.recovery.gaps.len(), 1);
    let records = rig.read_all(Lane::Data);
    assert_chained(&records);
    let told: Vec<_> = records
        .iter()
        .filter(|record| record.data.class == Class::Gap)
        .collect();
    assert_eq!(told.len(), 1);
    assert_eq!(gap(told[0])["cause"], "missing");
    let count = gap(told[0])["count"].as_u64().expect("a number");
    assert_eq!(records.len() as u64 - 1 + count, 200);
}

#[test]
fn all_segments_gone_but_the_ledger_knows() {
    let mut rig = Rig::new(small());
    rig.append_synced((1..=10).map(data));
    rig.journal.ack(Lane::Data, 4);
    let mut files = rig.close().files();
    files.retain(|name, _| name == "ledger");
    let rig = Rig::open(with(files), small());
    let records = rig.read_all(Lane::Data);
    assert_eq!(records.len(), 1);
    assert_eq!(
        (
            gap(&records[0])["from"].as_u64(),
            gap(&records[0])["to"].as_u64()
        ),
        (Some(5), Some(10))
    );
    assert_eq!(rig.journal.counts().pending, 1);
    let id = rig.append(data(11));
    assert!(id > 10);
    assert_chained(&rig.read_all(Lane::Data));
}

#[test]
fn cursor_ahead_of_the_disk_is_no_loss_of_its_own() {
    // A bridge that reads what is not durable yet, and a power cut.
    let mut rig = Rig::new(small());
    rig.append_synced((1..=3).map(data));
    (4..=8).for_each(|n| {
        rig.append(data(n));
    });
    rig.journal.ack(Lane::Data, 6);
    rig.writer.save_ledger(true).expect("a healthy disk");
    let rig = rig.power_cut();
    let counts = rig.journal.counts();
    assert_eq!(
        (counts.received, counts.published, counts.pending),
        (8, 6, 1)
    );
    assert_eq!(counts.dropped["lost"], 2);
    let records = rig.journal.read(Lane::Data, 6, 10, 1000).expect("readable");
    assert_eq!(gap(&records[0])["cause"], "not synced");
}

#[test]
fn dropped_segment_that_comes_back_goes_again() {
    let mut rig = Rig::new(small());
    let mut before = BTreeMap::new();
    for n in 1..3000 {
        rig.append_synced([data(n)]);
        if n == 200 {
            before = rig.disk.files();
        }
    }
    assert!(rig.journal.counts().dropped["quota"] > 200);
    let mut files = rig.disk.files();
    let first = "data-00000000000000000001.seg";
    assert!(!files.contains_key(first));
    files.insert(first.to_owned(), before[first].clone());
    let counts = rig.journal.counts();
    let rig = Rig::open(with(files), small());
    assert_eq!(rig.journal.counts(), counts);
    assert!(!rig.disk.files().contains_key(first));
    let records = rig.read_all(Lane::Data);
    assert_chained(&records);
    assert_eq!(records[0].data.class, Class::Gap);
}

#[test]
fn alarm_never_outlives_the_data_before_it() {
    // Whatever subset of the unsynced writes reaches the disk.
    for kept in 0..64u32 {
        let mut rig = Rig::new(roomy());
        rig.append_synced([data(1), alarm(2)]);
        rig.append(data(3));
        rig.append(alarm(4));
        rig.disk.set_faults(crate::buffer::crash::Faults {
            fail_sync: true,
            ..Default::default()
        });
        assert!(rig.writer.round(false).is_err());
        let disk = rig.disk.crash(|n| kept >> (n % 6) & 1 == 1);
        let rig = Rig::open(disk, roomy());
        let alarms = rig.bodies(Lane::Alarms);
        let data = rig.bodies(Lane::Data);
        assert!(!alarms.contains(&"alarm 4".to_owned()) || data.contains(&"data 3".to_owned()));
    }
}

#[test]
fn a_journal_file_inside_a_record_is_not_taken_for_frames() {
    let mut inner = Rig::new(roomy());
    inner.append_synced([data(77), data(78)]);
    let raw = inner.disk.files()["data-00000000000000000001.seg"].clone();
    let mut rig = Rig::new(roomy());
    rig.append_synced([super::record(Class::Raw, &raw[..1000], 1)]);
    rig.append_synced([data(2)]);
    let mut files = rig.close().files();
    files
        .get_mut("data-00000000000000000001.seg")
        .expect("a segment")[SEGMENT_HEADER + 45] ^= 1;
    let rig = Rig::open(with(files), roomy());
    let records = rig.read_all(Lane::Data);
    assert_eq!(records.len(), 2);
    assert_eq!(records[0].data.class, Class::Gap);
    assert_eq!(text(&records[1]), "data 2");
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 64, ..Default::default() })]

    #[test]
    fn any_bytes_in_the_files_start(
        at in proptest::collection::vec((0usize..4, 0usize..3000, proptest::prelude::any::<u8>()), 1..40),
        cut in proptest::option::of((0usize..4, 0usize..3000)),
    ) {
        let mut rig = Rig::new(small());
        for n in 1..=80 {
            rig.append_synced([if n % 9 == 0 { alarm(n) } else { data(n) }]);
        }
        rig.journal.ack(Lane::Data, 20);
        rig.tick(100);
        let mut files = rig.disk.files();
        let names: Vec<_> = files.keys().cloned().collect();
        for (file, at, byte) in at {
            let bytes = files.get_mut(&names[file % names.len()]).expect("listed");
            if let Some(slot) = bytes.get_mut(at) {
                *slot = byte;
            }
        }
        if let Some((file, len)) = cut {
            files.get_mut(&names[file % names.len()]).expect("listed").truncate(len);
        }
        let mut rig = Rig::open(with(files), small());
        for lane in [Lane::Data, Lane::Alarms] {
            let records = rig.read_all(lane);
            proptest::prop_assert!(records.windows(2).all(|pair| pair[0].id < pair[1].id));
        }
        let id = rig.append_synced([data(1000)])[0];
        rig.check();
        let rig = rig.power_cut();
        proptest::prop_assert!(rig.read_all(Lane::Data).iter().any(|record| record.id == id));
    }
}
