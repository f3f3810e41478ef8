//! Alarms of the program itself: the same states, listing and snapshots as those of rules.

use super::*;
use crate::AlarmError;
use crate::output::{AlarmEvent, Priority};

fn told(word: &str, of: &str, message: &str, until_ack: bool) -> OwnAlarm {
    OwnAlarm {
        rule: "sparkgate.part".into(),
        version: "1".into(),
        word: word.into(),
        of: of.into(),
        priority: Priority::High,
        message: message.into(),
        until_ack,
    }
}

fn events(engine: &mut Engine) -> Vec<AlarmEvent> {
    let all = std::iter::from_fn(|| engine.poll_output());
    all.filter_map(|output| match output {
        Output::Alarm(event) => Some(event),
        _ => None,
    })
    .collect()
}

fn words(engine: &mut Engine) -> Vec<String> {
    let word = |e: &AlarmEvent| format!("{} {} {}", e.event, e.state, e.message);
    events(engine).iter().map(word).collect()
}

fn restored(engine: &mut Engine) -> Engine {
    engine.mark_all_dirty();
    let mut again = Engine::new(Vec::new(), Limits::default());
    for (key, bytes) in engine.dirty_keys() {
        again.restore(&key, &bytes.unwrap()).unwrap();
    }
    again.advance_to(engine.now());
    again
}

#[test]
fn a_condition_is_raised_acknowledged_and_cleared_under_one_id() {
    let mut engine = Engine::new(Vec::new(), Limits::default());
    engine.raise_own(told("late", "m", "late by 2", false), 10);
    engine.raise_own(told("late", "m", "late by 2", false), 20);
    engine.raise_own(told("late", "m", "late by 9", false), 30);
    assert_eq!(engine.alarm_counts(), (1, 1));
    let listed = engine.alarms();
    let id = listed[0].id.clone();
    assert_eq!(
        (&*listed[0].key.group, &*listed[0].message),
        ("", "late by 9")
    );
    assert_eq!(
        engine.ack_alarm(&id, "eve", "seen", 40),
        Ok(AlarmStatus::Ack)
    );
    engine.clear_own("sparkgate.part", "late", "other", 50);
    engine.clear_own("sparkgate.part", "late", "m", 60);
    engine.clear_own("sparkgate.part", "late", "m", 70);
    let all = events(&mut engine);
    assert!(all.iter().all(|event| event.id == id));
    let got: Vec<(AlarmAction, AlarmStatus)> = all.iter().map(|e| (e.event, e.state)).collect();
    assert_eq!(
        got,
        [
            (AlarmAction::Raise, AlarmStatus::Unack),
            (AlarmAction::Change, AlarmStatus::Unack),
            (AlarmAction::Ack, AlarmStatus::Ack),
            (AlarmAction::Clear, AlarmStatus::Normal),
        ]
    );
    assert_eq!(engine.alarms(), []);
    // The next time is another occurrence; nobody saw this one before it was over.
    engine.raise_own(told("late", "m", "late by 3", false), 80);
    engine.clear_own("sparkgate.part", "late", "m", 90);
    assert_eq!(
        words(&mut engine),
        ["raise unack late by 3", "clear rtn-unack late by 3"]
    );
    assert_ne!(engine.alarms()[0].id, id);
}

#[test]
fn what_has_no_end_ends_with_its_acknowledgement() {
    let mut engine = Engine::new(Vec::new(), Limits::default());
    engine.raise_own(told("broken", "", "entry 7 is gone", true), 10);
    let id = engine.alarms()[0].id.clone();
    let ack = engine.ack_alarm(&id, "eve", "", 20);
    assert_eq!(ack, Ok(AlarmStatus::Normal));
    assert_eq!(
        words(&mut engine),
        [
            "raise unack entry 7 is gone",
            "ack normal entry 7 is gone",
            "clear normal entry 7 is gone"
        ]
    );
    assert!(matches!(
        engine.ack_alarm(&id, "eve", "", 30),
        Err(AlarmError::Unknown { .. })
    ));
}

#[test]
fn snapshots_and_shelves_go_on_over_a_restart() {
    let mut engine = Engine::new(Vec::new(), Limits::default());
    engine.raise_own(told("late", "m", "late", false), 10);
    engine.raise_own(told("broken", "", "broken", true), 10);
    let late = engine.alarms().into_iter().find(|a| &*a.message == "late");
    let late = late.unwrap().id;
    engine.shelve_alarm(&late, "eve", 1_000, 20).unwrap();
    assert_eq!(engine.poll_timeout(), Some(1_020));
    let before = engine.alarms();
    let mut again = restored(&mut engine);
    assert_eq!(again.alarms(), before);
    assert_eq!(again.dirty_keys(), []);
    assert_eq!(again.poll_timeout(), Some(1_020));
    events(&mut engine);
    again.advance_to(2_000);
    assert_eq!(words(&mut again), ["unshelve unack late"]);
    again.clear_own("sparkgate.part", "late", "m", 2_000);
    again.ack_alarm(&late, "eve", "", 2_001).unwrap();
    let entries = again.dirty_keys();
    assert!(
        entries.iter().any(|(_, bytes)| bytes.is_none()),
        "{entries:?}"
    );
    let names: Vec<_> = again.active_own().map(|own| own.word.clone()).collect();
    assert_eq!(names, ["broken".into()]);
}

#[test]
fn beyond_the_bound_the_oldest_goes_one_that_is_over_first() {
    let mut engine = Engine::new(Vec::new(), Limits::default());
    for n in 0..256u64 {
        engine.raise_own(told("w", &n.to_string(), &n.to_string(), true), n);
    }
    engine.clear_own("sparkgate.part", "w", "9", 300);
    events(&mut engine);
    engine.raise_own(told("w", "x", "x", true), 301);
    assert_eq!(words(&mut engine), ["raise unack x"], "9 was over");
    engine.raise_own(told("w", "y", "y", true), 302);
    assert_eq!(words(&mut engine), ["clear rtn-unack 0", "raise unack y"]);
    assert_eq!(engine.alarms().len(), 256);
    assert!(!engine.counts().flood);
}
