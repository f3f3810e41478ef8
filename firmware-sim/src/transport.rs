//! A node on a real connection, and a clock.
//!
//! One task a node. The will is made anew for every CONNECT, which network clients do not do by themselves: each
//! connection has a client of its own.

mod faults;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rumqttc::Transport;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::fault::{Injector, Line};
use crate::link::{Heard, Link, Protocol};
use crate::node::{Message, Node, NodeCounts, Will};
use crate::scenario::Fault;

/// Messages that wait in a connection, besides room for the births and two rounds of data.
const QUEUE: usize = 1024;
/// How long a clone lives where the scenario does not say.
const CLONE_LIFE_MS: u64 = 3_000;
/// How late a late will is where the scenario does not say.
const LATE_MS: u64 = 2_000;
/// How long a node that dies twice stays connected after its first death.
const DOUBLE_DEATH: Duration = Duration::from_millis(300);
/// Wait between two servers.
const WALK: Duration = Duration::from_millis(200);
/// Wait before the first attempt to connect again.
const FIRST_WAIT: Duration = Duration::from_millis(50);
/// Longest wait between two connections.
const MOST_WAIT: Duration = Duration::from_secs(5);

/// Where the broker is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broker {
    /// Host name or address.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Whether TLS is wanted.
    pub tls: bool,
}

/// Why an address can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no broker address; write mqtt://host:port or mqtts://host:port")]
pub struct AddressError(String);

impl std::str::FromStr for Broker {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError(text.to_owned());
        let secure = text.strip_prefix("mqtts://");
        let tls = secure.is_some();
        let rest = secure
            .or_else(|| text.strip_prefix("mqtt://"))
            .or_else(|| text.strip_prefix("tcp://"))
            .unwrap_or(text);
        let rest = rest.trim_end_matches('/');
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().map_err(|_| wrong())?),
            None => (rest, if tls { 8883 } else { 1883 }),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() || host.contains('/') {
            return Err(wrong());
        }
        Ok(Self {
            host: host.to_owned(),
            port,
            tls,
        })
    }
}

/// A node and what its task needs.
pub struct Runner {
    /// The node.
    pub node: Node,
    /// Its edge node id.
    pub name: String,
    /// Group id: part of the client id, so that nodes of two groups don't take each other over.
    pub group: String,
    /// Servers, walked in turn while the primary host is away.
    pub brokers: Vec<Broker>,
    /// Time between two data messages of a device.
    pub period: Duration,
    /// Entries of the scenario that concern this node.
    pub faults: Vec<Fault>,
    /// Seed of the injector.
    pub seed: u64,
    /// Place in the fleet.
    pub place: u64,
    /// MQTT version.
    pub protocol: Protocol,
    /// TLS, for the servers that want it.
    pub(crate) tls: Option<Transport>,
    /// The next data message comes this many ms late.
    pub(crate) late: Option<u64>,
    /// Client ids given up so far.
    pub(crate) generation: u64,
    /// Dead devices, and when they are born again: ms after the start.
    pub(crate) revived: Vec<(u64, String)>,
    /// Clones and old sockets, which end with the node.
    pub(crate) others: JoinSet<()>,
}

/// What was handed to a connection, and what could not be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Messages.
    pub messages: u64,
    /// Metrics in them.
    pub metrics: u64,
    /// NBIRTH and DBIRTH among them.
    pub births: u64,
    /// Messages that found the queue full.
    pub dropped: u64,
}

/// What a node's task brings back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The node's own counts.
    pub counts: NodeCounts,
    /// What went out.
    pub tally: Tally,
    /// Connections made.
    pub connections: u64,
    /// Faults put in.
    pub faults: u64,
}

/// Wall clock, ms UTC.
#[must_use]
pub fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}

/// Why a connection ended.
enum End {
    /// The fleet stops.
    Stop,
    /// It broke, or a fault broke it.
    Broken,
    /// The node left with its host, to come back at once.
    Left,
    /// The node left on purpose, to come back after this many ms, or never.
    Away(Option<u64>),
    /// A late will: the node comes back at once while the old socket stays open for this many ms.
    Replaced(u64),
}

impl Runner {
    /// Runs until `stop` turns true.
    pub async fn run(mut self, mut stop: tokio::sync::watch::Receiver<bool>) -> Outcome {
        let started = Instant::now();
        let mut outcome = Outcome::default();
        let mut injector = Injector::new(self.seed, self.place);
        let mut pending = self.faults.clone();
        pending.sort_by_key(|fault| fault.at);
        let mut wait = FIRST_WAIT;
        while !*stop.borrow() {
            // Faults of births must be in force before the births.
            let due = self.begin_due(started, &mut pending, &mut outcome, true);
            if let Some(End::Away(period)) = due {
                away(period, &mut stop).await;
                continue;
            }
            let link = self.link();
            outcome.connections += 1;
            injector.reconnected();
            let born = Instant::now();
            let end = self
                .connection(
                    link,
                    &mut stop,
                    started,
                    &mut pending,
                    &mut injector,
                    &mut outcome,
                )
                .await;
            self.node.disconnected();
            match end {
                End::Stop => break,
                End::Replaced(_) => wait = FIRST_WAIT,
                // While its host is nowhere, a node walks from server to server, and not as fast as it can.
                End::Left => {
                    wait = FIRST_WAIT;
                    let _ = tokio::time::timeout(WALK, stop.changed()).await;
                }
                End::Away(period) => {
                    away(period, &mut stop).await;
                }
                End::Broken => {
                    wait = if born.elapsed() > MOST_WAIT {
                        FIRST_WAIT
                    } else {
                        (wait * 2).min(MOST_WAIT)
                    };
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        _ = stop.changed() => {}
                    }
                }
            }
        }
        outcome.counts = self.node.counts();
        outcome.faults += injector.injected();
        outcome
    }

    fn link(&mut self) -> Link {
        let will = self.node.connect(now_ms());
        self.connect_as(self.client_id(), will)
    }

    /// The client id at present; a late will needs another one, or the broker would close the old socket.
    fn client_id(&self) -> String {
        match self.generation {
            0 => format!("{}-{}", self.group, self.name),
            n => format!("{}-{}-{n}", self.group, self.name),
        }
    }

    fn connect_as(&self, client_id: String, will: Will) -> Link {
        let at = self.node.server() % self.brokers.len().max(1);
        let local = Broker {
            host: "localhost".to_owned(),
            port: 1883,
            tls: false,
        };
        Link::new(
            self.protocol,
            self.brokers.get(at).unwrap_or(&local),
            self.tls.as_ref(),
            client_id,
            will,
            QUEUE + 3 * (self.node.devices().len() + 1),
        )
    }

    async fn connection(
        &mut self,
        mut link: Link,
        stop: &mut tokio::sync::watch::Receiver<bool>,
        started: Instant,
        pending: &mut Vec<Fault>,
        injector: &mut Injector,
        outcome: &mut Outcome,
    ) -> End {
        let mut line = Line::default();
        // Messages that others overtake, with when they arrive.
        let mut behind: Vec<(u64, Message)> = Vec::new();
        let mut acks = 0;
        let wanted = self.node.filters();
        let mut ticks = tokio::time::interval_at(Instant::now() + self.phase(), self.period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        let dt = self.period.as_secs_f64();
        let mut connected = false;
        loop {
            let messages = tokio::select! {
                heard = link.poll() => match heard {
                    Ok(Heard::Connected) => {
                        connected = true;
                        for filter in &wanted {
                            if !link.subscribe(filter) {
                                return End::Broken;
                            }
                        }
                        Vec::new()
                    }
                    Ok(Heard::Subscribed) => {
                        acks += 1;
                        if acks == wanted.len() { self.node.ready(now_ms()) } else { Vec::new() }
                    }
                    Ok(Heard::Publish { topic, payload }) => {
                        self.node.handle_message(&topic, &payload, now_ms())
                    }
                    Ok(Heard::Other) => Vec::new(),
                    Err(error) => {
                        tracing::debug!(node = self.name, %error, "connection ended");
                        return End::Broken;
                    }
                },
                // Before CONNACK a cancelled poll would connect anew.
                _ = ticks.tick(), if connected => {
                    match self.begin_due(started, pending, outcome, false) {
                        None => {}
                        Some(end @ End::Away(_)) => {
                            self.leave(link, &mut outcome.tally).await;
                            return end;
                        }
                        Some(End::Replaced(ms)) => {
                            self.generation += 1;
                            self.others.spawn(linger(link, ms));
                            return End::Replaced(ms);
                        }
                        // Dropping the link closes the socket without DISCONNECT: the broker sends the will.
                        Some(end) => return end,
                    }
                    self.node.step(dt, now_ms())
                }
                _ = stop.changed() => {
                    self.leave(link, &mut outcome.tally).await;
                    return End::Stop;
                }
            };
            let way = self.way(started);
            // A death must not be overtaken by DISCONNECT.
            let now = if self.node.is_leaving() {
                u64::MAX
            } else {
                elapsed_ms(started)
            };
            let mut messages = line.pass(way.delay_ms, injector.apply(&way, messages), now);
            if let Some(delay) = self.late
                && messages.last().is_some_and(|message| !message.birth)
                && self.node.is_born()
            {
                self.late = None;
                let due = elapsed_ms(started).saturating_add(delay);
                behind.extend(messages.pop().map(|message| (due, message)));
            }
            messages.extend(
                behind
                    .extract_if(.., |(due, _)| *due <= now)
                    .map(|(_, it)| it),
            );
            for message in messages {
                send(&link, message, &mut outcome.tally);
            }
            if self.node.is_leaving() {
                link.leave().await;
                return End::Left;
            }
        }
    }

    /// Leaves on purpose. With MQTT 3.1.1 the node publishes its death, and the broker must not send the will; with 5 it
    /// asks the broker for the will, which is its death.
    async fn leave(&mut self, mut link: Link, tally: &mut Tally) {
        let death = self.node.leave(now_ms());
        let double = self.node.twist().double_death;
        if let Some(death) = death.filter(|_| double || self.protocol == Protocol::V3) {
            send(&link, death, tally);
        }
        if double {
            // What is queued goes out; then the socket closes without DISCONNECT, and the broker sends the will too.
            let life = async { while link.poll().await.is_ok() {} };
            let _ = tokio::time::timeout(DOUBLE_DEATH, life).await;
            return;
        }
        link.leave().await;
    }

    /// Nodes don't all speak in the same millisecond.
    fn phase(&self) -> Duration {
        let period = u64::try_from(self.period.as_micros()).unwrap_or(1).max(1);
        Duration::from_micros(self.place.wrapping_mul(7919) % period)
    }
}

/// Waits for so many ms, or without end; the fleet's stop ends it.
async fn away(period: Option<u64>, stop: &mut tokio::sync::watch::Receiver<bool>) {
    match period {
        Some(ms) => {
            let _ = tokio::time::timeout(Duration::from_millis(ms), stop.changed()).await;
        }
        None => {
            let _ = stop.changed().await;
        }
    }
}

/// Keeps an old socket open, then lets it go without DISCONNECT.
async fn linger(mut link: Link, ms: u64) {
    let life = async { while link.poll().await.is_ok() {} };
    let _ = tokio::time::timeout(Duration::from_millis(ms), life).await;
}

fn elapsed_ms(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// QoS 0, as the norm wants. A full queue means that the broker does not read: a device would lose the sample too.
fn send(link: &Link, message: Message, tally: &mut Tally) {
    let Message {
        topic,
        payload,
        retain,
        metrics,
        birth,
    } = message;
    if link.publish(topic, payload, retain) {
        tally.messages += 1;
        tally.metrics += metrics;
        tally.births += u64::from(birth);
    } else {
        tally.dropped += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, host, port, tls) in [
            ("mqtt://127.0.0.1:1884", "127.0.0.1", 1884, false),
            ("tcp://broker/", "broker", 1883, false),
            ("mqtts://broker", "broker", 8883, true),
            ("localhost:9", "localhost", 9, false),
            ("mqtt://[::1]:1883", "::1", 1883, false),
        ] {
            assert_eq!(
                text.parse::<Broker>().unwrap(),
                Broker {
                    host: host.into(),
                    port,
                    tls
                },
                "{text}"
            );
        }
        for text in ["", "mqtt://", "mqtt://h:port", "http://x/y"] {
            assert!(text.parse::<Broker>().is_err(), "{text}");
        }
    }
}
