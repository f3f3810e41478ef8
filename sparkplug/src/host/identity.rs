//! Who speaks for a node: one client on one server, the one that sent the birth in force.

use super::HostSession;
use super::event::{HostEvent, IgnoredReason, InvalidReason, Message};
use super::node::Phase;

/// A second identity is reported once in this time, ms.
const CLASH_INTERVAL: u64 = 60_000;

/// How long the client that held a session before is remembered, ms.
const CLASH_MEMORY: u64 = 300_000;

impl HostSession {
    /// Whether a message that is no NBIRTH may act on the node.
    pub(super) fn admit(&mut self, now: u64, at: u32, message: &Message<'_>) -> bool {
        let Some(node) = self.nodes.get_mut(at as usize) else {
            return false;
        };
        if node.server != message.server {
            if node.phase == Phase::Live {
                self.ignored(message, IgnoredReason::OtherServer);
                return false;
            }
            node.server = message.server;
        }
        if self.is_foreign(at, message) {
            self.report_clash(now, at, message);
            let detail = "another client holds this node's session";
            self.invalid(message, InvalidReason::DuplicateIdentity, detail);
            return false;
        }
        true
    }

    /// Whether another client than the one that sent the birth in force speaks for the node.
    pub(super) fn is_foreign(&self, at: u32, message: &Message<'_>) -> bool {
        self.nodes.get(at as usize).is_some_and(|node| {
            node.phase == Phase::Live
                && matches!((&node.client, &message.client), (Some(own), Some(it)) if own != it)
        })
    }

    /// An NBIRTH of the client that held the session before the present one: two of them take turns.
    pub(super) fn watch_identity(&mut self, now: u64, at: u32, message: &Message<'_>) {
        let Some(node) = self.nodes.get(at as usize) else {
            return;
        };
        let returns = node.phase == Phase::Live
            && matches!(
                (&node.previous_client, &message.client),
                (Some((previous, since)), Some(it)) if previous == it && now.saturating_sub(*since) < CLASH_MEMORY
            );
        if returns {
            self.report_clash(now, at, message);
        }
    }

    fn report_clash(&mut self, now: u64, at: u32, message: &Message<'_>) {
        let Some(node) = self.nodes.get_mut(at as usize) else {
            return;
        };
        let (Some(first), Some(second)) = (&node.client, &message.client) else {
            return;
        };
        let recent = node
            .clash_reported
            .is_some_and(|reported| now.saturating_sub(reported) < CLASH_INTERVAL);
        if !recent && first != second {
            self.events.push_back(HostEvent::DuplicateIdentity {
                node: node.id.clone(),
                first: first.clone(),
                second: second.clone(),
            });
            node.clash_reported = Some(now);
        }
    }
}
