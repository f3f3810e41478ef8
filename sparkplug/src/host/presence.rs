//! STATE: the host's own birth and death on every server it is connected to.
//!
//! Order on a connection: [`HostSession::connect`] fixes the timestamp that will and birth share, the shell sends
//! CONNECT with the will, subscribes to the filters, and after SUBACK calls [`HostSession::subscribed`], which
//! puts the birth in front of everything else. Nothing is sent through a server before its birth.

use std::collections::VecDeque;
use std::sync::Arc;

use super::HostSession;
use super::event::{HostEvent, InvalidReason, Message, RebirthCause, ServerId, Transmit};
use super::node::Phase;
use crate::state::{HostState, host_filters};
use crate::topic::state_topic;

/// What a connection starts with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connect {
    /// The will to put into CONNECT; `None` for a host that keeps silent about itself.
    // tck-id-host-topic-phid-death-required, tck-id-payloads-state-will-message
    pub will: Option<Transmit>,
    /// Literal filters to subscribe to, with QoS 1, before [`HostSession::subscribed`].
    pub filters: [String; 2],
}

/// How many foreign deaths are answered in [`ANSWER_WINDOW`] before the conflict is reported instead.
const ANSWERS: u32 = 10;
const ANSWER_WINDOW: u64 = 60_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Connecting,
    Online,
    Stopping,
    Down,
}

// tck-id-operational-behavior-host-application-multi-server-timestamp: bookkeeping is per server
#[derive(Debug)]
struct Server {
    id: ServerId,
    link: Link,
    /// Shared by the will and every birth of this connection.
    timestamp: u64,
    window_from: u64,
    answers: u32,
}

#[derive(Debug)]
pub(super) struct Presence {
    host_id: Arc<str>,
    /// Whether STATE is published at all.
    announced: bool,
    servers: Vec<Server>,
}

impl Presence {
    pub(super) fn new(host_id: Arc<str>, announced: bool) -> Self {
        Self {
            host_id,
            announced,
            servers: Vec::new(),
        }
    }

    /// Whether messages may be sent through the server: its birth is out, and no death behind it. A server that
    /// was never connected by [`HostSession::connect`] has no presence to keep.
    pub(super) fn is_ready(&self, id: ServerId) -> bool {
        self.servers
            .iter()
            .find(|it| it.id == id)
            .is_none_or(|it| it.link == Link::Online)
    }

    fn server(&mut self, id: ServerId) -> Option<&mut Server> {
        self.servers.iter_mut().find(|it| it.id == id)
    }

    // tck-id-host-topic-phid-birth-qos, tck-id-host-topic-phid-birth-retain, -death-qos, -death-retain,
    // tck-id-operational-behavior-host-application-connect-will-qos, -connect-will-retained, -death-qos
    fn transmit(&self, server: ServerId, online: bool, timestamp: u64) -> Option<Transmit> {
        self.announced.then(|| Transmit {
            server,
            topic: state_topic(&self.host_id),
            payload: HostState::body(online, timestamp),
            qos: 1,
            retain: true,
        })
    }

    pub(super) fn handle_state(
        &mut self,
        now: u64,
        message: &Message<'_>,
        host: &str,
        events: &mut VecDeque<HostEvent>,
        transmits: &mut VecDeque<Transmit>,
    ) {
        let state = match HostState::parse(message.payload) {
            Ok(state) => state,
            Err(error) => {
                return events.push_back(HostEvent::Invalid {
                    tag: message.tag,
                    reason: InvalidReason::State,
                    topic: message.topic.to_owned(),
                    detail: error.to_string(),
                });
            }
        };
        events.push_back(HostEvent::HostState {
            tag: message.tag,
            host: host.into(),
            state,
        });
        if !self.announced || host != &*self.host_id || state.online || message.retained {
            return;
        }
        // tck-id-message-flow-hid-sparkplug-state-message-delivered: answered at once, with the first timestamp;
        // but not while stopping, and not before the first birth
        let Some(server) = self.server(message.server) else {
            return;
        };
        if server.link != Link::Online {
            return;
        }
        if now.saturating_sub(server.window_from) >= ANSWER_WINDOW {
            server.window_from = now;
            server.answers = 0;
        }
        server.answers += 1;
        let (answers, timestamp) = (server.answers, server.timestamp);
        if answers <= ANSWERS {
            transmits.extend(self.transmit(message.server, true, timestamp));
        }
        if answers == ANSWERS {
            events.push_back(HostEvent::HostConflict {
                server: message.server,
                client: message.client.clone(),
            });
        }
    }
}

impl HostSession {
    /// A server to which a connection will be made: until it stands, nothing is sent through it.
    pub fn expect(&mut self, server: ServerId) {
        if self.presence.server(server).is_none() {
            self.presence.servers.push(Server {
                id: server,
                link: Link::Down,
                timestamp: 0,
                window_from: 0,
                answers: 0,
            });
        }
    }

    /// Servers that were expected or connected, in that order.
    #[must_use]
    pub fn servers(&self) -> Vec<ServerId> {
        self.presence.servers.iter().map(|it| it.id).collect()
    }

    /// A connection to a server is about to be opened: call it for each CONNECT, also a repeated one.
    // tck-id-host-topic-phid-death-payload-timestamp-connect: a new timestamp for each CONNECT
    pub fn connect(&mut self, server: ServerId, now: u64, wall_ms: u64) -> Connect {
        self.note_wall(now, wall_ms);
        self.presence.servers.retain(|it| it.id != server);
        self.presence.servers.push(Server {
            id: server,
            link: Link::Connecting,
            timestamp: wall_ms,
            window_from: now,
            answers: 0,
        });
        Connect {
            will: self.presence.transmit(server, false, wall_ms),
            filters: host_filters(&self.config.host_id),
        }
    }

    /// The subscriptions stand: the birth goes out, ahead of everything else.
    // tck-id-host-topic-phid-birth-required, tck-id-message-flow-phid-sparkplug-state-publish,
    // tck-id-host-topic-phid-birth-payload-timestamp, tck-id-principles-birth-certificates-order
    pub fn subscribed(&mut self, server: ServerId, now: u64) {
        let Some(entry) = self.presence.server(server) else {
            return;
        };
        if entry.link == Link::Stopping {
            return;
        }
        entry.link = Link::Online;
        let timestamp = entry.timestamp;
        let birth = self.presence.transmit(server, true, timestamp);
        self.transmits.extend(birth);
        // Requests that were waiting for it, and nodes whose messages may have passed while the link was down.
        for at in 0..self.nodes.len() as u32 {
            let interrupted = self
                .nodes
                .get(at as usize)
                .is_some_and(|node| node.server == server && node.phase == Phase::Unverified);
            self.on_node(now, at, |node, cx| {
                if interrupted {
                    node.want(cx, RebirthCause::Reconnected);
                }
            });
        }
    }

    /// The connection is gone: what was known through it is stale, and only that.
    // ch. 5, host application session establishment: metrics known via a lost server turn stale
    pub fn disconnected(&mut self, server: ServerId, now: u64, wall_ms: u64) {
        self.note_wall(now, wall_ms);
        if let Some(entry) = self.presence.server(server) {
            entry.link = Link::Down;
        }
        for at in 0..self.nodes.len() as u32 {
            let known_through = self
                .nodes
                .get(at as usize)
                .is_some_and(|node| node.server == server && node.phase != Phase::Unborn);
            if known_through {
                self.on_node(now, at, |node, cx| node.interrupt(cx, wall_ms));
            }
        }
    }

    /// The host leaves on purpose: publish this, wait for its PUBACK, then DISCONNECT. From here on nothing else
    /// is sent through the server, and its own death is not answered.
    // tck-id-host-topic-phid-death-payload-timestamp-disconnect-clean,
    // tck-id-operational-behavior-host-application-termination
    pub fn stop(&mut self, server: ServerId, wall_ms: u64) -> Option<Transmit> {
        let mut timestamp = wall_ms;
        if let Some(entry) = self.presence.server(server) {
            entry.link = Link::Stopping;
            // Newer than the birth, even where the wall clock went back.
            timestamp = timestamp.max(entry.timestamp.saturating_add(1));
        }
        self.transmits.retain(|it| it.server != server);
        self.presence.transmit(server, false, timestamp)
    }
}
