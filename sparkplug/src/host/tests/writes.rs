//! NCMD and DCMD.

use super::*;
use crate::value::CoerceError;

fn bench() -> Bench {
    let mut bench = Bench::new();
    bench.nbirth(0, 0);
    let metrics = [
        Metric::new("Limit", DataType::Int16, Value::Int(1)).at(EPOCH),
        Metric::new("Enable", DataType::Boolean, Value::Bool(false))
            .at(EPOCH)
            .aliased(8),
    ];
    bench.send("DBIRTH", 1, &metrics);
    bench.events();
    bench
}

fn write(bench: &mut Bench, metric: &str, value: Value) -> Result<Transmit, WriteError> {
    let now = bench.now;
    bench
        .session
        .write(now, &node_id(), Some("d"), metric, &value)
}

#[test]
fn operational_behavior_data_commands_dcmd_goes_by_alias_or_name_as_the_birth_says() {
    let mut bench = bench();
    for (metric, value, name, alias) in [
        ("Enable", Value::Bool(true), None, Some(8)),
        ("Limit", Value::Double(-3.0), Some("Limit"), None),
    ] {
        let sent = write(&mut bench, metric, value).unwrap();
        assert_eq!(sent.topic, "spBv1.0/g/DCMD/n/d");
        assert_eq!((sent.qos, sent.retain), (0, false));
        let payload = crate::payload::decode(&sent.payload, &Default::default()).unwrap();
        assert_eq!((payload.seq, payload.timestamp), (None, Some(EPOCH)));
        let metric = &payload.metrics[0];
        assert_eq!((metric.name.as_deref(), metric.alias), (name, alias));
        assert!(metric.datatype.is_some());
    }
    let now = bench.now;
    let sent = bench
        .session
        .write(now, &node_id(), None, "Temp", &Value::Int(5))
        .unwrap();
    assert_eq!(sent.topic, "spBv1.0/g/NCMD/n");
}

#[test]
fn operational_behavior_data_commands_dcmd_metric_value_is_checked() {
    let mut bench = bench();
    let int16 = DataType::Int16;
    for (value, error) in [
        (Value::Int(40_000), CoerceError::Range { datatype: int16 }),
        (
            Value::Double(1.5),
            CoerceError::Fraction { datatype: int16 },
        ),
        (
            Value::Double(f64::NAN),
            CoerceError::Fraction { datatype: int16 },
        ),
        (Value::from("1"), CoerceError::Kind { datatype: int16 }),
    ] {
        assert_eq!(write(&mut bench, "Limit", value), Err(error.into()));
    }
}

#[test]
fn writes_to_what_is_not_there_are_refused() {
    let mut bench = bench();
    let now = bench.now;
    let value = Value::Bool(true);
    assert_eq!(
        write(&mut bench, "Nope", value.clone()),
        Err(WriteError::UnknownMetric {
            name: "Nope".into()
        })
    );
    let other = NodeId::new("g", "x").unwrap();
    assert_eq!(
        bench.session.write(now, &other, None, "m", &value),
        Err(WriteError::UnknownNode)
    );
    assert_eq!(
        bench.session.write(now, &node_id(), Some("x"), "m", &value),
        Err(WriteError::UnknownDevice)
    );
    bench.ndeath(0);
    assert_eq!(
        write(&mut bench, "Enable", value.clone()),
        Err(WriteError::Offline)
    );
    bench.session.reconfigure(HostConfig {
        command_devices: false,
        ..HostConfig::default()
    });
    assert_eq!(
        write(&mut bench, "Enable", value),
        Err(WriteError::CommandsDisabled)
    );
}
