//! What `sparkgate buffer` does with a folder: look, verify, export, repair.
//!
//! All but [`repair`] only read and take no lock, so they also work beside a running daemon; what it writes
//! meanwhile may show as a torn tail. Memory is constant; progress is told after each segment.

use std::io;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use crate::buffer::Config;
use crate::buffer::frame::{Epoch, epoch_hex};
use crate::buffer::gaps::book_hole;
use crate::buffer::history::History;
use crate::buffer::journal::Journal;
use crate::buffer::ledger::{Counts, LEDGER, Ledger, read_slots};
use crate::buffer::read::ReadError;
use crate::buffer::record::{LANES, Lane, Record};
use crate::buffer::recovery::{Gap, OpenError, Recovery};
use crate::buffer::segment::{LoadError, Loaded, load, parse_name};
use crate::buffer::storage::{DiskStorage, Storage, StorageError};

/// Why a folder can't be looked at.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// The folder can't be used.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// A file can't be read.
    #[error("cannot read {name}")]
    Read {
        /// Its name in the folder.
        name: String,
        /// What the system says.
        source: io::Error,
    },
    /// Stored records can't be read.
    #[error(transparent)]
    History(#[from] ReadError),
    /// The cold tier can't be used.
    #[cfg(feature = "cold")]
    #[error("cold tier")]
    Cold(#[from] crate::buffer::cold::store::StoreError),
    /// The receiver of exported records refused.
    #[error("cannot write the export")]
    Sink(#[source] io::Error),
    /// What was found can't be written down.
    #[error("cannot write the journal")]
    Repair(#[source] io::Error),
    /// The journal can't be recovered.
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// How far a tool has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of segments done.
    pub done: u64,
    /// Bytes of all segments.
    pub total: u64,
}

/// One segment file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SegmentReport {
    /// File name.
    pub name: String,
    /// Bytes of the file.
    pub bytes: u64,
    /// Whether it has a trailer.
    pub sealed: bool,
    /// First id; 0 where there is none.
    pub first_id: u64,
    /// Last id.
    pub last_id: u64,
    /// Records inside, from outside and made here.
    pub records: u64,
    /// Range of arrival times, ms UTC.
    pub min_ms: u64,
    /// End of that range.
    pub max_ms: u64,
    /// Frames whose checksum was verified; 0 where only the trailer was read.
    pub frames: u64,
    /// Ranges of records that it should hold and does not.
    pub lost: Vec<Gap>,
    /// Bytes behind the last valid frame that are no frame.
    pub torn_bytes: u64,
    /// Why it can't be used.
    pub unreadable: Option<&'static str>,
}

impl SegmentReport {
    fn is_intact(&self) -> bool {
        self.lost.is_empty() && self.torn_bytes == 0 && self.unreadable.is_none()
    }
}

/// What lies in a journal's folder.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// 32 hex digits; `None` where neither ledger nor segment tells.
    pub epoch: Option<String>,
    /// The account as last written; `None` where no slot of the ledger is intact.
    pub counts: Option<Counts>,
    /// Last settled record of the data lane and of the alarms lane.
    pub cursors: Option<[u64; 2]>,
    /// Segments in the order of lane and number.
    pub segments: Vec<SegmentReport>,
    /// Lost ranges that are known and wait to be told.
    pub known_lost: Vec<Gap>,
    /// Whether everything that was looked at is as it should be.
    pub intact: bool,
}

/// Headers, trailers and the ledger. Reads a few hundred bytes of each sealed segment.
///
/// # Errors
/// The folder can't be read.
pub fn stat(dir: &Path) -> Result<Report, ToolError> {
    report(&DiskStorage::read_only(dir)?, false, &mut |_| {})
}

/// Every frame of every segment.
///
/// # Errors
/// The folder can't be read. Damage is part of the report.
pub fn verify(dir: &Path, progress: &mut dyn FnMut(Progress)) -> Result<Report, ToolError> {
    report(&DiskStorage::read_only(dir)?, true, progress)
}

pub(crate) fn report(
    storage: &dyn Storage,
    full: bool,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, ToolError> {
    let segments = segments(storage)?;
    let ledger = ledger(storage);
    let mut epoch = ledger.as_ref().map(|ledger| ledger.epoch);
    let mut known = segments.iter();
    while let (None, Some((lane, no, name, _))) = (epoch, known.next()) {
        epoch = load_named(storage, *lane, *no, name, None, false)?
            .ok()
            .map(|loaded| loaded.segment.summary.header.epoch);
    }
    let total = segments.iter().map(|(.., len)| len).sum();
    let mut done = 0;
    let mut reports = Vec::new();
    for (lane, no, name, len) in segments {
        let loaded = load_named(storage, lane, no, &name, epoch, full)?;
        reports.push(describe(name, len, loaded));
        done += len;
        progress(Progress { done, total });
    }
    let intact = ledger.is_some() && reports.iter().all(SegmentReport::is_intact);
    Ok(Report {
        epoch: epoch.as_ref().map(epoch_hex),
        counts: ledger.as_ref().map(Ledger::counts),
        cursors: ledger
            .as_ref()
            .map(|ledger| LANES.map(|lane| ledger.lane(lane).cursor)),
        segments: reports,
        known_lost: ledger
            .iter()
            .flat_map(|ledger| &ledger.lost)
            .map(Gap::from)
            .collect(),
        intact,
    })
}

pub(crate) fn ledger(storage: &dyn Storage) -> Option<Ledger> {
    let file = storage.open(LEDGER).ok()?;
    read_slots(file.as_ref()).map(|(_, ledger)| ledger)
}

/// Segments by lane and number, with their lengths.
pub(crate) fn segments(storage: &dyn Storage) -> Result<Vec<(Lane, u64, String, u64)>, ToolError> {
    let files = storage.list().map_err(|source| ToolError::Read {
        name: ".".to_owned(),
        source,
    })?;
    let mut found: Vec<_> = files
        .into_iter()
        .filter_map(|entry| {
            parse_name(&entry.name).map(|(lane, no)| (lane, no, entry.name, entry.len))
        })
        .collect();
    found.sort();
    Ok(found)
}

pub(crate) fn load_named(
    storage: &dyn Storage,
    lane: Lane,
    no: u64,
    name: &str,
    epoch: Option<Epoch>,
    full: bool,
) -> Result<Result<Loaded, &'static str>, ToolError> {
    let failed = |source| ToolError::Read {
        name: name.to_owned(),
        source,
    };
    let file = match storage.open(name) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Err("removed meanwhile"));
        }
        Err(error) => return Err(failed(error)),
    };
    Ok(match load(&file, lane, no, epoch, full) {
        Ok(loaded) => Ok(loaded),
        Err(LoadError::Empty) => Err("never used"),
        Err(LoadError::Unreadable) => Err("no header and no valid frame"),
        Err(LoadError::Foreign) => Err("belongs to another journal"),
        Err(LoadError::Io(error)) => return Err(failed(error)),
    })
}

fn describe(name: String, bytes: u64, loaded: Result<Loaded, &'static str>) -> SegmentReport {
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(reason) => {
            return SegmentReport {
                name,
                bytes,
                sealed: false,
                first_id: 0,
                last_id: 0,
                records: 0,
                min_ms: 0,
                max_ms: 0,
                frames: 0,
                lost: Vec::new(),
                torn_bytes: 0,
                unreadable: (reason != "never used").then_some(reason),
            };
        }
    };
    let summary = &loaded.segment.summary;
    let lost = loaded.holes.iter().map(|hole| Gap {
        from: hole.prev + 1,
        to: hole.last,
        count: hole.ord_end - hole.ord_start,
        first_ms: hole.first_ms.min(hole.last_ms),
        last_ms: hole.last_ms,
        cause: "damaged".to_owned(),
    });
    SegmentReport {
        name,
        bytes,
        sealed: loaded.segment.sealed,
        first_id: summary.first_id,
        last_id: summary.last_id,
        records: summary.received + summary.derived,
        min_ms: if summary.min_ms == u64::MAX {
            0
        } else {
            summary.min_ms
        },
        max_ms: summary.max_ms,
        frames: loaded.frames,
        lost: lost.collect(),
        torn_bytes: loaded.torn,
        unreadable: None,
    }
}

/// Hands every record of `history` to `sink`, both lanes in the order of ids, and says how many. Damage is
/// skipped.
///
/// # Errors
/// A file can't be read, or `sink` refuses.
pub fn export(
    mut history: History,
    progress: &mut dyn FnMut(Progress),
    sink: &mut dyn FnMut(&Record) -> io::Result<()>,
) -> Result<u64, ToolError> {
    let mut exported = 0;
    let mut told = 0;
    while let Some(record) = history.next() {
        sink(&*record?).map_err(ToolError::Sink)?;
        exported += 1;
        let at = history.progress();
        if at.done > told {
            told = at.done;
            progress(at);
        }
    }
    let total = history.progress().total;
    progress(Progress { done: total, total });
    Ok(exported)
}

/// What a start does, and more: every frame is read, and what is damaged is booked as lost, so that the next
/// start tells it in its place. Needs the daemon to be stopped.
///
/// # Errors
/// Another process has the journal, or its folder can't be written.
pub fn repair(dir: &Path, progress: &mut dyn FnMut(Progress)) -> Result<Recovery, ToolError> {
    repair_in(Arc::new(DiskStorage::open(dir)?), progress)
}

pub(crate) fn repair_in(
    storage: Arc<dyn Storage>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Recovery, ToolError> {
    // Nothing may go for want of room or by age: the quota in force is the daemon's to know.
    let config = Config {
        reserve_bytes: 0,
        min_free_bytes: 0,
        warm_max_bytes: u64::MAX / 2,
        ..Config::default()
    };
    let (journal, mut writer, mut report) = Journal::open_stepped(Arc::clone(&storage), config)?;
    let shared = Arc::clone(writer.shared());
    let segments = segments(storage.as_ref())?;
    let total = segments.iter().map(|(.., len)| len).sum();
    let mut done = 0;
    let epoch = Some(shared.lock().ledger.epoch);
    for (lane, no, name, len) in segments {
        if let Ok(loaded) = load_named(storage.as_ref(), lane, no, &name, epoch, true)? {
            report.frames_checked += loaded.frames;
            for hole in &loaded.holes {
                let lost = book_hole(&mut shared.lock(), lane, hole, "damaged");
                report.gaps.extend(lost.as_ref().map(Gap::from));
            }
        }
        done += len;
        progress(Progress { done, total });
    }
    writer
        .round(true)
        .map_err(|stop| ToolError::Repair(stop.into()))?;
    drop(journal);
    Ok(report)
}
