//! The compiled pattern: an automaton with its edges flattened, immutable and shared by all keys.

use std::fmt;

use super::chain::Chain;
use super::spec::{CondId, Condition};
use super::state::{KeyState, Partial};

/// Number of an event stage: its position in [`PatternSpec::stage_names`](super::PatternSpec::stage_names).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StageIdx(pub u16);

/// Boolean combination of conditions on an edge.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Test {
    Always,
    Is(CondId),
    Not(Box<Test>),
    And(Box<[Test; 2]>),
}

impl Test {
    pub(super) fn of(condition: Option<Condition>) -> Self {
        condition.map_or(Self::Always, |c| Self::Is(c.id))
    }

    pub(super) fn not(self) -> Self {
        match self {
            Self::Not(inner) => *inner,
            other => Self::Not(Box::new(other)),
        }
    }

    pub(super) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Always, test) | (test, Self::Always) => test,
            (a, b) if a == b => a,
            (a, b) => Self::And(Box::new([a, b])),
        }
    }

    /// Whether no event can pass.
    pub(super) fn never(&self) -> bool {
        matches!(self, Self::Not(inner) if **inner == Self::Always)
    }
}

/// What happens when an edge's test passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Act {
    /// The event joins the match in `stage`; go on in `target`.
    Take { stage: u16, target: u16 },
    /// The event is passed over; go on in `target`.
    Ignore { target: u16 },
    /// The event hits an absence: the run ends here.
    Stop,
    /// Look at the following edges too; when the test fails, jump to edge `otherwise`.
    Proceed { otherwise: u16 },
}

/// One edge, those behind it that need no event of their own laid out after it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Edge {
    pub(super) test: Test,
    pub(super) act: Act,
}

/// A step on the way to the end that takes no event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Exit {
    pub(super) test: Test,
    /// `None`: passing means the end is reached. `Some(n)`: failing means to jump to step `n`.
    pub(super) otherwise: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Normal,
    /// A match is complete.
    Final,
    /// A trailing absence: the end of the window makes it a match.
    Pending,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) edges: Vec<Edge>,
    /// Whether an edge ends the run.
    pub(super) stops: bool,
    /// Ways to the end that the event which led here opens at once.
    pub(super) exits: Vec<Exit>,
    /// Longest time since the last event taken, ms; 0: none.
    pub(super) gap: i64,
}

/// Skip strategy with the stage resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum SkipTo {
    None,
    Next,
    PastLast,
    First { stage: Option<u16>, strict: bool },
    Last { stage: Option<u16>, strict: bool },
}

/// An immutable compiled pattern.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) names: Vec<String>,
    pub(super) states: Vec<State>,
    pub(super) start: u16,
    /// First to last event, ms; 0: none.
    pub(super) window: i64,
    pub(super) has_gaps: bool,
    pub(super) skip: SkipTo,
    /// Bit n: condition n gives the same result for every partial match.
    pub(super) stateless: u64,
    pub(super) chain: Option<Chain>,
    pub(super) shape: u64,
}

impl Plan {
    /// Names of the event stages, by [`StageIdx`].
    pub fn stage_names(&self) -> &[String] {
        &self.names
    }

    /// Name of one stage.
    pub fn stage_name(&self, stage: StageIdx) -> Option<&str> {
        self.names.get(usize::from(stage.0)).map(String::as_str)
    }

    /// Number of the stage with this name.
    pub fn stage(&self, name: &str) -> Option<StageIdx> {
        let at = self.names.iter().position(|n| n == name)?;
        Some(StageIdx(u16::try_from(at).ok()?))
    }

    /// Longest time from the first to the last event of a match, ms; 0: no limit.
    pub fn window(&self) -> i64 {
        self.window
    }

    /// Fingerprint of the automaton. States of a plan may be used with another plan of the same
    /// shape; what the conditions mean is not part of it.
    pub fn shape(&self) -> u64 {
        self.shape
    }

    /// Whether the pattern runs on the short path for plain sequences (single stages joined by
    /// `next` and `followed-by`, no skip strategy).
    pub fn is_chain(&self) -> bool {
        self.chain.is_some()
    }

    /// The same pattern on the general automaton. The outputs are the same; it is slower.
    pub fn without_chain(mut self) -> Self {
        self.chain = None;
        self.shape = super::compile::fingerprint(&self);
        self
    }

    /// The earliest time at which a partial match of this key times out, ms.
    ///
    /// Whoever advances time by timer calls [`advance_to`](Self::advance_to) then.
    pub fn next_deadline<E>(&self, state: &KeyState<E>) -> Option<i64> {
        if self.has_gaps {
            return state.partials.iter().filter_map(|p| self.deadline(p)).min();
        }
        // The root of the heap has the earliest start, and starts are in time order.
        let first = state.partials.first()?;
        self.deadline(first)
    }

    pub(super) fn deadline(&self, partial: &Partial) -> Option<i64> {
        if partial.is_waiting() {
            return None;
        }
        let gap = self.gap(partial.state);
        let by_gap = (gap > 0).then(|| partial.prev_ts.saturating_add(gap));
        let by_window = (self.window > 0).then(|| partial.start_ts.saturating_add(self.window));
        by_gap.into_iter().chain(by_window).min()
    }

    /// The deadline that has passed at `ts`, the gap's first.
    ///
    /// The subtraction wraps: with the last watermark (`i64::MAX`) a match that started before 1970
    /// does not time out, as in Flink.
    pub(super) fn expired(&self, partial: &Partial, ts: i64) -> Option<i64> {
        if partial.is_waiting() {
            return None;
        }
        let gap = self.gap(partial.state);
        if gap > 0 && ts.wrapping_sub(partial.prev_ts) >= gap {
            return Some(partial.prev_ts.wrapping_add(gap));
        }
        if self.window > 0 && ts.wrapping_sub(partial.start_ts) >= self.window {
            return Some(partial.start_ts.wrapping_add(self.window));
        }
        None
    }

    /// False only if nothing can be [`expired`](Self::expired) at `ts`.
    pub(super) fn may_expire<E>(&self, state: &KeyState<E>, ts: i64) -> bool {
        if self.has_gaps {
            return true;
        }
        match state.partials.first() {
            Some(first) if self.window > 0 && !first.is_waiting() => ts
                .checked_sub(first.start_ts)
                .is_none_or(|age| age >= self.window),
            _ => false,
        }
    }

    fn gap(&self, state: u16) -> i64 {
        if !self.has_gaps {
            return 0;
        }
        match &self.chain {
            Some(chain) => chain.gap(state),
            None => self.states.get(usize::from(state)).map_or(0, |s| s.gap),
        }
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Always => f.write_str("any event"),
            Self::Is(id) => write!(f, "c{}", id.0),
            Self::Not(test) => write!(f, "not ({test})"),
            Self::And(both) => {
                let [a, b] = &**both;
                write!(f, "{a} and {b}")
            }
        }
    }
}

/// The automaton, one line an edge; conditions by number.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |at: u16| self.states.get(usize::from(at)).map_or("?", |s| &s.name);
        if self.window > 0 {
            writeln!(f, "window {} ms", self.window)?;
        }
        for (at, state) in self.states.iter().enumerate() {
            if state.edges.is_empty() {
                continue;
            }
            let start = if at == usize::from(self.start) {
                " (start)"
            } else {
                ""
            };
            writeln!(f, "{}{start}", state.name)?;
            if state.gap > 0 {
                writeln!(f, "  gap {} ms", state.gap)?;
            }
            for edge in &state.edges {
                match edge.act {
                    Act::Take { stage, target } => {
                        let stage = self.stage_name(StageIdx(stage)).unwrap_or("?");
                        writeln!(f, "  {}: take as {stage}, to {}", edge.test, name(target))?;
                    }
                    Act::Ignore { target } => {
                        writeln!(f, "  {}: pass over, to {}", edge.test, name(target))?;
                    }
                    Act::Stop => writeln!(f, "  {}: end", edge.test)?,
                    Act::Proceed { otherwise } => {
                        writeln!(f, "  unless {}: skip to edge {otherwise}", edge.test)?;
                    }
                }
            }
        }
        Ok(())
    }
}
