//! The task of one lane: moves what [`Drain`] decides between the journal and a connection.

mod link;
mod message;
mod tell;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::ask::AskError;
use super::config::Order;
use super::connect::ConnectError;
use super::drain::resume::Stored;
use super::drain::{Action, Drain, Limits};
use super::hooks::Hooks;
use super::meter::Meter;
use super::prepare::{Batch, Loaded, Preparer, Wanted};
use super::publisher::{Incoming, Publisher, Seen, Uplink};
use super::quarantine::Quarantine;
use super::source::{Memory, ReadError, Source};
use super::status::LaneStatus;
use crate::buffer::record::{LANES, Lane, Record, RecordId};

/// How often status and the slow side of checkpoints are looked after.
const TICK: Duration = Duration::from_millis(250);
/// A checkpoint that only moved forward is kept at most once in this time.
const KEEP_EVERY: Duration = Duration::from_secs(1);
/// Wait after a reading of the journal that failed.
const READ_RETRY: Duration = Duration::from_secs(1);
/// Acknowledgements taken before new messages are sent.
const ACK_BURST: usize = 256;
/// Largest message until the server says its own limit.
const DEFAULT_PAYLOAD: usize = 1 << 20;

/// What the lanes of a bridge share.
pub(super) struct Shared {
    pub(super) gateway: String,
    pub(super) epoch: String,
    pub(super) source: Arc<dyn Source>,
    pub(super) memory: Arc<dyn Memory>,
    pub(super) hooks: Hooks,
    pub(super) quarantine: Quarantine,
    pub(super) order: Order,
    /// Last acknowledged record of the data lane, for strict order.
    pub(super) data_acked: AtomicU64,
    pub(super) status: [watch::Sender<LaneStatus>; LANES.len()],
    /// Records that the stream has taken, for the buckets.
    pub(super) acked: Option<mpsc::Sender<Arc<Record>>>,
    /// The clients of the connections that stand.
    pub(super) clients: [watch::Sender<Option<async_nats::Client>>; LANES.len()],
}

enum Asked {
    Seen(Result<Seen, AskError>),
    LookedUp(Result<Stored, AskError>),
}

type Reading = BoxFuture<'static, (u64, Preparer, Result<Batch, ReadError>)>;

/// One lane's task.
pub(super) struct LaneTask<U: Uplink> {
    lane: Lane,
    shared: Arc<Shared>,
    uplink: Arc<U>,
    drain: Drain,
    limits: Limits,
    started: Instant,
    attempt: u64,
    link: Option<U::Link>,
    connecting: Option<BoxFuture<'static, Result<U::Link, ConnectError>>>,
    asked: FuturesUnordered<BoxFuture<'static, Asked>>,
    preparer: Option<Preparer>,
    reading: Option<Reading>,
    wanted: Option<(u64, RecordId)>,
    retry_read: Option<Instant>,
    loaded: VecDeque<Loaded>,
    unacked: VecDeque<Arc<Record>>,
    /// What was unacknowledged before the last doubt: a denial may come late.
    doubted: VecDeque<Arc<Record>>,
    max_message: usize,
    replicas: u64,
    run: String,
    given_up: Option<(RecordId, String)>,
    unkept: Option<super::drain::resume::Checkpoint>,
    kept_at: Instant,
    meter: Meter,
}

impl<U: Uplink> LaneTask<U> {
    pub(super) fn new(
        lane: Lane,
        shared: Arc<Shared>,
        uplink: Arc<U>,
        limits: Limits,
        preparer: Preparer,
        seed: u64,
    ) -> Self {
        let drain = Drain::new(
            limits.clone(),
            shared.memory.load(lane, &shared.epoch),
            shared.source.cursor(lane),
            shared.source.head(lane),
            seed,
            Duration::ZERO,
        );
        Self {
            lane,
            uplink,
            drain,
            limits,
            started: Instant::now(),
            attempt: seed,
            link: None,
            connecting: None,
            asked: FuturesUnordered::new(),
            preparer: Some(preparer),
            reading: None,
            wanted: None,
            retry_read: None,
            loaded: VecDeque::new(),
            unacked: VecDeque::new(),
            doubted: VecDeque::new(),
            max_message: DEFAULT_PAYLOAD,
            replicas: 1,
            run: format!("{seed:016x}"),
            given_up: None,
            unkept: None,
            kept_at: Instant::now(),
            meter: Meter::new(),
            shared,
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Runs until `stop` names a deadline: then what is there is drained until then, and the lane ends.
    pub(super) async fn run(mut self, mut stop: watch::Receiver<Option<Instant>>) {
        let mut grown = self.shared.source.grown();
        let mut reachable = self.others_connection();
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            self.advance().await;
            let deadline = *stop.borrow_and_update();
            if let Some(deadline) = deadline
                && (self.drain.is_idle() || self.link.is_none() || deadline <= Instant::now())
            {
                break;
            }
            let timeout = self
                .drain
                .poll_timeout()
                .map(|at| self.started + at)
                .into_iter()
                .chain(self.retry_read)
                .chain(deadline)
                .min();
            tokio::select! {
                biased;
                incoming = next(self.link.as_mut()) => self.take_in(incoming),
                (ticket, preparer, result) = maybe(self.reading.as_mut()) => {
                    self.reading = None;
                    self.preparer = Some(preparer);
                    self.take_batch(ticket, result);
                }
                Some(answer) = self.asked.next(), if !self.asked.is_empty() => self.take_answer(answer),
                result = maybe(self.connecting.as_mut()) => {
                    self.connecting = None;
                    self.take_link(result);
                }
                changed = grown.changed() => {
                    if changed.is_err() {
                        break;
                    }
                    grown.borrow_and_update();
                    let head = self.shared.source.head(self.lane);
                    self.drain.handle_appended(head);
                }
                () = opened(reachable.as_mut()) => {
                    let now = self.now();
                    self.drain.handle_reachable(now);
                }
                _ = ticks.tick() => self.tick().await,
                _ = stop.changed() => {}
                () = sleep_until(timeout) => {
                    if self.retry_read.is_some_and(|at| at <= Instant::now()) {
                        self.retry_read = None;
                    }
                }
            }
            let now = self.now();
            self.drain.handle_timeout(now);
        }
        self.drain.close();
        self.drop_link();
        self.keep_checkpoint().await;
        self.tell_status();
    }

    /// Does all that the drain wants done now.
    async fn advance(&mut self) {
        if self.shared.order == Order::Strict && self.lane == Lane::Alarms {
            self.limit();
        }
        loop {
            let now = self.now();
            let Some(action) = self.drain.poll_action(now) else {
                break;
            };
            match action {
                Action::Connect => self.connect(),
                Action::Disconnect => self.drop_link(),
                Action::Inspect => {
                    if let Some(link) = &self.link {
                        self.asked.push(link.inspect().map(Asked::Seen).boxed());
                    }
                }
                Action::LookUp { stream_seq } => {
                    if let Some(link) = &self.link {
                        let asked = link.look_up(stream_seq);
                        self.asked.push(asked.map(Asked::LookedUp).boxed());
                    }
                }
                Action::Read {
                    after,
                    ticket,
                    fresh,
                } => {
                    if fresh {
                        self.loaded.clear();
                        self.doubted = std::mem::take(&mut self.unacked);
                    }
                    self.wanted = Some((ticket, after));
                }
                Action::Publish(publish) => {
                    // Its bytes are safe before anything takes its place: a kill may come right behind the gap.
                    if let Some(cause) = self.drain.on_trial(publish.mark.record) {
                        let cause = cause.to_owned();
                        self.quarantine(publish.mark.record, &cause).await;
                    }
                    self.publish(publish).await;
                }
                Action::Keep(checkpoint) => {
                    self.unkept = Some(checkpoint);
                    self.keep_checkpoint().await;
                }
                Action::Ack {
                    up_to,
                    published,
                    filtered,
                    unsendable,
                    checkpoint,
                } => {
                    self.shared
                        .source
                        .ack(self.lane, up_to, u64::from(filtered));
                    self.meter
                        .count(u64::from(published + filtered + unsendable));
                    self.unkept = Some(checkpoint);
                    if self.lane == Lane::Data {
                        self.shared.data_acked.store(up_to, Ordering::Release);
                    }
                    self.hand_on(up_to).await;
                }
                Action::Event(event) => self.event(event).await,
            }
        }
        self.start_reading();
    }

    /// Alarms wait for the data before them.
    fn limit(&mut self) {
        let head = self.shared.source.head(self.lane);
        // Newer data than what is known to be needed may be there already: it only makes alarms wait longer.
        let data = self.shared.source.newest(Lane::Data);
        let acked = self.shared.data_acked.load(Ordering::Acquire);
        self.drain
            .handle_limit(if acked >= data { head } else { acked });
    }

    fn start_reading(&mut self) {
        if self.reading.is_some() || self.retry_read.is_some() {
            return;
        }
        let Some((ticket, after)) = self.wanted else {
            return;
        };
        let Some(mut preparer) = self.preparer.take() else {
            return;
        };
        self.wanted = None;
        let wanted = Wanted {
            lane: self.lane,
            after,
            acked: self.drain.acked(),
            max_records: self.limits.read_records,
            max_bytes: self.limits.read_bytes,
            limit: self.max_message,
        };
        let source = self.shared.source.clone();
        let task = tokio::task::spawn_blocking(move || {
            let result = preparer.read(source.as_ref(), wanted);
            (ticket, preparer, result)
        });
        self.reading = Some(
            async move {
                match task.await {
                    Ok(done) => done,
                    // The runtime is going down, or the reading panicked: the process can't go on either way.
                    Err(error) => {
                        tracing::error!(%error, "reading ended");
                        std::future::pending().await
                    }
                }
            }
            .boxed(),
        );
    }

    fn take_batch(&mut self, ticket: u64, result: Result<Batch, ReadError>) {
        match result {
            Ok(batch) => {
                if self.drain.handle_units(ticket, &batch.units, batch.more) {
                    self.loaded.extend(batch.loaded);
                }
                // The head moved on while this was read.
                self.drain
                    .handle_appended(self.shared.source.head(self.lane));
            }
            Err(error) => {
                tracing::warn!(lane = ?self.lane, %error, "the journal can't be read; again soon");
                self.retry_read = Some(Instant::now() + READ_RETRY);
                self.wanted = self.drain.unanswered_read();
            }
        }
    }
}

async fn next<L: Publisher>(link: Option<&mut L>) -> Incoming {
    match link {
        Some(link) => link.next().await,
        None => std::future::pending().await,
    }
}

/// Another lane's connection has come to stand.
async fn opened(other: Option<&mut watch::Receiver<Option<async_nats::Client>>>) {
    if let Some(other) = other {
        while other.changed().await.is_ok() {
            if other.borrow_and_update().is_some() {
                return;
            }
        }
    }
    std::future::pending().await
}

async fn maybe<F: Future + Unpin>(it: Option<&mut F>) -> F::Output {
    match it {
        Some(it) => it.await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
