//! Opening the store, whatever lies there.
//!
//! 1. `lock` is taken: two processes never share a store.
//! 2. Half-made files go: `snap.*.generating` of sled, `snapshot-*.tmp` and `*.making` of ours.
//! 3. A database of another backend is copied to a folder `*.making`, which then takes its name.
//! 4. The database is opened and read through where a panic is caught. On a full disk the ballast is given up first.
//! 5. When that fails, its folder is set aside and a new one is filled from the newest intact snapshot, or stays
//!    empty.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, fallocate};

use crate::state::snapshot::{self, Snapshot, SnapshotError};
use crate::state::{Backend, Batch, Pairs, StateError, StateStore, Store};

/// How long a start waits for a process that is about to end.
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// A database lets go of its lock some time after it is dropped: sled when its threads have come to an end.
const RELEASE_WAIT: Duration = Duration::from_secs(60);
const LOCK_RETRY: Duration = Duration::from_millis(20);
/// Extension of a folder that is not whole yet.
const MAKING: &str = "making";

/// How the store is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Which database.
    pub backend: Backend,
    /// Page cache in bytes.
    pub cache_bytes: u64,
    /// Room that is kept for opening on a full disk, in bytes.
    pub ballast_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            backend: Backend::default(),
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
    /// The database of another backend, copied; the old one is set aside.
    Converted {
        /// The other backend.
        from: Backend,
    },
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
    store: Store,
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
    let base = dir.join(options.backend.folder());
    remove_half_made(dir)?;
    let exists = base.exists();
    let other = other_database(dir, options.backend);
    let mut there: Vec<&Path> = other.iter().map(|(_, folder)| folder.as_path()).collect();
    if exists {
        there.push(&base);
    }
    for folder in there {
        wait_for_release(&folder.join(Backend::FILE), RELEASE_WAIT)?;
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
    let (reason, unusable) = match (exists, other) {
        (false, Some((from, folder))) => match open_other(dir, &folder, from, &options) {
            Ok((from, old)) => {
                let store = convert(dir, &old, &options)?;
                drop(old);
                set_aside(dir, &folder)?;
                tracing::info!(from = from.folder(), "state database converted");
                return Ok(opened(store, Source::Converted { from }));
            }
            Err(error) => (error, folder),
        },
        (_, other) => {
            // Left behind by a conversion that was cut off after the copy took its name.
            if let Some((_, folder)) = other {
                set_aside(dir, &folder)?;
            }
            match try_open(dir, &base, exists, &options) {
                Ok(store) if exists => return Ok(opened(store, Source::Database)),
                Ok(store) => return Ok(opened(store, Source::New)),
                Err(error) if !exists => return Err(OpenError::Make(error)),
                Err(error) => (error, base.clone()),
            }
        }
    };
    let reason = crate::telemetry::chain(&reason);
    let aside = set_aside(dir, &unusable)?;
    tracing::error!(reason, aside = %aside.display(), "state database set aside");
    let store = Store::create(&base, &options).map_err(OpenError::Make)?;
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

/// A database of another backend that lies in `dir`; its backend where this build has it.
fn other_database(dir: &Path, backend: Backend) -> Option<(Option<Backend>, PathBuf)> {
    let mut others = Backend::FOLDERS
        .into_iter()
        .filter(|folder| *folder != backend.folder());
    others.find_map(|folder| {
        let path = dir.join(folder);
        path.exists().then(|| (Backend::of_folder(folder), path))
    })
}

fn open_other(
    dir: &Path,
    folder: &Path,
    from: Option<Backend>,
    options: &Options,
) -> Result<(Backend, Store), StateError> {
    let from = from.ok_or_else(|| {
        let name = folder.file_name().unwrap_or_default();
        StateError::Unsupported(name.to_string_lossy().into_owned())
    })?;
    let theirs = Options {
        backend: from,
        ..options.clone()
    };
    Ok((from, try_open(dir, folder, true, &theirs)?))
}

/// Copies `old`. The copy gets its name when it is whole and synced.
fn convert(dir: &Path, old: &Store, options: &Options) -> Result<Store, OpenError> {
    let base = dir.join(options.backend.folder());
    let making = base.with_extension(MAKING);
    let new = Store::create(&making, options).map_err(OpenError::Make)?;
    new.copy(old).map_err(OpenError::Make)?;
    drop(new);
    wait_for_release(&making.join(Backend::FILE), RELEASE_WAIT)?;
    std::fs::rename(&making, &base).map_err(io_error("name", &making))?;
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(io_error("sync", dir))?;
    try_open(dir, &base, true, options).map_err(OpenError::Make)
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
/// set aside as what can't be opened.
fn wait_for_release(path: &Path, wait: Duration) -> Result<(), OpenError> {
    let Ok(file) = File::open(path) else {
        return Ok(());
    };
    match lock(file, path, wait) {
        Err(error @ OpenError::InUse { .. }) => Err(error),
        // What can't be locked is tried all the same: the database says itself what is wrong.
        Ok(_) | Err(_) => Ok(()),
    }
}

/// What a process left that was ended in the middle of writing.
fn remove_half_made(dir: &Path) -> Result<(), OpenError> {
    let ours = |name: &str| {
        (name.starts_with("snapshot-") && name.ends_with(".tmp"))
            || name
                .strip_suffix(MAKING)
                .is_some_and(|name| name.ends_with('.'))
    };
    remove_named(dir, ours)?;
    let sled = dir.join(Backend::Sled.folder());
    if sled.exists() {
        remove_named(&sled, |name| {
            name.starts_with("snap.") && name.ends_with(".generating")
        })?;
    }
    Ok(())
}

fn remove_named(dir: &Path, half_made: impl Fn(&str) -> bool) -> Result<(), OpenError> {
    for entry in std::fs::read_dir(dir).map_err(io_error("list", dir))? {
        let path = entry.map_err(io_error("list", dir))?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if name.is_some_and(&half_made) {
            let removed = if path.is_dir() {
                std::fs::remove_dir_all(&path)
            } else {
                std::fs::remove_file(&path)
            };
            removed.map_err(io_error("remove", &path))?;
        }
    }
    Ok(())
}

/// Opens and reads everything. When that fails for want of room, once more without the ballast.
fn try_open(dir: &Path, base: &Path, exists: bool, options: &Options) -> Result<Store, StateError> {
    let attempt = || {
        if !exists && !base.exists() {
            return Store::create(base, options);
        }
        let store = Store::open(base, options)?;
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

/// Moves a database's folder away. Of earlier ones only the newest is kept: they take room and explain little.
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
