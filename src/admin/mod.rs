//! The page, the JSON API and the metrics: what people and tools see of a running gateway.
//!
//! Two doors lead to the same routes: a TCP address (read-only without a token) and the admin socket, whose peer
//! credentials are both the authorisation and the name in the audit. Nothing here may delay data: each question
//! to the core is small and bounded, lists are read in pages, and slow readers of the event stream lose events
//! with a count.

pub mod api;
pub mod audit;
pub mod auth;
pub mod devices;
pub mod events;
pub mod http;
pub mod metrics;
pub mod models;
#[cfg(feature = "otlp")]
pub mod otlp;
pub mod page;
pub mod status;

use std::sync::Arc;
use std::time::Instant;

use crate::broker::engine::Engine;
use crate::broker::{Handle, Validity};
use crate::buffer::Journal;
use crate::pipeline::task::CoreHandle;

/// What the routes look at.
pub struct Shared {
    /// The pipeline's core.
    pub core: CoreHandle,
    /// The journal.
    pub journal: Journal,
    /// The broker engine.
    pub broker: Arc<Engine>,
    /// Connections to other brokers.
    pub links: Arc<crate::host::Links>,
    /// The bridge, where one is configured.
    pub bridge: Option<Arc<crate::bridge::BridgeHandle>>,
    /// Who is told of alarms.
    pub notifier: crate::notify::Notifier,
    /// The model runner, where models are loaded.
    pub models: Option<Arc<::models::Runner>>,
    /// Changes models' versions.
    pub rollouts: Option<Arc<crate::rollout::Rollouts>>,
    /// The text model, where one is configured.
    pub embedder: Option<::models::text::Embedder>,
    /// The audit log.
    pub audit: audit::Place,
    /// Gateway id.
    pub gateway: String,
    /// When the process started.
    pub started: Instant,
    /// The same as ms UTC.
    pub started_ms: u64,
    /// SHA-256 of the configuration in force, hex.
    pub config_hash: std::sync::RwLock<String>,
    /// When the configuration in force was read, and what became of the last attempt.
    pub reloaded: std::sync::RwLock<Reloaded>,
    /// Certificate files of the bridge, by what for.
    pub certificate_files: Vec<(&'static str, std::path::PathBuf)>,
    /// Names by which a proxy on this machine may ask; see `[admin] hosts`.
    pub hosts: Arc<[String]>,
    /// Token for writes over TCP; `None`: writes go through the admin socket alone.
    pub token: Option<auth::Token>,
    /// Prometheus rendering.
    pub metrics: metrics::Exporter,
    /// Exports of the state for backups.
    pub exports: crate::pipeline::checkpoint::ExportDoor,
    /// Whether the service is ready; `Err` says what is missing.
    pub ready: tokio::sync::watch::Receiver<bool>,
}

/// The last reading of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Reloaded {
    /// ms UTC.
    pub at: u64,
    /// Mistakes that kept a changed file from being taken; 0: what was read is in force.
    pub mistakes: usize,
}

impl Reloaded {
    /// Read now.
    #[must_use]
    pub fn now(mistakes: usize) -> Self {
        Self {
            at: crate::clock::wall_ms(),
            mistakes,
        }
    }
}

impl Shared {
    /// The certificates in use: the broker's, and the bridge's files read anew, since they are replaced while this runs.
    #[must_use]
    pub fn certificates(&self) -> Vec<Validity> {
        let mut all = self.broker.stats().certificates;
        let files = self.certificate_files.iter();
        all.extend(files.filter_map(|(what, file)| Validity::of_file(what, file)));
        all
    }
}
