//! `sparkgate models`: what runs, and whether files would.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use models::{BackendPreference, Source};
use serde_json::Value;

use super::client::{Client, block_on};
use super::{Listing, Output, table};

#[derive(Debug, Subcommand)]
pub(super) enum ModelsVerb {
    /// Models of the running gateway
    List(Listing),
    /// Check hash, shapes and golden rows on this machine; exits 1 where a model would not be activated
    Verify {
        /// Model folders, or folders of them; without any, the models built in
        paths: Vec<PathBuf>,
        /// Print a table or JSON
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Measure p50 and p99 of each backend and batch size
    Bench {
        /// Model folders, or folders of them; without any, the models built in
        paths: Vec<PathBuf>,
        /// Print a table or JSON
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
}

/// Runs the verb.
pub(super) fn models(verb: ModelsVerb) -> ExitCode {
    match verb {
        ModelsVerb::List(listing) => match list(&listing) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("sparkgate: {error:#}");
                ExitCode::FAILURE
            }
        },
        ModelsVerb::Verify { paths, output } => verify(paths, output),
        ModelsVerb::Bench { paths, output } => bench(paths, output),
    }
}

fn sources(paths: Vec<PathBuf>) -> Vec<Source> {
    if paths.is_empty() {
        vec![Source::Embedded]
    } else {
        paths.into_iter().map(Source::Dir).collect()
    }
}

/// Every backend this build knows, in the usual order.
fn preference() -> BackendPreference {
    BackendPreference::parse(&crate::config::Models::default().backend)
        .unwrap_or_else(|_| BackendPreference::builtin())
}

fn list(listing: &Listing) -> anyhow::Result<()> {
    let answer = block_on(Client::new(&listing.reach)?.get("/api/models"))?;
    if listing.output == Output::Json {
        println!("{answer:#}");
        return Ok(());
    }
    let rows: Vec<Vec<String>> = answer
        .as_array()
        .into_iter()
        .flatten()
        .map(|model| {
            let mut row: Vec<String> = [
                "model",
                "version",
                "backend",
                "arithmetic",
                "runs",
                "p50_us",
                "p95_us",
                "objective_us",
            ]
            .iter()
            .map(|key| table::cell(model.get(*key)))
            .collect();
            let fallback = model.get("fallback_active").and_then(Value::as_bool) == Some(true);
            row.push(if fallback {
                table::cell(model.get("lighter"))
            } else {
                "-".to_owned()
            });
            row
        })
        .collect();
    table::print(
        &[
            "MODEL",
            "VERSION",
            "BACKEND",
            "ARITHMETIC",
            "RUNS",
            "P50 µs",
            "P95 µs",
            "OBJECTIVE µs",
            "FALLBACK",
        ],
        &rows,
    );
    Ok(())
}

fn verify(paths: Vec<PathBuf>, output: Output) -> ExitCode {
    let reports: Vec<_> = sources(paths)
        .iter()
        .map(|source| ::models::verify::verify_source(source, &preference()))
        .collect();
    let fine = reports.iter().all(|report| report.ok);
    if output == Output::Json {
        println!(
            "{:#}",
            serde_json::to_value(&reports).unwrap_or(Value::Null)
        );
    } else {
        for model in reports.iter().flat_map(|report| &report.models) {
            let name = model.model.as_deref().unwrap_or("-");
            println!(
                "{} {name} {} ({})",
                if model.ok { "ok    " } else { "FAILED" },
                model.version.as_deref().unwrap_or("-"),
                model.origin
            );
            for error in &model.errors {
                println!("         {error}");
            }
            for backend in &model.backends {
                match &backend.reason {
                    None => println!(
                        "         {}: {} golden rows hold, {}, {} ms",
                        backend.backend, backend.golden_rows, backend.arithmetic, backend.load_ms
                    ),
                    Some(reason) => println!("         {}: {reason}", backend.backend),
                }
            }
        }
    }
    if fine {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn bench(paths: Vec<PathBuf>, output: Output) -> ExitCode {
    let config = ::models::bench::BenchConfig::default();
    let reports: Vec<_> = sources(paths)
        .iter()
        .map(|source| ::models::bench::bench(source, &preference(), &config))
        .collect();
    if output == Output::Json {
        println!(
            "{:#}",
            serde_json::to_value(&reports).unwrap_or(Value::Null)
        );
        return ExitCode::SUCCESS;
    }
    let mut rows = Vec::new();
    for model in reports.iter().flat_map(|report| &report.models) {
        for backend in &model.backends {
            for timing in &backend.timings {
                rows.push(vec![
                    model.model.as_deref().unwrap_or("-").to_owned(),
                    backend.backend.to_owned(),
                    backend.arithmetic.to_owned(),
                    timing.batch.to_string(),
                    format!("{:.1}", timing.p50_us),
                    format!("{:.1}", timing.p99_us),
                    format!("{:.1}", timing.p50_us_per_window),
                ]);
            }
            if let Some(reason) = &backend.reason {
                eprintln!(
                    "{} on {}: {reason}",
                    model.model.as_deref().unwrap_or("-"),
                    backend.backend
                );
            }
        }
    }
    table::print(
        &[
            "MODEL",
            "BACKEND",
            "ARITHMETIC",
            "BATCH",
            "P50 µs",
            "P99 µs",
            "P50 µs A WINDOW",
        ],
        &rows,
    );
    ExitCode::SUCCESS
}
