//! What the bridge needs of the journal and of the state store, and nothing more.

use std::sync::Arc;

use tokio::sync::watch;

use super::drain::resume::Checkpoint;
use crate::buffer::Journal;
use crate::buffer::record::{Lane, Record, RecordId};
use crate::state::{Batch, StateStore};

/// What waits in a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Backlog {
    /// Records.
    pub records: u64,
    /// Their bytes on disk.
    pub bytes: u64,
    /// Arrival of the oldest, ms UTC.
    pub oldest_ms: Option<u64>,
}

/// Why the journal could not be read.
#[derive(Debug, thiserror::Error)]
#[error("journal: {0}")]
pub struct ReadError(pub String);

/// Where records come from. Reads block for the disk; the bridge calls them from threads that may.
pub trait Source: Send + Sync + 'static {
    /// Durable records of `lane` behind `after`, in order. `gap` records stand where records are lost.
    ///
    /// # Errors
    /// The disk can't be read; the bridge tries again later.
    fn read(
        &self,
        lane: Lane,
        after: RecordId,
        max_records: usize,
        max_bytes: usize,
    ) -> Result<Vec<Arc<Record>>, ReadError>;

    /// The journal's epoch, part of every message id.
    fn epoch(&self) -> String;

    /// Everything up to `up_to` is done; `filtered` of it was kept back.
    fn ack(&self, lane: Lane, up_to: RecordId, filtered: u64);

    /// The last record that is done.
    fn cursor(&self, lane: Lane) -> RecordId;

    /// The newest durable record of `lane`.
    fn head(&self, lane: Lane) -> RecordId;

    /// The newest record of `lane`, durable or not.
    fn newest(&self, lane: Lane) -> RecordId;

    /// Changes whenever records become durable.
    fn grown(&self) -> watch::Receiver<RecordId>;

    /// What waits.
    fn backlog(&self, lane: Lane) -> Backlog;
}

impl Source for Journal {
    fn read(
        &self,
        lane: Lane,
        after: RecordId,
        max_records: usize,
        max_bytes: usize,
    ) -> Result<Vec<Arc<Record>>, ReadError> {
        self.read_durable(lane, after, max_records, max_bytes)
            .map_err(|error| ReadError(error.to_string()))
    }

    fn epoch(&self) -> String {
        Self::epoch(self)
    }

    fn ack(&self, lane: Lane, up_to: RecordId, filtered: u64) {
        self.ack_split(lane, up_to, filtered);
    }

    fn cursor(&self, lane: Lane) -> RecordId {
        Self::cursor(self, lane)
    }

    fn head(&self, lane: Lane) -> RecordId {
        self.durable_in(lane)
    }

    fn newest(&self, lane: Lane) -> RecordId {
        self.last_id(lane)
    }

    fn grown(&self) -> watch::Receiver<RecordId> {
        self.durable()
    }

    fn backlog(&self, lane: Lane) -> Backlog {
        let state = self.lane_state(lane);
        Backlog {
            records: state.pending,
            bytes: state.pending_bytes,
            oldest_ms: state.oldest_pending_ms,
        }
    }
}

/// Where checkpoints are kept over restarts.
pub trait Memory: Send + Sync + 'static {
    /// The checkpoint of `lane`, if one was kept in this epoch of the journal.
    fn load(&self, lane: Lane, epoch: &str) -> Option<Checkpoint>;

    /// Keeps it; durable when this returns.
    ///
    /// # Errors
    /// The store's words. The bridge goes on: what the checkpoint is for is rare.
    fn save(&self, lane: Lane, epoch: &str, checkpoint: Checkpoint) -> Result<(), String>;
}

fn key(lane: Lane) -> &'static [u8] {
    match lane {
        Lane::Data => b"bridge/data",
        Lane::Alarms => b"bridge/alarms",
    }
}

impl<S: StateStore + ?Sized + 'static> Memory for Arc<S> {
    fn load(&self, lane: Lane, epoch: &str) -> Option<Checkpoint> {
        let bytes = match self.get(key(lane)) {
            Ok(bytes) => bytes?,
            Err(error) => {
                tracing::warn!(%error, "no checkpoint of the bridge");
                return None;
            }
        };
        let text = String::from_utf8(bytes).ok()?;
        let mut words = text.split(' ');
        if words.next() != Some(epoch) {
            return None;
        }
        let mut number = || words.next()?.parse::<u64>().ok();
        let (created, stream_seq, record, prev) = (number()?, number()?, number()?, number()?);
        let parts = match (number()?, number()?) {
            (_, 0) => None,
            (stored, of) => Some((u32::try_from(stored).ok()?, u32::try_from(of).ok()?)),
        };
        Some(Checkpoint {
            created,
            stream_seq,
            record,
            prev,
            parts,
        })
    }

    fn save(&self, lane: Lane, epoch: &str, point: Checkpoint) -> Result<(), String> {
        let (stored, of) = point.parts.unwrap_or((0, 0));
        let text = format!(
            "{epoch} {} {} {} {} {stored} {of}",
            point.created, point.stream_seq, point.record, point.prev
        );
        let mut batch = Batch::default();
        batch.put(key(lane), text);
        self.commit(&batch).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::MemoryStore;

    #[test]
    fn a_checkpoint_is_of_one_epoch() {
        let store: Arc<dyn StateStore> = Arc::new(MemoryStore::default());
        let point = Checkpoint {
            created: 1,
            stream_seq: 2,
            record: 3,
            prev: 4,
            parts: Some((5, 6)),
        };
        store.save(Lane::Data, "e1", point).unwrap();
        assert_eq!(store.load(Lane::Data, "e1"), Some(point));
        assert_eq!(store.load(Lane::Data, "e2"), None);
        assert_eq!(store.load(Lane::Alarms, "e1"), None);
        let whole = Checkpoint {
            parts: None,
            ..point
        };
        store.save(Lane::Data, "e1", whole).unwrap();
        assert_eq!(store.load(Lane::Data, "e1"), Some(whole));
    }
}
