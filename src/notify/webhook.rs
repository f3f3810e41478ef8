//! HTTP POST of a message. One connection a message: alarms are rare.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Method, Request, StatusCode, Uri};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, crypto};

use super::config::{ConfigError, Format, Webhook, read};
use super::core::{Failure, Message};
use super::text;

/// Longest time for one try.
const PATIENCE: Duration = Duration::from_secs(20);

/// Why a try failed.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// Nothing came back in time.
    #[error("no answer within {} s", PATIENCE.as_secs())]
    Slow,
    /// No connection.
    #[error("{0}")]
    Connect(#[from] std::io::Error),
    /// The connection broke, or what came back is not HTTP.
    #[error("{0}")]
    Http(#[from] hyper::Error),
    /// The request can't be made.
    #[error("{0}")]
    Request(#[from] hyper::http::Error),
    /// An answer that is not 2xx.
    #[error("answered {0}")]
    Status(StatusCode),
}

impl SendError {
    /// Whether it may work soon without anybody's doing.
    #[must_use]
    pub fn failure(&self) -> Failure {
        match self {
            Self::Status(
                StatusCode::BAD_REQUEST
                | StatusCode::PAYLOAD_TOO_LARGE
                | StatusCode::UNPROCESSABLE_ENTITY,
            ) => Failure::Unfit,
            Self::Status(status)
                if status.is_redirection()
                    || status.is_client_error()
                        && *status != StatusCode::REQUEST_TIMEOUT
                        && *status != StatusCode::TOO_MANY_REQUESTS =>
            {
                Failure::Refused
            }
            Self::Request(_) => Failure::Refused,
            _ => Failure::Transient,
        }
    }
}

/// A webhook, ready to use.
#[derive(Clone)]
pub struct Sender {
    host: String,
    port: u16,
    path: String,
    authority: String,
    tls: Option<TlsConnector>,
    token: Option<String>,
    format: Format,
}

impl Sender {
    /// Checks the URL and reads the files.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn new(config: &Webhook) -> Result<Self, ConfigError> {
        let wrong = |why: &str| ConfigError::Url {
            name: config.name.clone(),
            url: config.url.clone(),
            why: why.to_owned(),
        };
        let uri: Uri = config
            .url
            .parse()
            .map_err(|error: hyper::http::uri::InvalidUri| {
                wrong(&format!("{error}; write http://… or https://…"))
            })?;
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong("write http://… or https://…")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("a password does not belong in a URL: use token_file"));
        }
        let token = match &config.token_file {
            Some(file) => Some(
                String::from_utf8_lossy(&read(&config.name, file)?)
                    .trim()
                    .to_owned(),
            ),
            None => None,
        };
        Ok(Self {
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority
                .port_u16()
                .unwrap_or(if secure { 443 } else { 80 }),
            path: uri
                .path_and_query()
                .map_or("/", |path| path.as_str())
                .to_owned(),
            authority: authority.to_string(),
            tls: secure.then(|| connector(config)).transpose()?,
            token,
            format: config.format,
        })
    }

    /// Posts a message.
    ///
    /// # Errors
    /// See [`SendError`].
    pub async fn send(&self, gateway: &str, id: &str, message: &Message) -> Result<(), SendError> {
        let (kind, body) = match self.format {
            Format::Json => (
                "application/json",
                text::object(gateway, id, message).to_string(),
            ),
            Format::Chat => {
                let said = serde_json::json!({"text": text::body(gateway, message)});
                ("application/json", said.to_string())
            }
            Format::Text => ("text/plain; charset=utf-8", text::body(gateway, message)),
        };
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(&self.path)
            .header("host", &self.authority)
            .header("content-type", kind)
            .header(
                "user-agent",
                concat!("sparkgate/", env!("CARGO_PKG_VERSION")),
            )
            .header("idempotency-key", id);
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(Full::new(Bytes::from(body)))?;
        tokio::time::timeout(PATIENCE, self.post(request))
            .await
            .map_err(|_| SendError::Slow)?
    }

    async fn post(&self, request: Request<Full<Bytes>>) -> Result<(), SendError> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        match &self.tls {
            None => exchange(stream, request).await,
            Some(tls) => {
                let name =
                    ServerName::try_from(self.host.clone()).map_err(std::io::Error::other)?;
                exchange(tls.connect(name, stream).await?, request).await
            }
        }
    }
}

async fn exchange<S>(stream: S, request: Request<Full<Bytes>>) -> Result<(), SendError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let answer = crate::http::open(stream).await?.send_request(request).await;
    match answer?.status() {
        status if status.is_success() => Ok(()),
        status => Err(SendError::Status(status)),
    }
}

fn connector(config: &Webhook) -> Result<TlsConnector, ConfigError> {
    let roots = crate::tls::trusted(config.ca.as_deref()).map_err(|error| ConfigError::Trust {
        name: config.name.clone(),
        why: crate::telemetry::chain(&error),
    })?;
    let provider = Arc::new(crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| ConfigError::Url {
            name: config.name.clone(),
            url: config.url.clone(),
            why: error.to_string(),
        })?;
    let client = builder.with_root_certificates(roots).with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(client)))
}
