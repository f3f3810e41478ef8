//! What expressions see of the engine.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::event::Sample;
use crate::lang::expr::{Stages, World};
use crate::pattern::{Path, StageIdx};
use crate::value::Value;

/// Vectors of the phrases that rules compare with.
pub(crate) type Phrases = HashMap<Arc<str>, Arc<[f32]>>;

/// Last-known value of a metric.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Last {
    pub(crate) value: Value,
    /// Engine time, ms.
    pub(crate) at: u64,
}

/// Last-known values of one device, by metric.
pub(crate) type LastValues = Vec<(Arc<str>, Last)>;

/// A device's last-known values, as of now.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) last: &'a LastValues,
    pub(crate) now: u64,
    pub(crate) phrases: &'a Phrases,
}

impl World for View<'_> {
    fn current(&self, metric: &str, max_age_ms: Option<u64>) -> Option<&Value> {
        let at = self.last.binary_search_by(|(name, _)| (**name).cmp(metric));
        let (_, last) = self.last.get(at.ok()?)?;
        let age = self.now.saturating_sub(last.at);
        (max_age_ms.is_none_or(|most| age <= most)).then_some(&last.value)
    }

    fn phrase(&self, phrase: &str) -> Option<&[f32]> {
        self.phrases.get(phrase).map(|vector| &**vector)
    }
}

/// Stages of a partial match.
pub(crate) struct Held<'a>(pub(crate) Path<'a, Sample>);

impl Stages for Held<'_> {
    fn first(&self, stage: u16) -> Option<&Sample> {
        self.0.first(StageIdx(stage))
    }

    fn last(&self, stage: u16) -> Option<&Sample> {
        self.0.last(StageIdx(stage))
    }

    fn count(&self, stage: u16) -> usize {
        self.0.count(StageIdx(stage))
    }

    fn each(&self, stage: u16, f: &mut dyn FnMut(&Sample)) {
        self.0.stage(StageIdx(stage)).for_each(f);
    }
}

/// Events of a match, in order, each with its stage.
#[derive(Clone, Debug, Default)]
pub(crate) struct Taken(pub(crate) Vec<(u16, Sample)>);

impl Taken {
    pub(crate) fn of(path: Path<'_, Sample>) -> Self {
        let events = path.forward();
        Self(
            events
                .map(|(stage, event)| (stage.0, event.clone()))
                .collect(),
        )
    }

    fn stage(&self, stage: u16) -> impl DoubleEndedIterator<Item = &Sample> {
        self.0
            .iter()
            .filter(move |(s, _)| *s == stage)
            .map(|(_, e)| e)
    }
}

impl Stages for Taken {
    fn first(&self, stage: u16) -> Option<&Sample> {
        self.stage(stage).next()
    }

    fn last(&self, stage: u16) -> Option<&Sample> {
        self.stage(stage).next_back()
    }

    fn count(&self, stage: u16) -> usize {
        self.stage(stage).count()
    }

    fn each(&self, stage: u16, f: &mut dyn FnMut(&Sample)) {
        self.stage(stage).for_each(f);
    }
}
