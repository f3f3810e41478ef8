//! Cursors, readers, replay and history.

use super::{Rig, alarm, assert_chained, data, record, small, text};
use crate::buffer::record::{Cause, Class, Key, Lane};
use crate::buffer::{Config, Selection};

fn filled(n: u64) -> Rig {
    let mut rig = Rig::new(Config {
        warm_max_bytes: 1 << 20,
        ..small()
    });
    for n in 1..=n {
        let record = if n % 10 == 0 { alarm(n) } else { data(n) };
        rig.append_synced([record]);
    }
    rig
}

#[test]
fn record_is_visible_before_it_is_durable() {
    let rig = Rig::new(small());
    let appended = rig.journal.appended(Lane::Data);
    let id = rig.append(data(1));
    assert_eq!(*appended.borrow(), id);
    assert_eq!(rig.bodies(Lane::Data), ["data 1"]);
    assert!(
        rig.journal
            .read_durable(Lane::Data, 0, 10, 1000)
            .expect("readable")
            .is_empty()
    );
    assert_eq!(rig.journal.durable_id(), 0);
}

#[test]
fn durable_follows_each_sync() {
    let mut rig = Rig::new(small());
    let durable = rig.journal.durable();
    rig.append_synced([data(1), alarm(2), data(3)]);
    assert_eq!(*durable.borrow(), 3);
    assert_eq!(
        rig.journal
            .read_durable(Lane::Data, 0, 10, 1000)
            .expect("readable")
            .len(),
        2
    );
}

#[test]
fn reads_go_from_disk_to_memory_without_a_seam() {
    let rig = filled(400);
    let stat = rig.journal.stat();
    assert!(stat.hot_records < 100 && stat.segments > 3, "{stat:?}");
    let records = rig.read_all(Lane::Data);
    assert_chained(&records);
    assert_eq!(records.len(), 360);
    let stat = rig.journal.stat();
    assert!(stat.served_hot > 0 && stat.served_warm > 0);
    assert_eq!(stat.served_hot + stat.served_warm, 360);
    for after in 0..400 {
        let next = rig
            .journal
            .read(Lane::Data, after, 1, 1000)
            .expect("readable");
        let expect = (after + 1..=400).find(|n| n % 10 != 0);
        assert_eq!(
            next.first().map(|record| record.id),
            expect,
            "after {after}"
        );
    }
}

#[test]
fn read_respects_both_limits_but_gives_at_least_one() {
    let rig = filled(100);
    assert_eq!(
        rig.journal
            .read(Lane::Data, 0, 5, 1 << 20)
            .expect("readable")
            .len(),
        5
    );
    assert_eq!(
        rig.journal
            .read(Lane::Data, 0, 100, 1)
            .expect("readable")
            .len(),
        1
    );
    assert_eq!(
        rig.journal
            .read(Lane::Data, 0, 100, 14)
            .expect("readable")
            .len(),
        2
    );
}

#[test]
fn acks_settle_wherever_the_cursor_lands() {
    for up_to in [1, 7, 100, 101, 249, 250, 333, 400, 10_000] {
        let rig = filled(400);
        rig.journal.ack(Lane::Data, up_to);
        rig.check();
        let settled = (1..=up_to.min(400)).filter(|n| n % 10 != 0).count() as u64;
        assert_eq!(rig.journal.counts().published, settled, "up to {up_to}");
        rig.journal.ack(Lane::Data, up_to.min(3));
        assert_eq!(
            rig.journal.counts().published,
            settled,
            "older acks change nothing"
        );
    }
}

#[test]
fn split_ack_counts_what_was_left_out() {
    let rig = filled(100);
    rig.journal.ack_split(Lane::Data, 50, 15);
    rig.journal.ack_split(Lane::Alarms, 100, 100);
    let counts = rig.journal.counts();
    assert_eq!(
        (counts.published, counts.filtered, counts.pending),
        (30, 25, 45)
    );
    assert!(counts.balanced());
}

#[test]
fn lanes_are_independent() {
    let mut rig = filled(200);
    rig.journal.ack(Lane::Alarms, 200);
    assert_eq!(rig.journal.lane_state(Lane::Alarms).pending, 0);
    assert_eq!(rig.journal.lane_state(Lane::Data).pending, 180);
    assert_eq!(rig.journal.lane_state(Lane::Alarms).oldest_pending_ms, None);
    let oldest = rig.journal.lane_state(Lane::Data).oldest_pending_ms;
    assert_eq!(oldest, Some(1_700_000_000_001));
    rig.tick(100_000);
    assert_eq!(rig.read_all(Lane::Data).len(), 180);
}

#[test]
fn replay_gives_both_lanes_in_order_and_goes_on() {
    let mut rig = filled(400);
    let mut replay = rig.journal.replay(95);
    let ids: Vec<_> = replay
        .by_ref()
        .map(|record| record.expect("readable").id)
        .collect();
    assert_eq!(ids, (96..=400).collect::<Vec<_>>());
    rig.append_synced([data(401), alarm(402)]);
    let more: Vec<_> = replay.map(|record| record.expect("readable").id).collect();
    assert_eq!(more, [401, 402]);
}

#[test]
fn causes_are_found_again_after_a_crash() {
    let mut rig = filled(50);
    let cause = Cause {
        record: 40,
        rule: 0xdead_beef,
        index: 2,
    };
    let mut derived = alarm(51);
    derived.cause = Some(cause);
    rig.append_synced([derived]);
    let rig = rig.power_cut();
    let causes = rig.journal.derived_causes(30).expect("readable");
    assert_eq!(causes.into_iter().collect::<Vec<_>>(), [cause]);
}

#[test]
fn history_by_time_and_device() {
    let mut rig = filled(400);
    let other = Key {
        group: Some("plant".into()),
        node: Some("line".into()),
        device: None,
    };
    let mut node = data(401);
    node.key = other.clone();
    rig.append_synced([node.clone()]);
    // Not on the disk yet, and found all the same.
    rig.append(node);
    let base = 1_700_000_000_000;
    let ids = |selection: &Selection| -> Vec<_> {
        let history = rig.journal.history(selection);
        history.map(|record| record.expect("readable").id).collect()
    };
    let between = |from: u64, to: u64| Selection::between(base + from, base + to);
    assert_eq!(ids(&between(100, 105)), [100, 101, 102, 103, 104]);
    assert_eq!(ids(&between(399, 1000)), [399, 400, 401, 402]);
    assert!(ids(&between(5000, 6000)).is_empty());
    assert_eq!(ids(&between(0, 1000)).len(), 402);
    assert_eq!(ids(&between(0, 1000).of(other.clone())), [401, 402]);
    assert!(ids(&between(0, 400).of(other)).is_empty());
}

/// What is left of the segments after a crash is found as well, and the disk is read for the range alone.
#[test]
fn history_reads_little_of_a_long_journal() {
    let mut rig = Rig::new(Config {
        warm_max_bytes: 64 << 20,
        segment_bytes: 1 << 20,
        ..small()
    });
    let body = [7; 1000];
    for n in 1..=4000 {
        rig.append(record(Class::Data, &body, n));
        if n % 50 == 0 {
            rig.sync();
        }
    }
    let rig = rig.kill();
    let base = 1_700_000_000_000;
    let before = rig.disk.bytes_read();
    let history = rig
        .journal
        .history(&Selection::between(base + 2000, base + 2010));
    assert_eq!(history.count(), 10);
    let read = rig.disk.bytes_read() - before;
    assert!(read < 1 << 20, "{read} of 4 MB read for ten records");
}

#[test]
fn recent_and_tap_show_what_was_just_appended() {
    let mut rig = filled(30);
    let mut tap = rig.journal.subscribe();
    rig.append_synced([data(31), alarm(32)]);
    assert_eq!(tap.try_recv().expect("told").id, 31);
    assert_eq!(tap.try_recv().expect("told").id, 32);
    let recent: Vec<_> = rig
        .journal
        .recent(3)
        .iter()
        .map(|record| text(record))
        .collect();
    assert_eq!(recent, ["alarm 30", "data 31", "alarm 32"]);
}

#[test]
fn hot_tier_is_bounded_by_age_and_bytes_but_holds_what_is_not_durable() {
    let mut rig = Rig::new(small());
    for n in 1..=100 {
        rig.append(data(n));
    }
    assert!(rig.journal.stat().hot_bytes > small().hot_max_bytes);
    rig.sync();
    assert!(rig.journal.stat().hot_bytes <= small().hot_max_bytes);
    rig.tick(100_000);
    assert_eq!(rig.journal.stat().hot_records, 0);
    assert_eq!(rig.read_all(Lane::Data).len(), 100);
}

#[test]
fn record_larger_than_a_segment_gets_one_of_its_own_size() {
    let mut rig = Rig::new(small());
    let large = vec![7; 20 << 10];
    rig.append_synced([
        data(1),
        super::record(crate::buffer::record::Class::Raw, &large, 2),
        data(3),
    ]);
    let rig = rig.power_cut();
    let records = rig.read_all(Lane::Data);
    assert_eq!(
        records
            .iter()
            .map(|record| record.data.body.len())
            .collect::<Vec<_>>(),
        [6, 20 << 10, 6]
    );
}

#[test]
fn segment_removed_by_hand_under_a_running_journal_is_told() {
    let rig = filled(400);
    let names = rig.segments("data");
    rig.disk.delete(&names[1]);
    let records = rig.read_all(Lane::Data);
    assert_chained(&records);
    rig.check();
    assert!(rig.journal.counts().dropped["lost"] > 5);
    assert_eq!(rig.read_all(Lane::Data), records);
}
