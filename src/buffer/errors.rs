//! What appending and closing can say.

use std::time::Duration;

use crate::buffer::record::NewRecord;

/// A record was not taken; it comes back where it can be tried again.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// No room on the disk or under the quota, or the disk is too slow and too much waits to be written.
    /// Heals by itself.
    #[error("the journal has no room")]
    Full(Box<NewRecord>),
    /// The writer has stopped for good; the process must end.
    #[error("the journal has stopped")]
    Stopped,
}

/// A batch was not taken, none of it.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// See [`AppendError::Full`].
    #[error("the journal has no room")]
    Full(Vec<NewRecord>),
    /// See [`AppendError::Stopped`].
    #[error("the journal has stopped")]
    Stopped,
}

/// The journal did not come to a clean end.
#[derive(Debug, thiserror::Error)]
pub enum CloseError {
    /// The writer had stopped before.
    #[error("the journal had stopped: {0}")]
    Stopped(String),
    /// The disk took too long; what was not durable may be lost.
    #[error("the journal was still writing after {0:?}")]
    TimedOut(Duration),
    /// The disk has no room for the last records.
    #[error("{0} records could not be written: no room")]
    Unwritten(usize),
}
