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
use super::{BrokerStats, Handle, Publish, PublishError};

/// A running engine.
pub struct NativeBroker {
    shell: Arc<Shell>,
    config: Config,
    addresses: Mutex<Vec<SocketAddr>>,
    doors: Mutex<Vec<JoinHandle<()>>>,
    tls: Option<SharedTls>,
    tls_addresses: Mutex<Vec<SocketAddr>>,
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
            Some(tls) => Some(Arc::new(RwLock::new(tls::load(tls)?))),
            None => None,
        };
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
            tls_addresses: Mutex::default(),
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
        let mut doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
        for (listeners, addresses, tls) in [
            (plain, &self.addresses, None),
            (secure, &self.tls_addresses, self.tls.clone()),
        ] {
            let mut addresses = addresses.lock().unwrap_or_else(PoisonError::into_inner);
            for (address, listener) in listeners {
                addresses.push(address);
                doors.push(tokio::spawn(accept(
                    listener,
                    Arc::clone(&self.shell),
                    door,
                    tls.clone(),
                )));
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

    /// Reads users, rights, certificate, key, client authorities and CRL again. Sessions go on with the rights they have; connections to come get the new ones.
    ///
    /// # Errors
    /// [`StartError`]; everything that was loaded before stays in force.
    pub fn reload(&self, config: &Config) -> Result<(), StartError> {
        let access = Arc::new(Access::load(config)?);
        if let (Some(shared), Some(tls)) = (&self.tls, &config.tls) {
            let fresh = tls::load(tls)?;
            *shared.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        }
        *self
            .shell
            .access
            .write()
            .unwrap_or_else(PoisonError::into_inner) = access;
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
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
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
                router.refused.list(),
            )
        });
        let ([connections, sessions, retained, publishes], dropped, refused) =
            counted.unwrap_or_default();
        BrokerStats {
            engine: "native",
            connections,
            sessions,
            retained,
            publishes,
            dropped,
            refused,
        }
    }
}

#[cfg(test)]
mod tests;
