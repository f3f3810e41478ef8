//! The pattern engine against outputs recorded from Flink CEP 1.20.5: `cases.jsonl`, and `random.jsonl`, which
//! `make/` made.

mod case;
mod condition;

use case::Case;

/// Cases in `random.jsonl`.
const RANDOM: usize = 318;

/// Checks every case; the error lists those that differ.
fn check_all(check: impl Fn(&Case) -> Result<(), String>) -> Result<(), String> {
    let mut failures = String::new();
    for (cases, expected) in [
        (include_str!("cases.jsonl"), 509),
        (include_str!("random.jsonl"), RANDOM),
    ] {
        let mut count = 0;
        for line in cases.lines() {
            let case = Case::parse(line)?;
            count += 1;
            if let Err(diff) = check(&case) {
                failures += &format!("{}\n{diff}", case.id);
            }
        }
        assert_eq!(count, expected);
    }
    match failures.is_empty() {
        true => Ok(()),
        false => Err(failures),
    }
}

#[test]
fn every_recorded_output_in_order() -> Result<(), String> {
    check_all(|case| case.check(true))
}

#[test]
fn the_automaton_alone_gives_the_same() -> Result<(), String> {
    check_all(|case| case.compare(&case.run(|plan| plan.without_chain()), true))
}
