//! The files: opening after a stop or a crash, appending, rotation and the quota.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};

use super::{Entry, Head, Stored, line, parse};

/// A file is followed by a new one at this size.
const FILE_BYTES: u64 = 16 << 20;

/// Why the log can't be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} {}", path.display())]
pub struct OpenError {
    doing: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// The log, open for appending.
#[derive(Debug)]
pub struct Log {
    folder: PathBuf,
    max_bytes: u64,
    file_bytes: u64,
    file: Option<File>,
    size: u64,
    seq: u64,
    hash: String,
    last_record: u64,
    broken: bool,
}

impl Log {
    /// Opens the log of a folder and cuts a torn last line. `head` is what the state store knows of it.
    ///
    /// # Errors
    /// The folder or its newest file can't be read or written.
    pub fn open(folder: &Path, max_bytes: u64, head: &Head) -> Result<Self, OpenError> {
        let wrong = |doing, path: &Path| {
            let path = path.to_path_buf();
            move |source| OpenError {
                doing,
                path,
                source,
            }
        };
        std::fs::create_dir_all(folder).map_err(wrong("create", folder))?;
        let mut log = Self {
            folder: folder.to_path_buf(),
            max_bytes,
            file_bytes: FILE_BYTES.min(max_bytes / 4).max(4_096),
            file: None,
            size: 0,
            seq: 0,
            hash: Head::default().hash,
            last_record: 0,
            broken: false,
        };
        let files = files(folder).map_err(wrong("read", folder))?;
        let mut knows_head = head.seq == 0;
        for path in files.iter().rev() {
            let bytes = std::fs::read(path).map_err(wrong("read", path))?;
            let whole = bytes
                .iter()
                .rposition(|byte| *byte == b'\n')
                .map_or(0, |at| at + 1);
            let newest = log.file.is_none();
            if newest {
                let file = OpenOptions::new()
                    .append(true)
                    .open(path)
                    .map_err(wrong("open", path))?;
                if whole < bytes.len() {
                    file.set_len(whole as u64).map_err(wrong("cut", path))?;
                    file.sync_data().map_err(wrong("sync", path))?;
                }
                log.size = whole as u64;
                log.file = Some(file);
            }
            let lines = bytes
                .get(..whole)
                .unwrap_or_default()
                .split(|b| *b == b'\n');
            for stored in lines.filter_map(|line| parse(line).ok()) {
                knows_head |= stored.seq == head.seq && stored.hash == head.hash;
                if stored.seq > log.seq {
                    log.seq = stored.seq;
                    log.last_record = stored.record;
                    log.hash = stored.hash;
                }
            }
            // The head lies at most a moment behind the newest entry.
            if knows_head || log.seq < head.seq {
                break;
            }
        }
        if !knows_head {
            // What is there is not what was written: the chain goes on from what was, so that the break is found.
            log.broken = true;
            log.seq = log.seq.max(head.seq);
            log.hash.clone_from(&head.hash);
        }
        log.last_record = log.last_record.max(head.through);
        Ok(log)
    }

    /// The files do not hold the entry that the state store knows: entries were removed or altered.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Records up to this one are in the log.
    #[must_use]
    pub fn last_record(&self) -> u64 {
        self.last_record
    }

    /// The newest entry.
    #[must_use]
    pub fn head(&self) -> Head {
        Head {
            seq: self.seq,
            hash: self.hash.clone(),
            through: self.last_record,
        }
    }

    /// Appends entries; they are on disk when this returns.
    ///
    /// # Errors
    /// The disk refused. Nothing of it counts as appended; the same call can be made again.
    pub fn append(&mut self, entries: &[Entry]) -> io::Result<()> {
        // Before what a failure rolls back to: the size is that of the file that is written to.
        if self.size >= self.file_bytes {
            self.file = None;
        }
        if self.file.is_none() {
            self.start_file()?;
        }
        let before = (self.seq, self.hash.clone(), self.size, self.last_record);
        let done = self.try_append(entries);
        if done.is_err() {
            (self.seq, self.hash, self.size, self.last_record) = before;
            if let Some(file) = &self.file {
                // Best effort: a torn line is cut at the next opening anyway.
                let _ = file.set_len(self.size);
            }
        }
        done
    }

    fn try_append(&mut self, entries: &[Entry]) -> io::Result<()> {
        let mut text = String::new();
        for entry in entries {
            let (line, hash) = line(self.seq + 1, &self.hash, entry);
            text.push_str(&line);
            text.push('\n');
            self.seq += 1;
            self.hash = hash;
        }
        if let Some(file) = &mut self.file {
            file.write_all(text.as_bytes())?;
            file.sync_data()?;
        }
        self.size += text.len() as u64;
        if let Some(newest) = entries.last() {
            self.last_record = newest.record;
        }
        self.trim()
    }

    fn start_file(&mut self) -> io::Result<()> {
        let path = self
            .folder
            .join(format!("audit-{:020}.jsonl", self.seq + 1));
        self.file = Some(OpenOptions::new().create(true).append(true).open(path)?);
        self.size = 0;
        File::open(&self.folder)?.sync_all()
    }

    /// Removes the oldest file past the quota, after an entry that vouches for it.
    fn trim(&mut self) -> io::Result<()> {
        let files = files(&self.folder)?;
        let mut bytes = 0;
        for path in &files {
            bytes += std::fs::metadata(path)?.len();
        }
        let [oldest, _, ..] = files.as_slice() else {
            return Ok(());
        };
        if bytes <= self.max_bytes {
            return Ok(());
        }
        let Some(last) = entries(oldest)?.pop() else {
            return std::fs::remove_file(oldest);
        };
        let vouch = Entry {
            record: self.last_record,
            at_ms: 0,
            what: "trim",
            body: json!({"removed_to": last.seq, "hash": last.hash, "reason": "[writes] audit_max"}),
        };
        let (line, hash) = line(self.seq + 1, &self.hash, &vouch);
        if let Some(file) = &mut self.file {
            file.write_all(format!("{line}\n").as_bytes())?;
            file.sync_data()?;
            self.size += line.len() as u64 + 1;
        }
        self.seq += 1;
        self.hash = hash;
        std::fs::remove_file(oldest)
    }

    /// The newest `n` entries, oldest first: record, kind and body.
    ///
    /// # Errors
    /// A file can't be read.
    pub fn tail(folder: &Path, n: usize) -> io::Result<Vec<Json>> {
        let mut all: Vec<Json> = Vec::new();
        for path in files(folder)?.iter().rev() {
            let mut some: Vec<Json> = entries(path)?.into_iter().map(|it| shown(&it)).collect();
            some.append(&mut all);
            all = some;
            if all.len() >= n {
                break;
            }
        }
        all.drain(..all.len().saturating_sub(n));
        Ok(all)
    }
}

fn shown(stored: &Stored) -> Json {
    json!({
        "seq": stored.seq, "record": stored.record, "what": stored.what, "body": stored.body, "hash": stored.hash,
    })
}

/// The log's files, oldest first.
pub(super) fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    if !folder.is_dir() {
        return Ok(found);
    }
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let ours = path
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.starts_with("audit-") && name.ends_with(".jsonl"));
        if ours {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn entries(path: &Path) -> io::Result<Vec<Stored>> {
    let bytes = std::fs::read(path)?;
    Ok(bytes
        .split(|byte| *byte == b'\n')
        .filter_map(|line| parse(line).ok())
        .collect())
}
