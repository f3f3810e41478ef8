//! From samples of devices to windows for models. Sans-IO: time is an argument.
//!
//! A model's metrics are bound by name and datatype class. Each device has, for each
//! model that reads something it reports, one state: a channel of evenly spaced points
//! per metric on a grid that all channels share. A window leaves when every channel has
//! reached its last point; the next one leaves `hop` points later.
//!
//! | input | what happens |
//! |---|---|
//! | null, NaN, wrong type, outside the declared range, too old | no verdict, the channel starts over |
//! | silence longer than `max_gap` | no verdict, the channel starts over |
//! | a metric stands still while others go on | its last value holds for `hold`, then no verdict |
//! | a declared metric that never comes | no verdict, once for each window's length |
//! | a sample not newer than the newest | ignored and counted |
//!
//! A reason is handed out when it begins and again after a window's length while it
//! lasts; every refused sample is counted. Devices are bounded: when a new one exceeds
//! `max_devices`, the sixteenth part that was silent longest is forgotten and counted.

mod channel;
mod device;
mod reason;

pub use reason::Reason;

use crate::key::DeviceKey;
use crate::manifest::{Datatype, Manifest};
use crate::runner::{NoVerdict, Request};
use channel::Grid;
use device::DeviceWindow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The value of a sample, as far as models care.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SampleValue {
    /// Any numeric Sparkplug type.
    Number(f64),
    /// Boolean.
    Boolean(bool),
    /// `is_null`.
    Null,
    /// Bad or stale quality: the value is not looked at.
    Bad,
    /// Any other datatype.
    Other,
}

/// One metric value of a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample<'a> {
    /// Metric name, resolved.
    pub metric: &'a str,
    /// Its value.
    pub value: SampleValue,
    /// The metric's own time, ms since the epoch.
    pub time_ms: i64,
    /// The record that carries it.
    pub record: u64,
}

/// Bounds of a [`Windower`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowerConfig {
    /// Devices for which points are kept.
    pub max_devices: usize,
}

impl Default for WindowerConfig {
    fn default() -> Self {
        Self {
            max_devices: 10_000,
        }
    }
}

/// What a sample led to.
#[derive(Debug, Clone, PartialEq)]
pub enum WindowOutcome {
    /// A window for a model.
    Request(Request),
    /// Why there is none.
    NoVerdict(NoVerdict),
}

/// Counters of a [`Windower`], since it was made.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct WindowerStats {
    /// Devices for which points are kept now.
    pub devices: usize,
    /// Devices forgotten because there were too many.
    pub evicted: u64,
    /// Samples that a model reads.
    pub samples: u64,
    /// Samples not newer than the newest of their metric.
    pub late: u64,
    /// Windows handed out.
    pub windows: u64,
    /// Samples and windows that came to nothing, by [`Reason::name`].
    pub no_verdict: BTreeMap<&'static str, u64>,
}

struct Binding {
    manifest: Arc<Manifest>,
    grid: Grid,
}

struct Device {
    /// One per binding, made when the device first reports one of its metrics.
    windows: Vec<Option<DeviceWindow>>,
    touched: u64,
}

/// Windows of every device for every bound model.
pub struct Windower {
    bindings: Vec<Binding>,
    /// Metric to (binding, input).
    by_metric: HashMap<Arc<str>, Vec<(usize, usize)>>,
    devices: HashMap<DeviceKey, Device>,
    config: WindowerConfig,
    clock: u64,
    stats: WindowerStats,
}

impl std::fmt::Debug for Windower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Windower")
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

/// Times beyond this many ms from the epoch are refused: grid arithmetic stays exact.
const MAX_TIME: i64 = 1 << 53;

impl Windower {
    /// Binds the models; one that is only another's lighter model needs no binding and
    /// gets none.
    pub fn new(manifests: &[Arc<Manifest>], config: WindowerConfig) -> Self {
        let lighter: Vec<_> = manifests.iter().filter_map(|m| m.lighter.clone()).collect();
        let mut windower = Self {
            bindings: Vec::new(),
            by_metric: HashMap::new(),
            devices: HashMap::new(),
            config: WindowerConfig {
                max_devices: config.max_devices.max(1),
            },
            clock: 0,
            stats: WindowerStats::default(),
        };
        for manifest in manifests.iter().filter(|m| !lighter.contains(&m.name)) {
            let w = &manifest.window;
            let period = w.period.millis().max(1);
            let reach = usize::try_from(w.max_gap.millis() / period).unwrap_or(0);
            let grid = Grid {
                period,
                resample: w.resample,
                max_gap: w.max_gap.millis(),
                keep: w.points + w.hop + reach + 1,
            };
            let binding = windower.bindings.len();
            for (input, declared) in manifest.inputs.iter().enumerate() {
                windower
                    .by_metric
                    .entry(declared.metric.clone())
                    .or_default()
                    .push((binding, input));
            }
            windower.bindings.push(Binding {
                manifest: manifest.clone(),
                grid,
            });
        }
        windower
    }

    /// Whether any bound model reads this metric.
    pub fn reads(&self, metric: &str) -> bool {
        self.by_metric.contains_key(metric)
    }

    /// Takes a sample; appends what it led to, for each model that reads it. `now_ms` is
    /// wall time, against which the sample's age is held.
    pub fn handle_sample(
        &mut self,
        key: &DeviceKey,
        sample: &Sample<'_>,
        now_ms: i64,
        out: &mut Vec<WindowOutcome>,
    ) {
        let Some(readers) = self.by_metric.get(sample.metric) else {
            return;
        };
        self.clock += 1;
        if !self.devices.contains_key(key) {
            make_room(&mut self.devices, self.config.max_devices, &mut self.stats);
            let windows = self.bindings.iter().map(|_| None).collect();
            self.devices.insert(
                key.clone(),
                Device {
                    windows,
                    touched: 0,
                },
            );
        }
        let Some(device) = self.devices.get_mut(key) else {
            return;
        };
        device.touched = self.clock;
        for (binding, input) in readers {
            let Some(Binding { manifest, grid }) = self.bindings.get(*binding) else {
                continue;
            };
            let Some(slot) = device.windows.get_mut(*binding) else {
                continue;
            };
            let window = slot.get_or_insert_with(|| DeviceWindow::new(manifest.inputs.len()));
            self.stats.samples += 1;
            let outcome = match read(manifest, *input, sample, now_ms) {
                Ok(value) => window.feed(manifest, grid, *input, sample, value, &mut self.stats),
                Err(reason) => window.refuse(manifest, grid, Some(*input), sample.time_ms, reason),
            };
            settle(key, manifest, sample.record, outcome, &mut self.stats, out);
        }
    }

    /// A device went stale or died: its points are gone, and each of its models says so.
    pub fn handle_stale(&mut self, key: &DeviceKey, record: u64, out: &mut Vec<WindowOutcome>) {
        let Some(device) = self.devices.remove(key) else {
            return;
        };
        for (window, binding) in device.windows.into_iter().zip(&self.bindings) {
            if let Some(window) = window {
                let outcome = device::Outcome::refused(Reason::Stale, window.last_time());
                settle(
                    key,
                    &binding.manifest,
                    record,
                    outcome,
                    &mut self.stats,
                    out,
                );
            }
        }
    }

    /// Says which devices have been silent for longer than `max_gap`, once each. `now_ms`
    /// is wall time; call it about once a second.
    pub fn handle_tick(&mut self, now_ms: i64, out: &mut Vec<WindowOutcome>) {
        let Self {
            devices,
            bindings,
            stats,
            ..
        } = self;
        for (key, device) in devices {
            for (window, binding) in device.windows.iter_mut().zip(bindings.iter()) {
                let Some(window) = window else { continue };
                let outcome = window.tick(now_ms, &binding.grid);
                let record = window.record();
                settle(key, &binding.manifest, record, outcome, stats, out);
            }
        }
    }

    /// Counters.
    pub fn stats(&self) -> WindowerStats {
        WindowerStats {
            devices: self.devices.len(),
            ..self.stats.clone()
        }
    }
}

fn make_room(devices: &mut HashMap<DeviceKey, Device>, max: usize, stats: &mut WindowerStats) {
    if devices.len() < max {
        return;
    }
    // A part at once, so that a flood of new names costs a constant each.
    let part = (max / 16).max(1);
    let mut ages: Vec<u64> = devices.values().map(|d| d.touched).collect();
    let place = (part - 1).min(ages.len().saturating_sub(1));
    let limit = *ages.select_nth_unstable(place).1;
    let before = devices.len();
    devices.retain(|_, d| d.touched > limit);
    stats.evicted += (before - devices.len()) as u64;
}

fn read(
    manifest: &Manifest,
    input: usize,
    sample: &Sample<'_>,
    now_ms: i64,
) -> Result<f64, Reason> {
    let Some(declared) = manifest.inputs.get(input) else {
        return Err(Reason::Missing);
    };
    let value = match (declared.datatype, sample.value) {
        (_, SampleValue::Null) => return Err(Reason::Null),
        (_, SampleValue::Bad) => return Err(Reason::Bad),
        (Datatype::Number, SampleValue::Number(v)) => v,
        (Datatype::Boolean, SampleValue::Boolean(b)) => f64::from(u8::from(b)),
        _ => return Err(Reason::WrongType),
    };
    if !value.is_finite() {
        return Err(Reason::NotFinite);
    }
    let [low, high] = declared.range;
    if !(low..=high).contains(&value) {
        return Err(Reason::OutOfRange);
    }
    if !(-MAX_TIME..=MAX_TIME).contains(&sample.time_ms) {
        return Err(Reason::BadTime);
    }
    if now_ms.saturating_sub(sample.time_ms) > manifest.window.max_age.millis() {
        return Err(Reason::Aged);
    }
    if sample.time_ms.saturating_sub(now_ms) > manifest.window.max_age.millis() {
        return Err(Reason::Future);
    }
    Ok(value)
}

fn settle(
    key: &DeviceKey,
    manifest: &Arc<Manifest>,
    record: u64,
    outcome: device::Outcome,
    stats: &mut WindowerStats,
    out: &mut Vec<WindowOutcome>,
) {
    for window in outcome.windows {
        stats.windows += 1;
        out.push(WindowOutcome::Request(Request {
            model: manifest.name.clone(),
            key: key.clone(),
            points: window.points.into(),
            ages: window.ages.into(),
            span_ms: window.span_ms,
            record,
        }));
    }
    if let Some(refusal) = outcome.refusal {
        *stats.no_verdict.entry(refusal.reason.name()).or_insert(0) += 1;
        if refusal.tell {
            out.push(WindowOutcome::NoVerdict(NoVerdict {
                model: manifest.name.clone(),
                version: manifest.version.clone(),
                key: key.clone(),
                reason: refusal.reason,
                metric: refusal
                    .input
                    .and_then(|i| manifest.inputs.get(i))
                    .map(|i| i.metric.clone()),
                time_ms: refusal.time_ms,
                record,
                fallback: false,
                shadow: false,
            }));
        }
    }
}

#[cfg(test)]
mod tests;
