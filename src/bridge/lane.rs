//! The task of one lane: moves what [`Drain`] decides between the journal and a connection.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::config::Order;
use super::connect::ConnectError;
use super::drain::resume::Stored;
use super::drain::{Action, Content, Drain, Event, Limits, Publish};
use super::hooks::{Hooks, Notice};
use super::meter::Meter;
use super::prepare::{Batch, Loaded, Preparer, Wanted};
use super::publisher::{AskError, Incoming, Outgoing, Publisher, Seen, Uplink};
use super::quarantine::{Kept, Quarantine};
use super::source::{Memory, ReadError, Source};
use super::status::LaneStatus;
use crate::buffer::record::{Class, Key, LANES, Lane, Record, RecordId};
use crate::pipeline::encode::{Headers, Place, gap_body, message_id};
use crate::pipeline::subject;

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
                Action::Publish(publish) => self.publish(publish).await,
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

    fn connect(&mut self) {
        let (uplink, lane, attempt) = (self.uplink.clone(), self.lane, self.attempt);
        self.attempt = self.attempt.wrapping_add(1);
        self.connecting = Some(async move { uplink.connect(lane, attempt).await }.boxed());
    }

    fn take_link(&mut self, result: Result<U::Link, ConnectError>) {
        let now = self.now();
        match result {
            Ok(link) => {
                self.meter.connects += 1;
                self.max_message = link.max_payload();
                let _ = self.client().send_replace(link.client());
                self.link = Some(link);
                self.drain.handle_connected(now);
            }
            Err(error) => {
                let detail = error.to_string();
                tracing::debug!(lane = ?self.lane, %error, "no connection");
                self.drain
                    .handle_connect_failed(now, error.state(), &detail);
            }
        }
    }

    fn client(&self) -> &watch::Sender<Option<async_nats::Client>> {
        let [data, alarms] = &self.shared.clients;
        match self.lane {
            Lane::Data => data,
            Lane::Alarms => alarms,
        }
    }

    fn drop_link(&mut self) {
        let _ = self.client().send_replace(None);
        self.link = None;
        self.asked.clear();
    }

    fn lost(&mut self, detail: &str) {
        self.drop_link();
        let now = self.now();
        self.drain.handle_disconnected(now, detail);
    }

    fn take_in(&mut self, first: Incoming) {
        let now = self.now();
        let mut incoming = Some(first);
        let mut taken = 0;
        while let Some(it) = incoming {
            match it {
                Incoming::Stored {
                    token,
                    stream_seq,
                    duplicate,
                } => self.drain.handle_stored(now, token, stream_seq, duplicate),
                Incoming::Refused { token, refusal } => {
                    tracing::debug!(lane = ?self.lane, ?refusal, "refused");
                    self.drain.handle_refused(now, token, &refusal);
                }
                Incoming::Denied { subject, detail } => {
                    let record = self
                        .unacked
                        .iter()
                        .chain(&self.doubted)
                        .find(|record| self.subject(record.class, &record.key) == subject);
                    if let Some(record) = record.map(|record| record.id) {
                        self.drain.handle_denied(now, record, &detail);
                    }
                }
                Incoming::Closed => {
                    self.lost("the connection broke");
                    return;
                }
            }
            taken += 1;
            incoming = match self.link.as_mut() {
                Some(link) if taken < ACK_BURST => link.try_next(),
                Some(_) | None => None,
            };
        }
    }

    fn take_answer(&mut self, answer: Asked) {
        let now = self.now();
        match answer {
            Asked::Seen(Ok(seen)) => {
                if let Some(link) = &self.link {
                    let server = link.max_payload();
                    self.max_message = seen.max_message.map_or(server, |most| most.min(server));
                }
                self.replicas = seen.replicas;
                self.drain
                    .handle_appended(self.shared.source.head(self.lane));
                self.drain.handle_inspected(now, seen.inspection);
            }
            Asked::LookedUp(Ok(stored)) => self.drain.handle_looked_up(now, stored),
            Asked::Seen(Err(AskError::Refused(refusal)))
            | Asked::LookedUp(Err(AskError::Refused(refusal))) => {
                self.drain.handle_inspect_failed(now, &refusal);
            }
            Asked::Seen(Err(AskError::Lost(detail)))
            | Asked::LookedUp(Err(AskError::Lost(detail))) => self.lost(&detail),
        }
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

    fn subject(&self, class: Class, key: &Key) -> String {
        subject::subject(&self.shared.gateway, class, key)
    }

    async fn publish(&mut self, publish: Publish) {
        let message = self.message(&publish);
        let Some(link) = self.link.as_mut() else {
            return;
        };
        if link.publish(message).await.is_err() {
            self.lost("the connection broke");
        }
    }

    fn message(&mut self, publish: &Publish) -> Outgoing {
        let mark = publish.mark;
        let wanted = match publish.content {
            // The record behind the hole is still to come.
            Content::Hole { .. } => mark.record,
            Content::Part | Content::Unsendable => mark.record.saturating_sub(1),
        };
        while self.loaded.front().is_some_and(|it| it.record.id <= wanted) {
            self.loaded.pop_front();
        }
        let last = mark.part >= mark.parts;
        let gateway = &self.shared.gateway;
        let (subject, mut headers, payload) = match publish.content {
            Content::Part => {
                let prepared = self.loaded.front_mut().and_then(|it| {
                    let prepared = it.prepared.as_mut()?.as_mut().ok()?;
                    let part = usize::try_from(mark.part).ok()?.checked_sub(1)?;
                    let body = prepared.bodies.get(part)?.clone();
                    Some(if last {
                        (
                            std::mem::take(&mut prepared.subject),
                            std::mem::take(&mut prepared.headers),
                            body,
                        )
                    } else {
                        (prepared.subject.clone(), prepared.headers.clone(), body)
                    })
                });
                // The drain asks only for what was prepared; nothing else could fill the place.
                prepared.unwrap_or_default()
            }
            Content::Unsendable => {
                let cause = self.cause(mark.record);
                let (key, ms) = self.loaded.front().map_or((NO_KEY, 0), |it| {
                    (it.record.key.clone(), it.record.received_ms)
                });
                (
                    subject::subject(gateway, Class::Gap, &key),
                    Headers::of_gap(gateway, &key, ms),
                    gap_body(mark.record, mark.record, 1, Some((ms, ms)), &cause),
                )
            }
            Content::Hole { from } => {
                let ms = self.loaded.front().map_or(0, |it| it.record.received_ms);
                // Ids are shared by both lanes: this is the most that can be missing.
                let count = mark.record.saturating_sub(from) + 1;
                (
                    subject::subject(gateway, Class::Gap, &NO_KEY),
                    Headers::of_gap(gateway, &NO_KEY, ms),
                    gap_body(
                        from,
                        mark.record,
                        count,
                        None,
                        "no longer kept when the stream needed it again",
                    ),
                )
            }
        };
        let prefix = format!("{gateway}-{}-", self.shared.epoch);
        let place = Place {
            record: mark.record,
            prev: mark.prev,
            part: mark.part,
            parts: mark.parts,
        };
        headers.place(&prefix, place, publish.msg_id);
        let first = publish.batch.is_none_or(|place| place.sequence == 1);
        if first {
            headers.push(
                "Nats-Expected-Last-Sequence",
                publish.expected_last.to_string(),
            );
        }
        if let Some(before) = publish.follows.filter(|_| self.replicas == 1) {
            let id = message_id(&prefix, before.record, before.part, before.parts);
            headers.push("Nats-Expected-Last-Msg-Id", id);
        }
        let mut token = Some(publish.token);
        if let Some(batch) = publish.batch {
            headers.push("Nats-Batch-Id", format!("{}-{:x}", self.run, batch.id));
            headers.push("Nats-Batch-Sequence", batch.sequence.to_string());
            if batch.commit {
                headers.push("Nats-Batch-Commit", "1".to_owned());
            } else {
                token = None;
            }
        }
        if last
            && !matches!(publish.content, Content::Hole { .. })
            && let Some(loaded) = self.loaded.pop_front()
        {
            self.unacked.push_back(loaded.record);
        }
        Outgoing {
            token,
            subject,
            headers: headers.into_pairs(),
            payload,
        }
    }

    /// Why a record can't be sent.
    fn cause(&self, record: RecordId) -> String {
        if let Some((given_up, cause)) = &self.given_up
            && *given_up == record
        {
            return cause.clone();
        }
        let loaded = self.loaded.iter().find(|it| it.record.id == record);
        match loaded.and_then(|it| it.prepared.as_ref()) {
            Some(Err(error)) => error.to_string(),
            Some(Ok(_)) | None => "refused by the server".to_owned(),
        }
    }

    /// Gives what the stream has taken to the buckets.
    async fn hand_on(&mut self, up_to: RecordId) {
        while self
            .unacked
            .front()
            .is_some_and(|record| record.id <= up_to)
        {
            let Some(record) = self.unacked.pop_front() else {
                break;
            };
            if let Some(acked) = self
                .shared
                .acked
                .as_ref()
                .filter(|_| self.lane == Lane::Data)
            {
                // The buckets' task takes at once and writes later; it ends only with the bridge.
                let _ = acked.send(record).await;
            }
        }
    }

    async fn event(&mut self, mut event: Event) {
        if let Event::Unsendable { record, cause } = &mut event {
            if cause.is_empty() {
                *cause = self.cause(*record);
            }
            self.given_up = Some((*record, cause.clone()));
            self.quarantine(*record, cause).await;
        }
        let notice = Notice {
            lane: self.lane,
            event,
        };
        if notice.is_urgent() {
            tracing::error!(lane = ?self.lane, id = notice.id(), reason = notice.message(), "bridge");
        } else {
            tracing::warn!(lane = ?self.lane, id = notice.id(), reason = notice.message(), "bridge");
        }
        (self.shared.hooks.notice)(notice);
    }

    async fn quarantine(&mut self, record: RecordId, cause: &str) {
        let (shared, lane, cause) = (self.shared.clone(), self.lane, cause.to_owned());
        let kept = tokio::task::spawn_blocking(move || {
            let records = shared
                .source
                .read(lane, record.saturating_sub(1), 1, 1)
                .map_err(|error| std::io::Error::other(error.to_string()))?;
            let Some(record) = records.first() else {
                return Ok(Kept::Already);
            };
            shared
                .quarantine
                .keep(&shared.gateway, &shared.epoch, record, &cause)
        })
        .await;
        match kept {
            Ok(Ok(Kept::At(path))) => tracing::info!(path = %path.display(), "bytes kept"),
            Ok(Ok(Kept::Already)) => {}
            Ok(Ok(Kept::NoRoom)) => {
                tracing::error!(record, "quarantine is full, bytes are not kept")
            }
            Ok(Err(error)) => tracing::error!(%error, record, "bytes can't be kept in quarantine"),
            Err(error) => tracing::error!(%error, record, "bytes can't be kept in quarantine"),
        }
    }

    async fn tick(&mut self) {
        if self.kept_at.elapsed() >= KEEP_EVERY {
            self.keep_checkpoint().await;
        }
        self.tell_status();
    }

    async fn keep_checkpoint(&mut self) {
        let Some(checkpoint) = self.unkept.take() else {
            return;
        };
        self.kept_at = Instant::now();
        let (shared, lane) = (self.shared.clone(), self.lane);
        let kept = tokio::task::spawn_blocking(move || {
            shared.memory.save(lane, &shared.epoch, checkpoint)
        })
        .await;
        if let Ok(Err(error)) = kept {
            tracing::warn!(lane = ?self.lane, error, "checkpoint of the bridge not kept");
        }
    }

    fn tell_status(&mut self) {
        let backlog = self.shared.source.backlog(self.lane);
        let status = self.meter.status(&self.drain, backlog);
        let [data, alarms] = &self.shared.status;
        let told = match self.lane {
            Lane::Data => data,
            Lane::Alarms => alarms,
        };
        told.send_replace(status);
    }
}

const NO_KEY: Key = Key {
    group: None,
    node: None,
    device: None,
};

async fn next<L: Publisher>(link: Option<&mut L>) -> Incoming {
    match link {
        Some(link) => link.next().await,
        None => std::future::pending().await,
    }
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
