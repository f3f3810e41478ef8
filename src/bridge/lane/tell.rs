//! What a lane tells: people, the buckets, the store of checkpoints, its status.

use tokio::time::Instant;

use super::{KEEP_EVERY, LaneTask};
use crate::bridge::drain::Event;
use crate::bridge::hooks::Notice;
use crate::bridge::publisher::Uplink;
use crate::bridge::quarantine::Kept;
use crate::buffer::record::{Lane, RecordId};

impl<U: Uplink> LaneTask<U> {
    /// Gives what the stream has taken to the buckets.
    pub(super) async fn hand_on(&mut self, up_to: RecordId) {
        while self
            .unacked
            .front()
            .is_some_and(|record| record.id <= up_to)
        {
            let Some(record) = self.unacked.pop_front() else {
                break;
            };
            if let Some(acked) = self
                .shared
                .acked
                .as_ref()
                .filter(|_| self.lane == Lane::Data)
            {
                // The buckets' task takes at once and writes later; it ends only with the bridge.
                let _ = acked.send(record).await;
            }
        }
    }

    pub(super) async fn event(&mut self, mut event: Event) {
        if let Event::Unsendable { record, cause } = &mut event {
            if cause.is_empty() {
                *cause = self.cause(*record);
            }
            self.given_up = Some((*record, cause.clone()));
            self.quarantine(*record, cause).await;
        }
        let notice = Notice {
            lane: self.lane,
            event,
        };
        if notice.is_urgent() {
            tracing::error!(lane = ?self.lane, id = notice.id(), reason = notice.message(), "bridge");
        } else {
            tracing::warn!(lane = ?self.lane, id = notice.id(), reason = notice.message(), "bridge");
        }
        (self.shared.hooks.notice)(notice);
    }

    pub(super) async fn quarantine(&mut self, record: RecordId, cause: &str) {
        let (shared, lane, cause) = (self.shared.clone(), self.lane, cause.to_owned());
        let kept = tokio::task::spawn_blocking(move || {
            let records = shared
                .source
                .read(lane, record.saturating_sub(1), 1, 1)
                .map_err(|error| std::io::Error::other(error.to_string()))?;
            let Some(record) = records.first().filter(|it| it.id == record) else {
                return Err(std::io::Error::other(
                    "the journal no longer has the record",
                ));
            };
            shared
                .quarantine
                .keep(&shared.gateway, &shared.epoch, record, &cause)
        })
        .await;
        match kept {
            Ok(Ok(Kept::At(path))) => tracing::info!(path = %path.display(), "bytes kept"),
            Ok(Ok(Kept::Already)) => {}
            Ok(Ok(Kept::NoRoom)) => {
                tracing::error!(record, "quarantine is full, bytes are not kept")
            }
            Ok(Err(error)) => tracing::error!(%error, record, "bytes can't be kept in quarantine"),
            Err(error) => tracing::error!(%error, record, "bytes can't be kept in quarantine"),
        }
    }

    pub(super) async fn tick(&mut self) {
        if self.kept_at.elapsed() >= KEEP_EVERY {
            self.keep_checkpoint().await;
        }
        self.tell_status();
    }

    pub(super) async fn keep_checkpoint(&mut self) {
        let Some(checkpoint) = self.unkept.take() else {
            return;
        };
        self.kept_at = Instant::now();
        let (shared, lane) = (self.shared.clone(), self.lane);
        let kept = tokio::task::spawn_blocking(move || {
            shared.memory.save(lane, &shared.epoch, checkpoint)
        })
        .await;
        if let Ok(Err(error)) = kept {
            tracing::warn!(lane = ?self.lane, error, "checkpoint of the bridge not kept");
        }
    }

    pub(super) fn tell_status(&mut self) {
        let backlog = self.shared.source.backlog(self.lane);
        let status = self.meter.status(&self.drain, backlog);
        let [data, alarms] = &self.shared.status;
        let told = match self.lane {
            Lane::Data => data,
            Lane::Alarms => alarms,
        };
        told.send_replace(status);
    }
}
