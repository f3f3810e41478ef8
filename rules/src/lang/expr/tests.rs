//! Expressions: values, errors at run time, errors when loaded.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::event::{Key, Sample, SampleKind};

struct Known;

impl World for Known {
    fn current(&self, metric: &str, max_age_ms: Option<u64>) -> Option<&Value> {
        const SEVEN: &Value = &Value::Double(7.0);
        // The value is 10 s old.
        (metric == "Other" && max_age_ms.is_none_or(|most| most >= 10_000)).then_some(SEVEN)
    }
    fn phrase(&self, phrase: &str) -> Option<&[f32]> {
        (phrase == "known").then_some(&[1.0, 0.0])
    }
}

/// One stage `hot` with three events.
struct Hot(Vec<Sample>);

impl Stages for Hot {
    fn first(&self, stage: u16) -> Option<&Sample> {
        self.0.first().filter(|_| stage == 0)
    }
    fn last(&self, stage: u16) -> Option<&Sample> {
        self.0.last().filter(|_| stage == 0)
    }
    fn count(&self, stage: u16) -> usize {
        if stage == 0 { self.0.len() } else { 0 }
    }
    fn each(&self, stage: u16, f: &mut dyn FnMut(&Sample)) {
        if stage == 0 {
            self.0.iter().for_each(f);
        }
    }
}

fn sample(value: Value) -> Sample {
    Sample {
        source: Arc::new(Key::device("g", "n", "press-1")),
        metric: "T".into(),
        value,
        time_ms: 1_000,
        engine_ms: 5,
        cause: (1, 0),
        quality: 192,
        historical: false,
        datatype: "Double",
        kind: SampleKind::Metric,
    }
}

fn names() -> Names {
    Names::with_stages(vec!["hot".to_owned(), "never".to_owned()])
}

fn eval_on(text: &str, event: &Sample) -> Result<Value, EvalError> {
    let expr = compile(text, &names(), false).unwrap_or_else(|e| panic!("{text}: {e:?}"));
    let hot = Hot([1.0, 4.0, 7.0].map(|v| sample(Value::Double(v))).to_vec());
    let scope = Scope {
        event: Some(event),
        key: &event.source,
        stages: &hot,
        world: &Known,
        results: &[],
    };
    expr.value(&scope).map(Val::into_value)
}

fn check(value: impl Into<Value>, cases: &[(&str, Value)]) {
    let event = sample(value.into());
    for (text, expected) in cases {
        let got = eval_on(text, &event);
        assert_eq!(format!("{got:?}"), format!("Ok({expected:?})"), "{text}");
    }
}

const YES: Value = Value::Bool(true);
const NO: Value = Value::Bool(false);

#[test]
fn numbers() {
    check(
        5.0,
        &[
            ("value > 4", YES),
            ("value > 4.5 && value <= 5", YES),
            ("value == 5", YES),
            ("7 / 2", Value::Double(3.5)),
            ("7 % 4", Value::Int(3)),
            ("-value + 1", Value::Double(-4.0)),
            ("9223372036854775807 + 1", Value::UInt(1 << 63)),
            ("abs(-3) + sqrt(16.0)", Value::Double(7.0)),
            (
                "round(2.5) == 3.0 && floor(2.5) == 2.0 && ceil(2.1) == 3.0",
                YES,
            ),
            ("int('12') + 1", Value::Int(13)),
            ("double(' 1.5 ') * 2.0", Value::Double(3.0)),
            ("duration('30s')", Value::Int(30_000)),
            ("value > 4.0 ? 'hot' : 'cold'", "hot".into()),
        ],
    );
    let wide = sample(Value::UInt(u64::MAX));
    assert_eq!(eval_on("value == 18446744073709551615u", &wide), Ok(YES));
    assert_eq!(eval_on("value < 18446744073709551616.0", &wide), Ok(YES));
    assert_eq!(eval_on("value - 1", &wide), Ok(Value::UInt(u64::MAX - 1)));
    let exact = sample(Value::Int((1 << 53) + 1));
    assert_eq!(eval_on("value > 9007199254740992.0", &exact), Ok(YES));
}

#[test]
fn null_and_nan() {
    for value in [Value::Null, Value::Double(f64::NAN)] {
        check(
            value,
            &[
                ("value > 1.0", NO),
                ("!(value > 1.0)", YES),
                ("value == value", NO),
                ("value != 1.0", NO),
                ("value in [1.0]", NO),
            ],
        );
    }
    check(
        Value::Null,
        &[
            ("value == null", YES),
            ("value != null", NO),
            ("value * 2.0", Value::Null),
            ("value + 1.0 > 0.0", NO),
            ("value && true", NO),
            ("string(value) == null", YES),
        ],
    );
    check(f64::NAN, &[("value == null", NO)]);
}

#[test]
fn texts_and_names() {
    check(
        "ALERT 7",
        &[
            ("value.startsWith('ALERT') && value.endsWith('7')", YES),
            (
                "value.contains('T 7') && value.size() == 7 && size(value) == 7",
                YES,
            ),
            ("value in ['OK', 'ALERT 7']", YES),
            ("value == 7.0", NO),
            ("value < 'B'", YES),
            ("metric + ':' + device", "T:press-1".into()),
            (
                "group == 'g' && node == 'n' && type == 'Double' && quality == 192",
                YES,
            ),
            ("time == 1000 && !historical", YES),
        ],
    );
}

#[test]
fn stages_and_what_they_hold() {
    check(
        0.0,
        &[
            ("hot.value", Value::Double(7.0)),
            ("first(hot.value) + last(hot.value)", Value::Double(8.0)),
            ("count(hot.value) == 3 && count(hot) == 3", YES),
            ("sum(hot.value) == 12.0 && avg(hot.value) == 4.0", YES),
            ("min(hot.value) == 1.0 && max(hot.value) == 7.0", YES),
            ("has(hot.value) && !has(never.value)", YES),
            ("never.value", Value::Null),
            ("sum(never.value) == 0.0 && count(never) == 0", YES),
            ("avg(never.value)", Value::Null),
            ("hot.device", "press-1".into()),
        ],
    );
}

#[test]
fn current_values_have_an_age() {
    check(
        0.0,
        &[
            ("current('Other')", Value::Double(7.0)),
            ("current('Other', '10s') > 6.0", YES),
            ("current('Other', '9s') > 6.0", NO),
            ("current('Nothing') == null", YES),
        ],
    );
}

#[test]
fn scores_and_vectors() {
    let mut event = sample(Value::Double(0.8));
    assert_eq!(eval_on("score('T')", &event), Ok(Value::Null));
    event.kind = SampleKind::Score;
    assert_eq!(
        eval_on("score('T') > 0.5 && !(score('U') > 0.5)", &event),
        Ok(YES)
    );
    event.kind = SampleKind::Embedding([1.0, 1.0].into());
    assert_eq!(
        eval_on("similar('known') > 0.7 && similar('known') < 0.71", &event),
        Ok(YES)
    );
    assert_eq!(eval_on("similar('unknown')", &event), Ok(Value::Null));
}

#[test]
fn failures() {
    let event = sample("n/a".into());
    for (text, expected) in [
        ("value * 2.0", "* of string and number"),
        ("value > 2.0", "comparison of string and number"),
        ("1 / 0", "division by zero"),
        ("1.0 % 0.0", "division by zero"),
        ("double(value)", "`n/a` is not a number"),
        ("!value", "! of string; needs a bool"),
        ("abs(value)", "abs of string; needs a number"),
    ] {
        let error = eval_on(text, &event).unwrap_err();
        assert_eq!(error.to_string(), expected, "{text}");
    }
    // What decides, decides, on whichever side it stands.
    for (text, expected) in [
        ("value > 2.0 && false", NO),
        ("false && value > 2.0", NO),
        ("value > 2.0 || true", YES),
        ("true || value > 2.0", YES),
    ] {
        assert_eq!(eval_on(text, &event), Ok(expected), "{text}");
    }
}

#[test]
fn what_can_be_known_is_said_at_once() {
    for (text, part, problem, near) in [
        (
            "vlaue > 1.0",
            "vlaue",
            "unknown name `vlaue`",
            Some("value"),
        ),
        ("hto.value > 1.0", "hto", "unknown name `hto`", Some("hot")),
        (
            "hot.vlaue > 1.0",
            ".",
            "a stage has no `vlaue`",
            Some("value"),
        ),
        (
            "hot > 1.0",
            "hot",
            "`hot` is a stage; write `hot.value`",
            None,
        ),
        (
            "curent('X') > 1.0",
            "(",
            "unknown function `curent`",
            Some("current"),
        ),
        (
            "metric.matches('x')",
            "(",
            "unknown function `matches`",
            None,
        ),
        (
            "metric > 5.0",
            "metric",
            "`>` of string; needs number",
            None,
        ),
        (
            "metric * 2.0 > 1.0",
            "metric",
            "`*` of string; needs number",
            None,
        ),
        ("true > 1.0", "true", "`>` of bool; needs number", None),
        ("value && 'x'", "'x'", "`&&` of string; needs bool", None),
        (
            "current('M', '5 parsecs') > 1",
            "'5 parsecs'",
            "`5 parsecs` is no duration; write for example \"30s\"",
            None,
        ),
        (
            "[1, 2].exists(x, x > 1)",
            "",
            "a loop over a list can't be used in a rule",
            None,
        ),
        (
            "'text'",
            "'text'",
            "`condition` of string; needs bool",
            None,
        ),
    ] {
        let errors = compile(text, &names(), true).unwrap_err();
        assert_eq!(errors[0].problem.to_string(), problem, "{text}");
        assert_eq!(errors[0].problem.nearest(), near, "{text}");
        if !part.is_empty() {
            assert_eq!(&text[errors[0].range.clone()], part, "{text}");
        }
    }
    let errors = compile("a > 1.0 && b > 1.0", &names(), true).unwrap_err();
    assert_eq!(errors.len(), 2, "all of them at once");
    assert!(matches!(
        compile("value >", &names(), true).unwrap_err()[0].problem,
        ExprProblem::Syntax { .. }
    ));
    // Places are right behind characters of several bytes, too.
    let text = "'äöü' == vlaue";
    let range = compile(text, &names(), true).unwrap_err()[0].range.clone();
    assert_eq!(&text[range], "vlaue");
    let text = "ä == ''";
    let range = compile(text, &names(), true).unwrap_err()[0].range.clone();
    assert!(text.get(range).is_some());
}

proptest! {
    #[test]
    fn anything_at_all_is_refused_or_runs(text in "[a-z0-9 ().<>=!&|+*/'\",\\[\\]?:ä-]{0,40}") {
        if let Ok(expr) = compile(&text, &names(), false) {
            let event = sample(Value::Double(1.0));
            let scope = Scope {
                event: Some(&event),
                key: &event.source,
                stages: &NoStages,
                world: &Known,
                results: &[],
            };
            let _ = expr.holds(&scope);
        }
    }

    #[test]
    fn integers_and_doubles_compare_exactly(int: i64, ulps in -3i64..3) {
        let near = int as f64;
        let double = f64::from_bits(near.to_bits().wrapping_add_signed(ulps));
        let order = Val::Int(i128::from(int)).order(&Val::Double(double)).unwrap();
        let expected = if double.is_nan() {
            None
        } else {
            let whole = double.floor() as i128;
            let order = i128::from(int).cmp(&whole);
            Some(if order.is_eq() && double.fract() != 0.0 { std::cmp::Ordering::Less } else { order })
        };
        prop_assert_eq!(order, expected);
    }
}
