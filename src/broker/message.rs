//! A message on its way through the broker.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::{Qos, Written};

/// What the broker sets aside for a message beside topic and payload, bytes.
const OVERHEAD: usize = 128;

/// A publish that was accepted. Shared by all queues it waits in, and never changed.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) topic: Arc<str>,
    pub(crate) payload: Bytes,
    pub(crate) qos: Qos,
    /// RETAIN as published.
    pub(crate) retain: bool,
    /// v5 properties that go on to subscribers, as they came; already encoded.
    pub(crate) forward: Bytes,
    pub(crate) expires: Option<Instant>,
    pub(crate) on_written: Option<Written>,
}

impl Message {
    /// Bytes counted against memory bounds.
    pub(crate) fn size(&self) -> usize {
        self.topic.len() + self.payload.len() + self.forward.len() + OVERHEAD
    }

    pub(crate) fn is_expired(&self, now: Instant) -> bool {
        self.expires.is_some_and(|at| at <= now)
    }

    /// Seconds left, rounded up, for the message expiry property.
    pub(crate) fn expiry_left(&self, now: Instant) -> Option<u32> {
        let left = self.expires?.saturating_duration_since(now);
        u32::try_from(left.as_millis().div_ceil(1000)).ok()
    }
}

/// The instant `seconds` from now; far beyond any uptime where the clock can't hold it.
pub(crate) fn after(now: Instant, seconds: u32) -> Instant {
    now.checked_add(Duration::from_secs(u64::from(seconds)))
        .unwrap_or(now)
}

/// A message in a session's queue or under way to its client.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    pub(crate) message: Arc<Message>,
    /// Lower of the publish's and the subscription's.
    pub(crate) qos: Qos,
    /// RETAIN towards this subscriber.
    pub(crate) retain: bool,
    /// Sent because of a SUBSCRIBE: exempt from queue bounds, since the retained store has its own.
    pub(crate) stored: bool,
    /// Ids of the subscriptions that matched.
    pub(crate) ids: Option<Arc<[u32]>>,
}
