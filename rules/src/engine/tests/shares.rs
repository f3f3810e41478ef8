//! Shares that divide the keys give what one engine gives, in its order, and keep what it keeps.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::replay::{Input, RULES, Story, by_hand, device, event, story};
use super::*;
use crate::AlarmError;

/// Rules over nodes and groups beside those over devices.
const WIDE: &str = r#"
[[rule]]
id = "node-chain"
key = "node"
[rule.pattern]
within = "15s"
stages = [
  { name = "hot", when = 'metric == "T" && value > 70.0' },
  { name = "low", contiguity = "followed-by-any", when = 'metric == "P" && value < current("Limit")' },
]
[rule.alarm]
message = "{device} {low.value}"
[[rule.command]]
metric = "Cool"
value = true
allow_when = 'current("Limit", "20s") > 30.0'

[[rule]]
id = "group-level"
key = "group"
[rule.threshold]
metric = "P"
high = 80.0
on_delay = "1s"
[rule.alarm]
latch = true
"#;

fn rules() -> Vec<Pack> {
    static PACKS: std::sync::LazyLock<Vec<Pack>> =
        std::sync::LazyLock::new(|| packs(&format!("{RULES}{WIDE}")));
    PACKS.clone()
}

/// Engines that are one, and what they have put out.
struct Many {
    engines: Vec<Engine>,
    router: Router,
    said: Vec<String>,
    floods: Vec<String>,
    stored: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Many {
    fn new(of: u32) -> Self {
        let share = |n| Engine::share(rules(), Limits::default(), Share::new(n, of));
        Self {
            engines: (0..of).map(share).collect(),
            router: Router::new(&rules(), of),
            said: Vec::new(),
            floods: Vec::new(),
            stored: BTreeMap::new(),
        }
    }

    fn give(&mut self, number: u64, at: u64, input: &Input) {
        let by_person = matches!(input, Input::Ack | Input::Shelve | Input::Reset);
        if by_person || matches!(input, Input::Disable(_) | Input::Wait) {
            self.join(at);
        }
        for engine in &mut self.engines {
            engine.number_inputs(number);
        }
        if by_person {
            let mut alarms: Vec<_> = self.engines.iter().flat_map(Engine::alarms).collect();
            alarms.sort_by(AlarmInfo::cmp_urgency);
            let id = alarms.first().map(|a| a.id.to_string()).unwrap_or_default();
            let mut done = self.engines.iter_mut().map(|e| by_hand(e, &id, at, input));
            let _ = done.find(|done| !matches!(done, Err(AlarmError::Unknown { .. })));
            return;
        }
        if let Input::Disable(on) = input {
            for engine in &mut self.engines {
                assert!(engine.set_enabled("limits", *on));
            }
            return;
        }
        let (key, event) = match (input, event(number, at, input)) {
            (_, Some(event)) => (event.key.clone(), Some(event)),
            (Input::Birth(d) | Input::Death(d), None) => (device(*d), None),
            _ => return,
        };
        for share in self.router.shares(&key) {
            let engine = &mut self.engines[share as usize];
            match (&event, input) {
                (Some(event), _) => engine.handle_event(event),
                (None, Input::Birth(_)) => engine.handle_birth(&key, at),
                (None, _) => engine.handle_death(&key, at, DeathCause::Death),
            }
            engine.check_invariants();
        }
    }

    /// Takes everything that came out, in its order.
    fn join(&mut self, at: u64) {
        let mut placed = Vec::new();
        for engine in &mut self.engines {
            engine.advance_to(at);
            placed.extend(std::iter::from_fn(|| engine.poll_placed()));
        }
        placed.sort_by_key(|(place, _)| *place);
        let raises: Vec<_> = placed.iter().filter_map(|(_, o)| raise(o)).collect();
        self.note(placed);
        if self.engines.len() > 1 {
            self.engines[0].note_raises(&raises, at);
            let floods: Vec<_> = std::iter::from_fn(|| self.engines[0].poll_placed()).collect();
            self.note(floods);
        }
    }

    fn note(&mut self, outputs: Vec<(Place, Output)>) {
        for (_, output) in outputs {
            let flood = matches!(&output, Output::Alarm(a) if &*a.rule == "alarm-flood");
            let said = if flood {
                &mut self.floods
            } else {
                &mut self.said
            };
            said.push(format!("{output:?}"));
        }
    }

    fn store(&mut self) {
        for (key, bytes) in self.engines.iter_mut().flat_map(Engine::dirty_keys) {
            match bytes {
                Some(bytes) => self.stored.insert(key, bytes),
                None => self.stored.remove(&key),
            };
        }
    }

    fn restored(of: u32, stored: &BTreeMap<Vec<u8>, Vec<u8>>) -> Self {
        let mut many = Self::new(of);
        for (key, bytes) in stored {
            for engine in &mut many.engines {
                assert_eq!(engine.restore(key, bytes), Ok(()));
                engine.check_invariants();
            }
        }
        many.stored = stored.clone();
        many
    }

    fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        self.engines.iter().for_each(|e| sum.add(e.counts()));
        // A share keeps a little more than one engine would: what it is lent.
        sum.bytes = 0;
        sum
    }

    fn listed(&self) -> Vec<String> {
        let lists = self.engines.iter().map(Engine::list);
        let sum = lists.reduce(|mut sum, other| {
            sum.iter_mut()
                .zip(other)
                .for_each(|(rule, more)| rule.add(more));
            sum
        });
        let alarms = self.engines.iter().flat_map(Engine::alarms);
        let mut alarms: Vec<_> = alarms.collect();
        alarms.sort_by(AlarmInfo::cmp_urgency);
        let rules = sum.into_iter().flatten().map(|rule| format!("{rule:?}"));
        rules
            .chain(alarms.iter().map(|a| format!("{a:?}")))
            .collect()
    }
}

fn raise(output: &Output) -> Option<(u64, Arc<str>, Key)> {
    match output {
        Output::Alarm(a) if a.event == AlarmAction::Raise && !a.historical => {
            Some((a.engine_ms, a.rule.clone(), a.key.clone()))
        }
        _ => None,
    }
}

fn play(many: &mut Many, story: &Story, from: usize, joins: &[bool]) {
    let joins_at = |n: usize| joins.get(n % 40).copied().unwrap_or(true);
    for (n, (at, input)) in story.iter().enumerate().skip(from) {
        many.give(n as u64 + 1, *at, input);
        if joins_at(n) {
            many.join(*at);
            many.store();
        }
    }
    many.join(story.last().map_or(0, |(at, _)| *at) + 60_000);
    many.store();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Whatever their number, and however seldom their outputs are joined.
    #[test]
    fn any_number_of_shares_is_one_engine(story in story(), of in 2u32..6, joins: Vec<bool>) {
        let (mut one, mut many) = (Many::new(1), Many::new(of));
        play(&mut one, &story, 0, &joins);
        play(&mut many, &story, 0, &joins);
        prop_assert_eq!(&one.said, &many.said);
        prop_assert_eq!(&one.floods, &many.floods);
        prop_assert_eq!(&one.stored, &many.stored, "the same snapshots");
        prop_assert_eq!(one.counts(), many.counts());
        prop_assert_eq!(one.listed(), many.listed());
    }

    /// What some shares stored, another number of them takes up.
    #[test]
    fn a_restart_may_change_their_number(
        story in story(), of in 1u32..5, then in 1u32..5, cut in any::<prop::sample::Index>()
    ) {
        let cut = cut.index(story.len());
        let (mut whole, mut before) = (Many::new(1), Many::new(of));
        play(&mut whole, &story, 0, &[]);
        for (n, (at, input)) in story.iter().enumerate().take(cut) {
            before.give(n as u64 + 1, *at, input);
            before.join(*at);
        }
        before.store();
        let mut after = Many::restored(then, &before.stored);
        play(&mut after, &story, cut, &[]);
        before.said.extend(after.said);
        before.floods.extend(after.floods);
        prop_assert_eq!(&whole.said, &before.said);
        prop_assert_eq!(&whole.floods, &before.floods);
        prop_assert_eq!(&whole.stored, &after.stored);
    }
}

#[test]
fn keys_are_spread_over_the_shares() {
    let router = Router::new(&packs(WIDE), 4);
    let mut counts = [0u32; 4];
    for n in 0..4_000 {
        let key = Key::device("plant", &format!("node{}", n % 20), &format!("d{n}"));
        counts[router.holder(Level::Device, &key) as usize] += 1;
        let shares: Vec<u32> = router.shares(&key).collect();
        assert!((1..=3).contains(&shares.len()));
        assert_eq!(shares[0], router.holder(Level::Device, &key));
    }
    assert!(
        counts.iter().all(|count| (700..1_300).contains(count)),
        "{counts:?}"
    );
}
