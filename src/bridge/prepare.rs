//! Reading ahead: records from the journal made ready to leave, on a thread that may wait for the disk.

use std::sync::Arc;

use sparkplug::payload::decode_resolved;

use super::drain::{Unit, Work};
use super::filter::Filters;
use super::source::{ReadError, Source};
use crate::buffer::record::{Class, Lane, Record, RecordId};
use crate::pipeline::encode::{EncodeError, Encoder, Prepared};

/// A record made ready.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) record: Arc<Record>,
    /// `None`: a filter keeps it back.
    pub(super) prepared: Option<Result<Prepared, EncodeError>>,
}

impl Loaded {
    fn unit(&self) -> Unit {
        Unit {
            record: self.record.id,
            lane_prev: self.record.prev,
            explains_gap: self.record.class == Class::Gap,
            work: match &self.prepared {
                None => Work::Filtered,
                Some(Ok(prepared)) => Work::Send {
                    parts: u32::try_from(prepared.bodies.len()).unwrap_or(u32::MAX),
                },
                Some(Err(_)) => Work::Unsendable,
            },
        }
    }
}

/// What one reading brought.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) loaded: Vec<Loaded>,
    pub(super) units: Vec<Unit>,
    /// The journal may have more.
    pub(super) more: bool,
}

/// What is to be read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) lane: Lane,
    pub(super) after: RecordId,
    pub(super) acked: RecordId,
    pub(super) max_records: usize,
    pub(super) max_bytes: usize,
    /// Largest message, headers included.
    pub(super) limit: usize,
}

/// Encoder and filters of one lane; goes along with each reading.
#[derive(Debug)]
pub(super) struct Preparer {
    pub(super) encoder: Encoder,
    pub(super) filters: Filters,
}

impl Preparer {
    pub(super) fn read(&mut self, source: &dyn Source, wanted: Wanted) -> Result<Batch, ReadError> {
        let Wanted {
            lane,
            after,
            max_records,
            max_bytes,
            ..
        } = wanted;
        // The head is taken before the reading, so that what is appended meanwhile is not overlooked.
        let head = source.head(lane);
        let records = source.read(lane, after, max_records, max_bytes)?;
        self.filters.acknowledged(wanted.acked);
        let more = records.last().is_some_and(|last| last.id < head);
        let loaded: Vec<_> = records
            .into_iter()
            .map(|record| Loaded {
                prepared: self.prepare(&record, wanted.limit),
                record,
            })
            .collect();
        Ok(Batch {
            units: loaded.iter().map(Loaded::unit).collect(),
            loaded,
            more,
        })
    }

    fn prepare(&mut self, record: &Record, limit: usize) -> Option<Result<Prepared, EncodeError>> {
        if self.filters.is_empty() || !matches!(record.class, Class::Data | Class::Birth) {
            return Some(self.encoder.prepare(record, None, limit));
        }
        let mut payload = match decode_resolved(&record.body) {
            Ok(payload) => payload,
            Err(error) => return Some(Err(error.into())),
        };
        if !self.filters.apply(record, &mut payload) {
            return None;
        }
        Some(self.encoder.prepare(record, Some(&payload), limit))
    }
}
