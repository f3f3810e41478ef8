//! Keyed complex event processing for Sparkplug metrics, without I/O.
//!
//! [`load_packs`] reads rules; an [`Engine`] runs them over [`Event`]s and gives [`Output`]s.
//! `README.md` beside this crate describes the rule language.

mod absence;
mod alarm;
mod engine;
mod event;
mod lang;
mod output;
pub mod pattern;
pub mod scenario;
mod shipped;
mod snapshot;
mod threshold;
mod value;
mod window;

pub use alarm::AlarmError;
pub use engine::{
    AlarmInfo, Counts, DeathCause, Engine, Explained, Finding, Guard, Lent, Limits, Mismatch,
    OwnAlarm, Place, Router, RuleInfo, Share,
};
pub use event::{Cause, Event, EventKind, Key, Level, QUALITY_GOOD, Sample};
pub use lang::{EvalError, ExprProblem, Glob, LoadError, Pack, Problem, load_packs};
pub use output::{
    AlarmAction, AlarmEvent, AlarmStatus, CommandRequest, Confirm, EvalFailure, EvictReason,
    Evicted, Expect, Late, Match, OnRestart, Output, Priority, TimedOut, Undo, Values,
};
pub use shipped::shipped;
pub use snapshot::Corrupt;
pub use value::Value;
