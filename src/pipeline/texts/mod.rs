//! Texts become vectors: which texts, what a vector moves, and which alarms belong together.
//!
//! Texts are the messages of alarms that rules raise, and the String metrics that the text model's manifest names.
//! A vector becomes an `embedding` record and then an event of the rules. Alarms of rules that compare texts are
//! embedded and grouped like any other, but are no event: a rule can't hear its own alarm.

mod families;

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use models::text::{Alarm, Embedding, MAX_TEXT, Neighbour, TextEvent, TextRequest, TextSource};

use families::Families;

use super::Ports;
use super::convert::{key_of_rule, model_key, rule_key_of_model, stable_hash};
use super::core::Core;
use super::own::{self, Own};
use crate::buffer::record::{Cause, Class, Record, RecordId};
use crate::clock::Now;

/// Headers that name what was embedded; a replay reads them back.
const OF_METRIC: &str = "Sparkgate-Metric";
const OF_RULE: &str = "Sparkgate-Rule";
const OF_ALARM: &str = "Sparkgate-Alarm";
const OF_INDEX: &str = "Sparkgate-Index";
const OF_TIME: &str = "Sparkgate-Time";
/// `type` of an alarm's embedding in expressions; a metric's is `String`.
const ALARM: &str = "Alarm";

/// What is known of an alarm's meaning.
#[derive(Debug, Clone, PartialEq)]
pub struct Related {
    /// Id of the first alarm of the family: alarms that mean nearly the same share it.
    pub family: Arc<str>,
    /// Recent alarms that mean nearly the same, nearest first.
    pub neighbours: Vec<Neighbour>,
}

/// State of the texts' side.
#[derive(Debug, Default)]
pub struct Texts {
    /// String metrics that are embedded.
    metrics: HashSet<Arc<str>>,
    families: Families,
    /// Why the model can't be used, once that was told.
    broken: bool,
}

impl Texts {
    /// For a text model with this space of vectors, whose manifest names these metrics.
    #[must_use]
    pub fn new(vector_version: Arc<str>, metrics: impl IntoIterator<Item = Arc<str>>) -> Self {
        Self {
            families: Families::new(vector_version),
            metrics: metrics.into_iter().collect(),
            ..Self::default()
        }
    }

    /// What is known of an alarm.
    #[must_use]
    pub fn related(&self, alarm: &str) -> Option<&Related> {
        self.families.related(alarm)
    }

    /// Recent alarms with their vectors, the oldest first: what the embedder compares with.
    pub fn alarms(&self) -> impl Iterator<Item = &Alarm> {
        self.families.alarms()
    }

    /// What changed since the last checkpoint, by place.
    pub(super) fn take_dirty(&mut self) -> Vec<(u64, Option<Vec<u8>>)> {
        self.families.take_dirty()
    }

    /// Takes the entries of a checkpoint back, in the order of their places.
    pub fn restore<'a>(&mut self, entries: impl IntoIterator<Item = (u64, &'a [u8])>) {
        for (place, bytes) in entries {
            self.families.restore(place, bytes);
        }
    }
}

impl Core {
    /// Gives the core a text model.
    pub fn set_texts(&mut self, texts: Texts) {
        self.texts = Some(texts);
    }

    /// The texts' side, where a text model is configured.
    #[must_use]
    pub fn texts(&self) -> Option<&Texts> {
        self.texts.as_ref()
    }

    /// String metrics of a record that the manifest names.
    pub(super) fn embed_metrics(
        &self,
        key: &rules::Key,
        metrics: &[sparkplug::metric::Metric],
        record: RecordId,
        received_ms: u64,
        ports: &mut dyn Ports,
    ) {
        let Some(texts) = self.texts.as_ref().filter(|t| !t.metrics.is_empty()) else {
            return;
        };
        for (index, metric) in (0u32..).zip(metrics) {
            let sparkplug::value::Value::String(text) = &metric.value else {
                continue;
            };
            if text.is_empty() || !metric.is_news() || !texts.metrics.contains(&metric.name) {
                continue;
            }
            let time_ms = metric.timestamp.unwrap_or(received_ms);
            ports.embed(TextRequest {
                record,
                key: model_key(&key.group, &key.node, key.device.as_ref()),
                text: text.clone(),
                source: TextSource::Metric {
                    name: metric.name.clone(),
                    index,
                    time_ms: i64::try_from(time_ms).unwrap_or(i64::MAX),
                },
            });
        }
    }

    /// The message of an alarm that was raised just now.
    pub(super) fn embed_alarm(
        &self,
        now: Now,
        event: &rules::AlarmEvent,
        record: RecordId,
        ports: &mut dyn Ports,
    ) {
        if self.texts.is_none()
            || event.event != rules::AlarmAction::Raise
            || event.message.is_empty()
        {
            return;
        }
        let key = &event.key;
        ports.embed(TextRequest {
            record,
            key: model_key(&key.group, &key.node, key.device.as_ref()),
            text: event.message.clone(),
            source: TextSource::Alarm {
                id: event.id.clone(),
                rule: event.rule.clone(),
                time_ms: i64::try_from(now.wall_ms).unwrap_or(i64::MAX),
            },
        });
    }

    /// A text has its vector, or none.
    pub(super) fn handle_text(&mut self, now: Now, event: TextEvent, ports: &mut dyn Ports) {
        match event {
            TextEvent::Embedding(embedding) => self.embedded(now, embedding, ports),
            TextEvent::Failed(failure) => {
                tracing::debug!(
                    record = failure.request.record,
                    reason = failure.reason,
                    "no vector"
                );
                let first = self
                    .texts
                    .as_mut()
                    .is_some_and(|texts| !std::mem::replace(&mut texts.broken, true));
                if first {
                    let message = format!("texts get no vectors: {}", failure.reason);
                    tracing::error!(reason = failure.reason, "texts get no vectors");
                    let own = Own::condition(own::MODELS, own::TEXT, "", &message);
                    self.tell(now, own, ports);
                }
            }
        }
    }

    fn embedded(&mut self, now: Now, embedding: Embedding, ports: &mut dyn Ports) {
        let request = embedding.request;
        let key = rule_key_of_model(&request.key);
        let mut extra: Vec<(Box<str>, Box<str>)> = vec![
            ("Sparkgate-Model".into(), (&*embedding.model).into()),
            (
                "Sparkgate-Vector-Version".into(),
                (&*embedding.vector_version).into(),
            ),
            ("Sparkgate-Of".into(), request.record.to_string().into()),
        ];
        let (index, time_ms) = match &request.source {
            TextSource::Metric {
                name,
                index,
                time_ms,
            } => {
                extra.push((OF_METRIC.into(), (&**name).into()));
                extra.push((OF_INDEX.into(), index.to_string().into()));
                (*index, *time_ms)
            }
            TextSource::Alarm { id, rule, time_ms } => {
                extra.push((OF_RULE.into(), (&**rule).into()));
                extra.push((OF_ALARM.into(), (&**id).into()));
                (0, *time_ms)
            }
        };
        extra.push((OF_TIME.into(), time_ms.to_string().into()));
        let cause = Cause {
            record: request.record,
            rule: stable_hash(&format!(
                "{}\0{}",
                embedding.model, embedding.vector_version
            )),
            index,
        };
        let body = Bytes::from(models::text::to_bytes(&embedding.vector));
        let mut record = self.derived(now, Class::Embedding, key_of_rule(&key), Some(cause), body);
        record.extra = extra;
        let id = self.append_made(record, ports);
        if let Some(texts) = &mut self.texts {
            texts.broken = false;
            if let TextSource::Alarm { id, .. } = &request.source {
                let alarm = Alarm {
                    id: id.clone(),
                    record: request.record,
                    key: request.key,
                    text: request
                        .text
                        .chars()
                        .take(MAX_TEXT)
                        .collect::<String>()
                        .into(),
                    vector: embedding.vector.clone(),
                };
                texts.families.relate(alarm, embedding.neighbours);
            }
        }
        self.untell(now, own::MODELS, own::TEXT, "", ports);
        self.handle_vector(now, key, &request.source, embedding.vector, id);
        self.drain_rules(now, ports);
    }

    fn handle_vector(
        &mut self,
        now: Now,
        key: rules::Key,
        source: &TextSource,
        vector: Arc<[f32]>,
        record: RecordId,
    ) {
        let (metric, datatype, time_ms, index) = match source {
            TextSource::Metric {
                name,
                index,
                time_ms,
            } => (name, "String", *time_ms, *index),
            TextSource::Alarm { rule, .. } if self.rules.compares_texts(rule) => return,
            TextSource::Alarm { rule, time_ms, .. } => (rule, ALARM, *time_ms, 0),
        };
        self.rules.handle_event(&rules::Event {
            key,
            metric: metric.clone(),
            value: rules::Value::Null,
            datatype,
            quality: rules::QUALITY_GOOD,
            time_ms,
            engine_ms: now.engine_ms,
            historical: false,
            unchanged: false,
            record,
            index,
            kind: rules::EventKind::Embedding(vector),
        });
    }

    /// An `embedding` record moves the rules again as it did when it was made.
    pub(super) fn replay_vector(&mut self, now: Now, key: rules::Key, record: &Record) {
        let header = |name: &str| {
            let found = record.extra.iter().find(|(known, _)| &**known == name);
            found.map(|(_, value)| &**value)
        };
        let number = |name: &str| header(name).and_then(|text| text.parse::<i64>().ok());
        let time_ms = number(OF_TIME).unwrap_or_default();
        let source = match (header(OF_METRIC), header(OF_RULE)) {
            (Some(name), _) => TextSource::Metric {
                name: name.into(),
                index: number(OF_INDEX)
                    .and_then(|n| u32::try_from(n).ok())
                    .unwrap_or(0),
                time_ms,
            },
            (None, Some(rule)) => TextSource::Alarm {
                id: "".into(),
                rule: rule.into(),
                time_ms,
            },
            (None, None) => return,
        };
        let (numbers, _) = record.body.as_chunks::<4>();
        let vector: Arc<[f32]> = numbers.iter().map(|b| f32::from_le_bytes(*b)).collect();
        if let (Some(id), Some(of)) = (header(OF_ALARM), number("Sparkgate-Of")) {
            let known = self
                .rules
                .alarms()
                .into_iter()
                .find(|alarm| *alarm.id == *id);
            let alarm = Alarm {
                id: id.into(),
                record: u64::try_from(of).unwrap_or(0),
                key: model_key(&key.group, &key.node, key.device.as_ref()),
                text: known.map(|alarm| alarm.message).unwrap_or_default(),
                vector: vector.clone(),
            };
            if let Some(texts) = &mut self.texts {
                let neighbours = texts.families.nearest(&vector);
                texts.families.relate(alarm, neighbours);
            }
        }
        self.handle_vector(now, key, &source, vector, record.id);
    }
}
