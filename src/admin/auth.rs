//! Who may change anything: a token over TCP, peer credentials over the admin socket.

use std::net::SocketAddr;

use axum::extract::FromRequestParts;
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::http::request::Parts;
use axum::serve::IncomingStream;
use tokio::net::{TcpListener, UnixListener};

use super::api::ApiError;

/// The bearer token of a gateway; compared in constant time.
#[derive(Clone)]
pub struct Token(String);

/// Shortest token taken: 128 bits in hex, half of that in base64 with punctuation.
const SHORTEST: usize = 16;

/// Why a token file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file can't be read.
    #[error("admin.token_file {0}: {1}")]
    Unreadable(std::path::PathBuf, #[source] std::io::Error),
    /// A token that can be guessed.
    #[error(
        "admin.token_file {0}: the token is shorter than {SHORTEST} characters; make one with `openssl rand -hex 32`"
    )]
    Short(std::path::PathBuf),
}

impl Token {
    /// Reads a token file; white space around the token is ignored.
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn read(path: &std::path::Path) -> Result<Self, TokenError> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| TokenError::Unreadable(path.to_owned(), e))?;
        let text = text.trim();
        if text.len() < SHORTEST {
            return Err(TokenError::Short(path.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }

    fn matches(&self, given: &str) -> bool {
        let (a, b) = (self.0.as_bytes(), given.as_bytes());
        let mut different = u8::from(a.len() != b.len());
        for (x, y) in a.iter().zip(b) {
            different |= x ^ y;
        }
        different == 0
    }
}

/// Where a request came in.
#[derive(Debug, Clone)]
pub enum Door {
    /// Over TCP.
    Tcp(SocketAddr),
    /// Over the admin socket, from this user.
    Socket {
        /// Numeric user id of the peer.
        uid: Option<u32>,
    },
}

impl Connected<IncomingStream<'_, TcpListener>> for Door {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Self {
        Self::Tcp(*stream.remote_addr())
    }
}

impl Connected<IncomingStream<'_, UnixListener>> for Door {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        Self::Socket {
            uid: stream.io().peer_cred().ok().map(|c| c.uid()),
        }
    }
}

/// A person or program that may change things; `by` is the name in the audit.
#[derive(Debug, Clone)]
pub struct Operator {
    /// `user:<name>`.
    pub by: String,
}

impl FromRequestParts<std::sync::Arc<super::Shared>> for Operator {
    type Rejection = ApiError;

    async fn from_request_parts(
        parts: &mut Parts,
        shared: &std::sync::Arc<super::Shared>,
    ) -> Result<Self, ApiError> {
        match parts.extensions.get::<ConnectInfo<Door>>() {
            Some(ConnectInfo(Door::Socket { uid })) => Ok(Self {
                by: socket_user(*uid),
            }),
            Some(ConnectInfo(Door::Tcp(_))) | None => {
                let given = parts
                    .headers
                    .get("authorization")
                    .and_then(|v| v.to_str().ok())
                    .and_then(|v| v.strip_prefix("Bearer "));
                match (&shared.token, given) {
                    (None, _) => Err(ApiError::forbidden(
                        "this door is read-only: set admin.token_file, or use the admin socket",
                    )),
                    (Some(token), Some(given)) if token.matches(given) => Ok(Self {
                        by: "user:token".to_owned(),
                    }),
                    (Some(_), _) => Err(ApiError::unauthorized(
                        "send the token as `Authorization: Bearer …`",
                    )),
                }
            }
        }
    }
}

fn socket_user(uid: Option<u32>) -> String {
    match uid {
        Some(0) => "user:root".to_owned(),
        Some(uid) => {
            let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
            name_of(uid, &users)
                .map_or_else(|| format!("user:uid-{uid}"), |name| format!("user:{name}"))
        }
        None => "user:local".to_owned(),
    }
}

/// The name of a user id, by the lines of `passwd(5)`; users of a directory service go by their number.
fn name_of(uid: u32, users: &str) -> Option<&str> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_names() {
        let users = "root:x:0:0:root:/root:/bin/sh\nanna:x:1001:1001::/home/anna:/bin/sh\nbroken\n";
        assert_eq!(name_of(1001, users), Some("anna"));
        assert_eq!(name_of(1002, users), None);
    }

    #[test]
    fn tokens_compare_whole() {
        let token = Token("0123456789abcdef".into());
        for (given, fine) in [
            ("0123456789abcdef", true),
            ("0123456789abcdeF", false),
            ("0123", false),
            ("", false),
        ] {
            assert_eq!(token.matches(given), fine, "{given}");
        }
    }
}
