//! Lays out, for each state, its edges and those reachable without taking an event as one list.
//!
//! Flink walks them with a stack: a state's own taking and passing edges in order, then the states it
//! proceeds to, the last one first. The list is in that order, so that the outcome is the same.

use super::CompileError;
use super::graph::{Action, Graph, Kind as VertexKind};
use crate::pattern::plan::{Act, Edge, Exit, Kind, State, Test};

/// More edges than this behind one state are refused.
const MAX_EDGES: usize = 20_000;

/// A longer way without an event is refused: so many optional stages in a row.
const MAX_DEPTH: usize = 500;

pub(super) fn flatten(graph: &Graph) -> Result<Vec<State>, CompileError> {
    let mut states = Vec::with_capacity(graph.vertices.len());
    let mut total = 0;
    for (at, vertex) in graph.vertices.iter().enumerate() {
        let mut edges = Vec::new();
        let mut exits = Vec::new();
        let mut open = Vec::new();
        if vertex.kind != VertexKind::Final && vertex.kind != VertexKind::Stop {
            expand(graph, at, &mut edges, &mut open)?;
            leave(graph, at, &mut exits, &mut open)?;
        }
        total += edges.len() + exits.len();
        if total > 50 * MAX_EDGES {
            return Err(CompileError::TooLarge);
        }
        states.push(State {
            name: vertex.name.clone(),
            kind: match vertex.kind {
                VertexKind::Final => Kind::Final,
                VertexKind::Pending => Kind::Pending,
                VertexKind::Normal | VertexKind::Stop => Kind::Normal,
            },
            stops: edges.iter().any(|e| e.act == Act::Stop),
            edges,
            exits,
            gap: vertex.gap,
        });
    }
    Ok(states)
}

/// `open` is the way from the state to here: a state that leads back to itself without an event (a
/// repeated group that may be empty) is not entered again.
fn expand(
    graph: &Graph,
    at: usize,
    edges: &mut Vec<Edge>,
    open: &mut Vec<usize>,
) -> Result<(), CompileError> {
    let Some(vertex) = graph.vertices.get(at) else {
        return Ok(());
    };
    if open.contains(&at) {
        return Ok(());
    }
    if open.len() >= MAX_DEPTH {
        return Err(CompileError::TooLarge);
    }
    open.push(at);
    for edge in &vertex.edges {
        let target = u16::try_from(edge.target).map_err(|_| CompileError::TooLarge)?;
        let act = match edge.action {
            _ if edge.test.never() => continue,
            Action::Proceed => continue,
            Action::Take if vertex.kind == VertexKind::Stop => Act::Stop,
            Action::Take => Act::Take {
                stage: vertex.stage,
                target,
            },
            Action::Ignore => Act::Ignore { target },
        };
        edges.push(Edge {
            test: edge.test.clone(),
            act,
        });
    }
    for edge in vertex.edges.iter().rev() {
        if edge.action != Action::Proceed || edge.test.never() {
            continue;
        }
        let gate = edges.len();
        let needs_gate = edge.test != Test::Always;
        if needs_gate {
            edges.push(Edge {
                test: edge.test.clone(),
                act: Act::Proceed { otherwise: 0 },
            });
        }
        expand(graph, edge.target, edges, open)?;
        if edges.len() > MAX_EDGES {
            return Err(CompileError::TooLarge);
        }
        if needs_gate {
            let otherwise = u16::try_from(edges.len()).map_err(|_| CompileError::TooLarge)?;
            if let Some(gate) = edges.get_mut(gate) {
                gate.act = Act::Proceed { otherwise };
            }
        }
    }
    open.pop();
    Ok(())
}

fn leave(
    graph: &Graph,
    at: usize,
    exits: &mut Vec<Exit>,
    open: &mut Vec<usize>,
) -> Result<(), CompileError> {
    let Some(vertex) = graph.vertices.get(at) else {
        return Ok(());
    };
    if open.contains(&at) {
        return Ok(());
    }
    if open.len() >= MAX_DEPTH {
        return Err(CompileError::TooLarge);
    }
    open.push(at);
    for edge in &vertex.edges {
        if edge.action != Action::Proceed || edge.test.never() {
            continue;
        }
        let gate = exits.len();
        let is_end = graph
            .vertices
            .get(edge.target)
            .is_some_and(|v| v.kind == VertexKind::Final);
        exits.push(Exit {
            test: edge.test.clone(),
            otherwise: None,
        });
        if is_end {
            continue;
        }
        leave(graph, edge.target, exits, open)?;
        if exits.len() > MAX_EDGES {
            return Err(CompileError::TooLarge);
        }
        if exits.len() == gate + 1 {
            // Nothing behind it: a way that leads nowhere.
            exits.truncate(gate);
            continue;
        }
        let otherwise = u16::try_from(exits.len()).map_err(|_| CompileError::TooLarge)?;
        if let Some(gate) = exits.get_mut(gate) {
            gate.otherwise = Some(otherwise);
        }
    }
    open.pop();
    Ok(())
}
