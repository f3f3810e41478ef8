//! Whatever the sessions hand out can be written and read back, by us and by the generated code.

use std::sync::Arc;

use proptest::prelude::*;
use prost::Message as _;
use sparkplug::payload::{Form, Limits, decode, decode_resolved, encode, encode_resolved};
use sparkplug::property::quality;
use sparkplug::template::Parameter;
use sparkplug::{
    Array, DataSet, DataType, MetaData, Metric, MetricFlags, Property, PropertySet, Seq, Template,
    TimeSource, Value, proto,
};

fn text() -> impl Strategy<Value = Arc<str>> {
    "[ -~äß圧]{0,12}".prop_map(Arc::from)
}

fn basic() -> impl Strategy<Value = (DataType, Value)> {
    prop_oneof![
        any::<i8>().prop_map(|v| (DataType::Int8, Value::Int(v.into()))),
        any::<i16>().prop_map(|v| (DataType::Int16, Value::Int(v.into()))),
        any::<i32>().prop_map(|v| (DataType::Int32, Value::Int(v.into()))),
        any::<i64>().prop_map(|v| (DataType::Int64, Value::Int(v))),
        any::<u8>().prop_map(|v| (DataType::UInt8, Value::UInt(v.into()))),
        any::<u16>().prop_map(|v| (DataType::UInt16, Value::UInt(v.into()))),
        any::<u32>().prop_map(|v| (DataType::UInt32, Value::UInt(v.into()))),
        any::<u64>().prop_map(|v| (DataType::UInt64, Value::UInt(v))),
        any::<f32>().prop_map(|v| (DataType::Float, Value::Float(v))),
        any::<f64>().prop_map(|v| (DataType::Double, Value::Double(v))),
        any::<bool>().prop_map(|v| (DataType::Boolean, Value::Bool(v))),
        any::<u64>().prop_map(|v| (DataType::DateTime, Value::DateTime(v))),
        text().prop_map(|v| (DataType::String, Value::String(v))),
        text().prop_map(|v| (DataType::Text, Value::String(v))),
    ]
}

fn array() -> impl Strategy<Value = Array> {
    use proptest::collection::vec;
    prop_oneof![
        vec(any::<i8>(), 0..9).prop_map(Array::Int8),
        vec(any::<i16>(), 0..9).prop_map(Array::Int16),
        vec(any::<i64>(), 0..9).prop_map(Array::Int64),
        vec(any::<u8>(), 0..9).prop_map(Array::UInt8),
        vec(any::<u32>(), 0..9).prop_map(Array::UInt32),
        vec(any::<f32>(), 0..9).prop_map(Array::Float),
        vec(any::<f64>(), 0..9).prop_map(Array::Double),
        vec(any::<bool>(), 0..20).prop_map(Array::Boolean),
        vec(text(), 0..5).prop_map(Array::String),
        vec(any::<u64>(), 0..9).prop_map(Array::DateTime),
    ]
}

fn dataset() -> impl Strategy<Value = DataSet> {
    proptest::collection::vec((text(), basic(), basic()), 0..5).prop_map(|columns| DataSet {
        columns: columns.iter().map(|(name, ..)| name.clone()).collect(),
        types: columns.iter().map(|(_, (kind, _), _)| *kind).collect(),
        rows: vec![
            columns
                .iter()
                .map(|(_, (_, value), _)| value.clone())
                .collect(),
            columns.iter().map(|_| Value::Null).collect(),
        ],
    })
}

fn properties() -> impl Strategy<Value = PropertySet> {
    let leaf = proptest::collection::vec((text(), basic()), 0..4).prop_map(|entries| PropertySet {
        entries: entries
            .into_iter()
            .map(|(key, (datatype, value))| Property {
                key,
                datatype,
                value,
            })
            .collect(),
    });
    leaf.prop_recursive(3, 12, 3, |inner| {
        (inner.clone(), inner).prop_map(|(mut outer, inner)| {
            outer.entries.push(Property {
                key: "set".into(),
                datatype: DataType::PropertySet,
                value: Value::PropertySet(Arc::new(inner.clone())),
            });
            outer.entries.push(Property {
                key: "list".into(),
                datatype: DataType::PropertySetList,
                value: Value::PropertySetList(vec![inner, PropertySet::default()].into()),
            });
            outer
        })
    })
}

fn simple_metric() -> impl Strategy<Value = Metric> {
    let value = prop_oneof![
        6 => basic(),
        2 => array().prop_map(|it| (it.datatype(), Value::Array(Arc::new(it)))),
        1 => dataset().prop_map(|it| (DataType::DataSet, Value::DataSet(Arc::new(it)))),
        1 => proptest::collection::vec(any::<u8>(), 0..20)
            .prop_map(|it| (DataType::File, Value::Bytes(it.into()))),
        1 => basic().prop_map(|(kind, _)| (kind, Value::Null)),
    ];
    let times = (proptest::option::of(any::<u64>()), 0..3u8, any::<u16>());
    let marks = (
        any::<bool>(),
        any::<bool>(),
        proptest::option::of(any::<u64>()),
    );
    let extras = (
        proptest::option::of(properties()),
        proptest::option::of((any::<bool>(), any::<u64>(), text())),
        proptest::option::of(prop_oneof![
            Just(quality::BAD),
            Just(quality::GOOD),
            Just(quality::STALE)
        ]),
    );
    (text(), value, times, marks, extras).prop_map(
        |(name, (datatype, value), (timestamp, source, flags), marks, extras)| {
            let (properties, metadata, quality) = extras;
            let properties = match (properties, quality) {
                (Some(mut set), Some(code)) => {
                    set.entries.insert(
                        0,
                        Property {
                            key: "Quality".into(),
                            datatype: DataType::Int32,
                            value: Value::Int(code.into()),
                        },
                    );
                    Some(set)
                }
                (set, _) => set,
            };
            let mut metric = Metric::new(name, datatype, value);
            if let Some(properties) = properties {
                metric = metric.with_properties(properties);
            }
            metric.timestamp = timestamp;
            metric.time_source = match source {
                0 => TimeSource::Metric,
                1 => TimeSource::Payload,
                _ => TimeSource::Arrival,
            };
            metric.flags = MetricFlags::from_bits(flags);
            (metric.historical, metric.transient, metric.alias) = marks;
            metric.metadata = metadata.map(|(part, size, name)| {
                Arc::new(MetaData {
                    is_multi_part: Some(part),
                    size: Some(size),
                    file_name: Some(name),
                    ..MetaData::default()
                })
            });
            metric
        },
    )
}

fn metric() -> impl Strategy<Value = Metric> {
    simple_metric().prop_recursive(2, 8, 3, |inner| {
        let parameters = proptest::collection::vec((text(), basic()), 0..3);
        (
            text(),
            proptest::collection::vec(inner, 0..3),
            parameters,
            any::<bool>(),
        )
            .prop_map(|(name, metrics, parameters, is_definition)| {
                let template = Template {
                    version: Some("1".into()),
                    template_ref: (!is_definition).then(|| "Def".into()),
                    is_definition,
                    parameters: parameters
                        .into_iter()
                        .map(|(name, (datatype, value))| Parameter {
                            name,
                            datatype,
                            value,
                        })
                        .collect(),
                    metrics,
                };
                Metric::new(
                    name,
                    DataType::Template,
                    Value::Template(Arc::new(template)),
                )
            })
    })
}

/// Equality that takes NaN for NaN: the debug forms, in which floats show every bit that matters.
fn same(a: &[Metric], b: &[Metric]) -> bool {
    format!("{a:?}") == format!("{b:?}")
}

proptest! {
    #[test]
    fn journal_form_is_lossless(
        metrics in proptest::collection::vec(metric(), 0..5),
        timestamp in proptest::option::of(any::<u64>()),
        seq in proptest::option::of(any::<u8>()),
        bdseq in proptest::option::of(any::<u64>()),
    ) {
        let bytes = encode_resolved(timestamp, seq, bdseq, &metrics);
        let back = decode_resolved(&bytes).unwrap();
        prop_assert_eq!((back.timestamp, back.seq, back.bdseq), (timestamp, seq, bdseq));
        prop_assert!(same(&back.metrics, &metrics), "{:?}\n{:?}", back.metrics, metrics);
    }

    #[test]
    fn the_generated_code_reads_and_rewrites_ours(metrics in proptest::collection::vec(metric(), 0..4)) {
        let bytes = encode(Some(1), Some(0), &metrics, Form::Full);
        let generated = proto::Payload::decode(&*bytes).unwrap();
        prop_assert_eq!(generated.metrics.len(), metrics.len());
        prop_assert_eq!(generated.seq, Some(0));
        let rewritten = generated.encode_to_vec();
        let ours = decode(&bytes, &Limits::default()).unwrap();
        let theirs = decode(&rewritten, &Limits::default()).unwrap();
        prop_assert_eq!(&ours.rejected, &[]);
        prop_assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
    }

    #[test]
    fn any_bytes_are_read_or_refused_as_the_generated_code_does(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let ours = decode(&bytes, &Limits::default());
        if let Ok(generated) = proto::Payload::decode(&*bytes) {
            let ours = ours.expect("what the generated code reads, we read");
            prop_assert_eq!(ours.timestamp.is_some() || ours.compressed, generated.timestamp.is_some());
        }
    }

    #[test]
    fn seq_wraps(start in any::<u8>(), steps in 0..600usize) {
        let mut seq = Seq::new(start);
        for _ in 0..steps {
            seq = seq.next();
        }
        prop_assert_eq!(seq.get() as usize, (start as usize + steps) % 256);
        prop_assert_eq!(Seq::new(start).ahead(seq) as usize, steps % 256);
        prop_assert_eq!(seq.next().previous(), seq);
    }

    #[test]
    fn topics_print_what_they_parse(group in "[^+/#\0]{1,8}", node in "[^+/#\0]{1,8}", device in "[^+/#\0]{1,8}") {
        for topic in [
            format!("spBv1.0/{group}/NDATA/{node}"),
            format!("spBv1.0/{group}/DBIRTH/{node}/{device}"),
            format!("spBv1.0/STATE/{node}"),
        ] {
            prop_assert_eq!(sparkplug::Topic::parse(&topic).unwrap().to_string(), topic);
        }
    }
}
