//! What is in flight, and how much may be.

use std::collections::VecDeque;
use std::time::Duration;

use super::resume::{Mark, Suspect};

/// One message on its way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    pub(super) mark: Mark,
    /// The stream sequence it takes when it is stored.
    pub(super) stream_seq: u64,
    /// Records that filters kept back between the message before and this one.
    pub(super) filtered_before: u32,
    /// What it counts as when it is stored.
    pub(super) kind: Kind,
    pub(super) at: Duration,
    pub(super) acked: bool,
}

/// What a message counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A record, with its last part.
    Record,
    /// A record that a gap message replaces.
    Unsendable,
    /// Told a hole; no record.
    Hole,
    /// A record that was counted before the stream lost it.
    Again,
}

/// The messages in flight, oldest first; tokens are consecutive.
#[derive(Debug, Default)]
pub(super) struct Flight {
    sent: VecDeque<Sent>,
    first_token: u64,
    /// Kept back before a record whose last part is still in flight.
    held: u32,
}

/// What acknowledgements released from the front.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Released {
    /// Messages, parts counted singly.
    pub(super) messages: u32,
    /// Whole records.
    pub(super) records: u32,
    /// Records that filters kept back among them.
    pub(super) filtered: u32,
    /// Records that a gap message replaced.
    pub(super) unsendable: u32,
    /// The last whole record, and where its last part lies.
    pub(super) last: Option<(Mark, u64)>,
}

impl Flight {
    pub(super) fn len(&self) -> usize {
        self.sent.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// Takes a message in and names its token.
    pub(super) fn push(&mut self, sent: Sent) -> u64 {
        let token = self.next_token();
        self.sent.push_back(sent);
        token
    }

    pub(super) fn next_token(&self) -> u64 {
        self.first_token + self.sent.len() as u64
    }

    /// The message of a token that is still in flight.
    pub(super) fn get(&self, token: u64) -> Option<&Sent> {
        let index = usize::try_from(token.checked_sub(self.first_token)?).ok()?;
        self.sent.get(index)
    }

    /// When the oldest message was sent.
    pub(super) fn oldest(&self) -> Option<Duration> {
        self.sent.front().map(|sent| sent.at)
    }

    /// The newest message's mark.
    pub(super) fn back(&self) -> Option<Mark> {
        self.sent.back().map(|sent| sent.mark)
    }

    /// Marks one message (or, for an atomic batch, all up to it) as stored.
    pub(super) fn acknowledge(&mut self, token: u64, whole_batch: bool) {
        let Some(index) = token
            .checked_sub(self.first_token)
            .and_then(|index| usize::try_from(index).ok())
        else {
            return;
        };
        if whole_batch {
            for sent in self.sent.iter_mut().take(index + 1) {
                sent.acked = true;
            }
        } else if let Some(sent) = self.sent.get_mut(index) {
            sent.acked = true;
        }
    }

    /// Takes the acknowledged prefix out.
    pub(super) fn release(&mut self) -> Released {
        let mut released = Released::default();
        while let Some(sent) = self.sent.front().copied().filter(|sent| sent.acked) {
            self.sent.pop_front();
            self.first_token += 1;
            released.messages += 1;
            self.held += sent.filtered_before;
            if sent.mark.part == sent.mark.parts {
                released.filtered += std::mem::take(&mut self.held);
                match sent.kind {
                    Kind::Record => released.records += 1,
                    Kind::Unsendable => released.unsendable += 1,
                    Kind::Hole | Kind::Again => {}
                }
                released.last = Some((sent.mark, sent.stream_seq));
            }
        }
        released
    }

    /// Drops everything; what was in flight may or may not be stored.
    pub(super) fn abandon(&mut self) -> Vec<Suspect> {
        self.first_token = self.next_token();
        self.held = 0;
        self.sent
            .drain(..)
            .map(|sent| Suspect {
                stream_seq: sent.stream_seq,
                mark: sent.mark,
            })
            .collect()
    }
}

/// How many messages may be in flight: grows while acknowledgements return soon, shrinks when they queue.
///
/// A fixed window fills a slow link's buffers with seconds of data, and alarms on the same link wait
/// behind it. Aiming at a delay keeps the link busy and its queue short.
#[derive(Debug)]
pub(super) struct Window {
    size: f64,
    min: f64,
    max: f64,
    target: Duration,
    last_cut: Duration,
}

impl Window {
    #[allow(clippy::cast_precision_loss)] // windows are thousands at most
    pub(super) fn new(min: usize, max: usize, target: Duration) -> Self {
        let min = min.min(max) as f64;
        Self {
            size: min,
            min,
            max: max as f64,
            target,
            last_cut: Duration::ZERO,
        }
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // between min and max
    pub(super) fn size(&self) -> usize {
        self.size as usize
    }

    /// A new connection starts small, so that many gateways that return together ramp up.
    pub(super) fn restart(&mut self) {
        self.size = self.min;
    }

    /// An acknowledgement took `delay`.
    pub(super) fn observe(&mut self, delay: Duration, now: Duration) {
        if delay > self.target {
            // One cut for the messages that were sent under the same window.
            if now.saturating_sub(self.last_cut) > delay {
                self.size = (self.size * 0.7).max(self.min);
                self.last_cut = now;
            }
        } else if delay < self.target / 2 {
            self.size = (self.size + 1.0).min(self.max);
        }
    }
}

/// Admits at most `rate` messages a second, with bursts of a tenth of a second.
#[derive(Debug)]
pub(super) struct Pace {
    rate: f64,
    level: f64,
    at: Duration,
}

impl Pace {
    pub(super) fn new(rate: f64) -> Self {
        Self {
            rate,
            level: 0.0,
            at: Duration::ZERO,
        }
    }

    /// Whether one more may go now.
    pub(super) fn admit(&mut self, now: Duration) -> bool {
        let burst = (self.rate / 10.0).max(1.0);
        let elapsed = now.saturating_sub(self.at).as_secs_f64();
        self.level = (self.level + elapsed * self.rate).min(burst);
        self.at = now;
        if self.level < 1.0 {
            return false;
        }
        self.level -= 1.0;
        true
    }

    /// When the next one may go.
    pub(super) fn next(&self) -> Duration {
        self.at + Duration::from_secs_f64(((1.0 - self.level) / self.rate).max(0.000_1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(record: u64, part: u32, parts: u32) -> Sent {
        Sent {
            mark: Mark {
                record,
                prev: record - 1,
                part,
                parts,
            },
            stream_seq: record,
            filtered_before: 1,
            kind: Kind::Record,
            at: Duration::ZERO,
            acked: false,
        }
    }

    #[test]
    fn only_the_acknowledged_prefix_is_released() {
        let mut flight = Flight::default();
        let tokens: Vec<_> = (1..=4).map(|id| flight.push(sent(id, 1, 1))).collect();
        flight.acknowledge(tokens[1], false);
        assert_eq!(flight.release(), Released::default());
        flight.acknowledge(tokens[0], false);
        let released = flight.release();
        assert_eq!((released.records, released.filtered), (2, 2));
        assert_eq!(released.last.unwrap().0.record, 2);
        assert_eq!(flight.abandon().len(), 2);
        assert!(flight.get(tokens[2]).is_none(), "abandoned tokens are dead");
        assert_eq!(flight.push(sent(3, 1, 1)), 4);
    }

    #[test]
    fn a_record_counts_with_its_last_part() {
        let mut flight = Flight::default();
        let first = flight.push(sent(1, 1, 2));
        let second = flight.push(sent(1, 2, 2));
        flight.acknowledge(first, false);
        assert_eq!(flight.release().records, 0);
        flight.acknowledge(second, false);
        assert_eq!(flight.release().records, 1);
    }

    #[test]
    fn a_slow_link_keeps_its_queue_near_the_target() {
        // 100 messages a second, strictly in order: delay = queue / rate.
        let mut window = Window::new(16, 1024, Duration::from_millis(500));
        let (mut now, mut worst) = (Duration::ZERO, Duration::ZERO);
        let mut queue: VecDeque<Duration> = VecDeque::new();
        for step in 0..3000 {
            while queue.len() < window.size() {
                queue.push_back(now);
            }
            now += Duration::from_millis(10);
            let delay = now - queue.pop_front().unwrap();
            window.observe(delay, now);
            if step > 200 {
                worst = worst.max(delay);
            }
        }
        assert!(worst < Duration::from_millis(1200), "{worst:?}");
        assert!(window.size() >= 16);
    }

    #[test]
    fn a_fast_link_opens_the_whole_window() {
        let mut window = Window::new(16, 1024, Duration::from_millis(500));
        for _ in 0..1100 {
            window.observe(Duration::from_millis(5), Duration::from_secs(1));
        }
        assert_eq!(window.size(), 1024);
    }

    #[test]
    fn the_pace_holds_over_a_minute() {
        let mut pace = Pace::new(50.0);
        let mut now = Duration::from_secs(1);
        let mut admitted = 0;
        while now < Duration::from_secs(61) {
            if pace.admit(now) {
                admitted += 1;
            } else {
                now = pace.next().max(now + Duration::from_micros(1));
            }
        }
        assert!((2990..=3010).contains(&admitted), "{admitted}");
    }
}
