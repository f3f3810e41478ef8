//! Expressions: the syntax of CEL, checked when a pack is loaded and compiled to closures.
//!
//! The parser is crate `cel`'s; everything behind the syntax tree is here. Every name is resolved
//! when the pack is loaded, so that a misspelt stage or function is an error of the file, with its
//! place, and never one of a running plant.
//!
//! Values at run time:
//! * Numbers of every width compare by value; 64-bit integers are exact. `/` is the division of
//!   doubles.
//! * A comparison with null or NaN is false, `!=` included, and so `!(x > 1)` is true. `x == null`
//!   and `x != null`, with the word written out, ask whether there is a value.
//! * Arithmetic with null is null. A condition that ends in null is false.
//! * A wrong type (`"n/a" * 2`) or a division by zero is an [`EvalError`]: the condition is false,
//!   the failure is counted. `false && failure` is false and `true || failure` is true, whichever
//!   side fails.

mod call;
mod compile;
mod leaf;
mod names;
mod operators;
mod problem;
#[cfg(test)]
mod tests;
mod value;

pub(crate) use compile::{Expr, Subject, compile};
pub(crate) use names::{Aggregate, Names, Uses, VARIABLES};
pub(crate) use problem::At;
pub use problem::ExprProblem;
pub(crate) use value::{Arith, Val, to_f64};

use crate::event::{Key, Sample};
use crate::value::Value;

/// Why an expression had no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// An operator that these kinds of values don't have.
    #[error("{operation} of {left} and {right}")]
    WrongTypes {
        /// The operator.
        operation: &'static str,
        /// Kind of the left operand.
        left: &'static str,
        /// Kind of the right operand.
        right: &'static str,
    },
    /// A function or operator of one value that this kind doesn't have.
    #[error("{operation} of {found}; needs a {needed}")]
    WrongType {
        /// The function or operator.
        operation: &'static str,
        /// What it needs.
        needed: &'static str,
        /// What it got.
        found: &'static str,
    },
    /// `/` or `%` by zero.
    #[error("division by zero")]
    DivisionByZero,
    /// A text that does not read as a number.
    #[error("`{text}` is not a number")]
    NotANumber {
        /// The text, shortened to 40 characters.
        text: String,
    },
}

/// What a pattern's stages hold.
pub(crate) trait Stages {
    fn first(&self, stage: u16) -> Option<&Sample>;
    fn last(&self, stage: u16) -> Option<&Sample>;
    fn count(&self, stage: u16) -> usize;
    fn each(&self, stage: u16, f: &mut dyn FnMut(&Sample));
}

/// No stage holds anything: every rule that is not a pattern.
#[derive(Debug)]
pub(crate) struct NoStages;

impl Stages for NoStages {
    fn first(&self, _: u16) -> Option<&Sample> {
        None
    }
    fn last(&self, _: u16) -> Option<&Sample> {
        None
    }
    fn count(&self, _: u16) -> usize {
        0
    }
    fn each(&self, _: u16, _: &mut dyn FnMut(&Sample)) {}
}

/// What an expression can ask beyond its event.
pub(crate) trait World {
    /// Last-known good value of a metric of the event's device, no older than this many ms.
    fn current(&self, metric: &str, max_age_ms: Option<u64>) -> Option<&Value>;
    /// Vector of a phrase.
    fn phrase(&self, phrase: &str) -> Option<&[f32]>;
}

/// Everything an expression runs on.
#[derive(Clone, Copy)]
pub(crate) struct Scope<'a> {
    /// The event under test.
    pub(crate) event: Option<&'a Sample>,
    /// Key of the rule's state, for where there is no event.
    pub(crate) key: &'a Key,
    pub(crate) stages: &'a dyn Stages,
    pub(crate) world: &'a dyn World,
    /// Results by number: a window's aggregates, or its columns.
    pub(crate) results: &'a [Value],
}

impl<'a> Scope<'a> {
    pub(crate) fn source(&self) -> &'a Key {
        self.event.map_or(self.key, |event| &event.source)
    }
}
