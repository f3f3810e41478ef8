//! What is kept for one key between events.

use super::arena::{Arena, NONE};
use super::heap::{Heap, Ranked};
use super::path::Path;

/// Start order of the entry that waits for a first event: behind every real start.
pub(super) const WAITING: u64 = u64::MAX;

/// One live run of the automaton.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Partial {
    /// Order number of the first event; [`WAITING`] before there is one.
    pub(super) start: u64,
    /// Time of the first event, ms.
    pub(super) start_ts: i64,
    /// Time of the last event taken, ms.
    pub(super) prev_ts: i64,
    /// Last event taken.
    pub(super) node: u32,
    /// State of the automaton that looks at the next event.
    pub(super) state: u16,
}

impl Partial {
    /// The entry every key has: waits for a first event, never ends.
    pub(super) fn waiting(state: u16) -> Self {
        Self {
            start: WAITING,
            start_ts: 0,
            prev_ts: 0,
            node: NONE,
            state,
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.start == WAITING
    }
}

/// Partial matches of a key.
pub(super) type List = Heap<Partial>;

impl Ranked for Partial {
    fn rank(&self) -> u64 {
        self.start
    }
}

/// Everything a pattern remembers of one key.
///
/// A new state and one whose partial matches have all ended are the same
/// ([`is_idle`](Self::is_idle)), so a caller drops an idle key and makes it anew when it comes back.
///
/// A state belongs to the [`Plan`](super::Plan) that it was first given to.
#[derive(Clone, Debug)]
pub struct KeyState<E> {
    /// Heap by `start`. Automaton: holds one waiting entry, or nothing at all. Chain: no waiting
    /// entry, strictly rising by `start`.
    pub(super) partials: List,
    /// Heap of finished matches that an earlier start holds back.
    pub(super) held: List,
    pub(super) arena: Arena<E>,
    /// Order number of the next event.
    pub(super) order: u64,
    /// Latest time seen, ms; the automaton's time never runs backwards.
    pub(super) now: i64,
}

impl<E> Default for KeyState<E> {
    fn default() -> Self {
        Self {
            partials: List::new(),
            held: List::new(),
            arena: Arena::default(),
            order: 0,
            now: i64::MIN,
        }
    }
}

impl<E> KeyState<E> {
    /// An idle state.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether nothing is held: the state may be dropped without changing any later output.
    pub fn is_idle(&self) -> bool {
        self.held.is_empty() && self.partials.iter().all(Partial::is_waiting)
    }

    /// Number of partial matches, finished ones that are held back included.
    pub fn partial_matches(&self) -> usize {
        let waiting = self.partials.iter().filter(|p| p.is_waiting()).count();
        self.partials.len() - waiting + self.held.len()
    }

    /// Number of events held, each stage that an event stands in counted.
    pub fn events(&self) -> usize {
        self.arena.live()
    }

    /// Bytes of memory behind this state: the structure itself, partial matches and events. What an
    /// event points to is not known here and not counted.
    pub fn bytes(&self) -> usize {
        let list = |list: &List| usize::from(list.spilled()) * list.capacity();
        size_of::<Self>()
            + (list(&self.partials) + list(&self.held)) * size_of::<Partial>()
            + self.arena.bytes()
    }

    /// Latest time given to this state, ms; `i64::MIN` before any.
    pub fn now(&self) -> i64 {
        self.now
    }

    /// Reads a little of each part of the state, so that it is in the cache afterwards.
    #[inline]
    pub(super) fn touch(&self) -> u64 {
        let first = self.partials.first().map_or(0, |p| p.start);
        let last = self.partials.last().map_or(0, |p| p.start);
        self.order ^ first ^ last ^ self.arena.touch()
    }

    /// What each live partial match holds, and the time of its first event in ms.
    pub fn partials(&self) -> impl Iterator<Item = (Path<'_, E>, i64)> {
        self.partials
            .iter()
            .chain(self.held.iter())
            .filter(|p| !p.is_waiting())
            .map(|p| (Path::new(&self.arena, p.node), p.start_ts))
    }

    /// Forgets every partial match, for instance when the device died.
    ///
    /// Returns how many there were.
    pub fn clear(&mut self) -> usize {
        let gone = self.partial_matches();
        self.partials.clear();
        self.held.clear();
        self.arena.clear();
        gone
    }
}
