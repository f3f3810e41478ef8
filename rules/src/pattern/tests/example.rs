//! A few patterns in words, for the reader.

use super::*;

/// Stages joined by `followed-by`; each takes events of its letter.
pub(super) fn spec(letters: &[&str]) -> PatternSpec {
    let stages = letters
        .iter()
        .map(|letter| StageSpec::event(*letter, Contiguity::FollowedBy, condition(kind(letter))))
        .collect();
    PatternSpec {
        stages,
        skip: Skip::None,
    }
}

pub(super) fn plan(letters: &[&str]) -> Plan {
    spec(letters).compile().unwrap()
}

fn kind(letter: &str) -> u16 {
    u16::from(letter.as_bytes()[0] - b'a')
}

/// The n-th event, at 10 ms times n.
pub(super) fn event(n: u32, letter: &str) -> (i64, Event) {
    let event = Event {
        kind: kind(letter) as u8,
        value: 0,
        seq: n,
    };
    (i64::from(n) * 10, event)
}

/// Runs a pattern over events given as letters, then advances time to `end`; matches are written as
/// stage name and event numbers.
fn check(spec: PatternSpec, letters: &str, end: i64, expected: &[&str]) {
    let plan = spec.compile().unwrap();
    let stream: Vec<_> = (0u32..)
        .zip(letters.split(' '))
        .map(|(n, letter)| event(n, letter))
        .collect();
    let mut state = KeyState::new();
    let mut seen = feed(&plan, &mut state, &stream, &Limits::NONE);
    plan.advance_to(&mut state, end, &mut |o| seen.push(Seen::of(o)));
    let text = |pairs: &[(u16, u32)]| {
        let word = |(s, n): &(u16, u32)| format!("{}{n}", plan.stage_name(StageIdx(*s)).unwrap());
        pairs.iter().map(word).collect::<Vec<_>>().join(" ")
    };
    let seen: Vec<String> = seen
        .iter()
        .map(|seen| match seen {
            Seen::Match(pairs, ts) => format!("{} at {ts}", text(pairs)),
            Seen::TimedOut(pairs, ts) => format!("{} timed out at {ts}", text(pairs)),
            Seen::Evicted(pairs, _) => format!("{} evicted", text(pairs)),
            Seen::SkipMissed => "skip missed".to_owned(),
        })
        .collect();
    assert_eq!(seen, expected);
}

fn with(mut spec: PatternSpec, change: impl FnOnce(&mut [StageSpec])) -> PatternSpec {
    change(&mut spec.stages);
    spec
}

#[test]
fn followed_by_takes_the_first_that_fits() {
    check(spec(&["a", "b"]), "a c b b", 0, &["a0 b2 at 20"]);
}

#[test]
fn next_takes_only_the_very_next() {
    let spec = with(spec(&["a", "b"]), |s| s[1].contiguity = Contiguity::Next);
    check(spec, "a c b a b", 0, &["a3 b4 at 40"]);
}

#[test]
fn a_window_ends_a_partial_match() {
    let spec = with(spec(&["a", "b"]), |s| s[1].within = Some(25));
    check(spec, "a c c b", 0, &["a0 timed out at 25"]);
}

#[test]
fn absence_at_the_end_is_settled_by_time() {
    let spec = with(spec(&["a", "b"]), |s| {
        s[1].contiguity = Contiguity::NotFollowedBy;
        s[1].within = Some(100);
    });
    check(spec.clone(), "a c c", 100, &["a0 at 100"]);
    check(spec, "a c b", 100, &[]);
}

#[test]
fn a_repetition_at_the_end_puts_out_every_step() {
    let spec = with(spec(&["a", "b"]), |s| {
        s[1].quantifier.repeat = Repeat::OneOrMore;
    });
    check(spec, "a b b", 0, &["a0 b1 at 10", "a0 b1 b2 at 20"]);
}

#[test]
fn skip_past_the_last_event_drops_overlaps() {
    let spec = PatternSpec {
        skip: Skip::PastLast,
        ..spec(&["a", "b"])
    };
    check(spec, "a a b a b", 0, &["a0 b2 at 20", "a3 b4 at 40"]);
}

#[test]
fn a_strict_skip_that_cannot_skip_is_reported() {
    let spec = PatternSpec {
        skip: Skip::ToFirst {
            stage: "a".to_owned(),
            strict: true,
        },
        ..spec(&["a", "b"])
    };
    check(spec, "a b", 0, &["skip missed", "a0 b1 at 10"]);
}

#[test]
fn a_group_that_may_be_empty_does_not_loop() {
    let mut group = spec(&["b"]).stages;
    group[0].quantifier.optional = true;
    let mut spec = spec(&["a", "c"]);
    let group = StageSpec {
        kind: StageKind::Group(group),
        quantifier: Quantifier {
            repeat: Repeat::OneOrMore,
            ..Quantifier::ONCE
        },
        ..spec.stages[0].clone()
    };
    spec.stages.insert(1, group);
    check(spec, "a c", 0, &["a0 c1 at 10"]);
}

#[test]
fn the_plan_explains_itself() {
    let spec = with(spec(&["a", "b"]), |s| {
        s[1].within = Some(1_000);
        s[1].quantifier.repeat = Repeat::OneOrMore;
    });
    let text = spec.compile().unwrap().to_string();
    assert!(text.starts_with("window 1000 ms\n"), "{text}");
    assert!(
        text.contains("a (start)\n  c0: take as a, to b:1"),
        "{text}"
    );
}
