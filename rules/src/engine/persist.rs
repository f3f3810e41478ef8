//! State as bytes, key by key.
//!
//! One entry a key: a version byte, the time it was last touched, last-known values, the state of
//! each rule under the rule's id and shape, and a CRC32C. One entry more for the engine itself. A
//! state whose rule is gone or has another shape is left out when it is read, and counted.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::share::Own;
use super::slot::Lane;
use super::state::{EventClock, Failures, KindState, Role, RuleState};
use super::world::Last;
use super::{Engine, SlotId};
use crate::absence::Absence;
use crate::alarm::{Alarm, Flood};
use crate::event::{Key, Level, Sample, SampleKind};
use crate::lang::def::{Kind, RuleDef};
use crate::pattern::KeyState;
use crate::snapshot::{Corrupt, Reader, Writer};
use crate::threshold::Threshold;
use crate::window::Window;

/// Key of the engine's own entry.
const OWN: &[u8] = &[0xff];

impl Engine {
    /// What changed since the last call: opaque keys, each with its snapshot, or `None` where the
    /// entry is to be deleted. Taken between two inputs, and stored all together.
    pub fn dirty_keys(&mut self) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        let mut entries = BTreeMap::new();
        for key in std::mem::take(&mut self.gone) {
            entries.insert(key, None);
        }
        for id in std::mem::take(&mut self.dirty) {
            let bytes = self.encode_slot(id);
            let Some(slot) = self.slot_mut(id).filter(|slot| slot.dirty) else {
                continue;
            };
            slot.dirty = false;
            if slot.is_lent() {
                continue;
            }
            let key = key_bytes(slot.level, &slot.key);
            match bytes {
                Some(bytes) => {
                    slot.saved = true;
                    entries.insert(key, Some(bytes));
                }
                None if slot.saved => {
                    slot.saved = false;
                    entries.insert(key, None);
                }
                None => {}
            }
        }
        entries.extend(self.owns.take_dirty());
        let flood = self.flood.take_changed();
        if (std::mem::take(&mut self.own_dirty) || flood) && self.share.is_first() {
            entries.insert(OWN.to_vec(), Some(self.encode_own()));
        }
        entries.into_iter().collect()
    }

    /// Marks everything as changed, for a snapshot of the whole.
    pub fn mark_all_dirty(&mut self) {
        self.own_dirty = true;
        self.owns.mark_all_dirty();
        for (id, slot) in (0u32..).zip(&mut self.slots) {
            if let Some(slot) = slot
                && !slot.is_empty()
                && !std::mem::replace(&mut slot.dirty, true)
            {
                self.dirty.push(id);
            }
        }
    }

    /// Takes an entry back. Done for all entries before the first input.
    ///
    /// # Errors
    /// The entry is damaged or of another version; the key then begins anew.
    pub fn restore(&mut self, key: &[u8], bytes: &[u8]) -> Result<(), Corrupt> {
        let restored = if key == OWN {
            self.decode_own(bytes)
        } else if key.first() == Some(&super::own::TAG) {
            // The first share's, whichever had it when it was written.
            if self.share.is_first() {
                self.owns.restore(bytes)
            } else {
                Ok(())
            }
        } else {
            self.decode_slot(key, bytes)
        };
        if restored.is_err() && self.is_own(key) {
            self.unreadable += 1;
        }
        restored
    }

    fn encode_own(&self) -> Vec<u8> {
        let mut to = Writer::new();
        to.option(self.wall_offset, Writer::signed);
        self.flood.encode(&mut to);
        to.option(self.flood_alarm.as_ref(), |to, (id, key)| {
            to.text(id);
            write_key(to, key);
        });
        to.length(self.disabled.len());
        self.disabled.iter().for_each(|id| to.text(id));
        to.finish()
    }

    fn decode_own(&mut self, bytes: &[u8]) -> Result<(), Corrupt> {
        let mut from = Reader::open(bytes)?;
        let wall_offset = from.option(Reader::signed)?;
        let flood = Flood::decode(&mut from)?;
        let flood_alarm = from.option(|from| Ok((from.arc()?, read_key(from)?)))?;
        let count = from.length()?;
        let disabled = (0..count).map(|_| from.arc()).collect::<Result<_, _>>()?;
        self.wall_offset = wall_offset;
        self.disabled = disabled;
        if self.share.is_first() {
            (self.flood, self.flood_alarm) = (flood, flood_alarm);
        }
        for rule in &mut self.rules {
            rule.enabled = !self.disabled.contains(&rule.def.id);
        }
        Ok(())
    }

    /// `None` for a key that holds nothing.
    fn encode_slot(&self, id: SlotId) -> Option<Vec<u8>> {
        let slot = self.slot(id).filter(|slot| !slot.is_empty())?;
        let mut to = Writer::new();
        to.number(slot.touched);
        to.length(slot.last.len());
        for (metric, last) in &slot.last {
            to.text(metric);
            to.value(&last.value);
            to.number(last.at);
        }
        let states = slot
            .states()
            .filter_map(|(lane, state)| Some((lane, state, self.defs.get(lane.rule as usize)?)));
        let states: Vec<(Lane, &RuleState, &Arc<RuleDef>)> = states.collect();
        to.length(states.len());
        for (lane, state, def) in states {
            to.text(&def.id);
            to.number(def.shape());
            to.flags(&[lane.history]);
            let mut part = Writer::new();
            encode_state(&mut part, def, state);
            let part = part.bare();
            to.part(|bytes| bytes.extend_from_slice(&part));
        }
        Some(to.finish())
    }

    fn decode_slot(&mut self, key: &[u8], bytes: &[u8]) -> Result<(), Corrupt> {
        let (level, key) = read_key_bytes(key)?;
        let own = self.share.own(level, &key);
        if own == Own::default() {
            return Ok(());
        }
        let mut from = Reader::open(bytes)?;
        let touched = from.number()?;
        let count = from.length()?;
        let mut last = Vec::with_capacity(count.min(1_024));
        for _ in 0..count {
            let metric = from.arc()?;
            let value = from.value()?;
            let at = from.number()?;
            last.push((metric, Last { value, at }));
        }
        last.sort_by(|(a, _), (b, _)| a.cmp(b));
        let key = Arc::new(key);
        if !own.has(level) {
            self.lend(key, last, touched);
            return Ok(());
        }
        let mut keys = Sources::new(&key);
        let mut states = Vec::new();
        let mut lost = 0;
        for _ in 0..from.length()? {
            let id = from.text()?;
            let shape = from.number()?;
            let [history] = from.flags()?;
            let part = from.part()?;
            let known = (0u32..).zip(&self.defs).find(|(_, def)| &*def.id == id);
            let Some((rule, def)) = known.filter(|(_, def)| def.shape() == shape) else {
                lost += 1;
                continue;
            };
            let mut part = Reader::bare(part);
            match decode_state(&mut part, def, &mut keys) {
                Ok(state) => states.push((Lane { rule, history }, state)),
                Err(_) => lost += 1,
            }
        }
        states.sort_by_key(|(lane, _)| *lane);
        states.dedup_by_key(|(lane, _)| *lane);
        self.unreadable += lost;
        if let Some(known) = self.index(level).get(&*key).copied() {
            self.remove(known);
        }
        let id = self.add_slot(level, key, None);
        for (lane, state) in &states {
            if let Some(rule) = self.rules.get_mut(lane.rule as usize) {
                rule.partials = rule.partials.saturating_add(state.partials());
            }
        }
        if let Some(slot) = self.slot_mut(id) {
            slot.last = last;
            slot.states = states
                .into_iter()
                .map(|(lane, s)| (lane, Some(Box::new(s))))
                .collect();
            slot.saved = true;
            let cost = slot.reckon();
            self.changed(id, Some(cost));
        }
        if let Some(slot) = self.slot_mut(id) {
            slot.touched = touched;
            // What was just read needs no writing, unless something was left out.
            slot.dirty = lost > 0;
        }
        self.arm(id);
        Ok(())
    }
}

/// The opaque key of an entry.
pub(super) fn key_bytes(level: Level, key: &Key) -> Vec<u8> {
    let mut to = Writer::new();
    to.byte(match level {
        Level::Device => 0,
        Level::Node => 1,
        Level::Group => 2,
    });
    write_key(&mut to, key);
    to.bare()
}

pub(super) fn read_key_bytes(bytes: &[u8]) -> Result<(Level, Key), Corrupt> {
    let mut from = Reader::bare(bytes);
    let level = match from.byte()? {
        0 => Level::Device,
        1 => Level::Node,
        2 => Level::Group,
        _ => return Err(Corrupt::Wrong { what: "key" }),
    };
    let key = read_key(&mut from)?;
    if !from.is_empty() {
        return Err(Corrupt::Wrong { what: "key" });
    }
    Ok((level, key))
}

fn write_key(to: &mut Writer, key: &Key) {
    to.text(&key.group);
    to.text(&key.node);
    to.option(key.device.as_deref(), Writer::text);
}

fn read_key(from: &mut Reader<'_>) -> Result<Key, Corrupt> {
    Ok(Key {
        group: from.arc()?,
        node: from.arc()?,
        device: from.option(Reader::arc)?,
    })
}

/// Keys that samples come from; the key of the entry itself is by far the most frequent, and shared.
struct Sources<'k> {
    own: &'k Arc<Key>,
    last: Option<Arc<Key>>,
}

impl<'k> Sources<'k> {
    fn new(own: &'k Arc<Key>) -> Self {
        Self { own, last: None }
    }

    fn share(&mut self, key: Key) -> Arc<Key> {
        if **self.own == key {
            return self.own.clone();
        }
        match &self.last {
            Some(last) if **last == key => last.clone(),
            _ => self.last.insert(Arc::new(key)).clone(),
        }
    }
}

fn encode_state(to: &mut Writer, def: &RuleDef, state: &RuleState) {
    match (&state.kind, &def.kind) {
        (KindState::Pattern(Some(key)), Kind::Pattern(def)) => to.part(|bytes| {
            key.encode(&def.plan, bytes, |sample, bytes| {
                let mut part = Writer::new();
                encode_sample(&mut part, sample);
                bytes.extend_from_slice(&part.bare());
            });
        }),
        (KindState::Threshold(state), _) => state.encode(to),
        (KindState::Absence(state), _) => to.option(state.as_ref(), |to, s| s.encode(to)),
        (KindState::Window(window), _) => window.encode(to),
        (KindState::Pattern(_), _) => to.part(|_| {}),
    }
    to.option(state.clock.as_ref(), |to, clock| {
        to.signed(clock.watermark);
        to.number(clock.order);
        to.length(clock.waiting.len());
        for ((ts, order), (sample, role)) in &clock.waiting {
            to.signed(*ts);
            to.number(*order);
            encode_sample(to, sample);
            to.flags(&[role.stream, role.clear]);
        }
    });
    to.option(state.alarm.as_ref(), |to, alarm| alarm.encode(to));
    to.option(state.event.as_ref(), encode_sample);
    to.flags(&[state.level]);
    to.option(state.failures.as_ref(), |to, failures| {
        to.number(failures.count);
        to.number(u64::from(failures.run));
        to.number(failures.last);
        failures.alarm.encode(to);
    });
}

fn decode_state(
    from: &mut Reader<'_>,
    def: &RuleDef,
    keys: &mut Sources<'_>,
) -> Result<RuleState, Corrupt> {
    const WRONG: Corrupt = Corrupt::Wrong {
        what: "pattern state",
    };
    let kind = match &def.kind {
        Kind::Pattern(def) => {
            let part = from.part()?;
            if part.is_empty() {
                KindState::Pattern(None)
            } else {
                let state = KeyState::decode(&def.plan, part, |bytes| {
                    let mut from = Reader::bare(bytes);
                    let sample = decode_sample(&mut from, keys).ok()?;
                    *bytes = from.rest();
                    Some(sample)
                });
                KindState::Pattern(Some(Box::new(state.map_err(|_| WRONG)?)))
            }
        }
        Kind::Threshold(_) => KindState::Threshold(Threshold::decode(from)?),
        Kind::Absence(_) => KindState::Absence(from.option(Absence::decode)?),
        Kind::Window(_) => KindState::Window(Window::decode(from)?),
    };
    let clock = from.option(|from| {
        let watermark = from.signed()?;
        let order = from.number()?;
        let count = from.length()?;
        let mut waiting = BTreeMap::new();
        for _ in 0..count {
            let at = (from.signed()?, from.number()?);
            let sample = decode_sample(from, keys)?;
            let [stream, clear] = from.flags()?;
            waiting.insert(at, (sample, Role { stream, clear }));
        }
        Ok(Box::new(EventClock {
            watermark,
            waiting,
            order,
        }))
    })?;
    let alarm = from.option(Alarm::decode)?.map(Box::new);
    let event = from.option(|from| decode_sample(from, keys))?;
    let [level] = from.flags()?;
    let failures = from.option(|from| {
        Ok(Box::new(Failures {
            count: from.number()?,
            run: u32::try_from(from.number()?).unwrap_or(u32::MAX),
            last: from.number()?,
            alarm: Alarm::decode(from)?,
        }))
    })?;
    if !from.is_empty() {
        return Err(Corrupt::Wrong { what: "state" });
    }
    Ok(RuleState {
        kind,
        clock,
        alarm,
        event,
        level,
        failures,
    })
}

fn encode_sample(to: &mut Writer, sample: &Sample) {
    write_key(to, &sample.source);
    to.text(&sample.metric);
    to.value(&sample.value);
    to.signed(sample.time_ms);
    to.number(sample.engine_ms);
    to.number(sample.cause.0);
    to.number(u64::from(sample.cause.1));
    to.signed(i64::from(sample.quality));
    to.flags(&[sample.historical]);
    to.text(sample.datatype);
    match &sample.kind {
        SampleKind::Metric => to.byte(0),
        SampleKind::Score => to.byte(1),
        SampleKind::Embedding(vector) => {
            to.byte(2);
            to.length(vector.len());
            for v in vector.iter() {
                to.number(u64::from(v.to_bits()));
            }
        }
    }
}

fn decode_sample(from: &mut Reader<'_>, keys: &mut Sources<'_>) -> Result<Sample, Corrupt> {
    let source = keys.share(read_key(from)?);
    let metric = from.arc()?;
    let value = from.value()?;
    let time_ms = from.signed()?;
    let engine_ms = from.number()?;
    let cause = crate::alarm::read_cause(from)?;
    let quality = from.signed()?;
    let quality = i32::try_from(quality).map_err(|_| Corrupt::Wrong { what: "quality" })?;
    let [historical] = from.flags()?;
    let datatype = datatype(from.text()?);
    let kind = match from.byte()? {
        0 => SampleKind::Metric,
        1 => SampleKind::Score,
        2 => {
            let count = from.length()?;
            let vector = (0..count).map(|_| {
                let bits = u32::try_from(from.number()?).map_err(|_| Corrupt::Short)?;
                Ok(f32::from_bits(bits))
            });
            SampleKind::Embedding(vector.collect::<Result<_, Corrupt>>()?)
        }
        _ => return Err(Corrupt::Wrong { what: "sample" }),
    };
    Ok(Sample {
        source,
        metric,
        value,
        time_ms,
        engine_ms,
        cause,
        quality,
        historical,
        datatype,
        kind,
    })
}

/// Sparkplug's datatypes by name, so that a sample borrows them whether it was read or restored.
fn datatype(name: &str) -> &'static str {
    const NAMES: [&str; 35] = [
        "Unknown",
        "Int8",
        "Int16",
        "Int32",
        "Int64",
        "UInt8",
        "UInt16",
        "UInt32",
        "UInt64",
        "Float",
        "Double",
        "Boolean",
        "String",
        "DateTime",
        "Text",
        "UUID",
        "DataSet",
        "Bytes",
        "File",
        "Template",
        "PropertySet",
        "PropertySetList",
        "Int8Array",
        "Int16Array",
        "Int32Array",
        "Int64Array",
        "UInt8Array",
        "UInt16Array",
        "UInt32Array",
        "UInt64Array",
        "FloatArray",
        "DoubleArray",
        "BooleanArray",
        "StringArray",
        "DateTimeArray",
    ];
    NAMES.into_iter().find(|n| *n == name).unwrap_or("Unknown")
}
