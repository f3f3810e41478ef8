//! The journal: the one truth of the gateway, and its hot and warm tiers.
//!
//! (design to follow)

mod codec;
mod config;
pub mod crash;
mod frame;
mod journal;
mod ledger;
mod policy;
mod read;
pub mod record;
mod recovery;
mod replay;
mod segment;
mod shared;
mod stat;
pub mod storage;
pub mod tools;
mod walk;
mod writer;

#[cfg(test)]
mod tests;

pub use codec::DecodeError;
pub use config::Config;
pub use journal::{AppendError, BatchError, CloseError, Journal};
pub use ledger::Counts;
pub use read::ReadError;
pub use recovery::{Gap, OpenError, Quarantined, Recovery};
pub use replay::Replay;
pub use stat::{DiskState, LaneState, Stat};
pub use storage::{DiskStorage, Storage, StorageError, StorageFile};
