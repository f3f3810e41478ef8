//! An edge node's session.

use super::*;

fn session(primary: Option<&str>) -> EdgeSession {
    let mut session = EdgeSession::new(EdgeConfig {
        node: NodeId::new("g", "n").unwrap(),
        primary_host: primary.map(Arc::from),
        servers: 2,
        first_bdseq: 0,
    });
    session.add_device("d");
    session
}

fn words(action: &EdgeAction) -> Vec<String> {
    match action {
        EdgeAction::None => vec![],
        EdgeAction::Send(sent) => sent.iter().map(word).collect(),
        EdgeAction::Leave { death, server } => death
            .iter()
            .map(word)
            .chain([format!("to server {server}")])
            .collect(),
    }
}

fn word(out: &Outgoing) -> String {
    let verb = out.topic.split('/').nth(2).unwrap();
    match out.seq {
        Some(seq) => format!("{verb} {seq}"),
        None => verb.to_owned(),
    }
}

#[test]
fn topics_nbirth_bdseq_increment_and_wrap() {
    let mut session = session(None);
    for connect in 0..300u32 {
        let will = session.connect();
        assert_eq!(u32::from(will.bdseq), connect % 256);
        assert_eq!((will.qos, will.retain), (1, false));
        assert_eq!(will.topic, "spBv1.0/g/NDEATH/n");
        // A CONNECT that fails counts as well.
        if connect % 3 == 0 {
            continue;
        }
        let births = session.ready();
        assert_eq!(words(&births), ["NBIRTH 0", "DBIRTH 1"]);
        let EdgeAction::Send(births) = births else {
            panic!("no births");
        };
        assert_eq!(births[0].kind, Kind::NodeBirth { bdseq: will.bdseq });
    }
}

#[test]
fn payloads_sequence_num_incrementing_over_all_messages() {
    let mut session = session(None);
    session.connect();
    session.ready();
    for expected in 2..600u32 {
        let out = match expected % 4 {
            0 => session.node_data(),
            1 => session.remove_device("d"),
            2 => session.add_device("d"),
            _ => session.device_data("d"),
        };
        assert_eq!(u32::from(out.unwrap().seq.unwrap().get()), expected % 256);
        if expected % 4 == 1 {
            continue;
        }
    }
}

#[test]
fn operational_behavior_data_commands_rebirth_action() {
    let mut session = session(None);
    assert_eq!(session.rebirth(), EdgeAction::None);
    let will = session.connect();
    session.ready();
    session.node_data();
    let EdgeAction::Send(births) = session.rebirth() else {
        panic!("no births");
    };
    assert_eq!(births[0].kind, Kind::NodeBirth { bdseq: will.bdseq });
    assert_eq!(births.len(), 2);
    assert_eq!(births[0].seq, Some(Seq::new(0)));
}

#[test]
fn message_flow_edge_node_birth_publish_phid_wait_and_offline() {
    let mut session = session(Some("scada1"));
    session.connect();
    assert_eq!(session.ready(), EdgeAction::None);
    assert_eq!(session.node_data(), None);
    let topic = "spBv1.0/STATE/scada1";
    let state = |online, ts| HostState::body(online, ts);
    let births = ["NBIRTH 0", "DBIRTH 1"];
    let steps: [(&str, Vec<u8>, &[&str]); 9] = [
        ("spBv1.0/STATE/scada", state(true, 9), &[]),
        (topic, state(true, 2_000), &births),
        (topic, state(false, 1_000), &[]),
        (topic, b"garbage".to_vec(), &[]),
        (topic, state(true, 2_000), &[]),
        (topic, state(false, 2_000), &["NDEATH", "to server 1"]),
        // On the next server, whose timestamps are its own.
        (topic, state(false, 5), &["to server 0"]),
        (topic, state(true, 1_999), &[]),
        (topic, state(true, 2_001), &births),
    ];
    for (at, (topic, body, expected)) in steps.into_iter().enumerate() {
        let action = session.handle_state(topic, &body);
        assert_eq!(words(&action), expected, "step {at}");
        if let EdgeAction::Leave { .. } = action {
            session.connect();
            assert_eq!(session.ready(), EdgeAction::None);
        }
    }
    assert!(session.is_born());
}

#[test]
fn message_flow_edge_node_birth_publish_phid_wait_keeps_what_came_early() {
    let topic = "spBv1.0/STATE/scada1";
    let mut session = session(Some("scada1"));
    session.connect();
    // Retained, delivered with the first SUBACK while others are open: the last word counts.
    let early = |session: &mut EdgeSession, online, ts| {
        let action = session.handle_state(topic, &HostState::body(online, ts));
        assert_eq!(action, EdgeAction::None);
    };
    early(&mut session, false, 4);
    early(&mut session, true, 5);
    early(&mut session, false, 3);
    assert_eq!(words(&session.ready()), ["NBIRTH 0", "DBIRTH 1"]);
    session.disconnected();
    // What was said on the connection before is no word of this one.
    session.connect();
    assert_eq!(session.ready(), EdgeAction::None);
    session.disconnected();
    session.connect();
    early(&mut session, false, 6);
    assert_eq!(words(&session.ready()), ["to server 1"]);
}

#[test]
fn with_one_server_a_waiting_node_keeps_its_connection() {
    let mut session = EdgeSession::new(EdgeConfig {
        node: NodeId::new("g", "n").unwrap(),
        primary_host: Some("h".into()),
        servers: 1,
        first_bdseq: 0,
    });
    session.connect();
    session.ready();
    let topic = "spBv1.0/STATE/h";
    let offline = session.handle_state(topic, &HostState::body(false, 7));
    assert_eq!(offline, EdgeAction::None);
    let old = session.handle_state(topic, &HostState::body(true, 6));
    assert_eq!(old, EdgeAction::None);
    let births = session.handle_state(topic, &HostState::body(true, 7));
    assert_eq!(words(&births), ["NBIRTH 0"]);
}

#[test]
fn the_state_of_2_2_is_understood() {
    let mut session = session(Some("scada1"));
    session.connect();
    session.ready();
    let action = session.handle_state("STATE/scada1", b"ONLINE");
    assert_eq!(words(&action), ["NBIRTH 0", "DBIRTH 1"]);
    let action = session.handle_state("STATE/scada1", b"OFFLINE");
    assert_eq!(words(&action), ["NDEATH", "to server 1"]);
}

#[test]
fn topics_ndeath_seq_absent_and_sent_once() {
    let mut session = session(None);
    let will = session.connect();
    session.ready();
    let death = session.death().unwrap();
    assert_eq!(death.seq, None);
    assert_eq!(death.kind, Kind::NodeDeath { bdseq: will.bdseq });
    assert_eq!(session.death(), None);
}

#[test]
fn operational_behavior_data_commands_rebirth_name_aliases() {
    let mut session = session(None);
    let mut seen = std::collections::HashSet::new();
    for at in 0..100 {
        assert!(seen.insert(session.assign_alias(&format!("m{at}")).unwrap()));
    }
    assert_eq!(session.assign_alias(REBIRTH), None);
}
