//! Bodies and headers, by the contract's table.

use std::sync::Arc;

use proptest::prelude::*;
use sparkplug::array::Array;
use sparkplug::dataset::DataSet;
use sparkplug::datatype::DataType;
use sparkplug::metric::Metric;
use sparkplug::property::{Property, PropertySet};
use sparkplug::template::{Parameter, Template};
use sparkplug::value::Value;

use super::headers::rfc3339;
use super::*;
use crate::buffer::record::{Key, NewRecord, Origin};

const MIB: usize = 1 << 20;

fn record(class: Class, body: Vec<u8>) -> Record {
    Record {
        id: 42,
        prev: 41,
        data: NewRecord {
            class,
            origin: Origin::Received,
            engine_ms: 1,
            received_ms: 1_764_433_500_123,
            clock_trusted: true,
            key: Key {
                group: Some("plantA".into()),
                node: Some("gw.07".into()),
                device: Some("Pumpe Süd".into()),
            },
            seq: Some(7),
            bdseq: Some(3),
            schema: Some(2),
            cause: None,
            traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
            body: body.into(),
            extra: Vec::new(),
        },
    }
}

fn payload(metrics: Vec<Metric>) -> ResolvedPayload {
    ResolvedPayload {
        timestamp: Some(1000),
        seq: Some(7),
        bdseq: None,
        metrics,
    }
}

fn body(class: Class, metrics: Vec<Metric>) -> String {
    let mut encoder = Encoder::new("site-a", Encoding::Json);
    let prepared = encoder
        .prepare(&record(class, Vec::new()), Some(&payload(metrics)), MIB)
        .unwrap();
    String::from_utf8(prepared.bodies[0].to_vec()).unwrap()
}

fn check(value: Value, json: &str) {
    assert_eq!(value_json(&value), json);
    serde_json::from_str::<serde_json::Value>(json).unwrap();
}

#[test]
fn every_value_has_its_json() {
    check(Value::Null, "null");
    check(Value::Int(-12), "-12");
    check(Value::Int(i64::MIN), "\"-9223372036854775808\"");
    check(Value::Int(-(1 << 53)), "-9007199254740992");
    check(Value::UInt(1 << 53), "9007199254740992");
    check(Value::UInt((1 << 53) + 1), "\"9007199254740993\"");
    check(Value::UInt(u64::MAX), "\"18446744073709551615\"");
    check(Value::UInt(0), "0");
    check(Value::Float(1.1), "1.1");
    check(Value::Float(f32::NAN), "\"NaN\"");
    check(Value::Double(20.0), "20.0");
    check(Value::Double(1e300), "1e300");
    check(Value::Double(f64::INFINITY), "\"Infinity\"");
    check(Value::Double(f64::NEG_INFINITY), "\"-Infinity\"");
    check(Value::Bool(false), "false");
    check(
        Value::String("Süd \"1\"\n\u{1}".into()),
        "\"Süd \\\"1\\\"\\n\\u0001\"",
    );
    check(Value::DateTime(1_764_433_500_123), "1764433500123");
    check(Value::Bytes(vec![0u8, 255, 16].into()), "\"AP8Q\"");
    check(
        Value::Array(Arc::new(Array::UInt64(vec![1, u64::MAX]))),
        "[1,\"18446744073709551615\"]",
    );
    check(
        Value::Array(Arc::new(Array::String(vec!["a".into(), "ü".into()]))),
        "[\"a\",\"ü\"]",
    );
    check(
        Value::Array(Arc::new(Array::Boolean(vec![true, false]))),
        "[true,false]",
    );
    check(
        Value::DataSet(Arc::new(DataSet {
            columns: vec!["id".into(), "name".into()],
            types: vec![DataType::UInt32, DataType::String],
            rows: vec![vec![Value::UInt(1), Value::Null]],
        })),
        "{\"columns\":[\"id\",\"name\"],\"types\":[\"UInt32\",\"String\"],\"rows\":[[1,null]]}",
    );
    check(
        Value::Template(Arc::new(Template {
            version: Some("1".into()),
            template_ref: Some("Motor".into()),
            is_definition: false,
            parameters: vec![Parameter {
                name: "size".into(),
                datatype: DataType::Int32,
                value: Value::Int(4),
            }],
            metrics: vec![Metric::new("rpm", DataType::Double, Value::Double(7.5))],
        })),
        "{\"ref\":\"Motor\",\"version\":\"1\",\"parameters\":{\"size\":4},\
         \"metrics\":[{\"name\":\"rpm\",\"type\":\"Double\",\"value\":7.5}]}",
    );
}

#[test]
fn base64_of_long_bytes_is_one_text() {
    let bytes: Vec<u8> = (0..3000u32).map(|v| (v % 251) as u8).collect();
    let text = value_json(&Value::Bytes(bytes.clone().into()));
    let text: String = serde_json::from_str(&text).unwrap();
    use base64::Engine as _;
    assert_eq!(
        base64::engine::general_purpose::STANDARD
            .decode(text)
            .unwrap(),
        bytes
    );
}

#[test]
fn data_and_birth_bodies() {
    let mut metric = Metric::new("Temperature", DataType::Double, Value::Double(96.5));
    metric.timestamp = Some(990);
    metric.quality = Some(192);
    metric.historical = true;
    metric.properties = Some(Arc::new(PropertySet {
        entries: vec![
            Property {
                key: "Quality".into(),
                datatype: DataType::Int32,
                value: Value::Int(192),
            },
            Property {
                key: "engUnit".into(),
                datatype: DataType::String,
                value: Value::String("°C".into()),
            },
        ],
    }));
    let plain = Metric::new("Gone", DataType::Int8, Value::Null);
    assert_eq!(
        body(Class::Data, vec![metric.clone(), plain]),
        "{\"timestamp\":1000,\"received_at\":1764433500123,\"seq\":7,\"metrics\":[\
         {\"name\":\"Temperature\",\"type\":\"Double\",\"value\":96.5,\"timestamp\":990,\"quality\":192,\
         \"historical\":true,\"properties\":{\"engUnit\":\"°C\"}},\
         {\"name\":\"Gone\",\"type\":\"Int8\",\"value\":null}]}"
    );
    assert_eq!(
        body(Class::Birth, vec![]),
        "{\"timestamp\":1000,\"received_at\":1764433500123,\"seq\":7,\"bdseq\":3,\"schema\":2,\"metrics\":[]}"
    );
}

#[test]
fn headers_name_the_record_its_place_and_its_meaning() {
    let mut encoder = Encoder::new("site-a", Encoding::Json);
    let mut prepared = encoder
        .prepare(
            &record(Class::Data, Vec::new()),
            Some(&payload(vec![])),
            MIB,
        )
        .unwrap();
    assert_eq!(
        prepared.subject,
        "sparkgate.site-a.data.plantA.gw=2E07.Pumpe=20S=C3=BCd"
    );
    prepared.headers.place(
        "site-a-k3x9-",
        Place {
            record: 42,
            prev: 40,
            part: 2,
            parts: 3,
        },
        true,
    );
    for (name, value) in [
        ("Nats-Msg-Id", "site-a-k3x9-42.2"),
        ("Sparkgate-Record", "42"),
        ("Sparkgate-Prev", "40"),
        ("Sparkgate-Part", "2/3"),
        ("Sparkgate-Seq", "7"),
        ("Sparkgate-Group", "plantA"),
        ("Sparkgate-Device", "Pumpe S%C3%BCd"),
        (
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ),
        ("ce-id", "site-a-k3x9-42.2"),
        ("ce-type", "sparkgate.data.v1"),
        ("ce-source", "sparkgate:site-a"),
        ("ce-specversion", "1.0"),
        ("ce-time", "2025-11-29T16:25:00.123Z"),
        ("ce-datacontenttype", "application/json"),
        (
            "ce-dataschema",
            "sparkgate:site-a/plantA/gw=2E07/Pumpe=20S=C3=BCd?schema=2",
        ),
    ] {
        assert_eq!(prepared.headers.get(name), Some(value), "{name}");
    }
    let wire: usize = prepared
        .headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n").len())
        .sum();
    assert_eq!(prepared.headers.wire_len(), wire + 12);
}

#[test]
fn times_of_day_and_leap_years() {
    for (ms, text) in [
        (0, "1970-01-01T00:00:00.000Z"),
        (951_782_399_999, "2000-02-28T23:59:59.999Z"),
        (951_782_400_000, "2000-02-29T00:00:00.000Z"),
        (1_709_251_199_000, "2024-02-29T23:59:59.000Z"),
        (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
    ] {
        assert_eq!(rfc3339(ms), text);
    }
}

fn many(count: usize) -> Vec<Metric> {
    (0..count)
        .map(|i| {
            Metric::new(
                format!("line/{i}/value"),
                DataType::Double,
                Value::Double(i as f64),
            )
        })
        .collect()
}

#[test]
fn a_large_birth_is_split_into_whole_bodies() {
    for encoding in [Encoding::Json, Encoding::Protobuf] {
        let metrics = many(20_000);
        let bytes = encode_resolved(Some(1000), Some(7), None, &metrics);
        let mut encoder = Encoder::new("site-a", encoding);
        let limit = 200_000;
        let prepared = encoder
            .prepare(&record(Class::Birth, bytes), None, limit)
            .unwrap();
        assert!(prepared.bodies.len() > 3);
        let mut names = Vec::new();
        for body in &prepared.bodies {
            assert!(body.len() + prepared.headers.wire_len() < limit);
            match encoding {
                Encoding::Json => {
                    let json: serde_json::Value = serde_json::from_slice(body).unwrap();
                    assert_eq!(json["schema"], 2);
                    let part = json["metrics"].as_array().unwrap();
                    names.extend(part.iter().map(|m| m["name"].as_str().unwrap().to_owned()));
                }
                Encoding::Protobuf => {
                    let part = decode_resolved(body).unwrap();
                    names.extend(part.metrics.iter().map(|m| m.name.to_string()));
                }
            }
        }
        assert!(names.iter().eq(metrics.iter().map(|m| &*m.name)));
    }
}

#[test]
fn what_can_not_be_split_is_an_error() {
    let mut encoder = Encoder::new("site-a", Encoding::Json);
    let huge = Metric::new(
        "s",
        DataType::String,
        Value::String("x".repeat(5000).into()),
    );
    let error = encoder
        .prepare(
            &record(Class::Data, Vec::new()),
            Some(&payload(vec![huge])),
            4096,
        )
        .unwrap_err();
    assert!(matches!(error, EncodeError::TooLarge { .. }));
    let error = encoder
        .prepare(&record(Class::Raw, vec![0; 5000]), None, 4096)
        .unwrap_err();
    assert!(matches!(error, EncodeError::TooLarge { .. }));
}

proptest! {
    #[test]
    fn strings_read_back(text in "\\PC{0,40}|[\\x00-\\x7f]{0,20}") {
        let json = value_json(&Value::String(text.as_str().into()));
        prop_assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }

    #[test]
    fn doubles_read_back(v in any::<f64>()) {
        let json = value_json(&Value::Double(v));
        if v.is_finite() {
            prop_assert_eq!(json.parse::<f64>().unwrap(), v);
        }
    }

    #[test]
    fn parts_hold_every_metric_once(count in 1usize..200, limit in 1500usize..4000) {
        let mut encoder = Encoder::new("site-a", Encoding::Json);
        let prepared = encoder
            .prepare(&record(Class::Data, Vec::new()), Some(&payload(many(count))), limit)
            .unwrap();
        let mut seen = 0;
        for body in &prepared.bodies {
            let json: serde_json::Value = serde_json::from_slice(body).unwrap();
            for metric in json["metrics"].as_array().unwrap() {
                prop_assert_eq!(metric["name"].as_str().unwrap(), format!("line/{seen}/value"));
                seen += 1;
            }
        }
        prop_assert_eq!(seen, count);
    }
}
