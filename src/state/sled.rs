//! The store on sled 0.34, made durable.
//!
//! sled writes its log with `sync_file_range`, which orders no disk cache and writes no metadata: what its
//! `flush` returns for may be gone after a power cut. So a commit is one batch, `flush`, then `fdatasync` of
//! the file `db`; the folder is synced when the database is made. sled's own flusher thread is off: nothing
//! is written between commits. Calls into sled run where a panic is caught, and after the first failure the
//! store does nothing more.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{fdatasync, statvfs};

use crate::state::value::{self, Stored};
use crate::state::{Batch, Options, Pairs, StateError, StateStore, check_key};

/// sled allocates its log in segments of this size.
const SEGMENT: u64 = 512 << 10;
/// Free segments that a commit must leave, for sled's own copying.
const SPARE_SEGMENTS: u64 = 4;

/// Key that a finished database has; no user's key is stored under it.
const MARK: &[u8] = b"m";
/// Version of the whole layout.
const MARK_VERSION: u8 = 1;

/// A sled database with commits that survive a power cut. One commit runs at a time.
pub struct SledStore {
    db: ::sled::Db,
    file: File,
    dir: PathBuf,
    committing: Mutex<()>,
    poisoned: AtomicBool,
}

impl std::fmt::Debug for SledStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SledStore")
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

/// Runs a call into sled; a panic becomes an error.
pub(crate) fn guarded<T>(call: impl FnOnce() -> Result<T, StateError>) -> Result<T, StateError> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(StateError::Panicked(
            text.unwrap_or_else(|| "no message".to_owned()),
        ))
    })
}

fn io_error<'a>(doing: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> StateError + 'a {
    move |source| StateError::Io {
        doing,
        path: path.to_owned(),
        source,
    }
}

impl SledStore {
    /// Makes a database in `dir`, which must not exist.
    pub(crate) fn create(dir: &Path, options: &Options) -> Result<Self, StateError> {
        let store = Self::start(dir, options)?;
        let synced = |path: &Path| {
            File::open(path)
                .and_then(|file| file.sync_all())
                .map_err(io_error("sync", path))
        };
        guarded(|| {
            store
                .db
                .insert(MARK, &[MARK_VERSION])
                .map_err(StateError::Database)?;
            store.db.flush().map_err(StateError::Database)?;
            Ok(())
        })?;
        synced(&dir.join("db"))?;
        synced(dir)?;
        dir.parent().map_or(Ok(()), synced)?;
        Ok(store)
    }

    /// Opens the database in `dir`. Reads nothing of it yet but the mark that it was once finished: sled
    /// takes a folder whose `db` is gone for a new one. See [`Self::scan_all`].
    pub(crate) fn open(dir: &Path, options: &Options) -> Result<Self, StateError> {
        let store = Self::start(dir, options)?;
        let mark = guarded(|| store.db.get(MARK).map_err(StateError::Database))?;
        if mark.as_deref() == Some(&[MARK_VERSION]) {
            Ok(store)
        } else {
            Err(StateError::Unfinished)
        }
    }

    fn start(dir: &Path, options: &Options) -> Result<Self, StateError> {
        let db = guarded(|| {
            let config = ::sled::Config::new()
                .path(dir)
                .cache_capacity(options.cache_bytes)
                .flush_every_ms(None);
            config.open().map_err(StateError::Database)
        })?;
        let path = dir.join("db");
        let file = File::open(&path).map_err(io_error("open", &path))?;
        let poisoned = AtomicBool::new(false);
        Ok(Self {
            db,
            file,
            dir: dir.to_owned(),
            committing: Mutex::new(()),
            poisoned,
        })
    }

    /// Reads every key and value; the first damaged one is an error.
    pub(crate) fn scan_all(&self) -> Result<u64, StateError> {
        guarded(|| {
            let mut n = 0;
            for pair in self.scan_prefix(&[]) {
                pair?;
                n += 1;
            }
            Ok(n)
        })
    }

    fn usable(&self) -> Result<(), StateError> {
        if self.poisoned.load(Ordering::Acquire) {
            Err(StateError::Poisoned)
        } else {
            Ok(())
        }
    }

    /// A full disk is met before sled meets it: sled can neither write nor be opened then.
    fn check_room(&self, batch: &Batch) -> Result<(), StateError> {
        let stat = statvfs(&self.dir)
            .map_err(|error| io_error("ask for room of", &self.dir)(error.into()))?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        let needed = (batch.bytes() as u64).saturating_mul(2) + SPARE_SEGMENTS * SEGMENT;
        if free < needed {
            Err(StateError::Full { free, needed })
        } else {
            Ok(())
        }
    }

    fn read(&self, key: &[u8], stored: &[u8]) -> Result<Vec<u8>, StateError> {
        let damaged = || StateError::Damaged(key.len());
        match value::decode(key, stored).ok_or_else(damaged)? {
            Stored::Whole(content) => Ok(content),
            Stored::Split { parts, len, crc } => {
                let mut content = Vec::new();
                for no in 0..parts {
                    let part = self
                        .db
                        .get(value::part_key(key, no))
                        .map_err(StateError::Database)?;
                    let part = part.ok_or_else(damaged)?;
                    content.extend_from_slice(value::decode_part(key, &part).ok_or_else(damaged)?);
                }
                if value::joined(key, &content, len, crc) {
                    Ok(content)
                } else {
                    Err(damaged())
                }
            }
        }
    }

    /// Parts that `key` has now.
    fn parts(&self, key: &[u8]) -> Result<u32, StateError> {
        let stored = self
            .db
            .get(value::value_key(key))
            .map_err(StateError::Database)?;
        Ok(
            match stored.and_then(|stored| value::decode(key, &stored)) {
                Some(Stored::Split { parts, .. }) => parts,
                _ => 0,
            },
        )
    }

    fn write(&self, batch: &Batch) -> Result<(), StateError> {
        // Removals first, so that a part that is written again stays.
        let mut changes: BTreeMap<Vec<u8>, Option<Vec<u8>>> = BTreeMap::new();
        for key in &batch.deletes {
            changes.insert(value::value_key(key), None);
            for no in 0..self.parts(key)? {
                changes.insert(value::part_key(key, no), None);
            }
        }
        let mut written: BTreeMap<&[u8], u32> = BTreeMap::new();
        for (key, content) in &batch.puts {
            let before = match written.get(key.as_slice()) {
                Some(parts) => *parts,
                None => self.parts(key)?,
            };
            for no in 0..before {
                changes.insert(value::part_key(key, no), None);
            }
            let (stored, parts) = value::encode(key, content);
            written.insert(key, parts);
            changes.extend(stored.into_iter().map(|(key, value)| (key, Some(value))));
        }
        let mut out = ::sled::Batch::default();
        for (key, value) in changes {
            match value {
                Some(value) => out.insert(key, value),
                None => out.remove(key),
            }
        }
        self.db.apply_batch(out).map_err(StateError::Database)?;
        self.db.flush().map_err(StateError::Database)?;
        fdatasync(&self.file).map_err(|error| io_error("sync", &self.dir)(error.into()))
    }
}

impl StateStore for SledStore {
    fn commit(&self, batch: &Batch) -> Result<(), StateError> {
        let keys = batch.puts.iter().map(|(key, _)| key).chain(&batch.deletes);
        for key in keys {
            check_key(key)?;
        }
        let _one = self
            .committing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.usable()?;
        self.check_room(batch)?;
        let result = guarded(|| self.write(batch));
        if result.is_err() {
            self.poisoned.store(true, Ordering::Release);
        }
        result
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StateError> {
        self.usable()?;
        guarded(|| {
            let stored = self
                .db
                .get(value::value_key(key))
                .map_err(StateError::Database)?;
            stored.map(|stored| self.read(key, &stored)).transpose()
        })
    }

    fn scan_prefix(&self, prefix: &[u8]) -> Pairs<'_> {
        let pairs = self.db.scan_prefix(value::value_key(prefix));
        Box::new(pairs.map(|pair| {
            let (stored_key, stored) = pair.map_err(StateError::Database)?;
            let key = value::user_key(&stored_key).unwrap_or_default();
            Ok((key.to_vec(), self.read(key, &stored)?))
        }))
    }
}
