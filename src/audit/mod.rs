//! The audit log: who did what, when, from which value to which, and what came of it.
//!
//! It is made of the journal: every `command` record, what people did to alarms and every operator's action becomes
//! one entry, once its record is on disk, in the journal's order. So it is complete over crashes: after a restart it
//! goes on behind the last record it holds. It outlives the journal's retention.
//!
//! # Format
//! Files `audit-<first seq, 20 digits>.jsonl`, an entry a line:
//! `{"seq":n,"prev":"<hash>","record":id,"at":ms,"what":"command|alarm|action|trim","body":{…},"hash":"<hash>"}`.
//! `hash` is the SHA-256, in hex, of the line's bytes before `,"hash":`; `prev` is the hash of the entry before, 64
//! zeros for the first. `seq` rises by one. A file is followed by a new one at 16 MiB; past the quota the oldest file
//! goes, after an entry `trim` that names the last seq and hash that go with it.
//!
//! # What verification finds
//! An altered entry fails its hash or breaks the chain behind it; a removed one breaks `seq` and `prev`; a removed
//! tail is behind the head that the state store keeps, and that the gateway's presence records carry upstream each
//! minute. A gateway that starts on a log that does not hold its head goes on from the head, so that the break stays
//! visible. Who may write both the files and the store can still rewrite everything: then only the head upstream tells.
//!
//! | what happened | test |
//! |---|---|
//! | an entry altered, removed, exchanged | `any_altered_or_removed_entry_is_found` |
//! | entries cut from the tail, with and without a restart after it | `a_cut_tail_is_found_and_stays_visible` |
//! | a torn last line after a power cut | `a_torn_line_is_cut` |
//! | files trimmed by the quota, and one removed by hand | `trimmed_files_are_vouched_for` |

mod follow;
mod log;
mod verify;

use serde_json::Value as Json;

use crate::digest::sha256;

pub use follow::{Follower, Heads, Sender, catch_up, entry_of};
pub use log::{Log, OpenError};
pub use verify::{Problem, Report, verify};

/// Key of the head in the state store.
pub const KEY: &[u8] = b"audit";

/// The newest entry, and how far the journal is in the log.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Head {
    /// Its number; 0 while there is none.
    pub seq: u64,
    /// Its hash in hex.
    pub hash: String,
    /// Every record up to this one that belongs into the log is in it.
    pub through: u64,
}

impl Default for Head {
    fn default() -> Self {
        Self {
            seq: 0,
            hash: "0".repeat(64),
            through: 0,
        }
    }
}

impl Head {
    /// Reads what the state store keeps; anything else is no head.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    /// Inverse of [`Head::decode`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// What becomes an entry.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The journal's record, 0 for what the log says of itself.
    pub record: u64,
    /// ms UTC.
    pub at_ms: u64,
    /// `command`, `alarm`, `action` or `trim`.
    pub what: &'static str,
    /// The record's body.
    pub body: Json,
}

/// The line of an entry, without its line feed, and its hash.
fn line(seq: u64, prev: &str, entry: &Entry) -> (String, String) {
    let open = format!(
        "{{\"seq\":{seq},\"prev\":\"{prev}\",\"record\":{},\"at\":{},\"what\":\"{}\",\"body\":{}",
        entry.record, entry.at_ms, entry.what, entry.body
    );
    let hash = sha256(open.as_bytes());
    (format!("{open},\"hash\":\"{hash}\"}}"), hash)
}

/// An entry as it lies in a file.
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
struct Stored {
    seq: u64,
    prev: String,
    record: u64,
    what: String,
    body: Json,
    hash: String,
}

/// Why a line is no entry.
#[derive(Debug, Clone, PartialEq, Eq)]
enum BadLine {
    Unreadable,
    /// It says this number, and its bytes do not fit its hash.
    Altered(u64),
}

fn parse(line: &[u8]) -> Result<Stored, BadLine> {
    let stored: Stored = serde_json::from_slice(line).map_err(|_| BadLine::Unreadable)?;
    const MARK: &[u8] = b",\"hash\":\"";
    let open = line
        .windows(MARK.len())
        .rposition(|window| window == MARK)
        .and_then(|at| line.get(..at))
        .ok_or(BadLine::Unreadable)?;
    if sha256(open) == stored.hash {
        Ok(stored)
    } else {
        Err(BadLine::Altered(stored.seq))
    }
}

#[cfg(test)]
mod tests;
