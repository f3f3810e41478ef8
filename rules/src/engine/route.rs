//! Which rules look at which events of a device.
//!
//! Devices for which the same rules apply share one [`Table`], so that a table is made once for each
//! set of rules and not once for each device. An event costs a look-up by metric and then only the
//! rules found there: rules on other metrics cost it nothing.

use std::sync::Arc;

use hashbrown::HashMap;

use super::state::Role;
use crate::event::{Event, EventKind, Level};
use crate::lang::def::{Kind, RuleDef};

/// One rule that looks at a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) rule: u32,
    pub(crate) level: Level,
    pub(crate) historical: bool,
    pub(crate) role: Role,
}

/// Rules that look at one stream, in the order of the packs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stream {
    pub(crate) routes: Vec<Route>,
    /// By [`Level::number`]: `current()` names this metric in a rule of that level.
    pub(crate) remember: [bool; 3],
}

impl Stream {
    /// `current()` names this metric somewhere.
    pub(crate) fn remembers(&self) -> bool {
        self.remember.contains(&true)
    }
}

/// All streams that some rule looks at.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// Rules that apply, in order.
    pub(crate) rules: Box<[u32]>,
    metrics: HashMap<Arc<str>, Stream>,
    models: HashMap<Arc<str>, Stream>,
    embeddings: Stream,
    /// Any other metric.
    other: Stream,
}

impl Table {
    pub(crate) fn new(rules: &[u32], defs: &[Arc<RuleDef>]) -> Self {
        let mut table = Self {
            rules: rules.into(),
            ..Self::default()
        };
        let defs = rules
            .iter()
            .filter_map(|n| Some((*n, defs.get(*n as usize)?)));
        let defs: Vec<(u32, &Arc<RuleDef>)> = defs.collect();
        for (_, def) in &defs {
            for metric in &def.uses.current {
                let stream = table.metrics.entry(metric.clone()).or_default();
                if let Some(remember) = stream.remember.get_mut(def.level.number()) {
                    *remember = true;
                }
            }
            let clear = def.alarm.iter().filter_map(|a| a.clear.as_ref());
            let clear = clear.flat_map(|c| &c.metrics);
            for metric in def.streams.metrics.iter().chain(clear) {
                table.metrics.entry(metric.clone()).or_default();
            }
            for model in &def.streams.models {
                table.models.entry(model.clone()).or_default();
            }
        }
        for (rule, def) in defs {
            let route = |role| Route {
                rule,
                level: def.level,
                historical: def.historical,
                role,
            };
            for (metric, stream) in &mut table.metrics {
                let role = Role {
                    stream: def.streams.all || def.streams.metrics.contains(metric),
                    clear: clears(def, metric),
                };
                if role != Role::default() {
                    stream.routes.push(route(role));
                }
            }
            let on_stream = Role {
                stream: true,
                clear: false,
            };
            for (model, stream) in &mut table.models {
                if def.streams.models.contains(model) {
                    stream.routes.push(route(on_stream));
                }
            }
            if def.streams.embeddings {
                table.embeddings.routes.push(route(on_stream));
            }
            if def.streams.all {
                table.other.routes.push(route(on_stream));
            }
        }
        table
    }

    /// The stream of a metric.
    pub(crate) fn metric(&self, name: &str) -> &Stream {
        self.metrics.get(name).unwrap_or(&self.other)
    }

    pub(crate) fn stream(&self, event: &Event) -> &Stream {
        match &event.kind {
            EventKind::Metric => self.metric(&event.metric),
            EventKind::Score { model } => match self.models.get(model) {
                Some(stream) => stream,
                None => &NOTHING,
            },
            EventKind::Embedding(_) => &self.embeddings,
        }
    }
}

static NOTHING: Stream = Stream {
    routes: Vec::new(),
    remember: [false; 3],
};

fn clears(def: &RuleDef, metric: &Arc<str>) -> bool {
    let clear = def.alarm.as_ref().and_then(|a| a.clear.as_ref());
    matches!(def.kind, Kind::Pattern(_)) && clear.is_some_and(|c| c.metrics.contains(metric))
}
