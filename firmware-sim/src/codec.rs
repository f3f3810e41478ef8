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
}

impl Value {
    fn datatype(&self) -> DataType {
        match self {
            Self::Double(_) => DataType::Double,
            Self::Bool(_) => DataType::Boolean,
            Self::Text(_) => DataType::String,
            Self::Int(_) => DataType::Int64,
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

#[expect(
    clippy::cast_sign_loss,
    reason = "Sparkplug puts Int64 into an unsigned field, two's complement"
)]
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
    match &sample.value {
        Value::Double(v) => metric.set_double_value(*v),
        Value::Bool(v) => metric.set_boolean_value(*v),
        Value::Text(v) => metric.set_string_value(v.clone()),
        Value::Int(v) => metric.set_long_value(*v as u64),
    }
    metric
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
        }
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
