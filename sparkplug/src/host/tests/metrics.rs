//! Metrics: names, types, nulls, times, quality, several samples.

use super::*;
use crate::metric::{MetricFlags, TimeSource};
use crate::proto::{Payload, payload};
use prost::Message as _;

use payload::metric::Value as Arm;

fn raw(
    name: Option<&str>,
    alias: Option<u64>,
    datatype: Option<u32>,
    value: Option<Arm>,
) -> payload::Metric {
    payload::Metric {
        name: name.map(str::to_owned),
        alias,
        datatype,
        value,
        ..Default::default()
    }
}

fn send(bench: &mut Bench, verb: &str, seq: u64, metrics: Vec<payload::Metric>) -> Record {
    let payload = Payload {
        timestamp: Some(bench.wall()),
        seq: Some(seq),
        metrics,
        ..Default::default()
    };
    bench.raw(&format!("spBv1.0/g/{verb}/n/d"), &payload.encode_to_vec());
    for event in bench.events() {
        match event {
            HostEvent::DeviceBirth { record, .. } | HostEvent::DeviceData { record, .. } => {
                return record;
            }
            _ => {}
        }
    }
    panic!("no record");
}

fn born(metrics: Vec<payload::Metric>) -> Bench {
    let mut bench = Bench::new();
    bench.nbirth(0, 0);
    bench.events();
    send(&mut bench, "DBIRTH", 1, metrics);
    bench
}

#[test]
fn payloads_metric_datatype_not_req_signed_values_by_name_alias_or_both() {
    let int = Some(Arm::IntValue(4_294_967_284));
    let mut bench = born(vec![raw(Some("T1"), Some(7), Some(3), int.clone())]);
    for (seq, (name, alias, datatype)) in [
        (None, Some(7), None),
        (Some("T1"), Some(7), None),
        (Some("T1"), None, None),
        (Some("T1"), None, Some(3)),
        (None, Some(7), Some(3)),
        // A type that the birth contradicts is flagged, not followed.
        (None, Some(7), Some(7)),
    ]
    .into_iter()
    .enumerate()
    {
        let record = send(
            &mut bench,
            "DDATA",
            seq as u64 + 2,
            vec![raw(name, alias, datatype, int.clone())],
        );
        let metric = &record.metrics[0];
        assert_eq!(metric.value, Value::Int(-12));
        assert_eq!(&*metric.name, "T1");
        assert_eq!(metric.datatype, DataType::Int32);
        assert_eq!(
            metric.flags.contains(MetricFlags::DATATYPE_MISMATCH),
            datatype == Some(7)
        );
    }
}

#[test]
fn payloads_alias_uniqueness_is_over_the_whole_node_and_per_node() {
    let mut bench = born(vec![
        raw(Some("A"), Some(1), Some(10), Some(Arm::DoubleValue(1.0))),
        raw(Some("B"), Some(0), Some(10), Some(Arm::DoubleValue(1.0))),
    ]);
    // 1 is the node's own: the device cannot have it, and the node is asked to put it right.
    assert_eq!(bench.device().metric("A").unwrap().alias, None);
    assert_eq!(bench.device().metric("B").unwrap().alias, Some(0));
    assert_eq!(
        bench.node().last_rebirth_cause(),
        Some(RebirthCause::DuplicateAlias)
    );
    assert_eq!(bench.transmits().len(), 1);
    // The same number on another node is another metric.
    let metrics = [
        bdseq_metric(0).at(EPOCH),
        double("Other", 1.0).at(EPOCH).aliased(1),
    ];
    let birth = encode(Some(EPOCH), Some(0), &metrics, Form::Full);
    bench.raw("spBv1.0/g/NBIRTH/n2", &birth);
    let data = encode(
        Some(EPOCH),
        Some(1),
        &[double("", 9.0).aliased(1)],
        Form::Data,
    );
    bench.raw("spBv1.0/g/NDATA/n2", &data);
    let other = NodeId::new("g", "n2").unwrap();
    let state = bench.session.metric(&other, None, "Other").unwrap();
    assert_eq!(state.value, Value::Double(9.0));
    assert_eq!(
        bench.node().own().metric("Temp").unwrap().value,
        Value::Double(20.0)
    );
}

#[test]
fn unknown_metrics_are_forwarded_or_refused_one_by_one() {
    let mut bench = born(vec![raw(
        Some("A"),
        Some(5),
        Some(10),
        Some(Arm::DoubleValue(1.0)),
    )]);
    let record = send(
        &mut bench,
        "DDATA",
        2,
        vec![
            raw(Some("New"), None, Some(10), Some(Arm::DoubleValue(2.0))),
            raw(Some("Untyped"), None, None, Some(Arm::DoubleValue(2.0))),
            raw(None, Some(99), None, Some(Arm::DoubleValue(2.0))),
            raw(None, None, None, Some(Arm::DoubleValue(2.0))),
            raw(Some("Odd"), None, Some(99), Some(Arm::IntValue(2))),
            raw(None, Some(5), None, Some(Arm::DoubleValue(f64::NAN))),
            raw(None, Some(5), None, Some(Arm::DoubleValue(f64::INFINITY))),
            raw(None, Some(5), None, None),
            raw(None, Some(5), None, Some(Arm::StringValue("x".into()))),
        ],
    );
    let names: Vec<&str> = record.metrics.iter().map(|it| &*it.name).collect();
    assert_eq!(names, ["New", "A", "A"]);
    assert!(
        record.metrics[0]
            .flags
            .contains(MetricFlags::UNKNOWN_IN_BIRTH)
    );
    let reasons: Vec<&str> = record
        .rejected
        .iter()
        .map(|it| it.reason.as_str())
        .collect();
    assert_eq!(
        reasons,
        [
            "unknown_metric",
            "unknown_alias",
            "unnamed",
            "datatype",
            "missing_value",
            "wrong_type"
        ]
    );
    assert_eq!(bench.transmits().len(), 1);
    assert_eq!(
        bench.device().metric("A").unwrap().value,
        Value::Double(f64::INFINITY)
    );
}

#[test]
fn operational_behavior_data_publish_dbirth_values_null_is_said_not_guessed() {
    let mut bench = born(vec![raw(
        Some("A"),
        Some(5),
        Some(12),
        Some(Arm::StringValue("x".into())),
    )]);
    let null = |value| payload::Metric {
        is_null: Some(true),
        ..raw(None, Some(5), None, value)
    };
    let record = send(
        &mut bench,
        "DDATA",
        2,
        vec![null(None), null(Some(Arm::StringValue("y".into())))],
    );
    assert_eq!(record.metrics[0].value, Value::Null);
    assert_eq!(record.metrics[1].value, Value::Null);
    assert!(
        record.metrics[1]
            .flags
            .contains(MetricFlags::NULL_WITH_VALUE)
    );
    let record = send(
        &mut bench,
        "DDATA",
        3,
        vec![
            raw(None, Some(5), None, Some(Arm::StringValue(String::new()))),
            raw(None, Some(5), None, None),
        ],
    );
    assert_eq!(record.metrics[0].value, Value::from(""));
    assert_eq!(record.rejected[0].reason, InvalidReason::MissingValue);
}

#[test]
fn several_samples_keep_their_times_and_history_stays_history() {
    let mut bench = born(vec![raw(
        Some("A"),
        Some(5),
        Some(10),
        Some(Arm::DoubleValue(0.0)),
    )]);
    let sample = |time: u64, value: f64, historical: bool| payload::Metric {
        timestamp: Some(EPOCH + time),
        is_historical: historical.then_some(true),
        ..raw(None, Some(5), None, Some(Arm::DoubleValue(value)))
    };
    let record = send(
        &mut bench,
        "DDATA",
        2,
        vec![
            sample(10, 1.0, false),
            sample(5, 2.0, true),
            sample(11, 3.0, false),
            sample(6, 4.0, true),
        ],
    );
    let times: Vec<u64> = record
        .metrics
        .iter()
        .map(|it| it.timestamp.unwrap() - EPOCH)
        .collect();
    assert_eq!(times, [10, 5, 11, 6]);
    let state = bench.device().metric("A").unwrap();
    assert_eq!(
        (state.value.clone(), state.timestamp),
        (Value::Double(3.0), EPOCH + 11)
    );
}

#[test]
fn times_fall_back_and_are_remarked() {
    let mut bench = born(vec![raw(
        Some("A"),
        Some(5),
        Some(10),
        Some(Arm::DoubleValue(0.0)),
    )]);
    bench.now = 50;
    let at = |timestamp| payload::Metric {
        timestamp,
        ..raw(None, Some(5), None, Some(Arm::DoubleValue(1.0)))
    };
    let future = bench.wall() + 7_200_000;
    let record = send(
        &mut bench,
        "DDATA",
        2,
        vec![
            at(None),
            at(Some(1_700_000_000)),
            at(Some(future)),
            at(Some(400)),
        ],
    );
    let seen: Vec<_> = record
        .metrics
        .iter()
        .map(|it| (it.timestamp.unwrap(), it.time_source, it.flags))
        .collect();
    assert_eq!(
        seen,
        [
            (EPOCH + 50, TimeSource::Payload, MetricFlags::NONE),
            (EPOCH, TimeSource::Metric, MetricFlags::TIME_IN_SECONDS),
            (future, TimeSource::Metric, MetricFlags::TIME_IN_FUTURE),
            (400, TimeSource::Metric, MetricFlags::NONE),
        ]
    );
    let payload = Payload {
        seq: Some(3),
        metrics: vec![at(None)],
        ..Default::default()
    };
    bench.raw("spBv1.0/g/DDATA/n/d", &payload.encode_to_vec());
    let Some(HostEvent::DeviceData { record, .. }) = bench.events().pop() else {
        panic!("no data");
    };
    assert_eq!(record.metrics[0].time_source, TimeSource::Arrival);
    assert_eq!(record.timestamp, EPOCH + 50);
}

#[test]
fn payloads_propertyset_quality_declared_by_the_node_and_stale_by_the_host_stay_apart() {
    let quality = |code| payload::PropertySet {
        keys: vec!["Quality".into()],
        values: vec![payload::PropertyValue {
            r#type: Some(3),
            value: Some(payload::property_value::Value::IntValue(code)),
            ..Default::default()
        }],
    };
    let mut bench = born(vec![payload::Metric {
        properties: Some(quality(192)),
        ..raw(Some("A"), Some(5), Some(10), Some(Arm::DoubleValue(0.0)))
    }]);
    for (seq, code) in [(2, 500), (3, 0), (4, 77)] {
        let record = send(
            &mut bench,
            "DDATA",
            seq,
            vec![payload::Metric {
                properties: Some(quality(code)),
                ..raw(None, Some(5), None, Some(Arm::DoubleValue(0.0)))
            }],
        );
        assert_eq!(record.metrics[0].quality, Some(code as i32));
        assert_eq!(
            record.metrics[0]
                .flags
                .contains(MetricFlags::QUALITY_UNKNOWN),
            code == 77
        );
        let state = bench.device().metric("A").unwrap();
        assert_eq!((state.quality, state.stale), (Some(code as i32), false));
    }
    bench.ndeath(0);
    let state = bench.device().metric("A").unwrap();
    assert_eq!((state.quality, state.stale), (Some(77), true));
}

#[test]
fn payloads_template_instance_members_data_are_merged() {
    let member =
        |name: &str, value: f64| raw(Some(name), None, Some(10), Some(Arm::DoubleValue(value)));
    let template = |reference: Option<&str>, metrics| {
        Arm::TemplateValue(payload::Template {
            metrics,
            template_ref: reference.map(str::to_owned),
            is_definition: Some(reference.is_none()),
            ..Default::default()
        })
    };
    let mut bench = Bench::new();
    let definition = template(None, vec![member("rpm", 0.0), member("amps", 0.0)]);
    let nbirth = Payload {
        timestamp: Some(EPOCH),
        seq: Some(0),
        metrics: vec![
            raw(Some("bdSeq"), None, Some(4), Some(Arm::LongValue(0))),
            raw(Some("Motor"), None, Some(19), Some(definition)),
        ],
        ..Default::default()
    };
    bench.raw("spBv1.0/g/NBIRTH/n", &nbirth.encode_to_vec());
    let full = template(
        Some("Motor"),
        vec![member("rpm", 10.0), member("amps", 2.0)],
    );
    send(
        &mut bench,
        "DBIRTH",
        1,
        vec![raw(Some("M1"), Some(5), Some(19), Some(full))],
    );
    // Data may leave out names' types too: the definition has them.
    let untyped = raw(Some("rpm"), None, None, Some(Arm::DoubleValue(11.0)));
    let part = template(Some("Motor"), vec![untyped]);
    let record = send(
        &mut bench,
        "DDATA",
        2,
        vec![raw(None, Some(5), None, Some(part))],
    );
    let Value::Template(merged) = &record.metrics[0].value else {
        panic!("no template");
    };
    let mut flat = Vec::new();
    merged.flatten("M1", &mut |name, metric| {
        flat.push((
            name.to_owned(),
            metric.value.clone(),
            metric.flags.contains(MetricFlags::UNCHANGED),
        ));
    });
    assert_eq!(
        flat,
        [
            ("M1/rpm".into(), Value::Double(11.0), false),
            ("M1/amps".into(), Value::Double(2.0), true)
        ]
    );
}

#[test]
fn bad_bytes_are_refused_by_reason_and_neighbours_pass() {
    let mut bench = Bench::new();
    bench.nbirth(0, 0);
    bench.raw("spBv1.0/g/DBIRTH/n", &[]);
    bench.raw("spBv1.0/g/NDATA/n", &[0x12, 0x50, 1, 2]);
    bench.raw("other/topic", &[]);
    bench.send("NDATA", 1, &[double("", 2.0).aliased(1)]);
    assert_eq!(
        bench.story(),
        [
            "nbirth",
            "invalid topic",
            "rebirth undecodable 1",
            "invalid payload",
            "invalid topic",
            "ndata 1"
        ]
    );
}

#[test]
fn payloads_template_definition_nbirth_only() {
    let definition = Arm::TemplateValue(payload::Template {
        metrics: vec![raw(Some("rpm"), None, Some(3), None)],
        is_definition: Some(true),
        ..Default::default()
    });
    let mut bench = born(vec![raw(Some("Motor"), None, Some(19), Some(definition))]);
    // A definition that comes with a device defines nothing: the member stays untyped.
    let instance = Arm::TemplateValue(payload::Template {
        metrics: vec![raw(
            Some("rpm"),
            None,
            None,
            Some(Arm::IntValue(4_294_967_284)),
        )],
        template_ref: Some("Motor".into()),
        is_definition: Some(false),
        ..Default::default()
    });
    let record = send(
        &mut bench,
        "DDATA",
        2,
        vec![raw(Some("M1"), None, Some(19), Some(instance))],
    );
    let Value::Template(template) = &record.metrics[0].value else {
        panic!("no template");
    };
    assert_eq!(template.metrics[0].value, Value::UInt(4_294_967_284));
    assert!(template.metrics[0].flags.contains(MetricFlags::NO_DATATYPE));
}

/// What comes out is the same whether events are given back or not, whatever was in the list before.
#[test]
fn a_list_that_was_given_back_leaves_no_trace() {
    let born = || {
        let metric = |name, alias, datatype: DataType, value| {
            raw(Some(name), Some(alias), Some(datatype.code()), Some(value))
        };
        born(vec![
            metric("a", 11, DataType::Double, Arm::DoubleValue(1.0)),
            metric("b", 12, DataType::Int32, Arm::IntValue(1)),
            metric("c", 13, DataType::String, Arm::StringValue("x".into())),
        ])
    };
    let (mut kept, mut given_back) = (born(), born());
    let number = |alias: u64| payload::Metric {
        timestamp: Some(EPOCH),
        ..raw(
            None,
            Some(alias),
            None,
            Some(match alias {
                11 => Arm::DoubleValue(2.5),
                _ => Arm::IntValue(7),
            }),
        )
    };
    let text = payload::Metric {
        is_transient: Some(true),
        properties: Some(payload::PropertySet {
            keys: vec!["Quality".into()],
            values: vec![payload::PropertyValue {
                r#type: Some(3),
                value: Some(payload::property_value::Value::IntValue(500)),
                ..Default::default()
            }],
        }),
        ..raw(None, Some(13), None, Some(Arm::StringValue("y".into())))
    };
    let past = payload::Metric {
        is_historical: Some(true),
        ..number(11)
    };
    let unknown = payload::Metric {
        alias: Some(99),
        ..number(12)
    };
    let payloads = [
        vec![number(11), number(12)],
        vec![text.clone(), past.clone(), number(12)],
        vec![number(11), number(12), number(11)],
        vec![number(12)],
        vec![unknown, number(11), text],
        vec![number(12), number(11), past],
    ];
    for (seq, metrics) in (2..).zip(payloads) {
        for bench in [&mut kept, &mut given_back] {
            let payload = Payload {
                timestamp: Some(EPOCH),
                seq: Some(seq),
                metrics: metrics.clone(),
                ..Default::default()
            };
            bench.raw("spBv1.0/g/DDATA/n/d", &payload.encode_to_vec());
        }
        let events = given_back.events();
        assert_eq!(kept.events(), events, "seq {seq}");
        for event in events {
            given_back.session.recycle(event);
        }
    }
}

/// However many devices there are, what they keep for their next message is bounded.
#[test]
fn lists_that_were_given_back_are_bounded_together() {
    let mut bench = Bench::new();
    let metrics: Vec<Metric> = (0..250u64)
        .map(|at| double(&format!("m{at}"), 1.0).at(EPOCH).aliased(at + 1))
        .collect();
    let mut most = 0;
    for node in 0..1_200 {
        for (seq, verb) in [(0, "NBIRTH"), (1, "NDATA")] {
            let form = if seq == 0 { Form::Full } else { Form::Data };
            let payload = encode(Some(EPOCH), Some(seq), &metrics, form);
            let message = Message {
                topic: &format!("spBv1.0/g/{verb}/n{node}"),
                payload: &payload,
                received_ms: EPOCH,
                client: None,
                server: ServerId(0),
                retained: false,
                will: false,
                tag: 1,
            };
            bench.session.handle_message(0, &message);
        }
        for event in bench.events() {
            bench.session.recycle(event);
        }
        most = most.max(bench.session.spares());
        assert!(most <= 2 * super::super::recycle::TOGETHER);
    }
    assert!(most > 200_000, "{most} metrics were kept, at most");
    assert!(bench.session.spares() < most, "and let go");
}
