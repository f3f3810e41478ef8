//! What a pattern is, as plain data: stages, contiguity, quantifiers, windows, skip strategy.
//!
//! A [`PatternSpec`] holds no expressions; a condition is a [`Condition`] number that the caller's
//! [`Evaluator`](super::Evaluator) gives a meaning to. [`PatternSpec::compile`] checks it and makes
//! the immutable [`Plan`](super::Plan).

/// Number of a condition, chosen by the caller and handed back to its evaluator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CondId(pub u16);

/// A condition of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Condition {
    /// Which condition.
    pub id: CondId,
    /// Whether its result depends on the events that the partial match already holds. One that
    /// does not is evaluated once an event, however many partial matches look at the event.
    pub iterative: bool,
}

/// How a stage's (first) event relates to the event of the stage before it.
///
/// The contiguity of the first stage is ignored: a match may begin anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Contiguity {
    /// The very next event of the key.
    Next,
    /// The next event that fits; others in between are passed over.
    FollowedBy,
    /// Any later event that fits, also when an earlier one fitted as well.
    FollowedByAny,
    /// The very next event must not fit. One more event of the key settles it.
    NotNext,
    /// No event that fits until the next stage is taken, or, for the last stage, until the window
    /// ends.
    NotFollowedBy,
}

impl Contiguity {
    /// Whether the stage is an absence: it takes no event.
    pub fn is_absence(self) -> bool {
        matches!(self, Self::NotNext | Self::NotFollowedBy)
    }
}

/// How many events a stage takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Repeat {
    /// One, with no quantifier at all.
    Once,
    /// One or more.
    OneOrMore,
    /// At least this many.
    AtLeast(i64),
    /// Exactly this many.
    Times(i64),
    /// From the first to the second number, both included; from 0 makes the stage optional.
    Range(i64, i64),
}

/// How the second and later events of a repeated stage relate to the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Inner {
    /// The next event that fits.
    Relaxed,
    /// The very next event; anything else ends the repetition.
    Consecutive,
    /// Any later event that fits.
    Combinations,
}

/// Quantifier of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quantifier {
    /// How many events.
    pub repeat: Repeat,
    /// Contiguity inside the repetition.
    pub inner: Inner,
    /// An event that fits both the repetition and the stage behind it goes to the repetition only.
    pub greedy: bool,
    /// The stage may be left out.
    pub optional: bool,
    /// Longest time in ms between neighbouring events of the repetition.
    pub gap: Option<i64>,
}

impl Quantifier {
    /// Exactly one event, no option.
    pub const ONCE: Self = Self {
        repeat: Repeat::Once,
        inner: Inner::Relaxed,
        greedy: false,
        optional: false,
        gap: None,
    };
}

/// What a stage matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StageKind {
    /// Single events.
    Event {
        /// Name, unique in the whole pattern.
        name: String,
        /// What an event must satisfy; none: every event fits.
        condition: Option<Condition>,
    },
    /// A sequence of stages, repeated as one.
    Group(Vec<StageSpec>),
}

/// One stage of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageSpec {
    /// Events or a group.
    pub kind: StageKind,
    /// Relation to the stage before.
    pub contiguity: Contiguity,
    /// How often.
    pub quantifier: Quantifier,
    /// Ends an open-ended repetition: an event that fits is not taken by it, nor is any later one.
    pub until: Option<Condition>,
    /// Window in ms from the first to the last event of the match. Of several the smallest counts,
    /// for the whole match.
    pub within: Option<i64>,
    /// Longest time in ms between the event before and this stage's event.
    pub within_gap: Option<i64>,
}

impl StageSpec {
    /// A stage of one event with no further option.
    pub fn event(name: impl Into<String>, contiguity: Contiguity, condition: Condition) -> Self {
        Self {
            kind: StageKind::Event {
                name: name.into(),
                condition: Some(condition),
            },
            contiguity,
            quantifier: Quantifier::ONCE,
            until: None,
            within: None,
            within_gap: None,
        }
    }
}

/// Which other matches go when a match is found.
///
/// Every strategy but [`Skip::None`] holds a finished match back while a partial match with an
/// earlier start is alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Skip {
    /// None: every match is put out.
    None,
    /// Those that start with the same event.
    ToNext,
    /// Those that start up to the last event of the match.
    PastLast,
    /// Those that start before the first event of a stage.
    ToFirst {
        /// Name of the stage.
        stage: String,
        /// Report a match without that stage, or one that begins with it, as
        /// [`Output::SkipMissed`](super::Output::SkipMissed).
        strict: bool,
    },
    /// Those that start before the last event of a stage.
    ToLast {
        /// Name of the stage.
        stage: String,
        /// As for [`Skip::ToFirst`].
        strict: bool,
    },
}

/// A whole pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternSpec {
    /// The stages in order; at least one.
    pub stages: Vec<StageSpec>,
    /// What a match does to others.
    pub skip: Skip,
}

impl PatternSpec {
    /// Names of all event stages, groups opened, in pattern order. The position is the stage number
    /// used in every output and snapshot.
    pub fn stage_names(&self) -> Vec<&str> {
        fn walk<'a>(stages: &'a [StageSpec], names: &mut Vec<&'a str>) {
            for stage in stages {
                match &stage.kind {
                    StageKind::Event { name, .. } => names.push(name),
                    StageKind::Group(inner) => walk(inner, names),
                }
            }
        }
        let mut names = Vec::new();
        walk(&self.stages, &mut names);
        names
    }
}
