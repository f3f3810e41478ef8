//! The gateway's own MQTT engine.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::auth::Access;
pub use super::auth::AccessError;
use super::config::Config;
use super::engine::{Failure, Setup, StartError};
use super::link::Cause;
use super::listener::{Door, SharedTls, accept, bind};
use super::persist::{self, Outbox};
use super::router::{Moment, Router, Settings};
use super::shell::Shell;
use super::tls;
pub use super::tls::TlsError;
use super::validity::{REPEAT, Validity};
use super::websocket::Gate;
use super::{BrokerStats, Handle, Publish, PublishError};

/// The last write of the state may take this long at least.
const LAST_WRITE: Duration = Duration::from_secs(2);

/// What is told of certificates, exchanged with them.
type SharedValidity = Arc<RwLock<Vec<Validity>>>;

/// Says once a day which certificates end soon.
async fn warn_of_expiry(validity: SharedValidity) {
    loop {
        let now = SystemTime::now();
        let all = validity
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        all.iter().for_each(|validity| validity.warn(now));
        tokio::time::sleep(REPEAT).await;
    }
}

/// A running engine.
pub struct NativeBroker {
    shell: Arc<Shell>,
    config: Config,
    addresses: Mutex<Vec<SocketAddr>>,
    doors: Mutex<Vec<JoinHandle<()>>>,
    tls: Option<SharedTls>,
    validity: SharedValidity,
    tls_addresses: Mutex<Vec<SocketAddr>>,
    web_addresses: Mutex<Vec<SocketAddr>>,
    tasks: Vec<JoinHandle<()>>,
    writer: Mutex<Option<(Arc<Outbox>, thread::JoinHandle<()>)>>,
}

impl NativeBroker {
    /// Builds the engine and starts its tasks on the present tokio runtime. No address is bound yet, so that the
    /// gateway's retained STATE can be put in place first.
    ///
    /// # Errors
    /// [`StartError`] where files are not usable.
    pub fn start(setup: Setup) -> Result<Self, StartError> {
        let instance = SystemTime::UNIX_EPOCH
            .elapsed()
            .map_or(0, |d| u64::try_from(d.as_micros()).unwrap_or(0));
        let settings = Settings::new(&setup.config, setup.taps, setup.topic_check, instance);
        let tls = match &setup.config.tls {
            Some(tls) => Some(tls::load(tls)?),
            None => None,
        };
        let validity = tls
            .as_ref()
            .map(|tls| tls.validity.clone())
            .unwrap_or_default();
        let validity = Arc::new(RwLock::new(validity));
        let tls = tls.map(|tls| Arc::new(RwLock::new(tls.config)));
        let mut router = Router::new(settings);
        let mut outbox = None;
        if let Some(dir) = &setup.state_dir {
            let wrong = |source| StartError::State {
                dir: dir.clone(),
                source,
            };
            router.restore(persist::load(dir).map_err(wrong)?, Moment::present());
            router.record_changes();
            outbox = Some(Arc::new(Outbox::default()));
        }
        let access = Access::load(&setup.config)?;
        let shell = Shell::new(router, setup.sink, access, outbox.clone());
        shell.with(|router| router.handle_timeout(Instant::now()))?;
        let mut tasks = vec![
            tokio::spawn(Arc::clone(&shell).run_pump()),
            tokio::spawn(Arc::clone(&shell).run_timers()),
            tokio::spawn(warn_of_expiry(Arc::clone(&validity))),
        ];
        let mut writer = None;
        if let (Some(outbox), Some(dir)) = (outbox, setup.state_dir) {
            tasks.push(tokio::spawn(
                Arc::clone(&shell).run_saves(Arc::clone(&outbox)),
            ));
            let (shell, queue, place) = (Arc::clone(&shell), Arc::clone(&outbox), dir.clone());
            let thread = thread::Builder::new().name("mqtt-state".to_owned());
            let spawned = thread.spawn(move || persist::run(&shell, &queue, &place));
            writer = Some((
                outbox,
                spawned.map_err(|source| StartError::State { dir, source })?,
            ));
        }
        Ok(Self {
            shell,
            config: setup.config,
            addresses: Mutex::default(),
            doors: Mutex::default(),
            tls,
            validity,
            tls_addresses: Mutex::default(),
            web_addresses: Mutex::default(),
            tasks,
            writer: Mutex::new(writer),
        })
    }

    /// Binds the configured addresses and accepts connections.
    ///
    /// # Errors
    /// [`StartError::Bind`] for the first address that can't be bound; none is accepted on then.
    pub async fn listen(&self) -> Result<(), StartError> {
        let limits = &self.config.limits;
        let door = Door {
            connections: limits.connections,
            connections_per_address: limits.connections_per_address,
            connect_timeout: limits.connect_timeout.0,
            tls: None,
            websocket: None,
        };
        let bind_all = |list: &[SocketAddr]| {
            let one = |&address: &SocketAddr| {
                let bound = bind(address).and_then(|l| Ok((l.local_addr()?, l)));
                bound.map_err(|source| StartError::Bind { address, source })
            };
            list.iter().map(one).collect::<Result<Vec<_>, _>>()
        };
        let plain = bind_all(&self.config.listen)?;
        let secure = bind_all(self.config.tls.as_ref().map_or(&[], |tls| &tls.listen))?;
        let websocket = self.config.websocket.as_ref();
        let web = bind_all(websocket.map_or(&[], |ws| &ws.listen))?;
        let secure_door = Door {
            tls: self.tls.clone(),
            ..door.clone()
        };
        let web_door = Door {
            tls: self
                .tls
                .clone()
                .filter(|_| websocket.is_some_and(|ws| ws.tls)),
            websocket: websocket.map(|ws| Gate {
                max_message: usize::try_from(self.config.max_packet.0).unwrap_or(usize::MAX),
                origins: ws.origins.clone().into(),
            }),
            ..door.clone()
        };
        let mut doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
        for (listeners, addresses, door) in [
            (plain, &self.addresses, door),
            (secure, &self.tls_addresses, secure_door),
            (web, &self.web_addresses, web_door),
        ] {
            let mut addresses = addresses.lock().unwrap_or_else(PoisonError::into_inner);
            for (address, listener) in listeners {
                addresses.push(address);
                let shell = Arc::clone(&self.shell);
                doors.push(tokio::spawn(accept(listener, shell, door.clone())));
            }
        }
        Ok(())
    }

    /// Plain-TCP addresses that are bound, in the order of the configuration.
    #[must_use]
    pub fn local_addrs(&self) -> Vec<SocketAddr> {
        self.addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// TLS addresses that are bound, in the order of the configuration.
    #[must_use]
    pub fn tls_addrs(&self) -> Vec<SocketAddr> {
        self.tls_addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// WebSocket addresses that are bound, in the order of the configuration.
    #[must_use]
    pub fn websocket_addrs(&self) -> Vec<SocketAddr> {
        self.web_addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Reads users, rights, certificate, key, client authorities and CRL again. Sessions go on, with the new rights; a
    /// subscription that they no longer allow ends.
    ///
    /// # Errors
    /// [`StartError`]; everything that was loaded before stays in force.
    pub fn reload(&self, config: &Config) -> Result<(), StartError> {
        let access = Arc::new(Access::load(config)?);
        if let (Some(shared), Some(tls)) = (&self.tls, &config.tls) {
            let fresh = tls::load(tls)?;
            for validity in &fresh.validity {
                validity.warn(SystemTime::now());
            }
            *shared.write().unwrap_or_else(PoisonError::into_inner) = fresh.config;
            *self
                .validity
                .write()
                .unwrap_or_else(PoisonError::into_inner) = fresh.validity;
        }
        // First for those who come, then for those who are there: nobody slips in between with the old rights.
        *self
            .shell
            .access
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Arc::clone(&access);
        self.shell
            .with(|router| router.renew_rights(|user, client| access.rights(user, client)))?;
        Ok(())
    }

    /// Tells when the engine can't go on: the process has to end then.
    #[must_use]
    pub fn failure(&self) -> watch::Receiver<Option<Failure>> {
        self.shell.failure()
    }

    /// Closes the listeners, tells every client that the server shuts down, and waits until they are gone, at most
    /// until `deadline`. Wills are not sent: a stop of the gateway says nothing about its clients.
    pub async fn stop(&self, deadline: Instant) {
        for door in self
            .doors
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .drain(..)
        {
            door.abort();
        }
        let links = self.shell.with(|router| {
            router.stop();
            router.links().cloned().collect::<Vec<_>>()
        });
        for link in links.unwrap_or_default() {
            link.stop(Cause::Shutdown);
        }
        while self.shell.open() > 0 && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for task in &self.tasks {
            task.abort();
        }
        let writer = self
            .writer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some((outbox, thread)) = writer {
            outbox.stop();
            // Its last write is on the way; a panic in it has been told as a failure of the core.
            let joined = tokio::task::spawn_blocking(move || thread.join());
            let last = deadline.max(Instant::now() + LAST_WRITE);
            if tokio::time::timeout_at(last.into(), joined).await.is_err() {
                tracing::error!("the broker's state was not written in time: the disk hangs");
            }
        }
    }
}

impl Handle for NativeBroker {
    fn publish(&self, publish: Publish) -> Result<(), PublishError> {
        self.shell
            .with(|router| router.publish(Instant::now(), publish))
            .unwrap_or(Err(PublishError::Stopped))
    }

    fn has_subscriber(&self, topic: &str) -> Option<bool> {
        self.shell.with(|router| router.has_subscriber(topic)).ok()
    }

    fn stats(&self) -> BrokerStats {
        let counted = self.shell.with(|router| {
            (
                router.gauges(),
                router.dropped.list(),
                router.clients.refused(),
                router.clients.stats(Instant::now()),
            )
        });
        let ([connections, sessions, retained, publishes], dropped, refused, clients) =
            counted.unwrap_or_default();
        BrokerStats {
            engine: "native",
            connections,
            sessions,
            retained,
            unsaved_bytes: self.shell.unsaved(),
            publishes,
            dropped,
            refused,
            clients: Some(clients),
            certificates: self
                .validity
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
        }
    }
}

#[cfg(test)]
mod tests;
