//! Rules of a running gateway: changed packs, and stored history through other rules.

use serde_json::Value;

use crate::harness::gateway::Gateway;
use crate::harness::mqtt::Node;
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

    node.temp(60.0);
    until("the alarm's condition is over", 60, || {
        (gateway.json("/api/alarms")[0]["state"] == "rtn-unack").then_some(())
    });

    // Beside the running gateway: the same history, another limit.
    let other = tempfile::tempdir().unwrap();
    std::fs::write(other.path().join("other.toml"), pack("2.0.0", "50.0")).unwrap();
    let replay = |extra: &[&str]| {
        let mut args = vec!["rules", "replay", "-c"];
        let config = gateway.config_file();
        let config = config.display().to_string();
        args.extend([config.as_str(), "--from", "1h", "-o", "json"]);
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
        (of("match"), of("command"), told)
    };
    // The write that nobody confirms times out meanwhile, which is another step of it.
    let sent = || {
        let steps = gateway.json("/api/commands");
        let steps = steps.as_array().unwrap().iter();
        steps.filter(|step| step["status"] == "sent").count()
    };
    let before = sent();
    let other = other.path().display().to_string();
    let (matches, commands, told) = replay(&["--rules", &other]);
    assert_eq!((matches.len(), commands.len()), (1, 1), "{told}");
    assert_eq!(matches[0]["version"], "2.0.0");
    assert_eq!(matches[0]["values"]["value"], 95.0);
    assert_eq!(commands[0]["suppressed"], true);
    let (none, _, told) = replay(&["--to", "2020-01-01T00:00:00Z"]);
    assert!(none.is_empty() && told.contains("0 records"), "{told}");
    assert_eq!(sent(), before, "nothing was written");
    gateway.stop();
}
