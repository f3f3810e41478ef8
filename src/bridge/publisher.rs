//! One connection of one lane: messages out, acknowledgements in.
//!
//! Acknowledgements come to one inbox of the connection; the last token of the reply subject is the message's
//! number. So a publish costs no task, no timer and no entry in a table of the client, and an acknowledgement
//! one parse.

use std::borrow::Cow;
use std::future::Future;

use async_nats::{Client, HeaderMap, HeaderName, HeaderValue, StatusCode, Subject, Subscriber};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::mpsc;

use super::ask::{Ask, AskError, Writer};
use super::classify::Refusal;
use super::config::Config;
use super::connect::{ConnectError, Report, connect};
use super::drain::resume::{Inspection, Stored};
use super::stream::Declared;
use crate::buffer::record::Lane;

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
            writer: Writer::new(&self.gateway, &self.epoch),
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
    writer: Writer,
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
        let writer = self.writer.clone();
        async move { ask.inspect(&declared, manage, &writer).await }.boxed()
    }

    fn look_up(&self, stream_seq: u64) -> BoxFuture<'static, Result<Stored, AskError>> {
        let ask = Ask(self.client.clone());
        let name = self.declared.name.clone();
        let writer = self.writer.clone();
        async move { ask.stored(&name, stream_seq, &writer).await }.boxed()
    }

    fn client(&self) -> Option<Client> {
        Some(self.client.clone())
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
}
