//! Sequence patterns over the events of a key, with the semantics of Flink CEP.
//!
//! A [`PatternSpec`] says what to look for; [`PatternSpec::compile`] makes the immutable [`Plan`] that
//! all keys share; a [`KeyState`] is what one key remembers. The caller feeds events in order
//! ([`Plan::handle_event`]) and time ([`Plan::advance_to`]), and gets matches, time-outs and evictions
//! through a callback. No clock, no I/O: time is an argument.
//!
//! * **Conditions** are numbers to this module; an [`Evaluator`] gives them a meaning. It sees the
//!   event and, as a [`Path`], what the partial match has taken so far.
//! * **Event time**: [`Reorder`] sorts what arrives out of order, [`Keyed`] runs a pattern over many
//!   keys behind one watermark. In arrival time events go straight to the plan.
//! * **Bounds**: [`Limits`] a key, eviction by age; [`Bounds`] for many keys; [`Reorder`] has a capacity.
//! * **Snapshots**: [`KeyState::encode`] and [`KeyState::decode`].
//!
//! # Semantics
//! Flink CEP 1.20 (2.3 is the same) is the reference, down to the order of outputs inside a key, which
//! there is the array order of a priority queue (`heap`). `tests/flink` holds cases recorded from
//! it. Deliberate differences:
//!
//! * Where Flink's job would fail while running (a strict skip strategy that finds nothing to skip to)
//!   this engine puts out [`Output::SkipMissed`] and goes on.
//! * A repeated group that can match nothing (`(a?)+`) makes Flink loop for ever; here the empty round
//!   is not walked again.
//! * `greedy`, `optional` and `until` together behind a `not-followed-by` make Flink fail when `until`
//!   fits; here the pattern goes on to the next stage.
//!
//! # Two ways through
//! The automaton handles everything. Plain sequences take a shorter way ([`Plan::is_chain`]) with the
//! same outputs.

mod arena;
mod automaton;
mod chain;
mod compile;
mod eval;
mod event_time;
mod heap;
mod keyed;
mod output;
mod path;
mod plan;
mod settle;
mod snapshot;
mod spec;
mod state;

pub use compile::{CompileError, MAX_STATES};
pub use eval::Evaluator;
pub use event_time::{Admission, EventTime, Reorder, Watermark};
pub use keyed::{Bounds, Keyed, Refused};
pub use output::{Limits, Output, SkipMiss};
pub use path::{Backward, Forward, INLINE, Path};
pub use plan::{Plan, StageIdx};
pub use snapshot::SnapshotError;
pub use spec::{
    CondId, Condition, Contiguity, Inner, PatternSpec, Quantifier, Repeat, Skip, StageKind,
    StageSpec,
};
pub use state::KeyState;

#[cfg(test)]
mod tests;
