use models::runner::{Event, Request, Runner, RunnerConfig};
use models::{DeviceKey, Registry};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Set in the process of its own that the long run gets.
const ALONE: &str = "SPARKGATE_SOAK_ALONE";
/// How many inferences; a million is `SPARKGATE_SOAK=1000000 cargo test --release -p models --test it soak`.
const COUNT: &str = "SPARKGATE_SOAK";
/// Least that the run is measured by: caches and allocators settle before.
const DEFAULT: u64 = 6_000;
/// What memory may grow by from a tenth of the run to its end, KiB.
const GROWTH: u64 = 8 * 1024;

/// Resident set, KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// In a process of its own, since the other tests of this one load models meanwhile.
#[test]
fn a_long_run_needs_no_more_memory() {
    if std::env::var_os(ALONE).is_some() {
        run(std::env::var(COUNT).map_or(DEFAULT, |n| n.parse().unwrap()));
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "soak::a_long_run_needs_no_more_memory",
            "--exact",
            "--nocapture",
        ])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    assert!(said.contains("1 passed"), "{said}");
    print!("{said}");
}

/// All built-in models at once, through the runner.
fn run(wanted: u64) {
    let registry = Registry::embedded().unwrap();
    let manifests = registry.manifests();
    let done = Arc::new(AtomicU64::new(0));
    let failed = Arc::new(Mutex::new(None));
    let (count, failure) = (done.clone(), failed.clone());
    let runner = Runner::spawn(
        registry,
        RunnerConfig::default(),
        move |event| match event {
            Event::Inference(_) => {
                count.fetch_add(1, Ordering::Relaxed);
            }
            // A busy machine may miss an objective, and the waves drift: no failure.
            Event::Objective { .. } | Event::Drift { .. } => {}
            other => *failure.lock().unwrap() = Some(other),
        },
    )
    .unwrap();
    let begun = Instant::now();
    let (mut sent, mut refused, mut at_tenth) = (0u64, 0u64, 0);
    while done.load(Ordering::Relaxed) < wanted {
        assert!(failed.lock().unwrap().is_none(), "{failed:?}");
        // A quarter of the queue in flight: nothing is dropped, batches fill.
        if sent - done.load(Ordering::Relaxed) > 64 {
            std::thread::yield_now();
            continue;
        }
        for manifest in &manifests {
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
            match runner.try_submit(request) {
                Ok(()) => sent += 1,
                Err(_) => refused += 1,
            }
        }
        if at_tenth == 0 && done.load(Ordering::Relaxed) > wanted / 10 {
            at_tenth = resident();
        }
    }
    let (seconds, end) = (begun.elapsed().as_secs_f64(), resident());
    println!(
        "{wanted} inferences in {seconds:.1} s ({:.0}/s, {refused} thinned), resident {at_tenth} KiB after a tenth, {end} KiB at the end",
        wanted as f64 / seconds
    );
    assert!(end <= at_tenth + GROWTH, "{at_tenth} KiB became {end} KiB");
    assert!(runner.stop(Duration::from_secs(30)));
}
