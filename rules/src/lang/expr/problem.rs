//! What can be wrong with an expression when it is loaded.

use std::ops::Range;

/// A problem and the bytes of the expression's text that it is about.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct At {
    pub(crate) problem: ExprProblem,
    pub(crate) range: Range<usize>,
}

/// What is wrong with an expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExprProblem {
    /// Not CEL.
    #[error("the expression does not parse: {detail}")]
    Syntax {
        /// The parser's words.
        detail: String,
    },
    /// A variable that isn't known here.
    #[error("unknown name `{name}`")]
    UnknownName {
        /// The name.
        name: String,
        /// The nearest known one.
        nearest: Option<String>,
    },
    /// A field that a stage doesn't have.
    #[error("a stage has no `{field}`")]
    UnknownField {
        /// The field.
        field: String,
        /// The nearest known one.
        nearest: Option<String>,
    },
    /// A function that isn't known here.
    #[error("unknown function `{name}`")]
    UnknownFunction {
        /// The function.
        name: String,
        /// The nearest known one.
        nearest: Option<String>,
    },
    /// Wrong number of arguments.
    #[error("`{function}` takes {needed}")]
    Arguments {
        /// The function.
        function: String,
        /// What it takes.
        needed: &'static str,
    },
    /// Types that can never fit.
    #[error("`{operation}` of {found}; needs {needed}")]
    Type {
        /// Operator or function.
        operation: String,
        /// What it needs.
        needed: &'static str,
        /// What it is given.
        found: &'static str,
    },
    /// A stage stands where its value is meant.
    #[error("`{stage}` is a stage; write `{stage}.value`")]
    BareStage {
        /// The stage.
        stage: String,
    },
    /// A duration that can't be read.
    #[error("`{text}` is no duration; write for example \"30s\"")]
    Duration {
        /// What was written.
        text: String,
    },
    /// Part of CEL that rules don't have.
    #[error("{what} can't be used in a rule")]
    Unsupported {
        /// Which part.
        what: &'static str,
    },
}

impl ExprProblem {
    /// The nearest known name, where one is meant.
    pub(crate) fn nearest(&self) -> Option<&str> {
        match self {
            Self::UnknownName { nearest, .. }
            | Self::UnknownField { nearest, .. }
            | Self::UnknownFunction { nearest, .. } => nearest.as_deref(),
            Self::Syntax { .. }
            | Self::Arguments { .. }
            | Self::Type { .. }
            | Self::BareStage { .. }
            | Self::Duration { .. }
            | Self::Unsupported { .. } => None,
        }
    }
}
