//! What goes when: ageing, quota, and a full disk.
//!
//! Only whole, sealed segments go. The order under pressure of the quota:
//! 1. acknowledged, past the grace, not needed by a state snapshot;
//! 2. acknowledged within the grace (counted as `grace_cut`);
//! 3. undelivered and in the cold tier: it is read from there;
//! 4. what a state snapshot needs, acknowledged (counted as `snapshot_overrun`) or in the cold tier;
//! 5. acknowledged and to be archived, while the store is away (counted as missed records of the cold tier);
//! 6. the oldest undelivered data that no reader holds; one `gap` record takes its place;
//! 7. the oldest undelivered alarms, when there is no sealed data segment left and alarms take more than
//!    half of the quota.
//!
//! A disk that other programs fill frees 1 to 5 only: undelivered records wait, and the lane is full until
//! there is room.

use std::io;
use std::sync::Arc;

use crate::buffer::cold::Archive;
use crate::buffer::gaps::announce;
use crate::buffer::ledger::Lost;
use crate::buffer::record::{LANES, Lane, RecordId};
use crate::buffer::segment::Segment;
use crate::buffer::shared::State;
use crate::buffer::storage::StorageFile;
use crate::buffer::writer::{Stop, Writer};

/// Name of the ballast file that is given up for alarms on a full disk.
pub(crate) const RESERVE: &str = "reserve";

/// How far pressure reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Pressure {
    /// Age alone.
    None,
    /// Everything that is acknowledged.
    Acked,
    /// Undelivered data as well.
    Undelivered,
}

/// A segment that may go.
struct Victim {
    lane: Lane,
    no: u64,
    name: String,
    last_id: RecordId,
    acked: bool,
    /// Its records stay readable in the cold tier, undelivered.
    parked: bool,
}

impl Writer {
    /// What a tick brings: ageing, the ledger, the reserve.
    pub(crate) fn maintain(&mut self, bridged: bool) -> Result<(), Stop> {
        self.shared().lock().evict(&self.shared().config);
        if !bridged {
            self.age_unbridged()?;
        }
        while let Some(victim) = self.find(Pressure::None) {
            self.unlink(&victim)?;
        }
        let due = {
            let state = self.shared().lock();
            state.now_ms.saturating_sub(state.ledger_saved_ms) >= self.shared().config.ledger_ms
        };
        if due {
            self.save_ledger(false)?;
        }
        if !self.reserve {
            self.restore_reserve()?;
        }
        Ok(())
    }

    /// Without a bridge nothing is acknowledged: records that have aged out count as filtered.
    fn age_unbridged(&mut self) -> Result<(), Stop> {
        let ttl = self.shared().config.warm_ttl_ms;
        let mut state = self.shared().lock();
        if !state.clock_trusted {
            return Ok(());
        }
        let horizon = state.now_ms.saturating_sub(ttl);
        for lane in LANES {
            let aged = state
                .lane(lane)
                .segments
                .iter()
                .rfind(|segment| segment.sealed && segment.summary.engine_ms < horizon);
            if let Some((id, ord)) =
                aged.map(|segment| (segment.summary.last_id, segment.summary.ord_end))
            {
                filter_out(&mut state, lane, id, ord);
            }
        }
        Ok(())
    }

    /// The next segment that may go under `pressure`.
    fn find(&self, pressure: Pressure) -> Option<Victim> {
        let config = &self.shared().config;
        let mut guard = self.shared().lock();
        let state = &mut *guard;
        let keep_from = state.ledger.keep_from;
        let old_enough = |segment: &Segment| {
            let graced = segment
                .acked_at
                .is_some_and(|at| state.now_ms.saturating_sub(at) >= config.keep_acked_ms);
            let aged = segment.summary.engine_ms.saturating_add(config.warm_ttl_ms) <= state.now_ms;
            graced && aged && (state.clock_trusted || config.warm_ttl_ms == 0)
        };
        // Acknowledged ones go from the front. Undelivered ones behind what readers hold: those records are in
        // flight, and the chain of `prev` stays whole.
        let candidate = |lane: Lane| {
            let memory = state.lane(lane);
            let mut sealed = memory
                .segments
                .iter()
                .filter(|segment| segment.sealed && segment.local);
            let front = sealed.clone().next()?;
            if front.summary.last_id <= state.ledger.lane(lane).cursor {
                return Some((front, true));
            }
            let unread = sealed.find(|segment| segment.summary.first_id > memory.read_high);
            Some((unread.unwrap_or(front), false))
        };
        let archive_all = state.archive == Some(Archive::All);
        let rank = |(segment, acked): (&Segment, bool)| {
            let needed = segment.summary.last_id > keep_from;
            // Delivered, and in the cold tier where it belongs there.
            let settled = acked && (segment.archived || !archive_all);
            match (settled, needed) {
                (true, false) if old_enough(segment) => Some(0),
                _ if pressure == Pressure::None => None,
                (true, false) => {
                    let graced = segment
                        .acked_at
                        .is_some_and(|at| state.now_ms.saturating_sub(at) >= config.keep_acked_ms);
                    Some(if graced { 1 } else { 2 })
                }
                (false, false) if segment.archived => Some(3),
                (false, true) if segment.archived => Some(4),
                (true, true) => Some(4),
                (false, _) if acked => Some(5),
                _ if pressure == Pressure::Acked => None,
                (false, _) if segment.lane() == Lane::Data => Some(6),
                (false, _) => {
                    let alarms: u64 = state
                        .lane(Lane::Alarms)
                        .segments
                        .iter()
                        .filter(|segment| segment.local)
                        .map(|segment| segment.file_len)
                        .sum();
                    (alarms > config.warm_max_bytes / 2).then_some(7)
                }
            }
        };
        let best = LANES
            .into_iter()
            .filter_map(candidate)
            .filter_map(|found| Some((rank(found)?, found)))
            .min_by_key(|(rank, (segment, _))| (*rank, segment.summary.last_id));
        let (rank, (segment, acked)) = best?;
        let victim = Victim {
            lane: segment.lane(),
            no: segment.no(),
            name: segment.name(),
            last_id: segment.summary.last_id,
            acked,
            parked: !acked && segment.archived,
        };
        let inside = segment.summary.received + segment.summary.derived;
        let needed = segment.summary.last_id > keep_from;
        state.figures.grace_cut += u64::from(rank == 2);
        state.figures.snapshot_overrun += u64::from(rank == 4 && needed);
        if rank == 5 {
            state.figures.cold_missed += inside;
            tracing::error!(
                records = inside,
                "delivered records dropped before they could be archived"
            );
        }
        Some(victim)
    }

    /// Books, then unlinks: what is gone from the disk is always accounted for.
    fn unlink(&mut self, victim: &Victim) -> Result<(), Stop> {
        if victim.parked {
            return self.park(victim);
        }
        let synced = {
            let mut state = self.shared().lock();
            if !victim.acked {
                give_up(&mut state, victim);
            }
            let [data, alarms] = state.synced_cursors;
            let cursor = if victim.lane == Lane::Data {
                data
            } else {
                alarms
            };
            victim.acked && cursor >= victim.last_id
        };
        if !synced {
            self.save_ledger(true)?;
        }
        {
            let mut state = self.shared().lock();
            state
                .lane_mut(victim.lane)
                .segments
                .retain(|segment| segment.no() != victim.no);
        }
        match self.shared().storage.remove(&victim.name) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(Stop::at("removing a segment")(error)),
        }
    }

    /// Takes the file of an archived segment that is not delivered: from now on it is read from the cold tier.
    fn park(&mut self, victim: &Victim) -> Result<(), Stop> {
        {
            let mut state = self.shared().lock();
            for segment in &mut state.lane_mut(victim.lane).segments {
                segment.local &= segment.no() != victim.no;
            }
        }
        match self.shared().storage.remove(&victim.name) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(Stop::at("removing a segment")(error)),
        }
    }

    /// Makes room for `len` bytes under the quota. `false`: there is none.
    pub(crate) fn clear_quota(&mut self, lane: Lane, len: u64) -> Result<bool, Stop> {
        let config = &self.shared().config;
        let (quota, min_free) = (config.warm_max_bytes, config.min_free_bytes);
        loop {
            let used = self.shared().lock().segment_bytes();
            if used + len <= quota {
                break;
            }
            let bridged = self.shared().lock().bridged;
            let Some(victim) = self.find(Pressure::Undelivered) else {
                return Ok(false);
            };
            if !victim.acked && !victim.parked && !bridged {
                self.filter_segment(&victim);
                continue;
            }
            self.unlink(&victim)?;
        }
        // The last bytes of the disk are for alarms and for the state store.
        if lane == Lane::Alarms {
            return Ok(true);
        }
        loop {
            let free = self
                .shared()
                .storage
                .free_space()
                .map_err(Stop::at("asking for free space"))?;
            if free >= len + min_free {
                return Ok(true);
            }
            let Some(victim) = self.find(Pressure::Acked) else {
                return Ok(false);
            };
            self.unlink(&victim)?;
        }
    }

    fn filter_segment(&self, victim: &Victim) {
        let mut state = self.shared().lock();
        // What is in the cold tier alone may stand before it.
        let end = state
            .lane(victim.lane)
            .segments
            .iter()
            .find(|segment| segment.no() == victim.no)
            .map(|segment| segment.summary.ord_end);
        if let Some(ord) = end {
            filter_out(&mut state, victim.lane, victim.last_id, ord);
        }
    }

    /// Makes a segment file; gives up what may go while the disk is full. `None`: it stays full.
    pub(crate) fn create(
        &mut self,
        lane: Lane,
        name: &str,
        len: u64,
    ) -> Result<Option<Arc<dyn StorageFile>>, Stop> {
        loop {
            match self.shared().storage.create(name, len) {
                Ok(file) => return Ok(Some(file)),
                Err(error) if is_full(&error) => {}
                Err(error) => return Err(Stop::at("creating a segment")(error)),
            }
            if let Some(victim) = self.find(Pressure::Acked) {
                self.unlink(&victim)?;
            } else if lane == Lane::Alarms && self.reserve {
                self.reserve = false;
                self.shared()
                    .storage
                    .remove(RESERVE)
                    .map_err(Stop::at("giving up the reserve"))?;
            } else {
                return Ok(None);
            }
        }
    }

    fn restore_reserve(&mut self) -> Result<(), Stop> {
        let config = &self.shared().config;
        if config.reserve_bytes == 0 {
            return Ok(());
        }
        let free = self
            .shared()
            .storage
            .free_space()
            .map_err(Stop::at("asking for free space"))?;
        if free < config.min_free_bytes + 2 * config.reserve_bytes {
            return Ok(());
        }
        match self.shared().storage.create(RESERVE, config.reserve_bytes) {
            Ok(_) => self.reserve = true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.reserve = true,
            Err(error) if is_full(&error) => {}
            Err(error) => return Err(Stop::at("making the reserve")(error)),
        }
        Ok(())
    }
}

/// No room, by filesystem or by quota.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

fn filter_out(state: &mut State, lane: Lane, id: RecordId, ord: u64) {
    let n = state.ledger.settles(lane, id, ord);
    state.ledger.settle(lane, id, ord, n);
    state.ledger_dirty = true;
    state.stamp_acked(lane);
}

/// Books the undelivered records of `victim` as dropped, with one `gap` record in their place.
fn give_up(state: &mut State, victim: &Victim) {
    let Some(segment) = state
        .lane(victim.lane)
        .segments
        .iter()
        .find(|segment| segment.no() == victim.no)
    else {
        return;
    };
    let summary = segment.summary;
    let account = state.ledger.lane(victim.lane);
    let inside = account.cursor >= summary.first_id;
    let ord_start = summary.ord_start().max(account.settled);
    let lost = Lost {
        lane: victim.lane as u8,
        prev: if inside {
            account.cursor
        } else {
            summary.header.prev
        },
        from: if inside {
            account.cursor + 1
        } else {
            summary.first_id
        },
        id: summary.last_id,
        count: summary.ord_end.saturating_sub(ord_start),
        ord_start,
        ord_end: summary.ord_end,
        first_ms: summary.min_ms,
        last_ms: summary.max_ms,
        engine_ms: summary.engine_ms,
        cause: "quota".to_owned(),
        dropped: true,
        silent: victim.lane == Lane::Alarms,
    };
    tracing::error!(
        from = lost.from,
        to = lost.id,
        count = lost.count,
        "undelivered records dropped: warm quota reached"
    );
    if lost.silent {
        announce(state, &lost);
    }
    let read_high = state.lane(victim.lane).read_high;
    state.ledger.lose(lost, read_high);
    state.drops += 1;
    state.ledger_dirty = true;
}
