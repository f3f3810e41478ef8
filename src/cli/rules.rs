//! `sparkgate rules`: scenario files without a gateway, and the rules of a running one.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use serde_json::{Value, json};

use super::client::{Client, block_on};
use super::{EX_CONFIG, Listing, Output, Reach, table};
use crate::packs;
use crate::telemetry::chain;

#[derive(Debug, Subcommand)]
pub(super) enum RulesVerb {
    /// Rules of the running gateway, with how often they fired
    List(Listing),
    /// One rule: its compiled plan and live state
    Show {
        /// Rule id
        id: String,
        #[command(flatten)]
        listing: Listing,
    },
    /// Let a rule run again
    Enable {
        /// Rule id
        id: String,
        #[command(flatten)]
        reach: Reach,
    },
    /// Stop a rule; its state is kept
    Disable {
        /// Rule id
        id: String,
        #[command(flatten)]
        reach: Reach,
    },
    /// Run the scenario files beside rule packs; exits 1 where what happens is not what is expected
    Test {
        /// Pack files, or folders that are searched for them
        #[arg(required = true)]
        paths: Vec<PathBuf>,
        /// Print a table or JSON
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Run stored history through rules, every command suppressed
    Replay(Box<super::replay::ReplayArgs>),
}

/// Runs the verb.
pub(super) fn rules(verb: RulesVerb) -> ExitCode {
    let done = match verb {
        RulesVerb::Test { paths, output } => return test(&paths, output),
        RulesVerb::Replay(args) => match super::replay::replay(&args) {
            Ok(super::replay::Done::Unusable) => return ExitCode::from(EX_CONFIG),
            Ok(super::replay::Done::Fine) => Ok(()),
            Err(error) => Err(error),
        },
        RulesVerb::List(listing) => list(&listing),
        RulesVerb::Show { id, listing } => show(&id, &listing),
        RulesVerb::Enable { id, reach } => switch(&id, "enable", &reach),
        RulesVerb::Disable { id, reach } => switch(&id, "disable", &reach),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sparkgate: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn list(listing: &Listing) -> anyhow::Result<()> {
    let answer = block_on(Client::new(&listing.reach)?.get("/api/rules"))?;
    if listing.output == Output::Json {
        println!("{answer:#}");
        return Ok(());
    }
    let rows: Vec<Vec<String>> = answer
        .as_array()
        .into_iter()
        .flatten()
        .map(|rule| {
            let on = |key: &str| rule.get(key).and_then(Value::as_bool).unwrap_or(false);
            let mode = match (on("enabled"), on("dry_run")) {
                (false, _) => "disabled",
                (true, true) => "dry run",
                (true, false) => "live",
            };
            ["pack", "id", "version", "kind"]
                .iter()
                .map(|key| table::cell(rule.get(*key)))
                .chain([mode.to_owned()])
                .chain(
                    ["fires", "errors"]
                        .iter()
                        .map(|key| table::cell(rule.get(*key))),
                )
                .collect()
        })
        .collect();
    table::print(
        &["PACK", "RULE", "VERSION", "KIND", "MODE", "FIRES", "ERRORS"],
        &rows,
    );
    Ok(())
}

fn show(id: &str, listing: &Listing) -> anyhow::Result<()> {
    let answer = block_on(Client::new(&listing.reach)?.get(&format!("/api/rules/{id}")))?;
    if listing.output == Output::Json {
        println!("{answer:#}");
    } else {
        println!("{}", table::cell(answer.get("plan")));
    }
    Ok(())
}

fn switch(id: &str, action: &str, reach: &Reach) -> anyhow::Result<()> {
    block_on(Client::new(reach)?.post(&format!("/api/rules/{id}/{action}"), &json!({})))?;
    eprintln!("{id}: {action}d");
    Ok(())
}

fn test(paths: &[PathBuf], output: Output) -> ExitCode {
    let mut results = Vec::new();
    let mut unusable = false;
    for path in paths {
        match packs::find(path) {
            Ok(files) => {
                for pack in files {
                    unusable |= !run_pack(&pack, output, &mut results);
                }
            }
            Err(error) => {
                eprintln!("{}: {error}", path.display());
                unusable = true;
            }
        }
    }
    let failed = results.iter().filter(|(_, fine)| !fine).count();
    if output == Output::Json {
        let rows: Vec<Value> = results
            .iter()
            .map(|(file, fine)| json!({"scenario": file, "passed": fine}))
            .collect();
        println!("{:#}", Value::Array(rows));
    } else {
        println!("{} passed, {failed} failed", results.len() - failed);
    }
    match (unusable, failed, results.len()) {
        (true, _, _) => ExitCode::from(EX_CONFIG),
        (false, 0, 1..) => ExitCode::SUCCESS,
        (false, 0, 0) => {
            eprintln!("no *.scenario.toml beside these packs");
            ExitCode::FAILURE
        }
        (false, _, _) => ExitCode::FAILURE,
    }
}

/// Runs every scenario beside one pack; `false` when the pack or a scenario can't be read.
fn run_pack(pack: &Path, output: Output, results: &mut Vec<(String, bool)>) -> bool {
    let loaded = match packs::load(&[pack.to_path_buf()]) {
        Ok(loaded) => loaded,
        Err(errors) => {
            for error in errors {
                eprintln!("{error}");
            }
            return false;
        }
    };
    let mut fine = true;
    for scenario in packs::scenarios(pack) {
        let shown = scenario.display().to_string();
        let outcome = std::fs::read_to_string(&scenario)
            .map_err(|error| error.to_string())
            .and_then(|text| {
                rules::scenario::run(&loaded, &shown, &text).map_err(|error| error.to_string())
            });
        match outcome {
            Ok(report) => {
                if output == Output::Table {
                    println!(
                        "{} {shown}",
                        if report.passed() { "ok    " } else { "FAILED" }
                    );
                    if !report.passed() {
                        println!("{report}");
                    }
                }
                results.push((shown, report.passed()));
            }
            Err(error) => {
                eprintln!("{error}");
                fine = false;
            }
        }
    }
    fine
}
