//! From a [`PatternSpec`] to a [`Plan`].
//!
//! `check` refuses what Flink's pattern builder refuses; `layout` makes the states in a `graph`, from
//! the last stage to the first; `flatten` turns each state's edges, and those behind edges that take
//! no event, into one list that is walked without a stack.

mod absence;
mod check;
mod edge_tests;
mod flatten;
mod graph;
mod layout;

use std::hash::{DefaultHasher, Hash, Hasher};

use super::chain::Chain;
use super::plan::{Plan, SkipTo};
use super::spec::{PatternSpec, Skip, StageKind, StageSpec};

/// More states than this in one pattern are refused.
pub const MAX_STATES: usize = 10_000;

/// Why a pattern was refused. Stage names are those of the pattern; a group is called `group`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// No stage at all, or an empty group.
    #[error("the pattern or a group in it has no stage")]
    Empty,
    /// The first stage of a pattern or group is an absence.
    #[error("`{stage}`: a pattern or group cannot begin with an absence")]
    BeginsWithAbsence {
        /// The stage.
        stage: String,
    },
    /// Two stages have the same name.
    #[error("`{stage}`: the name is used by two stages")]
    DuplicateName {
        /// The name.
        stage: String,
    },
    /// The name is reserved, empty, or has a colon.
    #[error("`{stage}`: a stage name must not be empty, `$endState$`, or contain `:`")]
    BadName {
        /// The name.
        stage: String,
    },
    /// A repetition, `greedy` or `optional` on an absence.
    #[error("`{stage}`: an absence takes no quantifier")]
    QuantifiedAbsence {
        /// The stage.
        stage: String,
    },
    /// The number of repetitions is not positive, or the range is empty.
    #[error("`{stage}`: repetition {from}..{to} is empty or not positive")]
    BadCount {
        /// The stage.
        stage: String,
        /// Smallest number of repetitions.
        from: i64,
        /// Largest number of repetitions.
        to: i64,
    },
    /// `consecutive` or `combinations` on a stage that is not repeated.
    #[error("`{stage}`: consecutive and combinations need a repetition")]
    InnerWithoutRepeat {
        /// The stage.
        stage: String,
    },
    /// `greedy` on a stage that is not repeated.
    #[error("`{stage}`: greedy needs a repetition")]
    GreedyWithoutRepeat {
        /// The stage.
        stage: String,
    },
    /// `greedy` together with `combinations`.
    #[error("`{stage}`: greedy cannot be combined with combinations")]
    GreedyCombinations {
        /// The stage.
        stage: String,
    },
    /// `greedy` on a group.
    #[error("a group cannot be greedy")]
    GreedyGroup,
    /// An optional stage right after a greedy one.
    #[error("`{stage}`: an optional stage cannot follow a greedy one")]
    OptionalAfterGreedy {
        /// The stage.
        stage: String,
    },
    /// A range from 0 that is optional in addition.
    #[error("`{stage}`: a range from 0 is optional already")]
    OptionalTwice {
        /// The stage.
        stage: String,
    },
    /// An absence right after an optional stage.
    #[error("`{stage}`: an absence cannot follow an optional stage; write two patterns instead")]
    AbsenceAfterOptional {
        /// The absence.
        stage: String,
    },
    /// `until` on a stage that has an upper limit.
    #[error("`{stage}`: until needs an open-ended repetition")]
    UntilWithoutLoop {
        /// The stage.
        stage: String,
    },
    /// A trailing `not-followed-by` that no window ends.
    #[error("`{stage}`: not-followed-by at the end needs within")]
    AbsenceWithoutWindow {
        /// The stage.
        stage: String,
    },
    /// A gap that is longer than the window of the whole match.
    #[error("a gap of {gap} ms is longer than the window of {window} ms")]
    GapOverWindow {
        /// The gap, ms.
        gap: i64,
        /// The window, ms.
        window: i64,
    },
    /// The skip strategy names a stage that is not at the top level of the pattern.
    #[error("skip names stage `{stage}`, which the pattern does not have outside of groups")]
    UnknownSkipStage {
        /// The name.
        stage: String,
    },
    /// The automaton would have more than [`MAX_STATES`] states.
    #[error("the pattern needs more than {MAX_STATES} states; lower the repetition counts")]
    TooLarge,
}

impl PatternSpec {
    /// Checks the pattern and compiles it.
    ///
    /// # Errors
    /// The first thing that Flink would refuse as well, in stage order, and patterns whose automaton
    /// is too large.
    pub fn compile(&self) -> Result<Plan, CompileError> {
        check::check(self)?;
        let graph = layout::build(self)?;
        let window = graph.window;
        let flat = flatten::flatten(&graph)?;
        let names: Vec<String> = self.stage_names().into_iter().map(str::to_owned).collect();
        let stage = |name: &str| {
            let at = names.iter().position(|n| n == name);
            at.and_then(|at| u16::try_from(at).ok())
        };
        let skip = match &self.skip {
            Skip::None => SkipTo::None,
            Skip::ToNext => SkipTo::Next,
            Skip::PastLast => SkipTo::PastLast,
            Skip::ToFirst { stage: s, strict } => SkipTo::First {
                stage: stage(s),
                strict: *strict,
            },
            Skip::ToLast { stage: s, strict } => SkipTo::Last {
                stage: stage(s),
                strict: *strict,
            },
        };
        let chain = Chain::of(self);
        let mut plan = Plan {
            names,
            has_gaps: flat.iter().any(|s| s.gap > 0),
            states: flat,
            start: graph.start,
            window: window.max(0),
            skip,
            stateless: stateless(self),
            chain,
            shape: 0,
        };
        plan.shape = fingerprint(&plan);
        Ok(plan)
    }
}

/// Bit n is set if condition n is used and nowhere iterative. A bit per condition is enough: those
/// numbered 64 and up are simply evaluated each time.
fn stateless(spec: &PatternSpec) -> u64 {
    fn walk(stages: &[StageSpec], iterative: &mut u64) {
        for stage in stages {
            let own = match &stage.kind {
                StageKind::Event { condition, .. } => *condition,
                StageKind::Group(inner) => {
                    walk(inner, iterative);
                    None
                }
            };
            for condition in own.into_iter().chain(stage.until) {
                if condition.iterative && condition.id.0 < 64 {
                    *iterative |= 1 << condition.id.0;
                }
            }
        }
    }
    let mut iterative = 0;
    walk(&spec.stages, &mut iterative);
    !iterative
}

/// Hash of everything that gives the numbers inside a state their meaning.
pub(super) fn fingerprint(plan: &Plan) -> u64 {
    let mut hasher = DefaultHasher::new();
    plan.names.hash(&mut hasher);
    plan.states.hash(&mut hasher);
    plan.start.hash(&mut hasher);
    plan.window.hash(&mut hasher);
    plan.skip.hash(&mut hasher);
    plan.chain.is_some().hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests;
