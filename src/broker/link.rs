//! What a connection's task shares with the router and with acknowledgement tokens.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

use super::codec::{Version, packet_id_only, reason};

/// Why a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// DISCONNECT without will.
    Client,
    /// v5 DISCONNECT 0x04.
    ClientWithWill,
    /// FIN, RST or a failed write.
    Socket,
    /// Nothing came for one and a half keep alives.
    KeepAlive,
    /// A client with the same id connected.
    TakeOver,
    /// The client broke the protocol; reason code for v5.
    Protocol(u8),
    /// An acknowledgement token was dropped.
    AckLost,
    /// The client's queue is full of QoS 1 and 2 messages.
    SlowConsumer,
    /// The broker stops.
    Shutdown,
}

impl Cause {
    /// Stable word for events and metrics.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::ClientWithWill => "client_with_will",
            Self::Socket => "socket",
            Self::KeepAlive => "keep_alive",
            Self::TakeOver => "take_over",
            Self::Protocol(reason::PACKET_TOO_LARGE) => "packet_too_large",
            Self::Protocol(reason::RECEIVE_MAXIMUM_EXCEEDED) => "receive_maximum",
            Self::Protocol(_) => "protocol",
            Self::AckLost => "ack_lost",
            Self::SlowConsumer => "slow_consumer",
            Self::Shutdown => "shutdown",
        }
    }

    /// Reason code of the DISCONNECT that a v5 client gets; `None` where none is sent.
    pub(crate) fn reason(self) -> Option<u8> {
        match self {
            Self::Client | Self::ClientWithWill | Self::Socket => None,
            Self::KeepAlive => Some(reason::KEEP_ALIVE_TIMEOUT),
            Self::TakeOver => Some(reason::SESSION_TAKEN_OVER),
            Self::Protocol(code) => Some(code),
            Self::AckLost => Some(reason::SERVER_UNAVAILABLE),
            Self::SlowConsumer => Some(reason::QUOTA_EXCEEDED),
            Self::Shutdown => Some(reason::SERVER_SHUTTING_DOWN),
        }
    }

    /// Whether the will is published. A stop of the broker says nothing about its clients, so it sends none.
    pub(crate) fn sends_will(self) -> bool {
        !matches!(self, Self::Client | Self::Shutdown)
    }
}

/// Acknowledgements of one connection, released in the order in which its publishes came (MQTT-4.6.0-2, -3).
#[derive(Debug, Default)]
struct AckQueue {
    /// Number of the first slot.
    base: u64,
    slots: VecDeque<Slot>,
    /// QoS 1 publishes among them.
    at_least_once: usize,
}

const PUBACK: u8 = 0x40;

#[derive(Debug)]
struct Slot {
    pid: u16,
    /// First byte of the packet: PUBACK or PUBREC.
    first: u8,
    /// Reason code, once known.
    code: Option<u8>,
}

#[derive(Debug, Default)]
struct State {
    acks: AckQueue,
    stop: Option<Cause>,
    /// Nobody makes it wait before then.
    spared: Option<Instant>,
}

/// The shared end of one connection.
#[derive(Debug)]
pub(crate) struct Link {
    /// Never used twice.
    pub(crate) id: u64,
    state: Mutex<State>,
    notify: Notify,
    /// Subscribers that make it wait.
    holds: AtomicUsize,
    /// Its own queue is above half.
    pressed: AtomicBool,
}

impl Link {
    pub(crate) fn new(id: u64) -> Arc<Self> {
        Arc::new(Self {
            id,
            state: Mutex::default(),
            notify: Notify::new(),
            holds: AtomicUsize::new(0),
            pressed: AtomicBool::new(false),
        })
    }

    /// Plain data that no panic can leave half changed: a poisoned lock is taken as it is.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the connection's task.
    pub(crate) fn wake(&self) {
        self.notify.notify_one();
    }

    /// Resolves at the next [`Self::wake`], or at once after one that nobody waited for.
    pub(crate) async fn woken(&self) {
        self.notify.notified().await;
    }

    /// Tells the connection's task to end. The first cause stands.
    pub(crate) fn stop(&self, cause: Cause) {
        self.state().stop.get_or_insert(cause);
        self.wake();
    }

    /// Why the connection has to end, if it has to.
    pub(crate) fn stopped(&self) -> Option<Cause> {
        self.state().stop
    }

    /// One more subscriber makes the client wait.
    pub(crate) fn hold(&self) {
        self.holds.fetch_add(1, Ordering::AcqRel);
    }

    /// One fewer does; the task goes on.
    pub(crate) fn release(&self) {
        self.holds.fetch_sub(1, Ordering::AcqRel);
        self.wake();
    }

    /// It waited for nothing: it is not made to wait again before `until`.
    pub(crate) fn spare(&self, until: Instant) {
        self.state().spared = Some(until);
    }

    /// Whether it may not be made to wait.
    pub(crate) fn is_spared(&self, now: Instant) -> bool {
        self.state().spared.is_some_and(|until| now < until)
    }

    /// Whether the client's own queue is above half: it is read then, whoever holds it.
    pub(crate) fn set_pressed(&self, pressed: bool) {
        self.pressed.store(pressed, Ordering::Release);
        if pressed {
            self.wake();
        }
    }

    /// Whether what the client sends has to wait. The task is woken when that ends.
    pub(crate) fn is_held(&self) -> bool {
        self.holds.load(Ordering::Acquire) > 0 && !self.pressed.load(Ordering::Acquire)
    }

    /// Reserves the next place in the order of acknowledgements.
    pub(crate) fn push_ack(&self, pid: u16, first: u8, code: Option<u8>) -> u64 {
        let acks = &mut self.state().acks;
        acks.slots.push_back(Slot { pid, first, code });
        acks.at_least_once += usize::from(first == PUBACK);
        acks.base + acks.slots.len() as u64 - 1
    }

    /// Fills a place; wakes the task if that releases anything.
    pub(crate) fn complete_ack(&self, slot: u64, code: u8) {
        let mut state = self.state();
        let acks = &mut state.acks;
        let place = slot
            .checked_sub(acks.base)
            .and_then(|i| usize::try_from(i).ok());
        if let Some(slot) = place.and_then(|i| acks.slots.get_mut(i)) {
            slot.code = Some(code);
        }
        let released = place == Some(0);
        drop(state);
        if released {
            self.wake();
        }
    }

    /// Appends the acknowledgements whose turn has come.
    pub(crate) fn drain_acks(&self, version: Version, out: &mut Vec<u8>) {
        let acks = &mut self.state().acks;
        while let Some(Slot {
            pid,
            first,
            code: Some(code),
        }) = acks.slots.front()
        {
            packet_id_only(out, version, *first, *pid, *code);
            acks.at_least_once -= usize::from(*first == PUBACK);
            acks.slots.pop_front();
            acks.base += 1;
        }
        if acks.slots.is_empty() && acks.slots.capacity() > 64 {
            acks.slots = VecDeque::new();
        }
    }

    /// QoS 1 publishes whose PUBACK has not left.
    pub(crate) fn open_at_least_once(&self) -> usize {
        self.state().acks.at_least_once
    }

    /// Publishes that wait for their acknowledgement.
    pub(crate) fn waiting_acks(&self) -> usize {
        self.state().acks.slots.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_leave_in_the_order_of_the_publishes() {
        let link = Link::new(1);
        let a = link.push_ack(1, 0x40, None);
        let b = link.push_ack(2, 0x50, None);
        link.push_ack(3, 0x40, Some(0));
        let mut out = Vec::new();
        link.complete_ack(b, 0);
        link.drain_acks(Version::V311, &mut out);
        assert!(out.is_empty());
        link.complete_ack(a, 0x99);
        link.drain_acks(Version::V5, &mut out);
        assert_eq!(out, [0x40, 3, 0, 1, 0x99, 0x50, 2, 0, 2, 0x40, 2, 0, 3]);
        assert_eq!(link.waiting_acks(), 0);
        link.complete_ack(a, 0);
        assert_eq!(link.push_ack(4, 0x40, None), 3);
    }

    #[test]
    fn the_first_cause_stands() {
        let link = Link::new(1);
        link.stop(Cause::TakeOver);
        link.stop(Cause::Shutdown);
        assert_eq!(link.stopped(), Some(Cause::TakeOver));
    }
}
