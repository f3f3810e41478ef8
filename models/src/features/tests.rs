use super::*;
use proptest::prelude::*;
use std::f64::consts::TAU;

fn manifest(features: &str, points: usize) -> Manifest {
    let text = include_str!("../../artifacts/univariate-anomaly/manifest.toml");
    let mut manifest = Manifest::parse(text).unwrap();
    manifest.window.points = points;
    manifest.tensor.floor = 0.01;
    #[derive(serde::Deserialize)]
    struct List {
        features: Vec<Feature>,
    }
    manifest.tensor.features = toml::from_str::<List>(&format!("features = {features}"))
        .unwrap()
        .features;
    manifest
}

/// The definitions as a textbook writes them, one loop each.
fn naive(kind: FeatureKind, x: &[f64], period: f64, floor: f64) -> f64 {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    let moment = |p: i32| x.iter().map(|v| (v - mean).powi(p)).sum::<f64>() / n;
    let spread = moment(2).sqrt().max(floor);
    let diffs: Vec<f64> = x.windows(2).map(|w| w[1] - w[0]).collect();
    let fold = |f: fn(f64, f64) -> f64, x: &[f64]| x.iter().copied().reduce(f).unwrap();
    match kind {
        FeatureKind::Mean => mean,
        FeatureKind::Std => moment(2).sqrt(),
        FeatureKind::Rms => (x.iter().map(|v| v * v).sum::<f64>() / n).sqrt(),
        FeatureKind::Min => fold(f64::min, x),
        FeatureKind::Max => fold(f64::max, x),
        FeatureKind::PeakToPeak => fold(f64::max, x) - fold(f64::min, x),
        FeatureKind::Slope | FeatureKind::SlopeRatio => {
            let t: Vec<f64> = (0..x.len()).map(|i| i as f64 * period).collect();
            let mt = t.iter().sum::<f64>() / n;
            let up: f64 = t.iter().zip(x).map(|(t, v)| (t - mt) * (v - mean)).sum();
            let slope = up / t.iter().map(|t| (t - mt).powi(2)).sum::<f64>();
            if kind == FeatureKind::Slope {
                slope
            } else {
                slope * n * period / spread
            }
        }
        FeatureKind::Last => x[x.len() - 1],
        FeatureKind::DiffRms => {
            (diffs.iter().map(|d| d * d).sum::<f64>() / diffs.len() as f64).sqrt()
        }
        FeatureKind::ZLast => (x[x.len() - 1] - mean) / spread,
        FeatureKind::Crest => x.iter().map(|v| (v - mean).abs()).fold(0.0, f64::max) / spread,
        FeatureKind::Skewness => moment(3) / spread.powi(3),
        FeatureKind::Kurtosis => moment(4) / spread.powi(4),
        FeatureKind::DiffRatio => {
            let abs: Vec<f64> = diffs.iter().map(|d| d.abs()).collect();
            fold(f64::max, &abs) / (abs.iter().sum::<f64>() / abs.len() as f64).max(floor)
        }
        FeatureKind::Age | FeatureKind::Band => unreachable!(),
    }
}

const KINDS: [FeatureKind; 15] = [
    FeatureKind::Mean,
    FeatureKind::Std,
    FeatureKind::Rms,
    FeatureKind::Min,
    FeatureKind::Max,
    FeatureKind::PeakToPeak,
    FeatureKind::Slope,
    FeatureKind::Last,
    FeatureKind::DiffRms,
    FeatureKind::ZLast,
    FeatureKind::Crest,
    FeatureKind::Skewness,
    FeatureKind::Kurtosis,
    FeatureKind::SlopeRatio,
    FeatureKind::DiffRatio,
];

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 + 1e-9 * a.abs().max(b.abs())
}

proptest! {
    #[test]
    fn statistics_equal_their_definitions(
        x in prop::collection::vec(-100.0..100.0f64, 2..80),
        period in 0.01..5.0f64,
        floor in 0.001..10.0f64,
    ) {
        let statistics = Statistics::of(&x, period);
        for kind in KINDS {
            let (got, want) = (statistics.draw(kind, floor), naive(kind, &x, period, floor));
            prop_assert!(close(got, want), "{kind:?}: {got} is not {want}");
        }
    }

    #[test]
    fn the_spectrum_equals_the_plain_sum_and_keeps_the_power(x in prop::collection::vec(-50.0..50.0f64, 1..130)) {
        let n = x.len();
        let mean = x.iter().sum::<f64>() / n as f64;
        let spectrum = power_spectrum(&x);
        prop_assert_eq!(spectrum.len(), n / 2 + 1);
        let mut total = 0.0;
        for (k, power) in spectrum.iter().enumerate() {
            let (mut re, mut im) = (0.0, 0.0);
            for (i, v) in x.iter().enumerate() {
                let angle = -TAU * (i * k) as f64 / n as f64;
                re += (v - mean) * angle.cos();
                im += (v - mean) * angle.sin();
            }
            let want = (re * re + im * im) / (n * n) as f64;
            prop_assert!((power - want).abs() < 1e-8, "bin {k}: {power} is not {want}");
            total += if k == 0 || 2 * k == n { *power } else { 2.0 * power };
        }
        let variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64;
        prop_assert!((total - variance).abs() < 1e-8);
    }

    #[test]
    fn a_row_is_finite_or_refused_whatever_the_points(x in prop::collection::vec(any::<f64>(), 16)) {
        let manifest = manifest(
            r#"[{ of = "Temperature", is = "kurtosis" }, { of = "Temperature", is = "band", from = 0.1, to = 1.0 }]"#,
            16,
        );
        let mut row = vec![7.0];
        match write_row(&manifest, &x, &[0.0], &mut row) {
            Ok(()) => prop_assert!(row.len() == 3 && row.iter().all(|v| v.is_finite())),
            Err(_) => prop_assert_eq!(row, vec![7.0]),
        }
    }
}

#[test]
fn a_tone_lies_in_its_band_alone() {
    let manifest = manifest(
        r#"[{ of = "Temperature", is = "band", from = 0.4, to = 0.6 }, { of = "Temperature", is = "band", from = 0.6, to = 2.0 }, { of = "Temperature", is = "age" }]"#,
        32,
    );
    let period = manifest.window.period.0.as_secs_f64();
    let x: Vec<f64> = (0..32)
        .map(|i| 20.0 + (TAU * 0.5 * i as f64 * period).sin())
        .collect();
    let mut row = Vec::new();
    write_row(&manifest, &x, &[0.75], &mut row).unwrap();
    assert!(row[0] > 0.999 && row[1] < 1e-3, "{row:?}");
    assert_eq!(row[2], 0.75);
}

#[test]
fn a_quiet_signal_stays_quiet() {
    let statistics = Statistics::of(&[5.0, 5.0, 5.0, 5.0], 1.0);
    for kind in [
        FeatureKind::ZLast,
        FeatureKind::Crest,
        FeatureKind::Kurtosis,
        FeatureKind::DiffRatio,
    ] {
        assert_eq!(statistics.draw(kind, 0.1), 0.0);
    }
}

#[test]
fn a_window_of_another_length_is_refused() {
    let manifest = manifest(r#"[{ of = "Temperature", is = "mean" }]"#, 16);
    let error = write_row(&manifest, &[1.0; 15], &[0.0], &mut Vec::new()).unwrap_err();
    assert_eq!(
        error,
        FeatureError::Shape {
            found: 15,
            expected: 16
        }
    );
}
