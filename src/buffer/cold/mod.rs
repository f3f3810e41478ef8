//! The cold tier: sealed segments as Parquet in an object store.
//!
//! One object a segment, named by gateway, epoch, lane, first and last record id, and one manifest beside it. Both
//! are made with "only if there is none yet", under the same name whenever the same segment is archived again, so
//! that an upload can be repeated after any crash: what is there already is read and compared.
//!
//! 1. encode the segment (`table`);
//! 2. put the object;
//! 3. read it back and compare its SHA-256;
//! 4. put the manifest;
//! 5. append the entry to the file `cold`, synced.
//!
//! Only then the local file may go. A crash in between repeats the steps; none of them makes a second object.
//!
//! Under pressure of the warm quota undelivered segments that are archived leave the disk: they stay in the lane as
//! segments without a file, and readers fetch them from the store, in their place.

pub mod config;
#[cfg_attr(
    not(feature = "cold"),
    allow(dead_code, reason = "the archiver alone writes it")
)]
pub(crate) mod index;
#[cfg_attr(
    not(feature = "cold"),
    allow(dead_code, reason = "the archiver alone asks it")
)]
mod journal;

#[cfg(feature = "cold")]
pub(crate) mod archiver;
#[cfg(feature = "cold")]
mod http;
#[cfg(feature = "cold")]
pub(crate) mod store;
#[cfg(feature = "cold")]
pub(crate) mod table;

#[cfg(feature = "cold")]
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

pub use config::{Archive, Config};
pub use index::Entry;

#[cfg(feature = "cold")]
use crate::buffer::Journal;
use crate::buffer::record::Record;

/// The records of one archived segment, a part at a time.
pub(crate) type Parts = Box<dyn Iterator<Item = io::Result<VecDeque<Arc<Record>>>> + Send>;

/// Reads archived segments. Calls wait for the network.
pub(crate) trait Fetch: Send + Sync {
    /// The records of a segment, in order.
    fn fetch(&self, entry: &Entry) -> io::Result<Parts>;
}

/// Why the cold tier can't be started.
#[cfg(feature = "cold")]
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its configuration can't be used.
    #[error(transparent)]
    Store(#[from] store::StoreError),
    /// No thread for it.
    #[error("thread of the cold tier")]
    Thread(#[source] io::Error),
}

/// Archives the segments of `journal` from now on, and lets its readers read what is archived. Requests run on
/// `handle`. The store may be out of reach: it is tried again until the journal closes.
///
/// # Errors
/// The configuration can't be used. The store itself is not asked.
#[cfg(feature = "cold")]
pub fn start(
    journal: &Journal,
    config: &Config,
    gateway: &str,
    handle: tokio::runtime::Handle,
) -> Result<(), StartError> {
    let store = Arc::new(store::Store::new(config, Some(handle))?);
    journal.attach_cold(config.archive, Arc::clone(&store) as Arc<dyn Fetch>);
    let archiver = archiver::Archiver::new(journal.clone(), store, config.clone(), gateway);
    std::thread::Builder::new()
        .name("cold".to_owned())
        .spawn(move || {
            models::step_back();
            archiver.run();
        })
        .map_err(StartError::Thread)?;
    Ok(())
}

/// How the cold tier does.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Status {
    /// Objects stored.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Sealed segments that are to be archived and are not yet.
    pub waiting: u64,
    /// Undelivered segments that lie in the store alone.
    pub parked: u64,
    /// Delivered records whose segment went before it could be archived.
    pub missed_records: u64,
    /// Why the last attempt failed; `None` while all is well.
    pub error: Option<String>,
}
