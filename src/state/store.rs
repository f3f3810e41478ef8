//! The durable store over any [`Database`]: checks, checksums, room, and a stop after the first failure.
//!
//! Calls into the database run where a panic is caught. After a failed commit nothing is known of what is durable,
//! so the store does nothing more; it must be opened anew.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::statvfs;

use crate::state::value::{self, Stored};
use crate::state::{Backend, Batch, Options, Pairs, StateError, StateStore, check_key};

/// Key that a finished database has; no user's key is stored under it.
const MARK: &[u8] = b"m";
/// Version of the whole layout.
const MARK_VERSION: u8 = 1;
/// Entries are copied in batches of about this many bytes.
const COPY_BATCH: usize = 1 << 20;

/// Stored keys and their new values; `None` removes.
pub(crate) type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// A database as it comes: stored keys and values, no checks, and it may panic.
pub(crate) trait Database: Send + Sync {
    /// The value of a stored key.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StateError>;
    /// Makes all of `changes` or none; they survive a power cut when this returns. Called by one thread at a time.
    fn apply(&self, changes: Changes) -> Result<(), StateError>;
    /// Stored keys that start with `prefix`, in the order of their bytes.
    fn scan(&self, prefix: &[u8]) -> Pairs<'_>;
    /// Bytes that must be free beside twice a batch, so that a commit meets no full disk.
    fn spare(&self) -> u64;
}

/// A database with commits that survive a power cut. One commit runs at a time.
pub struct Store {
    database: Box<dyn Database>,
    dir: PathBuf,
    committing: Mutex<()>,
    poisoned: AtomicBool,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

/// Runs a call into a database; a panic becomes an error.
fn guarded<T>(call: impl FnOnce() -> Result<T, StateError>) -> Result<T, StateError> {
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

/// What the filesystem refused.
pub(crate) fn io_error<'a>(
    doing: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> StateError + 'a {
    move |source| StateError::Io {
        doing,
        path: path.to_owned(),
        source,
    }
}

/// What the database refused.
pub(crate) fn database_error(error: impl std::error::Error + Send + Sync + 'static) -> StateError {
    StateError::Database(Box::new(error))
}

impl Store {
    fn start(dir: &Path, options: &Options) -> Result<Self, StateError> {
        let database = guarded(|| options.backend.start(dir, options))?;
        Ok(Self {
            database,
            dir: dir.to_owned(),
            committing: Mutex::new(()),
            poisoned: AtomicBool::new(false),
        })
    }

    /// Makes a database in `dir`, which must not exist.
    pub(crate) fn create(dir: &Path, options: &Options) -> Result<Self, StateError> {
        let store = Self::start(dir, options)?;
        let mark = Changes::from([(MARK.to_vec(), Some(vec![MARK_VERSION]))]);
        guarded(|| store.database.apply(mark))?;
        let synced = |path: &Path| {
            File::open(path)
                .and_then(|file| file.sync_all())
                .map_err(io_error("sync", path))
        };
        synced(&dir.join(Backend::FILE))?;
        synced(dir)?;
        dir.parent().map_or(Ok(()), synced)?;
        Ok(store)
    }

    /// Opens the database in `dir`. Reads nothing of it yet but the mark that it was once finished: sled takes a
    /// folder whose file is gone for a new one. See [`Self::scan_all`].
    pub(crate) fn open(dir: &Path, options: &Options) -> Result<Self, StateError> {
        let store = Self::start(dir, options)?;
        let mark = guarded(|| store.database.get(MARK))?;
        if mark.as_deref() == Some(&[MARK_VERSION]) {
            Ok(store)
        } else {
            Err(StateError::Unfinished)
        }
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

    /// Writes everything that `from` holds into this one.
    pub(crate) fn copy(&self, from: &Self) -> Result<(), StateError> {
        let mut batch = Batch::default();
        guarded(|| {
            for pair in from.scan_prefix(&[]) {
                let (key, content) = pair?;
                batch.put(key, content);
                if batch.bytes() >= COPY_BATCH {
                    self.commit(&std::mem::take(&mut batch))?;
                }
            }
            self.commit(&batch)
        })
    }

    fn usable(&self) -> Result<(), StateError> {
        if self.poisoned.load(Ordering::Acquire) {
            Err(StateError::Poisoned)
        } else {
            Ok(())
        }
    }

    /// A full disk is met before the database meets it: it can neither write nor, maybe, be opened then.
    fn check_room(&self, batch: &Batch) -> Result<(), StateError> {
        let stat = statvfs(&self.dir)
            .map_err(|error| io_error("ask for room of", &self.dir)(error.into()))?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        let needed = (batch.bytes() as u64).saturating_mul(2) + self.database.spare();
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
                    let part = self.database.get(&value::part_key(key, no))?;
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
        let stored = self.database.get(&value::value_key(key))?;
        Ok(
            match stored.and_then(|stored| value::decode(key, &stored)) {
                Some(Stored::Split { parts, .. }) => parts,
                _ => 0,
            },
        )
    }

    fn write(&self, batch: &Batch) -> Result<(), StateError> {
        // Removals first, so that a part that is written again stays.
        let mut changes = Changes::new();
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
        self.database.apply(changes)
    }
}

impl StateStore for Store {
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
            let stored = self.database.get(&value::value_key(key))?;
            stored.map(|stored| self.read(key, &stored)).transpose()
        })
    }

    fn scan_prefix(&self, prefix: &[u8]) -> Pairs<'_> {
        let pairs = self.database.scan(&value::value_key(prefix));
        Box::new(pairs.map(|pair| {
            let (stored_key, stored) = pair?;
            let key = value::user_key(&stored_key).unwrap_or_default();
            Ok((key.to_vec(), self.read(key, &stored)?))
        }))
    }
}
