//! The pattern engine against outputs recorded from Flink CEP 1.20.5 (`cases.jsonl`).

mod case;
mod condition;

use case::Case;

fn cases() -> Vec<Case> {
    let text = include_str!("cases.jsonl");
    text.lines().map(|line| Case::parse(line).unwrap()).collect()
}

fn assert_all(check: impl Fn(&Case) -> Result<(), String>) {
    let cases = cases();
    let failures: Vec<String> = cases
        .iter()
        .filter_map(|case| check(case).err().map(|diff| format!("{}\n{diff}", case.id)))
        .collect();
    assert!(
        failures.is_empty(),
        "{} of {} cases differ\n{}",
        failures.len(),
        cases.len(),
        failures.join("\n")
    );
}

#[test]
fn every_recorded_output_in_order() {
    assert_all(|case| case.check(true));
}

#[test]
fn the_automaton_alone_gives_the_same() {
    assert_all(|case| case.compare(&case.run(|plan| plan.without_chain()), true));
}
