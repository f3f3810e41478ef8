//! Clocks of devices, absence, history.

use super::*;

const EVENT_TIME: &str = r#"
[[rule]]
id = "mean"
time = "event"
out_of_order = "1s"
[rule.window]
kind = "tumbling"
size = "10s"
metric = "T"
emit = { mean = 'avg(value)' }
"#;

#[test]
fn a_device_with_a_wrong_clock_silences_neither_itself_nor_others() {
    let mut plant = Plant::new(EVENT_TIME);
    plant.engine.set_wall(0, u64::try_from(WALL).unwrap());
    // pump-3 sends one value from tomorrow, then right ones.
    let mut event = plant.event(1_000, "pump-3", "T", Value::Double(9.0));
    event.time_ms += 86_400_000;
    plant.engine.handle_event(&event);
    for at in (2_000..=25_000).step_by(1_000) {
        plant
            .set(at, "pump-3", "T", 1.0)
            .set(at, "pump-5", "T", 2.0);
        let mut slow = plant.event(at, "pump-4", "T", Value::Double(3.0));
        slow.time_ms -= 90_000;
        plant.engine.handle_event(&slow);
    }
    let outputs = plant.outputs();
    let found: Vec<(&str, i64, String)> = matches(&outputs)
        .iter()
        .map(|m| {
            (
                m.key.device_name(),
                m.time_ms.unwrap() - WALL,
                m.values[0].1.to_string(),
            )
        })
        .collect();
    assert!(
        found.contains(&("pump-3", 10_000, "1.8888888888888888".to_owned())),
        "{found:?}"
    );
    assert!(found.contains(&("pump-5", 20_000, "2".to_owned())));
    assert!(found.contains(&("pump-4", -70_000, "3".to_owned())));
    assert_eq!(plant.engine.counts().future_timestamps, 1);
    assert!(!outputs.iter().any(|o| matches!(o, Output::Late(_))));
}

#[test]
fn late_events_are_put_out_and_counted() {
    let mut plant = Plant::new(EVENT_TIME);
    for (at, time) in [(1, 50_000), (2, 60_000), (3, 58_000)] {
        let mut event = plant.event(at, "a", "T", Value::Double(1.0));
        event.time_ms = time;
        plant.engine.handle_event(&event);
    }
    assert_eq!(plant.said(), ["3 mean a late 999"]);
    assert_eq!(plant.engine.list()[0].late, 1);
}

const SILENT: &str = r#"
[[rule]]
id = "silent"
[rule.absence]
metric = "Temp"
for = "60s"
[rule.alarm]
message = "{device}"
"#;

#[test]
fn absence_is_noticed_by_time_alone_once_and_clears_on_return() {
    let mut plant = Plant::new(SILENT);
    plant
        .set(1_000, "a", "Temp", 1.0)
        .set(50_000, "a", "Other", 1.0);
    assert_eq!(plant.engine.poll_timeout(), Some(61_000));
    plant.run_to(500_000);
    assert_eq!(
        plant.said(),
        ["61000 silent a match", "61000 silent a raise unack \"a\""]
    );
    plant.set(500_001, "a", "Temp", 1.0);
    assert_eq!(plant.said(), ["500001 silent a clear rtn-unack \"a\""]);
}

#[test]
fn a_restart_does_not_begin_the_wait_anew() {
    let mut plant = Plant::new(SILENT);
    plant.set(1_000, "a", "Temp", 1.0);
    let stored = plant.engine.dirty_keys();
    let mut again = Engine::new(packs(SILENT), Limits::default());
    for (key, bytes) in stored {
        again.restore(&key, &bytes.unwrap()).unwrap();
    }
    assert_eq!(again.poll_timeout(), Some(61_000));
}

#[test]
fn a_death_gives_its_own_reason_at_once() {
    let mut plant = Plant::new(SILENT);
    plant
        .set(1_000, "a", "Temp", 1.0)
        .death(30_000, "a")
        .run_to(200_000);
    let outputs = plant.outputs();
    let found = matches(&outputs);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].engine_ms, 30_000);
    assert_eq!(found[0].values[0], ("reason".into(), Value::from("death")));
    plant.birth(210_000, "a");
    assert_eq!(plant.said(), [""; 0], "a birth is no value");
    plant.set(211_000, "a", "Temp", 1.0);
    assert_eq!(plant.said(), ["211000 silent a clear rtn-unack \"a\""]);
}

#[test]
fn a_node_is_not_missed_for_what_its_devices_measure() {
    let mut plant = Plant::new(
        "[[rule]]\nid = \"r\"\nscope = { device = \"*\" }\nabsence = { metric = \"T\", for = \"60s\" }\nalarm = {}\n",
    );
    plant.engine.handle_birth(&Key::node("g", "n"), 0);
    plant.run_to(600_000);
    assert_eq!(plant.said(), [""; 0]);
}

#[test]
fn a_device_that_never_sends_is_missed_from_its_birth_on() {
    let mut plant = Plant::new(SILENT);
    plant.birth(0, "a").run_to(60_000);
    assert_eq!(plant.said().len(), 2);
}

#[test]
fn history_fires_no_live_rule_and_moves_no_current_value() {
    let rules = r#"
        [[rule]]
        id = "live"
        [rule.threshold]
        metric = "Temp"
        high = 100.0
        [[rule]]
        id = "past"
        historical = true
        [rule.threshold]
        metric = "Temp"
        high = 100.0
        [rule.alarm]
        message = "{value}"
        [[rule.command]]
        metric = "X"
        value = 1
        [[rule]]
        id = "now"
        [rule.pattern]
        stages = [{ name = "x", when = 'metric == "Ask" && current("Temp") == 50.0' }]
    "#;
    let mut plant = Plant::new(rules);
    plant.set(1_000, "a", "Temp", 50.0);
    for back in [8 * 3_600_000, 8 * 3_600_000 - 1_000] {
        let mut event = plant.event(2_000, "a", "Temp", Value::Double(120.0));
        event.historical = true;
        event.time_ms -= back;
        plant.engine.handle_event(&event);
    }
    let outputs = plant.outputs();
    let said: Vec<String> = outputs.iter().map(short).collect();
    assert_eq!(
        said,
        ["2000 past a match", "2000 past a raise unack \"120\""]
    );
    let found = matches(&outputs);
    assert!(found[0].historical);
    assert_eq!(found[0].time_ms, Some(WALL + 2_000 - 8 * 3_600_000));
    plant.set(3_000, "a", "Ask", 1.0);
    assert_eq!(plant.said(), ["3000 now a match"]);
}

#[test]
fn a_birth_that_repeats_a_value_fires_nothing_and_counts_as_current() {
    let rules = r#"
        [[rule]]
        id = "hot"
        [rule.threshold]
        metric = "T"
        high = 80.0
        [[rule]]
        id = "ask"
        [rule.pattern]
        stages = [{ name = "x", when = 'metric == "Ask" && current("T") > 80.0' }]
    "#;
    let mut plant = Plant::new(rules);
    let mut event = plant.event(1, "a", "T", Value::Double(90.0));
    event.unchanged = true;
    plant.engine.handle_event(&event);
    plant.set(2, "a", "Ask", 1.0);
    assert_eq!(plant.said(), ["2 ask a match"]);
}

#[test]
fn what_was_known_of_a_dead_device_is_not_current() {
    let rules = r#"
        [[rule]]
        id = "ask"
        [rule.pattern]
        stages = [{ name = "x", when = 'metric == "Ask" && current("T") != null' }]
    "#;
    let mut plant = Plant::new(rules);
    plant
        .set(1, "a", "T", 1.0)
        .death(2, "a")
        .birth(3, "a")
        .set(4, "a", "Ask", 1.0);
    assert_eq!(plant.said(), [""; 0]);
    plant.set(5, "a", "T", 1.0).set(6, "a", "Ask", 1.0);
    assert_eq!(plant.said(), ["6 ask a match"]);
}

#[test]
fn scores_and_vectors_reach_the_rules_that_ask_for_them() {
    let rules = r#"
        [[rule]]
        id = "score"
        [rule.pattern]
        stages = [{ name = "x", when = 'score("m") > 0.5' }]
        [[rule]]
        id = "text"
        [rule.pattern]
        stages = [{ name = "x", when = 'similar("motor too hot") > 0.9' }]
        [[rule]]
        id = "plain"
        [rule.threshold]
        metric = "m"
        high = 0.0
    "#;
    let mut plant = Plant::new(rules);
    assert_eq!(plant.engine.models(), ["m".into()]);
    assert_eq!(plant.engine.phrases(), ["motor too hot".into()]);
    plant.engine.set_phrase("motor too hot", &[1.0, 0.0]);
    let mut event = plant.event(1, "a", "m", Value::Double(0.7));
    event.kind = EventKind::Score { model: "m".into() };
    plant.engine.handle_event(&event);
    for (at, vector) in [(2, [0.0f32, 1.0]), (3, [2.0, 0.1])] {
        let mut event = plant.event(at, "a", "Alert", Value::from("x"));
        event.kind = EventKind::Embedding(vector.into());
        plant.engine.handle_event(&event);
    }
    assert_eq!(plant.said(), ["1 score a match", "3 text a match"]);
}
