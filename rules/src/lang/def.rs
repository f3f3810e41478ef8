//! A rule as it was loaded: everything checked, every expression compiled.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::expr::{Aggregate, Expr, Uses};
use super::glob::Glob;
use super::template::Template;
use crate::event::{Key, Level};
use crate::output::{Confirm, OnRestart, Priority, Undo};
use crate::pattern::Plan;
use crate::value::Value;

/// A pack of rules, ready for [`Engine::new`](crate::Engine::new).
#[derive(Clone, Debug)]
pub struct Pack {
    pub(crate) id: Arc<str>,
    pub(crate) version: Arc<str>,
    pub(crate) rules: Vec<Arc<RuleDef>>,
}

impl Pack {
    /// Id of the pack.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Version of the pack.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The phrases that its rules name in `similar`.
    pub fn phrases(&self) -> impl Iterator<Item = &Arc<str>> {
        self.rules.iter().flat_map(|rule| &rule.uses.phrases)
    }

    /// Ids of its rules, in the order of the file.
    pub fn rules(&self) -> impl Iterator<Item = &str> {
        self.rules.iter().map(|rule| &*rule.id)
    }
}

/// Whose events a rule looks at.
#[derive(Clone, Debug)]
pub(crate) struct Scope {
    pub(crate) group: Glob,
    pub(crate) node: Glob,
    pub(crate) device: Glob,
}

impl Scope {
    pub(crate) fn contains(&self, key: &Key) -> bool {
        // As `$` topics in MQTT: what the gateway says of itself is seen by those who name it.
        let named = !key.group.starts_with('#') || self.group.as_str().starts_with('#');
        named
            && self.group.matches(&key.group)
            && self.node.matches(&key.node)
            && self.device.matches(key.device_name())
    }
}

/// Which clock orders the events of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Time {
    /// Engine time: an event runs when it arrives.
    Arrival,
    /// The metrics' timestamps, behind a watermark of each key.
    Event { out_of_order: u64, lateness: u64 },
}

/// Which events reach a rule.
#[derive(Clone, Debug, Default)]
pub(crate) struct Streams {
    /// Every metric.
    pub(crate) all: bool,
    pub(crate) metrics: BTreeSet<Arc<str>>,
    pub(crate) models: BTreeSet<Arc<str>>,
    pub(crate) embeddings: bool,
}

/// What a rule looks for.
#[derive(Debug)]
pub(crate) enum Kind {
    Pattern(PatternDef),
    Threshold(ThresholdDef),
    Absence(AbsenceDef),
    Window(WindowDef),
}

impl Kind {
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Pattern(_) => "pattern",
            Self::Threshold(_) => "threshold",
            Self::Absence(_) => "absence",
            Self::Window(_) => "window",
        }
    }
}

#[derive(Debug)]
pub(crate) struct PatternDef {
    pub(crate) plan: Plan,
    /// By number of the condition.
    pub(crate) conditions: Vec<Expr>,
    /// Number of a stage's condition, by number of the stage.
    pub(crate) of_stages: BTreeMap<u16, u16>,
}

/// A limit that is crossed upwards or downwards.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Limit {
    pub(crate) name: &'static str,
    pub(crate) value: f64,
    pub(crate) upward: bool,
}

#[derive(Debug)]
pub(crate) struct ThresholdDef {
    pub(crate) metric: Arc<str>,
    /// The outermost first, so that the first one that is crossed names the event.
    pub(crate) limits: Vec<Limit>,
    pub(crate) deadband: f64,
    pub(crate) on_delay: u64,
    pub(crate) off_delay: u64,
    /// m of the last n samples.
    pub(crate) m_of_n: Option<(u32, u32)>,
}

#[derive(Debug)]
pub(crate) struct AbsenceDef {
    /// `None`: any metric.
    pub(crate) metric: Option<Arc<str>>,
    pub(crate) wait: u64,
}

/// Which samples share a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowKind {
    /// Side by side, `size` ms each.
    Tumbling { size: u64 },
    /// `size` ms, one begins each `every` ms.
    Hopping { size: u64, every: u64 },
    /// The last `size` ms at each sample.
    Sliding { size: u64 },
    /// Until nothing came for `gap` ms.
    Session { gap: u64 },
    /// So many samples.
    Count { size: u32, every: u32 },
}

#[derive(Debug)]
pub(crate) struct WindowDef {
    pub(crate) metric: Arc<str>,
    pub(crate) kind: WindowKind,
    pub(crate) aggregates: Vec<Aggregate>,
    pub(crate) columns: Vec<(Arc<str>, Expr)>,
    pub(crate) when: Option<Expr>,
}

#[derive(Debug)]
pub(crate) struct Clear {
    pub(crate) expr: Expr,
    /// Metrics it is judged on.
    pub(crate) metrics: BTreeSet<Arc<str>>,
}

/// Keeps an alarm that comes and goes too often active until it is calm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flap {
    pub(crate) count: u32,
    pub(crate) within: u64,
}

#[derive(Debug)]
pub(crate) struct AlarmDef {
    pub(crate) priority: Priority,
    pub(crate) on_delay: u64,
    pub(crate) off_delay: u64,
    pub(crate) latch: bool,
    pub(crate) clear: Option<Clear>,
    pub(crate) message: Template,
    pub(crate) cause: Option<Arc<str>>,
    pub(crate) consequence: Option<Arc<str>>,
    pub(crate) response: Option<Arc<str>>,
    pub(crate) flap: Option<Flap>,
}

#[derive(Debug)]
pub(crate) enum CommandValue {
    Fixed(Value),
    Computed(Box<Expr>),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Target {
    pub(crate) group: Option<Arc<str>>,
    pub(crate) node: Option<Arc<str>>,
    /// `_`: the node itself.
    pub(crate) device: Option<Arc<str>>,
}

impl Target {
    /// The key meant, where what is not named is the rule's own.
    pub(crate) fn of(&self, own: &Key) -> Key {
        let device = match self.device.as_deref() {
            Some("_") => None,
            Some(_) => self.device.clone(),
            None if self.node.is_some() => None,
            None => own.device.clone(),
        };
        Key {
            group: self.group.as_ref().unwrap_or(&own.group).clone(),
            node: self.node.as_ref().unwrap_or(&own.node).clone(),
            device,
        }
    }
}

#[derive(Debug)]
pub(crate) struct CommandDef {
    pub(crate) target: Target,
    pub(crate) metric: Arc<str>,
    pub(crate) value: CommandValue,
    pub(crate) ttl: u64,
    pub(crate) priority: i32,
    pub(crate) repeatable: bool,
    pub(crate) allow_when: Option<Arc<Expr>>,
    pub(crate) confirm: Option<Confirm>,
    pub(crate) undo: Option<Undo>,
}

/// A rule.
#[derive(Debug)]
pub(crate) struct RuleDef {
    pub(crate) id: Arc<str>,
    pub(crate) pack: Arc<str>,
    pub(crate) version: Arc<str>,
    pub(crate) scope: Scope,
    pub(crate) level: Level,
    pub(crate) time: Time,
    pub(crate) historical: bool,
    pub(crate) dry_run: bool,
    pub(crate) durable: bool,
    pub(crate) streams: Streams,
    /// What its expressions look at, all together.
    pub(crate) uses: Uses,
    /// Metrics whose values it takes for a number, a text or a truth value.
    pub(crate) wants: BTreeSet<(Arc<str>, &'static str)>,
    pub(crate) kind: Kind,
    /// Stage names of a pattern.
    pub(crate) stages: Vec<Arc<str>>,
    /// The same as `stage.value`.
    pub(crate) stage_values: Vec<Arc<str>>,
    pub(crate) alarm: Option<AlarmDef>,
    pub(crate) commands: Vec<CommandDef>,
    pub(crate) on_restart: OnRestart,
}

impl RuleDef {
    /// State may be carried from one version of a rule to another with the same shape: limits and
    /// conditions may differ, what the state is made of may not.
    pub(crate) fn shape(&self) -> u64 {
        let mut hash = Fnv::new();
        hash.text(self.kind.word());
        hash.text(self.level.as_str());
        hash.text(match self.time {
            Time::Arrival => "arrival",
            Time::Event { .. } => "event",
        });
        match &self.kind {
            Kind::Pattern(def) => hash.number(def.plan.shape()),
            Kind::Threshold(def) => {
                hash.text(&def.metric);
                hash.number(def.m_of_n.map_or(0, |(_, n)| u64::from(n)));
            }
            Kind::Absence(def) => hash.text(def.metric.as_deref().unwrap_or("")),
            Kind::Window(def) => {
                hash.text(&def.metric);
                hash.text(&format!("{:?} {:?}", def.kind, def.aggregates));
            }
        }
        for stage in &self.stages {
            hash.text(stage);
        }
        hash.0
    }
}

/// FNV-1a of 64 bits. Stored in snapshots, so it may never change.
pub(crate) struct Fnv(pub(crate) u64);

impl Fnv {
    pub(crate) fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// A text and its end.
    pub(crate) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
        self.bytes(&[0xff]);
    }

    pub(crate) fn number(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }
}
