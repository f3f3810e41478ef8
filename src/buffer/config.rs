//! Limits of the journal.

use crate::buffer::record::Lane;

/// Limits of the hot and warm tier. Times in ms, sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Records stay in memory this long...
    pub hot_ttl_ms: u64,
    /// ...and this many bytes of them at most; records that are not durable yet stay regardless.
    pub hot_max_bytes: u64,
    /// Settled segments stay on the disk this long.
    pub warm_ttl_ms: u64,
    /// Quota of all segment files.
    pub warm_max_bytes: u64,
    /// A record becomes durable this long after it was appended, at the latest, on a disk that keeps up.
    pub sync_ms: u64,
    /// Size of a segment of the data lane; at most an eighth of the quota is used.
    pub segment_bytes: u64,
    /// Acknowledged segments stay this long: a server's acknowledgement is not an fsync there.
    pub keep_acked_ms: u64,
    /// The ledger is written this often at most, apart from when a segment goes and at the end. What a kill
    /// takes of it moves cursors back and forgets refused records on both sides of the account.
    pub ledger_ms: u64,
    /// Ballast that is given up for alarms on a full disk; 0 for none.
    pub reserve_bytes: u64,
    /// No data segment is made when less than this would be left on the filesystem.
    pub min_free_bytes: u64,
    /// Records that wait for the disk, in bytes of memory. Beyond, appends are refused.
    pub unwritten_max_bytes: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            hot_ttl_ms: 60_000,
            hot_max_bytes: 64 << 20,
            warm_ttl_ms: 2 * 3_600_000,
            warm_max_bytes: 1 << 30,
            sync_ms: 50,
            segment_bytes: 16 << 20,
            keep_acked_ms: 5 * 60_000,
            ledger_ms: 10_000,
            reserve_bytes: 8 << 20,
            min_free_bytes: 32 << 20,
            unwritten_max_bytes: 32 << 20,
        }
    }
}

impl Config {
    /// Says what can't work.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.warm_max_bytes < 64 << 10 {
            return Err("the warm quota must be at least 64 KiB");
        }
        if self.unwritten_max_bytes == 0 {
            return Err("the limit for unwritten records must not be 0");
        }
        Ok(())
    }

    /// Size of a new segment of `lane`. Alarms are few: theirs are a quarter, so that they trim as fast.
    pub(crate) fn capacity(&self, lane: Lane) -> u64 {
        let data = self.segment_bytes.min(self.warm_max_bytes / 8);
        match lane {
            Lane::Data => data,
            Lane::Alarms => (data / 4).max(4 << 10),
        }
    }
}
