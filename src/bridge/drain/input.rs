//! What happened: the inputs of [`Drain`].

use std::collections::VecDeque;
use std::time::Duration;

use super::flight::{Flight, Kind, Pace, Window};
use super::resume::{self, Checkpoint, Inspection, Known, Mark, Resume, Stored, Verdict, decide};
use super::{Action, Counters, Drain, Event, Limits, Phase, Unit};
use crate::backoff::Backoff;
use crate::bridge::classify::Refusal;
use crate::bridge::status::UplinkState;
use crate::buffer::record::RecordId;

/// Wait before a loss is believed: an election or a slow restart may show an old state for a moment.
const CONFIRM: Duration = Duration::from_secs(1);

impl Drain {
    /// A lane that starts without a connection. `checkpoint` is what was kept of this epoch's last run,
    /// `acked` the journal's cursor, `head` its newest record; `seed` makes the jitter this gateway's own.
    #[must_use]
    pub fn new(
        limits: Limits,
        checkpoint: Option<Checkpoint>,
        acked: RecordId,
        head: RecordId,
        seed: u64,
        now: Duration,
    ) -> Self {
        Self {
            phase: Phase::Offline { at: now },
            state: UplinkState::Connecting,
            detail: String::new(),
            actions: VecDeque::new(),
            backoff: Backoff::new(limits.backoff_base, limits.backoff_max, seed),
            window: Window::new(limits.min_window, limits.window, limits.target_delay),
            pace: limits.backfill_rate.map(Pace::new),
            checkpoint,
            acked,
            head,
            created: 0,
            suspects: Vec::new(),
            confirming: None,
            fence: None,
            ahead_told: false,
            queue: VecDeque::new(),
            reading: false,
            read_after: acked,
            ticket: 0,
            fresh: true,
            exhausted: false,
            grown: false,
            follows: None,
            stored_to: 0,
            parts_stored: None,
            next_part: 0,
            skip: 0,
            limit: RecordId::MAX,
            flight: Flight::default(),
            expected: 0,
            prev: 0,
            filtered: 0,
            told: 0,
            paced_to: None,
            probe: false,
            doubts: 0,
            // Unlike those of an earlier run, whose rest may still be on its way.
            batch_id: seed,
            progress_at: now,
            refused: None,
            trial: None,
            denials: (0, 0),
            acked_since_refusal: false,
            duplicate_of: None,
            without_id: None,
            counters: Counters::default(),
            limits,
        }
    }

    /// A connection stands.
    pub fn handle_connected(&mut self, now: Duration) {
        if self.phase == Phase::Connecting {
            self.window.restart();
            self.phase = Phase::Waiting { at: now };
            if self.state != UplinkState::Full {
                self.set_state(UplinkState::Resuming, "");
            }
        }
    }

    /// Another lane of this gateway has a connection: the way is open, there is nothing to wait for.
    pub fn handle_reachable(&mut self, now: Duration) {
        if let Phase::Offline { at } = &mut self.phase {
            *at = now.min(*at);
        }
    }

    /// No connection came about.
    pub fn handle_connect_failed(&mut self, now: Duration, state: UplinkState, detail: &str) {
        if self.phase == Phase::Connecting {
            self.set_state(state, detail);
            self.phase = Phase::Offline {
                at: now + self.backoff.fail(),
            };
        }
    }

    /// The connection broke. What was in flight may or may not be stored.
    pub fn handle_disconnected(&mut self, now: Duration, detail: &str) {
        if matches!(self.phase, Phase::Offline { .. } | Phase::Closed) {
            return;
        }
        self.go_offline(now, UplinkState::Connecting, detail);
    }

    /// The stream's end is known.
    pub fn handle_inspected(&mut self, now: Duration, seen: Inspection) {
        if self.phase != Phase::Inspecting {
            return;
        }
        self.counters.resyncs += 1;
        let known = Known {
            checkpoint: self.checkpoint,
            cursor: self.acked,
            head: self.head,
            suspects: &self.suspects,
        };
        match decide(known, seen) {
            Verdict::Resume(resume) => self.start(now, resume, seen.created),
            Verdict::Rewind(resume, loss) => {
                let sight = (seen.created, seen.last_seq);
                if self.confirming == Some(sight) {
                    self.actions
                        .push_back(Action::Event(Event::StreamLost(loss)));
                    self.start(now, resume, seen.created);
                } else {
                    self.confirming = Some(sight);
                    self.phase = Phase::Waiting { at: now + CONFIRM };
                }
            }
            Verdict::Fenced => self.fenced(now, seen),
            Verdict::Ahead { record } => {
                if !self.ahead_told {
                    self.ahead_told = true;
                    self.actions
                        .push_back(Action::Event(Event::Ahead { record }));
                }
                self.set_state(
                    UplinkState::Fenced,
                    "the stream holds records of this epoch that this journal has not made",
                );
                self.phase = Phase::Waiting {
                    at: now + self.backoff.spread(self.limits.backoff_max),
                };
            }
        }
    }

    /// The stream could not be looked at.
    pub fn handle_inspect_failed(&mut self, now: Duration, refusal: &Refusal) {
        if matches!(self.phase, Phase::Inspecting | Phase::Scanning { .. }) {
            self.set_state(refusal.class().state(), &refusal.description);
            self.phase = Phase::Waiting {
                at: now + self.backoff.fail(),
            };
        }
    }

    /// One message's headers, as asked for.
    pub fn handle_looked_up(&mut self, now: Duration, stored: Stored) {
        let Phase::Scanning {
            next,
            last_seq,
            found,
        } = self.phase
        else {
            return;
        };
        let found = match stored {
            Stored::Ours(mark) => Some(mark),
            Stored::Missing | Stored::OtherEpoch | Stored::Foreign => {
                self.take_over(now, last_seq, found);
                return;
            }
        };
        if next < last_seq {
            self.phase = Phase::Scanning {
                next: next + 1,
                last_seq,
                found,
            };
            self.actions.push_back(Action::LookUp {
                stream_seq: next + 1,
            });
        } else {
            self.take_over(now, last_seq, found);
        }
    }

    /// Records that were read; `more` when the journal may have further ones. Says whether they were
    /// taken: units of an older ticket are not, and what was prepared for them is void.
    pub fn handle_units(&mut self, ticket: u64, units: &[Unit], more: bool) -> bool {
        if ticket != self.ticket || !self.reading {
            return false;
        }
        self.reading = false;
        self.exhausted = !more && !self.grown;
        if let Some(last) = units.last() {
            self.read_after = last.record;
        }
        self.queue.extend(units.iter().copied());
        true
    }

    /// The journal grew.
    pub fn handle_appended(&mut self, head: RecordId) {
        if head > self.head {
            self.head = head;
            self.exhausted = false;
            // A reading that is under way may have looked before.
            self.grown = true;
        }
    }

    /// Records above `limit` wait (strict order between lanes).
    pub fn handle_limit(&mut self, limit: RecordId) {
        self.limit = limit;
    }

    /// The stream took a message.
    pub fn handle_stored(&mut self, now: Duration, token: u64, stream_seq: u64, duplicate: bool) {
        let Some(sent) = self.flight.get(token).copied() else {
            return;
        };
        if duplicate {
            self.counters.duplicates += 1;
            let record = sent.mark.record;
            if self.duplicate_of == Some(record) {
                // Looked at the stream in between: it isn't there. The server's memory of ids is wrong.
                self.without_id = Some(record);
                self.actions
                    .push_back(Action::Event(Event::FalseDuplicate { record }));
            }
            self.duplicate_of = Some(record);
            self.doubt(now);
            return;
        }
        if stream_seq != sent.stream_seq {
            self.doubt(now);
            return;
        }
        self.flight.acknowledge(token, self.limits.batch.is_some());
        self.window.observe(now.saturating_sub(sent.at), now);
        self.progress_at = now;
        self.backoff.reset();
        self.doubts = 0;
        self.probe = false;
        self.duplicate_of = None;
        self.set_state(UplinkState::Ok, "");
        if sent.kind != Kind::Unsendable {
            self.acked_since_refusal = true;
        }
        let released = self.flight.release();
        if let Some((mark, stream_seq)) = released.last {
            if let Some((record, cause)) = self.trial.take_if(|(record, _)| *record <= mark.record)
                && self.refused == Some(record)
            {
                self.actions
                    .push_back(Action::Event(Event::Unsendable { record, cause }));
            }
            if self.refused.is_some_and(|record| record <= mark.record) {
                self.refused = None;
            }
            if self.without_id.is_some_and(|record| record <= mark.record) {
                self.without_id = None;
            }
            self.checkpoint = Some(Checkpoint {
                created: self.created,
                stream_seq,
                record: mark.record,
                prev: mark.record,
                parts: None,
            });
            self.acknowledge(
                mark.record,
                released.records,
                released.filtered,
                released.unsendable,
            );
        }
    }

    /// Time went on.
    pub fn handle_timeout(&mut self, now: Duration) {
        match self.phase {
            Phase::Offline { at } if at <= now => {
                self.phase = Phase::Connecting;
                self.actions.push_back(Action::Connect);
            }
            Phase::Waiting { at } if at <= now => {
                self.phase = Phase::Inspecting;
                self.actions.push_back(Action::Inspect);
            }
            Phase::Flowing if self.stall_at().is_some_and(|at| at <= now) => {
                self.actions.push_back(Action::Disconnect);
                self.go_offline(
                    now,
                    UplinkState::Stalled,
                    "connected, and no acknowledgement came",
                );
            }
            Phase::Offline { .. }
            | Phase::Waiting { .. }
            | Phase::Connecting
            | Phase::Inspecting
            | Phase::Scanning { .. }
            | Phase::Flowing
            | Phase::Closed => {}
        }
    }

    /// No more: the connection goes, records wait for the next run.
    pub fn close(&mut self) {
        self.break_off();
        self.phase = Phase::Closed;
        self.set_state(UplinkState::Stopped, "");
        self.actions.push_back(Action::Disconnect);
    }

    pub(super) fn stall_at(&self) -> Option<Duration> {
        let oldest = self.flight.oldest()?;
        Some(oldest.max(self.progress_at) + self.limits.stall)
    }

    pub(super) fn set_state(&mut self, state: UplinkState, detail: &str) {
        if self.state != state || self.detail != detail {
            self.state = state;
            self.detail.clear();
            self.detail.push_str(detail);
        }
    }

    /// Drops everything that the journal can give again.
    fn break_off(&mut self) {
        if !self.flight.is_empty() {
            self.suspects = self.flight.abandon();
        }
        self.actions
            .retain(|action| !matches!(action, Action::Publish(_) | Action::Read { .. }));
        self.queue.clear();
        self.reading = false;
        self.ticket += 1;
        self.filtered = 0;
    }

    fn go_offline(&mut self, now: Duration, state: UplinkState, detail: &str) {
        if self.phase == Phase::Flowing && state != UplinkState::Stalled {
            // It worked: the first attempt comes soon.
            self.backoff.reset();
        }
        self.break_off();
        self.set_state(state, detail);
        self.phase = Phase::Offline {
            at: now + self.backoff.fail(),
        };
    }

    pub(super) fn restart_at(&mut self, at: Duration) {
        self.break_off();
        self.phase = Phase::Waiting { at };
    }

    fn fenced(&mut self, now: Duration, seen: Inspection) {
        let since = match self.fence {
            Some((last_seq, since)) if last_seq == seen.last_seq => since,
            Some(_) => now,
            None => {
                self.actions.push_back(Action::Event(Event::Fenced));
                now
            }
        };
        self.fence = Some((seen.last_seq, since));
        self.set_state(
            UplinkState::Fenced,
            "another publisher writes to this gateway's stream",
        );
        if now.saturating_sub(since) < self.limits.fence_hold {
            let wait = self.backoff.spread(self.limits.fence_hold / 4);
            self.phase = Phase::Waiting { at: now + wait };
            return;
        }
        self.created = seen.created;
        match self.checkpoint {
            // Ours, if any were stored, lie directly behind the checkpoint.
            Some(point) if point.created == seen.created && point.stream_seq < seen.last_seq => {
                let next = point.stream_seq + 1;
                self.phase = Phase::Scanning {
                    next,
                    last_seq: seen.last_seq,
                    found: None,
                };
                self.actions.push_back(Action::LookUp { stream_seq: next });
            }
            Some(_) | None => self.take_over(now, seen.last_seq, None),
        }
    }

    fn take_over(&mut self, now: Duration, last_seq: u64, found: Option<Mark>) {
        let resume = resume::take_over(self.checkpoint, self.acked, found, last_seq);
        self.actions.push_back(Action::Event(Event::TookOver));
        let created = self.created;
        self.start(now, resume, created);
    }

    fn start(&mut self, now: Duration, resume: Resume, created: u64) {
        self.phase = Phase::Flowing;
        self.created = created;
        self.expected = resume.expected;
        self.prev = resume.prev;
        self.follows = resume.follows;
        self.parts_stored = resume.parts_stored;
        self.next_part = 0;
        self.skip = resume.skip;
        if resume.after > self.acked {
            // Others did pass: their acknowledgements were dropped with the doubt.
            self.acked_since_refusal = true;
        }
        // Records that the stream has and the journal does not know of yet are read again, to be counted.
        self.stored_to = resume.after;
        self.read_after = resume.after.min(self.acked);
        if resume.skip == 0 {
            let checkpoint = Checkpoint {
                created,
                stream_seq: resume.expected,
                record: resume.after,
                prev: resume.prev,
                parts: resume.parts_stored,
            };
            if self.checkpoint != Some(checkpoint) {
                self.checkpoint = Some(checkpoint);
                self.actions.push_back(Action::Keep(checkpoint));
            }
        }
        self.suspects.clear();
        self.confirming = None;
        self.fence = None;
        self.queue.clear();
        self.reading = false;
        self.fresh = true;
        self.exhausted = false;
        self.filtered = 0;
        self.progress_at = now;
        if self.state == UplinkState::Resuming || self.state == UplinkState::Fenced {
            self.set_state(UplinkState::Ok, "");
        }
    }
}
