//! Records that are done with come back, so that the next one costs nothing.

use super::HostSession;
use super::event::HostEvent;
use crate::metric::{Metric, MetricFlags, TimeSource};
use crate::payload::value::Scalar;

use super::entity::MetricState;

/// Longest list that a node or device keeps, metrics; its memory is about 100 bytes each.
const SPARE: usize = 256;

/// What all of them keep together, metrics, is at most twice this: where more devices speak than that has room for, the
/// lists are let go now and then, and a record costs an allocation again.
pub(super) const TOGETHER: usize = 1 << 17;

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
            self.spared += record.metrics.capacity();
            owner.spare = record.metrics;
        }
        if self.spared > 2 * TOGETHER {
            self.count_spares();
        }
    }

    /// Metrics in all lists that were given back.
    pub(super) fn spares(&self) -> usize {
        let entities = self.nodes.iter().flat_map(|node| &node.entities);
        entities.map(|entity| entity.spare.capacity()).sum()
    }

    /// `spared` only rises with what comes back: this brings it down to what is there, or lets all of it go.
    #[cold]
    fn count_spares(&mut self) {
        self.spared = self.spares();
        if self.spared > TOGETHER {
            for entity in self.nodes.iter_mut().flat_map(|node| &mut node.entities) {
                entity.spare = Vec::new();
            }
            self.spared = 0;
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
