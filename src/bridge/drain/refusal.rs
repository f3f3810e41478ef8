//! What a refusal means: for the flow, which looks at the stream again, and for the record, which is given up only
//! when others pass.

use std::time::Duration;

use super::flight::Kind;
use super::{Action, Drain, Event, Phase};
use crate::bridge::classify::{Class, Refusal};
use crate::bridge::status::UplinkState;
use crate::buffer::record::RecordId;

/// Refusals of one record before it is given up, while others pass.
const DENIALS: u32 = 4;

impl Drain {
    /// The server refused a message.
    pub fn handle_refused(&mut self, now: Duration, token: u64, refusal: &Refusal) {
        let Some(sent) = self.flight.get(token).copied() else {
            return;
        };
        match refusal.class() {
            Class::Permanent if sent.kind != Kind::Unsendable => {
                self.give_up(sent.mark.record, &refusal.description);
                self.doubt(now);
            }
            Class::Resync => self.doubt(now),
            Class::Full => {
                self.probe = true;
                self.set_state(UplinkState::Full, &refusal.description);
                let wait = self.backoff.spread(self.limits.full_probe);
                self.restart_at(now + wait);
            }
            // A refusal without a class, of this record again and again while others pass.
            Class::Retry if refusal.code == 400 => {
                self.set_state(UplinkState::Resuming, &refusal.description);
                self.strike(now, sent.mark.record, &refusal.description);
            }
            class @ (Class::Retry | Class::NoStream | Class::NoJetStream | Class::Permanent) => {
                self.set_state(class.state(), &refusal.description);
                let wait = self.backoff.fail();
                self.restart_at(now + wait);
            }
        }
    }

    /// The server does not permit this record's subject.
    pub fn handle_denied(&mut self, now: Duration, record: RecordId, detail: &str) {
        // The refusals of the messages behind it may have come first.
        if matches!(
            self.phase,
            Phase::Flowing | Phase::Waiting { .. } | Phase::Inspecting
        ) {
            self.set_state(UplinkState::Denied, detail);
            self.strike(now, record, detail);
        }
    }

    /// The prediction may be wrong: look at the stream, at once the first time, later with back-off.
    pub(super) fn doubt(&mut self, now: Duration) {
        let wait = if self.doubts == 0 {
            Duration::ZERO
        } else {
            self.backoff.fail()
        };
        self.doubts = self.doubts.saturating_add(1);
        self.restart_at(now + wait);
    }

    /// One more refusal of this record. It is given up only when others pass: where all are refused the fault
    /// is not the record's, and nothing may be thrown away. A record at the head, behind which nothing can pass,
    /// gives its place to a gap message on trial; when that is refused, too, the record has it back.
    fn strike(&mut self, now: Duration, record: RecordId, cause: &str) {
        let count = if self.denials.0 == record {
            self.denials.1 + 1
        } else {
            1
        };
        self.denials = (record, count);
        if count >= DENIALS && self.acked_since_refusal && self.refused != Some(record) {
            self.give_up(record, cause);
        } else if self.trial.is_some() && self.refused == Some(record) {
            (self.refused, self.trial) = (None, None);
        } else if count.is_multiple_of(DENIALS) && self.refused != Some(record) {
            self.refused = Some(record);
            self.trial = Some((record, cause.to_owned()));
        }
        // Others pass: the sooner it is settled, the sooner they go on.
        let given_up = self.refused == Some(record) && self.trial.is_none();
        let wait = if self.acked_since_refusal || given_up {
            self.backoff.spread(self.limits.backoff_base)
        } else {
            self.backoff.fail()
        };
        self.restart_at(now + wait);
    }

    fn give_up(&mut self, record: RecordId, cause: &str) {
        self.refused = Some(record);
        self.acked_since_refusal = false;
        self.actions.push_back(Action::Event(Event::Unsendable {
            record,
            cause: cause.to_owned(),
        }));
    }
}
