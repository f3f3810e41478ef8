//! Births, deaths and who holds the session.

use super::*;
use crate::metric::MetricFlags;

#[test]
fn a_node_its_device_and_data_by_alias() {
    let mut bench = Bench::new();
    bench.nbirth(0, 0);
    bench.dbirth(1);
    bench.now = 5;
    bench.ddata(2, 3.5);
    assert_eq!(bench.story(), ["nbirth", "dbirth", "ddata 2"]);
    let metric = bench.device().metric("Pressure").unwrap();
    assert_eq!(metric.value, Value::Double(3.5));
    assert_eq!(metric.timestamp, EPOCH + 5);
    assert_eq!(bench.node().last_seq(), Some(2));
}

#[test]
fn payloads_ndeath_bdseq_of_an_older_session_is_ignored() {
    let mut bench = Bench::new();
    for bdseq in [5, 6] {
        bench.now += 5_000;
        bench.nbirth(bdseq, 0);
    }
    bench.ndeath(5);
    bench.ndeath(6);
    bench.ndeath(6);
    assert_eq!(
        bench.story(),
        [
            "nbirth",
            "nbirth",
            "ignored stale_death",
            "ndeath death",
            "ignored repeated_death"
        ]
    );
}

#[test]
fn bdseq_wraps_without_being_older() {
    let mut bench = Bench::new();
    bench.nbirth(255, 0);
    bench.now += 5_000;
    bench.nbirth(0, 0);
    bench.ndeath(255);
    assert!(bench.node().own().online());
    bench.ndeath(0);
    assert!(!bench.node().own().online());
}

#[test]
fn message_flow_edge_node_birth_publish_nbirth_payload_bdseq_in_any_integer_field() {
    for (datatype, value) in [
        (DataType::Int64, Value::Int(3)),
        (DataType::UInt64, Value::UInt(3)),
        (DataType::Int8, Value::Int(3)),
        (DataType::UInt8, Value::UInt(3)),
    ] {
        let mut bench = Bench::new();
        let metric = Metric::new("bdSeq", datatype, value).at(EPOCH);
        bench.send("NBIRTH", 0, &[metric]);
        bench.ndeath(3);
        assert_eq!(bench.story(), ["nbirth", "ndeath death"], "{datatype}");
    }
}

#[test]
fn a_death_without_bdseq_or_of_an_unknown_node_changes_nothing() {
    let mut bench = Bench::new();
    bench.ndeath(0);
    bench.nbirth(0, 0);
    bench.raw(
        "spBv1.0/g/NDEATH/n",
        &encode(Some(1), None, &[], Form::Full),
    );
    assert_eq!(
        bench.story(),
        [
            "invalid unknown_node",
            "nbirth",
            "invalid death_without_bdseq"
        ]
    );
    assert!(bench.node().own().online());
}

#[test]
fn operational_behavior_edge_node_termination_host_action_ndeath() {
    let mut bench = Bench::new();
    bench.nbirth(0, 0);
    bench.dbirth(1);
    bench.now = 7_000;
    // The payload's time is that of the CONNECT, long ago: the host's clock counts.
    bench.ndeath(0);
    let at = EPOCH + 7_000;
    for view in [bench.node().own(), bench.device()] {
        assert!(!view.online());
        assert_eq!(view.since_ms(), at);
        assert!(
            view.metrics()
                .iter()
                .all(|it| it.stale && it.stale_since_ms == at)
        );
        assert_eq!(view.deaths(), 1);
    }
    let Some(HostEvent::NodeDeath { at_ms, devices, .. }) = bench.events().pop() else {
        panic!("no death");
    };
    assert_eq!((at_ms, devices.len()), (at, 1));
}

#[test]
fn operational_behavior_edge_node_termination_host_action_ddeath() {
    let mut bench = Bench::new();
    bench.nbirth(0, 0);
    bench.dbirth(1);
    let payload = encode(Some(EPOCH + 40), Some(2), &[], Form::Data);
    bench.now = 90;
    bench.raw("spBv1.0/g/DDEATH/n/d", &payload);
    assert_eq!(bench.device().since_ms(), EPOCH + 40);
    assert!(bench.device().metrics().iter().all(|it| it.stale));
    assert!(bench.node().own().online());
    assert!(bench.node().own().metrics().iter().all(|it| !it.stale));
    // Data of a device that is down: not guessed at.
    bench.story();
    bench.ddata(3, 1.0);
    assert_eq!(
        bench.story(),
        ["invalid unknown_device", "rebirth unknown_device 1"]
    );
}

#[test]
fn nbirth_leaves_devices_stale_until_their_own_birth() {
    let mut bench = Bench::new();
    bench.nbirth(0, 0);
    bench.dbirth(1);
    bench.now = 5_000;
    bench.nbirth(0, 0);
    assert!(!bench.device().online());
    assert!(bench.device().metrics().iter().all(|it| it.stale));
    bench.advance(10_000);
    assert_eq!(bench.story(), ["nbirth", "dbirth", "nrebirth", "missing 1"]);
    bench.dbirth(1);
    assert!(bench.device().online());
}

#[test]
fn a_rebirth_that_says_nothing_new_is_marked() {
    let mut bench = Bench::new();
    bench.nbirth(0, 0);
    bench.now = 5_000;
    bench.nbirth(0, 0);
    bench.now = 10_000;
    let metrics = [
        bdseq_metric(0).at(bench.wall()),
        double("Temp", 21.0).at(bench.wall()).aliased(1),
        double("New", 1.0).at(bench.wall()).aliased(9),
    ];
    bench.send("NBIRTH", 0, &metrics);
    let births: Vec<_> = bench
        .events()
        .into_iter()
        .map(|event| match event {
            HostEvent::NodeBirth { record, schema, .. } => (
                record
                    .metrics
                    .iter()
                    .map(|it| it.flags.contains(MetricFlags::UNCHANGED))
                    .collect::<Vec<_>>(),
                schema.map(|it| (it.version, it.change, it.added.len())),
            ),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        births,
        [
            (vec![false, false], Some((1, SchemaImpact::Additive, 2))),
            (vec![true, true], None),
            (
                vec![true, false, false],
                Some((2, SchemaImpact::Additive, 1))
            ),
        ]
    );
}

#[test]
fn a_retained_birth_is_not_live() {
    let mut bench = Bench::new();
    let payload = encode(
        Some(EPOCH),
        Some(0),
        &[bdseq_metric(0).at(EPOCH)],
        Form::Full,
    );
    bench.deliver("spBv1.0/g/NBIRTH/n", &payload, |it| it.retained = true);
    assert_eq!(bench.story(), ["invalid retained"]);
    assert_eq!(bench.session.nodes().count(), 0);
}

#[test]
fn intro_edge_node_id_uniqueness_two_clients_are_named() {
    let mut bench = Bench::new();
    let birth = |bench: &mut Bench, client: &str| {
        let metrics = [bdseq_metric(0).at(bench.wall())];
        let payload = encode(Some(bench.wall()), Some(0), &metrics, Form::Full);
        bench.deliver("spBv1.0/g/NBIRTH/n", &payload, |it| {
            it.client = Some(client.into());
        });
    };
    birth(&mut bench, "a");
    bench.now += 5_000;
    birth(&mut bench, "b");
    let data = encode(Some(bench.wall()), Some(1), &[], Form::Data);
    for _ in 0..3 {
        bench.deliver("spBv1.0/g/NDATA/n", &data, |it| {
            it.client = Some("a".into())
        });
    }
    assert_eq!(
        bench.story(),
        [
            "nbirth",
            "nrebirth",
            "clash b a",
            "invalid duplicate_identity",
            "invalid duplicate_identity",
            "invalid duplicate_identity"
        ]
    );
    // The will of the client that lost is not the death of the one that holds the session.
    let will = encode(Some(0), None, &[bdseq_metric(0)], Form::Full);
    bench.deliver("spBv1.0/g/NDEATH/n", &will, |it| {
        it.client = Some("a".into())
    });
    assert!(bench.node().own().online());
}

#[test]
fn a_duplicated_or_overtaken_birth_is_not_a_new_one() {
    let mut bench = Bench::new();
    bench.now = 10;
    bench.nbirth(1, 0);
    bench.dbirth(1);
    bench.nbirth(1, 0);
    let old = encode(
        Some(EPOCH),
        Some(0),
        &[bdseq_metric(0).at(EPOCH)],
        Form::Full,
    );
    bench.raw("spBv1.0/g/NBIRTH/n", &old);
    bench.ddata(2, 1.0);
    assert_eq!(
        bench.story(),
        [
            "nbirth",
            "dbirth",
            "ignored duplicate",
            "ignored superseded",
            "ddata 2"
        ]
    );
    assert_eq!(bench.node().bdseq(), Some(1));
}

#[test]
fn the_limits_on_nodes_devices_and_metrics_hold() {
    let mut config = HostConfig::default();
    config.limits.max_nodes = 1;
    config.limits.max_devices = 1;
    config.limits.max_metrics = 3;
    let mut bench = Bench::with(config);
    bench.nbirth(0, 0);
    bench.dbirth(1);
    let payload = encode(Some(EPOCH), Some(2), &[], Form::Full);
    bench.raw("spBv1.0/g/DBIRTH/n/second", &payload);
    let many = [double("a", 1.0), double("b", 1.0), double("c", 1.0)];
    let payload = encode(Some(EPOCH), Some(3), &many, Form::Full);
    bench.raw("spBv1.0/g/DBIRTH/n/d", &payload);
    bench.raw("spBv1.0/g/NBIRTH/other", &payload);
    assert_eq!(
        bench.story(),
        [
            "nbirth",
            "dbirth",
            "invalid too_many_devices",
            "dbirth",
            "invalid too_many_nodes"
        ]
    );
    assert_eq!(bench.device().metrics().len(), 1);
}

#[test]
fn topic_structure_namespace_duplicate_device_id_across_edge_node() {
    let mut bench = Bench::new();
    for (node, value) in [("n1", 1.0), ("n2", 2.0)] {
        let birth = encode(
            Some(EPOCH),
            Some(0),
            &[bdseq_metric(0).at(EPOCH)],
            Form::Full,
        );
        bench.raw(&format!("spBv1.0/g/NBIRTH/{node}"), &birth);
        let metric = double("Pressure", value).at(EPOCH);
        let birth = encode(Some(EPOCH), Some(1), &[metric], Form::Full);
        bench.raw(&format!("spBv1.0/g/DBIRTH/{node}/d"), &birth);
        // The same id again is the same device.
        let birth = encode(
            Some(EPOCH + 1),
            Some(2),
            &[double("Pressure", value)],
            Form::Full,
        );
        bench.raw(&format!("spBv1.0/g/DBIRTH/{node}/d"), &birth);
    }
    for (node, value) in [("n1", 1.0), ("n2", 2.0)] {
        let id = NodeId::new("g", node).unwrap();
        assert_eq!(bench.session.node(&id).unwrap().devices().count(), 1);
        let state = bench.session.metric(&id, Some("d"), "Pressure").unwrap();
        assert_eq!(state.value, Value::Double(value));
    }
}

#[test]
fn case_sensitivity_ids_and_names_are_kept_apart() {
    let mut bench = Bench::new();
    let metrics = [
        bdseq_metric(0).at(EPOCH),
        double("temp", 1.0).at(EPOCH),
        double("TEMP", 2.0).at(EPOCH),
    ];
    let birth = encode(Some(EPOCH), Some(0), &metrics, Form::Full);
    for topic in ["spBv1.0/g/NBIRTH/n", "spBv1.0/G/NBIRTH/n"] {
        bench.raw(topic, &birth);
    }
    assert_eq!(bench.session.nodes().count(), 2);
    let own = bench.node().own();
    assert_eq!(own.metric("temp").unwrap().value, Value::Double(1.0));
    assert_eq!(own.metric("TEMP").unwrap().value, Value::Double(2.0));
}

/// Trap 37: DBIRTH alone, late or repeated, is as good as one right after NBIRTH; other metrics come with DDEATH and
/// DBIRTH, and what is gone is gone with its alias.
#[test]
fn a_device_is_born_again_at_any_time_and_with_other_metrics() {
    let mut bench = Bench::new();
    bench.nbirth(0, 0);
    for seq in 1..5 {
        bench.send("NDATA", seq, &[double("", 1.0).at(bench.wall()).aliased(1)]);
    }
    bench.now += 60_000;
    bench.dbirth(5);
    bench.dbirth(6);
    bench.ddata(7, 2.0);
    bench.send("DDEATH", 8, &[]);
    let (flow, speed) = (double("Flow", 4.0), double("Speed", 5.0));
    let at = bench.wall();
    // The number that stood for Pressure stands for another metric now.
    bench.send(
        "DBIRTH",
        9,
        &[flow.at(at).aliased(2), speed.at(at).aliased(3)],
    );
    bench.ddata(10, 6.0);
    assert_eq!(
        bench.story(),
        [
            "nbirth", "ndata 1", "ndata 2", "ndata 3", "ndata 4", "dbirth", "dbirth", "ddata 7",
            "ddeath", "dbirth", "ddata 10"
        ]
    );
    assert!(bench.transmits().is_empty(), "nothing is asked");
    let device = bench.device();
    assert!(device.online());
    assert_eq!((device.births(), device.schema()), (3, 2));
    assert!(device.metric("Pressure").is_none());
    assert_eq!(device.metric("Flow").unwrap().value, Value::Double(6.0));
    assert_eq!(device.metric("Speed").unwrap().value, Value::Double(5.0));
}
