//! The journal against a plain list: random actions, crashes with any subset of unsynced writes, reopenings.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::{Rig, assert_chained, record, small};
use crate::buffer::Config;
use crate::buffer::record::{Class, LANES, Lane, Record, RecordId};

#[derive(Debug, Clone)]
enum Action {
    Append { alarm: bool, len: usize },
    Write,
    Sync,
    Read { alarms: bool, max: usize },
    Ack { alarms: bool, back: u64 },
    Tick { ms: u64 },
    KeepFrom { back: u64 },
    Close,
    Kill,
    PowerCut { luck: u64 },
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        12 => (any::<bool>(), 0usize..300).prop_map(|(alarm, len)| Action::Append { alarm: alarm && len < 60, len }),
        2 => Just(Action::Write),
        5 => Just(Action::Sync),
        4 => (any::<bool>(), 1usize..20).prop_map(|(alarms, max)| Action::Read { alarms, max }),
        3 => (any::<bool>(), 0u64..30).prop_map(|(alarms, back)| Action::Ack { alarms, back }),
        2 => (1u64..2000).prop_map(|ms| Action::Tick { ms }),
        1 => (0u64..50).prop_map(|back| Action::KeepFrom { back }),
        1 => Just(Action::Close),
        1 => Just(Action::Kill),
        1 => any::<u64>().prop_map(|luck| Action::PowerCut { luck }),
    ]
}

/// What the journal should hold: every record ever appended, by lane and id, and what is known of each.
#[derive(Default)]
struct Model {
    records: BTreeMap<(Lane, RecordId), Arc<Record>>,
    acked: BTreeMap<Lane, RecordId>,
    read_to: BTreeMap<Lane, RecordId>,
    durable: RecordId,
    now: u64,
}

impl Model {
    fn acked(&self, lane: Lane) -> RecordId {
        self.acked.get(&lane).copied().unwrap_or(0)
    }

    /// What readers get after a place: real records as they were appended, `gap`s where something is lost.
    fn check_reads(&self, rig: &Rig, lane: Lane, after: RecordId, got: &[Arc<Record>]) {
        // `gap` records are kept until they are delivered; before the cursor the chain may show holes.
        let cursor = rig.journal.cursor(lane);
        let pending: Vec<_> = got
            .iter()
            .filter(|record| record.id >= cursor)
            .cloned()
            .collect();
        assert_chained(&pending);
        for record in got {
            assert!(record.id > after);
            if record.data.class == Class::Gap {
                continue;
            }
            let expect = self.records.get(&(lane, record.id)).expect("appended once");
            assert_eq!(record, expect);
        }
        rig.check();
    }

    /// Nothing that was durable and not acknowledged is missing without a `gap` in its place.
    fn check_complete(&self, rig: &Rig) {
        for lane in LANES {
            let all = rig.read_all(lane);
            self.check_reads(rig, lane, 0, &all);
            let mut gaps = Vec::new();
            let mut got = std::collections::BTreeSet::new();
            for record in &all {
                if record.data.class == Class::Gap {
                    let body = super::gap(record);
                    gaps.push(
                        body["from"].as_u64().expect("id")..=body["to"].as_u64().expect("id"),
                    );
                } else {
                    got.insert(record.id);
                }
            }
            for (of, id) in self.records.keys() {
                let owed = *of == lane && *id <= self.durable && *id > self.acked(lane);
                if owed && !got.contains(id) {
                    let told = gaps.iter().any(|gap| gap.contains(id)) || lane == Lane::Alarms;
                    assert!(told, "record {id} of {lane:?} is gone without a word");
                }
            }
            let after_cursor = all
                .iter()
                .filter(|record| record.id > rig.journal.cursor(lane))
                .count() as u64;
            assert_eq!(
                after_cursor,
                rig.journal.lane_state(lane).pending,
                "{lane:?}"
            );
        }
    }
}

fn lane_of(alarms: bool) -> Lane {
    if alarms { Lane::Alarms } else { Lane::Data }
}

fn run(actions: Vec<Action>, config: &Config) {
    let mut model = Model::default();
    let mut rig = Rig::new(config.clone());
    for (n, action) in actions.into_iter().enumerate() {
        match action {
            Action::Append { alarm, len } => {
                let class = if alarm { Class::Alarm } else { Class::Data };
                let body = vec![n as u8; len];
                if let Ok(record) = rig.journal.append(record(class, &body, model.now + 1)) {
                    model.records.insert((class.lane(), record.id), record);
                }
            }
            Action::Write => rig.writer.round(false).expect("a healthy disk"),
            Action::Sync => {
                rig.sync();
                model.durable = rig.journal.durable_id();
            }
            Action::Read { alarms, max } => {
                let lane = lane_of(alarms);
                let after = model
                    .read_to
                    .get(&lane)
                    .copied()
                    .unwrap_or(0)
                    .max(rig.journal.cursor(lane));
                let got = rig
                    .journal
                    .read_durable(lane, after, max, 2000)
                    .expect("readable");
                model.check_reads(&rig, lane, after, &got);
                if let Some(last) = got.last() {
                    model.read_to.insert(lane, last.id);
                }
            }
            Action::Ack { alarms, back } => {
                let lane = lane_of(alarms);
                let up_to = model
                    .read_to
                    .get(&lane)
                    .copied()
                    .unwrap_or(0)
                    .saturating_sub(back);
                rig.journal.ack_split(lane, up_to, back);
                model.acked.insert(lane, model.acked(lane).max(up_to));
            }
            Action::Tick { ms } => {
                model.now += ms;
                rig.tick(model.now);
            }
            Action::KeepFrom { back } => rig.journal.keep_from(model.durable.saturating_sub(back)),
            Action::Close => {
                let config = rig.config.clone();
                rig = Rig::open(rig.close(), config);
                model.durable = model.durable.max(rig.journal.durable_id());
                model.check_complete(&rig);
            }
            Action::Kill => {
                model.durable = model.durable.max(rig.journal.durable_id());
                rig = rig.kill();
                forget_unread(&mut model, &rig);
                model.check_complete(&rig);
            }
            Action::PowerCut { luck } => {
                model.durable = model.durable.max(rig.journal.durable_id());
                let disk = rig.disk.crash(|n| luck >> (n % 64) & 1 == 1);
                rig = Rig::open(disk, rig.config.clone());
                forget_unread(&mut model, &rig);
                model.check_complete(&rig);
            }
        }
        rig.check();
        let counts = rig.journal.counts();
        let lanes: u64 = LANES
            .iter()
            .map(|lane| rig.journal.lane_state(*lane).pending)
            .sum();
        assert_eq!(counts.pending, lanes);
        assert!(rig.journal.stat().warm_bytes <= rig.config.warm_max_bytes);
    }
    rig.sync();
    model.durable = rig.journal.durable_id();
    model.check_complete(&rig);
}

/// After a crash the cursor may be behind; a bridge starts from the stream again. Records that were not
/// durable may be gone, and nobody is owed them.
fn forget_unread(model: &mut Model, rig: &Rig) {
    let durable = model.durable;
    let left: std::collections::BTreeSet<_> = LANES
        .iter()
        .flat_map(|lane| rig.read_all(*lane))
        .map(|record| record.id)
        .collect();
    model
        .records
        .retain(|(_, id), _| *id <= durable || left.contains(id));
    for lane in LANES {
        model
            .read_to
            .insert(lane, model.acked(lane).max(rig.journal.cursor(lane)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn journal_agrees_with_a_list(actions in proptest::collection::vec(action(), 1..250)) {
        run(actions, &Config { warm_max_bytes: 256 << 10, ..small() });
    }

    #[test]
    fn journal_agrees_with_a_list_under_a_tight_quota(actions in proptest::collection::vec(action(), 1..250)) {
        run(actions, &Config { warm_max_bytes: 64 << 10, segment_bytes: 512, hot_max_bytes: 512, ..small() });
    }
}
