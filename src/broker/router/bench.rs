//! The router without sockets: clients that speak in packets, and a pipeline that answers when it is told to.

#![allow(clippy::unwrap_used, reason = "a test's body")]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::{Exactly, Peer, Router, Settings, Tokens};
use crate::broker::acl::Acl;
use crate::broker::codec::{
    Connect, Options, Packet, Publish, RetainHandling, Subscribe, Version, Will,
};
use crate::broker::config::Config;
use crate::broker::link::{Cause, Link};
use crate::broker::outbound::Outgoing;
use crate::broker::router::Key;
use crate::broker::{AckOutcome, Delivery, PubackToken, Qos};

/// Gives tokens that the bench keeps, so that a test decides when the pipeline answers.
#[derive(Default)]
pub(super) struct Held(Mutex<Vec<Answer>>);

type Answer = (Arc<Link>, u64, AckOutcome, Option<Exactly>);

impl Tokens for Arc<Held> {
    fn token(&self, link: &Arc<Link>, slot: u64, exactly: Option<Exactly>) -> PubackToken {
        let (held, link) = (Arc::clone(self), Arc::clone(link));
        PubackToken::new(move |outcome| held.0.lock().unwrap().push((link, slot, outcome, exactly)))
    }
}

pub(super) struct Bench {
    pub(super) router: Router,
    pub(super) now: Instant,
    held: Arc<Held>,
    links: u64,
    pub(super) pipeline: Vec<Delivery>,
}

#[derive(Clone)]
pub(super) struct Client {
    pub(super) key: Key,
    pub(super) link: Arc<Link>,
    pub(super) version: Version,
}

pub(super) fn connect(client: &str) -> Connect {
    Connect {
        version: Version::V5,
        client: client.into(),
        clean: true,
        keep_alive: 0,
        user: None,
        password: None,
        will: None,
        session_expiry: 0,
        receive_maximum: u16::MAX,
        max_packet: u32::MAX,
        topic_alias_max: 0,
        authentication_method: false,
    }
}

pub(super) fn will(topic: &str, payload: &'static str) -> Option<Will> {
    Some(Will {
        topic: topic.into(),
        payload: Bytes::from_static(payload.as_bytes()),
        qos: Qos::AtLeastOnce,
        retain: false,
        delay: 0,
        expiry: None,
        forward: Bytes::new(),
        traceparent: None,
    })
}

impl Bench {
    pub(super) fn new(taps: &[&str]) -> Self {
        Self::with(taps, &Config::default())
    }

    pub(super) fn with(taps: &[&str], config: &Config) -> Self {
        let taps = taps.iter().map(|t| (*t).to_owned()).collect();
        let mut settings = Settings::new(config, taps, None, 1);
        if config.ndeath_timestamp {
            settings.ndeath_clock = Some(Arc::new(|| 300));
        }
        let mut router = Router::new(settings);
        let now = Instant::now();
        router.handle_timeout(now);
        Self {
            router,
            now,
            held: Arc::default(),
            links: 0,
            pipeline: Vec::new(),
        }
    }

    pub(super) fn try_connect(&mut self, request: Connect) -> Result<Client, u8> {
        self.links += 1;
        let link = Link::new(self.links);
        let version = request.version;
        let rights = Acl::defaults(Vec::new()).rights(request.user.as_deref(), &request.client);
        let user = request.user.as_deref().map(Arc::from);
        let peer = Peer {
            address: ([127, 0, 0, 1], 1).into(),
            user,
            rights,
        };
        let accepted = self.router.connect(self.now, request, &peer, &link);
        self.settle();
        accepted.map(|a| Client {
            key: a.key,
            link,
            version,
        })
    }

    pub(super) fn connect(&mut self, request: Connect) -> Client {
        self.try_connect(request).unwrap()
    }

    pub(super) fn send(&mut self, client: &Client, packet: Packet<'_>) -> Result<(), Cause> {
        let held = Arc::clone(&self.held);
        let result = self.router.packet(self.now, client.key, packet, &held);
        if let Err(cause) = result {
            self.router.disconnect(self.now, client.key, cause);
        }
        self.settle();
        result
    }

    fn settle(&mut self) {
        while let Some(delivery) = self.router.poll_delivery() {
            self.pipeline.push(delivery);
        }
        while self.router.poll_wake().is_some() {}
    }

    /// The pipeline answers everything it holds; what is dropped comes back as such.
    pub(super) fn answer(&mut self, accept: bool) {
        for delivery in std::mem::take(&mut self.pipeline) {
            if let Delivery::Publish(inbound) = delivery
                && let Some(token) = inbound.ack
                && accept
            {
                token.accept();
            }
        }
        for (link, slot, outcome, exactly) in std::mem::take(&mut *self.held.0.lock().unwrap()) {
            let again = exactly.and_then(|e| self.router.settle(e, outcome));
            for (link, slot) in [(link, slot)].into_iter().chain(again) {
                match outcome {
                    AckOutcome::Dropped => link.stop(Cause::AckLost),
                    _ => link.complete_ack(slot, 0),
                }
            }
        }
    }

    pub(super) fn subscribe(&mut self, client: &Client, filter: &str, qos: Qos) {
        let options = Options {
            qos,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::Always,
        };
        let packet = Subscribe {
            pid: 1,
            id: None,
            filters: vec![(filter.into(), options)],
        };
        self.send(client, Packet::Subscribe(packet)).unwrap();
    }

    pub(super) fn publish(
        &mut self,
        client: &Client,
        topic: &str,
        payload: &str,
        qos: Qos,
        pid: u16,
        retain: bool,
    ) {
        let packet = Publish {
            dup: false,
            qos,
            retain,
            topic,
            pid,
            payload: Bytes::copy_from_slice(payload.as_bytes()),
            alias: None,
            expiry: None,
            forward: Bytes::new(),
            traceparent: None,
        };
        let _ = self.send(client, Packet::Publish(packet));
    }

    pub(super) fn take(&mut self, client: &Client) -> Vec<Outgoing> {
        let (mut control, mut out) = (Vec::new(), Vec::new());
        while self
            .router
            .take(self.now, client.key, 1 << 20, &mut control, &mut out)
        {}
        out
    }

    /// Payloads sent to a client, with QoS, RETAIN and DUP.
    #[cfg(test)]
    pub(super) fn got(&mut self, client: &Client) -> Vec<String> {
        let show = |o: Outgoing| match o {
            Outgoing::Publish { item, dup, .. } => {
                let payload = String::from_utf8_lossy(&item.message.payload).into_owned();
                let retain = if item.retain { " retain" } else { "" };
                format!(
                    "{payload} q{}{retain}{}",
                    item.qos as u8,
                    if dup { " dup" } else { "" }
                )
            }
            Outgoing::Pubrel(pid) => format!("pubrel {pid}"),
        };
        self.take(client).into_iter().map(show).collect()
    }

    /// Acknowledgements ready for a client.
    #[cfg(test)]
    pub(super) fn acks(&self, client: &Client) -> Vec<u8> {
        let mut out = Vec::new();
        client.link.drain_acks(client.version, &mut out);
        out
    }

    pub(super) fn end(&mut self, client: &Client, cause: Cause) {
        self.router.disconnect(self.now, client.key, cause);
        self.settle();
    }

    pub(super) fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.router.handle_timeout(self.now);
        self.settle();
    }
}
