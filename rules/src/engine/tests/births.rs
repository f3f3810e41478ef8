//! Births held against the rules.

use super::*;

const RULES: &str = r#"
[[rule]]
id = "pattern"
[rule.pattern]
stages = [
  { name = "hot", when = 'metric == "Temperature" && value > 85.0' },
  { name = "alert", when = 'metric == "Alert" && value == "ALERT"' },
  { name = "any", when = 'metric == "Alert" || value > 3' },
]
[[rule.command]]
target = { device = "chiller" }
metric = "Setpoint"
expr = 'hot.value - 5.0'
allow_when = 'current("Mode") == "AUTO" && current("Ready")'

[[rule]]
id = "level"
[rule.threshold]
metric = "Level"
high = 1.0

[[rule]]
id = "kinds"
[rule.window]
kind = "tumbling"
size = "1m"
metric = "Mode"
emit = { n = 'count()', l = 'last(value)' }

[[rule]]
id = "elsewhere"
scope = { device = "other-*" }
[rule.threshold]
metric = "Alert"
high = 1.0
"#;

fn check(metrics: &[(&str, &'static str)], expected: &[&str]) {
    let mut plant = Plant::new(RULES);
    let key = Key::device("g", "n", "a");
    let found: Vec<String> = plant
        .engine
        .check_birth(&key, metrics)
        .iter()
        .map(|f| format!("{} {}", f.rule, f.mismatch))
        .collect();
    assert_eq!(found, expected, "{metrics:?}");
    let again = plant
        .engine
        .check_birth(&Key::device("g", "n", "b"), metrics);
    assert_eq!(again, [], "told once, not for every device");
    let kept: usize = plant.engine.list().iter().map(|r| r.findings.len()).sum();
    assert_eq!(kept, expected.len());
}

#[test]
fn types_that_a_rule_can_t_work_with_and_names_that_nearly_fit_are_found() {
    check(
        &[
            ("Temperature", "Float"),
            ("Alert", "String"),
            ("Mode", "String"),
            ("Ready", "Boolean"),
            ("Level", "Boolean"),
        ],
        &[],
    );
    check(
        &[
            ("Temperature", "String"),
            ("Alert", "Boolean"),
            ("Mode", "Int32"),
            ("Ready", "Double"),
            ("Level", "DataSet"),
        ],
        &[
            "pattern takes `Alert` for a string; it is Boolean",
            "pattern takes `Mode` for a string; it is Int32",
            "pattern takes `Ready` for a bool; it is Double",
            "pattern takes `Temperature` for a number; it is String",
            "level takes `Level` for a number or bool; it is DataSet",
        ],
    );
    check(
        &[
            ("Temprature", "Double"),
            ("alert", "String"),
            ("Pressure", "Double"),
        ],
        &[
            "pattern names `Alert`, which there is not; did you mean `alert`?",
            "pattern names `Temperature`, which there is not; did you mean `Temprature`?",
        ],
    );
}

#[test]
fn a_finding_is_told_again_after_a_reload_and_shown_with_the_rule() {
    let mut plant = Plant::new(RULES);
    let key = Key::device("g", "n", "a");
    let metrics = [("Level", "String")];
    assert_eq!(plant.engine.check_birth(&key, &metrics).len(), 1);
    let shown = plant.engine.explain("level").unwrap().to_string();
    assert!(
        shown.contains("takes `Level` for a number or bool; it is String on g/n/a"),
        "{shown}"
    );
    plant.engine.reload(packs(RULES));
    assert_eq!(plant.engine.check_birth(&key, &metrics).len(), 1);
}
