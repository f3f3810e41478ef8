//! Decode and resolve against the bare decode of sparkplug-rs, in one run.
//!
//! `cargo bench -p sparkplug`. Each row: the same bytes through `HostSession` (topic parsed, `seq` checked, aliases
//! resolved to names and types, current values brought up to date, event taken and given back) and through
//! `sparkplug_rs::Payload::parse_from_bytes` alone. Both are timed in turns, so that a busy machine slows both. A host
//! that does not give its events back ([`HostSession::recycle`]) is shown beside it.

#![allow(
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    reason = "a benchmark reads the clock and knows its own sizes"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use sparkplug::host::{HostConfig, HostSession, Message, ServerId};
use sparkplug::payload::{Form, decode_resolved, encode, encode_resolved};
use sparkplug::{DataType, Metric, Value};
use sparkplug_rs::protobuf::Message as _;

const WALL: u64 = 1_760_000_000_000;
const METRICS: u64 = 50;

fn metric(at: u64, time: u64) -> Metric {
    let (datatype, value) = match at % 4 {
        0 => (DataType::Double, Value::Double(at as f64 * 1.25)),
        1 => (DataType::Float, Value::Float(at as f32 * 0.5)),
        2 => (DataType::Int32, Value::Int(-(at as i64))),
        _ => (DataType::Boolean, Value::Bool(at % 8 == 3)),
    };
    Metric::new(format!("Line/Press/Sensor {at}"), datatype, value)
        .at(time)
        .aliased(at)
}

fn metrics(time: u64) -> Vec<Metric> {
    (0..METRICS).map(|at| metric(at, time)).collect()
}

fn message<'a>(topic: &'a str, payload: &'a [u8]) -> Message<'a> {
    Message {
        topic,
        payload,
        received_ms: WALL,
        client: None,
        server: ServerId(0),
        retained: false,
        will: false,
        tag: 1,
    }
}

/// Nanoseconds a call, the best of many short runs.
fn best(runs: &mut [(Duration, &mut dyn FnMut())], calls: u32) {
    for _ in 0..200 {
        for (best, call) in runs.iter_mut() {
            let start = Instant::now();
            for _ in 0..calls {
                call();
            }
            *best = start.elapsed().min(*best);
        }
    }
}

fn main() {
    let mut session = HostSession::new(HostConfig::default(), 0);
    let bdseq = Metric::new("bdSeq", DataType::Int64, Value::Int(0)).at(WALL);
    let nbirth = encode(Some(WALL), Some(0), &[bdseq], Form::Full);
    let dbirth = encode(Some(WALL), Some(1), &metrics(WALL), Form::Full);
    session.handle_message(0, &message("spBv1.0/plant/NBIRTH/line4", &nbirth));
    session.handle_message(0, &message("spBv1.0/plant/DBIRTH/line4/press2", &dbirth));
    // One payload for each seq, so that every message is in order.
    let data: Vec<Vec<u8>> = (0..=255)
        .map(|seq| {
            encode(
                Some(WALL),
                Some(seq),
                &metrics(WALL + u64::from(seq)),
                Form::Data,
            )
        })
        .collect();
    while session.poll_event().is_some() {}
    let topic = "spBv1.0/plant/DDATA/line4/press2";

    let (mut ours_at, mut theirs_at) = (2usize, 2usize);
    let mut seen = 0u64;
    let mut step = |back: bool| {
        let payload = &data[ours_at % 256];
        ours_at += 1;
        session.handle_message(0, &message(topic, payload));
        while let Some(event) = session.poll_event() {
            seen += 1;
            let event = black_box(event);
            if back {
                session.recycle(event);
            }
        }
    };
    let step = std::cell::RefCell::new(&mut step);
    let mut ours = || step.borrow_mut()(true);
    let mut dropped = || step.borrow_mut()(false);
    let mut theirs = || {
        let payload = &data[theirs_at % 256];
        theirs_at += 1;
        black_box(sparkplug_rs::Payload::parse_from_bytes(payload).ok());
    };
    const CALLS: u32 = 256;
    let mut runs: [(Duration, &mut dyn FnMut()); 3] = [
        (Duration::MAX, &mut ours),
        (Duration::MAX, &mut theirs),
        (Duration::MAX, &mut dropped),
    ];
    best(&mut runs, CALLS);
    let [(ours_time, _), (theirs_time, _), (dropped_time, _)] = runs;
    let per = |time: Duration| time.as_nanos() as f64 / f64::from(CALLS);
    println!("50-metric DDATA by alias, {} bytes", data[2].len());
    println!(
        "  decode + resolve, sparkplug     {:>8.0} ns",
        per(ours_time)
    );
    println!(
        "  decode alone, sparkplug-rs      {:>8.0} ns",
        per(theirs_time)
    );
    println!(
        "  ratio                           {:>8.2} x",
        per(theirs_time) / per(ours_time)
    );
    println!(
        "  events dropped, not given back  {:>8.0} ns {:>8.2} x",
        per(dropped_time),
        per(theirs_time) / per(dropped_time)
    );
    assert!(seen > 0);

    let resolved = metrics(WALL);
    let bytes = encode_resolved(Some(WALL), Some(3), None, &resolved);
    let mut write = || {
        black_box(encode_resolved(
            Some(WALL),
            Some(3),
            None,
            black_box(&resolved),
        ));
    };
    let mut read = || {
        black_box(decode_resolved(black_box(&bytes)).ok());
    };
    let mut runs: [(Duration, &mut dyn FnMut()); 2] =
        [(Duration::MAX, &mut write), (Duration::MAX, &mut read)];
    best(&mut runs, CALLS);
    let [(write_time, _), (read_time, _)] = runs;
    println!("journal form of the same, {} bytes", bytes.len());
    println!(
        "  encode                          {:>8.0} ns",
        per(write_time)
    );
    println!(
        "  decode                          {:>8.0} ns",
        per(read_time)
    );
}
