//! Verbs that need no running gateway: validate, config, buffer, passwd, doctor.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Subcommand;
use serde_json::{Value, json};

use super::client::block_on;
use super::export::{Format, export};
use super::{ConfigArgs, EX_CONFIG, Output, table};
use crate::buffer::tools::{self, Progress};
use crate::buffer::{History, Selection};
use crate::config::load::Diagnostic;
use crate::config::{Config, change};
use crate::prepare;
use crate::telemetry::chain;

#[derive(Debug, Subcommand)]
pub(super) enum ConfigVerb {
    /// Every value in force
    Show {
        #[command(flatten)]
        config: ConfigArgs,
        /// Name the file and line of each value, or `default`
        #[arg(long)]
        sources: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum BufferVerb {
    /// Segments, counts and cursors
    Stat(Place),
    /// Check every frame's checksum; exits 1 where something is damaged
    Verify(Place),
    /// Records, oldest first, of all tiers, on standard output
    Export {
        #[command(flatten)]
        place: Place,
        /// What is written
        #[arg(long, value_enum, default_value_t)]
        format: Format,
        /// From this time, ms since 1970 UTC
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// Up to this time, ms since 1970 UTC
        #[arg(long, default_value_t = u64::MAX)]
        to: u64,
    },
    /// Cut torn tails, set unreadable files aside, write down what is lost; the gateway must be stopped
    Repair(Place),
}

/// Which journal.
#[derive(Debug, clap::Args)]
pub(super) struct Place {
    /// Data folder [default: the configuration's]
    #[arg(long)]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigArgs,
    /// Print a table or JSON
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

impl Place {
    pub(super) fn output(&self) -> Output {
        self.output
    }

    pub(super) fn config(&self) -> &ConfigArgs {
        &self.config
    }

    pub(super) fn journal(&self) -> anyhow::Result<PathBuf> {
        if let Some(folder) = &self.data_dir {
            return Ok(folder.join("journal"));
        }
        Ok(prepare::journal_folder(&self.loaded()?))
    }

    fn loaded(&self) -> anyhow::Result<Config> {
        let (main, folder) = (&self.config.config, &self.config.config_dir);
        match Config::read(main.as_deref(), folder.as_deref()) {
            Ok(mut loaded) => {
                prepare::take_credentials(&mut loaded.value);
                Ok(loaded.value)
            }
            Err(errors) => {
                let first = errors.first().map(ToString::to_string).unwrap_or_default();
                anyhow::bail!(
                    "no journal is named: give --data-dir, or a configuration that can be read ({first})"
                )
            }
        }
    }

    /// Reads all tiers, as far as the configuration names them.
    pub(super) fn history(&self, selection: Selection) -> anyhow::Result<History> {
        #[cfg(feature = "cold")]
        if self.data_dir.is_none() {
            let config = self.loaded()?;
            let folder = prepare::journal_folder(&config);
            let cold = config.buffer.cold.as_ref();
            return Ok(History::open_with_cold(&folder, cold, selection)?);
        }
        let folder = self.journal()?;
        Ok(History::open(&folder, selection)?)
    }
}

/// Checks all that `run` would check.
pub(super) fn validate(args: &ConfigArgs, output: Output) -> ExitCode {
    match prepare::prepare(args.config.as_deref(), args.config_dir.as_deref()) {
        Ok(prepared) => {
            let config = &prepared.loaded.value;
            for error in &prepared.model_errors {
                eprintln!("{error}");
            }
            if !prepared.model_errors.is_empty() {
                eprintln!(
                    "{} of the above: the gateway would run without these models",
                    prepared.model_errors.len()
                );
                if output == Output::Json {
                    let errors: Vec<Value> = prepared
                        .model_errors
                        .iter()
                        .map(|message| {
                            json!({"file": null, "line": null, "column": null, "message": message})
                        })
                        .collect();
                    println!("{}", json!({"valid": false, "errors": errors}));
                }
                return ExitCode::from(EX_CONFIG);
            }
            let rules: usize = prepared.packs.iter().map(|pack| pack.rules().count()).sum();
            if output == Output::Json {
                println!(
                    "{}",
                    json!({"valid": true, "gateway": config.gateway.id, "rules": rules, "errors": []})
                );
            } else {
                let models = prepared
                    .registry
                    .as_ref()
                    .map_or(0, |registry| registry.models().count());
                println!(
                    "valid: gateway {}, {rules} rules, {models} models",
                    config.gateway.id
                );
            }
            ExitCode::SUCCESS
        }
        Err(errors) => {
            refuse(&errors, output);
            ExitCode::from(EX_CONFIG)
        }
    }
}

fn refuse(errors: &[Diagnostic], output: Output) {
    if output == Output::Json {
        let list: Vec<Value> = errors
            .iter()
            .map(|error| {
                json!({
                    "file": error.file.display().to_string(),
                    "line": error.place.map(|p| p.0),
                    "column": error.place.map(|p| p.1),
                    "message": error.message,
                })
            })
            .collect();
        println!("{}", json!({"valid": false, "errors": list}));
    }
    for error in errors {
        eprintln!("{error}");
    }
}

/// Shows the configuration in force.
pub(super) fn config(verb: ConfigVerb) -> ExitCode {
    let ConfigVerb::Show { config, sources } = verb;
    let loaded = match Config::read(config.config.as_deref(), config.config_dir.as_deref()) {
        Ok(loaded) => loaded,
        Err(errors) => {
            refuse(&errors, Output::Table);
            return ExitCode::from(EX_CONFIG);
        }
    };
    let shown = toml::Value::try_from(&loaded.value).and_then(|mut value| {
        change::redact("", &mut value);
        Ok((toml::to_string(&value)?, value))
    });
    let (text, value) = match shown {
        Ok(shown) => shown,
        Err(error) => {
            eprintln!("sparkgate: {error}");
            return ExitCode::FAILURE;
        }
    };
    if !sources {
        print!("{text}");
        return ExitCode::SUCCESS;
    }
    let mut rows = Vec::new();
    change::leaves("", &value, &mut |key, value| {
        let from = loaded.sources.get(key).map_or_else(
            || "default".to_owned(),
            |(file, line)| format!("{}:{line}", file.display()),
        );
        rows.push(vec![key.to_owned(), value.to_string(), from]);
    });
    table::print(&["KEY", "VALUE", "SOURCE"], &rows);
    ExitCode::SUCCESS
}

/// Works on a journal's folder.
pub(super) fn buffer(verb: BufferVerb) -> ExitCode {
    let done = match verb {
        BufferVerb::Stat(place) => stat(&place),
        BufferVerb::Verify(place) => verify(&place),
        BufferVerb::Export {
            place,
            format,
            from,
            to,
        } => export(&place, format, Selection::between(from, to)),
        BufferVerb::Repair(place) => repair(&place),
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

/// A line on a terminal, nothing in a pipe.
pub(super) fn progress(what: &'static str) -> impl FnMut(Progress) {
    let shown = std::io::stderr().is_terminal();
    move |at: Progress| {
        if shown {
            let percent = at
                .done
                .saturating_mul(100)
                .checked_div(at.total)
                .unwrap_or(100);
            eprint!("\r{what} {percent:>3} % of {}", table::bytes(at.total));
            if at.done >= at.total {
                eprintln!();
            }
        }
    }
}

fn show(report: &tools::Report, output: Output) {
    if output == Output::Json {
        println!("{:#}", serde_json::to_value(report).unwrap_or(Value::Null));
        return;
    }
    println!("epoch {}", report.epoch.as_deref().unwrap_or("unknown"));
    if let Some(counts) = &report.counts {
        println!(
            "received {}  derived {}  published {}  pending {}  filtered {}  dropped {}",
            counts.received,
            counts.derived,
            counts.published,
            counts.pending,
            counts.filtered,
            counts.dropped.values().sum::<u64>()
        );
    }
    let rows: Vec<Vec<String>> = report
        .segments
        .iter()
        .map(|segment| {
            let state = match (
                segment.unreadable,
                segment.torn_bytes,
                segment.lost.is_empty(),
                segment.sealed,
            ) {
                (Some(reason), ..) => reason.to_owned(),
                (None, torn @ 1.., ..) => format!("{torn} torn bytes"),
                (None, 0, false, _) => format!("{} gaps", segment.lost.len()),
                (None, 0, true, true) => "sealed".to_owned(),
                (None, 0, true, false) => "open".to_owned(),
            };
            vec![
                segment.name.clone(),
                table::bytes(segment.bytes),
                segment.first_id.to_string(),
                segment.last_id.to_string(),
                segment.records.to_string(),
                state,
            ]
        })
        .collect();
    table::print(
        &["SEGMENT", "SIZE", "FIRST", "LAST", "RECORDS", "STATE"],
        &rows,
    );
}

fn stat(place: &Place) -> anyhow::Result<bool> {
    let report = tools::stat(&place.journal()?)?;
    show(&report, place.output);
    Ok(true)
}

fn verify(place: &Place) -> anyhow::Result<bool> {
    let report = tools::verify(&place.journal()?, &mut progress("verify"))?;
    show(&report, place.output);
    if place.output == Output::Table {
        println!(
            "{}",
            if report.intact {
                "intact"
            } else {
                "damaged: see STATE; `sparkgate buffer repair` writes down what is lost"
            }
        );
    }
    Ok(report.intact)
}

fn repair(place: &Place) -> anyhow::Result<bool> {
    let recovery = tools::repair(&place.journal()?, &mut progress("repair"))?;
    println!("torn bytes cut: {}", recovery.torn_bytes);
    for file in &recovery.quarantined {
        println!(
            "set aside: {} -> {} ({})",
            file.name, file.moved_to, file.reason
        );
    }
    for gap in &recovery.gaps {
        println!(
            "lost: {} records {}..={} ({})",
            gap.count, gap.from, gap.to, gap.cause
        );
    }
    Ok(true)
}

/// Adds or changes a user.
pub(super) fn passwd(file: &std::path::Path, user: &str) -> anyhow::Result<()> {
    let password = if std::io::stdin().is_terminal() {
        let first = rpassword::prompt_password(format!("Password for {user}: "))?;
        let again = rpassword::prompt_password("Again: ")?;
        anyhow::ensure!(first == again, "the two passwords differ");
        first
    } else {
        let mut line = String::new();
        std::io::stdin()
            .read_line(&mut line)
            .context("password on standard input")?;
        line.trim_end_matches(['\r', '\n']).to_owned()
    };
    crate::broker::auth::set_password(file, user, &password)?;
    eprintln!("{user} is in {}", file.display());
    Ok(())
}

/// Compares what is declared with what the server has.
pub(super) fn doctor(args: &ConfigArgs, fix: bool, output: Output) -> ExitCode {
    let config = match Config::read(args.config.as_deref(), args.config_dir.as_deref()) {
        Ok(mut loaded) => {
            prepare::take_credentials(&mut loaded.value);
            loaded.value
        }
        Err(errors) => {
            refuse(&errors, output);
            return ExitCode::from(EX_CONFIG);
        }
    };
    let Some(bridge) = config.bridge else {
        eprintln!("there is no [bridge] in this configuration: nothing leaves the box");
        return ExitCode::FAILURE;
    };
    match block_on(async {
        let patient = crate::bridge::doctor::Patient {
            config: &bridge,
            gateway: &config.gateway.id,
            kept: config.buffer.warm.keep_delivered.0,
        };
        Ok(crate::bridge::doctor::examine(patient, fix).await?)
    }) {
        Ok(report) => {
            if output == Output::Json {
                println!("{:#}", serde_json::to_value(&report).unwrap_or(Value::Null));
            } else {
                println!("{report}");
            }
            if report.is_safe() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        Err(error) => {
            eprintln!("sparkgate: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}
