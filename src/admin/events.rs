//! `/api/events`: server-sent events.
//!
//! Without a query: one `status` event every two seconds, and one `record` event for each alarm and command as it
//! happens. With `tap=GLOB`: every metric of matching records, one JSON line each. A reader that falls behind misses
//! records and is told how many; nobody waits for it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::Stream;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;

use super::Shared;
use crate::bridge::filter::glob;
use crate::buffer::record::{Class, Record};
use crate::pipeline::convert::value_json;

/// Events that a slow reader may have waiting in its own queue.
const QUEUE: usize = 256;
/// Time between two status events.
const PERIOD: Duration = Duration::from_secs(2);

/// What is listened to.
#[derive(Debug, Default, Deserialize)]
pub struct EventsQuery {
    tap: Option<String>,
    /// `group/node[/device]`: that device's metrics beside status, alarms and commands.
    device: Option<String>,
}

/// `GET /api/events`.
pub async fn events(
    State(shared): State<Arc<Shared>>,
    Query(query): Query<EventsQuery>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let (send, receive) = mpsc::channel(QUEUE);
    tokio::spawn(feed(shared, query, send));
    let stream = futures_util::stream::unfold(receive, |mut receive| async move {
        receive.recv().await.map(|event| (Ok(event), receive))
    });
    Sse::new(stream).keep_alive(KeepAlive::default())
}

async fn feed(shared: Arc<Shared>, query: EventsQuery, send: mpsc::Sender<Event>) {
    let mut records = shared.journal.subscribe();
    let mut ticks = tokio::time::interval(PERIOD);
    let mut missed = 0;
    loop {
        tokio::select! {
            record = records.recv() => match record {
                Ok(record) => {
                    let fine = match (&query.tap, &query.device) {
                        (Some(filter), _) => tap(&record, filter, &send).await,
                        (None, device) => page(&record, device.as_deref(), &send),
                    };
                    if !fine {
                        return;
                    }
                }
                Err(RecvError::Lagged(count)) => missed += count,
                Err(RecvError::Closed) => return,
            },
            _ = ticks.tick() => {
                if missed > 0 {
                    let line = json!({"missed": missed}).to_string();
                    missed = 0;
                    if send.send(Event::default().event("missed").data(line)).await.is_err() {
                        return;
                    }
                }
                if query.tap.is_none() {
                    let Ok(status) = super::status::status_json(&shared).await else { return };
                    if send.send(Event::default().event("status").data(status.to_string())).await.is_err() {
                        return;
                    }
                } else if send.is_closed() {
                    return;
                }
            }
        }
    }
}

/// One line a metric of a matching record; `false` when the reader is gone.
async fn tap(record: &Record, filter: &str, send: &mpsc::Sender<Event>) -> bool {
    for line in lines(record, filter) {
        // A tap is read by a person or a pipe: it may slow its own feed down, and loses by the broadcast's count.
        if send.send(Event::default().data(line)).await.is_err() {
            return false;
        }
    }
    true
}

fn page(record: &Record, device: Option<&str>, send: &mpsc::Sender<Event>) -> bool {
    let event = match record.class {
        Class::Alarm | Class::Command => {
            let body: Value = serde_json::from_slice(&record.body).unwrap_or(Value::Null);
            Event::default()
                .event(record.class.as_str())
                .data(body.to_string())
        }
        Class::Data | Class::Birth if device.is_some_and(|d| d == name(record)) => {
            let metrics: Vec<Value> = lines(record, "*")
                .filter_map(|line| serde_json::from_str(&line).ok())
                .collect();
            Event::default()
                .event("data")
                .data(Value::Array(metrics).to_string())
        }
        _ => return true,
    };
    !matches!(
        send.try_send(event),
        Err(mpsc::error::TrySendError::Closed(_))
    )
}

/// `group/node[/device]`.
fn name(record: &Record) -> String {
    [&record.key.group, &record.key.node, &record.key.device]
        .into_iter()
        .flatten()
        .map(AsRef::as_ref)
        .collect::<Vec<&str>>()
        .join("/")
}

/// The tap's lines of a record.
fn lines<'a>(record: &'a Record, filter: &'a str) -> impl Iterator<Item = String> + 'a {
    let base = name(record);
    let payload = match record.class {
        Class::Data | Class::Birth => sparkplug::payload::decode_resolved(&record.body).ok(),
        _ => None,
    };
    let other = payload.is_none().then(|| {
        let body: Value = serde_json::from_slice(&record.body).unwrap_or(Value::Null);
        (glob(filter, &base)).then(|| json!({"record": record.id, "class": record.class.as_str(), "device": base, "body": body}).to_string())
    });
    let class = record.class.as_str();
    let (id, received_ms) = (record.id, record.received_ms);
    let named = base.clone();
    payload
        .into_iter()
        .flat_map(|payload| payload.metrics)
        .filter(move |metric| glob(filter, &format!("{base}/{}", metric.name)))
        .map(move |metric| {
            json!({
                "record": id, "class": class, "device": named, "metric": metric.name.as_ref(),
                "type": metric.datatype.as_str(), "value": value_json(&metric.value),
                "timestamp": metric.timestamp, "received_at": received_ms, "historical": metric.historical,
            })
            .to_string()
        })
        .chain(other.flatten())
}
