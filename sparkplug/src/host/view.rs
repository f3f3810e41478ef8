//! Views for tools and pages: what is known of nodes and devices.

use std::sync::Arc;

use super::HostSession;
use super::entity::{Entity, MetricState};
use super::event::{RebirthCause, ServerId};
use super::node::{Node, Phase};
use crate::topic::NodeId;

/// One edge node.
#[derive(Debug, Clone, Copy)]
pub struct NodeView<'a> {
    node: &'a Node,
    own: &'a Entity,
}

/// One device, or the metrics of a node itself.
#[derive(Debug, Clone, Copy)]
pub struct DeviceView<'a> {
    name: Option<&'a Arc<str>>,
    entity: &'a Entity,
}

impl<'a> NodeView<'a> {
    /// The node's descriptor.
    #[must_use]
    pub fn id(&self) -> &'a NodeId {
        &self.node.id
    }

    /// Server through which it was heard last.
    #[must_use]
    pub fn server(&self) -> ServerId {
        self.node.server
    }

    /// MQTT client id, where known.
    #[must_use]
    pub fn client(&self) -> Option<&'a Arc<str>> {
        self.node.client.as_ref()
    }

    /// `bdSeq` of the session in force, or of the last one.
    #[must_use]
    pub fn bdseq(&self) -> Option<u64> {
        self.node.bdseq
    }

    /// Last `seq` in order.
    #[must_use]
    pub fn last_seq(&self) -> Option<u8> {
        (self.node.phase != Phase::Unborn).then(|| self.node.expected.previous().get())
    }

    /// Names and types come from before a restart or an interruption and have not been confirmed.
    #[must_use]
    pub fn unverified(&self) -> bool {
        self.node.phase == Phase::Unverified
    }

    /// A rebirth request is open.
    #[must_use]
    pub fn rebirth_pending(&self) -> bool {
        self.node.rebirth.open()
    }

    /// Why the last rebirth was requested.
    #[must_use]
    pub fn last_rebirth_cause(&self) -> Option<RebirthCause> {
        self.node.rebirth.last_cause()
    }

    /// Messages that wait for a missing one.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.node.parked.len()
    }

    /// The node's own metrics and life.
    #[must_use]
    pub fn own(&self) -> DeviceView<'a> {
        DeviceView {
            name: None,
            entity: self.own,
        }
    }

    /// Its devices, in the order in which they were first born.
    pub fn devices(&self) -> impl Iterator<Item = DeviceView<'a>> + use<'a> {
        let node = self.node;
        node.devices
            .iter()
            .zip(node.entities.iter().skip(1))
            .map(|(name, entity)| DeviceView {
                name: Some(name),
                entity,
            })
    }

    /// One device.
    #[must_use]
    pub fn device(&self, name: &str) -> Option<DeviceView<'a>> {
        let index = self.node.device(name)? as usize;
        Some(DeviceView {
            name: self.node.devices.get(index.checked_sub(1)?),
            entity: self.node.entities.get(index)?,
        })
    }
}

impl<'a> DeviceView<'a> {
    /// Device id; `None` for a node's own metrics.
    #[must_use]
    pub fn name(&self) -> Option<&'a Arc<str>> {
        self.name
    }

    /// Up or down.
    #[must_use]
    pub fn online(&self) -> bool {
        self.entity.online
    }

    /// Since when it is up or down, ms UTC; 0 when it was never seen up.
    #[must_use]
    pub fn since_ms(&self) -> u64 {
        self.entity.since_ms
    }

    /// Births seen.
    #[must_use]
    pub fn births(&self) -> u64 {
        self.entity.births
    }

    /// Deaths seen or concluded.
    #[must_use]
    pub fn deaths(&self) -> u64 {
        self.entity.deaths
    }

    /// Schema version, from 1; 0 before the first birth.
    #[must_use]
    pub fn schema(&self) -> u32 {
        self.entity.schema
    }

    /// Arrival minus send time of the last message, ms; negative when the sender's clock is ahead.
    #[must_use]
    pub fn latency_ms(&self) -> Option<i64> {
        self.entity.latency_ms
    }

    /// Metrics with their last known values, in the birth's order.
    #[must_use]
    pub fn metrics(&self) -> &'a [MetricState] {
        &self.entity.metrics
    }

    /// One metric.
    #[must_use]
    pub fn metric(&self, name: &str) -> Option<&'a MetricState> {
        self.entity.find(name)
    }
}

impl HostSession {
    /// All nodes, in the order in which they were first seen.
    pub fn nodes(&self) -> impl Iterator<Item = NodeView<'_>> {
        self.nodes.iter().filter_map(view)
    }

    /// One node.
    #[must_use]
    pub fn node(&self, id: &NodeId) -> Option<NodeView<'_>> {
        let at = *self.index.get(id)?;
        self.nodes.get(at as usize).and_then(view)
    }

    /// One device, or with `None` the node's own metrics.
    #[must_use]
    pub fn device(&self, node: &NodeId, device: Option<&str>) -> Option<DeviceView<'_>> {
        let node = self.node(node)?;
        match device {
            None => Some(node.own()),
            Some(device) => node.device(device),
        }
    }

    /// Last known state of one metric.
    #[must_use]
    pub fn metric(&self, node: &NodeId, device: Option<&str>, name: &str) -> Option<&MetricState> {
        self.device(node, device)?.metric(name)
    }
}

fn view(node: &Node) -> Option<NodeView<'_>> {
    Some(NodeView {
        node,
        own: node.entities.first()?,
    })
}
