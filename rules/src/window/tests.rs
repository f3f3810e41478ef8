//! Windows against a fold over all samples.

use proptest::prelude::*;

use super::*;

const ALL: [Aggregate; 11] = [
    Aggregate::Count,
    Aggregate::Sum,
    Aggregate::Avg,
    Aggregate::Min,
    Aggregate::Max,
    Aggregate::Stddev,
    Aggregate::Percentile(50.0),
    Aggregate::Percentile(95.0),
    Aggregate::Rate,
    Aggregate::First,
    Aggregate::Last,
];

/// The same results, each computed on its own from the samples of a window.
fn naive(items: &[Item]) -> Vec<Option<f64>> {
    let v: Vec<f64> = items.iter().filter_map(Item::number).collect();
    let n = v.len() as f64;
    let some = |x: f64| (!v.is_empty()).then_some(x);
    let sum: f64 = v.iter().sum();
    let mean = sum / n;
    let squares: f64 = v.iter().map(|x| (x - mean).powi(2)).sum();
    let mut sorted = v.clone();
    sorted.sort_by(f64::total_cmp);
    let percentile = |p: f64| {
        let place = (v.len() as f64 - 1.0) * p / 100.0;
        let (low, high) = (
            sorted[place.floor() as usize],
            sorted[place.ceil() as usize],
        );
        low + (high - low) * place.fract()
    };
    let span = items.last().map_or(0, |l| l.ts - items[0].ts) as f64 / 1e3;
    vec![
        Some(n),
        Some(sum),
        some(mean),
        some(v.iter().copied().fold(f64::INFINITY, f64::min)),
        some(v.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
        (v.len() > 1).then(|| (squares / (n - 1.0)).sqrt()),
        (!v.is_empty()).then(|| percentile(50.0)),
        (!v.is_empty()).then(|| percentile(95.0)),
        (span > 0.0).then(|| (v[v.len() - 1] - v[0]) / span),
        v.first().copied(),
        v.last().copied(),
    ]
}

/// Which windows end up with which samples, straight from the definitions.
fn expected(kind: WindowKind, items: &[Item], end: i64) -> Vec<(i64, Vec<Item>)> {
    let within = |from: i64, to: i64| -> Vec<Item> {
        items
            .iter()
            .filter(|i| (from..to).contains(&i.ts))
            .cloned()
            .collect()
    };
    match kind {
        WindowKind::Tumbling { size } => {
            expected(WindowKind::Hopping { size, every: size }, items, end)
        }
        WindowKind::Hopping { size, every } => {
            let (size, every) = (size as i64, every as i64);
            let first = items[0].ts - size;
            let starts = (first.div_euclid(every)..=end.div_euclid(every)).map(|n| n * every);
            starts
                .filter(|s| s + size <= end)
                .map(|s| (s + size, within(s, s + size)))
                .filter(|(_, items)| !items.is_empty())
                .collect()
        }
        WindowKind::Sliding { size } => (0..items.len())
            .map(|n| {
                let ts = items[n].ts;
                let from = ts - size as i64;
                let kept = items[..=n]
                    .iter()
                    .filter(|i| i.ts > from)
                    .cloned()
                    .collect();
                (ts, kept)
            })
            .collect(),
        WindowKind::Session { gap } => {
            let mut sessions: Vec<Vec<Item>> = Vec::new();
            for item in items {
                match sessions.last_mut() {
                    Some(s) if item.ts < s.last().unwrap().ts + gap as i64 => s.push(item.clone()),
                    _ => sessions.push(vec![item.clone()]),
                }
            }
            let with_end = |s: Vec<Item>| (s.last().unwrap().ts + gap as i64, s);
            sessions
                .into_iter()
                .map(with_end)
                .filter(|(at, _)| *at <= end)
                .collect()
        }
        WindowKind::Count { size, every } => {
            let (size, every) = (size as usize, every as usize);
            let mut out = Vec::new();
            let mut since = 0;
            let mut from = 0;
            for n in 1..=items.len() {
                since += 1;
                if n - from >= size && since >= every {
                    since = 0;
                    out.push((items[n - 1].ts, items[n - size..n].to_vec()));
                    if every >= size {
                        from = n;
                    }
                }
            }
            out
        }
    }
}

fn kinds() -> impl Strategy<Value = WindowKind> {
    prop_oneof![
        (1u64..50).prop_map(|size| WindowKind::Tumbling { size }),
        (1u64..50, 1u64..50).prop_map(|(a, b)| WindowKind::Hopping {
            size: a.max(b),
            every: a.min(b)
        }),
        (1u64..50).prop_map(|size| WindowKind::Sliding { size }),
        (1u64..30).prop_map(|gap| WindowKind::Session { gap }),
        (1u32..6, 1u32..8).prop_map(|(size, every)| WindowKind::Count { size, every }),
    ]
}

fn close(got: &Value, want: Option<f64>) -> bool {
    match (got.as_f64(), want) {
        (None, None) => true,
        (Some(got), Some(want)) => (got - want).abs() <= 1e-9 * want.abs().max(1.0),
        _ => false,
    }
}

fn setting(kind: WindowKind, empty: bool, lateness: u64) -> Setting<'static> {
    Setting {
        kind,
        aggregates: &ALL,
        empty,
        lateness,
        most: 10_000,
    }
}

proptest! {
    #[test]
    fn equal_to_a_fold_over_all_samples(
        kind in kinds(),
        samples in proptest::collection::vec((0i64..12, -100i32..100), 1..80),
        restore_at in 0usize..80,
    ) {
        let mut ts = -40;
        let mut items = Vec::new();
        for (gap, value) in samples {
            ts += gap;
            items.push(Item { ts, value: Value::Double(f64::from(value)) });
        }
        let set = setting(kind, false, 0);
        let mut window = Window::new(kind);
        let mut out = Vec::new();
        for (n, item) in items.iter().enumerate() {
            prop_assert_eq!(window.add(&set, item.clone(), &mut out), 0);
            if n == restore_at {
                let mut bytes = Writer::new();
                window.encode(&mut bytes);
                let bytes = bytes.finish();
                window = Window::decode(&mut Reader::open(&bytes).unwrap()).unwrap();
            }
        }
        let end = ts + 100;
        window.advance(&set, end, &mut out);
        let got: Vec<&Emission> = out.iter().filter(|e| e.full).collect();
        let want = expected(kind, &items, end);
        prop_assert_eq!(
            got.iter().map(|e| e.ts).collect::<Vec<_>>(),
            want.iter().map(|(ts, _)| *ts).collect::<Vec<_>>()
        );
        for (got, (_, items)) in got.iter().zip(&want) {
            for (got, want) in got.results.iter().zip(naive(items)) {
                prop_assert!(close(got, want), "{:?} {:?} {:?}", got, want, items);
            }
        }
        let counting = matches!(kind, WindowKind::Count { .. });
        prop_assert!(window.is_idle() || counting);
        prop_assert!(window.deadline(&set).is_none_or(|due| due > end));
    }
}

fn number(ts: i64, v: f64) -> Item {
    Item {
        ts,
        value: Value::Double(v),
    }
}

/// (time, count) of each emission.
fn counts(out: &[Emission]) -> Vec<(i64, String)> {
    out.iter()
        .map(|e| (e.ts, e.results[0].to_string()))
        .collect()
}

#[test]
fn empty_windows_follow_by_time_until_the_device_dies() {
    let kind = WindowKind::Tumbling { size: 10 };
    let set = setting(kind, true, 0);
    let mut window = Window::new(kind);
    let mut out = Vec::new();
    window.add(&set, number(3, 1.0), &mut out);
    assert_eq!(window.deadline(&set), Some(10));
    window.advance(&set, 35, &mut out);
    assert_eq!(
        counts(&out),
        [(10, "1".into()), (20, "0".into()), (30, "0".into())]
    );
    window.stop();
    window.advance(&set, 1_000, &mut out);
    assert_eq!(out.len(), 3);
    assert!(window.is_idle());
}

#[test]
fn a_leap_in_time_does_not_put_out_windows_for_ever() {
    let kind = WindowKind::Tumbling { size: 1 };
    let set = setting(kind, true, 0);
    let mut window = Window::new(kind);
    let mut out = Vec::new();
    window.add(&set, number(0, 1.0), &mut out);
    window.advance(&set, 1_000_000_000, &mut out);
    assert_eq!(out.len(), 1_001);
}

#[test]
fn a_late_sample_corrects_its_window_within_the_lateness() {
    let kind = WindowKind::Tumbling { size: 10 };
    let set = setting(kind, false, 5);
    let mut window = Window::new(kind);
    let mut out = Vec::new();
    window.add(&set, number(3, 1.0), &mut out);
    window.advance(&set, 12, &mut out);
    window.add(&set, number(8, 2.0), &mut out);
    assert_eq!(counts(&out), [(10, "1".into()), (10, "2".into())]);
    window.advance(&set, 15, &mut out);
    assert!(window.is_idle());
}

#[test]
fn old_samples_leave_a_sliding_window_by_time() {
    let kind = WindowKind::Sliding { size: 10 };
    let set = setting(kind, true, 0);
    let mut window = Window::new(kind);
    let mut out = Vec::new();
    for ts in [0, 4] {
        window.add(&set, number(ts, 1.0), &mut out);
    }
    assert_eq!(window.deadline(&set), Some(10));
    window.advance(&set, 20, &mut out);
    let full: Vec<bool> = out.iter().map(|e| e.full).collect();
    assert_eq!(full, [true, true, false, false]);
    assert_eq!(counts(&out)[2..], [(10, "1".into()), (14, "0".into())]);
}

#[test]
fn samples_over_the_limit_go_first_in_first_out() {
    let kind = WindowKind::Sliding { size: 1_000 };
    let set = Setting {
        most: 3,
        ..setting(kind, true, 0)
    };
    let mut window = Window::new(kind);
    let mut out = Vec::new();
    let gone: u64 = (0..10)
        .map(|ts| window.add(&set, number(ts, 1.0), &mut out))
        .sum();
    assert_eq!((gone, window.held()), (7, 3));
}
