//! Waiting times that grow and never agree between gateways.

use std::time::Duration;

/// A small seeded generator (SplitMix64). Good enough to spread retries; not for secrets.
#[derive(Debug, Clone)]
pub struct Jitter(u64);

impl Jitter {
    /// A generator; gateways differ when their seeds do.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A fraction in `0.0..1.0`.
    #[allow(clippy::cast_precision_loss)] // 53 bits fit a double exactly
    pub fn fraction(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A wait between half of `full` and all of it.
    pub fn around(&mut self, full: Duration) -> Duration {
        full.mul_f64(0.5 + 0.5 * self.fraction())
    }

    /// A wait between a tenth of `full` and all of it: what began together is spread as far as it can be without
    /// anybody trying at once.
    pub fn within(&mut self, full: Duration) -> Duration {
        full.mul_f64(0.1 + 0.9 * self.fraction())
    }
}

/// Exponential back-off with jitter: `base`, doubled for every failure since the last success, at most `max`.
#[derive(Debug, Clone)]
pub struct Backoff {
    base: Duration,
    max: Duration,
    failures: u32,
    jitter: Jitter,
}

impl Backoff {
    /// A back-off that has not failed yet.
    #[must_use]
    pub fn new(base: Duration, max: Duration, seed: u64) -> Self {
        Self {
            base,
            max,
            failures: 0,
            jitter: Jitter::new(seed),
        }
    }

    /// Something worked: the next failure waits `base` again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Failures since the last success.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Counts a failure and says how long to wait.
    pub fn fail(&mut self) -> Duration {
        let full = self
            .base
            .saturating_mul(1 << self.failures.min(16))
            .min(self.max);
        self.failures = self.failures.saturating_add(1);
        self.jitter.within(full)
    }

    /// A wait around `full` that counts no failure.
    pub fn spread(&mut self, full: Duration) -> Duration {
        self.jitter.around(full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_maximum_and_keep_their_jitter() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5), 1);
        for full in [100u64, 200, 400, 800, 1600, 3200, 5000, 5000] {
            let wait = backoff.fail();
            assert!(
                wait >= Duration::from_millis(full / 10),
                "{wait:?} of {full}"
            );
            assert!(wait <= Duration::from_millis(full), "{wait:?} of {full}");
        }
        backoff.reset();
        assert!(backoff.fail() <= Duration::from_millis(100));
    }

    /// A server is away for a while and comes back: when each of 200 gateways, two lanes each, tries next.
    fn returns(outage: Duration) -> Vec<Duration> {
        let mut at: Vec<Duration> = (0..400)
            .map(|seed| {
                let base = Duration::from_millis(500);
                let mut backoff = Backoff::new(base, Duration::from_secs(30), seed);
                let mut at = Duration::ZERO;
                while at < outage {
                    at += backoff.fail();
                }
                at - outage
            })
            .collect();
        at.sort_unstable();
        at
    }

    #[test]
    fn two_hundred_gateways_do_not_return_together() {
        for (outage, over, in_a_tenth) in [
            // A blip: within half a second, and no burst in it.
            (Duration::from_millis(1), Duration::from_millis(400), 130),
            (Duration::from_secs(5), Duration::from_secs(8), 40),
            (Duration::from_secs(60), Duration::from_secs(20), 20),
            (Duration::from_secs(3600), Duration::from_secs(20), 20),
        ] {
            let at = returns(outage);
            let span = at[at.len() - 1] - at[0];
            assert!(span >= over, "{outage:?}: {span:?}");
            let tenth = Duration::from_millis(100);
            let most = at
                .iter()
                .map(|from| {
                    at.iter()
                        .filter(|it| *it >= from && **it < *from + tenth)
                        .count()
                })
                .max()
                .unwrap_or_default();
            assert!(most <= in_a_tenth, "{outage:?}: {most} in 100 ms");
        }
    }
}
