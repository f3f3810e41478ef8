//! A lane and its connection: making it, losing it, and what it says.

use futures_util::FutureExt as _;
use tokio::sync::watch;

use super::{ACK_BURST, Asked, LaneTask};
use crate::bridge::ask::AskError;
use crate::bridge::connect::ConnectError;
use crate::bridge::publisher::{Incoming, Publisher as _, Uplink};
use crate::buffer::record::{Class, Lane};

impl<U: Uplink> LaneTask<U> {
    pub(super) fn connect(&mut self) {
        let (uplink, lane, attempt) = (self.uplink.clone(), self.lane, self.attempt);
        self.attempt = self.attempt.wrapping_add(1);
        self.connecting = Some(async move { uplink.connect(lane, attempt).await }.boxed());
    }

    pub(super) fn take_link(&mut self, result: Result<U::Link, ConnectError>) {
        let now = self.now();
        match result {
            Ok(link) => {
                self.meter.connects += 1;
                self.max_message = link.max_payload();
                let _ = self.client().send_replace(link.client());
                self.link = Some(link);
                self.drain.handle_connected(now);
            }
            Err(error) => {
                let detail = error.to_string();
                tracing::debug!(lane = ?self.lane, %error, "no connection");
                self.drain
                    .handle_connect_failed(now, error.state(), &detail);
            }
        }
    }

    pub(super) fn client(&self) -> &watch::Sender<Option<async_nats::Client>> {
        let [data, alarms] = &self.shared.clients;
        match self.lane {
            Lane::Data => data,
            Lane::Alarms => alarms,
        }
    }

    /// The connection by which this lane knows that the way is open: an alarm must not wait out a time that was long
    /// while nobody could be reached. Data does, so that many gateways spread.
    pub(super) fn others_connection(&self) -> Option<watch::Receiver<Option<async_nats::Client>>> {
        let [data, _] = &self.shared.clients;
        (self.lane == Lane::Alarms).then(|| data.subscribe())
    }

    pub(super) fn drop_link(&mut self) {
        let _ = self.client().send_replace(None);
        self.link = None;
        self.asked.clear();
    }

    pub(super) fn lost(&mut self, detail: &str) {
        self.drop_link();
        let now = self.now();
        self.drain.handle_disconnected(now, detail);
    }

    pub(super) fn take_in(&mut self, first: Incoming) {
        let now = self.now();
        let mut incoming = Some(first);
        let mut taken = 0;
        while let Some(it) = incoming {
            match it {
                Incoming::Stored {
                    token,
                    stream_seq,
                    duplicate,
                } => self.drain.handle_stored(now, token, stream_seq, duplicate),
                Incoming::Refused { token, refusal } => {
                    tracing::debug!(lane = ?self.lane, ?refusal, "refused");
                    self.drain.handle_refused(now, token, &refusal);
                }
                Incoming::Denied { subject, detail } => {
                    let record = self.unacked.iter().chain(&self.doubted).find(|record| {
                        [record.class, Class::Gap]
                            .into_iter()
                            .any(|class| self.subject(class, &record.key) == subject)
                    });
                    if let Some(record) = record.map(|record| record.id) {
                        self.drain.handle_denied(now, record, &detail);
                    }
                }
                Incoming::Closed => {
                    self.lost("the connection broke");
                    return;
                }
            }
            taken += 1;
            incoming = match self.link.as_mut() {
                Some(link) if taken < ACK_BURST => link.try_next(),
                Some(_) | None => None,
            };
        }
    }

    pub(super) fn take_answer(&mut self, answer: Asked) {
        let now = self.now();
        match answer {
            Asked::Seen(Ok(seen)) => {
                if let Some(link) = &self.link {
                    let server = link.max_payload();
                    self.max_message = seen.max_message.map_or(server, |most| most.min(server));
                }
                self.replicas = seen.replicas;
                self.drain
                    .handle_appended(self.shared.source.head(self.lane));
                self.drain.handle_inspected(now, seen.inspection);
            }
            Asked::LookedUp(Ok(stored)) => self.drain.handle_looked_up(now, stored),
            Asked::Seen(Err(AskError::Refused(refusal)))
            | Asked::LookedUp(Err(AskError::Refused(refusal))) => {
                self.drain.handle_inspect_failed(now, &refusal);
            }
            Asked::Seen(Err(AskError::Lost(detail)))
            | Asked::LookedUp(Err(AskError::Lost(detail))) => self.lost(&detail),
        }
    }
}
