//! The gateway as a process: build, wire, spawn, watch, drain.
//!
//! Order of start: journal and state are recovered, the broker gets this host's STATE, the pipeline and the bridge
//! start, and only then listeners are bound. Nothing outside of the box is a condition: network, DNS, NATS and a
//! right clock may all be missing.
//!
//! Order of stop: listeners and sessions close, the pipeline finishes what is queued, everything is synced, a last
//! checkpoint is written, the bridge gets a short time to drain.

mod progress;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use sparkplug::host::{HostSession, ServerId};
use tokio::sync::{mpsc, watch};

use crate::actuation::Actuation;
use crate::admin::http::Doors;
use crate::audit;
use crate::background::Background;
use crate::broker::engine::{Engine, Setup};
use crate::broker::{Delivery, Handle, Publish, Qos};
use crate::buffer::{DiskStorage, Journal};
use crate::clock::{Clock, Now};
use crate::config::Config;
use crate::pipeline::checkpoint::Checkpointer;
use crate::pipeline::core::{Core, Settings};
use crate::pipeline::own::{self, Own};
use crate::pipeline::shard::Rules;
use crate::pipeline::task::{CoreThread, Parts};
use crate::pipeline::texts::Texts;
use crate::pipeline::{Answer, recover};
use crate::prepare::{self, Prepared};
use crate::rollout::Rollouts;

/// Messages between broker and pipeline; when it is full, the broker stops reading sockets.
const INBOX: usize = 8_192;
/// Answers of models between runner and pipeline.
const ANSWERS: usize = 4_096;
/// How long a clean stop waits for the bridge to finish what is in flight.
const BRIDGE_DRAIN: Duration = Duration::from_millis(1_500);
/// What each few thousand replayed records may take before the service manager gives up, µs.
const REPLAY_STEP_USEC: u32 = 60_000_000;
/// How long a clean stop waits until other brokers have this host's death.
const LINKS_LEAVE: Duration = Duration::from_millis(2_500);
/// How long a clean stop waits for the journal.
const JOURNAL_CLOSE: Duration = Duration::from_secs(3);
/// Entries of the audit log whose ids are known again after a restart.
const REMEMBERED: usize = 8_192;

/// A gateway that is built and not yet running.
pub struct Gateway {
    config: Config,
    shared: Arc<crate::admin::Shared>,
    doors: Doors,
    broker: Arc<Engine>,
    core: CoreThread,
    links: Arc<crate::host::Links>,
    journal: Journal,
    models: Option<Arc<models::Runner>>,
    audit: audit::Follower,
    ready: watch::Sender<bool>,
    background: Background,
}

/// Why a running gateway ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// It was asked to.
    Asked,
    /// Something it can't do without has failed; the service manager starts it again.
    Failed(String),
}

/// Addresses of a running gateway.
#[derive(Debug, Clone)]
pub struct Addresses {
    /// Embedded broker.
    pub mqtt: Vec<std::net::SocketAddr>,
    /// Page and API.
    pub admin: Option<std::net::SocketAddr>,
}

impl Gateway {
    /// Recovers, wires and starts everything but the listeners.
    ///
    /// # Errors
    /// What can't be opened or bound, with its place.
    pub async fn build(prepared: Prepared) -> anyhow::Result<Self> {
        let started = Instant::now();
        let background = Background::start().context("background runtime")?;
        let Prepared {
            loaded,
            packs,
            registry,
            texts,
            model_errors,
            token,
        } = prepared;
        let config = loaded.value;
        let configured = crate::admin::configured::Configured::new(config.clone(), &packs);
        for error in &model_errors {
            tracing::error!(error, "model not activated");
        }

        let before = crate::data_folder::open(&config.gateway.data_dir)?;
        if !before.version.is_empty() && before.version != env!("CARGO_PKG_VERSION") {
            tracing::info!(
                from = before.version,
                to = env!("CARGO_PKG_VERSION"),
                "data taken over from another version"
            );
        }
        let folder = prepare::journal_folder(&config);
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("journal folder {}", folder.display()))?;
        let storage = Arc::new(
            DiskStorage::open(&folder).with_context(|| format!("journal {}", folder.display()))?,
        );
        let (journal, recovery) = Journal::open(storage, prepare::buffer_config(&config))
            .with_context(|| format!("journal {}", folder.display()))?;
        journal.set_bridged(config.bridge.is_some());
        prepare::check_identity(&config, &journal)?;
        #[cfg(feature = "cold")]
        if let Some(cold) = &config.buffer.cold {
            crate::buffer::cold::start(
                &journal,
                cold,
                &config.gateway.id,
                background.handle().clone(),
            )
            .context("cold tier")?;
        }
        for gap in &recovery.gaps {
            tracing::error!(
                from = gap.from,
                to = gap.to,
                records = gap.count,
                cause = gap.cause,
                "records are lost"
            );
        }
        let state = crate::state::open(
            &prepare::state_folder(&config),
            crate::state::Options::default(),
        )
        .context("state store")?;
        if let crate::state::Source::Rebuilt { reason, .. } = &state.source {
            tracing::error!(
                reason,
                "the state store was damaged and is rebuilt from its snapshot and the journal"
            );
        }
        let store = Arc::new(state);
        let meta = recover::meta(store.as_ref()).context("state store")?;
        let clock = Arc::new(Clock::continue_from(
            recovery.engine_ms_base.max(meta.map_or(0, |m| m.engine_ms)),
            meta.map_or(0, |m| m.wall_ms),
        ));
        let now = clock.now();

        let mut host = HostSession::new(prepare::host_config(&config), now.engine_ms);
        let mut rules = Rules::new(
            packs,
            rules::Limits::default(),
            config.rules.workers.get().into(),
        );
        let (answer, answers) = mpsc::channel(ANSWERS);
        let preference = prepare::preference(&config);
        let embedder = texts
            .as_ref()
            .map(|setup| {
                let tell = answer.clone();
                // The models' own threads may wait: nothing else depends on them.
                setup.start(&preference, move |event| {
                    let _ = tell.blocking_send(Answer::Text(event));
                })
            })
            .transpose()?;
        let phrases = rules.phrases();
        let phrased = embedder.as_ref().is_none_or(|embedder| {
            crate::texts::at_start(embedder, &phrases, |phrase, vector| {
                rules.set_phrase(phrase, vector);
            })
        });
        let mut actuation = Actuation::new(prepare::write_limits(&config));
        let mut restored =
            recover::load(store.as_ref(), now, &mut host, &mut rules, &mut actuation)
                .context("state store")?;
        let settings = Settings {
            gateway: config.gateway.id.clone(),
            epoch: recovery.epoch.clone(),
            dry_run: config.rules.dry_run,
            confirm_timeout_ms: config.writes.confirm_timeout.as_millis(),
            raw: config
                .bridge
                .as_ref()
                .is_some_and(|bridge| !bridge.raw.is_empty()),
        };
        let audit_head = crate::state::StateStore::get(store.as_ref(), audit::KEY)
            .context("state store")?
            .and_then(|bytes| audit::Head::decode(&bytes))
            .unwrap_or_default();
        let audit_folder = prepare::audit_folder(&config);
        let audit_log = audit::Log::open(&audit_folder, config.writes.audit_max.0, &audit_head)
            .context("audit log")?;
        let audit_broken = audit_log.is_broken();
        let audit_log = audit::catch_up(audit_log, &journal, &audit_head);
        let windows = registry.as_ref().map(prepare::windower);
        let mut core = Core::new(settings, host, rules, windows, actuation, recovery.last_id);
        if let Some(setup) = &texts {
            let manifest = &setup.manifest;
            let version = manifest.vector_version.clone();
            let mut texts = Texts::new(version, manifest.metrics.iter().cloned());
            let kept = restored.texts.iter();
            texts.restore(kept.map(|(place, bytes)| (*place, bytes.as_slice())));
            core.set_texts(texts);
        }
        recall(
            &mut core,
            &audit_folder,
            restored.meta.map_or(0, |m| m.record),
        );
        core.replay(
            &journal,
            restored.meta.map_or(0, |m| m.record),
            &mut restored,
            &mut |records| {
                tracing::info!(records, "replaying");
                let _ = sd_notify::notify(&[sd_notify::NotifyState::ExtendTimeoutUsec(
                    REPLAY_STEP_USEC,
                )]);
            },
        )
        .context("replay of the journal")?;
        if let (Some(embedder), Some(texts)) = (&embedder, core.texts()) {
            embedder.recall(texts.alarms().cloned().collect())?;
        }
        core.check_births();
        // Whatever was live before the restart is stale until its node speaks.
        core.host_mut()
            .disconnected(ServerId(0), now.engine_ms, now.wall_ms);
        for server in crate::host::servers(&config.host.server) {
            core.host_mut().expect(server);
            core.host_mut()
                .disconnected(server, now.engine_ms, now.wall_ms);
        }
        tracing::info!(
            records = restored.replayed,
            nodes = restored.nodes,
            rule_keys = restored.keys,
            completed = restored.completed,
            took_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
            "recovered"
        );

        let (sink, deliveries) = mpsc::channel::<Delivery>(INBOX);
        let broker = Arc::new(start_broker(&config, sink)?);
        announce(core.host_mut(), now, broker.as_ref());

        let models = registry
            .map(|registry| {
                let tell = answer.clone();
                models::Runner::spawn(registry, models::RunnerConfig::default(), move |event| {
                    let _ = tell.blocking_send(Answer::Model(event));
                })
                .map(Arc::new)
            })
            .transpose()?;
        let rollouts = models.as_ref().map(|runner| {
            Arc::new(Rollouts::new(
                runner.clone(),
                prepare::model_sources(&config),
                preference,
                prepare::rollout_file(&config),
            ))
        });
        let checkpointer = Checkpointer::spawn(store.clone())?;
        let exports = checkpointer.export_door();
        let (links, remotes) = crate::host::prepare(
            &config.host.server,
            config.host_id(),
            usize::try_from(config.mqtt.max_packet.0).unwrap_or(usize::MAX),
            &crate::broker::subject_check(&config.gateway.id),
        )?;
        let (follower, audit_sender) = audit::Follower::spawn(audit_log, journal.clone())?;
        let audit_heads = follower.heads();
        let core = CoreThread::spawn(Parts {
            core,
            clock: clock.clone(),
            journal: journal.clone(),
            broker: broker.clone(),
            deliveries,
            remotes,
            runner: models.clone(),
            rollouts: rollouts.clone(),
            embedder: embedder.clone(),
            answers: (answer, answers),
            checkpointer,
            durable_ack: config.mqtt.ack == crate::broker::config::Ack::Durable,
            audit: (audit_sender, audit_heads.clone()),
        })?;
        if audit_broken {
            tracing::error!(
                entry = audit_head.seq,
                hash = audit_head.hash,
                "the audit log was changed from outside"
            );
            let message = format!(
                "the audit log does not hold entry {} that this gateway wrote; run `sparkgate audit verify`",
                audit_head.seq
            );
            core.handle
                .ask(move |core, now, ports| {
                    let own = Own::event(own::AUDIT, "audit_broken", "", &message, true);
                    core.tell(now, own, ports);
                })
                .await?;
        }

        let links = Arc::new(links.start());

        if !phrased {
            tokio::spawn(crate::texts::supply(core.handle.clone(), embedder.clone()));
        }
        let store = store as Arc<dyn crate::state::StateStore>;
        let notifier = crate::notify::Notifier::start(
            &config.notify,
            &config.gateway.id,
            journal.clone(),
            store.clone(),
            clock.clone(),
        );
        let bridge = match &config.bridge {
            Some(bridge) => {
                let _its_tasks_wait_behind_data = background.handle().enter();
                Some(Arc::new(crate::bridge::start(
                    bridge.clone(),
                    &config.gateway.id,
                    Arc::new(journal.clone()),
                    store,
                    &config.gateway.data_dir,
                    crate::admin::api::cloud_hooks(core.handle.clone(), config.gateway.id.clone()),
                )?))
            }
            None => None,
        };

        let doors = Doors::bind(config.admin.listen, &config.gateway.runtime_folder()).await?;
        let (ready, ready_seen) = watch::channel(false);
        let shared = Arc::new(crate::admin::Shared {
            core: core.handle.clone(),
            journal: journal.clone(),
            broker: broker.clone(),
            links: links.clone(),
            bridge,
            notifier,
            models: models.clone(),
            rollouts,
            embedder,
            audit: crate::admin::audit::Place {
                folder: audit_folder,
                heads: audit_heads,
            },
            gateway: config.gateway.id.clone(),
            started,
            started_ms: now.wall_ms,
            configured,
            certificates: crate::admin::certificates::Certificates::watch(
                prepare::certificate_files(&config),
            )
            .await,
            hosts: config.admin.hosts.clone().into(),
            tokens: crate::admin::auth::Tokens::new(token),
            metrics: crate::admin::metrics::Exporter::new(),
            exports,
            ready: ready_seen,
        });
        Ok(Self {
            config,
            shared,
            doors,
            broker,
            core,
            links,
            journal,
            models,
            audit: follower,
            ready,
            background,
        })
    }

    /// Binds the broker's listeners, serves, and returns when `stop` turns true or something essential fails.
    ///
    /// # Errors
    /// A listener that can't be bound.
    pub async fn run(
        self,
        mut stop: watch::Receiver<bool>,
        on_ready: impl FnOnce(&Addresses, &Arc<crate::admin::Shared>),
    ) -> anyhow::Result<Ended> {
        // Ends after all that runs on it.
        let background = self.background;
        let (halt, halted) = watch::channel(false);
        let addresses = Addresses {
            mqtt: Vec::new(),
            admin: self.doors.address(),
        };
        let admin = background
            .handle()
            .spawn(self.doors.serve(self.shared.clone(), halted));
        #[cfg(feature = "otlp")]
        if let Some(collector) = self.config.collector() {
            let every = Duration::from_millis(self.config.telemetry.every.as_millis());
            background.handle().spawn(crate::admin::otlp::send(
                self.shared.clone(),
                collector.to_owned(),
                every,
            ));
        }
        self.broker.listen().await.context("embedded broker")?;
        let addresses = Addresses {
            mqtt: self.broker.local_addrs(),
            ..addresses
        };
        let _ = self.ready.send(true);
        tracing::info!(
            gateway = self.config.gateway.id,
            mqtt = ?addresses.mqtt,
            admin = ?addresses.admin,
            "ready"
        );
        on_ready(&addresses, &self.shared);

        let mut core_ended = self.core.ended();
        let mut journal_failed = self.journal.failed();
        let mut broker_failed = self.broker.failure();
        let ended = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => Ended::Asked,
            _ = core_ended.wait_for(|ended| *ended) => Ended::Failed("the pipeline's thread ended".to_owned()),
            failed = journal_failed.wait_for(Option::is_some) => {
                Ended::Failed(format!("journal: {}", failed.ok().and_then(|f| f.clone()).unwrap_or_default()))
            }
            failed = broker_failed.wait_for(Option::is_some) => {
                Ended::Failed(format!("broker: {}", failed.ok().and_then(|f| f.as_ref().map(ToString::to_string)).unwrap_or_default()))
            }
        };
        let _ = self.ready.send(false);
        tracing::info!(reason = ?ended, "stopping");
        self.broker
            .stop(Instant::now() + Duration::from_millis(500))
            .await;
        let core = self.core;
        let follower = self.audit;
        tokio::task::spawn_blocking(move || {
            core.stop();
            follower.join();
        })
        .await
        .context("pipeline")?;
        // Each has this host's death in its queue.
        self.links.stop(LINKS_LEAVE).await;
        if let Some(bridge) = &self.shared.bridge {
            bridge.stop(BRIDGE_DRAIN).await;
        }
        if let Some(embedder) = &self.shared.embedder {
            embedder.stop();
        }
        if let Some(models) = &self.models {
            models.stop(Duration::from_millis(500));
        }
        let _ = halt.send(true);
        admin.abort();
        let journal = self.journal;
        let closed = tokio::task::spawn_blocking(move || journal.close(JOURNAL_CLOSE))
            .await
            .context("journal")?;
        if let Err(error) = closed {
            tracing::error!(%error, "the journal did not close cleanly; a restart recovers it");
        }
        Ok(ended)
    }
}

/// Listings and the memory of ids go on where they were before the restart; what the journal has after the checkpoint
/// comes with its replay.
fn recall(core: &mut Core, folder: &std::path::Path, up_to: u64) {
    let entries = audit::Log::tail(folder, REMEMBERED).unwrap_or_else(|error| {
        tracing::error!(%error, "the audit log can't be read; ids of earlier writes are not known");
        Vec::new()
    });
    for entry in entries {
        let before = entry
            .get("record")
            .and_then(serde_json::Value::as_u64)
            .is_some_and(|record| record <= up_to);
        let is_write = entry.get("what").and_then(serde_json::Value::as_str) == Some("command");
        if before
            && is_write
            && let Some(body) = entry.get("body")
        {
            core.recall_write(body);
        }
    }
}

fn start_broker(config: &Config, sink: mpsc::Sender<Delivery>) -> anyhow::Result<Engine> {
    let mut taps = vec!["spBv1.0/#".to_owned()];
    taps.extend(
        config
            .bridge
            .iter()
            .flat_map(|bridge| bridge.raw.iter().cloned()),
    );
    let state_dir = config
        .mqtt
        .persistence
        .then(|| config.gateway.data_dir.join("mqtt"));
    Engine::start(Setup {
        config: config.mqtt.clone(),
        state_dir,
        taps,
        topic_check: Some(crate::broker::subject_check(&config.gateway.id)),
        sink,
    })
    .context("embedded broker")
}

/// Puts this host's STATE in place before any client can connect.
fn announce(host: &mut HostSession, now: Now, broker: &dyn Handle) {
    // tck-id-operational-behavior-host-application-connect-birth: the birth comes first. The embedded broker has no
    // connection that could break, so that the will is what a stop or a restart publishes.
    host.connect(ServerId(0), now.engine_ms, now.wall_ms);
    host.subscribed(ServerId(0), now.engine_ms);
    while let Some(transmit) = host.poll_transmit() {
        let published = broker.publish(Publish {
            topic: transmit.topic.into(),
            payload: transmit.payload.into(),
            qos: Qos::AtLeastOnce,
            retain: transmit.retain,
            on_written: None,
        });
        if let Err(error) = published {
            tracing::error!(%error, "STATE could not be published");
        }
    }
}

/// Feeds the service manager's watchdog while everything moves, with a line on how it goes; see `progress`.
pub async fn watchdog(shared: Arc<crate::admin::Shared>, period: Duration) {
    let mut progress = progress::Progress::new(Instant::now());
    let mut told = None;
    let mut ticks = tokio::time::interval(period / 3);
    loop {
        ticks.tick().await;
        let stat = shared.journal.stat();
        // A round trip through the broker's lock: a core that hangs would not answer.
        let broker = shared.broker.clone();
        let answer = tokio::task::spawn_blocking(move || broker.stats().connections);
        let seen = progress::Seen {
            broker: matches!(tokio::time::timeout(period / 4, answer).await, Ok(Ok(_))),
            beats: shared.core.beats(),
            durable: shared.journal.durable_id(),
            unsynced: stat.unsynced_bytes,
            fsync: stat.fsync_in_flight_ms.map(Duration::from_millis),
            commit: shared.exports.commit_in_flight(),
        };
        match progress.look(Instant::now(), seen) {
            Ok(()) => {
                told = None;
                let counts = shared.journal.counts();
                let uplink = shared
                    .bridge
                    .as_ref()
                    .map_or("none", |bridge| bridge.status().state.as_str());
                let line = format!(
                    "received {}, pending {}, uplink {uplink}",
                    counts.received, counts.pending
                );
                let _ = sd_notify::notify(&[
                    sd_notify::NotifyState::Watchdog,
                    sd_notify::NotifyState::Status(&line),
                ]);
            }
            Err(stuck) => {
                if told.replace(stuck) != Some(stuck) {
                    tracing::error!(
                        part = stuck.as_str(),
                        "no progress: the watchdog is not fed, and the service manager will start this process anew"
                    );
                }
            }
        }
    }
}
