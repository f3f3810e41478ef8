//! Models in the whole gateway: versions change while it runs and stay changed, by command and by rule; texts become
//! vectors that rules compare and that group a flood.

use std::path::{Path, PathBuf};

use serde_json::Value;
use sparkplug_rs::{DataType, payload};

use crate::harness::gateway::Gateway;
use crate::harness::mqtt::{Node, metric, now_ms};
use crate::harness::nats::{Nats, Stored};
use crate::harness::until;
use crate::python;

const SENSOR: &str = "univariate-anomaly";
/// Points of one of its windows, from one to the next, and the windows that are fed.
const POINTS: u64 = 32;
const HOP: u64 = 8;
const WINDOWS: u64 = 24;

/// A copy of a shipped model under another version.
fn version(folder: &Path, version: &str) -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("models/artifacts")
        .join(SENSOR);
    let to = folder.join(version);
    copy(&from, &to, |text| {
        text.replace("version = \"1.0.0\"", &format!("version = \"{version}\""))
    });
    to
}

/// Copies a model's folder, its manifest changed.
fn copy(from: &Path, to: &Path, change: impl Fn(String) -> String) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.path().extension().is_some_and(|e| e == "toml") {
            let text = std::fs::read_to_string(entry.path()).unwrap();
            std::fs::write(target, change(text)).unwrap();
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn model(gateway: &Gateway, name: &str) -> Value {
    let all = gateway.json("/api/models");
    let all = all.as_array().unwrap();
    all.iter()
        .find(|m| m["model"] == name)
        .unwrap_or_else(|| panic!("{name} in {all:?}"))
        .clone()
}

fn runs_version(gateway: &Gateway, wanted: &str) {
    until(&format!("version {wanted} answers"), 180, || {
        (model(gateway, SENSOR)["version"] == wanted).then_some(())
    });
}

/// A tool's verb that must succeed: what it printed.
fn tool(gateway: &Gateway, args: &[&str]) -> String {
    let (code, out, errors) = gateway.tool(args);
    assert_eq!(code, 0, "{args:?}: {errors}");
    out
}

/// A device whose `Temperature` has a past of many windows, told at once: on a slow machine some of them are left out.
fn feed(gateway: &Gateway, name: &str) {
    feed_around(gateway, name, 20.0);
}

/// As [`feed`], around a level.
fn feed_around(gateway: &Gateway, name: &str, level: f64) {
    const A_MESSAGE: usize = 16;
    let mut node = Node::birth(gateway.mqtt, "g", name, "press");
    let count = POINTS + HOP * WINDOWS;
    let begun = now_ms() - 250 * count;
    let value = |i: u64| {
        let mut value = metric("Temperature", 3, DataType::Double);
        value.set_timestamp(begun + 250 * i);
        value.set_double_value(level + (i as f64 * 0.7).sin() * 0.1);
        value
    };
    node.send("DBIRTH", true, vec![value(0)], 1);
    let rest: Vec<u64> = (1..count).collect();
    for some in rest.chunks(A_MESSAGE) {
        let values = some.iter().map(|i| value(*i)).collect();
        node.send("DDATA", true, values, 1);
    }
}

#[test]
fn a_version_is_shadowed_promoted_kept_over_a_kill_and_rolled_back() {
    let folder = tempfile::tempdir().unwrap();
    let candidate = version(folder.path(), "1.1.0");
    let candidate = candidate.to_str().unwrap();
    let mut gateway = Gateway::builder()
        .config(&format!("[models]\nuse_shipped = [\"{SENSOR}\"]\n"))
        .start();
    let (code, _, errors) = gateway.tool(&["models", "promote", SENSOR]);
    assert!(code == 1 && errors.contains("has no candidate"), "{errors}");
    let (code, _, errors) = gateway.tool(&["models", "shadow", "/nonexistent"]);
    assert!(code == 1 && errors.contains("/nonexistent"), "{errors}");

    tool(&gateway, &["models", "shadow", candidate]);
    feed(&gateway, "a");
    until("both versions scored the same windows", 180, || {
        let beside = &model(&gateway, SENSOR)["candidate"];
        let compared = beside["compared"].as_u64()?;
        (compared >= 3 && beside["agreed"] == beside["compared"]).then_some(())
    });
    assert_eq!(model(&gateway, SENSOR)["version"], "1.0.0");
    let table = tool(&gateway, &["models", "list"]);
    assert!(table.contains("1.1.0 agrees in 100.0 % of"), "{table}");
    // A candidate outlives a crash too.
    gateway.restart();
    assert_eq!(
        model(&gateway, SENSOR)["candidate"]["status"]["version"],
        "1.1.0"
    );

    tool(&gateway, &["models", "promote", SENSOR]);
    runs_version(&gateway, "1.1.0");
    gateway.restart();
    runs_version(&gateway, "1.1.0");
    tool(&gateway, &["models", "rollback", SENSOR]);
    runs_version(&gateway, "1.0.0");
    gateway.restart();
    runs_version(&gateway, "1.0.0");
    // A canary of everything answers in the active version's place.
    tool(
        &gateway,
        &["models", "shadow", candidate, "--canary", "100"],
    );
    feed(&gateway, "b");
    until("the canary answers", 180, || {
        (model(&gateway, SENSOR)["candidate"]["status"]["runs"].as_u64()? >= 3).then_some(())
    });
    tool(&gateway, &["models", "cancel", SENSOR]);
    assert_eq!(model(&gateway, SENSOR)["candidate"], Value::Null);
    gateway.check_identity();
}

const PROMOTE: &str = r##"
[pack]
id = "rollout"
version = "1.0.0"

[[rule]]
id = "promote-when-it-agrees"
scope = { group = "#gateway", node = "models" }
[rule.pattern]
stages = [{ name = "same", when = 'metric == "Agreement" && value >= 0.99 && current("Compared") >= 3.0' }]
[[rule.command]]
metric = "Rollout"
value = "promote"

[[rule]]
id = "sees-everything"
[rule.pattern]
stages = [{ name = "any", when = 'metric == "Latency"' }]
[rule.alarm]
message = "the gateway's own figures are seen by those who name them"
"##;

#[test]
fn a_rule_promotes_a_candidate_that_agrees() {
    let folder = tempfile::tempdir().unwrap();
    let candidate = version(folder.path(), "1.1.0");
    let packs = folder.path().join("rules");
    std::fs::create_dir(&packs).unwrap();
    std::fs::write(packs.join("rollout.toml"), PROMOTE).unwrap();
    let nats = Nats::start();
    let gateway = Gateway::builder()
        .bridge(&nats.url())
        .config(&format!(
            "[models]\nuse_shipped = [\"{SENSOR}\"]\n[rules]\npaths = [\"{}\"]\n",
            packs.display()
        ))
        .start();
    tool(&gateway, &["models", "shadow", candidate.to_str().unwrap()]);
    feed(&gateway, "a");
    runs_version(&gateway, "1.1.0");
    let told = until("both steps are recorded", 180, || {
        let told: Vec<Stored> = nats
            .messages("SPARKGATE_test_ALARMS")
            .into_iter()
            .filter(|m| m.subject == format!("sparkgate.test.command.=23gateway.models.{SENSOR}"))
            .collect();
        (told.len() >= 2).then_some(told)
    });
    let step = |i: usize| {
        let body = told[i].json();
        ["metric", "value", "status", "by"].map(|key| body[key].as_str().unwrap().to_owned())
    };
    let by = "rule:promote-when-it-agrees@1.0.0";
    assert_eq!(step(0), ["Rollout", "promote", "sent", by]);
    assert_eq!(step(1), ["Rollout", "promote", "confirmed", by]);
    // A slow machine may miss an objective, which is an alarm of the gateway's own.
    let alarms = gateway.json("/api/alarms");
    let mut alarms = alarms.as_array().unwrap().iter();
    assert!(alarms.all(|alarm| alarm["rule"] != "sees-everything"));
    gateway.check_identity();
}

const GO_BACK: &str = r##"
[pack]
id = "rollout"
version = "1.0.0"

[[rule]]
id = "go-back-when-it-drifts"
scope = { group = "#gateway", node = "models" }
[rule.pattern]
stages = [{ name = "moved", when = 'metric == "Drift" && value > 0.25' }]
[[rule.command]]
metric = "Rollout"
value = "rollback"
"##;

/// The sensor model under another version, validated where half of the devices are around 20 and half around 30.
fn halves(folder: &Path, name: &str) -> PathBuf {
    let made = version(folder, name);
    let file = made.join("manifest.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let (before, rest) = text.split_once("[[reference]]").unwrap();
    let (_, after) = rest.split_once("[provenance]").unwrap();
    let reference =
        "[[reference]]\nof = \"Temperature:mean\"\nbins = [25.0]\nshares = [0.5, 0.5]\n\n";
    let text =
        format!("{before}{reference}[provenance]{after}").replace("queue = 256", "queue = 4096");
    std::fs::write(&file, text).unwrap();
    made
}

/// Answers upstream that were acted on: version by device.
fn answered(nats: &Nats) -> Vec<(String, String)> {
    let all = nats.messages("SPARKGATE_test").into_iter();
    all.filter(|m| m.subject.starts_with("sparkgate.test.inference."))
        .filter(|m| m.json()["shadow"] == false)
        .map(|m| {
            let version = m.json()["version"].as_str().unwrap().to_owned();
            (m.header("Sparkgate-Node").to_owned(), version)
        })
        .collect()
}

/// `sparkgate.models` alarms upstream: event, state, id.
fn models_alarms(nats: &Nats) -> Vec<[String; 3]> {
    let all = nats.messages("SPARKGATE_test_ALARMS").into_iter();
    all.filter(|m| m.subject == "sparkgate.test.alarm._._._")
        .map(|m| m.json())
        .filter(|body| body["rule"] == "sparkgate.models" && body["values"]["word"] == "drift")
        .map(|body| ["event", "state", "id"].map(|key| body[key].as_str().unwrap().to_owned()))
        .collect()
}

#[test]
fn a_canary_answers_for_its_share_a_rule_goes_back_on_drift_and_the_alarm_outlives_a_kill() {
    const DEVICES: usize = 50;
    let folder = tempfile::tempdir().unwrap();
    let (active, candidate) = (
        halves(folder.path(), "1.0.0"),
        halves(folder.path(), "1.1.0"),
    );
    let packs = folder.path().join("rules");
    std::fs::create_dir(&packs).unwrap();
    std::fs::write(packs.join("rollout.toml"), GO_BACK).unwrap();
    let nats = Nats::start();
    let mut gateway = Gateway::builder()
        .bridge(&nats.url())
        .config(&format!(
            "[models]\npaths = [\"{}\"]\n[rules]\npaths = [\"{}\"]\n",
            active.display(),
            packs.display()
        ))
        .start();

    // Half of them around 20 and half around 30, as it was validated.
    let both = |round: &str| {
        for n in 0..DEVICES {
            feed_around(&gateway, &format!("{round}-{n}"), [20.0, 30.0][n % 2]);
        }
    };
    tool(
        &gateway,
        &[
            "models",
            "shadow",
            candidate.to_str().unwrap(),
            "--canary",
            "30",
        ],
    );
    both("a");
    let answers = until("every device is answered upstream", 120, || {
        let answers = answered(&nats);
        let nodes: std::collections::BTreeSet<&String> =
            answers.iter().map(|(node, _)| node).collect();
        (nodes.len() == DEVICES).then_some(answers)
    });
    let mut versions = std::collections::BTreeMap::new();
    for (node, version) in answers {
        let known = versions
            .entry(node.clone())
            .or_insert_with(|| version.clone());
        assert_eq!(*known, version, "{node} is always answered by the same one");
    }
    let of_canary = versions.values().filter(|v| *v == "1.1.0").count();
    // 30 % of the devices, by a hash of their names.
    assert!((5..=26).contains(&of_canary), "{of_canary} of {DEVICES}");
    assert_eq!(model(&gateway, SENSOR)["version"], "1.0.0");

    tool(&gateway, &["models", "promote", SENSOR]);
    runs_version(&gateway, "1.1.0");
    for n in 0..DEVICES {
        feed_around(&gateway, &format!("b-{n}"), 20.0);
    }
    let raised = until("the drift is an alarm", 120, || {
        let alarms = gateway.json("/api/alarms");
        let all = alarms.as_array()?;
        let found = all
            .iter()
            .find(|alarm| alarm["values"]["word"] == "drift")?;
        Some(found.clone())
    });
    assert_eq!(
        (&raised["group"], &raised["values"]["of"], &raised["state"]),
        (
            &Value::Null,
            &format!("{SENSOR}/Temperature:mean").into(),
            &"unack".into()
        ),
        "{raised:#}"
    );
    runs_version(&gateway, "1.0.0");
    let told = until("the rule's rollback is told", 60, || {
        let commands = gateway.json("/api/commands");
        let all = commands.as_array()?;
        let done = all.iter().find(|step| {
            step["value"] == "rollback"
                && step["by"] == "rule:go-back-when-it-drifts@1.0.0"
                && step["status"] == "confirmed"
        });
        done.cloned()
    });
    assert_eq!(told["target"]["device"], SENSOR, "{told}");

    let id = raised["id"].as_str().unwrap();
    tool(&gateway, &["alarms", "ack", id, "--note", "new material"]);
    let listed = tool(&gateway, &["alarms", "list"]);
    let row = listed.lines().find(|line| line.contains(id)).unwrap();
    assert!(
        row.contains(" ack ") && row.contains(" gateway "),
        "{listed}"
    );
    gateway.restart();
    let drifts = || {
        let alarms = gateway.json("/api/alarms").as_array().cloned();
        let mut all = alarms.unwrap_or_default();
        // A loaded machine may miss the model's objective, too.
        all.retain(|alarm| alarm["values"]["word"] == "drift");
        all
    };
    let alarms = drifts();
    assert_eq!(
        (&alarms[0]["id"], &alarms[0]["state"], &alarms[0]["note"]),
        (&id.into(), &"ack".into(), &"new material".into()),
        "{alarms:#?}"
    );
    // The inputs are as they were validated: it is over, though nothing remembers that it began.
    for n in 0..DEVICES {
        feed_around(&gateway, &format!("c-{n}"), [20.0, 30.0][n % 2]);
    }
    until("the alarm is cleared", 120, || {
        drifts().is_empty().then_some(())
    });
    let events = until("its end is upstream", 60, || {
        let events = models_alarms(&nats);
        (events.last()?[0] == "clear").then_some(events)
    });
    assert!(events.iter().all(|[_, _, of]| of == id), "{events:?}");
    let words: Vec<&str> = events
        .iter()
        .map(|[event, _, _]| event.as_str())
        .filter(|event| *event != "change")
        .collect();
    assert_eq!(words, ["raise", "ack", "clear"]);
    gateway.check_identity();
}

const TEXTS: &str = r#"
[pack]
id = "texts"
version = "1.0.0"

[[rule]]
id = "hot"
[rule.threshold]
metric = "temp"
high = 80.0
[rule.alarm]
message = "pump {device} bearing temperature high"

[[rule]]
id = "sounds-bad"
scope = { node = "talker" }
[rule.pattern]
stages = [{ name = "said", when = 'type == "String" && similar("bearing noise") > 0.6' }]
[rule.alarm]
message = "noise from the bearing of {device}"
"#;

fn embeddings(nats: &Nats) -> Vec<Stored> {
    let all = nats.messages("SPARKGATE_test").into_iter();
    all.filter(|m| m.subject.starts_with("sparkgate.test.embedding."))
        .collect()
}

/// A device that says texts.
fn talker(gateway: &Gateway, texts: &[&str]) -> Node {
    let mut node = Node::birth(gateway.mqtt, "g", "talker", "p-0");
    let said = |name: &str, alias: u64, text: &str| {
        let mut said: payload::Metric = metric(name, alias, DataType::String);
        said.set_string_value(text.to_owned());
        said
    };
    let first = vec![
        said("Log", 3, "ready"),
        said("Operator", 4, "bearing noise"),
    ];
    node.send("DBIRTH", true, first, 1);
    for text in texts {
        node.send("DDATA", true, vec![said("Log", 3, text)], 1);
    }
    node
}

#[test]
fn texts_become_vectors_that_rules_compare_and_that_group_a_flood() {
    let folder = tempfile::tempdir().unwrap();
    let model_folder = folder.path().join("minilm");
    copy(&python::text_model(), &model_folder, |text| {
        text.replace("dimension = ", "metrics = [\"Log\"]\ndimension = ")
    });
    std::fs::write(folder.path().join("texts.toml"), TEXTS).unwrap();
    let nats = Nats::start();
    let mut gateway = Gateway::builder()
        .bridge(&nats.url())
        // Its kernels are optimised in test builds too.
        .env("ORT_DYLIB_PATH", python::library().to_str().unwrap())
        .config(&format!(
            "[models]\npaths = [\"{}\"]\n[rules]\npaths = [\"{}\"]\n",
            model_folder.display(),
            folder.path().join("texts.toml").display()
        ))
        .start();
    assert_eq!(model(&gateway, "minilm-l6")["kind"], "text");

    let mut pumps: Vec<Node> = (0..3)
        .map(|n| Node::birth(gateway.mqtt, "g", &format!("n-{n}"), &format!("p-{n}")))
        .collect();
    for pump in &mut pumps {
        pump.temp(95.0);
    }
    let talker = talker(
        &gateway,
        &["user logged in", "unusual grinding sound from the bearing"],
    );
    let alarms = until("four alarms and their relations", 300, || {
        let alarms = gateway.json("/api/alarms");
        let all = alarms.as_array()?;
        let related = all.iter().filter(|a| a["family"].is_string()).count();
        (related == 4).then(|| all.clone())
    });
    let of = |rule: &str| -> Vec<&Value> { alarms.iter().filter(|a| a["rule"] == rule).collect() };
    let hot = of("hot");
    assert_eq!((hot.len(), of("sounds-bad").len()), (3, 1));
    assert!(
        hot.iter().all(|alarm| alarm["family"] == hot[0]["family"]),
        "{hot:#?}"
    );
    assert_eq!(
        hot.iter()
            .filter(|a| a["neighbours"] != serde_json::json!([]))
            .count(),
        2
    );
    let table = tool(&gateway, &["alarms", "list", "--families"]);
    let row = table
        .lines()
        .find(|line| line.contains("temperature high"))
        .unwrap();
    assert!(row.split_whitespace().any(|cell| cell == "3"), "{table}");
    let with_neighbours = hot
        .iter()
        .find(|a| a["neighbours"][0]["id"].is_string())
        .unwrap();
    let shown = tool(
        &gateway,
        &["alarms", "show", with_neighbours["id"].as_str().unwrap()],
    );
    assert!(shown.contains("MEANS NEARLY THE SAME"), "{shown}");

    // Three texts of the talker and four alarms; nothing of `Operator`, which no manifest names.
    let stored = until("seven vectors upstream", 180, || {
        let stored = embeddings(&nats);
        (stored.len() == 7).then_some(stored)
    });
    for message in &stored {
        assert_eq!(message.payload.len(), 4 * 384);
        assert_eq!(
            message.header("Content-Type"),
            "application/vnd.sparkgate.f32le; dim=384"
        );
        assert_eq!(message.header("Sparkgate-Model"), "minilm-l6");
        assert_eq!(
            message.header("Sparkgate-Vector-Version"),
            "all-MiniLM-L6-v2-w8-1"
        );
        let norm: f32 = message
            .payload
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()).powi(2))
            .sum();
        assert!((norm - 1.0).abs() < 1e-3, "{norm}");
    }
    let of_talker: Vec<u64> = stored
        .iter()
        .filter(|m| m.header("Sparkgate-Metric") == "Log")
        .map(|m| m.header("Sparkgate-Of").parse().unwrap())
        .collect();
    assert!(
        of_talker.len() == 3 && of_talker.is_sorted(),
        "{of_talker:?}"
    );

    // After a crash the vectors are known, and nothing is embedded or raised a second time.
    drop((pumps, talker));
    let raises = |nats: &Nats| {
        let all = nats.messages("SPARKGATE_test_ALARMS").into_iter();
        all.filter(|m| m.subject.contains(".alarm.") && m.json()["event"] == "raise")
            .count()
    };
    until("four alarms upstream", 60, || {
        (raises(&nats) == 4).then_some(())
    });
    let family = &hot[0]["family"];
    until("the journal has synced", 60, || {
        (gateway.json("/api/buffer")["unsynced_bytes"] == 0).then_some(())
    });
    gateway.restart();
    let alarms = gateway.json("/api/alarms");
    let again = alarms.as_array().unwrap().iter();
    let again: Vec<&Value> = again.filter(|alarm| alarm["rule"] == "hot").collect();
    assert_eq!(again.len(), 3);
    assert!(
        again.iter().all(|alarm| alarm["family"] == *family),
        "{again:#?}"
    );
    // What comes now is embedded behind all that could have been repeated.
    let mut late = Node::birth(gateway.mqtt, "g", "n-9", "p-9");
    late.temp(95.0);
    until("the new alarm's vector is stored", 300, || {
        let pending = gateway.check_identity()["pending"].as_u64()?;
        (pending == 0 && embeddings(&nats).len() > 7).then_some(())
    });
    assert_eq!(embeddings(&nats).len(), 8);
    assert_eq!(raises(&nats), 5);
    // It is nearest to alarms of before the crash.
    until("the new alarm has joined their family", 60, || {
        let alarms = gateway.json("/api/alarms");
        let all = alarms.as_array()?.iter();
        (all.filter(|alarm| alarm["rule"] == "hot" && alarm["family"] == *family)
            .count()
            == 4)
            .then_some(())
    });
}

#[test]
fn rules_that_compare_texts_without_a_text_model_are_said_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let pack = folder.path().join("texts.toml");
    std::fs::write(&pack, TEXTS).unwrap();
    let gateway = Gateway::builder()
        .config(&format!("[rules]\npaths = [\"{}\"]\n", pack.display()))
        .start();
    gateway.logs(&["build_text.sh"]);
    let config = gateway.config_file();
    let (code, _, errors) = gateway.tool(&["validate", "-c", config.to_str().unwrap()]);
    assert_eq!(code, 78);
    assert!(errors.contains("similar(\"bearing noise\")"), "{errors}");
}

const DECISIONS: &str = r#"
[pack]
id = "decisions"
version = "1.0.0"

[[rule]]
id = "cool"
[rule.threshold]
metric = "temp"
high = 80.0
[[rule.command]]
metric = "temp"
value = 20.0
"#;

/// Devices with two vibration axes, each with 24 s of the past: 12 windows.
fn shake(gateway: &Gateway, names: std::ops::Range<u32>) -> (Vec<Node>, u64) {
    const SAMPLES: u64 = 240;
    const A_MESSAGE: u64 = 16;
    let begun = now_ms() - 100 * SAMPLES;
    let axes = |from: u64, count: u64| -> Vec<payload::Metric> {
        let samples = (from..from + count).flat_map(|i| {
            [("Vibration/X", 4, 0.0), ("Vibration/Y", 5, 1.2)].map(|(name, alias, lag)| {
                let mut value = metric(name, alias, DataType::Double);
                value.set_timestamp(begun + 100 * i);
                value.set_double_value(2.0 + (i as f64 * 0.3 + lag).sin() * 0.5);
                value
            })
        });
        samples.collect()
    };
    let mut nodes: Vec<Node> = names
        .map(|n| Node::birth(gateway.mqtt, "g", &format!("s-{n}"), "fan"))
        .collect();
    let mut sent = 2 * nodes.len() as u64;
    for node in &mut nodes {
        let mut first = axes(0, 1);
        let mut temp = metric("temp", 2, DataType::Double);
        temp.set_double_value(20.0);
        first.push(temp);
        node.send("DBIRTH", true, first, 1);
        sent += 1;
    }
    for from in (1..SAMPLES).step_by(A_MESSAGE as usize) {
        for node in &mut nodes {
            node.send("DDATA", true, axes(from, A_MESSAGE), 1);
            sent += 1;
        }
    }
    (nodes, sent)
}

/// The shipped model with work added until it misses its objective by far: the lighter one takes over, and neither
/// ingest, nor decisions, nor the bridge wait for it.
#[test]
fn a_slow_model_gives_way_and_delays_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let slow = folder.path().join("vibration-ae");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    python::must(
        "slow_model.py",
        "see its message above",
        std::process::Command::new(python::interpreter())
            .arg(root.join("tests/it/foreign/slow_model.py"))
            .arg(root.join("models/artifacts/vibration-ae"))
            .arg(&slow),
    );
    let pack = folder.path().join("decisions.toml");
    std::fs::write(&pack, DECISIONS).unwrap();
    let nats = Nats::start();
    let gateway = Gateway::builder()
        .bridge(&nats.url())
        .config(&format!(
            "[models]\npaths = [\"{}\"]\nuse_shipped = [\"vibration-ae-mlp\"]\nbackend = [\"tract:cpu\"]\n\
             [rules]\npaths = [\"{}\"]\n",
            slow.display(),
            pack.display()
        ))
        .start();
    let (heavy, light) = ("vibration-ae", "vibration-ae-mlp");
    assert_eq!(model(&gateway, heavy)["version"], "1.0.0-slow");

    let (_first, sent) = shake(&gateway, 0..12);
    until("the slow model gives way", 300, || {
        (model(&gateway, heavy)["degraded"].as_u64()? > 0).then_some(())
    });
    let (mut second, more) = shake(&gateway, 12..24);
    for node in &mut second {
        node.temp(95.0);
    }
    let sent = sent + more + second.len() as u64;
    until("the lighter model answers for it", 300, || {
        (model(&gateway, light)["fallback_answers"].as_u64()? > 0).then_some(())
    });
    until("everything is taken and decided", 300, || {
        let status = gateway.check_identity();
        let commands = gateway.json("/api/commands");
        let told = commands.as_array()?.iter();
        let sent_to: std::collections::BTreeSet<&str> = told
            .filter(|step| step["status"] == "sent")
            .filter_map(|step| step["target"]["node"].as_str())
            .collect();
        let all = status["received"] == sent && sent_to.len() == second.len();
        all.then_some(())
    });
    gateway.drained();

    let one = until("an answer of the lighter model is stored", 60, || {
        let upstream = nats.messages("SPARKGATE_test").into_iter();
        let answers = upstream.filter(|m| m.subject.contains(".inference."));
        let mut bodies = answers.map(|m| m.json());
        bodies.find(|body| body["fallback"] == true)
    });
    assert_eq!(
        (&one["model"], &one["asked"]),
        (&light.into(), &heavy.into())
    );
    let raised = until("the missed objective is an alarm", 60, || {
        let alarms = nats.messages("SPARKGATE_test_ALARMS").into_iter();
        let own = alarms.filter(|m| m.subject == "sparkgate.test.alarm._._._");
        let mut bodies = own.map(|m| m.json());
        bodies.find(|body| {
            body["values"]["word"] == "objective" && body["values"]["of"] == "vibration-ae"
        })
    });
    assert_eq!(
        (&raised["event"], &raised["rule"]),
        (&"raise".into(), &"sparkgate.models".into())
    );
}
