//! Believable signals from a seed: slow walks, cycles, noise, and faults that come and go.

/// A small, seeded generator of random numbers (xorshift64*, Vigna 2016), so that a fleet is the same every time.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A stream of its own for a seed and a place.
    #[must_use]
    pub fn new(seed: u64, place: u64) -> Self {
        let mut mixed = seed ^ place.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Self((mixed ^ (mixed >> 31)) | 1)
    }

    /// Uniform over all 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Uniform from `low` to `high`.
    #[expect(clippy::cast_precision_loss, reason = "53 random bits fit a double")]
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * ((self.next_u64() >> 11) as f64 / (1u64 << 53) as f64)
    }

    /// About normal, with mean 0 and deviation 1 (sum of twelve uniforms).
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform(0.0, 1.0)).sum::<f64>() - 6.0
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.uniform(0.0, 1.0) < probability
    }
}

/// Temperature of a machine that now and then overheats until it is cooled.
#[derive(Debug, Clone)]
pub struct Heat {
    random: Random,
    value: f64,
    rest: f64,
    /// Seconds until the next excursion.
    next_s: f64,
    /// Seconds that the present excursion goes on.
    hot_s: f64,
}

/// Above this, °C, a device reports `ALERT`.
pub const ALERT_ABOVE: f64 = 85.0;

impl Heat {
    /// Starts at rest.
    #[must_use]
    pub fn new(seed: u64, place: u64) -> Self {
        let mut random = Random::new(seed, place);
        let rest = random.uniform(62.0, 72.0);
        let next_s = random.uniform(3.0, 40.0);
        Self {
            random,
            value: rest,
            rest,
            next_s,
            hot_s: 0.0,
        }
    }

    /// The next sample after `dt` seconds.
    pub fn step(&mut self, dt: f64, cooled: bool) -> f64 {
        self.next_s -= dt;
        if self.next_s <= 0.0 && self.hot_s <= 0.0 {
            self.hot_s = self.random.uniform(6.0, 15.0);
            self.next_s = self.hot_s + self.random.uniform(20.0, 60.0);
        }
        self.hot_s = (self.hot_s - dt).max(0.0);
        if cooled {
            self.hot_s = 0.0;
        }
        let aim = if self.hot_s > 0.0 { 96.0 } else { self.rest };
        let pull = if cooled { 0.6 } else { 0.5 };
        self.value += (aim - self.value) * (pull * dt).min(1.0) + self.random.normal() * 0.08;
        self.value
    }
}

/// Vibration velocity of two axes, mm/s: two tones and noise, with bursts of bearing impacts now and then.
#[derive(Debug, Clone)]
pub struct Vibration {
    random: Random,
    level: (f64, f64),
    load: f64,
    hertz: f64,
    phase: f64,
    lag: f64,
    noise: f64,
    t: f64,
    burst_s: f64,
    next_s: f64,
    spacing: f64,
}

impl Vibration {
    /// Starts without a fault.
    #[must_use]
    pub fn new(seed: u64, place: u64) -> Self {
        let mut random = Random::new(seed, place ^ 0x5642);
        Self {
            level: (random.uniform(0.3, 4.0), random.uniform(0.3, 4.0)),
            load: random.uniform(0.1, 1.2),
            hertz: random.uniform(0.05, 1.5),
            phase: random.uniform(0.0, std::f64::consts::TAU),
            lag: random.uniform(0.3, 0.7) * std::f64::consts::PI,
            noise: random.uniform(0.01, 0.1),
            t: 0.0,
            burst_s: 0.0,
            next_s: random.uniform(10.0, 120.0),
            spacing: random.uniform(0.5, 1.5),
            random,
        }
    }

    /// The next pair of samples after `dt` seconds.
    pub fn step(&mut self, dt: f64) -> (f64, f64) {
        self.t += dt;
        self.next_s -= dt;
        if self.next_s <= 0.0 {
            self.burst_s = self.random.uniform(8.0, 20.0);
            self.next_s = self.burst_s + self.random.uniform(60.0, 180.0);
        }
        self.burst_s = (self.burst_s - dt).max(0.0);
        let wave = |k: f64, phase: f64, a: f64| {
            a * (std::f64::consts::TAU * k * self.hertz * self.t + phase).sin()
        };
        let mut x = self.level.0
            + wave(1.0, self.phase, self.load)
            + wave(2.0, self.phase * 1.7, 0.25 * self.load);
        let mut y = self.level.1
            + wave(1.0, self.phase + self.lag, 0.9 * self.load)
            + wave(2.0, self.phase * 1.7 + self.lag, 0.25 * self.load);
        if self.burst_s > 0.0 {
            let since = self.t % self.spacing;
            let hit = if since < 0.4 {
                1.6 * (-since / 0.08).exp()
            } else {
                0.0
            };
            x += hit;
            y += 0.8 * hit;
        }
        (
            x + self.noise * self.random.normal(),
            y + self.noise * self.random.normal(),
        )
    }
}

/// A value that wanders around a middle, with a cycle on top.
#[derive(Debug, Clone)]
pub struct Walk {
    random: Random,
    middle: f64,
    reach: f64,
    cycle_s: f64,
    drift: f64,
    t: f64,
}

impl Walk {
    /// Wanders within about `reach` of `middle`.
    #[must_use]
    pub fn new(seed: u64, place: u64, middle: f64, reach: f64) -> Self {
        let mut random = Random::new(seed, place ^ 0x57A1);
        let cycle_s = random.uniform(20.0, 90.0);
        Self {
            random,
            middle,
            reach,
            cycle_s,
            drift: 0.0,
            t: 0.0,
        }
    }

    /// The next sample after `dt` seconds.
    pub fn step(&mut self, dt: f64) -> f64 {
        self.t += dt;
        self.drift = self.drift * 0.995 + self.random.normal() * 0.02 * self.reach;
        let cycle = (std::f64::consts::TAU * self.t / self.cycle_s).sin();
        self.middle + 0.5 * self.reach * cycle + self.drift
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_signal_and_another_seed_another() {
        let run = |seed| {
            (0..100)
                .map(|_| ())
                .scan(Heat::new(seed, 4), |heat, ()| Some(heat.step(0.1, false)))
                .collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn machines_overheat_and_cooling_ends_it() {
        let mut overheated = 0;
        for place in 0..50 {
            let mut heat = Heat::new(7, place);
            let hot = (0..400).any(|_| heat.step(0.1, false) > ALERT_ABOVE);
            overheated += usize::from(hot);
            for _ in 0..100 {
                heat.step(0.1, true);
            }
            assert!(heat.step(0.1, true) < ALERT_ABOVE);
        }
        assert!(overheated >= 20, "{overheated} of 50 in 40 s");
    }

    #[test]
    fn random_numbers_stay_in_range_and_centre() {
        let mut random = Random::new(3, 1);
        let mean = (0..10_000)
            .map(|_| random.uniform(-1.0, 1.0))
            .inspect(|v| assert!((-1.0..1.0).contains(v)))
            .sum::<f64>()
            / 10_000.0;
        assert!(mean.abs() < 0.05);
    }
}
