//! Alarms reach people without the cloud: over HTTP and by mail, once, also when a server was down.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::harness::gateway::Gateway;
use crate::harness::mqtt::Node;
use crate::harness::ports::free_port;
use crate::harness::{tools, until};

/// A real mail server and a real HTTP server in one foreign process.
struct Receivers {
    child: Child,
    got: Arc<Mutex<Vec<Value>>>,
    smtp: u16,
    http: u64,
}

impl Receivers {
    /// The first `refusals` requests of each kind fail in passing.
    fn start(refusals: u32) -> Self {
        let smtp = free_port();
        let script =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/foreign/alarm_receivers.py");
        let mut child = Command::new(tools::python())
            .arg(script)
            .args([refusals.to_string(), smtp.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python starts");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines();
        let ready: Value =
            serde_json::from_str(&lines.next().expect("a line").expect("a line")).expect("JSON");
        let got = Arc::new(Mutex::new(Vec::new()));
        let sink = got.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                sink.lock()
                    .unwrap()
                    .push(serde_json::from_str(&line).expect("JSON"));
            }
        });
        Self {
            child,
            got,
            smtp,
            http: ready["http"].as_u64().expect("a port"),
        }
    }

    fn of(&self, kind: &str) -> Vec<Value> {
        let got = self.got.lock().unwrap();
        got.iter().filter(|v| v["kind"] == kind).cloned().collect()
    }

    /// What was taken, once there are `count`.
    fn taken(&self, kind: &str, count: usize) -> Vec<Value> {
        until("the receiver got its messages", 60, || {
            let mut taken = self.of(kind);
            taken.retain(|v| v["refused"] != true);
            (taken.len() >= count).then_some(taken)
        })
    }
}

impl Drop for Receivers {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const RULES: &str = r#"
[pack]
id = "site"
version = "1.0.0"
[[rule]]
id = "hot"
scope = { group = "*", node = "*", device = "*" }
[rule.threshold]
metric = "temp"
high = 90.0
[rule.alarm]
priority = "high"
message = "{device} at {value}"
"#;

#[test]
fn alarms_reach_a_web_hook_and_a_mailbox_once_over_failures_and_a_crash() {
    let receivers = Receivers::start(1);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("rules.toml"), RULES).unwrap();
    std::fs::write(path("token"), "t0ken\n").unwrap();
    std::fs::write(path("password"), "s3cret\n").unwrap();
    let config = format!(
        r#"
[rules]
paths = ["{rules}"]
[notify]
group = "200ms"
[[notify.webhook]]
name = "desk"
url = "http://127.0.0.1:{http}/alarms?from=test"
token_file = "{token}"
[[notify.smtp]]
name = "shift"
server = "127.0.0.1:{smtp}"
tls = "none"
user = "gateway"
password_file = "{password}"
from = "Gateway <gw@example.com>"
to = ["Shift <shift@example.com>", "boss@example.com"]
min_priority = "medium"
clears = false
"#,
        rules = path("rules.toml").display(),
        token = path("token").display(),
        password = path("password").display(),
        http = receivers.http,
        smtp = receivers.smtp,
    );
    let mut gateway = Gateway::builder().config(&config).start();
    let mut node = Node::birth(gateway.mqtt, "plant", "line", "press");
    node.temp(95.5);

    let posts = receivers.taken("http", 1);
    assert_eq!(posts[0]["path"], "/alarms?from=test");
    assert_eq!(posts[0]["token"], "Bearer t0ken");
    let refused = receivers
        .of("http")
        .into_iter()
        .find(|v| v["refused"] == true)
        .expect("one was refused");
    assert_eq!(
        refused["key"], posts[0]["key"],
        "a repeated message has the same id"
    );
    let body: Value = serde_json::from_str(posts[0]["body"].as_str().unwrap()).unwrap();
    assert_eq!(body["gateway"], "test");
    let alarm = &body["alarms"][0];
    assert_eq!(
        (
            &alarm["event"],
            &alarm["rule"],
            &alarm["source"],
            &alarm["message"]
        ),
        (
            &"raise".into(),
            &"hot".into(),
            &"plant/line/press".into(),
            &"press at 95.5".into()
        ),
        "{body:#}"
    );

    let mails = receivers.taken("smtp", 1);
    assert_eq!(mails[0]["login"], "gateway");
    assert_eq!(mails[0]["sender"], "gw@example.com");
    assert_eq!(
        mails[0]["to"],
        serde_json::json!(["shift@example.com", "boss@example.com"])
    );
    assert_eq!(mails[0]["subject"], "[test] HIGH raised: press at 95.5");
    assert!(
        mails[0]["text"]
            .as_str()
            .unwrap()
            .contains("plant/line/press, rule hot 1.0.0"),
        "{mails:#?}"
    );
    assert_eq!(mails[0]["attachment"]["alarms"][0]["id"], alarm["id"]);

    let channels = until("both are noted", 60, || {
        let status = gateway.status();
        let sent = status["notify"]
            .as_array()
            .unwrap()
            .iter()
            .all(|c| c["sent"] == 1);
        sent.then(|| status["notify"].clone())
    });
    assert_eq!(channels[0]["failed"], 1, "{channels:#}");

    // After a crash nothing is told twice; what ended meanwhile is told to those who want it.
    gateway.restart();
    let mut node = Node::birth(gateway.mqtt, "plant", "line", "press");
    node.temp(20.0);
    let posts = receivers.taken("http", 2);
    let body: Value = serde_json::from_str(posts[1]["body"].as_str().unwrap()).unwrap();
    assert_eq!(
        body["alarms"][0]["events"],
        serde_json::json!(["clear"]),
        "{body:#}"
    );
    node.temp(99.0);
    assert_eq!(receivers.taken("http", 3).len(), 3);
    let mails = receivers.taken("smtp", 2);
    assert_eq!(mails.len(), 2);
    assert_eq!(mails[1]["subject"], "[test] HIGH raised: press at 99");
}
