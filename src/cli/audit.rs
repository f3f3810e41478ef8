//! `sparkgate audit`: what the audit log says, and whether it is whole.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Subcommand;
use serde_json::Value;

use super::client::{Client, Refused, block_on};
use super::{Listing, Output, Reach, table};
use crate::admin::audit::report_json;
use crate::audit;
use crate::config::Config;
use crate::prepare;
use crate::state::StateStore;
use crate::telemetry::chain;

#[derive(Debug, Subcommand)]
pub(super) enum AuditVerb {
    /// The newest entries, newest last
    List {
        #[command(flatten)]
        listing: Listing,
        /// How many
        #[arg(short = 'n', long, default_value_t = 50)]
        limit: usize,
    },
    /// Find removed and altered entries; exits 1 where there are any. Works with the gateway stopped, too
    Verify {
        #[command(flatten)]
        listing: Listing,
        /// Data folder of a stopped gateway [default: the configuration's]
        #[arg(long)]
        data_dir: Option<PathBuf>,
    },
}

pub(super) fn audit(verb: AuditVerb) -> ExitCode {
    let done = match verb {
        AuditVerb::List { listing, limit } => list(&listing, limit).map(|()| true),
        AuditVerb::Verify { listing, data_dir } => verify(&listing, data_dir),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("sparkgate: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn list(listing: &Listing, limit: usize) -> anyhow::Result<()> {
    let path = format!("/api/audit?limit={limit}");
    super::online::list(
        listing,
        &path,
        &[
            "SEQ", "WHAT", "WHO", "CAUSE", "TARGET", "METRIC", "OLD", "NEW", "OUTCOME", "REASON",
        ],
        |entry| {
            let at = |pointer: &str| table::cell(entry.pointer(pointer));
            let outcome = ["/body/status", "/body/verb", "/body/event"]
                .iter()
                .find_map(|pointer| entry.pointer(pointer));
            vec![
                at("/seq"),
                at("/what"),
                at("/body/by"),
                at("/body/cause"),
                entry
                    .pointer("/body/target")
                    .map(super::online::name_of)
                    .unwrap_or_default(),
                at("/body/metric"),
                at("/body/previous"),
                at("/body/value"),
                table::cell(outcome),
                at("/body/reason"),
            ]
        },
    )
}

/// Whether the log is whole.
fn verify(listing: &Listing, data_dir: Option<PathBuf>) -> anyhow::Result<bool> {
    let report = match data_dir {
        Some(folder) => stopped(&folder.join("audit"), &folder.join("state"))?,
        None => running(&listing.reach)?,
    };
    let whole = report.get("whole").and_then(Value::as_bool) == Some(true);
    if listing.output == Output::Json {
        println!("{report:#}");
        return Ok(whole);
    }
    let at = |key: &str| table::cell(report.get(key));
    for problem in report
        .get("found")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        println!("{}", table::cell(Some(problem)));
    }
    if whole {
        println!(
            "whole: {} entries, {} to {}, head {}",
            at("entries"),
            at("first"),
            at("last"),
            at("hash")
        );
    } else {
        println!(
            "not whole: {} problems in {} entries",
            at("problem_count"),
            at("entries")
        );
    }
    Ok(whole)
}

/// Asks the running gateway, which knows its newest entry; where none runs, looks at its folders.
fn running(reach: &Reach) -> anyhow::Result<Value> {
    let answer = block_on(Client::new(reach)?.get("/api/audit/verify"));
    let error = match answer {
        Ok(report) => return Ok(report),
        Err(error) if reach.url.is_some() || error.is::<Refused>() => return Err(error),
        Err(error) => error,
    };
    let config = match Config::read(
        reach.config.config.as_deref(),
        reach.config.config_dir.as_deref(),
    ) {
        Ok(loaded) => loaded.value,
        Err(_) => return Err(error),
    };
    stopped(
        &prepare::audit_folder(&config),
        &prepare::state_folder(&config),
    )
}

fn stopped(folder: &std::path::Path, state: &std::path::Path) -> anyhow::Result<Value> {
    anyhow::ensure!(
        folder.is_dir(),
        "no audit log at {}: name a data folder with --data-dir, or a configuration with -c",
        folder.display()
    );
    let head = if state.is_dir() {
        let store = crate::state::open(state, crate::state::Options::default())
            .context("state store (is the gateway running? name it with --socket or --url)")?;
        store
            .get(audit::KEY)
            .context("state store")?
            .and_then(|bytes| audit::Head::decode(&bytes))
    } else {
        None
    };
    if head.is_none() {
        eprintln!("the state store knows no newest entry: a cut tail would not be found");
    }
    let report = audit::verify(folder, head.as_ref())
        .with_context(|| format!("audit log {}", folder.display()))?;
    Ok(report_json(&report))
}
