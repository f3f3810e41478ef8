//! Ageing, trimming and the quota.

use super::{Rig, alarm, assert_chained, data, gap, small};
use crate::buffer::Config;
use crate::buffer::record::{Class, Lane};

#[test]
fn directory_stays_within_what_is_pending_and_two_segments() {
    let mut rig = Rig::new(small());
    let segment = small().segment_bytes;
    for n in 1..=20_000u64 {
        rig.append(data(n));
        if n % 10 == 0 {
            rig.sync();
            rig.journal.ack(Lane::Data, n.saturating_sub(90));
            rig.tick(n);
            let pending = rig.journal.lane_state(Lane::Data).pending_bytes;
            let used: u64 = rig
                .disk
                .files()
                .iter()
                .filter(|(name, _)| name.ends_with(".seg"))
                .map(|(_, bytes)| bytes.len() as u64)
                .sum();
            assert!(
                used <= pending + 2 * segment,
                "{used} bytes for {pending} pending"
            );
            assert_eq!(used, rig.journal.stat().warm_bytes);
        }
    }
    assert_eq!(rig.journal.counts().published, 19_910);
}

#[test]
fn trimming_waits_for_grace_age_snapshot_and_a_trusted_clock() {
    let fill = |config: Config| {
        let mut rig = Rig::new(config);
        for n in 1..=60 {
            rig.append_synced([data(n)]);
        }
        rig
    };
    let mut rig = fill(Config {
        keep_acked_ms: 1000,
        ..small()
    });
    let all = rig.segments("data").len();
    rig.journal.ack(Lane::Data, 60);
    rig.tick(900);
    assert_eq!(rig.segments("data").len(), all);
    rig.tick(2000);
    assert_eq!(rig.segments("data").len(), 1, "the one being written stays");

    let mut rig = fill(Config {
        warm_ttl_ms: 5000,
        ..small()
    });
    rig.journal.ack(Lane::Data, 60);
    rig.tick(4000);
    assert_eq!(rig.segments("data").len(), all);
    rig.journal.tick(10_000, false);
    rig.writer.round(false).expect("a healthy disk");
    assert_eq!(
        rig.segments("data").len(),
        all,
        "nothing goes by age while the clock is not trusted"
    );
    rig.tick(10_000);
    assert_eq!(rig.segments("data").len(), 1);

    let mut rig = fill(small());
    rig.journal.keep_from(30);
    rig.journal.ack(Lane::Data, 60);
    rig.tick(10_000);
    let first = rig
        .journal
        .replay(30)
        .next()
        .expect("kept")
        .expect("readable")
        .id;
    assert_eq!(first, 31);
    let mut rig = rig.kill();
    rig.tick(20_000);
    assert_eq!(
        rig.journal
            .replay(30)
            .next()
            .expect("kept over a restart")
            .expect("readable")
            .id,
        31
    );
    rig.journal.keep_from(60);
    rig.tick(30_000);
    assert!(rig.segments("data").is_empty());
}

#[test]
fn quota_drops_the_oldest_data_and_says_so_in_its_place() {
    let mut rig = Rig::new(small());
    for n in 1..=40 {
        rig.append_synced([alarm(n)]);
    }
    for n in 1..=5000 {
        rig.append_synced([data(n)]);
    }
    let stat = rig.journal.stat();
    assert!(stat.warm_bytes <= small().warm_max_bytes);
    assert_eq!(
        rig.bodies(Lane::Alarms).len(),
        40,
        "never an alarm before data"
    );
    let records = rig.read_all(Lane::Data);
    assert_chained(&records);
    let told: Vec<_> = records
        .iter()
        .filter(|record| record.data.class == Class::Gap)
        .collect();
    assert_eq!(
        told.len(),
        1,
        "neighbouring drops are one gap while nobody reads"
    );
    let body = gap(told[0]);
    assert_eq!(body["cause"], "quota");
    assert_eq!(body["from"], 41);
    assert_eq!(
        body["count"].as_u64().expect("a number") + records.len() as u64 - 1,
        5000
    );
    assert_eq!(body["count"], rig.journal.counts().dropped["quota"]);
    assert_eq!(body["last_ms"], records[1].data.received_ms - 1);
    // The bridge drains what is left; everything is accounted for.
    let last = records.last().expect("some").id;
    rig.journal.ack(Lane::Data, last);
    rig.journal.ack(Lane::Alarms, 40);
    let counts = rig.journal.counts();
    assert_eq!(
        (counts.pending, counts.published),
        (0, records.len() as u64 + 40)
    );
    assert_eq!(counts.received, 5000);
    assert_eq!(counts.derived, 41);
}

#[test]
fn gap_that_was_read_is_not_changed_any_more() {
    let mut rig = Rig::new(small());
    for n in 1..=5000 {
        rig.append_synced([data(n)]);
    }
    let first = rig.journal.read(Lane::Data, 0, 1, 1000).expect("readable");
    for n in 5001..=7000 {
        rig.append_synced([data(n)]);
    }
    let second = rig
        .journal
        .read(Lane::Data, first[0].id, 1, 1000)
        .expect("readable");
    assert_eq!(second[0].data.class, Class::Gap);
    assert_eq!(second[0].prev, first[0].id);
    assert_eq!(gap(&second[0])["from"], first[0].id + 1);
    // An acknowledgement of what has been dropped meanwhile moves nothing behind the gap.
    rig.journal.ack(Lane::Data, first[0].id);
    rig.journal.ack(Lane::Data, first[0].id + 3);
    rig.check();
    assert_eq!(rig.journal.cursor(Lane::Data), first[0].id);
    rig.journal.ack(Lane::Data, second[0].id);
    rig.check();
    assert_eq!(rig.journal.counts().published, 2);
}

#[test]
fn partly_delivered_segment_counts_only_the_rest_as_dropped() {
    let mut rig = Rig::new(small());
    rig.append_synced((1..=10).map(data));
    rig.journal.ack(Lane::Data, 4);
    for n in 11..=5000 {
        rig.append_synced([data(n)]);
    }
    let records = rig
        .journal
        .read(Lane::Data, 4, 10, 1 << 20)
        .expect("readable");
    assert_eq!(
        (gap(&records[0])["from"].as_u64(), records[0].prev),
        (Some(5), 4)
    );
    let counts = rig.journal.counts();
    assert_eq!(counts.published, 4);
    assert_eq!(counts.dropped["quota"] + counts.pending - 1, 4996);
}

#[test]
fn alarms_alone_may_use_the_quota_and_then_go_with_a_gap_among_the_data() {
    let mut rig = Rig::new(small());
    for n in 1..=20_000 {
        rig.append_synced([alarm(n)]);
    }
    let counts = rig.journal.counts();
    assert!(counts.dropped["quota"] > 0);
    assert!(rig.journal.stat().warm_bytes <= small().warm_max_bytes);
    assert!(
        rig.read_all(Lane::Data)
            .iter()
            .any(|record| record.data.class == Class::Gap)
    );
    assert!(
        rig.read_all(Lane::Alarms)
            .iter()
            .all(|record| record.data.class == Class::Alarm)
    );
    assert_eq!(
        rig.read_all(Lane::Alarms).len() as u64,
        rig.journal.lane_state(Lane::Alarms).pending
    );
}

#[test]
fn without_a_bridge_records_age_out_as_filtered() {
    let mut rig = Rig::new(Config {
        warm_ttl_ms: 1000,
        ..small()
    });
    rig.journal.set_bridged(false);
    for n in 1..=60 {
        rig.append_synced([data(n)]);
    }
    rig.tick(10_000);
    let counts = rig.journal.counts();
    assert!(counts.filtered >= 40 && counts.pending <= 20, "{counts:?}");
    assert_eq!(rig.segments("data").len(), 1);
    // Quota without a bridge drops nothing: what leaves is filtered.
    for n in 61..=5000 {
        rig.append_synced([data(n)]);
    }
    assert!(rig.journal.counts().dropped.is_empty());
    assert!(rig.journal.stat().warm_bytes <= small().warm_max_bytes);
}

#[test]
fn quota_prefers_what_a_snapshot_needs_to_losing_undelivered_data() {
    let mut rig = Rig::new(small());
    rig.journal.keep_from(0);
    for n in 1..=5000 {
        rig.append_synced([data(n)]);
        rig.journal.ack(Lane::Data, n - 1);
    }
    assert!(rig.journal.counts().dropped.is_empty());
    assert!(rig.journal.stat().snapshot_overrun > 0);
}

#[test]
fn counts_hold_over_restarts() {
    let mut rig = Rig::new(small());
    for round in 0..20u64 {
        for n in 1..=200 {
            rig.append_synced([data(n)]);
        }
        rig.append_synced([alarm(round)]);
        rig.journal
            .dropped(crate::buffer::record::Origin::Received, "memory", 3);
        let some = rig
            .journal
            .read(Lane::Data, rig.journal.cursor(Lane::Data), 150, 1 << 20)
            .expect("readable");
        rig.journal
            .ack_split(Lane::Data, some.last().expect("some").id, 10);
        rig.tick(round * 1000);
        let before = rig.journal.counts();
        rig = if round % 2 == 0 {
            rig.kill()
        } else {
            Rig::open(rig.close(), small())
        };
        assert_eq!(rig.journal.counts(), before);
    }
    let counts = rig.journal.counts();
    assert_eq!(counts.filtered, 200);
    assert_eq!(counts.dropped["memory"], 60);
    assert_eq!(counts.received, 20 * 203);
}
