//! The few questions to the JetStream API: how a stream is, where it ends and whose message that is.

use std::hash::{BuildHasher as _, Hasher as _};
use std::time::Duration;

use async_nats::Client;
use bytes::Bytes;
use serde_json::{Value, json};

use super::classify::Refusal;
use super::drain::resume::{Inspection, Mark, Stored};
use super::publisher::Seen;
use super::stream::Declared;

/// How long a question to the JetStream API may take.
const API_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a question was not answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AskError {
    /// JetStream said no.
    Refused(Refusal),
    /// No answer in time, or the connection is gone.
    Lost(String),
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
    pub(super) async fn stored(
        &self,
        stream: &str,
        stream_seq: u64,
        writer: &Writer,
    ) -> Result<Stored, AskError> {
        let what = format!("STREAM.MSG.GET.{stream}");
        match self.api(&what, &json!({ "seq": stream_seq })).await {
            Ok(answer) => Ok(writer.whose(&answer)),
            // "no message found"
            Err(AskError::Refused(refusal)) if refusal.err_code == 10037 => Ok(Stored::Missing),
            Err(error) => Err(error),
        }
    }

    /// The server's word on a stream, which is first created or changed where that is wanted.
    pub(super) async fn manage(
        &self,
        declared: &Declared,
        manage: bool,
    ) -> Result<Value, AskError> {
        let name = &declared.name;
        match self.api(&format!("STREAM.INFO.{name}"), &Value::Null).await {
            Ok(info) => match info
                .get("config")
                .and_then(|config| declared.update(config))
            {
                Some(update) if manage => {
                    tracing::info!(stream = name, "stream is changed to what is declared");
                    self.api(&format!("STREAM.UPDATE.{name}"), &update).await
                }
                Some(_) | None => Ok(info),
            },
            Err(AskError::Refused(refusal)) if refusal.err_code == 10059 && manage => {
                tracing::info!(stream = name, "stream is created");
                self.api(&format!("STREAM.CREATE.{name}"), &declared.create())
                    .await
            }
            Err(error) => Err(error),
        }
    }

    /// Where the stream ends; it is first created or changed where that is wanted.
    pub(super) async fn inspect(
        &self,
        declared: &Declared,
        manage: bool,
        writer: &Writer,
    ) -> Result<Seen, AskError> {
        let name = &declared.name;
        let info = self.manage(declared, manage).await?;
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
            self.stored(name, last_seq, writer).await?
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

/// Whose messages are ours.
#[derive(Debug, Clone)]
pub(super) struct Writer {
    gateway: String,
    /// What the ids of this epoch begin with.
    prefix: String,
}

impl Writer {
    pub(super) fn new(gateway: &str, epoch: &str) -> Self {
        Self {
            gateway: gateway.to_owned(),
            prefix: format!("{gateway}-{epoch}-"),
        }
    }

    /// Whose a message is, by the id that it carries.
    fn whose(&self, answer: &Value) -> Stored {
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
        if !id.starts_with(&self.prefix) {
            let ours = id
                .strip_prefix(self.gateway.as_str())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_message_says_whose_it_is() {
        use base64::Engine as _;
        let check = |headers: &str, stored: Stored| {
            let text = base64::engine::general_purpose::STANDARD.encode(headers);
            let answer = json!({ "message": { "seq": 1, "hdrs": text } });
            assert_eq!(
                Writer::new("site-a", "e1").whose(&answer),
                stored,
                "{headers}"
            );
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
