//! Tests of the engine as a whole. Outputs recorded from Flink are in `tests/flink`.

mod bounds;
mod differential;
mod enumerator;
mod example;
mod snapshots;

use proptest::prelude::*;

use super::*;

/// An event of the tests: what kind it is, and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    kind: u8,
    value: u8,
    seq: u32,
}

/// Conditions of the tests, by number.
fn holds(condition: CondId, event: &Event, held: Path<'_, Event>) -> bool {
    let before = |stage| held.last(StageIdx(stage)).map(|e: &Event| e.value);
    match condition.0 {
        kind @ 0..=2 => u16::from(event.kind) == kind,
        3 => event.value > 3,
        4 => event.value.is_multiple_of(2),
        5 => true,
        6 => before(0).is_some_and(|value| event.value > value),
        _ => held.count(StageIdx(1)) < 2,
    }
}

fn condition(id: u16) -> Condition {
    Condition {
        id: CondId(id),
        iterative: id >= 6,
    }
}

/// One output, owned.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Seen {
    Match(Vec<(u16, u32)>, i64),
    TimedOut(Vec<(u16, u32)>, i64),
    Evicted(Vec<(u16, u32)>, i64),
    SkipMissed,
}

impl Seen {
    fn of(output: Output<'_, Event>) -> Self {
        let pairs = |taken: Path<'_, Event>| -> Vec<(u16, u32)> {
            let forward: Vec<_> = taken.forward().map(|(s, e)| (s.0, e.seq)).collect();
            let mut backward: Vec<_> = taken.backward().map(|(s, e)| (s.0, e.seq)).collect();
            backward.reverse();
            assert_eq!(forward, backward);
            assert_eq!(forward.len(), taken.len());
            forward
        };
        match output {
            Output::Match { taken, ts } => Self::Match(pairs(taken), ts),
            Output::TimedOut { taken, ts } => Self::TimedOut(pairs(taken), ts),
            Output::Evicted { taken, started } => Self::Evicted(pairs(taken), started),
            Output::SkipMissed { .. } => Self::SkipMissed,
        }
    }
}

/// Feeds events (time, event) of one key in order.
fn feed(
    plan: &Plan,
    state: &mut KeyState<Event>,
    events: &[(i64, Event)],
    limits: &Limits,
) -> Vec<Seen> {
    let mut seen = Vec::new();
    for (ts, event) in events {
        plan.handle_event(state, *ts, event, &holds, limits, &mut |o| {
            seen.push(Seen::of(o))
        });
    }
    seen
}

/// Events in time order, up to `count` of them.
fn streams(count: usize) -> impl Strategy<Value = Vec<(i64, Event)>> {
    proptest::collection::vec((0u8..3, 0u8..7, 0i64..12), 0..count).prop_map(|items| {
        let mut ts = 0;
        let mut stream = Vec::new();
        for (seq, (kind, value, pause)) in (0u32..).zip(items) {
            ts += pause;
            stream.push((ts, Event { kind, value, seq }));
        }
        stream
    })
}

fn quantifiers() -> impl Strategy<Value = Quantifier> {
    let repeat = prop_oneof![
        4 => Just(Repeat::Once),
        2 => Just(Repeat::OneOrMore),
        1 => (1i64..3).prop_map(Repeat::AtLeast),
        1 => (1i64..4).prop_map(Repeat::Times),
        1 => (0i64..3, 0i64..3).prop_map(|(from, more)| Repeat::Range(from, from.max(1) + more)),
    ];
    let inner = prop_oneof![
        2 => Just(Inner::Relaxed),
        1 => Just(Inner::Consecutive),
        1 => Just(Inner::Combinations),
    ];
    (
        repeat,
        inner,
        proptest::bool::weighted(0.2),
        proptest::bool::weighted(0.2),
        proptest::option::weighted(0.1, 5i64..30),
    )
        .prop_map(|(repeat, inner, greedy, optional, gap)| {
            let single = repeat == Repeat::Once;
            let inner = if single { Inner::Relaxed } else { inner };
            Quantifier {
                repeat,
                inner,
                greedy: greedy && !single && inner != Inner::Combinations,
                optional: optional && !matches!(repeat, Repeat::Range(0, _)),
                gap,
            }
        })
}

fn stages() -> impl Strategy<Value = StageSpec> {
    let contiguity = prop_oneof![
        2 => Just(Contiguity::Next),
        3 => Just(Contiguity::FollowedBy),
        2 => Just(Contiguity::FollowedByAny),
        1 => Just(Contiguity::NotNext),
        1 => Just(Contiguity::NotFollowedBy),
    ];
    (
        contiguity,
        0u16..8,
        quantifiers(),
        proptest::option::weighted(0.2, 0u16..5),
        proptest::option::weighted(0.1, 5i64..40),
    )
        .prop_map(|(contiguity, id, quantifier, until, within_gap)| {
            let mut stage = StageSpec::event("", contiguity, condition(id));
            if !contiguity.is_absence() {
                stage.quantifier = quantifier;
            }
            if matches!(
                stage.quantifier.repeat,
                Repeat::OneOrMore | Repeat::AtLeast(_)
            ) {
                stage.until = until.map(condition);
            }
            stage.within_gap = within_gap;
            stage
        })
}

fn skips() -> impl Strategy<Value = Skip> {
    let stage = || Just("s0".to_owned());
    prop_oneof![
        3 => Just(Skip::None),
        1 => Just(Skip::ToNext),
        1 => Just(Skip::PastLast),
        1 => (stage(), any::<bool>()).prop_map(|(stage, strict)| Skip::ToFirst { stage, strict }),
        1 => (stage(), any::<bool>()).prop_map(|(stage, strict)| Skip::ToLast { stage, strict }),
    ]
}

/// Patterns of every sort; some are refused by the compiler.
fn patterns() -> impl Strategy<Value = PatternSpec> {
    let group = (
        proptest::collection::vec(stages(), 1..3),
        stages().prop_map(|stage| (stage.contiguity, stage.quantifier)),
    );
    (
        proptest::collection::vec(stages(), 1..4),
        proptest::option::weighted(0.25, group),
        proptest::option::weighted(0.6, 10i64..60),
        skips(),
    )
        .prop_map(|(mut list, group, within, skip)| {
            if let Some((inner, (contiguity, quantifier))) = group {
                list.push(StageSpec {
                    kind: StageKind::Group(inner),
                    contiguity,
                    quantifier: Quantifier {
                        greedy: false,
                        ..quantifier
                    },
                    until: None,
                    within: None,
                    within_gap: None,
                });
            }
            if let Some(last) = list.last_mut() {
                last.within = within;
            }
            let mut names = 0;
            name(&mut list, &mut names);
            PatternSpec { stages: list, skip }
        })
}

fn name(stages: &mut [StageSpec], count: &mut usize) {
    for stage in stages {
        match &mut stage.kind {
            StageKind::Event { name, .. } => {
                *name = format!("s{count}");
                *count += 1;
            }
            StageKind::Group(inner) => self::name(inner, count),
        }
    }
}

/// The bound that keeps the random patterns from growing without end.
const SMALL: Limits = Limits {
    partials: 60,
    ..Limits::NONE
};
