use super::*;

/// A plant that records what is sent, and refuses or blocks what a test says.
#[derive(Default)]
struct Plant {
    sent: Vec<(String, Value)>,
    refuse: Option<&'static str>,
    blocked: bool,
    offline: bool,
    shown: std::collections::HashMap<String, Value>,
}

impl Gate for Plant {
    fn check(&mut self, write: &Write) -> Result<Option<Value>, Refusal> {
        if self.refuse == Some(&*write.metric) {
            return Err(Refusal::rejected("unknown_metric: not in the birth"));
        }
        if self.offline {
            return Err(Refusal::passing("offline: offline"));
        }
        Ok(Some(Value::Bool(false)))
    }
    fn send(&mut self, write: &Write) -> Result<Option<Value>, Refusal> {
        let previous = self.check(write)?;
        self.sent
            .push((write.metric.to_string(), write.value.clone()));
        Ok(previous)
    }
    fn shows(&mut self, _: &Target, metric: &str) -> Option<Value> {
        self.shown.get(metric).cloned()
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
        ttl_ms: None,
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
        on_restart: OnRestart::Undo,
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

/// Takes the steps; each that waits for the disk is on it at once.
fn words(core: &mut Actuation, now: u64, plant: &mut Plant) -> Vec<String> {
    let mut words = Vec::new();
    while let Some(step) = core.poll_step() {
        words.push(format!("{} {}", step.id, step.status.as_str()));
        if let Some(ticket) = step.ticket {
            core.handle_stored(now, ticket, plant);
        }
    }
    words
}

/// Open the valve, start the pump; both can be taken back.
fn valve_and_pump() -> Plan {
    let mut first = write("Valve", Value::Bool(true));
    first.undo = Some(Box::new(Write {
        repeatable: true,
        ..write("Valve", Value::Bool(false))
    }));
    let mut second = write("Pump", Value::Bool(true));
    second.undo = Some(Box::new(Write {
        repeatable: true,
        ..write("Pump", Value::Bool(false))
    }));
    second.ttl_ms = Some(2_000);
    plan("s", vec![first, second])
}

#[test]
fn a_step_of_a_sequence_leaves_when_it_is_on_disk() {
    let (mut core, mut plant) = (Actuation::new(Limits::default()), Plant::default());
    core.handle_request(0, valve_and_pump(), &mut plant);
    let told = core.poll_step().unwrap();
    assert_eq!((told.status, plant.sent.len()), (Status::Sent, 0));
    core.handle_stored(50, told.ticket.unwrap(), &mut plant);
    core.handle_stored(51, told.ticket.unwrap(), &mut plant);
    assert_eq!(plant.sent.len(), 1);
}

#[test]
fn a_disk_that_hangs_or_is_full_keeps_a_sequence_from_starting() {
    let (mut core, mut plant) = (Actuation::new(Limits::default()), Plant::default());
    core.handle_request(0, valve_and_pump(), &mut plant);
    let ticket = core.poll_step().unwrap().ticket.unwrap();
    core.handle_timeout(2_001, &mut plant);
    core.handle_stored(2_002, ticket, &mut plant);
    assert_eq!(outcomes(&mut core), [("s".into(), "expired")]);

    let mut full = valve_and_pump();
    full.id = "full".into();
    full.deadline_ms = 9_000;
    core.handle_request(3_000, full, &mut plant);
    let ticket = core.poll_step().unwrap().ticket.unwrap();
    core.handle_unstored(3_000, ticket, &mut plant);
    assert_eq!(outcomes(&mut core), [("full".into(), "rejected")]);
    assert!(plant.sent.is_empty());
    assert_eq!(core.in_flight(), 0);
}

#[test]
fn a_sequence_goes_on_when_confirmed_and_is_undone_when_one_step_fails() {
    let (mut core, mut plant) = (Actuation::new(Limits::default()), Plant::default());
    core.handle_request(0, valve_and_pump(), &mut plant);
    let mut seen = words(&mut core, 0, &mut plant);
    assert_eq!(plant.sent.len(), 1, "the second waits for the first");
    show(&mut core, 500, "Valve", Value::Bool(true), &mut plant);
    seen.extend(words(&mut core, 500, &mut plant));
    assert_eq!(plant.sent.len(), 2);
    core.handle_timeout(2_500, &mut plant); // the pump never answers
    seen.extend(words(&mut core, 2_500, &mut plant));
    show(&mut core, 2_600, "Pump", Value::Bool(false), &mut plant);
    seen.extend(words(&mut core, 2_600, &mut plant));
    show(&mut core, 2_700, "Valve", Value::Bool(false), &mut plant);
    seen.extend(words(&mut core, 2_700, &mut plant));
    assert_eq!(
        seen,
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
fn an_undo_waits_for_its_device() {
    let (mut core, mut plant) = (Actuation::new(Limits::default()), Plant::default());
    core.handle_request(0, valve_and_pump(), &mut plant);
    words(&mut core, 0, &mut plant);
    show(&mut core, 10, "Valve", Value::Bool(true), &mut plant);
    words(&mut core, 10, &mut plant);
    plant.offline = true;
    core.handle_death(20, &target("d"), &mut plant);
    assert_eq!(words(&mut core, 20, &mut plant), ["s.2 timeout"]);
    core.handle_timeout(5_000, &mut plant);
    core.handle_birth(6_000, &target("d"), &mut plant);
    assert_eq!(plant.sent.len(), 2, "it is still offline");
    plant.offline = false;
    core.handle_birth(60_000, &target("d"), &mut plant);
    assert_eq!(words(&mut core, 60_000, &mut plant), ["s.2.undo sent"]);
    // It dies again before it confirms; the undo is repeatable.
    plant.offline = true;
    core.handle_death(60_100, &target("d"), &mut plant);
    plant.offline = false;
    core.handle_birth(61_000, &target("d"), &mut plant);
    words(&mut core, 61_000, &mut plant);
    show(&mut core, 61_500, "Pump", Value::Bool(false), &mut plant);
    words(&mut core, 61_500, &mut plant);
    // The valve was closed by hand: it has nothing to say, and shows it.
    plant.shown.insert("Valve".into(), Value::Bool(false));
    core.handle_timeout(63_500, &mut plant);
    assert_eq!(words(&mut core, 63_500, &mut plant), ["s.undo undone"]);
    assert_eq!((core.in_flight(), core.poll_notice()), (0, None));
}

#[test]
fn an_undo_that_never_works_is_told() {
    let (mut core, mut plant) = (Actuation::new(Limits::default()), Plant::default());
    core.handle_request(0, valve_and_pump(), &mut plant);
    words(&mut core, 0, &mut plant);
    plant.offline = true;
    core.handle_death(20, &target("d"), &mut plant);
    words(&mut core, 20, &mut plant);
    core.handle_timeout(600_020, &mut plant);
    assert_eq!(words(&mut core, 600_020, &mut plant), ["s.undo rejected"]);
    let notice = core.poll_notice().unwrap();
    assert_eq!(notice.word(), "not_undone");
    assert_eq!(core.in_flight(), 0);
}

#[test]
fn what_is_shown_already_is_no_timeout() {
    let (mut core, mut plant) = (Actuation::new(Limits::default()), Plant::default());
    plant.shown.insert("E".into(), Value::Int(5));
    core.handle_request(0, plan("a", vec![write("E", Value::Int(5))]), &mut plant);
    core.handle_timeout(2_000, &mut plant);
    assert_eq!(outcomes(&mut core)[1].1, "confirmed");
}

#[test]
fn a_late_answer_changes_nothing() {
    let (mut core, mut plant) = (Actuation::new(Limits::default()), Plant::default());
    core.handle_request(0, plan("a", vec![write("E", Value::Int(5))]), &mut plant);
    core.handle_timeout(2_000, &mut plant);
    show(&mut core, 2_001, "E", Value::Int(5), &mut plant);
    assert_eq!(
        outcomes(&mut core),
        [("a".into(), "sent"), ("a".into(), "timeout")]
    );
}

#[test]
fn a_plan_is_explained_without_being_sent() {
    let (mut core, mut plant) = (Actuation::new(Limits::default()), Plant::default());
    plant.refuse = Some("Pump");
    let told: Vec<Option<String>> = core
        .explain(0, &valve_and_pump(), &mut plant)
        .into_iter()
        .map(|judged| judged.err().map(|refusal| refusal.reason))
        .collect();
    assert_eq!(
        told,
        [None, Some("unknown_metric: not in the birth".to_owned())]
    );
    assert!(plant.sent.is_empty() && core.poll_step().is_none());
    assert!(core.handle_request(0, valve_and_pump(), &mut plant));
}

/// Runs a plan until `crash_after` steps are told; with `leaves` the last of them leaves before the crash, with `fails`
/// the device ignores the pump. Gives what the plant got and what was told; `None`: it was over before.
fn until_crash(
    plan: Plan,
    (fails, leaves): (bool, bool),
    crash_after: usize,
) -> Option<(Plant, Vec<Step>)> {
    let mut plant = Plant::default();
    let mut core = Actuation::new(Limits::default());
    let mut told: Vec<Step> = Vec::new();
    let mut alive = true;
    core.handle_request(0, plan, &mut plant);
    let mut now = 0;
    while alive && core.in_flight() > 0 {
        while let Some(step) = core.poll_step() {
            alive &= told.len() + 1 < crash_after;
            let ticket = step.ticket;
            told.push(step);
            if let Some(ticket) = ticket
                && (alive || leaves)
            {
                core.handle_stored(now, ticket, &mut plant);
            }
            if !alive {
                break;
            }
        }
        if alive {
            now += 100;
            let (metric, value) = plant.sent.last().cloned().unwrap();
            if fails && value == Value::Bool(true) && metric == "Pump" {
                now += 2_000;
                core.handle_timeout(now, &mut plant);
            } else {
                show(&mut core, now, &metric, value, &mut plant);
            }
        }
    }
    while alive && let Some(step) = core.poll_step() {
        told.push(step);
    }
    (!told.last().unwrap().last).then_some((plant, told))
}

/// The plan and what was told of it, as the journal gives it back.
fn interrupted(plan: Plan, told: &[Step], idle_ms: Option<u64>) -> Interrupted {
    let steps = told.iter().map(|step| Happened {
        position: step.position,
        undo: step.undo,
        status: step.status,
    });
    Interrupted {
        plan: Plan {
            deadline_ms: 0,
            ..plan
        },
        steps: steps.collect(),
        idle_ms,
    }
}

/// How often each was switched on, and what was written to it last.
fn switched(plant: &Plant, name: &str) -> (usize, Option<Value>) {
    let of = plant.sent.iter().filter(|(metric, _)| metric == name);
    let on = of.clone().filter(|(_, value)| *value == Value::Bool(true));
    (on.count(), of.last().map(|(_, value)| value.clone()))
}

/// A crash after any number of told steps, before or after the write left: no forward write leaves twice, and what may
/// have happened is taken back.
#[test]
fn a_crash_at_every_step_is_taken_back() {
    for (fails, leaves) in [(false, false), (false, true), (true, false), (true, true)] {
        for crash_after in 1.. {
            let crashed = until_crash(valve_and_pump(), (fails, leaves), crash_after);
            let Some((mut plant, told)) = crashed else {
                break;
            };
            let interrupted = interrupted(valve_and_pump(), &told, Some(0));
            let mut core = Actuation::new(Limits::default());
            let mut now = 100_000;
            plant.offline = true;
            core.resume(now, interrupted, &mut plant);
            let mut last = false;
            for _ in 0..20 {
                while let Some(step) = core.poll_step() {
                    last |= step.last;
                    if let Some(ticket) = step.ticket {
                        core.handle_stored(now, ticket, &mut plant);
                    }
                }
                now += 1_000;
                plant.offline = false;
                core.handle_birth(now, &target("d"), &mut plant);
                if let Some((metric, value)) = plant.sent.last().cloned() {
                    show(&mut core, now, &metric, value, &mut plant);
                }
            }
            assert!(
                last && core.in_flight() == 0,
                "{fails} {leaves} {crash_after}: it ends"
            );
            for metric in ["Valve", "Pump"] {
                let (forward, last) = switched(&plant, metric);
                let label = format!("{fails} {leaves} {crash_after} {metric}");
                assert!(forward <= 1, "{label}");
                if forward == 1 {
                    assert_eq!(last, Some(Value::Bool(false)), "{label}");
                }
            }
        }
    }
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
    low.writes[0].value = Value::Int(2);
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

#[test]
fn a_dry_run_only_asks_and_a_refused_plan_is_told() {
    let (mut core, mut plant) = (Actuation::new(Limits::default()), Plant::default());
    core.handle_request(
        0,
        plan("a", vec![write("E", Value::Bool(true))]),
        &mut plant,
    );
    show(&mut core, 10, "E", Value::Bool(true), &mut plant);
    let mut low = plan("b", vec![write("E", Value::Bool(false))]);
    (low.priority, low.by) = (1, "rule:low@1".into());
    let judged = core.explain(20, &low, &mut plant);
    assert!(
        matches!(&judged[..], [Err(refusal)] if refusal.reason.starts_with("priority")),
        "{judged:?}"
    );
    assert!(core.poll_notice().is_none(), "nobody fights yet");
    core.handle_request(30, low.clone(), &mut plant);
    assert!(core.poll_notice().is_some(), "now it is a fight");
    outcomes(&mut core);

    low.id = "c".into();
    core.refuse(40, low, Refusal::rejected("busy: so many"), &mut plant);
    assert_eq!(outcomes(&mut core), [("c".into(), "rejected")]);
    assert_eq!((core.in_flight(), plant.sent.len()), (0, 1));
}

/// The same plan, to be finished. Both steps have two seconds.
fn to_finish() -> Plan {
    let mut plan = valve_and_pump();
    plan.on_restart = OnRestart::Finish;
    for write in &mut plan.writes {
        write.ttl_ms = Some(2_000);
    }
    plan
}

/// Resumes while the device is away; it comes back after `away_ms` and shows what it was given.
fn resumed(plant: &mut Plant, interrupted: Interrupted, away_ms: u64) -> Vec<Step> {
    let mut core = Actuation::new(Limits::default());
    let mut now = 100_000;
    let back = now + away_ms;
    plant.offline = true;
    core.resume(now, interrupted, plant);
    let mut told = Vec::new();
    for _ in 0..60 {
        while let Some(step) = core.poll_step() {
            if let Some(ticket) = step.ticket {
                core.handle_stored(now, ticket, plant);
            }
            told.push(step);
        }
        now += 100;
        core.handle_timeout(now, plant);
        if now >= back {
            let shown: Vec<_> = plant.sent.clone();
            plant.shown.extend(shown);
            if std::mem::take(&mut plant.offline) {
                core.handle_birth(now, &target("d"), plant);
            }
            if let Some((metric, value)) = plant.sent.last().cloned() {
                show(&mut core, now, &metric, value, plant);
            }
        }
    }
    assert_eq!(core.in_flight(), 0, "{told:?}");
    assert!(told.last().unwrap().last, "{told:?}");
    told
}

/// What left is asked for and not sent again, what did not leave follows, in order; a step that was told and never left
/// can't be told from one that the device refused, so that all is taken back.
#[test]
fn a_crash_at_every_step_is_finished_where_that_is_known() {
    let mut ends = Vec::new();
    for leaves in [false, true] {
        for crash_after in 1.. {
            let crashed = until_crash(to_finish(), (false, leaves), crash_after);
            let Some((mut plant, told)) = crashed else {
                break;
            };
            let label = format!("leaves {leaves}, crash after {crash_after}");
            let again = resumed(&mut plant, interrupted(to_finish(), &told, Some(500)), 300);
            let (valve, pump) = (switched(&plant, "Valve"), switched(&plant, "Pump"));
            assert!(valve.0 <= 1 && pump.0 <= 1, "{label}: {:?}", plant.sent);
            let end = again.last().unwrap();
            let finished = end.status == Status::Confirmed && end.position == 1 && !end.undo;
            if finished {
                let on = (1, Some(Value::Bool(true)));
                assert_eq!((valve, pump), (on.clone(), on), "{label}");
            } else {
                let off = |(count, last): (usize, Option<Value>)| {
                    count == 0 || last == Some(Value::Bool(false))
                };
                assert!(off(valve) && off(pump), "{label}: {:?}", plant.sent);
            }
            ends.push((leaves, crash_after, finished));
        }
    }
    // After 1: the valve's `sent`; 2: its `confirmed`; 3: the pump's `sent`.
    assert_eq!(
        ends,
        [
            (false, 1, false),
            (false, 2, true),
            (false, 3, false),
            (true, 1, true),
            (true, 2, true),
            (true, 3, true),
        ]
    );
}

#[test]
fn what_is_to_be_finished_is_never_late() {
    let (plant, told) = until_crash(to_finish(), (false, true), 2).unwrap();
    for (idle_ms, away_ms, why) in [
        (None, 0, "nobody knows for how long nothing ran"),
        (Some(2_001), 0, "its time passed before the restart"),
        (
            Some(1_500),
            600,
            "its time passed before the device was back",
        ),
    ] {
        let mut plant = Plant {
            sent: plant.sent.clone(),
            ..Plant::default()
        };
        resumed(
            &mut plant,
            interrupted(to_finish(), &told, idle_ms),
            away_ms,
        );
        assert_eq!(switched(&plant, "Pump").0, 0, "{why}");
        assert_eq!(
            switched(&plant, "Valve"),
            (1, Some(Value::Bool(false))),
            "{why}"
        );
    }
}

#[test]
fn a_repeatable_step_of_unknown_outcome_is_sent_again() {
    let mut plan = to_finish();
    plan.writes[0].repeatable = true;
    let (mut plant, told) = until_crash(plan.clone(), (false, false), 1).unwrap();
    assert!(plant.sent.is_empty());
    resumed(&mut plant, interrupted(plan, &told, Some(0)), 100);
    let on = (1, Some(Value::Bool(true)));
    assert_eq!(
        (switched(&plant, "Valve"), switched(&plant, "Pump")),
        (on.clone(), on)
    );
}
