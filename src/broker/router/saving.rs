//! What of the router's state outlives the process.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::{Change, Router};
use crate::broker::message::{Item, Message, after};
use crate::broker::outbound::Progress;
use crate::broker::record::{Record, SavedItem, SavedMessage, SavedSession, encode};
use crate::broker::session::{Received, Session, Stored};
use crate::broker::subscriptions::{SessionIndex, Subscription};
use crate::broker::topic::Filter;

/// Messages that are encoded under one hold of the router.
pub(super) const SLICE: usize = 256;

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
                Change::Queued(index) => {
                    if let Some(session) = self.session_mut(index) {
                        save_messages(session, usize::MAX, moment, out);
                    }
                }
                Change::Session(index) => {
                    if let Some(session) = self.session_mut(index) {
                        save_session(session, out);
                    }
                }
                Change::Attached(index) | Change::Detached(index) => {
                    if let Some(session) = self.session_mut(index) {
                        save_session(session, out);
                        save_messages(session, usize::MAX, moment, out);
                        save_progress(session, out);
                    }
                }
            }
        }
    }

    /// Saves what became of the messages of connected sessions since they were last saved, each message once; about
    /// [`SLICE`] messages a call, from the session `from` on. Where to go on, until all are saved.
    pub(crate) fn save_connected(
        &mut self,
        from: SessionIndex,
        out: &mut Vec<u8>,
    ) -> Option<SessionIndex> {
        let moment = Moment::present();
        let mut room = SLICE;
        for (index, session) in (from..).zip(self.sessions.iter_mut().skip(from as usize)) {
            let Some(session) = session.as_mut().filter(|session| {
                session.attached.is_some()
                    && session.is_persistent()
                    && session.outbound.is_changed()
            }) else {
                continue;
            };
            if room == 0 {
                return Some(index);
            }
            let saved = save_messages(session, room, moment, out);
            if saved >= room {
                return Some(index);
            }
            room -= saved;
            save_session(session, out);
            save_progress(session, out);
        }
        None
    }

    /// Everything that outlives the process, shared, so that [`Snapshot::encode`] needs no router. It counts as saved
    /// from now on.
    pub(crate) fn snapshot(&mut self) -> Snapshot {
        let moment = Moment::present();
        let retained = self.retained.iter().cloned().collect();
        let persistent = |session: &&mut Box<Session>| session.is_persistent();
        let sessions = self.sessions.iter_mut().flatten().filter(persistent);
        let sessions = sessions.map(|session| {
            session.filed = true;
            let (messages, progress) = session.outbound.whole();
            (saved(session), messages, progress)
        });
        Snapshot {
            moment,
            retained,
            sessions: sessions.collect(),
        }
    }

    /// Puts back what was saved. Sessions wait for their clients from now on.
    pub(crate) fn restore(&mut self, records: Vec<Record>, moment: Moment) {
        let mut messages: HashMap<String, Messages> = HashMap::new();
        for record in records {
            match record {
                Record::Retained(message) => self.retained.put(moment.restored(message)),
                Record::Unretained(topic) => drop(self.retained.remove(&topic)),
                Record::Session(saved) => self.restore_session(saved, moment.now),
                Record::Gone(client) => {
                    messages.remove(&client);
                    if let Some(index) = self.by_client.get(client.as_str()).copied() {
                        self.remove_session(moment.now, index);
                    }
                }
                Record::Queued(client, order, item) => {
                    messages.entry(client).or_default().put(order, item);
                }
                Record::Progress(client, progress) => {
                    messages.entry(client).or_default().advance(progress);
                }
            }
        }
        for (client, messages) in messages {
            self.restore_messages(&client, messages, moment);
        }
    }

    fn restore_messages(&mut self, client: &str, mut messages: Messages, moment: Moment) {
        let limits = self.settings.queue_limits();
        let Some(session) = self.restored(client) else {
            return;
        };
        for (pid, dup, order) in messages.inflight {
            let item = order.and_then(|order| messages.items.remove(&order));
            // One whose message was lost with a damaged part of the file can't be sent again.
            if order.is_none() || item.is_some() {
                let item = item.map(|item| moment.restored_item(item));
                session.outbound.restore_inflight(pid, dup, item);
            }
        }
        for item in messages.items.into_values() {
            session.outbound.push(moment.restored_item(item), limits);
        }
        let bytes = session.outbound.bytes();
        self.queued_bytes += bytes;
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
            session.filed = true;
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

fn save_session(session: &mut Session, out: &mut Vec<u8>) {
    if session.is_persistent() {
        session.filed = true;
        encode(&Record::Session(saved(session)), out);
    }
}

/// How many messages were written that had not been: fewer than `most` when none is left.
fn save_messages(session: &mut Session, most: usize, moment: Moment, out: &mut Vec<u8>) -> usize {
    if !session.is_persistent() {
        return 0;
    }
    let messages = session.outbound.unsaved(most);
    for (order, item) in &messages {
        let client = session.client.to_string();
        encode(&Record::Queued(client, *order, moment.item(item)), out);
    }
    messages.len()
}

fn save_progress(session: &mut Session, out: &mut Vec<u8>) {
    if session.is_persistent() {
        let progress = session.outbound.progress();
        encode(&Record::Progress(session.client.to_string(), progress), out);
    }
}

/// All that outlives the process, at one moment. Its messages are shared with the router.
pub(crate) struct Snapshot {
    moment: Moment,
    retained: Vec<Arc<Message>>,
    sessions: Vec<Kept>,
}

/// A session of a [`Snapshot`]: itself, its messages with their orders, and how far they have come.
type Kept = (SavedSession, Vec<(u64, Item)>, Progress);

impl Snapshot {
    /// As a state file.
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut out = Vec::new();
        for message in &self.retained {
            encode(&Record::Retained(self.moment.message(message)), &mut out);
        }
        for (session, messages, progress) in self.sessions {
            let client = session.client.clone();
            encode(&Record::Session(session), &mut out);
            for (order, item) in messages {
                let item = self.moment.item(&item);
                encode(&Record::Queued(client.clone(), order, item), &mut out);
            }
            encode(&Record::Progress(client, progress), &mut out);
        }
        out
    }
}

/// Messages of a session as its records tell of them.
#[derive(Debug, Default)]
struct Messages {
    items: BTreeMap<u64, SavedItem>,
    inflight: Vec<(u16, bool, Option<u64>)>,
}

impl Messages {
    fn put(&mut self, order: u64, item: SavedItem) {
        self.items.insert(order, item);
    }

    fn advance(&mut self, progress: Progress) {
        let mut queued = self.items.split_off(&progress.head);
        for (_, _, order) in &progress.inflight {
            let known = order.and_then(|order| Some((order, self.items.remove(&order)?)));
            queued.extend(known);
        }
        self.items = queued;
        self.inflight = progress.inflight;
    }
}

#[cfg(test)]
mod tests;
