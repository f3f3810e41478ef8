//! The latency objective: when a model gives way, and when it may come back. Sans-IO.
//!
//! Latency is counted from request to answer, so that waiting counts. Over a sliding
//! window, the objective is missed when more than one answer in twenty is late, at least
//! [`MIN_LATE`] are, and they are spread over a quarter of the window: a single stall of
//! one batch is no reason to change models, and a slow model is replaced well within its
//! window.
//!
//! ```text
//!  Own ──missed──▶ Lighter (declared)         ──probes fast enough──▶ Own
//!   └────missed──▶ Thin 1 in 2, 4, … 64       ──quiet window────────▶ half as thin … Own
//! ```
//!
//! Hysteresis: coming back needs probes (or answers) within [`RETURN_SHARE`] of the
//! objective, and twice as many of them after each return that did not last.

use std::collections::VecDeque;

/// Late answers below which nothing is missed.
pub const MIN_LATE: usize = 3;
/// Probes must stay within this share of the objective, in percent.
pub const RETURN_SHARE: u64 = 60;
/// Good probes in a row before the model comes back the first time.
pub const MIN_PROBES: u32 = 3;
/// Most of a device's windows that are left out: all but one in this many.
pub const MAX_THIN: u32 = 64;
const MAX_BACKOFF: u32 = 32;
const MAX_SAMPLES: usize = 4096;

/// Who answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The model itself, everything.
    Own,
    /// Its declared lighter model.
    Lighter,
    /// The model itself, one in so many windows of each device.
    Thin(u32),
}

/// A change of [`Mode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Before.
    pub from: Mode,
    /// From now on.
    pub to: Mode,
    /// 95th percentile of the window, or the slowest of the probes that brought it back; us.
    pub p95_us: u64,
}

/// The state of one model's objective.
#[derive(Debug, Clone)]
pub struct Slo {
    objective_us: u64,
    window_us: u64,
    has_lighter: bool,
    mode: Mode,
    /// (time, latency), us; times rise.
    samples: VecDeque<(u64, u64)>,
    late: usize,
    first_late_us: Option<u64>,
    changed_us: u64,
    next_probe_us: u64,
    good_probes: u32,
    slowest_probe: u64,
    backoff: u32,
}

impl Slo {
    /// `now_us` is a monotonic time, as in every call.
    pub fn new(objective_us: u64, window_us: u64, has_lighter: bool, now_us: u64) -> Self {
        Self {
            objective_us,
            window_us: window_us.max(1),
            has_lighter,
            mode: Mode::Own,
            samples: VecDeque::new(),
            late: 0,
            first_late_us: None,
            changed_us: now_us,
            next_probe_us: 0,
            good_probes: 0,
            slowest_probe: 0,
            backoff: 1,
        }
    }

    /// Who answers now.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// What was promised, us.
    pub fn objective_us(&self) -> u64 {
        self.objective_us
    }

    /// An answer came, or a request still waits, after `latency_us`.
    pub fn record(&mut self, latency_us: u64, now_us: u64) -> Option<Change> {
        if self.samples.len() >= MAX_SAMPLES {
            self.forget_oldest();
        }
        self.samples.push_back((now_us, latency_us));
        if latency_us > self.objective_us {
            self.late += 1;
            self.first_late_us.get_or_insert(now_us);
        }
        self.evaluate(now_us)
    }

    /// Looks at the window again; call it now and then while nothing is recorded.
    pub fn evaluate(&mut self, now_us: u64) -> Option<Change> {
        while self
            .samples
            .front()
            .is_some_and(|(t, _)| now_us.saturating_sub(*t) > self.window_us)
        {
            self.forget_oldest();
        }
        let spread = self
            .first_late_us
            .is_some_and(|t| now_us.saturating_sub(t) >= self.window_us / 4);
        let missed = self.late >= MIN_LATE && self.late * 20 > self.samples.len() && spread;
        match self.mode {
            Mode::Own if missed && self.has_lighter => {
                self.next_probe_us = now_us + self.probe_interval_us();
                if now_us.saturating_sub(self.changed_us) < 2 * self.window_us
                    && self.changed_us > 0
                {
                    self.backoff = (self.backoff * 2).min(MAX_BACKOFF);
                }
                Some(self.change(Mode::Lighter, self.percentile(95), now_us))
            }
            Mode::Own if missed => Some(self.change(Mode::Thin(2), self.percentile(95), now_us)),
            Mode::Thin(k) if missed && k < MAX_THIN => {
                Some(self.change(Mode::Thin(k * 2), self.percentile(95), now_us))
            }
            Mode::Thin(k) => {
                let quiet = now_us.saturating_sub(self.changed_us) >= self.window_us;
                let p95 = self.percentile(95);
                let easy = p95 * 100 <= self.objective_us * RETURN_SHARE;
                if !(quiet && easy && !self.samples.is_empty()) {
                    return None;
                }
                let to = if k > 2 { Mode::Thin(k / 2) } else { Mode::Own };
                Some(self.change(to, p95, now_us))
            }
            Mode::Own | Mode::Lighter => None,
        }
    }

    /// Whether one request should also go to the model itself, unanswered, to learn
    /// whether it could come back. True once for each interval.
    pub fn wants_probe(&mut self, now_us: u64) -> bool {
        if self.mode != Mode::Lighter || now_us < self.next_probe_us {
            return false;
        }
        self.next_probe_us = now_us + self.probe_interval_us();
        true
    }

    /// A probe took `latency_us`.
    pub fn record_probe(&mut self, latency_us: u64, now_us: u64) -> Option<Change> {
        if self.mode != Mode::Lighter {
            return None;
        }
        if latency_us * 100 > self.objective_us * RETURN_SHARE {
            self.good_probes = 0;
            self.slowest_probe = 0;
            return None;
        }
        self.good_probes += 1;
        self.slowest_probe = self.slowest_probe.max(latency_us);
        if self.good_probes < MIN_PROBES * self.backoff {
            return None;
        }
        Some(self.change(Mode::Own, self.slowest_probe, now_us))
    }

    /// Latency below which `percent` of the window's answers came, us; 0 of none.
    pub fn percentile(&self, percent: usize) -> u64 {
        let mut all: Vec<u64> = self.samples.iter().map(|(_, l)| *l).collect();
        if all.is_empty() {
            return 0;
        }
        let place = ((all.len() * percent).div_ceil(100))
            .saturating_sub(1)
            .min(all.len() - 1);
        *all.select_nth_unstable(place).1
    }

    fn probe_interval_us(&self) -> u64 {
        (self.window_us / 4).max(1)
    }

    fn change(&mut self, to: Mode, p95_us: u64, now_us: u64) -> Change {
        let from = std::mem::replace(&mut self.mode, to);
        self.samples.clear();
        self.late = 0;
        self.first_late_us = None;
        self.good_probes = 0;
        self.slowest_probe = 0;
        self.changed_us = now_us;
        Change { from, to, p95_us }
    }

    fn forget_oldest(&mut self) {
        if let Some((_, latency)) = self.samples.pop_front()
            && latency > self.objective_us
        {
            self.late = self.late.saturating_sub(1);
            self.first_late_us = self
                .samples
                .iter()
                .find(|(_, l)| *l > self.objective_us)
                .map(|(t, _)| *t);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn slo(has_lighter: bool) -> Slo {
        Slo::new(10_000, 10 * SECOND, has_lighter, 0)
    }

    /// One answer each 100 ms until a change comes.
    fn feed(slo: &mut Slo, from_s: u64, to_s: u64, latency_us: u64) -> Option<(u64, Change)> {
        (from_s * 10..to_s * 10).find_map(|i| {
            let now = i * SECOND / 10;
            slo.record(latency_us, now).map(|c| (now, c))
        })
    }

    #[test]
    fn a_slow_model_gives_way_within_its_window() {
        let mut slo = slo(true);
        assert_eq!(feed(&mut slo, 0, 20, 1_000), None);
        let (at, change) = feed(&mut slo, 20, 40, 500_000).unwrap();
        assert_eq!((change.from, change.to), (Mode::Own, Mode::Lighter));
        assert!(at < 30 * SECOND && change.p95_us == 500_000);
    }

    #[test]
    fn one_stall_changes_nothing() {
        let mut slo = slo(true);
        feed(&mut slo, 0, 9, 1_000);
        for _ in 0..64 {
            assert_eq!(slo.record(500_000, 9 * SECOND), None);
        }
    }

    #[test]
    fn one_late_in_forty_keeps_the_objective() {
        let mut slo = slo(true);
        for i in 0..1000u64 {
            let latency = if i % 40 == 0 { 20_000 } else { 1_000 };
            assert_eq!(slo.record(latency, i * SECOND / 10), None);
        }
    }

    #[test]
    fn it_comes_back_after_good_probes_and_later_after_a_relapse() {
        let mut slo = slo(true);
        let (mut now, _) = feed(&mut slo, 0, 20, 500_000).unwrap();
        let mut needed = Vec::new();
        for _ in 0..3 {
            let mut probes = 0;
            loop {
                now += SECOND;
                if slo.wants_probe(now) {
                    probes += 1;
                    if let Some(change) = slo.record_probe(2_000, now) {
                        assert_eq!(change.to, Mode::Own);
                        break;
                    }
                }
            }
            needed.push(probes);
            let start = now / SECOND;
            now = feed(&mut slo, start, start + 20, 500_000).unwrap().0;
        }
        assert_eq!(needed, [3, 6, 12]);
    }

    #[test]
    fn a_probe_near_the_objective_is_not_good_enough() {
        let mut slo = slo(true);
        let (now, _) = feed(&mut slo, 0, 20, 500_000).unwrap();
        for i in 0..100 {
            assert_eq!(slo.record_probe(6_001, now + i * SECOND), None);
        }
    }

    #[test]
    fn without_a_lighter_model_it_thins_and_recovers_step_by_step() {
        let mut slo = slo(false);
        let mut modes = Vec::new();
        for i in 0..2000u64 {
            if let Some(change) = slo.record(500_000, i * SECOND / 10) {
                modes.push(change.to);
            }
        }
        assert_eq!(modes.last(), Some(&Mode::Thin(MAX_THIN)));
        let mut back = Vec::new();
        for i in 2000..4000u64 {
            if let Some(change) = slo.record(100, i * SECOND / 10) {
                back.push(change.to);
            }
        }
        let expect = [
            Mode::Thin(32),
            Mode::Thin(16),
            Mode::Thin(8),
            Mode::Thin(4),
            Mode::Thin(2),
            Mode::Own,
        ];
        assert_eq!(back, expect);
    }

    proptest::proptest! {
        #[test]
        fn the_percentile_is_the_sorted_one_and_memory_is_bounded(
            latencies in proptest::collection::vec(0u64..9_000, 1..500),
            percent in 1usize..100,
        ) {
            let mut slo = slo(true);
            for l in &latencies {
                slo.record(*l, 1);
            }
            let mut sorted = latencies.clone();
            sorted.sort_unstable();
            let place = (sorted.len() * percent).div_ceil(100) - 1;
            proptest::prop_assert_eq!(slo.percentile(percent), sorted[place]);
            proptest::prop_assert!(slo.samples.len() <= MAX_SAMPLES);
        }
    }
}
