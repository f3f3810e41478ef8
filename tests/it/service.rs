//! The gateway as a service: readiness, reload and stop as a service manager sees them, through a notify socket of the
//! test's own.

use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::harness::gateway::Gateway;
use crate::harness::mqtt::Node;
use crate::harness::until;

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
        until(word, 30, || {
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
    assert!(
        asked.elapsed() < Duration::from_secs(5),
        "a clean stop within seconds"
    );
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
    until("the rules are there", 10, || {
        (!gateway.json("/api/rules").as_array()?.is_empty()).then_some(())
    });
    let before = gateway.json("/api/rules");

    std::fs::write(&file, format!("{good}[rules]\nuse_shiped = []\n")).unwrap();
    signal(&gateway, "-HUP");
    notify.wait("READY=1");
    assert_eq!(gateway.json("/api/rules"), before);
    until("the mistake is in the log", 10, || {
        gateway
            .log()
            .contains("did you mean `use_shipped`")
            .then_some(())
    });
}
