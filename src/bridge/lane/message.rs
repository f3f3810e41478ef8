//! A lane's messages: what the drain wants sent, with subject, headers and body.

use super::LaneTask;
use crate::bridge::drain::{Content, Publish};
use crate::bridge::publisher::{Outgoing, Publisher as _, Uplink};
use crate::buffer::record::{Class, Key, RecordId};
use crate::pipeline::encode::{Headers, Place, gap_body, message_id};
use crate::pipeline::subject;

const NO_KEY: Key = Key::gateway();

impl<U: Uplink> LaneTask<U> {
    pub(super) fn subject(&self, class: Class, key: &Key) -> String {
        subject::subject(&self.shared.gateway, class, key)
    }

    pub(super) async fn publish(&mut self, publish: Publish) {
        let message = self.message(&publish);
        let Some(link) = self.link.as_mut() else {
            return;
        };
        if link.publish(message).await.is_err() {
            self.lost("the connection broke");
        }
    }

    pub(super) fn message(&mut self, publish: &Publish) -> Outgoing {
        let mark = publish.mark;
        let wanted = match publish.content {
            // The record behind the hole is still to come.
            Content::Hole { .. } => mark.record,
            Content::Part | Content::Unsendable => mark.record.saturating_sub(1),
        };
        while self.loaded.front().is_some_and(|it| it.record.id <= wanted) {
            self.loaded.pop_front();
        }
        let last = mark.part >= mark.parts;
        let gateway = &self.shared.gateway;
        let (subject, mut headers, payload) = match publish.content {
            Content::Part => {
                let prepared = self.loaded.front_mut().and_then(|it| {
                    let prepared = it.prepared.as_mut()?.as_mut().ok()?;
                    let part = usize::try_from(mark.part).ok()?.checked_sub(1)?;
                    let body = prepared.bodies.get(part)?.clone();
                    Some(if last {
                        (
                            std::mem::take(&mut prepared.subject),
                            std::mem::take(&mut prepared.headers),
                            body,
                        )
                    } else {
                        (prepared.subject.clone(), prepared.headers.clone(), body)
                    })
                });
                // The drain asks only for what was prepared; nothing else could fill the place.
                prepared.unwrap_or_default()
            }
            Content::Unsendable => {
                let cause = self.cause(mark.record);
                let (key, ms) = self.loaded.front().map_or((NO_KEY, 0), |it| {
                    (it.record.key.clone(), it.record.received_ms)
                });
                (
                    subject::subject(gateway, Class::Gap, &key),
                    Headers::of_gap(gateway, &key, ms),
                    gap_body(mark.record, mark.record, 1, Some((ms, ms)), &cause),
                )
            }
            Content::Hole { from } => {
                let ms = self.loaded.front().map_or(0, |it| it.record.received_ms);
                // Ids are shared by both lanes: this is the most that can be missing.
                let count = mark.record.saturating_sub(from) + 1;
                (
                    subject::subject(gateway, Class::Gap, &NO_KEY),
                    Headers::of_gap(gateway, &NO_KEY, ms),
                    gap_body(
                        from,
                        mark.record,
                        count,
                        None,
                        "no longer kept when the stream needed it again",
                    ),
                )
            }
        };
        let prefix = format!("{gateway}-{}-", self.shared.epoch);
        let place = Place {
            record: mark.record,
            prev: mark.prev,
            part: mark.part,
            parts: mark.parts,
        };
        headers.place(&prefix, place, publish.msg_id);
        let first = publish.batch.is_none_or(|place| place.sequence == 1);
        if first {
            headers.push(
                "Nats-Expected-Last-Sequence",
                publish.expected_last.to_string(),
            );
        }
        if let Some(before) = publish.follows.filter(|_| self.replicas == 1) {
            let id = message_id(&prefix, before.record, before.part, before.parts);
            headers.push("Nats-Expected-Last-Msg-Id", id);
        }
        let mut token = Some(publish.token);
        if let Some(batch) = publish.batch {
            headers.push("Nats-Batch-Id", format!("{}-{:x}", self.run, batch.id));
            headers.push("Nats-Batch-Sequence", batch.sequence.to_string());
            if batch.commit {
                headers.push("Nats-Batch-Commit", "1".to_owned());
            } else {
                token = None;
            }
        }
        if last
            && !matches!(publish.content, Content::Hole { .. })
            && let Some(loaded) = self.loaded.pop_front()
        {
            self.unacked.push_back(loaded.record);
        }
        Outgoing {
            token,
            subject,
            headers: headers.into_pairs(),
            payload,
        }
    }

    /// Why a record can't be sent.
    pub(super) fn cause(&self, record: RecordId) -> String {
        if let Some(cause) = self.drain.on_trial(record) {
            return cause.to_owned();
        }
        if let Some((given_up, cause)) = &self.given_up
            && *given_up == record
        {
            return cause.clone();
        }
        let loaded = self.loaded.iter().find(|it| it.record.id == record);
        match loaded.and_then(|it| it.prepared.as_ref()) {
            Some(Err(error)) => error.to_string(),
            Some(Ok(_)) | None => "refused by the server".to_owned(),
        }
    }
}
