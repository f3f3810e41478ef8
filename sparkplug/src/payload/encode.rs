//! Writing payloads: explicit zeros, two's complement in the unsigned fields, little-endian arrays.

use super::raw::MARK;
use crate::dataset::DataSet;
use crate::datatype::DataType;
use crate::metric::{MetaData, Metric, TimeSource};
use crate::property::{Property, PropertySet, QUALITY};
use crate::template::Template;
use crate::value::Value;
use crate::wire::{put_bool, put_bytes, put_f32, put_f64, put_message, put_u64};

/// What each metric of a payload carries besides its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Name, alias if any, datatype: births.
    // tck-id-payloads-alias-birth-requirement, tck-id-payloads-metric-datatype-req
    Full,
    /// The alias if there is one, else the name; no datatype: data.
    // tck-id-payloads-alias-data-cmd-requirement, tck-id-payloads-metric-datatype-not-req
    Data,
    /// The alias if there is one, else the name; and the datatype, which command receivers may want.
    Command,
    /// As `Full`, and the journal's remarks with it.
    Journal,
}

/// Writes a payload. Without `seq` the field is absent, as NDEATH and commands need it; `Some(0)` is written.
// tck-id-payloads-sequence-num-always-included, tck-id-payloads-ncmd-seq, tck-id-payloads-dcmd-seq
#[must_use]
pub fn encode(timestamp: Option<u64>, seq: Option<u8>, metrics: &[Metric], form: Form) -> Vec<u8> {
    let mut out = Vec::with_capacity(24 + 40 * metrics.len());
    put_payload(&mut out, timestamp, seq, metrics, form);
    out
}

pub(super) fn put_payload(
    out: &mut Vec<u8>,
    timestamp: Option<u64>,
    seq: Option<u8>,
    metrics: &[Metric],
    form: Form,
) {
    if let Some(timestamp) = timestamp {
        put_u64(out, 1, timestamp);
    }
    for metric in metrics {
        put_message(out, 2, |out| put_metric(out, metric, form));
    }
    if let Some(seq) = seq {
        put_u64(out, 3, u64::from(seq));
    }
}

fn put_metric(out: &mut Vec<u8>, metric: &Metric, form: Form) {
    let by_alias = matches!(form, Form::Data | Form::Command) && metric.alias.is_some();
    if !by_alias {
        put_bytes(out, 1, metric.name.as_bytes());
    }
    if let Some(alias) = metric.alias {
        put_u64(out, 2, alias);
    }
    if let Some(timestamp) = metric.timestamp {
        put_u64(out, 3, timestamp);
    }
    if form != Form::Data {
        put_u64(out, 4, u64::from(metric.datatype.code()));
    }
    if metric.historical {
        put_bool(out, 5, true);
    }
    if metric.transient {
        put_bool(out, 6, true);
    }
    if let Some(metadata) = &metric.metadata {
        put_message(out, 8, |out| put_metadata(out, metadata));
    }
    put_properties(out, metric);
    put_metric_value(out, metric, form);
    if form == Form::Journal {
        let source = match metric.time_source {
            TimeSource::Metric => 0,
            TimeSource::Payload => 1,
            TimeSource::Arrival => 2,
        };
        let mark = u64::from(metric.flags.bits()) << 2 | source;
        if mark != 0 {
            put_u64(out, MARK, mark);
        }
    }
}

fn put_properties(out: &mut Vec<u8>, metric: &Metric) {
    match (&metric.properties, metric.quality) {
        (Some(set), _) => put_message(out, 9, |out| put_property_set(out, set)),
        (None, Some(quality)) => {
            // tck-id-payloads-propertyset-quality-value-type
            let set = PropertySet {
                entries: vec![Property {
                    key: QUALITY.into(),
                    datatype: DataType::Int32,
                    value: Value::Int(i64::from(quality)),
                }],
            };
            put_message(out, 9, |out| put_property_set(out, &set));
        }
        (None, None) => {}
    }
}

fn put_metric_value(out: &mut Vec<u8>, metric: &Metric, form: Form) {
    match &metric.value {
        Value::Bytes(bytes) => put_bytes(out, 16, bytes),
        // A string with a zero byte cannot be in an array: such an array is null, not cut short.
        Value::Array(array) => match array.encode() {
            Ok(bytes) => put_bytes(out, 16, &bytes),
            Err(_) => put_bool(out, 7, true),
        },
        Value::DataSet(set) => put_message(out, 17, |out| put_dataset(out, set)),
        Value::Template(template) => put_message(out, 18, |out| put_template(out, template, form)),
        Value::PropertySet(_) | Value::PropertySetList(_) | Value::Null => put_bool(out, 7, true),
        basic => put_basic(out, 10, metric.datatype, basic),
    }
}

/// One of the six basic value fields, counted from `first`.
fn put_basic(out: &mut Vec<u8>, first: u32, datatype: DataType, value: &Value) {
    match value {
        Value::Int(v) => put_integer(out, first, datatype, v.cast_unsigned()),
        Value::UInt(v) | Value::DateTime(v) => put_integer(out, first, datatype, *v),
        Value::Float(v) => put_f32(out, first + 2, *v),
        Value::Double(v) => put_f64(out, first + 3, *v),
        Value::Bool(v) => put_bool(out, first + 4, *v),
        Value::String(v) => put_bytes(out, first + 5, v.as_bytes()),
        _ => {}
    }
}

fn put_integer(out: &mut Vec<u8>, first: u32, datatype: DataType, v: u64) {
    match datatype {
        // Sign-extended to 32 bits, as the reference implementation sends them: five bytes, not ten.
        DataType::Int8
        | DataType::Int16
        | DataType::Int32
        | DataType::UInt8
        | DataType::UInt16
        | DataType::UInt32 => put_u64(out, first, v & u64::from(u32::MAX)),
        _ => put_u64(out, first + 1, v),
    }
}

fn put_metadata(out: &mut Vec<u8>, metadata: &MetaData) {
    if let Some(v) = metadata.is_multi_part {
        put_bool(out, 1, v);
    }
    for (field, text) in [
        (2, &metadata.content_type),
        (5, &metadata.file_name),
        (6, &metadata.file_type),
        (7, &metadata.md5),
        (8, &metadata.description),
    ] {
        if let Some(text) = text {
            put_bytes(out, field, text.as_bytes());
        }
    }
    if let Some(v) = metadata.size {
        put_u64(out, 3, v);
    }
    if let Some(v) = metadata.seq {
        put_u64(out, 4, v);
    }
}

fn put_property_set(out: &mut Vec<u8>, set: &PropertySet) {
    for property in &set.entries {
        put_bytes(out, 1, property.key.as_bytes());
    }
    for property in &set.entries {
        put_message(out, 2, |out| put_property(out, property));
    }
}

fn put_property(out: &mut Vec<u8>, property: &Property) {
    // tck-id-payloads-metric-propertyvalue-type-req
    put_u64(out, 1, u64::from(property.datatype.code()));
    match &property.value {
        Value::PropertySet(set) => put_message(out, 9, |out| put_property_set(out, set)),
        Value::PropertySetList(list) => put_message(out, 10, |out| {
            for set in list.iter() {
                put_message(out, 1, |out| put_property_set(out, set));
            }
        }),
        Value::Null => put_bool(out, 2, true),
        basic => put_basic(out, 3, property.datatype, basic),
    }
}

fn put_dataset(out: &mut Vec<u8>, set: &DataSet) {
    // tck-id-payloads-dataset-column-size
    put_u64(out, 1, set.columns.len() as u64);
    for column in &set.columns {
        put_bytes(out, 2, column.as_bytes());
    }
    for datatype in &set.types {
        put_u64(out, 3, u64::from(datatype.code()));
    }
    for row in &set.rows {
        put_message(out, 4, |out| {
            for (cell, datatype) in row.iter().zip(&set.types) {
                put_message(out, 1, |out| put_basic(out, 1, *datatype, cell));
            }
        });
    }
}

fn put_template(out: &mut Vec<u8>, template: &Template, form: Form) {
    if let Some(version) = &template.version {
        put_bytes(out, 1, version.as_bytes());
    }
    // Members have names of their own, not aliases of the node: they are always named and typed.
    let form = if form == Form::Journal {
        Form::Journal
    } else {
        Form::Full
    };
    for metric in &template.metrics {
        put_message(out, 2, |out| put_metric(out, metric, form));
    }
    for parameter in &template.parameters {
        put_message(out, 3, |out| {
            put_bytes(out, 1, parameter.name.as_bytes());
            put_u64(out, 2, u64::from(parameter.datatype.code()));
            put_basic(out, 3, parameter.datatype, &parameter.value);
        });
    }
    // tck-id-payloads-template-definition-ref: absent in a definition, not empty
    if let Some(reference) = &template.template_ref {
        put_bytes(out, 4, reference.as_bytes());
    }
    // tck-id-payloads-template-is-definition: present even when false
    put_bool(out, 5, template.is_definition);
}
