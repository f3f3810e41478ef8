//! HTTP for the object store: one connection a request, over the TLS that the rest of the gateway uses, with a cap
//! on upload bandwidth.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt as _;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Body, Frame, SizeHint};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Connecting may take this long.
const CONNECT: Duration = Duration::from_secs(15);
/// No byte in this time ends a request.
const SILENCE: Duration = Duration::from_secs(60);
/// Bytes sent at once under a cap.
const PIECE: usize = 4 << 10;
/// Bytes sent at once without one.
const UNCAPPED: usize = 64 << 10;

/// Makes the client that the store uses.
#[derive(Debug, Clone)]
pub(super) struct Connector {
    pub(super) roots: Arc<RootCertStore>,
    pub(super) bytes_per_second: Option<u64>,
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|source| object_store::Error::Generic {
                store: "S3",
                source: Box::new(source),
            })?
            .with_root_certificates(Arc::clone(&self.roots))
            .with_no_client_auth();
        Ok(HttpClient::new(Service {
            tls: TlsConnector::from(Arc::new(config)),
            pace: self
                .bytes_per_second
                .map(|rate| Arc::new(Mutex::new(Pace::new(rate)))),
        }))
    }
}

/// When the next byte may go, over all requests.
#[derive(Debug)]
struct Pace {
    rate: u64,
    next: Instant,
}

impl Pace {
    fn new(rate: u64) -> Self {
        Self {
            rate: rate.max(1),
            next: Instant::now(),
        }
    }

    /// When `bytes` may go.
    fn book(&mut self, bytes: usize) -> Instant {
        let at = self.next.max(Instant::now());
        let micros = (bytes as u64).saturating_mul(1_000_000) / self.rate;
        self.next = at + Duration::from_micros(micros);
        at
    }
}

struct Service {
    tls: TlsConnector,
    pace: Option<Arc<Mutex<Pace>>>,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn failed(kind: HttpErrorKind) -> impl FnOnce(Failure) -> HttpError {
    move |error| HttpError::new_boxed(kind, error)
}

fn silent() -> HttpError {
    let text = format!("no answer in {} s", SILENCE.as_secs());
    HttpError::new_boxed(HttpErrorKind::Timeout, text.into())
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (mut parts, body) = request.into_parts();
        let uri = std::mem::take(&mut parts.uri);
        let host = uri
            .host()
            .unwrap_or_default()
            .trim_matches(['[', ']'])
            .to_owned();
        let secure = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        // What ends an upload in pieces makes the object, and may only if there is none: the store's interface has no
        // word for it.
        let query = uri.query().unwrap_or_default();
        if parts.method == hyper::Method::POST
            && query.split('&').any(|pair| pair.starts_with("uploadId="))
        {
            let only_new = hyper::header::HeaderValue::from_static("*");
            parts.headers.insert(hyper::header::IF_NONE_MATCH, only_new);
        }
        // The origin form, as to a server that is no proxy.
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        parts.uri = path
            .parse()
            .map_err(|error| failed(HttpErrorKind::Request)(Box::new(error)))?;
        if !parts.headers.contains_key(hyper::header::HOST)
            && let Some(authority) = uri.authority()
            && let Ok(value) = authority.as_str().parse()
        {
            parts.headers.insert(hyper::header::HOST, value);
        }
        let connect = TcpStream::connect((host.as_str(), port));
        let stream = tokio::time::timeout(CONNECT, connect)
            .await
            .map_err(|error| failed(HttpErrorKind::Connect)(Box::new(error)))?
            .map_err(|error| failed(HttpErrorKind::Connect)(Box::new(error)))?;
        let body = Paced {
            pieces: body.collect().await?.to_bytes(),
            pace: self.pace.clone(),
            wait: None,
            sent: Arc::default(),
        };
        let request = hyper::Request::from_parts(parts, body);
        if secure {
            let name = ServerName::try_from(host)
                .map_err(|error| failed(HttpErrorKind::Connect)(Box::new(error)))?;
            let stream = tokio::time::timeout(CONNECT, self.tls.connect(name, stream))
                .await
                .map_err(|error| failed(HttpErrorKind::Connect)(Box::new(error)))?
                .map_err(|error| failed(HttpErrorKind::Connect)(Box::new(error)))?;
            exchange(stream, request).await
        } else {
            exchange(stream, request).await
        }
    }
}

async fn exchange<T>(io: T, request: hyper::Request<Paced>) -> Result<HttpResponse, HttpError>
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let mut sender = crate::http::open(io)
        .await
        .map_err(|error| failed(HttpErrorKind::Connect)(Box::new(error)))?;
    // An upload takes as long as it takes, while it moves.
    let sent = Arc::clone(&request.body().sent);
    let answered = {
        let mut answer = std::pin::pin!(sender.send_request(request));
        loop {
            let before = sent.load(Ordering::Relaxed);
            match tokio::time::timeout(SILENCE, &mut answer).await {
                Ok(answered) => break answered,
                Err(_) if sent.load(Ordering::Relaxed) > before => {}
                Err(_) => return Err(silent()),
            }
        }
    };
    let response = answered.map_err(|error| failed(HttpErrorKind::Interrupted)(Box::new(error)))?;
    let (parts, body) = response.into_parts();
    let frames = futures_util::stream::unfold((body, sender), |(mut body, sender)| async move {
        let frame = match tokio::time::timeout(SILENCE, body.frame()).await {
            Ok(frame) => {
                frame?.map_err(|error| failed(HttpErrorKind::Interrupted)(Box::new(error)))
            }
            Err(_) => Err(silent()),
        };
        Some((frame, (body, sender)))
    });
    // Who reads an answer without a body may ask twice whether it has ended.
    let frames = frames.fuse();
    let body = HttpResponseBody::new(SyncBody(Mutex::new(Box::pin(StreamBody::new(frames)))));
    Ok(HttpResponse::from_parts(parts, body))
}

type Frames = Pin<Box<dyn Body<Data = Bytes, Error = HttpError> + Send>>;

/// The answer's body behind a lock that nobody contends: the store wants it to be `Sync`.
struct SyncBody(Mutex<Frames>);

impl Body for SyncBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let body = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        body.as_mut().poll_frame(context)
    }
}

/// A request's body, no faster than the cap.
struct Paced {
    pieces: Bytes,
    pace: Option<Arc<Mutex<Pace>>>,
    wait: Option<Pin<Box<Sleep>>>,
    /// Bytes that were taken so far: whether it moves.
    sent: Arc<AtomicU64>,
}

impl Paced {
    fn next(&mut self, most: usize) -> Option<Result<Frame<Bytes>, HttpError>> {
        let piece = self.pieces.split_to(most.min(self.pieces.len()));
        self.sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
        Some(Ok(Frame::data(piece)))
    }
}

impl Body for Paced {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if self.pieces.is_empty() {
            return Poll::Ready(None);
        }
        let Some(pace) = self.pace.clone() else {
            return Poll::Ready(self.next(UNCAPPED));
        };
        let len = self.pieces.len().min(PIECE);
        let wait = self.wait.get_or_insert_with(|| {
            let at = pace
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .book(len);
            Box::pin(tokio::time::sleep_until(at))
        });
        match wait.as_mut().poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => {
                self.wait = None;
                Poll::Ready(self.next(len))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.pieces.len() as u64)
    }
}
