//! Who came and went, and who was turned away: for status, metrics and the log.

use std::collections::VecDeque;
use std::fmt::Display;
use std::time::{Duration, Instant};

use super::{ClientStats, Event, RecentEvent};
use crate::broker::router::Tally;

/// Events kept for status.
const RECENT: usize = 20;
/// Refusals are logged one in this time; the rest are counted.
const QUIET: Duration = Duration::from_secs(5);

/// See the module. Bounded: counters by reason, and the last events.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    v311: u64,
    v5: u64,
    disconnects: Tally,
    recent: VecDeque<(Instant, Event)>,
    refused: Tally,
    /// One entry a reason.
    lately: Vec<Lately>,
    due: Vec<Refusal>,
}

/// When a reason was last logged, and how often it was not since.
#[derive(Debug)]
struct Lately {
    why: &'static str,
    logged: Instant,
    silent: u64,
}

/// A refusal that is to be logged, once nobody waits for the router.
#[derive(Debug)]
pub(crate) struct Refusal {
    why: &'static str,
    client: String,
    what: String,
    others: u64,
}

impl Refusal {
    /// Writes the line.
    pub(crate) fn log(&self) {
        let Self {
            why,
            client,
            what,
            others,
        } = self;
        tracing::warn!(client, reason = why, what, others, "refused");
    }
}

impl Clients {
    /// Notes an event.
    pub(crate) fn note(&mut self, now: Instant, event: &Event) {
        match event {
            Event::Connected { protocol: 5, .. } => self.v5 += 1,
            Event::Connected { .. } => self.v311 += 1,
            Event::Disconnected { reason, .. } => self.disconnects.add(reason, 1),
        }
        if self.recent.len() >= RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((now, event.clone()));
    }

    /// Counts a refusal; it is to be logged where none was for this reason lately.
    pub(crate) fn refuse(
        &mut self,
        now: Instant,
        why: &'static str,
        client: &str,
        what: &dyn Display,
    ) {
        self.refused.add(why, 1);
        let mut others = 0;
        match self.lately.iter_mut().find(|lately| lately.why == why) {
            Some(lately) if now.saturating_duration_since(lately.logged) < QUIET => {
                lately.silent += 1;
                return;
            }
            Some(lately) => {
                others = std::mem::take(&mut lately.silent);
                lately.logged = now;
            }
            None => self.lately.push(Lately {
                why,
                logged: now,
                silent: 0,
            }),
        }
        self.due.push(Refusal {
            why,
            client: client.to_owned(),
            what: what.to_string(),
            others,
        });
    }

    /// What is to be logged.
    pub(crate) fn take_due(&mut self) -> Vec<Refusal> {
        std::mem::take(&mut self.due)
    }

    /// Refusals by reason.
    pub(crate) fn refused(&self) -> Vec<(&'static str, u64)> {
        self.refused.list()
    }

    pub(crate) fn stats(&self, now: Instant) -> ClientStats {
        let recent = self.recent.iter().rev().map(|(at, event)| RecentEvent {
            age: now.saturating_duration_since(*at),
            event: event.clone(),
        });
        ClientStats {
            connects: vec![("3.1.1", self.v311), ("5", self.v5)],
            disconnects: self.disconnects.list(),
            recent: recent.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_refusals_is_counted_and_logged_once_in_a_while() {
        let mut clients = Clients::default();
        let start = Instant::now();
        let refuse = |clients: &mut Clients, after: u64| {
            let now = start + Duration::from_millis(after);
            clients.refuse(now, "publish_rights", "c", &"topic");
            (clients.lately[0].silent, clients.take_due().len())
        };
        assert_eq!(refuse(&mut clients, 0), (0, 1));
        assert_eq!(refuse(&mut clients, 10), (1, 0));
        assert_eq!(refuse(&mut clients, 4999), (2, 0));
        // A flood for one reason hides no other.
        clients.refuse(start, "connect_password", "c", &"address");
        assert_eq!(clients.take_due().len(), 1);
        assert_eq!(refuse(&mut clients, 5000), (0, 1), "said with the next one");
        let refused = [("publish_rights", 4), ("connect_password", 1)];
        assert_eq!(clients.refused(), refused);
    }

    #[test]
    fn the_last_events_are_kept_and_all_are_counted() {
        let mut clients = Clients::default();
        let now = Instant::now();
        for n in 0..50 {
            let client = format!("c{n}").into();
            clients.note(
                now,
                &Event::Disconnected {
                    client,
                    reason: "keep_alive",
                },
            );
        }
        let stats = clients.stats(now + Duration::from_secs(2));
        assert_eq!(stats.disconnects, [("keep_alive", 50)]);
        assert_eq!(stats.recent.len(), RECENT);
        let last = &stats.recent[0];
        assert_eq!(last.age, Duration::from_secs(2));
        assert!(matches!(&last.event, Event::Disconnected { client, .. } if &**client == "c49"));
    }
}
