//! Whether the primary host is up, as a node may believe it.

use crate::state::HostState;

/// What a STATE message means for the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostChange {
    /// The host is up.
    Online,
    /// The host is down.
    Offline,
    /// Older than what is known: nothing.
    Old,
}

/// STATE of the primary host on each server. A host's timestamps are per server, so that they are compared per
/// server only.
#[derive(Debug, Clone)]
pub(super) struct Primary {
    /// Latest accepted STATE by server.
    seen: Vec<Option<HostState>>,
}

impl Primary {
    pub(super) fn new(servers: usize) -> Self {
        Self {
            seen: vec![None; servers.max(1)],
        }
    }

    /// Takes a STATE message of the right host.
    // tck-id-message-flow-edge-node-birth-publish-phid-wait-timestamp: >= for both, the first as it is
    // tck-id-operational-behavior-edge-node-termination-host-offline-timestamp
    pub(super) fn handle(&mut self, server: usize, state: HostState) -> HostChange {
        let Some(seen) = self.seen.get_mut(server) else {
            return HostChange::Old;
        };
        let older = matches!(
            (seen.and_then(|it| it.timestamp), state.timestamp),
            (Some(known), Some(new)) if new < known
        );
        if older {
            return HostChange::Old;
        }
        *seen = Some(state);
        if state.online {
            HostChange::Online
        } else {
            HostChange::Offline
        }
    }

    pub(super) fn is_online(&self, server: usize) -> bool {
        matches!(self.seen.get(server), Some(Some(state)) if state.online)
    }
}
