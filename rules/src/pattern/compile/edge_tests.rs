//! The tests on edges: which events a stage takes, and which it passes over.

use super::graph::{At, Builder};
use crate::pattern::plan::Test;
use crate::pattern::spec::{Condition, Contiguity, Inner, StageKind, StageSpec};

impl<'a> Builder<'a> {
    pub(super) fn set_loop_head(&mut self, head: bool) {
        if matches!(
            self.current.stage().map(|s| &s.kind),
            Some(StageKind::Group(_))
        ) {
            self.loop_head.insert(self.current.group_key(), head);
        }
    }

    pub(super) fn is_loop_head(&self) -> bool {
        let group = self.group.map(At::group_key);
        let head = group.and_then(|key| self.loop_head.get(&key));
        head.copied().unwrap_or(true)
    }

    /// The group that `at` is the first stage of.
    pub(super) fn group_headed_by(&self, at: At<'a>) -> Option<&'a StageSpec> {
        match at.previous() {
            None => self.group.and_then(At::stage),
            Some(_) => None,
        }
    }

    pub(super) fn heads_optional_group(&self) -> bool {
        self.group_headed_by(self.current)
            .is_some_and(|group| self.is_loop_head() && group.is_optional())
    }

    pub(super) fn group_until(&self) -> Option<Condition> {
        self.group.and_then(At::stage).and_then(|s| s.until)
    }

    pub(super) fn take_test(&self, at: At<'a>) -> Test {
        let own = Test::of(at.condition());
        extend(Some(own), self.group_until(), true).unwrap_or(Test::Always)
    }

    pub(super) fn true_test(&self) -> Test {
        extend(Some(Test::Always), self.group_until(), true).unwrap_or(Test::Always)
    }

    /// Which events may be passed over: before the first event of a stage, or (`inner`) between two
    /// of a repetition. `None`: not one.
    pub(super) fn ignore_test(&self, at: At<'a>, inner: bool) -> Option<Test> {
        let contiguity = |stage: &StageSpec, inner: bool, first: bool| match (
            inner,
            stage.quantifier.inner,
            stage.contiguity,
        ) {
            (true, Inner::Relaxed, _) => Contiguity::FollowedBy,
            (true, Inner::Consecutive, _) => Contiguity::Next,
            (true, Inner::Combinations, _) => Contiguity::FollowedByAny,
            (false, _, _) if first => Contiguity::Next,
            (false, _, own) => own,
        };
        let strategy = match self.group_headed_by(at) {
            // The first stage of a group stands where the group stands.
            Some(group) => {
                let first = self.group.is_some_and(|g| g.index == 0);
                contiguity(group, inner || !self.is_loop_head(), first)
            }
            None => contiguity(at.stage()?, inner, at.index == 0),
        };
        let own = match strategy {
            Contiguity::FollowedBy => Some(Test::of(at.condition()).not()),
            Contiguity::FollowedByAny => Some(Test::Always),
            _ => None,
        };
        extend(own, self.group_until(), false)
    }
}
/// Restricts a test to events at which the repetition has not been told to end.
pub(super) fn extend(test: Option<Test>, until: Option<Condition>, take: bool) -> Option<Test> {
    let Some(until) = until else { return test };
    let not_yet = Test::Is(until.id).not();
    match test {
        Some(test) => Some(not_yet.and(test)),
        None if take => Some(not_yet),
        None => None,
    }
}
