//! A simulated device: its metrics, how they move, and what writes do to them.

use crate::codec::Value;
use crate::signal::{ALERT_ABOVE, Heat, Vibration, Walk};

/// Metrics that every device has, in the order of its payloads.
pub const METRICS: [&str; 10] = [
    "Temperature",
    "Alert",
    "Vibration/X",
    "Vibration/Y",
    "Pressure",
    "Level",
    "Flow",
    "Running",
    "Cooling/Enable",
    "Cooling/State",
];
// Places in `METRICS`.
const TEMPERATURE: usize = 0;
const ALERT: usize = 1;
const VIBRATION_X: usize = 2;
const VIBRATION_Y: usize = 3;
const PRESSURE: usize = 4;
const COOLING_ENABLE: usize = 8;
const COOLING_STATE: usize = 9;
/// Kelvin below the limit at which an alert goes, so that noise at the limit makes no burst of alerts.
const ALERT_HYSTERESIS: f64 = 2.0;
/// Seconds from `Cooling/Enable` to `Cooling/State`.
const COOLING_DELAY_S: f64 = 0.3;
/// Seconds after which cooling that is not needed any more goes off by itself.
const COOLING_HOLD_S: f64 = 5.0;

/// One metric: name, alias, current value, whether it changed since it was last sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Metric {
    /// Full name.
    pub name: String,
    /// Alias in this node.
    pub alias: Option<u64>,
    /// Current value.
    pub value: Value,
    changed: bool,
}

impl Metric {
    fn set(&mut self, value: Value) {
        if self.value != value {
            self.value = value;
            self.changed = true;
        }
    }
}

/// A press with a cooling circuit.
#[derive(Debug, Clone)]
pub struct Device {
    /// Device id.
    pub name: String,
    metrics: Vec<Metric>,
    heat: Heat,
    vibration: Vibration,
    walks: Vec<Walk>,
    cooling_after_s: f64,
    cool_s: f64,
    alert: bool,
    forced: Vec<(String, Value)>,
}

impl Device {
    /// A device with at least [`METRICS`], and generic ones up to `count`.
    pub fn new(
        name: &str,
        seed: u64,
        place: u64,
        count: usize,
        mut alias: impl FnMut(&str) -> Option<u64>,
    ) -> Self {
        let extra = (METRICS.len()..count).map(|i| format!("Channel/{}", i - METRICS.len()));
        let metrics: Vec<Metric> = METRICS
            .iter()
            .map(|name| (*name).to_owned())
            .chain(extra)
            .map(|name| {
                let value = match name.as_str() {
                    "Alert" => Value::Text("OK".to_owned()),
                    "Running" => Value::Bool(true),
                    "Cooling/Enable" | "Cooling/State" => Value::Bool(false),
                    _ => Value::Double(0.0),
                };
                Metric {
                    alias: alias(&name),
                    name,
                    value,
                    changed: true,
                }
            })
            .collect();
        let middles = [6.0, 50.0, 12.0];
        let walks = (0..3 + count.saturating_sub(METRICS.len()) as u64)
            .zip(middles.into_iter().chain(std::iter::repeat(100.0)))
            .map(|(i, middle)| {
                Walk::new(
                    seed,
                    place.wrapping_mul(31).wrapping_add(i),
                    middle,
                    middle * 0.2,
                )
            })
            .collect();
        let mut device = Self {
            name: name.to_owned(),
            metrics,
            heat: Heat::new(seed, place),
            vibration: Vibration::new(seed, place),
            walks,
            cooling_after_s: 0.0,
            cool_s: 0.0,
            alert: false,
            forced: Vec::new(),
        };
        device.step(0.0);
        device
    }

    /// All metrics, for births.
    #[must_use]
    pub fn metrics(&self) -> &[Metric] {
        &self.metrics
    }

    /// Metrics that changed since [`Device::clear_changed`], in order, for data.
    pub fn changed(&self) -> impl Iterator<Item = &Metric> {
        self.metrics.iter().filter(|m| m.changed)
    }

    /// What changed has been said.
    pub fn clear_changed(&mut self) {
        for metric in &mut self.metrics {
            metric.changed = false;
        }
    }

    /// Lets `dt` seconds pass.
    pub fn step(&mut self, dt: f64) {
        let cooled = self.is(COOLING_STATE);
        let temperature = self.heat.step(dt, cooled);
        self.set(TEMPERATURE, Value::Double(round(temperature)));
        let limit = if self.alert {
            ALERT_ABOVE - ALERT_HYSTERESIS
        } else {
            ALERT_ABOVE
        };
        let alert = temperature > limit;
        if alert != self.alert {
            self.alert = alert;
            self.set(
                ALERT,
                Value::Text(if alert { "ALERT" } else { "OK" }.to_owned()),
            );
        }
        let (x, y) = self.vibration.step(dt);
        self.set(VIBRATION_X, Value::Double(x));
        self.set(VIBRATION_Y, Value::Double(y));
        let walking = (PRESSURE..PRESSURE + 3).chain(METRICS.len()..);
        for (walk, place) in self.walks.iter_mut().zip(walking) {
            if let Some(metric) = self.metrics.get_mut(place) {
                metric.set(Value::Double(round(walk.step(dt))));
            }
        }
        self.cool(dt, temperature);
        for (name, value) in &self.forced {
            if let Some(metric) = self.metrics.iter_mut().find(|m| m.name == *name) {
                metric.set(value.clone());
            }
        }
    }

    fn cool(&mut self, dt: f64, temperature: f64) {
        let wanted = self.is(COOLING_ENABLE);
        if wanted == self.is(COOLING_STATE) {
            self.cooling_after_s = COOLING_DELAY_S;
        } else {
            self.cooling_after_s -= dt;
            if self.cooling_after_s <= 0.0 {
                self.set(COOLING_STATE, Value::Bool(wanted));
            }
        }
        // The press's own controller ends the cooling, as it would in a plant.
        self.cool_s = if wanted && temperature < 75.0 {
            self.cool_s + dt
        } else {
            0.0
        };
        if self.cool_s > COOLING_HOLD_S {
            self.cool_s = 0.0;
            self.set(COOLING_ENABLE, Value::Bool(false));
        }
    }

    fn is(&self, place: usize) -> bool {
        self.metrics
            .get(place)
            .is_some_and(|m| m.value == Value::Bool(true))
    }

    fn set(&mut self, place: usize, value: Value) {
        if let Some(metric) = self.metrics.get_mut(place) {
            metric.set(value);
        }
    }

    /// A write by name or alias. Whether it took effect: unknown metrics and read-only ones are ignored, as the norm
    /// wants of a node.
    pub fn write(&mut self, name: Option<&str>, alias: Option<u64>, value: &Value) -> bool {
        let Some(metric) = self.metrics.iter_mut().find(|m| match name {
            Some(name) => m.name == name,
            None => alias.is_some() && m.alias == alias,
        }) else {
            return false;
        };
        if metric.name != "Cooling/Enable" || !matches!(value, Value::Bool(_)) {
            return false;
        }
        metric.value = value.clone();
        // The echo is sent also where nothing changed: it is the confirmation.
        metric.changed = true;
        true
    }

    /// Holds a metric at a value from now on, for scenarios.
    pub fn force(&mut self, name: &str, value: Value) {
        self.forced.retain(|(n, _)| n != name);
        self.forced.push((name.to_owned(), value));
    }
}

/// Three digits are what such sensors give.
fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> Device {
        let mut next = 0;
        Device::new("d", 1, 1, 12, |_| {
            next += 1;
            Some(next)
        })
    }

    #[test]
    fn it_has_the_wanted_number_of_metrics_in_order() {
        let device = device();
        let names: Vec<&str> = device.metrics().iter().map(|m| m.name.as_str()).collect();
        assert_eq!(&names[..10], &METRICS);
        assert_eq!(&names[10..], ["Channel/0", "Channel/1"]);
    }

    #[test]
    fn a_write_takes_effect_is_echoed_and_moves_the_state() {
        let mut device = device();
        device.clear_changed();
        assert!(device.write(Some("Cooling/Enable"), None, &Value::Bool(true)));
        assert!(
            device
                .changed()
                .any(|m| m.name == "Cooling/Enable" && m.value == Value::Bool(true))
        );
        assert!(!device.write(Some("Temperature"), None, &Value::Double(1.0)));
        assert!(!device.write(Some("Nope"), None, &Value::Bool(true)));
        assert!(!device.write(Some("Cooling/Enable"), None, &Value::Double(1.0)));
        assert!(device.write(None, Some(9), &Value::Bool(true)), "by alias");
        let mut seen = false;
        for _ in 0..10 {
            device.step(0.1);
            seen |= device
                .changed()
                .any(|m| m.name == "Cooling/State" && m.value == Value::Bool(true));
        }
        assert!(seen);
    }

    #[test]
    fn places_are_those_of_the_names() {
        for (place, name) in [
            (TEMPERATURE, "Temperature"),
            (ALERT, "Alert"),
            (VIBRATION_X, "Vibration/X"),
            (VIBRATION_Y, "Vibration/Y"),
            (PRESSURE, "Pressure"),
            (COOLING_ENABLE, "Cooling/Enable"),
            (COOLING_STATE, "Cooling/State"),
        ] {
            assert_eq!(METRICS[place], name);
        }
    }

    #[test]
    fn forced_values_stay() {
        let mut device = device();
        device.force("Temperature", Value::Double(99.0));
        device.step(0.1);
        assert!(
            device
                .metrics()
                .iter()
                .any(|m| m.name == "Temperature" && m.value == Value::Double(99.0))
        );
    }
}
