//! From one publish to everybody who gets it.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::{Change, ROUTES, Route, Router, granted};
use crate::broker::aware;
use crate::broker::link::{Cause, Link};
use crate::broker::message::{Item, Message};
use crate::broker::outbound::{Pushed, QueueLimits};
use crate::broker::pressure::{Hold, Pressure};
use crate::broker::session::Session;
use crate::broker::subscriptions::{SessionIndex, Subscription};
use crate::broker::topic::matches;
use crate::broker::{Delivery, Inbound, PubackToken, Publish, PublishError, Qos, Written};

use super::Tally;

/// Topics longer than this are not remembered.
const REMEMBERED: usize = 512;

/// Where a publish comes from.
pub(super) struct Origin<'a> {
    pub(super) session: Option<SessionIndex>,
    pub(super) client: Option<&'a Arc<str>>,
    pub(super) will: bool,
    /// The gateway itself: not handed back to the pipeline.
    pub(super) gateway: bool,
    /// When its bytes were read.
    pub(super) at: Instant,
}

/// A publish before it is shared.
pub(super) struct Draft<'a> {
    pub(super) topic: &'a str,
    pub(super) payload: Bytes,
    pub(super) qos: Qos,
    pub(super) retain: bool,
    pub(super) forward: Bytes,
    pub(super) expires: Option<Instant>,
    pub(super) traceparent: Option<Box<str>>,
    pub(super) on_written: Option<Written>,
}

/// What a push to a session needs of the router beside that session.
struct Sinks<'a> {
    limits: QueueLimits,
    max_memory: usize,
    retained_bytes: usize,
    queued_bytes: &'a mut usize,
    wakes: &'a mut Vec<Arc<Link>>,
    dropped: &'a mut Tally,
    changes: &'a mut Option<Vec<Change>>,
    /// Sessions whose queue is above half, and that may still hold their publishers.
    pressed: Vec<SessionIndex>,
}

/// Bytes that a session may always hold, however full the rest is, up to a quarter above the bound: one greedy
/// client can't starve the others.
pub(super) const FAIR: usize = 64 << 10;

impl Sinks<'_> {
    /// Queues for one session and has its connection woken.
    fn push(&mut self, index: SessionIndex, session: &mut Session, item: Item) {
        if !session.rights.may_receive(&item.message.topic) {
            return;
        }
        let Some(attached) = &mut session.attached else {
            self.push_absent(index, session, item);
            return;
        };
        let size = item.message.size();
        if self.is_full(size, session.outbound.bytes()) {
            self.dropped.add("memory", 1);
            return;
        }
        let at_most_once = item.qos == Qos::AtMostOnce;
        let before = session.outbound.bytes();
        match session.outbound.push(item, self.limits) {
            Pushed::Queued { dropped } => self.dropped.add("slow_consumer", dropped),
            Pushed::Full => {
                self.dropped.add("slow_consumer", 1);
                if !at_most_once {
                    attached.link.stop(Cause::SlowConsumer);
                }
            }
        }
        *self.queued_bytes = (*self.queued_bytes + session.outbound.bytes()).saturating_sub(before);
        let tight = *self.queued_bytes + self.retained_bytes > self.max_memory / 2;
        if !matches!(attached.pressure, Pressure::Spent)
            && (session.outbound.fills(self.limits, 2) || tight && session.outbound.bytes() > FAIR)
        {
            self.pressed.push(index);
        }
        if !attached.woken && session.outbound.is_ready(attached.receive_maximum) {
            attached.woken = true;
            self.wakes.push(Arc::clone(&attached.link));
        }
    }

    fn push_absent(&mut self, index: SessionIndex, session: &mut Session, item: Item) {
        if item.qos == Qos::AtMostOnce || !session.is_persistent() {
            return;
        }
        if self.is_full(item.message.size(), session.outbound.bytes()) {
            self.dropped.add("memory", 1);
            return;
        }
        let before = session.outbound.bytes();
        match session.outbound.push(item, self.limits) {
            Pushed::Queued { dropped } => {
                self.dropped.add("offline_queue", dropped);
                if let Some(changes) = self.changes
                    && changes.last() != Some(&Change::Queued(index))
                {
                    changes.push(Change::Queued(index));
                }
            }
            Pushed::Full => self.dropped.add("offline_queue", 1),
        }
        *self.queued_bytes = (*self.queued_bytes + session.outbound.bytes()).saturating_sub(before);
    }

    fn is_full(&self, size: usize, held: usize) -> bool {
        let total = *self.queued_bytes + self.retained_bytes + size;
        total > self.max_memory
            && (held > FAIR || total > self.max_memory.saturating_add(self.max_memory / 4))
    }
}

impl Router {
    /// Why a topic name is not taken, beyond MQTT's own rules.
    pub(super) fn refuses_topic(&self, topic: &str) -> Option<&'static str> {
        let limits = &self.settings.limits;
        if topic.len() > limits.topic_bytes {
            return Some("topic_bytes");
        }
        if topic.bytes().filter(|b| *b == b'/').count() >= limits.topic_levels {
            return Some("topic_levels");
        }
        let fits = self
            .settings
            .topic_check
            .as_ref()
            .is_none_or(|check| check(topic));
        (!fits).then_some("subject_too_long")
    }

    /// Brings the route of a topic up to date; its shared name, and whether the pipeline wants it.
    pub(super) fn resolve(&mut self, topic: &str) -> Result<(Arc<str>, bool), &'static str> {
        if let Some(route) = self.routes.get_mut(topic) {
            if route.generation != self.generation {
                let found = self.subscriptions.find(topic);
                (route.hits, route.groups, route.generation) =
                    (found.hits, found.groups, self.generation);
            }
            return Ok((Arc::clone(&route.topic), route.tapped));
        }
        if let Some(why) = self.refuses_topic(topic) {
            return Err(why);
        }
        let found = self.subscriptions.find(topic);
        let name: Arc<str> = topic.into();
        let certificate = if self.settings.certificates {
            aware::certificate_topic(topic)
        } else {
            None
        };
        let tapped = self.settings.taps.iter().any(|t| matches(t, topic));
        let route = Route {
            topic: Arc::clone(&name),
            generation: self.generation,
            hits: found.hits,
            groups: found.groups,
            tapped,
            certificate,
        };
        // Names come back fast when the map is emptied, and no order of use has to be kept.
        if self.routes.len() >= ROUTES {
            self.routes.clear();
        }
        self.routes.insert(Arc::clone(&name), route);
        Ok((name, tapped))
    }

    /// Gives a publish to retained store, subscribers and pipeline. Its topic has been checked.
    pub(super) fn deliver(
        &mut self,
        now: Instant,
        origin: &Origin<'_>,
        draft: Draft<'_>,
        token: Option<PubackToken>,
    ) {
        let Ok((topic, tapped)) = self.resolve(draft.topic) else {
            return;
        };
        let message = Arc::new(Message {
            topic,
            payload: draft.payload,
            qos: draft.qos,
            retain: draft.retain,
            forward: draft.forward,
            expires: draft.expires,
            on_written: draft.on_written,
        });
        if !origin.gateway {
            self.publishes += 1;
        }
        if message.retain {
            self.retain(&message);
        }
        self.offer_certificate(now, &message, origin);
        self.fan_out(now, &message, origin.session);
        if tapped && !origin.gateway {
            let payload = message.payload.clone();
            let topic = Arc::clone(&message.topic);
            self.push_inbound(
                origin,
                topic,
                payload,
                draft.qos,
                draft.retain,
                draft.traceparent,
                token,
            );
        }
        if message.topic.len() > REMEMBERED {
            self.routes.remove(&message.topic);
        }
    }

    /// Gives a publish that subscribers already have to the pipeline.
    pub(super) fn hand_over(
        &mut self,
        origin: &Origin<'_>,
        draft: Draft<'_>,
        topic: &Arc<str>,
        token: Option<PubackToken>,
    ) {
        let topic = Arc::clone(topic);
        self.push_inbound(
            origin,
            topic,
            draft.payload,
            draft.qos,
            draft.retain,
            draft.traceparent,
            token,
        );
    }

    #[allow(clippy::too_many_arguments)]
    fn push_inbound(
        &mut self,
        origin: &Origin<'_>,
        topic: Arc<str>,
        payload: Bytes,
        qos: Qos,
        retain: bool,
        traceparent: Option<Box<str>>,
        ack: Option<PubackToken>,
    ) {
        self.deliveries.push_back(Delivery::Publish(Inbound {
            topic,
            payload,
            received_at: origin.at,
            client: origin.client.cloned(),
            qos: Some(qos),
            retain,
            traceparent,
            will: origin.will,
            ack,
        }));
    }

    fn retain(&mut self, message: &Arc<Message>) {
        if message.payload.is_empty() {
            if self.retained.remove(&message.topic) {
                self.note(Change::Retained(Arc::clone(&message.topic)));
            }
            return;
        }
        let new = self.retained.get(&message.topic).is_none();
        if new && self.retained.len() >= self.settings.limits.retained {
            self.dropped.add("retained_limit", 1);
        } else if self.memory() + message.size() > self.settings.max_memory {
            self.dropped.add("retained_memory", 1);
        } else {
            self.retained.put(Arc::clone(message));
            self.note(Change::Retained(Arc::clone(&message.topic)));
        }
    }

    /// A birth's bytes, retained under the certificate topic, and to those subscribed there
    /// (tck-id-conformance-mqtt-aware-store).
    fn offer_certificate(&mut self, now: Instant, message: &Arc<Message>, origin: &Origin<'_>) {
        let certificate = self
            .routes
            .get(&message.topic)
            .and_then(|r| r.certificate.clone());
        let Some(name) = certificate.filter(|_| !message.payload.is_empty()) else {
            return;
        };
        let Ok((topic, _)) = self.resolve(&name) else {
            self.dropped.add("certificate_topic", 1);
            return;
        };
        let copy = Arc::new(Message {
            topic,
            payload: message.payload.clone(),
            qos: message.qos,
            retain: true,
            forward: message.forward.clone(),
            expires: None,
            on_written: None,
        });
        self.retain(&copy);
        self.fan_out(now, &copy, origin.session);
    }

    fn fan_out(&mut self, now: Instant, message: &Arc<Message>, from: Option<SessionIndex>) {
        let Some(route) = self.routes.get(&message.topic) else {
            return;
        };
        let mut sinks = Sinks {
            limits: self.settings.queue_limits(),
            max_memory: self.settings.max_memory,
            retained_bytes: self.retained.bytes(),
            queued_bytes: &mut self.queued_bytes,
            wakes: &mut self.wakes,
            dropped: &mut self.dropped,
            changes: &mut self.changes,
            pressed: Vec::new(),
        };
        for hit in &route.hits {
            let qos = if Some(hit.session) == from {
                hit.own_qos
            } else {
                Some(hit.qos)
            };
            let (Some(qos), Some(Some(session))) =
                (qos, self.sessions.get_mut(hit.session as usize))
            else {
                continue;
            };
            let item = Item {
                message: Arc::clone(message),
                qos: granted(message.qos, qos),
                retain: message.retain && hit.retain_as_published,
                stored: false,
                ids: hit.ids.clone(),
            };
            sinks.push(hit.session, session, item);
        }
        for members in &route.groups {
            self.turn = self.turn.wrapping_add(1);
            let Some(member) = choose(members, self.turn, &self.sessions) else {
                continue;
            };
            if let Some(Some(session)) = self.sessions.get_mut(member.session as usize) {
                let item = Item {
                    message: Arc::clone(message),
                    qos: granted(message.qos, member.options.qos),
                    retain: message.retain && member.options.retain_as_published,
                    stored: false,
                    ids: member.id.map(|id| Arc::from([id])),
                };
                sinks.push(member.session, session, item);
            }
        }
        for index in sinks.pressed {
            self.slow_down(now, index, from);
        }
    }

    /// Makes a publisher wait for a subscriber whose queue is above half; itself it never waits for, and one that has
    /// just waited for nothing is spared.
    fn slow_down(&mut self, now: Instant, index: SessionIndex, from: Option<SessionIndex>) {
        let Some(publisher) = from
            .filter(|from| *from != index)
            .and_then(|from| self.session(from)?.attached.as_ref())
            .map(|attached| Arc::clone(&attached.link))
            .filter(|publisher| !publisher.is_spared(now))
        else {
            return;
        };
        let Some(attached) = self.session_mut(index).and_then(|s| s.attached.as_mut()) else {
            return;
        };
        match &mut attached.pressure {
            Pressure::Open => {
                let mut hold = Hold::new(now);
                hold.add(&publisher);
                let due = hold.due();
                attached.link.set_pressed(true);
                attached.pressure = Pressure::Holding(hold);
                self.timers.insert((due, index));
            }
            Pressure::Holding(hold) => hold.add(&publisher),
            Pressure::Spent => {}
        }
    }

    /// Queues the retained messages that a filter matches for one session.
    pub(super) fn send_retained(
        &mut self,
        now: Instant,
        index: SessionIndex,
        filter: &str,
        subscription: &Subscription,
    ) {
        let Some(Some(session)) = self.sessions.get_mut(index as usize) else {
            return;
        };
        let mut sinks = Sinks {
            limits: self.settings.queue_limits(),
            max_memory: self.settings.max_memory,
            retained_bytes: self.retained.bytes(),
            queued_bytes: &mut self.queued_bytes,
            wakes: &mut self.wakes,
            dropped: &mut self.dropped,
            changes: &mut self.changes,
            pressed: Vec::new(),
        };
        for message in self.retained.find(filter, now) {
            let item = Item {
                message: Arc::clone(message),
                qos: granted(message.qos, subscription.options.qos),
                retain: true,
                stored: true,
                ids: subscription.id.map(|id| Arc::from([id])),
            };
            sinks.push(index, session, item);
        }
    }

    /// A publish by the gateway itself. It is not handed back to the pipeline.
    pub(crate) fn publish(&mut self, now: Instant, publish: Publish) -> Result<(), PublishError> {
        if self.memory() > self.settings.max_memory.saturating_mul(2) {
            return Err(PublishError::Full);
        }
        let origin = Origin {
            session: None,
            client: None,
            will: false,
            gateway: true,
            at: now,
        };
        let draft = Draft {
            topic: &publish.topic,
            payload: publish.payload,
            qos: publish.qos,
            retain: publish.retain,
            forward: Bytes::new(),
            expires: None,
            traceparent: None,
            on_written: publish.on_written,
        };
        self.deliver(now, &origin, draft, None);
        Ok(())
    }
}

/// Whose turn it is: the next connected member; else the first that is kept without a connection.
fn choose<'a>(
    members: &'a [Subscription],
    turn: usize,
    sessions: &[Option<Box<Session>>],
) -> Option<&'a Subscription> {
    let of = |s: &Subscription| sessions.get(s.session as usize).and_then(Option::as_deref);
    let n = members.len().max(1);
    let in_turn = || members.iter().cycle().skip(turn % n).take(members.len());
    in_turn()
        .find(|m| of(m).is_some_and(|s| s.attached.is_some()))
        .or_else(|| in_turn().find(|m| of(m).is_some_and(Session::is_persistent)))
}
