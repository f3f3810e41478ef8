//! Threads change nothing: what comes out is what one engine gives, key by key and in the same order.

use std::collections::BTreeMap;

use super::*;

const RULES: &str = r#"
[pack]
id = "p"
version = "1"

[[rule]]
id = "rise"
[rule.pattern]
within = "20s"
skip = "past-last-event"
stages = [
  { name = "a", when = 'metric == "T" && value > 60.0' },
  { name = "b", when = 'metric == "T" && value > a.value' },
]
[rule.alarm]
message = "{device} {a.value} {b.value}"
[[rule.command]]
metric = "Cool"
value = true
allow_when = 'current("P") > 10.0'

[[rule]]
id = "node-high"
key = "node"
[rule.threshold]
metric = "P"
high = 90.0
off_delay = "3s"
[rule.alarm]
on_delay = "1s"

[[rule]]
id = "group-mean"
key = "group"
[rule.window]
kind = "tumbling"
size = "5s"
metric = "T"
emit = { mean = 'avg(value)' }

[[rule]]
id = "silent"
[rule.absence]
metric = "T"
for = "8s"
[rule.alarm]
"#;

fn packs() -> Vec<Pack> {
    rules::load_packs(&[("p.toml".to_owned(), RULES.to_owned())]).unwrap()
}

/// Numbers that look random, the same in each run (splitmix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % most
    }
}

fn key(n: u64) -> Key {
    Key::device(
        ["g", "h"][usize::try_from(n % 2).unwrap()],
        &format!("n{}", n % 5),
        &format!("d{n}"),
    )
}

fn key_of(output: &Output) -> String {
    let (rule, key) = match output {
        Output::Match(m) => (&*m.rule, &m.key),
        Output::Alarm(a) if &*a.rule == "alarm-flood" => return "flood".to_owned(),
        Output::Alarm(a) => (&*a.rule, &a.key),
        Output::Command(c) => (&*c.rule, &c.key),
        Output::TimedOut(t) => (&*t.rule, &t.key),
        Output::Late(l) => (&*l.rule, &l.key),
        Output::EvalError(e) => (&*e.rule, &e.key),
        Output::Evicted(e) => (e.rule.as_deref().unwrap_or("*"), &e.key),
    };
    format!("{rule}@{key}")
}

/// Runs a story and gives what came out by key, whether each command was allowed, and the snapshot at the end.
type Told = (BTreeMap<String, Vec<String>>, BTreeMap<Vec<u8>, Vec<u8>>);

fn tell(mut rules: Rules, inputs: u64, between: u64) -> Told {
    let mut dice = Dice(7);
    let mut told: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut stored = BTreeMap::new();
    let mut at = 100_000;
    for n in 1..=inputs {
        at += dice.below(200);
        let key = key(dice.below(40));
        match dice.below(60) {
            0 => rules.handle_birth(&key, at),
            1 => rules.handle_death(&key, at, DeathCause::Will),
            2 => rules.set_wall(at, 1_700_000_000_000 + at + dice.below(5_000)),
            _ => {
                let metric = ["T", "P"][usize::try_from(dice.below(2)).unwrap()];
                rules.handle_event(&Event {
                    key,
                    metric: metric.into(),
                    value: rules::Value::Double(f64::from(u8::try_from(dice.below(100)).unwrap())),
                    datatype: "Double",
                    quality: 192,
                    time_ms: i64::try_from(1_700_000_000_000 + at).unwrap(),
                    engine_ms: at,
                    historical: false,
                    unchanged: false,
                    record: n,
                    index: 0,
                    kind: rules::EventKind::Metric,
                });
            }
        }
        // What a person does comes at the same input, whatever was joined before.
        let by_person = n % 97 == 0;
        if n % between == 0 || by_person || n == inputs {
            rules.advance_to(at);
            rules.join();
        }
        if by_person && let Some(alarm) = rules.alarms().first() {
            rules.ack_alarm(&alarm.id, "eve", "", at).unwrap();
            rules.join();
        }
        while let Some(output) = rules.poll_output() {
            let said = told.entry(key_of(&output)).or_default();
            said.push(format!("{output:?}"));
        }
    }
    for (key, bytes) in rules.dirty_keys() {
        if let Some(bytes) = bytes {
            stored.insert(key, bytes);
        }
    }
    assert!(!rules.failed());
    (told, stored)
}

#[test]
fn workers_give_what_one_engine_gives() {
    let expected = tell(Rules::new(packs(), Limits::default(), 1), 6_000, 1);
    assert!(
        expected.0.len() > 40,
        "{} keys said something",
        expected.0.len()
    );
    assert!(expected.0.contains_key("flood"));
    for (workers, between) in [(2, 1), (3, 32), (7, 500)] {
        let mut rules = Rules::new(packs(), Limits::default(), workers);
        rules.start().unwrap();
        assert!(rules.is_shared());
        let found = tell(rules, 6_000, between);
        for (key, said) in &expected.0 {
            assert_eq!(Some(said), found.0.get(key), "{key} with {workers} workers");
        }
        assert_eq!(expected.0.len(), found.0.len());
        assert_eq!(expected.1, found.1, "snapshots with {workers} workers");
    }
}

#[test]
fn listings_and_a_reload_reach_every_worker() {
    let mut rules = Rules::new(packs(), Limits::default(), 4);
    rules.start().unwrap();
    for n in 0..40 {
        rules.handle_birth(&key(n), 1_000);
    }
    rules.advance_to(20_000);
    rules.join();
    assert_eq!(
        rules.poll_timeout().map(|at| at > 20_000),
        Some(true),
        "floods end"
    );
    let raised = std::iter::from_fn(|| rules.poll_output());
    let raised = raised.filter(|o| matches!(o, Output::Alarm(a) if &*a.rule == "silent"));
    assert_eq!(raised.count(), 40);
    assert_eq!(rules.alarm_counts(), (40, 40));
    assert_eq!(rules.alarms().len(), 40);
    assert_eq!(rules.rule_count(), 4);
    assert_eq!(rules.counts().keys, 40);
    let silent = rules.list().into_iter().find(|rule| &*rule.id == "silent");
    assert_eq!(silent.map(|rule| rule.fires), Some(40));
    let shown = rules.explain("silent").unwrap().to_string();
    assert!(
        shown.contains("state   40 keys") && shown.contains("and 20 more"),
        "{shown}"
    );
    assert!(rules.explain("nothing").is_none());
    assert!(rules.set_enabled("silent", false) && !rules.set_enabled("nothing", false));
    rules.reload(Vec::new());
    rules.join();
    let cleared = std::iter::from_fn(|| rules.poll_output());
    let cleared =
        cleared.filter(|o| matches!(o, Output::Alarm(a) if a.event == rules::AlarmAction::Clear));
    assert_eq!(cleared.count(), 40);
    assert_eq!(rules.rule_count(), 0);
}

fn own(of: u64) -> rules::OwnAlarm {
    rules::OwnAlarm {
        rule: "sparkgate.part".into(),
        version: "1".into(),
        word: "late".into(),
        of: of.to_string().into(),
        priority: rules::Priority::Low,
        message: format!("{of} is late").into(),
        until_ack: false,
    }
}

/// What was put out, what is listed at the end, and the snapshot.
type ToldOwn = (
    Vec<String>,
    Vec<rules::AlarmInfo>,
    BTreeMap<Vec<u8>, Vec<u8>>,
);

/// What is raised, shelved, acknowledged and cleared by name.
fn tell_own(mut rules: Rules) -> ToldOwn {
    rules.start().unwrap();
    for n in 0..20 {
        rules.raise_own(own(n), 1_000 + n);
        rules.raise_own(own(n), 1_000 + n);
        rules.handle_birth(&key(n), 1_000 + n);
    }
    rules.join();
    assert_eq!(rules.alarm_counts(), (20, 20));
    assert_eq!(rules.active_own().len(), 20);
    let listed = rules.alarms();
    assert_eq!(listed.len(), 20);
    let id_of = |of: u64| {
        let message = format!("{of} is late");
        let mut all = listed.iter();
        all.find(|alarm| *alarm.message == message)
            .unwrap()
            .id
            .clone()
    };
    rules.ack_alarm(&id_of(3), "eve", "seen", 2_000).unwrap();
    rules.shelve_alarm(&id_of(4), "eve", 500, 2_000).unwrap();
    rules.join();
    assert_eq!(rules.poll_timeout(), Some(2_500), "the shelf ends");
    rules.advance_to(2_600);
    rules.join();
    rules.clear_own("sparkgate.part", "late", "3", 2_700);
    rules.clear_own("sparkgate.part", "late", "3", 2_700);
    rules.join();
    assert!(!rules.counts().flood, "they count for none");
    let said = std::iter::from_fn(|| rules.poll_output());
    let said = said.filter_map(|output| match output {
        Output::Alarm(event) => Some(format!("{} {} {}", event.event, event.state, event.message)),
        _ => None,
    });
    let said = said.collect();
    let entries = rules.dirty_keys().into_iter();
    let entries = entries.filter_map(|(k, bytes)| Some((k, bytes?))).collect();
    (said, rules.alarms(), entries)
}

#[test]
fn alarms_of_the_gateway_itself_are_there_once_with_any_number_of_workers() {
    let rules = |workers| Rules::new(packs(), Limits::default(), workers);
    let expected = tell_own(rules(1));
    assert_eq!(expected.0.len(), 20 + 4, "{:?}", expected.0);
    for workers in [2, 5] {
        assert_eq!(tell_own(rules(workers)), expected, "{workers} workers");
    }
    // Whoever takes the snapshot back has each once, too.
    for workers in [1, 2, 3] {
        let mut again = rules(workers);
        for (key, bytes) in &expected.2 {
            again.restore(key, bytes).unwrap();
        }
        again.start().unwrap();
        assert_eq!(again.alarms(), expected.1, "{workers} workers");
        assert_eq!(again.dirty_keys(), [], "{workers} workers");
        again.clear_own("sparkgate.part", "late", "7", 3_000);
        again.join();
        let cleared = std::iter::from_fn(|| again.poll_output());
        let cleared = cleared
            .filter(|o| matches!(o, Output::Alarm(a) if a.event == rules::AlarmAction::Clear));
        assert_eq!(cleared.count(), 1);
        assert_eq!(again.alarm_counts(), (18, 19));
    }
}

#[test]
fn a_worker_that_is_gone_is_told() {
    let mut rules = Rules::new(packs(), Limits::default(), 2);
    rules.start().unwrap();
    rules.join();
    assert!(!rules.failed());
    rules.on(1, |_| panic!("a mistake in an engine"));
    assert!(rules.failed());
}

#[test]
fn rules_that_come_later_know_what_is_known() {
    let device = "[pack]\nid = \"p\"\nversion = \"1\"\n[[rule]]\nid = \"d\"\n[rule.pattern]\nstages = [{ name = \"a\", when = 'metric == \"Q\" && value > current(\"P\")' }]\n";
    let node = "[[rule]]\nid = \"n\"\nkey = \"node\"\n[rule.pattern]\nstages = [{ name = \"a\", when = 'metric == \"T\" && value > current(\"P\")' }]\n";
    let load = |text: String| rules::load_packs(&[("p.toml".to_owned(), text)]).unwrap();
    for workers in [1, 4] {
        let mut rules = Rules::new(load(device.to_owned()), Limits::default(), workers);
        rules.start().unwrap();
        let set = |rules: &mut Rules, at: u64, metric: &str, value: f64| {
            for n in 0..40 {
                rules.handle_event(&Event {
                    key: key(n),
                    metric: metric.into(),
                    value: rules::Value::Double(value),
                    datatype: "Double",
                    quality: 192,
                    time_ms: 0,
                    engine_ms: at,
                    historical: false,
                    unchanged: false,
                    record: n,
                    index: 0,
                    kind: rules::EventKind::Metric,
                });
            }
        };
        set(&mut rules, 1_000, "P", 50.0);
        rules.reload(load(format!("{device}{node}")));
        set(&mut rules, 2_000, "T", 60.0);
        rules.join();
        let matches = std::iter::from_fn(|| rules.poll_output());
        let matches = matches.filter(|o| matches!(o, Output::Match(m) if &*m.rule == "n"));
        assert_eq!(matches.count(), 40, "{workers} workers");
    }
}
