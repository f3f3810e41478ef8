//! Whose samples: the Sparkplug names of one device.

use std::fmt;
use std::sync::Arc;

/// Group, edge node and device; `device` is `_` for metrics of the node itself.
/// Cloning shares the text.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceKey {
    /// Sparkplug group id.
    pub group: Arc<str>,
    /// Edge node id.
    pub node: Arc<str>,
    /// Device id, or `_`.
    pub device: Arc<str>,
}

impl DeviceKey {
    /// Copies the three names.
    pub fn new(group: &str, node: &str, device: &str) -> Self {
        Self {
            group: group.into(),
            node: node.into(),
            device: device.into(),
        }
    }
}

impl fmt::Display for DeviceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.group, self.node, self.device)
    }
}
