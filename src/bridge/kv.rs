//! Last-known values and schemas in key-value buckets: `SPARKGATE_STATE` and `SPARKGATE_SCHEMA`.
//!
//! Fed by what the data stream has acknowledged, so a bucket is never ahead of the stream. The latest value
//! wins; a device is written at most once in its interval, however often it changes, and after an outage once
//! with what it is then; while a backlog drains, the link is left to the records. What can't be written now stays
//! marked and is written later.
//!
//! Records are taken at once, whatever the buckets do: the data lane waits for that.

mod known;

use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use self::known::Known;
use super::ask::{Ask, AskError};
use super::config::Config;
use super::status::LaneStatus;
use crate::buffer::record::{Key, Record};
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

/// What ended on the way to the buckets.
enum Done {
    /// They were looked at, and made where that is wanted, over the connection of this number.
    Looked(u64, Result<(), AskError>),
    /// A device's entry was read, to know the metrics that have not come by since the start.
    Read(Key, Result<Option<Value>, AskError>),
    /// An entry was written, or not.
    State(Key, bool),
    /// A schema was written, or not.
    Schema(Key, Bytes, bool),
}

type Work = futures_util::future::BoxFuture<'static, Done>;

/// Whether the buckets can be written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ready {
    Unknown,
    Asked,
    Yes,
    No { until: Instant },
}

struct Buckets {
    config: Config,
    gateway: String,
    known: Known,
    work: FuturesUnordered<Work>,
    ready: Ready,
    /// When schemas are tried again after one was refused.
    schemas_from: Instant,
    /// Counts the connections.
    connection: u64,
    client: Option<Client>,
}

/// Takes acknowledged records until their senders are gone, and writes while there is a connection.
pub(super) async fn run(
    config: Config,
    gateway: String,
    mut acked: mpsc::Receiver<Arc<Record>>,
    mut client: watch::Receiver<Option<Client>>,
    lane: watch::Receiver<LaneStatus>,
) {
    let max_bytes = usize::try_from(config.state.max_memory.0).unwrap_or(usize::MAX);
    let mut buckets = Buckets {
        config,
        gateway,
        known: Known::new(max_bytes),
        work: FuturesUnordered::new(),
        ready: Ready::Unknown,
        schemas_from: Instant::now(),
        connection: 0,
        client: client.borrow_and_update().clone(),
    };
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            record = acked.recv() => match record {
                Some(record) => buckets.known.apply(&record),
                None => return,
            },
            changed = client.changed() => {
                if changed.is_err() {
                    return;
                }
                buckets.client.clone_from(&client.borrow_and_update());
                buckets.connection += 1;
                buckets.ready = Ready::Unknown;
            }
            Some(done) = buckets.work.next(), if !buckets.work.is_empty() => {
                buckets.settle(done, lane.borrow().pending > BUSY);
            }
            _ = ticks.tick() => buckets.tick(lane.borrow().pending > BUSY),
        }
    }
}

impl Buckets {
    fn tick(&mut self, busy: bool) {
        let Some(client) = self.client.clone().filter(|_| !self.known.is_empty()) else {
            return;
        };
        let now = Instant::now();
        match self.ready {
            Ready::Unknown => self.look(client),
            Ready::No { until } if until <= now => self.look(client),
            Ready::Asked | Ready::No { .. } => {}
            Ready::Yes => self.start(now, &client, if busy { 1 } else { WRITES }),
        }
    }

    /// Once a connection, before the first write, and again while they are not there.
    fn look(&mut self, client: Client) {
        self.ready = Ready::Asked;
        let (replicas, manage) = (self.config.replicas, self.config.manage);
        let connection = self.connection;
        self.work.push(Box::pin(async move {
            Done::Looked(connection, prepare(&client, replicas, manage).await)
        }));
    }

    fn start(&mut self, now: Instant, client: &Client, most: usize) {
        while self.work.len() < most && self.schemas_from <= now {
            let Some((key, body)) = self.known.take_schema() else {
                break;
            };
            let (client, gateway) = (client.clone(), self.gateway.clone());
            self.work.push(Box::pin(async move {
                let done = put(&client, SCHEMA, &gateway, &key, &body).await;
                Done::Schema(key, body, done)
            }));
        }
        let room = most.saturating_sub(self.work.len());
        for key in self.known.due(now, room) {
            if self.known.is_complete(&key) {
                self.write(client, key);
                continue;
            }
            self.known.reading(&key);
            let (client, gateway) = (client.clone(), self.gateway.clone());
            self.work.push(Box::pin(async move {
                let stored = stored(&client, &gateway, &key).await;
                Done::Read(key, stored)
            }));
        }
    }

    fn write(&mut self, client: &Client, key: Key) {
        let Some(body) = self.known.writing(&key) else {
            return;
        };
        let (client, gateway) = (client.clone(), self.gateway.clone());
        self.work.push(Box::pin(async move {
            let done = put(&client, STATE, &gateway, &key, &body).await;
            Done::State(key, done)
        }));
    }

    fn settle(&mut self, done: Done, busy: bool) {
        match done {
            // Of a connection that is gone.
            Done::Looked(connection, _) if connection != self.connection => {}
            Done::Looked(_, Ok(())) => self.ready = Ready::Yes,
            Done::Looked(_, Err(error)) => {
                tracing::debug!(?error, "buckets are not there");
                let until = Instant::now() + RETRY;
                self.ready = Ready::No { until };
            }
            Done::Read(key, Ok(stored)) => {
                self.known.complete(&key, stored.as_ref());
                match self.client.clone() {
                    Some(client) => self.write(&client, key),
                    None => self.known.settle(&key, false, RETRY),
                }
            }
            Done::Read(key, Err(error)) => {
                tracing::debug!(?error, "bucket can't be read");
                self.known.settle(&key, false, RETRY);
            }
            Done::State(key, true) => {
                let interval = self.config.state.min_interval.0;
                let wait = if busy {
                    interval * BUSY_FACTOR
                } else {
                    interval
                };
                self.known.settle(&key, true, wait);
            }
            Done::State(key, false) => self.known.settle(&key, false, RETRY),
            Done::Schema(_, _, true) => {}
            Done::Schema(key, body, false) => {
                self.known.keep_schema(key, body);
                self.schemas_from = Instant::now() + RETRY;
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

/// Whether the server has it, or will never take it.
async fn put(client: &Client, bucket: &str, gateway: &str, key: &Key, body: &Bytes) -> bool {
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
