//! From the metrics of one payload to [`Metric`]s: names and types out of the birth, times out of payload or
//! arrival, one faulty metric at a time.

use std::sync::Arc;

use super::event::{InvalidReason, RebirthCause, Rejected};
use super::node::{Cx, Incoming, Node, Phase};
use super::recycle::renew;
use crate::alias::AliasTarget;
use crate::compress;
use crate::metric::{Metric, MetricFlags, TimeSource};
use crate::payload::raw::{RawMetric, RawPayload, Sample};
use crate::payload::value::{Budget, Filled, Hint, MetricError, fill, scalar};
use crate::payload::{DecodeError, Limits};
use crate::value::Value;

/// What came out of a payload.
#[derive(Debug, Default)]
pub(super) struct Resolved {
    pub(super) metrics: Vec<Metric>,
    /// So many of `metrics` are of this payload; what follows is left from an earlier one.
    filled: usize,
    pub(super) rejected: Vec<Rejected>,
    /// Why the birth should be repeated, if it should.
    pub(super) rebirth: Option<RebirthCause>,
}

/// A payload with its compression taken off.
pub(super) enum Opened<'a> {
    Plain(RawPayload<'a>),
    Inflated(Vec<u8>),
}

/// Takes the compression off, if there is one.
pub(super) fn open<'a>(raw: &RawPayload<'a>, limits: &Limits) -> Result<Opened<'a>, DecodeError> {
    Ok(match compress::inflate(raw, limits)? {
        Some(inner) => Opened::Inflated(inner),
        None => Opened::Plain(*raw),
    })
}

impl Opened<'_> {
    pub(super) fn payload(&self, limits: &Limits) -> Result<RawPayload<'_>, DecodeError> {
        match self {
            Self::Plain(raw) => Ok(*raw),
            Self::Inflated(inner) => RawPayload::parse(inner, limits),
        }
    }
}

pub(super) fn reason_of_decode(error: &DecodeError) -> InvalidReason {
    match error {
        DecodeError::Inflate(_) => InvalidReason::Compressed,
        DecodeError::TooManyMetrics { .. } => InvalidReason::TooManyMetrics,
        _ => InvalidReason::Payload,
    }
}

fn reason_of_metric(error: &MetricError) -> InvalidReason {
    match error {
        MetricError::DataType(_) | MetricError::Misplaced(_) => InvalidReason::Datatype,
        MetricError::NoValue => InvalidReason::MissingValue,
        MetricError::Arm(_) => InvalidReason::WrongType,
        MetricError::Range(_) => InvalidReason::OutOfRange,
        MetricError::Depth | MetricError::Elements => InvalidReason::TooLarge,
        MetricError::Wire(_)
        | MetricError::Array(_)
        | MetricError::DataSet(_)
        | MetricError::Unnamed
        | MetricError::Properties { .. } => InvalidReason::Malformed,
    }
}

/// Times below are taken for seconds when they lie between 2001 and 5138 as such: in milliseconds they would
/// lie in the first three years after 1970.
const SECONDS: std::ops::Range<u64> = 1_000_000_000..100_000_000_000;

/// How far ahead of its arrival a time may lie without remark, ms.
const FUTURE: u64 = 3_600_000;

/// Times that a metric falls back to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) payload: Option<u64>,
    pub(super) received: u64,
}

impl Times {
    /// A metric's time: its own, the payload's, or that of arrival.
    #[inline]
    fn of(&self, own: Option<u64>) -> (u64, TimeSource, MetricFlags) {
        let (time, source) = match (own, self.payload) {
            (Some(time), _) => (time, TimeSource::Metric),
            (None, Some(time)) => (time, TimeSource::Payload),
            (None, None) => return (self.received, TimeSource::Arrival, MetricFlags::NONE),
        };
        if SECONDS.contains(&time) {
            (time * 1_000, source, MetricFlags::TIME_IN_SECONDS)
        } else if time > self.received.saturating_add(FUTURE) {
            (time, source, MetricFlags::TIME_IN_FUTURE)
        } else {
            (time, source, MetricFlags::NONE)
        }
    }
}

/// A payload's send time, or that of arrival; seconds become milliseconds.
pub(super) fn send_time(payload: Option<u64>, received: u64) -> u64 {
    Times { payload, received }.of(None).0
}

fn metric(
    name: Arc<str>,
    alias: Option<u64>,
    raw: &RawMetric<'_>,
    filled: Filled,
    times: &Times,
    flags: MetricFlags,
) -> Metric {
    let (timestamp, time_source, time_flags) = times.of(raw.timestamp);
    Metric {
        name,
        alias,
        datatype: filled.datatype,
        value: filled.value,
        timestamp: Some(timestamp),
        time_source,
        historical: raw.historical,
        transient: raw.transient,
        quality: filled.quality,
        properties: filled.properties,
        metadata: filled.metadata,
        flags: filled.flags | time_flags | flags,
    }
}

impl Resolved {
    fn put(&mut self, metric: Metric) {
        match self.metrics.get_mut(self.filled) {
            Some(old) => *old = metric,
            None => self.metrics.push(metric),
        }
        self.filled += 1;
    }

    #[cold]
    fn reject(
        &mut self,
        index: usize,
        name: Option<Arc<str>>,
        raw: Option<&RawMetric<'_>>,
        reason: InvalidReason,
        detail: String,
    ) {
        self.rejected.push(Rejected {
            index,
            name: name.or_else(|| raw.and_then(|it| it.name).map(Arc::from)),
            alias: raw.and_then(|it| it.alias),
            reason,
            detail,
        });
    }

    #[cold]
    fn fault(
        &mut self,
        index: usize,
        name: Option<Arc<str>>,
        raw: Option<&RawMetric<'_>>,
        error: &MetricError,
    ) {
        self.reject(index, name, raw, reason_of_metric(error), error.to_string());
    }

    #[cold]
    fn ask(&mut self, cause: RebirthCause) {
        self.rebirth.get_or_insert(cause);
    }
}

impl Node {
    /// Metrics of NDATA or DDATA. Current values are brought up to date on the way.
    pub(super) fn resolve_data(
        &mut self,
        cx: &Cx<'_>,
        entity: u32,
        raw: &RawPayload<'_>,
        message: &Incoming<'_>,
    ) -> Resolved {
        let mut out = Resolved::default();
        let times = Times {
            payload: message.timestamp.or(raw.timestamp),
            received: message.received_ms,
        };
        // Out of a sequence that nobody keeps, only times tell which of two values is the current one.
        let by_time = self.phase == Phase::Unverified;
        let flags = if by_time {
            MetricFlags::UNVERIFIED
        } else {
            MetricFlags::NONE
        };
        let mut budget = Budget::new(&cx.config.limits.payload);
        let definitions = &self.definitions;
        let aliases = &self.aliases;
        let Some(owner) = self.entities.get_mut(entity as usize) else {
            return out;
        };
        out.metrics = std::mem::take(&mut owner.spare);
        let missing = raw.metric_count.saturating_sub(out.metrics.len());
        out.metrics.reserve_exact(missing);
        let mut rest = raw.metrics();
        let mut index = 0;
        while let Some(bytes) = rest.next_bytes() {
            let at = index;
            index += 1;
            // The usual case: a number by alias, nothing else with it.
            if let Some(sample) = Sample::read(bytes)
                && let Some(target) = aliases.get(sample.alias)
                && target.entity == entity
                && let Some(state) = owner.metrics.get_mut(target.metric as usize)
                && let Some(scalar) = scalar(state.datatype, &sample.arm)
            {
                let (timestamp, time_source, time_flags) = times.of(Some(sample.timestamp));
                if !(by_time && timestamp < state.timestamp) {
                    state.update_scalar(scalar, timestamp, time_source);
                }
                let flags = flags | time_flags;
                if let Some(old) = out.metrics.get_mut(out.filled) {
                    if !Arc::ptr_eq(&old.name, &state.name) {
                        old.name.clone_from(&state.name);
                    }
                    renew(old, state, scalar, timestamp, time_source, flags);
                    out.filled += 1;
                    continue;
                }
                let name = state.name.clone();
                // `extend` makes room first and builds the metric in its place; `push` would build it elsewhere
                // and copy it, which costs a quarter of this loop.
                out.metrics.extend(std::iter::once_with(|| Metric {
                    name,
                    alias: state.alias,
                    datatype: state.datatype,
                    value: scalar.into(),
                    timestamp: Some(timestamp),
                    time_source,
                    historical: false,
                    transient: false,
                    quality: None,
                    properties: None,
                    metadata: None,
                    flags,
                }));
                out.filled += 1;
                continue;
            }
            let mut raw = RawMetric::default();
            if let Err(error) = raw.read(bytes) {
                out.fault(at, None, None, &error.into());
                continue;
            }
            let mut flags = flags;
            // Alias and name are each looked up, also when both are there.
            let by_alias = match raw.alias.map(|alias| aliases.get(alias)) {
                Some(Some(target)) if target.entity == entity => Some(target.metric),
                _ => None,
            };
            let by_name = raw.name.and_then(|name| owner.by_name.get(name).copied());
            let known = match (by_name, by_alias) {
                (Some(name), Some(alias)) if name != alias => {
                    flags.insert(MetricFlags::ALIAS_CONFLICT);
                    Some(name)
                }
                // A name that the birth does not give is not overruled by an alias that it does.
                (None, Some(_)) if raw.name.is_some() => None,
                (name, alias) => name.or(alias),
            };
            let Some(state) = known.and_then(|it| owner.metrics.get_mut(it as usize)) else {
                unknown(&mut out, at, &raw, &times, flags, &mut budget);
                continue;
            };
            let hint = Hint {
                datatype: Some(state.datatype),
                properties: state.properties.as_deref(),
                template: match &state.value {
                    Value::Template(known) => Some(known),
                    _ => None,
                },
                definitions: Some(definitions),
            };
            let mut filled = match fill(&raw, &hint, &mut budget, 0) {
                Ok(filled) => filled,
                Err(error) => {
                    let name = state.name.clone();
                    out.fault(at, Some(name), Some(&raw), &error);
                    continue;
                }
            };
            if let (Value::Template(part), Value::Template(whole)) = (&filled.value, &state.value) {
                filled.value = Value::Template(Arc::new(part.merged_with(whole)));
            }
            let metric = metric(state.name.clone(), state.alias, &raw, filled, &times, flags);
            let overtaken = by_time && metric.timestamp.is_some_and(|it| it < state.timestamp);
            if !(raw.historical || overtaken) {
                state.update(&metric);
            }
            out.put(metric);
        }
        out.metrics.truncate(out.filled);
        owner.dirty = true;
        out
    }

    /// Metrics of a birth: each has name and type of its own. Gives aliases their meaning.
    pub(super) fn resolve_birth(
        &mut self,
        cx: &Cx<'_>,
        entity: u32,
        raw: &RawPayload<'_>,
        times: &Times,
    ) -> Resolved {
        let mut out = Resolved {
            metrics: Vec::with_capacity(raw.metric_count),
            ..Resolved::default()
        };
        let mut budget = Budget::new(&cx.config.limits.payload);
        let limits = &cx.config.limits;
        let before = self
            .entities
            .get(entity as usize)
            .map_or(0, |it| it.metrics.len());
        let others = self.metric_count - before;
        let room = limits.max_metrics.saturating_sub(others).min(
            limits
                .max_metrics_total
                .saturating_sub(others + cx.metrics_elsewhere),
        );
        if entity == 0 {
            self.define_templates(raw, cx);
        }
        for (index, read) in raw.metrics().enumerate() {
            let raw = match read {
                Ok(raw) => raw,
                Err(error) => {
                    out.fault(index, None, None, &error.into());
                    continue;
                }
            };
            // tck-id-payloads-name-requirement, tck-id-payloads-alias-birth-requirement
            let Some(name) = raw.name else {
                let detail = "a birth's metric without a name".to_owned();
                out.reject(index, None, Some(&raw), InvalidReason::Unnamed, detail);
                continue;
            };
            if out.metrics.len() >= room {
                let detail = format!("room for {room} metrics");
                out.reject(
                    index,
                    None,
                    Some(&raw),
                    InvalidReason::TooManyMetrics,
                    detail,
                );
                continue;
            }
            let hint = Hint {
                definitions: Some(&self.definitions),
                ..Hint::NONE
            };
            let mut raw = raw;
            let mut valueless = false;
            let filled = match fill(&raw, &hint, &mut budget, 0) {
                // The name and type still count, the value is unknown.
                Err(MetricError::NoValue) if raw.datatype.is_some() => {
                    valueless = true;
                    raw.null = true;
                    fill(&raw, &hint, &mut budget, 0)
                }
                other => other,
            };
            let filled = match filled {
                Ok(filled) => filled,
                Err(error) => {
                    out.fault(index, None, Some(&raw), &error);
                    continue;
                }
            };
            let mut flags = MetricFlags::NONE;
            let mut alias = raw.alias;
            if let Some(number) = alias {
                // For now the metric's place in this payload; `bind_aliases` points it at the table.
                let metric = out.metrics.len() as u32;
                let taken = self.aliases.insert(number, AliasTarget { entity, metric });
                // tck-id-payloads-alias-uniqueness: the first meaning stays in force
                if taken.is_some_and(|taken| !out.repeats(name, entity, taken)) {
                    flags.insert(MetricFlags::ALIAS_TAKEN);
                    alias = None;
                    out.ask(RebirthCause::DuplicateAlias);
                }
            }
            let metric = metric(name.into(), alias, &raw, filled, times, flags);
            if valueless {
                let detail = MetricError::NoValue.to_string();
                let name = Some(metric.name.clone());
                out.reject(index, name, Some(&raw), InvalidReason::MissingValue, detail);
            }
            out.metrics.push(metric);
        }
        out
    }

    /// An entity has a new table: points its aliases there, and counts.
    pub(super) fn bind_aliases(&mut self, entity: u32) {
        self.aliases.remove_entity(entity);
        self.metric_count = self.entities.iter().map(|it| it.metrics.len()).sum();
        let Some(owner) = self.entities.get(entity as usize) else {
            return;
        };
        for (metric, state) in owner.metrics.iter().enumerate() {
            if let Some(alias) = state.alias {
                let metric = metric as u32;
                self.aliases.insert(alias, AliasTarget { entity, metric });
            }
        }
    }

    // tck-id-payloads-template-definition-nbirth: first the definitions, so that instances can be read
    fn define_templates(&mut self, raw: &RawPayload<'_>, cx: &Cx<'_>) {
        self.definitions.0.clear();
        let mut budget = Budget::new(&cx.config.limits.payload);
        for raw in raw.metrics().flatten() {
            let (Some(name), crate::payload::raw::Arm::Template(_)) = (raw.name, raw.arm) else {
                continue;
            };
            if let Ok(Filled {
                value: Value::Template(template),
                ..
            }) = fill(&raw, &Hint::NONE, &mut budget, 0)
                && template.is_definition
            {
                self.definitions.0.insert(name.into(), template);
            }
        }
    }
}

impl Resolved {
    /// Whether this birth gave the alias to the very same name: several samples of one metric.
    fn repeats(&self, name: &str, entity: u32, taken: AliasTarget) -> bool {
        taken.entity == entity
            && self
                .metrics
                .get(taken.metric as usize)
                .is_some_and(|it| &*it.name == name)
    }
}

/// A metric that the birth does not name.
#[cold]
fn unknown(
    out: &mut Resolved,
    index: usize,
    raw: &RawMetric<'_>,
    times: &Times,
    flags: MetricFlags,
    budget: &mut Budget,
) {
    match (raw.name, raw.alias) {
        // Forwarded under its own name and type, and flagged.
        (Some(name), _) if raw.datatype.is_some() => {
            out.ask(RebirthCause::UnknownMetric);
            match fill(raw, &Hint::NONE, budget, 0) {
                Ok(filled) => {
                    let flags = flags | MetricFlags::UNKNOWN_IN_BIRTH;
                    out.put(metric(name.into(), None, raw, filled, times, flags));
                }
                Err(error) => out.fault(index, None, Some(raw), &error),
            }
        }
        (Some(name), _) => {
            out.ask(RebirthCause::UnknownMetric);
            let detail = format!("{name:?} is not in the birth and has no datatype");
            out.reject(index, None, Some(raw), InvalidReason::UnknownMetric, detail);
        }
        (None, Some(alias)) => {
            out.ask(RebirthCause::UnknownAlias);
            let detail = format!("alias {alias} is not in the birth");
            out.reject(index, None, Some(raw), InvalidReason::UnknownAlias, detail);
        }
        (None, None) => {
            let detail = "neither name nor alias".to_owned();
            out.reject(index, None, Some(raw), InvalidReason::Unnamed, detail);
        }
    }
}
