//! What people do to alarms.

use std::sync::Arc;

use super::{Acked, Alarm, Shelf, Timing};
use crate::output::AlarmAction;

/// Why an alarm refuses what is asked of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AlarmError {
    /// No such alarm.
    #[error("no alarm `{id}`; `alarms list` shows those there are")]
    Unknown {
        /// The id asked for.
        id: String,
    },
    /// It is normal.
    #[error("the alarm is normal; there is nothing to acknowledge")]
    NotActive,
    /// Somebody was faster.
    #[error("acknowledged already, by {by}")]
    AlreadyAcked {
        /// Who.
        by: Arc<str>,
    },
    /// It is not latched.
    #[error("the alarm is not latched; there is nothing to reset")]
    NotLatched,
    /// Its condition still holds.
    #[error("the condition still holds; reset the alarm when it is over")]
    StillActive,
    /// It is not shelved.
    #[error("the alarm is not shelved")]
    NotShelved,
    /// Shelved longer than is allowed.
    #[error("can't be shelved for more than {most_ms} ms")]
    TooLong {
        /// The limit, ms.
        most_ms: u64,
    },
    /// It is so already.
    #[error("the alarm is {state} already")]
    Already {
        /// The state.
        state: &'static str,
    },
}

impl Alarm {
    pub(crate) fn ack(
        &mut self,
        timing: &Timing,
        by: &str,
        note: &str,
        now: u64,
    ) -> Result<Vec<AlarmAction>, AlarmError> {
        if self.occurrence.is_none() {
            return Err(AlarmError::NotActive);
        }
        if !self.unacked {
            let by = self
                .acked
                .as_ref()
                .map_or_else(|| "-".into(), |a| a.by.clone());
            return Err(AlarmError::AlreadyAcked { by });
        }
        self.unacked = false;
        self.acked = Some(Acked {
            by: by.into(),
            note: note.into(),
            at: now,
        });
        let mut actions = vec![AlarmAction::Ack];
        if timing.until_ack && self.active {
            self.condition = false;
            actions.extend(self.clear(timing));
        }
        Ok(actions)
    }

    /// `for_ms` of `None`: until the alarm clears.
    pub(crate) fn shelve(
        &mut self,
        by: &str,
        for_ms: Option<u64>,
        most_ms: u64,
        now: u64,
    ) -> Result<AlarmAction, AlarmError> {
        if for_ms.is_some_and(|ms| ms > most_ms) {
            return Err(AlarmError::TooLong { most_ms });
        }
        self.shelf = Some(Shelf {
            until: for_ms.map(|ms| now.saturating_add(ms)),
            by: by.into(),
        });
        Ok(AlarmAction::Shelve)
    }

    pub(crate) fn unshelve(&mut self) -> Result<AlarmAction, AlarmError> {
        match self.shelf.take() {
            Some(_) => Ok(AlarmAction::Unshelve),
            None => Err(AlarmError::NotShelved),
        }
    }

    pub(crate) fn suppress(&mut self, on: bool) -> Result<AlarmAction, AlarmError> {
        match (on, std::mem::replace(&mut self.suppressed, on)) {
            (true, false) => Ok(AlarmAction::Suppress),
            (false, true) => Ok(AlarmAction::Unsuppress),
            (true, true) => Err(AlarmError::Already {
                state: "suppressed",
            }),
            (false, false) => Err(AlarmError::Already {
                state: "not suppressed",
            }),
        }
    }

    pub(crate) fn service(&mut self, out: bool) -> Result<AlarmAction, AlarmError> {
        match (out, std::mem::replace(&mut self.out_of_service, out)) {
            (true, false) => Ok(AlarmAction::OutOfService),
            (false, true) => Ok(AlarmAction::InService),
            (true, true) => Err(AlarmError::Already {
                state: "out of service",
            }),
            (false, false) => Err(AlarmError::Already {
                state: "in service",
            }),
        }
    }

    pub(crate) fn reset(&mut self) -> Result<AlarmAction, AlarmError> {
        if self.active {
            return Err(AlarmError::StillActive);
        }
        if !std::mem::take(&mut self.latched) {
            return Err(AlarmError::NotLatched);
        }
        Ok(AlarmAction::Reset)
    }
}
