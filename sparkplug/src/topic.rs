//! Sparkplug topic names: parsed once at the edge, typed from there on.
//!
//! `spBv1.0/<group>/<verb>/<node>[/<device>]` and `spBv1.0/STATE/<host>`. Ids may hold any UTF-8 but `+`, `/`, `#`
//! and U+0000, so spaces, dots and `$` are ordinary; comparison is byte for byte.

use std::fmt;
use std::sync::Arc;

/// First level of every Sparkplug B topic.
// tck-id-topic-structure-namespace-a
pub const NAMESPACE: &str = "spBv1.0";

/// Topic prefix under which an aware broker keeps the latest birth certificates.
// tck-id-conformance-mqtt-aware-nbirth-mqtt-topic, tck-id-conformance-mqtt-aware-dbirth-mqtt-topic
pub const CERTIFICATES: &str = "$sparkplug/certificates";

/// Messages of an edge node itself. None of them has a device level.
// tck-id-topic-structure-namespace-device-id-non-associated-message-types
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NodeVerb {
    /// Birth certificate of a node.
    Birth,
    /// Data of node metrics.
    Data,
    /// Death certificate of a node.
    Death,
    /// Command to a node.
    Command,
}

/// Messages of a device behind an edge node. All of them have a device level.
// tck-id-topic-structure-namespace-device-id-associated-message-types
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceVerb {
    /// Birth certificate of a device.
    Birth,
    /// Data of device metrics.
    Data,
    /// Death certificate of a device.
    Death,
    /// Command to a device.
    Command,
}

impl NodeVerb {
    /// The topic level: `NBIRTH`, `NDATA`, `NDEATH`, `NCMD`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Birth => "NBIRTH",
            Self::Data => "NDATA",
            Self::Death => "NDEATH",
            Self::Command => "NCMD",
        }
    }
}

impl DeviceVerb {
    /// The topic level: `DBIRTH`, `DDATA`, `DDEATH`, `DCMD`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Birth => "DBIRTH",
            Self::Data => "DDATA",
            Self::Death => "DDEATH",
            Self::Command => "DCMD",
        }
    }
}

/// Edge node descriptor: the pair that names one edge node in the whole system.
// tck-id-intro-edge-node-id-uniqueness, tck-id-topic-structure-namespace-unique-edge-node-descriptor
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId {
    /// Group id.
    pub group: Arc<str>,
    /// Edge node id.
    pub node: Arc<str>,
}

impl NodeId {
    /// Checks both ids and makes a descriptor of them.
    ///
    /// # Errors
    /// [`TopicError`] when an id is empty or holds `+`, `/`, `#` or U+0000.
    pub fn new(group: &str, node: &str) -> Result<Self, TopicError> {
        check_id(Level::Group, group)?;
        check_id(Level::Node, node)?;
        Ok(Self {
            group: group.into(),
            node: node.into(),
        })
    }

    /// The topic of a node message.
    #[must_use]
    pub fn topic(&self, verb: NodeVerb) -> String {
        format!("{NAMESPACE}/{}/{}/{}", self.group, verb.as_str(), self.node)
    }

    /// The topic of a message of one of this node's devices.
    #[must_use]
    pub fn device_topic(&self, verb: DeviceVerb, device: &str) -> String {
        format!(
            "{NAMESPACE}/{}/{}/{}/{device}",
            self.group,
            verb.as_str(),
            self.node
        )
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.group, self.node)
    }
}

/// A device, named within its edge node: two nodes may both have a device `pump`.
// tck-id-topic-structure-namespace-duplicate-device-id-across-edge-node
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId {
    /// The edge node that speaks for the device.
    pub node: NodeId,
    /// Device id.
    pub device: Arc<str>,
}

impl DeviceId {
    /// Checks all three ids and makes a device id of them.
    ///
    /// # Errors
    /// [`TopicError`] when an id is empty or holds `+`, `/`, `#` or U+0000.
    pub fn new(group: &str, node: &str, device: &str) -> Result<Self, TopicError> {
        check_id(Level::Device, device)?;
        Ok(Self {
            node: NodeId::new(group, node)?,
            device: device.into(),
        })
    }

    /// The topic of a message of this device.
    #[must_use]
    pub fn topic(&self, verb: DeviceVerb) -> String {
        self.node.device_topic(verb, &self.device)
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.node, self.device)
    }
}

/// Which level of a topic an error is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Second level.
    Group,
    /// Fourth level.
    Node,
    /// Fifth level.
    Device,
    /// Third level of a STATE topic.
    Host,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Group => "group",
            Self::Node => "edge node",
            Self::Device => "device",
            Self::Host => "host",
        })
    }
}

/// Why a topic is no Sparkplug topic.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    /// The first level is not `spBv1.0`.
    #[error("first level is not spBv1.0")]
    Namespace,
    /// The number of levels fits no message type.
    #[error("{levels} levels do not fit this message type")]
    Levels {
        /// How many levels the topic has.
        levels: usize,
    },
    /// The third level is no message type of Sparkplug 3.0.
    #[error("unknown message type {verb:?}")]
    Verb {
        /// The level as received.
        verb: String,
    },
    /// An id is empty.
    #[error("{level} id is empty")]
    Empty {
        /// Which one.
        level: Level,
    },
    /// An id holds a character that no id may hold.
    #[error("{level} id holds {found:?}, which no Sparkplug id may hold")]
    Character {
        /// Which one.
        level: Level,
        /// The first offending character.
        found: char,
    },
}

/// A parsed topic that borrows from the topic name; [`Topic`] is its owned form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopicRef<'a> {
    /// A message of or to an edge node.
    Node {
        /// Message type.
        verb: NodeVerb,
        /// Group id.
        group: &'a str,
        /// Edge node id.
        node: &'a str,
    },
    /// A message of or to a device.
    Device {
        /// Message type.
        verb: DeviceVerb,
        /// Group id.
        group: &'a str,
        /// Edge node id.
        node: &'a str,
        /// Device id.
        device: &'a str,
    },
    /// The presence of a host application.
    State {
        /// Host id.
        host: &'a str,
    },
}

impl<'a> TopicRef<'a> {
    /// Parses a topic name without copying it.
    ///
    /// A group may legally be called `STATE`: three levels make a STATE topic, four or five an edge topic.
    ///
    /// # Errors
    /// [`TopicError`] says which level is wrong.
    // tck-id-topic-structure
    pub fn parse(topic: &'a str) -> Result<Self, TopicError> {
        let mut levels = topic.split('/');
        if levels.next() != Some(NAMESPACE) {
            return Err(TopicError::Namespace);
        }
        let parts = [levels.next(), levels.next(), levels.next(), levels.next()];
        let extra = levels.count();
        match (parts, extra) {
            // tck-id-host-topic-phid-birth-topic, tck-id-host-topic-phid-death-topic
            ([Some("STATE"), Some(host), None, None], 0) => {
                check_id(Level::Host, host)?;
                Ok(Self::State { host })
            }
            ([Some(group), Some(verb), Some(node), device], 0) => {
                Self::edge(group, verb, node, device)
            }
            (parts, extra) => Err(TopicError::Levels {
                levels: 1 + parts.iter().flatten().count() + extra,
            }),
        }
    }

    fn edge(
        group: &'a str,
        verb: &str,
        node: &'a str,
        device: Option<&'a str>,
    ) -> Result<Self, TopicError> {
        let node_verb = match verb {
            "NBIRTH" => Some(NodeVerb::Birth),
            "NDATA" => Some(NodeVerb::Data),
            "NDEATH" => Some(NodeVerb::Death),
            "NCMD" => Some(NodeVerb::Command),
            _ => None,
        };
        let device_verb = match verb {
            "DBIRTH" => Some(DeviceVerb::Birth),
            "DDATA" => Some(DeviceVerb::Data),
            "DDEATH" => Some(DeviceVerb::Death),
            "DCMD" => Some(DeviceVerb::Command),
            _ => None,
        };
        check_id(Level::Group, group)?;
        check_id(Level::Node, node)?;
        match (node_verb, device_verb, device) {
            (Some(verb), _, None) => Ok(Self::Node { verb, group, node }),
            (_, Some(verb), Some(device)) => {
                check_id(Level::Device, device)?;
                Ok(Self::Device {
                    verb,
                    group,
                    node,
                    device,
                })
            }
            (None, None, _) => Err(TopicError::Verb { verb: verb.into() }),
            (_, _, device) => Err(TopicError::Levels {
                levels: 4 + usize::from(device.is_some()),
            }),
        }
    }
}

/// A parsed Sparkplug topic. [`fmt::Display`] gives the topic name back.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Topic {
    /// A message of or to an edge node.
    Node {
        /// Message type.
        verb: NodeVerb,
        /// The node.
        node: NodeId,
    },
    /// A message of or to a device.
    Device {
        /// Message type.
        verb: DeviceVerb,
        /// The device.
        device: DeviceId,
    },
    /// The presence of a host application.
    State {
        /// Host id.
        host: Arc<str>,
    },
}

impl Topic {
    /// Parses a topic name.
    ///
    /// # Errors
    /// [`TopicError`] says which level is wrong.
    pub fn parse(topic: &str) -> Result<Self, TopicError> {
        Ok(match TopicRef::parse(topic)? {
            TopicRef::Node { verb, group, node } => Self::Node {
                verb,
                node: NodeId {
                    group: group.into(),
                    node: node.into(),
                },
            },
            TopicRef::Device {
                verb,
                group,
                node,
                device,
            } => Self::Device {
                verb,
                device: DeviceId {
                    node: NodeId {
                        group: group.into(),
                        node: node.into(),
                    },
                    device: device.into(),
                },
            },
            TopicRef::State { host } => Self::State { host: host.into() },
        })
    }

    /// Where an aware broker keeps this certificate, for NBIRTH and DBIRTH; `None` for every other message.
    // tck-id-conformance-mqtt-aware-nbirth-mqtt-topic, tck-id-conformance-mqtt-aware-dbirth-mqtt-topic
    #[must_use]
    pub fn certificate(&self) -> Option<String> {
        match self {
            Self::Node {
                verb: NodeVerb::Birth,
                ..
            }
            | Self::Device {
                verb: DeviceVerb::Birth,
                ..
            } => Some(format!("{CERTIFICATES}/{self}")),
            _ => None,
        }
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node { verb, node } => write!(
                f,
                "{NAMESPACE}/{}/{}/{}",
                node.group,
                verb.as_str(),
                node.node
            ),
            Self::Device { verb, device } => write!(
                f,
                "{NAMESPACE}/{}/{}/{}/{}",
                device.node.group,
                verb.as_str(),
                device.node.node,
                device.device
            ),
            Self::State { host } => f.write_str(&state_topic(host)),
        }
    }
}

/// The STATE topic of a host application.
#[must_use]
pub fn state_topic(host: &str) -> String {
    format!("{NAMESPACE}/STATE/{host}")
}

/// Whether `id` may name a group, node, device or host.
///
/// # Errors
/// [`TopicError::Empty`] or [`TopicError::Character`].
// tck-id-intro-group-id-chars, tck-id-intro-edge-node-id-chars, tck-id-intro-device-id-chars,
// tck-id-topic-structure-namespace-valid-group-id, -valid-edge-node-id, -valid-device-id
pub fn check_id(level: Level, id: &str) -> Result<(), TopicError> {
    if id.is_empty() {
        return Err(TopicError::Empty { level });
    }
    // All four are ASCII, so that bytes tell.
    match id.bytes().find(|c| matches!(c, b'+' | b'/' | b'#' | 0)) {
        Some(found) => Err(TopicError::Character {
            level,
            found: char::from(found),
        }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(verb: NodeVerb, group: &str, node: &str) -> Topic {
        Topic::Node {
            verb,
            node: NodeId::new(group, node).unwrap(),
        }
    }

    fn device(verb: DeviceVerb, group: &str, node: &str, device: &str) -> Topic {
        Topic::Device {
            verb,
            device: DeviceId::new(group, node, device).unwrap(),
        }
    }

    #[test]
    fn topic_structure_of_every_message() {
        for (text, topic) in [
            ("spBv1.0/g/NBIRTH/n", node(NodeVerb::Birth, "g", "n")),
            ("spBv1.0/g/NDATA/n", node(NodeVerb::Data, "g", "n")),
            ("spBv1.0/g/NDEATH/n", node(NodeVerb::Death, "g", "n")),
            ("spBv1.0/g/NCMD/n", node(NodeVerb::Command, "g", "n")),
            (
                "spBv1.0/g/DBIRTH/n/d",
                device(DeviceVerb::Birth, "g", "n", "d"),
            ),
            (
                "spBv1.0/g/DDATA/n/d",
                device(DeviceVerb::Data, "g", "n", "d"),
            ),
            (
                "spBv1.0/g/DDEATH/n/d",
                device(DeviceVerb::Death, "g", "n", "d"),
            ),
            (
                "spBv1.0/g/DCMD/n/d",
                device(DeviceVerb::Command, "g", "n", "d"),
            ),
            // A group may be called STATE, a host anything.
            ("spBv1.0/STATE/NDATA/n", node(NodeVerb::Data, "STATE", "n")),
            ("spBv1.0/STATE/h", Topic::State { host: "h".into() }),
        ] {
            assert_eq!(Topic::parse(text), Ok(topic.clone()), "{text}");
            assert_eq!(topic.to_string(), text);
        }
    }

    #[test]
    fn topic_structure_namespace_valid_ids_are_any_utf8_but_three() {
        for id in ["a b", "a.b", "$sys", "Grüße", "圧力", "_", "STATE"] {
            let text = format!("spBv1.0/{id}/DDATA/{id}/{id}");
            assert_eq!(Topic::parse(&text).unwrap().to_string(), text);
        }
        for found in ['+', '#', '\0'] {
            for text in [
                format!("spBv1.0/g{found}/NDATA/n"),
                format!("spBv1.0/g/NDATA/{found}n"),
                format!("spBv1.0/g/DDATA/n/{found}"),
                format!("spBv1.0/STATE/{found}"),
            ] {
                let error = Topic::parse(&text).unwrap_err();
                assert!(
                    matches!(error, TopicError::Character { found: it, .. } if it == found),
                    "{text:?}: {error}"
                );
            }
        }
        assert!(NodeId::new("a/b", "n").is_err());
        assert!(DeviceId::new("g", "n", "").is_err());
    }

    #[test]
    fn case_sensitivity_sparkplug_ids() {
        assert_ne!(
            Topic::parse("spBv1.0/G/NDATA/n"),
            Topic::parse("spBv1.0/g/NDATA/n")
        );
        assert_eq!(
            Topic::parse("SPBV1.0/g/NDATA/n"),
            Err(TopicError::Namespace)
        );
    }

    #[test]
    fn topic_structure_namespace_device_id_associated_message_types() {
        for text in [
            "spBv1.0/g/NDATA/n/d",
            "spBv1.0/g/DDATA/n",
            "spBv1.0/g/DDATA/n/d/e",
            "spBv1.0/g/NDATA",
            "spBv1.0/g",
            "spBv1.0",
            "spBv1.0/STATE",
        ] {
            assert!(
                matches!(Topic::parse(text), Err(TopicError::Levels { .. })),
                "{text}"
            );
        }
        assert!(matches!(
            Topic::parse("spBv1.0/g/NREBIRTH/n"),
            Err(TopicError::Verb { .. })
        ));
        assert!(matches!(
            Topic::parse("spBv1.0//NDATA/n"),
            Err(TopicError::Empty {
                level: Level::Group
            })
        ));
    }

    #[test]
    fn conformance_mqtt_aware_certificate_topics() {
        for (text, kept) in [
            ("spBv1.0/g/NBIRTH/n", true),
            ("spBv1.0/g/DBIRTH/n/d", true),
            ("spBv1.0/g/NDATA/n", false),
            ("spBv1.0/g/NDEATH/n", false),
            ("spBv1.0/STATE/h", false),
        ] {
            let certificate = Topic::parse(text).unwrap().certificate();
            assert_eq!(
                certificate,
                kept.then(|| format!("$sparkplug/certificates/{text}"))
            );
        }
    }
}
