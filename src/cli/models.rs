//! `sparkgate models`: what runs, and whether files would.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use models::{BackendPreference, Source};
use serde_json::{Value, json};

use super::client::{Client, block_on};
use super::online::encode;
use super::{Listing, Output, Reach, table};
use crate::telemetry::chain;

#[derive(Debug, Subcommand)]
pub(super) enum ModelsVerb {
    /// Models of the running gateway
    List(Listing),
    /// Put a version beside the active one: it scores and is compared, and nothing acts on it
    Shadow {
        /// Model folder on the gateway
        path: PathBuf,
        /// Let it answer for this share of the devices instead, percent
        #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
        canary: u8,
        #[command(flatten)]
        reach: Reach,
    },
    /// Make the candidate the active version, now and after restarts
    Promote {
        /// Model
        model: String,
        #[command(flatten)]
        reach: Reach,
    },
    /// Go back to the version before; again to undo it
    Rollback {
        /// Model
        model: String,
        #[command(flatten)]
        reach: Reach,
    },
    /// Take the candidate away
    Cancel {
        /// Model
        model: String,
        #[command(flatten)]
        reach: Reach,
    },
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
        ModelsVerb::List(listing) => done(list(&listing)),
        ModelsVerb::Shadow {
            path,
            canary,
            reach,
        } => done(shadow(&path, canary, &reach)),
        ModelsVerb::Promote { model, reach } => done(change(&model, "promote", &reach)),
        ModelsVerb::Rollback { model, reach } => done(change(&model, "rollback", &reach)),
        ModelsVerb::Cancel { model, reach } => done(change(&model, "cancel", &reach)),
        ModelsVerb::Verify { paths, output } => verify(paths, output),
        ModelsVerb::Bench { paths, output } => bench(paths, output),
    }
}

fn done(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sparkgate: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn shadow(path: &Path, canary: u8, reach: &Reach) -> anyhow::Result<()> {
    // The gateway has a working folder of its own.
    let path = std::path::absolute(path)?;
    let body = json!({"path": path, "canary_percent": canary});
    let answer = block_on(Client::new(reach)?.post("/api/models/shadow", &body))?;
    let model = table::cell(answer.get("model"));
    if canary == 0 {
        eprintln!("{model}: scores beside the active version; compare with `models list`");
    } else {
        eprintln!("{model}: answers for {canary} % of the devices");
    }
    Ok(())
}

fn change(model: &str, action: &str, reach: &Reach) -> anyhow::Result<()> {
    let path = format!("/api/models/{}/{action}", encode(model));
    block_on(Client::new(reach)?.post(&path, &json!({})))?;
    eprintln!("{model}: {action} done");
    Ok(())
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
            row.push(candidate(model.get("candidate")));
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
            "CANDIDATE",
        ],
        &rows,
    );
    Ok(())
}

/// Version and how it does, as `1.1.0 agrees in 99.2 % of 1200` or `1.1.0 answers for 10 %`.
fn candidate(of: Option<&Value>) -> String {
    let Some(of) = of.filter(|of| of.is_object()) else {
        return "-".to_owned();
    };
    let version = table::cell(of.pointer("/status/version"));
    let number = |key: &str| of.get(key).and_then(Value::as_f64).unwrap_or(0.0);
    let (compared, percent) = (number("compared"), number("canary_percent"));
    if percent > 0.0 {
        format!("{version} answers for {percent:.0} %")
    } else if compared > 0.0 {
        let share = 100.0 * number("agreed") / compared;
        format!("{version} agrees in {share:.1} % of {compared:.0}")
    } else {
        format!("{version} has scored nothing yet")
    }
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
                    timing.tokens.map_or_else(
                        || timing.batch.to_string(),
                        |tokens| format!("{tokens} tokens"),
                    ),
                    format!("{:.1}", timing.p50_us),
                    format!("{:.1}", timing.p99_us),
                    format!("{:.1}", timing.p50_us_per_window),
                    timing
                        .to_onnxruntime
                        .map_or("-".to_owned(), |ratio| format!("{ratio:.2}x")),
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
            "TO ort:cpu",
        ],
        &rows,
    );
    ExitCode::SUCCESS
}
