//! Delayed wills, the end of sessions, and expired messages.

use std::sync::Arc;
use std::time::Instant;

use super::{Change, Router, SWEEP};
use crate::broker::pressure::Pressure;
use crate::broker::subscriptions::SessionIndex;

impl Router {
    /// When [`Self::handle_timeout`] is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let first = self.timers.first().map(|(at, _)| *at);
        first.into_iter().chain(self.next_sweep).min()
    }

    /// Does what is due.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(at, index)) = self.timers.first() {
            if at > now {
                break;
            }
            self.timers.pop_first();
            let patience = self.end_patience(now, index);
            self.timers.extend(patience.map(|due| (due, index)));
            let Some(session) = self.session_mut(index) else {
                continue;
            };
            // An entry may be older than the session's present state, which alone decides.
            if session.will_due.is_some_and(|due| due <= now) {
                session.will_due = None;
                let client = Arc::clone(&session.client);
                if let Some(will) = session.will.take() {
                    self.send_will(now, index, &client, &will);
                }
            }
            let over = |at: Option<Instant>| at.is_some_and(|at| at <= now);
            if self
                .session(index)
                .is_some_and(|s| s.attached.is_none() && over(s.expires))
            {
                self.remove_session(now, index);
            }
        }
        if self.next_sweep.is_none_or(|at| at <= now) {
            self.next_sweep = Some(now + SWEEP);
            self.sweep(now);
        }
    }

    /// Lets the publishers of a subscriber go that does not get on; when to look again where it does.
    fn end_patience(&mut self, now: Instant, index: SessionIndex) -> Option<Instant> {
        let attached = self.session_mut(index)?.attached.as_mut()?;
        let Pressure::Holding(hold) = &attached.pressure else {
            return None;
        };
        let due = hold.due();
        if due > now {
            return Some(due);
        }
        hold.give_up(now);
        attached.pressure = Pressure::Spent;
        None
    }

    fn sweep(&mut self, now: Instant) {
        for topic in self.retained.sweep(now) {
            self.note(Change::Retained(topic));
        }
        let mut freed = 0;
        let mut expired = 0;
        for session in self
            .sessions
            .iter_mut()
            .flatten()
            .filter(|s| s.attached.is_none())
        {
            let before = session.outbound.bytes();
            expired += session.outbound.expire(now);
            freed += before - session.outbound.bytes();
        }
        self.queued_bytes = self.queued_bytes.saturating_sub(freed);
        self.dropped.add("expired", expired);
    }
}
