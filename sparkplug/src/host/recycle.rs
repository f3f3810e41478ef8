//! Records that are done with come back, so that the next one costs nothing.

use super::HostSession;
use super::event::HostEvent;
use crate::metric::{Metric, MetricFlags, TimeSource};
use crate::payload::value::Scalar;

use super::entity::MetricState;

/// Longest list that a node or device keeps, metrics; its memory is about 100 bytes each.
const SPARE: usize = 256;

impl HostSession {
    /// Takes an event back whose content is no longer needed: the next data message of the same node or device is
    /// resolved into its list. A device that sends the same metrics again then costs no allocation, and no name is
    /// counted up and down. Nobody has to; what is of no use is dropped.
    pub fn recycle(&mut self, event: HostEvent) {
        let (id, device, record) = match event {
            HostEvent::NodeData { node, record } => (node, None, record),
            HostEvent::DeviceData { device, record } => (device.node, Some(device.device), record),
            _ => return,
        };
        if record.metrics.capacity() > SPARE {
            return;
        }
        let node = self.index.get(&id).copied();
        let Some(node) = node.and_then(|at| self.nodes.get_mut(at as usize)) else {
            return;
        };
        let entity = device.map_or(Some(0), |device| node.device(&device));
        let owner = entity.and_then(|at| node.entities.get_mut(at as usize));
        if let Some(owner) = owner.filter(|owner| owner.born) {
            owner.spare = record.metrics;
        }
    }
}

/// Makes `old`, which had the same name, a live sample of a number.
#[inline(always)]
pub(super) fn renew(
    old: &mut Metric,
    state: &MetricState,
    scalar: Scalar,
    timestamp: u64,
    time_source: TimeSource,
    flags: MetricFlags,
) {
    scalar.store(&mut old.value);
    old.alias = state.alias;
    old.datatype = state.datatype;
    old.timestamp = Some(timestamp);
    old.time_source = time_source;
    old.historical = false;
    old.transient = false;
    old.quality = None;
    old.flags = flags;
    if old.properties.is_some() {
        old.properties = None;
    }
    if old.metadata.is_some() {
        old.metadata = None;
    }
}
