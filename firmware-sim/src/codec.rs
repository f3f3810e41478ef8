//! Payloads by `sparkplug-rs`.

use sparkplug_rs::protobuf::Message as _;
use sparkplug_rs::{DataType, Payload, payload};

/// A value of a simulated metric.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Double.
    Double(f64),
    /// Boolean.
    Bool(bool),
    /// String.
    Text(String),
    /// Int64.
    Int(i64),
    /// Int32: properties and members only.
    Int32(i32),
    /// DataSet.
    DataSet(DataSet),
    /// Template definition or instance.
    Template(Template),
}

/// A table; the types of its columns are those of the first row.
#[derive(Debug, Clone, PartialEq)]
pub struct DataSet {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Rows of as many cells.
    pub rows: Vec<Vec<Value>>,
}

/// A template.
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    /// The definition that an instance is of; a definition has none.
    pub of: Option<String>,
    /// Members.
    pub members: Vec<(String, Value)>,
    /// Parameters.
    pub parameters: Vec<(String, Value)>,
}

impl Value {
    fn datatype(&self) -> DataType {
        match self {
            Self::Double(_) => DataType::Double,
            Self::Bool(_) => DataType::Boolean,
            Self::Text(_) => DataType::String,
            Self::Int(_) => DataType::Int64,
            Self::Int32(_) => DataType::Int32,
            Self::DataSet(_) => DataType::DataSet,
            Self::Template(_) => DataType::Template,
        }
    }
}

/// One metric of a payload.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample<'a> {
    /// Name; births always carry it, data when there is no alias.
    pub name: &'a str,
    /// Alias.
    pub alias: Option<u64>,
    /// Value.
    pub value: Value,
    /// Capture time, ms UTC.
    pub timestamp: u64,
    /// Engineering unit: a property of births, with the quality beside it.
    pub unit: Option<&'a str>,
}

/// What a payload is for: births name and type everything, data goes by alias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Name, alias and datatype.
    Birth,
    /// Alias alone where there is one.
    Data,
    /// As data, each metric marked with `is_historical`: it tells of the past and not of what is now.
    Historical,
}

/// Encodes a payload. `seq` is left out of NDEATH.
#[must_use]
pub fn encode(timestamp: u64, seq: Option<u8>, samples: &[Sample<'_>], form: Form) -> Vec<u8> {
    let mut payload = Payload::new();
    payload.set_timestamp(timestamp);
    if let Some(seq) = seq {
        payload.set_seq(u64::from(seq));
    }
    payload.metrics = samples.iter().map(|sample| metric(sample, form)).collect();
    // Encoding into memory fails only for missing required fields, and proto2 payloads of this schema have none.
    payload.write_to_bytes().unwrap_or_default()
}

fn metric(sample: &Sample<'_>, form: Form) -> payload::Metric {
    let mut metric = payload::Metric::new();
    metric.set_timestamp(sample.timestamp);
    if form == Form::Birth || sample.alias.is_none() {
        metric.set_name(sample.name.to_owned());
        metric.set_datatype(sample.value.datatype() as u32);
    }
    if let Some(alias) = sample.alias {
        metric.set_alias(alias);
    }
    if form == Form::Historical {
        metric.set_is_historical(true);
    }
    if let (Form::Birth, Some(unit)) = (form, sample.unit) {
        metric.properties = Some(properties(unit)).into();
    }
    set(&mut metric, &sample.value);
    metric
}

#[expect(
    clippy::cast_sign_loss,
    reason = "Sparkplug puts signed integers into unsigned fields, two's complement"
)]
fn set(metric: &mut payload::Metric, value: &Value) {
    match value {
        Value::Double(v) => metric.set_double_value(*v),
        Value::Bool(v) => metric.set_boolean_value(*v),
        Value::Text(v) => metric.set_string_value(v.clone()),
        Value::Int(v) => metric.set_long_value(*v as u64),
        Value::Int32(v) => metric.set_int_value(*v as u32),
        Value::DataSet(v) => metric.set_dataset_value(dataset(v)),
        Value::Template(v) => metric.set_template_value(template(v)),
    }
}

fn properties(unit: &str) -> payload::PropertySet {
    let (mut quality, mut text) = (payload::PropertyValue::new(), payload::PropertyValue::new());
    quality.set_type(DataType::Int32 as u32);
    quality.set_int_value(192);
    text.set_type(DataType::String as u32);
    text.set_string_value(unit.to_owned());
    let mut set = payload::PropertySet::new();
    set.keys = vec!["Quality".to_owned(), "engUnit".to_owned()];
    set.values = vec![quality, text];
    set
}

#[expect(
    clippy::cast_sign_loss,
    reason = "Sparkplug puts signed integers into unsigned fields, two's complement"
)]
fn dataset(table: &DataSet) -> payload::DataSet {
    let mut out = payload::DataSet::new();
    out.set_num_of_columns(table.columns.len() as u64);
    out.columns.clone_from(&table.columns);
    out.types = table
        .rows
        .first()
        .map(|row| row.iter().map(|cell| cell.datatype() as u32).collect())
        .unwrap_or_default();
    out.rows = table
        .rows
        .iter()
        .map(|row| {
            let mut line = payload::data_set::Row::new();
            line.elements = row
                .iter()
                .map(|value| {
                    let mut cell = payload::data_set::DataSetValue::new();
                    match value {
                        Value::Double(v) => cell.set_double_value(*v),
                        Value::Bool(v) => cell.set_boolean_value(*v),
                        Value::Text(v) => cell.set_string_value(v.clone()),
                        Value::Int(v) => cell.set_long_value(*v as u64),
                        Value::Int32(v) => cell.set_int_value(*v as u32),
                        // A cell without a value is null; nested tables do not exist.
                        Value::DataSet(_) | Value::Template(_) => {}
                    }
                    cell
                })
                .collect();
            line
        })
        .collect();
    out
}

#[expect(
    clippy::cast_sign_loss,
    reason = "Sparkplug puts signed integers into unsigned fields, two's complement"
)]
fn template(of: &Template) -> payload::Template {
    let mut out = payload::Template::new();
    out.set_version("1.0".to_owned());
    // tck-id-payloads-template-is-definition: always there; the reference is absent in a definition, not empty
    out.set_is_definition(of.of.is_none());
    out.template_ref.clone_from(&of.of);
    out.metrics = of
        .members
        .iter()
        .map(|(name, value)| {
            let mut member = payload::Metric::new();
            member.set_name(name.clone());
            member.set_datatype(value.datatype() as u32);
            set(&mut member, value);
            member
        })
        .collect();
    out.parameters = of
        .parameters
        .iter()
        .map(|(name, value)| {
            let mut parameter = payload::template::Parameter::new();
            parameter.set_name(name.clone());
            parameter.set_type(value.datatype() as u32);
            match value {
                Value::Double(v) => parameter.set_double_value(*v),
                Value::Bool(v) => parameter.set_boolean_value(*v),
                Value::Text(v) => parameter.set_string_value(v.clone()),
                Value::Int(v) => parameter.set_long_value(*v as u64),
                Value::Int32(v) => parameter.set_int_value(*v as u32),
                Value::DataSet(_) | Value::Template(_) => {}
            }
            parameter
        })
        .collect();
    out
}

/// What an encoder with proto3 code makes of a payload: whatever is zero, false or empty is not on the wire (trap 16).
#[must_use]
pub fn without_zeros(bytes: &[u8]) -> Vec<u8> {
    let Ok(mut payload) = Payload::parse_from_bytes(bytes) else {
        return bytes.to_vec();
    };
    if payload.seq == Some(0) {
        payload.seq = None;
    }
    for metric in &mut payload.metrics {
        let zero = (metric.has_boolean_value() && !metric.boolean_value())
            || (metric.has_double_value() && metric.double_value() == 0.0)
            || (metric.has_long_value() && metric.long_value() == 0)
            || (metric.has_int_value() && metric.int_value() == 0)
            || (metric.has_string_value() && metric.string_value().is_empty());
        if zero {
            metric.value = None;
        }
    }
    payload.write_to_bytes().unwrap_or_default()
}

/// How a `bdSeq` is written (trap 8).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BdseqType {
    /// As the norm has it.
    #[default]
    Int64,
    /// As its own example has it.
    UInt64,
    /// As some devices have it.
    UInt8,
    /// Not typed at all.
    Untyped,
    /// Not there.
    Absent,
}

/// The payload with its `bdSeq` metric written otherwise.
#[must_use]
pub fn with_bdseq(bytes: &[u8], kind: BdseqType) -> Vec<u8> {
    let Ok(mut payload) = Payload::parse_from_bytes(bytes) else {
        return bytes.to_vec();
    };
    if kind == BdseqType::Absent {
        payload.metrics.retain(|metric| metric.name() != "bdSeq");
    }
    for metric in payload.metrics.iter_mut().filter(|it| it.name() == "bdSeq") {
        match kind {
            BdseqType::Int64 | BdseqType::Absent => {}
            BdseqType::UInt64 => metric.set_datatype(DataType::UInt64 as u32),
            BdseqType::UInt8 => {
                metric.set_datatype(DataType::UInt8 as u32);
                let low = u32::try_from(metric.long_value() & 0xFF).unwrap_or_default();
                metric.set_int_value(low);
            }
            BdseqType::Untyped => metric.datatype = None,
        }
    }
    payload.write_to_bytes().unwrap_or_default()
}

/// One metric of a command.
#[derive(Debug, Clone, PartialEq)]
pub struct Command {
    /// Name, when sent.
    pub name: Option<String>,
    /// Alias, when sent.
    pub alias: Option<u64>,
    /// Value, when it is of a kind that a simulated metric has.
    pub value: Option<Value>,
}

/// Decodes NCMD and DCMD.
///
/// # Errors
/// Not a payload.
pub fn commands(bytes: &[u8]) -> Result<Vec<Command>, sparkplug_rs::protobuf::Error> {
    let payload = Payload::parse_from_bytes(bytes)?;
    Ok(payload
        .metrics
        .iter()
        .map(|metric| Command {
            name: metric.has_name().then(|| metric.name().to_owned()),
            alias: metric.has_alias().then(|| metric.alias()),
            value: value(metric),
        })
        .collect())
}

#[expect(
    clippy::cast_possible_wrap,
    reason = "Sparkplug puts Int64 into an unsigned field, two's complement"
)]
fn value(metric: &payload::Metric) -> Option<Value> {
    if metric.has_boolean_value() {
        Some(Value::Bool(metric.boolean_value()))
    } else if metric.has_double_value() {
        Some(Value::Double(metric.double_value()))
    } else if metric.has_float_value() {
        Some(Value::Double(f64::from(metric.float_value())))
    } else if metric.has_string_value() {
        Some(Value::Text(metric.string_value().to_owned()))
    } else if metric.has_long_value() {
        Some(Value::Int(metric.long_value() as i64))
    } else if metric.has_int_value() {
        Some(Value::Int(i64::from(metric.int_value())))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(value: Value) -> Sample<'static> {
        Sample {
            name: "M",
            alias: Some(3),
            value,
            timestamp: 7,
            unit: None,
        }
    }

    #[test]
    fn zeros_vanish_as_proto3_has_it_and_bdseq_can_be_written_in_many_ways() {
        let bytes = encode(1, Some(0), &[sample(Value::Bool(false))], Form::Birth);
        let bare = Payload::parse_from_bytes(&without_zeros(&bytes)).unwrap();
        assert!(!bare.has_seq() && bare.metrics[0].value.is_none());
        let mut bdseq = sample(Value::Int(5));
        bdseq.name = "bdSeq";
        let bytes = encode(1, None, &[bdseq], Form::Birth);
        let check = |kind, datatype: Option<u32>, metrics: usize| {
            let payload = Payload::parse_from_bytes(&with_bdseq(&bytes, kind)).unwrap();
            assert_eq!(payload.metrics.len(), metrics, "{kind:?}");
            assert_eq!(payload.metrics.first().and_then(|it| it.datatype), datatype);
        };
        check(BdseqType::Int64, Some(4), 1);
        check(BdseqType::UInt64, Some(8), 1);
        check(BdseqType::UInt8, Some(5), 1);
        check(BdseqType::Untyped, None, 1);
        check(BdseqType::Absent, None, 0);
    }

    #[test]
    fn definitions_have_no_reference_and_instances_have_one() {
        let template = |of: Option<&str>| Template {
            of: of.map(str::to_owned),
            members: vec![("rpm".into(), Value::Double(0.0))],
            parameters: vec![("poles".into(), Value::Int32(4))],
        };
        let read = |value| {
            let bytes = encode(1, Some(0), &[sample(value)], Form::Birth);
            Payload::parse_from_bytes(&bytes).unwrap().metrics[0].clone()
        };
        let definition = read(Value::Template(template(None)));
        assert_eq!(definition.datatype(), 19);
        let of = definition.template_value();
        assert!(of.is_definition() && of.template_ref.is_none());
        let instance = read(Value::Template(template(Some("Motor"))));
        let of = instance.template_value();
        assert!(of.has_is_definition() && !of.is_definition());
        assert_eq!(
            (of.template_ref(), of.parameters[0].int_value()),
            ("Motor", 4)
        );
        let table = read(Value::DataSet(DataSet {
            columns: vec!["n".into(), "s".into()],
            rows: vec![vec![Value::Int32(-1), Value::Text("x".into())]],
        }));
        assert_eq!(table.dataset_value().types, [3, 12]);
        assert_eq!(
            table.dataset_value().rows[0].elements[0].int_value(),
            u32::MAX
        );
    }

    #[test]
    fn births_carry_names_and_types_and_data_the_alias_alone() {
        let birth = Payload::parse_from_bytes(&encode(
            1,
            Some(0),
            &[sample(Value::Bool(false))],
            Form::Birth,
        ))
        .unwrap();
        let metric = &birth.metrics[0];
        assert_eq!(
            (metric.name(), metric.alias(), metric.datatype()),
            ("M", 3, 11)
        );
        assert!(metric.has_boolean_value(), "false is present, not left out");
        assert!(birth.has_seq());
        let data =
            Payload::parse_from_bytes(&encode(1, None, &[sample(Value::Int(-5))], Form::Data))
                .unwrap();
        assert!(!data.metrics[0].has_name() && !data.metrics[0].has_datatype() && !data.has_seq());
        assert_eq!(data.metrics[0].long_value(), (-5i64).cast_unsigned());
    }

    #[test]
    fn commands_are_read_back() {
        let bytes = encode(1, None, &[sample(Value::Double(2.5))], Form::Birth);
        let read = commands(&bytes).unwrap();
        assert_eq!(
            read[0],
            Command {
                name: Some("M".into()),
                alias: Some(3),
                value: Some(Value::Double(2.5))
            }
        );
        assert!(commands(&[0xFF; 9]).is_err());
    }
}
