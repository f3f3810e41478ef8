//! Alarms through the engine: people, floods, deaths, reload.

use super::*;
use crate::AlarmError;

const HOT: &str = r#"
[[rule]]
id = "hot"
[rule.threshold]
metric = "T"
high = 80.0
[rule.alarm]
priority = "high"
latch = true
message = "{device} {value}"
response = "cool it"
"#;

fn hot() -> (Plant, String) {
    let mut plant = Plant::new(HOT);
    plant.set(1, "a", "T", 90.0);
    assert_eq!(
        plant.said(),
        ["1 hot a match", "1 hot a raise unack \"a 90\""]
    );
    let id = plant.engine.alarms()[0].id.to_string();
    (plant, id)
}

#[test]
fn a_latched_alarm_goes_through_all_its_states() {
    let (mut plant, id) = hot();
    assert_eq!(plant.engine.alarm_counts(), (1, 1));
    assert_eq!(
        plant.engine.reset_alarm(&id, "eve", 2),
        Err(AlarmError::StillActive)
    );
    assert_eq!(
        plant.engine.ack_alarm(&id, "eve", "on my way", 3),
        Ok(AlarmStatus::Ack)
    );
    let twice = plant.engine.ack_alarm(&id, "bob", "", 4);
    assert_eq!(twice, Err(AlarmError::AlreadyAcked { by: "eve".into() }));
    plant.set(5, "a", "T", 70.0);
    assert_eq!(
        plant.engine.reset_alarm(&id, "eve", 6),
        Ok(AlarmStatus::Normal)
    );
    let expected = [
        "3 hot a ack ack \"a 90\"",
        "5 hot a clear latched-ack \"a 90\"",
        "6 hot a reset normal \"a 90\"",
    ];
    assert_eq!(plant.said(), expected);
    assert_eq!(plant.engine.alarms(), []);
    let gone = plant.engine.ack_alarm(&id, "eve", "", 7);
    assert_eq!(gone, Err(AlarmError::Unknown { id }));
}

#[test]
fn a_new_occurrence_has_a_new_id() {
    let (mut plant, id) = hot();
    plant.set(2, "a", "T", 70.0).set(3, "a", "T", 95.0);
    let alarms = plant.engine.alarms();
    assert_eq!(alarms.len(), 1);
    assert_ne!(*alarms[0].id, *id);
    assert_eq!(alarms[0].response.as_deref(), Some("cool it"));
}

#[test]
fn shelving_ends_by_itself_and_hides_nothing_upstream() {
    let (mut plant, id) = hot();
    assert_eq!(
        plant.engine.shelve_alarm(&id, "eve", 1_000, 10),
        Ok(AlarmStatus::Shelved)
    );
    assert_eq!(plant.engine.alarm_counts(), (0, 0));
    let too_long = plant.engine.shelve_alarm(&id, "eve", u64::MAX, 10);
    assert!(matches!(too_long, Err(AlarmError::TooLong { .. })));
    plant
        .set(20, "a", "T", 70.0)
        .set(30, "a", "T", 99.0)
        .run_to(2_000);
    let expected = [
        "10 hot a shelve shelved \"a 90\"",
        "20 hot a clear shelved \"a 90\"",
        "30 hot a match",
        "30 hot a raise shelved \"a 99\"",
        "1010 hot a unshelve unack \"a 99\"",
    ];
    assert_eq!(plant.said(), expected);
}

#[test]
fn suppression_and_service_stand_above_shelving() {
    let (mut plant, id) = hot();
    let engine = &mut plant.engine;
    assert_eq!(
        engine.shelve_alarm(&id, "eve", 0, 2),
        Ok(AlarmStatus::Shelved)
    );
    assert_eq!(
        engine.suppress_alarm(&id, "eve", true, 2),
        Ok(AlarmStatus::Suppressed)
    );
    assert_eq!(
        engine.service_alarm(&id, "eve", true, 2),
        Ok(AlarmStatus::OutOfService)
    );
    assert_eq!(
        engine.service_alarm(&id, "eve", false, 3),
        Ok(AlarmStatus::Suppressed)
    );
    assert_eq!(
        engine.suppress_alarm(&id, "eve", false, 3),
        Ok(AlarmStatus::Shelved)
    );
    plant.said();
    plant.set(4, "a", "T", 70.0);
    let expected = [
        "4 hot a clear latched-unack \"a 90\"",
        "4 hot a unshelve latched-unack \"a 90\"",
    ];
    assert_eq!(plant.said(), expected, "until it clears");
}

#[test]
fn a_normal_alarm_can_be_held_by_its_address() {
    let mut plant = Plant::new(HOT);
    plant.set(1, "a", "T", 20.0);
    let address = "hot@g/n/a";
    assert_eq!(
        plant.engine.suppress_alarm(address, "eve", true, 2),
        Ok(AlarmStatus::Suppressed)
    );
    plant.set(3, "a", "T", 90.0);
    let said = plant.said();
    assert!(said[0].starts_with("2 hot a suppress suppressed"));
    assert_eq!(said[2], "3 hot a raise suppressed \"a 90\"");
    assert!(
        plant
            .engine
            .suppress_alarm("hot@g/n/zzz", "eve", true, 4)
            .is_err()
    );
}

#[test]
fn a_dead_source_is_no_return_to_normal() {
    let (mut plant, _) = hot();
    plant.death(2, "a").run_to(100_000);
    assert_eq!(plant.said(), ["2 hot a change unack stale \"a 90\""]);
    assert!(plant.engine.alarms()[0].stale);
    plant.birth(100_001, "a").set(100_002, "a", "T", 20.0);
    let expected = [
        "100001 hot a change unack \"a 90\"",
        "100002 hot a clear latched-unack \"a 90\"",
    ];
    assert_eq!(plant.said(), expected);
}

#[test]
fn a_pattern_alarm_without_a_condition_ends_with_its_acknowledgement() {
    let rules = r#"
        [[rule]]
        id = "p"
        [rule.pattern]
        stages = [{ name = "x", when = 'metric == "T" && value > 1.0' }]
        [rule.alarm]
        message = "{x.value:.1}"
    "#;
    let mut plant = Plant::new(rules);
    plant
        .set(1, "a", "T", 2.0)
        .set(2, "a", "T", 3.25)
        .set(3, "a", "T", 0.0);
    let id = plant.engine.alarms()[0].id.to_string();
    assert_eq!(
        plant.engine.ack_alarm(&id, "eve", "", 4),
        Ok(AlarmStatus::Normal)
    );
    let expected = [
        "1 p a match",
        "1 p a raise unack \"2.0\"",
        "2 p a match",
        "2 p a change unack \"3.2\"",
        "4 p a ack normal \"3.2\"",
        "4 p a clear normal \"3.2\"",
    ];
    assert_eq!(plant.said(), expected);
}

#[test]
fn eleven_alarms_are_a_flood() {
    let mut plant = Plant::new(HOT);
    for n in 0..11u64 {
        plant.set(n, &format!("d{n}"), "T", 90.0);
    }
    plant.run_to(1_000_000);
    let said = plant.said();
    let flood: Vec<&String> = said.iter().filter(|s| s.contains("alarm-flood")).collect();
    assert_eq!(flood.len(), 2, "{flood:?}");
    assert!(flood[0].starts_with("10 alarm-flood d10 raise ack"));
    assert!(flood[1].contains("clear normal"));
}

#[test]
fn an_alarm_that_flaps_is_kept_until_it_is_calm() {
    let rules = HOT.replace("latch = true", "flap = { count = 3, within = \"60s\" }");
    let mut plant = Plant::new(&rules);
    for n in 0..5u64 {
        plant
            .set(n * 1_000, "a", "T", 90.0)
            .set(n * 1_000 + 500, "a", "T", 70.0);
    }
    plant.run_to(200_000);
    let said = plant.said();
    let raised = said.iter().filter(|s| s.contains("raise")).count();
    assert_eq!(raised, 3, "{said:?}");
    assert_eq!(said.last().unwrap(), "64500 hot a clear rtn-unack \"a 90\"");
}

#[test]
fn a_new_limit_keeps_the_alarm_and_carries_the_new_version() {
    let (mut plant, id) = hot();
    let text = format!(
        "[pack]\nid = \"p\"\nversion = \"2\"\n{}",
        HOT.replace("80.0", "89.0")
    );
    let packs = load_packs(&[("p".to_owned(), text)]).unwrap();
    plant.engine.reload(packs);
    plant.engine.check_invariants();
    assert_eq!(*plant.engine.alarms()[0].id, *id);
    plant.set(2, "a", "T", 89.5).set(3, "a", "T", 88.0);
    let outputs = plant.outputs();
    let Some(Output::Alarm(event)) = outputs.last() else {
        panic!("{outputs:?}");
    };
    assert_eq!((event.event, &*event.version), (AlarmAction::Clear, "2"));
}

#[test]
fn a_rule_that_is_gone_leaves_no_alarm_behind() {
    let (mut plant, _) = hot();
    plant.engine.reload(Vec::new());
    plant.engine.check_invariants();
    let expected = [
        "1 hot a clear normal \"a 90\"",
        "1 hot a evicted 1 rule-changed",
    ];
    assert_eq!(plant.said(), expected);
    assert_eq!(plant.engine.alarms(), []);
    assert_eq!(plant.engine.poll_timeout(), None);
}

#[test]
fn a_rule_that_is_switched_off_stays_off_over_reload_and_restart() {
    let mut plant = Plant::new(HOT);
    assert!(!plant.engine.set_enabled("hit", false));
    assert!(plant.engine.set_enabled("hot", false));
    plant.engine.reload(packs(HOT));
    plant.set(1, "a", "T", 90.0);
    assert_eq!(plant.said(), [""; 0]);
    let mut again = Engine::new(packs(HOT), Limits::default());
    for (key, bytes) in plant.engine.dirty_keys() {
        again.restore(&key, &bytes.unwrap()).unwrap();
    }
    assert!(!again.list()[0].enabled);
}
