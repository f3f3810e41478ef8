//! The short path for plain sequences against the automaton.

use super::*;

fn chains() -> impl Strategy<Value = PatternSpec> {
    let stage = (
        any::<bool>(),
        0u16..8,
        proptest::option::weighted(0.2, 5i64..30),
    )
        .prop_map(|(relaxed, id, within_gap)| {
            let contiguity = if relaxed {
                Contiguity::FollowedBy
            } else {
                Contiguity::Next
            };
            let mut stage = StageSpec::event("", contiguity, condition(id));
            stage.within_gap = within_gap;
            stage
        });
    (
        proptest::collection::vec(stage, 1..5),
        proptest::option::of(30i64..80),
    )
        .prop_map(|(mut stages, within)| {
            if let Some(last) = stages.last_mut() {
                last.within = within;
            }
            let mut names = 0;
            name(&mut stages, &mut names);
            PatternSpec {
                stages,
                skip: Skip::None,
            }
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn short_path_and_automaton_agree(
        spec in chains(),
        stream in streams(40),
        partials in prop_oneof![Just(usize::MAX), 1usize..6],
        end in 0i64..200,
    ) {
        let chain = spec.compile().unwrap();
        prop_assert!(chain.is_chain());
        let automaton = chain.clone().without_chain();
        prop_assert_ne!(chain.shape(), automaton.shape());
        let limits = Limits { partials, ..Limits::NONE };
        let (mut short, mut long) = (KeyState::new(), KeyState::new());
        for (ts, event) in &stream {
            let item = [(*ts, *event)];
            prop_assert_eq!(chain.may_begin(event, &holds), automaton.may_begin(event, &holds));
            let seen = feed(&chain, &mut short, &item, &limits);
            prop_assert_eq!(&seen, &feed(&automaton, &mut long, &item, &limits));
            prop_assert_eq!(short.is_idle(), long.is_idle());
            prop_assert_eq!(short.partial_matches(), long.partial_matches());
            prop_assert_eq!(short.events(), long.events());
            prop_assert_eq!(chain.next_deadline(&short), automaton.next_deadline(&long));
        }
        let end = stream.last().map_or(0, |(ts, _)| *ts) + end;
        let (mut a, mut b) = (Vec::new(), Vec::new());
        chain.advance_to(&mut short, end, &mut |o| a.push(Seen::of(o)));
        automaton.advance_to(&mut long, end, &mut |o| b.push(Seen::of(o)));
        prop_assert_eq!(a, b);
    }
}
