//! One device's state for one model.

use super::channel::{Channel, Fed, Grid};
use super::{Reason, Sample, WindowerStats};
use crate::manifest::Manifest;

/// A window of points.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Points {
    pub(super) points: Vec<f64>,
    pub(super) ages: Vec<f64>,
    pub(super) span_ms: (i64, i64),
}

/// Something that came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) reason: Reason,
    pub(super) input: Option<usize>,
    pub(super) time_ms: i64,
    /// Whether it is handed out, and not only counted.
    pub(super) tell: bool,
}

/// What one step led to. More than one window leaves when a metric closes a gap of
/// several hops at once.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Outcome {
    pub(super) windows: Vec<Points>,
    pub(super) refusal: Option<Refusal>,
}

impl Outcome {
    pub(super) fn refused(reason: Reason, time_ms: i64) -> Self {
        let refusal = Refusal {
            reason,
            input: None,
            time_ms,
            tell: true,
        };
        Self {
            windows: Vec::new(),
            refusal: Some(refusal),
        }
    }
}

/// Channels of one device for one model.
pub(super) struct DeviceWindow {
    channels: Vec<Channel>,
    /// Grid index of the last point of the next window; none until a window can start.
    due: Option<i64>,
    /// The reason that stands, and the time at which it was last handed out.
    told: Option<(Reason, i64)>,
    /// Time from which on a declared metric is missed.
    since: Option<i64>,
    record: u64,
    silent: bool,
}

impl DeviceWindow {
    pub(super) fn new(inputs: usize) -> Self {
        Self {
            channels: vec![Channel::default(); inputs],
            due: None,
            told: None,
            since: None,
            record: 0,
            silent: false,
        }
    }

    pub(super) fn record(&self) -> u64 {
        self.record
    }

    /// Newest sample's time of any channel, 0 without one.
    pub(super) fn last_time(&self) -> i64 {
        self.channels
            .iter()
            .filter_map(Channel::last_time)
            .max()
            .unwrap_or(0)
    }

    pub(super) fn feed(
        &mut self,
        manifest: &Manifest,
        grid: &Grid,
        input: usize,
        sample: &Sample<'_>,
        value: f64,
        stats: &mut WindowerStats,
    ) -> Outcome {
        self.record = sample.record;
        self.silent = false;
        let Some(channel) = self.channels.get_mut(input) else {
            return Outcome::default();
        };
        match channel.feed(sample.time_ms, value, grid) {
            Fed::Late => {
                stats.late += 1;
                return Outcome::default();
            }
            Fed::Gap { .. } => {
                self.due = None;
                self.since = None;
                return self.refuse_kept(manifest, grid, Some(input), sample.time_ms, Reason::Gap);
            }
            Fed::To(_) => {}
        }
        self.advance(manifest, grid, sample.time_ms)
    }

    /// Hands out what is complete, lets channels hold that stand still, and says which
    /// one is missed.
    fn advance(&mut self, manifest: &Manifest, grid: &Grid, now: i64) -> Outcome {
        let mut outcome = Outcome::default();
        let since = *self.since.get_or_insert(now);
        let window = &manifest.window;
        let length = window.points as i64 * grid.period;
        if let Some(input) = self.channels.iter().position(|c| c.last_time().is_none()) {
            if now - since >= length.max(grid.max_gap) {
                return self.refuse_kept(manifest, grid, Some(input), now, Reason::Missing);
            }
            return outcome;
        }
        loop {
            let due = match self.due {
                Some(due) => due,
                None => {
                    let start = self.channels.iter().map(Channel::oldest).max().unwrap_or(0);
                    let due = start + window.points as i64 - 1;
                    self.due = Some(due);
                    due
                }
            };
            let lead = self.last_time();
            let hold = window.hold.millis();
            for input in 0..self.channels.len() {
                let Some(channel) = self.channels.get_mut(input) else {
                    continue;
                };
                let quiet = lead - channel.last_time().unwrap_or(lead);
                if channel.newest() >= due || lead < due * grid.period {
                    continue;
                }
                // Its sample of the same moment may be the next one of the same message:
                // it is held only once it has been quiet for the whole of `hold`.
                if quiet > grid.max_gap {
                    if let Some(c) = self.channels.get_mut(input) {
                        c.clear();
                    }
                    self.due = None;
                    self.since = None;
                    outcome.refusal = self
                        .refuse_kept(manifest, grid, Some(input), now, Reason::Stale)
                        .refusal;
                    return outcome;
                }
                if hold > 0 && quiet >= hold {
                    channel.hold_to(due, grid);
                }
            }
            let newest = self
                .channels
                .iter()
                .map(Channel::newest)
                .min()
                .unwrap_or(i64::MIN);
            if newest < due {
                return outcome;
            }
            let end = due * grid.period;
            let mut points = Vec::with_capacity(window.points * self.channels.len());
            let whole = self
                .channels
                .iter()
                .all(|c| c.copy(due, window.points, &mut points));
            if whole {
                let ages = self
                    .channels
                    .iter()
                    .map(|c| (end - c.last_time().unwrap_or(end)).max(0) as f64 / 1000.0)
                    .collect();
                let span_ms = (end - (window.points as i64 - 1) * grid.period, end);
                outcome.windows.push(Points {
                    points,
                    ages,
                    span_ms,
                });
                self.told = None;
                self.due = Some(due + window.hop as i64);
            } else {
                // A channel was cut shorter than the others reach back: begin after the cut.
                self.due = None;
                let start = self.channels.iter().map(Channel::oldest).max().unwrap_or(0);
                if start + window.points as i64 - 1 <= due {
                    return outcome;
                }
            }
        }
    }

    /// A sample that is not taken: its channel starts over.
    pub(super) fn refuse(
        &mut self,
        manifest: &Manifest,
        grid: &Grid,
        input: Option<usize>,
        time_ms: i64,
        reason: Reason,
    ) -> Outcome {
        if let Some(channel) = input.and_then(|i| self.channels.get_mut(i)) {
            channel.clear();
        }
        self.due = None;
        // The reason is known; the metric counts as missing only if nothing follows.
        self.since = None;
        self.refuse_kept(manifest, grid, input, time_ms, reason)
    }

    fn refuse_kept(
        &mut self,
        manifest: &Manifest,
        grid: &Grid,
        input: Option<usize>,
        time_ms: i64,
        reason: Reason,
    ) -> Outcome {
        let length = manifest.window.points as i64 * grid.period;
        let tell = match self.told {
            Some((before, at)) => before != reason || time_ms.saturating_sub(at) >= length,
            None => true,
        };
        if tell {
            self.told = Some((reason, time_ms));
        }
        let refusal = Refusal {
            reason,
            input,
            time_ms,
            tell,
        };
        Outcome {
            windows: Vec::new(),
            refusal: Some(refusal),
        }
    }

    /// Silence of the whole device, told once.
    pub(super) fn tick(&mut self, now_ms: i64, grid: &Grid) -> Outcome {
        let Some(last) = self.channels.iter().filter_map(Channel::last_time).max() else {
            return Outcome::default();
        };
        if self.silent || now_ms.saturating_sub(last) <= grid.max_gap {
            return Outcome::default();
        }
        self.silent = true;
        self.due = None;
        self.since = None;
        for channel in &mut self.channels {
            channel.clear();
        }
        self.told = Some((Reason::Stale, now_ms));
        Outcome::refused(Reason::Stale, last)
    }
}
