//! Rights: which topics a session may publish to and subscribe to.

use std::sync::Arc;

/// What one session may do, with names filled in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Rights {
    /// Patterns of topic names it may publish to.
    publish: Vec<Box<str>>,
    /// Patterns that must cover a filter it subscribes to.
    subscribe: Vec<Box<str>>,
    /// No limits.
    all: bool,
}

impl Rights {
    /// Everything.
    pub(crate) fn all() -> Arc<Self> {
        Arc::new(Self { all: true, ..Self::default() })
    }

    pub(crate) fn may_publish(&self, topic: &str) -> bool {
        self.all || self.publish.iter().any(|p| super::topic::matches(p, topic))
    }

    pub(crate) fn may_subscribe(&self, filter: &str) -> bool {
        self.all || self.subscribe.iter().any(|p| super::topic::covers(p, filter))
    }
}
