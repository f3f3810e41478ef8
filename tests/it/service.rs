//! The gateway as a service: readiness, reload and stop as a service manager sees them, through a notify socket of the
//! test's own.

use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::harness::fleet::setting;
use crate::harness::gateway::{Gateway, get, request};
use crate::harness::mqtt::{Node, Packet};
use crate::harness::nats::Nats;
use crate::harness::{tools, until};

/// TimeoutStopSec of the unit: what takes longer is killed.
const STOPS_WITHIN: Duration = Duration::from_secs(20);

/// The service manager's end of a notify socket. A thread reads it at once, as a service manager does: a full socket would
/// hold the gateway up.
struct Notify {
    told: Arc<Mutex<Told>>,
    folder: tempfile::TempDir,
}

#[derive(Default)]
struct Told {
    messages: Vec<String>,
    /// Messages that the test has looked at.
    seen: usize,
}

impl Notify {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        let told: Arc<Mutex<Told>> = Arc::default();
        let keep = told.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count) = socket.recv(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..count]).into_owned();
                keep.lock().unwrap().messages.push(text);
            }
        });
        Self { told, folder }
    }

    fn path(&self) -> String {
        self.folder.path().join("notify").display().to_string()
    }

    /// The next message with this word.
    fn wait(&self, word: &str) -> String {
        until(word, 60, || {
            let mut told = self.told.lock().unwrap();
            let new = &told.messages[told.seen..];
            let at = new.iter().position(|text| text.contains(word))?;
            told.seen += at + 1;
            Some(told.messages[told.seen - 1].clone())
        })
    }

    /// What was told so far counts as looked at.
    fn drain(&self) {
        let mut told = self.told.lock().unwrap();
        told.seen = told.messages.len();
    }

    /// Waits until the watchdog was not fed for this long, and counts what was on its way before as looked at.
    fn check_unfed(&self, long: Duration) {
        let fed = || {
            let told = self.told.lock().unwrap();
            let fed = told.messages.iter();
            fed.filter(|text| text.contains("WATCHDOG=1")).count()
        };
        let (mut known, mut quiet) = (fed(), Instant::now());
        until("the watchdog is fed no more", 60, || {
            let now = fed();
            if std::mem::replace(&mut known, now) != now {
                quiet = Instant::now();
            }
            (quiet.elapsed() > long).then_some(())
        });
        self.drain();
    }
}

fn signal(gateway: &Gateway, name: &str) {
    assert!(
        Command::new("kill")
            .args([name, &gateway.pid().to_string()])
            .status()
            .unwrap()
            .success()
    );
}

#[test]
fn ready_comes_after_the_listeners_and_stop_is_quick() {
    let notify = Notify::new();
    let mut gateway = Gateway::builder()
        .env("NOTIFY_SOCKET", &notify.path())
        .env("WATCHDOG_USEC", "3000000")
        .unready()
        .start();
    notify.wait("READY=1");
    // At this very moment the broker and the admin door answer.
    std::net::TcpStream::connect(gateway.mqtt).expect("the broker listens when READY is sent");
    assert_eq!(gateway.json("/readyz")["ready"], true);
    let _node = Node::birth(gateway.mqtt, "g", "n", "d");
    let text = notify.wait("WATCHDOG=1");
    assert!(text.contains("STATUS=received"), "{text}");
    let asked = Instant::now();
    assert!(gateway.stop().success());
    assert!(asked.elapsed() < STOPS_WITHIN, "a clean stop");
    notify.wait("STOPPING=1");
}

#[test]
fn a_reload_is_told_and_a_wrong_file_leaves_what_runs_in_force() {
    let notify = Notify::new();
    let gateway = Gateway::builder()
        .env("NOTIFY_SOCKET", &notify.path())
        .unready()
        .start();
    notify.wait("READY=1");
    let file = gateway.config_file();
    let good = std::fs::read_to_string(&file).unwrap();
    std::fs::write(
        &file,
        format!("{good}[rules]\nuse_shipped = [\"press-cooling\"]\n"),
    )
    .unwrap();
    signal(&gateway, "-HUP");
    let text = notify.wait("RELOADING=1");
    assert!(
        text.contains("MONOTONIC_USEC="),
        "systemd 253 and later needs it in the same message: {text}"
    );
    notify.wait("READY=1");
    until("the rules are there", 60, || {
        (!gateway.json("/api/rules").as_array()?.is_empty()).then_some(())
    });
    let before = gateway.json("/api/rules");

    std::fs::write(&file, format!("{good}[rules]\nuse_shiped = []\n")).unwrap();
    signal(&gateway, "-HUP");
    notify.wait("READY=1");
    assert_eq!(gateway.json("/api/rules"), before);
    gateway.logs(&["did you mean `use_shipped`"]);
}

#[test]
fn a_reload_tells_what_changed_and_what_waits_for_a_restart() {
    let gateway = Gateway::builder().bridge("nats://127.0.0.1:9").start();
    let file = gateway.config_file();
    let good = std::fs::read_to_string(&file).unwrap();
    let hash = |status: &serde_json::Value| status["config_hash"].clone();
    let before = gateway.status();
    assert_eq!(before["configured"]["restart"], serde_json::json!([]));
    // Another server with a login, less memory, rules.
    let changed = good.replace("nats://127.0.0.1:9", "nats://me:hunter2@127.0.0.1:10")
        + "[rules]\nuse_shipped = [\"press-cooling\"]\n[buffer]\nhot = { ttl = \"9s\", max = \"64MiB\" }\n";
    std::fs::write(&file, &changed).unwrap();
    signal(&gateway, "-HUP");
    let after = until("the reload is told", 60, || {
        let status = gateway.status();
        (status["configured"]["changed"] != serde_json::json!([])).then_some(status)
    });
    let keys = |list: &serde_json::Value| -> Vec<String> {
        let list = list.as_array().expect("a list");
        list.iter()
            .map(|change| {
                format!(
                    "{} {} {}",
                    change["key"].as_str().unwrap_or("-"),
                    change["from"].as_str().unwrap_or("-"),
                    change["to"].as_str().unwrap_or("-")
                )
            })
            .collect()
    };
    let configured = &after["configured"];
    assert!(
        keys(&configured["changed"])
            .contains(&"rules.use_shipped [] [\"press-cooling\"]".to_owned())
            && keys(&configured["changed"])
                .iter()
                .any(|key| key.starts_with("pack press-cooling - ")),
        "{configured:#}"
    );
    assert_eq!(
        keys(&configured["restart"]),
        [
            "bridge.urls [\"nats://127.0.0.1:9\"] [\"nats://…@127.0.0.1:10\"]",
            "buffer.hot.ttl \"1m\" \"9s\"",
        ]
    );
    assert_ne!(hash(&after), hash(&before));
    let metrics = get(gateway.admin, "/metrics").unwrap().1;
    assert!(
        metrics.contains("sparkgate_config_restart_pending_keys 2\n"),
        "{metrics}"
    );
    assert!(
        metrics.contains("sparkgate_config_last_reload_successful 1\n"),
        "{metrics}"
    );
    let (code, shown, _) = gateway.tool(&["status"]);
    assert_eq!(code, 0);
    assert!(
        shown.contains("restart    buffer.hot.ttl from \"1m\" to \"9s\""),
        "{shown}"
    );
    let (_, configuration, _) = gateway.tool(&["config", "show", "--sources"]);
    assert!(
        configuration.contains("nats://…@127.0.0.1:10"),
        "{configuration}"
    );
    gateway.logs(&["configuration reloaded", "a restart is needed"]);
    for text in [&gateway.log(), &after.to_string(), &shown, &configuration] {
        assert!(!text.contains("hunter2"), "{text}");
    }
    // What is refused changes nothing of what is in force.
    std::fs::write(&file, format!("{good}[mqtt]\nack = 1\n")).unwrap();
    signal(&gateway, "-HUP");
    let refused = until("the refusal is told", 60, || {
        let status = gateway.status();
        (status["configured"]["mistakes"].as_u64()? > 0).then_some(status)
    });
    assert_eq!(hash(&refused), hash(&after));
    assert_eq!(refused["configured"]["restart"], configured["restart"]);
}

#[test]
fn hashed_tokens_open_the_door_by_name_and_a_reload_closes_it() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    let passwd = |user: &str, secret: &str| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_sparkgate"))
            .arg("passwd")
            .args([tokens.to_str().unwrap(), user])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        std::io::Write::write_all(&mut stdin, secret.as_bytes()).unwrap();
        drop(stdin);
        assert!(child.wait().unwrap().success());
    };
    passwd("anna", "anna's own secret\n");
    passwd("bert", "bert's own secret\n");
    let gateway = Gateway::builder()
        .config(&format!(
            "token_file = \"{}\"\n[rules]\nuse_shipped = [\"press-cooling\"]\n",
            tokens.display()
        ))
        .start();
    let disable = |token: &str| {
        let headers = format!("authorization: Bearer {token}\r\n");
        let path = "/api/rules/overheat-confirmed/disable";
        request(gateway.admin, "POST", path, &headers, "{}").unwrap()
    };
    for (token, code) in [
        ("anna's own secret", 200),
        ("bert's own secret", 200),
        ("carl's own secret", 401),
        ("anna", 401),
        ("", 401),
    ] {
        let (status, body) = disable(token);
        assert_eq!(status, code, "{token}: {body}");
    }
    until("the audit log has both names", 60, || {
        let (_, audit, _) = gateway.tool(&["audit", "list", "-o", "json"]);
        (audit.contains("user:anna") && audit.contains("user:bert")).then_some(())
    });
    // A page of another site can make a browser send a form, but not this header.
    let form = "origin: https://evil.example\r\ncookie: token=x\r\n";
    let path = "/api/rules/overheat-confirmed/enable";
    assert_eq!(
        request(gateway.admin, "POST", path, form, "{}").unwrap().0,
        401
    );
    // A name that is taken out is out after a reload, without a restart.
    let text = std::fs::read_to_string(&tokens).unwrap();
    let kept: String = text
        .lines()
        .filter(|line| !line.starts_with("anna:"))
        .map(|line| format!("{line}\n"))
        .collect();
    std::fs::write(&tokens, kept).unwrap();
    signal(&gateway, "-HUP");
    until("anna's token is worth nothing", 60, || {
        (disable("anna's own secret").0 == 401).then_some(())
    });
    assert_eq!(disable("bert's own secret").0, 200);
}

#[test]
fn a_stuck_pipeline_stops_the_watchdogs_feeding_and_says_so() {
    let notify = Notify::new();
    let stall = notify.folder.path().join("stall");
    let gateway = Gateway::builder()
        .env("NOTIFY_SOCKET", &notify.path())
        .env("WATCHDOG_USEC", "900000")
        .env("SPARKGATE_TEST_STALL", &stall.display().to_string())
        .unready()
        .start();
    notify.wait("WATCHDOG=1");
    std::fs::write(&stall, "").unwrap();
    gateway.logs(&["the pipeline's thread"]);
    notify.check_unfed(Duration::from_millis(1200));
    std::fs::remove_file(&stall).unwrap();
    notify.wait("WATCHDOG=1");
}

#[test]
fn a_deadlocked_store_stops_the_watchdogs_feeding() {
    let notify = Notify::new();
    let stall = notify.folder.path().join("stall");
    let gateway = Gateway::builder()
        .env("NOTIFY_SOCKET", &notify.path())
        .env("WATCHDOG_USEC", "900000")
        .env("SPARKGATE_TEST_STALL_STORE", &stall.display().to_string())
        .env("SPARKGATE_TEST_PATIENCE_S", "5")
        .start();
    notify.wait("WATCHDOG=1");
    std::fs::write(&stall, "").unwrap();
    // Something to commit.
    let _node = Node::birth(gateway.mqtt, "g", "n", "d");
    gateway.logs(&["the state store"]);
    notify.check_unfed(Duration::from_millis(1200));
    std::fs::remove_file(&stall).unwrap();
    notify.wait("WATCHDOG=1");
}

/// `SPARKGATE_SLOW_FSYNC_S` is how long the fsync takes.
#[test]
fn an_fsync_of_many_watchdog_periods_degrades_and_ends_nothing() {
    let seconds = setting("SPARKGATE_SLOW_FSYNC_S", 4);
    let notify = Notify::new();
    let stall = notify.folder.path().join("stall");
    let mut gateway = Gateway::builder()
        .env("NOTIFY_SOCKET", &notify.path())
        .env("WATCHDOG_USEC", "1000000")
        .env("SPARKGATE_TEST_STALL_FSYNC", &stall.display().to_string())
        .start();
    let pid = gateway.pid();
    let mut node = Node::birth(gateway.mqtt, "g", "n", "d");
    let temp = |gateway: &Gateway, wanted: f64| {
        until("the value is known", 60, || {
            let device = gateway.json("/api/devices/g/n/d");
            let metrics = device["metrics"].as_array()?.iter();
            let mut temp = metrics.filter(|metric| metric["name"] == "temp");
            (temp.next()?["value"] == wanted).then_some(())
        });
    };
    std::fs::write(&stall, "").unwrap();
    let (bytes, id) = node.count_bytes(7, 1);
    node.client.send(&bytes);
    until("the fsync takes long", 60 + seconds, || {
        let buffer = gateway.json("/api/buffer");
        (buffer["fsync_in_flight_ms"].as_u64()? > seconds * 1000).then_some(())
    });
    // It is degraded, takes data, shows it, and is fed still.
    let ready = gateway.json("/readyz");
    assert_eq!(
        (&ready["ready"], &ready["degraded"], &ready["disk"]),
        (&true.into(), &true.into(), &"slow".into())
    );
    node.temp(42.5);
    temp(&gateway, 42.5);
    notify.drain();
    notify.wait("WATCHDOG=1");
    gateway.check_identity();
    let told = gateway.json("/api/buffer")["fsync_in_flight_ms"].clone();
    assert!(
        told.as_u64() > Some(seconds * 1000),
        "still in flight: {told}"
    );
    std::fs::remove_file(&stall).unwrap();
    // The acknowledgement was withheld until now, and comes.
    assert_eq!(node.client.read(), Some(Packet::Puback(id)));
    let mut n = 0.0;
    until("the disk is well again", 60, || {
        n += 1.0;
        node.temp(n);
        (gateway.json("/readyz")["degraded"] == false).then_some(())
    });
    temp(&gateway, n);
    gateway.check_identity();
    assert_eq!(gateway.pid(), pid);
    assert!(gateway.stop().success());
    // On a busy machine the pipeline or the broker may be late for a look; no part that waits for the disk is blamed.
    let log = gateway.log();
    for part in [
        "an fsync of the journal",
        "the journal's writer",
        "the state store",
    ] {
        assert!(!log.contains(part), "{log}");
    }
}

#[test]
fn a_start_needs_nothing_outside_of_the_box() {
    // 192.0.2.0/24 has no route that answers, .invalid no name; the third refuses the connection.
    let refusing = crate::harness::gateway::free_address();
    for url in [
        "nats://192.0.2.1:4222".to_owned(),
        "nats://nats.invalid:4222".to_owned(),
        format!("nats://{refusing}"),
    ] {
        let gateway = Gateway::builder().bridge(&url).start();
        let node = Node::birth(gateway.mqtt, "g", "n", "d");
        until(&format!("{url}: records are kept"), 60, || {
            (gateway.status()["pending"].as_u64()? >= 2).then_some(())
        });
        let ready = gateway.json("/readyz");
        assert_eq!(
            (&ready["ready"], &ready["degraded"]),
            (&true.into(), &true.into()),
            "{url}"
        );
        gateway.check_identity();
        drop(node);
    }
}

/// As root: in a network namespace that has loopback alone, so that there is neither a route nor a resolver. Where that
/// is not allowed, in the network that there is. Its clock says 1970, as after a power cut on a box without a battery.
#[test]
fn a_start_without_any_network_in_1970_collects() {
    let raise_loopback = "import fcntl, os, socket, struct, sys\n\
        fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sh14x', b'lo', 0x41))\n\
        os.execv(sys.argv[1], sys.argv[1:])";
    let alone = Command::new("unshare")
        .args(["-n", "true"])
        .status()
        .is_ok_and(|status| status.success());
    let wrapper: &[&str] = if alone {
        &["unshare", "-n", "python3", "-c", raise_loopback]
    } else {
        eprintln!("no right to make a network namespace: this box's own network is used");
        &[]
    };
    let mut gateway = Gateway::builder()
        .wrapper(wrapper)
        .env("LD_PRELOAD", &tools::faketime().display().to_string())
        .env("FAKETIME", "@1970-01-02 00:00:00")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .bridge("nats://nats.invalid:4222")
        .unready()
        .start();
    // The admin socket lies in the file system, which is shared.
    let status = |gateway: &Gateway| -> Option<serde_json::Value> {
        let (code, shown, _) = gateway.tool(&["status", "-o", "json"]);
        (code == 0).then(|| serde_json::from_str(&shown).expect("JSON"))
    };
    for round in 1..=3 {
        let started = until("the gateway answers", 60, || status(&gateway));
        let year_1970 = 366 * 86_400_000;
        assert!(
            started["time"].as_u64() < Some(year_1970),
            "{}",
            started["time"]
        );
        let (mqtt, pid) = (gateway.mqtt, gateway.pid());
        let node = std::thread::spawn(move || {
            if alone {
                let space = std::fs::File::open(format!("/proc/{pid}/ns/net")).unwrap();
                let kind = rustix::thread::LinkNameSpaceType::Network;
                rustix::thread::move_into_link_name_space(
                    std::os::fd::AsFd::as_fd(&space),
                    Some(kind),
                )
                .unwrap();
            }
            until("the broker listens", 60, || {
                std::net::TcpStream::connect(mqtt).ok()
            });
            Node::birth(mqtt, "g", "n", "d")
        });
        let node = node.join().unwrap();
        let now = until("its births are kept for the cloud", 60, || {
            let now = status(&gateway)?;
            (now["host"]["devices_online"] == 1 && now["pending"].as_u64()? >= 2 * round)
                .then_some(now)
        });
        assert_eq!(
            now["dropped"],
            serde_json::json!({}),
            "nothing expires by a clock that is not to be believed"
        );
        assert_ne!(now["uplink"]["state"], "ok");
        drop(node);
        // Power comes and goes before the internet does. What is on disk by then stays.
        until("it is on disk", 60, || {
            let (_, shown, _) = gateway.tool(&["buffer", "stat", "-o", "json"]);
            let report: serde_json::Value = serde_json::from_str(&shown).ok()?;
            (report["counts"]["pending"].as_u64()? >= 2 * round).then_some(())
        });
        gateway.restart_unready();
    }
}

#[test]
fn wrong_credentials_are_no_reason_not_to_start() {
    let nats = Nats::start_with("authorization { user: gateway, password: right }\n");
    let folder = tempfile::tempdir().unwrap();
    let password = folder.path().join("password");
    std::fs::write(&password, "wrong\n").unwrap();
    let mut gateway = Gateway::builder()
        .bridge(&nats.url())
        .config(&format!(
            "user = \"gateway\"\npassword_file = \"{}\"\n",
            password.display()
        ))
        .start();
    let node = Node::birth(gateway.mqtt, "g", "n", "d");
    let status = until("refused and kept", 60, || {
        let status = gateway.status();
        (status["pending"].as_u64()? >= 2 && status["uplink"]["state"] != "ok").then_some(status)
    });
    assert_eq!(gateway.json("/readyz")["ready"], true, "{status:#}");
    // The right password and a restart: all of it leaves.
    std::fs::write(&password, "right\n").unwrap();
    drop(node);
    gateway.restart();
    until("delivered", 120, || {
        let status = gateway.status();
        (status["pending"] == 0 && status["published"].as_u64()? >= 2).then_some(())
    });
    gateway.check_identity();
}

#[test]
fn a_stop_with_a_backlog_and_a_dead_uplink_takes_seconds_and_loses_nothing() {
    let notify = Notify::new();
    let refusing = crate::harness::gateway::free_address();
    let mut gateway = Gateway::builder()
        .env("NOTIFY_SOCKET", &notify.path())
        .bridge(&format!("nats://{refusing}"))
        .start();
    let mut node = Node::birth(gateway.mqtt, "g", "n", "d");
    for i in 0..5_000 {
        node.temp(f64::from(i));
    }
    let before = until("all of it is received", 120, || {
        let status = gateway.status();
        (status["pending"].as_u64()? >= 5_000).then_some(status)
    });
    drop(node);
    let asked = Instant::now();
    assert!(gateway.stop().success());
    let took = asked.elapsed();
    assert!(took < STOPS_WITHIN, "{took:?}");
    gateway.restart();
    let after = gateway.check_identity();
    assert!(
        after["pending"].as_u64() >= before["pending"].as_u64(),
        "{before:#} {after:#}"
    );
    // Without its state store the whole journal is replayed, and the service manager is asked for the time.
    gateway.kill();
    std::fs::remove_dir_all(gateway.folder().join("data/state")).unwrap();
    notify.drain();
    gateway.restart();
    notify.wait("EXTEND_TIMEOUT_USEC=");
    notify.wait("READY=1");
}
