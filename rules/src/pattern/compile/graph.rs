//! States and edges of the automaton, laid out from the last stage to the first.
//!
//! The shape follows the automaton of Flink CEP closely, because its quirks are visible: which states
//! exist decides which partial matches are reported as timed out, and the order of edges decides the
//! order of matches. State names matter too: only a state whose name was taken by another one before
//! it (it then has a number behind a colon) gets the gap of a repetition.

use std::collections::{HashMap, HashSet};

use super::{CompileError, MAX_STATES};
use crate::pattern::plan::Test;
use crate::pattern::spec::{Condition, Contiguity, Inner, PatternSpec, StageKind, StageSpec};

/// Name of the state behind the last stage.
pub(super) const END: &str = "$endState$";

/// Name under which every group appears.
const GROUP: &str = "GroupPattern";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    Final,
    Stop,
    Pending,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Take,
    Ignore,
    Proceed,
}

#[derive(Clone, Debug)]
pub(super) struct Edge {
    pub(super) action: Action,
    pub(super) target: usize,
    pub(super) test: Test,
}

#[derive(Clone, Debug)]
pub(super) struct Vertex {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) stage: u16,
    pub(super) edges: Vec<Edge>,
    pub(super) gap: i64,
}

/// The automaton before flattening.
#[derive(Debug)]
pub(super) struct Graph {
    pub(super) vertices: Vec<Vertex>,
    pub(super) start: u16,
    pub(super) window: i64,
}

/// A stage in its sequence. The stages before it in the same sequence are its predecessors.
#[derive(Clone, Copy)]
struct At<'a> {
    stages: &'a [StageSpec],
    index: usize,
}

impl<'a> At<'a> {
    fn last_of(stages: &'a [StageSpec]) -> Self {
        Self {
            stages,
            index: stages.len().saturating_sub(1),
        }
    }

    fn stage(self) -> Option<&'a StageSpec> {
        self.stages.get(self.index)
    }

    fn previous(self) -> Option<Self> {
        let index = self.index.checked_sub(1)?;
        Some(Self { index, ..self })
    }

    fn name(self) -> &'a str {
        match self.stage().map(|s| &s.kind) {
            Some(StageKind::Event { name, .. }) => name,
            _ => GROUP,
        }
    }

    fn condition(self) -> Option<Condition> {
        match self.stage().map(|s| &s.kind) {
            Some(StageKind::Event { condition, .. }) => *condition,
            _ => None,
        }
    }

    /// Two groups with the same predecessors and the same options are one and the same to the
    /// bookkeeping of loop heads, whatever is inside of them.
    fn group_key(self) -> String {
        let mut key = String::new();
        for stage in self.stages.iter().take(self.index + 1) {
            let name = match &stage.kind {
                StageKind::Event { name, .. } => name,
                StageKind::Group(_) => GROUP,
            };
            key.push_str(&format!(
                "{name}/{:?}/{:?}/{:?}/{:?}/{:?};",
                stage.contiguity, stage.quantifier, stage.until, stage.within, stage.within_gap
            ));
        }
        key
    }
}

pub(super) fn build(spec: &PatternSpec) -> Result<Graph, CompileError> {
    let last = At::last_of(&spec.stages);
    let stages = spec.stage_names();
    let mut builder = Builder {
        stages: (0u16..).zip(stages).map(|(n, name)| (name, n)).collect(),
        vertices: Vec::new(),
        used: HashSet::new(),
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

struct Builder<'a> {
    stages: HashMap<&'a str, u16>,
    vertices: Vec<Vertex>,
    used: HashSet<String>,
    /// Gap in ms by state name.
    gaps: HashMap<String, i64>,
    /// The state that ends a run, by absence.
    stop_of: HashMap<&'a str, usize>,
    /// Whether the states being made for a group are the head of its repetition.
    loop_head: HashMap<String, bool>,
    /// Copies of states from before `greedy` changed their edges, by the changed state's name.
    ungreedy: HashMap<String, usize>,
    window: Option<i64>,
    current: At<'a>,
    following: Option<At<'a>>,
    group: Option<At<'a>>,
    depth: u32,
}

impl<'a> Builder<'a> {
    fn now(&self) -> Result<&'a StageSpec, CompileError> {
        self.current.stage().ok_or(CompileError::Empty)
    }

    // States and edges.

    fn vertex(&mut self, base: &str, kind: Kind) -> Result<usize, CompileError> {
        if self.vertices.len() >= MAX_STATES {
            return Err(CompileError::TooLarge);
        }
        let mut name = base.to_owned();
        let mut n = 0;
        while !self.used.insert(name.clone()) {
            name = format!("{base}:{n}");
            n += 1;
        }
        let original = name.split(':').next().unwrap_or_default();
        self.vertices.push(Vertex {
            stage: self.stages.get(original).copied().unwrap_or(u16::MAX),
            name,
            kind,
            edges: Vec::new(),
            gap: 0,
        });
        Ok(self.vertices.len() - 1)
    }

    /// A state of the current stage; `takes`: the stage's gap applies to it.
    fn stage_vertex(&mut self, kind: Kind, takes: bool) -> Result<usize, CompileError> {
        let stage = self.now()?;
        let at = self.vertex(self.current.name(), kind)?;
        if takes && let Some(vertex) = self.vertices.get_mut(at) {
            let quantified = stage.quantifier.repeat != crate::pattern::spec::Repeat::Once;
            let gap = if !quantified {
                stage.within_gap
            } else if vertex.name.contains(':') {
                stage.quantifier.gap
            } else {
                None
            };
            if let Some(gap) = gap {
                vertex.gap = gap;
                self.gaps.insert(vertex.name.clone(), gap);
            }
        }
        Ok(at)
    }

    fn edge(&mut self, from: usize, action: Action, target: usize, test: Test) {
        if let Some(vertex) = self.vertices.get_mut(from) {
            vertex.edges.push(Edge {
                action,
                target,
                test,
            });
        }
    }

    fn edges(&self, of: usize) -> Vec<Edge> {
        self.vertices
            .get(of)
            .map(|v| v.edges.clone())
            .unwrap_or_default()
    }

    fn kind(&self, of: usize) -> Option<Kind> {
        self.vertices.get(of).map(|v| v.kind)
    }

    fn name(&self, of: usize) -> String {
        self.vertices
            .get(of)
            .map(|v| v.name.clone())
            .unwrap_or_default()
    }

    fn stop(&mut self, test: &Test, name: &'a str) -> Result<usize, CompileError> {
        if let Some(at) = self.stop_of.get(name) {
            return Ok(*at);
        }
        let at = self.vertex(name, Kind::Stop)?;
        self.edge(at, Action::Take, at, test.clone());
        self.stop_of.insert(name, at);
        Ok(at)
    }

    // Stages.

    /// All stages of the current sequence but its first, last to first.
    fn middle(&mut self, end: usize) -> Result<usize, CompileError> {
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

    fn convert(&mut self, sink: usize) -> Result<usize, CompileError> {
        let stage = self.now()?;
        let head = if stage.is_loop() {
            self.set_loop_head(false);
            let inner = self.without_absences(sink)?;
            let looping = self.looping(inner)?;
            self.set_loop_head(true);
            self.times(looping, sink)?
        } else if stage.quantifier.repeat != crate::pattern::spec::Repeat::Once {
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
    fn times(&mut self, sink: usize, proceed: usize) -> Result<usize, CompileError> {
        let stage = self.now()?;
        let (from, to) = stage.times();
        self.set_loop_head(false);
        let inner = extend(
            self.ignore_test(self.current, true),
            stage.until,
            false,
        );
        let take = extend(Some(self.take_test(self.current)), stage.until, true)
            .unwrap_or(Test::Always);
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
    fn single(
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
    fn looping(&mut self, sink: usize) -> Result<usize, CompileError> {
        let stage = self.now()?;
        if let StageKind::Group(inner) = &stage.kind {
            return self.looping_group(inner, sink);
        }
        let ignore = extend(self.ignore_test(self.current, true), stage.until, false);
        let take = extend(Some(self.take_test(self.current)), stage.until, true)
            .unwrap_or(Test::Always);
        let always = self.true_test();
        let state = self.stage_vertex(Kind::Normal, true)?;
        if stage.quantifier.greedy {
            let mut on = always.clone();
            if let Some(until) = stage.until {
                let until = Test::Is(until.id);
                let copy = self.keep_ungreedy(sink)?;
                self.edge(state, Action::Proceed, copy, always.clone().and(until.clone()));
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

    fn group(
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

    fn looping_group(
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

    fn inside<T>(
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

    // Absences.

    /// Absences that are still in force before the current stage.
    fn absences(&self) -> Vec<(Test, &'a str)> {
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

    fn add_stops(&mut self, state: usize) -> Result<(), CompileError> {
        for (test, name) in self.absences() {
            let stop = self.stop(&test, name)?;
            self.edge(state, Action::Proceed, stop, test);
        }
        Ok(())
    }

    fn add_stop_to_loop(&mut self, state: usize) -> Result<(), CompileError> {
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
    fn without_absences(&mut self, sink: usize) -> Result<usize, CompileError> {
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

    // Greedy.

    /// Copies a state before `greedy` changes it.
    fn keep_ungreedy(&mut self, state: usize) -> Result<usize, CompileError> {
        let name = self.name(state);
        let base = name.split(':').next().unwrap_or_default().to_owned();
        let copy = self.vertex(&base, self.kind(state).unwrap_or(Kind::Normal))?;
        for mut edge in self.edges(state) {
            if edge.target == state {
                edge.target = copy;
            }
            self.edge(copy, edge.action, edge.target, edge.test);
        }
        self.ungreedy.insert(name, copy);
        Ok(copy)
    }

    fn make_greedy(&mut self, state: usize, take: &Test) {
        if let Some(vertex) = self.vertices.get_mut(state) {
            for edge in &mut vertex.edges {
                let test = std::mem::replace(&mut edge.test, Test::Always);
                edge.test = test.and(take.clone().not());
            }
        }
    }

    // Groups.

    fn set_loop_head(&mut self, head: bool) {
        if matches!(
            self.current.stage().map(|s| &s.kind),
            Some(StageKind::Group(_))
        ) {
            self.loop_head.insert(self.current.group_key(), head);
        }
    }

    fn is_loop_head(&self) -> bool {
        let group = self.group.map(At::group_key);
        let head = group.and_then(|key| self.loop_head.get(&key));
        head.copied().unwrap_or(true)
    }

    /// The group that `at` is the first stage of.
    fn group_headed_by(&self, at: At<'a>) -> Option<&'a StageSpec> {
        match at.previous() {
            None => self.group.and_then(At::stage),
            Some(_) => None,
        }
    }

    fn heads_optional_group(&self) -> bool {
        self.group_headed_by(self.current)
            .is_some_and(|group| self.is_loop_head() && group.is_optional())
    }

    // Tests.

    fn group_until(&self) -> Option<Condition> {
        self.group.and_then(At::stage).and_then(|s| s.until)
    }

    fn take_test(&self, at: At<'a>) -> Test {
        let own = Test::of(at.condition());
        extend(Some(own), self.group_until(), true).unwrap_or(Test::Always)
    }

    fn true_test(&self) -> Test {
        extend(Some(Test::Always), self.group_until(), true).unwrap_or(Test::Always)
    }

    /// Which events may be passed over: before the first event of a stage, or (`inner`) between two
    /// of a repetition. `None`: not one.
    fn ignore_test(&self, at: At<'a>, inner: bool) -> Option<Test> {
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
fn extend(test: Option<Test>, until: Option<Condition>, take: bool) -> Option<Test> {
    let Some(until) = until else { return test };
    let not_yet = Test::Is(until.id).not();
    match test {
        Some(test) => Some(not_yet.and(test)),
        None if take => Some(not_yet),
        None => None,
    }
}
