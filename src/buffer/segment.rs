//! One segment file: what is known of it in memory, and how that is read back.

use std::io;
use std::sync::Arc;

use crate::buffer::codec;
use crate::buffer::frame::{
    Epoch, FrameHeader, Header, INDEX_ENTRY, IndexEntry, SEGMENT_HEADER, Summary, TRAILER, Trailer,
    decode_index, frame_seed, key_bit,
};
use crate::buffer::record::{Lane, Origin, Record};
use crate::buffer::storage::StorageFile;
use crate::buffer::walk::{Step, Walk};

/// A frame enters the sparse index when it starts this far behind the entry before.
const INDEX_STEP: u64 = 64 << 10;

/// A segment in memory, about 250 bytes.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    pub(crate) summary: Summary,
    pub(crate) sealed: bool,
    /// Its file is on the disk; `false`: it lies in the cold tier alone.
    pub(crate) local: bool,
    /// It lies in the cold tier, verified.
    pub(crate) archived: bool,
    /// Bytes that the file takes.
    pub(crate) file_len: u64,
    /// Engine time at which the cursor passed its last record, as far as this process knows.
    pub(crate) acked_at: Option<u64>,
    /// Sparse index; kept in memory for the segment being written only.
    pub(crate) index: Vec<IndexEntry>,
}

impl Segment {
    pub(crate) fn lane(&self) -> Lane {
        self.summary.header.lane
    }

    pub(crate) fn no(&self) -> u64 {
        self.summary.header.no
    }

    pub(crate) fn name(&self) -> String {
        segment_name(self.lane(), self.no())
    }

    pub(crate) fn seed(&self) -> u32 {
        frame_seed(&self.summary.header.epoch, self.lane(), self.no())
    }

    /// Adds a frame that was written at `offset`.
    pub(crate) fn add_frame<'a>(
        &mut self,
        offset: u64,
        frame: &FrameHeader,
        records: impl Iterator<Item = &'a Record>,
    ) {
        if self
            .index
            .last()
            .is_none_or(|entry| offset >= entry.offset + INDEX_STEP)
        {
            self.index.push(IndexEntry {
                offset,
                first_id: frame.first_id,
                ord: frame.ord,
                min_ms: u64::MAX,
                max_ms: 0,
                keys: 0,
            });
        }
        let summary = &mut self.summary;
        let mut entry = self.index.last_mut();
        for record in records {
            match record.data.origin {
                Origin::Received => summary.received += 1,
                Origin::Derived => summary.derived += 1,
            }
            summary.min_ms = summary.min_ms.min(record.data.received_ms);
            summary.max_ms = summary.max_ms.max(record.data.received_ms);
            summary.engine_ms = summary.engine_ms.max(record.data.engine_ms);
            if let Some(entry) = &mut entry {
                entry.min_ms = entry.min_ms.min(record.data.received_ms);
                entry.max_ms = entry.max_ms.max(record.data.received_ms);
                entry.keys |= key_bit(&record.data.key);
            }
        }
        if summary.first_id == 0 {
            summary.first_id = frame.first_id;
        }
        summary.last_id = frame.last_id;
        summary.ord_end = frame.ord + u64::from(frame.count);
        summary.data_end = offset + frame.len() as u64;
    }
}

/// `data-00000000000000000001.seg`
pub(crate) fn segment_name(lane: Lane, no: u64) -> String {
    format!("{}-{no:020}.seg", lane.as_str())
}

/// Inverse of [`segment_name`].
pub(crate) fn parse_name(name: &str) -> Option<(Lane, u64)> {
    let (lane, no) = name.strip_suffix(".seg")?.split_once('-')?;
    Some((Lane::from_name(lane)?, no.parse().ok()?))
}

/// What reading a segment file from the disk gave.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) segment: Segment,
    /// Bytes behind the last valid frame that aren't zero: a torn write.
    pub(crate) torn: u64,
    /// Ordinals lost in the middle, with the ids and times around them.
    pub(crate) holes: Vec<Hole>,
    /// Frames read one by one (0 for a sealed segment).
    pub(crate) frames: u64,
    /// Bytes read from the disk.
    pub(crate) bytes_read: u64,
}

/// Records missing between two valid frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hole {
    pub(crate) ord_start: u64,
    pub(crate) ord_end: u64,
    /// Record before the first missing one, and the last missing one.
    pub(crate) prev: u64,
    pub(crate) last: u64,
    pub(crate) first_ms: u64,
    pub(crate) last_ms: u64,
}

/// Why a segment file is of no use.
#[derive(Debug)]
pub(crate) enum LoadError {
    /// Preallocated and never written: nothing was in it.
    Empty,
    /// No header, no trailer and no valid frame.
    Unreadable,
    /// It belongs to another journal.
    Foreign,
    Io(io::Error),
}

/// Reads the trailer, or, where there is none, every frame.
///
/// `epoch` is the journal's where it is known; `full` walks the frames of a sealed segment too.
pub(crate) fn load(
    file: &Arc<dyn StorageFile>,
    lane: Lane,
    no: u64,
    epoch: Option<Epoch>,
    full: bool,
) -> Result<Loaded, LoadError> {
    let file_len = file.len().map_err(LoadError::Io)?;
    let mut head = vec![0; SEGMENT_HEADER];
    let read = file.read_at(0, &mut head).map_err(LoadError::Io)?;
    head.truncate(read);
    let header = Header::decode(&head).filter(|header| header.lane == lane && header.no == no);
    let trailer = read_trailer(file.as_ref(), file_len)
        .map_err(LoadError::Io)?
        .filter(|trailer| trailer.summary.header.lane == lane && trailer.summary.header.no == no);
    let found = trailer.map(|trailer| trailer.summary.header).or(header);
    if let (Some(found), Some(epoch)) = (found, epoch)
        && found.epoch != epoch
    {
        return Err(LoadError::Foreign);
    }
    if let Some(trailer) = trailer
        && !full
    {
        let segment = Segment {
            summary: trailer.summary,
            sealed: true,
            local: true,
            archived: false,
            file_len,
            acked_at: None,
            index: Vec::new(),
        };
        return Ok(Loaded {
            segment,
            torn: 0,
            holes: Vec::new(),
            frames: 0,
            bytes_read: 0,
        });
    }
    let epoch = found
        .map(|header| header.epoch)
        .or(epoch)
        .unwrap_or_default();
    let fallback = Header {
        lane,
        no,
        epoch,
        received: 0,
        derived: 0,
        prev: 0,
    };
    let end = trailer.map_or(file_len, |trailer| trailer.summary.data_end);
    let mut loaded = walk_frames(file, found.unwrap_or(fallback), found.is_some(), end)
        .map_err(LoadError::Io)?;
    loaded.segment.file_len = file_len;
    if let Some(trailer) = trailer {
        close_walk(&mut loaded, &trailer.summary);
        return Ok(loaded);
    }
    if loaded.frames == 0 {
        // The header is durable before the first frame: without one, zeroes never held a record.
        let blank = found.is_some() || head.iter().all(|byte| *byte == 0);
        let empty = blank && file_len >= SEGMENT_HEADER as u64 && loaded.torn == 0;
        return Err(if empty {
            LoadError::Empty
        } else {
            LoadError::Unreadable
        });
    }
    Ok(loaded)
}

/// Walks all frames from the top, rebuilding the summary.
fn walk_frames(
    file: &Arc<dyn StorageFile>,
    header: Header,
    known: bool,
    end: u64,
) -> io::Result<Loaded> {
    let seed = frame_seed(&header.epoch, header.lane, header.no);
    let summary = Summary::empty(header);
    let segment = Segment {
        summary,
        sealed: false,
        local: true,
        archived: false,
        file_len: 0,
        acked_at: None,
        index: Vec::new(),
    };
    let mut loaded = Loaded {
        segment,
        torn: 0,
        holes: Vec::new(),
        frames: 0,
        bytes_read: 0,
    };
    let mut walk = Walk::new(Arc::clone(file), seed, SEGMENT_HEADER as u64, end);
    let mut torn = 0;
    while let Some(step) = walk.step()? {
        let Step::Frame {
            offset,
            header: frame,
            payload,
        } = step
        else {
            if let Step::Damage { nonzero } = step {
                torn = nonzero;
            }
            continue;
        };
        let Ok(records) = codec::decode(&payload, frame.first_id, frame.count) else {
            continue;
        };
        let Some(first) = records.first() else {
            continue;
        };
        let summary = &mut loaded.segment.summary;
        if loaded.frames == 0 && !known {
            // The header is lost: what came before is known from the frame, how it split is not.
            summary.header.received = frame.ord;
            summary.header.prev = first.prev;
            summary.ord_end = frame.ord;
            summary.last_id = first.prev;
        }
        if frame.ord > summary.ord_end {
            loaded.holes.push(Hole {
                ord_start: summary.ord_end,
                ord_end: frame.ord,
                prev: summary.last_id,
                last: first.prev,
                first_ms: if summary.max_ms == 0 {
                    first.data.received_ms
                } else {
                    summary.max_ms
                },
                last_ms: first.data.received_ms,
            });
        }
        torn = 0;
        loaded.frames += 1;
        loaded
            .segment
            .add_frame(offset, &frame, records.iter().map(AsRef::as_ref));
    }
    loaded.torn = torn;
    loaded.bytes_read = walk.bytes_read;
    Ok(loaded)
}

/// Compares a full walk of a sealed segment with what its trailer says.
fn close_walk(loaded: &mut Loaded, sealed: &Summary) {
    let walked = &loaded.segment.summary;
    if walked.ord_end < sealed.ord_end {
        loaded.holes.push(Hole {
            ord_start: walked.ord_end,
            ord_end: sealed.ord_end,
            prev: walked.last_id,
            last: sealed.last_id,
            first_ms: if walked.max_ms == 0 {
                sealed.min_ms
            } else {
                walked.max_ms
            },
            last_ms: sealed.max_ms,
        });
    }
    loaded.segment.summary = *sealed;
    loaded.segment.sealed = true;
}

fn read_trailer(file: &dyn StorageFile, file_len: u64) -> io::Result<Option<Trailer>> {
    let Some(at) = file_len.checked_sub(TRAILER as u64) else {
        return Ok(None);
    };
    let mut bytes = vec![0; TRAILER];
    let read = file.read_at(at, &mut bytes)?;
    bytes.truncate(read);
    Ok(Trailer::decode(&bytes, file_len))
}

/// The index of a sealed segment; empty where it is damaged, and reads then start at the top.
pub(crate) fn read_index(file: &dyn StorageFile, file_len: u64) -> io::Result<Vec<IndexEntry>> {
    let Some(trailer) = read_trailer(file, file_len)? else {
        return Ok(Vec::new());
    };
    let len = file_len.saturating_sub(trailer.summary.data_end + TRAILER as u64);
    if len != trailer.index_entries * INDEX_ENTRY as u64 {
        return Ok(Vec::new());
    }
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
    let read = file.read_at(trailer.summary.data_end, &mut bytes)?;
    bytes.truncate(read);
    Ok(decode_index(&bytes, trailer.index_crc).unwrap_or_default())
}
