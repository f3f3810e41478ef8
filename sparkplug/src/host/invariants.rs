//! What must hold of a session after every call; checked by tests and in debug builds.

use super::HostSession;
use super::node::{Node, Phase};

impl HostSession {
    /// Checks every invariant and names the first one that is broken.
    ///
    /// # Errors
    /// The broken invariant in words.
    pub fn check_invariants(&self) -> Result<(), String> {
        if self.index.len() != self.nodes.len() {
            return Err("index and nodes differ in number".into());
        }
        for (at, node) in self.nodes.iter().enumerate() {
            node.check(&self.config.limits)
                .map_err(|broken| format!("{}: {broken}", node.id))?;
            if self.index.get(&node.id) != Some(&(at as u32)) {
                return Err(format!("{}: index points elsewhere", node.id));
            }
            if let Some(deadline) = node.armed
                && !self.timers.contains(&(deadline, at as u32))
            {
                return Err(format!("{}: armed without timer", node.id));
            }
        }
        let parked: usize = self.nodes.iter().map(|it| it.parked_bytes).sum();
        let metrics: usize = self.nodes.iter().map(|it| it.metric_count).sum();
        if (parked, metrics) != (self.parked_total, self.metrics_total) {
            return Err("totals over all nodes miscounted".into());
        }
        if parked > self.config.limits.max_parked_total {
            return Err("more parked over all nodes than allowed".into());
        }
        let armed = self.nodes.iter().filter(|it| it.armed.is_some()).count();
        if armed != self.timers.len() {
            return Err("timers without a node".into());
        }
        Ok(())
    }

    /// The cheap part, after each mutation in debug builds.
    #[cfg(debug_assertions)]
    pub(super) fn check_node(&self, at: u32) {
        if let Some(node) = self.nodes.get(at as usize) {
            debug_assert_eq!(node.check_cheap(&self.config.limits), Ok(()));
        }
    }
}

impl Node {
    fn check_cheap(&self, limits: &super::HostLimits) -> Result<(), String> {
        let bytes: usize = self.parked.iter().map(|it| it.payload.len()).sum();
        if bytes != self.parked_bytes {
            return Err("parked bytes miscounted".into());
        }
        if self.parked.len() > limits.max_parked || bytes > limits.max_parked_bytes {
            return Err("more parked than allowed".into());
        }
        if self.parked.is_empty() == self.reorder_deadline.is_some() {
            return Err("reorder deadline and parked messages disagree".into());
        }
        if self.phase == Phase::Live && self.parked.iter().any(|it| it.seq == self.expected) {
            return Err("a message waits though it is next".into());
        }
        if self.entities.len() != self.devices.len() + 1 {
            return Err("entities and devices differ in number".into());
        }
        if self.phase == Phase::Unborn && !self.aliases.is_empty() {
            return Err("aliases outlive their birth".into());
        }
        Ok(())
    }

    fn check(&self, limits: &super::HostLimits) -> Result<(), String> {
        self.check_cheap(limits)?;
        let mut metrics = 0;
        for (entity, owner) in self.entities.iter().enumerate() {
            metrics += owner.metrics.len();
            if owner.by_name.len() != owner.metrics.len() {
                return Err("names and metrics differ in number".into());
            }
            if !owner.online && owner.metrics.iter().any(|it| !it.stale) {
                return Err("a good metric of something that is offline".into());
            }
            for (metric, state) in owner.metrics.iter().enumerate() {
                let bound = state.alias.and_then(|alias| self.aliases.get(alias));
                let own = crate::alias::AliasTarget {
                    entity: entity as u32,
                    metric: metric as u32,
                };
                if owner.born && state.alias.is_some() && bound != Some(own) {
                    return Err(format!("alias of {:?} is bound elsewhere", state.name));
                }
            }
        }
        if metrics != self.metric_count {
            return Err("metrics miscounted".into());
        }
        if metrics > limits.max_metrics {
            return Err("more metrics than allowed".into());
        }
        if self.device_index.len() != self.devices.len() {
            return Err("device index and devices differ in number".into());
        }
        Ok(())
    }
}
