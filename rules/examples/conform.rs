//! Runs cases recorded from Flink CEP and says which ones come out differently.
//!
//! `cargo run --release -p rules --example conform -- [--strict] FILE.jsonl`
//!
//! By default compares, for each key, the multiset of matches, the set of time-outs and the list of
//! late events, or the phase of an error. `--strict` compares every output in order, with its time.
//! Exits with 0 when all cases pass, 1 when one fails, 2 on wrong usage.

#[path = "../tests/flink/case.rs"]
mod case;
#[path = "../tests/flink/condition.rs"]
mod condition;

use std::fs;
use std::process::ExitCode;

use case::Case;

fn main() -> ExitCode {
    let mut strict = false;
    let mut files = Vec::new();
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--strict" => strict = true,
            option if option.starts_with('-') => return usage(),
            _ => files.push(argument),
        }
    }
    if files.is_empty() {
        return usage();
    }
    let (mut passed, mut failed) = (0, 0);
    for file in &files {
        let text = match fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) => {
                eprintln!("{file}: {error}");
                return ExitCode::from(1);
            }
        };
        for (number, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let verdict = match Case::parse(line) {
                Ok(case) => case
                    .check(strict)
                    .map_err(|diff| format!("{}\n{diff}", case.id)),
                Err(error) => Err(format!("line {}: {error}\n", number + 1)),
            };
            match verdict {
                Ok(()) => passed += 1,
                Err(text) => {
                    failed += 1;
                    print!("FAIL {text}");
                }
            }
        }
    }
    println!("{passed} passed, {failed} failed");
    ExitCode::from(u8::from(failed > 0))
}

fn usage() -> ExitCode {
    eprintln!("usage: conform [--strict] FILE.jsonl...");
    ExitCode::from(2)
}
