//! sled 0.34, made durable.
//!
//! sled writes its log with `sync_file_range`, which orders no disk cache and writes no metadata: what its
//! `flush` returns for may be gone after a power cut. So a commit is one batch, `flush`, then `fdatasync` of
//! the file `db`. sled's own flusher thread is off: nothing is written between commits.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::fdatasync;

use crate::state::store::{Changes, Database, database_error, io_error};
use crate::state::{Backend, Options, Pairs, StateError};

/// sled allocates its log in segments of this size.
const SEGMENT: u64 = 512 << 10;
/// Free segments that a commit must leave, for sled's own copying.
const SPARE_SEGMENTS: u64 = 4;

pub(crate) struct Sled {
    db: ::sled::Db,
    file: File,
    path: PathBuf,
}

impl Sled {
    pub(crate) fn start(dir: &Path, options: &Options) -> Result<Self, StateError> {
        let config = ::sled::Config::new()
            .path(dir)
            .cache_capacity(options.cache_bytes)
            .flush_every_ms(None);
        let db = config.open().map_err(database_error)?;
        let path = dir.join(Backend::FILE);
        let file = File::open(&path).map_err(io_error("open", &path))?;
        Ok(Self { db, file, path })
    }
}

impl Database for Sled {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StateError> {
        let stored = self.db.get(key).map_err(database_error)?;
        Ok(stored.map(|stored| stored.to_vec()))
    }

    fn apply(&self, changes: Changes) -> Result<(), StateError> {
        let mut batch = ::sled::Batch::default();
        for (key, value) in changes {
            match value {
                Some(value) => batch.insert(key, value),
                None => batch.remove(key),
            }
        }
        self.db.apply_batch(batch).map_err(database_error)?;
        self.db.flush().map_err(database_error)?;
        fdatasync(&self.file).map_err(|error| io_error("sync", &self.path)(error.into()))
    }

    fn scan(&self, prefix: &[u8]) -> Pairs<'_> {
        let pairs = self.db.scan_prefix(prefix);
        Box::new(pairs.map(|pair| {
            let (key, value) = pair.map_err(database_error)?;
            Ok((key.to_vec(), value.to_vec()))
        }))
    }

    fn spare(&self) -> u64 {
        SPARE_SEGMENTS * SEGMENT
    }
}
