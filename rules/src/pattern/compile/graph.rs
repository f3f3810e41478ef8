//! States and edges of the automaton, laid out from the last stage to the first.
//!
//! The shape follows the automaton of Flink CEP closely, because its quirks are visible: which states
//! exist decides which partial matches are reported as timed out, and the order of edges decides the
//! order of matches. State names matter too: only a state whose name was taken by another one before
//! it (it then has a number behind a colon) gets the gap of a repetition.

use std::collections::{HashMap, HashSet};

use super::{CompileError, MAX_STATES};
use crate::pattern::plan::Test;
use crate::pattern::spec::{Condition, Repeat, StageKind, StageSpec};

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
pub(super) struct At<'a> {
    pub(super) stages: &'a [StageSpec],
    pub(super) index: usize,
}

impl<'a> At<'a> {
    pub(super) fn last_of(stages: &'a [StageSpec]) -> Self {
        Self {
            stages,
            index: stages.len().saturating_sub(1),
        }
    }

    pub(super) fn stage(self) -> Option<&'a StageSpec> {
        self.stages.get(self.index)
    }

    pub(super) fn previous(self) -> Option<Self> {
        let index = self.index.checked_sub(1)?;
        Some(Self { index, ..self })
    }

    pub(super) fn name(self) -> &'a str {
        match self.stage().map(|s| &s.kind) {
            Some(StageKind::Event { name, .. }) => name,
            _ => GROUP,
        }
    }

    pub(super) fn condition(self) -> Option<Condition> {
        match self.stage().map(|s| &s.kind) {
            Some(StageKind::Event { condition, .. }) => *condition,
            _ => None,
        }
    }

    /// Two groups with the same predecessors and the same options are one and the same to the
    /// bookkeeping of loop heads, whatever is inside of them.
    pub(super) fn group_key(self) -> String {
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

pub(super) struct Builder<'a> {
    pub(super) stages: HashMap<&'a str, u16>,
    pub(super) vertices: Vec<Vertex>,
    pub(super) used: HashSet<String>,
    /// Number of the next state of a name.
    pub(super) next: HashMap<String, u32>,
    /// Gap in ms by state name.
    pub(super) gaps: HashMap<String, i64>,
    /// The state that ends a run, by absence.
    pub(super) stop_of: HashMap<&'a str, usize>,
    /// Whether the states being made for a group are the head of its repetition.
    pub(super) loop_head: HashMap<String, bool>,
    /// Copies of states from before `greedy` changed their edges, by the changed state's name.
    pub(super) ungreedy: HashMap<String, usize>,
    pub(super) window: Option<i64>,
    pub(super) current: At<'a>,
    pub(super) following: Option<At<'a>>,
    pub(super) group: Option<At<'a>>,
    pub(super) depth: u32,
}

impl<'a> Builder<'a> {
    pub(super) fn now(&self) -> Result<&'a StageSpec, CompileError> {
        self.current.stage().ok_or(CompileError::Empty)
    }

    pub(super) fn vertex(&mut self, base: &str, kind: Kind) -> Result<usize, CompileError> {
        if self.vertices.len() >= MAX_STATES {
            return Err(CompileError::TooLarge);
        }
        let mut name = base.to_owned();
        while !self.used.insert(name.clone()) {
            // Names are never given back, so the search goes on where it ended the last time.
            let n = self.next.entry(base.to_owned()).or_insert(0);
            name = format!("{base}:{n}");
            *n += 1;
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
    pub(super) fn stage_vertex(&mut self, kind: Kind, takes: bool) -> Result<usize, CompileError> {
        let stage = self.now()?;
        let at = self.vertex(self.current.name(), kind)?;
        if takes && let Some(vertex) = self.vertices.get_mut(at) {
            let quantified = stage.quantifier.repeat != Repeat::Once;
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

    pub(super) fn edge(&mut self, from: usize, action: Action, target: usize, test: Test) {
        if let Some(vertex) = self.vertices.get_mut(from) {
            vertex.edges.push(Edge {
                action,
                target,
                test,
            });
        }
    }

    pub(super) fn edges(&self, of: usize) -> Vec<Edge> {
        self.vertices
            .get(of)
            .map(|v| v.edges.clone())
            .unwrap_or_default()
    }

    pub(super) fn kind(&self, of: usize) -> Option<Kind> {
        self.vertices.get(of).map(|v| v.kind)
    }

    pub(super) fn name(&self, of: usize) -> String {
        self.vertices
            .get(of)
            .map(|v| v.name.clone())
            .unwrap_or_default()
    }

    pub(super) fn stop(&mut self, test: &Test, name: &'a str) -> Result<usize, CompileError> {
        if let Some(at) = self.stop_of.get(name) {
            return Ok(*at);
        }
        let at = self.vertex(name, Kind::Stop)?;
        self.edge(at, Action::Take, at, test.clone());
        self.stop_of.insert(name, at);
        Ok(at)
    }

    /// Copies a state before `greedy` changes it.
    pub(super) fn keep_ungreedy(&mut self, state: usize) -> Result<usize, CompileError> {
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

    pub(super) fn make_greedy(&mut self, state: usize, take: &Test) {
        if let Some(vertex) = self.vertices.get_mut(state) {
            for edge in &mut vertex.edges {
                let test = std::mem::replace(&mut edge.test, Test::Always);
                edge.test = test.and(take.clone().not());
            }
        }
    }
}
