//! The page, the JSON API and the metrics: what people and tools see of a running gateway.
//!
//! Two doors lead to the same routes: a TCP address (read-only without a token) and the admin socket, whose peer
//! credentials are both the authorisation and the name in the audit. Nothing here may delay data: each question
//! to the core is small and bounded, lists are read in pages, and slow readers of the event stream lose events
//! with a count.

pub mod api;
pub mod audit;
pub mod auth;
pub mod certificates;
pub mod configured;
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
    /// The configuration in force.
    pub configured: configured::Configured,
    /// How long certificate files are good for.
    pub certificates: certificates::Certificates,
    /// Names by which a proxy on this machine may ask; see `[admin] hosts`.
    pub hosts: Arc<[String]>,
    /// Who may write over TCP.
    pub tokens: auth::Tokens,
    /// Prometheus rendering.
    pub metrics: metrics::Exporter,
    /// Exports of the state for backups.
    pub exports: crate::pipeline::checkpoint::ExportDoor,
    /// Whether the service is ready; `Err` says what is missing.
    pub ready: tokio::sync::watch::Receiver<bool>,
}
