//! Telling people of alarms without the cloud: webhooks and mail.
//!
//! Each receiver reads the journal's alarms by itself and keeps its own place in the state store, so that an alarm that
//! was raised before a crash, or while a mail server was down, is told afterwards, and one slow receiver delays no
//! other. Delivery is at least once: a crash between sending and noting it repeats a message, under the same id.
//!
//! ```text
//! journal ─ alarms ─ core::Channel (grouping, quiet hours, retry) ─ webhook | smtp
//!                         └ progress ─ state store `notify/<name>`
//! ```
//!
//! Bounds: 1,000 alarms wait at one receiver; then the oldest of the least urgent is left out, which is counted and said
//! in the next message. A message that can't be delivered for `give_up` is given up, counted and logged. One that the
//! receiver alone refuses is halved until the alarm is found that it can't take; the others go out meanwhile.

pub mod config;
pub mod core;
pub mod quiet;
pub mod smtp;
mod task;
pub mod text;
pub mod webhook;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use tokio::sync::watch;

pub use config::Config;

use self::core::{Counts, Message, Settings};
use crate::buffer::Journal;
use crate::clock::Clock;
use crate::state::StateStore;

/// What a receiver looks like from outside.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ChannelStatus {
    /// Its name.
    pub name: Arc<str>,
    /// `webhook` or `smtp`.
    pub kind: &'static str,
    /// What happened since start.
    #[serde(flatten)]
    pub counts: Counts,
    /// Alarms that wait or are being sent.
    pub waiting: usize,
    /// Why the last try failed; absent when it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// All receivers.
pub struct Notifier {
    parts: Parts,
    running: Mutex<Vec<Running>>,
}

/// A receiver at work.
struct Running {
    status: Arc<Mutex<ChannelStatus>>,
    stop: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
}

/// What every receiver's task needs.
#[derive(Clone)]
struct Parts {
    gateway: Arc<str>,
    journal: Journal,
    store: Arc<dyn StateStore>,
    clock: Arc<Clock>,
}

impl Notifier {
    /// Starts a task for each receiver.
    #[must_use]
    pub fn start(
        config: &Config,
        gateway: &str,
        journal: Journal,
        store: Arc<dyn StateStore>,
        clock: Arc<Clock>,
    ) -> Self {
        let notifier = Self {
            parts: Parts {
                gateway: gateway.into(),
                journal,
                store,
                clock,
            },
            running: Mutex::default(),
        };
        notifier.reload(config);
        notifier
    }

    /// Takes another configuration: each receiver goes on where the one of its name was, once that has heard what became
    /// of the message it is sending.
    pub fn reload(&self, config: &Config) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = HashMap::new();
        for old in running.drain(..) {
            let _ = old.stop.send(true);
            let name = old
                .status
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .name
                .clone();
            before.insert(name, old.task);
        }
        for (name, kind, settings, sender) in receivers(config) {
            let status = Arc::new(Mutex::new(ChannelStatus {
                name: name.clone(),
                kind,
                ..ChannelStatus::default()
            }));
            let (stop, stopped) = watch::channel(false);
            let (parts, shown) = (self.parts.clone(), status.clone());
            let before = before.remove(&name);
            let task = tokio::spawn(async move {
                if let Some(before) = before {
                    // What it could not note, the journal tells again.
                    let _ = before.await;
                }
                task::run(parts, name, settings, sender, shown, stopped).await;
            });
            running.push(Running { status, stop, task });
        }
    }

    /// How each receiver stands.
    #[must_use]
    pub fn status(&self) -> Vec<ChannelStatus> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |status: &Mutex<ChannelStatus>| {
            status
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone()
        };
        running.iter().map(|running| of(&running.status)).collect()
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        let running = self
            .running
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for running in running.drain(..) {
            running.task.abort();
        }
    }
}

/// A way to one receiver.
#[derive(Clone)]
enum Sender {
    Webhook(webhook::Sender),
    Smtp(smtp::Sender),
}

/// Why a message did not arrive.
#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error("{0}")]
    Webhook(#[from] webhook::SendError),
    #[error("{0}")]
    Smtp(#[from] smtp::SendError),
}

impl SendError {
    fn failure(&self) -> core::Failure {
        match self {
            Self::Webhook(error) => error.failure(),
            Self::Smtp(error) => error.failure(),
        }
    }
}

impl Sender {
    async fn send(&self, gateway: &str, id: &str, message: &Message) -> Result<(), SendError> {
        match self {
            Self::Webhook(sender) => sender.send(gateway, id, message).await?,
            Self::Smtp(sender) => sender.send(gateway, id, message).await?,
        }
        Ok(())
    }
}

type Receiver = (Arc<str>, &'static str, Settings, Sender);

/// The receivers of a configuration. One that can't be made was refused when the configuration was read; a file that
/// has vanished since leaves the others working.
fn receivers(config: &Config) -> Vec<Receiver> {
    let settings = |min_priority, clears| Settings {
        group_ms: config.group.as_millis(),
        at_once: config.at_once,
        retry_max_ms: config.retry_max.as_millis(),
        give_up_ms: config.give_up.as_millis(),
        quiet: config.quiet.clone(),
        min_priority,
        clears,
    };
    let mut found = Vec::new();
    for webhook in &config.webhook {
        match webhook::Sender::new(webhook) {
            Ok(sender) => found.push((
                webhook.name.as_str().into(),
                "webhook",
                settings(webhook.min_priority, webhook.clears),
                Sender::Webhook(sender),
            )),
            Err(error) => tracing::error!(%error, "a receiver of alarms is left out"),
        }
    }
    for smtp in &config.smtp {
        match smtp::Sender::new(smtp) {
            Ok(sender) => found.push((
                smtp.name.as_str().into(),
                "smtp",
                settings(smtp.min_priority, smtp.clears),
                Sender::Smtp(sender),
            )),
            Err(error) => tracing::error!(%error, "a receiver of alarms is left out"),
        }
    }
    found
}

impl ChannelStatus {
    fn update(&mut self, counts: Counts, waiting: usize) {
        self.counts = counts;
        self.waiting = waiting;
    }
}
