//! Requests from the cloud: writes to devices and acknowledgements of alarms, over core NATS.
//!
//! They come on the alarms lane's connection, so that data never delays them. Who may ask is the NATS
//! account's matter (subject permissions), what may be written also the allow-list's here. A repeated request
//! with the same id gets the first one's answer and is no second write. The subjects belong to no stream of
//! this gateway: nothing loops back.

use std::collections::{HashMap, VecDeque};

use async_nats::{Client, Message};
use bytes::Bytes;
use futures_util::future::{BoxFuture, Shared};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::config::Writes;
use super::filter::fits;
use super::hooks::{AckRequest, Answer, Hooks, WriteRequest};
use crate::pipeline::subject::{ROOT, parse_key};

/// Answers remembered for repeated requests; the oldest go first.
const REMEMBERED: usize = 1024;
/// Longest request taken.
const MAX_REQUEST: usize = 64 << 10;
/// Longest id taken.
const MAX_ID: usize = 200;

type Pending = Shared<BoxFuture<'static, Answer>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WriteBody {
    id: String,
    metrics: Vec<Written>,
    #[serde(default)]
    ttl_ms: Option<u64>,
    #[serde(default)]
    by: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: String,
    value: Value,
}

/// Why a request is not carried out.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    /// Not the JSON that is asked for.
    #[error("request: {0}")]
    Body(#[from] serde_json::Error),
    /// Too long to be one.
    #[error("request of {size} bytes, at most {MAX_REQUEST} are taken")]
    TooLarge {
        /// Its bytes.
        size: usize,
    },
    /// The last three tokens name no node or device.
    #[error("subject names no edge node or device")]
    Target,
    /// No id to tell repetitions by.
    #[error("id must have 1 to {MAX_ID} characters")]
    Id,
    /// Nothing to write.
    #[error("metrics is empty")]
    Empty,
    /// Not on the allow-list.
    #[error("{metric} may not be written from the cloud (bridge.writes.allow)")]
    NotAllowed {
        /// The metric.
        metric: String,
    },
    /// Too many at once.
    #[error("{0} requests wait already; try again")]
    Busy(usize),
}

/// Takes requests and remembers answers.
#[derive(Debug)]
pub(super) struct Requests {
    gateway: String,
    writes: Writes,
    hooks: Hooks,
    answers: HashMap<String, Pending>,
    order: VecDeque<String>,
    waiting: usize,
}

impl Requests {
    pub(super) fn new(gateway: String, writes: Writes, hooks: Hooks) -> Self {
        Self {
            gateway,
            writes,
            hooks,
            answers: HashMap::new(),
            order: VecDeque::new(),
            waiting: 0,
        }
    }

    /// The answer that a request will have.
    fn take(&mut self, subject: &str, payload: &[u8]) -> Result<Pending, RequestError> {
        let size = payload.len();
        if size > MAX_REQUEST {
            return Err(RequestError::TooLarge { size });
        }
        if self.waiting >= usize::from(self.writes.max_pending) {
            return Err(RequestError::Busy(self.waiting));
        }
        if subject == format!("{ROOT}.{}.ack", self.gateway) {
            let request: AckRequest = serde_json::from_slice(payload)?;
            // Acknowledging twice changes nothing: no need to remember.
            return Ok((self.hooks.ack)(request).shared());
        }
        let body: WriteBody = serde_json::from_slice(payload)?;
        let target = parse_key(subject).map_err(|_| RequestError::Target)?;
        if target.group.is_none() || target.node.is_none() {
            return Err(RequestError::Target);
        }
        if body.id.is_empty() || body.id.len() > MAX_ID {
            return Err(RequestError::Id);
        }
        if body.metrics.is_empty() {
            return Err(RequestError::Empty);
        }
        if let Some(answer) = self.answers.get(&body.id) {
            return Ok(answer.clone());
        }
        let allowed = |name: &str| {
            self.writes.allow.is_empty()
                || self.writes.allow.iter().any(|it| fits(it, &target, name))
        };
        if let Some(metric) = body.metrics.iter().find(|metric| !allowed(&metric.name)) {
            return Err(RequestError::NotAllowed {
                metric: metric.name.clone(),
            });
        }
        let id = body.id.clone();
        let answer = (self.hooks.write)(WriteRequest {
            id: body.id,
            target,
            metrics: body
                .metrics
                .into_iter()
                .map(|it| (it.name, it.value))
                .collect(),
            ttl_ms: body.ttl_ms,
            by: body.by,
        })
        .shared();
        if self.order.len() >= REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.answers.remove(&oldest);
        }
        self.order.push_back(id.clone());
        self.answers.insert(id, answer.clone());
        Ok(answer)
    }

    /// Serves one connection until it is gone.
    async fn serve(&mut self, client: Client) {
        let subjects = [
            format!("{ROOT}.{}.write.*.*.*", self.gateway),
            format!("{ROOT}.{}.ack", self.gateway),
        ];
        let [writes, acks] = subjects.map(|subject| client.subscribe(subject));
        let (Ok(writes), Ok(acks)) = (writes.await, acks.await) else {
            return;
        };
        let mut requests = futures_util::stream::select(writes, acks);
        let mut answers = FuturesUnordered::new();
        loop {
            tokio::select! {
                request = requests.next() => {
                    let Some(Message { subject, reply, payload, .. }) = request else {
                        return;
                    };
                    match self.take(&subject, &payload) {
                        Ok(pending) => answers.push(async move { (reply, pending.await) }),
                        Err(error) => {
                            tracing::warn!(subject = %subject, %error, "request from the cloud refused");
                            answer(&client, reply, Err(error.to_string())).await;
                        }
                    }
                }
                Some((reply, answered)) = answers.next(), if !answers.is_empty() => {
                    answer(&client, reply, answered).await;
                }
            }
            self.waiting = answers.len();
        }
    }
}

async fn answer(client: &Client, reply: Option<async_nats::Subject>, answer: Answer) {
    let Some(reply) = reply else {
        return;
    };
    let body = match answer {
        Ok(body) => body,
        Err(reason) => json!({ "error": reason }),
    };
    // The one who asked sees no answer when the connection breaks, and asks again with the same id.
    let _ = client.publish(reply, Bytes::from(body.to_string())).await;
}

/// Serves every connection of the alarms lane until the bridge ends.
pub(super) async fn run(mut requests: Requests, mut client: watch::Receiver<Option<Client>>) {
    if !requests.writes.enabled {
        return;
    }
    loop {
        let current = client.borrow_and_update().clone();
        tokio::select! {
            changed = client.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = serve(&mut requests, current) => {}
        }
    }
}

async fn serve(requests: &mut Requests, client: Option<Client>) {
    if let Some(client) = client {
        requests.serve(client).await;
    }
    // Nothing to serve until there is another connection.
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::bridge::config::Match;

    fn requests(writes: Writes) -> (Requests, Arc<AtomicUsize>) {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = count.clone();
        let hooks = Hooks {
            write: Arc::new(move |request| {
                counted.fetch_add(1, Ordering::Relaxed);
                Box::pin(async move { Ok(json!({ "id": request.id, "status": "confirmed" })) })
            }),
            ..Hooks::default()
        };
        (Requests::new("site-a".to_owned(), writes, hooks), count)
    }

    const SUBJECT: &str = "sparkgate.site-a.write.plantA.gw=2E07.press-1";

    fn check(subject: &str, body: &str, wanted: &str) {
        let (mut requests, _) = requests(Writes::default());
        let error = requests
            .take(subject, body.as_bytes())
            .unwrap_err()
            .to_string();
        assert!(error.contains(wanted), "{error}");
    }

    #[tokio::test]
    async fn a_repeated_request_is_not_a_second_write() {
        let (mut requests, count) = requests(Writes::default());
        let body =
            br#"{"id":"r1","metrics":[{"name":"Setpoint","value":5}],"ttl_ms":2000,"by":"ops"}"#;
        let first = requests.take(SUBJECT, body).unwrap().await;
        let second = requests.take(SUBJECT, body).unwrap().await;
        assert_eq!(first, second);
        assert_eq!(first.unwrap()["status"], "confirmed");
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn what_is_wrong_is_said() {
        check(SUBJECT, "{}", "missing field");
        check(SUBJECT, r#"{"id":"","metrics":[]}"#, "id must have");
        check(SUBJECT, r#"{"id":"a","metrics":[]}"#, "metrics is empty");
        check(
            "sparkgate.site-a.write.plantA._._",
            r#"{"id":"a","metrics":[{"name":"x","value":1}]}"#,
            "no edge node",
        );
        check(SUBJECT, &"x".repeat(MAX_REQUEST + 1), "at most");
    }

    #[test]
    fn the_allow_list_and_the_bound_hold() {
        let writes = Writes {
            allow: vec![Match {
                metric: Some("Setpoint*".to_owned()),
                ..Match::default()
            }],
            ..Writes::default()
        };
        let (mut requests, count) = requests(writes);
        let body =
            |name: &str| format!(r#"{{"id":"{name}","metrics":[{{"name":"{name}","value":1}}]}}"#);
        assert!(
            requests
                .take(SUBJECT, body("Setpoint/1").as_bytes())
                .is_ok()
        );
        assert!(matches!(
            requests.take(SUBJECT, body("Mode").as_bytes()),
            Err(RequestError::NotAllowed { .. })
        ));
        assert_eq!(count.load(Ordering::Relaxed), 1);
        requests.waiting = 256;
        assert!(matches!(
            requests.take(SUBJECT, body("Setpoint/2").as_bytes()),
            Err(RequestError::Busy(256))
        ));
        for i in 0..2 * REMEMBERED {
            requests.waiting = 0;
            let _ = requests.take(SUBJECT, body(&format!("Setpoint/{i}")).as_bytes());
        }
        assert_eq!(requests.answers.len(), REMEMBERED);
    }
}
