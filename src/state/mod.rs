//! The state store: what the gateway knows beside the journal.
//!
//! Device state, host sessions and rule state are written as one [`Batch`] together with the journal record
//! and engine time that they are true for, so that after a crash the journal's records after that one bring
//! them up to date. The store is an index that can be rebuilt: [`open`] never fails because of what lies on
//! the disk. A store that can't be opened or read is set aside, the newest intact [`snapshot`] is loaded in
//! its place, and the journal (which keeps the records since the older of two snapshots) does the rest.
//!
//! ```text
//! <folder>/lock            held while the store is open
//! <folder>/ballast         room for opening on a full disk
//! <folder>/sled/           the database, or redb/ in builds with cargo feature `redb`
//! <folder>/snapshot-N      the two newest exports, each with a checksum
//! <folder>/aside-N/        databases that could not be used, the newest only
//! ```
//!
//! [`Backend`]s: sled, and redb behind a cargo feature; a store that lies in the other one is taken over when it is
//! opened. For tests there is [`MemoryStore`]; one suite of tests holds for all.

mod backend;
mod memory;
mod opening;
#[cfg(feature = "redb")]
mod redb;
mod sled;
pub mod snapshot;
mod store;
mod value;

#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;

pub use backend::Backend;
pub use memory::MemoryStore;
pub use opening::{OpenError, Opened, Options, Source, open};
pub use store::Store;

/// Longest key in bytes.
pub const MAX_KEY: usize = 1024;

/// Changes that become durable together or not at all. A later entry of the same key wins; deletes come
/// before puts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// Keys and their new values.
    pub puts: Vec<(Vec<u8>, Vec<u8>)>,
    /// Keys that go; unknown ones are ignored.
    pub deletes: Vec<Vec<u8>>,
}

impl Batch {
    /// Adds a value.
    pub fn put(&mut self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) {
        self.puts.push((key.into(), value.into()));
    }

    /// Adds a removal.
    pub fn delete(&mut self, key: impl Into<Vec<u8>>) {
        self.deletes.push(key.into());
    }

    /// Bytes of all keys and values.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let puts: usize = self
            .puts
            .iter()
            .map(|(key, value)| key.len() + value.len())
            .sum();
        puts + self.deletes.iter().map(Vec::len).sum::<usize>()
    }

    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.puts.is_empty() && self.deletes.is_empty()
    }
}

/// Why the store can't do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The disk has no room for the batch. Nothing was written; the same batch can be tried again.
    #[error("no room for the state: {free} bytes free, {needed} needed")]
    Full {
        /// Bytes free on the filesystem.
        free: u64,
        /// Bytes that a commit may take.
        needed: u64,
    },
    /// A key is empty or longer than [`MAX_KEY`].
    #[error("a state key of {0} bytes")]
    Key(usize),
    /// A stored value fails its checksum, or parts of it are missing. The store must be opened anew, which
    /// rebuilds it.
    #[error("the stored value of a key of {0} bytes is damaged")]
    Damaged(usize),
    /// The database lacks the mark of a finished one of this version: its files are gone, or it was cut off
    /// while it was made.
    #[error("the state database was never finished, or its files are gone")]
    Unfinished,
    /// A commit failed before, and nothing is known of what is durable. The store must be opened anew.
    #[error("the state store has stopped after a failed commit")]
    Poisoned,
    /// The filesystem refused.
    #[error("cannot {doing} the state at {}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// Where.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The database failed.
    #[error("state database")]
    Database(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The state lies in a database that this build cannot read.
    #[error("the state lies in a {0} database, which this build cannot read")]
    Unsupported(String),
    /// The database panicked; it is not used any more.
    #[error("the state database panicked: {0}")]
    Panicked(String),
}

impl StateError {
    /// Whether the same call may succeed later on the same store.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Full { .. })
    }
}

/// Keys and values of one scan.
pub type Pairs<'a> = Box<dyn Iterator<Item = Result<(Vec<u8>, Vec<u8>), StateError>> + 'a>;

/// A durable map from bytes to bytes.
pub trait StateStore: Send + Sync {
    /// Writes `batch`. When this returns, all of it survives a power cut; when it fails, or the power is cut
    /// meanwhile, either all of it is there after the next opening or nothing.
    ///
    /// # Errors
    /// See [`StateError`]. After anything but `Full` and `Key` the store is of no more use.
    fn commit(&self, batch: &Batch) -> Result<(), StateError>;
    /// The value of `key`.
    ///
    /// # Errors
    /// See [`StateError`].
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StateError>;
    /// All keys that start with `prefix`, with their values, in the order of their bytes.
    fn scan_prefix(&self, prefix: &[u8]) -> Pairs<'_>;
}

fn check_key(key: &[u8]) -> Result<(), StateError> {
    if key.is_empty() || key.len() > MAX_KEY {
        Err(StateError::Key(key.len()))
    } else {
        Ok(())
    }
}
