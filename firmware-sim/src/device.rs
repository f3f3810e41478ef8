//! A simulated device: its metrics, how they move, and what writes do to them.

use crate::codec::Value;
use crate::signal::{ALERT_ABOVE, Heat, Vibration, Walk};

/// Metrics that every device has, in the order of its payloads.
pub const METRICS: [&str; 10] = [
    "Temperature", "Alert", "Vibration/X", "Vibration/Y", "Pressure", "Level", "Flow", "Running", "Cooling/Enable",
    "Cooling/State",
];
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
    forced: Vec<(String, Value)>,
}

impl Device {
    /// A device with at least [`METRICS`], and generic ones up to `count`.
    pub fn new(name: &str, seed: u64, place: u64, count: usize, mut alias: impl FnMut(&str) -> Option<u64>) -> Self {
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
                Metric { alias: alias(&name), name, value, changed: true }
            })
            .collect();
        let middles = [6.0, 50.0, 12.0];
        let walks = (0..3 + count.saturating_sub(METRICS.len()) as u64)
            .zip(middles.into_iter().chain(std::iter::repeat(100.0)))
            .map(|(i, middle)| Walk::new(seed, place.wrapping_mul(31).wrapping_add(i), middle, middle * 0.2))
            .collect();
        let mut device = Self {
            name: name.to_owned(),
            metrics,
            heat: Heat::new(seed, place),
            vibration: Vibration::new(seed, place),
            walks,
            cooling_after_s: 0.0,
            cool_s: 0.0,
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

    /// Metrics that changed since the last call, in order, for data.
    pub fn take_changed(&mut self) -> Vec<Metric> {
        let mut out = Vec::new();
        for metric in self.metrics.iter_mut().filter(|m| m.changed) {
            metric.changed = false;
            out.push(metric.clone());
        }
        out
    }

    /// Lets `dt` seconds pass.
    pub fn step(&mut self, dt: f64) {
        let cooled = self.is("Cooling/State");
        let temperature = self.heat.step(dt, cooled);
        self.set("Temperature", Value::Double(round(temperature)));
        self.set("Alert", Value::Text(if temperature > ALERT_ABOVE { "ALERT" } else { "OK" }.to_owned()));
        let (x, y) = self.vibration.step(dt);
        self.set("Vibration/X", Value::Double(x));
        self.set("Vibration/Y", Value::Double(y));
        let walked: Vec<f64> = self.walks.iter_mut().map(|walk| walk.step(dt)).collect();
        let names: Vec<String> = ["Pressure", "Level", "Flow"]
            .iter()
            .map(|n| (*n).to_owned())
            .chain(self.metrics.iter().skip(METRICS.len()).map(|m| m.name.clone()))
            .collect();
        for (name, value) in names.iter().zip(walked) {
            self.set(name, Value::Double(round(value)));
        }
        self.cool(dt, temperature);
        for (name, value) in std::mem::take(&mut self.forced) {
            self.set(&name, value.clone());
            self.forced.push((name, value));
        }
    }

    fn cool(&mut self, dt: f64, temperature: f64) {
        let wanted = self.is("Cooling/Enable");
        if wanted == self.is("Cooling/State") {
            self.cooling_after_s = COOLING_DELAY_S;
        } else {
            self.cooling_after_s -= dt;
            if self.cooling_after_s <= 0.0 {
                self.set("Cooling/State", Value::Bool(wanted));
            }
        }
        // The press's own controller ends the cooling, as it would in a plant.
        self.cool_s = if wanted && temperature < 75.0 { self.cool_s + dt } else { 0.0 };
        if self.cool_s > COOLING_HOLD_S {
            self.cool_s = 0.0;
            self.set("Cooling/Enable", Value::Bool(false));
        }
    }

    fn is(&self, name: &str) -> bool {
        self.metrics.iter().any(|m| m.name == name && m.value == Value::Bool(true))
    }

    fn set(&mut self, name: &str, value: Value) {
        if let Some(metric) = self.metrics.iter_mut().find(|m| m.name == name)
            && metric.value != value
        {
            metric.value = value;
            metric.changed = true;
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
        device.take_changed();
        assert!(device.write(Some("Cooling/Enable"), None, &Value::Bool(true)));
        assert!(device.take_changed().iter().any(|m| m.name == "Cooling/Enable" && m.value == Value::Bool(true)));
        assert!(!device.write(Some("Temperature"), None, &Value::Double(1.0)));
        assert!(!device.write(Some("Nope"), None, &Value::Bool(true)));
        assert!(!device.write(Some("Cooling/Enable"), None, &Value::Double(1.0)));
        assert!(device.write(None, Some(9), &Value::Bool(true)), "by alias");
        let mut seen = false;
        for _ in 0..10 {
            device.step(0.1);
            seen |= device.take_changed().iter().any(|m| m.name == "Cooling/State" && m.value == Value::Bool(true));
        }
        assert!(seen);
    }

    #[test]
    fn forced_values_stay() {
        let mut device = device();
        device.force("Temperature", Value::Double(99.0));
        device.step(0.1);
        assert!(device.metrics().iter().any(|m| m.name == "Temperature" && m.value == Value::Double(99.0)));
    }
}
