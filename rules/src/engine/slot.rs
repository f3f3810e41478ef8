//! Everything kept for one key.

use std::sync::Arc;

use super::route::Table;
use super::share::Own;
use super::state::RuleState;
use super::world::{Last, LastValues};
use crate::event::{Key, Level};
use crate::value::Value;

/// Number of a rule's state: the rule's number, and whether it is the lane of history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Lane {
    pub(crate) rule: u32,
    pub(crate) history: bool,
}

/// One key of one level: last-known values and the states of rules.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) level: Level,
    pub(crate) key: Arc<Key>,
    /// What of it is this share's.
    pub(crate) own: Own,
    /// Which rules look at its events; only at device level, made when first needed.
    pub(crate) table: Option<Arc<Table>>,
    /// By name.
    pub(crate) last: LastValues,
    /// By lane; `None` only while a step has it.
    pub(crate) states: Vec<(Lane, Option<Box<RuleState>>)>,
    /// Engine time of the last thing that happened to it, ms.
    pub(crate) touched: u64,
    /// Time of its timer; `u64::MAX` without one.
    pub(crate) armed: u64,
    /// On the list of keys to save.
    pub(crate) dirty: bool,
    /// There is a snapshot of it somewhere.
    pub(crate) saved: bool,
    /// Its part in the engine's total, bytes.
    pub(crate) cost: usize,
    /// Counts as a key that holds state.
    pub(crate) counted: bool,
}

impl Slot {
    pub(crate) fn new(level: Level, key: Arc<Key>, own: Own) -> Self {
        Self {
            level,
            key,
            own,
            table: None,
            last: Vec::new(),
            states: Vec::new(),
            touched: 0,
            armed: u64::MAX,
            dirty: false,
            saved: false,
            cost: 0,
            counted: false,
        }
    }

    /// It is another share's: only last-known values are kept, for rules over its node or group.
    pub(crate) fn is_lent(&self) -> bool {
        !self.own.has(self.level)
    }

    /// Nothing is kept: it may be forgotten without a difference.
    pub(crate) fn is_empty(&self) -> bool {
        self.last.is_empty() && self.states.is_empty()
    }

    pub(crate) fn find(&self, lane: Lane) -> Result<usize, usize> {
        self.states.binary_search_by_key(&lane, |(lane, _)| *lane)
    }

    pub(crate) fn state(&self, lane: Lane) -> Option<&RuleState> {
        let at = self.find(lane).ok()?;
        self.states.get(at)?.1.as_deref()
    }

    /// Every state that is there.
    pub(crate) fn states(&self) -> impl Iterator<Item = (Lane, &RuleState)> {
        let all = self.states.iter();
        all.filter_map(|(lane, state)| Some((*lane, state.as_deref()?)))
    }

    /// Takes a state out; [`put`](Self::put) brings it back.
    pub(crate) fn take(&mut self, lane: Lane) -> Option<Box<RuleState>> {
        let at = self.find(lane).ok()?;
        self.states.get_mut(at)?.1.take()
    }

    /// Puts a state where it was taken, or forgets the place.
    pub(crate) fn put(&mut self, lane: Lane, state: Option<Box<RuleState>>) {
        match (self.find(lane), state) {
            (Ok(at), Some(state)) => {
                if let Some(place) = self.states.get_mut(at) {
                    place.1 = Some(state);
                }
            }
            (Ok(at), None) => {
                self.states.remove(at);
            }
            (Err(at), Some(state)) => self.states.insert(at, (lane, Some(state))),
            (Err(_), None) => {}
        }
    }

    /// Notes a metric's value; returns the bytes it takes if the metric is new here, which is also
    /// when something is allocated.
    pub(crate) fn remember(&mut self, metric: &Arc<str>, value: &Value, at: u64) -> isize {
        let value = value.clone();
        match self.last.binary_search_by(|(name, _)| name.cmp(metric)) {
            Ok(place) => {
                if let Some((_, last)) = self.last.get_mut(place) {
                    *last = Last { value, at };
                }
                0
            }
            Err(place) => {
                self.last
                    .insert(place, (metric.clone(), Last { value, at }));
                remembered(metric)
            }
        }
    }

    /// Forgets the metrics' values; returns the bytes they took, negative.
    pub(crate) fn forget_values(&mut self) -> isize {
        let freed = self.last.drain(..).map(|(metric, _)| remembered(&metric));
        -freed.sum::<isize>()
    }

    /// Bytes of the key itself.
    pub(crate) fn base_cost(&self) -> usize {
        let device = self.key.device.as_ref().map_or(0, |d| d.len());
        size_of::<Self>() + self.key.group.len() + self.key.node.len() + device
    }

    /// Bytes of everything kept, reckoned from what is held and not from what is allocated.
    pub(crate) fn reckon(&self) -> isize {
        let last = self.last.iter().map(|(metric, _)| remembered(metric));
        let states = self.states().map(|(_, state)| signed(state.cost()));
        last.chain(states).sum()
    }
}

fn remembered(metric: &str) -> isize {
    signed(64 + metric.len())
}

pub(crate) fn signed(bytes: usize) -> isize {
    isize::try_from(bytes).unwrap_or(isize::MAX)
}
