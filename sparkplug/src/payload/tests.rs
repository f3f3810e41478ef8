//! Values in every field and width, and what stands on the wire.

use super::raw::Arm;
use super::value::{Budget, Hint, MetricError, of_arm};
use super::*;
use crate::metric::Metric;
use crate::proto;
use crate::template::Template;
use prost::Message as _;
use proto::payload;

fn read(datatype: DataType, arm: Arm<'_>) -> Result<Value, MetricError> {
    let mut budget = Budget::new(&Limits::default());
    let mut flags = MetricFlags::NONE;
    of_arm(datatype, &arm, &Hint::NONE, &mut budget, 0, &mut flags)
}

#[test]
fn payloads_metric_datatype_value_signed_in_every_encoding() {
    use DataType::{Int8, Int16, Int32, Int64};
    for (datatype, arm, value) in [
        (Int8, Arm::Int(0xff), -1),
        (Int8, Arm::Int(0xffff_ffff), -1),
        (Int8, Arm::Int(0x80), -128),
        (Int8, Arm::Int(0xffff_ff80), -128),
        (Int8, Arm::Int(0x7f), 127),
        (Int16, Arm::Int(65_449), -87),
        (Int16, Arm::Int(4_294_967_209), -87),
        (Int16, Arm::Int(0x8000), -32_768),
        (Int32, Arm::Int(4_294_967_284), -12),
        (Int32, Arm::Int(0x8000_0000), i64::from(i32::MIN)),
        (Int32, Arm::Long(u64::MAX), -1),
        (Int32, Arm::Long(0xffff_ffff), -1),
        (Int64, Arm::Long(u64::MAX), -1),
        (Int64, Arm::Long(1 << 63), i64::MIN),
        (Int64, Arm::Int(0xffff_ffff), -1),
        (Int64, Arm::Int(5), 5),
    ] {
        assert_eq!(
            read(datatype, arm),
            Ok(Value::Int(value)),
            "{datatype} {arm:?}"
        );
    }
    for (datatype, arm) in [
        (Int8, Arm::Int(300)),
        (Int8, Arm::Int(0xffff_ff7f)),
        (Int16, Arm::Int(70_000)),
        (Int32, Arm::Long(1 << 33)),
    ] {
        assert_eq!(
            read(datatype, arm),
            Err(MetricError::Range(datatype)),
            "{arm:?}"
        );
    }
}

#[test]
fn payloads_metric_datatype_value_unsigned_and_the_rest() {
    use DataType::{
        Boolean, Bytes as B, DateTime, Double, Float, String, UInt8, UInt16, UInt32, UInt64,
    };
    for (datatype, arm, value) in [
        (UInt8, Arm::Int(255), Value::UInt(255)),
        (UInt16, Arm::Int(65_535), Value::UInt(65_535)),
        (UInt32, Arm::Int(1 << 31), Value::UInt(1 << 31)),
        (UInt32, Arm::Int(u32::MAX), Value::UInt(0xffff_ffff)),
        (UInt32, Arm::Long(0xffff_ffff), Value::UInt(0xffff_ffff)),
        (UInt64, Arm::Long(1 << 63), Value::UInt(1 << 63)),
        (UInt64, Arm::Long(u64::MAX), Value::UInt(u64::MAX)),
        (UInt64, Arm::Int(7), Value::UInt(7)),
        (DateTime, Arm::Long(9), Value::DateTime(9)),
        (Boolean, Arm::Int(1), Value::Bool(true)),
        (Double, Arm::Float(1.5), Value::Double(1.5)),
        (Float, Arm::Double(1.5), Value::Float(1.5)),
        (String, Arm::Text(""), Value::from("")),
        (B, Arm::Bytes(&[0]), Value::Bytes(Bytes::from_static(&[0]))),
    ] {
        assert_eq!(read(datatype, arm), Ok(value), "{datatype} {arm:?}");
    }
    for (datatype, arm) in [
        (UInt8, Arm::Int(256)),
        (UInt16, Arm::Int(65_536)),
        (UInt32, Arm::Long(1 << 32)),
        (Float, Arm::Double(1e300)),
    ] {
        assert_eq!(
            read(datatype, arm),
            Err(MetricError::Range(datatype)),
            "{arm:?}"
        );
    }
    for (datatype, arm) in [
        (String, Arm::Int(1)),
        (Double, Arm::Text("1")),
        (Boolean, Arm::Int(2)),
        (DataType::PropertySet, Arm::Int(2)),
    ] {
        assert_eq!(
            read(datatype, arm),
            Err(MetricError::Arm(datatype)),
            "{arm:?}"
        );
    }
    for datatype in DataType::ALL {
        assert_eq!(read(datatype, Arm::None), Err(MetricError::NoValue));
    }
}

#[test]
fn payloads_sequence_num_always_included_even_when_zero() {
    let off = Metric::new("Off", DataType::Boolean, Value::Bool(false));
    let bytes = encode(Some(1), Some(0), &[off], Form::Full);
    assert!(bytes.ends_with(&[0x18, 0x00]));
    assert!(bytes.windows(2).any(|it| it == [0x70, 0x00]));
}

#[test]
fn a_negative_int32_is_five_bytes() {
    let metric = Metric::new("T", DataType::Int32, Value::Int(-12)).aliased(7);
    let bytes = encode(None, None, &[metric], Form::Data);
    assert_eq!(
        bytes,
        [0x12, 8, 0x10, 7, 0x50, 0xf4, 0xff, 0xff, 0xff, 0x0f]
    );
}

#[test]
fn payloads_alias_birth_requirement_and_data_cmd_requirement() {
    let metric = Metric::new("T", DataType::Double, Value::Double(1.0)).aliased(7);
    for (form, name, datatype) in [
        (Form::Full, true, true),
        (Form::Data, false, false),
        (Form::Command, false, true),
    ] {
        let bytes = encode(None, None, std::slice::from_ref(&metric), form);
        let read = decode(&bytes, &Limits::default()).unwrap();
        let read = &read.metrics[0];
        assert_eq!(read.name.is_some(), name);
        assert_eq!(read.datatype.is_some(), datatype);
        assert_eq!(read.alias, Some(7));
    }
}

fn metric(datatype: u32, value: payload::metric::Value) -> Result<Value, MetricError> {
    let payload = proto::Payload {
        metrics: vec![payload::Metric {
            name: Some("m".into()),
            datatype: Some(datatype),
            value: Some(value),
            ..Default::default()
        }],
        ..Default::default()
    };
    let read = decode(&payload.encode_to_vec(), &Limits::default()).unwrap();
    match (read.metrics.first(), read.rejected.first()) {
        (Some(metric), _) => Ok(metric.value.clone()),
        (None, Some((_, error))) => Err(*error),
        (None, None) => panic!("neither"),
    }
}

#[test]
fn payloads_metric_datatype_value_beyond_34_is_refused() {
    let value = payload::metric::Value::IntValue(1);
    assert_eq!(metric(35, value.clone()), Err(MetricError::DataType(35)));
    assert_eq!(metric(99, value), Err(MetricError::DataType(99)));
}

#[test]
fn payloads_dataset_columns_types_and_cells() {
    use payload::data_set::data_set_value::Value as Cell;
    use payload::data_set::{DataSetValue, Row};
    use value::DataSetFault;
    let row = |cells: Vec<Option<Cell>>| Row {
        elements: cells
            .into_iter()
            .map(|value| DataSetValue { value })
            .collect(),
    };
    let set = payload::DataSet {
        num_of_columns: Some(2),
        columns: vec!["n".into(), "s".into()],
        types: vec![3, 12],
        rows: vec![
            row(vec![
                Some(Cell::IntValue(0xffff_ffff)),
                Some(Cell::StringValue("x".into())),
            ]),
            // A cell without a value is the only null.
            row(vec![None, None]),
        ],
    };
    let read = |set: payload::DataSet| metric(16, payload::metric::Value::DatasetValue(set));
    let Ok(Value::DataSet(good)) = read(set.clone()) else {
        panic!("refused");
    };
    assert_eq!(
        good.rows,
        [
            vec![Value::Int(-1), "x".into()],
            vec![Value::Null, Value::Null]
        ]
    );
    for (change, fault) in [
        (
            Box::new(|it: &mut payload::DataSet| it.num_of_columns = Some(3))
                as Box<dyn Fn(&mut payload::DataSet)>,
            DataSetFault::Columns,
        ),
        (Box::new(|it| it.types.truncate(1)), DataSetFault::Columns),
        (Box::new(|it| it.columns.truncate(1)), DataSetFault::Columns),
        (Box::new(|it| it.types[0] = 16), DataSetFault::Type),
        (Box::new(|it| it.types[0] = 99), DataSetFault::Type),
        (
            Box::new(|it| drop(it.rows[0].elements.pop())),
            DataSetFault::Row,
        ),
        (
            Box::new(|it| it.rows[0].elements.push(DataSetValue { value: None })),
            DataSetFault::Row,
        ),
        (
            Box::new(|it| it.rows[0].elements[0].value = Some(Cell::StringValue("x".into()))),
            DataSetFault::Cell,
        ),
    ] {
        let mut bad = set.clone();
        change(&mut bad);
        assert_eq!(read(bad), Err(MetricError::DataSet(fault)), "{fault:?}");
    }
}

#[test]
fn payloads_propertyset_keys_and_values_and_their_types() {
    let read = |keys: &[&str], types: &[u32]| {
        let payload = proto::Payload {
            metrics: vec![payload::Metric {
                name: Some("m".into()),
                datatype: Some(3),
                value: Some(payload::metric::Value::IntValue(1)),
                properties: Some(payload::PropertySet {
                    keys: keys.iter().map(|it| (*it).to_owned()).collect(),
                    values: types
                        .iter()
                        .map(|it| payload::PropertyValue {
                            r#type: Some(*it),
                            value: Some(payload::property_value::Value::IntValue(192)),
                            ..Default::default()
                        })
                        .collect(),
                }),
                ..Default::default()
            }],
            ..Default::default()
        };
        decode(&payload.encode_to_vec(), &Limits::default()).unwrap()
    };
    let good = read(&["Quality", "n"], &[3, 7]);
    assert_eq!(
        good.metrics[0].properties.as_ref().unwrap().quality(),
        Some(192)
    );
    // The value is kept, the properties are not, and it is said.
    for bad in [
        read(&["Quality"], &[3, 3]),
        read(&["Quality"], &[]),
        read(&["Quality"], &[16]),
    ] {
        assert_eq!(bad.metrics[0].value, Value::Int(1));
        assert_eq!(bad.metrics[0].properties, None);
        assert!(
            bad.metrics[0]
                .flags
                .contains(MetricFlags::PROPERTIES_INVALID)
        );
    }
}

#[test]
fn payloads_template_definitions_and_instances_on_the_wire() {
    let definition = Template {
        version: Some("1".into()),
        is_definition: true,
        metrics: vec![Metric::new("rpm", DataType::Double, Value::Null)],
        ..Template::default()
    };
    let instance = Template {
        template_ref: Some("Motor".into()),
        metrics: vec![Metric::new("rpm", DataType::Double, Value::Double(1.0))],
        ..Template::default()
    };
    for (template, reference, is_definition) in
        [(definition, None, true), (instance, Some("Motor"), false)]
    {
        let metric = Metric::new("t", DataType::Template, Value::Template(Arc::new(template)));
        let bytes = encode(None, None, &[metric], Form::Full);
        let generated = proto::Payload::decode(&*bytes).unwrap();
        let Some(payload::metric::Value::TemplateValue(template)) = &generated.metrics[0].value
        else {
            panic!("no template");
        };
        // Absent in a definition, not empty; is_definition is there even when false.
        assert_eq!(template.template_ref.as_deref(), reference);
        assert_eq!(template.is_definition, Some(is_definition));
    }
}

#[test]
fn payloads_template_parameter_name_and_type() {
    use payload::template::Parameter;
    let read = |name: Option<&str>, datatype: Option<u32>| {
        let template = payload::Template {
            is_definition: Some(true),
            parameters: vec![Parameter {
                name: name.map(str::to_owned),
                r#type: datatype,
                value: Some(payload::template::parameter::Value::IntValue(0xffff_ffff)),
            }],
            ..Default::default()
        };
        metric(19, payload::metric::Value::TemplateValue(template))
    };
    let Ok(Value::Template(good)) = read(Some("p"), Some(3)) else {
        panic!("refused");
    };
    assert_eq!(good.parameters[0].value, Value::Int(-1));
    assert_eq!(read(None, Some(3)), Err(MetricError::Unnamed));
    assert_eq!(
        read(Some("p"), Some(16)),
        Err(MetricError::Misplaced(DataType::DataSet))
    );
}
