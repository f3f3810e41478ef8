//! What the engine keeps is bounded, and what goes is counted.

use super::*;

const PAIR: &str = r#"
[[rule]]
id = "pair"
[rule.pattern]
stages = [
  { name = "a", when = 'metric == "T" && value > 1.0' },
  { name = "b", when = 'metric == "T" && value < 0.0' },
]
"#;

#[test]
fn many_short_lived_and_hostile_device_ids_stay_within_the_limit() {
    let limits = Limits {
        keys: 500,
        bytes: 200_000,
        cached_keys: 300,
        ..Limits::default()
    };
    let mut plant = Plant::with(PAIR, limits);
    for n in 0..20_000u64 {
        let device = match n % 3 {
            0 => format!("d{n}"),
            1 => format!("\u{202e}{n}\"\\\n"),
            _ => format!("{n}{}", "x".repeat(200)),
        };
        plant.set(n, &device, "T", if n % 2 == 0 { 2.0 } else { 0.5 });
        if n % 1_000 == 0 {
            plant.engine.check_invariants();
            plant.outputs();
        }
    }
    let counts = plant.engine.counts();
    assert!(counts.keys <= 500 && counts.bytes <= 200_000, "{counts:?}");
    assert_eq!(counts.keys as u64 + counts.evicted_keys, 10_000);
    assert!(
        plant.engine.slots.len() <= 1_000,
        "{}",
        plant.engine.slots.len()
    );
}

#[test]
fn partial_matches_are_bounded_by_key_and_by_rule() {
    let limits = Limits {
        partials_per_key: 10,
        partials_per_rule: 15,
        ..Limits::default()
    };
    let mut plant = Plant::with(PAIR, limits);
    for n in 0..40 {
        plant.set(n, if n < 20 { "a" } else { "b" }, "T", 2.0);
        plant.engine.check_invariants();
    }
    let info = &plant.engine.list()[0];
    assert_eq!((info.partials, info.evicted), (15, 25));
    let outputs = plant.outputs();
    let of = |reason: EvictReason| {
        let is = |o: &&Output| matches!(o, Output::Evicted(e) if e.reason == reason);
        outputs.iter().filter(is).count()
    };
    assert!(of(EvictReason::KeyLimit) > 0 && of(EvictReason::RuleLimit) > 0);
}

#[test]
fn a_death_ends_partial_matches() {
    let mut plant = Plant::new(PAIR);
    plant
        .set(1, "a", "T", 2.0)
        .death(2, "a")
        .set(3, "a", "T", -1.0);
    assert_eq!(plant.said(), ["2 pair a evicted 1 death"]);
    assert_eq!(plant.engine.counts().keys, 0);
    assert_eq!(plant.engine.counts().bytes, 0);
}

#[test]
fn a_key_to_which_nothing_happens_is_forgotten() {
    let limits = Limits {
        idle_ms: 3_600_000,
        ..Limits::default()
    };
    let mut plant = Plant::with(PAIR, limits);
    plant
        .set(1_000, "a", "T", 2.0)
        .set(3_000_000, "b", "T", 2.0);
    plant.engine.dirty_keys();
    plant.run_to(3_700_000);
    assert_eq!(plant.said(), ["3660000 * a evicted 1 age"]);
    let gone = plant.engine.dirty_keys();
    assert_eq!(gone.len(), 1);
    assert!(gone[0].1.is_none());
}

#[test]
fn the_buffer_of_event_time_is_bounded() {
    let limits = Limits {
        buffered: 5,
        ..Limits::default()
    };
    let rules = PAIR.replace(
        "[rule.pattern]",
        "time = \"event\"\nout_of_order = \"1h\"\n[rule.pattern]",
    );
    let mut plant = Plant::with(&rules, limits);
    for n in 0..8 {
        plant.set(n, "a", "T", 0.5);
    }
    assert_eq!(
        plant.said(),
        [
            "5 pair a evicted 1 buffer",
            "6 pair a evicted 1 buffer",
            "7 pair a evicted 1 buffer"
        ]
    );
}

#[test]
fn outputs_that_nobody_takes_are_bounded() {
    let limits = Limits {
        outputs: 3,
        ..Limits::default()
    };
    let mut plant = Plant::with(PAIR, limits);
    for n in 0..10 {
        plant
            .set(n * 2, "a", "T", 2.0)
            .set(n * 2 + 1, "a", "T", -1.0);
    }
    assert_eq!(plant.outputs().len(), 3);
    assert_eq!(plant.engine.counts().dropped_outputs, 7);
}

#[test]
fn rules_on_other_metrics_hold_nothing_and_share_one_table() {
    let rules: String = (0..300)
        .map(|n| {
            PAIR.replace("pair", &format!("r{n}"))
                .replace("\"T\"", &format!("\"T{n}\""))
        })
        .collect();
    let mut plant = Plant::new(&rules);
    for device in 0..50 {
        plant.set(1, &format!("d{device}"), "T7", 2.0);
    }
    assert_eq!(plant.engine.tables.len(), 1);
    assert_eq!(plant.engine.counts().keys, 50);
    let states: usize = plant
        .engine
        .slots
        .iter()
        .flatten()
        .map(|s| s.states.len())
        .sum();
    assert_eq!(states, 50);
}
