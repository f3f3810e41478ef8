//! What comes out of the engine.

use std::fmt;
use std::sync::Arc;

use crate::event::{Cause, Key};
use crate::value::Value;

/// Name and value, in the order of the rule.
pub type Values = Vec<(Arc<str>, Value)>;

/// One output of [`Engine::poll_output`](crate::Engine::poll_output), in the order they arose.
#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "outputs are few, and each is taken at once"
)]
pub enum Output {
    /// A rule's condition came true: a pattern matched, a limit was crossed, data stayed away, a
    /// window met its condition.
    Match(Match),
    /// An alarm changed.
    Alarm(AlarmEvent),
    /// A write that a rule asks for.
    Command(CommandRequest),
    /// A pattern began and ran out of time.
    TimedOut(TimedOut),
    /// An event came after its key's watermark and was left out.
    Late(Late),
    /// An expression had no result.
    EvalError(EvalFailure),
    /// State was given up.
    Evicted(Evicted),
}

/// A rule's condition came true.
#[derive(Clone, Debug, PartialEq)]
pub struct Match {
    /// Id of the rule.
    pub rule: Arc<str>,
    /// Id of the pack.
    pub pack: Arc<str>,
    /// Version of the pack.
    pub version: Arc<str>,
    /// Key of the rule's state.
    pub key: Key,
    /// The event that completed it; `(0, 0)` for a timer.
    pub cause: Cause,
    /// Every event that takes part, in order.
    pub causes: Vec<Cause>,
    /// `stage.value` of each stage's last event, or `value`, or what a window puts out.
    pub values: Values,
    /// Engine time, ms: of the event, or the timer's due time.
    pub engine_ms: u64,
    /// Event time of the completing event, ms UTC; `None` for a timer on engine time.
    pub time_ms: Option<i64>,
    /// Found in history: it orders no command.
    pub historical: bool,
    /// The rule is on trial: its commands are not to be sent.
    pub dry_run: bool,
}

/// Priority of an alarm, lowest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// For those who look after the system.
    Diagnostic,
    /// Low.
    Low,
    /// Medium.
    #[default]
    Medium,
    /// High.
    High,
    /// Critical.
    Critical,
}

/// State of an alarm by ISA-18.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AlarmStatus {
    /// A: nothing.
    #[default]
    Normal,
    /// B: active, unacknowledged.
    Unack,
    /// C: active, acknowledged.
    Ack,
    /// D: returned to normal, unacknowledged.
    RtnUnack,
    /// E: returned, unacknowledged, held until reset.
    LatchedUnack,
    /// F: returned, acknowledged, held until reset.
    LatchedAck,
    /// G: shelved by a person, for a time or until it clears.
    Shelved,
    /// H: suppressed by design.
    Suppressed,
    /// I: out of service.
    OutOfService,
}

/// What happened to an alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AlarmAction {
    /// It became active.
    Raise,
    /// Its values, message or quality changed.
    Change,
    /// It was acknowledged.
    Ack,
    /// It was shelved.
    Shelve,
    /// It is no longer shelved: by a person, by time, or because it cleared.
    Unshelve,
    /// It was suppressed.
    Suppress,
    /// It is no longer suppressed.
    Unsuppress,
    /// It was taken out of service.
    OutOfService,
    /// It is in service again.
    InService,
    /// A latched alarm was reset.
    Reset,
    /// Its condition is over.
    Clear,
}

macro_rules! words {
    ($type:ident, $($variant:ident = $word:literal),+ $(,)?) => {
        impl $type {
            /// Every value, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word used in rule files and records.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            /// Inverse of [`as_str`](Self::as_str).
            #[must_use]
            pub fn parse(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$variant),)+ _ => None }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

words!(
    Priority,
    Diagnostic = "diagnostic",
    Low = "low",
    Medium = "medium",
    High = "high",
    Critical = "critical",
);
words!(OnRestart, Undo = "undo", Finish = "finish",);
words!(
    AlarmStatus,
    Normal = "normal",
    Unack = "unack",
    Ack = "ack",
    RtnUnack = "rtn-unack",
    LatchedUnack = "latched-unack",
    LatchedAck = "latched-ack",
    Shelved = "shelved",
    Suppressed = "suppressed",
    OutOfService = "out-of-service",
);
words!(
    AlarmAction,
    Raise = "raise",
    Change = "change",
    Ack = "ack",
    Shelve = "shelve",
    Unshelve = "unshelve",
    Suppress = "suppress",
    Unsuppress = "unsuppress",
    OutOfService = "out-of-service",
    InService = "in-service",
    Reset = "reset",
    Clear = "clear",
);

/// A change of an alarm.
#[derive(Clone, Debug, PartialEq)]
pub struct AlarmEvent {
    /// Id of this occurrence: 16 hexadecimal digits, a function of rule, key and cause, so that a
    /// replay gives the same.
    pub id: Arc<str>,
    /// Id of the rule.
    pub rule: Arc<str>,
    /// Version of its pack.
    pub version: Arc<str>,
    /// What happened.
    pub event: AlarmAction,
    /// State after it.
    pub state: AlarmStatus,
    /// Priority.
    pub priority: Priority,
    /// Message with its values filled in.
    pub message: Arc<str>,
    /// Key of the rule's state.
    pub key: Key,
    /// Event time of the cause, ms UTC; `None` where a timer or a person is the cause.
    pub timestamp: Option<i64>,
    /// Engine time, ms.
    pub engine_ms: u64,
    /// Values at the moment of raising.
    pub values: Values,
    /// Record and position that led to it.
    pub cause: Cause,
    /// Who did it, for what people do.
    pub by: Option<Arc<str>>,
    /// What that person wrote.
    pub note: Option<Arc<str>>,
    /// Whether the source is alive and its values are good: an alarm of a dead device stays as it
    /// is, and is marked.
    pub stale: bool,
    /// Raised from history.
    pub historical: bool,
    /// One of the program's own that has no end but its acknowledgement; see
    /// [`OwnAlarm::until_ack`](crate::OwnAlarm::until_ack).
    pub until_ack: bool,
}

/// What confirms a command.
#[derive(Clone, Debug, PartialEq)]
pub struct Confirm {
    /// The metric that answers, on the target.
    pub metric: Arc<str>,
    /// What it must show.
    pub expect: Expect,
    /// How long to wait, ms.
    pub within_ms: u64,
}

/// What a confirming metric must show.
#[derive(Clone, Debug, PartialEq)]
pub enum Expect {
    /// This value; see [`Value::same`].
    Equals(Value),
    /// A number from the first to the second, both included.
    Between(f64, f64),
}

impl Expect {
    /// Whether a value is what was expected.
    #[must_use]
    pub fn holds(&self, value: &Value) -> bool {
        match self {
            Self::Equals(expected) => expected.same(value),
            Self::Between(low, high) => value.as_f64().is_some_and(|v| v >= *low && v <= *high),
        }
    }
}

/// What takes a command back.
#[derive(Clone, Debug, PartialEq)]
pub struct Undo {
    /// Metric to write, on the target.
    pub metric: Arc<str>,
    /// Value to write.
    pub value: Value,
    /// May be sent again when it is not confirmed, and after a crash; on by default, since it asks for a state.
    pub repeatable: bool,
}

/// What becomes of a sequence of commands that a restart of the gateway interrupts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnRestart {
    /// What was done is taken back.
    #[default]
    Undo,
    /// It goes on with the first command that was not sent, while its time to live allows; otherwise it is taken back.
    Finish,
}

/// A write that a rule asks for. Commands of one match come one after the other, in order; the next
/// is to be sent when the one before is done, and when one fails, those before it are taken back in
/// reverse.
#[derive(Clone, Debug)]
pub struct CommandRequest {
    /// Id of the rule.
    pub rule: Arc<str>,
    /// Version of its pack.
    pub version: Arc<str>,
    /// Key of the rule's state.
    pub key: Key,
    /// Whom to write to.
    pub target: Key,
    /// Metric to write.
    pub metric: Arc<str>,
    /// Value to write.
    pub value: Value,
    /// After this long it is not to be sent any more, ms.
    pub ttl_ms: u64,
    /// Larger goes first.
    pub priority: i32,
    /// May be sent again when it is not confirmed.
    pub repeatable: bool,
    /// A condition that must hold when it is sent; ask [`Engine::check`](crate::Engine::check).
    pub allow_when: Option<crate::engine::Guard>,
    /// What confirms it.
    pub confirm: Option<Confirm>,
    /// What takes it back.
    pub undo: Option<Undo>,
    /// Position in the sequence, from 0.
    pub position: u32,
    /// Length of the sequence.
    pub of: u32,
    /// Not to be sent, only reported.
    pub dry_run: bool,
    /// To wait until the causing record is on disk.
    pub durable: bool,
    /// What becomes of the sequence when a restart interrupts it.
    pub on_restart: OnRestart,
    /// Record and position that led to it.
    pub cause: Cause,
    /// Engine time, ms.
    pub engine_ms: u64,
}

/// A pattern began and ran out of time.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedOut {
    /// Id of the rule.
    pub rule: Arc<str>,
    /// Version of its pack.
    pub version: Arc<str>,
    /// Key of the rule's state.
    pub key: Key,
    /// `stage.value` of each stage that was reached.
    pub values: Values,
    /// The last event it took.
    pub cause: Cause,
    /// Engine time, ms.
    pub engine_ms: u64,
}

/// An event came too late for a rule in event time.
#[derive(Clone, Debug, PartialEq)]
pub struct Late {
    /// Id of the rule.
    pub rule: Arc<str>,
    /// Key of the rule's state.
    pub key: Key,
    /// The event.
    pub cause: Cause,
    /// How far behind the watermark it was, ms.
    pub behind_ms: u64,
    /// Engine time, ms.
    pub engine_ms: u64,
}

/// An expression had no result.
#[derive(Clone, Debug, PartialEq)]
pub struct EvalFailure {
    /// Id of the rule.
    pub rule: Arc<str>,
    /// Key of the rule's state.
    pub key: Key,
    /// Why.
    pub reason: crate::lang::expr::EvalError,
    /// How often this rule has failed for this key.
    pub count: u64,
    /// The event that was looked at.
    pub cause: Cause,
    /// Engine time, ms.
    pub engine_ms: u64,
}

/// Why state was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EvictReason {
    /// Nothing happened to the key for longer than the limit.
    Age,
    /// The device or node died.
    Death,
    /// The pattern has more partial matches for this key than the limit; the oldest went.
    KeyLimit,
    /// The rule has more partial matches over all keys than the limit.
    RuleLimit,
    /// There are more keys than the limit; the one that was silent longest went.
    TotalKeys,
    /// State takes more bytes than the limit; the key that was silent longest went.
    TotalBytes,
    /// The rule is gone, or has another shape.
    RuleChanged,
    /// More waited for the watermark than the limit; the oldest were let through early.
    Buffer,
}

words!(
    EvictReason,
    Age = "age",
    Death = "death",
    KeyLimit = "key-limit",
    RuleLimit = "rule-limit",
    TotalKeys = "total-keys",
    TotalBytes = "total-bytes",
    RuleChanged = "rule-changed",
    Buffer = "buffer",
);

/// State was given up.
#[derive(Clone, Debug, PartialEq)]
pub struct Evicted {
    /// The rule; `None` for a whole key.
    pub rule: Option<Arc<str>>,
    /// Key of the state.
    pub key: Key,
    /// Why.
    pub reason: EvictReason,
    /// How many partial matches, buffered events or rules' states went.
    pub count: u64,
    /// Engine time, ms.
    pub engine_ms: u64,
}
