//! How far inputs and outputs have moved from where the model was validated.

use crate::manifest::Reference;

/// Below this many scores the figure says nothing.
const MIN_COUNT: f64 = 200.0;
/// Older scores fade: at this many, every count is halved.
const FADE_AT: f64 = 20_000.0;

/// From here on a figure counts as moved.
pub(super) const MOVED: f64 = 0.25;
/// And up to here as back again.
pub const BACK: f64 = 0.1;

/// Counts of one figure by its reference's bins.
#[derive(Debug, Clone, Default)]
pub(super) struct Drift {
    counts: Vec<f64>,
    total: f64,
    moved: bool,
}

impl Drift {
    pub(super) fn record(&mut self, reference: &Reference, score: f64) {
        self.counts.resize(reference.shares.len(), 0.0);
        let bin = reference.bins.partition_point(|edge| *edge <= score);
        if let Some(count) = self.counts.get_mut(bin) {
            *count += 1.0;
            self.total += 1.0;
        }
        if self.total >= FADE_AT {
            self.counts.iter_mut().for_each(|c| *c /= 2.0);
            self.total /= 2.0;
        }
    }

    /// Population stability index, sum of (p - q) ln(p / q) over the bins; none while
    /// there are too few scores. By custom 0.1 is little and 0.25 is a lot.
    pub(super) fn index(&self, reference: &Reference) -> Option<f64> {
        if self.total < MIN_COUNT {
            return None;
        }
        // An empty bin counts as a ten-thousandth, or one visit would be infinite.
        let share = |x: f64| x.max(1e-4);
        let terms = self.counts.iter().zip(&reference.shares).map(|(count, q)| {
            let (p, q) = (share(count / self.total), share(*q));
            (p - q) * (p / q).ln()
        });
        Some(terms.sum())
    }

    /// The index, when the figure has just moved or just come back.
    pub(super) fn change(&mut self, reference: &Reference) -> Option<(f64, bool)> {
        let index = self.index(reference)?;
        let moved = if self.moved {
            index > BACK
        } else {
            index >= MOVED
        };
        let changed = moved != self.moved;
        self.moved = moved;
        changed.then_some((index, moved))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_distribution_has_no_drift_and_another_one_has() {
        let reference = Reference {
            of: "score".into(),
            bins: vec![0.25, 0.5, 0.75],
            shares: vec![0.25; 4],
        };
        let mut same = Drift::default();
        let mut moved = Drift::default();
        for i in 0..1000 {
            let x = f64::from(i) / 1000.0;
            same.record(&reference, x);
            moved.record(&reference, x * 0.5);
        }
        assert!(same.index(&reference).unwrap() < 1e-9);
        assert!(moved.index(&reference).unwrap() > 0.25);
        assert_eq!(Drift::default().index(&reference), None);
        assert!(matches!(moved.change(&reference), Some((_, true))));
        assert_eq!(moved.change(&reference), None, "told once");
        assert_eq!(same.change(&reference), None);
    }
}
