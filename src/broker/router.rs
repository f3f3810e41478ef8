//! The broker's core: sessions, subscriptions, retained messages, wills. Sans-IO: time and packets are arguments.
//!
//! Contract: inputs are [`Router::connect`], [`Router::packet`], [`Router::disconnect`], [`Router::publish`],
//! [`Router::settle`] and [`Router::handle_timeout`]. After each, the caller drains [`Router::poll_delivery`] in
//! order, wakes each link that [`Router::poll_wake`] gives, and looks at [`Router::poll_timeout`]. A woken
//! connection calls [`Router::take`] until it is empty. An early or repeated timeout does nothing.
//!
//! One router serves all connections, behind one lock that is taken once for a batch of packets: that gives every
//! subscriber the same order, and makes a take-over one step.

#[cfg(any(test, fuzzing))]
mod bench;
mod connecting;
mod deliver;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod incoming;
#[cfg(test)]
mod overload;
mod saving;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
mod timers;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::clients::Clients;
use super::codec::{OutPublish, Will, publish_len};
use super::config::{Ack, Config, Limits};
use super::link::Link;
use super::outbound::{Outgoing, QueueLimits};
use super::pressure::Pressure;
use super::retained::Retained;
use super::session::Session;
use super::subscriptions::{Hit, SessionIndex, Subscription, Subscriptions};
use super::topic::TopicCheck;
use super::{Delivery, Event, PubackToken, Qos};

pub(crate) use connecting::{Accepted, Peer};
pub(crate) use saving::Moment;

/// Unix milliseconds, now.
pub(crate) type WallClock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// What the router needs of the configuration.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) limits: Limits,
    pub(crate) max_packet: usize,
    pub(crate) max_memory: usize,
    /// Whether acknowledgements wait for the pipeline.
    pub(crate) durable: bool,
    pub(crate) certificates: bool,
    /// Filters whose messages go to the pipeline.
    pub(crate) taps: Vec<String>,
    pub(crate) topic_check: Option<TopicCheck>,
    /// Wall clock, Unix milliseconds, for the timestamp of an NDEATH that is sent; `None`: it goes as it came.
    pub(crate) ndeath_clock: Option<WallClock>,
    /// Differs from run to run: part of assigned client ids.
    pub(crate) instance: u64,
}

impl Settings {
    pub(crate) fn new(
        config: &Config,
        taps: Vec<String>,
        topic_check: Option<TopicCheck>,
        instance: u64,
    ) -> Self {
        let size =
            |b: crate::config::quantity::ByteSize| usize::try_from(b.0).unwrap_or(usize::MAX);
        Self {
            limits: config.limits.clone(),
            max_packet: size(config.max_packet),
            max_memory: size(config.max_memory),
            durable: config.ack == Ack::Durable,
            certificates: config.certificates,
            taps,
            topic_check,
            ndeath_clock: config
                .ndeath_timestamp
                .then(|| -> WallClock { Arc::new(|| Moment::present().wall_ms) }),
            instance,
        }
    }

    fn queue_limits(&self) -> QueueLimits {
        QueueLimits {
            messages: self.limits.queue_messages,
            bytes: usize::try_from(self.limits.queue_bytes.0).unwrap_or(usize::MAX),
        }
    }
}

/// A connection of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) session: SessionIndex,
    pub(crate) link: u64,
}

/// Counts by reason; reasons are literals in the code, so their number is bounded.
#[derive(Debug, Default, Clone)]
pub(crate) struct Tally(Vec<(&'static str, u64)>);

impl Tally {
    pub(crate) fn add(&mut self, reason: &'static str, n: usize) {
        if n == 0 {
            return;
        }
        let n = u64::try_from(n).unwrap_or(u64::MAX);
        match self.0.iter_mut().find(|(r, _)| *r == reason) {
            Some((_, count)) => *count += n,
            None => self.0.push((reason, n)),
        }
    }

    pub(crate) fn list(&self) -> Vec<(&'static str, u64)> {
        self.0.clone()
    }
}

/// A topic that was published to lately, with everything that is to be known about it.
struct Route {
    topic: Arc<str>,
    /// [`Router::generation`] at which `hits` and `groups` were found.
    generation: u64,
    hits: Vec<Hit>,
    groups: Vec<Vec<Subscription>>,
    tapped: bool,
    /// Where a birth's certificate is offered.
    certificate: Option<Arc<str>>,
}

/// A change of what outlives the process, in order of happening.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// A topic's retained message is new or gone.
    Retained(Arc<str>),
    /// A session's subscriptions or expiry changed.
    Session(SessionIndex),
    /// A session is gone.
    SessionGone(Arc<str>),
    /// A QoS 1 or 2 message waits for an absent client.
    Queued(SessionIndex),
    /// A connection of a persistent session ended or began: what became of its messages is written.
    Attached(SessionIndex),
    /// See above.
    Detached(SessionIndex),
}

/// Most topics that are remembered with their subscribers.
const ROUTES: usize = 65_536;
/// How often expired messages are looked for.
const SWEEP: Duration = Duration::from_secs(10);

/// See the module.
pub(crate) struct Router {
    settings: Settings,
    sessions: Vec<Option<Box<Session>>>,
    free: Vec<SessionIndex>,
    by_client: HashMap<Arc<str>, SessionIndex>,
    subscriptions: Subscriptions,
    /// Rises with each change of subscriptions.
    generation: u64,
    routes: HashMap<Arc<str>, Route>,
    retained: Retained,
    timers: BTreeSet<(Instant, SessionIndex)>,
    next_sweep: Option<Instant>,
    deliveries: VecDeque<Delivery>,
    wakes: Vec<Arc<Link>>,
    changes: Option<Vec<Change>>,
    next_serial: u64,
    /// Turn of shared subscriptions.
    turn: usize,
    /// Bytes in all queues and under way.
    queued_bytes: usize,
    connections: u64,
    publishes: u64,
    new_clients: (Option<Instant>, u32),
    stopping: bool,
    pub(crate) dropped: Tally,
    pub(crate) clients: Clients,
}

/// Makes the token of a publish; the shell gives one that finds its way back to the router.
pub(crate) trait Tokens {
    /// A token for a QoS 1 publish (`pid` `None`) or a QoS 2 publish of a session.
    fn token(&self, link: &Arc<Link>, slot: u64, exactly_once: Option<Exactly>) -> PubackToken;
}

/// What [`Router::settle`] needs to find a QoS 2 publish again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exactly {
    pub(crate) session: SessionIndex,
    pub(crate) serial: u64,
    pub(crate) pid: u16,
}

impl Router {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            sessions: Vec::new(),
            free: Vec::new(),
            by_client: HashMap::new(),
            subscriptions: Subscriptions::default(),
            generation: 1,
            routes: HashMap::new(),
            retained: Retained::default(),
            timers: BTreeSet::new(),
            next_sweep: None,
            deliveries: VecDeque::new(),
            wakes: Vec::new(),
            changes: None,
            next_serial: 1,
            turn: 0,
            queued_bytes: 0,
            connections: 0,
            publishes: 0,
            new_clients: (None, 0),
            stopping: false,
            dropped: Tally::default(),
            clients: Clients::default(),
        }
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    fn session(&self, index: SessionIndex) -> Option<&Session> {
        self.sessions.get(index as usize)?.as_deref()
    }

    fn session_mut(&mut self, index: SessionIndex) -> Option<&mut Session> {
        self.sessions.get_mut(index as usize)?.as_deref_mut()
    }

    /// The session of a connection, if that is still its present one.
    fn linked(&mut self, key: Key) -> Option<&mut Session> {
        self.session_mut(key.session)
            .filter(|s| s.is_linked(key.link))
    }

    fn note(&mut self, change: Change) {
        if let Some(changes) = &mut self.changes {
            changes.push(change);
        }
    }

    /// The next thing for the pipeline.
    pub(crate) fn poll_delivery(&mut self) -> Option<Delivery> {
        self.deliveries.pop_front()
    }

    /// Puts back what the pipeline had no room for.
    pub(crate) fn unpoll_delivery(&mut self, delivery: Delivery) {
        self.deliveries.push_front(delivery);
    }

    /// Deliveries that wait for room.
    pub(crate) fn waiting_deliveries(&self) -> usize {
        self.deliveries.len()
    }

    /// The next connection that has something to send.
    pub(crate) fn poll_wake(&mut self) -> Option<Arc<Link>> {
        self.wakes.pop()
    }

    /// Everything counted against the memory bound, bytes.
    fn memory(&self) -> usize {
        self.queued_bytes + self.retained.bytes()
    }

    /// Moves what a connection has to send to `control` and `out`, up to about `budget` bytes; whether there is
    /// more.
    pub(crate) fn take(
        &mut self,
        now: Instant,
        key: Key,
        budget: usize,
        control: &mut Vec<u8>,
        out: &mut Vec<Outgoing>,
    ) -> bool {
        let Some(session) = self
            .sessions
            .get_mut(key.session as usize)
            .and_then(Option::as_deref_mut)
        else {
            return false;
        };
        let version = session.version;
        let Some(attached) = session.attached.as_mut().filter(|a| a.link.id == key.link) else {
            return false;
        };
        if control.is_empty() {
            std::mem::swap(control, &mut attached.control);
        } else {
            control.append(&mut attached.control);
        }
        let before = session.outbound.bytes();
        let (queued, first) = (session.outbound.len(), out.len());
        let mut taken = control.len();
        let mut more = true;
        while taken < budget {
            let Some(next) = session.outbound.pop(attached.receive_maximum) else {
                more = false;
                break;
            };
            if let Outgoing::Publish { item, pid, .. } = &next {
                let message = &item.message;
                if message.is_expired(now) {
                    self.dropped.add("expired", 1);
                    session.outbound.finish(*pid);
                    continue;
                }
                if attached.max_packet != u32::MAX {
                    let size = publish_len(version, &out_publish(item, *pid, false, now));
                    // Three more bytes in case an alias comes along.
                    if size + 3 > usize::try_from(attached.max_packet).unwrap_or(usize::MAX) {
                        self.dropped.add("above_client_maximum", 1);
                        session.outbound.finish(*pid);
                        continue;
                    }
                }
                taken += message.size();
            }
            out.push(next);
        }
        attached.woken = more;
        self.queued_bytes = (self.queued_bytes + session.outbound.bytes()).saturating_sub(before);
        if !matches!(attached.pressure, Pressure::Open) {
            let limits = self.settings.queue_limits();
            if let Pressure::Holding(hold) = &mut attached.pressure {
                let bytes = out.iter().skip(first).map(|next| match next {
                    Outgoing::Publish { item, .. } => item.message.size(),
                    Outgoing::Pubrel(_) => 0,
                });
                let messages = queued - session.outbound.len();
                hold.taken(now, messages, bytes.sum(), limits);
            }
            let held = session.outbound.bytes();
            let tight = self.queued_bytes + self.retained.bytes() > self.settings.max_memory / 2;
            if !session.outbound.fills(limits, 4) && (!tight || held <= deliver::FAIR) {
                attached.link.set_pressed(false);
                attached.pressure = Pressure::Open;
            }
        }
        more
    }

    /// Whether a connected client is subscribed to this topic.
    pub(crate) fn has_subscriber(&self, topic: &str) -> bool {
        let found = self.subscriptions.find(topic);
        let connected = |index| self.session(index).is_some_and(|s| s.attached.is_some());
        found.hits.iter().any(|h| connected(h.session))
            || found.groups.iter().flatten().any(|s| connected(s.session))
    }

    /// Connections, sessions, retained messages and accepted publishes.
    pub(crate) fn gauges(&self) -> [u64; 4] {
        let n = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        [
            self.connections,
            n(self.by_client.len()),
            n(self.retained.len()),
            self.publishes,
        ]
    }

    /// Links of all connections.
    pub(crate) fn links(&self) -> impl Iterator<Item = &Arc<Link>> {
        self.sessions
            .iter()
            .flatten()
            .filter_map(|s| Some(&s.attached.as_ref()?.link))
    }

    /// Tells the pipeline of a client, and notes it for status.
    fn tell(&mut self, now: Instant, event: Event) {
        self.clients.note(now, &event);
        self.deliveries.push_back(Delivery::Event(event));
    }

    /// From now on no connection is accepted.
    pub(crate) fn stop(&mut self) {
        self.stopping = true;
    }
}

/// A PUBLISH towards a subscriber, without alias.
pub(crate) fn out_publish(
    item: &super::message::Item,
    pid: u16,
    dup: bool,
    now: Instant,
) -> OutPublish<'_> {
    let message = &item.message;
    OutPublish {
        dup,
        qos: item.qos,
        retain: item.retain,
        pid,
        topic: &message.topic,
        payload: &message.payload,
        alias: None,
        expiry: message.expiry_left(now),
        subscription_ids: item.ids.as_deref().unwrap_or_default(),
        forward: &message.forward,
    }
}

/// A will's message expiry begins when it is sent.
fn will_expiry(will: &Will, now: Instant) -> Option<Instant> {
    will.expiry
        .map(|seconds| super::message::after(now, seconds))
}

/// QoS that a subscriber gets.
fn granted(published: Qos, subscribed: Qos) -> Qos {
    published.min(subscribed)
}
