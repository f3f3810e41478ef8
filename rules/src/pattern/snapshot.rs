//! State of a key as bytes, and back.
//!
//! Layout (all numbers LEB128, signed ones zigzag): version, shape of the plan, next order number,
//! latest time; the distinct events (order number, bytes by the caller's codec); the nodes
//! (event, parent + 1, stage), each after its parent; the partial matches and the held-back ones
//! (start + 1 or 0 for the waiting entry, times, node + 1, state), each list in heap order.
//!
//! Reference counts and free places are not stored: they follow from the rest.

use super::arena::{Arena, NONE};
use super::plan::Plan;
use super::state::{KeyState, List, Partial, WAITING};

const VERSION: u64 = 1;

/// Why a snapshot could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// Written by a version that this one does not know.
    #[error("snapshot version {found} is not known")]
    Version {
        /// The version found.
        found: u64,
    },
    /// Written for a pattern of another shape.
    #[error("snapshot is of another pattern: shape {found:016x} instead of {expected:016x}")]
    Shape {
        /// Shape in the snapshot.
        found: u64,
        /// Shape of the plan.
        expected: u64,
    },
    /// It ends early, or a number in it is too long.
    #[error("snapshot is cut off")]
    Truncated,
    /// The codec could not read an event.
    #[error("event {index} of the snapshot cannot be read")]
    Event {
        /// Position of the event, from 0.
        index: usize,
    },
    /// A reference inside leads nowhere, or an order is broken.
    #[error("snapshot is inconsistent: {what}")]
    Inconsistent {
        /// What is wrong.
        what: &'static str,
    },
    /// Bytes are left over.
    #[error("snapshot has {bytes} bytes too many")]
    Trailing {
        /// How many.
        bytes: usize,
    },
}

impl<E> KeyState<E> {
    /// Appends the state to `to`. `event` appends one event; what it writes must tell its own length.
    pub fn encode(&self, plan: &Plan, to: &mut Vec<u8>, mut event: impl FnMut(&E, &mut Vec<u8>)) {
        put(to, VERSION);
        put(to, plan.shape());
        put(to, self.order);
        put_signed(to, self.now);

        // By order number a parent comes before its children: a path takes rising events.
        let mut nodes: Vec<u32> = self.arena.used().collect();
        nodes.sort_by_key(|at| self.arena.get(*at).map(|n| n.order));
        let mut place = vec![NONE; self.arena.slots()];
        let mut events: Vec<(u64, &E)> = Vec::new();
        for (n, at) in (0u32..).zip(&nodes) {
            if let Some(place) = place.get_mut(*at as usize) {
                *place = n;
            }
            if let Some(node) = self.arena.get(*at)
                && events.last().is_none_or(|(order, _)| *order != node.order)
            {
                events.push((node.order, node.event));
            }
        }
        put(to, events.len() as u64);
        for (order, item) in &events {
            put(to, *order);
            event(item, to);
        }
        let place = |at: u32| place.get(at as usize).map_or(0, |n| u64::from(*n) + 1);
        put(to, nodes.len() as u64);
        for node in nodes.iter().filter_map(|at| self.arena.get(*at)) {
            let event = events.partition_point(|(order, _)| *order < node.order);
            put(to, event as u64);
            put(to, place(node.parent));
            put(to, u64::from(node.stage));
        }
        for list in [&self.partials, &self.held] {
            put(to, list.len() as u64);
            for partial in list {
                put(to, partial.start.wrapping_add(1));
                put_signed(to, partial.start_ts);
                put_signed(to, partial.prev_ts);
                put(to, place(partial.node));
                put(to, u64::from(partial.state));
            }
        }
    }
}

impl<E: Clone> KeyState<E> {
    /// Reads a state that [`encode`](Self::encode) wrote for a plan of the same shape. `event` takes
    /// one event off the front.
    ///
    /// # Errors
    /// Any input that such a state does not encode to; nothing in the result can then lead astray.
    pub fn decode(
        plan: &Plan,
        from: &[u8],
        mut event: impl FnMut(&mut &[u8]) -> Option<E>,
    ) -> Result<Self, SnapshotError> {
        let from = &mut &*from;
        let found = take(from)?;
        if found != VERSION {
            return Err(SnapshotError::Version { found });
        }
        let (found, expected) = (take(from)?, plan.shape());
        if found != expected {
            return Err(SnapshotError::Shape { found, expected });
        }
        let mut state = Self::new();
        state.order = take(from)?;
        // Far beyond what counting can reach; keeps order numbers clear of the waiting entry's.
        check(state.order <= u64::MAX / 2, "order number")?;
        state.now = take_signed(from)?;
        let mut events: Vec<(u64, E)> = Vec::new();
        for index in 0..take(from)? as usize {
            let order = take(from)?;
            let rising = events.last().is_none_or(|(last, _)| *last < order);
            check(rising && order < state.order, "order of events")?;
            let item = event(from).ok_or(SnapshotError::Event { index })?;
            events.push((order, item));
        }
        let count = take_u32(from)?;
        for at in 0..count {
            let item = events.get(take(from)? as usize);
            let (order, item) = item.ok_or(bad("event of a node"))?;
            let parent = place(take(from)?, at, "parent of a node")?;
            let stage = u16::try_from(take(from)?).ok();
            let stage = stage.filter(|s| usize::from(*s) < plan.names.len());
            let stage = stage.ok_or(bad("stage of a node"))?;
            let above = state.arena.get(parent).map(|n| n.order);
            check(above.is_none_or(|above| above < *order), "order of nodes")?;
            state.arena.retain(parent);
            state.arena.insert(stage, item.clone(), *order, parent);
        }
        state.partials = partials(plan, &mut state.arena, state.order, count, from)?;
        state.held = partials(plan, &mut state.arena, state.order, count, from)?;
        check(
            plan.chain.is_none() || (state.held.is_empty() && is_chain(&state.partials)),
            "partial matches of a plain sequence",
        )?;
        // Each node was made with one reference of its own, which nothing stands for.
        for at in 0..count {
            let used = state.arena.get(at).is_some_and(|n| n.refs > 1);
            check(used, "a node that nothing points to")?;
            state.arena.release(at);
        }
        match from.len() {
            0 => Ok(state),
            bytes => Err(SnapshotError::Trailing { bytes }),
        }
    }
}

fn partials<E>(
    plan: &Plan,
    arena: &mut Arena<E>,
    next_order: u64,
    nodes: u32,
    from: &mut &[u8],
) -> Result<List, SnapshotError> {
    let states = match &plan.chain {
        Some(chain) => chain.len(),
        None => plan.states.len(),
    };
    let mut list = List::new();
    let mut waiting = 0;
    for at in 0..take(from)? as usize {
        let partial = Partial {
            start: take(from)?.wrapping_sub(1),
            start_ts: take_signed(from)?,
            prev_ts: take_signed(from)?,
            node: place(take(from)?, nodes, "node of a partial match")?,
            state: u16::try_from(take(from)?).map_err(|_| bad("state of a partial match"))?,
        };
        check(
            usize::from(partial.state) < states,
            "state of a partial match",
        )?;
        if partial.start == WAITING {
            waiting += 1;
            check(
                partial == Partial::waiting(plan.start) && plan.chain.is_none() && waiting == 1,
                "waiting entry",
            )?;
        } else {
            check(partial.start < next_order, "start of a partial match")?;
            check(partial.node != NONE, "a partial match without an event")?;
            arena.retain(partial.node);
        }
        let above = at.checked_sub(1).and_then(|n| list.get(n / 2));
        check(
            above.is_none_or(|p| p.start <= partial.start),
            "order of partial matches",
        )?;
        list.push(partial);
    }
    Ok(list)
}

fn is_chain(partials: &[Partial]) -> bool {
    partials.iter().all(|p| p.state > 0) && partials.is_sorted_by(|a, b| a.start < b.start)
}

fn bad(what: &'static str) -> SnapshotError {
    SnapshotError::Inconsistent { what }
}

fn check(holds: bool, what: &'static str) -> Result<(), SnapshotError> {
    if holds { Ok(()) } else { Err(bad(what)) }
}

/// A stored place (0: none, else place + 1) below `limit`.
fn place(stored: u64, limit: u32, what: &'static str) -> Result<u32, SnapshotError> {
    match stored.checked_sub(1) {
        None => Ok(NONE),
        Some(at) if at < u64::from(limit) => Ok(at as u32),
        Some(_) => Err(bad(what)),
    }
}

fn put(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push((value as u8) | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

fn put_signed(to: &mut Vec<u8>, value: i64) {
    put(to, ((value << 1) ^ (value >> 63)) as u64);
}

fn take(from: &mut &[u8]) -> Result<u64, SnapshotError> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = from.split_first().ok_or(SnapshotError::Truncated)?;
        *from = rest;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            break;
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(SnapshotError::Truncated)
}

fn take_signed(from: &mut &[u8]) -> Result<i64, SnapshotError> {
    let value = take(from)?;
    Ok((value >> 1) as i64 ^ -((value & 1) as i64))
}

fn take_u32(from: &mut &[u8]) -> Result<u32, SnapshotError> {
    let value = take(from)?;
    u32::try_from(value)
        .ok()
        .filter(|n| *n != NONE)
        .ok_or(bad("number of nodes"))
}
