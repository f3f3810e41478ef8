//! Places in a file, and errors that show them.

use std::fmt;
use std::ops::Range;

use super::expr::ExprProblem;
use crate::pattern::CompileError;

/// What is wrong in a pack.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Not TOML.
    #[error("{detail}")]
    Toml {
        /// The parser's words.
        detail: String,
    },
    /// A key that isn't known here.
    #[error("unknown key `{key}`")]
    UnknownKey {
        /// The key.
        key: String,
        /// The nearest known one.
        nearest: Option<String>,
    },
    /// A key that must be there.
    #[error("`{key}` is missing")]
    MissingKey {
        /// The key.
        key: &'static str,
    },
    /// Another type of value.
    #[error("`{key}` must be {needed}, not {found}")]
    WrongType {
        /// The key.
        key: String,
        /// What it must be.
        needed: &'static str,
        /// What it is.
        found: &'static str,
    },
    /// A word that isn't one of those allowed.
    #[error("`{key}` can't be `{word}`; it is one of {known}")]
    UnknownWord {
        /// The key.
        key: String,
        /// What was written.
        word: String,
        /// What may stand there.
        known: String,
        /// The nearest of them.
        nearest: Option<String>,
    },
    /// A text that is no duration.
    #[error("`{text}` is no duration; write for example \"30s\"")]
    Duration {
        /// What was written.
        text: String,
    },
    /// A number outside of its range.
    #[error("`{key}` must be {needed}")]
    Range {
        /// The key.
        key: String,
        /// What it must be.
        needed: &'static str,
    },
    /// A name that can't be used.
    #[error("`{name}` can't be the name of a {what}: {why}")]
    BadName {
        /// The name.
        name: String,
        /// What it should name.
        what: &'static str,
        /// Why not.
        why: &'static str,
    },
    /// Two things of one name.
    #[error("{what} `{name}` is defined twice; the first is at {first}")]
    Duplicate {
        /// What sort of thing.
        what: &'static str,
        /// Its name.
        name: String,
        /// `file:line:col` of the first.
        first: String,
    },
    /// Two keys that exclude each other, or one that needs another.
    #[error("{what}")]
    Combination {
        /// What doesn't go together.
        what: &'static str,
    },
    /// A name that nothing in the rule has.
    #[error("unknown {what} `{name}`")]
    UnknownName {
        /// What sort of thing.
        what: &'static str,
        /// The name.
        name: String,
        /// The nearest known one.
        nearest: Option<String>,
    },
    /// A brace in a message that isn't closed.
    #[error("`{{` without `}}`; write `{{{{` for a brace itself")]
    Brace,
    /// An expression is wrong.
    #[error(transparent)]
    Expression(#[from] ExprProblem),
    /// A pattern is wrong.
    #[error(transparent)]
    Pattern(#[from] CompileError),
}

impl Problem {
    fn nearest(&self) -> Option<&str> {
        match self {
            Self::UnknownKey { nearest, .. }
            | Self::UnknownWord { nearest, .. }
            | Self::UnknownName { nearest, .. } => nearest.as_deref(),
            Self::Expression(problem) => problem.nearest(),
            Self::Toml { .. }
            | Self::MissingKey { .. }
            | Self::WrongType { .. }
            | Self::Duration { .. }
            | Self::Range { .. }
            | Self::BadName { .. }
            | Self::Duplicate { .. }
            | Self::Combination { .. }
            | Self::Brace
            | Self::Pattern(_) => None,
        }
    }
}

/// One error of a pack or scenario file, with its place.
///
/// Displayed, it is `file:line:column: message`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// Name of the file as it was given.
    pub file: String,
    /// Line and column (in characters), both from 1; `None` where the whole file is meant.
    pub place: Option<(usize, usize)>,
    /// What is wrong.
    pub problem: Problem,
    /// The problem in words, the line with a caret below, and the nearest known name where there is
    /// one.
    pub message: String,
}

impl LoadError {
    /// The nearest known name, where one is meant.
    #[must_use]
    pub fn nearest(&self) -> Option<&str> {
        self.problem.nearest()
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Some((line, column)) => write!(f, "{}:{line}:{column}: {}", self.file, self.message),
            None => write!(f, "{}: {}", self.file, self.message),
        }
    }
}

impl std::error::Error for LoadError {}

/// Problem, line, caret and hint.
fn message(problem: &Problem, line: usize, column: usize, text: &str, width: usize) -> String {
    let number = line.to_string();
    let margin = " ".repeat(number.len());
    // Tabs stay tabs, so that the caret stands below what it means.
    let lead = text.chars().take(column.saturating_sub(1));
    let lead: String = lead.map(|c| if c == '\t' { c } else { ' ' }).collect();
    let caret = "^".repeat(width.max(1));
    let mut message =
        format!("{problem}\n {margin} |\n {number} | {text}\n {margin} | {lead}{caret}");
    if let Some(nearest) = problem.nearest() {
        message.push_str(&format!("\n {margin} = did you mean `{nearest}`?"));
    }
    message
}

/// A file's text, its name, and the errors found in it.
#[derive(Debug)]
pub(crate) struct Source<'t> {
    pub(crate) name: &'t str,
    pub(crate) text: &'t str,
    pub(crate) errors: Vec<LoadError>,
}

impl<'t> Source<'t> {
    pub(crate) fn new(name: &'t str, text: &'t str) -> Self {
        Self {
            name,
            text,
            errors: Vec::new(),
        }
    }

    pub(crate) fn error(&mut self, range: Range<usize>, problem: impl Into<Problem>) {
        let error = self.at(range, problem.into());
        self.errors.push(error);
    }

    pub(crate) fn at(&self, range: Range<usize>, problem: Problem) -> LoadError {
        let (line, column, text) = self.position(range.start);
        let span = self.text.get(range).unwrap_or_default();
        let width = span.lines().next().unwrap_or_default().chars().count();
        LoadError {
            file: self.name.to_owned(),
            place: Some((line, column)),
            message: message(&problem, line, column, &text, width),
            problem,
        }
    }

    /// `file:line:column` of a byte.
    pub(crate) fn place(&self, at: usize) -> String {
        let (line, column, _) = self.position(at);
        format!("{}:{line}:{column}", self.name)
    }

    fn position(&self, at: usize) -> (usize, usize, String) {
        let mut at = at.min(self.text.len());
        while !self.text.is_char_boundary(at) {
            at -= 1;
        }
        let before = self.text.get(..at).unwrap_or_default();
        let start = before.rfind('\n').map_or(0, |n| n + 1);
        let rest = self.text.get(start..).unwrap_or_default();
        let text = rest.lines().next().unwrap_or_default().to_owned();
        let line = before.matches('\n').count() + 1;
        let column = before.get(start..).unwrap_or_default().chars().count() + 1;
        (line, column, text)
    }

    /// Bytes of a part of a string value, given where the value stands. Strings with escapes show
    /// their beginning.
    pub(crate) fn inside(
        &self,
        value: &Range<usize>,
        content: &str,
        part: &Range<usize>,
    ) -> Range<usize> {
        let raw = self.text.get(value.clone()).unwrap_or_default();
        match raw.find(content).filter(|_| !content.is_empty()) {
            Some(at) => {
                let start = value.start + at;
                start + part.start..start + part.end
            }
            None => value.clone(),
        }
    }
}
