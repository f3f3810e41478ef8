//! Alarms of the program around the engine: what no rule finds, and people must hear of all the same.
//!
//! Such an alarm is raised and cleared by name instead of by a condition over events. Otherwise it is an alarm like any
//! other: listed, acknowledged, shelved, kept in snapshots. Its key has no group. It counts for no flood, so that what
//! is said of a flood's consequences does not prolong it.
//!
//! Where several shares divide the keys, the first one has all of them, and no other any.
//!
//! Bounds: [`MOST`] are kept; then the oldest goes, one that is over before one that is not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Engine;
use super::fire::{Speaker, speak};
use crate::alarm::{Alarm, AlarmError, Occurrence, Timing};
use crate::event::Key;
use crate::lang::def::Fnv;
use crate::output::{AlarmAction, AlarmStatus, Output, Priority};
use crate::snapshot::{Corrupt, Reader, Writer};

/// Alarms kept.
const MOST: usize = 256;
/// First byte of an entry's opaque key; levels are below, the engine's own entry above.
pub(super) const TAG: u8 = 0xfe;

/// What the program tells. Rule, word and object together are its name: one alarm for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnAlarm {
    /// In the place of a rule's id, such as `sparkgate.bridge`.
    pub rule: Arc<str>,
    /// In the place of a pack's version.
    pub version: Arc<str>,
    /// What it is: a stable word.
    pub word: Arc<str>,
    /// What it is about; empty where the word says it all.
    pub of: Arc<str>,
    /// Priority.
    pub priority: Priority,
    /// One sentence for people.
    pub message: Arc<str>,
    /// It has no end of its own: an acknowledgement ends it.
    pub until_ack: bool,
}

type Name = (Arc<str>, Arc<str>, Arc<str>);

impl OwnAlarm {
    fn name(&self) -> Name {
        (self.rule.clone(), self.word.clone(), self.of.clone())
    }

    fn timing(&self) -> Timing {
        Timing {
            until_ack: self.until_ack,
            ..Timing::default()
        }
    }

    /// The same again in a replay: a function of the name and of when it was raised.
    fn occurrence(&self, now: u64) -> Occurrence {
        let mut hash = Fnv::new();
        for text in ["own", &self.rule, &self.word, &self.of] {
            hash.text(text);
        }
        hash.number(now);
        let mut values = vec![("word".into(), crate::Value::String(self.word.clone()))];
        if !self.of.is_empty() {
            values.push(("of".into(), crate::Value::String(self.of.clone())));
        }
        Occurrence {
            id: format!("{:016x}", hash.0).into(),
            message: self.message.clone(),
            values,
            cause: (0, 0),
            time_ms: None,
            since: now,
        }
    }
}

#[derive(Debug)]
pub(super) struct Own {
    pub(super) about: OwnAlarm,
    pub(super) alarm: Alarm,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Owns {
    all: BTreeMap<Name, Own>,
    dirty: BTreeSet<Name>,
    /// When the first shelf ends, engine ms; `None`: none does.
    next: Option<u64>,
    /// The key of each.
    pub(super) key: Key,
}

impl Default for Owns {
    fn default() -> Self {
        Self {
            all: BTreeMap::new(),
            dirty: BTreeSet::new(),
            next: None,
            key: Key {
                group: "".into(),
                node: "".into(),
                device: None,
            },
        }
    }
}

impl Owns {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Own> {
        self.all.values()
    }

    pub(super) fn deadline(&self) -> Option<u64> {
        self.next
    }

    fn named(&self, id: &str) -> Option<Name> {
        let is = |own: &&Own| own.alarm.occurrence().is_some_and(|o| &*o.id == id);
        self.iter().find(is).map(|own| own.about.name())
    }

    fn put(&mut self, own: Own) {
        let name = own.about.name();
        self.dirty.insert(name.clone());
        if own.alarm.is_idle() {
            self.all.remove(&name);
        } else {
            self.all.insert(name, own);
        }
        self.next = self.iter().filter_map(|own| own.alarm.deadline()).min();
    }

    /// The one that goes when there is no room.
    fn oldest(&self) -> Option<Name> {
        let rank = |own: &&Own| {
            let since = own.alarm.occurrence().map_or(0, |o| o.since);
            (own.alarm.is_active(), since)
        };
        self.iter().min_by_key(rank).map(|own| own.about.name())
    }

    /// Entries that changed: opaque keys, each with its snapshot, or `None` where it is gone.
    pub(super) fn take_dirty(&mut self) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        let names = std::mem::take(&mut self.dirty);
        let entry = |name: Name| {
            let bytes = self.all.get(&name).map(encode);
            (entry_key(&name), bytes)
        };
        names.into_iter().map(entry).collect()
    }

    pub(super) fn mark_all_dirty(&mut self) {
        self.dirty.extend(self.all.keys().cloned());
    }

    pub(super) fn restore(&mut self, bytes: &[u8]) -> Result<(), Corrupt> {
        let own = decode(bytes)?;
        let name = own.about.name();
        self.put(own);
        self.dirty.remove(&name);
        Ok(())
    }
}

fn entry_key((rule, word, of): &Name) -> Vec<u8> {
    let mut to = Writer::new();
    to.byte(TAG);
    for text in [rule, word, of] {
        to.text(text);
    }
    to.bare()
}

fn encode(own: &Own) -> Vec<u8> {
    let mut to = Writer::new();
    let about = &own.about;
    for text in [
        &about.rule,
        &about.version,
        &about.word,
        &about.of,
        &about.message,
    ] {
        to.text(text);
    }
    to.text(about.priority.as_str());
    to.flags(&[about.until_ack]);
    own.alarm.encode(&mut to);
    to.finish()
}

fn decode(bytes: &[u8]) -> Result<Own, Corrupt> {
    let mut from = Reader::open(bytes)?;
    let (rule, version, word) = (from.arc()?, from.arc()?, from.arc()?);
    let (of, message) = (from.arc()?, from.arc()?);
    let priority = Priority::parse(from.text()?).ok_or(Corrupt::Wrong { what: "priority" })?;
    let [until_ack] = from.flags()?;
    let alarm = Alarm::decode(&mut from)?;
    if !from.is_empty() {
        return Err(Corrupt::Wrong { what: "alarm" });
    }
    Ok(Own {
        about: OwnAlarm {
            rule,
            version,
            word,
            of,
            priority,
            message,
            until_ack,
        },
        alarm,
    })
}

impl Engine {
    /// Something that the program must tell. While it is active already, another message is a change of it.
    pub fn raise_own(&mut self, about: OwnAlarm, engine_ms: u64) {
        self.advance_to(engine_ms);
        let name = about.name();
        let known = self.owns.all.remove(&name);
        if known.is_none() && self.owns.all.len() >= MOST {
            self.give_way();
        }
        let mut own = Own {
            alarm: known.map(|own| own.alarm).unwrap_or_default(),
            about,
        };
        let now = self.now;
        let action = own
            .alarm
            .on(&own.about.timing(), now, || own.about.occurrence(now));
        self.report_own(&mut own, action, None);
        self.owns.put(own);
    }

    /// What was told is over; nothing happens where it was not active.
    pub fn clear_own(&mut self, rule: &str, word: &str, of: &str, engine_ms: u64) {
        self.advance_to(engine_ms);
        let name = (rule.into(), word.into(), of.into());
        if !self
            .owns
            .all
            .get(&name)
            .is_some_and(|own| own.alarm.is_active())
        {
            return;
        }
        let now = self.now;
        if let Some(mut own) = self.owns.all.remove(&name) {
            let actions = own.alarm.off(&own.about.timing(), now);
            self.report_own(&mut own, actions, None);
            self.owns.put(own);
        }
    }

    /// What the program has told and is still so.
    pub fn active_own(&self) -> impl Iterator<Item = &OwnAlarm> {
        let active = self.owns.iter().filter(|own| own.alarm.is_active());
        active.map(|own| &own.about)
    }

    fn give_way(&mut self) {
        let Some(mut own) = self
            .owns
            .oldest()
            .and_then(|name| self.owns.all.remove(&name))
        else {
            return;
        };
        self.owns.dirty.insert(own.about.name());
        if own.alarm.is_active() {
            let actions = own.alarm.off(&own.about.timing(), self.now);
            self.report_own(&mut own, actions, None);
        }
    }

    /// Shelves end.
    pub(super) fn advance_own(&mut self, at: u64) {
        let due = |own: &&Own| own.alarm.deadline().is_some_and(|due| due <= at);
        let names: Vec<Name> = self
            .owns
            .iter()
            .filter(due)
            .map(|own| own.about.name())
            .collect();
        for name in names {
            let Some(mut own) = self.owns.all.remove(&name) else {
                continue;
            };
            let actions = own.alarm.advance(&own.about.timing(), at);
            self.report_own(&mut own, actions, None);
            self.owns.put(own);
        }
    }

    /// What a person does to one of them; `None`: it is none of them.
    pub(super) fn person_own(
        &mut self,
        id: &str,
        person: (&str, &str),
        act: impl FnOnce(&mut Alarm, &Timing, u64) -> Result<Vec<AlarmAction>, AlarmError>,
    ) -> Option<Result<AlarmStatus, AlarmError>> {
        let mut own = self.owns.all.remove(&self.owns.named(id)?)?;
        let done = act(&mut own.alarm, &own.about.timing(), self.now);
        let done = done.map(|actions| {
            let status = own.alarm.status();
            self.report_own(&mut own, actions, Some(person));
            status
        });
        self.owns.put(own);
        Some(done)
    }

    pub(super) fn names_own(&self, id: &str) -> bool {
        self.owns.named(id).is_some()
    }

    fn report_own(
        &mut self,
        own: &mut Own,
        actions: impl IntoIterator<Item = AlarmAction>,
        person: Option<(&str, &str)>,
    ) {
        for action in actions {
            let speaker = Speaker {
                rule: &own.about.rule,
                version: &own.about.version,
                key: &self.owns.key,
                priority: own.about.priority,
                now: self.now,
                history: false,
                until_ack: own.about.until_ack,
                person,
            };
            if let Some(event) = speak(&own.alarm, action, &speaker) {
                self.out.push(Output::Alarm(event));
            }
        }
        own.alarm.settle();
    }
}
