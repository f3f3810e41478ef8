//! The thread that owns a [`Core`]: the only place where the pipeline meets channels, clocks and threads.
//!
//! One thread, so that a device's messages, the rules' timers and people's requests have one order. Its queue is
//! bounded: when it is full, the broker stops reading sockets.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sparkplug::host::ServerId;
use tokio::sync::{mpsc, oneshot, watch};

use super::core::Core;
use super::remote::{self, Outbox, Remotes};
use super::{Answer, Appended, Ports, Unsent, rollouts};
use crate::audit;
use crate::broker::{Delivery, Handle, Publish, PublishError, Qos, Written};
use crate::buffer::record::NewRecord;
use crate::buffer::{AppendError, Journal};
use crate::clock::{Clock, Now};

use super::checkpoint::Checkpointer;
use super::decisions::Decisions;
use super::latency::{Latency, Stamp};

/// Messages taken from the queue before timers and questions get their turn.
const BATCH: usize = 256;
/// Messages that are read before what several workers of the rules made of them is waited for: few, since a command
/// waits as long.
const GATHERED: usize = 32;
/// Questions that may wait.
const QUESTIONS: usize = 64;
/// Changes of version that may wait.
const ORDERS: usize = 8;
/// Longest wait for the disk at a stop.
const STOP_SYNC: Duration = Duration::from_secs(3);
/// Longest wait for the audit log at a stop, so that the last checkpoint holds its head.
const STOP_AUDIT: Duration = Duration::from_secs(1);
/// Longest time without a look at the clocks.
const TICK: Duration = Duration::from_millis(200);

type Question = Box<dyn FnOnce(&mut Core, Now, &mut dyn Ports) + Send>;

/// Asks a core from other threads.
#[derive(Clone)]
pub struct CoreHandle {
    questions: mpsc::Sender<Question>,
    beats: Arc<AtomicU64>,
    decisions: Decisions,
}

/// The core's thread is gone; the process is about to end.
#[derive(Debug, thiserror::Error)]
#[error("the pipeline has stopped")]
pub struct Gone;

impl CoreHandle {
    /// Runs a short question on the core's thread, between two messages.
    ///
    /// # Errors
    /// [`Gone`].
    pub async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Core, Now, &mut dyn Ports) -> T + Send + 'static,
    ) -> Result<T, Gone> {
        let (answer, got) = oneshot::channel();
        self.questions
            .send(Box::new(move |core, now, ports| {
                // A caller that went away needs no answer.
                let _ = answer.send(question(core, now, ports));
            }))
            .await
            .map_err(|_| Gone)?;
        got.await.map_err(|_| Gone)
    }

    /// The newest decisions.
    #[must_use]
    pub fn decisions(&self) -> &Decisions {
        &self.decisions
    }

    /// Counts rounds of the core's loop: progress that feeds the watchdog.
    #[must_use]
    pub fn beats(&self) -> u64 {
        self.beats.load(Ordering::Relaxed)
    }
}

/// What the thread needs.
pub struct Parts {
    /// The core, restored.
    pub core: Core,
    /// Both clocks.
    pub clock: Arc<Clock>,
    /// The journal.
    pub journal: Journal,
    /// The broker.
    pub broker: Arc<dyn Handle>,
    /// What the broker delivers.
    pub deliveries: mpsc::Receiver<Delivery>,
    /// Connections to other brokers.
    pub remotes: Remotes,
    /// Model runner.
    pub runner: Option<Arc<models::Runner>>,
    /// Changes models' versions.
    pub rollouts: Option<Arc<crate::rollout::Rollouts>>,
    /// Text model.
    pub embedder: Option<models::text::Embedder>,
    /// What they answer, and where to.
    pub answers: (mpsc::Sender<Answer>, mpsc::Receiver<Answer>),
    /// Writes snapshots.
    pub checkpointer: Checkpointer,
    /// Whether a QoS 1 or 2 acknowledgement waits for the disk.
    pub durable_ack: bool,
    /// The audit log's thread, and its newest entry.
    pub audit: (audit::Sender, audit::Heads),
}

/// A running core thread.
pub struct CoreThread {
    /// For questions.
    pub handle: CoreHandle,
    stop: watch::Sender<bool>,
    thread: std::thread::JoinHandle<()>,
    ended: watch::Receiver<bool>,
}

impl CoreThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread can't be made.
    pub fn spawn(mut parts: Parts) -> std::io::Result<Self> {
        parts.core.rules().start()?;
        let (questions, asked) = mpsc::channel(QUESTIONS);
        let (stop, stopped) = watch::channel(false);
        let (ending, ended) = watch::channel(false);
        let beats = Arc::new(AtomicU64::new(0));
        let handle = CoreHandle {
            questions,
            beats: beats.clone(),
            decisions: Decisions::default(),
        };
        let decisions = handle.decisions.clone();
        let thread = std::thread::Builder::new()
            .name("core".to_owned())
            .spawn(move || {
                // Whatever ends this thread, a panic too, ends the process: nothing may look alive without it.
                let _ending = EndOnDrop(ending);
                match tokio::runtime::Builder::new_current_thread()
                    .enable_time()
                    .build()
                {
                    Ok(runtime) => runtime.block_on(run(parts, asked, stopped, beats, decisions)),
                    Err(error) => tracing::error!(%error, "the pipeline can't start"),
                }
            })?;
        Ok(Self {
            handle,
            stop,
            thread,
            ended,
        })
    }

    /// Turns true when the thread has ended, for whatever reason.
    #[must_use]
    pub fn ended(&self) -> watch::Receiver<bool> {
        self.ended.clone()
    }

    /// Stops after what is queued, writes a last snapshot and waits for the thread.
    pub fn stop(self) {
        let _ = self.stop.send(true);
        if self.thread.join().is_err() {
            tracing::error!("the pipeline's thread panicked");
        }
    }
}

struct EndOnDrop(watch::Sender<bool>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        let _ = self.0.send(true);
    }
}

async fn run(
    parts: Parts,
    mut asked: mpsc::Receiver<Question>,
    mut stopped: watch::Receiver<bool>,
    beats: Arc<AtomicU64>,
    decisions: Decisions,
) {
    let Parts {
        mut core,
        clock,
        journal,
        broker,
        mut deliveries,
        remotes,
        runner,
        rollouts,
        embedder,
        answers: (answer, mut answers),
        mut checkpointer,
        durable_ack,
        audit: (audit, heads),
    } = parts;
    let mut durable = journal.durable();
    let Remotes {
        mut arrivals,
        outgoing,
    } = remotes;
    let figures = runner.clone();
    let mut ports = RealPorts {
        journal: journal.clone(),
        broker,
        outgoing,
        runner,
        orders: rollouts.and_then(|rollouts| take_orders(rollouts, answer.clone())),
        embedder,
        answer,
        latency: core.latency(),
        decisions,
        audit: audit.clone(),
    };
    checkpointer.watch_audit(heads.clone());
    core.watch_audit(heads.clone());
    core.take_up(clock.now(), &mut ports);
    let mut batch = Vec::with_capacity(BATCH);
    let mut next_tick = Instant::now();
    let mut next_figures_ms = 0;
    loop {
        crate::stall::at(crate::stall::Part::Pipeline);
        beats.fetch_add(1, Ordering::Relaxed);
        if core.rules().failed() {
            tracing::error!("a worker of the rules is gone");
            return;
        }
        let wake = core
            .poll_timeout()
            .and_then(|at| clock.instant_of(at))
            .map_or(Instant::now() + TICK, |at| at.min(Instant::now() + TICK));
        tokio::select! {
            biased;
            changed = durable.changed() => {
                if changed.is_err() { break }
                let id = *durable.borrow_and_update();
                core.handle_durable(clock.now(), id, &mut ports);
            }
            count = deliveries.recv_many(&mut batch, BATCH) => {
                if count == 0 { break }
                let mut left = batch.drain(..).peekable();
                while left.peek().is_some() {
                    core.gather(clock.now(), true, &mut ports);
                    for delivery in left.by_ref().take(GATHERED) {
                        match delivery {
                            Delivery::Publish(inbound) => core.handle_inbound(clock.now(), inbound, &mut ports),
                            Delivery::Event(event) => core.handle_client(clock.now(), &event),
                        }
                    }
                    core.gather(clock.now(), false, &mut ports);
                }
            }
            // Before the brokers of others, which may never be silent; what is not acknowledged to them comes again.
            _ = stopped.changed() => break,
            Some((server, arrival)) = arrivals.recv() => {
                remote::handle(&mut core, clock.now(), server, arrival, &mut ports);
            }
            Some(answer) = answers.recv() => core.handle_answer(clock.now(), answer, &mut ports),
            Some(question) = asked.recv() => question(&mut core, clock.now(), &mut ports),
            () = tokio::time::sleep_until(wake.into()) => {}
        }
        // A full queue of messages must not starve what is asked and answered beside it.
        for _ in 0..16 {
            if let Ok(answer) = answers.try_recv() {
                core.handle_answer(clock.now(), answer, &mut ports);
            }
        }
        for _ in 0..BATCH {
            let Ok((server, arrival)) = arrivals.try_recv() else {
                break;
            };
            remote::handle(&mut core, clock.now(), server, arrival, &mut ports);
        }
        if let Ok(question) = asked.try_recv() {
            question(&mut core, clock.now(), &mut ports);
        }
        let now = clock.now();
        core.handle_timeout(now, &mut ports);
        if core.acks_waiting() {
            if durable_ack {
                journal.want_sync();
            } else {
                core.acknowledge_from_memory();
            }
        }
        if now.engine_ms >= next_figures_ms {
            next_figures_ms = now.engine_ms.saturating_add(rollouts::EVERY_MS);
            let models = figures.as_ref().map(|runner| runner.status());
            core.handle_figures(now, &models.unwrap_or_default(), &mut ports);
        }
        if core.disk_wanted() {
            journal.want_sync();
        }
        checkpointer.maybe(&mut core, now, &journal);
        if Instant::now() >= next_tick {
            next_tick = Instant::now() + TICK;
            journal.tick(now.engine_ms, now.trusted);
            audit.mark(core.last_record());
        }
    }
    let now = clock.now();
    core.handle_stop(now, &mut ports);
    journal.want_sync();
    let last = core.last_record();
    // A disk that hangs must not keep the process; what is not durable then is not acknowledged either.
    if let Ok(Ok(id)) = tokio::time::timeout(STOP_SYNC, durable.wait_for(|id| *id >= last)).await {
        let id = *id;
        core.handle_durable(clock.now(), id, &mut ports);
    }
    audit.mark(last);
    let deadline = Instant::now() + STOP_AUDIT;
    while heads.get().through < last && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    checkpointer.last(&mut core, now, &journal);
}

/// A thread that changes versions one after another: it may wait for a running batch, the pipeline may not. It ends
/// with the sender.
fn take_orders(
    rollouts: Arc<crate::rollout::Rollouts>,
    answer: mpsc::Sender<Answer>,
) -> Option<std::sync::mpsc::SyncSender<rollouts::Order>> {
    let (orders, taken) = std::sync::mpsc::sync_channel::<rollouts::Order>(ORDERS);
    let spawned = std::thread::Builder::new()
        .name("rollout".to_owned())
        .spawn(move || {
            for order in taken {
                let done = rollouts.apply(&order.model, order.action);
                let refused = done.err().map(|error| error.to_string());
                let outcome = rollouts::Outcome { order, refused };
                if answer.blocking_send(Answer::Rollout(outcome)).is_err() {
                    return;
                }
            }
        });
    match spawned {
        Ok(_) => Some(orders),
        Err(error) => {
            tracing::error!(%error, "no thread for changes of version by rules");
            None
        }
    }
}

struct RealPorts {
    journal: Journal,
    broker: Arc<dyn Handle>,
    outgoing: HashMap<ServerId, Outbox>,
    runner: Option<Arc<models::Runner>>,
    orders: Option<std::sync::mpsc::SyncSender<rollouts::Order>>,
    embedder: Option<models::text::Embedder>,
    answer: mpsc::Sender<Answer>,
    decisions: Decisions,
    latency: Arc<std::sync::Mutex<Latency>>,
    audit: audit::Sender,
}

impl Ports for RealPorts {
    fn append(&mut self, record: NewRecord) -> Appended {
        match self.journal.append(record) {
            Ok(record) => {
                self.audit.record(&record);
                Appended::Stored(record)
            }
            Err(AppendError::Full(record)) => Appended::Full(record),
            Err(AppendError::Stopped) => Appended::Stopped,
        }
    }

    fn publish(
        &mut self,
        transmit: sparkplug::host::Transmit,
        stamp: Option<Stamp>,
    ) -> Result<(), Unsent> {
        let on_written = stamp.map(|stamp| {
            let latency = self.latency.clone();
            let decisions = self.decisions.clone();
            let topic: Arc<str> = transmit.topic.as_str().into();
            Written::new(move |at: Instant| {
                decisions.add(topic.clone(), stamp.read, stamp.decided, at);
                if let Ok(mut latency) = latency.lock() {
                    latency.record(stamp, at);
                }
            })
        });
        if transmit.server != ServerId(0) {
            return Remotes::publish(&self.outgoing, transmit, on_written);
        }
        let qos = match transmit.qos {
            0 => Qos::AtMostOnce,
            1 => Qos::AtLeastOnce,
            _ => Qos::ExactlyOnce,
        };
        let publish = Publish {
            topic: transmit.topic.into(),
            payload: transmit.payload.into(),
            qos,
            retain: transmit.retain,
            on_written,
        };
        self.broker.publish(publish).map_err(|error| {
            tracing::warn!(%error, "publish to devices failed");
            match error {
                PublishError::Full => Unsent::Full,
                PublishError::Stopped => Unsent::Gone,
            }
        })
    }

    fn mark(&self) -> Instant {
        Instant::now()
    }

    fn infer(&mut self, request: models::Request) {
        if let Some(runner) = &self.runner {
            // What can't be taken is counted by the runner, with its reason.
            let _ = runner.try_submit(request);
        }
    }

    fn embed(&mut self, request: models::text::TextRequest) {
        if let Some(embedder) = &self.embedder {
            // What can't be taken is counted by the embedder, with its reason.
            let _ = embedder.try_submit(request);
        }
    }

    fn roll_out(&mut self, order: rollouts::Order) {
        use std::sync::mpsc::TrySendError;
        let (order, why) = match self
            .orders
            .as_ref()
            .map(|orders| orders.try_send(order.clone()))
        {
            Some(Ok(())) => return,
            Some(Err(TrySendError::Full(order))) => (order, "too many changes of version wait"),
            Some(Err(TrySendError::Disconnected(order))) => (order, "stopping"),
            None => (order, "no model runs"),
        };
        let refused = Some(why.to_owned());
        // When even answers find no room, the record stays without an outcome until the next start.
        let _ = self
            .answer
            .try_send(Answer::Rollout(rollouts::Outcome { order, refused }));
    }

    fn dropped(&mut self, record: &NewRecord, reason: &'static str) {
        self.journal.dropped(record.origin, reason, 1);
    }
}
