//! What the buckets shall say, bounded: values and schemas by device, and which of them are still to be written.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use sparkplug::payload::decode_resolved;
use tokio::time::Instant;

use crate::buffer::record::{Class, Key, Record, RecordId};
use crate::pipeline::encode::metric_json;

#[derive(Debug, Default)]
struct Device {
    online: bool,
    record: RecordId,
    /// Metrics by name, as JSON objects.
    metrics: HashMap<Arc<str>, Box<[u8]>>,
    /// All of its metrics are known here; else the bucket's entry is read first.
    complete: bool,
    dirty: bool,
    /// Its entry is being read or written.
    writing: bool,
    not_before: Option<Instant>,
    bytes: usize,
}

/// What is known of every device, bounded: whole devices that are written already go first.
#[derive(Debug)]
pub(super) struct Known {
    max_bytes: usize,
    bytes: usize,
    devices: HashMap<Key, Device>,
    schemas: HashMap<Key, Bytes>,
}

impl Known {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            max_bytes,
            bytes: 0,
            devices: HashMap::new(),
            schemas: HashMap::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.devices.is_empty() && self.schemas.is_empty()
    }

    pub(super) fn apply(&mut self, record: &Record) {
        match record.class {
            Class::Birth | Class::Data => self.values(record),
            Class::Death => {
                let device = self.devices.entry(record.key.clone()).or_default();
                device.online = false;
                device.record = record.id;
                device.dirty = true;
            }
            Class::Schema => {
                self.schemas.insert(record.key.clone(), record.body.clone());
            }
            Class::Inference
            | Class::Embedding
            | Class::Gap
            | Class::Status
            | Class::Raw
            | Class::Alarm
            | Class::Command => {}
        }
    }

    fn values(&mut self, record: &Record) {
        let Ok(payload) = decode_resolved(&record.body) else {
            return;
        };
        let device = self.devices.entry(record.key.clone()).or_default();
        let before = device.bytes;
        if record.class == Class::Birth {
            device.metrics.clear();
            device.bytes = 0;
            device.complete = true;
            device.online = true;
        } else if payload.metrics.iter().all(|metric| metric.historical) {
            return;
        } else {
            device.online = true;
        }
        for metric in &payload.metrics {
            if metric.historical && record.class == Class::Data {
                continue;
            }
            let json = metric_json(metric).into_boxed_slice();
            device.bytes += metric.name.len() + json.len();
            if let Some(old) = device.metrics.insert(metric.name.clone(), json) {
                device.bytes = device.bytes.saturating_sub(metric.name.len() + old.len());
            }
        }
        device.record = record.id;
        device.dirty = true;
        self.bytes = (self.bytes + device.bytes).saturating_sub(before);
        if self.bytes > self.max_bytes {
            self.shrink();
        }
    }

    /// Forgets devices that the bucket has in full; they are read back when they change.
    fn shrink(&mut self) {
        let goal = self.max_bytes / 10 * 9;
        let bytes = &mut self.bytes;
        self.devices.retain(|_, device| {
            let keep = *bytes <= goal || device.dirty || device.writing;
            if !keep {
                *bytes = bytes.saturating_sub(device.bytes);
            }
            keep
        });
        if *bytes > self.max_bytes {
            tracing::warn!(
                bytes = *bytes,
                "last-known values wait for the bucket; the oldest are dropped"
            );
            self.devices.retain(|_, device| {
                let keep = *bytes <= goal || device.writing;
                if !keep {
                    *bytes = bytes.saturating_sub(device.bytes);
                }
                keep
            });
        }
    }

    /// A schema that is to be written; [`Self::keep_schema`] when it was not.
    pub(super) fn take_schema(&mut self) -> Option<(Key, Bytes)> {
        let key = self.schemas.keys().next()?.clone();
        self.schemas.remove_entry(&key)
    }

    /// A newer one may have come meanwhile.
    pub(super) fn keep_schema(&mut self, key: Key, body: Bytes) {
        self.schemas.entry(key).or_insert(body);
    }

    /// Devices that may be written now.
    pub(super) fn due(&self, now: Instant, most: usize) -> Vec<Key> {
        self.devices
            .iter()
            .filter(|(_, device)| {
                device.dirty && !device.writing && device.not_before.is_none_or(|at| at <= now)
            })
            .map(|(key, _)| key.clone())
            .take(most)
            .collect()
    }

    /// All of the device's metrics are known here; else the bucket's entry is to be read before it is written.
    pub(super) fn is_complete(&self, key: &Key) -> bool {
        self.devices.get(key).is_some_and(|device| device.complete)
    }

    /// The device's entry is being read.
    pub(super) fn reading(&mut self, key: &Key) {
        if let Some(device) = self.devices.get_mut(key) {
            device.writing = true;
        }
    }

    /// The entry to write now; what changes from here on is written another time.
    pub(super) fn writing(&mut self, key: &Key) -> Option<Bytes> {
        let body = self.body(key)?;
        let device = self.devices.get_mut(key)?;
        (device.dirty, device.writing) = (false, true);
        Some(body)
    }

    /// Reading or writing ended: the entry is next written after `wait`, and at all only where it changed since or
    /// was not `done`.
    pub(super) fn settle(&mut self, key: &Key, done: bool, wait: Duration) {
        if let Some(device) = self.devices.get_mut(key) {
            device.writing = false;
            device.dirty |= !done;
            device.not_before = Some(Instant::now() + wait);
        }
    }

    /// Takes over what the bucket says of metrics that are not known here.
    pub(super) fn complete(&mut self, key: &Key, stored: Option<&Value>) {
        let Some(device) = self.devices.get_mut(key) else {
            return;
        };
        let metrics = stored
            .and_then(|value| value.get("metrics"))
            .and_then(Value::as_array);
        for metric in metrics.into_iter().flatten() {
            let Some(name) = metric.get("name").and_then(Value::as_str) else {
                continue;
            };
            if !device.metrics.contains_key(name) {
                let json = metric.to_string().into_bytes().into_boxed_slice();
                device.bytes += name.len() + json.len();
                self.bytes += name.len() + json.len();
                device.metrics.insert(Arc::from(name), json);
            }
        }
        device.complete = true;
    }

    /// `{"online":b,"record":id,"metrics":[…]}`, metrics by name.
    fn body(&self, key: &Key) -> Option<Bytes> {
        let device = self.devices.get(key)?;
        let mut metrics: Vec<_> = device.metrics.iter().collect();
        metrics.sort_unstable_by_key(|(name, _)| *name);
        let mut out = Vec::with_capacity(device.bytes + 64);
        let online = device.online;
        // Writing to a vector can't fail.
        let _ = std::io::Write::write_fmt(
            &mut out,
            format_args!(
                "{{\"online\":{online},\"record\":{},\"metrics\":[",
                device.record
            ),
        );
        for (index, (_, json)) in metrics.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            out.extend_from_slice(json);
        }
        out.extend_from_slice(b"]}");
        Some(Bytes::from(out))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sparkplug::datatype::DataType;
    use sparkplug::metric::Metric;
    use sparkplug::payload::encode_resolved;
    use sparkplug::value;

    use super::*;
    use crate::buffer::record::{NewRecord, Origin};

    fn key(device: &str) -> Key {
        Key {
            group: Some("g".into()),
            node: Some("n".into()),
            device: Some(device.into()),
        }
    }

    fn record(id: u64, class: Class, device: &str, metrics: &[(&str, f64)]) -> Record {
        let metrics: Vec<_> = metrics
            .iter()
            .map(|(name, v)| Metric::new(*name, DataType::Double, value::Value::Double(*v)))
            .collect();
        Record {
            id,
            prev: 0,
            data: NewRecord::new(
                class,
                Origin::Received,
                0,
                0,
                key(device),
                encode_resolved(None, None, None, &metrics),
            ),
        }
    }

    fn shown(known: &Known, device: &str) -> Value {
        serde_json::from_slice(&known.body(&key(device)).unwrap()).unwrap()
    }

    #[test]
    fn the_latest_value_wins_and_a_death_keeps_values() {
        let mut known = Known::new(1 << 20);
        known.apply(&record(1, Class::Birth, "d", &[("a", 1.0), ("b", 2.0)]));
        known.apply(&record(2, Class::Data, "d", &[("b", 3.0)]));
        known.apply(&record(3, Class::Death, "d", &[]));
        let value = shown(&known, "d");
        assert_eq!(
            (value["online"].as_bool(), value["record"].as_u64()),
            (Some(false), Some(3))
        );
        assert_eq!(value["metrics"][0]["value"], 1.0);
        assert_eq!(value["metrics"][1]["value"], 3.0);
        known.apply(&record(4, Class::Birth, "d", &[("c", 1.0)]));
        assert_eq!(shown(&known, "d")["metrics"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn after_a_restart_the_bucket_fills_what_is_not_known() {
        let mut known = Known::new(1 << 20);
        known.apply(&record(9, Class::Data, "d", &[("b", 3.0)]));
        assert!(!known.devices[&key("d")].complete);
        let stored = json!({"online": true, "record": 8, "metrics": [
            {"name": "a", "type": "Double", "value": 1.0},
            {"name": "b", "type": "Double", "value": 2.0},
        ]});
        known.complete(&key("d"), Some(&stored));
        let value = shown(&known, "d");
        assert_eq!(value["metrics"][0]["value"], 1.0);
        assert_eq!(value["metrics"][1]["value"], 3.0);
    }

    #[test]
    fn memory_is_bounded_and_written_devices_go_first() {
        let mut known = Known::new(4000);
        for i in 0..200u64 {
            let device = format!("d{i}");
            known.apply(&record(i, Class::Birth, &device, &[("a", 1.0)]));
            if let Some(device) = known.devices.get_mut(&key(&device)) {
                device.dirty = i % 2 == 0;
            }
            assert!(known.bytes <= 4100, "{}", known.bytes);
        }
        let sum: usize = known.devices.values().map(|device| device.bytes).sum();
        assert_eq!(sum, known.bytes);
    }

    #[test]
    fn a_device_is_written_once_in_its_interval() {
        let mut known = Known::new(1 << 20);
        known.apply(&record(1, Class::Birth, "d", &[("a", 1.0)]));
        let now = Instant::now();
        assert_eq!(known.due(now, 9), [key("d")]);
        assert!(known.writing(&key("d")).is_some());
        known.apply(&record(2, Class::Data, "d", &[("a", 2.0)]));
        assert_eq!(known.due(now, 9), []);
        known.settle(&key("d"), true, Duration::from_secs(5));
        assert_eq!(known.due(now, 9), []);
        let later = Instant::now() + Duration::from_secs(6);
        assert_eq!(known.due(later, 9), [key("d")]);
    }
}
