//! Local writes through a real gateway: sequences with undo under kill -9, devices that misbehave, holds over restarts,
//! and an audit log that tells all of it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use sparkplug_rs::protobuf::Message as _;
use sparkplug_rs::{DataType, Payload, payload};

use crate::harness::gateway::{Gateway, request};
use crate::harness::mqtt::{Node, PATIENCE, Packet, now_ms};
use crate::harness::until;

/// Opens a valve and starts a pump and a fan when `temp` is high; each can be taken back.
const PACK: &str = r#"
[pack]
id = "saga"
version = "1.2.3"

[[rule]]
id = "start-cooling"
[rule.threshold]
metric = "temp"
high = 80.0
[[rule.command]]
metric = "Valve"
value = true
ttl = "120s"
confirm = { metric = "Valve", equals = true, within = "120s" }
undo = { metric = "Valve", value = false }
[[rule.command]]
metric = "Pump"
value = true
ttl = "120s"
confirm = { metric = "Pump", equals = true, within = "120s" }
undo = { metric = "Pump", value = false }
[[rule.command]]
metric = "Fan"
value = true
ttl = "120s"
confirm = { metric = "Fan", equals = true, within = "FAN_WITHIN" }
undo = { metric = "Fan", value = false }
"#;

const SWITCHES: [&str; 3] = ["Valve", "Pump", "Fan"];

/// What a device does with a command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Does {
    Obeys,
    Ignores,
    /// Publishes the value it had.
    Refuses,
    /// Publishes another value.
    Other,
}

/// A device with three switches; commands are seen by `sees` before they are answered.
struct Plant {
    node: Node,
    state: BTreeMap<String, bool>,
}

fn metric(name: &str, kind: DataType) -> payload::Metric {
    let mut metric = payload::Metric::new();
    metric.set_name(name.to_owned());
    metric.set_datatype(kind as u32);
    metric.set_timestamp(now_ms());
    metric
}

fn switch(name: &str, on: bool) -> payload::Metric {
    let mut metric = metric(name, DataType::Boolean);
    metric.set_boolean_value(on);
    metric
}

impl Plant {
    /// Connects and is born with the switches as they are.
    fn birth(gateway: &Gateway, state: BTreeMap<String, bool>) -> Self {
        let mut node = until("the broker takes the node", 60, || {
            std::panic::catch_unwind(|| Node::birth(gateway.mqtt, "g", "n", "none")).ok()
        });
        node.client.subscribe("spBv1.0/g/DCMD/n/plant", 0);
        node.device = "plant".to_owned();
        let mut temp = metric("temp", DataType::Double);
        temp.set_double_value(20.0);
        let mut speed = metric("Speed", DataType::Int32);
        speed.set_int_value(0);
        let mut metrics = vec![temp, speed];
        metrics.extend(state.iter().map(|(name, on)| switch(name, *on)));
        node.send("DBIRTH", true, metrics, 0);
        Self { node, state }
    }

    fn off() -> BTreeMap<String, bool> {
        SWITCHES
            .iter()
            .map(|name| ((*name).to_owned(), false))
            .collect()
    }

    fn temp(&mut self, value: f64) {
        let mut temp = metric("temp", DataType::Double);
        temp.set_double_value(value);
        self.node.send("DDATA", true, vec![temp], 0);
    }

    /// The next command; `None` when the connection is gone or nothing came in `wait`.
    fn command(&mut self, wait: Duration) -> Option<(String, bool)> {
        self.node
            .client
            .stream()
            .set_read_timeout(Some(wait))
            .ok()?;
        loop {
            let Packet::Publish { payload, .. } = self.node.client.read()? else {
                continue;
            };
            let payload = Payload::parse_from_bytes(&payload).unwrap();
            let metric = payload.metrics.first().unwrap();
            return Some((metric.name().to_owned(), metric.boolean_value()));
        }
    }

    fn answer(&mut self, name: &str, on: bool) {
        self.state.insert(name.to_owned(), on);
        self.node.send("DDATA", true, vec![switch(name, on)], 0);
    }
}

fn rules(folder: &std::path::Path, fan_within: &str, finish: bool) -> String {
    let path = folder.join("saga.toml");
    let mut pack = PACK.replace("FAN_WITHIN", fan_within);
    if finish {
        pack = pack
            .replace(
                "id = \"start-cooling\"",
                "id = \"start-cooling\"\non_restart = \"finish\"",
            )
            .replace(
                "ttl = \"120s\"",
                "ttl = \"120s\"\nallow_when = 'current(\"Speed\") == 0'",
            );
    }
    std::fs::write(&path, pack).unwrap();
    format!("[rules]\npaths = [\"{}\"]\n", path.display())
}

fn commands(gateway: &Gateway) -> Vec<Value> {
    gateway.json("/api/commands").as_array().unwrap().clone()
}

fn outcome(gateway: &Gateway, id_part: &str) -> Option<Value> {
    commands(gateway)
        .into_iter()
        .rev()
        .find(|step| step["id"].as_str().unwrap().contains(id_part) && step["status"] != "sent")
}

/// The audit log is whole, and soon has an entry that `is`; returns all of it.
fn check_audit(gateway: &Gateway, is: impl Fn(&Value) -> bool) -> Vec<Value> {
    let entries = until("the audit log has everything", 60, || {
        let entries = gateway.json("/api/audit?limit=10000");
        let entries = entries.as_array().unwrap().clone();
        entries.iter().any(&is).then_some(entries)
    });
    let (code, out, err) = gateway.tool(&["audit", "verify", "-o", "json"]);
    assert_eq!(code, 0, "{out}{err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["whole"], true);
    entries
}

/// Runs the sequence, kills the gateway when the device has seen `kill_at` commands (before it answers the last of
/// them, or right after), restarts it, and checks what the device got.
///
/// With `finish` the rule says that a restart finishes it: all switches are on in the end, and each command came once.
fn killed_at(kill_at: usize, after_answer: bool, fan_ignores: bool, finish: bool) {
    let folder = tempfile::tempdir().unwrap();
    let within = if fan_ignores { "300ms" } else { "120s" };
    let config = rules(folder.path(), within, finish);
    let mut gateway = Gateway::builder().config(&config).start();
    let mut plant = Plant::birth(&gateway, Plant::off());
    until("the device is there", 60, || {
        (gateway.status()["host"]["devices_online"] == 2).then_some(())
    });
    plant.temp(90.0);
    let mut got: Vec<(String, bool)> = Vec::new();
    while got.len() < kill_at {
        let (name, on) = plant
            .command(PATIENCE)
            .unwrap_or_else(|| panic!("command {} of {kill_at}; so far {got:?}", got.len() + 1));
        got.push((name.clone(), on));
        let answers = !(fan_ignores && name == "Fan" && on);
        if answers && (got.len() < kill_at || after_answer) {
            plant.answer(&name, on);
        } else {
            // It obeys, and the crash comes before its answer.
            plant.state.insert(name, on);
        }
    }
    gateway.restart();
    let mut plant = Plant::birth(&gateway, plant.state);
    let label = format!(
        "kill at {kill_at}, after answer {after_answer}, fan ignores {fan_ignores}, finish {finish}"
    );
    let over = |gateway: &Gateway| {
        commands(gateway)
            .iter()
            .any(|step| step["sequence"]["last"] == true)
    };
    let deadline = std::time::Instant::now() + Duration::from_secs(120);
    while !over(&gateway) {
        assert!(
            std::time::Instant::now() < deadline,
            "{label}: {:#?}",
            commands(&gateway)
        );
        if let Some((name, on)) = plant.command(Duration::from_millis(100)) {
            got.push((name.clone(), on));
            plant.answer(&name, on);
        }
    }
    while let Some((name, on)) = plant.command(Duration::from_millis(100)) {
        got.push((name, on));
    }
    let finished = commands(&gateway)
        .iter()
        .any(|step| step["sequence"]["step"] == 3 && step["status"] == "confirmed");
    for name in SWITCHES {
        let forward = got.iter().filter(|(n, on)| n == name && *on).count();
        assert!(
            forward <= 1,
            "{label}: {name} was switched on {forward} times: {got:?}"
        );
        if !finished {
            assert!(!plant.state[name], "{label}: {name} is still on: {got:?}");
        }
    }
    if finish {
        let once: Vec<(String, bool)> = SWITCHES.map(|name| (name.to_owned(), true)).into();
        assert!(finished, "{label}: {:#?}", commands(&gateway));
        assert_eq!(got, once, "{label}");
    }
    let entries = check_audit(&gateway, |entry| entry["body"]["sequence"]["last"] == true);
    let mut told: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry["what"] == "command") {
        let body = &entry["body"];
        assert_eq!(body["by"], "rule:start-cooling@1.2.3");
        assert!(body["cause"].as_u64().unwrap() > 0);
        told.entry(body["id"].as_str().unwrap().to_owned())
            .or_default()
            .push(body["status"].as_str().unwrap().to_owned());
    }
    for (id, statuses) in &told {
        let ends = statuses.iter().filter(|status| *status != "sent").count();
        assert_eq!(ends, 1, "{label}: {id} {statuses:?}");
        if !id.ends_with(".undo") {
            let sent = statuses.iter().filter(|status| *status == "sent").count();
            assert!(sent <= 1, "{label}: {id} {statuses:?}");
        }
    }
    for (name, on) in &got {
        let id = entries.iter().any(|entry| {
            entry["body"]["metric"] == **name
                && entry["body"]["value"] == *on
                && entry["body"]["status"] == "sent"
        });
        assert!(id, "{label}: {name}={on} is not in the audit log");
    }
    gateway.check_identity();
}

#[test]
fn a_kill_at_every_step_of_a_sequence_repeats_nothing_and_takes_back_all() {
    // Forward only: three commands, killed before and after each answer.
    for kill_at in 1..=3 {
        for after_answer in [false, true] {
            killed_at(kill_at, after_answer, false, false);
        }
    }
    // The third one is ignored: three commands forward, three back.
    for kill_at in 3..=5 {
        for after_answer in [false, true] {
            killed_at(kill_at, after_answer, true, false);
        }
    }
}

#[test]
fn a_kill_at_every_step_of_a_sequence_that_is_to_be_finished_finishes_it() {
    for kill_at in 1..=3 {
        for after_answer in [false, true] {
            killed_at(kill_at, after_answer, false, true);
        }
    }
}

#[test]
fn devices_that_ignore_refuse_or_show_another_value_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, TOKEN).unwrap();
    let mut gateway = Gateway::builder()
        .config(&format!(
            "token_file = \"{}\"\n[writes]\nconfirm_timeout = \"8s\"\n[[writes.policy]]\nmatch = {{ metric = \"Speed\" }}\nmax = 100.0\n",
            token.display()
        ))
        .start();
    let plant = Plant::birth(&gateway, Plant::off());
    until("the device is there", 60, || {
        (gateway.status()["host"]["devices_online"] == 2).then_some(())
    });
    let does = Arc::new(Mutex::new(Does::Obeys));
    let (stop, how) = (Arc::new(AtomicBool::new(false)), does.clone());
    let stopped = stop.clone();
    let device = std::thread::spawn(move || {
        let mut plant = plant;
        while !stopped.load(Ordering::Relaxed) {
            let Some((name, on)) = plant.command(Duration::from_millis(50)) else {
                continue;
            };
            match *how.lock().unwrap() {
                Does::Obeys => plant.answer(&name, on),
                Does::Ignores => {}
                Does::Refuses | Does::Other => {
                    let had = plant.state[&name];
                    plant.answer(&name, had);
                }
            }
        }
        plant
    });
    let check = |gateway: &Gateway, how: Does, value: &str, code: i32, words: &str| {
        *does.lock().unwrap() = how;
        let (got, out, err) = gateway.tool(&["write", "g/n/plant", value]);
        assert!(
            out.contains(words) && got == code,
            "{value}: {got} {out}{err}"
        );
    };
    check(&gateway, Does::Obeys, "Valve=true", 0, "confirmed");
    check(
        &gateway,
        Does::Ignores,
        "Pump=true",
        1,
        "timeout (unconfirmed: the device showed nothing)",
    );
    check(
        &gateway,
        Does::Refuses,
        "Fan=true",
        1,
        "timeout (unconfirmed: the device last showed false)",
    );
    check(
        &gateway,
        Does::Other,
        "Valve=false",
        1,
        "the device last showed true",
    );
    // It shows it already, and a node that reports by exception has nothing to say.
    check(
        &gateway,
        Does::Ignores,
        "Valve=true",
        0,
        "confirmed (unchanged",
    );
    check(
        &gateway,
        Does::Obeys,
        "Speed=101",
        1,
        "rejected (range: 101",
    );
    check(
        &gateway,
        Does::Obeys,
        "Speed=\"fast\"",
        1,
        "rejected (datatype",
    );
    check(
        &gateway,
        Does::Obeys,
        "Nothing=1",
        1,
        "rejected (unknown_metric",
    );
    let (code, out, _) = gateway.tool(&["write", "g/n/plant", "Speed=7", "--dry-run"]);
    assert!(code == 0 && out.contains("would: send"), "{out}");

    // Same id, sent twice, also over a restart: one write.
    let body = json!({"id": "once", "metrics": [{"name": "Pump", "value": false}]});
    stop.store(true, Ordering::Relaxed);
    let plant = device.join().unwrap();
    let sent = |gateway: &Gateway| {
        commands(gateway)
            .iter()
            .filter(|step| step["id"] == "once" && step["status"] == "sent")
            .count()
    };
    post(&gateway, "write", &body);
    assert_eq!(sent(&gateway), 1);
    let first = outcome(&gateway, "once").unwrap();
    drop(plant);
    until("the journal has synced", 60, || {
        (gateway.json("/api/buffer")["unsynced_bytes"] == 0).then_some(())
    });
    gateway.restart();
    let (_, answer) = post(&gateway, "write", &body);
    assert_eq!(answer["status"], first["status"], "{answer}");
    assert_eq!(sent(&gateway), 1);
    check_audit(&gateway, |entry| entry["body"]["id"] == "once");
}

#[test]
fn a_node_that_dies_a_fight_and_a_hold_over_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let pack = folder.path().join("fight.toml");
    std::fs::write(
        &pack,
        r#"
[pack]
id = "fight"
version = "1.0.0"
[[rule]]
id = "a-on"
[rule.threshold]
metric = "temp"
high = 80.0
[[rule.command]]
metric = "Fan"
value = true
priority = 9
[[rule]]
id = "b-off"
[rule.threshold]
metric = "temp"
high = 80.0
[[rule.command]]
metric = "Fan"
value = false
priority = 1
"#,
    )
    .unwrap();
    // Longer than it takes to hear of the death.
    let config = format!(
        "[rules]\npaths = [\"{}\"]\n[writes]\nconfirm_timeout = \"120s\"\n",
        pack.display()
    );
    let mut gateway = Gateway::builder().config(&config).start();
    let mut plant = Plant::birth(&gateway, Plant::off());
    let online = |gateway: &Gateway| {
        until("the device is there", 60, || {
            (gateway.status()["host"]["devices_online"] == 2).then_some(())
        });
    };
    online(&gateway);
    plant.temp(90.0);
    let first = plant.command(PATIENCE);
    assert_eq!(first, Some(("Fan".to_owned(), true)));
    // It dies with the command in its hands.
    drop(plant);
    let lost = until("the write has an outcome", 60, || {
        outcome(&gateway, "-a-on-")
    });
    assert_eq!(lost["status"], "timeout");
    assert!(
        lost["reason"].as_str().unwrap().starts_with("offline"),
        "{lost}"
    );
    let held = until("the weaker write has an outcome", 60, || {
        outcome(&gateway, "-b-off-")
    });
    assert_eq!(held["status"], "rejected");
    assert!(
        held["reason"].as_str().unwrap().starts_with("priority"),
        "{held}"
    );
    let fight = until("the fight is an alarm", 60, || {
        own_alarm(&gateway, "writes")
    });
    assert_eq!(
        (&fight["group"], &fight["state"], &fight["values"]),
        (
            &Value::Null,
            &json!("unack"),
            &json!({"word": "write_fight", "of": "g/n/plant Fan"})
        )
    );
    let message = fight["message"].as_str().unwrap();
    assert!(
        message.contains("has the lower priority and is held off"),
        "{message}"
    );
    let id = fight["id"].as_str().unwrap();
    let (code, _, err) = gateway.tool(&["alarms", "ack", id]);
    assert_eq!(code, 0, "{err}");
    assert_eq!(own_alarm(&gateway, "writes").unwrap()["state"], "ack");
    let (_, out, _) = gateway.tool(&["alarms", "list"]);
    let row = out.lines().find(|line| line.contains(id));
    assert!(row.is_some_and(|row| row.contains(" gateway ")), "{out}");

    let (code, _, err) = gateway.tool(&["hold", "g/n/plant", "--for", "30m"]);
    assert_eq!(code, 0, "{err}");
    gateway.restart();
    let _plant = Plant::birth(&gateway, Plant::off());
    online(&gateway);
    // Who wrote what is not known any more: that fight is over.
    until("the fight is over", 20, || {
        own_alarm(&gateway, "writes").is_none().then_some(())
    });
    let (code, out, _) = gateway.tool(&["write", "g/n/plant", "Pump=true"]);
    assert!(code == 1 && out.contains("rejected (held: user:"), "{out}");
    let entries = check_audit(&gateway, |entry| entry["what"] == "action");
    let hold = entries
        .iter()
        .find(|entry| entry["what"] == "action")
        .unwrap();
    assert_eq!(
        (&hold["body"]["verb"], &hold["body"]["for_ms"]),
        (&json!("hold"), &json!(1_800_000))
    );

    // Stopped, and an entry cut off the end.
    assert!(gateway.stop().success());
    let (code, out, err) = gateway.tool(&["audit", "verify"]);
    assert!(code == 0 && out.starts_with("whole: "), "{out}{err}");
    let audit = gateway.folder().join("data/audit");
    let file = std::fs::read_dir(audit)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let text = std::fs::read_to_string(&file).unwrap();
    let cut: Vec<&str> = text.lines().collect();
    std::fs::write(&file, cut[..cut.len() - 1].join("\n") + "\n").unwrap();
    let (code, out, _) = gateway.tool(&["audit", "verify"]);
    assert!(
        code == 1 && out.contains("the end of the log was removed"),
        "{out}"
    );

    // Started again, the gateway says so, until a person has seen it, over a kill too.
    gateway.restart();
    let broken = until("the broken log is an alarm", 20, || {
        own_alarm(&gateway, "audit")
    });
    assert_eq!(
        (&broken["values"]["word"], &broken["priority"]),
        (&json!("audit_broken"), &json!("high"))
    );
    until("the journal has synced", 60, || {
        (gateway.json("/api/buffer")["unsynced_bytes"] == 0).then_some(())
    });
    gateway.restart();
    assert_eq!(own_alarm(&gateway, "audit").unwrap()["id"], broken["id"]);
    let (code, _, err) = gateway.tool(&["alarms", "ack", broken["id"].as_str().unwrap()]);
    assert_eq!(code, 0, "{err}");
    assert_eq!(own_alarm(&gateway, "audit"), None);
    gateway.check_identity();
}

/// The gateway's own alarm of a part.
fn own_alarm(gateway: &Gateway, part: &str) -> Option<Value> {
    let rule = format!("sparkgate.{part}");
    let alarms = gateway.json("/api/alarms");
    let found = alarms
        .as_array()?
        .iter()
        .find(|alarm| alarm["rule"] == *rule);
    found.cloned()
}

/// `POST` to the plant with the token.
fn post(gateway: &Gateway, action: &str, body: &Value) -> (u16, Value) {
    let headers = format!("authorization: Bearer {TOKEN}\r\n");
    let path = format!("/api/devices/g/n/plant/{action}");
    let (status, body) =
        request(gateway.admin, "POST", &path, &headers, &body.to_string()).expect("an answer");
    (status, serde_json::from_str(&body).unwrap_or(Value::Null))
}

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
