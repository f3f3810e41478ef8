//! From rumqttd's internal link to the pipeline.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bytes::Bytes;
use rumqttd::local::LinkRx;
use rumqttd::{Forward, Notification};
use sparkplug::topic::{DeviceVerb, NodeVerb, TopicRef};
use tokio::sync::{mpsc, watch};

use super::Shared;
use crate::broker::engine::Failure;
use crate::broker::topic::{TopicCheck, matches};
use crate::broker::{Delivery, Inbound};

/// Own publishes whose echo has not come; older ones are forgotten, so that their echo would pass for a client's.
const ECHOES: usize = 16_384;

/// Own publishes on their way through the router: its link hands them back, and they must not pass for a client's.
#[derive(Debug, Default)]
pub(super) struct Echoes(VecDeque<(Arc<str>, Bytes)>);

impl Echoes {
    pub(super) fn expect(&mut self, topic: Arc<str>, payload: Bytes) {
        if self.0.len() >= ECHOES {
            self.0.pop_front();
        }
        self.0.push_back((topic, payload));
    }

    /// Whether a message is our own. Those before it in order have been skipped by the log.
    fn take(&mut self, topic: &str, payload: &Bytes) -> bool {
        let found = self
            .0
            .iter()
            .position(|(t, p)| **t == *topic && p == payload);
        if let Some(at) = found {
            self.0.drain(..=at);
        }
        found.is_some()
    }
}

/// Where the gateway itself publishes: NCMD, DCMD and STATE.
pub(super) fn is_ours(topic: &str) -> bool {
    match TopicRef::parse(topic) {
        Ok(TopicRef::State { .. }) => true,
        Ok(TopicRef::Node { verb, .. }) => verb == NodeVerb::Command,
        Ok(TopicRef::Device { verb, .. }) => verb == DeviceVerb::Command,
        Err(_) => false,
    }
}

/// Takes the taps' messages from rumqttd.
pub(super) struct Drain {
    pub(super) rx: LinkRx,
    pub(super) shared: Arc<Shared>,
    pub(super) taps: Vec<String>,
    pub(super) topic_check: Option<TopicCheck>,
    pub(super) sink: mpsc::Sender<Delivery>,
    /// Offset of the next message in the log.
    pub(super) next: Option<u64>,
}

impl Drain {
    pub(super) async fn run(mut self, mut halted: watch::Receiver<bool>) {
        let shared = Arc::clone(&self.shared);
        tokio::select! {
            _ = halted.wait_for(|halted| *halted) => {}
            failure = self.pass_on() => shared.fail(failure),
        }
    }

    async fn pass_on(&mut self) -> Failure {
        loop {
            match self.rx.next().await {
                Ok(Some(Notification::Forward(forward))) => {
                    let Some(inbound) = self.inbound(forward) else {
                        continue;
                    };
                    if self.sink.send(Delivery::Publish(inbound)).await.is_err() {
                        return Failure::Pipeline;
                    }
                }
                // The router waits for this when it has handed over a burst.
                Ok(Some(Notification::Unschedule)) => {
                    if self.rx.ready().is_err() {
                        return Failure::Core;
                    }
                }
                Ok(Some(Notification::Disconnect(..))) | Err(_) => return Failure::Core,
                Ok(_) => {}
            }
        }
    }

    /// What the pipeline gets of a message; `None` for our own, those that no tap wants, and those that are no use.
    fn inbound(&mut self, forward: Forward) -> Option<Inbound> {
        if let Some((_, offset)) = forward.cursor {
            let next = self.next.unwrap_or(0);
            add(&self.shared.skipped, offset.saturating_sub(next));
            self.next = Some(offset + 1);
        }
        let Some(topic) = std::str::from_utf8(&forward.publish.topic)
            .ok()
            .filter(|topic| !topic.is_empty() && !topic.contains(['+', '#', '\0']))
        else {
            add(&self.shared.topic_name, 1);
            return None;
        };
        if !self.taps.iter().any(|tap| matches(tap, topic)) {
            return None;
        }
        if is_ours(topic) && self.shared.echoes().take(topic, &forward.publish.payload) {
            return None;
        }
        if self.topic_check.as_ref().is_some_and(|check| !check(topic)) {
            add(&self.shared.subject_too_long, 1);
            return None;
        }
        add(&self.shared.publishes, 1);
        let traceparent = forward.properties.and_then(|properties| {
            let mut user = properties.user_properties.into_iter();
            let found = user.find(|(name, _)| name == "traceparent")?;
            Some(found.1.into_boxed_str())
        });
        Some(Inbound {
            topic: topic.into(),
            payload: forward.publish.payload.clone(),
            received_at: Instant::now(),
            client: None,
            qos: None,
            retain: forward.publish.retain,
            traceparent,
            will: false,
            ack: None,
        })
    }
}

fn add(count: &AtomicU64, n: u64) {
    count.fetch_add(n, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_commands_are_told_from_those_of_clients() {
        let mut echoes = Echoes::default();
        let payload = |n: u8| Bytes::from(vec![n]);
        echoes.expect("spBv1.0/g/NCMD/n".into(), payload(1));
        echoes.expect("spBv1.0/g/NCMD/n".into(), payload(2));
        echoes.expect("spBv1.0/g/NCMD/n".into(), payload(3));
        assert!(!echoes.take("spBv1.0/g/NCMD/n", &payload(9)));
        assert!(!echoes.take("spBv1.0/g/NCMD/m", &payload(1)));
        assert!(echoes.take("spBv1.0/g/NCMD/n", &payload(1)));
        // The second was lost on the way.
        assert!(echoes.take("spBv1.0/g/NCMD/n", &payload(3)));
        assert!(!echoes.take("spBv1.0/g/NCMD/n", &payload(2)));
    }

    #[test]
    fn only_commands_and_state_can_be_ours() {
        let check = |topic: &str, expected: bool| assert_eq!(is_ours(topic), expected, "{topic}");
        check("spBv1.0/g/NCMD/n", true);
        check("spBv1.0/g/DCMD/n/d", true);
        check("spBv1.0/STATE/site-a", true);
        check("spBv1.0/g/NDATA/n", false);
        // A group may be called so.
        check("spBv1.0/STATE/NDATA/n", false);
        check("spBv1.0/STATE/NCMD/n", true);
        check("factory/g/NCMD/n", false);
    }
}
