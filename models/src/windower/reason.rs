//! Why there is no verdict.

use std::fmt;

/// Why a window or a sample gave no number. Closed: each has its own counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// The metric is null.
    Null,
    /// The metric has bad or stale quality.
    Bad,
    /// NaN or infinite.
    NotFinite,
    /// Another datatype than the manifest declares.
    WrongType,
    /// Outside the input's declared range.
    OutOfRange,
    /// A time that is no time.
    BadTime,
    /// Older than `max_age` on arrival.
    Aged,
    /// Further ahead of the gateway's clock than `max_age`.
    Future,
    /// Silent for longer than `max_gap` between two samples.
    Gap,
    /// A metric stands still for longer than `hold` while others go on, or the device is
    /// silent or gone.
    Stale,
    /// A declared metric that the device does not report.
    Missing,
    /// The window became no tensor: a number of it is not finite.
    Feature,
    /// The model's output is NaN or outside its declared range.
    Output,
    /// The backend failed on the window.
    Backend,
}

impl Reason {
    /// Label of counters and records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bad => "bad-quality",
            Self::NotFinite => "not-finite",
            Self::WrongType => "wrong-type",
            Self::OutOfRange => "input-out-of-range",
            Self::BadTime => "bad-time",
            Self::Aged => "too-old",
            Self::Future => "in-the-future",
            Self::Gap => "gap",
            Self::Stale => "stale",
            Self::Missing => "missing",
            Self::Feature => "feature-not-finite",
            Self::Output => "output-out-of-range",
            Self::Backend => "backend-failed",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
