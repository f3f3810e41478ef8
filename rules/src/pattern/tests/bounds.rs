//! What is held is bounded, counted, and given back.

use std::sync::Arc;

use super::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    #[test]
    fn no_event_is_left_behind(spec in patterns(), stream in streams(40)) {
        let Ok(plan) = spec.compile() else { return Ok(()) };
        let mut state = KeyState::new();
        feed(&plan, &mut state, &stream, &SMALL);
        if plan.window() > 0 {
            let end = stream.last().map_or(0, |(ts, _)| *ts) + plan.window();
            plan.advance_to(&mut state, end, &mut |_| ());
        } else {
            while plan.evict_oldest(&mut state, &mut |_| ()) > 0 {}
        }
        prop_assert!(state.is_idle());
        prop_assert_eq!(state.partial_matches(), 0);
        prop_assert_eq!(state.events(), 0);
        prop_assert_eq!(plan.next_deadline(&state), None);
    }

    #[test]
    fn an_idle_state_and_a_new_one_are_the_same(
        spec in patterns(),
        first in streams(20),
        second in streams(20),
    ) {
        let Ok(plan) = spec.compile() else { return Ok(()) };
        let mut used = KeyState::new();
        feed(&plan, &mut used, &first, &SMALL);
        used.clear();
        prop_assert!(used.is_idle());
        let later: Vec<_> = second.iter().map(|(ts, e)| (ts + 1_000, *e)).collect();
        let mut fresh = KeyState::new();
        prop_assert_eq!(
            feed(&plan, &mut used, &later, &SMALL),
            feed(&plan, &mut fresh, &later, &SMALL)
        );
    }

    #[test]
    fn limits_hold_after_every_event(
        spec in patterns(),
        stream in streams(40),
        partials in 1usize..8,
        bytes in 200usize..2_000,
    ) {
        let Ok(plan) = spec.compile() else { return Ok(()) };
        let limits = Limits { partials, bytes, event_bytes: 16 };
        let mut state = KeyState::new();
        for item in stream {
            feed(&plan, &mut state, &[item], &limits);
            prop_assert!(state.partial_matches() <= partials);
            let cost = limits.cost::<Event>(state.partial_matches(), state.events());
            prop_assert!(cost <= bytes);
        }
    }
}

#[test]
fn the_earliest_start_goes_first() {
    let plan = example::plan(&["a", "b"]);
    let limits = Limits {
        partials: 2,
        ..Limits::NONE
    };
    let mut state = KeyState::new();
    let stream: Vec<_> = (0..4).map(|n| example::event(n, "a")).collect();
    let seen = feed(&plan, &mut state, &stream, &limits);
    assert_eq!(
        seen,
        [
            Seen::Evicted(vec![(0, 0)], 0),
            Seen::Evicted(vec![(0, 1)], 10)
        ]
    );
    assert_eq!(state.partial_matches(), 2);
}

/// A million devices that appear once each, with a window of a day.
#[test]
fn a_million_short_lived_keys_stay_within_the_bound() {
    let mut spec = example::spec(&["a", "b"]);
    spec.stages.last_mut().unwrap().within = Some(86_400_000);
    let plan = Arc::new(spec.compile().unwrap());
    let bounds = Bounds {
        key: Limits::NONE,
        keys: 20_000,
        waiting: 1_000,
    };
    let mut stream: Keyed<u32, Event> = Keyed::new(plan, bounds);
    let mut most = 0;
    for n in 0..1_000_000u32 {
        let event = Event {
            kind: 0,
            value: 0,
            seq: n,
        };
        stream.push(i64::from(n) + 1, n, event).unwrap();
        if n % 1_000 == 999 {
            stream.advance(i64::from(n) + 1, &holds, |_, _| ());
        }
        if n % 100_000 == 99_999 {
            most = most.max(stream.bytes());
        }
    }
    assert_eq!(stream.len(), 20_000);
    assert_eq!(stream.turned_away(), 980_000);
    assert!(most < 16 << 20, "{most} bytes");
    stream.advance(i64::MAX, &holds, |_, _| ());
    assert!(stream.is_empty());
}
