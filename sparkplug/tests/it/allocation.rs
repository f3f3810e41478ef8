//! A number costs no allocation: a data message of fifty takes as many as a message of one, and none where the events
//! are given back.

use sparkplug::host::{HostConfig, HostSession, Message, ServerId};
use sparkplug::payload::{Form, encode};
use sparkplug::{DataType, Metric, Value};

fn message<'a>(topic: &'a str, payload: &'a [u8]) -> Message<'a> {
    Message {
        topic,
        payload,
        received_ms: 5,
        client: None,
        server: ServerId(0),
        retained: false,
        will: false,
        tag: 1,
    }
}

#[test]
fn numbers_by_alias_cost_no_allocation() {
    let metrics: Vec<Metric> = (0..50u64)
        .map(|at| {
            let (datatype, value) = match at % 4 {
                0 => (DataType::Double, Value::Double(1.5)),
                1 => (DataType::Int16, Value::Int(-7)),
                2 => (DataType::UInt64, Value::UInt(u64::MAX)),
                _ => (DataType::Boolean, Value::Bool(true)),
            };
            Metric::new(format!("Sensor {at}"), datatype, value)
                .at(5)
                .aliased(at)
        })
        .collect();
    let mut session = HostSession::new(HostConfig::default(), 0);
    let birth = encode(Some(5), Some(0), &metrics, Form::Full);
    session.handle_message(0, &message("spBv1.0/g/NBIRTH/n", &birth));
    let mut seq = 0;
    let mut cost = |metrics: &[Metric]| {
        seq += 1;
        let data = encode(Some(5), Some(seq), metrics, Form::Data);
        while session.poll_event().is_some() {}
        allocation_counter::measure(|| {
            session.handle_message(0, &message("spBv1.0/g/NDATA/n", &data));
        })
        .count_total
    };
    // The first message lists the node as changed.
    cost(&metrics[..1]);
    let one = cost(&metrics[..1]);
    assert_eq!(cost(&metrics), one);
    assert_eq!(one, 1, "the list of metrics and nothing else");
    let mut recycled = |metrics: &[Metric]| {
        seq += 1;
        let data = encode(Some(5), Some(seq), metrics, Form::Data);
        allocation_counter::measure(|| {
            session.handle_message(0, &message("spBv1.0/g/NDATA/n", &data));
            while let Some(event) = session.poll_event() {
                session.recycle(event);
            }
        })
        .count_total
    };
    recycled(&metrics);
    assert_eq!(recycled(&metrics), 0);
    assert_eq!(recycled(&metrics[7..20]), 0, "other metrics than before");
}
