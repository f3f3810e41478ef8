//! MQTT over WebSocket (MQTT 5.0 section 6): a byte stream out of binary messages, so that a connection is the same
//! whatever carries it.
//!
//! A page of any website can open a WebSocket to this machine, and a local browser is a local client. So a browser,
//! which always names the page's origin, is let in only from origins that the configuration lists, or from a page that
//! this very machine serves under an IP address or `localhost`: a name could have been pointed here by a stranger.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::{Sink, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_tungstenite::tungstenite::http::{HeaderMap, HeaderValue, StatusCode, header};
use tokio_tungstenite::tungstenite::protocol::{Message, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, http};

/// Bytes read at once, and the most that one message towards a client holds.
const CHUNK: usize = 16 << 10;

/// What a WebSocket listener asks of its clients.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    /// Largest message; a packet may come in many.
    pub(crate) max_message: usize,
    /// Origins of pages that may connect, such as `https://scada.example`.
    pub(crate) origins: Arc<[String]>,
}

/// Why a handshake is refused: HTTP status and a sentence for whoever looks into it.
type Refusal = (StatusCode, &'static str);

/// Checks a handshake: subprotocol `mqtt` (MQTT-6.0.0-3) and the page's origin.
fn admit(headers: &HeaderMap, origins: &[String]) -> Result<(), Refusal> {
    let offered = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    let mqtt = offered
        .filter_map(|value| value.to_str().ok())
        .flat_map(|list| list.split(','))
        .any(|name| name.trim() == "mqtt");
    if !mqtt {
        return Err((
            StatusCode::BAD_REQUEST,
            "the client must offer the WebSocket subprotocol `mqtt`",
        ));
    }
    let Some(origin) = headers.get(header::ORIGIN) else {
        return Ok(());
    };
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let admitted = origin.to_str().is_ok_and(|origin| {
        origins.iter().any(|listed| listed == origin)
            || host.is_some_and(|host| is_own(origin, host))
    });
    if admitted {
        Ok(())
    } else {
        Err((
            StatusCode::FORBIDDEN,
            "pages of this origin are not listed in mqtt.websocket.origins",
        ))
    }
}

/// Whether a page comes from the host that it connects to, and that host is no name which a stranger could have
/// pointed here.
fn is_own(origin: &str, host: &str) -> bool {
    let of = |text: &str| Some(text.parse::<http::uri::Authority>().ok()?.host().to_owned());
    let page = origin.split_once("://").and_then(|(_, rest)| of(rest));
    page.zip(of(host)).is_some_and(|(page, host)| {
        let literal = host
            .trim_matches(['[', ']'])
            .parse::<std::net::IpAddr>()
            .is_ok();
        page == host && (literal || host == "localhost")
    })
}

/// Shakes hands; the stream carries MQTT from then on.
pub(crate) async fn upgrade<S>(stream: S, gate: &Gate) -> Result<WebSocket<S>, Box<Error>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut config = WebSocketConfig::default();
    config.read_buffer_size = CHUNK;
    // Straight to the socket: the connection has its own buffer and its own bound.
    config.write_buffer_size = 0;
    config.max_message_size = Some(gate.max_message);
    config.max_frame_size = Some(gate.max_message);
    let origins = Arc::clone(&gate.origins);
    #[expect(clippy::result_large_err, reason = "the crate's own signature")]
    let check =
        move |request: &Request, mut response: Response| match admit(request.headers(), &origins) {
            Ok(()) => {
                let protocol = HeaderValue::from_static("mqtt");
                response
                    .headers_mut()
                    .insert(header::SEC_WEBSOCKET_PROTOCOL, protocol);
                Ok(response)
            }
            Err((status, why)) => {
                let mut refusal = http::Response::new(Some(why.to_owned()));
                *refusal.status_mut() = status;
                Err(refusal)
            }
        };
    let inner = tokio_tungstenite::accept_hdr_async_with_config(stream, check, Some(config));
    Ok(WebSocket {
        inner: inner.await.map_err(Box::new)?,
        read: Bytes::new(),
    })
}

/// Binary messages as bytes.
pub(crate) struct WebSocket<S> {
    inner: WebSocketStream<S>,
    /// What is left of the last message.
    read: Bytes,
}

fn broken(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        Error::ConnectionClosed | Error::AlreadyClosed => io::ErrorKind::BrokenPipe.into(),
        other => io::Error::other(other),
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for WebSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.read.is_empty() {
            match ready!(Pin::new(&mut self.inner).poll_next(cx)) {
                Some(Ok(Message::Binary(bytes))) => self.read = bytes,
                // MQTT-6.0.0-1: anything but binary ends the connection.
                Some(Ok(Message::Text(_))) => {
                    let error = "MQTT comes in binary messages";
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
                }
                // Pings are answered below us.
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Close(_))) | None => return Poll::Ready(Ok(())),
                Some(Err(error)) => return Poll::Ready(Err(broken(error))),
            }
        }
        let n = buffer.remaining().min(self.read.len());
        buffer.put_slice(&self.read.split_to(n));
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WebSocket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(Pin::new(&mut self.inner).poll_ready(cx)).map_err(broken)?;
        let chunk = bytes.get(..CHUNK).unwrap_or(bytes);
        let message = Message::Binary(Bytes::copy_from_slice(chunk));
        Pin::new(&mut self.inner)
            .start_send(message)
            .map_err(broken)?;
        Poll::Ready(Ok(chunk.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx).map_err(broken)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_close(cx).map_err(broken)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{SinkExt, StreamExt};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_tungstenite::tungstenite::protocol::Role;

    use super::*;

    #[test]
    fn strangers_pages_and_other_protocols_are_refused() {
        let origins = ["https://scada.example".to_owned()];
        let check = |pairs: &[(header::HeaderName, &str)], expected: Option<StatusCode>| {
            let headers = pairs
                .iter()
                .map(|(name, value)| (name.clone(), value.parse().unwrap()))
                .collect();
            let got = admit(&headers, &origins).err().map(|(status, _)| status);
            assert_eq!(got, expected, "{pairs:?}");
        };
        let mqtt = (header::SEC_WEBSOCKET_PROTOCOL, "mqttv3.1, mqtt");
        check(std::slice::from_ref(&mqtt), None);
        check(&[], Some(StatusCode::BAD_REQUEST));
        let protocol = (header::SEC_WEBSOCKET_PROTOCOL, "chat");
        check(&[protocol], Some(StatusCode::BAD_REQUEST));
        let page = |origin, host, expected| {
            check(
                &[mqtt.clone(), (header::ORIGIN, origin), (header::HOST, host)],
                expected,
            );
        };
        page("https://scada.example", "gw:8083", None);
        page("http://127.0.0.1:8780", "127.0.0.1:8083", None);
        page("http://[::1]:8780", "[::1]:8083", None);
        page("http://localhost", "localhost:8083", None);
        page(
            "https://evil.example",
            "127.0.0.1:8083",
            Some(StatusCode::FORBIDDEN),
        );
        page(
            "https://evil.example",
            "evil.example:8083",
            Some(StatusCode::FORBIDDEN),
        );
        page("null", "localhost:8083", Some(StatusCode::FORBIDDEN));
    }

    #[tokio::test]
    async fn messages_are_a_stream_of_bytes_both_ways() {
        let (near, far) = tokio::io::duplex(1 << 10);
        let server = WebSocketStream::from_raw_socket(near, Role::Server, None).await;
        let mut client = WebSocketStream::from_raw_socket(far, Role::Client, None).await;
        let mut socket = WebSocket {
            inner: server,
            read: Bytes::new(),
        };
        let sent: Vec<u8> = (0..100_000u32).map(|i| i.to_le_bytes()[0]).collect();
        let copy = sent.clone();
        let serving = tokio::spawn(async move {
            let mut six = [0; 6];
            socket.read_exact(&mut six).await.unwrap();
            socket.write_all(&copy).await.unwrap();
            socket.flush().await.unwrap();
            // Text is not MQTT.
            (six, socket.read(&mut [0; 9]).await.unwrap_err().kind())
        });
        for part in [&b"ab"[..], b"", b"cdef"] {
            let part = Bytes::copy_from_slice(part);
            client.send(Message::Binary(part)).await.unwrap();
        }
        let mut got = Vec::new();
        while got.len() < sent.len() {
            got.extend_from_slice(&client.next().await.unwrap().unwrap().into_data());
        }
        assert_eq!(got, sent);
        client.send(Message::Text("hello".into())).await.unwrap();
        let (six, kind) = serving.await.unwrap();
        assert_eq!((&six, kind), (b"abcdef", io::ErrorKind::InvalidData));
    }
}
