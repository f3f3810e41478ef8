//! The way into NATS JetStream: each record once, in order, whatever is killed, cut, refilled or rolled back.
//!
//! Two lanes, a stream and a connection each, so that data never delays alarms: `LaneTask` moves what
//! [`drain::Drain`] decides. The drain is the only file that knows how exactly-once comes about, and has no
//! I/O; [`publisher`] is the only one that knows NATS; [`stream`] and [`doctor`] know how a stream must be.
//!
//! ```text
//! journal ─ prepare (filter, encode, split) ─ drain ─ publisher ─ stream
//!    ▲                                          │         │
//!    └──────────── cursor ◄── acknowledgement ◄─┴─────────┘
//!                                 └─► kv (last-known values, schemas)
//! ```

pub mod ask;
pub mod audit;
pub mod classify;
mod commands;
pub mod config;
mod connect;
pub mod doctor;
pub mod drain;
pub mod filter;
pub mod hooks;
pub mod hub;
pub mod kv;
mod lane;
mod meter;
mod prepare;
pub mod publisher;
pub mod quarantine;
pub mod source;
pub mod status;
pub mod stream;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use self::commands::Requests;
pub use self::config::Config;
pub use self::connect::ConnectError;
use self::drain::Limits;
use self::filter::Filters;
pub use self::hooks::{AckRequest, Answer, Hooks, Notice, WriteRequest};
use self::lane::{LaneTask, Shared};
use self::prepare::Preparer;
use self::publisher::{Nats, Uplink};
use self::quarantine::Quarantine;
use self::source::{Memory, Source};
use self::status::{LaneStatus, UplinkStatus};
use crate::buffer::record::{LANES, Lane};
use crate::pipeline::encode::Encoder;

/// Acknowledged records on their way to the buckets; a lane waits when they are not taken.
const ACKED: usize = 1024;

/// Longest wait of the alarms' lane between two tries: what an alarm may be late when a link is back. Data waits
/// longer, so that many gateways spread over more time.
const ALARMS_BACKOFF: Duration = Duration::from_secs(5);

/// Everything that a bridge stands on.
pub struct Parts {
    /// `[bridge]`.
    pub config: Config,
    /// The gateway's id.
    pub gateway: String,
    /// Bounds of the lanes, as `[bridge]` has them unless a test wants others.
    pub limits: Limits,
    /// The journal.
    pub source: Arc<dyn Source>,
    /// Where checkpoints are kept.
    pub memory: Arc<dyn Memory>,
    /// The folder in which `quarantine/` is made.
    pub data_dir: std::path::PathBuf,
    /// Calls into the gateway.
    pub hooks: Hooks,
}

/// A running bridge.
#[derive(Debug)]
pub struct BridgeHandle {
    status: [watch::Receiver<LaneStatus>; LANES.len()],
    stop: watch::Sender<Option<Instant>>,
    tasks: std::sync::Mutex<Vec<JoinHandle<()>>>,
}

impl BridgeHandle {
    /// Where the lanes stand, at most a quarter of a second old.
    #[must_use]
    pub fn status(&self) -> UplinkStatus {
        let [data, alarms] = &self.status;
        UplinkStatus::of(data.borrow().clone(), alarms.borrow().clone())
    }

    /// Follows one lane.
    #[must_use]
    pub fn watch(&self, lane: Lane) -> watch::Receiver<LaneStatus> {
        let [data, alarms] = &self.status;
        match lane {
            Lane::Data => data.clone(),
            Lane::Alarms => alarms.clone(),
        }
    }

    /// Sends what is there until `limit` is over, then ends. What is left waits for the next run.
    pub async fn stop(&self, limit: Duration) {
        self.stop.send_replace(Some(Instant::now() + limit));
        let tasks = std::mem::take(
            &mut *self
                .tasks
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner),
        );
        for task in tasks {
            // A lane ends by itself at the deadline; one that hangs is not waited for.
            let abort = task.abort_handle();
            if tokio::time::timeout(limit + Duration::from_secs(1), task)
                .await
                .is_err()
            {
                abort.abort();
            }
        }
    }
}

/// Starts the bridge to real servers. Must be called inside a tokio runtime.
///
/// # Errors
/// The configuration can't be used.
pub fn start(
    config: Config,
    gateway: &str,
    source: Arc<dyn Source>,
    memory: impl Memory,
    data_dir: &Path,
    hooks: Hooks,
) -> Result<BridgeHandle, config::ConfigError> {
    if let Some(error) = config.errors().into_iter().next() {
        return Err(error);
    }
    let uplink = Nats::new(config.clone(), gateway, &source.epoch());
    let limits = config.limits();
    Ok(spawn(
        Parts {
            config,
            limits,
            gateway: gateway.to_owned(),
            source,
            memory: Arc::new(memory),
            data_dir: data_dir.to_owned(),
            hooks,
        },
        uplink,
    ))
}

/// Starts the lanes over any uplink. Must be called inside a tokio runtime.
pub fn spawn<U: Uplink>(parts: Parts, uplink: U) -> BridgeHandle {
    let (stop, stopped) = watch::channel(None);
    let (data_status, data) = watch::channel(LaneStatus::default());
    let (alarm_status, alarms) = watch::channel(LaneStatus::default());
    let (acked, taken) = mpsc::channel(ACKED);
    let (data_client, data_clients) = watch::channel(None);
    let (alarm_client, alarm_clients) = watch::channel(None);
    let mut tasks = Vec::new();
    if parts.config.state.enabled {
        let buckets = kv::run(
            parts.config.clone(),
            parts.gateway.clone(),
            taken,
            data_clients,
            data.clone(),
        );
        tasks.push(tokio::spawn(buckets));
    }
    let requests = Requests::new(
        parts.gateway.clone(),
        parts.config.writes.clone(),
        parts.hooks.clone(),
    );
    tasks.push(tokio::spawn(commands::run(requests, alarm_clients)));
    let shared = Arc::new(Shared {
        data_acked: AtomicU64::new(parts.source.cursor(Lane::Data)),
        gateway: parts.gateway.clone(),
        epoch: parts.source.epoch(),
        source: parts.source,
        memory: parts.memory,
        hooks: parts.hooks,
        quarantine: Quarantine::below(&parts.data_dir),
        order: parts.config.order,
        status: [data_status, alarm_status],
        acked: parts.config.state.enabled.then_some(acked),
        clients: [data_client, alarm_client],
    });
    let uplink = Arc::new(uplink);
    let seed = seed(&parts.gateway);
    for (index, lane) in LANES.into_iter().enumerate() {
        let preparer = Preparer {
            encoder: Encoder::new(parts.gateway.clone(), parts.config.encoding.into()),
            filters: Filters::new(parts.config.filter.clone()),
        };
        let mut limits = parts.limits.clone();
        if lane == Lane::Alarms {
            limits.backfill_rate = None;
            limits.backoff_max = limits.backoff_max.min(ALARMS_BACKOFF);
        }
        let task = LaneTask::new(
            lane,
            shared.clone(),
            uplink.clone(),
            limits,
            preparer,
            seed.wrapping_add(index as u64),
        );
        tasks.push(tokio::spawn(task.run(stopped.clone())));
    }
    BridgeHandle {
        status: [data, alarms],
        stop,
        tasks: std::sync::Mutex::new(tasks),
    }
}

/// Differs between gateways and runs.
fn seed(gateway: &str) -> u64 {
    let time = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64);
    gateway.bytes().fold(time, |seed, byte| {
        seed.wrapping_mul(31).wrapping_add(u64::from(byte))
    })
}

#[cfg(test)]
mod tests;
