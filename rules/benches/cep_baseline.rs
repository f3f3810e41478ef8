//! The streams on which Flink CEP was measured, through this engine: one thread, event time, a
//! watermark every 1,000 events, making the events included.
//!
//! `cargo bench -p rules --bench cep_baseline` (with names of patterns: only those, `-- P1`; with
//! `-- --automaton`: without the short path for plain sequences). Match counts and checksums are
//! asserted. Prints events per CPU-second beside Flink's best.

use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::time::Duration;

use rules::pattern::{
    Bounds, CondId, Condition, Contiguity, Keyed, Output, Path, PatternSpec, Skip, StageIdx,
    StageSpec,
};

const EVENTS: u64 = 2_500_000;
const WATERMARK_EVERY: u64 = 1_000;

struct Row {
    pattern: &'static str,
    keys: u64,
    matches: u64,
    checksum: u64,
    /// Flink 1.20.5's best, thousand events per CPU-second; 0: not measured.
    flink: u64,
}

#[rustfmt::skip]
const ROWS: [Row; 9] = [
    Row { pattern: "P1", keys: 1_000, matches: 1_226, checksum: 0x25bc_9958_1877_e613, flink: 1_111 },
    Row { pattern: "P1", keys: 10_000, matches: 1_177, checksum: 0x5062_74c2_1feb_bb0f, flink: 1_010 },
    Row { pattern: "P1", keys: 100_000, matches: 1_223, checksum: 0xd685_feb7_994a_fbc4, flink: 0 },
    Row { pattern: "P2", keys: 1_000, matches: 416_013, checksum: 0x1c69_913b_7258_aa28, flink: 161 },
    Row { pattern: "P2", keys: 10_000, matches: 413_339, checksum: 0xae58_643e_2c52_4544, flink: 103 },
    Row { pattern: "P2", keys: 100_000, matches: 383_368, checksum: 0x7f4b_68f6_476f_a94c, flink: 0 },
    Row { pattern: "P3", keys: 1_000, matches: 16_644, checksum: 0x716f_2332_181f_ceca, flink: 450 },
    Row { pattern: "P3", keys: 10_000, matches: 14_350, checksum: 0x8653_0cd9_f63d_7390, flink: 284 },
    Row { pattern: "P3", keys: 100_000, matches: 1_679, checksum: 0xdea7_3a4c_1578_002a, flink: 0 },
];

#[derive(Clone, Copy)]
struct Event {
    number: u64,
    value: f32,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    A,
    B,
    C,
    Alert,
    Other,
}

fn mix(z: u64) -> u64 {
    let z = z.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Keys are numbers that the gateway gives out itself, so a multiplication is hash enough.
#[derive(Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        let product = u128::from(self.0 ^ u64::from(number)) * 0x9E37_79B9_7F4A_7C15_F39C_u128;
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }
}

type Stream = Keyed<u32, Event, BuildHasherDefault<NumberHasher>>;

fn stage(name: &str, contiguity: Contiguity, id: u16, iterative: bool) -> StageSpec {
    let condition = Condition {
        id: CondId(id),
        iterative,
    };
    StageSpec::event(name, contiguity, condition)
}

fn pattern(name: &str) -> PatternSpec {
    use Contiguity::{FollowedBy, Next};
    let (mut stages, within) = match name {
        "P1" => (
            vec![stage("a", Next, 0, false), stage("b", Next, 1, false)],
            Some(30_000),
        ),
        "P2" => (
            vec![
                stage("a", Next, 2, false),
                stage("b", Next, 3, true),
                stage("c", Next, 4, true),
            ],
            None,
        ),
        _ => (
            vec![
                stage("a", Next, 5, false),
                stage("b", FollowedBy, 6, false),
                stage("c", FollowedBy, 7, false),
            ],
            Some(60_000),
        ),
    };
    if let Some(last) = stages.last_mut() {
        last.within = within;
    }
    PatternSpec {
        stages,
        skip: Skip::None,
    }
}

fn holds(condition: CondId, event: &Event, held: Path<'_, Event>) -> bool {
    let above = |stage| {
        held.last(StageIdx(stage))
            .is_some_and(|e| event.value > e.value)
    };
    match condition.0 {
        0 => event.value > 85.0,
        1 => event.kind == Kind::Alert,
        2 => true,
        3 => above(0),
        4 => above(1),
        5 => event.kind == Kind::A,
        6 => event.kind == Kind::B,
        _ => event.kind == Kind::C,
    }
}

fn event(pattern: &str, number: u64, h: u64) -> Event {
    let u = (h >> 32) % 10_000;
    let (value, kind) = match pattern {
        "P1" => {
            let value = if u < 100 {
                85.01 + u as f32 / 100.0
            } else {
                (u % 8_500) as f32 / 100.0
            };
            let alert = mix(h) % 100 < 5;
            (value, if alert { Kind::Alert } else { Kind::Other })
        }
        "P2" => (u as f32 / 100.0, Kind::Other),
        _ => {
            let kind = match mix(h) % 100 {
                0 | 1 => Kind::A,
                2 | 3 => Kind::B,
                4 | 5 => Kind::C,
                _ => Kind::Other,
            };
            (0.0, kind)
        }
    };
    Event {
        number,
        value,
        kind,
    }
}

/// CPU time of this process.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let first = stat.split(' ').next().and_then(|n| n.parse().ok());
    Duration::from_nanos(first.unwrap_or(0))
}

struct Outcome {
    matches: u64,
    checksum: u64,
    cpu: Duration,
    bytes: usize,
    keys: usize,
}

fn run(row: &Row, automaton: bool) -> Outcome {
    let Ok(mut plan) = pattern(row.pattern).compile() else {
        unreachable!("the patterns here are valid")
    };
    if automaton {
        plan = plan.without_chain();
    }
    let mut stream = Stream::new(Arc::new(plan), Bounds::NONE);
    let (mut matches, mut checksum, mut bytes, mut keys) = (0u64, 0u64, 0, 0);
    let began = cpu();
    let mut advance = |stream: &mut Stream, watermark| {
        stream.advance(watermark, &holds, |_, output| {
            if let Output::Match { taken, .. } = output {
                let h = taken.forward().fold(0u64, |h, (_, event)| {
                    h.wrapping_mul(1_000_003).wrapping_add(event.number)
                });
                checksum = checksum.wrapping_add(mix(h));
                matches += 1;
            }
        });
    };
    for number in 0..EVENTS {
        let h = mix(number);
        let ts = (number * 1_000 / row.keys) as i64;
        let key = ((h & 0xffff_ffff) % row.keys) as u32;
        let refused = stream.push(ts, key, event(row.pattern, number, h)).is_err();
        assert!(!refused, "event {number} was refused");
        if (number + 1) % WATERMARK_EVERY == 0 {
            advance(&mut stream, ts - 1);
        }
        if number + 1 == EVENTS {
            bytes = stream.bytes();
            keys = stream.len();
        }
    }
    advance(&mut stream, i64::MAX);
    Outcome {
        matches,
        checksum,
        cpu: cpu() - began,
        bytes,
        keys,
    }
}

fn main() {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    let automaton = std::env::args().any(|a| a == "--automaton");
    println!(
        "{:<3} {:>7}  {:>12} {:>12} {:>6}  {:>8} {:>9} {:>11}",
        "", "keys", "events/CPU-s", "Flink", "ratio", "matches", "held keys", "state bytes"
    );
    for row in &ROWS {
        if !wanted.is_empty() && !wanted.iter().any(|w| w == row.pattern) {
            continue;
        }
        let runs: Vec<Outcome> = (0..3).map(|_| run(row, automaton)).collect();
        for outcome in &runs {
            assert_eq!(outcome.matches, row.matches, "{} matches", row.pattern);
            assert_eq!(outcome.checksum, row.checksum, "{} checksum", row.pattern);
        }
        let Some(best) = runs.iter().min_by_key(|o| o.cpu) else {
            continue;
        };
        let rate = EVENTS as f64 / best.cpu.as_secs_f64();
        let (flink, ratio) = match row.flink {
            0 => ("-".to_owned(), "-".to_owned()),
            k => (
                format!("{}", k * 1_000),
                format!("{:.1}", rate / (k * 1_000) as f64),
            ),
        };
        println!(
            "{:<3} {:>7}  {:>12.0} {:>12} {:>6}  {:>8} {:>9} {:>11}",
            row.pattern, row.keys, rate, flink, ratio, best.matches, best.keys, best.bytes
        );
    }
}
