//! Where connections to other brokers meet the pipeline: what they bring, and what leaves through them.
//!
//! The pipeline does not know how such a connection is made. Whoever makes it sends [`Arrival`]s in the order in which
//! they happen, under the server's number, and takes what is to be published from its own queue.

use std::collections::HashMap;
use std::time::Instant;

use sparkplug::host::{Connect, ServerId, Transmit};
use tokio::sync::{mpsc, oneshot};

use super::Ports;
use super::core::Core;
use crate::broker::{Inbound, Written};
use crate::clock::Now;

/// Something that happened on a connection to another broker.
#[derive(Debug)]
pub enum Arrival {
    /// A CONNECT is about to be sent: its will and filters are wanted.
    Connecting(oneshot::Sender<Connect>),
    /// The subscriptions stand.
    Subscribed,
    /// A publish came.
    Publish {
        /// The message; its acknowledgement waits for the disk like any other.
        inbound: Inbound,
        /// It came out of the broker's retained store.
        retained: bool,
    },
    /// A publish came whose topic is too long for a subject, or no text.
    Refused,
    /// The connection is gone.
    Lost,
}

/// A message to publish through another broker.
#[derive(Debug)]
pub struct Outgoing {
    /// The message.
    pub transmit: Transmit,
    /// Told when it is handed to the network client.
    pub written: Option<Written>,
}

/// Both directions of all connections to other brokers, on the pipeline's side.
#[derive(Debug)]
pub struct Remotes {
    /// What they bring.
    pub arrivals: mpsc::Receiver<(ServerId, Arrival)>,
    /// Where what is to be published goes; closing it asks the connection to leave.
    pub outgoing: HashMap<ServerId, mpsc::Sender<Outgoing>>,
}

impl Remotes {
    /// No other broker.
    #[must_use]
    pub fn none() -> Self {
        let (_, arrivals) = mpsc::channel(1);
        Self {
            arrivals,
            outgoing: HashMap::new(),
        }
    }

    /// Hands a message to its connection. What finds no room is lost, as anything at QoS 0 may be; a rebirth request is
    /// repeated, and a write is not confirmed.
    pub(super) fn publish(
        outgoing: &HashMap<ServerId, mpsc::Sender<Outgoing>>,
        transmit: Transmit,
        written: Option<Written>,
    ) {
        let server = transmit.server.0;
        match outgoing.get(&transmit.server) {
            None => tracing::warn!(server, topic = transmit.topic, "no such server any more"),
            Some(queue) => {
                if queue.try_send(Outgoing { transmit, written }).is_err() {
                    tracing::warn!(server, "the queue to this server is full or closed");
                }
            }
        }
    }
}

/// Takes one arrival.
pub(super) fn handle(
    core: &mut Core,
    now: Now,
    server: ServerId,
    arrival: Arrival,
    ports: &mut dyn Ports,
) {
    match arrival {
        Arrival::Connecting(reply) => {
            // A connection that was given up in between needs no will.
            let _ = reply.send(core.host_mut().connect(server, now.engine_ms, now.wall_ms));
        }
        Arrival::Subscribed => core.host_mut().subscribed(server, now.engine_ms),
        Arrival::Publish { inbound, retained } => {
            core.handle_publish(now, server, retained, inbound, ports);
        }
        Arrival::Refused => core.count_invalid("topic"),
        Arrival::Lost => core
            .host_mut()
            .disconnected(server, now.engine_ms, now.wall_ms),
    }
    core.settle(now, ports);
}

/// A queue's message is written when the network client takes it.
impl Outgoing {
    /// The message has left.
    pub fn tell(self) {
        if let Some(written) = self.written {
            written.tell(Instant::now());
        }
    }
}
