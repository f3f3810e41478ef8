//! A node's own metrics or those of one device: what the birth named, and the last known values.

use std::sync::Arc;

use hashbrown::HashMap;

use super::event::{SchemaChange, SchemaImpact};
use crate::datatype::DataType;
use crate::metric::{Metric, MetricFlags, TimeSource};
use crate::payload::value::Scalar;
use crate::property::PropertySet;
use crate::value::Value;

/// The last known state of one metric.
#[derive(Debug, Clone)]
pub struct MetricState {
    /// Name, shared with every [`Metric`] made of it.
    pub name: Arc<str>,
    /// Type that the birth gave.
    pub datatype: DataType,
    /// Alias that the birth gave and that is in force.
    pub alias: Option<u64>,
    /// Last live value; historical ones never come here.
    pub value: Value,
    /// Its time, ms UTC; 0 while there is no value.
    pub timestamp: u64,
    /// Where the time came from.
    pub time_source: TimeSource,
    /// Quality that the node declared; absent means good.
    pub quality: Option<i32>,
    /// Last known properties.
    pub properties: Option<Arc<PropertySet>>,
    /// Not to be stored by consumers, says the birth.
    pub transient: bool,
    /// The host declares it stale: death, or link lost. Apart from `quality` 500, which is the node's word.
    pub stale: bool,
    /// Since when, ms UTC; 0 while it is not stale.
    pub stale_since_ms: u64,
}

impl MetricState {
    /// Takes a live number over as the current value; quality and properties stay.
    #[inline(always)]
    pub(super) fn update_scalar(
        &mut self,
        scalar: Scalar,
        timestamp: u64,
        time_source: TimeSource,
    ) {
        scalar.store(&mut self.value);
        self.timestamp = timestamp;
        self.time_source = time_source;
        self.stale = false;
        self.stale_since_ms = 0;
    }

    /// Takes a live sample over as the current value.
    #[inline]
    pub(super) fn update(&mut self, metric: &Metric) {
        self.value.clone_from(&metric.value);
        self.timestamp = metric.timestamp.unwrap_or_default();
        self.time_source = metric.time_source;
        self.stale = false;
        self.stale_since_ms = 0;
        if metric.properties.is_some() {
            self.quality = metric.quality;
            self.properties.clone_from(&metric.properties);
        }
    }
}

/// One node or device.
#[derive(Debug, Clone, Default)]
pub(super) struct Entity {
    pub(super) online: bool,
    pub(super) since_ms: u64,
    pub(super) births: u64,
    pub(super) deaths: u64,
    pub(super) schema: u32,
    pub(super) latency_ms: Option<i64>,
    /// Born since the last NBIRTH; data is accepted only then.
    pub(super) born: bool,
    pub(super) metrics: Vec<MetricState>,
    pub(super) by_name: HashMap<Arc<str>, u32>,
    /// List of a record that was given back, for the next one.
    pub(super) spare: Vec<Metric>,
    /// Has changed since the last checkpoint.
    pub(super) dirty: bool,
}

impl Entity {
    pub(super) fn find(&self, name: &str) -> Option<&MetricState> {
        let index = *self.by_name.get(name)?;
        self.metrics.get(index as usize)
    }

    /// Offline, every metric stale since `at_ms`.
    // tck-id-operational-behavior-edge-node-termination-host-action-ndeath-node-tags-stale,
    // -ndeath-devices-tags-stale, -ddeath-devices-tags-stale
    pub(super) fn die(&mut self, at_ms: u64) {
        if self.online {
            self.online = false;
            self.since_ms = at_ms;
            self.deaths += 1;
        }
        self.born = false;
        self.spare = Vec::new();
        self.stale(at_ms);
    }

    /// Every metric that is not stale yet is so from `at_ms` on.
    pub(super) fn stale(&mut self, at_ms: u64) {
        for metric in &mut self.metrics {
            if !metric.stale {
                metric.stale = true;
                metric.stale_since_ms = at_ms;
            }
        }
        self.dirty = true;
    }

    /// Takes over a birth's metrics. Samples that say nothing new are marked.
    ///
    /// `repeated`: the same session said it all before, so that an equal value is no news whatever its time.
    pub(super) fn rebuild(
        &mut self,
        metrics: &mut [Metric],
        repeated: bool,
    ) -> Option<SchemaChange> {
        let mut states: Vec<MetricState> = Vec::with_capacity(metrics.len());
        let mut by_name: HashMap<Arc<str>, u32> = HashMap::with_capacity(metrics.len());
        for metric in metrics.iter_mut() {
            let known = self.find(&metric.name);
            if let Some(known) = known {
                metric.name = known.name.clone();
                let same = known.value.same(&metric.value)
                    && known.datatype == metric.datatype
                    && known.quality == metric.quality;
                let older = metric.timestamp == Some(known.timestamp);
                if same && (repeated || older) && known.timestamp != 0 {
                    metric.flags.insert(MetricFlags::UNCHANGED);
                }
            }
            let mut state = MetricState {
                name: metric.name.clone(),
                datatype: metric.datatype,
                alias: metric.alias,
                value: metric.value.clone(),
                timestamp: metric.timestamp.unwrap_or_default(),
                time_source: metric.time_source,
                quality: metric.quality,
                properties: metric.properties.clone(),
                transient: metric.transient,
                stale: false,
                stale_since_ms: 0,
            };
            if let Some(index) = by_name.get(&metric.name) {
                metric.flags.insert(MetricFlags::NAME_REPEATED);
                if let Some(earlier) = states.get_mut(*index as usize) {
                    state.alias = state.alias.or(earlier.alias);
                    if metric.historical {
                        state.value = std::mem::take(&mut earlier.value);
                        state.timestamp = earlier.timestamp;
                        state.quality = earlier.quality;
                    }
                    *earlier = state;
                }
                continue;
            }
            if metric.historical {
                // A value of the past does not become the current one, not even in a birth.
                let (value, timestamp) = known
                    .map(|it| (it.value.clone(), it.timestamp))
                    .unwrap_or_default();
                state.value = value;
                state.timestamp = timestamp;
                state.stale = true;
            }
            by_name.insert(metric.name.clone(), states.len() as u32);
            states.push(state);
        }
        self.replace(states, by_name)
    }

    /// Puts the new table in force and compares it with the one before.
    pub(super) fn replace(
        &mut self,
        states: Vec<MetricState>,
        by_name: HashMap<Arc<str>, u32>,
    ) -> Option<SchemaChange> {
        let mut change = SchemaChange {
            version: self.schema + 1,
            previous: self.schema,
            change: SchemaImpact::Additive,
            added: Vec::new(),
            removed: Vec::new(),
            changed: Vec::new(),
        };
        for state in &states {
            match self.find(&state.name) {
                None => change.added.push(state.name.clone()),
                Some(old) if old.datatype != state.datatype => {
                    if !widens(old.datatype, state.datatype) {
                        change.change = SchemaImpact::Breaking;
                    } else if change.change == SchemaImpact::Additive {
                        change.change = SchemaImpact::Compatible;
                    }
                    change.changed.push(state.name.clone());
                }
                Some(_) => {}
            }
        }
        for old in &self.metrics {
            if !by_name.contains_key(&old.name) {
                change.change = SchemaImpact::Breaking;
                change.removed.push(old.name.clone());
            }
        }
        self.metrics = states;
        self.by_name = by_name;
        self.dirty = true;
        let differs = self.schema == 0
            || !(change.added.is_empty() && change.removed.is_empty() && change.changed.is_empty());
        differs.then(|| {
            self.schema = change.version;
            change
        })
    }
}

/// Whether every value of `from` is one of `to`.
fn widens(from: DataType, to: DataType) -> bool {
    match (from.integer_range(), to.integer_range()) {
        (Some(from), Some(to_range)) if to != DataType::DateTime => {
            to_range.0 <= from.0 && from.1 <= to_range.1
        }
        _ => matches!(
            (from, to),
            (DataType::Float, DataType::Double)
                | (DataType::String, DataType::Text)
                | (
                    DataType::Int8
                        | DataType::Int16
                        | DataType::Int32
                        | DataType::UInt8
                        | DataType::UInt16
                        | DataType::UInt32,
                    DataType::Double
                )
        ),
    }
}
