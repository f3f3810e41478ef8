//! Walks the frames of one segment, past damage to the next valid frame.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use crate::buffer::frame::{FRAME_HEADER, FRAME_MAGIC, FrameHeader};
use crate::buffer::storage::StorageFile;

/// Bytes read at once: the memory that a reader needs, large frames apart.
const WINDOW: usize = 256 << 10;

/// What lies at the walker's place.
#[derive(Debug)]
pub(crate) enum Step {
    /// A frame whose checksum fits.
    Frame {
        offset: u64,
        header: FrameHeader,
        payload: Bytes,
    },
    /// Bytes that are no frame, up to the next one or the end. `nonzero` of them, counted to the last byte
    /// that isn't zero: 0 is preallocated room that was never used.
    Damage { nonzero: u64 },
}

/// A place in a segment.
pub(crate) struct Walk {
    file: Arc<dyn StorageFile>,
    seed: u32,
    offset: u64,
    end: u64,
    window: Bytes,
    window_at: u64,
    /// Bytes read from the disk so far.
    pub(crate) bytes_read: u64,
}

impl Walk {
    /// Walks `file` from `offset`, where a frame starts, to `end`.
    pub(crate) fn new(file: Arc<dyn StorageFile>, seed: u32, offset: u64, end: u64) -> Self {
        Self {
            file,
            seed,
            offset,
            end,
            window: Bytes::new(),
            window_at: 0,
            bytes_read: 0,
        }
    }

    /// Where the next step starts.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The next step; `None` at the end.
    pub(crate) fn step(&mut self) -> io::Result<Option<Step>> {
        if self.offset >= self.end {
            return Ok(None);
        }
        let offset = self.offset;
        if let Some((header, payload)) = self.frame_at(offset)? {
            self.offset += header.len() as u64;
            return Ok(Some(Step::Frame {
                offset,
                header,
                payload,
            }));
        }
        let (next, nonzero) = self.search(offset)?;
        self.offset = next;
        Ok(Some(Step::Damage { nonzero }))
    }

    /// `len` bytes at `at`, fewer at the end.
    fn bytes(&mut self, at: u64, len: usize) -> io::Result<Bytes> {
        let len = len.min(usize::try_from(self.end.saturating_sub(at)).unwrap_or(usize::MAX));
        let inside = at
            .checked_sub(self.window_at)
            .and_then(|skip| usize::try_from(skip).ok())
            .filter(|skip| {
                skip.checked_add(len)
                    .is_some_and(|end| end <= self.window.len())
            });
        if let Some(skip) = inside {
            return Ok(self.window.slice(skip..skip + len));
        }
        let room = usize::try_from(self.end - at).unwrap_or(usize::MAX);
        let mut window = vec![0; len.max(WINDOW).min(room)];
        let read = self.file.read_at(at, &mut window)?;
        window.truncate(read);
        self.bytes_read += read as u64;
        self.window = Bytes::from(window);
        self.window_at = at;
        Ok(self.window.slice(..len.min(read)))
    }

    fn frame_at(&mut self, at: u64) -> io::Result<Option<(FrameHeader, Bytes)>> {
        let Some(header) = FrameHeader::decode(&self.bytes(at, FRAME_HEADER)?) else {
            return Ok(None);
        };
        if header.len() as u64 > self.end - at {
            return Ok(None);
        }
        let frame = self.bytes(at, header.len())?;
        let good = header.fits(self.seed, &frame);
        Ok(good.then(|| (header, frame.slice(FRAME_HEADER..))))
    }

    /// The place of the next valid frame after `from`, or the end.
    fn search(&mut self, from: u64) -> io::Result<(u64, u64)> {
        let magic = FRAME_MAGIC.to_le_bytes();
        let mut last_nonzero = from;
        let mut at = from;
        while at < self.end {
            let chunk = self.bytes(at, WINDOW)?;
            if chunk.is_empty() {
                break;
            }
            let skip = usize::from(at == from);
            let mut found = None;
            let mut base = skip;
            while let Some(step) = chunk
                .get(base..)
                .and_then(|rest| rest.iter().position(|byte| *byte == magic[0]))
            {
                let place = base + step;
                let rest = chunk.get(place..).unwrap_or_default();
                if rest.starts_with(&magic) && self.frame_at(at + place as u64)?.is_some() {
                    found = Some(place);
                    break;
                }
                base = place + 1;
            }
            let looked_at = chunk
                .get(..found.unwrap_or(chunk.len()))
                .unwrap_or_default();
            if let Some(place) = looked_at.iter().rposition(|byte| *byte != 0) {
                last_nonzero = at + place as u64 + 1;
            }
            if let Some(place) = found {
                return Ok((at + place as u64, last_nonzero - from));
            }
            // The magic may straddle two chunks.
            let step = chunk.len().saturating_sub(magic.len() - 1).max(1);
            at += if chunk.len() < magic.len() {
                chunk.len() as u64
            } else {
                step as u64
            };
        }
        Ok((self.end, last_nonzero - from))
    }
}
