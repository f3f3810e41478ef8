//! Limits with deadband, delays and m-of-n: one key's state.

use crate::lang::def::{Limit, ThresholdDef};
use crate::snapshot::{Corrupt, Reader, Writer};

/// What one key remembers of a threshold rule.
///
/// A sample is *over* while a limit is crossed; a limit once crossed counts as crossed until the
/// value is back by more than nothing and the deadband. With m-of-n the key is over while at least m
/// of the last n samples are. The rule is *active* once the key was over for `on_delay`, until it
/// was not for `off_delay`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Threshold {
    /// Bit n: limit n is crossed.
    crossed: u8,
    /// The last samples, newest in bit 0; only with m-of-n.
    recent: u64,
    over: bool,
    active: bool,
    /// Outermost limit that was crossed last.
    limit: u8,
    /// When `active` becomes `over`, ms of engine time.
    due: Option<u64>,
}

/// What a sample or the passing of time brought about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Edge {
    /// It became active.
    On,
    /// It is still active, at another limit.
    Other,
    /// It is over.
    Off,
}

impl Threshold {
    pub(crate) fn is_idle(&self) -> bool {
        *self == Self::default()
    }

    /// The limit that is, or was last, crossed.
    pub(crate) fn limit<'d>(&self, def: &'d ThresholdDef) -> Option<&'d Limit> {
        def.limits.get(usize::from(self.limit))
    }

    pub(crate) fn active(&self) -> bool {
        self.active
    }

    pub(crate) fn deadline(&self) -> Option<u64> {
        self.due
    }

    /// A good number at `now`.
    pub(crate) fn sample(&mut self, def: &ThresholdDef, value: f64, now: u64) -> Option<Edge> {
        if value.is_nan() {
            return None;
        }
        let limit = self.cross(def, value);
        let over = limit.is_some();
        self.over = match def.m_of_n {
            None => over,
            Some((m, n)) => {
                let mask = u64::MAX
                    .checked_shr(64 - n.clamp(1, 64))
                    .unwrap_or(u64::MAX);
                self.recent = ((self.recent << 1) | u64::from(over)) & mask;
                self.recent.count_ones() >= m
            }
        };
        let before = self.limit;
        if let Some(limit) = limit {
            self.limit = limit;
        }
        let edge = self.aim(def, now);
        let other = edge.is_none() && self.active && self.over && self.limit != before;
        edge.or(other.then_some(Edge::Other))
    }

    /// The value is known to be what it was: delays that a death has stopped start again.
    pub(crate) fn refresh(&mut self, def: &ThresholdDef, now: u64) -> Option<Edge> {
        self.aim(def, now)
    }

    /// The source died: what it would do next is not known, so nothing returns to normal.
    pub(crate) fn freeze(&mut self) {
        if self.active {
            self.due = None;
        }
    }

    /// Time has come to `now`.
    pub(crate) fn advance(&mut self, now: u64) -> Option<Edge> {
        if self.due.is_none_or(|due| due > now) {
            return None;
        }
        self.due = None;
        Some(self.switch())
    }

    /// Notes which limits are crossed; gives the outermost.
    fn cross(&mut self, def: &ThresholdDef, value: f64) -> Option<u8> {
        let mut first = None;
        for (n, limit) in (0u8..8).zip(&def.limits) {
            let held = self.crossed & (1 << n) != 0;
            let slack = if held { def.deadband } else { 0.0 };
            let over = if limit.upward {
                value > limit.value - slack
            } else {
                value < limit.value + slack
            };
            if over {
                self.crossed |= 1 << n;
                first = first.or(Some(n));
            } else {
                self.crossed &= !(1 << n);
            }
        }
        first
    }

    fn aim(&mut self, def: &ThresholdDef, now: u64) -> Option<Edge> {
        if self.over == self.active {
            self.due = None;
            return None;
        }
        let delay = if self.over {
            def.on_delay
        } else {
            def.off_delay
        };
        if delay == 0 {
            self.due = None;
            return Some(self.switch());
        }
        self.due.get_or_insert(now.saturating_add(delay));
        None
    }

    fn switch(&mut self) -> Edge {
        self.active = self.over;
        if self.active { Edge::On } else { Edge::Off }
    }

    pub(crate) fn encode(&self, to: &mut Writer) {
        to.byte(self.crossed);
        to.number(self.recent);
        to.flags(&[self.over, self.active]);
        to.byte(self.limit);
        to.option(self.due, Writer::number);
    }

    pub(crate) fn decode(from: &mut Reader<'_>) -> Result<Self, Corrupt> {
        let crossed = from.byte()?;
        let recent = from.number()?;
        let [over, active] = from.flags()?;
        Ok(Self {
            crossed,
            recent,
            over,
            active,
            limit: from.byte()?,
            due: from.option(Reader::number)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn def(limits: &[(f64, bool)]) -> ThresholdDef {
        ThresholdDef {
            metric: "T".into(),
            limits: limits
                .iter()
                .map(|(value, upward)| Limit {
                    name: "high",
                    value: *value,
                    upward: *upward,
                })
                .collect(),
            deadband: 0.0,
            on_delay: 0,
            off_delay: 0,
            m_of_n: None,
        }
    }

    /// Samples (ms, value) and the edges with their times, timers included.
    fn check(def: &ThresholdDef, samples: &[(u64, f64)], expected: &[(u64, Edge)]) {
        let mut state = Threshold::default();
        let mut edges = Vec::new();
        let run_timer = |state: &mut Threshold, until: u64, edges: &mut Vec<_>| {
            if let Some(due) = state.deadline().filter(|due| *due <= until) {
                edges.extend(state.advance(due).map(|edge| (due, edge)));
            }
        };
        for (at, value) in samples {
            run_timer(&mut state, *at, &mut edges);
            edges.extend(state.sample(def, *value, *at).map(|edge| (*at, edge)));
            let mut bytes = Writer::new();
            state.encode(&mut bytes);
            let bytes = bytes.finish();
            state = Threshold::decode(&mut Reader::open(&bytes).unwrap()).unwrap();
        }
        run_timer(&mut state, u64::MAX, &mut edges);
        assert_eq!(edges, expected);
    }

    #[test]
    fn a_limit_must_be_exceeded() {
        let high = def(&[(80.0, true)]);
        check(&high, &[(0, 80.0)], &[]);
        check(
            &high,
            &[(0, 80.1), (1, 80.0)],
            &[(0, Edge::On), (1, Edge::Off)],
        );
        let low = def(&[(10.0, false)]);
        check(
            &low,
            &[(0, 9.0), (1, f64::NAN), (2, 10.0)],
            &[(0, Edge::On), (2, Edge::Off)],
        );
    }

    #[test]
    fn a_deadband_holds_the_limit() {
        let high = ThresholdDef {
            deadband: 2.0,
            ..def(&[(80.0, true)])
        };
        let samples = [(0, 81.0), (1, 79.0), (2, 78.1), (3, 78.0), (4, 79.9)];
        check(&high, &samples, &[(0, Edge::On), (3, Edge::Off)]);
    }

    #[test]
    fn delays_want_the_state_to_last() {
        let high = ThresholdDef {
            on_delay: 10,
            off_delay: 20,
            ..def(&[(80.0, true)])
        };
        let samples = [
            (0, 90.0),
            (5, 70.0),
            (6, 90.0),
            (30, 70.0),
            (40, 90.0),
            (50, 70.0),
        ];
        check(&high, &samples, &[(16, Edge::On), (70, Edge::Off)]);
    }

    #[test]
    fn m_of_n_forgives_single_samples() {
        let high = ThresholdDef {
            m_of_n: Some((2, 3)),
            ..def(&[(80.0, true)])
        };
        let samples = [(0, 90.0), (1, 70.0), (2, 90.0), (3, 70.0), (4, 70.0)];
        check(&high, &samples, &[(2, Edge::On), (3, Edge::Off)]);
    }

    #[test]
    fn the_outermost_limit_counts() {
        let both = def(&[(95.0, true), (80.0, true)]);
        let samples = [(0, 85.0), (1, 96.0), (2, 85.0), (3, 70.0)];
        let edges = [
            (0, Edge::On),
            (1, Edge::Other),
            (2, Edge::Other),
            (3, Edge::Off),
        ];
        check(&both, &samples, &edges);
    }

    #[test]
    fn a_death_stops_the_return_and_a_birth_resumes_it() {
        let high = ThresholdDef {
            off_delay: 10,
            ..def(&[(80.0, true)])
        };
        let mut state = Threshold::default();
        assert_eq!(state.sample(&high, 90.0, 0), Some(Edge::On));
        assert_eq!(state.sample(&high, 70.0, 1), None);
        state.freeze();
        assert_eq!(state.deadline(), None);
        assert_eq!(state.refresh(&high, 100), None);
        assert_eq!(state.deadline(), Some(110));
        assert_eq!(state.advance(110), Some(Edge::Off));
    }
}
