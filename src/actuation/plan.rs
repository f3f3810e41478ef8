//! What is asked for, what is told, and what is asked of the outside.

use std::sync::Arc;

use sparkplug::value::Value;

use super::{Confirm, Policy};

/// A node (`device` is `None`) or device that is written to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    /// Sparkplug group id.
    pub group: Arc<str>,
    /// Sparkplug edge node id.
    pub node: Arc<str>,
    /// Sparkplug device id; `None` for the node itself.
    pub device: Option<Arc<str>>,
}

impl Target {
    /// Whether what happens to `self` happens to `other`: a node's life is its devices' life.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.group == other.group
            && self.node == other.node
            && (self.device.is_none() || self.device == other.device)
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.group, self.node)?;
        match &self.device {
            Some(device) => write!(f, "/{device}"),
            None => Ok(()),
        }
    }
}

/// One write of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    /// Who is written to.
    pub target: Target,
    /// Metric name as in the birth.
    pub metric: Arc<str>,
    /// Value in the writer's terms; the host converts it to the birth's datatype or refuses it.
    pub value: Value,
    /// What counts as the device having done it.
    pub confirm: Confirm,
    /// What takes it back when a later write of the plan fails.
    pub undo: Option<Box<Write>>,
    /// Sent again once when unconfirmed; and again after a crash where it is an undo.
    pub repeatable: bool,
    /// A condition that must hold when it is sent; `None`: always allowed.
    pub allow_when: Option<Interlock>,
    /// Time to live from the moment it is due, ms; `None`: the plan's deadline.
    pub ttl_ms: Option<u64>,
}

/// Names an interlock; what it is, the [`Gate`] knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interlock {
    /// The plan it guards.
    pub plan: Arc<str>,
    /// Which of its writes, from 0.
    pub position: u32,
}

/// One write, or an ordered sequence of writes.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Caller's id; a repeated one is not carried out again.
    pub id: Arc<str>,
    /// Who asks: `rule:<id>@<version>`, `user:<name>`, `cloud:<name>`.
    pub by: Arc<str>,
    /// The record that caused it, 0 for people's writes.
    pub cause: u64,
    /// Higher wins a fight over one metric.
    pub priority: i32,
    /// Engine time in ms after which its first write, and every write without a time to live of its own, is not
    /// sent.
    pub deadline_ms: u64,
    /// At least one.
    pub writes: Vec<Write>,
    /// What becomes of a sequence that a restart interrupts.
    pub on_restart: OnRestart,
}

/// What becomes of a sequence that a restart interrupts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnRestart {
    /// What may have happened is taken back.
    #[default]
    Undo,
    /// It goes on while the time to live of its step allows; otherwise it is taken back.
    Finish,
}

impl Plan {
    /// Whether each step is journalled before it is sent: what may have to be taken back must be known after a
    /// crash.
    #[must_use]
    pub fn is_sequence(&self) -> bool {
        self.writes.len() > 1
    }
}

/// Bounds of everything kept here.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Never send anything.
    pub read_only: bool,
    /// What may be written, and within which bounds.
    pub policy: Policy,
    /// Writes to one target in a second.
    pub max_per_second: u32,
    /// How long a writer of lower priority is held off a metric after a higher one wrote it, ms.
    pub hold_off_ms: u64,
    /// How long an undo waits for its target to be there again, ms.
    pub undo_patience_ms: u64,
    /// Plans in flight; more are rejected as `busy`.
    pub in_flight: usize,
    /// Plan ids remembered to recognise a repeated request.
    pub remembered: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            read_only: false,
            policy: Policy::default(),
            max_per_second: 20,
            hold_off_ms: 2_000,
            undo_patience_ms: 600_000,
            in_flight: 4096,
            remembered: 8192,
        }
    }
}

/// Why a write is not sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// [`Status::Rejected`] or [`Status::Expired`].
    pub status: Status,
    /// A stable snake_case word, a colon and what to do.
    pub reason: String,
    /// It may pass by itself: an undo waits for that.
    pub passing: bool,
}

impl Refusal {
    /// For good.
    #[must_use]
    pub fn rejected(reason: impl Into<String>) -> Self {
        Self {
            status: Status::Rejected,
            reason: reason.into(),
            passing: false,
        }
    }

    /// For now.
    #[must_use]
    pub fn passing(reason: impl Into<String>) -> Self {
        Self {
            passing: true,
            ..Self::rejected(reason)
        }
    }

    pub(super) fn expired() -> Self {
        Self {
            status: Status::Expired,
            ..Self::rejected("expired: its time to live had passed")
        }
    }
}

/// What the core asks of the outside at the moment of sending.
pub trait Gate {
    /// Whether one write could be sent now: its target is online, the birth names the metric, the value fits.
    /// Returns the metric's value before it, where there is one.
    ///
    /// # Errors
    /// Why it can't be sent.
    fn check(&mut self, write: &Write) -> Result<Option<Value>, Refusal>;

    /// Sends one write; otherwise as [`Gate::check`].
    ///
    /// # Errors
    /// Why it can't be sent.
    fn send(&mut self, write: &Write) -> Result<Option<Value>, Refusal>;

    /// The live value of a metric: `None` while its target is offline or the value is stale or of bad quality.
    fn shows(&mut self, target: &Target, metric: &str) -> Option<Value>;

    /// Whether an interlock holds now.
    ///
    /// # Errors
    /// The reason why it can't be told; the write is rejected then.
    fn allowed(&mut self, interlock: &Interlock) -> Result<bool, String>;
}

/// How a write stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// On its way to the device. In a sequence it is told, and on disk, before the write leaves.
    Sent,
    /// The device shows what was asked for.
    Confirmed,
    /// The device did not show it in time.
    Timeout,
    /// Never sent.
    Rejected,
    /// Never sent, since its deadline passed.
    Expired,
    /// Taken back.
    Undone,
}

impl Status {
    /// The word in records and listings.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Confirmed => "confirmed",
            Self::Timeout => "timeout",
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::Undone => "undone",
        }
    }

    /// Inverse of [`Status::as_str`].
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [
            Self::Sent,
            Self::Confirmed,
            Self::Timeout,
            Self::Rejected,
            Self::Expired,
            Self::Undone,
        ]
        .into_iter()
        .find(|status| status.as_str() == word)
    }
}

/// Something that happened to a write: becomes a `command` record.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// `<plan id>` for the first write, `<plan id>.<n>` for later ones, `.undo` appended for undo writes.
    pub id: Arc<str>,
    /// The plan's id.
    pub plan: Arc<str>,
    /// Which write of the plan, from 0.
    pub position: usize,
    /// Writes of the plan.
    pub of: usize,
    /// It is the undo of that write.
    pub undo: bool,
    /// Who is written to.
    pub target: Target,
    /// Metric name.
    pub metric: Arc<str>,
    /// Value asked for.
    pub value: Value,
    /// Value before, where known.
    pub previous: Option<Value>,
    /// Who asked.
    pub by: Arc<str>,
    /// Causing record, 0 for none.
    pub cause: u64,
    /// How it stands.
    pub status: Status,
    /// Why, for anything but `sent` and `confirmed`.
    pub reason: Option<String>,
    /// Engine time in ms.
    pub at_ms: u64,
    /// Engine ms since it was sent, for outcomes.
    pub after_ms: u64,
    /// The plan is over with this step.
    pub last: bool,
    /// The write leaves only when this step is on disk: [`super::Actuation::handle_stored`] with this ticket says so.
    pub ticket: Option<u64>,
}

/// Something that a person should look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// Two writers want different values of one metric.
    Fight {
        /// Who is written to.
        target: Target,
        /// The metric.
        metric: Arc<str>,
        /// Who has it.
        holder: Arc<str>,
        /// Who wants it as well.
        rival: Arc<str>,
        /// The rival's writes are held off.
        held: bool,
    },
    /// Nobody has fought over the metric for a while.
    FightOver {
        /// Who is written to.
        target: Target,
        /// The metric.
        metric: Arc<str>,
    },
    /// A step could not be taken back: the plant is in between.
    NotUndone {
        /// The step.
        id: Arc<str>,
        /// Who is written to.
        target: Target,
        /// The metric.
        metric: Arc<str>,
        /// Why.
        reason: String,
    },
}

impl Notice {
    /// A stable word.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Fight { .. } | Self::FightOver { .. } => "write_fight",
            Self::NotUndone { .. } => "not_undone",
        }
    }

    /// What it is about: target and metric.
    #[must_use]
    pub fn of(&self) -> String {
        let (Self::Fight { target, metric, .. }
        | Self::FightOver { target, metric }
        | Self::NotUndone { target, metric, .. }) = self;
        format!("{target} {metric}")
    }

    /// Whether it says that what was told before is over.
    #[must_use]
    pub fn is_end(&self) -> bool {
        matches!(self, Self::FightOver { .. })
    }
}

impl std::fmt::Display for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Fight {
                target,
                metric,
                holder,
                rival,
                held,
            } => {
                write!(
                    f,
                    "{rival} and {holder} write different values to {metric} of {target}; "
                )?;
                if *held {
                    write!(f, "{rival} has the lower priority and is held off")
                } else {
                    write!(f, "the priorities are equal, so the later one wins")
                }
            }
            Self::FightOver { target, metric } => {
                write!(f, "nobody fights over {metric} of {target} any more")
            }
            Self::NotUndone {
                id,
                target,
                metric,
                reason,
            } => write!(
                f,
                "{metric} of {target} could not be taken back ({id}): {reason}; look at the plant"
            ),
        }
    }
}
