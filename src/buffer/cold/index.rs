//! What lies in the cold tier: one entry a segment, the text of its manifest.
//!
//! The file `cold` in the journal's folder has one JSON line an entry, appended and synced after the manifest is
//! stored; a removed object has a line of its own. When most lines are about removed objects, the file is written anew
//! as `cold.new` and takes the old one's place. It is a copy of the manifests: without it they are listed anew.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::buffer::frame::{Header, Summary, epoch_hex};
use crate::buffer::record::{Lane, RecordId};
use crate::buffer::segment::Segment;
use crate::buffer::storage::{Storage, StorageFile};

/// Name of the file.
pub(crate) const INDEX: &str = "cold";
/// The file that takes its place, until it is whole.
const NEW: &str = "cold.new";
/// Lines about removed objects that are always put up with.
const STALE: usize = 1000;

/// One archived segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Version of the manifest.
    pub version: u32,
    /// `data` or `alarms`.
    pub lane: String,
    /// Number of the segment.
    pub segment: u64,
    /// 32 hex digits.
    pub epoch: String,
    /// First record.
    pub first_id: RecordId,
    /// Last record.
    pub last_id: RecordId,
    /// Record of the lane before the first one.
    pub prev: RecordId,
    /// Records of the lane before this segment, from outside.
    pub received_before: u64,
    /// The same made by the gateway.
    pub derived_before: u64,
    /// Records inside, from outside.
    pub received: u64,
    /// The same made by the gateway.
    pub derived: u64,
    /// Ordinal after the last record.
    pub ord_end: u64,
    /// Earliest arrival, ms UTC.
    pub min_ms: u64,
    /// Latest arrival, ms UTC.
    pub max_ms: u64,
    /// Newest engine time, ms.
    pub engine_ms: u64,
    /// Bytes of the segment's frames.
    pub frame_bytes: u64,
    /// Rows of the table.
    pub rows: u64,
    /// Bytes of the object.
    pub bytes: u64,
    /// SHA-256 of the object, hexadecimal.
    pub sha256: String,
    /// Key of the object, below the configured prefix.
    pub object: String,
}

impl Entry {
    pub(crate) fn lane(&self) -> Option<Lane> {
        Lane::from_name(&self.lane)
    }

    /// Key of a segment's object: the same whenever and by whomever it is made.
    pub(crate) fn key_of(gateway: &str, summary: &Summary) -> String {
        format!(
            "{gateway}/{}/{}/{:020}-{:020}.parquet",
            epoch_hex(&summary.header.epoch),
            summary.header.lane.as_str(),
            summary.first_id,
            summary.last_id
        )
    }

    /// Key of the manifest.
    pub(crate) fn manifest(&self) -> String {
        format!("{}.json", self.object.trim_end_matches(".parquet"))
    }

    pub(crate) fn new(
        summary: &Summary,
        object: String,
        rows: u64,
        bytes: u64,
        sha256: String,
    ) -> Self {
        let header = summary.header;
        Self {
            version: 1,
            lane: header.lane.as_str().to_owned(),
            segment: header.no,
            epoch: epoch_hex(&header.epoch),
            first_id: summary.first_id,
            last_id: summary.last_id,
            prev: header.prev,
            received_before: header.received,
            derived_before: header.derived,
            received: summary.received,
            derived: summary.derived,
            ord_end: summary.ord_end,
            min_ms: summary.min_ms,
            max_ms: summary.max_ms,
            engine_ms: summary.engine_ms,
            frame_bytes: summary.data_end,
            rows,
            bytes,
            sha256,
            object,
        }
    }

    /// The segment as it would stand in memory; `None` where the entry makes no sense.
    pub(crate) fn segment(&self) -> Option<Segment> {
        let mut epoch = [0; 16];
        for (at, byte) in epoch.iter_mut().enumerate() {
            *byte = u8::from_str_radix(self.epoch.get(2 * at..2 * at + 2)?, 16).ok()?;
        }
        let header = Header {
            lane: self.lane()?,
            no: self.segment,
            epoch,
            received: self.received_before,
            derived: self.derived_before,
            prev: self.prev,
        };
        Some(Segment {
            summary: Summary {
                header,
                received: self.received,
                derived: self.derived,
                ord_end: self.ord_end,
                first_id: self.first_id,
                last_id: self.last_id,
                min_ms: self.min_ms,
                max_ms: self.max_ms,
                engine_ms: self.engine_ms,
                data_end: self.frame_bytes,
            },
            sealed: true,
            local: false,
            archived: true,
            file_len: 0,
            acked_at: None,
            index: Vec::new(),
        })
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Line {
    Gone { gone: String },
    Entry(Box<Entry>),
}

impl Line {
    fn encode(&self) -> io::Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec(self)?;
        bytes.push(b'\n');
        Ok(bytes)
    }
}

/// Entries by lane and number, about 300 bytes each in memory.
#[derive(Default)]
pub(crate) struct Index {
    entries: BTreeMap<(Lane, u64), Arc<Entry>>,
    bytes: u64,
    file: Option<IndexFile>,
}

struct IndexFile {
    file: Arc<dyn StorageFile>,
    /// Where the next line goes.
    end: u64,
    lines: usize,
}

impl Index {
    /// Reads the file; a line that can't be read is left out, a torn one at the end is written over.
    pub(crate) fn load(storage: &dyn Storage) -> io::Result<Self> {
        let mut index = Self::default();
        let mut lines = 0;
        let file = match storage.open(INDEX) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(index),
            Err(error) => return Err(error),
        };
        let len = usize::try_from(file.len()?).unwrap_or(usize::MAX);
        let mut bytes = vec![0; len];
        let mut read = 0;
        while let Some(rest) = bytes.get_mut(read..).filter(|rest| !rest.is_empty()) {
            match file.read_at(read as u64, rest)? {
                0 => break,
                more => read += more,
            }
        }
        bytes.truncate(read);
        let whole = bytes
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |at| at + 1);
        for line in bytes
            .get(..whole)
            .unwrap_or_default()
            .split(|byte| *byte == b'\n')
        {
            lines += 1;
            match serde_json::from_slice(line) {
                Ok(Line::Entry(entry)) => index.insert(*entry),
                Ok(Line::Gone { gone }) => index.forget(&gone),
                Err(_) => {}
            }
        }
        index.file = Some(IndexFile {
            file,
            end: whole as u64,
            lines,
        });
        Ok(index)
    }

    fn insert(&mut self, entry: Entry) {
        if let Some(lane) = entry.lane() {
            self.bytes += entry.bytes;
            let before = self.entries.insert((lane, entry.segment), Arc::new(entry));
            self.bytes -= before.map_or(0, |before| before.bytes);
        }
    }

    fn forget(&mut self, object: &str) {
        let bytes = &mut self.bytes;
        self.entries.retain(|_, entry| {
            let stays = entry.object != object;
            *bytes -= if stays { 0 } else { entry.bytes };
            stays
        });
    }

    fn append(&mut self, storage: &dyn Storage, line: &Line) -> io::Result<()> {
        let index = match &mut self.file {
            Some(index) => index,
            None => {
                let file = storage.create(INDEX, 0)?;
                storage.sync_dir()?;
                self.file.insert(IndexFile {
                    file,
                    end: 0,
                    lines: 0,
                })
            }
        };
        let bytes = line.encode()?;
        index.file.write_at(index.end, &bytes)?;
        index.file.sync()?;
        index.end += bytes.len() as u64;
        index.lines += 1;
        Ok(())
    }

    /// Writes the file anew when most of its lines are of no use any more.
    fn compact(&mut self, storage: &dyn Storage) -> io::Result<()> {
        let lines = self.file.as_ref().map_or(0, |index| index.lines);
        if lines <= 2 * self.entries.len() + STALE {
            return Ok(());
        }
        if let Err(error) = storage.remove(NEW)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let mut bytes = Vec::new();
        for entry in self.entries.values() {
            bytes.extend_from_slice(&Line::Entry(Box::new(Entry::clone(entry))).encode()?);
        }
        let file = storage.create(NEW, 0)?;
        file.write_at(0, &bytes)?;
        file.sync()?;
        storage.rename(NEW, INDEX)?;
        storage.sync_dir()?;
        self.file = Some(IndexFile {
            file,
            end: bytes.len() as u64,
            lines: self.entries.len(),
        });
        Ok(())
    }

    /// Adds an entry, durably.
    pub(crate) fn add(&mut self, storage: &dyn Storage, entry: Entry) -> io::Result<()> {
        self.append(storage, &Line::Entry(Box::new(entry.clone())))?;
        self.insert(entry);
        Ok(())
    }

    /// Takes an entry out, durably, once its object is gone.
    pub(crate) fn remove(&mut self, storage: &dyn Storage, object: &str) -> io::Result<()> {
        let gone = object.to_owned();
        self.append(storage, &Line::Gone { gone })?;
        self.forget(object);
        // What can't be written anew now can be the next time: the file that is there is whole.
        if let Err(error) = self.compact(storage) {
            tracing::warn!(%error, "the index of the cold tier cannot be written anew");
        }
        Ok(())
    }

    pub(crate) fn get(&self, lane: Lane, no: u64) -> Option<&Arc<Entry>> {
        self.entries.get(&(lane, no))
    }

    pub(crate) fn of(&self, lane: Lane) -> impl Iterator<Item = &Arc<Entry>> {
        self.entries
            .range((lane, 0)..=(lane, u64::MAX))
            .map(|(_, entry)| entry)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Objects, and their bytes.
    pub(crate) fn held(&self) -> (u64, u64) {
        (self.entries.len() as u64, self.bytes)
    }
}
