//! Retained messages, in order of topic name.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Instant;

use super::message::Message;
use super::topic;

/// The retained message of each topic.
#[derive(Debug, Default)]
pub(crate) struct Retained {
    map: BTreeMap<Arc<str>, Arc<Message>>,
    bytes: usize,
    /// Whether any message may expire: without one, a sweep has nothing to do.
    expiring: bool,
}

impl Retained {
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// Bytes held, by [`Message::size`].
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn get(&self, topic: &str) -> Option<&Arc<Message>> {
        self.map.get(topic)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Message>> {
        self.map.values()
    }

    /// Stores, replacing what was there.
    pub(crate) fn put(&mut self, message: Arc<Message>) {
        self.expiring |= message.expires.is_some();
        self.bytes += message.size();
        if let Some(old) = self.map.insert(Arc::clone(&message.topic), message) {
            self.bytes = self.bytes.saturating_sub(old.size());
        }
    }

    /// Removes; whether there was one.
    pub(crate) fn remove(&mut self, topic: &str) -> bool {
        let old = self.map.remove(topic);
        if let Some(old) = &old {
            self.bytes = self.bytes.saturating_sub(old.size());
        }
        old.is_some()
    }

    /// Removes what has expired and tells the topics.
    pub(crate) fn sweep(&mut self, now: Instant) -> Vec<Arc<str>> {
        if !self.expiring {
            return Vec::new();
        }
        let gone: Vec<Arc<str>> = self
            .map
            .values()
            .filter(|m| m.is_expired(now))
            .map(|m| Arc::clone(&m.topic))
            .collect();
        for topic in &gone {
            self.remove(topic);
        }
        self.expiring = self.map.values().any(|m| m.expires.is_some());
        gone
    }

    /// Those that a filter matches. Only names that begin with the filter's levels before its first wildcard are
    /// looked at.
    pub(crate) fn find<'a>(
        &'a self,
        filter: &'a str,
        now: Instant,
    ) -> impl Iterator<Item = &'a Arc<Message>> {
        let prefix = match filter.find(['+', '#']) {
            // `a/#` matches `a` too: the range begins before the slash.
            Some(at) => filter
                .get(..at)
                .map_or("", |p| p.strip_suffix('/').unwrap_or(p)),
            None => filter,
        };
        self.map
            .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
            .take_while(move |(name, _)| name.starts_with(prefix))
            .map(|(_, message)| message)
            .filter(move |m| topic::matches(filter, &m.topic) && !m.is_expired(now))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::broker::Qos;

    fn message(topic: &str, expires: Option<Instant>) -> Arc<Message> {
        Arc::new(Message {
            topic: topic.into(),
            payload: Bytes::from_static(b"x"),
            qos: Qos::AtLeastOnce,
            retain: true,
            forward: Bytes::new(),
            expires,
            on_written: None,
        })
    }

    #[test]
    fn finds_by_filter_and_counts_bytes() {
        let now = Instant::now();
        let mut retained = Retained::default();
        for topic in ["a", "a/b", "a/b/c", "a-b", "b", "$x/a"] {
            retained.put(message(topic, None));
        }
        let check = |filter: &str, want: &[&str]| {
            let got: Vec<&str> = retained.find(filter, now).map(|m| &*m.topic).collect();
            assert_eq!(got, want, "{filter}");
        };
        check("a/#", &["a", "a/b", "a/b/c"]);
        check("a/+", &["a/b"]);
        check("+/b", &["a/b"]);
        check("a", &["a"]);
        check("#", &["a", "a-b", "a/b", "a/b/c", "b"]);
        check("$x/+", &["$x/a"]);
        let before = retained.bytes();
        retained.put(message("a", None));
        assert_eq!(retained.bytes(), before);
        assert!(retained.remove("a"));
        assert!(!retained.remove("a"));
        assert!(retained.bytes() < before);
    }

    #[test]
    fn expired_messages_are_not_found_and_are_swept() {
        let now = Instant::now();
        let mut retained = Retained::default();
        retained.put(message("a", Some(now)));
        assert_eq!(retained.find("a", now).count(), 0);
        assert_eq!(retained.sweep(now).len(), 1);
        assert_eq!((retained.len(), retained.bytes()), (0, 0));
    }
}
