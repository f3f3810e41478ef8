//! Where connections to other brokers meet the pipeline: what they bring, and what leaves through them.
//!
//! The pipeline does not know how such a connection is made. Whoever makes it sends [`Arrival`]s in the order in which
//! they happen, under the server's number, and takes what is to be published from its own queue.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use sparkplug::host::{Connect, ServerId, Transmit};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use super::core::Core;
use super::{Ports, Unsent};
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

/// The queue to one connection, and the count of what never left through it.
#[derive(Debug)]
pub struct Outbox {
    queue: mpsc::Sender<Outgoing>,
    lost: Arc<AtomicU64>,
}

impl Outbox {
    /// Nothing is lost yet.
    #[must_use]
    pub fn new(queue: mpsc::Sender<Outgoing>) -> Self {
        Self {
            queue,
            lost: Arc::default(),
        }
    }

    /// Messages lost here; the connection adds those that it took and could not send.
    #[must_use]
    pub fn lost(&self) -> Arc<AtomicU64> {
        self.lost.clone()
    }
}

/// Both directions of all connections to other brokers, on the pipeline's side.
#[derive(Debug)]
pub struct Remotes {
    /// What they bring.
    pub arrivals: mpsc::Receiver<(ServerId, Arrival)>,
    /// Where what is to be published goes; closing it asks the connection to leave.
    pub outgoing: HashMap<ServerId, Outbox>,
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

    /// Hands a message to its connection. What finds no room is counted there; a rebirth request is repeated, and a
    /// write is told so.
    ///
    /// # Errors
    /// [`Unsent`]
    pub(crate) fn publish(
        outgoing: &HashMap<ServerId, Outbox>,
        transmit: Transmit,
        written: Option<Written>,
    ) -> Result<(), Unsent> {
        let server = transmit.server.0;
        let outbox = outgoing.get(&transmit.server).ok_or(Unsent::Gone)?;
        let unsent = match outbox.queue.try_send(Outgoing { transmit, written }) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Full(_)) => Unsent::Full,
            Err(TrySendError::Closed(_)) => Unsent::Gone,
        };
        outbox.lost.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(server, %unsent, "a message to another broker is lost");
        Err(unsent)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn transmit(server: u16) -> Transmit {
        Transmit {
            server: ServerId(server),
            topic: "spBv1.0/g/NCMD/n".to_owned(),
            payload: Vec::new(),
            qos: 0,
            retain: false,
        }
    }

    #[test]
    fn what_finds_no_room_is_counted_and_told() {
        let (queue, taken) = mpsc::channel(1);
        let outbox = Outbox::new(queue);
        let lost = outbox.lost();
        let outgoing = HashMap::from([(ServerId(1), outbox)]);
        let publish = |server| Remotes::publish(&outgoing, transmit(server), None);
        assert_eq!(publish(2), Err(Unsent::Gone), "no such server");
        assert_eq!(publish(1), Ok(()));
        assert_eq!(publish(1), Err(Unsent::Full));
        assert_eq!(lost.load(Ordering::Relaxed), 1);
        drop(taken);
        assert_eq!(publish(1), Err(Unsent::Gone));
        assert_eq!(lost.load(Ordering::Relaxed), 2);
    }
}
