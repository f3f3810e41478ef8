//! Payloads that others made, committed as bytes with the scripts that made them (`tests/vectors`).

use serde_json::{Value as Json, json};
use sparkplug::payload::{Form, Limits, decode, encode};
use sparkplug::{Array, DataType, Metric, Value};
use sparkplug_rs::protobuf::Message as _;

/// A value in the form that `cases.json` has: integers as text, bytes as hexadecimal.
fn plain(value: &Value) -> Json {
    fn texts<T: ToString>(items: &[T]) -> Json {
        items.iter().map(|it| Json::from(it.to_string())).collect()
    }
    match value {
        Value::Null => Json::Null,
        Value::Int(v) => v.to_string().into(),
        Value::UInt(v) | Value::DateTime(v) => v.to_string().into(),
        Value::Float(v) => f64::from(*v).into(),
        Value::Double(v) => (*v).into(),
        Value::Bool(v) => (*v).into(),
        Value::String(v) => v.to_string().into(),
        Value::Bytes(v) => v
            .iter()
            .map(|it| format!("{it:02x}"))
            .collect::<String>()
            .into(),
        Value::Array(array) => match &**array {
            Array::Int8(v) => texts(v),
            Array::Int16(v) => texts(v),
            Array::Int32(v) => texts(v),
            Array::Int64(v) => texts(v),
            Array::UInt8(v) => texts(v),
            Array::UInt16(v) => texts(v),
            Array::UInt32(v) => texts(v),
            Array::UInt64(v) | Array::DateTime(v) => texts(v),
            Array::Float(v) => v.iter().map(|it| Json::from(f64::from(*it))).collect(),
            Array::Double(v) => v.iter().copied().map(Json::from).collect(),
            Array::Boolean(v) => v.iter().copied().map(Json::from).collect(),
            Array::String(v) => texts(v),
        },
        other => panic!("no plain form of {other:?}"),
    }
}

/// The value of a case.
fn native(kind: DataType, json: &Json) -> Value {
    let int = |it: &Json| it.as_str().unwrap().parse::<i128>().unwrap();
    let float = |it: &Json| it.as_f64().unwrap();
    let items = || json.as_array().unwrap();
    macro_rules! ints {
        ($variant:ident, $type:ty) => {
            Array::$variant(items().iter().map(|it| int(it) as $type).collect())
        };
    }
    let array = match kind {
        DataType::Int8Array => ints!(Int8, i8),
        DataType::Int16Array => ints!(Int16, i16),
        DataType::Int32Array => ints!(Int32, i32),
        DataType::Int64Array => ints!(Int64, i64),
        DataType::UInt8Array => ints!(UInt8, u8),
        DataType::UInt16Array => ints!(UInt16, u16),
        DataType::UInt32Array => ints!(UInt32, u32),
        DataType::UInt64Array => ints!(UInt64, u64),
        DataType::DateTimeArray => ints!(DateTime, u64),
        DataType::FloatArray => Array::Float(items().iter().map(|it| float(it) as f32).collect()),
        DataType::DoubleArray => Array::Double(items().iter().map(float).collect()),
        DataType::BooleanArray => {
            Array::Boolean(items().iter().map(|it| it.as_bool().unwrap()).collect())
        }
        DataType::StringArray => Array::String(
            items()
                .iter()
                .map(|it| it.as_str().unwrap().into())
                .collect(),
        ),
        DataType::Bytes | DataType::File => {
            return Value::Bytes(unhex(json.as_str().unwrap()).into());
        }
        DataType::DateTime => return Value::DateTime(int(json) as u64),
        DataType::Float => return Value::Float(float(json) as f32),
        DataType::Double => return Value::Double(float(json)),
        DataType::Boolean => return Value::Bool(json.as_bool().unwrap()),
        DataType::String | DataType::Text | DataType::UUID => {
            return json.as_str().unwrap().into();
        }
        _ if kind.as_str().starts_with('U') => return Value::UInt(int(json) as u64),
        _ => return Value::Int(int(json) as i64),
    };
    Value::Array(array.into())
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

fn cases() -> Vec<(DataType, Json)> {
    let cases: Json = serde_json::from_str(include_str!("../vectors/cases.json")).unwrap();
    cases["cases"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| {
            (
                DataType::from_name(it[0].as_str().unwrap()).unwrap(),
                it[1].clone(),
            )
        })
        .collect()
}

fn check(file: &str, at_least: usize) -> Json {
    let file: Json = serde_json::from_str(file).unwrap();
    let vectors = file["vectors"].as_array().unwrap();
    assert!(vectors.len() >= at_least);
    for vector in vectors {
        let kind = vector[0].as_str().unwrap();
        let payload = decode(&unhex(vector[2].as_str().unwrap()), &Limits::default()).unwrap();
        assert_eq!(payload.rejected, [], "{vector}");
        assert_eq!(payload.timestamp, Some(1_700_000_000_123));
        assert_eq!(payload.seq, Some(0));
        let metric = &payload.metrics[0];
        assert_eq!(metric.name.as_deref(), Some(kind));
        assert_eq!(metric.datatype, DataType::from_name(kind));
        let (got, want) = (plain(&metric.value), &vector[1]);
        let equal = match (&got, want) {
            (Json::Number(a), Json::Number(b)) => a.as_f64() == b.as_f64(),
            (a, b) => a == b,
        };
        assert!(
            equal,
            "{}: {kind}: read {got}, made from {want}",
            file["encoder"]
        );
    }
    file
}

#[test]
fn pysparkplug() {
    check(include_str!("../vectors/pysparkplug.json"), 46);
}

#[test]
fn mqtt_spb_wrapper() {
    structured(&check(include_str!("../vectors/mqtt_spb_wrapper.json"), 33));
}

#[test]
fn sparkplug_rs() {
    structured(&check(include_str!("../vectors/sparkplug_rs.json"), 33));
}

#[test]
fn sparkplug_payload_of_npm() {
    structured(&check(
        include_str!("../vectors/sparkplug_payload.json"),
        33,
    ));
}

/// The DataSet, template and properties that the scripts make.
fn structured(file: &Json) {
    let metric = |name: &str| {
        let bytes = unhex(file["structured"][name].as_str().unwrap());
        let payload = decode(&bytes, &Limits::default()).unwrap();
        assert_eq!(payload.rejected, []);
        payload.metrics.into_iter().next().unwrap()
    };
    let Value::DataSet(set) = metric("dataset").value else {
        panic!("no DataSet");
    };
    assert_eq!(
        set.types,
        [DataType::Int32, DataType::String, DataType::Boolean]
    );
    assert_eq!(
        set.rows,
        [
            vec![Value::Int(-1), "a".into(), Value::Bool(true)],
            vec![Value::Int(2), "".into(), Value::Bool(false)],
        ]
    );
    let Value::Template(template) = metric("template").value else {
        panic!("no template");
    };
    assert_eq!(template.template_ref.as_deref(), Some("Motor"));
    assert_eq!(template.member("rpm").unwrap().value, Value::Double(12.5));
    assert_eq!(template.member("on").unwrap().value, Value::Bool(false));
    assert_eq!(template.parameter("limit").unwrap().value, Value::Int(-5));
    let properties = metric("properties").properties.unwrap();
    assert_eq!(properties.quality(), Some(500));
    assert_eq!(properties.get("unit").unwrap().value, "°C".into());
}

/// What `make.py … check`, `make.mjs check` and `--example foreign_vectors check` read back.
#[test]
fn ours_are_the_committed_bytes_that_others_read() {
    let ours: Json = cases()
        .into_iter()
        .map(|(kind, value)| {
            let metric = Metric::new(kind.as_str(), kind, native(kind, &value))
                .at(1_700_000_000_123)
                .aliased(7);
            let bytes = encode(Some(1_700_000_000_123), Some(0), &[metric], Form::Full);
            let hex: String = bytes.iter().map(|it| format!("{it:02x}")).collect();
            json!([kind.as_str(), value, hex])
        })
        .collect();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/ours.json");
    if std::env::var_os("SPARKPLUG_BLESS").is_some() {
        std::fs::write(path, format!("{ours}\n")).unwrap();
    }
    let committed: Json = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(ours, committed);
}

/// Every case through sparkplug-rs, in both directions.
#[test]
fn sparkplug_rs_reads_ours_and_we_read_its_bytes() {
    for (kind, value) in cases() {
        let metric = Metric::new(kind.as_str(), kind, native(kind, &value))
            .at(5)
            .aliased(7);
        let ours = encode(Some(5), Some(0), std::slice::from_ref(&metric), Form::Full);
        let theirs = sparkplug_rs::Payload::parse_from_bytes(&ours).unwrap();
        assert_eq!(theirs.metrics.len(), 1);
        assert_eq!(theirs.seq, Some(0));
        assert_eq!(theirs.metrics[0].datatype, Some(kind.code()));
        assert!(theirs.metrics[0].value.is_some(), "{kind}");
        let back = decode(&theirs.write_to_bytes().unwrap(), &Limits::default()).unwrap();
        assert_eq!(back.metrics[0].value, metric.value, "{kind}");
    }
}
