//! The shell of one receiver: journal, clock, state store and network around a [`Channel`].

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rules::Priority;
use tokio::sync::watch;
use tokio::time::Instant;

use super::core::{Alarm, Channel, Message, Progress, Settings};
use super::{ChannelStatus, Parts, SendError, Sender};
use crate::buffer::record::{Class, Lane, Record};
use crate::buffer::{Follow, ReadError};

/// Records that are read in one go.
const MOST_READ: usize = 256;
/// Time between two notes of a place in the state store that only moved past other records.
const KEEP: Duration = Duration::from_secs(30);
/// Longest sleep, so that a step of the clock or a missed wake-up does no harm.
const LONGEST: Duration = Duration::from_secs(5);

/// Runs until it is told to stop; what is being sent then is waited for and noted.
pub(super) async fn run(
    parts: Parts,
    name: Arc<str>,
    settings: Settings,
    sender: Sender,
    status: Arc<Mutex<ChannelStatus>>,
    mut stopped: watch::Receiver<bool>,
) {
    let epoch = parts.journal.epoch();
    let key = format!("notify/{name}");
    let mut grown = parts.journal.appended(Lane::Alarms);
    let kept = load(&parts, &key, &epoch);
    let fresh = kept.is_none();
    let newest = parts.journal.last_id(Lane::Alarms);
    // A new receiver is told of what happens from now on.
    let mut kept = kept.unwrap_or(Progress {
        cursor: newest,
        ..Progress::default()
    });
    if fresh {
        // A crash before the first message must not begin anew behind what waits.
        save(&parts, &key, &epoch, &kept).await;
    }
    let mut records = parts.journal.follow(Lane::Alarms, kept.start());
    let mut channel = Channel::new(settings, kept.clone());
    let mut keep_at = Instant::now();
    let mut sending: Option<tokio::task::JoinHandle<Result<(), SendError>>> = None;
    loop {
        let batch = match read(records).await {
            Ok((follow, batch)) => {
                records = follow;
                batch
            }
            Err(error) => {
                tracing::error!(receiver = %name, %error, "alarms can't be read any more");
                return;
            }
        };
        let now = parts.clock.now();
        let more = batch.len() == MOST_READ;
        for record in batch {
            match record {
                Ok(record) if record.class == Class::Gap => {
                    let body: Option<serde_json::Value> = serde_json::from_slice(&record.body).ok();
                    let count = body
                        .and_then(|body| body.get("count")?.as_u64())
                        .unwrap_or(1);
                    tracing::error!(receiver = %name, count, "alarms left the disk before this receiver was told");
                    channel.handle_lost(record.id, count);
                }
                Ok(record) => channel.handle_alarm(now, record.id, alarm(&record)),
                Err(error) => {
                    tracing::warn!(receiver = %name, %error, "alarms can't be read; trying again")
                }
            }
        }
        let given_up = channel.counts().given_up;
        channel.handle_timeout(now);
        if channel.counts().given_up > given_up {
            tracing::error!(receiver = %name, "a message about alarms is given up");
        }
        let stopping = *stopped.borrow_and_update() || stopped.has_changed().is_err();
        if stopping && sending.is_none() {
            save(&parts, &key, &epoch, &channel.progress()).await;
            return;
        }
        if sending.is_none()
            && let Some(message) = channel.poll_message(now)
        {
            let progress = channel.progress();
            if progress != kept {
                // First, so that after a crash the same message has the same id and no other has it.
                save(&parts, &key, &epoch, &progress).await;
                kept = progress;
                keep_at = Instant::now();
            }
            sending = Some(send(&parts, &name, &sender, &epoch, message));
        }
        {
            let mut status = status.lock().unwrap_or_else(PoisonError::into_inner);
            status.update(channel.counts(), channel.pending());
        }
        let progress = channel.progress();
        let given_up = channel.counts().given_up > given_up;
        if progress != kept && (given_up || keep_at.elapsed() >= KEEP) {
            save(&parts, &key, &epoch, &progress).await;
            kept = progress;
            keep_at = Instant::now();
        }
        let due = channel
            .poll_timeout(now)
            .map_or(u64::MAX, |at| at.saturating_sub(now.engine_ms));
        let wake = Duration::from_millis(if more { 0 } else { due });
        let mut delivered = false;
        tokio::select! {
            changed = grown.changed(), if !stopping => if changed.is_err() { return },
            _ = stopped.changed(), if !stopping => {}
            outcome = finished(&mut sending) => {
                sending = None;
                let now = parts.clock.now();
                let error = match outcome {
                    Ok(Ok(())) => {
                        channel.handle_sent();
                        delivered = true;
                        None
                    }
                    Ok(Err(error)) => {
                        channel.handle_failed(now, error.failure());
                        Some(error.to_string())
                    }
                    Err(error) => {
                        channel.handle_failed(now, super::core::Failure::Transient);
                        Some(error.to_string())
                    }
                };
                if let Some(error) = &error {
                    tracing::warn!(receiver = %name, error, "alarms could not be told");
                }
                // What stands aside still has its reason, whatever arrived since.
                if error.is_some() || !channel.has_aside() {
                    status.lock().unwrap_or_else(PoisonError::into_inner).error = error;
                }
            }
            () = tokio::time::sleep(wake.clamp(Duration::from_millis(1), LONGEST)) => {}
        }
        if delivered {
            // At once: what was told must not be told again after a crash.
            kept = channel.progress();
            save(&parts, &key, &epoch, &kept).await;
            keep_at = Instant::now();
        }
    }
}

type Batch = Vec<Result<Arc<Record>, ReadError>>;

/// Reads on, on a thread that may wait for the disk; stops at the first failure.
async fn read(mut follow: Follow) -> Result<(Follow, Batch), tokio::task::JoinError> {
    tokio::task::spawn_blocking(move || {
        let mut batch = Batch::new();
        while batch.len() < MOST_READ
            && let Some(record) = follow.next()
        {
            let failed = record.is_err();
            batch.push(record);
            if failed {
                break;
            }
        }
        (follow, batch)
    })
    .await
}

fn send(
    parts: &Parts,
    name: &str,
    sender: &Sender,
    epoch: &str,
    message: Message,
) -> tokio::task::JoinHandle<Result<(), SendError>> {
    let (gateway, sender) = (parts.gateway.clone(), sender.clone());
    let (first, last) = message.span;
    let id = format!("{gateway}-{epoch}-{name}-{first}-{last}");
    // A task of its own, so that alarms are read while a server takes its time.
    tokio::spawn(async move { sender.send(&gateway, &id, &message).await })
}

async fn finished<T>(
    task: &mut Option<tokio::task::JoinHandle<T>>,
) -> Result<T, tokio::task::JoinError> {
    match task {
        Some(task) => task.await,
        None => std::future::pending().await,
    }
}

fn alarm(record: &Record) -> Option<Alarm> {
    if record.class != Class::Alarm {
        return None;
    }
    let body: serde_json::Value = serde_json::from_slice(&record.body).ok()?;
    let text = |key: &str| {
        body.get(key)
            .and_then(serde_json::Value::as_str)
            .unwrap_or("")
    };
    let key = &record.key;
    let names = [&key.group, &key.node, &key.device].into_iter().flatten();
    let source = names.map(AsRef::as_ref).collect::<Vec<&str>>().join("/");
    Some(Alarm {
        record: record.id,
        id: text("id").into(),
        event: text("event").into(),
        priority: Priority::parse(text("priority")).unwrap_or_default(),
        source: if source.is_empty() {
            "gateway".into()
        } else {
            source.into()
        },
        message: text("message").into(),
        body: Arc::new(body),
    })
}

fn load(parts: &Parts, key: &str, epoch: &str) -> Option<Progress> {
    match parts.store.get(key.as_bytes()) {
        Ok(bytes) => Progress::decode(&String::from_utf8(bytes?).ok()?, epoch),
        Err(error) => {
            tracing::warn!(%error, key, "it is not known what was told of alarms; going on from now");
            None
        }
    }
}

async fn save(parts: &Parts, key: &str, epoch: &str, progress: &Progress) {
    let (store, key) = (parts.store.clone(), key.to_owned());
    let text = progress.encode(epoch);
    let done = tokio::task::spawn_blocking(move || {
        let mut batch = crate::state::Batch::default();
        batch.put(key, text);
        store.commit(&batch)
    });
    match done.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "what was told of alarms is not kept"),
        Err(error) => tracing::warn!(%error, "what was told of alarms is not kept"),
    }
}
