//! Records as a Parquet table and back.
//!
//! One row a metric, in log order; a record without metrics has one row. A record's own fields stand in its first
//! row (`part` 0), `record` in every row. Values have a column for each kind. What the columns cannot say
//! (DataSets, templates, properties, bytes that are no payload) is kept whole in `body`: reading back gives every
//! record exactly, byte by byte.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{Compression, ZstdLevel};
use parquet::column::reader::{ColumnReader, get_typed_column_reader};
use parquet::data_type::{
    BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int32Type, Int64Type,
};
use parquet::errors::ParquetError;
use parquet::file::properties::{WriterProperties, WriterPropertiesPtr};
use parquet::file::reader::RowGroupReader;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{ColumnPath, TypePtr};
use sparkplug::datatype::DataType as Kind;
use sparkplug::metric::Metric;
use sparkplug::payload::{ResolvedPayload, decode_resolved, encode_resolved};
use sparkplug::value::Value;

use crate::buffer::record::{Cause, Class, Key, NewRecord, Origin, Record};

/// A row group is closed at this many rows...
const GROUP_ROWS: usize = 64 << 10;
/// ...or this many bytes of bodies.
const GROUP_BYTES: usize = 8 << 20;

/// One column of a row group: a level for each row, a value for each that has one.
struct Column<T: DataType> {
    values: Vec<T::T>,
    levels: Vec<i16>,
    row: usize,
    value: usize,
}

impl<T: DataType> Default for Column<T> {
    fn default() -> Self {
        Self {
            values: Vec::new(),
            levels: Vec::new(),
            row: 0,
            value: 0,
        }
    }
}

impl<T: DataType> Column<T> {
    fn push(&mut self, value: Option<T::T>) {
        self.levels.push(i16::from(value.is_some()));
        self.values.extend(value);
    }

    fn write<W: std::io::Write + Send>(
        &mut self,
        group: &mut SerializedRowGroupWriter<'_, W>,
    ) -> Result<(), ParquetError> {
        let mut column = group
            .next_column()?
            .ok_or_else(|| ParquetError::General("a column too many".to_owned()))?;
        column
            .typed::<T>()
            .write_batch(&self.values, Some(&self.levels), None)?;
        column.close()?;
        self.values.clear();
        self.levels.clear();
        Ok(())
    }

    fn read(column: ColumnReader, rows: usize) -> Result<Self, ParquetError> {
        let mut reader = get_typed_column_reader::<T>(column);
        let mut read = Self::default();
        while read.levels.len() < rows {
            let left = rows - read.levels.len();
            let (records, ..) =
                reader.read_records(left, Some(&mut read.levels), None, &mut read.values)?;
            if records == 0 {
                return Err(ParquetError::EOF("a column ends early".to_owned()));
            }
        }
        Ok(read)
    }

    /// The value of the next row.
    fn next(&mut self) -> Option<T::T> {
        let there = self.levels.get(self.row).is_some_and(|level| *level > 0);
        self.row += 1;
        if !there {
            return None;
        }
        self.value += 1;
        self.values.get(self.value - 1).cloned()
    }
}

macro_rules! columns {
    ($($name:ident: $type:ident = $schema:literal;)*) => {
        const SCHEMA: &str = concat!("message sparkgate { ", $("optional ", $schema, "; ",)* "}");

        #[derive(Default)]
        struct Columns { $($name: Column<$type>,)* }

        impl Columns {
            fn write<W: std::io::Write + Send>(
                &mut self,
                group: &mut SerializedRowGroupWriter<'_, W>,
            ) -> Result<(), ParquetError> {
                $(self.$name.write(group)?;)*
                Ok(())
            }

            fn read(group: &dyn RowGroupReader) -> Result<Self, ParquetError> {
                let rows = usize::try_from(group.metadata().num_rows()).unwrap_or(0);
                let mut at = 0..;
                let mut column = || group.get_column_reader(at.next().unwrap_or(usize::MAX));
                Ok(Self { $($name: Column::read(column()?, rows)?,)* })
            }
        }
    };
}

columns! {
    record: Int64Type = "int64 record";
    prev: Int64Type = "int64 prev";
    part: Int32Type = "int32 part";
    class: ByteArrayType = "binary class (UTF8)";
    derived: BoolType = "boolean derived";
    group_id: ByteArrayType = "binary group_id (UTF8)";
    node: ByteArrayType = "binary node (UTF8)";
    device: ByteArrayType = "binary device (UTF8)";
    received_at: Int64Type = "int64 received_at (TIMESTAMP(MILLIS,true))";
    engine_ms: Int64Type = "int64 engine_ms";
    clock_trusted: BoolType = "boolean clock_trusted";
    seq: Int32Type = "int32 seq";
    bdseq: Int64Type = "int64 bdseq";
    schema: Int32Type = "int32 schema";
    cause_record: Int64Type = "int64 cause_record";
    cause_rule: Int64Type = "int64 cause_rule";
    cause_index: Int32Type = "int32 cause_index";
    traceparent: ByteArrayType = "binary traceparent (UTF8)";
    extra: ByteArrayType = "binary extra (UTF8)";
    sent_at: Int64Type = "int64 sent_at (TIMESTAMP(MILLIS,true))";
    metric: ByteArrayType = "binary metric (UTF8)";
    alias: Int64Type = "int64 alias";
    datatype: ByteArrayType = "binary type (UTF8)";
    timestamp: Int64Type = "int64 timestamp (TIMESTAMP(MILLIS,true))";
    quality: Int32Type = "int32 quality";
    historical: BoolType = "boolean historical";
    value_int: Int64Type = "int64 value_int";
    value_uint: Int64Type = "int64 value_uint (INTEGER(64,false))";
    value_double: DoubleType = "double value_double";
    value_bool: BoolType = "boolean value_bool";
    value_text: ByteArrayType = "binary value_text (UTF8)";
    value_time: Int64Type = "int64 value_time (TIMESTAMP(MILLIS,true))";
    value_bytes: ByteArrayType = "binary value_bytes";
    json: ByteArrayType = "binary json (UTF8)";
    body: ByteArrayType = "binary body";
}

fn schema() -> Result<TypePtr, ParquetError> {
    Ok(Arc::new(parse_message_type(SCHEMA)?))
}

fn properties() -> Result<WriterPropertiesPtr, ParquetError> {
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(1)?))
        .set_created_by("sparkgate".to_owned());
    for whole in ["body", "json", "value_bytes", "record", "prev", "engine_ms"] {
        properties = properties.set_column_dictionary_enabled(ColumnPath::from(whole), false);
    }
    Ok(Arc::new(properties.build()))
}

fn text(text: &str) -> ByteArray {
    ByteArray::from(text.as_bytes().to_vec())
}

/// Writes records, in order.
pub(crate) struct Writer<W: std::io::Write + Send> {
    file: SerializedFileWriter<W>,
    columns: Columns,
    rows: usize,
    bytes: usize,
    /// Rows written so far.
    pub(crate) total_rows: u64,
}

impl<W: std::io::Write + Send> Writer<W> {
    pub(crate) fn new(out: W) -> Result<Self, ParquetError> {
        Ok(Self {
            file: SerializedFileWriter::new(out, schema()?, properties()?)?,
            columns: Columns::default(),
            rows: 0,
            bytes: 0,
            total_rows: 0,
        })
    }

    pub(crate) fn put(&mut self, record: &Record) -> Result<(), ParquetError> {
        let payload = match record.class {
            Class::Data | Class::Birth => decode_resolved(&record.body).ok(),
            _ => None,
        };
        let metrics = payload.as_ref().map_or(&[][..], |payload| &payload.metrics);
        let sent_at = payload.as_ref().and_then(|payload| payload.timestamp);
        let rebuilt = payload.as_ref().is_some_and(|payload| {
            rebuild(
                record.seq,
                record.bdseq,
                sent_at,
                payload.metrics.iter().map(plain),
            ) == record.body
        });
        self.first(record, sent_at, rebuilt, metrics.first());
        for (part, metric) in (1..).zip(metrics.iter().skip(1)) {
            self.row(record, part, Some(metric));
            self.blank();
        }
        self.bytes += record.body.len();
        if self.rows >= GROUP_ROWS || self.bytes >= GROUP_BYTES {
            self.close_group()?;
        }
        Ok(())
    }

    /// The row that carries the record's own fields.
    fn first(
        &mut self,
        record: &Record,
        sent_at: Option<u64>,
        rebuilt: bool,
        metric: Option<&Metric>,
    ) {
        self.row(record, 0, metric);
        let columns = &mut self.columns;
        columns.prev.push(Some(record.prev as i64));
        columns.class.push(Some(text(record.class.as_str())));
        columns.derived.push(Some(record.origin == Origin::Derived));
        columns.engine_ms.push(Some(record.engine_ms as i64));
        columns.clock_trusted.push(Some(record.clock_trusted));
        columns.seq.push(record.seq.map(i32::from));
        columns.bdseq.push(record.bdseq.map(|bdseq| bdseq as i64));
        columns
            .schema
            .push(record.schema.map(|schema| schema as i32));
        columns
            .cause_record
            .push(record.cause.map(|cause| cause.record as i64));
        columns
            .cause_rule
            .push(record.cause.map(|cause| cause.rule as i64));
        columns
            .cause_index
            .push(record.cause.map(|cause| cause.index as i32));
        columns
            .traceparent
            .push(record.traceparent.as_deref().map(text));
        let extra = (!record.extra.is_empty())
            .then(|| serde_json::to_string(&record.extra).unwrap_or_default());
        columns.extra.push(extra.as_deref().map(text));
        columns.sent_at.push(sent_at.map(|ms| ms as i64));
        let json = match record.class {
            Class::Data | Class::Birth | Class::Embedding | Class::Raw => None,
            _ => std::str::from_utf8(&record.body).ok(),
        };
        columns.json.push(json.map(text));
        let whole = !rebuilt && json.is_none();
        columns
            .body
            .push(whole.then(|| ByteArray::from(record.body.to_vec())));
    }

    /// What every further row of a record leaves out.
    fn blank(&mut self) {
        let columns = &mut self.columns;
        for column in [
            &mut columns.prev,
            &mut columns.engine_ms,
            &mut columns.bdseq,
            &mut columns.cause_record,
            &mut columns.cause_rule,
            &mut columns.sent_at,
        ] {
            column.push(None);
        }
        for column in [
            &mut columns.seq,
            &mut columns.schema,
            &mut columns.cause_index,
        ] {
            column.push(None);
        }
        for column in [
            &mut columns.class,
            &mut columns.traceparent,
            &mut columns.extra,
            &mut columns.json,
            &mut columns.body,
        ] {
            column.push(None);
        }
        columns.derived.push(None);
        columns.clock_trusted.push(None);
    }

    /// What every row has: which record, whose, when, and a metric's fields.
    fn row(&mut self, record: &Record, part: i32, metric: Option<&Metric>) {
        let columns = &mut self.columns;
        columns.record.push(Some(record.id as i64));
        columns.part.push(Some(part));
        columns.group_id.push(record.key.group.as_deref().map(text));
        columns.node.push(record.key.node.as_deref().map(text));
        columns.device.push(record.key.device.as_deref().map(text));
        columns.received_at.push(Some(record.received_ms as i64));
        columns.metric.push(metric.map(|metric| text(&metric.name)));
        columns.alias.push(
            metric
                .and_then(|metric| metric.alias)
                .map(|alias| alias as i64),
        );
        columns
            .datatype
            .push(metric.map(|metric| text(metric.datatype.as_str())));
        columns.timestamp.push(
            metric
                .and_then(|metric| metric.timestamp)
                .map(|ms| ms as i64),
        );
        columns
            .quality
            .push(metric.and_then(|metric| metric.quality));
        columns
            .historical
            .push(metric.map(|metric| metric.historical));
        let value = metric.map(|metric| &metric.value);
        let (mut int, mut uint, mut double, mut boolean) = (None, None, None, None);
        let (mut string, mut time, mut bytes) = (None, None, None);
        match value {
            Some(Value::Int(v)) => int = Some(*v),
            Some(Value::UInt(v)) => uint = Some(*v as i64),
            Some(Value::Float(v)) => double = Some(f64::from(*v)),
            Some(Value::Double(v)) => double = Some(*v),
            Some(Value::Bool(v)) => boolean = Some(*v),
            Some(Value::String(v)) => string = Some(text(v)),
            Some(Value::DateTime(v)) => time = Some(*v as i64),
            Some(Value::Bytes(v)) => bytes = Some(ByteArray::from(v.to_vec())),
            Some(
                Value::Null
                | Value::DataSet(_)
                | Value::Template(_)
                | Value::Array(_)
                | Value::PropertySet(_)
                | Value::PropertySetList(_),
            )
            | None => {}
        }
        columns.value_int.push(int);
        columns.value_uint.push(uint);
        columns.value_double.push(double);
        columns.value_bool.push(boolean);
        columns.value_text.push(string);
        columns.value_time.push(time);
        columns.value_bytes.push(bytes);
        self.rows += 1;
        self.total_rows += 1;
    }

    fn close_group(&mut self) -> Result<(), ParquetError> {
        if self.rows > 0 {
            let mut group = self.file.next_row_group()?;
            self.columns.write(&mut group)?;
            group.close()?;
        }
        (self.rows, self.bytes) = (0, 0);
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Result<W, ParquetError> {
        self.close_group()?;
        self.file.into_inner()
    }
}

/// The metric as the columns keep it: what they can't keep shows as a difference.
fn plain(metric: &Metric) -> Metric {
    let mut plain = Metric::new(
        Arc::clone(&metric.name),
        metric.datatype,
        metric.value.clone(),
    );
    plain.alias = metric.alias;
    plain.timestamp = metric.timestamp;
    plain.historical = metric.historical;
    plain.quality = metric.quality;
    let kept = match metric.value {
        // Both lie in one column; the type tells them apart.
        // A signalling NaN would come back quiet: it goes whole.
        Value::Float(v) => metric.datatype == Kind::Float && !v.is_nan(),
        Value::Double(_) => metric.datatype != Kind::Float,
        Value::Null
        | Value::Int(_)
        | Value::UInt(_)
        | Value::Bool(_)
        | Value::String(_)
        | Value::DateTime(_)
        | Value::Bytes(_) => true,
        Value::DataSet(_)
        | Value::Template(_)
        | Value::Array(_)
        | Value::PropertySet(_)
        | Value::PropertySetList(_) => false,
    };
    if !kept {
        plain.value = Value::Null;
    }
    plain
}

fn rebuild(
    seq: Option<u8>,
    bdseq: Option<u64>,
    sent_at: Option<u64>,
    metrics: impl Iterator<Item = Metric>,
) -> Bytes {
    let payload = ResolvedPayload {
        timestamp: sent_at,
        seq,
        bdseq,
        metrics: metrics.collect(),
    };
    Bytes::from(encode_resolved(
        payload.timestamp,
        payload.seq,
        payload.bdseq,
        &payload.metrics,
    ))
}

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
    let class = class.as_deref().and_then(class_of).ok_or_else(damaged)?;
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

fn class_of(name: &str) -> Option<Class> {
    (1..=u8::MAX)
        .map_while(Class::from_u8)
        .find(|class| class.as_str() == name)
}
