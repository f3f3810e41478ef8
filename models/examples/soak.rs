//! Figures of the built-in models on this machine, then as many inferences as asked for
//! through the runner, with the resident memory before and after.
//!
//! `cargo run --release -p models --example soak -- [INFERENCES] [LIBONNXRUNTIME]`

use models::backend::BackendPreference;
use models::bench::{BenchConfig, bench};
use models::runner::{Event, Request, Runner, RunnerConfig};
use models::{DeviceKey, Registry, Source};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Resident set in KiB, from the kernel; 0 where it cannot be read.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmRSS"));
    line.and_then(|l| l.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(0)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let wanted: u64 = arguments.next().map_or(Ok(100_000), |n| n.parse())?;
    let preference = BackendPreference {
        ort_library: arguments.next().map(Into::into),
        ..BackendPreference::default()
    };
    let report = bench(&Source::Embedded, &preference, &BenchConfig::default());
    println!("{}", serde_json::to_string_pretty(&report)?);

    let registry = Registry::embedded().map_err(|e| format!("{e:?}"))?;
    let manifests = registry.manifests();
    let done = Arc::new(AtomicU64::new(0));
    let failed = Arc::new(std::sync::Mutex::new(None));
    let (count, failure) = (done.clone(), failed.clone());
    let runner = Runner::spawn(
        registry,
        RunnerConfig::default(),
        move |event| match event {
            Event::Inference(_) => {
                count.fetch_add(1, Ordering::Relaxed);
            }
            // A busy machine may miss an objective; that is no failure.
            Event::Objective { .. } => {}
            other => {
                *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!("{other:?}"))
            }
        },
    )?;
    let begun = Instant::now();
    let (mut sent, mut at_tenth) = (0u64, 0);
    while done.load(Ordering::Relaxed) < wanted {
        for manifest in &manifests {
            // A quarter of the queue in flight: nothing is dropped, batches fill.
            if sent - done.load(Ordering::Relaxed) > 64 {
                std::thread::sleep(Duration::from_micros(50));
                continue;
            }
            let count = manifest.inputs.len() * manifest.window.points;
            let wave = |i: usize| ((i as f64 + sent as f64) * 0.37).sin();
            let request = Request {
                model: manifest.name.clone(),
                key: DeviceKey::new("soak", "node", &format!("d{}", sent % 1000)),
                points: (0..count).map(wave).collect(),
                ages: vec![0.0; manifest.inputs.len()].into(),
                span_ms: (0, 0),
                record: sent,
            };
            if runner.try_submit(request).is_ok() {
                sent += 1;
            }
        }
        if at_tenth == 0 && done.load(Ordering::Relaxed) > wanted / 10 {
            at_tenth = resident();
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    let rate = wanted as f64 / seconds;
    println!(
        "{wanted} inferences in {seconds:.1} s ({rate:.0}/s), resident {at_tenth} KiB after a tenth, {} KiB at the end",
        resident()
    );
    if let Some(other) = failed.lock().unwrap_or_else(PoisonError::into_inner).take() {
        return Err(other.into());
    }
    Ok(())
}
