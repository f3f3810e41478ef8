//! The journal's form: a Sparkplug payload in which every metric has name, alias and datatype, so that a later
//! birth cannot change what it means.
//!
//! It is a valid payload for any Sparkplug reader. Three fields that the schema leaves undefined carry what a
//! plain payload cannot: remarks and time source in a metric, `bdSeq` in the payload (extension 101).

use std::sync::Arc;

use super::encode::{Form, put_payload};
use super::raw::{Arm, RawMetric, RawPayload};
use super::value::{Budget, Hint, MetricError, fill, scalar};
use super::{DecodeError, Limits};
use crate::datatype::DataType;
use crate::metric::{Metric, MetricFlags, TimeSource};
use crate::value::Value;
use crate::wire::put_u64;

const BDSEQ: u32 = 101;

/// What [`encode_resolved`] wrote.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ResolvedPayload {
    /// Send time, ms UTC.
    pub timestamp: Option<u64>,
    /// Sequence number, where the message had one.
    pub seq: Option<u8>,
    /// `bdSeq` of the session, for births and deaths.
    pub bdseq: Option<u64>,
    /// Metrics, complete.
    pub metrics: Vec<Metric>,
}

/// Writes metrics so that they stand on their own.
///
/// Lossless for what the host session hands out. A quality without properties gains the property set that says
/// so.
#[must_use]
pub fn encode_resolved(
    timestamp: Option<u64>,
    seq: Option<u8>,
    bdseq: Option<u64>,
    metrics: &[Metric],
) -> Vec<u8> {
    let mut out = Vec::with_capacity(32 + 56 * metrics.len());
    put_payload(&mut out, timestamp, seq, metrics, Form::Journal);
    if let Some(bdseq) = bdseq {
        put_u64(&mut out, BDSEQ, bdseq);
    }
    out
}

/// Reads [`encode_resolved`] back.
///
/// # Errors
/// [`DecodeError`] when the bytes are damaged or not in this form; nothing is guessed.
pub fn decode_resolved(bytes: &[u8]) -> Result<ResolvedPayload, DecodeError> {
    // Records were within limits when they were read, and template merging may have grown them since.
    let limits = Limits::UNBOUNDED;
    let raw = RawPayload::parse(bytes, &limits)?;
    let bdseq = raw
        .extension(BDSEQ)
        .map_err(|source| DecodeError::Wire { offset: 0, source })?
        .first()
        .copied();
    let mut budget = Budget::of_journal(&limits);
    let mut metrics = Vec::with_capacity(raw.metric_count.min(bytes.len() / 8));
    let mut rest = raw.metrics();
    while let Some(bytes) = rest.next_bytes() {
        let index = metrics.len();
        let failed = |source: MetricError| DecodeError::Metric { index, source };
        let mut raw = RawMetric::default();
        raw.read(bytes).map_err(|source| failed(source.into()))?;
        let (Some(name), Some(code)) = (raw.name, raw.datatype) else {
            return Err(DecodeError::Unresolved { index });
        };
        let datatype =
            DataType::try_from(code).map_err(|error| failed(MetricError::DataType(error.0)))?;
        let mut metric = Metric {
            name: Arc::from(name),
            alias: raw.alias,
            datatype,
            value: Value::Null,
            timestamp: raw.timestamp,
            time_source: time_source(raw.mark),
            historical: raw.historical,
            transient: raw.transient,
            quality: None,
            properties: None,
            metadata: None,
            flags: flags(raw.mark),
        };
        // Nothing but null is written without a value.
        raw.null |= raw.arm == Arm::None;
        match scalar(datatype, &raw.arm) {
            Some(scalar) if raw.is_plain(datatype) => metric.value = scalar.into(),
            _ => {
                let filled = fill(&raw, &Hint::NONE, &mut budget, 0).map_err(failed)?;
                metric.value = filled.value;
                metric.quality = filled.quality;
                metric.properties = filled.properties;
                metric.metadata = filled.metadata;
            }
        }
        metrics.push(metric);
    }
    Ok(ResolvedPayload {
        timestamp: raw.timestamp,
        seq: raw.seq.and_then(|seq| u8::try_from(seq).ok()),
        bdseq,
        metrics,
    })
}

pub(super) fn time_source(mark: u64) -> TimeSource {
    match mark & 3 {
        0 => TimeSource::Metric,
        1 => TimeSource::Payload,
        _ => TimeSource::Arrival,
    }
}

pub(super) fn flags(mark: u64) -> MetricFlags {
    MetricFlags::from_bits(u16::try_from(mark >> 2 & 0xffff).unwrap_or_default())
}
