//! A core over a real journal: what it writes, replayed, gives the state that it had.

use std::sync::Arc;
use std::time::Instant;

use serde_json::Value as Json;
use sparkplug::host::{HostConfig, HostSession};

use super::core::{Core, Settings};
use super::own::{self, Own};
use super::recover::Restored;
use super::shard::Rules;
use super::{Appended, Ports};
use crate::actuation::{Actuation, Limits};
use crate::buffer::record::NewRecord;
use crate::buffer::{AppendError, Config, DiskStorage, Journal};
use crate::clock::Now;

struct JournalOnly(Journal);

impl Ports for JournalOnly {
    fn append(&mut self, record: NewRecord) -> Appended {
        match self.0.append(record) {
            Ok(record) => Appended::Stored(record),
            Err(AppendError::Full(record)) => Appended::Full(record),
            Err(AppendError::Stopped) => Appended::Stopped,
        }
    }
    fn publish(
        &mut self,
        _: sparkplug::host::Transmit,
        _: Option<super::latency::Stamp>,
    ) -> Result<(), super::Unsent> {
        Ok(())
    }
    fn mark(&self) -> Instant {
        Instant::now()
    }
    fn infer(&mut self, _: models::Request) {}
    fn embed(&mut self, _: models::text::TextRequest) {}
    fn roll_out(&mut self, _: super::rollouts::Order) {}
    fn dropped(&mut self, _: &NewRecord, _: &'static str) {}
}

/// 10 s over the objective is an alarm.
const SLOW: &str = r##"
[pack]
id = "p"
version = "1"
[[rule]]
id = "slow"
scope = { group = "#gateway", node = "models" }
[rule.threshold]
metric = "Latency"
high = 100.0
on_delay = "8s"
[rule.alarm]
message = "{device} {value}"
"##;

fn core(last_id: u64, workers: u32) -> Core {
    let packs = rules::load_packs(&[("p.toml".to_owned(), SLOW.to_owned())]).unwrap();
    let settings = Settings {
        gateway: "g".into(),
        epoch: "e".into(),
        dry_run: false,
        confirm_timeout_ms: 1_000,
        raw: false,
    };
    Core::new(
        settings,
        HostSession::new(HostConfig::default(), 0),
        Rules::new(packs, rules::Limits::default(), workers),
        None,
        Actuation::new(Limits::default()),
        last_id,
    )
}

fn at(engine_ms: u64) -> Now {
    Now {
        engine_ms,
        wall_ms: 1_800_000_000_000 + engine_ms,
        trusted: true,
    }
}

/// A second core that replays all of the journal.
fn replayed(journal: &Journal, workers: u32) -> (Core, Restored) {
    let mut again = core(0, workers);
    let mut restored = Restored::default();
    again
        .replay(journal, 0, &mut restored, &mut |_| {})
        .unwrap();
    (again, restored)
}

fn late(p95_us: u64) -> Vec<models::runner::ModelStatus> {
    let registry = models::Registry::embedded().unwrap();
    let runner = models::Runner::spawn(registry, models::RunnerConfig::default(), |_| ()).unwrap();
    let mut all = runner.status();
    for status in &mut all {
        status.p95_us = p95_us;
    }
    all
}

#[test]
fn a_replay_knows_the_figures_the_gateway_s_own_alarms_and_what_people_did() {
    story_and_replay(1);
}

#[test]
fn so_it_does_with_several_workers_for_the_rules() {
    story_and_replay(2);
}

fn story_and_replay(workers: u32) {
    let folder = tempfile::tempdir().unwrap();
    let storage = Arc::new(DiskStorage::open(folder.path()).unwrap());
    let (journal, _) = Journal::open(storage, Config::default()).unwrap();
    let mut ports = JournalOnly(journal.clone());
    let mut live = core(0, workers);
    live.rules().start().unwrap();
    let models = late(250_000);
    for n in 1..=3 {
        live.handle_figures(at(n * 5_000), &models, &mut ports);
        live.handle_timeout(at(n * 5_000), &mut ports);
    }
    let count = live.rules().alarms().len();
    assert_eq!(count, models.len(), "each model is slow for 8 s");

    for of in ["a", "b", "c"] {
        let told = Own::condition(own::MODELS, "objective", of, "late");
        live.tell(at(16_000), told, &mut ports);
        let told = Own::event(own::BRIDGE, "bridge-hole", of, "a hole", true);
        live.tell(at(16_100), told, &mut ports);
    }
    live.untell(at(17_000), own::MODELS, "objective", "b", &mut ports);
    let of = |core: &mut Core, message: &str| {
        let all = core.rules().alarms();
        let found = all.iter().find(|alarm| &*alarm.message == message);
        found.unwrap().id.to_string()
    };
    let hole = of(&mut live, "a hole");
    live.rules()
        .ack_alarm(&hole, "eve", "seen", 18_000)
        .unwrap();
    let slow = of(&mut live, "vibration-ae 250");
    live.rules()
        .shelve_alarm(&slow, "eve", 60_000, 19_000)
        .unwrap();
    live.settle(at(19_000), &mut ports);
    let action = serde_json::json!({"verb": "disable_rule", "rule": "slow", "by": "eve"});
    live.rules().set_enabled("slow", false);
    live.note_action(at(20_000), action, &mut ports);

    let before = live.rules().alarms();
    assert_eq!(before.len(), count + 5);
    let (mut again, restored) = replayed(&journal, workers);
    again.rules().start().unwrap();
    assert_eq!(again.rules().alarms(), before);
    assert_eq!(restored.completed, 0, "nothing is told a second time");
    assert!(!again.rules().list()[0].enabled);
    let entries = |core: &mut Core| {
        core.rules().mark_all_dirty();
        let mut entries = core.rules().dirty_keys();
        entries.sort();
        entries
    };
    assert_eq!(entries(&mut again), entries(&mut live));

    // Models that answer in time again, and one that is gone: what was told of them is over.
    let mut fast = models;
    fast.truncate(1);
    let end = |core: &mut Core, ports: &mut JournalOnly| {
        core.handle_figures(at(25_000), &fast, ports);
        let all = core.rules().alarms().into_iter();
        all.filter(|alarm| alarm.active && &*alarm.rule == "sparkgate.models")
            .count()
    };
    assert_eq!(end(&mut live, &mut ports), 0);
}

#[test]
fn where_no_rule_names_the_models_their_figures_are_no_records() {
    let folder = tempfile::tempdir().unwrap();
    let storage = Arc::new(DiskStorage::open(folder.path()).unwrap());
    let (journal, _) = Journal::open(storage, Config::default()).unwrap();
    let mut ports = JournalOnly(journal.clone());
    let mut live = core(0, 1);
    live.reload_rules(at(0), Vec::new(), &mut ports);
    live.handle_figures(at(5_000), &late(1), &mut ports);
    assert_eq!(live.last_record(), 0);
    let status: Vec<Json> = journal
        .replay(0)
        .map(|record| super::feed::body(&record.unwrap()))
        .collect();
    assert_eq!(status, [] as [Json; 0]);
}
