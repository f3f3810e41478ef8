//! `[bridge]`: where records go and how.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::drain::Limits;
use crate::config::quantity::{ByteSize, Rate, Span};
use crate::pipeline::encode::Encoding;

/// `[bridge]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Servers, tried in order from a random one on: `nats://`, or `tls://` to insist on TLS.
    pub urls: Vec<String>,
    /// User JWT and nkey seed in one file, as `nsc` writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creds_file: Option<PathBuf>,
    /// Nkey seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nkey_file: Option<PathBuf>,
    /// User name; with `password_file`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The user's password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    /// Token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// Create streams and buckets and keep them as declared here; `false`: only use what is there.
    pub manage: bool,
    /// Replicas of streams and buckets that are created.
    pub replicas: u8,
    /// Bound on each stream that is created; without it the server's own limits hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<ByteSize>,
    /// What an acknowledgement of the far end has to mean.
    pub durability: Durability,
    /// Whether alarms wait for the data before them.
    pub order: Order,
    /// How a backlog is sent.
    pub backfill: Backfill,
    /// Form of `data` and `birth` bodies.
    pub encoding: BodyEncoding,
    /// Messages in flight at most, a lane.
    pub window: u16,
    /// Topic filters of MQTT messages that are not Sparkplug and go upstream as class `raw`.
    pub raw: Vec<String>,
    /// What stays here; the first rule that fits a metric holds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub filter: Vec<Filter>,
    /// Last-known values in the key-value bucket.
    pub state: State,
    /// Requests from the cloud.
    pub writes: Writes,
    /// The server's monitoring port, `http://host:8222`: `doctor` reads there what the connection does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub monitor: Option<String>,
    /// The stream in which many gateways are read; `doctor` compares it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hub: Option<Hub>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            urls: vec!["nats://127.0.0.1:4222".to_owned()],
            creds_file: None,
            nkey_file: None,
            user: None,
            password_file: None,
            token_file: None,
            tls: None,
            manage: true,
            replicas: 1,
            max_bytes: None,
            durability: Durability::Normal,
            order: Order::LiveFirst,
            backfill: Backfill::default(),
            encoding: BodyEncoding::Json,
            window: 1024,
            raw: Vec::new(),
            filter: Vec::new(),
            state: State::default(),
            writes: Writes::default(),
            monitor: None,
            hub: None,
        }
    }
}

/// `[bridge.hub]`: the stream that collects this gateway's streams by `sources`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Hub {
    /// Its name.
    pub stream: String,
    /// Servers of the hub, with the credentials of `[bridge]`; empty: `[bridge] urls`.
    pub urls: Vec<String>,
    /// JetStream domain of this gateway's own server as the hub sees it (a leaf node's `domain`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
}

impl Default for Hub {
    fn default() -> Self {
        Self {
            stream: "SPARKGATE".to_owned(),
            urls: Vec::new(),
            domain: None,
        }
    }
}

/// `[bridge.tls]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    /// Certificate authorities to trust instead of the system's, PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// This gateway's certificate, PEM; with `key`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    /// This gateway's key, PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// Shake hands before the server greets (`handshake_first` there).
    pub first: bool,
}

/// What a far end's acknowledgement has to mean.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// The server has it; its disk gets it within its sync interval.
    #[default]
    Normal,
    /// Atomic batches, for servers with `sync_interval: always`: needs nats-server 2.12.
    Strict,
}

/// Order between the two lanes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Alarms and commands leave at once; the data that caused them may still wait in a backlog.
    #[default]
    LiveFirst,
    /// An alarm leaves when all data before it has been stored: after an outage it waits for the backlog.
    Strict,
}

/// `backfill = { max_rate = "5000/s" }`
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Backfill {
    /// Messages a second while there is a backlog; default: as fast as acknowledgements allow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_rate: Option<Rate>,
}

/// Form of `data` and `birth` bodies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BodyEncoding {
    /// JSON.
    #[default]
    Json,
    /// The resolved Sparkplug payload.
    Protobuf,
}

impl From<BodyEncoding> for Encoding {
    fn from(it: BodyEncoding) -> Self {
        match it {
            BodyEncoding::Json => Self::Json,
            BodyEncoding::Protobuf => Self::Protobuf,
        }
    }
}

/// `[[bridge.filter]]`
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Filter {
    /// Whose metrics.
    #[serde(rename = "match")]
    pub matches: Match,
    /// Keep them back altogether.
    pub drop: bool,
    /// Send a number only when it differs from the last one sent by more than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadband: Option<f64>,
    /// Send at most one value in this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_interval: Option<Span>,
    /// Send a value after this time even if it is within the deadband.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_interval: Option<Span>,
}

/// Globs (`*`, `?`) over names; a missing one fits all. Device `_` is the node itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Match {
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
}

/// `[bridge.state]`: the buckets `SPARKGATE_STATE` and `SPARKGATE_SCHEMA`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct State {
    /// Whether to keep them.
    pub enabled: bool,
    /// A device's entry is written at most once in this time.
    pub min_interval: Span,
    /// Bound on the values held here to write from.
    pub max_memory: ByteSize,
}

impl Default for State {
    fn default() -> Self {
        Self {
            enabled: true,
            min_interval: Span(Duration::from_secs(5)),
            max_memory: ByteSize(32 << 20),
        }
    }
}

/// `[bridge.writes]`: what the cloud may ask for.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Writes {
    /// Whether requests are listened to at all.
    pub enabled: bool,
    /// Metrics that may be written; the NATS account's permissions come on top. Empty: all.
    pub allow: Vec<Match>,
    /// Requests that wait for an answer at most; more are refused.
    pub max_pending: u16,
}

impl Default for Writes {
    fn default() -> Self {
        Self {
            enabled: true,
            allow: Vec::new(),
            max_pending: 256,
        }
    }
}

/// A setting that can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Nowhere to go.
    #[error("bridge.urls is empty")]
    NoUrls,
    /// Not an address of a NATS server.
    #[error("bridge.urls: {url}: {reason}")]
    Url {
        /// What was written.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Not the address of a monitoring port.
    #[error("bridge.monitor: {0}: write http://host:port")]
    Monitor(String),
    /// More than one way to sign in.
    #[error("only one of creds_file, nkey_file, user and token_file may be given")]
    Credentials,
    /// One without the other.
    #[error("{one} needs {other}")]
    Missing {
        /// What is there.
        one: &'static str,
        /// What is not.
        other: &'static str,
    },
    /// A bound that must be at least 1.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// A filter without effect.
    #[error("bridge.filter {0}: give drop, deadband, min_interval or max_interval")]
    IdleFilter(usize),
}

impl Config {
    /// Everything that is wrong with it, beside what reading it showed.
    #[must_use]
    pub fn errors(&self) -> Vec<ConfigError> {
        let mut errors = Vec::new();
        if self.urls.is_empty() {
            errors.push(ConfigError::NoUrls);
        }
        let hub = self.hub.iter().flat_map(|hub| &hub.urls);
        for url in self.urls.iter().chain(hub) {
            if let Err(error) = url.parse::<async_nats::ServerAddr>() {
                errors.push(ConfigError::Url {
                    url: url.clone(),
                    reason: error.to_string(),
                });
            }
        }
        let plain = |url: &&String| {
            url.strip_prefix("http://")
                .is_some_and(|rest| !rest.is_empty() && !rest.contains(['/', '@']))
        };
        if let Some(url) = self.monitor.as_ref().filter(|url| !plain(url)) {
            errors.push(ConfigError::Monitor(url.clone()));
        }
        let ways = [
            self.creds_file.is_some(),
            self.nkey_file.is_some(),
            self.user.is_some(),
            self.token_file.is_some(),
        ];
        if ways.iter().filter(|way| **way).count() > 1 {
            errors.push(ConfigError::Credentials);
        }
        let mut pair = |one: bool, other: bool, names: (&'static str, &'static str)| {
            if one && !other {
                errors.push(ConfigError::Missing {
                    one: names.0,
                    other: names.1,
                });
            }
        };
        let (user, password) = (self.user.is_some(), self.password_file.is_some());
        pair(user, password, ("bridge.user", "bridge.password_file"));
        pair(password, user, ("bridge.password_file", "bridge.user"));
        if let Some(tls) = &self.tls {
            let (cert, key) = (tls.cert.is_some(), tls.key.is_some());
            pair(cert, key, ("bridge.tls.cert", "bridge.tls.key"));
            pair(key, cert, ("bridge.tls.key", "bridge.tls.cert"));
        }
        if self.window == 0 {
            errors.push(ConfigError::Zero("bridge.window"));
        }
        if self.replicas == 0 {
            errors.push(ConfigError::Zero("bridge.replicas"));
        }
        for (index, filter) in self.filter.iter().enumerate() {
            let idle = !filter.drop
                && filter.deadband.is_none()
                && filter.min_interval.is_none()
                && filter.max_interval.is_none();
            if idle {
                errors.push(ConfigError::IdleFilter(index + 1));
            }
        }
        errors
    }

    /// The bounds of a lane's drain.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits {
            window: usize::from(self.window),
            backfill_rate: self.backfill.max_rate.map(|rate| rate.0),
            batch: (self.durability == Durability::Strict).then_some(BATCH),
            ..Limits::default()
        }
    }
}

/// Messages of one atomic batch; servers take up to 1,000.
const BATCH: u32 = 500;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config, toml::de::Error> {
        toml::from_str(text)
    }

    #[test]
    fn the_contracts_keys_are_read() {
        let config = read(
            r#"
            urls = ["nats://a:4222", "tls://b:4222"]
            creds_file = "/etc/x.creds"
            manage = false
            replicas = 3
            max_bytes = "10GiB"
            durability = "strict"
            order = "strict"
            backfill = { max_rate = "5000/s" }
            encoding = "protobuf"
            raw = ["factory/#"]
            [[filter]]
            match = { group = "*", metric = "Debug/*" }
            drop = true
            [[filter]]
            match = { metric = "Temperature" }
            deadband = 0.5
            min_interval = "10s"
            max_interval = "10m"
            "#,
        )
        .unwrap();
        assert_eq!(config.errors(), []);
        let limits = config.limits();
        assert_eq!(
            (limits.backfill_rate, limits.batch),
            (Some(5000.0), Some(BATCH))
        );
        assert_eq!(Config::default().errors(), []);
    }

    #[test]
    fn unknown_keys_and_bad_values_are_refused() {
        assert!(read("url = \"x\"").is_err());
        assert!(read("durability = \"maybe\"").is_err());
        assert!(read("[[filter]]\nmatch = { metrics = \"x\" }").is_err());
    }

    #[test]
    fn every_mistake_is_named() {
        let config = read("urls = [\"ftp://x\"]\nmonitor = \"https://x:8222\"\nuser = \"a\"\ntoken_file = \"t\"\nwindow = 0\n[[filter]]\n[tls]\ncert = \"c\"").unwrap();
        let errors = config.errors();
        assert_eq!(errors.len(), 7, "{errors:?}");
    }
}
