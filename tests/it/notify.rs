//! Alarms reach people without the cloud: over HTTP and by mail, once, also when a server was down.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
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
    /// With arguments for the script.
    fn start(arguments: &[&str]) -> Self {
        let smtp = free_port();
        let script =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/foreign/alarm_receivers.py");
        let mut child = Command::new(tools::python())
            .arg(script)
            .args(["--smtp", &smtp.to_string()])
            .args(arguments)
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
    let receivers = Receivers::start(&["--refusals", "1"]);
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

/// `ca.pem`, and a certificate of that authority for localhost in `server.pem` and `server.key`.
fn certificates(folder: &Path) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let server = params.signed_by(&key, &issuer).unwrap().pem();
    for (name, text) in [
        ("ca.pem", ca),
        ("server.pem", server),
        ("server.key", key.serialize_pem()),
    ] {
        std::fs::write(folder.join(name), text).unwrap();
    }
}

fn reload(gateway: &Gateway) {
    let pid = gateway.pid().to_string();
    let done = Command::new("kill").args(["-HUP", &pid]).status().unwrap();
    assert!(done.success());
}

/// How a receiver stands.
fn channel(gateway: &Gateway, name: &str) -> Value {
    let status = gateway.status();
    let all = status["notify"].as_array().unwrap();
    all.iter()
        .find(|c| c["name"] == name)
        .cloned()
        .unwrap_or(Value::Null)
}

#[test]
fn both_servers_are_reached_over_tls_of_an_own_authority_and_of_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    certificates(folder.path());
    let other = tempfile::tempdir().unwrap();
    certificates(other.path());
    let good = std::fs::read(folder.path().join("ca.pem")).unwrap();
    std::fs::copy(other.path().join("ca.pem"), folder.path().join("ca.pem")).unwrap();
    let receivers =
        Receivers::start(&["--cert", &path("server.pem"), "--key", &path("server.key")]);
    std::fs::write(path("rules.toml"), RULES).unwrap();
    std::fs::write(path("password"), "s3cret\n").unwrap();
    let gateway = Gateway::builder()
        .config(&format!(
            r#"
[rules]
paths = ["{rules}"]
[notify]
group = "0s"
[[notify.webhook]]
name = "desk"
url = "https://localhost:{http}/"
ca = "{ca}"
[[notify.smtp]]
name = "shift"
server = "localhost:{smtp}"
user = "gateway"
password_file = "{password}"
ca = "{ca}"
from = "gw@example.com"
to = ["shift@example.com"]
"#,
            rules = path("rules.toml"),
            ca = path("ca.pem"),
            password = path("password"),
            http = receivers.http,
            smtp = receivers.smtp,
        ))
        .start();
    let mut node = Node::birth(gateway.mqtt, "plant", "line", "press");
    node.temp(95.5);
    until("nobody who is not trusted is told", 60, || {
        let told = ["desk", "shift"].map(|name| channel(&gateway, name));
        let failed = |c: &Value| c["failed"].as_u64() > Some(0) && c["error"].is_string();
        told.iter().all(failed).then_some(())
    });
    assert!(receivers.of("http").is_empty() && receivers.of("smtp").is_empty());

    std::fs::write(path("ca.pem"), good).unwrap();
    reload(&gateway);
    let posts = receivers.taken("http", 1);
    let mails = receivers.taken("smtp", 1);
    assert_eq!(
        (&mails[0]["secure"], &mails[0]["login"]),
        (&true.into(), &"gateway".into())
    );
    let body: Value = serde_json::from_str(posts[0]["body"].as_str().unwrap()).unwrap();
    assert_eq!(
        body["alarms"][0]["id"],
        mails[0]["attachment"]["alarms"][0]["id"]
    );
}

#[test]
fn a_reload_while_a_message_is_on_its_way_tells_nobody_twice() {
    let receivers = Receivers::start(&["--slow", "2"]);
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.toml");
    std::fs::write(&rules, RULES).unwrap();
    let gateway = Gateway::builder()
        .config(&format!(
            "[rules]\npaths = [\"{}\"]\n[notify]\ngroup = \"0s\"\n[[notify.webhook]]\nname = \"desk\"\nurl = \"http://127.0.0.1:{}/\"\n",
            rules.display(),
            receivers.http
        ))
        .start();
    let mut node = Node::birth(gateway.mqtt, "plant", "line", "press");
    node.temp(95.5);
    until("the server holds the request", 60, || {
        (receivers.of("slow").len() == 1).then_some(())
    });
    reload(&gateway);
    node.temp(20.0);
    let posts = receivers.taken("http", 2);
    let events: Vec<Value> = posts
        .iter()
        .map(|post| {
            let body: Value = serde_json::from_str(post["body"].as_str().unwrap()).unwrap();
            body["alarms"][0]["events"].clone()
        })
        .collect();
    assert_eq!(
        events,
        [serde_json::json!(["raise"]), serde_json::json!(["clear"])]
    );
    assert_ne!(posts[0]["key"], posts[1]["key"]);
    assert_eq!(receivers.of("http").len(), 2);
}

#[test]
fn a_message_that_is_too_large_is_halved_and_the_rest_gets_through() {
    // Four of the small alarms fit, the large one by itself does not.
    let receivers = Receivers::start(&["--most", "1300"]);
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.toml");
    let long = "far too much ".repeat(400);
    let big = format!(
        "[[rule]]\nid = \"big\"\nscope = {{ device = \"p3\" }}\n[rule.threshold]\nmetric = \"temp\"\nhigh = 90.0\n[rule.alarm]\npriority = \"high\"\nmessage = \"{long}\"\n"
    );
    std::fs::write(&rules, format!("{RULES}{big}")).unwrap();
    let gateway = Gateway::builder()
        .config(&format!(
            "[rules]\npaths = [\"{}\"]\n[notify]\ngroup = \"2s\"\n[[notify.webhook]]\nname = \"desk\"\nurl = \"http://127.0.0.1:{}/\"\n",
            rules.display(),
            receivers.http
        ))
        .start();
    let mut nodes: Vec<Node> = (0..6)
        .map(|n| Node::birth(gateway.mqtt, "plant", &format!("line{n}"), &format!("p{n}")))
        .collect();
    for node in &mut nodes {
        node.temp(95.0);
    }
    let told = until("every alarm that fits is told", 60, || {
        let posts = receivers.of("http");
        let taken = posts.iter().filter(|post| post["refused"] == false);
        let mut told: Vec<String> = taken
            .flat_map(|post| {
                let body: Value = serde_json::from_str(post["body"].as_str().unwrap()).unwrap();
                body["alarms"].as_array().unwrap().clone()
            })
            .map(|alarm| format!("{}@{}", alarm["rule"], alarm["source"]))
            .collect();
        told.sort();
        (told.len() >= 6).then_some(told)
    });
    assert_eq!(told.len(), 6, "{told:?}");
    assert!(
        told.iter().all(|alarm| alarm.starts_with("\"hot\"@")),
        "{told:?}"
    );
    let shown = until("the one that does not fit waits", 30, || {
        let shown = channel(&gateway, "desk");
        (shown["waiting"] == 1).then_some(shown)
    });
    assert!(
        shown["error"].as_str().unwrap().contains("413"),
        "{shown:#}"
    );
}
