//! Writes what sparkplug-rs makes of `tests/vectors/cases.json`, and of a DataSet, a template and properties.
//!
//! ```text
//! cargo run -p sparkplug --example foreign_vectors                  # writes tests/vectors/sparkplug_rs.json
//! cargo run -p sparkplug --example foreign_vectors check ours.json  # lets it read the payloads of that file
//! ```
//!
//! It has no form of its own for arrays: they are bytes to it, so that they are left out.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "a script that makes test data"
)]

use std::path::Path;

use serde_json::{Value as Json, json};
use sparkplug_rs::protobuf::{Enum as _, Message as _};
use sparkplug_rs::{DataType, Payload, payload};

fn int(json: &Json) -> i128 {
    json.as_str().unwrap().parse().unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|it| format!("{it:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

fn metric(name: &str, kind: DataType, timestamp: u64) -> payload::Metric {
    let mut metric = payload::Metric::new();
    metric.set_name(name.to_owned());
    metric.set_alias(7);
    metric.set_timestamp(timestamp);
    metric.set_datatype(kind.value() as u32);
    metric
}

fn payload(timestamp: u64, metric: payload::Metric) -> String {
    let mut payload = Payload::new();
    payload.set_timestamp(timestamp);
    payload.set_seq(0);
    payload.metrics = vec![metric];
    hex(&payload.write_to_bytes().unwrap())
}

fn set(metric: &mut payload::Metric, kind: DataType, value: &Json) {
    match kind {
        DataType::Int8 | DataType::Int16 | DataType::Int32 => {
            metric.set_int_value(int(value) as i32 as u32);
        }
        DataType::UInt8 | DataType::UInt16 | DataType::UInt32 => {
            metric.set_int_value(int(value) as u32);
        }
        DataType::Int64 => metric.set_long_value(int(value) as i64 as u64),
        DataType::UInt64 | DataType::DateTime => metric.set_long_value(int(value) as u64),
        DataType::Float => metric.set_float_value(value.as_f64().unwrap() as f32),
        DataType::Double => metric.set_double_value(value.as_f64().unwrap()),
        DataType::Boolean => metric.set_boolean_value(value.as_bool().unwrap()),
        DataType::String | DataType::Text | DataType::UUID => {
            metric.set_string_value(value.as_str().unwrap().to_owned());
        }
        DataType::Bytes | DataType::File => metric.set_bytes_value(unhex(value.as_str().unwrap())),
        other => panic!("{other:?} is no scalar"),
    }
}

/// What sparkplug-rs reads, in the form of `cases.json`.
fn read(metric: &payload::Metric, kind: DataType) -> Json {
    match kind {
        DataType::Int8 | DataType::Int16 | DataType::Int32 => {
            (metric.int_value() as i32).to_string().into()
        }
        DataType::UInt8 | DataType::UInt16 | DataType::UInt32 => {
            metric.int_value().to_string().into()
        }
        DataType::Int64 => (metric.long_value() as i64).to_string().into(),
        DataType::UInt64 | DataType::DateTime => metric.long_value().to_string().into(),
        DataType::Float => f64::from(metric.float_value()).into(),
        DataType::Double => metric.double_value().into(),
        DataType::Boolean => metric.boolean_value().into(),
        DataType::String | DataType::Text | DataType::UUID => metric.string_value().into(),
        _ => hex(metric.bytes_value()).into(),
    }
}

fn structured(timestamp: u64) -> Json {
    let cell = |change: &dyn Fn(&mut payload::data_set::DataSetValue)| {
        let mut cell = payload::data_set::DataSetValue::new();
        change(&mut cell);
        cell
    };
    let row = |n: i32, s: &str, b: bool| {
        let mut row = payload::data_set::Row::new();
        row.elements = vec![
            cell(&|it| it.set_int_value(n as u32)),
            cell(&|it| it.set_string_value(s.to_owned())),
            cell(&|it| it.set_boolean_value(b)),
        ];
        row
    };
    let mut table = payload::DataSet::new();
    table.set_num_of_columns(3);
    table.columns = ["n", "s", "b"].map(str::to_owned).to_vec();
    table.types = [DataType::Int32, DataType::String, DataType::Boolean]
        .map(|it| it.value() as u32)
        .to_vec();
    table.rows = vec![row(-1, "a", true), row(2, "", false)];
    let mut dataset = metric("DataSet", DataType::DataSet, timestamp);
    dataset.set_dataset_value(table);

    let member = |name: &str, kind: DataType| {
        let mut member = payload::Metric::new();
        member.set_name(name.to_owned());
        member.set_datatype(kind.value() as u32);
        member
    };
    let (mut rpm, mut on) = (
        member("rpm", DataType::Double),
        member("on", DataType::Boolean),
    );
    rpm.set_double_value(12.5);
    on.set_boolean_value(false);
    let mut limit = payload::template::Parameter::new();
    limit.set_name("limit".to_owned());
    limit.set_type(DataType::Int32.value() as u32);
    limit.set_int_value(-5_i32 as u32);
    let mut of = payload::Template::new();
    of.set_version("1.0".to_owned());
    of.set_template_ref("Motor".to_owned());
    of.set_is_definition(false);
    of.metrics = vec![rpm, on];
    of.parameters = vec![limit];
    let mut template = metric("Template", DataType::Template, timestamp);
    template.set_template_value(of);

    let (mut quality, mut unit) = (payload::PropertyValue::new(), payload::PropertyValue::new());
    quality.set_type(DataType::Int32.value() as u32);
    quality.set_int_value(500);
    unit.set_type(DataType::String.value() as u32);
    unit.set_string_value("°C".to_owned());
    let mut set = payload::PropertySet::new();
    set.keys = ["Quality", "unit"].map(str::to_owned).to_vec();
    set.values = vec![quality, unit];
    let mut properties = metric("Properties", DataType::Double, timestamp);
    properties.set_double_value(1.0);
    properties.properties = Some(set).into();
    json!({
        "dataset": payload(timestamp, dataset),
        "template": payload(timestamp, template),
        "properties": payload(timestamp, properties),
    })
}

fn kind(case: &Json) -> Option<DataType> {
    DataType::from_str(case[0].as_str().unwrap())
}

fn main() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    let load = |name: &str| -> Json {
        serde_json::from_str(&std::fs::read_to_string(folder.join(name)).unwrap()).unwrap()
    };
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [check, file] = &arguments[..]
        && check == "check"
    {
        for case in load(file).as_array().unwrap() {
            let bytes = unhex(case[2].as_str().unwrap());
            let read_back = Payload::parse_from_bytes(&bytes).unwrap();
            let kind = kind(case).unwrap();
            if !format!("{kind:?}").ends_with("Array") {
                let got = read(&read_back.metrics[0], kind);
                let equal = got == case[1] || (got.is_f64() && got.as_f64() == case[1].as_f64());
                assert!(equal, "{kind:?}: wrote {}, read {got}", case[1]);
            }
        }
        return;
    }
    let cases = load("cases.json");
    let timestamp = cases["timestamp"].as_u64().unwrap();
    let (mut vectors, mut refused) = (Vec::new(), Vec::new());
    for case in cases["cases"].as_array().unwrap() {
        match kind(case) {
            Some(kind) if !format!("{kind:?}").ends_with("Array") => {
                let mut made = metric(case[0].as_str().unwrap(), kind, timestamp);
                set(&mut made, kind, &case[1]);
                vectors.push(json!([case[0], case[1], payload(timestamp, made)]));
            }
            _ => refused.push(json!([case[0], case[1], "no arrays"])),
        }
    }
    let out = json!({
        "encoder": "sparkplug-rs",
        "vectors": vectors,
        "refused": refused,
        "structured": structured(timestamp),
    });
    std::fs::write(folder.join("sparkplug_rs.json"), format!("{out}\n")).unwrap();
}
