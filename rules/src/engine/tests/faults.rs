//! Bad values, wrong types, failing expressions.

use super::*;

const DOUBLE: &str = r#"
[[rule]]
id = "double"
[rule.pattern]
stages = [{ name = "x", when = 'metric == "Temp" && value * 2 > 100.0' }]
[[rule]]
id = "other"
[rule.threshold]
metric = "Temp"
high = 55.0
"#;

#[test]
fn one_bad_value_stops_neither_its_rule_nor_another() {
    let mut plant = Plant::new(DOUBLE);
    plant
        .set(1, "a", "Temp", "n/a")
        .set(2, "a", "Temp", Value::Null)
        .set(3, "a", "Temp", f64::NAN)
        .set(4, "a", "Temp", 1e308)
        .set(5, "a", "Temp", 10.0)
        .set(6, "a", "Temp", 60.0);
    let expected = [
        "1 double a error * of string and number",
        "1 other a error threshold of string; needs a number",
        "4 double a match",
        "4 other a match",
        "6 double a match",
        "6 other a match",
    ];
    assert_eq!(plant.said(), expected);
    let counts: Vec<u64> = plant.engine.list().iter().map(|r| r.errors).collect();
    assert_eq!(counts, [1, 1]);
}

#[test]
fn failures_that_repeat_raise_one_alarm_that_ends_when_it_is_quiet() {
    let mut plant = Plant::new(
        r#"
        [[rule]]
        id = "div"
        [rule.pattern]
        stages = [{ name = "x", when = 'metric == "A" && 1.0 / value > 2.0' }]
        "#,
    );
    for at in 1..=5 {
        plant.set(at, "a", "A", 0.0);
    }
    plant.run_to(700_000);
    let said = plant.said();
    let alarms: Vec<&String> = said.iter().filter(|s| !s.contains("error")).collect();
    assert_eq!(
        alarms,
        [
            "3 div a raise unack \"rule div fails on g/n/a: division by zero\"",
            "600005 div a clear rtn-unack \"rule div fails on g/n/a: division by zero\"",
        ]
    );
    assert_eq!(said.len() - alarms.len(), 5, "each one is counted");
    let id = plant.engine.alarms()[0].id.to_string();
    assert_eq!(
        plant.engine.ack_alarm(&id, "eve", "", 700_001),
        Ok(AlarmStatus::Normal)
    );
    assert_eq!(plant.engine.alarms(), []);
    plant.set(700_002, "a", "A", 0.25);
    assert!(
        plant.said().contains(&"700002 div a match".to_owned()),
        "the rule still runs"
    );
}

#[test]
fn a_command_that_cannot_be_computed_takes_the_sequence_with_it() {
    let mut plant = Plant::new(
        r#"
        [[rule]]
        id = "seq"
        [rule.threshold]
        metric = "T"
        high = 1.0
        [[rule.command]]
        metric = "A"
        value = 1
        [[rule.command]]
        metric = "B"
        expr = 'current("Set")'
        "#,
    );
    plant.set(1, "a", "T", 2.0);
    assert_eq!(
        plant.said(),
        [
            "1 seq a match",
            "1 seq a error command of null; needs a value"
        ]
    );
    plant
        .set(2, "a", "T", 0.0)
        .set(3, "a", "Set", 7.5)
        .set(4, "a", "T", 2.0);
    let expected = [
        "4 seq a match",
        "4 seq a command g/n/a A = 1",
        "4 seq a command g/n/a B = 7.5",
    ];
    assert_eq!(plant.said(), expected);
}

#[test]
fn bad_quality_moves_nothing() {
    let mut plant = Plant::new(
        r#"
        [[rule]]
        id = "hot"
        [rule.threshold]
        metric = "T"
        high = 80.0
        [rule.alarm]
        message = "{value}"
        "#,
    );
    let mut event = plant.event(1, "a", "T", Value::Double(99.0));
    event.quality = 0;
    plant.engine.handle_event(&event);
    assert_eq!(plant.said(), [""; 0]);
    plant.set(2, "a", "T", 90.0);
    let mut event = plant.event(3, "a", "T", Value::Double(0.0));
    event.quality = 500;
    plant.engine.handle_event(&event);
    assert_eq!(
        plant.said(),
        ["2 hot a match", "2 hot a raise unack \"90\""]
    );
}

#[test]
fn a_guard_is_asked_when_the_command_is_sent() {
    let mut plant = Plant::new(
        r#"
        [[rule]]
        id = "r"
        [rule.pattern]
        stages = [{ name = "hot", when = 'metric == "T" && value > 1.0' }]
        [[rule.command]]
        target = { device = "chiller" }
        metric = "On"
        value = true
        allow_when = 'current("Mode", "10s") == "AUTO" && hot.value < 5.0'
        "#,
    );
    plant.set(1, "a", "Mode", "AUTO").set(2, "a", "T", 2.0);
    let outputs = plant.outputs();
    let Some(Output::Command(command)) = outputs.last() else {
        panic!("no command");
    };
    assert_eq!(command.target, Key::device("g", "n", "chiller"));
    let guard = command.allow_when.clone().unwrap();
    assert!(plant.engine.check(&guard));
    plant.set(3, "a", "Mode", "MANUAL");
    assert!(!plant.engine.check(&guard));
    plant.set(4, "a", "Mode", "AUTO").run_to(10_004);
    assert!(plant.engine.check(&guard));
    plant.run_to(10_005);
    assert!(!plant.engine.check(&guard), "too old");
}
