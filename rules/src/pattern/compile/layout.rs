//! Stages to states: single events, repetitions, groups.
//!
//! Everything is laid out from the end to the beginning: a function gets the state to go on to and
//! returns the state to come from.

use std::collections::{HashMap, HashSet};

use super::CompileError;
use super::edge_tests::extend;
use super::graph::{Action, At, Builder, END, Graph, Kind};
use crate::pattern::plan::Test;
use crate::pattern::spec::{Contiguity, PatternSpec, Repeat, StageKind, StageSpec};

pub(super) fn build(spec: &PatternSpec) -> Result<Graph, CompileError> {
    let last = At::last_of(&spec.stages);
    let stages = spec.stage_names();
    let mut builder = Builder {
        stages: (0u16..).zip(stages).map(|(n, name)| (name, n)).collect(),
        vertices: Vec::new(),
        used: HashSet::new(),
        next: HashMap::new(),
        gaps: HashMap::new(),
        stop_of: HashMap::new(),
        loop_head: HashMap::new(),
        ungreedy: HashMap::new(),
        window: last.stage().and_then(|s| s.within),
        current: last,
        following: None,
        group: None,
        depth: 0,
    };
    let end = builder.vertex(END, Kind::Final)?;
    let sink = builder.middle(end)?;
    let start = builder.convert(sink)?;
    let window = builder.window;
    if let Some(window) = window
        && let Some(gap) = builder.gaps.values().find(|gap| **gap > window)
    {
        return Err(CompileError::GapOverWindow { gap: *gap, window });
    }
    let no_gap = builder.gaps.get(last.name()).is_none_or(|gap| *gap <= 0);
    let trailing = last.stage().map(|s| s.contiguity);
    if trailing == Some(Contiguity::NotFollowedBy) && no_gap && window.unwrap_or(0) == 0 {
        return Err(CompileError::AbsenceWithoutWindow {
            stage: last.name().to_owned(),
        });
    }
    Ok(Graph {
        vertices: builder.vertices,
        start: u16::try_from(start).map_err(|_| CompileError::TooLarge)?,
        window: window.unwrap_or(0),
    })
}

impl<'a> Builder<'a> {
    /// All stages of the current sequence but its first, last to first.
    pub(super) fn middle(&mut self, end: usize) -> Result<usize, CompileError> {
        let mut sink = end;
        while let Some(previous) = self.current.previous() {
            let stage = self.now()?;
            let is_final = self.kind(sink) == Some(Kind::Final);
            match stage.contiguity {
                Contiguity::NotFollowedBy => {
                    // Elsewhere the absence becomes edges of the states around it.
                    let bounded = stage.within_gap.is_some() || self.window.unwrap_or(0) > 0;
                    if bounded && is_final {
                        let pending = self.stage_vertex(Kind::Pending, true)?;
                        let test = self.take_test(self.current);
                        let stop = self.stop(&test, self.current.name())?;
                        self.edge(pending, Action::Proceed, stop, test.clone());
                        self.edge(pending, Action::Ignore, pending, test.not());
                        sink = pending;
                    }
                }
                Contiguity::NotNext => {
                    let state = self.stage_vertex(Kind::Normal, true)?;
                    let test = self.take_test(self.current);
                    let stop = self.stop(&test, self.current.name())?;
                    // Proceeding to the end would settle the absence without an event.
                    let on = if is_final {
                        Action::Ignore
                    } else {
                        Action::Proceed
                    };
                    self.edge(state, on, sink, test.clone().not());
                    self.edge(state, Action::Proceed, stop, test);
                    sink = state;
                }
                _ => sink = self.convert(sink)?,
            }
            self.following = Some(self.current);
            self.current = previous;
            let within = self.now()?.within;
            if let Some(within) = within.filter(|w| *w < self.window.unwrap_or(i64::MAX)) {
                self.window = Some(within);
            }
        }
        Ok(sink)
    }

    pub(super) fn convert(&mut self, sink: usize) -> Result<usize, CompileError> {
        let stage = self.now()?;
        let head = if stage.is_loop() {
            self.set_loop_head(false);
            let inner = self.without_absences(sink)?;
            let looping = self.looping(inner)?;
            self.set_loop_head(true);
            self.times(looping, sink)?
        } else if stage.quantifier.repeat != Repeat::Once {
            self.times(sink, sink)?
        } else {
            let take = self.take_test(self.current);
            let ignore = self.ignore_test(self.current, false);
            self.single(sink, Some(sink), take, ignore, stage.is_optional())?
        };
        self.add_stops(head)?;
        Ok(head)
    }

    /// States for a counted repetition, or the mandatory part of an open-ended one.
    pub(super) fn times(&mut self, sink: usize, proceed: usize) -> Result<usize, CompileError> {
        let stage = self.now()?;
        let (from, to) = stage.times();
        self.set_loop_head(false);
        let inner = extend(self.ignore_test(self.current, true), stage.until, false);
        let take =
            extend(Some(self.take_test(self.current)), stage.until, true).unwrap_or(Test::Always);
        if stage.quantifier.greedy && from != to {
            if stage.until.is_some() {
                self.keep_ungreedy(sink)?;
            }
            self.make_greedy(sink, &take);
        }
        let mut last = sink;
        for _ in from..to {
            last = self.single(last, Some(proceed), take.clone(), inner.clone(), true)?;
            self.add_stop_to_loop(last)?;
        }
        for _ in 0..from - 1 {
            last = self.single(last, None, take.clone(), inner.clone(), false)?;
            self.add_stop_to_loop(last)?;
        }
        self.set_loop_head(true);
        let ignore = self.ignore_test(self.current, false);
        self.single(last, Some(proceed), take, ignore, stage.is_optional())
    }

    /// One event. An optional state has a twin without the way on, so that an event passed over
    /// cannot open that way a second time.
    pub(super) fn single(
        &mut self,
        sink: usize,
        proceed: Option<usize>,
        take: Test,
        ignore: Option<Test>,
        optional: bool,
    ) -> Result<usize, CompileError> {
        let stage = self.now()?;
        if let StageKind::Group(inner) = &stage.kind {
            return self.group(inner, sink, proceed.filter(|_| optional));
        }
        let state = self.stage_vertex(Kind::Normal, true)?;
        let sink = self.without_absences(sink)?;
        self.edge(state, Action::Take, sink, take.clone());
        if optional && let Some(proceed) = proceed {
            let always = self.true_test();
            match (stage.quantifier.greedy, stage.until) {
                (true, Some(until)) => {
                    let until = Test::Is(until.id);
                    // Behind an absence it was a copy that became greedy, so there is no other copy
                    // to go on to. (Flink fails at run time when it has to.)
                    let copy = self.ungreedy.get(&self.name(proceed)).copied();
                    let copy = copy.unwrap_or(proceed);
                    let (ends, goes_on) = (until.clone(), until.not());
                    self.edge(state, Action::Proceed, copy, always.clone().and(ends));
                    self.edge(state, Action::Proceed, proceed, always.and(goes_on));
                }
                _ => self.edge(state, Action::Proceed, proceed, always),
            }
        }
        if let Some(ignore) = ignore {
            let mut twin = state;
            if optional || self.heads_optional_group() {
                twin = self.stage_vertex(Kind::Normal, false)?;
                self.edge(twin, Action::Take, sink, take);
                self.edge(twin, Action::Ignore, twin, ignore.clone());
                self.add_stops(twin)?;
            }
            self.edge(state, Action::Ignore, twin, ignore);
        }
        Ok(state)
    }

    /// The open end of a repetition.
    pub(super) fn looping(&mut self, sink: usize) -> Result<usize, CompileError> {
        let stage = self.now()?;
        if let StageKind::Group(inner) = &stage.kind {
            return self.looping_group(inner, sink);
        }
        let ignore = extend(self.ignore_test(self.current, true), stage.until, false);
        let take =
            extend(Some(self.take_test(self.current)), stage.until, true).unwrap_or(Test::Always);
        let always = self.true_test();
        let state = self.stage_vertex(Kind::Normal, true)?;
        if stage.quantifier.greedy {
            let mut on = always.clone();
            if let Some(until) = stage.until {
                let until = Test::Is(until.id);
                let copy = self.keep_ungreedy(sink)?;
                self.edge(
                    state,
                    Action::Proceed,
                    copy,
                    always.clone().and(until.clone()),
                );
                on = always.and(until.not());
            }
            self.edge(state, Action::Proceed, sink, on);
            let own = self.take_test(self.current);
            self.make_greedy(sink, &own);
        } else {
            self.edge(state, Action::Proceed, sink, always);
        }
        self.edge(state, Action::Take, state, take.clone());
        self.add_stop_to_loop(state)?;
        if let Some(ignore) = ignore {
            let twin = self.stage_vertex(Kind::Normal, false)?;
            self.edge(twin, Action::Take, state, take);
            self.edge(twin, Action::Ignore, twin, ignore.clone());
            self.edge(state, Action::Ignore, twin, ignore);
            self.add_stop_to_loop(twin)?;
        }
        Ok(state)
    }

    pub(super) fn group(
        &mut self,
        inner: &'a [StageSpec],
        sink: usize,
        proceed: Option<usize>,
    ) -> Result<usize, CompileError> {
        let always = self.true_test();
        let head = self.inside(inner, |b| {
            let sink = b.middle(sink)?;
            b.convert(sink)
        })?;
        if let Some(proceed) = proceed {
            self.edge(head, Action::Proceed, proceed, always);
        }
        Ok(head)
    }

    pub(super) fn looping_group(
        &mut self,
        inner: &'a [StageSpec],
        sink: usize,
    ) -> Result<usize, CompileError> {
        let always = self.true_test();
        let again = self.stage_vertex(Kind::Normal, true)?;
        let head = self.inside(inner, |b| {
            let sink = b.middle(again)?;
            b.convert(sink)
        })?;
        self.edge(head, Action::Proceed, sink, always.clone());
        self.edge(again, Action::Proceed, head, always);
        Ok(head)
    }

    pub(super) fn inside<T>(
        &mut self,
        inner: &'a [StageSpec],
        make: impl FnOnce(&mut Self) -> Result<T, CompileError>,
    ) -> Result<T, CompileError> {
        let (current, following, group) = (self.current, self.following, self.group);
        self.group = Some(current);
        self.current = At::last_of(inner);
        let made = make(self);
        (self.current, self.following, self.group) = (current, following, group);
        made
    }
}
