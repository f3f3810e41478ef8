//! Who is subscribed to what: a tree of topic levels.

use std::collections::HashMap;
use std::sync::Arc;

use super::Qos;
use super::codec::Options;
use super::topic::Filter;

/// Index of a session in the router.
pub(crate) type SessionIndex = u32;

/// One session's subscription to one filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Subscription {
    pub(crate) session: SessionIndex,
    pub(crate) options: Options,
    pub(crate) id: Option<u32>,
}

/// What a topic means to one session, over all its subscriptions that match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hit {
    pub(crate) session: SessionIndex,
    /// Highest granted.
    pub(crate) qos: Qos,
    /// Highest granted without no-local: holds for the session's own publishes.
    pub(crate) own_qos: Option<Qos>,
    pub(crate) retain_as_published: bool,
    pub(crate) ids: Option<Arc<[u32]>>,
}

/// All subscriptions.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    root: Node,
    count: usize,
}

#[derive(Debug, Default)]
struct Node {
    children: HashMap<Box<str>, Node>,
    plus: Option<Box<Node>>,
    /// Filters that end here.
    here: Ends,
    /// Filters that end with `#` below this level.
    hash: Ends,
}

#[derive(Debug, Default)]
struct Ends {
    plain: Vec<Subscription>,
    shared: Vec<Group>,
}

#[derive(Debug)]
struct Group {
    name: Box<str>,
    members: Vec<Subscription>,
}

impl Ends {
    fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.shared.is_empty()
    }

    /// Puts in or replaces; whether it is new.
    fn insert(&mut self, share: Option<&str>, subscription: Subscription) -> bool {
        let list = match share {
            None => &mut self.plain,
            Some(name) => {
                if !self.shared.iter().any(|g| &*g.name == name) {
                    self.shared.push(Group {
                        name: name.into(),
                        members: Vec::new(),
                    });
                }
                match self.shared.iter_mut().find(|g| &*g.name == name) {
                    Some(group) => &mut group.members,
                    None => return false,
                }
            }
        };
        match list.iter_mut().find(|s| s.session == subscription.session) {
            Some(old) => {
                *old = subscription;
                false
            }
            None => {
                list.push(subscription);
                true
            }
        }
    }

    fn remove(&mut self, share: Option<&str>, session: SessionIndex) -> bool {
        let before;
        match share {
            None => {
                before = self.plain.len();
                self.plain.retain(|s| s.session != session);
                before != self.plain.len()
            }
            Some(name) => {
                let Some(group) = self.shared.iter_mut().find(|g| &*g.name == name) else {
                    return false;
                };
                before = group.members.len();
                group.members.retain(|s| s.session != session);
                let removed = before != group.members.len();
                self.shared.retain(|g| !g.members.is_empty());
                removed
            }
        }
    }

    fn collect(&self, found: &mut Found) {
        for s in &self.plain {
            found.add(s);
        }
        for group in &self.shared {
            found.groups.push(group.members.clone());
        }
    }
}

impl Node {
    fn is_empty(&self) -> bool {
        self.children.is_empty()
            && self.plus.is_none()
            && self.here.is_empty()
            && self.hash.is_empty()
    }

    /// The list that a filter ends in, made on the way.
    fn ends(&mut self, filter: &str) -> &mut Ends {
        let mut node = self;
        for level in filter.split('/') {
            match level {
                "#" => return &mut node.hash,
                "+" => node = node.plus.get_or_insert_default(),
                name => node = node.children.entry(name.into()).or_default(),
            }
        }
        &mut node.here
    }

    fn remove(&mut self, filter: Option<&str>, share: Option<&str>, session: SessionIndex) -> bool {
        let Some(filter) = filter else {
            return self.here.remove(share, session);
        };
        let (level, rest) = match filter.split_once('/') {
            Some((level, rest)) => (level, Some(rest)),
            None => (filter, None),
        };
        match level {
            "#" => self.hash.remove(share, session),
            "+" => {
                let Some(plus) = &mut self.plus else {
                    return false;
                };
                let removed = plus.remove(rest, share, session);
                if plus.is_empty() {
                    self.plus = None;
                }
                removed
            }
            name => {
                let Some(child) = self.children.get_mut(name) else {
                    return false;
                };
                let removed = child.remove(rest, share, session);
                if child.is_empty() {
                    self.children.remove(name);
                }
                removed
            }
        }
    }

    /// Depth of the recursion is that of the deepest filter, which limits bound.
    fn find(&self, topic: Option<&str>, wild: bool, found: &mut Found) {
        if wild {
            self.hash.collect(found);
        }
        let Some(topic) = topic else {
            self.here.collect(found);
            return;
        };
        let (level, rest) = match topic.split_once('/') {
            Some((level, rest)) => (level, Some(rest)),
            None => (topic, None),
        };
        if let Some(child) = self.children.get(level) {
            child.find(rest, true, found);
        }
        if wild && let Some(plus) = &self.plus {
            plus.find(rest, true, found);
        }
    }
}

/// What [`Subscriptions::find`] found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) hits: Vec<Hit>,
    /// Members of each shared subscription that matches.
    pub(crate) groups: Vec<Vec<Subscription>>,
}

impl Found {
    /// One copy for each session, at the highest QoS granted, with the ids of all that matched (section 3.3.4).
    fn add(&mut self, s: &Subscription) {
        let own = (!s.options.no_local).then_some(s.options.qos);
        match self.hits.iter_mut().find(|h| h.session == s.session) {
            Some(hit) => {
                hit.qos = hit.qos.max(s.options.qos);
                hit.own_qos = hit.own_qos.max(own);
                hit.retain_as_published |= s.options.retain_as_published;
                if let Some(id) = s.id {
                    let ids = hit
                        .ids
                        .iter()
                        .flat_map(|ids| ids.iter().copied())
                        .chain([id])
                        .collect();
                    hit.ids = Some(ids);
                }
            }
            None => self.hits.push(Hit {
                session: s.session,
                qos: s.options.qos,
                own_qos: own,
                retain_as_published: s.options.retain_as_published,
                ids: s.id.map(|id| Arc::from([id])),
            }),
        }
    }
}

impl Subscriptions {
    /// Puts in or replaces a subscription; whether it is new.
    pub(crate) fn insert(&mut self, filter: Filter<'_>, subscription: Subscription) -> bool {
        let new = self
            .root
            .ends(filter.filter)
            .insert(filter.share, subscription);
        self.count += usize::from(new);
        new
    }

    /// Takes a subscription out; whether it was there.
    pub(crate) fn remove(&mut self, filter: Filter<'_>, session: SessionIndex) -> bool {
        let removed = self.root.remove(Some(filter.filter), filter.share, session);
        self.count -= usize::from(removed);
        removed
    }

    /// All that match a topic name. Wildcards at the first level do not match names that begin with `$`.
    pub(crate) fn find(&self, topic: &str) -> Found {
        let mut found = Found::default();
        self.root
            .find(Some(topic), !topic.starts_with('$'), &mut found);
        found
    }

    /// Number of subscriptions.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::broker::codec::RetainHandling;
    use crate::broker::topic;

    fn subscription(session: u32, qos: Qos) -> Subscription {
        let options = Options {
            qos,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::Always,
        };
        Subscription {
            session,
            options,
            id: None,
        }
    }

    #[test]
    fn overlapping_filters_give_one_hit_at_the_highest_qos() {
        let mut subs = Subscriptions::default();
        subs.insert(
            Filter::parse("a/#").unwrap(),
            subscription(1, Qos::AtMostOnce),
        );
        subs.insert(
            Filter::parse("a/+").unwrap(),
            Subscription {
                id: Some(7),
                ..subscription(1, Qos::ExactlyOnce)
            },
        );
        let found = subs.find("a/b");
        assert_eq!(found.hits.len(), 1);
        assert_eq!(found.hits[0].qos, Qos::ExactlyOnce);
        assert_eq!(found.hits[0].ids.as_deref(), Some(&[7][..]));
    }

    proptest! {
        #[test]
        fn the_tree_agrees_with_matching_one_by_one(
            filters in proptest::collection::vec("(a|b|\\+|c)(/(a|b|\\+|))?(/(a|\\+))?(/#)?", 1..20),
            topic in "(a|b|c|\\$x)(/(a|b|))?(/a)?(/b)?",
        ) {
            let mut subs = Subscriptions::default();
            for (i, f) in filters.iter().enumerate() {
                subs.insert(Filter::parse(f).unwrap(), subscription(i as u32, Qos::AtMostOnce));
            }
            let mut got: Vec<u32> = subs.find(&topic).hits.iter().map(|h| h.session).collect();
            got.sort_unstable();
            let want: Vec<u32> = (0..filters.len() as u32)
                .filter(|i| topic::matches(&filters[*i as usize], &topic))
                .collect();
            prop_assert_eq!(got, want);
            for (i, f) in filters.iter().enumerate() {
                prop_assert!(subs.remove(Filter::parse(f).unwrap(), i as u32));
            }
            prop_assert_eq!(subs.len(), 0);
            prop_assert!(subs.root.is_empty());
        }
    }
}
