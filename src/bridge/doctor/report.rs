//! What the doctor found.

use std::fmt;

use serde::Serialize;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Note,
    /// Works, and could be better.
    Warning,
    /// Missing or unsafe.
    Error,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// What was looked at.
    pub what: String,
    /// What is the case.
    pub is: String,
    /// What should be, where that differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub should: Option<String>,
    /// The command that mends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
}

/// Everything that was found.
#[derive(Debug, Clone, PartialEq, Serialize, Default)]
pub struct Report {
    /// In the order in which it was looked at.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Nothing is missing or unsafe.
    #[must_use]
    pub fn is_safe(&self) -> bool {
        self.findings
            .iter()
            .all(|finding| finding.level < Level::Error)
    }

    pub(crate) fn say(
        &mut self,
        level: Level,
        what: impl Into<String>,
        is: impl Into<String>,
    ) -> &mut Finding {
        self.findings.push(Finding {
            level,
            what: what.into(),
            is: is.into(),
            should: None,
            mend: None,
        });
        let last = self.findings.len() - 1;
        // Just pushed.
        #[allow(clippy::indexing_slicing)]
        &mut self.findings[last]
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            let sign = match finding.level {
                Level::Ok => "ok     ",
                Level::Note => "note   ",
                Level::Warning => "warning",
                Level::Error => "ERROR  ",
            };
            write!(f, "{sign} {}: {}", finding.what, finding.is)?;
            if let Some(should) = &finding.should {
                write!(f, " (declared: {should})")?;
            }
            writeln!(f)?;
            if let Some(mend) = &finding.mend {
                writeln!(f, "        mend: {mend}")?;
            }
        }
        let bad = self
            .findings
            .iter()
            .filter(|it| it.level == Level::Error)
            .count();
        let warnings = self
            .findings
            .iter()
            .filter(|it| it.level == Level::Warning)
            .count();
        write!(f, "{bad} missing or unsafe, {warnings} warnings")
    }
}
