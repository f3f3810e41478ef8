//! Records as bytes: the payload of one frame.
//!
//! ```text
//! payload := varint(engine base) varint(received base) record*
//! record  := class:u8 flags:u8 varint(id - id before) varint(id - prev)
//!            zigzag(engine - engine before) zigzag(received - received before)
//!            key [seq:u8] [varint(bdseq)] [varint(schema)] [cause] [traceparent] [extra] varint(len) body
//! key     := varint(0) name name name      a key not seen in this frame; it gets the next number
//!          | varint(n + 1)                 the n-th key of this frame
//! name    := varint(0) | varint(len + 1) bytes
//! cause   := varint(id - record) rule:u64le varint(index)
//! ```
//!
//! *Invariant*: decoding never panics and never allocates more than the bytes at hand justify.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::buffer::record::{Cause, Class, Key, NewRecord, Origin, Record, RecordId};

const DERIVED: u8 = 1;
const TRUSTED: u8 = 1 << 1;
const SEQ: u8 = 1 << 2;
const BDSEQ: u8 = 1 << 3;
const SCHEMA: u8 = 1 << 4;
const CAUSE: u8 = 1 << 5;
const TRACE: u8 = 1 << 6;
const EXTRA: u8 = 1 << 7;

/// Why a payload that passed its checksum is not a list of records: written by a newer version, or by a
/// program with a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The payload ends inside a record.
    #[error("the payload ends inside a record")]
    Short,
    /// A class code that this version does not know.
    #[error("unknown record class {0}")]
    Class(u8),
    /// A number does not fit its field.
    #[error("a number does not fit its field")]
    Range,
    /// A name is not UTF-8.
    #[error("a name is not UTF-8")]
    Utf8,
    /// Bytes follow the last record.
    #[error("{0} bytes follow the last record")]
    Trailing(usize),
}

/// Appends `value` as LEB128.
fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value as u8) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Differences are taken modulo 2^64, so that every pair of u64 has one.
fn put_delta(out: &mut Vec<u8>, value: u64, before: u64) {
    let delta = value.wrapping_sub(before) as i64;
    put_varint(out, ((delta << 1) ^ (delta >> 63)) as u64);
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_varint(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

fn put_name(out: &mut Vec<u8>, name: Option<&str>) {
    match name {
        None => out.push(0),
        Some(name) => {
            put_varint(out, name.len() as u64 + 1);
            out.extend_from_slice(name.as_bytes());
        }
    }
}

/// Encodes the records of one frame, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Encoder<'a> {
    keys: HashMap<&'a Key, u64>,
    before: Option<(RecordId, u64, u64)>,
}

impl<'a> Encoder<'a> {
    /// Appends `record` to the payload in `out`. Ids must rise.
    pub(crate) fn put(&mut self, out: &mut Vec<u8>, record: &'a Record) {
        let data = &record.data;
        let (id, engine, received) = self.before.unwrap_or_else(|| {
            put_varint(out, data.engine_ms);
            put_varint(out, data.received_ms);
            (record.id, data.engine_ms, data.received_ms)
        });
        self.before = Some((record.id, data.engine_ms, data.received_ms));
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        out.push(data.class as u8);
        out.push(
            flag(data.origin == Origin::Derived, DERIVED)
                | flag(data.clock_trusted, TRUSTED)
                | flag(data.seq.is_some(), SEQ)
                | flag(data.bdseq.is_some(), BDSEQ)
                | flag(data.schema.is_some(), SCHEMA)
                | flag(data.cause.is_some(), CAUSE)
                | flag(data.traceparent.is_some(), TRACE)
                | flag(!data.extra.is_empty(), EXTRA),
        );
        put_varint(out, record.id.wrapping_sub(id));
        put_varint(out, record.id.wrapping_sub(record.prev));
        put_delta(out, data.engine_ms, engine);
        put_delta(out, data.received_ms, received);
        let next = self.keys.len() as u64 + 1;
        match self.keys.get(&data.key) {
            Some(number) => put_varint(out, *number),
            None => {
                self.keys.insert(&data.key, next);
                out.push(0);
                put_name(out, data.key.group.as_deref());
                put_name(out, data.key.node.as_deref());
                put_name(out, data.key.device.as_deref());
            }
        }
        if let Some(seq) = data.seq {
            out.push(seq);
        }
        if let Some(bdseq) = data.bdseq {
            put_varint(out, bdseq);
        }
        if let Some(schema) = data.schema {
            put_varint(out, u64::from(schema));
        }
        if let Some(cause) = data.cause {
            put_delta(out, record.id, cause.record);
            out.extend_from_slice(&cause.rule.to_le_bytes());
            put_varint(out, u64::from(cause.index));
        }
        if let Some(traceparent) = &data.traceparent {
            put_text(out, traceparent);
        }
        if !data.extra.is_empty() {
            put_varint(out, data.extra.len() as u64);
            for (name, value) in &data.extra {
                put_text(out, name);
                put_text(out, value);
            }
        }
        put_varint(out, data.body.len() as u64);
        out.extend_from_slice(&data.body);
    }
}

/// A cursor over a payload; bodies are slices of it, not copies.
struct Decoder<'a> {
    whole: &'a Bytes,
    at: usize,
}

impl Decoder<'_> {
    fn take(&mut self, len: usize) -> Result<Bytes, DecodeError> {
        let end = self.at.checked_add(len).ok_or(DecodeError::Short)?;
        if end > self.whole.len() {
            return Err(DecodeError::Short);
        }
        let slice = self.whole.slice(self.at..end);
        self.at = end;
        Ok(slice)
    }

    fn byte(&mut self) -> Result<u8, DecodeError> {
        let byte = *self.whole.get(self.at).ok_or(DecodeError::Short)?;
        self.at += 1;
        Ok(byte)
    }

    fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(DecodeError::Range);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError::Range)
    }

    fn delta(&mut self, before: u64) -> Result<u64, DecodeError> {
        let raw = self.varint()?;
        let delta = (raw >> 1) ^ (raw & 1).wrapping_neg();
        Ok(before.wrapping_add(delta))
    }

    fn len(&mut self) -> Result<usize, DecodeError> {
        usize::try_from(self.varint()?).map_err(|_| DecodeError::Range)
    }

    fn text(&mut self) -> Result<Box<str>, DecodeError> {
        let len = self.len()?;
        let bytes = self.take(len)?;
        std::str::from_utf8(&bytes)
            .map(Box::from)
            .map_err(|_| DecodeError::Utf8)
    }

    fn name(&mut self) -> Result<Option<Arc<str>>, DecodeError> {
        let Some(len) = self.len()?.checked_sub(1) else {
            return Ok(None);
        };
        let bytes = self.take(len)?;
        let name = std::str::from_utf8(&bytes).map_err(|_| DecodeError::Utf8)?;
        Ok(Some(Arc::from(name)))
    }

    fn u64le(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0;
        for shift in (0..64).step_by(8) {
            value |= u64::from(self.byte()?) << shift;
        }
        Ok(value)
    }

    fn record(
        &mut self,
        before: (RecordId, u64, u64),
        keys: &mut Vec<Key>,
    ) -> Result<Record, DecodeError> {
        let class = self.byte()?;
        let class = Class::from_u8(class).ok_or(DecodeError::Class(class))?;
        let flags = self.byte()?;
        let id = before
            .0
            .checked_add(self.varint()?)
            .ok_or(DecodeError::Range)?;
        let prev = id.checked_sub(self.varint()?).ok_or(DecodeError::Range)?;
        let engine_ms = self.delta(before.1)?;
        let received_ms = self.delta(before.2)?;
        let key = match self.len()?.checked_sub(1) {
            Some(number) => keys.get(number).cloned().ok_or(DecodeError::Range)?,
            None => {
                let key = Key {
                    group: self.name()?,
                    node: self.name()?,
                    device: self.name()?,
                };
                keys.push(key.clone());
                key
            }
        };
        let has = |bit: u8| flags & bit != 0;
        let seq = if has(SEQ) { Some(self.byte()?) } else { None };
        let bdseq = if has(BDSEQ) {
            Some(self.varint()?)
        } else {
            None
        };
        let schema = match has(SCHEMA) {
            true => Some(u32::try_from(self.varint()?).map_err(|_| DecodeError::Range)?),
            false => None,
        };
        let cause = match has(CAUSE) {
            true => {
                // Written as id - record, so read as id minus the difference.
                let raw = self.varint()?;
                let delta = (raw >> 1) ^ (raw & 1).wrapping_neg();
                Some(Cause {
                    record: id.wrapping_sub(delta),
                    rule: self.u64le()?,
                    index: u32::try_from(self.varint()?).map_err(|_| DecodeError::Range)?,
                })
            }
            false => None,
        };
        let traceparent = if has(TRACE) { Some(self.text()?) } else { None };
        let mut extra = Vec::new();
        if has(EXTRA) {
            for _ in 0..self.len()? {
                extra.push((self.text()?, self.text()?));
            }
        }
        let len = self.len()?;
        let body = self.take(len)?;
        let origin = if has(DERIVED) {
            Origin::Derived
        } else {
            Origin::Received
        };
        let clock_trusted = has(TRUSTED);
        let data = NewRecord {
            class,
            origin,
            engine_ms,
            received_ms,
            clock_trusted,
            key,
            seq,
            bdseq,
            schema,
            cause,
            traceparent,
            body,
            extra,
        };
        Ok(Record { id, prev, data })
    }
}

/// The `count` records of a payload whose first has id `first`.
///
/// # Errors
/// The payload is not what [`Encoder`] writes.
pub(crate) fn decode(
    payload: &Bytes,
    first: RecordId,
    count: u32,
) -> Result<Vec<Arc<Record>>, DecodeError> {
    // A record takes at least eight bytes: a false count can't make us reserve more than the payload.
    let most = (count as usize).min(payload.len() / 8 + 1);
    let mut records = Vec::with_capacity(most);
    decode_each(payload, first, count, &mut |record| {
        records.push(Arc::new(record));
    })?;
    Ok(records)
}

/// The same, one by one: who wants few of them pays for few.
///
/// # Errors
/// The payload is not what [`Encoder`] writes; the records before the fault were handed out.
pub(crate) fn decode_each(
    payload: &Bytes,
    first: RecordId,
    count: u32,
    take: &mut dyn FnMut(Record),
) -> Result<(), DecodeError> {
    let mut decoder = Decoder {
        whole: payload,
        at: 0,
    };
    let mut before = (first, decoder.varint()?, decoder.varint()?);
    let mut keys = Vec::new();
    for _ in 0..count {
        let record = decoder.record(before, &mut keys)?;
        before = (record.id, record.data.engine_ms, record.data.received_ms);
        take(record);
    }
    match payload.len() - decoder.at {
        0 => Ok(()),
        rest => Err(DecodeError::Trailing(rest)),
    }
}

/// What a record costs in memory, in bytes, for the caps of the hot tier and of the unwritten queue.
pub(crate) fn weight(record: &NewRecord) -> u64 {
    let extra: usize = record
        .extra
        .iter()
        .map(|(name, value)| name.len() + value.len() + 32)
        .sum();
    let trace = record.traceparent.as_ref().map_or(0, |text| text.len());
    (std::mem::size_of::<Record>() + record.body.len() + extra + trace + 64) as u64
}
