//! A connected subscriber that can't keep up slows its publishers down instead of losing messages.
//!
//! Above half of its queue's bound, the sockets of those who publish to it are not read until it is below a quarter,
//! as long as it gets on: a share of [`SHARE`] of the bound within [`PATIENCE`]. One that does not is [`Pressure::Spent`]:
//! it holds nobody until it is below a quarter again, and only its own messages are lost.
//!
//! *Invariants*: a client above half is read, whoever holds it, so that no circle of clients can wait for each other
//! and its acknowledgements always arrive; a [`Hold`] that is dropped lets everybody go.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::link::Link;
use super::outbound::QueueLimits;

/// Time in which a subscriber has to take a share of its bound.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);
/// The share is the bound divided by this.
pub(crate) const SHARE: usize = 64;

/// The longest that publishers wait for one subscriber, however well it gets on: one that lags may not stop a plant.
pub(crate) const MOST: Duration = Duration::from_secs(15);
/// A publisher that waited for nothing is not made to wait for anybody for so long: clients that come one after the other
/// and never read may not stop it for longer than one of them could.
pub(crate) const SPARED: Duration = Duration::from_secs(30);

/// What a subscriber asks of its publishers.
#[derive(Debug, Default)]
pub(crate) enum Pressure {
    /// Nothing.
    #[default]
    Open,
    /// To wait.
    Holding(Hold),
    /// Nothing any more, until it has caught up.
    Spent,
}

/// Publishers that wait for a subscriber.
#[derive(Debug)]
pub(crate) struct Hold {
    publishers: HashMap<u64, Arc<Link>>,
    began: Instant,
    since: Instant,
    messages: usize,
    bytes: usize,
}

impl Hold {
    /// Holds nobody yet; patience begins.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            publishers: HashMap::new(),
            began: now,
            since: now,
            messages: 0,
            bytes: 0,
        }
    }

    /// Makes a publisher wait.
    pub(crate) fn add(&mut self, publisher: &Arc<Link>) {
        self.publishers.entry(publisher.id).or_insert_with(|| {
            publisher.hold();
            Arc::clone(publisher)
        });
    }

    /// The subscriber did not get on: those who waited for it are spared for a while.
    pub(crate) fn give_up(&self, now: Instant) {
        for publisher in self.publishers.values() {
            publisher.spare(now + SPARED);
        }
    }

    /// The subscriber took this much.
    pub(crate) fn taken(
        &mut self,
        now: Instant,
        messages: usize,
        bytes: usize,
        limits: QueueLimits,
    ) {
        self.messages += messages;
        self.bytes += bytes;
        if self.messages >= limits.messages / SHARE || self.bytes >= limits.bytes / SHARE {
            (self.since, self.messages, self.bytes) = (now, 0, 0);
        }
    }

    /// When patience ends.
    pub(crate) fn due(&self) -> Instant {
        (self.since + PATIENCE).min(self.began + MOST)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        for publisher in self.publishers.values() {
            publisher.release();
        }
    }
}
