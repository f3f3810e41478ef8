//! Payloads: reading what nodes send, and the resolved form that the journal keeps.
//!
//! Three layers. `raw` walks the bytes in place. `value` and `nested` turn a value field into a [`Value`] of a
//! known type. What is left, names and types that stand in the birth only, is for [`crate::host`]; [`decode`]
//! reads a payload for those who have no birth at hand. [`encode_resolved`] and [`decode_resolved`] are inverse.

mod encode;
mod nested;
pub(crate) mod raw;
mod resolved;
#[cfg(test)]
mod tests;
pub(crate) mod value;

use std::sync::Arc;

use bytes::Bytes;

pub use encode::{Form, encode};
pub use resolved::{ResolvedPayload, decode_resolved, encode_resolved};
pub use value::MetricError;

use crate::compress::{self, InflateError};
use crate::datatype::DataType;
use crate::metric::{MetaData, MetricFlags};
use crate::property::PropertySet;
use crate::value::Value;
use crate::wire::WireError;
use raw::RawPayload;
use value::Hint;

/// Bounds on what one payload may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Metrics in one payload.
    pub max_metrics: usize,
    /// Cells, properties, members and parameters in one payload, all levels together.
    pub max_elements: usize,
    /// Levels of templates and property sets inside of each other.
    pub max_depth: usize,
    /// Bytes of a compressed payload after inflating.
    pub max_inflated: usize,
}

impl Limits {
    /// For bytes that have passed limits already.
    pub(crate) const UNBOUNDED: Self = Self {
        max_metrics: usize::MAX,
        max_elements: usize::MAX,
        max_depth: 64,
        max_inflated: 16 << 20,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_metrics: 65_536,
            max_elements: 262_144,
            max_depth: 64,
            max_inflated: 16 << 20,
        }
    }
}

/// Why bytes are no payload. What is wrong with one metric only is a [`MetricError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are no protobuf message of this schema.
    #[error("not a payload, byte {offset}: {source}")]
    Wire {
        /// Where reading stopped.
        offset: usize,
        /// What is wrong there.
        source: WireError,
    },
    /// More metrics than allowed.
    #[error("more than {limit} metrics")]
    TooManyMetrics {
        /// [`Limits::max_metrics`].
        limit: usize,
    },
    /// A compressed payload cannot be inflated.
    #[error("compressed payload: {0}")]
    Inflate(#[from] InflateError),
    /// In the journal's form: a metric cannot be read back.
    #[error("metric {index}: {source}")]
    Metric {
        /// Index of the metric.
        index: usize,
        /// What is wrong with it.
        source: MetricError,
    },
    /// In the journal's form: a metric has no name or no datatype.
    #[error("metric {index} has no name or no datatype")]
    Unresolved {
        /// Index of the metric.
        index: usize,
    },
}

/// A payload read without a birth: what it leaves out is `None`.
#[derive(Debug, Clone, PartialEq)]
pub struct Payload {
    /// Send time, ms UTC.
    pub timestamp: Option<u64>,
    /// Sequence number as sent, 0 to 255 when well-formed.
    pub seq: Option<u64>,
    /// Schema or form of `body`.
    pub uuid: Option<Arc<str>>,
    /// Opaque bytes instead of metrics.
    pub body: Option<Bytes>,
    /// The payload came compressed; `timestamp`, `seq` and metrics are then those of the inner one where the
    /// outer one has none.
    pub compressed: bool,
    /// Metrics in order.
    pub metrics: Vec<PayloadMetric>,
    /// Metrics that could not be read, by index in the payload.
    pub rejected: Vec<(usize, MetricError)>,
}

/// A metric read without a birth.
#[derive(Debug, Clone, PartialEq)]
pub struct PayloadMetric {
    /// Name, when sent.
    pub name: Option<Arc<str>>,
    /// Alias, when sent.
    pub alias: Option<u64>,
    /// Datatype, when sent.
    pub datatype: Option<DataType>,
    /// Capture time, ms UTC.
    pub timestamp: Option<u64>,
    /// A value of the past.
    pub historical: bool,
    /// Not to be stored.
    pub transient: bool,
    /// The value; without a datatype, the value field as it is: unsigned for the integer fields.
    pub value: Value,
    /// Properties.
    pub properties: Option<Arc<PropertySet>>,
    /// Metadata.
    pub metadata: Option<Arc<MetaData>>,
    /// Remarks.
    pub flags: MetricFlags,
}

/// Reads a payload, inflating it when it is compressed.
///
/// # Errors
/// [`DecodeError`] when the message as a whole cannot be read. A metric that cannot is in
/// [`Payload::rejected`], its neighbours are not harmed.
pub fn decode(bytes: &[u8], limits: &Limits) -> Result<Payload, DecodeError> {
    let outer = RawPayload::parse(bytes, limits)?;
    let inflated;
    let (raw, compressed) = match compress::inflate(&outer, limits)? {
        Some(inner) => {
            inflated = inner;
            (RawPayload::parse(&inflated, limits)?, true)
        }
        None => (outer, false),
    };
    let mut budget = value::Budget::new(limits);
    let mut metrics = Vec::with_capacity(raw.metric_count);
    let mut rejected = Vec::new();
    for (index, metric) in raw.metrics().enumerate() {
        let read = metric.map_err(MetricError::Wire).and_then(|metric| {
            let filled = value::fill(&metric, &Hint::NONE, &mut budget, 0)?;
            Ok(PayloadMetric {
                name: metric.name.map(Arc::from),
                alias: metric.alias,
                datatype: metric
                    .datatype
                    .map(DataType::try_from)
                    .transpose()
                    .map_err(|error| MetricError::DataType(error.0))?,
                timestamp: metric.timestamp,
                historical: metric.historical,
                transient: metric.transient,
                value: filled.value,
                properties: filled.properties,
                metadata: filled.metadata,
                flags: filled.flags,
            })
        });
        match read {
            Ok(metric) => metrics.push(metric),
            Err(error) => rejected.push((index, error)),
        }
    }
    Ok(Payload {
        timestamp: outer.timestamp.or(raw.timestamp),
        seq: outer.seq.or(raw.seq),
        uuid: raw.uuid.map(Arc::from),
        body: raw.body.map(Bytes::copy_from_slice),
        compressed,
        metrics,
        rejected,
    })
}
