//! Median and 99th percentile of one embedding on each backend, for texts that fill the
//! shorter and the longer plan.
//!
//! `cargo run --release -p models --example text -- TEXT_DIR [LIBONNXRUNTIME]`

use models::backend::BackendPreference;
use models::text::TextModel;
use std::path::PathBuf;
use std::time::Instant;

const RUNS: usize = 200;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder: PathBuf = arguments
        .next()
        .ok_or("which folder holds the text model?")?
        .into();
    let preference = BackendPreference {
        ort_library: arguments.next().map(Into::into),
        ..BackendPreference::default()
    };
    let texts = [
        ("32 tokens", "bearing temperature high, "),
        ("128 tokens", "no answer from the drive over modbus, "),
    ];
    for backend in preference.backends() {
        let opened = TextModel::open(&folder, std::slice::from_ref(&backend));
        let mut model = match opened {
            Ok(model) => model,
            Err(errors) => {
                println!(
                    "{}: {}",
                    backend.id(),
                    errors.iter().map(ToString::to_string).collect::<String>()
                );
                continue;
            }
        };
        for (label, text) in texts {
            let text = text.repeat(if label == "32 tokens" { 5 } else { 20 });
            let mut times = Vec::with_capacity(RUNS);
            for _ in 0..RUNS {
                let started = Instant::now();
                model.embed(&text)?;
                times.push(started.elapsed().as_secs_f64() * 1e3);
            }
            times.sort_by(f64::total_cmp);
            let at = |percent: usize| times.get(RUNS * percent / 100).copied().unwrap_or(f64::NAN);
            println!(
                "{} {label}: p50 {:.2} ms, p99 {:.2} ms",
                backend.id(),
                at(50),
                at(99)
            );
        }
    }
    Ok(())
}
