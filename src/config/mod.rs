//! The configuration file: its sections, its defaults, and how it is read.
//!
//! Each part of the gateway owns its section's meaning; this module owns the file. `examples/sparkgate.toml`
//! documents every key, and a test loads it.

use std::net::SocketAddr;
use std::num::NonZeroU8;
use std::path::{Path, PathBuf};

/// Names with `*` and `?`, as settings match them.
pub use rules::Glob;
use serde::{Deserialize, Serialize};

pub mod change;
pub mod load;
pub mod quantity;

use load::{Diagnostic, Loaded, Source};
use quantity::{ByteSize, Span};

/// Where the main file lies when no `-c` is given.
pub const DEFAULT_FILE: &str = "/etc/sparkgate/sparkgate.toml";
/// Drop-ins that are read after [`DEFAULT_FILE`], in name order.
pub const DEFAULT_FOLDER: &str = "/etc/sparkgate/conf.d";

/// The whole configuration.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Identity and folders.
    pub gateway: Gateway,
    /// The embedded broker.
    pub mqtt: crate::broker::config::Config,
    /// The Sparkplug Host Application.
    pub host: Host,
    /// Rule packs.
    pub rules: Rules,
    /// Models.
    pub models: Models,
    /// Local writes.
    pub writes: Writes,
    /// Hot, warm and cold buffer.
    pub buffer: Buffer,
    /// The way to the cloud; absent: nothing leaves the box.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bridge: Option<crate::bridge::Config>,
    /// Who is told of alarms without the cloud.
    pub notify: crate::notify::Config,
    /// Web page, JSON API and metrics.
    pub admin: Admin,
    /// Log output.
    pub log: Log,
    /// Metrics and traces to a collector.
    pub telemetry: Telemetry,
}

/// `[gateway]`
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Gateway {
    /// One token of `A-Z a-z 0-9 -`: part of every stream, subject and message id.
    #[serde(deserialize_with = "quantity::token")]
    pub id: String,
    /// Journal, state and quarantine.
    pub data_dir: PathBuf,
    /// Where `admin.sock` lies; default `$RUNTIME_DIRECTORY`, else `<data_dir>/run`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_dir: Option<PathBuf>,
}

impl Default for Gateway {
    fn default() -> Self {
        Self {
            id: String::new(),
            data_dir: PathBuf::from("/var/lib/sparkgate"),
            runtime_dir: None,
        }
    }
}

impl Gateway {
    /// The folder of the admin socket.
    #[must_use]
    pub fn runtime_folder(&self) -> PathBuf {
        self.runtime_dir
            .clone()
            .or_else(|| {
                // systemd names several with colons between them (systemd.exec(5)).
                let folders = std::env::var_os("RUNTIME_DIRECTORY")?;
                std::env::split_paths(&folders).find(|folder| !folder.as_os_str().is_empty())
            })
            .unwrap_or_else(|| self.data_dir.join("run"))
    }
}

/// `[host]`
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Host {
    /// Host id in the STATE topic; default: the gateway's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Whether edge nodes may take this host as their primary one: STATE is published. Without it, the host listens and
    /// commands, and tells nobody that it is there.
    pub primary: bool,
    /// How long a gap in `seq` may stay open before a rebirth is asked for.
    pub reorder_timeout: Span,
    /// Rebirth requests.
    pub rebirth: Rebirth,
    /// Brokers of others on which this host is present too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub server: Vec<crate::host::Server>,
}

impl Default for Host {
    fn default() -> Self {
        Self {
            id: None,
            primary: true,
            reorder_timeout: secs(2),
            rebirth: Rebirth::default(),
            server: Vec::new(),
        }
    }
}

/// `[host] rebirth`
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rebirth {
    /// Whether rebirths are ever asked for.
    pub enabled: bool,
    /// At most one request per node in this time.
    pub cooldown: Span,
}

impl Default for Rebirth {
    fn default() -> Self {
        Self {
            enabled: true,
            cooldown: secs(5),
        }
    }
}

/// `[rules]`
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rules {
    /// Files, or folders whose `*.toml` (not `*.scenario.toml`) are packs; sub-folders included.
    pub paths: Vec<PathBuf>,
    /// Packs built into the binary, by id; `*` for all.
    pub use_shipped: Vec<String>,
    /// Evaluate and report everything, send no command.
    pub dry_run: bool,
    /// Take changed packs without a signal.
    pub watch: bool,
    /// Threads that evaluate rules, each with a share of the devices, nodes and groups. With 1 rules run where messages
    /// are read, which decides soonest; more are for rules that are more work than one core does.
    pub workers: NonZeroU8,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            paths: Vec::new(),
            use_shipped: Vec::new(),
            dry_run: false,
            watch: true,
            workers: NonZeroU8::MIN,
        }
    }
}

/// `[models]`
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Models {
    /// Folders with a `manifest.toml` each, or folders of such folders.
    pub paths: Vec<PathBuf>,
    /// Sensor models built into the binary, by name; `*` for all.
    pub use_shipped: Vec<String>,
    /// Backends in order of preference; the first that works is used.
    pub backend: Vec<String>,
}

impl Default for Models {
    fn default() -> Self {
        Self {
            paths: Vec::new(),
            use_shipped: Vec::new(),
            backend: [
                "ort:tensorrt",
                "ort:cuda",
                "tract:cuda",
                "ort:cpu",
                "tract:cpu",
            ]
            .map(str::to_owned)
            .to_vec(),
        }
    }
}

/// `[writes]`
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Writes {
    /// Never command a device: every write is rejected, rebirth requests too.
    pub read_only: bool,
    /// Writes to one target in a second; more are rejected as `rate_limit`.
    pub max_per_second: u32,
    /// Longest time a write waits for its confirmation when nothing else is said.
    pub confirm_timeout: Span,
    /// How long a writer of lower priority is held off a metric after a higher one wrote another value to it.
    pub hold_off: Span,
    /// How long an undo waits for its device to be there again.
    pub undo_patience: Span,
    /// What may be written where no policy fits.
    pub default: WriteDefault,
    /// Size of all audit files together; the oldest go, and the log says so.
    pub audit_max: ByteSize,
    /// What may be written, and within which bounds; the first that fits decides.
    pub policy: Vec<WritePolicy>,
}

/// `[writes] default`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WriteDefault {
    /// Whatever the birth names may be written.
    #[default]
    Allow,
    /// Only what a policy allows.
    Deny,
}

/// `[[writes.policy]]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct WritePolicy {
    /// Which writes.
    #[serde(rename = "match", default)]
    pub matches: WriteMatch,
    /// Whether they may be made.
    #[serde(default = "yes")]
    pub allow: bool,
    /// Smallest number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// Largest number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
}

/// Globs (`*`, `?`); a missing one fits all. Device `_` is the node itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct WriteMatch {
    /// Group id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Edge node id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Device id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Metric name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
    /// Who asks: `rule:<id>@<version>`, `user:<name>`, `cloud:<name>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

fn yes() -> bool {
    true
}

impl Default for Writes {
    fn default() -> Self {
        Self {
            read_only: false,
            max_per_second: 20,
            confirm_timeout: secs(5),
            hold_off: secs(2),
            undo_patience: secs(600),
            default: WriteDefault::Allow,
            audit_max: ByteSize(256 << 20),
            policy: Vec::new(),
        }
    }
}

/// `[buffer]`
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Buffer {
    /// Recent records in memory.
    pub hot: Hot,
    /// The journal on local disk.
    pub warm: Warm,
    /// Sealed segments in an object store; none by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cold: Option<crate::buffer::cold::Config>,
}

/// `[buffer] hot`
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Hot {
    /// Records older than this leave memory.
    pub ttl: Span,
    /// Memory for recent records.
    pub max: ByteSize,
}

impl Default for Hot {
    fn default() -> Self {
        Self {
            ttl: secs(60),
            max: ByteSize(64 << 20),
        }
    }
}

/// `[buffer] warm`
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Warm {
    /// Delivered records older than this are removed.
    pub ttl: Span,
    /// Disk for the journal.
    pub max: ByteSize,
    /// Longest time between two fsyncs while records arrive: what QoS 0 data a power cut can take.
    pub sync: Span,
    /// Size of one segment file.
    pub segment: ByteSize,
    /// How long delivered records are kept, in case the far end loses what it acknowledged.
    pub keep_delivered: Span,
}

impl Default for Warm {
    fn default() -> Self {
        Self {
            ttl: secs(2 * 3600),
            max: ByteSize(1 << 30),
            sync: Span(std::time::Duration::from_millis(50)),
            segment: ByteSize(16 << 20),
            keep_delivered: secs(300),
        }
    }
}

/// `[admin]`
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Admin {
    /// Address of the page, the API and the metrics.
    pub listen: SocketAddr,
    /// Names that a proxy on this machine may give in `Host`; others are refused over loopback (DNS rebinding).
    pub hosts: Vec<String>,
    /// File with the token that writes need; without one, writes go through the admin socket alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
}

impl Default for Admin {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8780)),
            hosts: Vec::new(),
            token_file: None,
        }
    }
}

/// `[telemetry]`
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Telemetry {
    /// OTLP/HTTP endpoint of an OpenTelemetry collector, `http://host:port`; needs cargo feature `otlp`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp: Option<String>,
    /// Time between two sendings.
    pub every: Span,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self {
            otlp: None,
            every: secs(10),
        }
    }
}

/// `[log]`
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// `text` or `json`.
    pub format: LogFormat,
    /// `tracing` filter directives, such as `info` or `sparkgate=debug,warn`.
    pub filter: String,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            format: LogFormat::Text,
            filter: "info".to_owned(),
        }
    }
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

const fn secs(seconds: u64) -> Span {
    Span(std::time::Duration::from_secs(seconds))
}

impl Config {
    /// Reads the files that `run` and `validate` read, and checks what no single value shows.
    ///
    /// `file` is `-c`; without it the files under `/etc/sparkgate` are read. `folder` is `--config-dir`.
    ///
    /// # Errors
    /// Every mistake at once, with file, line and column.
    pub fn read(
        file: Option<&Path>,
        folder: Option<&Path>,
    ) -> Result<Loaded<Self>, Vec<Diagnostic>> {
        Self::from_sources(&Self::texts(file, folder)?)
    }

    /// The files that [`Config::read`] reads, with their texts, in order.
    ///
    /// # Errors
    /// Files that can't be read.
    pub fn texts(
        file: Option<&Path>,
        folder: Option<&Path>,
    ) -> Result<Vec<Source>, Vec<Diagnostic>> {
        let default_folder = Path::new(DEFAULT_FOLDER);
        let (main, folder) = match file {
            Some(file) => (file, folder),
            None => (
                Path::new(DEFAULT_FILE),
                folder.or_else(|| default_folder.is_dir().then_some(default_folder)),
            ),
        };
        load::read_sources(main, folder)
    }

    /// What can be used of these texts, beside every mistake in them; see [`load::load_usable`].
    #[must_use]
    pub fn usable(sources: &[Source]) -> (Option<Loaded<Self>>, Vec<Diagnostic>) {
        let (loaded, mut wrong) = load::load_usable::<Self>(sources);
        if let Some(loaded) = &loaded
            && wrong.is_empty()
        {
            wrong = loaded.value.contradictions(&loaded.sources, sources);
        }
        (loaded, wrong)
    }

    /// As [`Config::read`], from texts.
    ///
    /// # Errors
    /// Every mistake at once.
    pub fn from_sources(sources: &[Source]) -> Result<Loaded<Self>, Vec<Diagnostic>> {
        match Self::usable(sources) {
            (Some(loaded), wrong) if wrong.is_empty() => Ok(loaded),
            (_, wrong) => Err(wrong),
        }
    }

    /// What is wrong with values that are each fine by themselves.
    fn contradictions(
        &self,
        origins: &std::collections::BTreeMap<String, (PathBuf, usize)>,
        sources: &[Source],
    ) -> Vec<Diagnostic> {
        let mut found = Vec::new();
        let mut say = |key: &str, message: String| {
            let (file, place) = match origins.get(key) {
                Some((file, line)) => (file.clone(), Some((*line, 1))),
                None => (
                    sources
                        .first()
                        .map_or_else(PathBuf::new, |s| s.file.clone()),
                    None,
                ),
            };
            found.push(Diagnostic {
                file,
                place,
                message,
            });
        };
        if self.gateway.id.is_empty() {
            say(
                "gateway.id",
                "gateway.id is missing: give this gateway a name of A-Z a-z 0-9 -, unique among your gateways".to_owned(),
            );
        }
        let warm = &self.buffer.warm;
        if warm.max.0 < warm.segment.0.saturating_mul(4) {
            say(
                "buffer.warm.max",
                format!(
                    "buffer.warm.max ({}) holds fewer than four segments of {}: raise max or lower segment",
                    warm.max, warm.segment
                ),
            );
        }
        if !(64 << 10..=1 << 30).contains(&warm.segment.0) {
            say(
                "buffer.warm.segment",
                format!(
                    "buffer.warm.segment ({}) must lie between 64KiB and 1GiB",
                    warm.segment
                ),
            );
        }
        if let Some(url) = &self.telemetry.otlp {
            if !cfg!(feature = "otlp") {
                say(
                    "telemetry.otlp",
                    "telemetry.otlp: this build lacks cargo feature `otlp`".to_owned(),
                );
            } else if self.collector().is_none() {
                say(
                    "telemetry.otlp",
                    format!(
                        "telemetry.otlp `{url}`: write http://host:port (a collector's agent on this box or LAN takes TLS from there)"
                    ),
                );
            }
        }
        if let Some(cold) = &self.buffer.cold {
            if !cfg!(feature = "cold") {
                say(
                    "buffer.cold.url",
                    "this build has no cold tier: cargo feature `cold`".to_owned(),
                );
            }
            match cold.place() {
                Err(reason) => say(
                    "buffer.cold.url",
                    format!("buffer.cold.url `{}` {reason}", cold.url),
                ),
                Ok(place) => {
                    if cold.max.is_none()
                        && let crate::buffer::cold::config::Place::File(folder) = place
                        && same_filesystem(&folder, &self.gateway.data_dir)
                    {
                        say(
                            "buffer.cold.url",
                            "buffer.cold is on data_dir's own filesystem: give it a `max`"
                                .to_owned(),
                        );
                    }
                }
            }
            if warm.segment.0 > 64 << 20 {
                say(
                    "buffer.warm.segment",
                    format!(
                        "buffer.warm.segment ({}) must be at most 64MiB with a cold tier: a segment is encoded in memory",
                        warm.segment
                    ),
                );
            }
        }
        if let Some(id) = &self.host.id
            && (id.is_empty() || id.contains(['/', '+', '#', '\0']))
        {
            // tck-id-host-topic-phid-... : the host id is one MQTT level.
            say(
                "host.id",
                format!("host.id `{id}` must be one MQTT topic level: no / + #"),
            );
        }
        found
    }

    /// `host:port` of the collector.
    #[must_use]
    pub fn collector(&self) -> Option<&str> {
        let rest = self.telemetry.otlp.as_deref()?.strip_prefix("http://")?;
        let authority = rest.trim_end_matches('/');
        let (host, port) = authority.rsplit_once(':')?;
        (!host.is_empty() && port.parse::<u16>().is_ok()).then_some(authority)
    }

    /// The Sparkplug host id.
    #[must_use]
    pub fn host_id(&self) -> &str {
        self.host.id.as_deref().unwrap_or(&self.gateway.id)
    }
}

/// Whether two folders, or what exists of the paths to them, lie on one filesystem.
fn same_filesystem(one: &std::path::Path, other: &std::path::Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let device = |path: &std::path::Path| {
        path.ancestors()
            .find_map(|path| path.metadata().ok())
            .map(|meta| meta.dev())
    };
    device(one).is_some() && device(one) == device(other)
}
