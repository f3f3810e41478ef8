//! Latency of decisions, whole and by stage, in histograms of constant memory whose percentiles are within 3 %.

use std::time::Instant;

/// Buckets a power of two.
const STEPS: usize = 32;
/// Powers of two covered: 1 µs to about 36 minutes.
const POWERS: usize = 32;

/// When a message passed the stages on its way to a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Its bytes were read from the socket.
    pub read: Instant,
    /// The pipeline took it.
    pub taken: Instant,
    /// It was resolved and appended to the journal, and the rules got it.
    pub resolved: Instant,
    /// The command was handed to the broker.
    pub decided: Instant,
}

impl Stamp {
    /// The same message a stage further.
    #[must_use]
    pub fn decided(self, decided: Instant) -> Self {
        Self { decided, ..self }
    }
}

/// Names of the stages, in order: socket read to pipeline, to the rules, to the decision, to the socket write.
pub const STAGES: [&str; 4] = ["broker", "resolve", "rule", "write"];

/// Latencies from the socket read of the cause to the socket write of the command.
#[derive(Debug, Clone, Default)]
pub struct Latency {
    /// All of it.
    pub total: Histogram,
    /// Of each of [`STAGES`].
    pub stages: [Histogram; 4],
}

impl Latency {
    /// A command whose bytes were written at `written`.
    pub fn record(&mut self, stamp: Stamp, written: Instant) {
        let us = |from: Instant, to: Instant| {
            u64::try_from(to.saturating_duration_since(from).as_micros()).unwrap_or(u64::MAX)
        };
        self.total.record(us(stamp.read, written));
        let marks = [
            stamp.read,
            stamp.taken,
            stamp.resolved,
            stamp.decided,
            written,
        ];
        for (stage, pair) in self.stages.iter_mut().zip(marks.windows(2)) {
            if let [from, to] = pair {
                stage.record(us(*from, *to));
            }
        }
    }
}

/// Latencies in µs since start.
#[derive(Debug, Clone)]
pub struct Histogram {
    buckets: Box<[u64]>,
    count: u64,
    sum_us: u64,
    max_us: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            buckets: vec![0; STEPS * POWERS].into_boxed_slice(),
            count: 0,
            sum_us: 0,
            max_us: 0,
        }
    }
}

fn bucket(us: u64) -> usize {
    let us = us.max(1);
    let power = us.ilog2() as usize;
    let step = if power >= 5 {
        (us >> (power - 5)) as usize - STEPS
    } else {
        ((us << (5 - power)) as usize) - STEPS
    };
    (power * STEPS + step).min(STEPS * POWERS - 1)
}

/// Upper edge of a bucket in µs.
fn edge(bucket: usize) -> f64 {
    let (power, step) = (bucket / STEPS, bucket % STEPS);
    #[expect(clippy::cast_precision_loss, reason = "both are below 1024")]
    let within = 1.0 + (step as f64 + 1.0) / STEPS as f64;
    within * f64::from(2u32).powi(i32::try_from(power).unwrap_or(0))
}

impl Histogram {
    /// Counts one latency.
    pub fn record(&mut self, us: u64) {
        if let Some(count) = self.buckets.get_mut(bucket(us)) {
            *count += 1;
        }
        self.count += 1;
        self.sum_us = self.sum_us.saturating_add(us);
        self.max_us = self.max_us.max(us);
    }

    /// The latency in µs that a share of all (0 to 1) did not exceed; 0 when there is none.
    #[must_use]
    pub fn quantile(&self, share: f64) -> f64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a rank between 0 and the count"
        )]
        let rank = (self.count as f64 * share.clamp(0.0, 1.0)).ceil() as u64;
        let mut seen = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank.max(1) {
                #[expect(clippy::cast_precision_loss, reason = "µs for display")]
                return edge(index).min(self.max_us as f64);
            }
        }
        0.0
    }

    /// How many were at most this long; exact where `us` is a bucket's edge, else a little more.
    #[must_use]
    pub fn at_most(&self, us: u64) -> u64 {
        self.buckets.iter().take(bucket(us) + 1).sum()
    }

    /// How many were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their sum in µs.
    #[must_use]
    pub fn sum_us(&self) -> u64 {
        self.sum_us
    }

    /// The largest in µs.
    #[must_use]
    pub fn max_us(&self) -> u64 {
        self.max_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_three_percent_of_sorting() {
        let mut histogram = Histogram::default();
        let mut all: Vec<u64> = (0..10_000u64).map(|i| (i * i) % 77_777 + 1).collect();
        for us in &all {
            histogram.record(*us);
        }
        all.sort_unstable();
        for share in [0.01, 0.5, 0.9, 0.99, 0.999] {
            let exact = all[((all.len() as f64 * share).ceil() as usize).max(1) - 1] as f64;
            let got = histogram.quantile(share);
            assert!(
                (got - exact).abs() <= exact * 0.035 + 1.0,
                "{share}: {got} for {exact}"
            );
        }
    }

    #[test]
    fn stages_add_up() {
        let start = Instant::now();
        let at = |us| start + std::time::Duration::from_micros(us);
        let mut latency = Latency::default();
        let stamp = Stamp {
            read: at(0),
            taken: at(10),
            resolved: at(30),
            decided: at(70),
        };
        latency.record(stamp, at(150));
        let sums: Vec<u64> = latency.stages.iter().map(Histogram::sum_us).collect();
        assert_eq!((latency.total.sum_us(), sums), (150, vec![10, 20, 40, 80]));
        assert_eq!(latency.total.at_most(140), 0);
        assert_eq!(latency.total.at_most(160), 1);
    }

    #[test]
    fn extremes_have_a_bucket() {
        let mut histogram = Histogram::default();
        histogram.record(0);
        histogram.record(u64::MAX);
        assert_eq!(histogram.count(), 2);
        assert_eq!(Histogram::default().quantile(0.5), 0.0);
    }
}
