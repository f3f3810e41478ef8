//! The beginning and the end of connections and sessions.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Change, Key, Router, will_expiry};
use crate::broker::acl::Rights;
use crate::broker::codec::{Connack, Connect, Version, Will, connack, reason};
use crate::broker::link::{Cause, Link};
use crate::broker::message::after;
use crate::broker::outbound::Outbound;
use crate::broker::pressure::Pressure;
use crate::broker::session::{Attached, Session};
use crate::broker::subscriptions::SessionIndex;
use crate::broker::topic::Filter;
use crate::broker::{Event, aware};

use super::deliver::{Draft, Origin};

/// Longest client id, bytes.
const CLIENT_ID: usize = 1024;

/// Who connects, as the listener and the authentication found out.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) user: Option<Arc<str>>,
    pub(crate) rights: Arc<Rights>,
}

/// An accepted connection; its CONNACK waits in the control packets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Accepted {
    pub(crate) key: Key,
    pub(crate) version: Version,
    /// Longest silence before the connection is closed.
    pub(crate) patience: Option<Duration>,
    /// Aliases that may be set towards the client.
    pub(crate) topic_aliases: u16,
}

impl Router {
    /// Takes a CONNECT whose user is known. `Err` is the reason code of the CONNACK; nothing has changed then, and
    /// the will is forgotten.
    pub(crate) fn connect(
        &mut self,
        now: Instant,
        request: Connect,
        peer: &Peer,
        link: &Arc<Link>,
    ) -> Result<Accepted, u8> {
        let assigned = request.client.is_empty();
        let client: Arc<str> = if assigned {
            format!("auto-{:x}-{}", self.settings.instance, self.next_serial).into()
        } else {
            request.client.as_ref().into()
        };
        let old = self.by_client.get(&client).copied();
        if let Err((code, why)) = self.admit(now, &request, peer, old) {
            self.clients.refuse(now, why, &client, &peer.address);
            return Err(code);
        }
        if let Some(index) = old {
            self.take_over(now, index, request.clean);
        }
        // A session that was to end with its connection has just ended (MQTT-3.1.2-6); one of another user is not for
        // this one.
        let over = old
            .and_then(|i| self.session(i))
            .is_some_and(|s| s.user != peer.user || !s.is_persistent());
        if let Some(index) = old.filter(|_| request.clean || over) {
            self.remove_session(now, index);
        }
        let kept = self.by_client.get(&client).copied();
        let index = match kept {
            Some(index) => index,
            None => self.new_session(&client),
        };
        let limit =
            u32::try_from(self.settings.limits.session_expiry.0.as_secs()).unwrap_or(u32::MAX);
        let asked = match (request.version, request.clean) {
            (Version::V5, _) => request.session_expiry,
            (Version::V311, true) => 0,
            (Version::V311, false) => limit,
        };
        let expiry = asked.min(limit);
        let limits = &self.settings.limits;
        let longest = u16::try_from(limits.keep_alive.0.as_secs()).unwrap_or(u16::MAX);
        let told = request.version == Version::V5
            && longest > 0
            && (request.keep_alive == 0 || request.keep_alive > longest);
        let keep_alive = if told { longest } else { request.keep_alive };
        let topic_aliases = limits.topic_aliases;
        let answer = Connack {
            session_present: kept.is_some(),
            reason: reason::SUCCESS,
            session_expiry: (expiry != asked).then_some(expiry),
            receive_maximum: Some(limits.receive_maximum.max(1)),
            max_packet: u32::try_from(self.settings.max_packet).ok(),
            assigned_client: assigned.then_some(&*client),
            topic_alias_max: (topic_aliases > 0).then_some(topic_aliases),
            server_keep_alive: told.then_some(keep_alive),
        };
        let mut control = Vec::new();
        connack(&mut control, request.version, &answer);
        let attached = Attached {
            link: Arc::clone(link),
            control,
            woken: true,
            receive_maximum: request.receive_maximum.min(limits.inflight.max(1)),
            max_packet: request.max_packet,
            aliases: Vec::new(),
            pressure: Pressure::Open,
        };
        if let Some(session) = self.session_mut(index) {
            session.version = request.version;
            session.user.clone_from(&peer.user);
            session.rights = Arc::clone(&peer.rights);
            session.expiry = expiry;
            session.will = request.will.map(Box::new);
            (session.will_due, session.expires) = (None, None);
            session.outbound.rewind();
            session.attached = Some(attached);
        }
        self.end_forbidden(index);
        self.connections += 1;
        self.note(Change::Attached(index));
        let event = Event::Connected {
            client,
            user: peer.user.clone(),
            address: peer.address,
            protocol: request.version.level(),
        };
        self.tell(now, event);
        Ok(Accepted {
            key: Key {
                session: index,
                link: link.id,
            },
            version: request.version,
            patience: (keep_alive > 0).then(|| Duration::from_millis(u64::from(keep_alive) * 1500)),
            topic_aliases: topic_aliases.min(request.topic_alias_max),
        })
    }

    fn admit(
        &mut self,
        now: Instant,
        request: &Connect,
        peer: &Peer,
        old: Option<SessionIndex>,
    ) -> Result<(), (u8, &'static str)> {
        if self.stopping {
            return Err((reason::SERVER_SHUTTING_DOWN, "connect_stopping"));
        }
        if request.authentication_method {
            return Err((
                reason::BAD_AUTHENTICATION_METHOD,
                "connect_authentication_method",
            ));
        }
        let nameless =
            request.client.is_empty() && request.version == Version::V311 && !request.clean;
        if nameless || request.client.len() > CLIENT_ID {
            return Err((reason::CLIENT_ID_INVALID, "connect_client_id"));
        }
        if let Some(will) = &request.will {
            self.admit_will(will, &peer.rights)?;
        }
        match old {
            Some(index) => {
                // A user may not push another one off the broker by taking its client id.
                let held = self
                    .session(index)
                    .is_some_and(|s| s.attached.is_some() && s.user != peer.user);
                if held {
                    return Err((reason::NOT_AUTHORIZED, "connect_client_id_of_other_user"));
                }
            }
            None => {
                if self.by_client.len() >= self.settings.limits.sessions {
                    return Err((reason::QUOTA_EXCEEDED, "connect_sessions"));
                }
                let (since, count) = &mut self.new_clients;
                if since.is_none_or(|since| {
                    now.saturating_duration_since(since) >= Duration::from_secs(1)
                }) {
                    (*since, *count) = (Some(now), 0);
                }
                if *count >= self.settings.limits.new_clients_per_second {
                    return Err((reason::CONNECTION_RATE_EXCEEDED, "connect_rate"));
                }
                *count += 1;
            }
        }
        Ok(())
    }

    /// The will is checked like a publish, now: when it is sent there is nobody left to tell.
    fn admit_will(&self, will: &Will, rights: &Rights) -> Result<(), (u8, &'static str)> {
        if let Some(why) = self.refuses_topic(&will.topic) {
            return Err((reason::TOPIC_NAME_INVALID, why));
        }
        if super::incoming::is_reserved(&will.topic) || !rights.may_publish(&will.topic) {
            return Err((reason::NOT_AUTHORIZED, "connect_will_rights"));
        }
        Ok(())
    }

    pub(super) fn new_session(&mut self, client: &Arc<str>) -> SessionIndex {
        let session = Box::new(Session {
            serial: self.next_serial,
            client: Arc::clone(client),
            user: None,
            rights: Arc::default(),
            version: Version::V311,
            attached: None,
            expiry: 0,
            subscriptions: BTreeMap::new(),
            outbound: Outbound::default(),
            received: BTreeMap::new(),
            will: None,
            will_due: None,
            expires: None,
            filed: false,
        });
        self.next_serial += 1;
        let index = match self.free.pop() {
            Some(index) => {
                if let Some(slot) = self.sessions.get_mut(index as usize) {
                    *slot = Some(session);
                }
                index
            }
            None => {
                self.sessions.push(Some(session));
                // `limits.sessions` keeps this far below the width of the index.
                u32::try_from(self.sessions.len() - 1).unwrap_or(u32::MAX)
            }
        };
        self.by_client.insert(Arc::clone(client), index);
        index
    }

    /// Ends the old connection of a client that connects anew: its will goes out, once, before anything of the new
    /// connection is routed (MQTT-3.1.4-3). A delayed will is not sent when the session goes on (MQTT-3.1.3-9).
    fn take_over(&mut self, now: Instant, index: SessionIndex, clean: bool) {
        let Some(session) = self.session_mut(index) else {
            return;
        };
        let Some(link) = session.attached.as_ref().map(|a| Arc::clone(&a.link)) else {
            session.will_due = None;
            if !clean {
                session.will = None;
            }
            return;
        };
        if !clean && session.expiry > 0 && session.will.as_ref().is_some_and(|w| w.delay > 0) {
            session.will = None;
        }
        link.stop(Cause::TakeOver);
        self.detach(now, index, Cause::TakeOver);
        if let Some(session) = self.session_mut(index) {
            session.will_due = None;
        }
    }

    /// A connection has ended. One that is no longer its session's present one is ignored.
    pub(crate) fn disconnect(&mut self, now: Instant, key: Key, cause: Cause) {
        if self.linked(key).is_none() {
            return;
        }
        self.detach(now, key.session, cause);
        let Some(session) = self.session_mut(key.session) else {
            return;
        };
        match session.expiry {
            0 => self.remove_session(now, key.session),
            u32::MAX => {}
            seconds => {
                let at = after(now, seconds);
                session.expires = Some(at);
                self.timers.insert((at, key.session));
            }
        }
    }

    /// Takes the connection off its session and sees to the will.
    fn detach(&mut self, now: Instant, index: SessionIndex, cause: Cause) {
        let Some(session) = self.session_mut(index) else {
            return;
        };
        if session.attached.take().is_none() {
            return;
        }
        let before = session.outbound.bytes();
        session.outbound.drop_low();
        let freed = before - session.outbound.bytes();
        let client = Arc::clone(&session.client);
        let expiry = session.expiry;
        let mut due = None;
        let mut send = None;
        if !cause.sends_will() {
            session.will = None;
        } else if let Some(will) = &session.will {
            match will.delay.min(expiry) {
                0 => send = session.will.take(),
                delay => due = Some(after(now, delay)),
            }
        }
        session.will_due = due;
        self.queued_bytes = self.queued_bytes.saturating_sub(freed);
        self.connections = self.connections.saturating_sub(1);
        self.timers.extend(due.map(|at| (at, index)));
        if let Some(will) = send {
            self.send_will(now, index, &client, &will);
        }
        self.note(Change::Detached(index));
        let reason = cause.word();
        self.tell(now, Event::Disconnected { client, reason });
    }

    pub(super) fn send_will(
        &mut self,
        now: Instant,
        index: SessionIndex,
        client: &Arc<str>,
        will: &Will,
    ) {
        let origin = Origin {
            session: Some(index),
            client: Some(client),
            will: true,
            gateway: false,
            at: now,
        };
        let payload = match &self.settings.ndeath_clock {
            Some(clock) if aware::is_ndeath(&will.topic) => {
                aware::with_timestamp(&will.payload, clock())
            }
            _ => None,
        };
        let draft = Draft {
            topic: &will.topic,
            payload: payload.unwrap_or_else(|| will.payload.clone()),
            qos: will.qos,
            retain: will.retain,
            forward: will.forward.clone(),
            expires: will_expiry(will, now),
            traceparent: will.traceparent.clone(),
            on_written: None,
        };
        self.deliver(now, &origin, draft, None);
    }

    /// Gives every session the rights it has now.
    pub(crate) fn renew_rights(&mut self, rights: impl Fn(Option<&str>, &str) -> Arc<Rights>) {
        for index in (0..).take(self.sessions.len()) {
            if let Some(session) = self.session_mut(index) {
                session.rights = rights(session.user.as_deref(), &session.client);
                self.end_forbidden(index);
            }
        }
    }

    /// Ends the subscriptions of a session that its rights no longer allow.
    fn end_forbidden(&mut self, index: SessionIndex) {
        let Some(session) = self.session_mut(index) else {
            return;
        };
        let rights = Arc::clone(&session.rights);
        let allowed = |text: &str| {
            Filter::parse(text).is_some_and(|filter| rights.may_subscribe(filter.filter))
        };
        let ended: Vec<_> = session
            .subscriptions
            .extract_if(.., |text, _| !allowed(text))
            .collect();
        if ended.is_empty() {
            return;
        }
        let client = Arc::clone(&session.client);
        tracing::warn!(%client, subscriptions = ended.len(), "its rights no longer allow what it subscribed to");
        for (text, _) in &ended {
            if let Some(filter) = Filter::parse(text) {
                self.subscriptions.remove(filter, index);
            }
        }
        self.generation += 1;
        self.note(Change::Session(index));
    }

    /// Ends a session. A will that still waits is due now (MQTT-3.1.2-8).
    pub(super) fn remove_session(&mut self, now: Instant, index: SessionIndex) {
        let Some(mut session) = self.sessions.get_mut(index as usize).and_then(Option::take) else {
            return;
        };
        self.by_client.remove(&session.client);
        for filter in session.subscriptions.keys() {
            if let Some(filter) = Filter::parse(filter) {
                self.subscriptions.remove(filter, index);
                self.generation += 1;
            }
        }
        self.queued_bytes = self.queued_bytes.saturating_sub(session.outbound.bytes());
        self.free.push(index);
        // A client may have made a session that was to be kept one that is not.
        if session.filed {
            self.note(Change::SessionGone(Arc::clone(&session.client)));
        }
        if let Some(will) = session.will.take() {
            self.send_will(now, index, &session.client, &will);
        }
    }
}
