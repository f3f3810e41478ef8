//! Restored state and the events since give the outputs of the uninterrupted run.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Every kind of rule, at every level, in both times.
pub(super) const RULES: &str = r#"
[[rule]]
id = "chain"
[rule.pattern]
within = "20s"
stages = [
  { name = "hot", when = 'metric == "T" && value > 80.0' },
  { name = "low", when = 'metric == "P" && value < current("Limit", "60s")' },
]
[rule.alarm]
priority = "high"
message = "{device} {hot.value} {low.value}"
clear = 'metric == "T" && value < 50.0'
off_delay = "3s"
[[rule.command]]
metric = "Cool"
expr = 'hot.value - low.value'
allow_when = 'current("Limit") > 0.0'

[[rule]]
id = "loop"
[rule.pattern]
within = "30s"
skip = "past-last-event"
stages = [
  { name = "up", at_least = 1, greedy = true, when = 'metric == "T" && value > 60.0 && (count(up.value) == 0 || value > last(up.value))' },
  { name = "fall", when = 'metric == "T" && value < avg(up.value)' },
]

[[rule]]
id = "absent-end"
[rule.pattern]
within = "7s"
stages = [
  { name = "on", when = 'metric == "P" && value > 50.0' },
  { name = "off", contiguity = "not-followed-by", when = 'metric == "P" && value < 20.0' },
]
[rule.alarm]
message = "{device}"

[[rule]]
id = "event-time"
time = "event"
out_of_order = "2s"
allowed_lateness = "1s"
[rule.pattern]
within = "20s"
stages = [
  { name = "a", when = 'metric == "T" && value > 70.0' },
  { name = "b", contiguity = "next", when = 'metric == "T" && value < 30.0' },
]

[[rule]]
id = "history"
historical = true
[rule.threshold]
metric = "T"
high = 90.0
[rule.alarm]
message = "{value}"

[[rule]]
id = "limits"
[rule.threshold]
metric = "T"
high = 70.0
high_high = 90.0
deadband = 5.0
on_delay = "2s"
off_delay = "3s"
[rule.alarm]
latch = true
message = "{value}"
flap = { count = 3, within = "30s" }

[[rule]]
id = "often"
[rule.threshold]
metric = "P"
low = 20.0
m_of_n = [2, 4]
[rule.alarm]
on_delay = "2s"

[[rule]]
id = "silent"
[rule.absence]
metric = "P"
for = "9s"
[rule.alarm]

[[rule]]
id = "node-silent"
key = "node"
[rule.absence]
for = "6s"

[[rule]]
id = "tumbling"
[rule.window]
kind = "tumbling"
size = "5s"
metric = "T"
emit = { mean = 'avg(value)', n = 'count()', s = 'stddev(value)', p = 'percentile(value, 90)' }
when = 'n == 0 || mean > 70.0'
[rule.alarm]
message = "{n} {mean}"

[[rule]]
id = "hopping"
time = "event"
out_of_order = "1s"
allowed_lateness = "2s"
[rule.window]
kind = "hopping"
size = "6s"
every = "2s"
metric = "P"
emit = { m = 'max(value)', r = 'rate(value)' }

[[rule]]
id = "sliding"
key = "group"
[rule.window]
kind = "sliding"
size = "8s"
metric = "T"
emit = { mean = 'avg(value)', n = 'count()' }
when = 'n >= 3 && mean > 60.0'
[rule.alarm]

[[rule]]
id = "session"
[rule.window]
kind = "session"
gap = "4s"
metric = "P"
emit = { n = 'count()', first = 'first(value)' }

[[rule]]
id = "count"
[rule.window]
kind = "count"
size = 4
every = 2
metric = "P"
emit = { s = 'sum(value)' }

[[rule]]
id = "wrong"
[rule.pattern]
stages = [{ name = "x", when = 'metric == "P" && value * 2 > 170.0' }]
"#;

#[derive(Clone, Debug)]
pub(super) enum Input {
    Set {
        device: u8,
        metric: u8,
        value: Value,
        back: i64,
        historical: bool,
        quality: i32,
    },
    Birth(u8),
    Death(u8),
    Wait,
    Ack,
    Shelve,
    Reset,
    Disable(bool),
}

fn input() -> impl Strategy<Value = Input> {
    let value = prop_oneof![
        12 => (0i32..100).prop_map(|v| Value::Double(f64::from(v))),
        1 => Just(Value::Null),
        1 => Just(Value::String("n/a".into())),
    ];
    let set = (0u8..3, 0u8..3, value, 0i64..4_000, 0u8..12, 0u8..12);
    let set = set.prop_map(
        |(device, metric, value, back, historical, quality)| Input::Set {
            device,
            metric,
            value,
            back,
            historical: historical == 0,
            quality: if quality == 0 { 0 } else { 192 },
        },
    );
    prop_oneof![
        40 => set,
        1 => (0u8..3).prop_map(Input::Birth),
        1 => (0u8..3).prop_map(Input::Death),
        3 => Just(Input::Wait),
        2 => Just(Input::Ack),
        1 => Just(Input::Shelve),
        1 => Just(Input::Reset),
        1 => any::<bool>().prop_map(Input::Disable),
    ]
}

/// Times of the inputs, ms of engine time, and the inputs.
pub(super) type Story = Vec<(u64, Input)>;

pub(super) fn story() -> impl Strategy<Value = Story> {
    proptest::collection::vec((0u64..3_000, input()), 1..80).prop_map(|steps| {
        let mut at = 100_000;
        let step = |(gap, input)| {
            at += gap;
            (at, input)
        };
        steps.into_iter().map(step).collect()
    })
}

pub(super) fn device(n: u8) -> Key {
    Key::device("g", if n == 2 { "m" } else { "n" }, &format!("d{n}"))
}

/// The event that an input is, if it is one.
pub(super) fn event(record: u64, at: u64, input: &Input) -> Option<Event> {
    let Input::Set {
        device: d,
        metric,
        value,
        back,
        historical,
        quality,
    } = input
    else {
        return None;
    };
    Some(Event {
        key: device(*d),
        metric: ["T", "P", "Limit"][usize::from(*metric)].into(),
        value: value.clone(),
        datatype: "Double",
        quality: *quality,
        time_ms: WALL + i64::try_from(at).unwrap() - back,
        engine_ms: at,
        historical: *historical,
        unchanged: false,
        record,
        index: 0,
        kind: EventKind::Metric,
    })
}

fn apply(engine: &mut Engine, record: u64, at: u64, input: &Input) -> Vec<String> {
    engine.number_inputs(record);
    if !matches!(input, Input::Set { .. } | Input::Birth(_) | Input::Death(_)) {
        engine.advance_to(at);
    }
    let first = engine.alarms().first().map(|a| a.id.to_string());
    let id = first.unwrap_or_default();
    match input {
        Input::Set { .. } => event(record, at, input)
            .iter()
            .for_each(|event| engine.handle_event(event)),
        Input::Birth(d) => engine.handle_birth(&device(*d), at),
        Input::Death(d) => engine.handle_death(&device(*d), at, DeathCause::Death),
        Input::Wait => {}
        Input::Disable(on) => {
            engine.set_enabled("limits", *on);
        }
        Input::Ack | Input::Shelve | Input::Reset => {
            let _ = by_hand(engine, &id, at, input);
        }
    }
    engine.check_invariants();
    std::iter::from_fn(|| engine.poll_output())
        .map(|o| format!("{o:?}"))
        .collect()
}

/// What a person does to an alarm.
pub(super) fn by_hand(
    engine: &mut Engine,
    id: &str,
    at: u64,
    input: &Input,
) -> Result<AlarmStatus, crate::AlarmError> {
    match input {
        Input::Shelve => engine.shelve_alarm(id, "eve", 5_000, at),
        Input::Reset => engine.reset_alarm(id, "eve", at),
        _ => engine.ack_alarm(id, "eve", "seen", at),
    }
}

fn fresh() -> Engine {
    static PACKS: std::sync::LazyLock<Vec<Pack>> = std::sync::LazyLock::new(|| packs(RULES));
    let limits = Limits {
        keys: 4,
        ..Limits::default()
    };
    Engine::new(PACKS.clone(), limits)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Checkpoints are taken now and then; at some input the engine is lost; what was stored is
    /// restored, and the inputs since the last checkpoint are given again.
    #[test]
    fn a_cut_anywhere_changes_nothing(
        story in story(), checkpoints: Vec<bool>, cut in any::<prop::sample::Index>()
    ) {
        let mut whole = fresh();
        let mut expected = Vec::new();
        let mut stored: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let cut = cut.index(story.len());
        let mut since = 0;
        for (n, (at, input)) in story.iter().enumerate() {
            expected.push(apply(&mut whole, n as u64 + 1, *at, input));
            if n < cut && checkpoints.get(n % 40).copied().unwrap_or(false) {
                since = n + 1;
                for (key, bytes) in whole.dirty_keys() {
                    match bytes {
                        Some(bytes) => stored.insert(key, bytes),
                        None => stored.remove(&key),
                    };
                }
            }
        }
        let mut again = fresh();
        for (key, bytes) in &stored {
            prop_assert_eq!(again.restore(key, bytes), Ok(()));
        }
        again.check_invariants();
        for (n, (at, input)) in story.iter().enumerate().skip(since) {
            let outputs = apply(&mut again, n as u64 + 1, *at, input);
            prop_assert_eq!(&outputs, &expected[n], "input {} of {}, restored at {}", n, story.len(), since);
        }
        prop_assert_eq!(format!("{:?}", again.alarms()), format!("{:?}", whole.alarms()));
    }

    /// Whether time is told between events or not, timers fire at their own times.
    #[test]
    fn telling_the_time_more_often_changes_nothing(story in story()) {
        let (mut rare, mut often) = (fresh(), fresh());
        let mut outputs = (Vec::new(), Vec::new());
        let mut last = 100_000;
        for (n, (at, input)) in story.iter().enumerate() {
            outputs.0.extend(apply(&mut rare, n as u64, *at, input));
            while let Some(due) = often.poll_timeout().filter(|due| *due < *at) {
                often.advance_to(due);
                outputs.1.extend(std::iter::from_fn(|| often.poll_output()).map(|o| format!("{o:?}")));
            }
            for step in [last + (at - last) / 3, last + (at - last) / 2] {
                often.advance_to(step);
                outputs.1.extend(std::iter::from_fn(|| often.poll_output()).map(|o| format!("{o:?}")));
            }
            outputs.1.extend(apply(&mut often, n as u64, *at, input));
            last = *at;
        }
        prop_assert_eq!(outputs.0, outputs.1);
    }
}

#[test]
fn a_damaged_entry_is_refused_and_harms_nothing() {
    let mut plant = Plant::new(RULES);
    plant.set(1_000, "a", "T", 95.0).set(2_000, "a", "P", 60.0);
    let entries = plant.engine.dirty_keys();
    assert!(plant.engine.dirty_keys().is_empty(), "only what changed");
    for (key, bytes) in entries {
        let bytes = bytes.unwrap();
        for at in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 0x55;
            let mut engine = Engine::new(packs(RULES), Limits::default());
            assert!(engine.restore(&key, &wrong).is_err(), "byte {at}");
            assert!(engine.restore(&key, &bytes[..at]).is_err(), "cut at {at}");
            assert_eq!(engine.counts().unreadable_states, 2);
        }
        let mut engine = Engine::new(packs(RULES), Limits::default());
        assert!(engine.restore(&key[..key.len() - 1], &bytes).is_err());
    }
}
