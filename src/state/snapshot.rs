//! Exports of the whole store, from which it can be rebuilt.
//!
//! ```text
//! head  := "SPARKGS1" mark:u64le
//! entry := 1:u8 len(key):u32le len(value):u32le key value
//! end   := 0:u8 entries:u64le crc32c:u32le      of everything before the checksum
//! ```
//!
//! A file gets its name after it is whole and synced. The two newest are kept. `mark` is the journal record
//! that the state is true for: the journal keeps what comes after the mark of the *older* one.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use crate::state::{Batch, StateError, StateStore};

const MAGIC: &[u8; 8] = b"SPARKGS1";
const PREFIX: &str = "snapshot-";
/// Snapshots that are kept.
pub const KEPT: usize = 2;
/// Entries are committed in batches of this many bytes on loading.
const LOAD_BATCH: usize = 1 << 20;
/// No key or value is longer; a longer length is damage.
const MAX_LEN: u32 = 512 << 20;

/// A snapshot file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Where it is.
    pub path: PathBuf,
    /// Its place in the order of snapshots; rises.
    pub number: u64,
    /// The journal record that its state is true for.
    pub mark: u64,
    /// Keys in it.
    pub entries: u64,
}

/// Why a snapshot can't be written or read.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The filesystem refused.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// Which file or folder.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It is cut short, or its checksum fails.
    #[error("{} is damaged", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
    },
    /// The store refused.
    #[error("the store refused")]
    Store(#[from] StateError),
}

fn io_error<'a>(doing: &'static str, path: &'a Path) -> impl Fn(io::Error) -> SnapshotError + 'a {
    move |source| SnapshotError::Io {
        doing,
        path: path.to_owned(),
        source,
    }
}

/// Passes bytes on and keeps their checksum.
struct Summed<T> {
    inner: T,
    crc: u32,
}

impl<T: Write> Summed<T> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        self.inner.write_all(bytes)
    }
}

impl<T: Read> Summed<T> {
    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.inner.read_exact(&mut bytes)?;
        self.crc = crc32c::crc32c_append(self.crc, &bytes);
        Ok(bytes)
    }

    /// Reads `len` bytes without trusting `len` with an allocation.
    fn take_vec(&mut self, len: u32) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = self
            .inner
            .by_ref()
            .take(u64::from(len))
            .read_to_end(&mut bytes)?;
        if read != len as usize {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.crc = crc32c::crc32c_append(self.crc, &bytes);
        Ok(bytes)
    }
}

/// Writes all of `store` to a new file in `dir`, which is `mark`'s state, and removes all but the two newest.
///
/// # Errors
/// The filesystem or the store refuses; older snapshots are then untouched.
pub fn export(store: &dyn StateStore, dir: &Path, mark: u64) -> Result<Snapshot, SnapshotError> {
    let number = list(dir)?.last().map_or(1, |(number, _)| number + 1);
    let path = dir.join(format!("{PREFIX}{number:020}"));
    let half = dir.join(format!("{PREFIX}{number:020}.tmp"));
    let result = write(store, &half, mark);
    if result.is_err() {
        // The half of a file is of no use and may be what filled the disk.
        let _ = std::fs::remove_file(&half);
    }
    let entries = result?;
    std::fs::rename(&half, &path).map_err(io_error("rename", &half))?;
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(io_error("sync", dir))?;
    let all = list(dir)?;
    for (_, old) in all.iter().take(all.len().saturating_sub(KEPT)) {
        std::fs::remove_file(old).map_err(io_error("remove", old))?;
    }
    Ok(Snapshot {
        path,
        number,
        mark,
        entries,
    })
}

fn write(store: &dyn StateStore, path: &Path, mark: u64) -> Result<u64, SnapshotError> {
    let failed = io_error("write", path);
    let file = File::create(path).map_err(&failed)?;
    let mut out = Summed {
        inner: BufWriter::new(file),
        crc: 0,
    };
    let mut entries = 0u64;
    out.put(MAGIC)
        .and_then(|()| out.put(&mark.to_le_bytes()))
        .map_err(&failed)?;
    for pair in store.scan_prefix(&[]) {
        let (key, value) = pair?;
        let mut head = vec![1];
        head.extend_from_slice(&(key.len() as u32).to_le_bytes());
        head.extend_from_slice(&(value.len() as u32).to_le_bytes());
        out.put(&head)
            .and_then(|()| out.put(&key))
            .and_then(|()| out.put(&value))
            .map_err(&failed)?;
        entries += 1;
    }
    out.put(&[0])
        .and_then(|()| out.put(&entries.to_le_bytes()))
        .map_err(&failed)?;
    let crc = out.crc.to_le_bytes();
    out.inner.write_all(&crc).map_err(&failed)?;
    let file = out
        .inner
        .into_inner()
        .map_err(|error| failed(error.into_error()))?;
    file.sync_all().map_err(&failed)?;
    Ok(entries)
}

/// Numbers and paths of the snapshots in `dir`, oldest first. Half-written ones are not among them.
fn list(dir: &Path) -> Result<Vec<(u64, PathBuf)>, SnapshotError> {
    let failed = io_error("list", dir);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(&failed)? {
        let path = entry.map_err(&failed)?.path();
        let number = path
            .file_name()
            .and_then(|name| name.to_str())
            .and_then(|name| name.strip_prefix(PREFIX));
        if let Some(number) = number.and_then(|number| number.parse().ok()) {
            found.push((number, path));
        }
    }
    found.sort();
    Ok(found)
}

/// Walks a snapshot, handing each entry to `visit`. Nothing is known to be right before it returns.
fn read(
    path: &Path,
    mut visit: impl FnMut(Vec<u8>, Vec<u8>) -> Result<(), SnapshotError>,
) -> Result<(u64, u64), SnapshotError> {
    let damaged = || SnapshotError::Damaged {
        path: path.to_owned(),
    };
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => damaged(),
        _ => io_error("read", path)(error),
    };
    let file = File::open(path).map_err(io_error("open", path))?;
    let mut input = Summed {
        inner: BufReader::new(file),
        crc: 0,
    };
    if input.take::<8>().map_err(failed)? != *MAGIC {
        return Err(damaged());
    }
    let mark = u64::from_le_bytes(input.take().map_err(failed)?);
    let mut entries = 0u64;
    loop {
        match input.take::<1>().map_err(failed)? {
            [1] => {}
            [0] => break,
            _ => return Err(damaged()),
        }
        let key = u32::from_le_bytes(input.take().map_err(failed)?);
        let value = u32::from_le_bytes(input.take().map_err(failed)?);
        if key > MAX_LEN || value > MAX_LEN {
            return Err(damaged());
        }
        let key = input.take_vec(key).map_err(failed)?;
        let value = input.take_vec(value).map_err(failed)?;
        visit(key, value)?;
        entries += 1;
    }
    let promised = u64::from_le_bytes(input.take().map_err(failed)?);
    let crc = input.crc;
    let stored = u32::from_le_bytes(input.take().map_err(failed)?);
    if crc != stored || promised != entries {
        return Err(damaged());
    }
    Ok((mark, entries))
}

/// The intact snapshots in `dir`, oldest first; the damaged ones are left out.
///
/// # Errors
/// The folder can't be listed.
pub fn intact(dir: &Path) -> Result<Vec<Snapshot>, SnapshotError> {
    let mut found = Vec::new();
    for (number, path) in list(dir)? {
        match read(&path, |_, _| Ok(())) {
            Ok((mark, entries)) => found.push(Snapshot {
                path,
                number,
                mark,
                entries,
            }),
            Err(error) => tracing::warn!(%error, "a state snapshot cannot be used"),
        }
    }
    Ok(found)
}

/// Reads a snapshot file through, wherever it lies.
///
/// # Errors
/// It can't be read, or is damaged.
pub fn examine(path: &Path) -> Result<Snapshot, SnapshotError> {
    let (mark, entries) = read(path, |_, _| Ok(()))?;
    Ok(Snapshot {
        path: path.to_owned(),
        number: 0,
        mark,
        entries,
    })
}

/// Puts all of `snapshot` into `store`. It has been read through before, so a failure is the store's.
///
/// # Errors
/// The store refuses, or the file changed meanwhile.
pub fn load(snapshot: &Snapshot, store: &dyn StateStore) -> Result<(), SnapshotError> {
    let mut batch = Batch::default();
    read(&snapshot.path, |key, value| {
        batch.put(key, value);
        if batch.bytes() >= LOAD_BATCH {
            store.commit(&std::mem::take(&mut batch))?;
        }
        Ok(())
    })?;
    store.commit(&batch)?;
    Ok(())
}
