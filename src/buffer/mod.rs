//! The journal: the one truth of the gateway, in a hot tier (memory) and a warm tier (segments on disk).
//!
//! `docs/buffer-format.md` draws the bytes. This is the design.
//!
//! # Limits
//!
//! | what | limit | beyond it |
//! |---|---|---|
//! | hot tier | [`Config::hot_ttl_ms`], [`Config::hot_max_bytes`] | the oldest durable records leave memory; they are on disk |
//! | records waiting for the disk | [`Config::unwritten_max_bytes`], twice that for alarms | append is refused ([`AppendError::Full`]) |
//! | segment files | [`Config::warm_max_bytes`] | see *Who may delete* |
//! | free space | [`Config::min_free_bytes`] | no new data segment: refused until there is room again |
//! | frame | 256 KiB of records, or one larger record | the next frame |
//! | lost ranges that are told apart | 256 | neighbours are told as one |
//! | tap | 1024 records a subscriber | it misses records and is told how many |
//! | memory of a reader | one window of 256 KiB, or one frame | |
//!
//! # Layout
//!
//! Each lane has segment files of its own, so that alarms are read without data, dropped after data, and
//! never pinned by a backlog of data. Record ids run over both lanes; within a lane each record names the one
//! before it (`prev`), and each frame counts the records of the lane before it (its *ordinal*). Ids may jump
//! (after an unclean end they do, so that none is given twice); ordinals never do, so that a missing ordinal
//! is a lost record, and the counts of the identity follow from headers and trailers alone.
//!
//! # Writing
//!
//! [`Journal::append`] gives an id, puts the record into the hot tier and the queue, and returns. One thread
//! writes the queue as frames and syncs: at once when an acknowledgement waits ([`Journal::want_sync`]) or an
//! alarm is queued, else every [`Config::sync_ms`]. One fsync covers all that arrived since the one before.
//! Segments are preallocated, so that a full disk shows when a segment is made, where it is a state that
//! heals. A failed fsync is the end: it is never retried, appends are refused, [`Journal::failed`] says why.
//! Alarms are written after all earlier data is durable: after a crash no alarm stands without its cause.
//!
//! # Reading
//!
//! From the hot tier while the place is in it, else from segments, sequentially and past damage. Where
//! records are lost, a `gap` record with the id of the last lost one stands in their place: the chain of
//! `prev` stays whole. In the alarms lane, whose classes are fixed, nothing stands there; the `gap` is
//! appended to the data lane instead.
//!
//! # Who may delete
//!
//! Only the writer's thread, only whole sealed segments, and only after the ledger that accounts for them is
//! synced. By age: what every cursor has passed, longer ago than [`Config::keep_acked_ms`], older than
//! [`Config::warm_ttl_ms`], and not needed by a state snapshot ([`Journal::keep_from`]); never while the
//! clock is not trusted. Under the quota, in this order: acknowledged past the grace, acknowledged within it,
//! needed by a snapshot, the oldest undelivered data (with a `gap`), the oldest alarms once they take more
//! than half of the quota. A disk that others fill frees only what is acknowledged. Files that can't be read
//! are moved to `quarantine/`, never deleted.
//!
//! # The account
//!
//! `received + derived == published + pending + filtered + dropped` holds under the one lock that every
//! change takes, and over restarts: totals come from segment headers, what was settled from the ledger, and
//! what neither explains is booked as lost.
//!
//! # Recovery
//!
//! Always starts. The newest intact slot of the ledger (none: everything that is there is pending again);
//! each sealed segment by its trailer of 192 bytes; the tail frame by frame, cut behind the last valid one;
//! what is unreadable or foreign set aside; ordinals that nothing explains booked as lost; tails sealed. The
//! time it takes does not grow with the backlog.
//!
//! # Crash shapes
//!
//! Each has a test in `tests/shapes.rs` or `tests/faults.rs`:
//!
//! | what is left | test |
//! |---|---|
//! | nothing | `empty_folder_starts_with_a_new_epoch` |
//! | a clean end | `clean_close_goes_on_with_the_next_id` |
//! | power cut, unsynced writes gone | `power_cut_keeps_what_was_synced_and_reuses_no_id` |
//! | kill | `kill_keeps_what_was_written` |
//! | last frame cut at any byte | `torn_tail_is_cut_at_every_byte` |
//! | a bit flipped in the tail | `flipped_bit_in_the_middle_of_the_tail_loses_that_frame_alone` |
//! | a bit flipped in a sealed segment | `damage_in_a_sealed_segment_is_found_by_the_reader_and_told_in_place`, `damage_at_the_end_of_a_sealed_segment_is_told` |
//! | header, trailer or index damaged | `damaged_header_of_a_sealed_segment_is_read_from_its_trailer`, `damaged_header_of_the_tail_is_no_loss`, `damaged_trailer_means_reading_the_frames`, `missing_index_means_reading_from_the_top` |
//! | a file of no bytes, of noise, of another journal, never used | `zero_length_segment_is_set_aside`, `random_bytes_for_a_segment_are_set_aside`, `segment_of_another_journal_is_set_aside`, `segment_that_was_never_used_goes` |
//! | a segment gone, all gone | `missing_segment_in_the_middle_is_told_in_place`, `all_segments_gone_but_the_ledger_knows` |
//! | the ledger gone or damaged | `missing_ledger_makes_everything_pending_again`, `damaged_ledger_is_set_aside_and_the_older_slot_serves_first` |
//! | the cursor ahead of the disk | `cursor_ahead_of_the_disk_is_no_loss_of_its_own` |
//! | a removal undone | `dropped_segment_that_comes_back_goes_again` |
//! | any subset of unsynced writes | `alarm_never_outlives_the_data_before_it`, `journal_agrees_with_a_list` |
//! | any bytes at all in any file | `any_bytes_in_the_files_start` |
//! | a full disk, at run time and at start | `full_disk_refuses_and_heals`, `restart_on_a_full_disk` |
//! | a failed fsync | `failed_fsync_stops_for_good_and_is_never_retried` |

mod ack;
mod codec;
pub mod cold;
mod config;
pub mod crash;
mod delivery;
mod errors;
mod frame;
mod gaps;
mod history;
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
pub use errors::{AppendError, BatchError, CloseError};
pub use history::{History, Selection};
pub use journal::Journal;
pub use ledger::Counts;
pub use read::ReadError;
pub use recovery::{Gap, OpenError, Quarantined, Recovery};
pub use replay::{Follow, Replay};
pub use stat::{DiskState, LaneState, Stat};
pub use storage::{DiskStorage, Storage, StorageError, StorageFile};
