//! Records as messages: JSON or protobuf bodies, headers, and parts of what is too large for one message.
//!
//! JSON is written by hand into one reused buffer: a body is written thousands of times a second, and a tree
//! of values would cost more than the rest of the way. Integers beyond 2^53 are strings, as are NaN and the
//! infinities; bytes are base64; null is null; optional fields are left out when absent, `value` never is.

mod headers;
mod json;

use bytes::Bytes;
use sparkplug::metric::Metric;
use sparkplug::payload::{DecodeError, ResolvedPayload, decode_resolved, encode_resolved};

pub use self::headers::{Headers, Place, message_id};
pub use self::json::{metric_json, value_json};
use super::subject;
use crate::buffer::record::{Class, Record};

/// Bytes kept free beside body and fixed headers, for the headers that are known only when a message leaves.
const HEADER_RESERVE: usize = 768;

/// How `data` and `birth` bodies are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Encoding {
    /// JSON, as the contract shows.
    #[default]
    Json,
    /// The resolved Sparkplug payload.
    Protobuf,
}

/// Why a record can't be made into messages.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum EncodeError {
    /// One piece that can't be split is larger than a message may be.
    #[error("{size} bytes in one piece, a message holds {limit}")]
    TooLarge {
        /// Bytes needed.
        size: usize,
        /// Bytes possible.
        limit: usize,
    },
    /// The stored payload can't be read.
    #[error("stored payload")]
    Payload(#[from] DecodeError),
}

/// A record made ready: its subject, its headers, its bodies.
#[derive(Debug, Clone, PartialEq)]
pub struct Prepared {
    /// Subject of every part.
    pub subject: String,
    /// Headers that don't depend on the place in the stream.
    pub headers: Headers,
    /// One body a part.
    pub bodies: Vec<Bytes>,
}

/// Makes messages of records.
#[derive(Debug)]
pub struct Encoder {
    gateway: String,
    encoding: Encoding,
    buffer: Vec<u8>,
    ends: Vec<usize>,
}

impl Encoder {
    /// An encoder for the streams of `gateway`.
    #[must_use]
    pub fn new(gateway: impl Into<String>, encoding: Encoding) -> Self {
        Self {
            gateway: gateway.into(),
            encoding,
            buffer: Vec::with_capacity(4096),
            ends: Vec::new(),
        }
    }

    /// Whether this record's body has to be decoded to be encoded.
    #[must_use]
    pub fn needs_payload(&self, record: &Record) -> bool {
        self.encoding == Encoding::Json && is_payload(record.class)
    }

    /// Makes a record ready. `payload` is its decoded body, where the caller has it already and maybe thinned
    /// it out; `limit` is the most that headers and body of one message may take.
    ///
    /// # Errors
    /// [`EncodeError`]: the record fits no messages.
    pub fn prepare(
        &mut self,
        record: &Record,
        payload: Option<&ResolvedPayload>,
        limit: usize,
    ) -> Result<Prepared, EncodeError> {
        let subject = subject::subject(&self.gateway, record.class, &record.key);
        let headers = Headers::of(&self.gateway, record, self.encoding);
        let limit = limit.saturating_sub(headers.wire_len() + HEADER_RESERVE);
        let bodies = if is_payload(record.class) {
            self.payload_bodies(record, payload, limit)?
        } else {
            vec![whole(&record.body, limit)?]
        };
        Ok(Prepared {
            subject,
            headers,
            bodies,
        })
    }

    fn payload_bodies(
        &mut self,
        record: &Record,
        payload: Option<&ResolvedPayload>,
        limit: usize,
    ) -> Result<Vec<Bytes>, EncodeError> {
        if self.encoding == Encoding::Protobuf && payload.is_none() && record.body.len() <= limit {
            return Ok(vec![record.body.clone()]);
        }
        let decoded;
        let payload = match payload {
            Some(payload) => payload,
            None => {
                decoded = decode_resolved(&record.body)?;
                &decoded
            }
        };
        match self.encoding {
            Encoding::Json => self.json_bodies(record, payload, limit),
            Encoding::Protobuf => protobuf_bodies(payload, limit),
        }
    }

    fn json_bodies(
        &mut self,
        record: &Record,
        payload: &ResolvedPayload,
        limit: usize,
    ) -> Result<Vec<Bytes>, EncodeError> {
        const TAIL: &[u8] = b"]}";
        self.buffer.clear();
        self.ends.clear();
        json::head(&mut self.buffer, record, payload);
        let head = self.buffer.len();
        for metric in &payload.metrics {
            if self.buffer.len() > head {
                self.buffer.push(b',');
            }
            json::metric(&mut self.buffer, metric);
            self.ends.push(self.buffer.len());
        }
        if self.buffer.len() + TAIL.len() <= limit {
            self.buffer.extend_from_slice(TAIL);
            return Ok(vec![Bytes::copy_from_slice(&self.buffer)]);
        }
        // Too large: every part repeats the head and takes as many whole metrics as fit.
        let buffer = &self.buffer;
        let piece = |from: usize, to: usize| buffer.get(from..to).unwrap_or_default();
        let room = limit.saturating_sub(head + TAIL.len());
        let mut bodies = Vec::new();
        let (mut from, mut to) = (head, head);
        let close =
            |from: usize, to: usize| Bytes::from([piece(0, head), piece(from, to), TAIL].concat());
        for end in self.ends.iter().copied() {
            // A comma stands between this metric and the one before it.
            let start = if to == head { head } else { to + 1 };
            if end - start > room {
                return Err(EncodeError::TooLarge {
                    size: end - start + head + TAIL.len(),
                    limit,
                });
            }
            if end - from > room {
                bodies.push(close(from, to));
                from = start;
            }
            to = end;
        }
        bodies.push(close(from, to));
        Ok(bodies)
    }
}

fn is_payload(class: Class) -> bool {
    matches!(class, Class::Data | Class::Birth)
}

fn whole(body: &Bytes, limit: usize) -> Result<Bytes, EncodeError> {
    if body.len() > limit {
        return Err(EncodeError::TooLarge {
            size: body.len(),
            limit,
        });
    }
    Ok(body.clone())
}

/// Halves the metrics until each half fits.
fn protobuf_bodies(payload: &ResolvedPayload, limit: usize) -> Result<Vec<Bytes>, EncodeError> {
    let mut bodies = Vec::new();
    let mut todo: Vec<&[Metric]> = vec![&payload.metrics];
    while let Some(metrics) = todo.pop() {
        let body = encode_resolved(payload.timestamp, payload.seq, payload.bdseq, metrics);
        if body.len() <= limit {
            bodies.push(Bytes::from(body));
        } else if metrics.len() < 2 {
            return Err(EncodeError::TooLarge {
                size: body.len(),
                limit,
            });
        } else {
            let (first, second) = metrics.split_at(metrics.len() / 2);
            todo.push(second);
            todo.push(first);
        }
    }
    Ok(bodies)
}

/// The body of a `gap` message that stands in the place of records `from..=to`.
#[must_use]
pub fn gap_body(from: u64, to: u64, count: u64, ms: Option<(u64, u64)>, cause: &str) -> Bytes {
    let mut out = Vec::with_capacity(128);
    json::gap(&mut out, from, to, count, ms, cause);
    Bytes::from(out)
}

#[cfg(test)]
mod tests;
