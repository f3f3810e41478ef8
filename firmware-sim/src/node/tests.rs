use super::*;
use crate::codec::Sample;
use crate::fault::Rebirth;
use sparkplug_rs::Payload;
use sparkplug_rs::protobuf::Message as _;

fn node() -> Node {
    Node::new(&NodeConfig {
        group: "g".into(),
        name: "n".into(),
        devices: vec!["a".into(), "b".into()],
        metrics: 10,
        seed: 1,
        place: 0,
        primary_host: None,
        servers: 1,
        structured: false,
    })
    .unwrap()
}

fn payload(bytes: &[u8]) -> Payload {
    Payload::parse_from_bytes(bytes).unwrap()
}

#[test]
fn births_come_in_order_with_one_seq_for_all() {
    let mut node = node();
    let will = node.connect(5);
    let births = node.ready(5);
    let topics: Vec<&str> = births.iter().map(|m| m.topic.as_str()).collect();
    assert_eq!(
        topics,
        [
            "spBv1.0/g/NBIRTH/n",
            "spBv1.0/g/DBIRTH/n/a",
            "spBv1.0/g/DBIRTH/n/b"
        ]
    );
    let seqs: Vec<u64> = births.iter().map(|m| payload(&m.payload).seq()).collect();
    assert_eq!(seqs, [0, 1, 2]);
    assert_eq!(
        payload(&will.payload).metrics[0].long_value(),
        payload(&births[0].payload).metrics[0].long_value()
    );
    assert!(!payload(&will.payload).has_seq());
    let aliases: Vec<u64> = births[1..]
        .iter()
        .flat_map(|m| {
            payload(&m.payload)
                .metrics
                .iter()
                .map(|x| x.alias())
                .collect::<Vec<_>>()
        })
        .collect();
    let mut unique = aliases.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(
        unique.len(),
        aliases.len(),
        "aliases are unique over the node"
    );
}

#[test]
fn bdseq_rises_with_every_connect() {
    let mut node = node();
    let all: Vec<u64> = (0..3)
        .map(|_| payload(&node.connect(1).payload).metrics[0].long_value())
        .collect();
    assert_eq!(all, [0, 1, 2]);
}

#[test]
fn a_rebirth_repeats_births_without_death_and_with_the_same_bdseq() {
    let mut node = node();
    node.connect(1);
    node.ready(1);
    node.step(0.1, 2);
    let ask = codec::encode(
        3,
        None,
        &[Sample {
            name: REBIRTH,
            alias: None,
            value: Value::Bool(true),
            timestamp: 3,
            unit: None,
        }],
        Form::Birth,
    );
    let again = node.handle_message("spBv1.0/g/NCMD/n", &ask, 3);
    assert_eq!(again.len(), 3);
    let birth = payload(&again[0].payload);
    assert_eq!((birth.seq(), birth.metrics[0].long_value()), (0, 0));
}

#[test]
fn a_write_is_echoed_at_once_and_unknown_commands_are_survived() {
    let mut node = node();
    node.connect(1);
    node.ready(1);
    let write = codec::encode(
        3,
        None,
        &[Sample {
            name: "Cooling/Enable",
            alias: None,
            value: Value::Bool(true),
            timestamp: 3,
            unit: None,
        }],
        Form::Birth,
    );
    let echo = node.handle_message("spBv1.0/g/DCMD/n/a", &write, 3);
    assert_eq!(echo.len(), 1);
    assert_eq!(echo[0].topic, "spBv1.0/g/DDATA/n/a");
    assert!(
        node.handle_message("spBv1.0/g/DCMD/n/zzz", &write, 3)
            .is_empty()
    );
    assert!(
        node.handle_message("spBv1.0/g/NCMD/n", &[1, 2, 3], 3)
            .is_empty()
    );
    assert_eq!(node.counts().writes, 1);
}

#[test]
fn seq_wraps_after_255() {
    let mut node = node();
    node.connect(1);
    node.ready(1);
    let mut last = 2;
    for i in 0..600 {
        for message in node.step(0.1, i) {
            let seq = payload(&message.payload).seq();
            assert_eq!(seq, (last + 1) % 256);
            last = seq;
        }
    }
}

#[test]
fn a_node_leaves_with_its_host_and_waits_for_it_with_the_next_bdseq() {
    let mut node = Node::new(&NodeConfig {
        group: "g".into(),
        name: "n".into(),
        devices: vec!["a".into()],
        metrics: 10,
        seed: 1,
        place: 0,
        primary_host: Some("h".into()),
        servers: 1,
        structured: false,
    })
    .unwrap();
    let topic = "spBv1.0/STATE/h";
    let state =
        |online: bool, at: u64| format!("{{\"online\":{online},\"timestamp\":{at}}}").into_bytes();
    node.connect(1);
    assert!(
        node.handle_message(topic, &state(true, 5), 1).is_empty(),
        "not before the subscriptions stand"
    );
    assert_eq!(node.ready(1).len(), 2, "but it is not forgotten");
    let death = node.handle_message(topic, &state(false, 6), 2);
    assert_eq!(
        death.iter().map(|m| m.topic.as_str()).collect::<Vec<_>>(),
        ["spBv1.0/g/NDEATH/n"]
    );
    assert!(node.is_leaving() && !node.is_born());
    node.disconnected();

    assert_eq!(payload(&node.connect(3).payload).metrics[0].long_value(), 1);
    assert!(node.ready(3).is_empty());
    assert!(node.handle_message(topic, &state(false, 7), 3).is_empty());
    assert!(!node.is_leaving(), "waiting needs no new connection");
    assert!(
        node.handle_message(topic, &state(true, 6), 4).is_empty(),
        "older than the death"
    );
    let births = node.handle_message(topic, &state(true, 8), 5);
    assert_eq!(payload(&births[0].payload).metrics[0].long_value(), 1);
}

#[test]
fn a_device_dies_and_is_born_again_without_a_gap_in_seq() {
    let mut node = node();
    node.connect(1);
    let mut all = node.ready(1);
    node.device_death("a");
    let dead = node.step(0.1, 2);
    let topics: Vec<&str> = dead.iter().map(|m| m.topic.as_str()).collect();
    assert_eq!(topics, ["spBv1.0/g/DDEATH/n/a", "spBv1.0/g/DDATA/n/b"]);
    all.extend(dead);
    node.device_birth("a");
    let alive = node.step(0.1, 3);
    assert_eq!(alive[0].topic, "spBv1.0/g/DBIRTH/n/a");
    all.extend(alive);
    let seqs: Vec<u64> = all.iter().map(|m| payload(&m.payload).seq()).collect();
    assert_eq!(seqs, (0..all.len() as u64).collect::<Vec<_>>());
}

#[test]
fn a_rebirth_request_can_be_ignored_or_answered_with_a_death() {
    let ask = codec::encode(
        3,
        None,
        &[Sample {
            name: REBIRTH,
            alias: None,
            value: Value::Bool(true),
            timestamp: 3,
            unit: None,
        }],
        Form::Birth,
    );
    for (how, first, count) in [
        (Rebirth::Ignore, None, 0),
        (Rebirth::WithDeath, Some("spBv1.0/g/NDEATH/n"), 4),
    ] {
        let mut node = node();
        node.connect(1);
        node.ready(1);
        node.twist().rebirth = how;
        let out = node.handle_message("spBv1.0/g/NCMD/n", &ask, 3);
        assert_eq!(
            (out.first().map(|m| m.topic.as_str()), out.len()),
            (first, count),
            "{how:?}"
        );
    }
}

#[test]
fn data_kept_back_comes_later_as_historical_with_its_own_timestamps() {
    let mut node = node();
    node.connect(1);
    node.ready(1);
    node.twist().store = true;
    assert!((2..5).all(|at| node.step(0.1, at).is_empty()));
    node.twist().store = false;
    let out = node.step(0.1, 9);
    assert_eq!(out.len(), 4, "history of two devices, then their data");
    let history = payload(&out[0].payload);
    assert!(history.metrics.iter().all(|m| m.is_historical()));
    let alias = history.metrics[0].alias();
    let times: Vec<u64> = history
        .metrics
        .iter()
        .filter(|m| m.alias() == alias)
        .map(|m| m.timestamp())
        .collect();
    assert_eq!(times, [2, 3, 4]);
    assert!(
        payload(&out[2].payload)
            .metrics
            .iter()
            .all(|m| !m.is_historical())
    );
}

#[test]
fn structured_nodes_define_their_templates_in_nbirth_and_send_parts_of_them() {
    let mut node = Node::new(&NodeConfig {
        group: "g".into(),
        name: "n".into(),
        devices: vec!["a".into()],
        metrics: 10,
        seed: 1,
        place: 0,
        primary_host: None,
        servers: 1,
        structured: true,
    })
    .unwrap();
    node.connect(1);
    let births = node.ready(1);
    let nbirth = payload(&births[0].payload);
    let named = |name: &str| {
        let found = nbirth.metrics.iter().find(|it| it.name() == name);
        found.unwrap_or_else(|| panic!("no {name}")).clone()
    };
    assert!(named("Types/Motor").template_value().is_definition());
    assert_eq!(
        named("Motor").template_value().template_ref(),
        "Types/Motor"
    );
    assert_eq!(named("Recipe").dataset_value().rows.len(), 3);
    let temperature = &payload(&births[1].payload).metrics[0];
    assert_eq!(temperature.properties.keys, ["Quality", "engUnit"]);
    let data = (0..10)
        .flat_map(|round| node.step(0.1, 2 + round))
        .find(|message| message.topic == "spBv1.0/g/NDATA/n")
        .expect("NDATA");
    let part = payload(&data.payload);
    assert_eq!(part.metrics[0].alias(), named("Motor").alias());
    assert_eq!(part.metrics[0].template_value().metrics.len(), 1);
    assert!(!part.metrics[0].has_name());
}
