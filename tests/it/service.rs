//! The gateway as a service: readiness, reload and stop as a service manager sees them, through a notify socket of the
//! test's own.

use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::harness::gateway::Gateway;
use crate::harness::mqtt::Node;
use crate::harness::until;

/// TimeoutStopSec of the unit: what takes longer is killed.
const STOPS_WITHIN: Duration = Duration::from_secs(20);

struct Notify {
    socket: UnixDatagram,
    folder: tempfile::TempDir,
}

impl Notify {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(100)))
            .unwrap();
        Self { socket, folder }
    }

    fn path(&self) -> String {
        self.folder.path().join("notify").display().to_string()
    }

    /// The next message with this word.
    fn wait(&self, word: &str) -> String {
        until(word, 60, || {
            let mut buffer = [0; 4096];
            let count = self.socket.recv(&mut buffer).ok()?;
            let text = String::from_utf8_lossy(&buffer[..count]).into_owned();
            text.contains(word).then_some(text)
        })
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
    // What was on its way is read away; then nothing comes for more than a watchdog's period.
    let mut buffer = [0; 4096];
    let mut quiet = Instant::now();
    until("the watchdog is fed no more", 60, || {
        if let Ok(count) = notify.socket.recv(&mut buffer)
            && String::from_utf8_lossy(&buffer[..count]).contains("WATCHDOG=1")
        {
            quiet = Instant::now();
        }
        (quiet.elapsed() > Duration::from_millis(1200)).then_some(())
    });
    std::fs::remove_file(&stall).unwrap();
    notify.wait("WATCHDOG=1");
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
    let mut buffer = [0; 4096];
    while notify.socket.recv(&mut buffer).is_ok() {}
    gateway.restart();
    notify.wait("EXTEND_TIMEOUT_USEC=");
    notify.wait("READY=1");
}
