//! What a session owes its client: the queue, and the QoS 1 and 2 messages under way.
//!
//! *Invariants*: packet ids of [`Outbound::inflight`] rise around the circle of 1 to 65,535 from its front, so that
//! one is found by bisection and a free one is the next one. Entries before `sent` have been sent on the present
//! connection and are not acknowledged; they never exceed the receive maximum.

use std::collections::VecDeque;
use std::time::Instant;

use super::Qos;
use super::message::Item;

/// Bounds of one session's queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueLimits {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

/// What became of a message that was pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// Queued; this many older QoS 0 messages gave way.
    Queued {
        /// Messages dropped.
        dropped: usize,
    },
    /// Not queued: no QoS 0 message was left to give way.
    Full,
}

/// What the connection has to send next.
#[derive(Debug, Clone)]
pub(crate) enum Outgoing {
    /// A PUBLISH; `pid` is 0 for QoS 0.
    Publish {
        /// The message.
        item: Item,
        /// Packet id.
        pid: u16,
        /// Sent before on an earlier connection.
        dup: bool,
    },
    /// A PUBREL.
    Pubrel(u16),
}

#[derive(Debug, Clone)]
pub(crate) struct Inflight {
    pub(crate) pid: u16,
    /// `None` once PUBREC came: PUBREL is what is left to do.
    pub(crate) item: Option<Item>,
    /// Its place in the order of all QoS 1 and 2 messages of the session.
    pub(crate) order: u64,
    /// Sent on some connection: DUP is due when it is sent again.
    pub(crate) dup: bool,
}

/// See the module.
#[derive(Debug, Default)]
#[cfg_attr(any(test, fuzzing), derive(Clone))]
pub(crate) struct Outbound {
    /// QoS 0, with the order number at which each was queued.
    low: VecDeque<(u64, Item)>,
    /// QoS 1 and 2.
    high: VecDeque<(u64, Item)>,
    next_order: u64,
    bytes: usize,
    inflight: VecDeque<Inflight>,
    sent: usize,
    last_pid: u16,
    /// QoS 1 and 2 messages before this order are in the state file.
    saved_to: u64,
    /// Since [`Self::progress`].
    changed: bool,
}

/// How far a session's messages have come, without the messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Order of the first message in the queue; all before it are under way or done.
    pub(crate) head: u64,
    /// Those under way: packet id, sent before, order; without an order where only PUBREL is left.
    pub(crate) inflight: Vec<(u16, bool, Option<u64>)>,
}

fn next_pid(pid: u16) -> u16 {
    if pid == u16::MAX { 1 } else { pid + 1 }
}

impl Outbound {
    /// Messages queued, those under way not counted.
    pub(crate) fn len(&self) -> usize {
        self.low.len() + self.high.len()
    }

    /// Bytes queued and under way.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether messages or bytes are above the bound divided by `share`.
    pub(crate) fn fills(&self, limits: QueueLimits, share: usize) -> bool {
        self.len() > limits.messages / share || self.bytes > limits.bytes / share
    }

    /// Queues a message. Those sent because of a SUBSCRIBE are exempt from the bounds.
    pub(crate) fn push(&mut self, item: Item, limits: QueueLimits) -> Pushed {
        let size = item.message.size();
        let mut dropped = 0;
        if !item.stored {
            let over = |me: &Self| me.len() >= limits.messages || me.bytes + size > limits.bytes;
            while over(self) {
                let Some((_, old)) = self.low.pop_front() else {
                    return Pushed::Full;
                };
                self.bytes = self.bytes.saturating_sub(old.message.size());
                dropped += 1;
            }
        }
        self.bytes += size;
        let order = self.next_order;
        self.next_order += 1;
        if item.qos == Qos::AtMostOnce {
            self.low.push_back((order, item));
        } else {
            self.changed = true;
            self.high.push_back((order, item));
        }
        Pushed::Queued { dropped }
    }

    /// Whether QoS 1 or 2 messages came, went or moved since [`Self::progress`].
    pub(crate) fn is_changed(&self) -> bool {
        self.changed
    }

    /// The oldest of the messages that the state file does not have yet, at most so many, with their orders; they count
    /// as written from now on. Fewer than that: there are no more.
    pub(crate) fn unsaved(&mut self, most: usize) -> Vec<(u64, Item)> {
        let from = self.saved_to;
        let sent = self.inflight.partition_point(|entry| entry.order < from);
        let queued = self.high.partition_point(|(order, _)| *order < from);
        let sent = self.inflight.iter().skip(sent);
        let sent = sent.filter_map(|entry| Some((entry.order, entry.item.clone()?)));
        let queued = self.high.iter().skip(queued).cloned();
        let found: Vec<_> = sent.chain(queued).take(most).collect();
        self.saved_to = match found.last() {
            Some((last, _)) if found.len() >= most => last + 1,
            _ => self.next_order,
        };
        found
    }

    /// How far all has come, to be written after [`Self::unsaved`] has given everything.
    pub(crate) fn progress(&mut self) -> Progress {
        self.changed = false;
        let order = |entry: &Inflight| entry.item.is_some().then_some(entry.order);
        Progress {
            head: self
                .high
                .front()
                .map_or(self.next_order, |(order, _)| *order),
            inflight: self
                .inflight
                .iter()
                .map(|entry| (entry.pid, entry.dup, order(entry)))
                .collect(),
        }
    }

    /// Everything that is under way and queued, with [`Self::progress`]; it counts as written from now on.
    pub(crate) fn whole(&mut self) -> (Vec<(u64, Item)>, Progress) {
        self.saved_to = 0;
        (self.unsaved(usize::MAX), self.progress())
    }

    /// Puts back what was under way before a restart, before anything is queued.
    pub(crate) fn restore_inflight(&mut self, pid: u16, dup: bool, item: Option<Item>) {
        self.bytes += item.as_ref().map_or(0, |i| i.message.size());
        self.last_pid = pid;
        let order = self.next_order;
        self.next_order += 1;
        self.inflight.push_back(Inflight {
            pid,
            item,
            order,
            dup,
        });
    }

    /// A new connection: everything under way is due again.
    pub(crate) fn rewind(&mut self) {
        self.sent = 0;
    }

    /// The connection is gone: QoS 0 is worth nothing to an absent client.
    pub(crate) fn drop_low(&mut self) {
        for (_, item) in std::mem::take(&mut self.low) {
            self.bytes = self.bytes.saturating_sub(item.message.size());
        }
    }

    /// Whether [`Self::pop`] would give something.
    pub(crate) fn is_ready(&self, receive_maximum: u16) -> bool {
        !self.low.is_empty()
            || self.window_open(receive_maximum)
                && (self.sent < self.inflight.len() || !self.high.is_empty())
    }

    fn window_open(&self, receive_maximum: u16) -> bool {
        self.sent < usize::from(receive_maximum)
    }

    /// The next packet to send: first what is under way from an earlier connection, in its old order, then the
    /// queue in order. QoS 0 passes by where the receive maximum holds the rest.
    pub(crate) fn pop(&mut self, receive_maximum: u16) -> Option<Outgoing> {
        let open = self.window_open(receive_maximum);
        if open && let Some(entry) = self.inflight.get_mut(self.sent) {
            self.sent += 1;
            let dup = std::mem::replace(&mut entry.dup, true);
            return Some(match &entry.item {
                Some(item) => Outgoing::Publish {
                    item: item.clone(),
                    pid: entry.pid,
                    dup,
                },
                None => Outgoing::Pubrel(entry.pid),
            });
        }
        let pid = next_pid(self.last_pid);
        let free = self.inflight.front().is_none_or(|front| front.pid != pid);
        let high = if open && free {
            self.high.front().map(|(order, _)| *order)
        } else {
            None
        };
        let low = self.low.front().map(|(order, _)| *order);
        if low.is_some_and(|low| high.is_none_or(|high| low < high)) {
            let (_, item) = self.low.pop_front()?;
            self.bytes = self.bytes.saturating_sub(item.message.size());
            return Some(Outgoing::Publish {
                item,
                pid: 0,
                dup: false,
            });
        }
        high?;
        let (order, item) = self.high.pop_front()?;
        self.changed = true;
        self.last_pid = pid;
        self.inflight.push_back(Inflight {
            pid,
            item: Some(item.clone()),
            order,
            dup: true,
        });
        self.sent += 1;
        Some(Outgoing::Publish {
            item,
            pid,
            dup: false,
        })
    }

    fn position(&self, pid: u16) -> Option<usize> {
        let front = self.inflight.front()?.pid;
        let distance = |p: u16| p.wrapping_sub(front);
        self.inflight
            .binary_search_by_key(&distance(pid), |e| distance(e.pid))
            .ok()
    }

    /// Ends the exchange of a packet id (PUBACK, PUBCOMP, or an error in PUBREC, or a message that is not sent
    /// after all); whether it was under way.
    pub(crate) fn finish(&mut self, pid: u16) -> bool {
        let Some(entry) = self.position(pid).and_then(|at| {
            if at < self.sent {
                self.sent -= 1;
            }
            self.inflight.remove(at)
        }) else {
            return false;
        };
        self.changed = true;
        self.bytes = self
            .bytes
            .saturating_sub(entry.item.map_or(0, |i| i.message.size()));
        true
    }

    /// Whether the message under way with this id has this QoS and still waits for its first answer.
    pub(crate) fn awaits(&self, pid: u16, qos: Qos) -> bool {
        self.position(pid)
            .and_then(|at| self.inflight.get(at))
            .is_some_and(|e| e.item.as_ref().is_some_and(|i| i.qos == qos))
    }

    /// PUBREC came: the message is done with, PUBREL is owed. Whether the id was under way at QoS 2.
    pub(crate) fn release(&mut self, pid: u16) -> bool {
        let Some(entry) = self.position(pid).and_then(|at| self.inflight.get_mut(at)) else {
            return false;
        };
        if entry
            .item
            .as_ref()
            .is_some_and(|i| i.qos != Qos::ExactlyOnce)
        {
            return false;
        }
        self.changed = true;
        if let Some(item) = entry.item.take() {
            self.bytes = self.bytes.saturating_sub(item.message.size());
        }
        true
    }

    /// Drops queued messages that have expired; how many.
    pub(crate) fn expire(&mut self, now: Instant) -> usize {
        let before = self.len();
        let mut freed = 0;
        for queue in [&mut self.low, &mut self.high] {
            queue.retain(|(_, item)| {
                let keep = !item.message.is_expired(now);
                freed += if keep { 0 } else { item.message.size() };
                keep
            });
        }
        self.bytes = self.bytes.saturating_sub(freed);
        before - self.len()
    }

    /// Messages sent on the present connection and not acknowledged.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn under_way(&self) -> usize {
        self.sent
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;

    use super::*;
    use crate::broker::message::Message;

    const WIDE: QueueLimits = QueueLimits {
        messages: 1_000_000,
        bytes: usize::MAX,
    };

    fn item(n: u32, qos: Qos) -> Item {
        let message = Message {
            topic: "t".into(),
            payload: Bytes::from(n.to_string()),
            qos,
            retain: false,
            forward: Bytes::new(),
            expires: None,
            on_written: None,
        };
        Item {
            message: Arc::new(message),
            qos,
            retain: false,
            stored: false,
            ids: None,
        }
    }

    fn drain(out: &mut Outbound, receive_maximum: u16) -> Vec<(String, u16, bool)> {
        std::iter::from_fn(|| out.pop(receive_maximum))
            .map(|o| match o {
                Outgoing::Publish { item, pid, dup } => (
                    String::from_utf8(item.message.payload.to_vec()).unwrap(),
                    pid,
                    dup,
                ),
                Outgoing::Pubrel(pid) => ("rel".to_owned(), pid, false),
            })
            .collect()
    }

    #[test]
    fn redelivery_is_in_order_with_dup_and_the_queue_follows() {
        let mut out = Outbound::default();
        for n in 0..1005 {
            out.push(item(n, Qos::AtLeastOnce), WIDE);
        }
        assert_eq!(drain(&mut out, 10).len(), 10);
        out.rewind();
        let mut all = Vec::new();
        loop {
            let some = drain(&mut out, 10);
            if some.is_empty() {
                break;
            }
            for (_, pid, _) in &some {
                assert!(out.finish(*pid));
            }
            all.extend(some);
        }
        let order: Vec<String> = all.iter().map(|(p, _, _)| p.clone()).collect();
        assert_eq!(order, (0..1005).map(|n| n.to_string()).collect::<Vec<_>>());
        assert!(
            all.iter()
                .enumerate()
                .all(|(i, (_, _, dup))| *dup == (i < 10))
        );
        assert_eq!(out.bytes(), 0);
    }

    #[test]
    fn qos_2_goes_on_with_pubrel_after_pubrec() {
        let mut out = Outbound::default();
        out.push(item(1, Qos::ExactlyOnce), WIDE);
        assert_eq!(drain(&mut out, 5), [("1".to_owned(), 1, false)]);
        assert!(out.release(1));
        assert!(!out.release(9));
        out.rewind();
        assert_eq!(drain(&mut out, 5), [("rel".to_owned(), 1, false)]);
        assert!(out.finish(1));
        assert!(!out.finish(1));
    }

    #[test]
    fn the_oldest_qos_0_gives_way_and_qos_1_is_never_dropped_for_it() {
        let limits = QueueLimits {
            messages: 2,
            bytes: usize::MAX,
        };
        let mut out = Outbound::default();
        out.push(item(0, Qos::AtMostOnce), limits);
        out.push(item(1, Qos::AtLeastOnce), limits);
        assert_eq!(
            out.push(item(2, Qos::AtLeastOnce), limits),
            Pushed::Queued { dropped: 1 }
        );
        assert_eq!(out.push(item(3, Qos::AtMostOnce), limits), Pushed::Full);
        let left: Vec<String> = drain(&mut out, 5).into_iter().map(|(p, _, _)| p).collect();
        assert_eq!(left, ["1", "2"]);
    }

    #[test]
    fn qos_0_passes_a_closed_window_and_keeps_its_place_otherwise() {
        let mut out = Outbound::default();
        for (n, qos) in [
            (0, Qos::AtLeastOnce),
            (1, Qos::AtMostOnce),
            (2, Qos::AtLeastOnce),
            (3, Qos::AtMostOnce),
        ] {
            out.push(item(n, qos), WIDE);
        }
        let names =
            |v: Vec<(String, u16, bool)>| v.into_iter().map(|(p, _, _)| p).collect::<Vec<_>>();
        assert_eq!(names(drain(&mut out, 1)), ["0", "1", "3"]);
        out.finish(1);
        assert_eq!(names(drain(&mut out, 1)), ["2"]);
    }

    #[test]
    fn packet_ids_go_round_without_meeting_one_under_way() {
        let mut out = Outbound::default();
        out.push(item(0, Qos::AtLeastOnce), WIDE);
        assert_eq!(drain(&mut out, u16::MAX)[0].1, 1);
        for n in 1..65_535 {
            out.push(item(n, Qos::AtLeastOnce), WIDE);
            let sent = drain(&mut out, u16::MAX);
            assert!(sent[0].1 != 1 && out.finish(sent[0].1));
        }
        out.push(item(7, Qos::AtLeastOnce), WIDE);
        assert!(
            drain(&mut out, u16::MAX).is_empty(),
            "id 1 is still under way"
        );
        assert!(out.finish(1));
        assert_eq!(drain(&mut out, u16::MAX)[0].1, 1);
    }
}
