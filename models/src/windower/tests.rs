use super::*;
use proptest::prelude::*;

const NOW: i64 = 1_700_000_000_000;

/// Two metrics, 8 points of 100 ms, a window every 4 points.
fn manifest() -> Arc<Manifest> {
    let mut m =
        Manifest::parse(include_str!("../../artifacts/vibration-ae/manifest.toml")).unwrap();
    m.lighter = None;
    m.window = toml::from_str(
        r#"
        points = 8
        hop = 4
        period = "100ms"
        resample = "linear"
        max_gap = "1s"
        hold = "300ms"
        max_age = "30s"
        "#,
    )
    .unwrap();
    Arc::new(m)
}

fn key(device: &str) -> DeviceKey {
    DeviceKey::new("g", "n", device)
}

struct Story {
    windower: Windower,
    out: Vec<WindowOutcome>,
    record: u64,
}

impl Story {
    fn new(manifest: Arc<Manifest>) -> Self {
        let windower = Windower::new(&[manifest], WindowerConfig::default());
        Self {
            windower,
            out: Vec::new(),
            record: 0,
        }
    }

    fn put(&mut self, metric: &str, at_ms: i64, value: SampleValue) {
        self.record += 1;
        let sample = Sample {
            metric,
            value,
            time_ms: NOW + at_ms,
            record: self.record,
        };
        self.windower
            .handle_sample(&key("d"), &sample, NOW + at_ms, &mut self.out);
    }

    fn both(&mut self, at_ms: i64, x: f64, y: f64) {
        self.put("Vibration/X", at_ms, SampleValue::Number(x));
        self.put("Vibration/Y", at_ms, SampleValue::Number(y));
    }

    fn requests(&mut self) -> Vec<Request> {
        std::mem::take(&mut self.out)
            .into_iter()
            .filter_map(|o| match o {
                WindowOutcome::Request(r) => Some(r),
                WindowOutcome::NoVerdict(_) => None,
            })
            .collect()
    }

    fn reasons(&mut self) -> Vec<(Reason, Option<String>)> {
        std::mem::take(&mut self.out)
            .into_iter()
            .filter_map(|o| match o {
                WindowOutcome::NoVerdict(n) => Some((n.reason, n.metric.map(|m| m.to_string()))),
                WindowOutcome::Request(_) => None,
            })
            .collect()
    }
}

#[test]
fn a_window_leaves_when_both_metrics_have_reached_its_end() {
    let mut story = Story::new(manifest());
    for i in 0..7 {
        story.both(i * 100, i as f64, -(i as f64));
    }
    assert!(story.out.is_empty());
    story.put("Vibration/X", 700, SampleValue::Number(7.0));
    assert!(story.out.is_empty(), "Y is not there yet");
    story.put("Vibration/Y", 700, SampleValue::Number(-7.0));
    let requests = story.requests();
    assert_eq!(requests.len(), 1);
    let expect: Vec<f64> = (0..8)
        .map(f64::from)
        .chain((0..8).map(|i| -f64::from(i)))
        .collect();
    assert_eq!(&*requests[0].points, &expect[..]);
    assert_eq!(requests[0].span_ms, (NOW, NOW + 700));
    assert_eq!(requests[0].record, story.record);
    for i in 8..16 {
        story.both(i * 100, 0.0, 0.0);
    }
    let spans: Vec<_> = story.requests().iter().map(|r| r.span_ms.1 - NOW).collect();
    assert_eq!(spans, [1100, 1500]);
}

#[test]
fn inputs_are_bound_by_name_whatever_their_order() {
    let mut story = Story::new(manifest());
    for i in 0..8 {
        story.put("Vibration/Y", i * 100, SampleValue::Number(2.0));
        story.put("Temperature", i * 100, SampleValue::Number(99.0));
        story.put("Vibration/X", i * 100, SampleValue::Number(1.0));
    }
    let request = story.requests().remove(0);
    assert_eq!(&request.points[..8], [1.0; 8]);
    assert_eq!(&request.points[8..], [2.0; 8]);
    assert_eq!(story.windower.stats().samples, 16);
}

#[test]
fn what_is_no_number_is_no_verdict_and_starts_the_window_over() {
    let check = |value: SampleValue, expect: Reason| {
        let mut story = Story::new(manifest());
        for i in 0..5 {
            story.both(i * 100, 1.0, 1.0);
        }
        story.put("Vibration/X", 500, value);
        assert_eq!(
            story.reasons(),
            [(expect, Some("Vibration/X".to_owned()))],
            "{value:?}"
        );
        for i in 6..13 {
            story.both(i * 100, 1.0, 1.0);
        }
        assert!(
            story.requests().is_empty(),
            "points from before are not used after {value:?}"
        );
        story.both(1300, 1.0, 1.0);
        assert_eq!(story.requests().len(), 1);
        assert_eq!(story.windower.stats().no_verdict[expect.name()], 1);
    };
    check(SampleValue::Null, Reason::Null);
    check(SampleValue::Bad, Reason::Bad);
    check(SampleValue::Other, Reason::WrongType);
    check(SampleValue::Boolean(true), Reason::WrongType);
    check(SampleValue::Number(f64::NAN), Reason::NotFinite);
    check(SampleValue::Number(f64::INFINITY), Reason::NotFinite);
    check(SampleValue::Number(1e30), Reason::OutOfRange);
    check(SampleValue::Number(-1e30), Reason::OutOfRange);
}

#[test]
fn age_and_time_are_held_against_the_gateways_clock() {
    let check = |time_ms: i64, expect: Reason| {
        let mut story = Story::new(manifest());
        let sample = Sample {
            metric: "Vibration/X",
            value: SampleValue::Number(1.0),
            time_ms,
            record: 1,
        };
        story
            .windower
            .handle_sample(&key("d"), &sample, NOW, &mut story.out);
        assert_eq!(story.reasons(), [(expect, Some("Vibration/X".to_owned()))]);
    };
    check(NOW - 30_001, Reason::Aged);
    check(NOW + 30_001, Reason::Future);
    check(i64::MAX, Reason::BadTime);
    check(i64::MIN, Reason::BadTime);
}

#[test]
fn a_metric_that_stands_still_holds_and_then_goes_stale() {
    let mut story = Story::new(manifest());
    for i in 0..8 {
        story.both(i * 100, 1.0, 5.0);
    }
    assert_eq!(story.requests().len(), 1);
    for i in 8..15 {
        story.put("Vibration/X", i * 100, SampleValue::Number(1.0));
    }
    let requests = story.requests();
    assert_eq!(requests.len(), 1, "Y held at its last value");
    assert_eq!(&requests[0].points[8..], [5.0; 8]);
    assert_eq!(requests[0].ages[1], 0.4);
    for i in 15..30 {
        story.put("Vibration/X", i * 100, SampleValue::Number(1.0));
    }
    let reasons = story.reasons();
    assert_eq!(reasons[0], (Reason::Stale, Some("Vibration/Y".to_owned())));
}

#[test]
fn a_metric_that_never_comes_is_missed_once_a_window() {
    let mut story = Story::new(manifest());
    for i in 0..40 {
        story.put("Vibration/X", i * 100, SampleValue::Number(1.0));
    }
    let reasons = story.reasons();
    assert_eq!(reasons.len(), 4, "{reasons:?}");
    assert!(
        reasons
            .iter()
            .all(|r| *r == (Reason::Missing, Some("Vibration/Y".to_owned())))
    );
    assert!(
        story.windower.stats().no_verdict["missing"] > 20,
        "every refused sample counts"
    );
}

#[test]
fn a_gap_starts_the_window_over() {
    let mut story = Story::new(manifest());
    for i in 0..6 {
        story.both(i * 100, 1.0, 1.0);
    }
    story.both(1600, 1.0, 1.0);
    let reasons = story.reasons();
    assert_eq!(reasons[0].0, Reason::Gap);
    for i in 17..23 {
        story.both(i * 100, 1.0, 1.0);
    }
    assert!(story.requests().is_empty());
    story.both(2300, 1.0, 1.0);
    assert_eq!(story.requests()[0].span_ms, (NOW + 1600, NOW + 2300));
}

#[test]
fn late_and_repeated_samples_change_nothing() {
    let mut story = Story::new(manifest());
    for i in 0..8 {
        story.both(i * 100, i as f64, 0.0);
        story.put("Vibration/X", i * 100, SampleValue::Number(77.0));
        story.put("Vibration/X", i * 100 - 350, SampleValue::Number(88.0));
    }
    let request = story.requests().remove(0);
    assert_eq!(
        &request.points[..8],
        [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    );
    assert_eq!(story.windower.stats().late, 16);
}

#[test]
fn silence_is_told_once_by_the_tick_and_a_death_at_once() {
    let mut story = Story::new(manifest());
    story.both(0, 1.0, 1.0);
    story.windower.handle_tick(NOW + 900, &mut story.out);
    assert!(story.out.is_empty());
    story.windower.handle_tick(NOW + 1100, &mut story.out);
    story.windower.handle_tick(NOW + 9000, &mut story.out);
    assert_eq!(story.reasons(), [(Reason::Stale, None)]);
    story.both(10_000, 1.0, 1.0);
    story.windower.handle_stale(&key("d"), 99, &mut story.out);
    assert_eq!(story.reasons(), [(Reason::Stale, None)]);
    assert_eq!(story.windower.stats().devices, 0);
}

#[test]
fn devices_are_bounded_and_the_silent_ones_go_first() {
    let mut windower = Windower::new(&[manifest()], WindowerConfig { max_devices: 32 });
    let mut out = Vec::new();
    for i in 0..1000 {
        for device in ["busy".to_owned(), format!("d{i}")] {
            let value = SampleValue::Number(1.0);
            let sample = Sample {
                metric: "Vibration/X",
                value,
                time_ms: NOW + i,
                record: 0,
            };
            windower.handle_sample(&key(&device), &sample, NOW + i, &mut out);
        }
    }
    let stats = windower.stats();
    assert!(stats.devices <= 32, "{stats:?}");
    assert_eq!(
        stats.evicted + stats.devices as u64,
        1001,
        "the busy device was never forgotten"
    );
}

#[test]
fn a_lighter_model_is_not_bound_by_itself() {
    let heavy = Arc::new(
        Manifest::parse(include_str!("../../artifacts/vibration-ae/manifest.toml")).unwrap(),
    );
    let lighter = Arc::new(
        Manifest::parse(include_str!(
            "../../artifacts/vibration-ae-mlp/manifest.toml"
        ))
        .unwrap(),
    );
    let windower = Windower::new(&[heavy, lighter], WindowerConfig::default());
    assert_eq!(windower.bindings.len(), 1);
}

/// Straight lines between samples, evaluated from the whole list.
fn naive_linear(samples: &[(i64, f64)], at: i64) -> Option<f64> {
    let after = samples.iter().position(|(t, _)| *t >= at)?;
    let (t1, v1) = samples[after];
    if t1 == at {
        return Some(v1);
    }
    let (t0, v0) = samples[after.checked_sub(1)?];
    Some(v0 + (v1 - v0) * (at - t0) as f64 / (t1 - t0) as f64)
}

fn naive_hold(samples: &[(i64, f64)], at: i64) -> Option<f64> {
    samples
        .iter()
        .rev()
        .find(|(t, _)| *t <= at)
        .map(|(_, v)| *v)
}

proptest! {
    #[test]
    fn windows_equal_a_naive_resampling(
        steps in prop::collection::vec((1i64..400, -50.0..50.0f64), 2..60),
        linear in any::<bool>(),
    ) {
        let mut m = (*manifest()).clone();
        m.inputs.truncate(1);
        m.window.resample = if linear { crate::manifest::Resample::Linear } else { crate::manifest::Resample::Hold };
        let mut story = Story::new(Arc::new(m));
        let mut samples = Vec::new();
        let mut at = 37;
        for (step, value) in steps {
            at += step;
            samples.push((NOW + at, value));
            story.put("Vibration/X", at, SampleValue::Number(value));
        }
        let mut due = None;
        for request in story.requests() {
            let (start, end) = request.span_ms;
            prop_assert_eq!(end - start, 700);
            if let Some(due) = due {
                prop_assert_eq!(end, due, "windows follow each other by the hop");
            }
            due = Some(end + 400);
            for (i, point) in request.points.iter().enumerate() {
                let t = start + 100 * i as i64;
                let want = if linear { naive_linear(&samples, t) } else { naive_hold(&samples, t) };
                prop_assert!((point - want.unwrap()).abs() < 1e-9);
            }
        }
        // Nothing complete was kept back.
        let first = -(-samples[0].0).div_euclid(100) * 100;
        if samples.last().unwrap().0 >= first + 700 {
            prop_assert!(due.unwrap() > samples.last().unwrap().0);
        }
    }

    #[test]
    fn any_samples_give_finite_windows_and_bounded_state(
        samples in prop::collection::vec((any::<bool>(), any::<i64>(), any::<f64>(), 0u8..5, -2000i64..5000), 0..200),
    ) {
        let mut story = Story::new(manifest());
        let mut base = 0;
        for (x, wild, number, kind, step) in samples {
            base += step.max(-100) / 10;
            let value = match kind {
                0 => SampleValue::Null,
                1 => SampleValue::Number(number),
                _ => SampleValue::Number(number.rem_euclid(10.0)),
            };
            let time = if kind == 4 { wild } else { NOW + base };
            let metric = if x { "Vibration/X" } else { "Vibration/Y" };
            let sample = Sample { metric, value, time_ms: time, record: 0 };
            story.windower.handle_sample(&key("d"), &sample, NOW + base, &mut story.out);
        }
        for request in story.requests() {
            prop_assert_eq!(request.points.len(), 16);
            prop_assert!(request.points.iter().all(|p| p.is_finite()));
        }
    }
}

#[test]
fn the_built_in_models_get_windows_within_half_a_minute_at_one_and_at_ten_hertz() {
    let manifests = crate::Registry::embedded().unwrap().manifests();
    let check = |step_ms: i64| {
        let mut windower = Windower::new(&manifests, WindowerConfig::default());
        let mut out = Vec::new();
        for i in 0..30_000 / step_ms {
            for (metric, value) in [
                ("Temperature", 66.0),
                ("Vibration/X", 2.0),
                ("Vibration/Y", 1.0),
            ] {
                // Arrival is a little late and not on the grid.
                let time_ms = NOW + 37 + i * step_ms;
                let value = SampleValue::Number(value + (i % 7) as f64 / 10.0);
                let sample = Sample {
                    metric,
                    value,
                    time_ms,
                    record: i as u64,
                };
                windower.handle_sample(&key("d"), &sample, time_ms + 15, &mut out);
            }
        }
        let count = |model: &str| {
            let of =
                |o: &&WindowOutcome| matches!(o, WindowOutcome::Request(r) if &*r.model == model);
            out.iter().filter(of).count()
        };
        assert!(
            count("vibration-ae") >= 10 && count("univariate-anomaly") >= 8,
            "every {step_ms} ms"
        );
        assert!(out.iter().all(|o| matches!(o, WindowOutcome::Request(_))));
    };
    check(1000);
    check(100);
}
