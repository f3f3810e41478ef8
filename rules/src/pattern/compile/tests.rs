use super::*;
use crate::pattern::spec::{CondId, Condition, Contiguity, Inner, Quantifier, Repeat};

fn stage(name: &str, contiguity: Contiguity) -> StageSpec {
    let condition = Condition {
        id: CondId(0),
        iterative: false,
    };
    StageSpec::event(name, contiguity, condition)
}

/// `a` followed by `b`, changed, must be refused with what `expected` says.
fn check(change: impl FnOnce(&mut PatternSpec), expected: &str) {
    let mut spec = PatternSpec {
        stages: vec![
            stage("a", Contiguity::Next),
            stage("b", Contiguity::FollowedBy),
        ],
        skip: Skip::None,
    };
    change(&mut spec);
    let error = spec.compile().map(|_| ()).unwrap_err();
    assert!(error.to_string().contains(expected), "{error}");
}

fn repeated(repeat: Repeat) -> Quantifier {
    Quantifier {
        repeat,
        ..Quantifier::ONCE
    }
}

#[test]
fn refused_patterns() {
    use Contiguity::{NotFollowedBy, NotNext};
    check(|p| p.stages.clear(), "no stage");
    check(
        |p| p.stages[1].kind = StageKind::Group(Vec::new()),
        "no stage",
    );
    check(
        |p| p.stages[0].contiguity = NotNext,
        "`a`: a pattern or group cannot begin",
    );
    check(
        |p| p.stages[1] = stage("a", NotNext),
        "`a`: the name is used",
    );
    check(
        |p| p.stages[1] = stage("x:y", NotNext),
        "`x:y`: a stage name",
    );
    check(
        |p| {
            p.stages[1].contiguity = NotNext;
            p.stages[1].quantifier.optional = true;
        },
        "`b`: an absence takes no quantifier",
    );
    check(
        |p| p.stages[1].quantifier = repeated(Repeat::Times(0)),
        "0..0",
    );
    check(
        |p| p.stages[1].quantifier = repeated(Repeat::Range(3, 2)),
        "3..2",
    );
    check(
        |p| p.stages[1].quantifier = repeated(Repeat::Range(0, 0)),
        "1..0",
    );
    check(
        |p| p.stages[1].quantifier.inner = Inner::Consecutive,
        "consecutive and combinations need",
    );
    check(|p| p.stages[1].quantifier.greedy = true, "greedy needs");
    check(
        |p| {
            p.stages[1].quantifier = Quantifier {
                inner: Inner::Combinations,
                greedy: true,
                ..repeated(Repeat::OneOrMore)
            };
        },
        "greedy cannot be combined",
    );
    check(
        |p| {
            p.stages[1].kind = StageKind::Group(vec![stage("c", Contiguity::Next)]);
            p.stages[1].quantifier = Quantifier {
                greedy: true,
                ..repeated(Repeat::OneOrMore)
            };
        },
        "a group cannot be greedy",
    );
    check(
        |p| {
            p.stages[0].quantifier = Quantifier {
                greedy: true,
                ..repeated(Repeat::OneOrMore)
            };
            p.stages[1].quantifier.optional = true;
        },
        "`b`: an optional stage cannot follow a greedy one",
    );
    check(
        |p| {
            p.stages[1].quantifier = Quantifier {
                optional: true,
                ..repeated(Repeat::Range(0, 2))
            };
        },
        "optional already",
    );
    check(
        |p| {
            p.stages[0].quantifier.optional = true;
            p.stages[1].contiguity = NotNext;
        },
        "`b`: an absence cannot follow",
    );
    check(
        |p| {
            p.stages[1].until = Some(Condition {
                id: CondId(1),
                iterative: false,
            });
        },
        "`b`: until needs",
    );
    check(
        |p| p.stages[1].contiguity = NotFollowedBy,
        "not-followed-by at the end needs within",
    );
    check(
        |p| {
            p.stages[1].within = Some(10);
            p.stages[1].within_gap = Some(20);
        },
        "a gap of 20 ms is longer than the window of 10 ms",
    );
    check(
        |p| {
            p.skip = Skip::ToLast {
                stage: "z".to_owned(),
                strict: false,
            };
        },
        "`z`",
    );
    for n in [20_000, i64::MAX] {
        check(
            |p| p.stages[1].quantifier = repeated(Repeat::Times(n)),
            "more than 10000 states",
        );
        check(
            |p| p.stages[1].quantifier = repeated(Repeat::Range(1, n)),
            "more than 10000 states",
        );
    }
}

#[test]
fn a_stage_inside_a_group_cannot_be_skipped_to() {
    check(
        |p| {
            p.stages[1].kind = StageKind::Group(vec![stage("c", Contiguity::Next)]);
            p.skip = Skip::ToFirst {
                stage: "c".to_owned(),
                strict: false,
            };
        },
        "`c`",
    );
}

#[test]
fn many_optional_stages_are_compiled_or_refused() {
    for count in [100, 600, 5_000] {
        let stages = (0..count)
            .map(|n| {
                let mut stage = stage(&format!("s{n}"), Contiguity::FollowedBy);
                stage.quantifier.optional = n > 0;
                stage
            })
            .collect();
        let spec = PatternSpec {
            stages,
            skip: Skip::None,
        };
        assert_eq!(spec.compile().is_ok(), count == 100);
    }
}
