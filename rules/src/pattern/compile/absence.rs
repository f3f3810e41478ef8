//! `not-followed-by`: which absences are in force where, and what lifts them.

use super::CompileError;
use super::graph::{Action, Builder, Kind};
use crate::pattern::plan::Test;
use crate::pattern::spec::Contiguity;

impl<'a> Builder<'a> {
    /// Absences that are still in force before the current stage.
    pub(super) fn absences(&self) -> Vec<(Test, &'a str)> {
        let mut found = Vec::new();
        let mut at = self.current;
        while let Some(previous) = at.previous() {
            let Some(stage) = previous.stage() else { break };
            let absence = stage.contiguity == Contiguity::NotFollowedBy;
            if !absence && !stage.is_optional() {
                break;
            }
            if absence {
                found.push((self.take_test(previous), previous.name()));
            }
            at = previous;
        }
        found
    }

    pub(super) fn add_stops(&mut self, state: usize) -> Result<(), CompileError> {
        for (test, name) in self.absences() {
            let stop = self.stop(&test, name)?;
            self.edge(state, Action::Proceed, stop, test);
        }
        Ok(())
    }

    pub(super) fn add_stop_to_loop(&mut self, state: usize) -> Result<(), CompileError> {
        let Some(following) = self.following else {
            return Ok(());
        };
        if following.stage().map(|s| s.contiguity) == Some(Contiguity::NotFollowedBy) {
            let test = self.take_test(following);
            let stop = self.stop(&test, following.name())?;
            self.edge(state, Action::Proceed, stop, test);
        }
        Ok(())
    }

    /// Taking an event of an optional stage lifts the absences before it: the states behind it are
    /// copied without the edges that lead to them.
    pub(super) fn without_absences(&mut self, sink: usize) -> Result<usize, CompileError> {
        let absences = self.absences();
        if absences.is_empty() || !self.now()?.is_optional() {
            return Ok(sink);
        }
        self.depth += 1;
        if self.depth > 1_000 {
            return Err(CompileError::TooLarge);
        }
        let kind = self.kind(sink).unwrap_or(Kind::Normal);
        let copy = self.vertex(&self.name(sink), kind)?;
        for edge in self.edges(sink) {
            let mut target = edge.target;
            if edge.action == Action::Proceed {
                if self.kind(target) == Some(Kind::Stop) {
                    let name = self.name(target);
                    if absences.iter().any(|(_, absence)| *absence == name) {
                        continue;
                    }
                } else {
                    target = self.without_absences(target)?;
                }
            } else if target == sink {
                target = copy;
            }
            self.edge(copy, edge.action, target, edge.test);
        }
        self.depth -= 1;
        Ok(copy)
    }
}
