//! How tools talk to a running gateway: HTTP over its admin socket, or over TCP with a token.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, StatusCode};
use serde_json::Value;

use super::Reach;
use crate::config::Config;

/// Where the packaged service puts its socket.
const DEFAULT_SOCKET: &str = "/run/sparkgate/admin.sock";
/// Longest wait for an answer that is not a stream.
const PATIENCE: Duration = Duration::from_secs(30);

/// A way to one gateway.
#[derive(Debug, Clone)]
pub struct Client {
    at: Place,
    token: Option<String>,
}

#[derive(Debug, Clone)]
enum Place {
    Socket(PathBuf),
    Http { authority: String },
}

/// An answer that is not 2xx.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Refused {
    /// HTTP status.
    pub status: StatusCode,
    /// The gateway's own words.
    pub message: String,
}

impl Client {
    /// Chooses the way: `--url`, else `--socket`, else the socket of the configuration, else the service's.
    ///
    /// # Errors
    /// An unreadable token file, a URL that isn't `http://host:port`.
    pub fn new(reach: &Reach) -> anyhow::Result<Self> {
        let token = reach
            .token_file
            .as_ref()
            .map(|file| {
                std::fs::read_to_string(file)
                    .with_context(|| format!("token file {}", file.display()))
                    .map(|text| text.trim().to_owned())
            })
            .transpose()?;
        let at = match (&reach.url, &reach.socket) {
            (Some(url), _) => {
                let Some(rest) = url.strip_prefix("http://") else {
                    bail!(
                        "--url {url}: write http://host:port (put a TLS proxy in front for https)"
                    );
                };
                Place::Http {
                    authority: rest.trim_end_matches('/').to_owned(),
                }
            }
            (None, Some(socket)) => Place::Socket(socket.clone()),
            (None, None) => Place::Socket(configured_socket(reach)),
        };
        Ok(Self { at, token })
    }

    /// `GET path`, decoded.
    ///
    /// # Errors
    /// No gateway there, an answer that isn't 2xx ([`Refused`]), or no JSON.
    pub async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.call(Method::GET, path, None).await
    }

    /// `POST path` with a JSON body, decoded.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.call(Method::POST, path, Some(body)).await
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Value> {
        let answer = tokio::time::timeout(PATIENCE, async {
            let response = self.send(method, path, body).await?;
            let status = response.status();
            let bytes = response.into_body().collect().await?.to_bytes();
            anyhow::Ok((status, bytes))
        })
        .await
        .with_context(|| format!("no answer within {} s", PATIENCE.as_secs()))?;
        let (status, bytes) = answer?;
        if !status.is_success() {
            let message = serde_json::from_slice::<Value>(&bytes)
                .ok()
                .and_then(|v| v.get("error").and_then(Value::as_str).map(str::to_owned))
                .unwrap_or_else(|| format!("{status}: {}", String::from_utf8_lossy(&bytes)));
            return Err(Refused { status, message }.into());
        }
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&bytes).context("the gateway answered something that is not JSON")
    }

    /// `GET path` as a stream of server-sent events' data, each handed to `each` until it returns `false`.
    ///
    /// # Errors
    /// As [`Client::get`], or the stream breaks.
    pub async fn stream(
        &self,
        path: &str,
        mut each: impl FnMut(&str) -> bool,
    ) -> anyhow::Result<()> {
        let response = self.send(Method::GET, path, None).await?;
        if !response.status().is_success() {
            bail!("{}", response.status());
        }
        let mut body = response.into_body();
        let mut text = String::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame?.into_data() else {
                continue;
            };
            text.push_str(&String::from_utf8_lossy(&data));
            while let Some(end) = text.find("\n\n") {
                let event: String = text.drain(..end + 2).collect();
                for line in event.lines() {
                    if let Some(data) = line.strip_prefix("data: ")
                        && !each(data)
                    {
                        return Ok(());
                    }
                }
            }
        }
        bail!("the gateway closed the stream")
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<hyper::Response<hyper::body::Incoming>> {
        let mut request = Request::builder().method(method).uri(path);
        request = match &self.at {
            Place::Socket(_) => request.header("host", "sparkgate"),
            Place::Http { authority } => request.header("host", authority),
        };
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let bytes = match body {
            Some(body) => {
                request = request.header("content-type", "application/json");
                Bytes::from(serde_json::to_vec(body)?)
            }
            None => Bytes::new(),
        };
        let request = request.body(Full::new(bytes))?;
        match &self.at {
            Place::Socket(path) => {
                let io = tokio::net::UnixStream::connect(path).await.with_context(|| {
                    format!(
                        "no gateway answers at {} (is it running? name it with --socket, --url or -c)",
                        path.display()
                    )
                })?;
                Ok(crate::http::open(io).await?.send_request(request).await?)
            }
            Place::Http { authority } => {
                let io = tokio::net::TcpStream::connect(authority)
                    .await
                    .with_context(|| format!("no gateway answers at http://{authority}"))?;
                Ok(crate::http::open(io).await?.send_request(request).await?)
            }
        }
    }
}

fn configured_socket(reach: &Reach) -> PathBuf {
    if reach.config.config.is_none() && PathBuf::from(DEFAULT_SOCKET).exists() {
        return PathBuf::from(DEFAULT_SOCKET);
    }
    Config::read(
        reach.config.config.as_deref(),
        reach.config.config_dir.as_deref(),
    )
    .map_or_else(
        |_| PathBuf::from(DEFAULT_SOCKET),
        |loaded| loaded.value.gateway.runtime_folder().join("admin.sock"),
    )
}

/// Runs one conversation on a small runtime of its own.
///
/// # Errors
/// What the conversation returns, or the runtime can't be made.
pub fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("tokio runtime")?
        .block_on(work)
}
