//! Rules of a running gateway: changed packs, and stored history through other rules.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::harness::gateway::Gateway;
use crate::harness::mqtt::{Node, now_ms};
use crate::harness::until;

fn pack(version: &str, high: &str) -> String {
    format!(
        r#"
[pack]
id = "site"
version = "{version}"
[[rule]]
id = "hot"
scope = {{ group = "*", node = "*", device = "*" }}
[rule.threshold]
metric = "temp"
high = {high}
[rule.alarm]
message = "{{value}}"
[[rule.command]]
metric = "n"
value = 7
"#
    )
}

fn version(gateway: &Gateway) -> Value {
    gateway.json("/api/rules")[0]["version"].clone()
}

#[test]
fn a_changed_pack_runs_by_itself_a_wrong_one_changes_nothing_and_history_runs_through_rules_again()
{
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("site.toml");
    std::fs::write(&file, pack("1.0.0", "90.0")).unwrap();
    let mut gateway = Gateway::builder()
        .config(&format!(
            "[rules]\npaths = [\"{}\"]\n",
            folder.path().display()
        ))
        .start();
    let mut node = Node::birth(gateway.mqtt, "plant", "line", "press");
    node.temp(95.0);
    let alarms = |gateway: &Gateway| gateway.json("/api/alarms").as_array().unwrap().len();
    until("the alarm is raised", 60, || {
        (alarms(&gateway) == 1).then_some(())
    });
    let raised = gateway.json("/api/alarms")[0]["id"].clone();

    std::fs::write(&file, pack("1.1.0", "80.0")).unwrap();
    until("the changed pack runs", 60, || {
        (version(&gateway) == "1.1.0").then_some(())
    });
    assert_eq!(
        gateway.json("/api/alarms")[0]["id"],
        raised,
        "the alarm stays"
    );

    std::fs::write(
        &file,
        pack("1.2.0", "80.0").replace("threshold", "treshold"),
    )
    .unwrap();
    gateway.logs(&["stay in force", "site.toml:8:", "threshold"]);
    assert_eq!(version(&gateway), "1.1.0");

    // Signal instead of watching.
    std::fs::write(&file, pack("1.3.0", "80.0")).unwrap();
    let pid = gateway.pid().to_string();
    assert!(
        std::process::Command::new("kill")
            .args(["-HUP", &pid])
            .status()
            .unwrap()
            .success()
    );
    until("the pack is loaded", 60, || {
        (version(&gateway) == "1.3.0").then_some(())
    });

    let between = now_ms().to_string();
    node.temp(60.0);
    until("the alarm's condition is over", 60, || {
        (gateway.json("/api/alarms")[0]["state"] == "rtn-unack").then_some(())
    });

    // Beside the running gateway: the same history, another limit.
    let other = tempfile::tempdir().unwrap();
    std::fs::write(other.path().join("other.toml"), pack("2.0.0", "50.0")).unwrap();
    let replay = |from: &str, extra: &[&str]| {
        let mut args = vec!["rules", "replay", "-c"];
        let config = gateway.config_file();
        let config = config.display().to_string();
        args.extend([config.as_str(), "--from", from, "-o", "json"]);
        args.extend(extra);
        let (code, out, told) = gateway.tool(&args);
        assert_eq!(code, 0, "{told}");
        let lines: Vec<Value> = out
            .lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect();
        let of = |kind: &str| {
            lines
                .iter()
                .filter(|l| l["kind"] == kind)
                .cloned()
                .collect::<Vec<_>>()
        };
        (of("match"), of("command"), of("alarm"), told)
    };
    // The write that nobody confirms times out meanwhile, which is another step of it.
    let sent = || {
        let steps = gateway.json("/api/commands");
        let steps = steps.as_array().unwrap().iter();
        steps.filter(|step| step["status"] == "sent").count()
    };
    let before = sent();
    let other = other.path().display().to_string();
    let (matches, commands, _, told) = replay("1h", &["--rules", &other]);
    assert_eq!((matches.len(), commands.len()), (1, 1), "{told}");
    assert_eq!(matches[0]["version"], "2.0.0");
    assert_eq!(matches[0]["values"]["value"], 95.0);
    assert_eq!(commands[0]["suppressed"], true);
    // What began before the range is known, and only what is in it is shown.
    let (matches, _, alarms, told) = replay(&between, &[]);
    assert!(
        matches.is_empty() && told.contains("were run first"),
        "{told}"
    );
    assert_eq!(
        (alarms.len(), &alarms[0]["alarm"]["event"]),
        (1, &"clear".into()),
        "{told}"
    );
    let (_, _, alarms, told) = replay(&between, &["--warm-up", "0s"]);
    assert!(
        alarms.is_empty() && !told.contains("were run first"),
        "{told}"
    );
    let (none, _, _, told) = replay("1h", &["--to", "2020-01-01T00:00:00Z"]);
    assert!(none.is_empty() && told.contains("0 records"), "{told}");
    assert_eq!(sent(), before, "nothing was written");
    gateway.stop();
}

const LIFE: &str = r#"
[pack]
id = "life"
version = "3.1.4"
[[rule]]
id = "hot"
scope = { group = "*", node = "*", device = "*" }
[rule.threshold]
metric = "temp"
high = 90.0
[rule.alarm]
message = "{device} {value}"
[[rule]]
id = "cold"
scope = { group = "*", node = "*", device = "*" }
dry_run = true
[rule.threshold]
metric = "temp"
low = 5.0
[[rule.command]]
metric = "n"
value = 7
"#;

/// What people do to alarms and rules holds over a crash; with several workers as with one.
#[test]
fn alarms_are_shelved_suppressed_and_out_of_service_and_rules_off_until_somebody_says_otherwise() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("life.toml"), LIFE).unwrap();
    let mut gateway = Gateway::builder()
        .config(&format!(
            "[rules]\npaths = [\"{}\"]\nworkers = 3\n",
            folder.path().display()
        ))
        .start();
    let devices: Vec<String> = (0..12).map(|n| format!("d{n}")).collect();
    let births = |gateway: &Gateway| -> Vec<Node> {
        let birth =
            |device: &String| Node::birth(gateway.mqtt, "plant", &format!("n-{device}"), device);
        devices.iter().map(birth).collect()
    };
    let states = |gateway: &Gateway| -> BTreeMap<String, String> {
        let alarms = gateway.json("/api/alarms");
        let text = |alarm: &Value, key: &str| alarm[key].as_str().unwrap_or_default().to_owned();
        let alarms = alarms.as_array().unwrap().iter();
        alarms
            .map(|alarm| (text(alarm, "device"), text(alarm, "state")))
            .collect()
    };
    let state = |gateway: &Gateway, device: &str, expected: &str| {
        until(&format!("{device} is {expected}"), 60, || {
            let found = states(gateway);
            let found = found.get(device).map_or("normal", String::as_str);
            (found == expected).then_some(())
        });
    };
    let tool = |gateway: &Gateway, args: &[&str]| {
        let (code, _, told) = gateway.tool(args);
        assert_eq!(code, 0, "{args:?}: {told}");
    };

    let mut nodes = births(&gateway);
    for node in &mut nodes {
        node.temp(95.0);
    }
    let alarms = until("twelve alarms", 60, || {
        let alarms = gateway.json("/api/alarms");
        (alarms.as_array().unwrap().len() == 12).then_some(alarms)
    });
    let id = |device: &str| {
        let mut all = alarms.as_array().unwrap().iter();
        let found = all.find(|alarm| alarm["device"] == device).unwrap();
        assert_eq!(
            (&found["rule"], &found["version"]),
            (&"hot".into(), &"3.1.4".into())
        );
        found["id"].as_str().unwrap().to_owned()
    };
    tool(&gateway, &["alarms", "shelve", &id("d0"), "--for", "1h"]);
    tool(&gateway, &["alarms", "shelve", &id("d1"), "--for", "0s"]);
    tool(&gateway, &["alarms", "suppress", &id("d2")]);
    tool(&gateway, &["alarms", "out-of-service", &id("d3")]);
    tool(&gateway, &["alarms", "ack", &id("d4"), "--note", "seen"]);
    tool(&gateway, &["rules", "disable", "hot"]);
    let held = [
        ("d0", "shelved"),
        ("d1", "shelved"),
        ("d2", "suppressed"),
        ("d3", "out-of-service"),
        ("d4", "ack"),
        ("d5", "unack"),
    ];
    for (device, expected) in held {
        state(&gateway, device, expected);
    }
    // More than ten alarms in ten minutes are a flood, over all workers.
    let exported = until("the flood is recorded", 60, || {
        let (code, out, told) = gateway.tool(&["buffer", "export", "-o", "json"]);
        assert_eq!(code, 0, "{told}");
        out.contains("alarm-flood").then_some(out)
    });
    let floods = exported.lines().filter(|line| line.contains("alarm-flood"));
    assert_eq!(floods.count(), 1);

    gateway.restart();
    for (device, expected) in held {
        state(&gateway, device, expected);
    }
    let alarms = gateway.json("/api/alarms");
    let shelved = |device: &str| {
        let all = alarms.as_array().unwrap();
        all.iter().find(|alarm| alarm["device"] == device).unwrap()["shelved_until"].clone()
    };
    assert!(
        shelved("d0").is_u64() && shelved("d1").is_null(),
        "{alarms:#}"
    );
    // A rule that is switched off raises nothing and ends nothing.
    let mut nodes = births(&gateway);
    for node in &mut nodes {
        node.temp(50.0);
    }
    until("the last value is there", 60, || {
        let shown = gateway.json("/api/devices/plant/n-d11/d11");
        let metrics = shown["metrics"].as_array()?;
        metrics
            .iter()
            .any(|m| m["name"] == "temp" && m["value"] == 50.0)
            .then_some(())
    });
    for (device, expected) in held {
        state(&gateway, device, expected);
    }
    tool(&gateway, &["rules", "enable", "hot"]);
    for node in &mut nodes {
        node.temp(40.0);
    }
    // Shelved for once ends with the alarm; the others as they are told.
    for (device, expected) in [
        ("d1", "rtn-unack"),
        ("d4", "normal"),
        ("d0", "shelved"),
        ("d2", "suppressed"),
    ] {
        state(&gateway, device, expected);
    }
    tool(&gateway, &["alarms", "unshelve", &id("d0")]);
    tool(&gateway, &["alarms", "unsuppress", &id("d2")]);
    tool(&gateway, &["alarms", "in-service", &id("d3")]);
    for device in ["d0", "d2", "d3"] {
        state(&gateway, device, "rtn-unack");
    }
    tool(&gateway, &["alarms", "ack", &id("d0")]);
    state(&gateway, "d0", "normal");

    // A dry run reports what it would have sent.
    nodes[5].temp(1.0);
    let dry = until("the command is reported", 60, || {
        let commands = gateway.json("/api/commands");
        let mut all = commands.as_array().unwrap().iter();
        all.find(|command| command["by"].as_str().is_some_and(|by| by.contains("cold")))
            .cloned()
    });
    assert_eq!(dry["status"], "dry_run", "{dry:#}");
    let commands = gateway.json("/api/commands");
    assert!(
        commands
            .as_array()
            .unwrap()
            .iter()
            .all(|c| c["status"] != "sent"),
        "{commands:#}"
    );
}
