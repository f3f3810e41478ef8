//! The life of the connections to one server: connect, subscribe, be present, leave or start over.
//!
//! Order on a connection: the pipeline gives the will, CONNECT, both subscriptions, SUBACK, and only then the pipeline
//! hears that it may publish its birth. What comes in is handed on in the order of the wire; while the pipeline is busy
//! nothing is read, so that the server holds what is to come. A publish of QoS 1 or 2 is acknowledged when its record is
//! on disk.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sparkplug::host::{Connect, ServerId, Transmit};
use sparkplug::state::HostState;
use tokio::sync::{mpsc, oneshot};

use super::wire::{Happening, Publish, Settings, Token, Wire, WireError};
use crate::backoff::Backoff;
use crate::broker::{AckOutcome, Inbound, PubackToken, Qos, TopicCheck};
use crate::pipeline::remote::{Arrival, Outgoing};

/// Longest wait before the first attempt to connect again; doubles up to [`MOST_WAIT`], and each is shortened at random
/// so that gateways which lost their server together do not come back together.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const MOST_WAIT: Duration = Duration::from_secs(30);
/// From the first byte to the last SUBACK.
const HANDSHAKE: Duration = Duration::from_secs(20);
/// How long the server may take to acknowledge the death when this host leaves.
const LEAVE: Duration = Duration::from_secs(2);

/// State of a connection, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkStatus {
    /// The server's URL.
    pub url: String,
    /// `connecting`, `up`, `down` or `left`.
    pub state: &'static str,
    /// Since when, ms UTC.
    pub since_ms: u64,
    /// Why it is down.
    pub detail: Option<String>,
    /// Connections that stood, since start.
    pub connects: u64,
    /// Messages taken, since start.
    pub received: u64,
    /// Messages published, since start.
    pub sent: u64,
    /// Messages that were to be published and never left, since start: the queue was full, or the connection ended
    /// before them.
    pub lost: u64,
}

pub(super) type Status = Arc<Mutex<LinkStatus>>;

pub(super) struct Link {
    pub(super) server: ServerId,
    pub(super) settings: Settings,
    pub(super) check: TopicCheck,
    pub(super) arrivals: mpsc::Sender<(ServerId, Arrival)>,
    pub(super) outgoing: mpsc::Receiver<Outgoing>,
    pub(super) status: Status,
    pub(super) lost: Arc<AtomicU64>,
}

/// How a connection ended.
enum End {
    /// On purpose.
    Left,
    Broken(WireError),
}

/// What of a connection is in progress.
struct Progress {
    wire: Wire,
    /// Topic of this host's STATE; `None` where none is published.
    state: Option<String>,
    /// Subscriptions that are granted.
    granted: usize,
    /// QoS 1 publishes of ours without PUBACK.
    in_flight: usize,
    /// This host's death is out, or nothing more will come from the pipeline.
    leaving: bool,
    acks: mpsc::UnboundedSender<(Token, AckOutcome)>,
}

impl Link {
    /// Runs until the pipeline closes its queue.
    pub(super) async fn run(mut self) {
        let mut backoff = Backoff::new(
            FIRST_WAIT,
            MOST_WAIT,
            RandomState::new().hash_one(self.server.0),
        );
        loop {
            self.note("connecting", None);
            let Some(connect) = self.ask().await else {
                return self.note("left", None);
            };
            // What is queued here was meant for the connection before: the pipeline sends nothing before the birth.
            while self.outgoing.try_recv().is_ok() {
                self.lose();
            }
            let started = Instant::now();
            let end = self.connection(connect).await;
            if self
                .arrivals
                .send((self.server, Arrival::Lost))
                .await
                .is_err()
            {
                tracing::debug!(
                    server = self.server.0,
                    "the pipeline has ended before its link"
                );
            }
            match end {
                End::Left => return self.note("left", None),
                End::Broken(error) => {
                    tracing::warn!(url = self.url(), %error, "connection to another broker ended");
                    self.note("down", Some(error.to_string()));
                }
            }
            if started.elapsed() > MOST_WAIT {
                backoff.reset();
            }
            if self.pause(backoff.fail()).await {
                return self.note("left", None);
            }
        }
    }

    fn url(&self) -> String {
        self.with_status(|status| status.url.clone())
    }

    /// Counts a message that will not leave: rebirth requests are repeated, writes are not confirmed.
    fn lose(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    fn with_status<T>(&self, change: impl FnOnce(&mut LinkStatus) -> T) -> T {
        change(&mut self.status.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn note(&self, state: &'static str, detail: Option<String>) {
        self.with_status(|status| {
            // While it can't connect, the reason stays in sight.
            if detail.is_some() || state != "connecting" {
                status.detail = detail;
            }
            if status.state != state {
                status.state = state;
                status.since_ms = crate::clock::wall_ms();
            }
        });
    }

    /// Will and filters of the next CONNECT.
    async fn ask(&self) -> Option<Connect> {
        let (reply, got) = oneshot::channel();
        self.arrivals
            .send((self.server, Arrival::Connecting(reply)))
            .await
            .ok()?;
        got.await.ok()
    }

    /// Waits before the next attempt; whether the pipeline wants to leave.
    async fn pause(&mut self, wait: Duration) -> bool {
        let until = tokio::time::Instant::now() + wait;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(until) => return false,
                // Nobody is there to take it.
                message = self.outgoing.recv() => match message {
                    None => return true,
                    Some(_) => self.lose(),
                },
            }
        }
    }

    async fn connection(&mut self, connect: Connect) -> End {
        let (acks, mut acked) = mpsc::unbounded_channel();
        let mut progress = Progress {
            wire: Wire::new(&self.settings, connect.will.as_ref()),
            state: connect.will.map(|will| will.topic),
            granted: 0,
            in_flight: 0,
            leaving: false,
            acks,
        };
        match tokio::time::timeout(HANDSHAKE, progress.wire.poll()).await {
            Err(_) => return End::Broken(WireError::Silent(HANDSHAKE)),
            Ok(Err(error)) => return End::Broken(error),
            Ok(Ok(_)) => {}
        }
        // tck-id-message-flow-phid-sparkplug-subscription
        for filter in &connect.filters {
            if let Err(error) = progress.wire.subscribe(filter) {
                return End::Broken(error);
            }
        }
        let wanted = connect.filters.len();
        let mut deadline = tokio::time::Instant::now() + HANDSHAKE;
        loop {
            if progress.leaving && progress.in_flight == 0 {
                return leave(progress.wire).await;
            }
            let timed = progress.leaving || progress.granted < wanted;
            let happening = tokio::select! {
                biased;
                message = self.outgoing.recv(), if !progress.leaving => {
                    let sent = match message {
                        None => { progress.leaving = true; Ok(()) }
                        Some(message) => self.send(&mut progress, message),
                    };
                    if progress.leaving {
                        deadline = tokio::time::Instant::now() + LEAVE;
                    }
                    match sent {
                        Ok(()) => continue,
                        Err(error) => return End::Broken(error),
                    }
                }
                Some((token, outcome)) = acked.recv() => {
                    let done = match outcome {
                        // rumqttc has no reason code for a refusal: acknowledged plainly.
                        AckOutcome::Accepted | AckOutcome::Refused => progress.wire.acknowledge(&token),
                        AckOutcome::Dropped if progress.leaving => Ok(()),
                        AckOutcome::Dropped => Err(WireError::Withheld),
                    };
                    match done {
                        Ok(()) => continue,
                        Err(error) => return End::Broken(error),
                    }
                }
                happening = progress.wire.poll() => happening,
                () = tokio::time::sleep_until(deadline), if timed => {
                    return if progress.leaving { leave(progress.wire).await } else { End::Broken(WireError::Silent(HANDSHAKE)) };
                }
            };
            match happening {
                Err(error) => return End::Broken(error),
                Ok(Happening::Subscribed(false)) => return End::Broken(WireError::NotGranted),
                Ok(Happening::Subscribed(true)) => {
                    progress.granted += 1;
                    if progress.granted == wanted {
                        self.note("up", None);
                        self.with_status(|status| status.connects += 1);
                        self.hand(Arrival::Subscribed).await;
                    }
                }
                Ok(Happening::Publish(publish)) => self.take(progress.acks.clone(), publish).await,
                Ok(Happening::Acknowledged) => {
                    progress.in_flight = progress.in_flight.saturating_sub(1);
                }
                Ok(Happening::Connected | Happening::Disconnected | Happening::Other) => {}
            }
        }
    }

    fn send(&self, progress: &mut Progress, mut message: Outgoing) -> Result<(), WireError> {
        let Transmit { topic, payload, .. } = &message.transmit;
        if progress.state.as_ref() == Some(topic)
            && HostState::parse(payload).is_ok_and(|state| !state.online)
        {
            progress.leaving = true;
        }
        progress.in_flight += usize::from(message.transmit.qos > 0);
        let transmit = Transmit {
            topic: std::mem::take(&mut message.transmit.topic),
            payload: std::mem::take(&mut message.transmit.payload),
            ..message.transmit
        };
        if let Err(error) = progress.wire.publish(transmit) {
            self.lose();
            return Err(error);
        }
        message.tell();
        self.with_status(|status| status.sent += 1);
        Ok(())
    }

    /// Hands a publish to the pipeline.
    async fn take(&self, acks: mpsc::UnboundedSender<(Token, AckOutcome)>, publish: Publish) {
        self.with_status(|status| status.received += 1);
        let Publish {
            topic,
            payload,
            qos,
            retain,
            traceparent,
            token,
        } = publish;
        let ack = (qos > 0).then(|| {
            PubackToken::new(move |outcome| {
                // Where the connection is gone, there is nothing to acknowledge.
                let _ = acks.send((token, outcome));
            })
        });
        let topic = match std::str::from_utf8(&topic) {
            Ok(topic) if (self.check)(topic) => topic,
            _ => {
                if let Some(ack) = ack {
                    ack.refuse();
                }
                return self.hand(Arrival::Refused).await;
            }
        };
        let inbound = Inbound {
            topic: topic.into(),
            payload,
            received_at: Instant::now(),
            client: None,
            qos: Some(match qos {
                0 => Qos::AtMostOnce,
                1 => Qos::AtLeastOnce,
                _ => Qos::ExactlyOnce,
            }),
            retain,
            traceparent,
            will: false,
            ack,
        };
        self.hand(Arrival::Publish {
            inbound,
            retained: retain,
        })
        .await;
    }

    /// A pipeline that has ended takes nothing; its closed queue ends this link as well.
    async fn hand(&self, arrival: Arrival) {
        let _ = self.arrivals.send((self.server, arrival)).await;
    }
}

/// DISCONNECT, so that the server does not send the will.
// tck-id-operational-behavior-host-application-disconnect-intentional
async fn leave(mut wire: Wire) -> End {
    if wire.disconnect().is_err() {
        return End::Left;
    }
    let until = tokio::time::Instant::now() + LEAVE;
    loop {
        match tokio::time::timeout_at(until, wire.poll()).await {
            Ok(Ok(Happening::Disconnected)) | Ok(Err(_)) | Err(_) => return End::Left,
            Ok(Ok(_)) => {}
        }
    }
}
