//! From the last checkpoint and the journal to the state of the crash.
//!
//! Records newer than the checkpoint are replayed with their recorded times. A replay sends nothing: commands are
//! left out, alarms and other derived records are appended only when their cause is not in the journal yet.

use std::collections::HashSet;

use serde_json::Value as Json;
use sparkplug::host::{HostSession, RecordKind};
use sparkplug::payload::{ResolvedPayload, decode_resolved};
use sparkplug::topic::NodeId;

use super::bodies;
use super::checkpoint::{COMMANDS, HOLDS, META, Meta, NODE, RULE, TEXT};
use super::convert::{key_of_rule, rule_key};
use super::derived::alarm_cause;
use super::feed::body;
use super::open_writes::target_from;
use super::shard::Rules;
use super::texts::Texts;
use crate::actuation::{Actuation, Hold};
use crate::buffer::AppendError;
use crate::buffer::Journal;
use crate::buffer::record::{Cause, Class, Record};
use crate::clock::Now;
use crate::state::{Batch, StateStore};

use super::core::Core;

/// Records between two calls of a replay's `progress`.
const PROGRESS: u64 = 4_096;

/// What was brought back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Restored {
    /// Checkpoint that was found.
    pub meta: Option<Meta>,
    /// Host snapshots taken back.
    pub nodes: usize,
    /// Rule keys taken back.
    pub keys: usize,
    /// Snapshots that could not be used; the node is asked for its birth, the key starts anew.
    pub unusable: usize,
    /// Records replayed.
    pub replayed: u64,
    /// Bodies of the writes that had no end at the checkpoint.
    pub open_commands: Vec<Json>,
    /// Recent alarms with their vectors, by place.
    pub texts: Vec<(u64, Vec<u8>)>,
    /// Derived records that the crash had left out.
    pub completed: u64,
}

/// Reads the checkpoint's meta entry.
///
/// # Errors
/// The store can't be read.
pub fn meta(store: &dyn StateStore) -> Result<Option<Meta>, crate::state::StateError> {
    Ok(store.get(META)?.and_then(|bytes| Meta::decode(&bytes)))
}

/// Takes the checkpoint's snapshots back into host, rules and holds.
///
/// # Errors
/// The store can't be read; a single snapshot that can't be used is counted instead.
pub fn load(
    store: &dyn StateStore,
    now: Now,
    host: &mut HostSession,
    rules: &mut Rules,
    actuation: &mut Actuation,
) -> Result<Restored, crate::state::StateError> {
    let mut restored = Restored {
        meta: meta(store)?,
        ..Restored::default()
    };
    for pair in store.scan_prefix(NODE) {
        let (_, bytes) = pair?;
        match host.restore_node(now.engine_ms, now.wall_ms, &bytes) {
            Ok(()) => restored.nodes += 1,
            Err(error) => {
                restored.unusable += 1;
                tracing::warn!(%error, "a node's snapshot can't be used");
            }
        }
    }
    for pair in store.scan_prefix(RULE) {
        let (key, bytes) = pair?;
        let key = key.get(RULE.len()..).unwrap_or_default();
        match rules.restore(key, &bytes) {
            Ok(()) => restored.keys += 1,
            Err(error) => {
                restored.unusable += 1;
                tracing::warn!(%error, "a rule key's snapshot can't be used");
            }
        }
    }
    for pair in store.scan_prefix(TEXT) {
        let (key, bytes) = pair?;
        let place = key
            .get(TEXT.len()..)
            .and_then(|place| place.try_into().ok());
        if let Some(place) = place {
            restored.texts.push((u64::from_be_bytes(place), bytes));
        }
    }
    if let Some(bytes) = store.get(COMMANDS)? {
        let list: Json = serde_json::from_slice(&bytes).unwrap_or_default();
        restored.open_commands = list.as_array().cloned().unwrap_or_default();
    }
    if let Some(bytes) = store.get(HOLDS)? {
        for hold in holds_from(&bytes) {
            // Their number was bounded when they were taken.
            let _ = actuation.holds().set(hold);
        }
        actuation.holds().take_changed();
    }
    Ok(restored)
}

impl Core {
    /// Replays what the journal has after the checkpoint; `progress` is called every few thousand records.
    ///
    /// # Errors
    /// The journal can't be read.
    pub fn replay(
        &mut self,
        journal: &Journal,
        after: u64,
        restored: &mut Restored,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), crate::buffer::ReadError> {
        let known = journal.derived_causes(after)?;
        for body in std::mem::take(&mut restored.open_commands) {
            self.writes.open.note(&body);
        }
        for record in journal.replay(after) {
            let record = record?;
            restored.replayed += 1;
            if restored.replayed.is_multiple_of(PROGRESS) {
                progress(restored.replayed);
            }
            self.replay_record(&record, &known, journal, restored);
        }
        Ok(())
    }

    fn replay_record(
        &mut self,
        record: &Record,
        known: &HashSet<Cause>,
        journal: &Journal,
        restored: &mut Restored,
    ) {
        let now = Now {
            engine_ms: record.engine_ms,
            wall_ms: record.received_ms,
            trusted: record.clock_trusted,
        };
        super::feed::time(&mut self.rules, record);
        self.note_trace(record);
        self.complete(now, known, journal, restored);
        if record.class == Class::Status {
            let status = body(record);
            if let Some(action) = status.get("action") {
                self.replay_action(now.engine_ms, action);
            }
            if let Some(figures) = status.get("figures") {
                self.replay_figures(now, record.id, figures);
                self.complete(now, known, journal, restored);
            }
            return;
        }
        if record.class == Class::Alarm {
            let alarm = body(record);
            if record.key.group.is_none() && alarm.get("by").is_none() {
                self.replay_own(now, &alarm);
            } else {
                self.replay_operator(now, &alarm);
            }
            self.complete(now, known, journal, restored);
            return;
        }
        let (Some(group), Some(node)) = (&record.key.group, &record.key.node) else {
            return;
        };
        let device = record.key.device.as_ref();
        let id = NodeId {
            group: group.clone(),
            node: node.clone(),
        };
        match (record.class, record.origin) {
            (Class::Birth | Class::Data, _) => {
                let Ok(payload) = decode_resolved(&record.body) else {
                    return;
                };
                let kind = if record.class == Class::Birth {
                    RecordKind::Birth
                } else {
                    RecordKind::Data
                };
                self.host.apply_record(
                    now.engine_ms,
                    kind,
                    &id,
                    device.map(AsRef::as_ref),
                    record.received_ms,
                    &payload,
                );
                super::feed::record(&mut self.rules, record, Some(&payload));
            }
            (Class::Death, _) => {
                let payload = ResolvedPayload {
                    seq: record.seq,
                    bdseq: record.bdseq,
                    ..ResolvedPayload::default()
                };
                self.host.apply_record(
                    now.engine_ms,
                    RecordKind::Death,
                    &id,
                    device.map(AsRef::as_ref),
                    record.received_ms,
                    &payload,
                );
                super::feed::record(&mut self.rules, record, None);
            }
            (Class::Inference, _) => super::feed::record(&mut self.rules, record, None),
            (Class::Command, _) => self.note_command(&body(record)),
            (Class::Embedding, _) => {
                self.replay_vector(now, rule_key(group, node, device), record);
            }
            (Class::Alarm | Class::Schema | Class::Gap | Class::Status | Class::Raw, _) => {}
        }
        self.complete(now, known, journal, restored);
    }

    /// What people did to alarms is state too, and only the journal knows it.
    fn replay_operator(&mut self, now: Now, body: &Json) {
        let text = |key: &str| body.get(key).and_then(Json::as_str).unwrap_or_default();
        if text("by").is_empty() {
            return;
        }
        let (id, by) = (text("id"), text("by"));
        let for_ms = body.get("for_ms").and_then(Json::as_u64).unwrap_or(0);
        let done = match text("event") {
            "ack" => self.rules.ack_alarm(id, by, text("note"), now.engine_ms),
            "shelve" => self.rules.shelve_alarm(id, by, for_ms, now.engine_ms),
            "unshelve" => self.rules.unshelve_alarm(id, by, now.engine_ms),
            "suppress" => self.rules.suppress_alarm(id, by, true, now.engine_ms),
            "unsuppress" => self.rules.suppress_alarm(id, by, false, now.engine_ms),
            "reset" => self.rules.reset_alarm(id, by, now.engine_ms),
            "out-of-service" => self.rules.service_alarm(id, by, true, now.engine_ms),
            "in-service" => self.rules.service_alarm(id, by, false, now.engine_ms),
            _ => return,
        };
        if let Err(error) = done {
            tracing::debug!(%error, id, "an operator's action does not apply any more");
        }
        // Its record is in the journal already.
        self.rules.join();
        while self.rules.poll_output().is_some() {}
    }

    /// Appends the alarms that the crash left out; everything else a replay makes is dropped.
    fn complete(
        &mut self,
        now: Now,
        known: &HashSet<Cause>,
        journal: &Journal,
        restored: &mut Restored,
    ) {
        self.rules.join();
        while let Some(output) = self.rules.poll_output() {
            let rules::Output::Alarm(event) = output else {
                continue;
            };
            let cause = alarm_cause(&event);
            if known.contains(&cause) {
                continue;
            }
            let key = key_of_rule(&event.key);
            let body = bodies::alarm(&event, now.wall_ms).to_string().into();
            match journal.append(self.derived(now, Class::Alarm, key, Some(cause), body)) {
                Ok(record) => {
                    self.note_trace(&record);
                    self.last_record = record.id;
                    restored.completed += 1;
                }
                Err(AppendError::Full(record)) => journal.dropped(record.origin, "disk_full", 1),
                Err(AppendError::Stopped) => {}
            }
        }
    }

    /// What changed since the last checkpoint.
    pub fn take_dirty(&mut self) -> Batch {
        let mut batch = Batch::default();
        for snapshot in self.host.dirty_nodes() {
            batch.put(
                node_key(&snapshot.node, snapshot.device.as_deref()),
                snapshot.bytes,
            );
        }
        for (key, bytes) in self.rules.dirty_keys() {
            let key = [RULE, key.as_slice()].concat();
            match bytes {
                Some(bytes) => batch.put(key, bytes),
                None => batch.delete(key),
            }
        }
        for (place, bytes) in self.texts.iter_mut().flat_map(Texts::take_dirty) {
            let key = [TEXT, &place.to_be_bytes()].concat();
            match bytes {
                Some(bytes) => batch.put(key, bytes),
                None => batch.delete(key),
            }
        }
        if let Some(open) = self.writes.open.take_changed() {
            batch.put(COMMANDS, open.to_string());
        }
        if self.actuation.holds().take_changed() {
            batch.put(HOLDS, holds_bytes(&mut self.actuation));
        }
        batch
    }
}

/// Ids hold no U+0000, so it separates.
fn node_key(node: &NodeId, device: Option<&str>) -> Vec<u8> {
    let mut key = NODE.to_vec();
    key.extend_from_slice(node.group.as_bytes());
    key.push(0);
    key.extend_from_slice(node.node.as_bytes());
    if let Some(device) = device {
        key.push(0);
        key.extend_from_slice(device.as_bytes());
    }
    key
}

fn holds_bytes(actuation: &mut Actuation) -> Vec<u8> {
    let list: Vec<Json> = actuation
        .holds()
        .iter()
        .map(|hold| {
            serde_json::json!({
                "target": bodies::target(&hold.target),
                "until_ms": hold.until_ms,
                "by": hold.by.as_ref(),
            })
        })
        .collect();
    Json::Array(list).to_string().into_bytes()
}

fn holds_from(bytes: &[u8]) -> Vec<Hold> {
    let list: Json = serde_json::from_slice(bytes).unwrap_or_default();
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(|item| {
            Some(Hold {
                target: target_from(item.get("target")?)?,
                until_ms: item.get("until_ms").and_then(Json::as_u64)?,
                by: item.get("by").and_then(Json::as_str)?.into(),
            })
        })
        .collect()
}
