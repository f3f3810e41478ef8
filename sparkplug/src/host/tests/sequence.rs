//! `seq`, the reorder window and rebirth requests.

use super::*;

/// One step of a scenario.
enum Step {
    Birth(u8),
    DeviceBirth(u8),
    Data(u8),
    Death(u64),
    Wait(u64),
}
use Step::*;

fn run(bench: &mut Bench, steps: &[Step]) {
    for step in steps {
        match step {
            Birth(seq) => drop(bench.nbirth(0, *seq)),
            DeviceBirth(seq) => drop(bench.dbirth(*seq)),
            Data(seq) => drop(bench.ddata(*seq, f64::from(*seq))),
            Death(bdseq) => drop(bench.ndeath(*bdseq)),
            Wait(ms) => bench.advance(*ms),
        }
        bench.now += 1;
    }
}

fn check(steps: &[Step], expected: &[&str]) {
    let mut bench = Bench::new();
    run(&mut bench, steps);
    assert_eq!(bench.story(), expected);
}

#[test]
fn operational_behavior_host_reordering_success() {
    check(
        &[
            Birth(0),
            DeviceBirth(1),
            Data(3),
            Wait(1000),
            Data(2),
            Wait(5000),
        ],
        &["nbirth", "dbirth", "ddata 2", "ddata 3"],
    );
}

#[test]
fn operational_behavior_host_reordering_rebirth() {
    check(
        &[
            Birth(0),
            DeviceBirth(1),
            Data(3),
            Wait(2000),
            Data(4),
            Wait(2000),
        ],
        &[
            "nbirth",
            "dbirth",
            "invalid sequence_gap",
            "rebirth reorder_timeout 1",
            "invalid awaiting_rebirth",
        ],
    );
}

#[test]
fn operational_behavior_host_reordering_start_counts_from_the_first_out_of_order() {
    let mut bench = Bench::new();
    run(&mut bench, &[Birth(0), DeviceBirth(1)]);
    bench.now = 100;
    bench.ddata(3, 1.0);
    bench.now = 900;
    bench.ddata(4, 1.0);
    assert_eq!(bench.session.poll_timeout(), Some(2100));
}

#[test]
fn operational_behavior_host_reordering_param_zero_asks_at_once() {
    let config = HostConfig {
        reorder_timeout_ms: 0,
        ..HostConfig::default()
    };
    let mut bench = Bench::with(config);
    run(&mut bench, &[Birth(0), DeviceBirth(1), Data(3)]);
    assert_eq!(
        bench.story(),
        [
            "nbirth",
            "dbirth",
            "invalid sequence_gap",
            "rebirth reorder_timeout 1"
        ]
    );
}

#[test]
fn death_in_the_window_is_handled_at_once() {
    check(
        &[Birth(0), DeviceBirth(1), Data(3), Death(0), Wait(9000)],
        &["nbirth", "dbirth", "ignored superseded", "ndeath death"],
    );
}

#[test]
fn birth_in_the_window_starts_anew() {
    check(
        &[
            Birth(0),
            DeviceBirth(1),
            Data(3),
            Wait(10),
            Birth(0),
            DeviceBirth(1),
            Data(2),
            Wait(9000),
        ],
        &[
            "nbirth",
            "dbirth",
            "nrebirth",
            "ignored superseded",
            "dbirth",
            "ddata 2",
        ],
    );
}

#[test]
fn payloads_sequence_num_incrementing_wraps_inside_the_window() {
    check(
        &[
            Birth(252),
            DeviceBirth(253),
            Data(254),
            Data(0),
            Data(255),
            Data(1),
            Wait(9000),
        ],
        &[
            "nbirth",
            "dbirth",
            "ddata 254",
            "ddata 255",
            "ddata 0",
            "ddata 1",
        ],
    );
}

#[test]
fn payloads_sequence_num_req_nbirth_any_start() {
    check(
        &[Birth(7), DeviceBirth(8), Data(9), Wait(9000)],
        &["nbirth", "dbirth", "ddata 9"],
    );
}

#[test]
fn a_late_duplicate_is_no_gap() {
    let mut bench = Bench::new();
    run(&mut bench, &[Birth(0), DeviceBirth(1)]);
    let payload = encode(Some(bench.wall()), Some(2), &[], Form::Data);
    for _ in 0..2 {
        bench.raw("spBv1.0/g/DDATA/n/d", &payload);
    }
    bench.advance(9000);
    assert_eq!(
        bench.story(),
        ["nbirth", "dbirth", "ddata 2", "ignored duplicate"]
    );
}

#[test]
fn payloads_ddeath_seq_number_takes_part() {
    let mut bench = Bench::new();
    run(&mut bench, &[Birth(0), DeviceBirth(1)]);
    bench.send("DDEATH", 3, &[]);
    bench.ddata(2, 1.0);
    assert_eq!(bench.story(), ["nbirth", "dbirth", "ddata 2", "ddeath"]);
}

#[test]
fn data_before_birth_waits_for_it() {
    check(
        &[Wait(100), Birth(0), DeviceBirth(1)],
        &["nbirth", "dbirth"],
    );
    let mut bench = Bench::new();
    bench.now = 1000;
    let sent_later = encode(
        Some(EPOCH + 999),
        Some(2),
        &[double("", 4.0).aliased(2)],
        Form::Data,
    );
    bench.raw("spBv1.0/g/DDATA/n/d", &sent_later);
    bench.now = 1050;
    let metrics = [bdseq_metric(0).at(EPOCH + 990)];
    let birth = encode(Some(EPOCH + 990), Some(0), &metrics, Form::Full);
    bench.raw("spBv1.0/g/NBIRTH/n", &birth);
    bench.dbirth(1);
    assert_eq!(bench.story(), ["nbirth", "dbirth", "ddata 2"]);
}

#[test]
fn late_data_of_the_run_before_a_rebirth_is_superseded() {
    let mut bench = Bench::new();
    run(&mut bench, &[Birth(0), DeviceBirth(1)]);
    let late = encode(Some(bench.wall()), Some(3), &[], Form::Data);
    bench.now += 10;
    run(&mut bench, &[Birth(0), DeviceBirth(1)]);
    bench.raw("spBv1.0/g/DDATA/n/d", &late);
    run(&mut bench, &[Data(2), Data(3), Wait(9000)]);
    assert_eq!(
        bench.story(),
        [
            "nbirth",
            "dbirth",
            "nrebirth",
            "dbirth",
            "ignored superseded",
            "ddata 2",
            "ddata 3"
        ]
    );
}

#[test]
fn operational_behavior_data_commands_ncmd_rebirth_request_on_the_wire() {
    let mut bench = Bench::new();
    run(&mut bench, &[Birth(0), DeviceBirth(1), Data(3), Wait(2000)]);
    let sent = bench.transmits();
    assert_eq!(sent.len(), 1);
    let request = &sent[0];
    assert_eq!(request.topic, "spBv1.0/g/NCMD/n");
    assert_eq!((request.qos, request.retain), (0, false));
    let payload = crate::payload::decode(&request.payload, &Default::default()).unwrap();
    assert_eq!(payload.seq, None);
    assert!(payload.timestamp.is_some());
    let [metric] = &payload.metrics[..] else {
        panic!("one metric");
    };
    assert_eq!(metric.name.as_deref(), Some("Node Control/Rebirth"));
    assert_eq!(metric.alias, None);
    assert_eq!(metric.datatype, Some(DataType::Boolean));
    assert_eq!(metric.value, Value::Bool(true));
}

#[test]
fn a_thousand_messages_of_an_unknown_node_are_one_request() {
    let mut bench = Bench::new();
    for i in 0..1000u32 {
        bench.ddata((i % 256) as u8, 1.0);
        bench.advance(4);
    }
    let story = bench.story();
    let requests = story.iter().filter(|it| it.starts_with("rebirth")).count();
    assert_eq!(requests, 1, "{story:?}");
    assert_eq!(
        story
            .iter()
            .filter(|it| it.starts_with("invalid data_before_birth"))
            .count()
            + bench.node().parked(),
        1000
    );
}

#[test]
fn a_node_that_ignores_requests_is_asked_at_growing_intervals() {
    let mut bench = Bench::new();
    bench.ddata(0, 1.0);
    let mut at = Vec::new();
    while bench.now < 2_000_000 {
        bench.advance(1_000);
        if bench.story().iter().any(|it| it.starts_with("rebirth")) {
            at.push(bench.now / 1000);
        }
    }
    let gaps: Vec<u64> = at.windows(2).map(|it| it[1] - it[0]).collect();
    assert_eq!(gaps, [5, 10, 20, 40, 80, 160, 300, 300]);
}

#[test]
fn a_storm_of_requests_is_spread() {
    let mut bench = Bench::new();
    for node in 0..200 {
        let topic = format!("spBv1.0/g/NDATA/n{node}");
        bench.raw(&topic, &encode(Some(EPOCH), Some(1), &[], Form::Data));
    }
    bench.advance(2_000);
    let at_once = bench.transmits().len();
    assert_eq!(at_once, 64);
    bench.advance(1_000);
    let in_a_second = bench.transmits().len();
    assert!((19..=21).contains(&in_a_second), "{in_a_second}");
    bench.advance(10_000);
    let servers: std::collections::HashSet<_> = bench
        .events()
        .into_iter()
        .filter_map(|event| match event {
            HostEvent::RebirthRequested { node, .. } => Some(node),
            _ => None,
        })
        .collect();
    assert_eq!(servers.len(), 200);
}

#[test]
fn with_commands_off_nothing_is_asked_and_data_goes_on() {
    let config = HostConfig {
        command_devices: false,
        ..HostConfig::default()
    };
    let mut bench = Bench::with(config);
    run(
        &mut bench,
        &[
            Birth(0),
            DeviceBirth(1),
            Data(3),
            Data(4),
            Wait(2000),
            Data(5),
        ],
    );
    assert_eq!(
        bench.story(),
        ["nbirth", "dbirth", "ddata 3", "ddata 4", "ddata 5"]
    );
    assert!(bench.transmits().is_empty());
}

#[test]
fn a_node_that_never_answers_does_not_stay_dark() {
    let mut bench = Bench::new();
    run(
        &mut bench,
        &[Birth(0), DeviceBirth(1), Data(3), Wait(33_000)],
    );
    bench.story();
    bench.ddata(9, 2.0);
    let Some(HostEvent::DeviceData { record, .. }) = bench.events().into_iter().next() else {
        panic!("no data");
    };
    assert!(
        record.metrics[0]
            .flags
            .contains(crate::MetricFlags::UNVERIFIED)
    );
}

#[test]
fn five_messages_between_request_and_rebirth_cause_no_second_request() {
    let mut bench = Bench::new();
    run(&mut bench, &[Birth(0), DeviceBirth(1), Data(3), Wait(2000)]);
    run(
        &mut bench,
        &[
            Data(4),
            Data(5),
            Data(6),
            Data(7),
            Data(8),
            Birth(0),
            DeviceBirth(1),
            Data(2),
        ],
    );
    bench.advance(60_000);
    let requests = bench.transmits().len();
    assert_eq!(requests, 1);
    assert_eq!(
        bench.device().metric("Pressure").unwrap().value,
        Value::Double(2.0)
    );
}
