//! redb: copy-on-write B-trees with a commit that ends in an `fdatasync` of its own.

use std::path::Path;

use ::redb::{Builder, ReadableDatabase as _, TableDefinition};

use crate::state::store::{Changes, Database, database_error, io_error};
use crate::state::{Backend, Options, Pairs, StateError};

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("state");
/// Pages are copied before they change, and the file grows in steps.
const SPARE: u64 = 4 << 20;

/// The table as it is at one moment.
type Table = ::redb::ReadOnlyTable<&'static [u8], &'static [u8]>;

pub(crate) struct Redb(::redb::Database);

impl Redb {
    pub(crate) fn start(dir: &Path, options: &Options) -> Result<Self, StateError> {
        std::fs::create_dir_all(dir).map_err(io_error("make", dir))?;
        let mut builder = Builder::new();
        builder
            .set_cache_size(usize::try_from(options.cache_bytes).unwrap_or(usize::MAX))
            // A file that somebody else altered fails to open instead of being trusted.
            .set_check_integrity_on_open(true);
        let db = builder
            .create(dir.join(Backend::FILE))
            .map_err(database_error)?;
        Ok(Self(db))
    }

    fn table(&self) -> Result<Option<Table>, StateError> {
        let read = self.0.begin_read().map_err(database_error)?;
        match read.open_table(TABLE) {
            Ok(table) => Ok(Some(table)),
            Err(::redb::TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(database_error(error)),
        }
    }
}

impl Database for Redb {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StateError> {
        let Some(table) = self.table()? else {
            return Ok(None);
        };
        let stored = table.get(key).map_err(database_error)?;
        Ok(stored.map(|stored| stored.value().to_vec()))
    }

    fn apply(&self, changes: Changes) -> Result<(), StateError> {
        // The default durability: on the disk when `commit` returns.
        let write = self.0.begin_write().map_err(database_error)?;
        {
            let mut table = write.open_table(TABLE).map_err(database_error)?;
            for (key, value) in &changes {
                match value {
                    Some(value) => table
                        .insert(key.as_slice(), value.as_slice())
                        .map(|_| ())
                        .map_err(database_error)?,
                    None => table
                        .remove(key.as_slice())
                        .map(|_| ())
                        .map_err(database_error)?,
                }
            }
        }
        write.commit().map_err(database_error)
    }

    fn scan(&self, prefix: &[u8]) -> Pairs<'_> {
        let range = self.table().and_then(|table| match table {
            Some(table) => table
                .range::<&[u8]>(prefix..)
                .map(Some)
                .map_err(database_error),
            None => Ok(None),
        });
        let prefix = prefix.to_vec();
        match range {
            Ok(None) => Box::new(std::iter::empty()),
            Err(error) => Box::new(std::iter::once(Err(error))),
            Ok(Some(range)) => Box::new(
                range
                    .map(|pair| {
                        let (key, value) = pair.map_err(database_error)?;
                        Ok((key.value().to_vec(), value.value().to_vec()))
                    })
                    .take_while(move |pair| {
                        pair.as_ref().map_or(true, |(key, _): &(Vec<u8>, Vec<u8>)| {
                            key.starts_with(&prefix)
                        })
                    }),
            ),
        }
    }

    fn spare(&self) -> u64 {
        SPARE
    }
}
