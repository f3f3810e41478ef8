//! Rows to records.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::reader::RowGroupReader;
use sparkplug::datatype::DataType as Kind;
use sparkplug::metric::Metric;
use sparkplug::value::Value;

use super::{Columns, rebuild, schema};
use crate::buffer::record::{Cause, Class, Key, NewRecord, Origin, Record};

/// The records of a row group.
pub(crate) fn read_group(
    group: &dyn RowGroupReader,
) -> Result<VecDeque<Arc<Record>>, ParquetError> {
    let wanted = schema()?;
    let found = group.metadata().schema_descr();
    if found.root_schema().get_fields() != wanted.get_fields() {
        return Err(ParquetError::General(
            "the columns are others than this version writes".to_owned(),
        ));
    }
    let rows = usize::try_from(group.metadata().num_rows()).unwrap_or(0);
    let mut columns = Columns::read(group)?;
    let mut records = VecDeque::new();
    let mut open: Option<Open> = None;
    for _ in 0..rows {
        let (part, metric) = read_row(&mut columns)?;
        if let Some(part) = part
            && let Some(done) = open.replace(part)
        {
            records.push_back(Arc::new(done.close()));
        }
        if let (Some(open), Some(metric)) = (&mut open, metric) {
            open.metrics.push(metric);
        }
    }
    records.extend(open.map(|open| Arc::new(open.close())));
    Ok(records)
}

/// A record whose metrics are being read.
struct Open {
    record: Record,
    whole: bool,
    sent_at: Option<u64>,
    metrics: Vec<Metric>,
}

impl Open {
    fn close(mut self) -> Record {
        if !self.whole {
            let (seq, bdseq) = (self.record.data.seq, self.record.data.bdseq);
            self.record.data.body = rebuild(seq, bdseq, self.sent_at, self.metrics.into_iter());
        }
        self.record
    }
}

fn damaged() -> ParquetError {
    ParquetError::General("a row lacks a field, or holds an impossible one".to_owned())
}

fn string(bytes: Option<ByteArray>) -> Result<Option<Arc<str>>, ParquetError> {
    match bytes {
        Some(bytes) => Ok(Some(Arc::from(bytes.as_utf8()?))),
        None => Ok(None),
    }
}

/// A row: a new record, where one starts, and a metric, where there is one.
fn read_row(columns: &mut Columns) -> Result<(Option<Open>, Option<Metric>), ParquetError> {
    let id = columns.record.next().ok_or_else(damaged)? as u64;
    let part = columns.part.next().ok_or_else(damaged)?;
    let key = Key {
        group: string(columns.group_id.next())?,
        node: string(columns.node.next())?,
        device: string(columns.device.next())?,
    };
    let received_ms = columns.received_at.next().ok_or_else(damaged)? as u64;
    let metric = read_metric(columns)?;
    let prev = columns.prev.next();
    let class = string(columns.class.next())?;
    let derived = columns.derived.next();
    let engine_ms = columns.engine_ms.next();
    let clock_trusted = columns.clock_trusted.next();
    let seq = columns.seq.next();
    let bdseq = columns.bdseq.next();
    let schema = columns.schema.next();
    let cause = (
        columns.cause_record.next(),
        columns.cause_rule.next(),
        columns.cause_index.next(),
    );
    let traceparent = string(columns.traceparent.next())?;
    let extra = string(columns.extra.next())?;
    let sent_at = columns.sent_at.next().map(|ms| ms as u64);
    let json = columns.json.next();
    let body = columns.body.next();
    if part != 0 {
        return Ok((None, metric));
    }
    let class = class
        .as_deref()
        .and_then(Class::from_name)
        .ok_or_else(damaged)?;
    let whole = body
        .or(json)
        .map(|body| Bytes::copy_from_slice(body.data()));
    let extra = extra.map(|extra| serde_json::from_str(&extra)).transpose();
    let record = Record {
        id,
        prev: prev.ok_or_else(damaged)? as u64,
        data: NewRecord {
            class,
            origin: if derived == Some(true) {
                Origin::Derived
            } else {
                Origin::Received
            },
            engine_ms: engine_ms.ok_or_else(damaged)? as u64,
            received_ms,
            clock_trusted: clock_trusted == Some(true),
            key,
            seq: seq.and_then(|seq| u8::try_from(seq).ok()),
            bdseq: bdseq.map(|bdseq| bdseq as u64),
            schema: schema.map(|schema| schema as u32),
            cause: match cause {
                (Some(record), Some(rule), Some(index)) => Some(Cause {
                    record: record as u64,
                    rule: rule as u64,
                    index: index as u32,
                }),
                _ => None,
            },
            traceparent: traceparent.map(|text| Box::from(&*text)),
            body: whole.clone().unwrap_or_default(),
            extra: extra
                .map_err(|error| ParquetError::External(Box::new(error)))?
                .unwrap_or_default(),
        },
    };
    let open = Open {
        record,
        whole: whole.is_some(),
        sent_at,
        metrics: Vec::new(),
    };
    Ok((Some(open), metric))
}

fn read_metric(columns: &mut Columns) -> Result<Option<Metric>, ParquetError> {
    let name = string(columns.metric.next())?;
    let alias = columns.alias.next();
    let datatype = string(columns.datatype.next())?;
    let timestamp = columns.timestamp.next();
    let quality = columns.quality.next();
    let historical = columns.historical.next();
    let int = columns.value_int.next();
    let uint = columns.value_uint.next();
    let double = columns.value_double.next();
    let boolean = columns.value_bool.next();
    let string = string(columns.value_text.next())?;
    let time = columns.value_time.next();
    let bytes = columns.value_bytes.next();
    let Some(name) = name else { return Ok(None) };
    let datatype = datatype
        .and_then(|name| Kind::from_name(&name))
        .ok_or_else(damaged)?;
    let value = if let Some(v) = int {
        Value::Int(v)
    } else if let Some(v) = uint {
        Value::UInt(v as u64)
    } else if let Some(v) = double {
        if datatype == Kind::Float {
            Value::Float(v as f32)
        } else {
            Value::Double(v)
        }
    } else if let Some(v) = boolean {
        Value::Bool(v)
    } else if let Some(v) = string {
        Value::String(v)
    } else if let Some(v) = time {
        Value::DateTime(v as u64)
    } else if let Some(v) = bytes {
        Value::Bytes(Bytes::copy_from_slice(v.data()))
    } else {
        Value::Null
    };
    let mut metric = Metric::new(name, datatype, value);
    metric.alias = alias.map(|alias| alias as u64);
    metric.timestamp = timestamp.map(|ms| ms as u64);
    metric.quality = quality;
    metric.historical = historical == Some(true);
    Ok(Some(metric))
}
