//! Records as a Parquet table and back.
//!
//! One row a metric, in log order; a record without metrics has one row. A record's own fields stand in its first
//! row (`part` 0), `record` in every row. Values have a column for each kind. What the columns cannot say
//! (DataSets, templates, properties, bytes that are no payload) is kept whole in `body`: reading back gives every
//! record exactly, byte by byte.

mod read;
mod write;

use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{Compression, ZstdLevel};
use parquet::column::reader::{ColumnReader, get_typed_column_reader};
use parquet::data_type::{BoolType, ByteArrayType, DataType, DoubleType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::{WriterProperties, WriterPropertiesPtr};
use parquet::file::reader::RowGroupReader;
use parquet::file::writer::SerializedRowGroupWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{ColumnPath, TypePtr};
use sparkplug::datatype::DataType as Kind;
use sparkplug::metric::Metric;
use sparkplug::payload::encode_resolved;
use sparkplug::value::Value;

pub(crate) use read::read_group;
pub(crate) use write::Writer;

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

/// The payload that the columns alone give back.
fn rebuild(
    seq: Option<u8>,
    bdseq: Option<u64>,
    sent_at: Option<u64>,
    metrics: impl Iterator<Item = Metric>,
) -> Bytes {
    let metrics: Vec<Metric> = metrics.collect();
    Bytes::from(encode_resolved(sent_at, seq, bdseq, &metrics))
}
