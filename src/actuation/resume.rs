//! A sequence that a crash interrupted, taken up again from what the journal says of it.

use super::run::{Phase, Running};
use super::{Actuation, Gate, Notice, OnRestart, Plan, Status};

/// One journalled step of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Happened {
    /// Which write, from 0.
    pub position: usize,
    /// It is that write's undo.
    pub undo: bool,
    /// What was told.
    pub status: Status,
}

/// A plan and all that the journal says of it, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Interrupted {
    /// The plan.
    pub plan: Plan,
    /// Its steps, oldest first, without one that ended it.
    pub steps: Vec<Happened>,
    /// Time since the newest of them, ms, also that in which nothing ran; `None`: not known, as by a clock that is not
    /// to be trusted.
    pub idle_ms: Option<u64>,
}

/// Where an interrupted plan stood.
#[derive(Debug, Default, PartialEq, Eq)]
struct Place {
    at: usize,
    undoing: bool,
    done: Vec<usize>,
    /// The current write was told as sent, and nothing was told after it.
    open: bool,
    /// A forward write failed: undo was about to begin.
    failed: bool,
}

impl Interrupted {
    /// How much of a step's time is left, ms: of the one whose outcome is not known, else of the next one. `None`: the
    /// sequence is not to go on.
    fn left_ms(&self, place: &Place) -> Option<u64> {
        if self.plan.on_restart != OnRestart::Finish || place.undoing || place.failed {
            return None;
        }
        let at = place.at + usize::from(!place.open);
        let ttl = self.plan.writes.get(at)?.ttl_ms?;
        ttl.checked_sub(self.idle_ms?)
    }

    fn place(&self) -> Place {
        let mut place = Place::default();
        for step in &self.steps {
            let Some(write) = self.plan.writes.get(step.position) else {
                continue;
            };
            place.at = step.position;
            place.open = step.status == Status::Sent;
            place.undoing |= step.undo;
            place.failed |= !matches!(
                step.status,
                Status::Sent | Status::Confirmed | Status::Undone
            );
            if step.undo {
                place.done.retain(|at| *at < step.position);
            } else if step.status == Status::Sent {
                if write.undo.is_some() && place.done.last() != Some(&step.position) {
                    place.done.push(step.position);
                }
            } else if matches!(step.status, Status::Rejected | Status::Expired) {
                // It did not leave.
                place.done.retain(|at| *at != step.position);
            }
        }
        place
    }
}

const UNKNOWN: &str =
    "restart: the gateway stopped before the device confirmed; nothing was sent again";
const NOT_SENT: &str = "restart: the gateway stopped before it was sent";

impl Actuation {
    /// Takes an interrupted sequence up again, before anything else is asked.
    ///
    /// A plan that says [`OnRestart::Finish`] goes on while there is time. Of any other a forward write whose outcome is
    /// not known is told as timed out and never sent again; then everything that may have happened is taken back, in
    /// reverse, as if a step had failed; an undo of unknown outcome is sent again where it is repeatable.
    pub fn resume(&mut self, now_ms: u64, interrupted: Interrupted, gate: &mut dyn Gate) {
        let place = interrupted.place();
        let left_ms = interrupted.left_ms(&place);
        self.remember(&interrupted.plan.id);
        let number = self.take_number();
        let mut running = Running::new(now_ms, interrupted.plan);
        running.at = place.at;
        running.done = place.done;
        running.undoing = place.undoing;
        if let Some(left_ms) = left_ms {
            let by = now_ms.saturating_add(left_ms);
            return self.go_on(now_ms, number, running, place.open, by, gate);
        }
        running.failed = Some("undone since the gateway stopped in the middle".to_owned());
        let again =
            place.undoing && place.open && running.current().is_some_and(|write| write.repeatable);
        if again {
            self.running.insert(number, running);
            self.begin(now_ms, number, gate);
            return;
        }
        let told = if place.open {
            Some((Status::Timeout, UNKNOWN))
        } else if !place.undoing && !place.failed {
            running.at += 1;
            Some((Status::Rejected, NOT_SENT))
        } else {
            None
        };
        let last = running.done.is_empty();
        if let Some((status, reason)) = told
            && let Some(step) = running.step(status, Some(reason.to_owned()), now_ms, last)
        {
            if running.undoing {
                self.notice(Notice::NotUndone {
                    id: step.id.clone(),
                    target: step.target.clone(),
                    metric: step.metric.clone(),
                    reason: reason.to_owned(),
                });
            }
            self.say(step);
        }
        running.undoing = true;
        self.undo_next(now_ms, number, running, gate);
    }

    /// Goes on forward; the step that is next, or whose outcome is asked for, has time until `by_ms`.
    fn go_on(
        &mut self,
        now_ms: u64,
        number: u64,
        mut running: Running,
        open: bool,
        by_ms: u64,
        gate: &mut dyn Gate,
    ) {
        running.patient = true;
        if !open {
            running.turn_to(now_ms, running.at + 1);
        }
        running.send_by = Some(by_ms);
        let Some(write) = running.current().cloned() else {
            return;
        };
        if open && !write.repeatable {
            running.phase = Phase::Asked { until_ms: by_ms };
            self.running.insert(number, running);
            self.watch(number, &write);
            self.ask(now_ms, number, gate);
        } else {
            self.running.insert(number, running);
            self.begin(now_ms, number, gate);
        }
    }
}
