//! From whatever lies in the folder to a running journal. It always starts.
//!
//! 1. The newest intact slot of the ledger; without one, cursors start at the oldest record kept.
//! 2. Per lane, in order of number: sealed segments by their trailer alone; one without (the tail, as a
//!    rule) frame by frame, cut behind the last valid frame. Unreadable and foreign files go to
//!    `quarantine/`, never-used ones are removed.
//! 3. Ordinals that nothing explains are booked as lost, with a `gap` record in their place.
//! 4. Tails are sealed; ids go on with a jump, so that none is given twice.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::sync::Arc;

use crate::buffer::Config;
use crate::buffer::cold::index::{Entry, Index};
use crate::buffer::frame::{Epoch, encode_footer, epoch_hex};
use crate::buffer::gaps::book_hole;
use crate::buffer::ledger::{LEDGER, Ledger, LedgerFile, Lost};
use crate::buffer::policy::{RESERVE, is_full};
use crate::buffer::record::{LANES, Lane, RecordId};
use crate::buffer::segment::{Hole, LoadError, Loaded, load, parse_name};
use crate::buffer::shared::{LaneMemory, State};
use crate::buffer::storage::{Storage, StorageFile};

/// Ids left out after an unclean end: more than can have been given without becoming durable, so that an id
/// that another system may have seen is never given to another record.
pub(crate) const ID_JUMP: u64 = 1 << 20;

/// A range of records that can't be read any more.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Gap {
    /// First id, or the lowest that it can have been.
    pub from: RecordId,
    /// Last id.
    pub to: RecordId,
    /// How many records were still pending.
    pub count: u64,
    /// Range of arrival times, ms UTC, as far as its neighbours tell.
    pub first_ms: u64,
    /// End of that range.
    pub last_ms: u64,
    /// `damaged`, `missing`, `not synced` or `quota`.
    pub cause: String,
}

impl From<&Lost> for Gap {
    fn from(lost: &Lost) -> Self {
        Self {
            from: lost.from,
            to: lost.id,
            count: lost.count,
            first_ms: lost.first_ms,
            last_ms: lost.last_ms,
            cause: lost.cause.clone(),
        }
    }
}

/// A file that was set aside.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Quarantined {
    /// Its name in the journal's folder.
    pub name: String,
    /// Its name now, relative to that folder.
    pub moved_to: String,
    /// What was wrong.
    pub reason: &'static str,
}

/// What a start found.
#[derive(Debug, Clone, Default)]
pub struct Recovery {
    /// Newest record there is (0: none).
    pub last_id: RecordId,
    /// 32 hex digits, part of message ids; new only where nothing was left of the journal before.
    pub epoch: String,
    /// Engine time goes on from here.
    pub engine_ms_base: u64,
    /// Bytes cut behind the last valid frame.
    pub torn_bytes: u64,
    /// Ranges found lost by this start.
    pub gaps: Vec<Gap>,
    /// Files set aside by this start.
    pub quarantined: Vec<Quarantined>,
    /// Whether the process before closed the journal.
    pub clean: bool,
    /// Whether the cursors had to be rebuilt because the ledger was missing or damaged.
    pub ledger_rebuilt: bool,
    /// Frames whose checksum was verified.
    pub frames_checked: u64,
    /// Segments found.
    pub segments: usize,
}

/// Why the journal can't be opened. Damage is no reason.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The configuration can't work.
    #[error("buffer configuration: {0}")]
    Config(&'static str),
    /// The folder can't be read or written.
    #[error("cannot {doing} in the journal's folder")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// The folder can't be used.
    #[error(transparent)]
    Storage(#[from] crate::buffer::storage::StorageError),
    /// The writer's thread can't be started.
    #[error("cannot start the journal's thread")]
    Thread(#[source] io::Error),
}

fn io_error(doing: &'static str) -> impl FnOnce(io::Error) -> OpenError {
    move |source| OpenError::Io { doing, source }
}

/// State, ledger file, whether the reserve lies there, and the report.
pub(crate) struct Recovered {
    pub(crate) state: State,
    pub(crate) ledger: LedgerFile,
    pub(crate) reserve: bool,
    pub(crate) report: Recovery,
    pub(crate) cold: Index,
}

/// Does all of it.
pub(crate) fn recover(storage: &dyn Storage, config: &Config) -> Result<Recovered, OpenError> {
    let mut report = Recovery::default();
    let files = storage.list().map_err(io_error("list files"))?;
    let (mut ledger_file, known) = open_ledger(storage, &mut report)?;
    report.ledger_rebuilt = known.is_none();
    let mut names = BTreeSet::new();
    for entry in &files {
        if let Some((lane, no)) = parse_name(&entry.name) {
            names.insert((lane, no, entry.name.clone()));
        }
    }
    let mut epoch = known.as_ref().map(|ledger| ledger.epoch);
    let mut lanes: [Vec<Loaded>; 2] = Default::default();
    let mut next_no = [1, 1];
    let mut sealed_tails = true;
    for (lane, no, name) in names {
        let slot = lane as usize;
        if let Some(next) = next_no.get_mut(slot) {
            *next = no + 1;
        }
        let file = storage.open(&name).map_err(io_error("open a segment"))?;
        match load(&file, lane, no, epoch, false) {
            Ok(loaded) => {
                epoch.get_or_insert(loaded.segment.summary.header.epoch);
                sealed_tails &= loaded.segment.sealed;
                report.torn_bytes += loaded.torn;
                report.frames_checked += loaded.frames;
                if let Some(lane) = lanes.get_mut(slot) {
                    lane.push(loaded);
                }
            }
            Err(LoadError::Empty) => {
                sealed_tails = false;
                storage
                    .remove(&name)
                    .map_err(io_error("remove an unused segment"))?;
            }
            Err(LoadError::Io(error)) => {
                tracing::error!(%error, segment = name, "a segment cannot be read");
                set_aside(storage, &name, "cannot be read", &mut report)?;
            }
            Err(LoadError::Unreadable) => {
                set_aside(storage, &name, "no header and no valid frame", &mut report)?
            }
            Err(LoadError::Foreign) => {
                set_aside(storage, &name, "belongs to another journal", &mut report)?
            }
        }
    }
    let rebuilt = known.is_none();
    let cold = Index::load(storage).map_err(io_error("read the index of the cold tier"))?;
    let mut ledger = known.unwrap_or_else(|| Ledger::new(epoch.unwrap_or_else(random_epoch)));
    let [data, alarms] = lanes;
    let mut memories: [LaneMemory; 2] = Default::default();
    let mut holes = Vec::new();
    for ((lane, loaded), memory) in LANES.into_iter().zip([data, alarms]).zip(&mut memories) {
        let mut loaded = forget_dropped(storage, &ledger, lane, loaded)?;
        add_archived(&cold, &ledger, lane, rebuilt, &mut loaded);
        if rebuilt {
            restart_account(&mut ledger, lane, &loaded);
        }
        holes.extend(
            find_holes(&mut ledger, lane, &loaded)
                .into_iter()
                .map(|hole| (lane, hole)),
        );
        memory.segments = loaded.into_iter().map(|loaded| loaded.segment).collect();
        memory.next_no = next_no.get(lane as usize).copied().unwrap_or(1);
        seal_tails(storage, memory)?;
        let newest = memory
            .segments
            .back()
            .map_or(0, |segment| segment.summary.engine_ms);
        ledger.engine_ms = ledger.engine_ms.max(newest);
    }
    let newest = LANES
        .map(|lane| ledger.lane(lane).last_id)
        .into_iter()
        .max()
        .unwrap_or(0);
    let last_id = newest.max(ledger.last_id);
    report.clean = ledger.closed && sealed_tails && holes.is_empty();
    ledger.closed = false;
    report.last_id = newest;
    report.epoch = epoch_hex(&ledger.epoch);
    report.engine_ms_base = ledger.engine_ms;
    report.segments = memories
        .iter()
        .map(|memory| {
            memory
                .segments
                .iter()
                .filter(|segment| segment.local)
                .count()
        })
        .sum();
    let fresh = rebuilt && last_id == 0;
    // Every id that this process may give lies above what the ledger says from here on.
    let next_id = if report.clean || fresh {
        last_id + 1
    } else {
        last_id + ID_JUMP
    };
    ledger.last_id = next_id - 1;
    for (lane, memory) in LANES.into_iter().zip(&mut memories) {
        let last = ledger.lane(lane).last_id;
        (memory.hot_floor, memory.synced) = (last, last);
    }
    let [data, alarms] = memories;
    let mut state = State::new(ledger, next_id, data, alarms);
    for (lane, hole) in holes {
        let lost = book_hole(&mut state, lane, &hole.0, hole.1);
        report.gaps.extend(lost.as_ref().map(Gap::from));
    }
    for lane in LANES {
        state.stamp_acked(lane);
    }
    let written = ledger_file
        .write(&state.ledger)
        .and_then(|_| ledger_file.sync());
    written.map_err(io_error("write the ledger"))?;
    state.synced_cursors = LANES.map(|lane| state.ledger.lane(lane).cursor);
    state.ledger_dirty = false;
    storage.sync_dir().map_err(io_error("sync the folder"))?;
    let reserve = hold_reserve(storage, config, &files)?;
    Ok(Recovered {
        state,
        ledger: ledger_file,
        reserve,
        report,
        cold,
    })
}

/// A ledger that can't even be opened or is too short is set aside and made anew.
fn open_ledger(
    storage: &dyn Storage,
    report: &mut Recovery,
) -> Result<(LedgerFile, Option<Ledger>), OpenError> {
    let (file, known) = LedgerFile::open(storage).map_err(io_error("open the ledger"))?;
    if known.is_some() {
        return Ok((file, known));
    }
    let blank = |file: &Arc<dyn StorageFile>| {
        let mut bytes = vec![0; 1 << 12];
        file.read_at(0, &mut bytes).is_ok() && bytes.iter().all(|byte| *byte == 0)
    };
    let file_on_disk = storage.open(LEDGER).map_err(io_error("open the ledger"))?;
    if blank(&file_on_disk) && file_on_disk.len().is_ok_and(|len| len > 0) {
        return Ok((file, None));
    }
    set_aside(storage, LEDGER, "no intact slot", report)?;
    LedgerFile::open(storage).map_err(io_error("make a ledger"))
}

fn set_aside(
    storage: &dyn Storage,
    name: &str,
    reason: &'static str,
    report: &mut Recovery,
) -> Result<(), OpenError> {
    let moved_to = storage
        .quarantine(name)
        .map_err(io_error("set a file aside"))?;
    tracing::error!(file = name, moved_to, reason, "journal file set aside");
    report.quarantined.push(Quarantined {
        name: name.to_owned(),
        moved_to,
        reason,
    });
    Ok(())
}

/// Segments that were given up, and whose removal a power cut undid.
fn forget_dropped(
    storage: &dyn Storage,
    ledger: &Ledger,
    lane: Lane,
    loaded: Vec<Loaded>,
) -> Result<Vec<Loaded>, OpenError> {
    let mut kept = Vec::with_capacity(loaded.len());
    for loaded in loaded {
        let summary = &loaded.segment.summary;
        let gone = ledger.lost_in(lane).any(|lost| {
            lost.dropped && summary.ord_end <= lost.ord_end && summary.ord_end > lost.ord_start
        });
        if gone {
            storage
                .remove(&loaded.segment.name())
                .map_err(io_error("remove a dropped segment"))?;
        } else {
            kept.push(loaded);
        }
    }
    Ok(kept)
}

/// Marks what is archived, and lists what is undelivered and lies in the cold tier alone. Without a ledger that is
/// all of it: where the stream stands tells the bridge what it has.
fn add_archived(
    cold: &Index,
    ledger: &Ledger,
    lane: Lane,
    rebuilt: bool,
    loaded: &mut Vec<Loaded>,
) {
    let cursor = ledger.lane(lane).cursor;
    let mut here = BTreeSet::new();
    for loaded in loaded.iter_mut() {
        here.insert(loaded.segment.no());
        let entry = cold.get(lane, loaded.segment.no());
        loaded.segment.archived = loaded.segment.sealed
            && entry.is_some_and(|entry| entry.last_id == loaded.segment.summary.last_id);
    }
    let gone = |entry: &Entry| {
        ledger.lost_in(lane).any(|lost| {
            lost.dropped && entry.ord_end <= lost.ord_end && entry.ord_end > lost.ord_start
        })
    };
    for entry in cold.of(lane) {
        let wanted =
            (rebuilt || entry.last_id > cursor) && !here.contains(&entry.segment) && !gone(entry);
        let segment = wanted.then(|| entry.segment()).flatten();
        if let Some(segment) =
            segment.filter(|segment| segment.summary.header.epoch == ledger.epoch)
        {
            loaded.push(Loaded {
                segment,
                torn: 0,
                holes: Vec::new(),
                frames: 0,
                bytes_read: 0,
            });
        }
    }
    loaded.sort_by_key(|loaded| loaded.segment.no());
}

/// Without a ledger everything that is there is pending. What came before must have been settled: only then
/// is a segment unlinked.
fn restart_account(ledger: &mut Ledger, lane: Lane, loaded: &[Loaded]) {
    let Some(first) = loaded.first() else { return };
    let header = first.segment.summary.header;
    let account = ledger.lane_mut(lane);
    account.cursor = header.prev;
    account.settled = header.received + header.derived;
    account.published = account.settled;
    (account.received, account.derived, account.last_id) =
        (header.received, header.derived, header.prev);
}

/// Ordinals that no file holds, and the lane's totals.
fn find_holes(ledger: &mut Ledger, lane: Lane, loaded: &[Loaded]) -> Vec<(Hole, &'static str)> {
    let mut holes = Vec::new();
    let account = ledger.lane_mut(lane);
    let mut ord = account.settled;
    let mut prev = account.cursor;
    let mut last_ms = 0;
    for loaded in loaded {
        let summary = &loaded.segment.summary;
        if summary.ord_start() > ord {
            let first_ms = if last_ms == 0 {
                summary.min_ms
            } else {
                last_ms
            };
            let (ord_start, ord_end, last) = (ord, summary.ord_start(), summary.header.prev);
            holes.push((
                Hole {
                    ord_start,
                    ord_end,
                    prev,
                    last,
                    first_ms,
                    last_ms: summary.min_ms,
                },
                "missing",
            ));
        }
        holes.extend(loaded.holes.iter().map(|hole| (*hole, "damaged")));
        ord = ord.max(summary.ord_end);
        prev = prev.max(summary.last_id);
        last_ms = summary.max_ms;
    }
    if let Some(tail) = loaded.last().map(|loaded| loaded.segment.summary)
        && tail.ord_end > account.ord_end()
    {
        // Records lost inside the segment count as received: how they split went with them.
        account.derived = tail.header.derived + tail.derived;
        account.received = tail.ord_end.saturating_sub(account.derived);
        account.last_id = account.last_id.max(tail.last_id);
    }
    if account.ord_end() > ord {
        let ord_end = account.ord_end();
        let last = account.last_id;
        holes.push((
            Hole {
                ord_start: ord,
                ord_end,
                prev,
                last,
                first_ms: last_ms,
                last_ms,
            },
            "not synced",
        ));
    }
    holes
}

/// Writes the trailer that the process before could not write. Where the disk has no room for it, the next
/// start walks the segment again.
fn seal_tails(storage: &dyn Storage, memory: &mut LaneMemory) -> Result<(), OpenError> {
    for segment in memory.segments.iter_mut().filter(|segment| !segment.sealed) {
        let footer = encode_footer(&segment.summary, &segment.index);
        let end = segment.summary.data_end;
        let file_len = end + footer.len() as u64;
        let file = storage
            .open(&segment.name())
            .map_err(io_error("open a segment"))?;
        // Cut first: on a full disk the room behind the frames is all there is.
        let cut = file
            .truncate(end)
            .and_then(|()| file.write_at(end, &footer))
            .and_then(|()| file.sync());
        match cut {
            Ok(()) => segment.file_len = file_len,
            Err(error) if is_full(&error) => {
                file.truncate(end).map_err(io_error("cut a segment"))?;
                segment.file_len = end;
            }
            Err(error) => return Err(io_error("seal a segment")(error)),
        }
        segment.sealed = true;
        segment.index = Vec::new();
    }
    Ok(())
}

fn hold_reserve(
    storage: &dyn Storage,
    config: &Config,
    files: &[crate::buffer::storage::Entry],
) -> Result<bool, OpenError> {
    if config.reserve_bytes == 0 || files.iter().any(|entry| entry.name == RESERVE) {
        return Ok(config.reserve_bytes > 0);
    }
    match storage.create(RESERVE, config.reserve_bytes) {
        Ok(_) => Ok(true),
        Err(error) if is_full(&error) => Ok(false),
        Err(error) => Err(io_error("make the reserve")(error)),
    }
}

/// 128 bits that no other journal has. The standard hasher is seeded by the system's randomness.
fn random_epoch() -> Epoch {
    let mut epoch = Epoch::default();
    for half in epoch.chunks_mut(8) {
        let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
        hasher.write_u64(std::process::id().into());
        half.copy_from_slice(&hasher.finish().to_le_bytes());
    }
    epoch
}
