use super::*;

/// A plant that records what is sent, and refuses or blocks what a test says.
#[derive(Default)]
struct Plant {
    sent: Vec<(String, Value)>,
    refuse: Option<&'static str>,
    blocked: bool,
}

impl Gate for Plant {
    fn send(&mut self, write: &Write) -> Result<Option<Value>, String> {
        if self.refuse == Some(&*write.metric) {
            return Err("unknown_metric: not in the birth".to_owned());
        }
        self.sent
            .push((write.metric.to_string(), write.value.clone()));
        Ok(Some(Value::Bool(false)))
    }
    fn allowed(&mut self, _: &Interlock) -> Result<bool, String> {
        Ok(!self.blocked)
    }
}

fn target(device: &str) -> Target {
    Target {
        group: "g".into(),
        node: "n".into(),
        device: Some(device.into()),
    }
}

fn write(metric: &str, value: Value) -> Write {
    Write {
        target: target("d"),
        metric: metric.into(),
        value,
        confirm: Confirm::by_echo(2_000),
        undo: None,
        repeatable: false,
        allow_when: None,
    }
}

fn plan(id: &str, writes: Vec<Write>) -> Plan {
    Plan {
        id: id.into(),
        by: "rule:r@1".into(),
        cause: 7,
        priority: 5,
        deadline_ms: 2_000,
        writes,
    }
}

fn outcomes(core: &mut Actuation) -> Vec<(String, &'static str)> {
    std::iter::from_fn(|| core.poll_step())
        .map(|s| (s.id.to_string(), s.status.as_str()))
        .collect()
}

fn show(core: &mut Actuation, now: u64, metric: &str, value: Value, plant: &mut Plant) {
    core.handle_value(now, &target("d"), &metric.into(), &value, plant);
}

#[test]
fn a_write_is_confirmed_by_its_echo() {
    let (mut core, mut plant) = (Actuation::new(Limits::default()), Plant::default());
    assert!(core.handle_request(
        0,
        plan("a", vec![write("Enable", Value::Bool(true))]),
        &mut plant
    ));
    show(&mut core, 100, "Enable", Value::Bool(false), &mut plant);
    show(&mut core, 200, "Enable", Value::Bool(true), &mut plant);
    show(&mut core, 300, "Enable", Value::Bool(true), &mut plant);
    assert_eq!(
        outcomes(&mut core),
        [("a".into(), "sent"), ("a".into(), "confirmed")]
    );
    assert_eq!(core.in_flight(), 0);
    core.handle_timeout(10_000, &mut plant);
    assert_eq!(outcomes(&mut core), []);
}

#[test]
fn a_repeated_id_is_carried_out_once() {
    let (mut core, mut plant) = (Actuation::new(Limits::default()), Plant::default());
    assert!(core.handle_request(
        0,
        plan("a", vec![write("E", Value::Bool(true))]),
        &mut plant
    ));
    assert!(!core.handle_request(
        1,
        plan("a", vec![write("E", Value::Bool(true))]),
        &mut plant
    ));
    assert_eq!(plant.sent.len(), 1);
}

#[test]
fn an_ignored_write_times_out_with_what_was_seen() {
    let (mut core, mut plant) = (Actuation::new(Limits::default()), Plant::default());
    core.handle_request(0, plan("a", vec![write("E", Value::Int(5))]), &mut plant);
    show(&mut core, 100, "E", Value::Int(4), &mut plant);
    assert_eq!(core.poll_timeout(), Some(2_000));
    core.handle_timeout(1_999, &mut plant);
    core.handle_timeout(2_000, &mut plant);
    let steps: Vec<Step> = std::iter::from_fn(|| core.poll_step()).collect();
    assert_eq!(steps[1].status, Status::Timeout);
    assert_eq!(
        steps[1].reason.as_deref(),
        Some("unconfirmed: the device last showed 4")
    );
}

#[test]
fn a_repeatable_write_is_sent_twice_at_most() {
    let (mut core, mut plant) = (Actuation::new(Limits::default()), Plant::default());
    let mut w = write("E", Value::Int(5));
    w.repeatable = true;
    let mut p = plan("a", vec![w]);
    p.deadline_ms = 10_000;
    core.handle_request(0, p, &mut plant);
    core.handle_timeout(2_000, &mut plant);
    core.handle_timeout(4_000, &mut plant);
    assert_eq!(plant.sent.len(), 2);
    assert_eq!(outcomes(&mut core).last().unwrap().1, "timeout");
}

#[test]
fn nothing_is_sent_past_its_deadline_or_past_an_interlock() {
    let (mut core, mut plant) = (Actuation::new(Limits::default()), Plant::default());
    core.handle_request(
        2_001,
        plan("late", vec![write("E", Value::Int(5))]),
        &mut plant,
    );
    plant.blocked = true;
    let mut w = write("E", Value::Int(5));
    w.allow_when = Some(Interlock {
        plan: "blocked".into(),
        position: 0,
    });
    core.handle_request(0, plan("blocked", vec![w]), &mut plant);
    assert_eq!(
        outcomes(&mut core),
        [("late".into(), "expired"), ("blocked".into(), "rejected")]
    );
    assert!(plant.sent.is_empty());
}

#[test]
fn a_sequence_goes_on_when_confirmed_and_is_undone_when_one_step_fails() {
    let (mut core, mut plant) = (Actuation::new(Limits::default()), Plant::default());
    let mut first = write("Valve", Value::Bool(true));
    first.undo = Some(Box::new(write("Valve", Value::Bool(false))));
    let mut second = write("Pump", Value::Bool(true));
    second.undo = Some(Box::new(write("Pump", Value::Bool(false))));
    core.handle_request(0, plan("s", vec![first, second]), &mut plant);
    assert_eq!(plant.sent.len(), 1, "the second waits for the first");
    show(&mut core, 500, "Valve", Value::Bool(true), &mut plant);
    assert_eq!(plant.sent.len(), 2);
    core.handle_timeout(2_500, &mut plant); // the pump never answers
    show(&mut core, 2_600, "Pump", Value::Bool(false), &mut plant);
    show(&mut core, 2_700, "Valve", Value::Bool(false), &mut plant);
    let seen = outcomes(&mut core);
    let words: Vec<String> = seen
        .iter()
        .map(|(id, status)| format!("{id} {status}"))
        .collect();
    assert_eq!(
        words,
        [
            "s sent",
            "s confirmed",
            "s.2 sent",
            "s.2 timeout",
            "s.2.undo sent",
            "s.2.undo undone",
            "s.undo sent",
            "s.undo undone",
        ]
    );
    assert_eq!(core.in_flight(), 0);
    assert_eq!(
        plant.sent.last().unwrap(),
        &("Valve".to_owned(), Value::Bool(false))
    );
}

#[test]
fn a_death_ends_what_waits_for_it() {
    let (mut core, mut plant) = (Actuation::new(Limits::default()), Plant::default());
    core.handle_request(0, plan("a", vec![write("E", Value::Int(5))]), &mut plant);
    let node = Target {
        device: None,
        ..target("d")
    };
    core.handle_death(10, &node, &mut plant);
    assert_eq!(
        outcomes(&mut core),
        [("a".into(), "sent"), ("a".into(), "timeout")]
    );
}

#[test]
fn holds_rates_priorities_and_read_only_reject() {
    let (mut core, mut plant) = (
        Actuation::new(Limits {
            max_per_second: 2,
            ..Limits::default()
        }),
        Plant::default(),
    );
    let node = Target {
        device: None,
        ..target("d")
    };
    core.holds()
        .set(Hold {
            target: node.clone(),
            until_ms: 500,
            by: "anna".into(),
        })
        .unwrap();
    core.handle_request(0, plan("held", vec![write("E", Value::Int(1))]), &mut plant);
    core.handle_timeout(500, &mut plant);
    core.handle_request(
        501,
        plan("one", vec![write("E", Value::Int(1))]),
        &mut plant,
    );
    let mut low = plan("low", vec![write("E", Value::Int(2))]);
    low.priority = 1;
    low.by = "rule:other@1".into();
    core.handle_request(502, low, &mut plant);
    core.handle_request(
        503,
        plan("two", vec![write("F", Value::Int(1))]),
        &mut plant,
    );
    core.handle_request(
        504,
        plan("three", vec![write("G", Value::Int(1))]),
        &mut plant,
    );
    core.set_limits(Limits {
        read_only: true,
        ..Limits::default()
    });
    core.handle_request(
        2_000,
        plan("ro", vec![write("E", Value::Int(1))]),
        &mut plant,
    );
    let words: Vec<String> = std::iter::from_fn(|| core.poll_step())
        .map(|s| {
            format!(
                "{} {}",
                s.id,
                s.reason
                    .as_deref()
                    .unwrap_or("-")
                    .split(':')
                    .next()
                    .unwrap_or("")
            )
        })
        .collect();
    assert_eq!(
        words,
        [
            "held held",
            "one -",
            "low priority",
            "two -",
            "three rate_limit",
            "ro read_only"
        ]
    );
}

#[test]
fn what_the_host_refuses_is_rejected() {
    let (mut core, mut plant) = (
        Actuation::new(Limits::default()),
        Plant {
            refuse: Some("Nope"),
            ..Plant::default()
        },
    );
    core.handle_request(0, plan("a", vec![write("Nope", Value::Int(1))]), &mut plant);
    let s = core.poll_step().unwrap();
    assert_eq!(
        (s.status, s.reason.as_deref(), s.last),
        (
            Status::Rejected,
            Some("unknown_metric: not in the birth"),
            true
        )
    );
    assert_eq!(core.in_flight(), 0);
}
