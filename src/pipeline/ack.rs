//! Acknowledgements that wait for the disk.
//!
//! Invariant: a token is released only when its record's id is at or below the durable id, and in the order of
//! ids, since a session's PUBACKs go out in the order of its publishes (MQTT-4.6.0-2).

use std::collections::VecDeque;

use crate::broker::PubackToken;
use crate::buffer::record::RecordId;

/// Tokens by the record they wait for.
#[derive(Debug, Default)]
pub struct Acks {
    waiting: VecDeque<(RecordId, PubackToken)>,
}

impl Acks {
    /// Adds a token; ids come in rising order.
    pub fn wait(&mut self, id: RecordId, token: PubackToken) {
        debug_assert!(self.waiting.back().is_none_or(|(last, _)| *last <= id));
        self.waiting.push_back((id, token));
    }

    /// Everything up to `durable` is on disk.
    pub fn release(&mut self, durable: RecordId) {
        while self.waiting.front().is_some_and(|(id, _)| *id <= durable) {
            if let Some((_, token)) = self.waiting.pop_front() {
                token.accept();
            }
        }
    }

    /// Whether any acknowledgement waits: the journal should sync now.
    #[must_use]
    pub fn any(&self) -> bool {
        !self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::AckOutcome;
    use std::sync::{Arc, Mutex};

    #[test]
    fn tokens_leave_in_order_and_only_when_durable() {
        let log = Arc::new(Mutex::new(Vec::new()));
        let mut acks = Acks::default();
        for id in 1..=3 {
            let log = log.clone();
            acks.wait(
                id,
                PubackToken::new(move |outcome| log.lock().unwrap().push((id, outcome))),
            );
        }
        acks.release(2);
        assert_eq!(
            *log.lock().unwrap(),
            [(1, AckOutcome::Accepted), (2, AckOutcome::Accepted)]
        );
        assert!(acks.any());
        drop(acks);
        assert_eq!(log.lock().unwrap()[2], (3, AckOutcome::Dropped));
    }
}
