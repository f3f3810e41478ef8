//! Who may change anything: a token over TCP, peer credentials over the admin socket.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::http::request::Parts;
use axum::serve::IncomingStream;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;

use super::api::ApiError;
use crate::broker::auth::{self, AccessError};

/// Shortest token taken in the clear: 128 bits in hex, half of that in base64 with punctuation.
const SHORTEST: usize = 16;
/// Most people in a token file: a wrong token is held against each of them.
const MOST_NAMES: usize = 16;
/// Tokens whose hash was computed once and need not be again.
const MOST_KNOWN: usize = 64;
/// How long a request waits for its turn to be hashed.
const TURN: Duration = Duration::from_secs(2);

/// Hashes computed at once, apart from those of MQTT clients: wrong tokens must take neither the machine nor their turn.
static HASHING: Semaphore = Semaphore::const_new(1);

/// What `admin.token_file` holds.
pub enum Token {
    /// One token in the clear, as a credential of the service manager is; compared in constant time.
    Clear(String),
    /// Names and argon2 hashes of their tokens, as `sparkgate passwd` makes them.
    Hashed(Vec<(Box<str>, String)>),
}

/// Why a token file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file can't be read.
    #[error("admin.token_file {0}: {1}")]
    Unreadable(std::path::PathBuf, #[source] std::io::Error),
    /// A token that can be guessed.
    #[error(
        "admin.token_file {0}: the token is shorter than {SHORTEST} characters; make one with `openssl rand -hex 32`, or hashed ones with `sparkgate passwd`"
    )]
    Short(std::path::PathBuf),
    /// A line that `sparkgate passwd` does not make.
    #[error("admin.token_file {0}")]
    Line(#[source] AccessError),
    /// Too many people.
    #[error("admin.token_file {0}: at most {MOST_NAMES} names")]
    Many(std::path::PathBuf),
}

impl Token {
    /// Reads a token file: lines of `name:hash`, or one token with white space around it.
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn read(path: &std::path::Path) -> Result<Self, TokenError> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| TokenError::Unreadable(path.to_owned(), e))?;
        if text.contains(":$argon2") {
            let users = auth::users(path).map_err(TokenError::Line)?;
            if users.len() > MOST_NAMES {
                return Err(TokenError::Many(path.to_owned()));
            }
            return Ok(Self::Hashed(users.into_iter().collect()));
        }
        let text = text.trim();
        if text.len() < SHORTEST {
            return Err(TokenError::Short(path.to_owned()));
        }
        Ok(Self::Clear(text.to_owned()))
    }

    /// Whose token this is; a hash takes a while.
    fn name(&self, given: &str) -> Option<String> {
        match self {
            Self::Clear(token) => same(token, given).then(|| "token".to_owned()),
            Self::Hashed(users) => users
                .iter()
                .find(|(_, hash)| auth::verify(hash, given.as_bytes()))
                .map(|(name, _)| name.to_string()),
        }
    }
}

/// In a time that tells nothing of where they differ.
fn same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut different = u8::from(a.len() != b.len());
    for (x, y) in a.iter().zip(b) {
        different |= x ^ y;
    }
    different == 0
}

/// The token file as last read, and tokens that were right, by their SHA-256: a hash is not computed for each request.
struct Read {
    token: Token,
    known: Mutex<HashMap<[u8; 32], String>>,
}

/// Who may write over TCP; without a token file nobody.
#[derive(Default)]
pub struct Tokens(RwLock<Option<Arc<Read>>>);

/// What a token is worth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Worth {
    /// There is no token file.
    ReadOnly,
    /// It is nobody's.
    Wrong,
    /// Too many tokens are being looked at.
    Busy,
    /// It is this person's.
    Of(String),
}

impl Tokens {
    /// As read.
    #[must_use]
    pub fn new(token: Option<Token>) -> Self {
        let tokens = Self::default();
        tokens.set(token);
        tokens
    }

    /// Puts what was read anew in force.
    pub fn set(&self, token: Option<Token>) {
        let read = token.map(|token| {
            Arc::new(Read {
                token,
                known: Mutex::default(),
            })
        });
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = read;
    }

    /// Looks at a token.
    pub async fn worth(&self, given: &str) -> Worth {
        use sha2::Digest as _;
        let read = self
            .0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let Some(read) = read else {
            return Worth::ReadOnly;
        };
        if matches!(read.token, Token::Clear(_)) {
            return read.token.name(given).map_or(Worth::Wrong, Worth::Of);
        }
        let digest: [u8; 32] = sha2::Sha256::digest(given.as_bytes()).into();
        let known = |read: &Read| {
            let known = read.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.get(&digest).cloned()
        };
        if let Some(name) = known(&read) {
            return Worth::Of(name);
        }
        let Ok(Ok(_turn)) = tokio::time::timeout(TURN, HASHING.acquire()).await else {
            return Worth::Busy;
        };
        let given = given.to_owned();
        let hashing = tokio::task::spawn_blocking(move || {
            let name = read.token.name(&given)?;
            let mut known = read.known.lock().unwrap_or_else(PoisonError::into_inner);
            if known.len() >= MOST_KNOWN {
                known.clear();
            }
            known.insert(digest, name.clone());
            Some(name)
        });
        match hashing.await {
            Ok(Some(name)) => Worth::Of(name),
            _ => Worth::Wrong,
        }
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
                // A browser sends this header only when a script of this very page puts it there, and no cookie exists:
                // a page of another site has nothing to ride on.
                match shared.tokens.worth(given.unwrap_or_default()).await {
                    Worth::Of(name) => Ok(Self {
                        by: format!("user:{name}"),
                    }),
                    Worth::ReadOnly => Err(ApiError::forbidden(
                        "this door is read-only: set admin.token_file, or use the admin socket",
                    )),
                    Worth::Wrong => Err(ApiError::unauthorized(
                        "send the token as `Authorization: Bearer …`",
                    )),
                    Worth::Busy => Err(ApiError::timeout(
                        "too many tokens are being looked at; try again",
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
        for (given, fine) in [
            ("0123456789abcdef", true),
            ("0123456789abcdeF", false),
            ("0123", false),
            ("", false),
        ] {
            assert_eq!(same("0123456789abcdef", given), fine, "{given}");
        }
    }

    async fn check(text: &str, given: &str, expected: Result<Worth, &str>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, text).unwrap();
        match (Token::read(&path), expected) {
            (Ok(token), Ok(expected)) => {
                let tokens = Tokens::new(Some(token));
                // The second time without a hash.
                for _ in 0..2 {
                    assert_eq!(tokens.worth(given).await, expected, "{text} {given}");
                }
                tokens.set(None);
                assert_eq!(tokens.worth(given).await, Worth::ReadOnly);
            }
            (Err(error), Err(part)) => {
                let said = crate::telemetry::chain(&error);
                assert!(said.contains(part), "{said}");
            }
            (read, expected) => panic!("{text}: {:?} {expected:?}", read.map(drop)),
        }
    }

    #[tokio::test]
    async fn a_token_file_holds_one_token_or_names_with_hashes() {
        let folder = tempfile::tempdir().unwrap();
        let made = folder.path().join("made");
        auth::set_password(&made, "anna", "first secret").unwrap();
        auth::set_password(&made, "bert", "second secret").unwrap();
        let hashed = std::fs::read_to_string(&made).unwrap();
        let of = |name: &str| Ok(Worth::Of(name.to_owned()));
        check("0123456789abcdef\n", "0123456789abcdef", of("token")).await;
        check("0123456789abcdef\n", "0123456789abcde", Ok(Worth::Wrong)).await;
        check("short\n", "short", Err("shorter than 16")).await;
        check(&hashed, "first secret", of("anna")).await;
        check(&hashed, "second secret", of("bert")).await;
        check(&hashed, "anna", Ok(Worth::Wrong)).await;
        check(&hashed, "", Ok(Worth::Wrong)).await;
        check(
            &format!("{hashed}carl:plain\n"),
            "plain",
            Err("token:3: not `user:hash`"),
        )
        .await;
        let many: String = (0..17)
            .map(|i| {
                format!(
                    "n{i}{}",
                    hashed.lines().next().unwrap().trim_start_matches("anna")
                ) + "\n"
            })
            .collect();
        check(&many, "x", Err("at most 16 names")).await;
    }
}
