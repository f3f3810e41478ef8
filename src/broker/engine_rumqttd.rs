//! rumqttd 0.20 as an engine. What it can't do is listed in `docs/broker.md`.
//!
//! Three parts of ours stand around it: a runtime of its own for listeners and connections, since rumqttd closes
//! connections only when their tasks are dropped; a thread that takes the taps' messages from its internal link, since
//! a link that is not drained loses messages; a thread that hands it our publishes, since its channel may block.
//!
//! *Invariant*: all own publishes reach the router in the order in which [`Echoes`] has them.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rumqttd::local::{LinkBuilder, LinkTx};
use rumqttd::protocol::v4::V4;
use rumqttd::protocol::v5::V5;
use rumqttd::protocol::{Packet, Publish as RumqttdPublish};
use rumqttd::{ConnectionSettings, LinkType, Router, RouterConfig, Server, ServerSettings};
use tokio::net::TcpSocket;
use tokio::runtime::{self, Runtime};
use tokio::sync::{mpsc, oneshot, watch};

use super::auth::{self, Access, Credentials};
use super::config::{Ack, Config};
use super::engine::{Failure, Setup, StartError};
use super::{BrokerStats, Handle, Publish, PublishError};

mod drain;
mod probe;

use drain::{Drain, Echoes, is_ours};
use probe::{Probe, Secret};

/// Our publishes that wait for the router.
const OUTBOX: usize = 8_192;
/// Messages that rumqttd hands to one connection at once.
const BURST: u64 = 200;
/// Segments of the log that rumqttd keeps for each filter.
const SEGMENTS: usize = 8;
/// Smallest segment, bytes.
const SEGMENT: usize = 64 << 10;

type Serving = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;
/// Serves one address with v3.1.1 (`false`) or v5. A closure, since the router's channel has a type without a name.
type Serve = Box<dyn Fn(ServerSettings, bool) -> Serving + Send + Sync>;

/// What the threads share.
struct Shared {
    failure: watch::Sender<Option<Failure>>,
    echoes: Mutex<Echoes>,
    publishes: AtomicU64,
    /// Messages that rumqttd's log had no more when their turn came, or that had expired.
    skipped: AtomicU64,
    topic_name: AtomicU64,
    subject_too_long: AtomicU64,
}

impl Shared {
    fn fail(&self, failure: Failure) {
        self.failure.send_if_modified(|current| {
            let first = current.is_none();
            current.get_or_insert(failure);
            first
        });
    }

    fn echoes(&self) -> MutexGuard<'_, Echoes> {
        self.echoes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running rumqttd.
pub struct RumqttdBroker {
    config: Config,
    serve: Serve,
    access: Arc<RwLock<Arc<Access>>>,
    /// Password of the probes.
    secret: Arc<Secret>,
    shared: Arc<Shared>,
    runtime: Mutex<Option<Runtime>>,
    addresses: Mutex<Vec<SocketAddr>>,
    outbox: Mutex<Option<mpsc::Sender<Publish>>>,
    stop: watch::Sender<bool>,
}

impl RumqttdBroker {
    /// Starts router and link. No address is bound yet.
    ///
    /// # Errors
    /// [`StartError`] where users can't be loaded or a thread can't be made.
    pub fn start(setup: Setup) -> Result<Self, StartError> {
        let Setup {
            config,
            taps,
            topic_check,
            sink,
            ..
        } = setup;
        if config.ack == Ack::Durable || config.persistence || config.certificates {
            tracing::warn!(
                "the rumqttd engine acknowledges before anything is stored, keeps nothing over a restart and offers no \
                 certificates: mqtt.ack, mqtt.persistence and mqtt.certificates have no effect"
            );
        }
        let access = Arc::new(RwLock::new(Arc::new(Access::load(&config)?)));
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("rumqttd")
            .enable_all()
            .build()
            .map_err(StartError::Thread)?;
        let router = Router::new(0, router_config(&config)).spawn();
        // A client of the same id would take the link over: it is not to be guessed.
        let id = format!("sparkgate-{:016x}", RandomState::new().hash_one(0));
        let (mut tx, rx, _) = LinkBuilder::new(&id, router.clone())
            .build()
            .map_err(|_| Failure::Core)?;
        // One subscription, for overlapping ones would hand a message over twice, and offsets show gaps.
        let filter = match taps.as_slice() {
            [only] => only.as_str(),
            _ => "#",
        };
        tx.subscribe(filter).map_err(|_| Failure::Core)?;

        let shared = Arc::new(Shared {
            failure: watch::Sender::new(None),
            echoes: Mutex::default(),
            publishes: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            topic_name: AtomicU64::new(0),
            subject_too_long: AtomicU64::new(0),
        });
        let stop = watch::Sender::new(false);
        let drain = Drain {
            rx,
            shared: Arc::clone(&shared),
            taps,
            topic_check,
            sink,
            next: None,
        };
        let (handle, halted) = (runtime.handle().clone(), stop.subscribe());
        named("mqtt-taps", move || handle.block_on(drain.run(halted)))?;
        let (outbox, waiting) = mpsc::channel(OUTBOX);
        let (handle, told) = (runtime.handle().clone(), Arc::clone(&shared));
        named("mqtt-out", move || handle.block_on(send(tx, waiting, told)))?;

        let serve: Serve = Box::new(move |settings, v5| {
            let router = router.clone();
            Box::pin(async move {
                let ended = if v5 {
                    Server::new(settings, router, V5)
                        .start(LinkType::Remote)
                        .await
                } else {
                    Server::new(settings, router, V4)
                        .start(LinkType::Remote)
                        .await
                };
                ended.map_err(|error| io::Error::other(error.to_string()))
            })
        });
        Ok(Self {
            config,
            serve,
            access,
            secret: Arc::new(Secret::new()),
            shared,
            runtime: Mutex::new(Some(runtime)),
            addresses: Mutex::default(),
            outbox: Mutex::new(Some(outbox)),
            stop,
        })
    }

    /// Binds the configured addresses, v3.1.1 first, and accepts connections.
    ///
    /// # Errors
    /// [`StartError::Bind`] for the first address that can't be bound.
    pub async fn listen(&self) -> Result<(), StartError> {
        let v4 = self.config.listen.iter().map(|address| (*address, false));
        let v5 = self.config.listen_v5.iter().map(|address| (*address, true));
        for (address, v5) in v4.chain(v5) {
            let wrong = |source| StartError::Bind { address, source };
            // rumqttd binds for itself and does not tell where: the port is reserved until it has it.
            let reserved = reserve(address).map_err(wrong)?;
            let local = reserved.local_addr().map_err(wrong)?;
            let serving = (self.serve)(self.settings(local), v5);
            let (bound, wait) = oneshot::channel();
            let shared = Arc::clone(&self.shared);
            {
                let runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
                let Some(runtime) = runtime.as_ref() else {
                    return Err(Failure::Listener.into());
                };
                let listener = runtime.spawn(watched(serving, bound));
                let probe = Probe::new(local, v5, Arc::clone(&self.secret));
                runtime.spawn(async move {
                    tokio::select! {
                        // It ends by an error or a panic only.
                        _ = listener => {}
                        () = probe.until_silent() => {
                            tracing::error!(address = %local, "a listener of rumqttd takes nobody any more");
                        }
                    }
                    shared.fail(Failure::Listener);
                });
            }
            match wait.await {
                Ok(Ok(())) => {}
                Ok(Err(source)) => return Err(wrong(source)),
                Err(_) => return Err(Failure::Listener.into()),
            }
            drop(reserved);
            self.addresses
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(local);
        }
        Ok(())
    }

    fn settings(&self, listen: SocketAddr) -> ServerSettings {
        let config = &self.config;
        let millis = config.limits.connect_timeout.0.as_millis();
        let mut connections = ConnectionSettings {
            connection_timeout_ms: u16::try_from(millis).unwrap_or(u16::MAX),
            max_payload_size: usize::try_from(config.max_packet.0).unwrap_or(usize::MAX),
            max_inflight_count: usize::from(config.limits.inflight),
            auth: None::<HashMap<String, String>>,
            external_auth: None,
            dynamic_filters: false,
        };
        // Without a handler rumqttd lets everybody in; with one it refuses those without a name.
        if config.users_file.is_some() {
            let (access, secret) = (Arc::clone(&self.access), Arc::clone(&self.secret));
            connections.set_auth_handler(move |_client: String, user: String, password: String| {
                let access = Arc::clone(&access.read().unwrap_or_else(PoisonError::into_inner));
                let probing = secret.is(&password);
                async move {
                    if probing {
                        return true;
                    }
                    let login = Credentials::login(&user, password.into());
                    auth::authenticate(access, login).await.is_ok()
                }
            });
        }
        ServerSettings {
            name: listen.to_string(),
            listen,
            tls: None,
            next_connection_delay_ms: 0,
            connections,
        }
    }

    /// Addresses that are bound, v3.1.1 first, in the order of the configuration.
    #[must_use]
    pub fn local_addrs(&self) -> Vec<SocketAddr> {
        self.addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Reads the users again. Connections go on.
    ///
    /// # Errors
    /// [`StartError::Access`]; the users that were loaded before stay in force.
    pub fn reload(&self, config: &Config) -> Result<(), StartError> {
        let access = Arc::new(Access::load(config)?);
        *self.access.write().unwrap_or_else(PoisonError::into_inner) = access;
        Ok(())
    }

    /// Tells when the router's thread or a listener has ended: the process has to end then.
    #[must_use]
    pub fn failure(&self) -> watch::Receiver<Option<Failure>> {
        self.shared.failure.subscribe()
    }

    /// Drops listeners and connections and ends our threads; what waits for the router is sent first, at most until
    /// `deadline`. rumqttd's router thread knows no end but the process's.
    pub async fn stop(&self, deadline: Instant) {
        let outbox = self
            .outbox
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(outbox) = outbox {
            while outbox.capacity() < outbox.max_capacity() && Instant::now() < deadline {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        self.stop.send_replace(true);
        let runtime = self
            .runtime
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(runtime) = runtime {
            runtime.shutdown_background();
        }
    }
}

impl Drop for RumqttdBroker {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        let runtime = self
            .runtime
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        // Dropping a runtime waits, which is forbidden in a task of another one.
        if let Some(runtime) = runtime {
            runtime.shutdown_background();
        }
    }
}

impl Handle for RumqttdBroker {
    fn publish(&self, publish: Publish) -> Result<(), PublishError> {
        let outbox = self.outbox.lock().unwrap_or_else(PoisonError::into_inner);
        let outbox = outbox.as_ref().ok_or(PublishError::Stopped)?;
        let permit = outbox.try_reserve().map_err(|error| match error {
            mpsc::error::TrySendError::Full(()) => PublishError::Full,
            mpsc::error::TrySendError::Closed(()) => PublishError::Stopped,
        })?;
        // Before it is sent, and under the outbox's lock: the echo can't come first, and order is one.
        if is_ours(&publish.topic) {
            self.shared
                .echoes()
                .expect(Arc::clone(&publish.topic), publish.payload.clone());
        }
        permit.send(publish);
        Ok(())
    }

    fn has_subscriber(&self, _topic: &str) -> Option<bool> {
        None
    }

    fn stats(&self) -> BrokerStats {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let dropped = [
            ("rumqttd_log", &self.shared.skipped),
            ("topic_name", &self.shared.topic_name),
            ("subject_too_long", &self.shared.subject_too_long),
        ];
        BrokerStats {
            engine: "rumqttd",
            publishes: read(&self.shared.publishes),
            dropped: dropped
                .into_iter()
                .map(|(reason, count)| (reason, read(count)))
                .filter(|(_, count)| *count > 0)
                .collect(),
            ..BrokerStats::default()
        }
    }
}

fn router_config(config: &Config) -> RouterConfig {
    // rumqttd keeps a log of this size for each filter that was ever subscribed to.
    let log = usize::try_from(config.max_memory.0 / 4).unwrap_or(usize::MAX);
    RouterConfig {
        // One for our link.
        max_connections: config.limits.connections.saturating_add(1),
        max_outgoing_packet_count: BURST,
        max_segment_size: (log / SEGMENTS).max(SEGMENT),
        max_segment_count: SEGMENTS,
        ..RouterConfig::default()
    }
}

fn named(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), StartError> {
    let thread = thread::Builder::new().name(name.to_owned());
    thread.spawn(body).map(drop).map_err(StartError::Thread)
}

/// Holds an address without listening, so that another socket of this process may bind and listen.
fn reserve(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Serves, and tells after the first step, in which the address is bound, how that went.
async fn watched(mut serving: Serving, bound: oneshot::Sender<io::Result<()>>) {
    match poll_fn(|cx| Poll::Ready(serving.as_mut().poll(cx))).await {
        Poll::Ready(ended) => {
            let ended = ended.and(Err(io::ErrorKind::UnexpectedEof.into()));
            // The one who waits is gone where the gateway stops.
            let _ = bound.send(ended);
        }
        Poll::Pending => {
            let _ = bound.send(Ok(()));
            if let Err(error) = serving.await {
                tracing::error!(%error, "a listener of rumqttd ended");
            }
        }
    }
}

/// Hands our publishes to the router until the outbox is closed.
async fn send(mut tx: LinkTx, mut waiting: mpsc::Receiver<Publish>, shared: Arc<Shared>) {
    while let Some(publish) = waiting.recv().await {
        let topic = Bytes::copy_from_slice(publish.topic.as_bytes());
        let packet = RumqttdPublish::new(topic, publish.payload, publish.retain);
        if tx.send(Packet::Publish(packet, None)).await.is_err() {
            shared.fail(Failure::Core);
            return;
        }
        if let Some(written) = publish.on_written {
            written.tell(Instant::now());
        }
    }
}
