//! One pattern over the events of many keys behind one watermark, as a stream operator does it.

use std::cmp::Reverse;
use std::collections::hash_map::{HashMap, RandomState};
use std::collections::{BinaryHeap, binary_heap::PeekMut};
use std::hash::{BuildHasher, Hash};
use std::hint::black_box;
use std::sync::Arc;

use super::eval::Evaluator;
use super::event_time::Reorder;
use super::output::{Limits, Output};
use super::plan::Plan;
use super::state::KeyState;

/// Events handled between two looks ahead.
const CHUNK: usize = 16;

/// Above this many keys their states are taken not to fit into the processor's nearer caches.
const MANY_KEYS: usize = 4_096;

/// Reads a little of the state of each key in `chunk`. The states lie scattered in memory; this lets
/// the processor wait for all of them at once instead of for one after the other.
fn look_ahead<K: Eq + Hash, E, S: BuildHasher>(
    keys: &HashMap<K, Box<Entry<E>>, S>,
    chunk: &[(i64, (K, E))],
) {
    let mut entries = [None; CHUNK];
    for (entry, (_, (key, _))) in entries.iter_mut().zip(chunk) {
        *entry = keys.get(key).map(|entry| &**entry);
    }
    let states = entries.iter().flatten();
    black_box(states.fold(0, |sum, entry| sum ^ entry.state.touch()));
}

/// Why an event was not taken in.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused<K, E> {
    /// Its time is not after the watermark.
    Late(K, E),
    /// The buffer is full.
    Full(K, E),
}

/// What a [`Keyed`] may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Limits of each key.
    pub key: Limits,
    /// Most keys that hold something. When there are so many, a match that would begin on another key
    /// is not begun, and counted in [`Keyed::turned_away`].
    pub keys: usize,
    /// Most events that wait for the watermark, all keys together. When it is reached, the newest is
    /// refused.
    pub waiting: usize,
}

impl Bounds {
    /// No bound.
    pub const NONE: Self = Self {
        key: Limits::NONE,
        keys: usize::MAX,
        waiting: usize::MAX,
    };
}

/// A pattern over many keys in event time.
///
/// Events wait until the watermark has passed them. A key that holds nothing takes no memory, and an
/// event that cannot begin a match costs such a key one lookup and one condition. The order of outputs
/// is exact inside a key and unspecified between keys.
///
/// Time moves for a key when it has an event, or a timer: one is set at the end of the window of each
/// first event with a time after 0. (Gaps set none, as in Flink; a caller that wants those settled by
/// time alone drives [`Plan::advance_to`] by [`Plan::next_deadline`].)
#[derive(Debug)]
pub struct Keyed<K, E, S = RandomState> {
    plan: Arc<Plan>,
    bounds: Bounds,
    keys: HashMap<K, Box<Entry<E>>, S>,
    buffer: Reorder<(K, E)>,
    timers: BinaryHeap<Reverse<Timer<K>>>,
    watermark: i64,
    round: u64,
    turned_away: u64,
    /// Keys to look at once the events of a round are through.
    touched: Vec<K>,
}

#[derive(Debug)]
struct Entry<E> {
    state: KeyState<E>,
    /// Round in which a match was begun: until that round is over each event sets a timer.
    begun: u64,
}

impl<E> Default for Entry<E> {
    fn default() -> Self {
        Self {
            state: KeyState::new(),
            begun: 0,
        }
    }
}

#[derive(Debug)]
struct Timer<K> {
    ts: i64,
    key: K,
}

impl<K> PartialEq for Timer<K> {
    fn eq(&self, other: &Self) -> bool {
        self.ts == other.ts
    }
}

impl<K> Eq for Timer<K> {}

impl<K> PartialOrd for Timer<K> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<K> Ord for Timer<K> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.ts.cmp(&other.ts)
    }
}

impl<K: Clone + Eq + Hash, E: Clone, S: BuildHasher + Default> Keyed<K, E, S> {
    /// A stream with no event yet.
    pub fn new(plan: Arc<Plan>, bounds: Bounds) -> Self {
        Self {
            plan,
            bounds,
            keys: HashMap::default(),
            buffer: Reorder::new(bounds.waiting),
            timers: BinaryHeap::new(),
            watermark: i64::MIN,
            round: 0,
            turned_away: 0,
            touched: Vec::new(),
        }
    }

    /// Number of keys that hold something.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether no key holds anything.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The current watermark, ms.
    pub fn watermark(&self) -> i64 {
        self.watermark
    }

    /// Matches that were not begun because too many keys hold something.
    pub fn turned_away(&self) -> u64 {
        self.turned_away
    }

    /// State of a key, if it holds something.
    pub fn state(&self, key: &K) -> Option<&KeyState<E>> {
        self.keys.get(key).map(|entry| &entry.state)
    }

    /// Bytes of memory for states, timers and waiting events, what keys and events point to excepted.
    pub fn bytes(&self) -> usize {
        let states = self.keys.values().map(|e| e.state.bytes());
        states.sum::<usize>()
            + self.keys.len() * (size_of::<Entry<E>>() - size_of::<KeyState<E>>())
            + self.keys.capacity() * (size_of::<(K, Box<Entry<E>>)>() + 1)
            + self.timers.capacity() * size_of::<Timer<K>>()
            + self.buffer.bytes()
    }

    /// Takes in an event of time `ts`, ms.
    ///
    /// # Errors
    /// The event, if it is late or the buffer is full.
    #[inline]
    pub fn push(&mut self, ts: i64, key: K, event: E) -> Result<(), Refused<K, E>> {
        if ts <= self.watermark {
            return Err(Refused::Late(key, event));
        }
        self.buffer
            .push(ts, (key, event))
            .map_err(|(key, event)| Refused::Full(key, event))
    }

    /// Moves the watermark to `watermark` (ms; never back) and handles every event and every time-out
    /// up to it.
    pub fn advance<V: Evaluator<E>>(
        &mut self,
        watermark: i64,
        evaluator: &V,
        mut out: impl FnMut(&K, Output<'_, E>),
    ) {
        if watermark <= self.watermark {
            return;
        }
        self.watermark = watermark;
        self.round += 1;
        let plan = &*self.plan;
        let window = plan.window();
        for chunk in self.buffer.peek_due(watermark).chunks(CHUNK) {
            if self.keys.len() > MANY_KEYS {
                look_ahead(&self.keys, chunk);
            }
            for (ts, (key, event)) in chunk {
                let full = self.keys.len() >= self.bounds.keys;
                let entry = match self.keys.get_mut(key) {
                    Some(entry) => entry,
                    None if !plan.may_begin(event, evaluator) => continue,
                    None if full => {
                        self.turned_away += 1;
                        continue;
                    }
                    None => self.keys.entry(key.clone()).or_default(),
                };
                let (ts, state) = (*ts, &mut entry.state);
                let begun =
                    plan.handle_event(state, ts, event, evaluator, &self.bounds.key, &mut |o| {
                        out(key, o)
                    });
                if window > 0 {
                    if begun && ts > 0 {
                        entry.begun = self.round;
                    }
                    if entry.begun == self.round {
                        self.timers.push(Reverse(Timer {
                            ts: ts.saturating_add(window),
                            key: key.clone(),
                        }));
                    }
                }
                if state.is_idle() || plan.may_expire(state, watermark) {
                    self.touched.push(key.clone());
                }
            }
        }
        drop(self.buffer.due(watermark));
        while let Some(timer) = self.timers.peek_mut()
            && timer.0.ts <= watermark
        {
            self.touched.push(PeekMut::pop(timer).0.key);
        }
        for key in self.touched.drain(..) {
            let Some(entry) = self.keys.get_mut(&key) else {
                continue;
            };
            plan.advance_to(&mut entry.state, watermark, &mut |o| out(&key, o));
            if entry.state.is_idle() {
                self.keys.remove(&key);
            }
        }
    }

    /// Forgets what a key holds. Returns how many partial matches that were.
    pub fn remove(&mut self, key: &K) -> usize {
        let entry = self.keys.remove(key);
        entry.map_or(0, |entry| entry.state.partial_matches())
    }
}
