//! What can be wrong with a node, on request.

use std::collections::VecDeque;

use crate::codec::BdseqType;
use crate::node::Message;
use crate::signal::Random;

/// How a node takes a rebirth request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Rebirth {
    /// With its births, as it should.
    #[default]
    Answer,
    /// Not at all.
    Ignore,
    /// With an NDEATH and then its births, which the norm does not want.
    WithDeath,
    /// With a new connection.
    Reconnect,
    /// With a `bdSeq` that is one higher.
    RaiseBdseq,
    /// With all births but the first device's.
    Forget,
    /// With its births after so many ms, while data goes on.
    Late(u64),
}

/// Faults of what a node encodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Twist {
    /// Added to every timestamp, ms.
    pub skew_ms: i64,
    /// The next data message skips one `seq`.
    pub skip_seq: bool,
    /// Births are retained: the classic mistake.
    pub retain_births: bool,
    /// The will has another `bdSeq` than the birth.
    pub wrong_bdseq: bool,
    /// Data carries an alias that no birth gave.
    pub unknown_alias: bool,
    /// Data goes out before the births.
    pub data_before_birth: bool,
    /// Data is kept back; when this ends, it goes out as historical.
    pub store: bool,
    /// What a rebirth request leads to.
    pub rebirth: Rebirth,
    /// The connection stands and nothing is said.
    pub silent: bool,
    /// Every CONNECT has the `bdSeq` of the first.
    pub stuck_bdseq: bool,
    /// How `bdSeq` is written.
    pub bdseq_type: BdseqType,
    /// Each device counts its own `seq`.
    pub seq_per_device: bool,
    /// Added to every `seq`: births begin with it.
    pub first_seq: u8,
    /// Zeros are not on the wire.
    pub proto3: bool,
    /// A death on purpose is followed by the will.
    pub double_death: bool,
}

impl Twist {
    pub(crate) fn clock(&self, now_ms: u64) -> u64 {
        now_ms.saturating_add_signed(self.skew_ms)
    }
}

/// Faults of the way between node and broker, each for a share of the messages.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Way {
    /// Lost.
    pub drop: f64,
    /// Sent twice.
    pub duplicate: f64,
    /// Held back until after the next one.
    pub reorder: f64,
    /// One byte of the payload is changed.
    pub corrupt: f64,
    /// All messages come later, ms; their order stays.
    pub delay_ms: u64,
}

/// Most messages under way at once; beyond, the oldest arrive early.
const MOST_DELAYED: usize = 10_000;

/// Messages under way on a slow line; it ends with its connection.
#[derive(Debug, Clone, Default)]
pub struct Line {
    under_way: VecDeque<(u64, Message)>,
}

impl Line {
    /// Puts messages in at `now_ms`, and gives those that arrive by now, in order.
    pub fn pass(&mut self, delay_ms: u64, messages: Vec<Message>, now_ms: u64) -> Vec<Message> {
        if delay_ms == 0 && self.under_way.is_empty() {
            return messages;
        }
        self.under_way.extend(
            messages
                .into_iter()
                .map(|message| (now_ms.saturating_add(delay_ms), message)),
        );
        let mut out = Vec::new();
        while let Some((due, _)) = self.under_way.front() {
            if *due > now_ms && self.under_way.len() <= MOST_DELAYED {
                break;
            }
            out.extend(self.under_way.pop_front().map(|(_, message)| message));
        }
        out
    }
}

/// Applies a [`Way`] to messages.
#[derive(Debug, Clone)]
pub struct Injector {
    random: Random,
    held: Option<Message>,
    injected: u64,
}

impl Injector {
    /// Nothing held.
    #[must_use]
    pub fn new(seed: u64, place: u64) -> Self {
        Self {
            random: Random::new(seed ^ 0xFA17, place),
            held: None,
            injected: 0,
        }
    }

    /// Faults put in so far.
    #[must_use]
    pub fn injected(&self) -> u64 {
        self.injected
    }

    /// Forgets what is held back: a message of one connection must not go out on the next.
    pub fn reconnected(&mut self) {
        self.held = None;
    }

    /// What really goes out.
    pub fn apply(&mut self, way: &Way, messages: Vec<Message>) -> Vec<Message> {
        if *way == Way::default() && self.held.is_none() {
            return messages;
        }
        let mut out = Vec::with_capacity(messages.len() + 1);
        for mut message in messages {
            if self.random.chance(way.drop) {
                self.injected += 1;
                continue;
            }
            if self.random.chance(way.corrupt) {
                self.injected += 1;
                let at = usize::try_from(self.random.next_u64()).unwrap_or(0)
                    % message.payload.len().max(1);
                if let Some(byte) = message.payload.get_mut(at) {
                    *byte ^= 0x55;
                }
            }
            if self.held.is_none() && self.random.chance(way.reorder) {
                self.injected += 1;
                self.held = Some(message);
                continue;
            }
            let twice = self.random.chance(way.duplicate);
            self.injected += u64::from(twice);
            out.push(message.clone());
            if twice {
                out.push(message);
            }
            out.extend(self.held.take());
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(n: usize) -> Vec<Message> {
        (0..n)
            .map(|i| Message {
                topic: i.to_string(),
                payload: vec![0; 4],
                retain: false,
                metrics: 1,
                birth: false,
            })
            .collect()
    }

    #[test]
    fn shares_are_about_what_was_asked_for() {
        let check = |way: Way, expect: fn(&[Message]) -> bool| {
            let mut injector = Injector::new(1, 1);
            let out = injector.apply(&way, messages(1000));
            assert!(expect(&out), "{way:?}: {}", out.len());
            assert!(injector.injected() > 0);
        };
        check(
            Way {
                drop: 0.1,
                ..Way::default()
            },
            |out| (850..950).contains(&out.len()),
        );
        check(
            Way {
                duplicate: 0.1,
                ..Way::default()
            },
            |out| (1050..1150).contains(&out.len()),
        );
        check(
            Way {
                reorder: 0.1,
                ..Way::default()
            },
            |out| {
                (999..=1000).contains(&out.len())
                    && out.windows(2).any(|w| {
                        w[0].topic.parse::<u32>().unwrap() > w[1].topic.parse::<u32>().unwrap()
                    })
            },
        );
        check(
            Way {
                corrupt: 0.1,
                ..Way::default()
            },
            |out| out.iter().any(|m| m.payload.contains(&0x55)),
        );
    }

    #[test]
    fn what_is_held_back_does_not_reach_the_next_connection() {
        let mut injector = Injector::new(1, 1);
        assert!(
            injector
                .apply(
                    &Way {
                        reorder: 1.0,
                        ..Way::default()
                    },
                    messages(1)
                )
                .is_empty()
        );
        injector.reconnected();
        assert_eq!(injector.apply(&Way::default(), messages(2)), messages(2));
    }

    #[test]
    fn a_slow_line_keeps_the_order() {
        let mut line = Line::default();
        assert!(line.pass(100, messages(2), 0).is_empty());
        assert!(
            line.pass(0, messages(1), 50).is_empty(),
            "what comes after waits behind"
        );
        assert_eq!(line.pass(0, Vec::new(), 100).len(), 3);
        assert_eq!(line.pass(0, messages(1), 101).len(), 1);
        assert_eq!(
            line.pass(100, messages(MOST_DELAYED + 3), 500).len(),
            3,
            "bounded"
        );
    }

    #[test]
    fn without_faults_nothing_changes() {
        let mut injector = Injector::new(1, 1);
        assert_eq!(injector.apply(&Way::default(), messages(3)), messages(3));
    }
}
