//! Opening the store, whatever lies there.
//!
//! 1. `lock` is taken: two processes never share a store.
//! 2. Half-made files go: `snap.*.generating` of sled, `snapshot-*.tmp` of ours.
//! 3. sled is opened and read through where a panic is caught. On a full disk the ballast is given up first.
//! 4. When that fails, sled's folder is set aside and a new one is filled from the newest intact snapshot,
//!    or stays empty.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, fallocate};

use crate::state::sled::SledStore;
use crate::state::snapshot::{self, Snapshot, SnapshotError};
use crate::state::{Batch, Pairs, StateError, StateStore};

/// How long a start waits for a process that is about to end.
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// sled lets go of its lock some time after it is dropped: when its threads have come to an end.
const RELEASE_WAIT: Duration = Duration::from_secs(60);
const LOCK_RETRY: Duration = Duration::from_millis(20);

/// How the store is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Page cache in bytes.
    pub cache_bytes: u64,
    /// Room that is kept for opening on a full disk, in bytes.
    pub ballast_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cache_bytes: 16 << 20,
            ballast_bytes: 4 << 20,
        }
    }
}

/// Where the state came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// There was nothing: a new store.
    New,
    /// The database as it was left.
    Database,
    /// The database could not be used.
    Rebuilt {
        /// What was wrong with it.
        reason: String,
        /// Where it lies now.
        aside: PathBuf,
        /// What was loaded instead; `None`: there was no intact snapshot, and the store is empty.
        snapshot: Option<Snapshot>,
    },
}

/// Why the store can't be opened at all.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder can't be used.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// Which file or folder.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Another process has it open.
    #[error("{} is in use by another process", path.display())]
    InUse {
        /// The lock file.
        path: PathBuf,
    },
    /// Not even a new database can be made (a full disk).
    #[error("cannot make a state database")]
    Make(#[source] StateError),
    /// A snapshot can't be listed or loaded.
    #[error("cannot load a state snapshot")]
    Snapshot(#[from] SnapshotError),
}

/// An open store with its folder and its lock.
#[derive(Debug)]
pub struct Opened {
    store: SledStore,
    dir: PathBuf,
    options: Options,
    /// Where the state came from.
    pub source: Source,
    _lock: Lock,
}

/// A lock on a file, which ends with this value. A child process has copies of all descriptors between fork and exec,
/// and a lock that is not given back lasts as long as its last copy.
#[derive(Debug)]
struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

fn io_error<'a>(doing: &'static str, path: &'a Path) -> impl Fn(io::Error) -> OpenError + 'a {
    move |source| OpenError::Io {
        doing,
        path: path.to_owned(),
        source,
    }
}

/// Opens the store in `dir`, or makes it, or makes it anew.
///
/// # Errors
/// The folder or its database can't be used or another process has it. What lies in it is no reason.
pub fn open(dir: &Path, options: Options) -> Result<Opened, OpenError> {
    std::fs::create_dir_all(dir).map_err(io_error("make", dir))?;
    let lock = take_lock(&dir.join("lock"))?;
    let base = dir.join("sled");
    remove_half_made(dir, |name| {
        name.starts_with("snapshot-") && name.ends_with(".tmp")
    })?;
    let exists = base.exists();
    if exists {
        remove_half_made(&base, |name| {
            name.starts_with("snap.") && name.ends_with(".generating")
        })?;
        wait_for_release(&base.join("db"), RELEASE_WAIT)?;
    }
    let opened = |store, source| {
        let opened = Opened {
            store,
            dir: dir.to_owned(),
            options: options.clone(),
            source,
            _lock: lock,
        };
        opened.restore_ballast();
        opened
    };
    let reason = match try_open(dir, &base, exists, &options) {
        Ok(store) => {
            return Ok(opened(
                store,
                if exists {
                    Source::Database
                } else {
                    Source::New
                },
            ));
        }
        Err(error) => error,
    };
    if !exists {
        return Err(OpenError::Make(reason));
    }
    let reason = crate::telemetry::chain(&reason);
    let aside = set_aside(dir, &base)?;
    tracing::error!(reason, aside = %aside.display(), "state database set aside");
    let store = SledStore::create(&base, &options).map_err(OpenError::Make)?;
    let snapshot = snapshot::intact(dir)?.pop();
    if let Some(snapshot) = &snapshot {
        snapshot::load(snapshot, &store)?;
    }
    Ok(opened(
        store,
        Source::Rebuilt {
            reason,
            aside,
            snapshot,
        },
    ))
}

fn take_lock(path: &Path) -> Result<Lock, OpenError> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(io_error("open", path))?;
    lock(file, path, LOCK_WAIT)
}

/// Locks it as soon as nobody else has it.
fn lock(file: File, path: &Path, wait: Duration) -> Result<Lock, OpenError> {
    let started = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Lock(file)),
            Err(TryLockError::WouldBlock) if started.elapsed() < wait => {
                std::thread::sleep(LOCK_RETRY)
            }
            Err(TryLockError::WouldBlock) => {
                return Err(OpenError::InUse {
                    path: path.to_owned(),
                });
            }
            Err(TryLockError::Error(error)) => return Err(io_error("lock", path)(error)),
        }
    }
}

/// Waits until a database that was dropped a moment ago is free. One that somebody holds is not damaged, and is not
/// set aside as what sled can't open.
fn wait_for_release(path: &Path, wait: Duration) -> Result<(), OpenError> {
    let Ok(file) = File::open(path) else {
        return Ok(());
    };
    match lock(file, path, wait) {
        Err(error @ OpenError::InUse { .. }) => Err(error),
        // What can't be locked is tried all the same: sled says itself what is wrong.
        Ok(_) | Err(_) => Ok(()),
    }
}

fn remove_half_made(dir: &Path, half_made: impl Fn(&str) -> bool) -> Result<(), OpenError> {
    for entry in std::fs::read_dir(dir).map_err(io_error("list", dir))? {
        let path = entry.map_err(io_error("list", dir))?.path();
        if path
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(&half_made)
        {
            std::fs::remove_file(&path).map_err(io_error("remove", &path))?;
        }
    }
    Ok(())
}

/// Opens and reads everything. When that fails for want of room, once more without the ballast.
fn try_open(
    dir: &Path,
    base: &Path,
    exists: bool,
    options: &Options,
) -> Result<SledStore, StateError> {
    let attempt = || {
        if !exists && !base.exists() {
            return SledStore::create(base, options);
        }
        let store = SledStore::open(base, options)?;
        store.scan_all()?;
        Ok(store)
    };
    match attempt() {
        Err(error) if std::fs::remove_file(dir.join("ballast")).is_ok() => {
            tracing::warn!(%error, "state database opened once more without ballast");
            attempt()
        }
        result => result,
    }
}

/// Moves sled's folder away. Of earlier ones only the newest is kept: they take room and explain little.
fn set_aside(dir: &Path, base: &Path) -> Result<PathBuf, OpenError> {
    let mut number = 0u64;
    for entry in std::fs::read_dir(dir).map_err(io_error("list", dir))? {
        let path = entry.map_err(io_error("list", dir))?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if let Some(old) = name
            .and_then(|name| name.strip_prefix("aside-"))
            .and_then(|old| old.parse::<u64>().ok())
        {
            number = number.max(old);
            std::fs::remove_dir_all(&path).map_err(io_error("remove", &path))?;
        }
    }
    let aside = dir.join(format!("aside-{}", number + 1));
    std::fs::rename(base, &aside).map_err(io_error("set aside", base))?;
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(io_error("sync", dir))?;
    Ok(aside)
}

impl Opened {
    /// Exports everything, as the state that is true for journal record `mark`, and says from which record
    /// on the journal is still needed: the mark of the older of the two kept snapshots.
    ///
    /// # Errors
    /// The filesystem or the store refuses; older snapshots are then untouched.
    pub fn snapshot(&self, mark: u64) -> Result<u64, SnapshotError> {
        snapshot::export(&self.store, &self.dir, mark)?;
        let kept = snapshot::intact(&self.dir)?;
        // With one snapshot alone, a rebuild without it starts from nothing, so everything is needed.
        Ok(if kept.len() < snapshot::KEPT {
            0
        } else {
            kept.first().map_or(0, |oldest| oldest.mark)
        })
    }

    /// The newest intact snapshot.
    ///
    /// # Errors
    /// The folder can't be listed.
    pub fn newest_snapshot(&self) -> Result<Option<Snapshot>, SnapshotError> {
        Ok(snapshot::intact(&self.dir)?.pop())
    }

    /// Makes the ballast again where there is room for it; called at opening, and later once a full disk
    /// has healed.
    pub fn restore_ballast(&self) {
        let path = self.dir.join("ballast");
        if self.options.ballast_bytes == 0 || path.exists() {
            return;
        }
        let made = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .and_then(|file| {
                Ok(fallocate(
                    &file,
                    FallocateFlags::empty(),
                    0,
                    self.options.ballast_bytes,
                )?)
            });
        if let Err(error) = made {
            tracing::warn!(%error, "no room for the ballast of the state store");
            let _ = std::fs::remove_file(&path);
        }
    }
}

impl StateStore for Opened {
    fn commit(&self, batch: &Batch) -> Result<(), StateError> {
        self.store.commit(batch)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StateError> {
        self.store.get(key)
    }

    fn scan_prefix(&self, prefix: &[u8]) -> Pairs<'_> {
        self.store.scan_prefix(prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_that_somebody_holds_is_in_use_and_not_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("db");
        assert!(wait_for_release(&path, Duration::ZERO).is_ok());
        let held = take_lock(&path).unwrap();
        assert!(matches!(
            wait_for_release(&path, Duration::ZERO),
            Err(OpenError::InUse { .. })
        ));
        // What a child process holds between fork and exec.
        let copy = held.0.try_clone().unwrap();
        drop(held);
        wait_for_release(&path, Duration::ZERO).unwrap();
        take_lock(&path).unwrap();
        drop(copy);
    }
}
