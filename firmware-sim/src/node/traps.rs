//! Each way in which a node can go wrong, played against the host session in virtual time: the host ends with the
//! truth, and does not ask more than once for the same fault.

use std::collections::VecDeque;

use sparkplug::host::{HostConfig, HostEvent, HostSession, Message as HostMessage, ServerId};

use super::*;
use crate::codec::BdseqType;
use crate::fault::{Rebirth, Twist};

/// Wall time at engine time 0.
const EPOCH: u64 = 1_760_000_000_000;
/// Time between two rounds of the node, ms.
const ROUND: u64 = 100;

struct Play {
    node: Node,
    host: HostSession,
    now: u64,
    will: Will,
    tag: u64,
    /// On its way to the host, in order.
    wire: VecDeque<Message>,
    requests: Vec<u64>,
    deaths: Vec<u64>,
    invalid: Vec<&'static str>,
}

impl Play {
    fn new(twist: impl FnOnce(&mut Twist)) -> Self {
        let mut node = Node::new(&NodeConfig {
            group: "g".into(),
            name: "n".into(),
            devices: vec!["a".into(), "b".into()],
            metrics: 10,
            seed: 1,
            place: 0,
            primary_host: None,
            servers: 1,
            structured: true,
        })
        .unwrap();
        twist(node.twist());
        let will = node.connect(EPOCH);
        let mut play = Self {
            node,
            host: HostSession::new(HostConfig::default(), 0),
            now: 0,
            will,
            tag: 0,
            wire: VecDeque::new(),
            requests: Vec::new(),
            deaths: Vec::new(),
            invalid: Vec::new(),
        };
        let births = play.node.ready(EPOCH);
        play.deliver(births);
        play
    }

    fn wall(&self) -> u64 {
        EPOCH + self.now
    }

    fn raw(&mut self, topic: &str, payload: &[u8], will: bool) {
        self.tag += 1;
        let message = HostMessage {
            topic,
            payload,
            received_ms: self.wall(),
            client: None,
            server: ServerId(0),
            retained: false,
            will,
            tag: self.tag,
        };
        self.host.handle_message(self.now, &message);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(event) = self.host.poll_event() {
            match event {
                HostEvent::NodeDeath { at_ms, .. } => self.deaths.push(at_ms),
                HostEvent::Invalid { reason, .. } => self.invalid.push(reason.as_str()),
                _ => {}
            }
        }
        while let Some(transmit) = self.host.poll_transmit() {
            self.requests.push(self.now);
            let wall = self.wall();
            let answer = self
                .node
                .handle_message(&transmit.topic, &transmit.payload, wall);
            self.wire.extend(answer);
            if self.node.is_leaving() {
                self.node.disconnected();
                self.will = self.node.connect(wall);
                let births = self.node.ready(wall);
                self.wire.extend(births);
            }
        }
    }

    fn deliver(&mut self, messages: Vec<Message>) {
        self.wire.extend(messages);
        while let Some(message) = self.wire.pop_front() {
            self.raw(&message.topic, &message.payload, false);
        }
    }

    fn connect(&mut self) {
        self.will = self.node.connect(self.wall());
        let births = self.node.ready(self.wall());
        self.deliver(births);
    }

    /// The connection breaks: the will first, then the new births.
    fn flap(&mut self) {
        let will = self.will.clone();
        self.node.disconnected();
        self.raw(&will.topic, &will.payload, true);
        self.connect();
    }

    fn run(&mut self, ms: u64) {
        for _ in 0..ms / ROUND {
            self.now += ROUND;
            self.host.handle_timeout(self.now);
            self.drain();
            let messages = self.node.step(0.1, self.wall());
            self.deliver(messages);
        }
    }

    /// Whether node and devices are online, in order.
    fn online(&self) -> Vec<bool> {
        let node = self.host.nodes().next().expect("the node");
        std::iter::once(node.own().online())
            .chain(node.devices().map(|device| device.online()))
            .collect()
    }
}

#[track_caller]
fn check(twist: impl FnOnce(&mut Twist), act: impl FnOnce(&mut Play), requests: usize) -> Play {
    let mut play = Play::new(twist);
    play.run(1_000);
    act(&mut play);
    play.run(20_000);
    assert_eq!(play.requests.len(), requests, "{:?}", play.invalid);
    play
}

fn skip(play: &mut Play) {
    play.node.twist().skip_seq = true;
}

#[test]
fn a_right_node_needs_no_rebirth() {
    let play = check(|_| (), Play::flap, 0);
    assert_eq!(play.online(), [true; 3]);
    assert_eq!(play.deaths.len(), 1);
    assert_eq!(play.invalid, [""; 0]);
}

#[test]
fn trap_7_a_bdseq_that_stands_still_costs_one_rebirth_at_most() {
    let late = |play: &mut Play| {
        let old = play.will.clone();
        play.flap();
        // Nothing tells this death from one of the present session: the node is asked, and comes back.
        play.raw(&old.topic, &old.payload, true);
    };
    let play = check(|twist| twist.stuck_bdseq = true, late, 1);
    assert_eq!(play.online(), [true; 3]);
}

#[test]
fn traps_7_and_19_rebirths_done_wrongly_end_well() {
    let end_online = |rebirth| {
        let play = check(|twist| twist.rebirth = rebirth, skip, 1);
        assert_eq!(play.online(), [true; 3], "{rebirth:?}");
    };
    end_online(Rebirth::RaiseBdseq);
    end_online(Rebirth::Reconnect);
    end_online(Rebirth::WithDeath);
}

#[test]
fn trap_8_any_integer_is_a_bdseq() {
    for kind in [BdseqType::UInt64, BdseqType::UInt8, BdseqType::Untyped] {
        let play = check(|twist| twist.bdseq_type = kind, Play::flap, 0);
        assert_eq!(play.deaths.len(), 1, "{kind:?}");
        assert_eq!(play.online(), [true; 3], "{kind:?}");
    }
}

#[test]
fn trap_9_late_repeated_and_unnumbered_deaths_change_nothing() {
    let late = |play: &mut Play| {
        let old = play.will.clone();
        play.flap();
        play.raw(&old.topic, &old.payload, true);
    };
    let play = check(|_| (), late, 0);
    assert_eq!((play.deaths.len(), play.online()), (1, vec![true; 3]));
    let unnumbered = |play: &mut Play| {
        let death = codec::with_bdseq(&play.will.payload, BdseqType::Absent);
        play.raw("spBv1.0/g/NDEATH/n", &death, true);
    };
    let play = check(|_| (), unnumbered, 0);
    assert_eq!(play.invalid, ["death_without_bdseq"]);
    assert_eq!((play.deaths.len(), play.online()), (0, vec![true; 3]));
    // A node that never numbers its sessions can't do better: its deaths count.
    let absent = |twist: &mut Twist| twist.bdseq_type = BdseqType::Absent;
    let play = check(absent, Play::flap, 0);
    assert_eq!((play.deaths.len(), play.online()), (1, vec![true; 3]));
}

#[test]
fn trap_12_a_death_is_by_the_hosts_clock() {
    let play = check(|twist| twist.skew_ms = -3_600_000, Play::flap, 0);
    assert_eq!(play.deaths, [EPOCH + 1_000]);
}

#[test]
fn trap_13_a_device_left_out_of_a_rebirth_is_offline() {
    let mut play = Play::new(|twist| twist.rebirth = Rebirth::Forget);
    play.run(1_000);
    skip(&mut play);
    // From the rebirth until the forgotten device speaks again.
    while play.requests.is_empty() {
        play.run(ROUND);
    }
    assert_eq!(play.online(), [true, false, true]);
}

#[test]
fn trap_14_counters_a_device_lead_to_few_requests() {
    let mut play = Play::new(|twist| twist.seq_per_device = true);
    play.run(120_000);
    let gaps: Vec<u64> = play.requests.windows(2).map(|it| it[1] - it[0]).collect();
    assert!((1..=6).contains(&play.requests.len()), "{gaps:?}");
    assert!(gaps.is_sorted(), "{gaps:?}");
}

#[test]
fn trap_15_a_birth_may_begin_with_any_seq() {
    let play = check(|twist| twist.first_seq = 7, Play::flap, 0);
    assert_eq!(play.online(), [true; 3]);
}

#[test]
fn trap_16_zeros_that_are_not_on_the_wire() {
    let play = check(|twist| twist.proto3 = true, Play::flap, 0);
    assert_eq!(play.online(), [true; 3]);
}

#[test]
fn trap_17_a_late_message_within_the_timeout_costs_nothing_beyond_it_one_rebirth() {
    for (late_ms, requests) in [(1_000, 0), (4_000, 1)] {
        let mut play = Play::new(|_| ());
        play.run(1_000);
        let mut held = play.node.step(0.1, play.wall());
        let late = held.pop().expect("data");
        play.deliver(held);
        play.run(late_ms);
        play.raw(&late.topic, &late.payload, false);
        play.run(20_000);
        assert_eq!(play.requests.len(), requests, "{late_ms} ms");
        assert_eq!(play.online(), [true; 3]);
    }
}

#[test]
fn trap_18_a_node_that_does_not_hear_is_asked_at_growing_intervals() {
    let mut play = Play::new(|twist| twist.rebirth = Rebirth::Ignore);
    play.run(1_000);
    skip(&mut play);
    play.run(100_000);
    let gaps: Vec<u64> = play.requests.windows(2).map(|it| it[1] - it[0]).collect();
    assert_eq!(gaps, [5_000, 10_000, 20_000, 40_000]);
}

#[test]
fn trap_18_unknown_aliases_and_early_data_cost_one_request() {
    let mut play = Play::new(|twist| twist.data_before_birth = true);
    play.run(20_000);
    assert!(play.requests.len() <= 1, "{:?}", play.requests);
    assert_eq!(play.online(), [true; 3]);
    let once = |play: &mut Play| {
        play.node.twist().unknown_alias = true;
        play.run(ROUND);
        play.node.twist().unknown_alias = false;
    };
    check(|_| (), once, 1);
}

#[test]
fn trap_20_data_between_request_and_birth_asks_for_nothing_more() {
    let play = check(|twist| twist.rebirth = Rebirth::Late(2_000), skip, 1);
    assert_eq!(play.online(), [true; 3]);
}
