//! Messages with values in them: `press {device} overheated: {hot.value:.1} °C`.
//!
//! What stands in braces is an expression; `:.1` behind it rounds a number to so many digits.
//! `{{` and `}}` are braces themselves.

use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;

use super::expr::{At, Expr, Names, Scope, Uses, Val, compile};
use super::source::Problem;

/// Longest message, bytes; what is longer is cut.
const MOST_BYTES: usize = 1_024;

#[derive(Debug)]
enum Part {
    Text(String),
    Value {
        expr: Box<Expr>,
        digits: Option<usize>,
    },
}

/// A message that is ready to be filled in.
#[derive(Debug)]
pub(crate) struct Template {
    parts: Vec<Part>,
}

impl Template {
    /// # Errors
    /// Everything wrong with it, each with its bytes in the text.
    pub(crate) fn parse(text: &str, names: &Names) -> Result<Self, Vec<(Range<usize>, Problem)>> {
        let mut parts = Vec::new();
        let mut errors = Vec::new();
        let mut plain = String::new();
        let mut at = 0;
        while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
            let Some(brace) = rest.find(['{', '}']) else {
                plain.push_str(rest);
                break;
            };
            plain.push_str(rest.get(..brace).unwrap_or_default());
            let from = rest.get(brace..).unwrap_or_default();
            if let Some(double) = ["{{", "}}"].iter().find(|d| from.starts_with(**d)) {
                plain.push_str(double.get(..1).unwrap_or_default());
                at += brace + 2;
                continue;
            }
            let close = from.find('}').filter(|_| from.starts_with('{'));
            let Some(close) = close else {
                errors.push((at + brace..at + brace + 1, Problem::Brace));
                at += brace + 1;
                continue;
            };
            if !plain.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut plain)));
            }
            let inner = from.get(1..close).unwrap_or_default();
            let start = at + brace + 1;
            let (expr, digits) = precision(inner);
            match compile(expr, names, false) {
                Ok(expr) => parts.push(Part::Value {
                    expr: Box::new(expr),
                    digits,
                }),
                Err(problems) => {
                    errors.extend(problems.into_iter().map(|At { problem, range }| {
                        (start + range.start..start + range.end, problem.into())
                    }))
                }
            }
            at += brace + close + 1;
        }
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        if errors.is_empty() {
            Ok(Self { parts })
        } else {
            Err(errors)
        }
    }

    pub(crate) fn uses(&self) -> Uses {
        let mut uses = Uses::default();
        for part in &self.parts {
            if let Part::Value { expr, .. } = part {
                uses.merge(&expr.uses);
            }
        }
        uses
    }

    /// The message. A value that can't be had shows as `?`.
    pub(crate) fn fill(&self, scope: &Scope<'_>) -> Arc<str> {
        let mut out = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Value { expr, digits } => match (expr.value(scope), digits) {
                    (Ok(Val::Double(v)), Some(digits)) => {
                        let _ = write!(out, "{v:.digits$}");
                    }
                    (Ok(Val::Null) | Err(_), _) => out.push('?'),
                    (Ok(value), _) => {
                        let _ = write!(out, "{}", value.into_value());
                    }
                },
            }
        }
        if out.len() > MOST_BYTES {
            let mut end = MOST_BYTES;
            while !out.is_char_boundary(end) {
                end -= 1;
            }
            out.truncate(end);
        }
        out.into()
    }
}

/// Splits `expr:.2`.
fn precision(inner: &str) -> (&str, Option<usize>) {
    if let Some((expr, digits)) = inner.rsplit_once(":.")
        && let Ok(digits) = digits.trim().parse::<usize>()
        && digits <= 12
    {
        return (expr, Some(digits));
    }
    (inner, None)
}
