//! The engine as a whole: what rules cost that look at other metrics, and what a million short-lived devices hold.
//!
//! `cargo bench -p rules --bench engine` (with names, `-- rules` or `-- devices`: only those). Ratios are against the
//! first row of the same run.

use std::fmt::Write as _;
use std::time::Duration;

use rules::{Engine, Event, EventKind, Key, Limits, Pack, Value};

const EVENTS: u64 = 400_000;
const DEVICES: u64 = 1_000_000;

fn pack(rules: &str) -> Vec<Pack> {
    let text = format!("[pack]\nid = \"bench\"\nversion = \"1\"\n{rules}");
    let Ok(packs) = rules::load_packs(&[("bench.toml".to_owned(), text)]) else {
        unreachable!("the rules here are valid")
    };
    packs
}

/// A two-stage pattern on each of these metrics.
fn pairs(metrics: impl Iterator<Item = String>) -> String {
    metrics.enumerate().fold(String::new(), |mut text, (n, metric)| {
        let _ = write!(
            text,
            "[[rule]]\nid = \"r{n}\"\n[rule.pattern]\nwithin = \"30s\"\nstages = [\n\
             {{ name = \"a\", when = 'metric == \"{metric}\" && value > {}.0' }},\n\
             {{ name = \"b\", contiguity = \"next\", when = 'metric == \"{metric}\" && value < 1.0' }},\n]\n",
            90 + n % 10
        );
        text
    })
}

/// CPU time of this process.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let first = stat.split(' ').next().and_then(|n| n.parse().ok());
    Duration::from_nanos(first.unwrap_or(0))
}

/// Resident memory of this process, MiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap_or_default();
    let kib = line
        .split_whitespace()
        .nth(1)
        .and_then(|n| n.parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}

/// Numbers that look random (splitmix64).
fn mix(n: u64) -> u64 {
    let z = n.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn event(n: u64, device: &str, at_ms: u64) -> Event {
    // Multiples of one number would walk through the values in equal steps, and no device's would ever fall far.
    let spread = mix(n);
    Event {
        key: Key::device("plant", "line", device),
        metric: "T".into(),
        value: Value::Double((spread % 10_000) as f64 / 100.0),
        datatype: "Double",
        quality: 192,
        time_ms: i64::try_from(at_ms).unwrap_or(i64::MAX),
        engine_ms: at_ms,
        historical: false,
        unchanged: false,
        record: n + 1,
        index: 0,
        kind: EventKind::Metric,
    }
}

/// Nanoseconds of CPU an event.
fn cost(rules: &str) -> (f64, u64) {
    let mut engine = Engine::new(pack(rules), Limits::default());
    let devices: Vec<String> = (0..100).map(|n| format!("d{n}")).collect();
    let events: Vec<Event> = (0..EVENTS)
        .zip(devices.iter().cycle())
        .map(|(n, device)| event(n, device, n / 100 * 1_000))
        .collect();
    let mut matches = 0;
    let began = cpu();
    for event in &events {
        engine.handle_event(event);
        while engine.poll_output().is_some() {
            matches += 1;
        }
    }
    ((cpu() - began).as_nanos() as f64 / EVENTS as f64, matches)
}

fn rules_cost() {
    println!(
        "{:<44} {:>12} {:>8} {:>9}",
        "two-stage patterns on a stream of one metric", "ns an event", "ratio", "matches"
    );
    let elsewhere = |n: u64| (0..n).map(|n| format!("Other{n}"));
    let here = |n: u64| (0..n).map(|_| "T".to_owned());
    let mut first = None;
    for (name, rules) in [
        ("1 on it", pairs(here(1))),
        (
            "1 on it, 299 on other metrics",
            pairs(here(1).chain(elsewhere(299))),
        ),
        (
            "10 on it, 290 on other metrics",
            pairs(here(10).chain(elsewhere(290))),
        ),
        (
            "100 on it, 200 on other metrics",
            pairs(here(100).chain(elsewhere(200))),
        ),
        ("300 on it", pairs(here(300))),
    ] {
        let (ns, matches) = (0..3)
            .map(|_| cost(&rules))
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .unwrap_or_default();
        assert!(
            matches > 0,
            "{name}: nothing matched, so nothing was measured"
        );
        let base = *first.get_or_insert(ns);
        println!("{name:<44} {ns:>12.0} {:>8.1} {matches:>9}", ns / base);
    }
}

/// Every name is new: plain ones, such as a terminal should not print, and long ones.
fn name(n: u64) -> String {
    match n % 3 {
        0 => format!("device-{n}"),
        1 => format!("\u{202e}{n}\"\\\n\u{0}"),
        _ => format!("{n}{}", "x".repeat(200)),
    }
}

fn devices() {
    let rules = format!(
        "{}[[rule]]\nid = \"day\"\n[rule.window]\nkind = \"sliding\"\nsize = \"24h\"\nmetric = \"T\"\n\
         emit = {{ mean = 'avg(value)', p = 'percentile(value, 99)' }}\nwhen = 'mean > 1000.0'\n",
        pairs(std::iter::once("T".to_owned()))
    );
    let limits = Limits {
        bytes: 64 << 20,
        ..Limits::default()
    };
    let mut engine = Engine::new(pack(&rules), limits);
    let before = resident();
    let (began, mut evicted, mut most) = (cpu(), 0u64, 0);
    for n in 0..DEVICES {
        let device = name(n);
        for sample in 0..3 {
            engine.handle_event(&event(n * 3 + sample, &device, n));
        }
        while let Some(output) = engine.poll_output() {
            evicted += u64::from(matches!(output, rules::Output::Evicted(_)));
        }
        if n % 65_536 == 0 {
            most = most.max(resident());
            engine.dirty_keys();
        }
    }
    let counts = engine.counts();
    assert!(
        counts.bytes <= limits.bytes && counts.keys <= limits.keys,
        "{counts:?}"
    );
    assert_eq!(
        counts.keys as u64 + counts.evicted_keys,
        DEVICES,
        "every device is held or counted"
    );
    assert!(evicted >= counts.evicted_keys, "and told");
    println!(
        "{DEVICES} devices, 3 samples each, 24-hour windows: {} keys held, {} evicted and counted, {} of {} MiB reckoned, \
         {} MiB resident (before: {before}), {:.1} s of CPU",
        counts.keys,
        counts.evicted_keys,
        counts.bytes >> 20,
        limits.bytes >> 20,
        most.max(resident()),
        (cpu() - began).as_secs_f64()
    );
}

fn main() {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    let asked = |name: &str| wanted.is_empty() || wanted.iter().any(|w| w == name);
    if asked("rules") {
        rules_cost();
    }
    if asked("devices") {
        devices();
    }
}
