//! What of the router's state outlives the process.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::{Change, Router};
use crate::broker::message::{Item, Message, after};
use crate::broker::outbound::Inflight;
use crate::broker::record::{Record, SavedItem, SavedMessage, SavedSession, encode};
use crate::broker::session::{Received, Session, Stored};
use crate::broker::subscriptions::{SessionIndex, Subscription};
use crate::broker::topic::Filter;

/// One moment on both clocks, to carry expiry over a restart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) now: Instant,
    /// Unix milliseconds.
    pub(crate) wall_ms: u64,
}

impl Moment {
    pub(crate) fn present() -> Self {
        let wall = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Self {
            now: Instant::now(),
            wall_ms: u64::try_from(wall.as_millis()).unwrap_or(u64::MAX),
        }
    }

    fn to_wall(self, at: Option<Instant>) -> u64 {
        let left = |at: Instant| {
            u64::try_from(at.saturating_duration_since(self.now).as_millis()).unwrap_or(0)
        };
        at.map_or(0, |at| self.wall_ms.saturating_add(left(at)).max(1))
    }

    fn to_instant(self, wall_ms: u64) -> Option<Instant> {
        (wall_ms > 0)
            .then(|| self.now + Duration::from_millis(wall_ms.saturating_sub(self.wall_ms)))
    }

    fn message(self, m: &Message) -> SavedMessage {
        SavedMessage {
            topic: m.topic.to_string(),
            payload: m.payload.clone(),
            qos: m.qos,
            retain: m.retain,
            forward: m.forward.clone(),
            expires_ms: self.to_wall(m.expires),
        }
    }

    fn item(self, i: &Item) -> SavedItem {
        let ids = i.ids.as_deref().unwrap_or_default().to_vec();
        SavedItem {
            message: self.message(&i.message),
            qos: i.qos,
            retain: i.retain,
            ids,
        }
    }

    fn restored(self, m: SavedMessage) -> Arc<Message> {
        Arc::new(Message {
            topic: m.topic.into(),
            payload: m.payload,
            qos: m.qos,
            retain: m.retain,
            forward: m.forward,
            expires: self.to_instant(m.expires_ms),
            on_written: None,
        })
    }

    fn restored_item(self, i: SavedItem) -> Item {
        Item {
            message: self.restored(i.message),
            qos: i.qos,
            retain: i.retain,
            stored: false,
            ids: (!i.ids.is_empty()).then(|| i.ids.into()),
        }
    }
}

impl Router {
    /// From now on changes are kept for [`Self::encode_changes`].
    pub(crate) fn record_changes(&mut self) {
        self.changes = Some(Vec::new());
    }

    /// Encodes and forgets the changes since the last call.
    pub(crate) fn encode_changes(&mut self, out: &mut Vec<u8>) {
        let Some(changes) = self.changes.as_mut().filter(|c| !c.is_empty()) else {
            return;
        };
        let changes = std::mem::take(changes);
        let moment = Moment::present();
        for change in changes {
            match change {
                Change::Retained(topic) => {
                    let record = match self.retained.get(&topic) {
                        Some(message) => Record::Retained(moment.message(message)),
                        None => Record::Unretained(topic.to_string()),
                    };
                    encode(&record, out);
                }
                Change::SessionGone(client) => encode(&Record::Gone(client.to_string()), out),
                Change::Queued(index, item) => {
                    if let Some(session) = self.session(index) {
                        encode(
                            &Record::Queued(session.client.to_string(), moment.item(&item)),
                            out,
                        );
                    }
                }
                Change::Session(index) => self.save_session(index, moment, false, out),
                Change::Attached(index) | Change::Detached(index) => {
                    self.save_session(index, moment, true, out)
                }
            }
        }
    }

    fn save_session(&self, index: SessionIndex, moment: Moment, messages: bool, out: &mut Vec<u8>) {
        let Some(session) = self.session(index) else {
            return;
        };
        if !session.is_persistent() {
            return;
        }
        encode(&Record::Session(saved(session)), out);
        if messages {
            encode(&saved_messages(session, moment), out);
        }
    }

    /// Saves the messages of connected sessions that changed since they were last saved.
    pub(crate) fn save_connected(&mut self, out: &mut Vec<u8>) {
        let moment = Moment::present();
        for session in self.sessions.iter_mut().flatten() {
            if session.attached.is_some()
                && session.is_persistent()
                && session.outbound.take_changed()
            {
                encode(&Record::Session(saved(session)), out);
                encode(&saved_messages(session, moment), out);
            }
        }
    }

    /// Encodes everything that outlives the process.
    pub(crate) fn save_all(&self) -> Vec<u8> {
        let moment = Moment::present();
        let mut out = Vec::new();
        for message in self.retained.iter() {
            encode(&Record::Retained(moment.message(message)), &mut out);
        }
        for session in self.sessions.iter().flatten().filter(|s| s.is_persistent()) {
            encode(&Record::Session(saved(session)), &mut out);
            encode(&saved_messages(session, moment), &mut out);
        }
        out
    }

    /// Puts back what was saved. Sessions wait for their clients from now on.
    pub(crate) fn restore(&mut self, records: Vec<Record>, moment: Moment) {
        for record in records {
            match record {
                Record::Retained(message) => self.retained.put(moment.restored(message)),
                Record::Unretained(topic) => drop(self.retained.remove(&topic)),
                Record::Session(saved) => self.restore_session(saved, moment.now),
                Record::Gone(client) => {
                    if let Some(index) = self.by_client.get(client.as_str()).copied() {
                        self.remove_session(moment.now, index);
                    }
                }
                Record::Queued(client, item) => {
                    let limits = self.settings.queue_limits();
                    if let Some(session) = self.restored(&client) {
                        let before = session.outbound.bytes();
                        session.outbound.push(moment.restored_item(item), limits);
                        self.queued_bytes += self
                            .restored(&client)
                            .map_or(before, |s| s.outbound.bytes())
                            - before;
                    }
                }
                Record::Messages(client, inflight, queued) => {
                    let limits = self.settings.queue_limits();
                    let Some(session) = self.restored(&client) else {
                        continue;
                    };
                    let before = std::mem::take(&mut session.outbound).bytes();
                    for (pid, dup, item) in inflight {
                        let item = item.map(|i| moment.restored_item(i));
                        session
                            .outbound
                            .restore_inflight(Inflight { pid, item, dup });
                    }
                    for item in queued {
                        session.outbound.push(moment.restored_item(item), limits);
                    }
                    let after = session.outbound.bytes();
                    self.queued_bytes = (self.queued_bytes + after).saturating_sub(before);
                }
            }
        }
    }

    fn restored(&mut self, client: &str) -> Option<&mut Session> {
        let index = self.by_client.get(client).copied()?;
        self.session_mut(index)
    }

    fn restore_session(&mut self, saved: SavedSession, now: Instant) {
        let client: Arc<str> = saved.client.into();
        let index = match self.by_client.get(&client).copied() {
            Some(index) => index,
            None => self.new_session(&client),
        };
        let old: Vec<Box<str>> = self
            .session(index)
            .map(|s| s.subscriptions.keys().cloned().collect())
            .unwrap_or_default();
        for filter in old {
            if let Some(filter) = Filter::parse(&filter) {
                self.subscriptions.remove(filter, index);
            }
        }
        for (text, options, id) in &saved.subscriptions {
            if let Some(filter) = Filter::parse(text) {
                let subscription = Subscription {
                    session: index,
                    options: *options,
                    id: *id,
                };
                self.subscriptions.insert(filter, subscription);
            }
        }
        self.generation += 1;
        let expires = (saved.expiry != u32::MAX).then(|| after(now, saved.expiry));
        if let Some(session) = self.session_mut(index) {
            session.user = saved.user.map(Into::into);
            session.expiry = saved.expiry;
            session.expires = expires;
            session.subscriptions = saved
                .subscriptions
                .into_iter()
                .map(|(filter, options, id)| (filter.into(), Stored { options, id }))
                .collect();
            session.received = saved
                .received
                .into_iter()
                .map(|pid| (pid, Received::Owned))
                .collect();
        }
        self.timers.extend(expires.map(|at| (at, index)));
    }
}

fn saved(session: &Session) -> SavedSession {
    SavedSession {
        client: session.client.to_string(),
        user: session.user.as_ref().map(ToString::to_string),
        expiry: session.expiry,
        subscriptions: session
            .subscriptions
            .iter()
            .map(|(filter, s)| (filter.to_string(), s.options, s.id))
            .collect(),
        received: session
            .received
            .iter()
            .filter(|(_, state)| matches!(state, Received::Owned))
            .map(|(pid, _)| *pid)
            .collect(),
    }
}

fn saved_messages(session: &Session, moment: Moment) -> Record {
    let inflight = session
        .outbound
        .inflight()
        .map(|e| (e.pid, e.dup, e.item.as_ref().map(|i| moment.item(i))))
        .collect();
    let queued = session
        .outbound
        .queued_high()
        .map(|i| moment.item(i))
        .collect();
    Record::Messages(session.client.to_string(), inflight, queued)
}
