//! Who speaks for a node: one client on one server, the one that sent the birth in force.

use super::HostSession;
use super::event::{DeathCause, HostEvent, IgnoredReason, InvalidReason, Message};
use super::node::{Phase, Verb};

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

    /// Whether a device message comes from a client of the device's own, beside the node's. Libraries exist whose
    /// devices have MQTT connections of their own (mqtt-spb-wrapper); the norm's model has one a node. Such a client
    /// speaks for its device from its DBIRTH on, as long as the node itself has not borne that device.
    pub(super) fn speaks_apart(
        &mut self,
        at: u32,
        message: &Message<'_>,
        verb: Verb,
        device: &str,
    ) -> bool {
        if !self.is_foreign(at, message) {
            return false;
        }
        let max = self.config.limits.max_devices;
        let (Some(client), Some(node)) = (&message.client, self.nodes.get_mut(at as usize)) else {
            return false;
        };
        if node.server != message.server {
            return false;
        }
        match node.device_clients.get(device) {
            Some(own) if own == client => true,
            // A device's client that comes back may have another id.
            None if verb == Verb::DeviceBirth
                && node.born_device(device).is_none()
                && node.device_clients.len() < max =>
            {
                node.device_clients.insert(device.into(), client.clone());
                true
            }
            Some(_) if verb == Verb::DeviceBirth => {
                node.device_clients.insert(device.into(), client.clone());
                true
            }
            _ => false,
        }
    }

    /// A client's connection is gone, and neither a will nor an NDEATH has told so: what it spoke for is down. Brokers
    /// that can't tell this never call it.
    pub fn client_gone(&mut self, client: &str, now: u64, wall_ms: u64) {
        self.note_wall(now, wall_ms);
        for at in 0..u32::try_from(self.nodes.len()).unwrap_or(u32::MAX) {
            let its = self.nodes.get(at as usize).is_some_and(|node| {
                node.phase != Phase::Unborn && node.client.as_deref() == Some(client)
            });
            if its {
                self.on_node(now, at, |node, cx| {
                    node.die(cx, None, DeathCause::Stale, wall_ms)
                });
            }
        }
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
