//! Rights: which topics a session may publish to and subscribe to. `docs/broker.md` has the file format.

use std::sync::Arc;

use serde::Deserialize;

use super::topic::{covers, matches};

/// What one session may do, with names filled in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Rights {
    /// Patterns of topic names it may publish to.
    publish: Vec<Box<str>>,
    /// Patterns of which one must cover a filter it subscribes to.
    subscribe: Vec<Box<str>>,
    /// Patterns of what it may neither publish, nor subscribe to, nor receive.
    deny: Vec<Box<str>>,
    /// No limits but `deny`.
    all: bool,
}

impl Rights {
    pub(crate) fn may_publish(&self, topic: &str) -> bool {
        (self.all || self.publish.iter().any(|p| matches(p, topic))) && self.may_receive(topic)
    }

    pub(crate) fn may_subscribe(&self, filter: &str) -> bool {
        let allowed = self.all || self.subscribe.iter().any(|p| covers(p, filter));
        allowed && !self.deny.iter().any(|p| covers(p, filter))
    }

    pub(crate) fn may_receive(&self, topic: &str) -> bool {
        !self.deny.iter().any(|p| matches(p, topic))
    }

    /// What an edge node needs and no more: its own births, data and deaths; its own commands and STATE.
    fn add_node(&mut self, group: &str, node: &str) {
        for verb in ["NBIRTH", "NDATA", "NDEATH"] {
            self.publish
                .push(format!("spBv1.0/{group}/{verb}/{node}").into());
        }
        for verb in ["DBIRTH", "DDATA", "DDEATH"] {
            self.publish
                .push(format!("spBv1.0/{group}/{verb}/{node}/+").into());
        }
        for verb in ["NCMD", "DCMD"] {
            self.subscribe
                .push(format!("spBv1.0/{group}/{verb}/{node}/#").into());
        }
        self.subscribe.push("spBv1.0/STATE/+".into());
    }

    /// What a sender of commands needs: commands to a group's nodes and devices, and everything to read.
    fn add_commands(&mut self, group: &str) {
        self.publish.push(format!("spBv1.0/{group}/NCMD/+").into());
        self.publish
            .push(format!("spBv1.0/{group}/DCMD/+/+").into());
        self.subscribe.push("spBv1.0/#".into());
        self.subscribe.push("$sparkplug/certificates/#".into());
    }
}

/// Mistakes in an ACL file.
#[derive(Debug, thiserror::Error)]
pub enum AclError {
    /// Not TOML of the expected shape; the message has line and column.
    #[error("{0}")]
    Syntax(#[from] toml::de::Error),
    /// A pattern is not a topic filter.
    #[error(
        "`{pattern}` of `{user}` is not a topic filter: `+` and `#` stand alone in a level, `#` comes last"
    )]
    Pattern {
        /// The entry's name.
        user: String,
        /// The pattern.
        pattern: String,
    },
    /// `node` is not `group/node`.
    #[error("node `{node}` of `{user}` is not `group/node`")]
    Node {
        /// The entry's name.
        user: String,
        /// What was written.
        node: String,
    },
}

/// One entry of an ACL file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Grant {
    /// User name; `*` at its end stands for any rest.
    name: String,
    /// Edge node, `group/node`: the rights an edge node needs.
    node: Option<String>,
    /// Groups whose nodes it may command; `+` for all.
    commands: Vec<String>,
    /// Host application id: STATE, and commands to all.
    host: Option<String>,
    publish: Vec<String>,
    subscribe: Vec<String>,
    deny: Vec<String>,
    /// Everything but `deny`.
    all: bool,
}

/// Rights of all users.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Acl {
    user: Vec<Grant>,
    anonymous: Option<Grant>,
    /// Users who may command every node, from the configuration.
    #[serde(skip)]
    command_senders: Vec<String>,
}

impl Acl {
    /// Reads an ACL file.
    pub(crate) fn parse(text: &str, command_senders: Vec<String>) -> Result<Self, AclError> {
        let mut acl: Self = toml::from_str(text)?;
        acl.command_senders = command_senders;
        for grant in acl.user.iter().chain(&acl.anonymous) {
            for pattern in grant
                .publish
                .iter()
                .chain(&grant.subscribe)
                .chain(&grant.deny)
            {
                if !super::topic::is_filter(pattern) {
                    return Err(AclError::Pattern {
                        user: grant.name.clone(),
                        pattern: pattern.clone(),
                    });
                }
            }
            if let Some(node) = grant.node.as_ref().filter(|n| n.split('/').count() != 2) {
                return Err(AclError::Node {
                    user: grant.name.clone(),
                    node: node.clone(),
                });
            }
        }
        Ok(acl)
    }

    /// Rights without a file: an edge node's, by its user name.
    pub(crate) fn defaults(command_senders: Vec<String>) -> Self {
        Self {
            command_senders,
            ..Self::default()
        }
    }

    /// The rights of a client. Entries that match add up; a user whom none matches has an edge node's rights, for
    /// the node of its name: `group/node`, or a node in any group.
    pub(crate) fn rights(&self, user: Option<&str>, client: &str) -> Arc<Rights> {
        let mut rights = Rights::default();
        let Some(user) = user else {
            match &self.anonymous {
                Some(grant) => grant.apply(&mut rights, "", client),
                None => rights.all = true,
            }
            return Arc::new(rights);
        };
        let mut found = false;
        for grant in self.user.iter().filter(|g| g.names(user)) {
            grant.apply(&mut rights, user, client);
            found = true;
        }
        if self.command_senders.iter().any(|s| s == user) {
            rights.add_commands("+");
            found = true;
        }
        if !found {
            let (group, node) = user.split_once('/').unwrap_or(("+", user));
            let plain = |s: &str| !s.is_empty() && !s.contains(['+', '#', '/']);
            if plain(node) && (group == "+" && !user.contains('/') || plain(group)) {
                rights.add_node(group, node);
            }
        }
        Arc::new(rights)
    }
}

impl Grant {
    fn names(&self, user: &str) -> bool {
        match self.name.strip_suffix('*') {
            Some(prefix) => user.starts_with(prefix),
            None => self.name == user,
        }
    }

    fn apply(&self, rights: &mut Rights, user: &str, client: &str) {
        rights.all |= self.all;
        let fill = |list: &[String], into: &mut Vec<Box<str>>| {
            into.extend(list.iter().filter_map(|p| filled(p, user, client)));
        };
        fill(&self.publish, &mut rights.publish);
        fill(&self.subscribe, &mut rights.subscribe);
        fill(&self.deny, &mut rights.deny);
        if let Some(node) = self.node.as_ref().and_then(|n| filled(n, user, client))
            && let Some((group, node)) = node.split_once('/')
        {
            rights.add_node(group, node);
        }
        for group in &self.commands {
            rights.add_commands(group);
        }
        if let Some(host) = self.host.as_ref().and_then(|h| filled(h, user, client)) {
            rights.publish.push(format!("spBv1.0/STATE/{host}").into());
            rights.add_commands("+");
        }
    }
}

/// A pattern with `{user}` and `{client}` filled in; `None` where a name would change the pattern's shape.
fn filled(pattern: &str, user: &str, client: &str) -> Option<Box<str>> {
    let mut out = pattern.to_owned();
    for (mark, name) in [("{user}", user), ("{client}", client)] {
        if out.contains(mark) {
            if name.is_empty() || name.contains(['+', '#', '/']) {
                return None;
            }
            out = out.replace(mark, name);
        }
    }
    Some(out.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(text: &str) -> Acl {
        Acl::parse(text, vec!["panel".to_owned()]).unwrap()
    }

    #[test]
    fn an_edge_nodes_user_speaks_for_itself_alone() {
        let acl = acl("");
        let rights = acl.rights(Some("plantA/gw-07"), "any");
        for (topic, allowed) in [
            ("spBv1.0/plantA/NBIRTH/gw-07", true),
            ("spBv1.0/plantA/DDATA/gw-07/pump3", true),
            ("spBv1.0/plantA/NDEATH/gw-08", false),
            ("spBv1.0/plantB/NDATA/gw-07", false),
            ("spBv1.0/plantA/DCMD/gw-07/pump3", false),
            ("spBv1.0/plantA/NBIRTH/gw-07/x", false),
            ("spBv1.0/STATE/host", false),
            ("other", false),
        ] {
            assert_eq!(rights.may_publish(topic), allowed, "{topic}");
        }
        for (filter, allowed) in [
            ("spBv1.0/plantA/NCMD/gw-07", true),
            ("spBv1.0/plantA/DCMD/gw-07/#", true),
            ("spBv1.0/STATE/+", true),
            ("spBv1.0/plantA/NCMD/+", false),
            ("#", false),
            ("spBv1.0/plantA/DDATA/gw-07/+", false),
        ] {
            assert_eq!(rights.may_subscribe(filter), allowed, "{filter}");
        }
    }

    #[test]
    fn names_can_not_widen_a_pattern() {
        let acl =
            acl("[[user]]\nname = \"*\"\npublish = [\"own/{client}/#\"]\nnode = \"g/{user}\"");
        for name in ["+", "#", "a/b", ""] {
            let rights = acl.rights(Some("x"), name);
            assert!(!rights.may_publish("own/a/b/c"), "{name}");
        }
        assert!(!acl.rights(Some("+"), "c").may_publish("spBv1.0/g/NDATA/x"));
        assert!(acl.rights(Some("u"), "c").may_publish("own/c/1"));
        assert!(
            !Acl::defaults(Vec::new())
                .rights(Some("+/n"), "c")
                .may_publish("spBv1.0/g/NDATA/n")
        );
    }

    #[test]
    fn commands_are_for_those_named_and_deny_wins() {
        let acl = acl("[anonymous]\nall = true\ndeny = [\"test/nosubscribe\"]");
        let panel = acl.rights(Some("panel"), "c");
        assert!(panel.may_publish("spBv1.0/g/DCMD/n/d") && panel.may_subscribe("spBv1.0/#"));
        assert!(!panel.may_publish("spBv1.0/g/DDATA/n/d"));
        let anonymous = acl.rights(None, "c");
        assert!(anonymous.may_subscribe("#") && !anonymous.may_subscribe("test/nosubscribe"));
        assert!(!anonymous.may_receive("test/nosubscribe"));
    }

    #[test]
    fn mistakes_are_named() {
        let check = |text: &str, part: &str| {
            let message = Acl::parse(text, Vec::new()).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        };
        check("[[user]]\nname = \"a\"\npublish = [\"x#\"]", "`x#` of `a`");
        check("[[user]]\nname = \"a\"\nnode = \"x\"", "group/node");
        check("[[users]]", "unknown field");
    }
}
