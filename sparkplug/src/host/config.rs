//! What a host session may be told.

use std::sync::Arc;

use crate::payload::Limits;

/// Configuration of a [`super::HostSession`]. Times are milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct HostConfig {
    /// Host id, last level of the STATE topic.
    pub host_id: Arc<str>,
    /// False: the host listens and commands, but tells nobody that it is there; no node can wait for it.
    pub publish_state: bool,
    /// How long a message may be missing before the session asks for a rebirth; 0 asks at once.
    // tck-id-operational-behavior-host-reordering-param
    pub reorder_timeout_ms: u64,
    /// When and how often rebirths are requested.
    pub rebirth: RebirthPolicy,
    /// False: nothing is ever sent to nodes or devices, neither rebirth requests nor writes.
    pub command_devices: bool,
    /// After a gap that did not close, data waits for the rebirth this long; then it is taken again, marked
    /// unverified, so that a node which ignores rebirth requests does not stay dark for ever.
    pub gap_patience_ms: u64,
    /// A node restored from disk that stays silent this long is declared dead.
    pub restore_patience_ms: u64,
    /// After NBIRTH, devices that were online before and have not been born again by then are reported.
    pub birth_grace_ms: u64,
    /// Bounds.
    pub limits: HostLimits,
}

impl Default for HostConfig {
    fn default() -> Self {
        Self {
            host_id: "sparkgate".into(),
            publish_state: true,
            reorder_timeout_ms: 2_000,
            rebirth: RebirthPolicy::default(),
            command_devices: true,
            gap_patience_ms: 30_000,
            restore_patience_ms: 300_000,
            birth_grace_ms: 10_000,
            limits: HostLimits::default(),
        }
    }
}

/// The one policy for all rebirth requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RebirthPolicy {
    /// False: no request is sent but those that an operator asks for.
    pub enabled: bool,
    /// At most one request a node in this time.
    pub cooldown_ms: u64,
    /// Unanswered requests are repeated at doubling intervals up to this one.
    pub max_interval_ms: u64,
    /// How often an unanswered request is repeated before the session waits for the next reason.
    pub retries: u32,
    /// Requests that may leave at once over all nodes, after a restart for example.
    pub burst: u32,
    /// Requests a second over all nodes beyond the burst.
    pub per_second: u32,
}

impl Default for RebirthPolicy {
    fn default() -> Self {
        Self {
            enabled: true,
            cooldown_ms: 5_000,
            max_interval_ms: 300_000,
            retries: 8,
            burst: 64,
            per_second: 20,
        }
    }
}

/// Bounds on what nodes can make the session hold. What is over a bound is refused and counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostLimits {
    /// Bounds on one payload.
    pub payload: Limits,
    /// Edge nodes.
    pub max_nodes: usize,
    /// Devices of one node.
    pub max_devices: usize,
    /// Metrics of one node and its devices together.
    pub max_metrics: usize,
    /// Messages of one node that wait for a missing one; at most 127 make sense.
    pub max_parked: usize,
    /// Bytes of those messages.
    pub max_parked_bytes: usize,
    /// Bytes of waiting messages over all nodes.
    pub max_parked_total: usize,
    /// Metrics over all nodes.
    pub max_metrics_total: usize,
}

impl Default for HostLimits {
    fn default() -> Self {
        Self {
            payload: Limits::default(),
            max_nodes: 10_000,
            max_devices: 1_000,
            max_metrics: 65_536,
            max_parked: 127,
            max_parked_bytes: 4 << 20,
            max_parked_total: 64 << 20,
            max_metrics_total: 1_000_000,
        }
    }
}
