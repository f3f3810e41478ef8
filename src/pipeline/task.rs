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
use super::remote::{self, Outgoing, Remotes};
use super::{Appended, Ports};
use crate::broker::{Delivery, Handle, Publish, Qos, Written};
use crate::buffer::record::NewRecord;
use crate::buffer::{AppendError, Journal};
use crate::clock::{Clock, Now};

use super::checkpoint::Checkpointer;
use super::latency::Histogram;

/// Messages taken from the queue before timers and questions get their turn.
const BATCH: usize = 256;
/// Questions that may wait.
const QUESTIONS: usize = 64;
/// Longest wait for the disk at a stop.
const STOP_SYNC: Duration = Duration::from_secs(3);
/// Longest time without a look at the clocks.
const TICK: Duration = Duration::from_millis(200);

type Question = Box<dyn FnOnce(&mut Core, Now, &mut dyn Ports) + Send>;

/// Asks a core from other threads.
#[derive(Clone)]
pub struct CoreHandle {
    questions: mpsc::Sender<Question>,
    beats: Arc<AtomicU64>,
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
    /// Model runner and what it answers.
    pub models: Option<(Arc<models::Runner>, mpsc::Receiver<models::Event>)>,
    /// Writes snapshots.
    pub checkpointer: Checkpointer,
    /// Whether a QoS 1 or 2 acknowledgement waits for the disk.
    pub durable_ack: bool,
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
    pub fn spawn(parts: Parts) -> std::io::Result<Self> {
        let (questions, asked) = mpsc::channel(QUESTIONS);
        let (stop, stopped) = watch::channel(false);
        let (ending, ended) = watch::channel(false);
        let beats = Arc::new(AtomicU64::new(0));
        let handle = CoreHandle {
            questions,
            beats: beats.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("core".to_owned())
            .spawn(move || {
                // Whatever ends this thread, a panic too, ends the process: nothing may look alive without it.
                let _ending = EndOnDrop(ending);
                match tokio::runtime::Builder::new_current_thread()
                    .enable_time()
                    .build()
                {
                    Ok(runtime) => runtime.block_on(run(parts, asked, stopped, beats)),
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
) {
    let Parts {
        mut core,
        clock,
        journal,
        broker,
        mut deliveries,
        remotes,
        models,
        mut checkpointer,
        durable_ack,
    } = parts;
    let (runner, mut answers) = match models {
        Some((runner, answers)) => (Some(runner), Some(answers)),
        None => (None, None),
    };
    let mut durable = journal.durable();
    let Remotes {
        mut arrivals,
        outgoing,
    } = remotes;
    let mut ports = RealPorts {
        journal: journal.clone(),
        broker,
        outgoing,
        runner,
        latency: core.latency(),
    };
    core.close_open_commands(clock.now(), &mut ports);
    let mut batch = Vec::with_capacity(BATCH);
    let mut next_tick = Instant::now();
    loop {
        beats.fetch_add(1, Ordering::Relaxed);
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
                for delivery in batch.drain(..) {
                    match delivery {
                        Delivery::Publish(inbound) => core.handle_inbound(clock.now(), inbound, &mut ports),
                        Delivery::Event(event) => core.handle_client(clock.now(), &event),
                    }
                }
            }
            Some((server, arrival)) = arrivals.recv() => {
                remote::handle(&mut core, clock.now(), server, arrival, &mut ports);
            }
            Some(event) = next_answer(&mut answers) => core.handle_model(clock.now(), event, &mut ports),
            Some(question) = asked.recv() => question(&mut core, clock.now(), &mut ports),
            () = tokio::time::sleep_until(wake.into()) => {}
            _ = stopped.changed() => break,
        }
        // A full queue of messages must not starve what is asked and answered beside it.
        for _ in 0..16 {
            if let Some(Ok(event)) = answers.as_mut().map(mpsc::Receiver::try_recv) {
                core.handle_model(clock.now(), event, &mut ports);
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
        checkpointer.maybe(&mut core, now, &journal);
        if Instant::now() >= next_tick {
            next_tick = Instant::now() + TICK;
            journal.tick(now.engine_ms, now.trusted);
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
    checkpointer.last(&mut core, now, &journal);
}

async fn next_answer(answers: &mut Option<mpsc::Receiver<models::Event>>) -> Option<models::Event> {
    match answers {
        Some(answers) => answers.recv().await,
        None => std::future::pending().await,
    }
}

struct RealPorts {
    journal: Journal,
    broker: Arc<dyn Handle>,
    outgoing: HashMap<ServerId, mpsc::Sender<Outgoing>>,
    runner: Option<Arc<models::Runner>>,
    latency: Arc<std::sync::Mutex<Histogram>>,
}

impl Ports for RealPorts {
    fn append(&mut self, record: NewRecord) -> Appended {
        match self.journal.append(record) {
            Ok(record) => Appended::Stored(record),
            Err(AppendError::Full(record)) => Appended::Full(record),
            Err(AppendError::Stopped) => Appended::Stopped,
        }
    }

    fn publish(&mut self, transmit: sparkplug::host::Transmit, stamp: Option<Instant>) {
        let on_written = stamp.map(|read_at| {
            let latency = self.latency.clone();
            Written::new(move |at: Instant| {
                let us = u64::try_from(at.saturating_duration_since(read_at).as_micros())
                    .unwrap_or(u64::MAX);
                if let Ok(mut latency) = latency.lock() {
                    latency.record(us);
                }
            })
        });
        if transmit.server != ServerId(0) {
            Remotes::publish(&self.outgoing, transmit, on_written);
            return;
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
        if let Err(error) = self.broker.publish(publish) {
            tracing::warn!(%error, "publish to devices failed");
        }
    }

    fn infer(&mut self, request: models::Request) {
        if let Some(runner) = &self.runner {
            // What can't be taken is counted by the runner, with its reason.
            let _ = runner.try_submit(request);
        }
    }

    fn dropped(&mut self, record: &NewRecord, reason: &'static str) {
        self.journal.dropped(record.origin, reason, 1);
    }
}
