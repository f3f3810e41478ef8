//! Scenarios: a timeline of values and what is expected of the rules, in a form that a process
//! engineer reads.
//!
//! ```toml
//! device = "plantA/gw-07/press-1"
//!
//! [[at]]
//! t = "5s"
//! set = { Temperature = 96.0, Alert = "ALERT" }
//!
//! [[expect]]
//! t = "5s"
//! rule = "overheat-confirmed"
//! alarm = "raise"
//! ```
//!
//! * The device is born at 0. `set` after a `death` bears it again.
//! * `[[at]]` has one of `set`, `score = { model = 0.9 }`, `death = true`, `silence = "60s"`, and
//!   may name another `device`. A value may be `{ value = 1.0, quality = 0 }` or `{ null = true }`.
//! * `[[expect]]` has one of `alarm` (an event: raise, clear, ..), `match = true`,
//!   `command = { metric = "..", value = .. }`, `nothing = true`. What is expected must happen at
//!   exactly `t`, or with `within` up to so much later. `nothing`: from the expectation of the same
//!   rule before it (or from the beginning) up to `t` the rule does nothing.
//! * With `strict = true` nothing else may happen.

mod parse;
mod play;
mod report;
#[cfg(test)]
mod tests;

use std::fmt;

pub use report::{Happening, Outcome, Report};

use crate::lang::{LoadError, Pack};

/// A scenario file that can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioError {
    /// Everything that is wrong with it.
    pub errors: Vec<LoadError>,
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, error) in self.errors.iter().enumerate() {
            if n > 0 {
                writeln!(f)?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ScenarioError {}

/// Plays a scenario against packs. `name` is the file's name for messages.
///
/// # Errors
/// The scenario is not well formed, or names a rule that the packs don't have.
pub fn run(packs: &[Pack], name: &str, text: &str) -> Result<Report, ScenarioError> {
    let scenario = parse::parse(packs, name, text).map_err(|errors| ScenarioError { errors })?;
    let happened = play::play(packs, &scenario);
    Ok(report::compare(name, scenario, happened))
}
