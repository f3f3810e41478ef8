//! A journal in memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use sparkplug::datatype::DataType;
use sparkplug::metric::Metric;
use sparkplug::payload::encode_resolved;
use sparkplug::value::Value;
use tokio::sync::watch;

use crate::bridge::drain::resume::Checkpoint;
use crate::bridge::hooks::Notice;
use crate::bridge::source::{Backlog, Memory, ReadError, Source};
use crate::buffer::record::{Class, Key, Lane, NewRecord, Origin, Record, RecordId};

#[derive(Default)]
struct Content {
    records: Vec<Arc<Record>>,
    last: HashMap<Lane, RecordId>,
    cursor: HashMap<Lane, RecordId>,
    counters: HashMap<String, u64>,
    checkpoints: HashMap<Lane, Checkpoint>,
    forgotten: RecordId,
}

pub(super) struct Journal {
    content: Mutex<Content>,
    grown: watch::Sender<RecordId>,
}

impl Journal {
    pub(super) fn new() -> Self {
        Self {
            content: Mutex::default(),
            grown: watch::channel(0).0,
        }
    }

    fn push(&self, class: Class, device: Option<String>, body: Bytes) {
        let mut content = self.content.lock().unwrap();
        let id = content.records.len() as u64 + 1;
        let lane = class.lane();
        let prev = content.last.insert(lane, id).unwrap_or(0);
        content.records.push(Arc::new(Record {
            id,
            prev,
            data: NewRecord {
                seq: Some(id as u8),
                schema: Some(1),
                ..NewRecord::new(
                    class,
                    Origin::Received,
                    id,
                    1_764_433_500_000 + id,
                    Key {
                        group: Some("plantA".into()),
                        node: Some("gw-07".into()),
                        device: device.map(Arc::from),
                    },
                    body,
                )
            },
        }));
        drop(content);
        self.grown.send_replace(id);
    }

    /// Data of `devices` devices, whose values count up from 0.
    pub(super) fn append_data(&self, count: usize, devices: usize) {
        for i in 0..count {
            let device = format!("press-{}", i % devices);
            let n = {
                let mut content = self.content.lock().unwrap();
                let counter = content.counters.entry(device.clone()).or_default();
                *counter += 1;
                *counter - 1
            };
            let metrics = [
                Metric::new("n", DataType::UInt64, Value::UInt(n)),
                Metric::new("Temperature", DataType::Double, Value::Double(21.5)),
            ];
            let body = encode_resolved(Some(n), Some(1), None, &metrics);
            self.push(Class::Data, Some(device), body.into());
        }
    }

    pub(super) fn append(&self, class: Class, body: &'static str) {
        self.push(
            class,
            Some("press-0".to_owned()),
            Bytes::from_static(body.as_bytes()),
        );
    }

    pub(super) fn append_birth(&self, metrics: usize) {
        let metrics: Vec<_> = (0..metrics)
            .map(|i| {
                Metric::new(
                    format!("line/{i}/value"),
                    DataType::Double,
                    Value::Double(i as f64),
                )
            })
            .collect();
        let body = encode_resolved(Some(1), Some(0), Some(1), &metrics);
        self.push(Class::Birth, Some("big".to_owned()), body.into());
    }

    pub(super) fn append_text(&self, length: usize) {
        let metric = Metric::new(
            "text",
            DataType::String,
            Value::String("x".repeat(length).into()),
        );
        let body = encode_resolved(Some(1), Some(0), None, &[metric]);
        self.push(Class::Data, Some("big".to_owned()), body.into());
    }

    pub(super) fn ids(&self, lane: Lane) -> Vec<RecordId> {
        let content = self.content.lock().unwrap();
        let of_lane = |record: &&Arc<Record>| record.class.lane() == lane;
        content
            .records
            .iter()
            .filter(of_lane)
            .map(|record| record.id)
            .collect()
    }

    /// Acknowledged records up to here are no longer kept.
    pub(super) fn forget_to(&self, id: RecordId) {
        self.content.lock().unwrap().forgotten = id;
    }
}

impl Source for Journal {
    fn read(
        &self,
        lane: Lane,
        after: RecordId,
        max_records: usize,
        _max_bytes: usize,
    ) -> Result<Vec<Arc<Record>>, ReadError> {
        let content = self.content.lock().unwrap();
        let from = after.max(content.forgotten) as usize;
        let rest = content.records.get(from..).unwrap_or_default();
        let of_lane = |record: &&Arc<Record>| record.class.lane() == lane;
        Ok(rest
            .iter()
            .filter(of_lane)
            .take(max_records)
            .cloned()
            .collect())
    }

    fn epoch(&self) -> String {
        "e1".to_owned()
    }

    fn ack(&self, lane: Lane, up_to: RecordId, _filtered: u64) {
        let mut content = self.content.lock().unwrap();
        let cursor = content.cursor.entry(lane).or_default();
        *cursor = (*cursor).max(up_to);
    }

    fn cursor(&self, lane: Lane) -> RecordId {
        self.content
            .lock()
            .unwrap()
            .cursor
            .get(&lane)
            .copied()
            .unwrap_or(0)
    }

    fn head(&self, lane: Lane) -> RecordId {
        self.content
            .lock()
            .unwrap()
            .last
            .get(&lane)
            .copied()
            .unwrap_or(0)
    }

    fn newest(&self, lane: Lane) -> RecordId {
        self.head(lane)
    }

    fn grown(&self) -> watch::Receiver<RecordId> {
        self.grown.subscribe()
    }

    fn backlog(&self, lane: Lane) -> Backlog {
        let records = self.head(lane).saturating_sub(self.cursor(lane));
        Backlog {
            records,
            bytes: records * 100,
            oldest_ms: None,
        }
    }
}

impl Memory for Journal {
    fn load(&self, lane: Lane, _epoch: &str) -> Option<Checkpoint> {
        self.content.lock().unwrap().checkpoints.get(&lane).copied()
    }

    fn save(&self, lane: Lane, _epoch: &str, checkpoint: Checkpoint) -> Result<(), String> {
        self.content
            .lock()
            .unwrap()
            .checkpoints
            .insert(lane, checkpoint);
        Ok(())
    }
}

/// What people were told.
#[derive(Default)]
pub(super) struct Notes(Mutex<Vec<Notice>>);

impl Notes {
    pub(super) fn add(&self, notice: Notice) {
        self.0.lock().unwrap().push(notice);
    }

    pub(super) fn all(&self) -> Vec<Notice> {
        self.0.lock().unwrap().clone()
    }
}
