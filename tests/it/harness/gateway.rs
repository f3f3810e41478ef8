//! A gateway as a child process, with a configuration and folders of its own.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::until;

/// A running (or killed) gateway. Dropping it kills the process and removes its folder.
pub struct Gateway {
    folder: tempfile::TempDir,
    config: String,
    env: Vec<(String, String)>,
    /// Program and arguments that start the gateway in their own place, such as `unshare`.
    wrapper: Vec<String>,
    child: Option<Child>,
    log: Arc<Mutex<Vec<String>>>,
    pub mqtt: SocketAddr,
    pub admin: SocketAddr,
}

/// An address on loopback that nobody uses, now or later in this run.
pub fn free_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, super::ports::free_port()).into()
}

/// The engine of stories that do not name one: `SPARKGATE_TEST_ENGINE`, else the gateway's own choice.
fn engine() -> String {
    std::env::var("SPARKGATE_TEST_ENGINE")
        .map_or_else(|_| String::new(), |name| format!("engine = \"{name}\"\n"))
}

/// How a gateway is made.
pub struct Builder {
    id: String,
    more: String,
    mqtt: String,
    bridge: Option<String>,
    ready: bool,
    env: Vec<(String, String)>,
    wrapper: Vec<String>,
    data: Option<PathBuf>,
}

impl Builder {
    /// Adds keys to `[mqtt]`.
    pub fn mqtt(mut self, keys: &str) -> Self {
        self.mqtt.push_str(keys);
        self
    }

    /// Keeps its data in this folder instead of one of its own.
    pub fn data_dir(mut self, folder: &Path) -> Self {
        self.data = Some(folder.to_owned());
        self
    }

    /// Sets an environment variable of the process.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts it by another program, which must become the gateway (exec).
    pub fn wrapper(mut self, program: &[&str]) -> Self {
        self.wrapper = program.iter().map(|&part| part.to_owned()).collect();
        self
    }

    /// Does not wait for readiness.
    pub fn unready(mut self) -> Self {
        self.ready = false;
        self
    }

    /// Adds TOML at the end of the configuration.
    pub fn config(mut self, more: &str) -> Self {
        self.more.push_str(more);
        self
    }

    pub fn id(mut self, id: &str) -> Self {
        id.clone_into(&mut self.id);
        self
    }

    /// Bridges to this NATS URL.
    pub fn bridge(mut self, url: &str) -> Self {
        self.bridge = Some(url.to_owned());
        self
    }

    pub fn start(self) -> Gateway {
        let (mqtt, admin) = (free_address(), free_address());
        let folder = tempfile::tempdir().expect("a folder");
        let bridge = self
            .bridge
            .map(|url| format!("[bridge]\nurls = [\"{url}\"]\n"))
            .unwrap_or_default();
        let config = format!(
            "[gateway]\nid = \"{}\"\ndata_dir = \"{}\"\n[mqtt]\nlisten = [\"{mqtt}\"]\n{}[admin]\nlisten = \"{admin}\"\n{bridge}{}",
            self.id,
            self.data
                .unwrap_or_else(|| folder.path().join("data"))
                .display(),
            self.mqtt,
            self.more,
        );
        let mut gateway = Gateway {
            folder,
            config,
            env: self.env,
            wrapper: self.wrapper,
            child: None,
            log: Arc::default(),
            mqtt,
            admin,
        };
        gateway.spawn();
        if self.ready {
            gateway.wait_ready();
        }
        gateway
    }
}

impl Gateway {
    pub fn builder() -> Builder {
        Builder {
            id: "test".to_owned(),
            more: String::new(),
            mqtt: engine(),
            bridge: None,
            ready: true,
            env: Vec::new(),
            wrapper: Vec::new(),
            data: None,
        }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn config_file(&self) -> PathBuf {
        self.folder.path().join("sparkgate.toml")
    }

    fn spawn(&mut self) {
        std::fs::write(self.config_file(), &self.config).expect("configuration");
        let mut words = self.wrapper.iter().map(String::as_str);
        let binary = env!("CARGO_BIN_EXE_sparkgate");
        let mut command = match words.next() {
            Some(program) => {
                let mut command = Command::new(program);
                command.args(words).arg(binary);
                command
            }
            None => Command::new(binary),
        };
        let mut child = command
            .args(["run", "-c"])
            .arg(self.config_file())
            .env_remove("NOTIFY_SOCKET")
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("sparkgate starts");
        let (stderr, log) = (child.stderr.take().expect("stderr"), self.log.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                log.lock().expect("log").push(line);
            }
        });
        self.child = Some(child);
    }

    pub fn wait_ready(&mut self) {
        let admin = self.admin;
        let log = self.log.clone();
        let child = self.child.as_mut().expect("running");
        until("the gateway is ready", 120, || {
            if let Some(status) = child.try_wait().expect("wait") {
                let lines = log.lock().expect("log").join("\n");
                panic!("the gateway ended with {status}:\n{lines}");
            }
            (get(admin, "/readyz").ok()?.0 == 200).then_some(())
        });
    }

    /// kill -9.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            child.wait().expect("wait");
        }
    }

    /// SIGTERM; returns the exit status.
    pub fn stop(&mut self) -> std::process::ExitStatus {
        let mut child = self.child.take().expect("running");
        let killed = Command::new("kill")
            .args(["-TERM", &child.id().to_string()])
            .status()
            .expect("kill");
        assert!(killed.success());
        until("the gateway stops", 60, || child.try_wait().expect("wait"))
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("running").id()
    }

    /// Kills it, or what is left of it, and starts it again.
    pub fn restart(&mut self) {
        self.restart_unready();
        self.wait_ready();
    }

    /// As [`Gateway::restart`], for a gateway that can't be asked over TCP.
    pub fn restart_unready(&mut self) {
        self.kill();
        self.spawn();
    }

    /// Changes its configuration for the next start.
    pub fn edit(&mut self, from: &str, to: &str) {
        assert!(self.config.contains(from), "{from} in {}", self.config);
        self.config = self.config.replace(from, to);
    }

    /// Starts it and waits until it refuses to run and has said each of these.
    pub fn refuses(&mut self, parts: &[&str]) {
        self.restart_unready();
        let child = self.child.as_mut().expect("running");
        let status = until("the gateway ends", 60, || child.try_wait().expect("wait"));
        assert!(!status.success());
        self.child = None;
        self.logs(parts);
    }

    pub fn log(&self) -> String {
        let lines = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        lines.join("\n")
    }

    /// Waits until the log has each of these; lines come through a pipe, some time after what they tell.
    pub fn logs(&self, parts: &[&str]) -> String {
        until(&format!("{parts:?} in the log"), 60, || {
            let log = self.log();
            parts.iter().all(|part| log.contains(part)).then_some(log)
        })
    }

    /// Waits until everything has left, however slow the machine is: as long as less and less waits.
    pub fn drained(&self) -> Value {
        let (mut least, mut since) = (u64::MAX, Instant::now());
        until("everything has left", 3_600, || {
            // The identity of counters holds at any moment, not only at rest.
            let status = self.check_identity();
            let pending = status["pending"].as_u64()?;
            if pending < least {
                (least, since) = (pending, Instant::now());
            }
            let stuck = since.elapsed() > Duration::from_secs(120);
            assert!(!stuck, "nothing leaves: {:#}", status["uplink"]);
            (pending == 0).then_some(status)
        })
    }

    /// `GET path` as JSON.
    pub fn json(&self, path: &str) -> Value {
        let (status, body) = get(self.admin, path).expect("the gateway answers");
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).expect("JSON")
    }

    pub fn status(&self) -> Value {
        self.json("/api/status")
    }

    /// Runs a verb of the tool against this gateway: exit code, stdout, stderr.
    pub fn tool(&self, args: &[&str]) -> (i32, String, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_sparkgate"))
            .args(args)
            .env("SPARKGATE_CONFIG", self.config_file())
            .output()
            .expect("the tool runs");
        (
            output.status.code().unwrap_or(-1),
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    }

    /// Checks the contract's identity of counters once, and returns the status.
    pub fn check_identity(&self) -> Value {
        let status = self.status();
        let n = |key: &str| {
            status[key]
                .as_u64()
                .unwrap_or_else(|| panic!("{key} in {status}"))
        };
        let dropped: u64 = status["dropped"]
            .as_object()
            .expect("dropped")
            .values()
            .filter_map(Value::as_u64)
            .sum();
        assert_eq!(
            n("received") + n("derived"),
            n("published") + n("pending") + n("filtered") + dropped,
            "{status:#}"
        );
        status
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of the gateway\n{}\n---", self.log());
        }
        self.kill();
    }
}

/// A small HTTP/1.1 GET: status and body.
pub fn get(address: SocketAddr, path: &str) -> std::io::Result<(u16, String)> {
    request(address, "GET", path, "", "")
}

/// A small HTTP/1.1 request; `headers` are lines with `\r\n` at their ends.
pub fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> std::io::Result<(u16, String)> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n{headers}\r\n{body}",
        body.len()
    )?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|s| s.parse().ok())
        .unwrap_or(0);
    let body = if head
        .to_ascii_lowercase()
        .contains("transfer-encoding: chunked")
    {
        unchunk(body)
    } else {
        body.to_owned()
    };
    Ok((status, body))
}

fn unchunk(mut body: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let Ok(size) = usize::from_str_radix(size.trim(), 16) else {
            break;
        };
        if size == 0 || rest.len() < size {
            break;
        }
        out.push_str(&rest[..size]);
        body = rest[size..].trim_start_matches("\r\n");
    }
    out
}
