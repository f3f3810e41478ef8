//! What became of every record: cursors, counts and lost ranges, in one small file of two slots.
//!
//! Slots are written in turn, each with a generation and a checksum, so that a torn write leaves the other
//! one. A write is not synced by itself: losing the newest one only moves cursors back. It is synced before
//! a segment is unlinked, so that what is gone from the disk is always accounted for.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::buffer::frame::Epoch;
use crate::buffer::record::{LANES, Lane, RecordId};
use crate::buffer::storage::{Storage, StorageFile};

/// Name of the file.
pub(crate) const LEDGER: &str = "ledger";
/// Bytes of one slot.
const SLOT: usize = 256 << 10;
const MAGIC: &[u8; 8] = b"SPARKGL1";
const HEAD: usize = 24;
/// Lost ranges that are kept apart; beyond, neighbours are told as one.
pub(crate) const MAX_LOST: usize = 256;
/// With this many, damage is logged but not booked any more, so that the ledger fits its slot.
pub(crate) const MOST_LOST: usize = 512;

/// One lane's side of the account.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct LaneLedger {
    /// Last record that is settled: published or filtered, or lost before it.
    pub(crate) cursor: RecordId,
    /// Ordinal after the cursor: how many records of the lane are settled.
    pub(crate) settled: u64,
    pub(crate) published: u64,
    pub(crate) filtered: u64,
    /// Last record of the lane.
    pub(crate) last_id: RecordId,
    /// Records ever appended, from outside and made here.
    pub(crate) received: u64,
    pub(crate) derived: u64,
}

impl LaneLedger {
    /// Ordinal after the newest record.
    pub(crate) fn ord_end(&self) -> u64 {
        self.received + self.derived
    }
}

/// Records of one lane that can't be read any more, and the record that stands in their place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Lost {
    pub(crate) lane: u8,
    /// Record of the lane before the first lost one.
    pub(crate) prev: RecordId,
    /// The first lost id, or the lowest that it can have been.
    pub(crate) from: RecordId,
    /// The last lost id, which the `gap` record takes over: the chain of `prev` stays whole.
    pub(crate) id: RecordId,
    /// How many of them were pending.
    pub(crate) count: u64,
    pub(crate) ord_start: u64,
    pub(crate) ord_end: u64,
    pub(crate) first_ms: u64,
    pub(crate) last_ms: u64,
    pub(crate) engine_ms: u64,
    pub(crate) cause: String,
    /// The segments were given up on purpose, so a copy that comes back after a power cut goes too.
    pub(crate) dropped: bool,
    /// No record stands in its place (lane `Alarms`: classes there are fixed; the `gap` travels with data).
    pub(crate) silent: bool,
}

impl Lost {
    pub(crate) fn is_in(&self, lane: Lane) -> bool {
        self.lane == lane as u8
    }
}

/// The whole account.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ledger {
    pub(crate) epoch: Epoch,
    /// The journal was closed: no id has been given since this was written.
    pub(crate) closed: bool,
    /// Highest id given to a record.
    pub(crate) last_id: RecordId,
    /// Newest engine time seen.
    pub(crate) engine_ms: u64,
    /// State snapshots need the records after this one.
    pub(crate) keep_from: RecordId,
    pub(crate) lanes: [LaneLedger; 2],
    pub(crate) lost: Vec<Lost>,
    /// Records that were dropped, by reason: lost ones and ones that never got in.
    pub(crate) dropped: BTreeMap<String, u64>,
    /// Of those, the ones that never got in.
    pub(crate) refused_received: u64,
    pub(crate) refused_derived: u64,
    /// `gap` records standing in the place of lost ones.
    pub(crate) gap_records: u64,
}

/// One consistent snapshot of the account, in records:
/// `received + derived == published + pending + filtered + dropped.values().sum()`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Accepted messages.
    pub received: u64,
    /// Records made by the gateway.
    pub derived: u64,
    /// Acknowledged by the bridge's stream.
    pub published: u64,
    /// Waiting for the bridge.
    pub pending: u64,
    /// Left out on purpose, or aged out where there is no bridge.
    pub filtered: u64,
    /// Not kept, by reason.
    pub dropped: BTreeMap<String, u64>,
}

impl Counts {
    /// Whether both sides of the identity are equal.
    #[must_use]
    pub fn balanced(&self) -> bool {
        let dropped: u64 = self.dropped.values().sum();
        self.received + self.derived == self.published + self.pending + self.filtered + dropped
    }
}

impl Ledger {
    pub(crate) fn new(epoch: Epoch) -> Self {
        Self {
            epoch,
            closed: false,
            last_id: 0,
            engine_ms: 0,
            keep_from: RecordId::MAX,
            lanes: Default::default(),
            lost: Vec::new(),
            dropped: BTreeMap::new(),
            refused_received: 0,
            refused_derived: 0,
            gap_records: 0,
        }
    }

    pub(crate) fn lane(&self, lane: Lane) -> &LaneLedger {
        let [data, alarms] = &self.lanes;
        match lane {
            Lane::Data => data,
            Lane::Alarms => alarms,
        }
    }

    pub(crate) fn lane_mut(&mut self, lane: Lane) -> &mut LaneLedger {
        let [data, alarms] = &mut self.lanes;
        match lane {
            Lane::Data => data,
            Lane::Alarms => alarms,
        }
    }

    pub(crate) fn lost_in(&self, lane: Lane) -> impl Iterator<Item = &Lost> {
        self.lost.iter().filter(move |lost| lost.is_in(lane))
    }

    /// Records of `lane` that wait, `gap` records included.
    pub(crate) fn pending(&self, lane: Lane) -> u64 {
        let account = self.lane(lane);
        let mut pending = account.ord_end().saturating_sub(account.settled);
        for lost in self.lost_in(lane).filter(|lost| lost.id > account.cursor) {
            pending = pending.saturating_sub(lost.count) + u64::from(!lost.silent);
        }
        pending
    }

    pub(crate) fn counts(&self) -> Counts {
        let sum = |f: fn(&LaneLedger) -> u64| self.lanes.iter().map(f).sum::<u64>();
        Counts {
            received: sum(|lane| lane.received) + self.refused_received,
            derived: sum(|lane| lane.derived) + self.refused_derived + self.gap_records,
            published: sum(|lane| lane.published),
            pending: LANES.iter().map(|lane| self.pending(*lane)).sum(),
            filtered: sum(|lane| lane.filtered),
            dropped: self.dropped.clone(),
        }
    }

    pub(crate) fn drop_more(&mut self, reason: &str, n: u64) {
        if n > 0 {
            match self.dropped.get_mut(reason) {
                Some(count) => *count += n,
                None => {
                    self.dropped.insert(reason.to_owned(), n);
                }
            }
        }
    }

    /// How many records become settled when the cursor of `lane` moves to `id`, whose ordinal end is `ord`.
    pub(crate) fn settles(&self, lane: Lane, id: RecordId, ord: u64) -> u64 {
        let account = self.lane(lane);
        let mut n = ord.saturating_sub(account.settled);
        for lost in self
            .lost_in(lane)
            .filter(|lost| lost.id > account.cursor && lost.id <= id)
        {
            n = n.saturating_sub(lost.count) + u64::from(!lost.silent);
        }
        n
    }

    /// Moves the cursor. `filtered` of the records it passes were left out; the rest was published.
    pub(crate) fn settle(&mut self, lane: Lane, id: RecordId, ord: u64, filtered: u64) -> u64 {
        let n = self.settles(lane, id, ord);
        let filtered = filtered.min(n);
        let account = self.lane_mut(lane);
        if id <= account.cursor {
            return 0;
        }
        account.cursor = id;
        account.settled = account.settled.max(ord);
        account.filtered += filtered;
        account.published += n - filtered;
        self.lost.retain(|lost| !lost.is_in(lane) || lost.id > id);
        n
    }

    /// Books a range as lost; `ord_end` of it is above what is settled. Ranges inside it, and the one it
    /// touches when nobody has read that one yet (`read_high`), become part of it. Returns what is booked.
    pub(crate) fn lose(&mut self, mut lost: Lost, read_high: RecordId) -> Lost {
        let lane = if lost.lane == Lane::Alarms as u8 {
            Lane::Alarms
        } else {
            Lane::Data
        };
        let reason = if lost.dropped { "quota" } else { "lost" };
        let mut inside = 0u64;
        let mut inside_count = 0;
        let crowded = self.lost.len() >= MAX_LOST;
        let mut kept = Vec::with_capacity(self.lost.len() + 1);
        for old in std::mem::take(&mut self.lost) {
            let covered = old.ord_start >= lost.ord_start && old.ord_end <= lost.ord_end;
            let touches = old.ord_end == lost.ord_start && old.id > self.lane(lane).cursor;
            let unread = old.id > read_high || crowded;
            if old.is_in(lane) && (covered || (touches && unread && old.cause == lost.cause)) {
                inside += u64::from(!old.silent);
                inside_count += old.count;
                if !covered {
                    lost.prev = old.prev;
                    lost.from = old.from;
                    lost.ord_start = old.ord_start;
                    lost.count += old.count;
                    // What was in it has been booked before; only the new part is counted below.
                }
                lost.first_ms = lost.first_ms.min(old.first_ms);
            } else {
                kept.push(old);
            }
        }
        self.lost = kept;
        let fresh = lost.count.saturating_sub(inside_count);
        self.drop_more(reason, fresh);
        // One `gap` record takes the place of those it swallowed.
        match (lost.silent, inside) {
            (true, n) => self.drop_more(reason, n),
            (false, 0) => self.gap_records += 1,
            (false, n) => self.drop_more(reason, n - 1),
        }
        let at = self
            .lost
            .partition_point(|old| (old.lane, old.id) < (lost.lane, lost.id));
        self.lost.insert(at, lost.clone());
        lost
    }
}

/// The file.
pub(crate) struct LedgerFile {
    file: Arc<dyn StorageFile>,
    generation: u64,
}

impl LedgerFile {
    /// Opens the file, or makes it, and reads the newest intact slot. The file is small and allocated
    /// whole, so that a full disk never keeps a cursor from being written.
    pub(crate) fn open(storage: &dyn Storage) -> io::Result<(Self, Option<Ledger>)> {
        let exists = storage.list()?.iter().any(|entry| entry.name == LEDGER);
        let file = if exists {
            storage.open(LEDGER)?
        } else {
            storage.create(LEDGER, 2 * SLOT as u64)?
        };
        if !exists {
            file.sync()?;
            storage.sync_dir()?;
        }
        let newest = read_slots(file.as_ref());
        let generation = newest.as_ref().map_or(0, |(generation, _)| *generation);
        Ok((Self { file, generation }, newest.map(|(_, ledger)| ledger)))
    }

    /// Writes the other slot; returns the bytes written.
    pub(crate) fn write(&mut self, ledger: &Ledger) -> io::Result<u64> {
        let body = serde_json::to_vec(ledger).map_err(io::Error::other)?;
        let generation = self.generation + 1;
        let mut slot = Vec::with_capacity(HEAD + body.len());
        slot.extend_from_slice(MAGIC);
        slot.extend_from_slice(&generation.to_le_bytes());
        slot.extend_from_slice(&(body.len() as u32).to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&slot), &body);
        slot.extend_from_slice(&crc.to_le_bytes());
        slot.extend_from_slice(&body);
        if slot.len() > SLOT {
            return Err(io::Error::other("the ledger outgrew its slot"));
        }
        self.file.write_at((generation % 2) * SLOT as u64, &slot)?;
        self.generation = generation;
        Ok(slot.len() as u64)
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

/// The newest intact slot and its generation.
pub(crate) fn read_slots(file: &dyn StorageFile) -> Option<(u64, Ledger)> {
    let mut bytes = vec![0; 2 * SLOT];
    let len = file.read_at(0, &mut bytes).unwrap_or(0);
    bytes.truncate(len);
    bytes
        .chunks(SLOT)
        .filter_map(read_slot)
        .max_by_key(|(generation, _)| *generation)
}

fn read_slot(slot: &[u8]) -> Option<(u64, Ledger)> {
    let (head, body) = slot.split_at_checked(HEAD)?;
    let (covered, crc) = head.split_at_checked(20)?;
    if !covered.starts_with(MAGIC) {
        return None;
    }
    let generation = u64::from_le_bytes(covered.get(8..16)?.try_into().ok()?);
    let len = u32::from_le_bytes(covered.get(16..20)?.try_into().ok()?);
    let body = body.get(..len as usize)?;
    let good = crc32c::crc32c_append(crc32c::crc32c(covered), body).to_le_bytes() == *crc;
    if !good {
        return None;
    }
    Some((generation, serde_json::from_slice(body).ok()?))
}
