//! The one thread that writes: frames, fsync, segments, the ledger.
//!
//! A round writes what waits. When an acknowledgement waits, the oldest record has waited `sync_ms`, or an
//! alarm is among them, the round ends with an fsync, which so covers everything that arrived meanwhile.
//!
//! *Invariant*: an alarm is written only after all data with lower ids is durable, so that after a crash no
//! alarm stands without its cause, and the replay makes the missing alarms anew. While the disk has no room
//! for data, alarms are written regardless.
//!
//! *Invariant*: after a failed fsync nothing is written any more. The page cache may have dropped the pages,
//! so a second fsync that succeeds would prove nothing.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::buffer::codec::Encoder;
use crate::buffer::frame::{
    FRAME_HEADER, FrameHeader, Header, INDEX_ENTRY, SEGMENT_HEADER, Summary, TRAILER,
    encode_footer, finish_frame,
};
use crate::buffer::ledger::LedgerFile;
use crate::buffer::record::{LANES, Lane};
use crate::buffer::segment::{Segment, segment_name};
use crate::buffer::shared::{HotRecord, Shared, State};
use crate::buffer::storage::StorageFile;

/// A frame is closed at this many bytes of records.
pub(crate) const FRAME_TARGET: u64 = 256 << 10;
/// How long the thread sleeps when nothing is to be done.
const IDLE: Duration = Duration::from_secs(60);

/// The writer has stopped for good.
#[derive(Debug, thiserror::Error)]
#[error("{doing} failed")]
pub(crate) struct Stop {
    doing: &'static str,
    source: io::Error,
}

impl From<Stop> for io::Error {
    fn from(stop: Stop) -> Self {
        stop.source
    }
}

impl Stop {
    pub(crate) fn at(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self { doing, source }
    }
}

/// The segment that a lane is written to.
struct Active {
    file: Arc<dyn StorageFile>,
    capacity: u64,
    offset: u64,
    seed: u32,
    dirty: bool,
    index_entries: u64,
}

/// State of the writing side alone.
pub(crate) struct Writer {
    shared: Arc<Shared>,
    data: Option<Active>,
    alarms: Option<Active>,
    pub(crate) ledger: LedgerFile,
    /// The reserve lies on the disk, to be given up for alarms.
    pub(crate) reserve: bool,
    frame: Vec<u8>,
}

impl Writer {
    pub(crate) fn new(shared: Arc<Shared>, ledger: LedgerFile, reserve: bool) -> Self {
        Self {
            shared,
            data: None,
            alarms: None,
            ledger,
            reserve,
            frame: Vec::new(),
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn active(&mut self, lane: Lane) -> &mut Option<Active> {
        match lane {
            Lane::Data => &mut self.data,
            Lane::Alarms => &mut self.alarms,
        }
    }

    /// Works until the journal closes or fails.
    pub(crate) fn run(mut self) {
        loop {
            let closing = self.wait();
            if self.round(closing).is_err() {
                return;
            }
            if closing {
                let mut state = self.shared.lock();
                state.closed = true;
                drop(state);
                self.shared.wake.notify_all();
                return;
            }
        }
    }

    /// Sleeps until there is something to do; says whether the journal is closing.
    fn wait(&self) -> bool {
        let mut state = self.shared.lock();
        loop {
            if state.closing {
                return true;
            }
            let sync = Duration::from_millis(self.shared.config.sync_ms);
            let due = state
                .waiting_since
                .map(|since| sync.saturating_sub(since.elapsed()));
            let stuck = |lane: Lane| state.lane(lane).full;
            let alarm = state.lane(Lane::Alarms).queue.len() > state.lane(Lane::Alarms).written;
            // While a lane is full only a tick brings a new attempt: trying in a loop would heat the disk.
            let work = (state.want_sync && due.is_some())
                || due.is_some_and(|left| left.is_zero())
                || (state.unwritten_bytes >= FRAME_TARGET && !stuck(Lane::Data))
                || (alarm && !stuck(Lane::Alarms));
            if state.maintain || work {
                return false;
            }
            let left = due.unwrap_or(IDLE);
            let waited = self.shared.wake.wait_timeout(state, left);
            state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }

    /// One round. On failure the journal is marked as stopped.
    pub(crate) fn round(&mut self, closing: bool) -> Result<(), Stop> {
        let result = self.try_round(closing);
        if let Err(stop) = &result {
            let text = format!("{stop}: {}", stop.source);
            tracing::error!(error = %text, "journal stopped");
            let mut state = self.shared.lock();
            state.stopped = Some(text.clone());
            state.syncing_since = None;
            state.closed = true;
            drop(state);
            self.shared.failed.send_replace(Some(text));
            self.shared.wake.notify_all();
        }
        result
    }

    fn try_round(&mut self, closing: bool) -> Result<(), Stop> {
        let sync_ms = Duration::from_millis(self.shared.config.sync_ms);
        let (maintain, sync, bridged) = {
            let mut state = self.shared.lock();
            let late = state
                .waiting_since
                .is_some_and(|since| since.elapsed() >= sync_ms);
            let sync = std::mem::take(&mut state.want_sync) || late || closing;
            (std::mem::take(&mut state.maintain), sync, state.bridged)
        };
        if maintain {
            self.maintain(bridged)?;
        }
        self.write(Lane::Data, maintain || closing)?;
        let alarms = {
            let state = self.shared.lock();
            let lane = state.lane(Lane::Alarms);
            lane.queue.len() > lane.written
        };
        if sync || alarms {
            self.sync(Lane::Data)?;
            self.write(Lane::Alarms, maintain || closing)?;
            self.sync(Lane::Alarms)?;
        }
        if closing {
            for lane in LANES {
                self.seal(lane)?;
            }
            {
                // What could not be written is forgotten with this process, but its ids are not.
                let mut state = self.shared.lock();
                state.ledger.closed = LANES.iter().all(|lane| state.lane(*lane).queue.is_empty());
            }
            self.save_ledger(true)?;
        }
        Ok(())
    }

    /// Writes what waits in `lane` now, as far as there is room. `retry`: try also where there was none. What
    /// arrives meanwhile is for the next round, so that a flood of data holds up neither fsync nor alarms.
    fn write(&mut self, lane: Lane, retry: bool) -> Result<(), Stop> {
        let until = self.shared.lock().ledger.lane(lane).last_id;
        loop {
            let batch = {
                let state = self.shared.lock();
                let memory = state.lane(lane);
                if memory.full && !retry {
                    return Ok(());
                }
                take_batch(memory.queue.range(memory.written..))
            };
            let (Some(first), Some(last)) = (batch.first(), batch.last()) else {
                return Ok(());
            };
            if first.record.id > until {
                return Ok(());
            }
            self.frame.clear();
            self.frame.resize(FRAME_HEADER, 0);
            let mut frame = std::mem::take(&mut self.frame);
            let mut encoder = Encoder::default();
            for hot in &batch {
                encoder.put(&mut frame, &hot.record);
            }
            let room = self.make_room(lane, frame.len() as u64)?;
            let written = if room {
                self.write_frame(lane, &mut frame, first, last, batch.len() as u32)?
            } else {
                false
            };
            self.frame = frame;
            let mut state = self.shared.lock();
            let was_full = std::mem::replace(&mut state.lane_mut(lane).full, !written);
            if was_full == written {
                tracing::warn!(lane = ?lane, full = !written, "disk state changed");
            }
            if !written {
                return Ok(());
            }
            note_written(&mut state, lane, &batch);
        }
    }

    /// `false`: no room after all (a filesystem that copies on write).
    fn write_frame(
        &mut self,
        lane: Lane,
        frame: &mut [u8],
        first: &HotRecord,
        last: &HotRecord,
        count: u32,
    ) -> Result<bool, Stop> {
        let shared = Arc::clone(&self.shared);
        let Some(active) = self.active(lane) else {
            return Ok(false);
        };
        let offset = active.offset;
        finish_frame(
            frame,
            active.seed,
            count,
            (first.record.id, last.record.id),
            first.ord,
        );
        match active.file.write_at(offset, frame) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::StorageFull => return Ok(false),
            Err(error) => return Err(Stop::at("writing a frame")(error)),
        }
        active.offset += frame.len() as u64;
        active.dirty = true;
        let Some(header) = FrameHeader::decode(frame) else {
            return Ok(true);
        };
        let mut state = shared.lock();
        state.figures.bytes_written += frame.len() as u64;
        let memory = state.lane_mut(lane);
        let records: Vec<_> = memory
            .queue
            .range(memory.written..)
            .take(count as usize)
            .map(|hot| Arc::clone(&hot.record))
            .collect();
        if let Some(segment) = memory.segments.back_mut() {
            segment.add_frame(offset, &header, records.iter().map(AsRef::as_ref));
            active.index_entries = segment.index.len() as u64;
        }
        Ok(true)
    }

    /// Sees to it that the active segment takes `len` more bytes.
    fn make_room(&mut self, lane: Lane, len: u64) -> Result<bool, Stop> {
        if let Some(active) = self.active(lane) {
            let footer = (active.index_entries + 1) * INDEX_ENTRY as u64 + TRAILER as u64;
            if active.offset + len + footer <= active.capacity {
                return Ok(true);
            }
            self.sync(lane)?;
            self.seal(lane)?;
        }
        let least = SEGMENT_HEADER as u64 + len + INDEX_ENTRY as u64 + TRAILER as u64;
        let capacity = self.shared.config.capacity(lane).max(least);
        if !self.clear_quota(lane, capacity)? {
            return Ok(false);
        }
        let (header, name) = {
            let state = self.shared.lock();
            let memory = state.lane(lane);
            let waiting = memory.queue.range(memory.written..);
            let (received, derived) = waiting.fold((0, 0), |(received, derived), hot| {
                match hot.record.data.origin {
                    crate::buffer::record::Origin::Received => (received + 1, derived),
                    crate::buffer::record::Origin::Derived => (received, derived + 1),
                }
            });
            let account = state.ledger.lane(lane);
            let prev = memory
                .queue
                .get(memory.written)
                .map_or(account.last_id, |hot| hot.record.prev);
            let header = Header {
                lane,
                no: memory.next_no,
                epoch: state.ledger.epoch,
                received: account.received.saturating_sub(received),
                derived: account.derived.saturating_sub(derived),
                prev,
            };
            (header, segment_name(lane, memory.next_no))
        };
        let Some(file) = self.create(lane, &name, capacity)? else {
            return Ok(false);
        };
        file.write_at(0, &header.encode())
            .map_err(Stop::at("starting a segment"))?;
        timed(&self.shared, "starting a segment", || {
            file.sync().and_then(|()| self.shared.storage.sync_dir())
        })?;
        let segment = Segment {
            summary: Summary::empty(header),
            sealed: false,
            local: true,
            archived: false,
            file_len: capacity,
            acked_at: None,
            index: Vec::new(),
        };
        let seed = segment.seed();
        *self.active(lane) = Some(Active {
            file,
            capacity,
            offset: SEGMENT_HEADER as u64,
            seed,
            dirty: false,
            index_entries: 0,
        });
        let mut state = self.shared.lock();
        state.figures.bytes_written += SEGMENT_HEADER as u64;
        let memory = state.lane_mut(lane);
        memory.next_no += 1;
        memory.segments.push_back(segment);
        Ok(true)
    }

    /// Makes what was written in `lane` durable and tells those who wait.
    fn sync(&mut self, lane: Lane) -> Result<(), Stop> {
        let shared = Arc::clone(&self.shared);
        if let Some(active) = self.active(lane).as_mut().filter(|active| active.dirty) {
            timed(&shared, "fsync of the journal", || active.file.sync())?;
            active.dirty = false;
        }
        let mut state = shared.lock();
        let memory = state.lane_mut(lane);
        let written = std::mem::take(&mut memory.written);
        let mut freed = 0;
        for hot in memory.queue.drain(..written) {
            memory.synced = hot.record.id;
            freed += hot.weight;
        }
        state.queue_bytes = state.queue_bytes.saturating_sub(freed);
        let waits = |lane: &Lane| !state.lane(*lane).full && !state.lane(*lane).queue.is_empty();
        state.waiting_since = match LANES.iter().any(waits) {
            // Whatever arrived during the fsync has waited since it began, at most.
            true if written > 0 => Some(Instant::now()),
            true => state.waiting_since,
            // Nothing, or nothing that there is room for.
            false => None,
        };
        let durable = state.durable();
        state.evict(&shared.config);
        drop(state);
        shared
            .durable
            .send_if_modified(|known| std::mem::replace(known, durable) != durable);
        Ok(())
    }

    /// Writes index and trailer and gives the rest of the room back. A crash in between leaves a segment
    /// that the next start walks frame by frame.
    fn seal(&mut self, lane: Lane) -> Result<(), Stop> {
        let Some(active) = self.active(lane).take() else {
            return Ok(());
        };
        let (footer, end) = {
            let state = self.shared.lock();
            let Some(segment) = state.lane(lane).segments.back() else {
                return Ok(());
            };
            (
                encode_footer(&segment.summary, &segment.index),
                segment.summary.data_end,
            )
        };
        let file_len = end + footer.len() as u64;
        let sealed = active
            .file
            .write_at(end, &footer)
            .and_then(|()| active.file.truncate(file_len));
        sealed.map_err(Stop::at("sealing a segment"))?;
        timed(&self.shared, "sealing a segment", || active.file.sync())?;
        let mut state = self.shared.lock();
        state.figures.bytes_written += footer.len() as u64;
        if let Some(segment) = state.lane_mut(lane).segments.back_mut() {
            segment.sealed = true;
            segment.file_len = file_len;
            segment.index = Vec::new();
        }
        state.stamp_acked(lane);
        Ok(())
    }

    /// Writes the ledger when it changed; `sync` makes it durable.
    pub(crate) fn save_ledger(&mut self, sync: bool) -> Result<(), Stop> {
        let shared = Arc::clone(&self.shared);
        let (copy, cursors) = {
            let mut state = shared.lock();
            if !std::mem::take(&mut state.ledger_dirty) && !sync {
                return Ok(());
            }
            let cursors = LANES.map(|lane| state.ledger.lane(lane).cursor);
            (state.ledger.clone(), cursors)
        };
        let written = self
            .ledger
            .write(&copy)
            .map_err(Stop::at("writing the ledger"))?;
        if sync {
            timed(&shared, "fsync of the ledger", || self.ledger.sync())?;
        }
        let mut state = shared.lock();
        state.ledger_saved_ms = state.now_ms;
        state.figures.bytes_written += written;
        if sync {
            state.synced_cursors = cursors;
        }
        Ok(())
    }
}

/// Runs an fsync, which a slow disk may let take long: it is seen while it lasts, and counted.
fn timed(
    shared: &Shared,
    doing: &'static str,
    sync: impl FnOnce() -> io::Result<()>,
) -> Result<(), Stop> {
    let started = Instant::now();
    shared.lock().syncing_since = Some(started);
    sync().map_err(Stop::at(doing))?;
    let mut state = shared.lock();
    state.syncing_since = None;
    state.figures.fsyncs += 1;
    state.figures.last_fsync_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
    Ok(())
}

/// The records of the next frame: at least one, and no more than a frame should hold.
fn take_batch<'a>(waiting: impl Iterator<Item = &'a HotRecord>) -> Vec<HotRecord> {
    let mut bytes = 0;
    let mut batch = Vec::new();
    for hot in waiting {
        if bytes > 0 && bytes + hot.weight > FRAME_TARGET {
            break;
        }
        bytes += hot.weight;
        batch.push(hot.clone());
    }
    batch
}

fn note_written(state: &mut State, lane: Lane, batch: &[HotRecord]) {
    state.waiting_since.get_or_insert_with(Instant::now);
    let weight: u64 = batch.iter().map(|hot| hot.weight).sum();
    state.unwritten_bytes = state.unwritten_bytes.saturating_sub(weight);
    state.lane_mut(lane).written += batch.len();
}
