//! Keyed complex event processing for Sparkplug metrics, without I/O.

mod engine;
mod event;
mod lang;
pub mod pattern;
mod output;
mod value;

pub use event::{Cause, Event, EventKind, Key, Level, QUALITY_GOOD, Sample};
pub use value::Value;
pub use lang::{EvalError, ExprProblem, LoadError, Pack, Problem, load_packs};
