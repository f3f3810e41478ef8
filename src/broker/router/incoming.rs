//! Packets of an accepted connection.

use std::sync::Arc;
use std::time::Instant;

use super::deliver::{Draft, Origin};
use super::{Change, Exactly, Key, Router, Tokens};
use crate::broker::codec::{
    Ack, Disconnect, Options, Packet, Publish, RetainHandling, Subscribe, Unsubscribe, Version,
    packet_id_only, pingresp, reason, suback, unsuback,
};
use crate::broker::link::{Cause, Link};
use crate::broker::message::after;
use crate::broker::session::{Received, Session, Stored};
use crate::broker::subscriptions::Subscription;
use crate::broker::topic::Filter;
use crate::broker::{AckOutcome, Qos, aware};

const PUBACK: u8 = 0x40;
const PUBREC: u8 = 0x50;
const PUBREL: u8 = 0x62;
const PUBCOMP: u8 = 0x70;

/// Topics that only the broker publishes to.
pub(super) fn is_reserved(topic: &str) -> bool {
    topic.starts_with(aware::RESERVED) || topic.starts_with("$SYS/") || topic.starts_with("$share/")
}

/// What to do with a QoS 2 publish.
enum Fate {
    /// Everybody gets it.
    Route,
    /// Subscribers have it; the pipeline gets it.
    PipelineOnly,
    /// All have it, or it is on its way.
    Known,
}

impl Router {
    /// Takes a packet. `Err`: the connection has to end; the caller tells a v5 client why and calls
    /// [`Router::disconnect`].
    pub(crate) fn packet(
        &mut self,
        now: Instant,
        key: Key,
        packet: Packet<'_>,
        tokens: &dyn Tokens,
    ) -> Result<(), Cause> {
        if let Packet::Publish(publish) = packet {
            return self.incoming_publish(now, key, publish, tokens);
        }
        let longest =
            u32::try_from(self.settings.limits.session_expiry.0.as_secs()).unwrap_or(u32::MAX);
        let session = self.linked(key).ok_or(Cause::TakeOver)?;
        match packet {
            Packet::Puback(ack) => {
                if session.outbound.awaits(ack.pid, Qos::AtLeastOnce) {
                    self.finish(key, ack.pid);
                }
                Ok(())
            }
            Packet::Pubrec(ack) => {
                self.pubrec(key, ack);
                Ok(())
            }
            Packet::Pubcomp(ack) => {
                self.finish(key, ack.pid);
                Ok(())
            }
            Packet::Pubrel(ack) => {
                let known = session.received.remove(&ack.pid).is_some();
                let code = if known {
                    reason::SUCCESS
                } else {
                    reason::PACKET_ID_NOT_FOUND
                };
                respond(session, PUBCOMP, ack.pid, code);
                Ok(())
            }
            Packet::Subscribe(subscribe) => self.subscribe(now, key, subscribe),
            Packet::Unsubscribe(unsubscribe) => {
                self.unsubscribe(key, &unsubscribe);
                Ok(())
            }
            Packet::Pingreq => {
                if let Some(attached) = &mut session.attached {
                    pingresp(&mut attached.control);
                }
                Ok(())
            }
            Packet::Disconnect(disconnect) => Err(leave(session, disconnect, longest)),
            Packet::Connect(_) | Packet::Auth | Packet::Publish(_) => {
                Err(Cause::Protocol(reason::PROTOCOL_ERROR))
            }
        }
    }

    fn finish(&mut self, key: Key, pid: u16) {
        if let Some(session) = self.linked(key) {
            let before = session.outbound.bytes();
            session.outbound.finish(pid);
            let freed = before - session.outbound.bytes();
            self.queued_bytes = self.queued_bytes.saturating_sub(freed);
        }
    }

    fn pubrec(&mut self, key: Key, ack: Ack) {
        if ack.reason >= 0x80 {
            self.finish(key, ack.pid);
            return;
        }
        if let Some(session) = self.linked(key) {
            let before = session.outbound.bytes();
            let known = session.outbound.release(ack.pid);
            let freed = before - session.outbound.bytes();
            let code = if known {
                reason::SUCCESS
            } else {
                reason::PACKET_ID_NOT_FOUND
            };
            respond(session, PUBREL, ack.pid, code);
            self.queued_bytes = self.queued_bytes.saturating_sub(freed);
        }
    }

    fn incoming_publish(
        &mut self,
        now: Instant,
        key: Key,
        publish: Publish<'_>,
        tokens: &dyn Tokens,
    ) -> Result<(), Cause> {
        let aliases = usize::from(self.settings.limits.topic_aliases);
        let receive_maximum = usize::from(self.settings.limits.receive_maximum.max(1));
        let durable = self.settings.durable;
        let session = self.linked(key).ok_or(Cause::TakeOver)?;
        let named = alias(session, &publish, aliases)?;
        let name = named.as_deref().unwrap_or(publish.topic);
        let (qos, pid) = (publish.qos, publish.pid);
        let Some(link) = session.attached.as_ref().map(|a| Arc::clone(&a.link)) else {
            return Err(Cause::TakeOver);
        };
        if qos != Qos::AtMostOnce && session.version == Version::V5 {
            let open = session.received.len() + link.open_at_least_once();
            if open >= receive_maximum && !session.received.contains_key(&pid) {
                return Err(Cause::Protocol(reason::RECEIVE_MAXIMUM_EXCEEDED));
            }
        }
        let allowed = !is_reserved(name) && session.rights.may_publish(name);
        let (client, serial) = (Arc::clone(&session.client), session.serial);
        let resolved = if allowed {
            self.resolve(name)
        } else {
            Err("publish_rights")
        };
        let (topic, tapped) = match resolved {
            Ok(resolved) => resolved,
            Err(why) => {
                self.clients.refuse(now, why, &client, &name);
                let code = if allowed {
                    reason::TOPIC_NAME_INVALID
                } else {
                    reason::NOT_AUTHORIZED
                };
                // v3.1.1 can't be told: it gets a plain acknowledgement, or it would send this for ever.
                match qos {
                    Qos::AtMostOnce => {}
                    Qos::AtLeastOnce => drop(link.push_ack(pid, PUBACK, Some(code))),
                    Qos::ExactlyOnce => drop(link.push_ack(pid, PUBREC, Some(code))),
                }
                return Ok(());
            }
        };
        let waits = tapped && durable;
        let mut token = None;
        let mut fate = Fate::Route;
        match qos {
            Qos::AtMostOnce => {}
            Qos::AtLeastOnce => {
                let slot = link.push_ack(pid, PUBACK, (!waits).then_some(reason::SUCCESS));
                token = waits.then(|| tokens.token(&link, slot, None));
            }
            Qos::ExactlyOnce => {
                let session = self.linked(key).ok_or(Cause::TakeOver)?;
                fate = receive(session, pid, waits, &link);
                if waits && !matches!(fate, Fate::Known) {
                    let slot = link.push_ack(pid, PUBREC, None);
                    let exactly = Exactly {
                        session: key.session,
                        serial,
                        pid,
                    };
                    token = Some(tokens.token(&link, slot, Some(exactly)));
                }
            }
        }
        let origin = Origin {
            session: Some(key.session),
            client: Some(&client),
            will: false,
            gateway: false,
            at: now,
        };
        let draft = Draft {
            topic: &topic,
            payload: publish.payload,
            qos,
            retain: publish.retain,
            forward: publish.forward,
            expires: publish.expiry.map(|seconds| after(now, seconds)),
            traceparent: publish.traceparent,
            on_written: None,
        };
        match fate {
            Fate::Route => self.deliver(now, &origin, draft, token),
            Fate::PipelineOnly => self.hand_over(&origin, draft, &topic, token),
            Fate::Known => {}
        }
        Ok(())
    }

    /// The pipeline has answered for a QoS 2 publish; the place of a repetition's PUBREC that its answer fills.
    pub(crate) fn settle(
        &mut self,
        exactly: Exactly,
        outcome: AckOutcome,
    ) -> Option<(Arc<Link>, u64)> {
        let session = self
            .session_mut(exactly.session)
            .filter(|s| s.serial == exactly.serial)?;
        session.settle(exactly.pid, outcome)
    }

    fn subscribe(&mut self, now: Instant, key: Key, subscribe: Subscribe) -> Result<(), Cause> {
        let mut codes = Vec::with_capacity(subscribe.filters.len());
        let mut retained = Vec::new();
        for (text, options) in &subscribe.filters {
            match self.add_subscription(key, text, *options, subscribe.id)? {
                Ok(new) => {
                    codes.push(options.qos as u8);
                    let wanted = match options.retain_handling {
                        RetainHandling::Always => true,
                        RetainHandling::IfNew => new,
                        RetainHandling::Never => false,
                    };
                    if wanted && !text.starts_with("$share/") {
                        retained.push((text, *options));
                    }
                }
                Err((code, why)) => {
                    codes.push(code);
                    let client = self.linked(key).map(|s| Arc::clone(&s.client));
                    let client = client.as_deref().unwrap_or_default();
                    self.clients.refuse(now, why, client, text);
                }
            }
        }
        let session = self.linked(key).ok_or(Cause::TakeOver)?;
        let version = session.version;
        if let Some(attached) = &mut session.attached {
            suback(&mut attached.control, version, subscribe.pid, &codes);
        }
        for (filter, options) in retained {
            let subscription = Subscription {
                session: key.session,
                options,
                id: subscribe.id,
            };
            self.send_retained(now, key.session, filter, &subscription);
        }
        self.note(Change::Session(key.session));
        Ok(())
    }

    #[allow(clippy::type_complexity)]
    fn add_subscription(
        &mut self,
        key: Key,
        text: &str,
        options: Options,
        id: Option<u32>,
    ) -> Result<Result<bool, (u8, &'static str)>, Cause> {
        let limits = &self.settings.limits;
        let (most, longest, deepest) = (
            limits.subscriptions,
            limits.topic_bytes,
            limits.topic_levels,
        );
        let session = self.linked(key).ok_or(Cause::TakeOver)?;
        let Some(filter) = Filter::parse(text) else {
            return Ok(Err((reason::TOPIC_FILTER_INVALID, "subscribe_filter")));
        };
        if filter.share.is_some() && options.no_local {
            return Err(Cause::Protocol(reason::PROTOCOL_ERROR));
        }
        let full = session.subscriptions.len() >= most && !session.subscriptions.contains_key(text);
        let deep = filter.filter.bytes().filter(|b| *b == b'/').count() >= deepest;
        if full || deep || text.len() > longest {
            return Ok(Err((reason::QUOTA_EXCEEDED, "subscribe_limits")));
        }
        if !session.rights.may_subscribe(filter.filter) {
            return Ok(Err((reason::NOT_AUTHORIZED, "subscribe_rights")));
        }
        session
            .subscriptions
            .insert(text.into(), Stored { options, id });
        let subscription = Subscription {
            session: key.session,
            options,
            id,
        };
        self.generation += 1;
        Ok(Ok(self.subscriptions.insert(filter, subscription)))
    }

    fn unsubscribe(&mut self, key: Key, unsubscribe: &Unsubscribe) {
        let mut codes = Vec::with_capacity(unsubscribe.filters.len());
        for text in &unsubscribe.filters {
            let known = self
                .linked(key)
                .is_some_and(|s| s.subscriptions.remove(text).is_some());
            if let Some(filter) = Filter::parse(text).filter(|_| known) {
                self.subscriptions.remove(filter, key.session);
                self.generation += 1;
            }
            codes.push(if known {
                reason::SUCCESS
            } else {
                reason::NO_SUBSCRIPTION_EXISTED
            });
        }
        if let Some(session) = self.linked(key) {
            let version = session.version;
            if let Some(attached) = &mut session.attached {
                unsuback(&mut attached.control, version, unsubscribe.pid, &codes);
            }
        }
        self.note(Change::Session(key.session));
    }
}

/// Appends an answer to the control packets.
fn respond(session: &mut Session, first: u8, pid: u16, code: u8) {
    let version = session.version;
    if let Some(attached) = &mut session.attached {
        packet_id_only(&mut attached.control, version, first, pid, code);
    }
}

/// Sets or looks up a topic alias; the topic's name where an alias stands for it.
fn alias(
    session: &mut Session,
    publish: &Publish<'_>,
    most: usize,
) -> Result<Option<Arc<str>>, Cause> {
    let Some(alias) = publish.alias else {
        return Ok(None);
    };
    let invalid = Cause::Protocol(reason::TOPIC_ALIAS_INVALID);
    let place = usize::from(alias)
        .checked_sub(1)
        .filter(|p| *p < most)
        .ok_or(invalid)?;
    let aliases = &mut session.attached.as_mut().ok_or(invalid)?.aliases;
    if publish.topic.is_empty() {
        let known = aliases.get(place).cloned().flatten();
        return known
            .map(Some)
            .ok_or(Cause::Protocol(reason::PROTOCOL_ERROR));
    }
    if aliases.len() <= place {
        aliases.resize(place + 1, None);
    }
    if let Some(slot) = aliases.get_mut(place) {
        *slot = Some(publish.topic.into());
    }
    Ok(None)
}

/// Finds out whether a QoS 2 publish is new, and reserves the PUBREC of one that is not.
fn receive(session: &mut Session, pid: u16, waits: bool, link: &Arc<Link>) -> Fate {
    match session.received.get_mut(&pid) {
        Some(Received::Owned) => {
            link.push_ack(pid, PUBREC, Some(reason::SUCCESS));
            Fate::Known
        }
        Some(Received::Pending(waiting)) => {
            *waiting = Some((Arc::clone(link), link.push_ack(pid, PUBREC, None)));
            Fate::Known
        }
        Some(refused @ Received::Refused) if waits => {
            *refused = Received::Pending(None);
            Fate::PipelineOnly
        }
        Some(refused @ Received::Refused) => {
            *refused = Received::Owned;
            link.push_ack(pid, PUBREC, Some(reason::SUCCESS));
            Fate::Known
        }
        None => {
            let state = if waits {
                Received::Pending(None)
            } else {
                Received::Owned
            };
            session.received.insert(pid, state);
            if !waits {
                link.push_ack(pid, PUBREC, Some(reason::SUCCESS));
            }
            Fate::Route
        }
    }
}

/// DISCONNECT: what it means for will and session.
fn leave(session: &mut Session, disconnect: Disconnect, longest: u32) -> Cause {
    if let Some(seconds) = disconnect.session_expiry {
        if session.expiry == 0 && seconds > 0 {
            return Cause::Protocol(reason::PROTOCOL_ERROR);
        }
        session.expiry = seconds.min(longest);
    }
    match disconnect.reason {
        reason::SUCCESS => Cause::Client,
        _ => Cause::ClientWithWill,
    }
}
