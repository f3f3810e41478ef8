//! Last-known values and schemas in key-value buckets: `SPARKGATE_STATE` and `SPARKGATE_SCHEMA`.
//!
//! Fed by what the data stream has acknowledged, so a bucket is never ahead of the stream. The latest value
//! wins; a device is written at most once in its interval, however often it changes, and after an outage once
//! with what it is then; while a backlog drains, the link is left to the records. What can't be written now stays marked and is written later.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use serde_json::{Value, json};
use sparkplug::payload::decode_resolved;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::config::Config;
use super::publisher::{Ask, AskError};
use super::status::LaneStatus;
use crate::buffer::record::{Class, Key, Record, RecordId};
use crate::pipeline::encode::metric_json;
use crate::pipeline::subject::kv_key;

/// Bucket of last-known values.
pub const STATE: &str = "SPARKGATE_STATE";
/// Bucket of metric sets.
pub const SCHEMA: &str = "SPARKGATE_SCHEMA";
/// Writes under way at most.
const WRITES: usize = 16;
/// Records that wait in the data lane from which on its link is left to them: entries are then written one at a
/// time and each device's more rarely, by this factor.
const BUSY: u64 = 2_000;
const BUSY_FACTOR: u32 = 12;
/// How often marked devices are looked through.
const TICK: Duration = Duration::from_millis(200);
/// How long one write may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Wait after a write that failed.
const RETRY: Duration = Duration::from_secs(5);

/// The stream behind a bucket, as it should be.
#[must_use]
pub fn declared(bucket: &str, replicas: u8) -> Value {
    json!({
        "name": format!("KV_{bucket}"),
        "subjects": [format!("$KV.{bucket}.>")],
        "retention": "limits",
        "storage": "file",
        "discard": "new",
        "max_consumers": -1,
        "max_msgs": -1,
        "max_msgs_per_subject": 1,
        "max_bytes": -1,
        "max_age": 0,
        "max_msg_size": -1,
        "num_replicas": replicas,
        "allow_rollup_hdrs": true,
        "deny_delete": true,
        "allow_direct": true,
    })
}

#[derive(Debug, Default)]
struct Device {
    online: bool,
    record: RecordId,
    /// Metrics by name, as JSON objects.
    metrics: HashMap<Arc<str>, Box<[u8]>>,
    /// All of its metrics are known here; else the bucket's entry is read first.
    complete: bool,
    dirty: bool,
    writing: bool,
    not_before: Option<Instant>,
    bytes: usize,
}

/// What is known of every device, bounded: whole devices that are written already go first.
#[derive(Debug)]
struct Known {
    gateway: String,
    max_bytes: usize,
    bytes: usize,
    devices: HashMap<Key, Device>,
    schemas: HashMap<Key, Bytes>,
}

impl Known {
    fn apply(&mut self, record: &Record) {
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

    /// Devices that may be written now.
    fn due(&self, now: Instant, most: usize) -> Vec<Key> {
        self.devices
            .iter()
            .filter(|(_, device)| {
                device.dirty && !device.writing && device.not_before.is_none_or(|at| at <= now)
            })
            .map(|(key, _)| key.clone())
            .take(most)
            .collect()
    }

    /// Takes over what the bucket says of metrics that are not known here.
    fn complete(&mut self, key: &Key, stored: Option<&Value>) {
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

enum Written {
    State(Key, bool),
    Schema(Key, Bytes, bool),
}

/// Takes acknowledged records until their senders are gone, and writes while there is a connection.
pub(super) async fn run(
    config: Config,
    gateway: String,
    mut acked: mpsc::Receiver<Arc<Record>>,
    mut client: watch::Receiver<Option<Client>>,
    lane: watch::Receiver<LaneStatus>,
) {
    let mut known = Known {
        gateway,
        max_bytes: usize::try_from(config.state.max_memory.0).unwrap_or(usize::MAX),
        bytes: 0,
        devices: HashMap::new(),
        schemas: HashMap::new(),
    };
    let interval = config.state.min_interval.0;
    let mut writes = FuturesUnordered::new();
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let mut ready_at: Option<Instant> = None;
    loop {
        tokio::select! {
            record = acked.recv() => match record {
                Some(record) => known.apply(&record),
                None => return,
            },
            changed = client.changed() => {
                if changed.is_err() {
                    return;
                }
                client.borrow_and_update();
                ready_at = None;
            }
            Some(written) = writes.next(), if !writes.is_empty() => {
                let busy = lane.borrow().pending > BUSY;
                settle(&mut known, written, if busy { interval * BUSY_FACTOR } else { interval });
            }
            _ = ticks.tick() => {
                let Some(client) = client.borrow().clone() else {
                    continue;
                };
                let now = Instant::now();
                if known.devices.is_empty() && known.schemas.is_empty() {
                    continue;
                }
                match ready_at {
                    None => {
                        // Once a connection, before the first write.
                        let there = tokio::time::timeout(PATIENCE, prepare(&client, config.replicas, config.manage)).await;
                        match there {
                            Ok(Ok(())) => ready_at = Some(now),
                            Ok(Err(error)) => {
                                tracing::debug!(?error, "buckets are not there");
                                ready_at = Some(now + RETRY);
                            }
                            Err(_) => ready_at = Some(now + RETRY),
                        }
                    }
                    Some(at) if at > now => continue,
                    Some(_) => {}
                }
                let most = if lane.borrow().pending > BUSY { 1 } else { WRITES };
                while writes.len() < most {
                    let Some(key) = known.schemas.keys().next().cloned() else {
                        break;
                    };
                    if let Some(body) = known.schemas.remove(&key) {
                        writes.push(write_schema(client.clone(), known.gateway.clone(), key, body));
                    }
                }
                for key in known.due(now, most.saturating_sub(writes.len())) {
                    if known.devices.get(&key).is_some_and(|device| !device.complete) {
                        match stored(&client, &known.gateway, &key).await {
                            Ok(value) => known.complete(&key, value.as_ref()),
                            Err(error) => {
                                tracing::debug!(?error, "bucket can't be read");
                                break;
                            }
                        }
                    }
                    let Some(body) = known.body(&key) else {
                        continue;
                    };
                    if let Some(device) = known.devices.get_mut(&key) {
                        device.dirty = false;
                        device.writing = true;
                    }
                    writes.push(write_state(client.clone(), known.gateway.clone(), key, body));
                }
            }
        }
    }
}

fn settle(known: &mut Known, written: Written, interval: Duration) {
    match written {
        Written::State(key, done) => {
            if let Some(device) = known.devices.get_mut(&key) {
                device.writing = false;
                device.dirty |= !done;
                device.not_before = Some(Instant::now() + if done { interval } else { RETRY });
            }
        }
        Written::Schema(key, body, done) => {
            if !done {
                known.schemas.entry(key).or_insert(body);
            }
        }
    }
}

/// Makes the buckets that are missing where that is wanted; an error when one is missing then.
pub(super) async fn prepare(client: &Client, replicas: u8, manage: bool) -> Result<(), AskError> {
    let ask = Ask(client.clone());
    for bucket in [STATE, SCHEMA] {
        let info = ask
            .api(&format!("STREAM.INFO.KV_{bucket}"), &Value::Null)
            .await;
        match info {
            Err(AskError::Refused(refusal)) if refusal.err_code == 10059 && manage => {
                tracing::info!(bucket, "bucket is created");
                let request = declared(bucket, replicas);
                ask.api(&format!("STREAM.CREATE.KV_{bucket}"), &request)
                    .await?;
            }
            Ok(_) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The bucket's entry of a device.
async fn stored(client: &Client, gateway: &str, key: &Key) -> Result<Option<Value>, AskError> {
    use base64::Engine as _;
    let subject = format!("$KV.{STATE}.{}", kv_key(gateway, key));
    let what = format!("STREAM.MSG.GET.KV_{STATE}");
    match Ask(client.clone())
        .api(&what, &json!({ "last_by_subj": subject }))
        .await
    {
        Ok(answer) => Ok(answer
            .pointer("/message/data")
            .and_then(Value::as_str)
            .and_then(|text| base64::engine::general_purpose::STANDARD.decode(text).ok())
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())),
        Err(AskError::Refused(refusal)) if refusal.err_code == 10037 => Ok(None),
        Err(error) => Err(error),
    }
}

enum Put {
    State,
    Schema,
}

async fn put(client: &Client, put: Put, gateway: &str, key: &Key, body: &Bytes) -> bool {
    let bucket = match put {
        Put::State => STATE,
        Put::Schema => SCHEMA,
    };
    let subject = format!("$KV.{bucket}.{}", kv_key(gateway, key));
    if body.len() > client.max_payload() {
        tracing::warn!(
            subject,
            bytes = body.len(),
            "entry is larger than the server takes; left out"
        );
        return true;
    }
    let asked = client.request(subject, body.clone());
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Ok(answer)) => serde_json::from_slice::<Value>(&answer.payload)
            .is_ok_and(|answer| answer.get("error").is_none()),
        Ok(Err(_)) | Err(_) => false,
    }
}

type Write = futures_util::future::BoxFuture<'static, Written>;

fn write_state(client: Client, gateway: String, key: Key, body: Bytes) -> Write {
    Box::pin(async move {
        let done = put(&client, Put::State, &gateway, &key, &body).await;
        Written::State(key, done)
    })
}

fn write_schema(client: Client, gateway: String, key: Key, body: Bytes) -> Write {
    Box::pin(async move {
        let done = put(&client, Put::Schema, &gateway, &key, &body).await;
        Written::Schema(key, body, done)
    })
}

#[cfg(test)]
mod tests {
    use sparkplug::datatype::DataType;
    use sparkplug::metric::Metric;
    use sparkplug::payload::encode_resolved;
    use sparkplug::value;

    use super::*;
    use crate::buffer::record::{NewRecord, Origin};

    fn known(max_bytes: usize) -> Known {
        Known {
            gateway: "site-a".to_owned(),
            max_bytes,
            bytes: 0,
            devices: HashMap::new(),
            schemas: HashMap::new(),
        }
    }

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
            data: NewRecord {
                class,
                origin: Origin::Received,
                engine_ms: 0,
                received_ms: 0,
                clock_trusted: true,
                key: key(device),
                seq: None,
                bdseq: None,
                schema: None,
                cause: None,
                traceparent: None,
                body: encode_resolved(None, None, None, &metrics).into(),
                extra: Vec::new(),
            },
        }
    }

    fn shown(known: &Known, device: &str) -> Value {
        serde_json::from_slice(&known.body(&key(device)).unwrap()).unwrap()
    }

    #[test]
    fn the_latest_value_wins_and_a_death_keeps_values() {
        let mut known = known(1 << 20);
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
        let mut known = known(1 << 20);
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
        let mut known = known(4000);
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
        let mut known = known(1 << 20);
        known.apply(&record(1, Class::Birth, "d", &[("a", 1.0)]));
        let now = Instant::now();
        assert_eq!(known.due(now, 9), [key("d")]);
        if let Some(device) = known.devices.get_mut(&key("d")) {
            (device.dirty, device.writing) = (false, true);
        }
        known.apply(&record(2, Class::Data, "d", &[("a", 2.0)]));
        assert_eq!(known.due(now, 9), []);
        settle(
            &mut known,
            Written::State(key("d"), true),
            Duration::from_secs(5),
        );
        assert_eq!(known.due(now, 9), []);
        assert_eq!(known.due(now + Duration::from_secs(6), 9), [key("d")]);
    }
}
