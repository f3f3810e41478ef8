//! Records to rows.

use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::writer::SerializedFileWriter;
use sparkplug::metric::Metric;
use sparkplug::payload::decode_resolved;
use sparkplug::value::Value;

use super::{Columns, plain, properties, rebuild, schema};
use crate::buffer::record::{Class, Origin, Record};

/// A row group is closed at this many rows...
const GROUP_ROWS: usize = 64 << 10;
/// ...or this many bytes of bodies.
const GROUP_BYTES: usize = 8 << 20;

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
