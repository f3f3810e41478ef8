//! Full, slow and failing disks.

use super::{Rig, alarm, data, small};
use crate::buffer::crash::Faults;
use crate::buffer::record::{Lane, Origin};
use crate::buffer::{AppendError, Config, DiskState};

/// Room for the ledger and a few segments.
const LEDGER: u64 = 512 << 10;

fn full_at(rig: &Rig, more: u64) {
    let capacity = Some(rig.disk.used() + more);
    rig.disk.set_faults(Faults {
        capacity,
        ..Faults::default()
    });
}

#[test]
fn full_disk_refuses_and_heals() {
    let mut rig = Rig::new(small());
    rig.append_synced((1..=3).map(data));
    full_at(&rig, 100);
    let mut refused = None;
    for n in 4..1000 {
        match rig.journal.append(data(n)) {
            Ok(_) => rig.sync(),
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    let Some(AppendError::Full(back)) = refused else {
        panic!("{refused:?}")
    };
    rig.journal.dropped(Origin::Received, "disk_full", 1);
    rig.check();
    assert_eq!(rig.journal.stat().disk_state, DiskState::Full);
    let stuck = rig.journal.last_id(Lane::Data);
    assert!(
        rig.journal.durable_id() < stuck,
        "the one that found the disk full waits"
    );
    rig.tick(1);
    assert_eq!(rig.journal.stat().disk_state, DiskState::Full);
    // Space returns: the waiting record is written, new ones are taken.
    rig.disk.set_faults(Faults::default());
    rig.tick(2);
    rig.sync();
    assert_eq!(rig.journal.stat().disk_state, DiskState::Ok);
    assert_eq!(rig.journal.durable_id(), stuck);
    rig.append_synced([*back]);
    let all = rig.bodies(Lane::Data).len() as u64;
    let rig = rig.power_cut();
    assert_eq!(rig.bodies(Lane::Data).len() as u64, all);
}

#[test]
fn alarms_go_on_from_the_reserve_while_the_disk_is_full() {
    let config = Config {
        reserve_bytes: 8 << 10,
        ..small()
    };
    let mut rig = Rig::new(config);
    full_at(&rig, 3 << 10);
    while rig.journal.append(data(1)).is_ok() {
        rig.sync();
    }
    for n in 0..20 {
        rig.append_synced([alarm(n)]);
    }
    assert!(!rig.disk.files().contains_key("reserve"));
    assert_eq!(
        rig.journal.durable_in(Lane::Alarms),
        rig.journal.last_id(Lane::Alarms)
    );
    assert!(rig.journal.append(data(2)).is_err());
    rig.disk.set_faults(Faults::default());
    rig.tick(5);
    rig.sync();
    assert!(rig.disk.files().contains_key("reserve"));
    assert!(rig.journal.append(data(2)).is_ok());
}

#[test]
fn watermark_keeps_the_last_bytes_free() {
    let config = Config {
        min_free_bytes: 10 << 10,
        ..small()
    };
    let mut rig = Rig::new(config);
    rig.disk.set_faults(Faults {
        capacity: Some(LEDGER + (15 << 10)),
        ..Faults::default()
    });
    let mut n = 0;
    while rig.journal.append(data(n)).is_ok() {
        n += 1;
        rig.sync();
        assert!(n < 10_000);
    }
    assert!(rig.disk.used() <= LEDGER + (5 << 10));
    rig.append_synced([alarm(1)]);
    assert_eq!(rig.bodies(Lane::Alarms), ["alarm 1"]);
}

#[test]
fn full_disk_gives_up_what_is_acknowledged_first() {
    let config = Config {
        keep_acked_ms: 1_000_000,
        warm_ttl_ms: 1_000_000,
        ..small()
    };
    let mut rig = Rig::new(config);
    for n in 1..=100 {
        rig.append_synced([data(n)]);
    }
    rig.journal.ack(Lane::Data, 80);
    rig.tick(200);
    let kept = rig.segments("data").len();
    full_at(&rig, 0);
    for n in 101..=200 {
        rig.append_synced([data(n)]);
        rig.journal.ack(Lane::Data, n - 20);
    }
    assert_eq!(rig.journal.counts().dropped.len(), 0);
    assert!(rig.journal.stat().grace_cut > 0);
    assert!(rig.segments("data").len() <= kept + 1);
    assert_eq!(rig.journal.counts().pending, 20);
}

#[test]
fn restart_on_a_full_disk() {
    let mut rig = Rig::new(small());
    for n in 1..=50 {
        rig.append_synced([data(n)]);
    }
    let disk = rig.disk.kill();
    disk.set_faults(Faults {
        capacity: Some(disk.used()),
        ..Faults::default()
    });
    let mut rig = Rig::open(disk, small());
    assert_eq!(rig.bodies(Lane::Data).len(), 50);
    rig.journal.ack(Lane::Data, 50);
    rig.tick(1000);
    // What was trimmed made room.
    rig.append_synced([data(51)]);
    assert_eq!(rig.journal.stat().disk_state, DiskState::Ok);
}

#[test]
fn failed_fsync_stops_for_good_and_is_never_retried() {
    let mut rig = Rig::new(small());
    rig.append_synced([data(1)]);
    let failed = rig.journal.failed();
    rig.append(data(2));
    rig.disk.set_faults(Faults {
        fail_sync: true,
        ..Faults::default()
    });
    rig.journal.want_sync();
    assert!(rig.writer.round(false).is_err());
    rig.disk.set_faults(Faults::default());
    let syncs = rig.disk.syncs();
    assert!(
        failed
            .borrow()
            .as_ref()
            .is_some_and(|reason| reason.contains("fsync"))
    );
    assert!(matches!(
        rig.journal.append(data(3)),
        Err(AppendError::Stopped)
    ));
    assert_eq!(rig.journal.durable_id(), 1);
    assert_eq!(rig.disk.syncs(), syncs);
    assert_eq!(rig.journal.stat().disk_state, DiskState::Stopped);
    assert!(rig.journal.close(std::time::Duration::ZERO).is_err());
    let rig = rig.power_cut();
    assert_eq!(rig.bodies(Lane::Data), ["data 1"]);
}

#[test]
fn failed_write_stops_for_good() {
    let mut rig = Rig::new(small());
    rig.append_synced([data(1)]);
    rig.append(data(2));
    rig.disk.set_faults(Faults {
        fail_write: true,
        ..Faults::default()
    });
    rig.journal.want_sync();
    assert!(rig.writer.round(false).is_err());
    assert!(matches!(
        rig.journal.append(data(3)),
        Err(AppendError::Stopped)
    ));
}

#[test]
fn unreadable_sectors_are_told_as_lost() {
    let mut rig = Rig::new(small());
    for n in 1..=60 {
        rig.append_synced([data(n)]);
    }
    rig.tick(100_000);
    let rig = Rig::open(rig.close(), small());
    rig.disk.set_faults(Faults {
        fail_read: true,
        ..Faults::default()
    });
    let records = rig.read_all(Lane::Data);
    rig.check();
    assert!(
        records
            .iter()
            .all(|record| record.data.class == crate::buffer::record::Class::Gap)
    );
    assert_eq!(rig.journal.counts().dropped["lost"], 60);
}

#[test]
fn disk_that_falls_behind_refuses_instead_of_growing() {
    let config = Config {
        unwritten_max_bytes: 20 << 10,
        ..small()
    };
    let rig = Rig::new(config);
    let mut n = 0;
    while rig.journal.append(data(n)).is_ok() {
        n += 1;
    }
    assert!(n > 10 && rig.journal.stat().unsynced_bytes <= 20 << 10);
    // Alarms still get in.
    assert!(rig.journal.append(alarm(1)).is_ok());
}

#[test]
fn batch_is_taken_whole_or_not_at_all() {
    let config = Config {
        unwritten_max_bytes: 4 << 10,
        ..small()
    };
    let rig = Rig::new(config);
    assert_eq!(
        rig.journal
            .append_batch((1..=3).map(data).collect())
            .expect("room")
            .len(),
        3
    );
    let error = rig
        .journal
        .append_batch((4..=60).map(data).collect())
        .expect_err("no room");
    let crate::buffer::BatchError::Full(back) = error else {
        panic!("{error}")
    };
    assert_eq!(back.len(), 57);
    assert_eq!(rig.journal.last_id(Lane::Data), 3);
    rig.check();
}
