//! An HTTP/1.1 connection of this program to another one.

use hyper::body::Body;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

/// Makes an open stream a connection that takes requests. A task of its own moves its bytes, and ends when the requests
/// are answered and what is returned here is dropped.
///
/// # Errors
/// The stream is closed.
pub async fn open<S, B>(stream: S) -> hyper::Result<SendRequest<B>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}
