//! One connection of one lane: messages out, acknowledgements in, and the few questions to JetStream.
//!
//! Acknowledgements come to one inbox of the connection; the last token of the reply subject is the message's
//! number. So a publish costs no task, no timer and no entry in a table of the client, and an acknowledgement
//! one parse.

use std::borrow::Cow;
use std::future::Future;
use std::hash::{BuildHasher as _, Hasher as _};
use std::time::Duration;

use async_nats::{Client, HeaderMap, HeaderName, HeaderValue, StatusCode, Subject, Subscriber};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::classify::Refusal;
use super::config::Config;
use super::connect::{ConnectError, Report, connect};
use super::drain::resume::{Inspection, Mark, Stored};
use super::stream::Declared;
use crate::buffer::record::Lane;

/// How long a question to the JetStream API may take.
const API_TIMEOUT: Duration = Duration::from_secs(5);

/// A message ready to leave.
#[derive(Debug, Clone, PartialEq)]
pub struct Outgoing {
    /// Comes back with the acknowledgement; `None`: none is wanted.
    pub token: Option<u64>,
    /// Subject.
    pub subject: String,
    /// Headers.
    pub headers: Vec<(Cow<'static, str>, String)>,
    /// Body.
    pub payload: Bytes,
}

/// What a connection says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incoming {
    /// The stream took a message.
    Stored {
        /// Its token.
        token: u64,
        /// Where it lies.
        stream_seq: u64,
        /// The server had its id already.
        duplicate: bool,
    },
    /// The stream or the server refused a message.
    Refused {
        /// Its token.
        token: u64,
        /// How.
        refusal: Refusal,
    },
    /// The server does not permit to publish on this subject.
    Denied {
        /// The subject.
        subject: String,
        /// The server's words.
        detail: String,
    },
    /// The connection is gone.
    Closed,
}

/// The stream's end, and what its limits mean for messages.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// For the drain.
    pub inspection: Inspection,
    /// Largest message that it takes, headers included; `None`: the server's limit alone.
    pub max_message: Option<usize>,
    /// Its replicas.
    pub replicas: u64,
    /// Its configuration, as the server says it.
    pub config: Value,
}

/// Why a question was not answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AskError {
    /// JetStream said no.
    Refused(Refusal),
    /// No answer in time, or the connection is gone.
    Lost(String),
}

/// Makes connections. The seam at which tests put something else in the place of NATS.
pub trait Uplink: Send + Sync + 'static {
    /// A connection.
    type Link: Publisher;

    /// Connects for `lane`; `attempt` counts up, so that each one may try another server.
    fn connect(
        &self,
        lane: Lane,
        attempt: u64,
    ) -> impl Future<Output = Result<Self::Link, ConnectError>> + Send;
}

/// A connection of one lane. Dropping it drops whatever it still holds.
pub trait Publisher: Send + 'static {
    /// Largest message, headers included.
    fn max_payload(&self) -> usize;

    /// Hands a message over. It is on its way, or lost with the connection.
    fn publish(&mut self, message: Outgoing) -> impl Future<Output = Result<(), Closed>> + Send;

    /// The next thing that the connection says.
    fn next(&mut self) -> impl Future<Output = Incoming> + Send;

    /// The next thing that it has said already.
    fn try_next(&mut self) -> Option<Incoming>;

    /// Where the stream ends; creates or changes it first where that is wanted.
    fn inspect(&self) -> BoxFuture<'static, Result<Seen, AskError>>;

    /// Headers of one message of the stream.
    fn look_up(&self, stream_seq: u64) -> BoxFuture<'static, Result<Stored, AskError>>;

    /// The client, for what goes beside the stream (buckets, requests); `None` in tests.
    fn client(&self) -> Option<Client>;
}

/// The connection is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the connection is gone")]
pub struct Closed;

/// Connections to real servers.
#[derive(Debug, Clone)]
pub struct Nats {
    config: Config,
    gateway: String,
    epoch: String,
}

impl Nats {
    /// Servers by the configuration, for the gateway's journal of this epoch.
    #[must_use]
    pub fn new(config: Config, gateway: &str, epoch: &str) -> Self {
        Self {
            config,
            gateway: gateway.to_owned(),
            epoch: epoch.to_owned(),
        }
    }
}

impl Uplink for Nats {
    type Link = NatsLink;

    async fn connect(&self, lane: Lane, attempt: u64) -> Result<NatsLink, ConnectError> {
        let count = self.config.urls.len().max(1) as u64;
        let index = usize::try_from(attempt % count).unwrap_or_default();
        let url = self
            .config
            .urls
            .get(index)
            .ok_or_else(|| ConnectError::Address("bridge.urls is empty".to_owned()))?;
        let declared = Declared::of(&self.config, &self.gateway, lane);
        let name = format!("sparkgate {}", declared.name);
        let (client, reports) = connect(&self.config, url, &name).await?;
        let inbox = client.new_inbox();
        let failed = |error: String| ConnectError::Address(format!("{url}: {error}"));
        let acks = client
            .subscribe(format!("{inbox}.*"))
            .await
            .map_err(|error| failed(error.to_string()))?;
        Ok(NatsLink {
            client,
            reports,
            acks,
            inbox,
            declared,
            manage: self.config.manage,
            gateway: self.gateway.clone(),
            prefix: format!("{}-{}-", self.gateway, self.epoch),
        })
    }
}

/// A connection to a real server.
#[derive(Debug)]
pub struct NatsLink {
    client: Client,
    reports: mpsc::Receiver<Report>,
    acks: Subscriber,
    inbox: String,
    declared: Declared,
    manage: bool,
    gateway: String,
    prefix: String,
}

impl Publisher for NatsLink {
    fn max_payload(&self) -> usize {
        self.client.max_payload()
    }

    async fn publish(&mut self, message: Outgoing) -> Result<(), Closed> {
        let subject = Subject::from(message.subject);
        let mut headers = HeaderMap::new();
        for (name, value) in message.headers {
            let name = match name {
                Cow::Borrowed(name) => HeaderName::from_static(name),
                Cow::Owned(name) => match name.parse() {
                    Ok(name) => name,
                    Err(_) => continue,
                },
            };
            // Values are percent-encoded where they were made; one that is not is left out.
            if let Ok(value) = value.parse::<HeaderValue>() {
                headers.insert(name, value);
            }
        }
        let sent = match message.token {
            Some(token) => {
                let reply = Subject::from(format!("{}.{token:x}", self.inbox));
                self.client
                    .publish_with_reply_and_headers(subject, reply, headers, message.payload)
                    .await
            }
            None => {
                self.client
                    .publish_with_headers(subject, headers, message.payload)
                    .await
            }
        };
        sent.map_err(|_| Closed)
    }

    async fn next(&mut self) -> Incoming {
        loop {
            tokio::select! {
                biased;
                report = self.reports.recv() => match report {
                    None | Some(Report::Closed) => return Incoming::Closed,
                    Some(Report::Server(detail)) => if let Some(incoming) = denial(&detail) {
                        return incoming;
                    },
                },
                message = self.acks.next() => match message {
                    Some(message) => if let Some(incoming) = acknowledgement(&message) {
                        return incoming;
                    },
                    None => return Incoming::Closed,
                },
            }
        }
    }

    fn try_next(&mut self) -> Option<Incoming> {
        loop {
            match self.acks.next().now_or_never()? {
                Some(message) => {
                    if let Some(incoming) = acknowledgement(&message) {
                        return Some(incoming);
                    }
                }
                None => return Some(Incoming::Closed),
            }
        }
    }

    fn inspect(&self) -> BoxFuture<'static, Result<Seen, AskError>> {
        let ask = Ask(self.client.clone());
        let (declared, manage) = (self.declared.clone(), self.manage);
        let (gateway, prefix) = (self.gateway.clone(), self.prefix.clone());
        async move { inspect(&ask, &declared, manage, &gateway, &prefix).await }.boxed()
    }

    fn look_up(&self, stream_seq: u64) -> BoxFuture<'static, Result<Stored, AskError>> {
        let ask = Ask(self.client.clone());
        let name = self.declared.name.clone();
        let (gateway, prefix) = (self.gateway.clone(), self.prefix.clone());
        async move { ask.stored(&name, stream_seq, &gateway, &prefix).await }.boxed()
    }

    fn client(&self) -> Option<Client> {
        Some(self.client.clone())
    }
}

/// Questions to the JetStream API.
#[derive(Debug, Clone)]
pub(super) struct Ask(pub(super) Client);

impl Ask {
    /// Asks `$JS.API.<what>`; an `error` in the answer is a refusal.
    pub(super) async fn api(&self, what: &str, request: &Value) -> Result<Value, AskError> {
        let body = if request.is_null() {
            Bytes::new()
        } else {
            Bytes::from(request.to_string())
        };
        let asked = self.0.request(format!("$JS.API.{what}"), body);
        let answer = match tokio::time::timeout(API_TIMEOUT, asked).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) if error.kind() == async_nats::RequestErrorKind::NoResponders => {
                return Err(AskError::Refused(Refusal {
                    code: 503,
                    err_code: 10076,
                    description: "no JetStream here".to_owned(),
                }));
            }
            Ok(Err(error)) => return Err(AskError::Lost(error.to_string())),
            Err(_) => return Err(AskError::Lost("no answer from JetStream".to_owned())),
        };
        let answer: Value = serde_json::from_slice(&answer.payload)
            .map_err(|error| AskError::Lost(format!("unreadable answer: {error}")))?;
        match answer.get("error") {
            Some(error) => Err(AskError::Refused(refusal(error))),
            None => Ok(answer),
        }
    }

    /// One message of a stream by its headers, asked of the stream's leader.
    async fn stored(
        &self,
        stream: &str,
        stream_seq: u64,
        gateway: &str,
        prefix: &str,
    ) -> Result<Stored, AskError> {
        let what = format!("STREAM.MSG.GET.{stream}");
        match self.api(&what, &json!({ "seq": stream_seq })).await {
            Ok(answer) => Ok(whose(&answer, gateway, prefix)),
            // "no message found"
            Err(AskError::Refused(refusal)) if refusal.err_code == 10037 => Ok(Stored::Missing),
            Err(error) => Err(error),
        }
    }
}

/// The server's word on a stream, which is first created or changed where that is wanted.
pub(super) async fn manage(
    ask: &Ask,
    declared: &Declared,
    manage: bool,
) -> Result<Value, AskError> {
    let name = &declared.name;
    match ask.api(&format!("STREAM.INFO.{name}"), &Value::Null).await {
        Ok(info) => match info
            .get("config")
            .and_then(|config| declared.update(config))
        {
            Some(update) if manage => {
                tracing::info!(stream = name, "stream is changed to what is declared");
                ask.api(&format!("STREAM.UPDATE.{name}"), &update).await
            }
            Some(_) | None => Ok(info),
        },
        Err(AskError::Refused(refusal)) if refusal.err_code == 10059 && manage => {
            tracing::info!(stream = name, "stream is created");
            ask.api(&format!("STREAM.CREATE.{name}"), &declared.create())
                .await
        }
        Err(error) => Err(error),
    }
}

async fn inspect(
    ask: &Ask,
    declared: &Declared,
    manage: bool,
    gateway: &str,
    prefix: &str,
) -> Result<Seen, AskError> {
    let name = &declared.name;
    let info = self::manage(ask, declared, manage).await?;
    let config = info.get("config").cloned().unwrap_or(Value::Null);
    if declared.atomic && config.get("allow_atomic") != Some(&Value::Bool(true)) {
        return Err(AskError::Refused(Refusal {
            code: 400,
            err_code: 10060,
            description:
                "durability = \"strict\" needs a stream with atomic batches (nats-server 2.12)"
                    .to_owned(),
        }));
    }
    let number = |pointer: &str| info.pointer(pointer).and_then(Value::as_u64);
    let last_seq = number("/state/last_seq").unwrap_or(0);
    let tail = if last_seq == 0 {
        Stored::Missing
    } else {
        ask.stored(name, last_seq, gateway, prefix).await?
    };
    Ok(Seen {
        inspection: Inspection {
            created: identity(
                info.get("created")
                    .and_then(Value::as_str)
                    .unwrap_or_default(),
            ),
            last_seq,
            tail,
        },
        max_message: config
            .get("max_msg_size")
            .and_then(Value::as_u64)
            .and_then(|size| usize::try_from(size).ok())
            .filter(|size| *size > 0),
        replicas: number("/config/num_replicas").unwrap_or(1),
        config,
    })
}

/// A stream's time of creation as a number that is the same in every run.
fn identity(created: &str) -> u64 {
    let mut hasher = std::hash::BuildHasherDefault::<Fnv>::default().build_hasher();
    hasher.write(created.as_bytes());
    hasher.finish()
}

/// FNV-1a: stable over versions, unlike the standard library's hasher.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl std::hash::Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// Whose a message is, by the id that it carries.
fn whose(answer: &Value, gateway: &str, prefix: &str) -> Stored {
    use base64::Engine as _;
    let headers = answer
        .pointer("/message/hdrs")
        .and_then(Value::as_str)
        .and_then(|text| base64::engine::general_purpose::STANDARD.decode(text).ok())
        .unwrap_or_default();
    let headers = String::from_utf8_lossy(&headers);
    let header = |name: &str| {
        headers.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key == name).then(|| value.trim())
        })
    };
    let Some(id) = header("ce-id") else {
        return Stored::Foreign;
    };
    if !id.starts_with(prefix) {
        let ours = id
            .strip_prefix(gateway)
            .is_some_and(|rest| rest.starts_with('-'));
        return if ours {
            Stored::OtherEpoch
        } else {
            Stored::Foreign
        };
    }
    let number = |name: &str| header(name).and_then(|text| text.parse().ok());
    let (part, parts) = header("Sparkgate-Part")
        .and_then(|text| text.split_once('/'))
        .and_then(|(part, parts)| Some((part.parse().ok()?, parts.parse().ok()?)))
        .unwrap_or((1, 1));
    match (number("Sparkgate-Record"), number("Sparkgate-Prev")) {
        (Some(record), Some(prev)) => Stored::Ours(Mark {
            record,
            prev,
            part,
            parts,
        }),
        _ => Stored::Foreign,
    }
}

#[derive(Deserialize)]
struct Ack<'a> {
    #[serde(default)]
    seq: u64,
    #[serde(default)]
    duplicate: bool,
    #[serde(default, borrow)]
    error: Option<AckError<'a>>,
}

#[derive(Deserialize)]
struct AckError<'a> {
    #[serde(default)]
    code: u16,
    #[serde(default)]
    err_code: u32,
    #[serde(default, borrow)]
    description: Cow<'a, str>,
}

fn acknowledgement(message: &async_nats::Message) -> Option<Incoming> {
    let token = message.subject.rsplit('.').next()?;
    let token = u64::from_str_radix(token, 16).ok()?;
    if message.status == Some(StatusCode::NO_RESPONDERS) {
        let refusal = Refusal::no_responders();
        return Some(Incoming::Refused { token, refusal });
    }
    let ack: Ack<'_> = match serde_json::from_slice(&message.payload) {
        Ok(ack) => ack,
        // The first message of an atomic batch is answered with an empty body.
        Err(_) if message.payload.is_empty() => return None,
        Err(error) => {
            tracing::warn!(%error, "unreadable acknowledgement");
            return None;
        }
    };
    Some(match ack.error {
        None => Incoming::Stored {
            token,
            stream_seq: ack.seq,
            duplicate: ack.duplicate,
        },
        Some(error) => Incoming::Refused {
            token,
            refusal: Refusal {
                code: error.code,
                err_code: error.err_code,
                description: error.description.into_owned(),
            },
        },
    })
}

fn refusal(error: &Value) -> Refusal {
    let number = |name: &str| error.get(name).and_then(Value::as_u64).unwrap_or_default();
    Refusal {
        code: u16::try_from(number("code")).unwrap_or_default(),
        err_code: u32::try_from(number("err_code")).unwrap_or_default(),
        description: error
            .get("description")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned(),
    }
}

/// `Permissions Violation for Publish to "subject"`.
fn denial(detail: &str) -> Option<Incoming> {
    let (_, rest) = detail.split_once("Permissions Violation for Publish to \"")?;
    let (subject, _) = rest.split_once('"')?;
    Some(Incoming::Denied {
        subject: subject.to_owned(),
        detail: detail.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denials_name_their_subject() {
        let detail = "nats: Permissions Violation for Publish to \"sparkgate.a.data.g.n._\"";
        assert!(matches!(
            denial(detail),
            Some(Incoming::Denied { subject, .. }) if subject == "sparkgate.a.data.g.n._"
        ));
        assert_eq!(denial("nats: Maximum Connections Exceeded"), None);
    }

    #[test]
    fn a_stored_message_says_whose_it_is() {
        use base64::Engine as _;
        let check = |headers: &str, stored: Stored| {
            let text = base64::engine::general_purpose::STANDARD.encode(headers);
            let answer = json!({ "message": { "seq": 1, "hdrs": text } });
            assert_eq!(whose(&answer, "site-a", "site-a-e1-"), stored, "{headers}");
        };
        check(
            "NATS/1.0\r\nce-id: site-a-e1-42.2\r\nSparkgate-Record: 42\r\nSparkgate-Prev: 40\r\nSparkgate-Part: 2/3\r\n\r\n",
            Stored::Ours(Mark {
                record: 42,
                prev: 40,
                part: 2,
                parts: 3,
            }),
        );
        check(
            "NATS/1.0\r\nce-id: site-a-e0-42\r\n\r\n",
            Stored::OtherEpoch,
        );
        check("NATS/1.0\r\nce-id: site-ab-e0-42\r\n\r\n", Stored::Foreign);
        check("NATS/1.0\r\nNats-Msg-Id: x\r\n\r\n", Stored::Foreign);
        check("", Stored::Foreign);
    }

    #[test]
    fn the_identity_of_a_stream_is_stable() {
        assert_eq!(identity(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(identity("a"), 0xaf63_dc4c_8601_ec8c);
    }
}
