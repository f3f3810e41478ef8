//! What is to be done: the outputs of [`Drain`].

use std::time::Duration;

use super::flight::{Kind, Sent};
use super::resume::{Checkpoint, Mark};
use super::{Action, BatchPlace, Content, Counters, Drain, Event, Phase, Publish, Unit, Work};
use crate::bridge::status::UplinkState;
use crate::buffer::record::RecordId;

impl Drain {
    /// The next thing to do; `None`: wait for an input or [`Self::poll_timeout`].
    pub fn poll_action(&mut self, now: Duration) -> Option<Action> {
        if self.actions.is_empty() {
            self.fill(now);
        }
        self.actions.pop_front()
    }

    /// When to call [`Self::handle_timeout`] at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        match self.phase {
            Phase::Offline { at } | Phase::Waiting { at } => Some(at),
            Phase::Flowing => [self.stall_at(), self.paced_to].into_iter().flatten().min(),
            Phase::Connecting | Phase::Inspecting | Phase::Scanning { .. } | Phase::Closed => None,
        }
    }

    /// Where the lane stands, and why.
    #[must_use]
    pub fn state(&self) -> (UplinkState, &str) {
        (self.state, &self.detail)
    }

    /// Counters since start.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Messages in flight, and how many may be.
    #[must_use]
    pub fn in_flight(&self) -> (usize, usize) {
        (self.flight.len(), self.window.size())
    }

    /// The highest record that is done.
    #[must_use]
    pub fn acked(&self) -> RecordId {
        self.acked
    }

    /// Why a gap message stands in for this record, while that is only tried.
    #[must_use]
    pub fn on_trial(&self, record: RecordId) -> Option<&str> {
        let (of, cause) = self.trial.as_ref()?;
        (*of == record).then_some(cause.as_str())
    }

    /// The reading that was asked for and has brought nothing yet.
    #[must_use]
    pub fn unanswered_read(&self) -> Option<(u64, RecordId)> {
        self.reading.then_some((self.ticket, self.read_after))
    }

    /// Whether everything appended so far is acknowledged or kept back.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Flowing
            && self.exhausted
            && self.queue.is_empty()
            && self.flight.is_empty()
    }

    fn room(&self) -> usize {
        if self.probe { 1 } else { self.window.size() }
    }

    fn fill(&mut self, now: Duration) {
        if self.phase != Phase::Flowing {
            return;
        }
        self.paced_to = None;
        if let Some(max) = self.limits.batch {
            self.fill_batch(now, max);
        } else {
            while self.flight.len() < self.room() {
                let Some(publish) = self.next_message(now) else {
                    break;
                };
                self.actions.push_back(Action::Publish(publish));
            }
        }
        if !self.reading && !self.exhausted && self.queue.len() <= self.limits.read_records / 2 {
            self.reading = true;
            self.grown = false;
            self.ticket += 1;
            self.actions.push_back(Action::Read {
                after: self.read_after,
                ticket: self.ticket,
                fresh: std::mem::take(&mut self.fresh),
            });
        }
        if self.flight.is_empty() {
            self.settle_filtered();
        }
        if self.is_idle() && matches!(self.state, UplinkState::Full | UplinkState::Stalled) {
            self.state = UplinkState::Ok;
            self.detail.clear();
        }
    }

    fn fill_batch(&mut self, now: Duration, max: u32) {
        if !self.flight.is_empty() {
            return;
        }
        let max = if self.probe { 1 } else { max };
        let id = self.batch_id.wrapping_add(1);
        let mut messages = Vec::new();
        for sequence in 1..=max.max(1) {
            let Some(mut publish) = self.next_message(now) else {
                break;
            };
            publish.msg_id = false;
            publish.follows = None;
            publish.batch = Some(BatchPlace {
                id,
                sequence,
                commit: false,
            });
            messages.push(publish);
        }
        if let Some(place) = messages.last_mut().and_then(|last| last.batch.as_mut()) {
            place.commit = true;
            self.batch_id = id;
        }
        self.actions
            .extend(messages.into_iter().map(Action::Publish));
    }

    /// The next message, past records that need none.
    fn next_message(&mut self, now: Duration) -> Option<Publish> {
        loop {
            let unit = *self.queue.front()?;
            if unit.record > self.limit {
                return None;
            }
            if self.pass_over(unit) {
                continue;
            }
            // Read again after the checkpoint was lost: the hole was told, or is before our time.
            if let Some(follows) = self.follows
                && unit.lane_prev > follows
                && !unit.explains_gap
            {
                if !self.admitted(now) {
                    return None;
                }
                return Some(self.tell_hole(now, follows, unit));
            }
            if !self.admitted(now) {
                return None;
            }
            return Some(self.send(now, unit));
        }
    }

    /// Handles a record that needs no message: stored already, or kept back by a filter.
    fn pass_over(&mut self, unit: Unit) -> bool {
        if unit.record <= self.stored_to {
            self.queue.pop_front();
            match unit.work {
                Work::Filtered => self.acknowledge(unit.record, 0, 1, 0),
                Work::Send { .. } | Work::Unsendable => self.acknowledge(unit.record, 1, 0, 0),
            }
            self.follows = Some(unit.record);
            return true;
        }
        if unit.work == Work::Filtered {
            self.queue.pop_front();
            self.follows = Some(unit.record);
            self.parts_stored = None;
            if unit.record > self.acked {
                self.filtered += 1;
            }
            return true;
        }
        if self.skip > 0 {
            self.skip_stored(unit);
            return true;
        }
        false
    }

    /// Messages that are stored but can't be seen: this record's remaining parts, or some of them.
    fn skip_stored(&mut self, unit: Unit) {
        let parts = parts_of(unit);
        let stored = match self.parts_stored.take() {
            Some((stored, of)) if of == parts => stored,
            Some(_) | None => 0,
        };
        let remaining = u64::from(parts.saturating_sub(stored));
        let whole = self.skip >= remaining;
        if whole {
            self.skip -= remaining;
            self.queue.pop_front();
            self.follows = Some(unit.record);
            self.prev = unit.record;
        } else {
            let more = u32::try_from(self.skip).unwrap_or(u32::MAX);
            self.skip = 0;
            self.parts_stored = Some((stored.saturating_add(more), parts));
        }
        self.checkpoint = Some(Checkpoint {
            created: self.created,
            stream_seq: self.expected - self.skip,
            record: if whole { unit.record } else { unit.record - 1 },
            prev: self.prev,
            parts: self.parts_stored,
        });
        if whole {
            self.acknowledge(unit.record, 1, 0, 0);
        }
    }

    /// The pace holds only while there is a backlog; live records are not paced.
    fn admitted(&mut self, now: Duration) -> bool {
        let backlog = !self.exhausted || self.queue.len() > self.limits.read_records / 2;
        let Some(pace) = self.pace.as_mut().filter(|_| backlog) else {
            return true;
        };
        let admitted = pace.admit(now);
        if !admitted {
            self.paced_to = Some(pace.next());
        }
        admitted
    }

    fn tell_hole(&mut self, now: Duration, follows: RecordId, unit: Unit) -> Publish {
        if unit.lane_prev > self.told {
            self.told = unit.lane_prev;
            self.actions.push_back(Action::Event(Event::Hole {
                after: follows,
                before: unit.record,
            }));
        }
        let mark = Mark {
            record: unit.lane_prev,
            prev: self.prev,
            part: 1,
            parts: 1,
        };
        self.follows = Some(unit.lane_prev);
        self.prev = unit.lane_prev;
        let content = Content::Hole { from: follows + 1 };
        self.publish(now, mark, content, Kind::Hole)
    }

    fn send(&mut self, now: Duration, unit: Unit) -> Publish {
        let given_up = self.refused == Some(unit.record);
        let parts = parts_of(unit);
        let (content, parts) = if given_up || unit.work == Work::Unsendable {
            if !given_up && unit.record > self.told {
                self.told = unit.record;
                self.actions.push_back(Action::Event(Event::Unsendable {
                    record: unit.record,
                    cause: String::new(),
                }));
            }
            (Content::Unsendable, 1)
        } else {
            if let Some((stored, of)) = self.parts_stored
                && of == parts
                && self.next_part == 0
            {
                self.next_part = stored;
            }
            (Content::Part, parts)
        };
        self.parts_stored = None;
        let part = if content == Content::Part {
            self.next_part + 1
        } else {
            1
        };
        let mark = Mark {
            record: unit.record,
            prev: self.prev,
            part,
            parts,
        };
        let kind = if unit.record <= self.acked {
            Kind::Again
        } else if content == Content::Unsendable {
            Kind::Unsendable
        } else {
            Kind::Record
        };
        if part >= parts {
            self.queue.pop_front();
            self.next_part = 0;
            self.follows = Some(unit.record);
            self.prev = unit.record;
        } else {
            self.next_part = part;
        }
        self.publish(now, mark, content, kind)
    }

    fn publish(&mut self, now: Duration, mark: Mark, content: Content, kind: Kind) -> Publish {
        let expected_last = self.expected;
        let msg_id = self.without_id != Some(mark.record);
        let follows = self
            .flight
            .back()
            .filter(|before| self.without_id != Some(before.record));
        self.expected += 1;
        let token = self.flight.push(Sent {
            mark,
            stream_seq: self.expected,
            filtered_before: std::mem::take(&mut self.filtered),
            kind,
            at: now,
            acked: false,
        });
        Publish {
            token,
            mark,
            expected_last,
            follows,
            content,
            msg_id,
            batch: None,
        }
    }

    /// Records that filters kept back behind the last message are done when that message is.
    fn settle_filtered(&mut self) {
        if self.filtered > 0
            && let Some(up_to) = self.follows
        {
            let filtered = std::mem::take(&mut self.filtered);
            self.acknowledge(up_to, 0, filtered, 0);
        }
    }

    /// Tells the journal that all up to `up_to` is done. Records that were counted before the stream lost
    /// them count nothing.
    pub(super) fn acknowledge(
        &mut self,
        up_to: RecordId,
        published: u32,
        filtered: u32,
        unsendable: u32,
    ) {
        if up_to <= self.acked {
            return;
        }
        self.acked = up_to;
        self.counters.published += u64::from(published);
        self.counters.filtered += u64::from(filtered);
        self.counters.unsendable += u64::from(unsendable);
        let Some(checkpoint) = self.checkpoint else {
            return;
        };
        if let Some(Action::Ack {
            up_to: last,
            published: p,
            filtered: f,
            unsendable: u,
            checkpoint: c,
        }) = self.actions.back_mut()
        {
            *last = up_to;
            *p += published;
            *f += filtered;
            *u += unsendable;
            *c = checkpoint;
            return;
        }
        self.actions.push_back(Action::Ack {
            up_to,
            published,
            filtered,
            unsendable,
            checkpoint,
        });
    }
}

fn parts_of(unit: Unit) -> u32 {
    match unit.work {
        Work::Send { parts } => parts.max(1),
        Work::Filtered | Work::Unsendable => 1,
    }
}
