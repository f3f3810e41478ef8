//! Numbers drawn from the points of one metric.

use super::FeatureKind;

/// Arithmetic mean; NaN of nothing.
pub(super) fn mean(x: &[f64]) -> f64 {
    x.iter().sum::<f64>() / x.len() as f64
}

/// Everything that one pass over the centred points yields.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Statistics {
    /// Arithmetic mean.
    pub mean: f64,
    /// Population standard deviation.
    pub std: f64,
    /// Root mean square.
    pub rms: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// Least-squares slope per second.
    pub slope: f64,
    /// Newest.
    pub last: f64,
    /// Length of the window in seconds, `points * period`.
    pub length_s: f64,
    cubes: f64,
    fourths: f64,
    diff_square: f64,
    diff_abs: f64,
    diff_max: f64,
}

impl Statistics {
    /// Of evenly spaced points, `period` seconds apart, oldest first.
    pub fn of(x: &[f64], period: f64) -> Self {
        let n = x.len() as f64;
        let mean = mean(x);
        let middle = (n - 1.0) / 2.0;
        let [
            mut squares,
            mut cubes,
            mut fourths,
            mut square_sum,
            mut along,
            mut spread,
        ] = [0.0; 6];
        let (mut min, mut max) = (f64::INFINITY, f64::NEG_INFINITY);
        for (i, &v) in x.iter().enumerate() {
            let c = v - mean;
            squares += c * c;
            cubes += c * c * c;
            fourths += c * c * c * c;
            square_sum += v * v;
            let t = i as f64 - middle;
            along += t * c;
            spread += t * t;
            min = min.min(v);
            max = max.max(v);
        }
        let [mut diff_square, mut diff_abs, mut diff_max] = [0.0f64; 3];
        for (a, b) in x.iter().zip(x.iter().skip(1)) {
            let d = (b - a).abs();
            diff_square += d * d;
            diff_abs += d;
            diff_max = diff_max.max(d);
        }
        let steps = (n - 1.0).max(1.0);
        Self {
            mean,
            std: (squares / n).sqrt(),
            rms: (square_sum / n).sqrt(),
            min,
            max,
            slope: if spread > 0.0 {
                along / spread / period
            } else {
                0.0
            },
            last: x.last().copied().unwrap_or(f64::NAN),
            length_s: n * period,
            cubes: cubes / n,
            fourths: fourths / n,
            diff_square: diff_square / steps,
            diff_abs: diff_abs / steps,
            diff_max,
        }
    }

    /// One feature; NaN for those that need more than the points.
    pub fn draw(&self, kind: FeatureKind, floor: f64) -> f64 {
        let spread = self.std.max(floor);
        match kind {
            FeatureKind::Mean => self.mean,
            FeatureKind::Std => self.std,
            FeatureKind::Rms => self.rms,
            FeatureKind::Min => self.min,
            FeatureKind::Max => self.max,
            FeatureKind::PeakToPeak => self.max - self.min,
            FeatureKind::Slope => self.slope,
            FeatureKind::Last => self.last,
            FeatureKind::DiffRms => self.diff_square.sqrt(),
            FeatureKind::ZLast => (self.last - self.mean) / spread,
            FeatureKind::Crest => (self.max - self.mean).max(self.mean - self.min) / spread,
            FeatureKind::Skewness => self.cubes / spread.powi(3),
            FeatureKind::Kurtosis => self.fourths / spread.powi(4),
            FeatureKind::SlopeRatio => self.slope * self.length_s / spread,
            FeatureKind::DiffRatio => self.diff_max / self.diff_abs.max(floor),
            FeatureKind::Age | FeatureKind::Band => f64::NAN,
        }
    }
}
