//! Making one connection to one of the servers, and saying precisely why it failed.
//!
//! async-nats can reconnect by itself, and would then send what it still holds, in front of which messages
//! were lost. A broken connection of ours is never mended: it is dropped with all it holds and a new one is
//! made. So reconnecting is forbidden to the client: once connected, its authentication callback refuses, and
//! with one attempt allowed the client gives up.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::{Auth, AuthError, Client, ConnectErrorKind, ConnectOptions, Event, ServerAddr};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::config::Config;
use super::status::UplinkState;

/// How long each step of connecting may take.
const STEP: Duration = Duration::from_secs(5);
/// The greeting of a server is a few hundred bytes; more than this is no NATS server of good will.
const MAX_GREETING: usize = 64 << 10;
/// Commands that the client takes without waiting: more than every window together.
const CAPACITY: usize = 8192;

/// No connection came about.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A credentials file can't be read or holds no credentials.
    #[error("credentials {path}: {reason}")]
    Credentials {
        /// The file.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// The name can't be resolved.
    #[error("{host}: {source}")]
    Dns {
        /// The name.
        host: String,
        /// Why.
        source: std::io::Error,
    },
    /// Nothing listens, or the way is blocked.
    #[error("{host}: {source}")]
    Refused {
        /// The address.
        host: String,
        /// Why.
        source: std::io::Error,
    },
    /// Something listens that does not greet as a NATS server does.
    #[error("{host}: {reason}")]
    NotNats {
        /// The address.
        host: String,
        /// What it did.
        reason: &'static str,
    },
    /// The client's own word.
    #[error("{host}: {source}")]
    Client {
        /// The address.
        host: String,
        /// Why.
        source: async_nats::ConnectError,
    },
    /// The address can't be used.
    #[error("{0}")]
    Address(String),
}

impl ConnectError {
    /// The state that people see.
    #[must_use]
    pub fn state(&self) -> UplinkState {
        match self {
            Self::Credentials { .. } => UplinkState::BadCredentials,
            Self::Dns { .. } => UplinkState::NoDns,
            Self::Refused { .. } | Self::Address(_) => UplinkState::Refused,
            Self::NotNats { .. } => UplinkState::NotNats,
            Self::Client { source, .. } => match source.kind() {
                ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                    UplinkState::BadCredentials
                }
                ConnectErrorKind::Tls => UplinkState::TlsFailed,
                ConnectErrorKind::Dns => UplinkState::NoDns,
                ConnectErrorKind::Io if is_tls(source) => UplinkState::TlsFailed,
                ConnectErrorKind::ServerParse
                | ConnectErrorKind::TimedOut
                | ConnectErrorKind::Io
                | ConnectErrorKind::MaxReconnects => UplinkState::Refused,
            },
        }
    }

    /// Whether trying again may help without a change of the configuration.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        !matches!(self, Self::Address(_))
    }
}

/// rustls reports its errors inside I/O errors.
fn is_tls(error: &async_nats::ConnectError) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        let text = inner.to_string();
        if text.contains("certificate") || text.contains("TLS") || text.contains("handshake") {
            return true;
        }
        source = inner.source();
    }
    false
}

/// What a connection reports beside messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Report {
    /// It is gone.
    Closed,
    /// The server's words about something that it did not take.
    Server(String),
}

/// Makes a connection to `url`, for `name` to be seen in the server's lists.
pub(super) async fn connect(
    config: &Config,
    url: &str,
    name: &str,
) -> Result<(Client, mpsc::Receiver<Report>), ConnectError> {
    let address: ServerAddr = url
        .parse()
        .map_err(|error: std::io::Error| ConnectError::Address(format!("{url}: {error}")))?;
    let host = format!("{}:{}", address.host(), address.port());
    let tls_first = config.tls.as_ref().is_some_and(|tls| tls.first);
    if !tls_first {
        probe(&host).await?;
    }
    let signer = Signer::load(config)?;
    let connected = Arc::new(AtomicBool::new(false));
    let seen = connected.clone();
    let (reports, reported) = mpsc::channel(64);
    let mut options = ConnectOptions::with_auth_callback(move |nonce| {
        let auth = if seen.load(Ordering::Acquire) {
            Err(AuthError::new("this connection is not to be mended"))
        } else {
            signer.sign(&nonce)
        };
        std::future::ready(auth)
    })
    .name(name)
    .connection_timeout(STEP)
    .request_timeout(Some(STEP))
    .client_capacity(CAPACITY)
    .ping_interval(Duration::from_secs(5))
    .max_reconnects(1)
    .reconnect_delay_callback(|_| Duration::ZERO)
    .ignore_discovered_servers()
    .event_callback(move |event| {
        let report = match event {
            Event::Disconnected | Event::Closed | Event::LameDuckMode => Some(Report::Closed),
            Event::ServerError(error) => Some(Report::Server(error.to_string())),
            Event::ClientError(_) | Event::SlowConsumer(_) | Event::Connected | Event::Draining => {
                None
            }
        };
        if let Some(report) = report {
            // A full channel holds a report already that ends the connection or says what matters.
            let _ = reports.try_send(report);
        }
        std::future::ready(())
    });
    if let Some(tls) = &config.tls {
        options = options.require_tls(true);
        if let Some(ca) = &tls.ca {
            options = options.add_root_certificates(ca.clone());
        }
        if let (Some(cert), Some(key)) = (&tls.cert, &tls.key) {
            options = options.add_client_certificate(cert.clone(), key.clone());
        }
        if tls.first {
            options = options.tls_first();
        }
    }
    let client = options
        .connect(address)
        .await
        .map_err(|source| ConnectError::Client { host, source })?;
    connected.store(true, Ordering::Release);
    Ok((client, reported))
}

/// Looks whether a NATS server greets there. The client would read a greeting of any length, and can't tell
/// silence from a slow server.
async fn probe(host: &str) -> Result<(), ConnectError> {
    let timed_out = || std::io::Error::from(std::io::ErrorKind::TimedOut);
    let addresses: Vec<_> = match tokio::time::timeout(STEP, tokio::net::lookup_host(host)).await {
        Ok(Ok(addresses)) => addresses.collect(),
        Ok(Err(source)) => {
            let host = host.to_owned();
            return Err(ConnectError::Dns { host, source });
        }
        Err(_) => {
            return Err(ConnectError::Dns {
                host: host.to_owned(),
                source: timed_out(),
            });
        }
    };
    let mut stream = match tokio::time::timeout(STEP, TcpStream::connect(&*addresses)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(source)) => {
            let host = host.to_owned();
            return Err(ConnectError::Refused { host, source });
        }
        Err(_) => {
            return Err(ConnectError::Refused {
                host: host.to_owned(),
                source: timed_out(),
            });
        }
    };
    let mut greeting = Vec::with_capacity(1024);
    let read = async {
        while !greeting.contains(&b'\n') && greeting.len() < MAX_GREETING {
            if stream.read_buf(&mut greeting).await? == 0 {
                break;
            }
        }
        Ok::<_, std::io::Error>(())
    };
    let reason = match tokio::time::timeout(STEP, read).await {
        Ok(Ok(())) if greeting.starts_with(b"INFO {") && greeting.contains(&b'\n') => return Ok(()),
        Ok(Ok(())) if greeting.len() >= MAX_GREETING => "its greeting does not end",
        Ok(Ok(())) if greeting.is_empty() => "it closed the connection without a greeting",
        Ok(Ok(())) => "its greeting is not that of a NATS server",
        Ok(Err(_)) => "it reset the connection",
        Err(_) => "it does not greet",
    };
    Err(ConnectError::NotNats {
        host: host.to_owned(),
        reason,
    })
}

/// Credentials, read anew for every connection, so that changed files need no restart.
enum Signer {
    None,
    User {
        user: String,
        password: String,
    },
    Token(String),
    Nkey {
        pair: Box<nkeys::KeyPair>,
        jwt: Option<String>,
    },
}

impl Signer {
    fn load(config: &Config) -> Result<Self, ConnectError> {
        let bad = |path: &Path, reason: String| ConnectError::Credentials {
            path: path.display().to_string(),
            reason,
        };
        let read = |path: &Path| {
            std::fs::read_to_string(path)
                .map(|text| text.trim().to_owned())
                .map_err(|error| bad(path, error.to_string()))
        };
        if let Some(path) = &config.creds_file {
            let text = read(path)?;
            let jwt = armoured(&text, "USER JWT")
                .ok_or_else(|| bad(path, "no user JWT in it".to_owned()))?;
            let seed = armoured(&text, "NKEY SEED")
                .ok_or_else(|| bad(path, "no nkey seed in it".to_owned()))?;
            let pair =
                nkeys::KeyPair::from_seed(seed).map_err(|error| bad(path, error.to_string()))?;
            let jwt = Some(jwt.to_owned());
            let pair = Box::new(pair);
            return Ok(Self::Nkey { pair, jwt });
        }
        if let Some(path) = &config.nkey_file {
            let text = read(path)?;
            let pair =
                nkeys::KeyPair::from_seed(&text).map_err(|error| bad(path, error.to_string()))?;
            let pair = Box::new(pair);
            return Ok(Self::Nkey { pair, jwt: None });
        }
        if let (Some(user), Some(path)) = (&config.user, &config.password_file) {
            return Ok(Self::User {
                user: user.clone(),
                password: read(path)?,
            });
        }
        if let Some(path) = &config.token_file {
            return Ok(Self::Token(read(path)?));
        }
        Ok(Self::None)
    }

    fn sign(&self, nonce: &[u8]) -> Result<Auth, AuthError> {
        let mut auth = Auth::new();
        match self {
            Self::None => {}
            Self::User { user, password } => {
                auth.username = Some(user.clone());
                auth.password = Some(password.clone());
            }
            Self::Token(token) => auth.token = Some(token.clone()),
            Self::Nkey { pair, jwt } => {
                auth.signature = Some(pair.sign(nonce).map_err(AuthError::new)?);
                match jwt {
                    Some(jwt) => auth.jwt = Some(jwt.clone()),
                    None => auth.nkey = Some(pair.public_key()),
                }
            }
        }
        Ok(auth)
    }
}

/// The first line behind `-----BEGIN … <label>-----`.
fn armoured<'a>(text: &'a str, label: &str) -> Option<&'a str> {
    let mut lines = text.lines().map(str::trim);
    lines.find(|line| line.starts_with("---") && line.contains("BEGIN") && line.contains(label))?;
    lines.find(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn credentials_files_are_read() {
        let text = "-----BEGIN NATS USER JWT-----\neyJ0\n------END NATS USER JWT------\n\n***\n\n-----BEGIN USER NKEY SEED-----\nSUAB\n------END USER NKEY SEED------\n";
        assert_eq!(armoured(text, "USER JWT"), Some("eyJ0"));
        assert_eq!(armoured(text, "NKEY SEED"), Some("SUAB"));
        assert_eq!(armoured("SUAB", "NKEY SEED"), None);
    }

    async fn state_of(greeting: Option<Vec<u8>>) -> UplinkState {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                if let Some(greeting) = &greeting {
                    let _ = stream.write_all(greeting).await;
                }
                if greeting.is_some() {
                    drop(stream);
                } else {
                    std::mem::forget(stream);
                }
            }
        });
        let url = format!("nats://{address}");
        connect(&Config::default(), &url, "test")
            .await
            .unwrap_err()
            .state()
    }

    #[tokio::test]
    async fn what_is_no_server_is_told_apart() {
        assert_eq!(state_of(Some(b"".to_vec())).await, UplinkState::NotNats);
        assert_eq!(
            state_of(Some(b"SSH-2.0\r\n".to_vec())).await,
            UplinkState::NotNats
        );
        let mut huge = b"INFO {".to_vec();
        huge.resize(1 << 20, b'x');
        assert_eq!(state_of(Some(huge)).await, UplinkState::NotNats);
        let nowhere = connect(&Config::default(), "nats://127.0.0.1:1", "test").await;
        assert_eq!(nowhere.unwrap_err().state(), UplinkState::Refused);
        let nameless = connect(
            &Config::default(),
            "nats://no.such.host.invalid:4222",
            "test",
        )
        .await;
        assert_eq!(nameless.unwrap_err().state(), UplinkState::NoDns);
        let config = Config {
            token_file: Some("/no/such/file".into()),
            ..Config::default()
        };
        assert!(matches!(
            Signer::load(&config).err().unwrap().state(),
            UplinkState::BadCredentials
        ));
    }
}
