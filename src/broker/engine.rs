//! One face for the engines, chosen by `[mqtt] engine`.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Instant;

use tokio::sync::{mpsc, watch};

use super::config::{Config, EngineName};
#[cfg(feature = "rumqttd")]
use super::engine_rumqttd::RumqttdBroker;
use super::native::{AccessError, NativeBroker, TlsError};
pub use super::shell::Failure;
use super::topic::TopicCheck;
use super::{BrokerStats, Delivery, Handle, Publish, PublishError};

/// What an engine needs of the gateway.
pub struct Setup {
    /// `[mqtt]`.
    pub config: Config,
    /// Folder for retained messages and sessions; `None`: nothing outlives the process.
    pub state_dir: Option<PathBuf>,
    /// Filters whose publishes are handed to the pipeline, such as `spBv1.0/#`.
    pub taps: Vec<String>,
    /// A check of topic names beyond MQTT's own; see [`super::subject_check`].
    pub topic_check: Option<TopicCheck>,
    /// Where publishes and events go. When it is full, clients are not read.
    pub sink: mpsc::Sender<Delivery>,
}

/// Why an engine can't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address can't be bound.
    #[error("can't listen on {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// The folder for retained messages and sessions is not usable.
    #[error("can't use {}", dir.display())]
    State {
        /// The folder.
        dir: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Certificates can't be loaded.
    #[error("[mqtt.tls]")]
    Tls(#[from] TlsError),
    /// Users or rights can't be loaded.
    #[error("users or rights")]
    Access(#[from] AccessError),
    /// A thread or runtime of the engine can't be made.
    #[error("can't start a thread")]
    Thread(#[source] io::Error),
    /// The engine of this name is not in this build.
    #[error("engine {0:?} is not in this build")]
    Missing(EngineName),
    /// The engine has already failed.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// A running engine.
pub enum Engine {
    /// The gateway's own.
    Native(NativeBroker),
    /// rumqttd 0.20, embedded.
    #[cfg(feature = "rumqttd")]
    Rumqttd(RumqttdBroker),
}

/// Does the same with whichever engine runs.
macro_rules! each {
    ($self:expr, $engine:ident => $does:expr) => {
        match $self {
            Engine::Native($engine) => $does,
            #[cfg(feature = "rumqttd")]
            Engine::Rumqttd($engine) => $does,
        }
    };
}

impl Engine {
    /// Builds the configured engine and starts its tasks on the present tokio runtime. No address is bound yet, so
    /// that the gateway's retained STATE can be put in place first.
    ///
    /// # Errors
    /// [`StartError`] where files are not usable, or the engine is not in this build.
    pub fn start(setup: Setup) -> Result<Self, StartError> {
        match setup.config.engine {
            EngineName::Native => NativeBroker::start(setup).map(Self::Native),
            #[cfg(feature = "rumqttd")]
            EngineName::Rumqttd => RumqttdBroker::start(setup).map(Self::Rumqttd),
            #[cfg(not(feature = "rumqttd"))]
            name @ EngineName::Rumqttd => Err(StartError::Missing(name)),
        }
    }

    /// Binds the configured addresses and accepts connections.
    ///
    /// # Errors
    /// [`StartError::Bind`] for the first address that can't be bound.
    pub async fn listen(&self) -> Result<(), StartError> {
        each!(self, engine => engine.listen().await)
    }

    /// Plain-TCP addresses that are bound, in the order of the configuration; rumqttd's for v5 come last.
    #[must_use]
    pub fn local_addrs(&self) -> Vec<SocketAddr> {
        each!(self, engine => engine.local_addrs())
    }

    /// Tells when the engine can't go on: the process has to end then.
    #[must_use]
    pub fn failure(&self) -> watch::Receiver<Option<Failure>> {
        each!(self, engine => engine.failure())
    }

    /// Reads users, rights, certificate, key, client authorities and CRL again, as far as the engine has them. Sessions
    /// go on with the rights they have.
    ///
    /// # Errors
    /// [`StartError`]; everything that was loaded before stays in force.
    pub fn reload(&self, config: &Config) -> Result<(), StartError> {
        each!(self, engine => engine.reload(config))
    }

    /// Closes listeners and connections, at most until `deadline`. Wills are not sent: a stop of the gateway says
    /// nothing about its clients.
    pub async fn stop(&self, deadline: Instant) {
        each!(self, engine => engine.stop(deadline).await);
    }
}

impl Handle for Engine {
    fn publish(&self, publish: Publish) -> Result<(), PublishError> {
        each!(self, engine => engine.publish(publish))
    }

    fn has_subscriber(&self, topic: &str) -> Option<bool> {
        each!(self, engine => engine.has_subscriber(topic))
    }

    fn stats(&self) -> BrokerStats {
        each!(self, engine => engine.stats())
    }
}
