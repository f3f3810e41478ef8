//! The thread that archives: one segment after the other, oldest first, with back-off.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::config::Config;
use super::index::Entry;
use super::store::{Put, Store, StoreError, parts};
use super::table;
use crate::buffer::codec;
use crate::buffer::frame::SEGMENT_HEADER;
use crate::buffer::journal::Journal;
use crate::buffer::segment::Segment;
use crate::buffer::storage::Storage;
use crate::buffer::walk::{Step, Walk};
use crate::digest::sha256;

/// How often it looks for work.
const LOOK: Duration = Duration::from_millis(250);
/// Wait after the first failure; doubled after each further one.
const RETRY: Duration = Duration::from_secs(1);
/// Longest wait after a failure.
const MOST: Duration = Duration::from_secs(60);
/// How often objects are looked at for their age and number.
const PRUNE: Duration = Duration::from_secs(60);

/// Archives a journal's segments until the journal closes.
pub(crate) struct Archiver {
    journal: Journal,
    store: Arc<Store>,
    config: Config,
    gateway: String,
}

impl Archiver {
    pub(crate) fn new(journal: Journal, store: Arc<Store>, config: Config, gateway: &str) -> Self {
        Self {
            journal,
            store,
            config,
            gateway: gateway.to_owned(),
        }
    }

    /// Works until the journal closes.
    pub(crate) fn run(self) {
        let mut wait = RETRY;
        let mut due = Instant::now();
        let mut listed = !self.journal.cold_index_is_new();
        let mut pruned: Option<Instant> = None;
        while !self.journal.is_closing() {
            std::thread::park_timeout(LOOK);
            if Instant::now() < due {
                continue;
            }
            let done = self.round(&mut listed, &mut pruned);
            match done {
                Ok(()) => {
                    self.journal.set_cold_error(None);
                    wait = RETRY;
                }
                Err(error) => {
                    let text = crate::telemetry::chain(&error);
                    tracing::warn!(
                        error = text,
                        wait_s = wait.as_secs(),
                        "the cold tier is out of reach"
                    );
                    self.journal.set_cold_error(Some(text));
                    due = Instant::now() + wait;
                    wait = (wait * 2).min(MOST);
                }
            }
        }
    }

    /// Everything that can be done now.
    pub(super) fn round(
        &self,
        listed: &mut bool,
        pruned: &mut Option<Instant>,
    ) -> Result<(), StoreError> {
        if !*listed {
            // The index was lost, or this is a new one: what is stored already is known again.
            // Those of another journal stay where they are: numbers and ids mean other records there.
            for entry in self.store.manifests(&self.gateway, &self.journal.epoch())? {
                self.journal.archived(entry).map_err(StoreError::Segment)?;
            }
            *listed = true;
        }
        while !self.journal.is_closing()
            && let Some(segment) = self.journal.to_archive(self.config.archive)
        {
            let entry = archive(
                &self.journal.storage(),
                &self.store,
                &self.gateway,
                &segment,
            )?;
            tracing::debug!(object = entry.object, rows = entry.rows, "segment archived");
            self.journal.archived(entry).map_err(StoreError::Segment)?;
        }
        if pruned.is_none_or(|at| at.elapsed() >= PRUNE) {
            self.prune()?;
            *pruned = Some(Instant::now());
        }
        Ok(())
    }

    /// Removes what is too old or too much; what the bridge still needs stays.
    fn prune(&self) -> Result<(), StoreError> {
        let retention = self.config.retention.map(|span| span.as_millis());
        let most = self.config.max.map(|max| max.0);
        while let Some(entry) = self.journal.cold_surplus(retention, most) {
            self.store.delete(&entry.manifest())?;
            self.store.delete(&entry.object)?;
            // Last: what could not be removed is still known, and tried again.
            self.journal
                .forget_cold(&entry.object)
                .map_err(StoreError::Segment)?;
            tracing::info!(object = entry.object, "object removed: retention");
        }
        Ok(())
    }
}

/// Brings one segment to the store, verified; the same again where it was interrupted.
pub(crate) fn archive(
    storage: &Arc<dyn Storage>,
    store: &Store,
    gateway: &str,
    segment: &Segment,
) -> Result<Entry, StoreError> {
    let (bytes, rows) = encode(storage, segment)?;
    let object = Entry::key_of(gateway, &segment.summary);
    let made = store.put(&object, bytes.clone())?;
    let found = store.get(&object)?;
    let mut sum = sha256(&bytes);
    if found != bytes {
        // Another version of this program may have written the same records with other bytes.
        if made == Put::Made {
            return Err(StoreError::Damaged(object));
        }
        if !same_records(&found, &bytes)? {
            return Err(StoreError::Conflict(object));
        }
        sum = sha256(&found);
    }
    let entry = Entry::new(&segment.summary, object, rows, found.len() as u64, sum);
    let manifest = serde_json::to_vec_pretty(&entry)
        .map_err(|error| StoreError::Segment(io::Error::other(error)))?;
    if store.put(&entry.manifest(), Bytes::from(manifest))? == Put::Exists {
        let stored = store.get(&entry.manifest())?;
        let same = serde_json::from_slice::<Entry>(&stored)
            .is_ok_and(|stored| stored.sha256 == entry.sha256);
        if !same {
            return Err(StoreError::Conflict(entry.manifest()));
        }
    }
    Ok(entry)
}

fn same_records(one: &Bytes, other: &Bytes) -> Result<bool, StoreError> {
    let all = |bytes: &Bytes| -> io::Result<Vec<_>> {
        let mut records = Vec::new();
        for part in parts(bytes.clone())? {
            records.extend(part?);
        }
        Ok(records)
    };
    // What can't be read is something else.
    match (all(one), all(other)) {
        (Ok(one), Ok(other)) => Ok(one == other),
        (Err(_), _) => Ok(false),
        (_, Err(error)) => Err(StoreError::Segment(error)),
    }
}

/// A segment's records as a table.
pub(crate) fn encode(
    storage: &Arc<dyn Storage>,
    segment: &Segment,
) -> Result<(Bytes, u64), StoreError> {
    let file = storage.open(&segment.name()).map_err(StoreError::Segment)?;
    let end = segment.summary.data_end;
    let mut walk = Walk::new(file, segment.seed(), SEGMENT_HEADER as u64, end);
    let mut table = table::Writer::new(Vec::new())?;
    while let Some(step) = walk.step().map_err(StoreError::Segment)? {
        let Step::Frame {
            header, payload, ..
        } = step
        else {
            continue;
        };
        // What can't be decoded is lost here as well as there, and told by a gap.
        let records = codec::decode(&payload, header.first_id, header.count).unwrap_or_default();
        for record in records {
            table.put(&record)?;
        }
    }
    let rows = table.total_rows;
    Ok((Bytes::from(table.finish()?), rows))
}
