//! One metric of one device: irregular samples in, evenly spaced points out.

use crate::manifest::Resample;
use std::collections::VecDeque;

/// Where a sample left a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fed {
    /// Points up to this one exist now.
    To(i64),
    /// Not newer than the newest sample: nothing changed.
    Late,
    /// It came too long after the one before: what stood before it is gone.
    Gap {
        /// Milliseconds between the two.
        millis: i64,
    },
}

/// Points of one metric. Point `i` stands at `i * period` of the epoch, so that the
/// channels of a device share one grid.
#[derive(Debug, Clone, Default)]
pub(super) struct Channel {
    /// Newest sample: time in ms and value.
    last: Option<(i64, f64)>,
    /// Grid index of the first point kept.
    first: i64,
    points: VecDeque<f64>,
}

/// What a channel needs to know of the manifest, in ms.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grid {
    pub(super) period: i64,
    pub(super) resample: Resample,
    pub(super) max_gap: i64,
    /// Points kept at most.
    pub(super) keep: usize,
}

impl Channel {
    /// Takes a sample. Time must be within +-2^53 ms; the caller has seen to it.
    pub(super) fn feed(&mut self, time: i64, value: f64, grid: &Grid) -> Fed {
        let Some((before, old)) = self.last else {
            self.start(time, value, grid);
            return Fed::To(self.newest());
        };
        if time <= before {
            return Fed::Late;
        }
        let millis = time - before;
        if millis > grid.max_gap {
            self.start(time, value, grid);
            return Fed::Gap { millis };
        }
        self.last = Some((time, value));
        let mut index = self.newest() + 1;
        while index * grid.period <= time {
            let at = index * grid.period;
            let point = match grid.resample {
                Resample::Hold if at < time => old,
                Resample::Hold => value,
                Resample::Linear => {
                    let share = (at - before) as f64 / millis as f64;
                    // Convex form: between two finite values it cannot overflow.
                    old * (1.0 - share) + value * share
                }
            };
            self.push(point, grid);
            index += 1;
        }
        Fed::To(self.newest())
    }

    /// Lets the last value stand up to point `index`.
    pub(super) fn hold_to(&mut self, index: i64, grid: &Grid) {
        if let Some((_, value)) = self.last {
            while self.newest() < index {
                self.push(value, grid);
            }
        }
    }

    fn start(&mut self, time: i64, value: f64, grid: &Grid) {
        self.points.clear();
        self.last = Some((time, value));
        // The first point is the first one at or after the sample.
        self.first = -(-time).div_euclid(grid.period);
        if self.first * grid.period == time {
            self.points.push_back(value);
        }
    }

    fn push(&mut self, point: f64, grid: &Grid) {
        if self.points.len() >= grid.keep {
            self.points.pop_front();
            self.first += 1;
        }
        self.points.push_back(point);
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.points.clear();
        self.last = None;
    }

    /// Grid index of the newest point; one before the first while there is none.
    pub(super) fn newest(&self) -> i64 {
        self.first + self.points.len() as i64 - 1
    }

    /// Grid index of the oldest point.
    pub(super) fn oldest(&self) -> i64 {
        self.first
    }

    /// Newest sample's time in ms.
    pub(super) fn last_time(&self) -> Option<i64> {
        self.last.map(|(t, _)| t)
    }

    /// Appends the `count` points that end with `end`; false when some are missing.
    pub(super) fn copy(&self, end: i64, count: usize, out: &mut Vec<f64>) -> bool {
        let start = end + 1 - count as i64 - self.first;
        let Ok(start) = usize::try_from(start) else {
            return false;
        };
        if start + count > self.points.len() {
            return false;
        }
        out.extend(self.points.iter().skip(start).take(count));
        true
    }
}
