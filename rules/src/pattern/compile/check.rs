//! What a pattern may not say, in the order in which Flink's builder would object.

use std::collections::HashSet;

use super::CompileError;
use super::graph::END;
use crate::pattern::spec::{Inner, PatternSpec, Repeat, Skip, StageKind, StageSpec};

pub(super) fn check(spec: &PatternSpec) -> Result<(), CompileError> {
    sequence(&spec.stages)?;
    let mut names = HashSet::new();
    unique(&spec.stages, &mut names)?;
    if let Skip::ToFirst { stage, .. } | Skip::ToLast { stage, .. } = &spec.skip
        && !spec.stages.iter().any(|s| s.name() == Some(stage))
    {
        return Err(CompileError::UnknownSkipStage {
            stage: stage.clone(),
        });
    }
    Ok(())
}

impl StageSpec {
    fn name(&self) -> Option<&str> {
        match &self.kind {
            StageKind::Event { name, .. } => Some(name),
            StageKind::Group(_) => None,
        }
    }

    fn label(&self) -> String {
        self.name().unwrap_or("group").to_owned()
    }

    /// Whether the stage may be left out, said either way.
    pub(super) fn is_optional(&self) -> bool {
        self.quantifier.optional || matches!(self.quantifier.repeat, Repeat::Range(0, _))
    }

    pub(super) fn is_loop(&self) -> bool {
        matches!(
            self.quantifier.repeat,
            Repeat::OneOrMore | Repeat::AtLeast(_)
        )
    }

    /// Smallest and largest number of events (of an open-ended repetition: both the smallest).
    pub(super) fn times(&self) -> (i64, i64) {
        match self.quantifier.repeat {
            Repeat::Once | Repeat::OneOrMore => (1, 1),
            Repeat::AtLeast(n) | Repeat::Times(n) => (n, n),
            Repeat::Range(0, to) => (1, to),
            Repeat::Range(from, to) => (from, to),
        }
    }
}

fn sequence(stages: &[StageSpec]) -> Result<(), CompileError> {
    let Some(first) = stages.first() else {
        return Err(CompileError::Empty);
    };
    if first.contiguity.is_absence() {
        return Err(CompileError::BeginsWithAbsence {
            stage: first.label(),
        });
    }
    let mut previous: Option<&StageSpec> = None;
    for stage in stages {
        if let StageKind::Group(inner) = &stage.kind {
            sequence(inner)?;
        }
        if stage.contiguity.is_absence() && previous.is_some_and(StageSpec::is_optional) {
            return Err(CompileError::AbsenceAfterOptional {
                stage: stage.label(),
            });
        }
        quantifier(stage, previous)?;
        previous = Some(stage);
    }
    Ok(())
}

fn quantifier(stage: &StageSpec, previous: Option<&StageSpec>) -> Result<(), CompileError> {
    let label = || stage.label();
    let q = stage.quantifier;
    let single = q.repeat == Repeat::Once;
    let absence = stage.contiguity.is_absence();
    if absence && (!single || q.greedy || q.optional) {
        return Err(CompileError::QuantifiedAbsence { stage: label() });
    }
    let (from, to) = stage.times();
    if from <= 0 || to < from {
        return Err(CompileError::BadCount {
            stage: label(),
            from,
            to,
        });
    }
    if single && q.inner != Inner::Relaxed {
        return Err(CompileError::InnerWithoutRepeat { stage: label() });
    }
    if q.greedy {
        if matches!(stage.kind, StageKind::Group(_)) {
            return Err(CompileError::GreedyGroup);
        }
        if q.inner == Inner::Combinations {
            return Err(CompileError::GreedyCombinations { stage: label() });
        }
        if single {
            return Err(CompileError::GreedyWithoutRepeat { stage: label() });
        }
    }
    if q.optional {
        if previous.is_some_and(|p| p.quantifier.greedy) {
            return Err(CompileError::OptionalAfterGreedy { stage: label() });
        }
        if matches!(q.repeat, Repeat::Range(0, _)) {
            return Err(CompileError::OptionalTwice { stage: label() });
        }
    }
    if stage.until.is_some() && !stage.is_loop() {
        return Err(CompileError::UntilWithoutLoop { stage: label() });
    }
    Ok(())
}

fn unique<'a>(stages: &'a [StageSpec], names: &mut HashSet<&'a str>) -> Result<(), CompileError> {
    for stage in stages {
        match &stage.kind {
            StageKind::Group(inner) => unique(inner, names)?,
            StageKind::Event { name, .. } => {
                // A colon divides a stage's name from a state's number.
                if name.is_empty() || name == END || name.contains(':') {
                    return Err(CompileError::BadName {
                        stage: name.clone(),
                    });
                }
                if !names.insert(name) {
                    return Err(CompileError::DuplicateName {
                        stage: name.clone(),
                    });
                }
            }
        }
    }
    Ok(())
}
