//! Several engines that divide the keys among them.
//!
//! A key belongs to one share, by its hash. An event goes to the shares of its device, its node and its group, as far as
//! there are rules of those levels ([`Router`]); each runs only the rules whose keys are its own. The state of a
//! key is in its own share alone, and so is its snapshot, which is the same whatever the number of shares: it may change
//! from one start to the next. What a rule over a node asks of a device with `current()` is kept by the node's share too.
//!
//! Outputs have a [`Place`], a function of what went in and not of who worked when. Sorted by it, the outputs of all
//! shares are those of one engine; at equal times those of timers come before those of events.
//!
//! Limits over all keys are divided by the number of shares. Floods are counted over all shares: what the shares raised
//! is given to the first one with [`Engine::note_raises`]. Alarms of the program itself are the first one's too.

use std::sync::Arc;

use super::fire::{flood_begins, flood_event};
use super::limits::Limits;
use super::persist::read_key_bytes;
use super::route::Stream;
use super::world::LastValues;
use super::{Engine, Guard};
use crate::event::{Key, Level};
use crate::lang::def::{Fnv, Pack, RuleDef};

/// Which part of the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    index: u32,
    of: u32,
}

impl Default for Share {
    fn default() -> Self {
        Self { index: 0, of: 1 }
    }
}

/// Where an output belongs among those of all shares: by engine time, then by input, then by rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Engine time, ms.
    pub at: u64,
    /// Number of the input, from 1; 0 for a timer that was set earlier.
    pub input: u64,
    /// Order among what one input led to, or of the timer's key.
    pub order: u64,
}

/// Of which levels the state that an event of a key moves is this share's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Own([bool; 3]);

impl Own {
    pub(crate) fn has(self, level: Level) -> bool {
        self.0.get(level.number()).copied().unwrap_or(false)
    }

    /// Whether last-known values of a stream are needed here. The key's own share keeps all of them, for the snapshot.
    pub(crate) fn keeps(self, stream: &Stream) -> bool {
        let mut levels = self.0.iter().zip(&stream.remember);
        self.has(Level::Device) && stream.remembers() || levels.any(|(own, asked)| *own && *asked)
    }
}

/// Order of what timers of the program's own alarms put out: behind the rules that an input moves, before all keys.
pub(super) const OWN_ORDER: u64 = 1 << 63;

/// Order of what a key's timers put out.
pub(super) fn timer_order(key: &Key) -> u64 {
    let mut hash = Fnv::new();
    for name in [&*key.group, &*key.node, key.device.as_deref().unwrap_or("")] {
        hash.text(name);
    }
    // Behind the rules that an input moves.
    hash.0 | OWN_ORDER
}

impl Share {
    /// Share `index`, from 0, of `of`. At least one; an index past them counts as the last.
    #[must_use]
    pub fn new(index: u32, of: u32) -> Self {
        let of = of.max(1);
        Self {
            index: index.min(of - 1),
            of,
        }
    }

    pub(crate) fn is_first(self) -> bool {
        self.index == 0
    }

    pub(crate) fn alone(self) -> bool {
        self.of == 1
    }

    /// The share that a key of a level belongs to.
    fn holder(self, level: Level, key: &Key) -> u32 {
        if self.alone() {
            return 0;
        }
        let mut hash = Fnv::new();
        hash.text(&key.group);
        if level != Level::Group {
            hash.text(&key.node);
        }
        if let (Level::Device, Some(device)) = (level, &key.device) {
            hash.text(device);
        }
        // Names that differ in their last letter differ in the low bits of the hash alone.
        let mixed = (hash.0 ^ (hash.0 >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        u32::try_from((mixed * u64::from(self.of)) >> 32).unwrap_or(0)
    }

    /// What of a key at a level is this share's.
    pub(crate) fn own(self, level: Level, key: &Key) -> Own {
        Own(Level::ALL.map(|of| of >= level && self.holder(of, key) == self.index))
    }

    pub(crate) fn of_limits(self, limits: Limits) -> Limits {
        let part = |most: usize| most.div_ceil(self.of as usize);
        Limits {
            keys: part(limits.keys),
            bytes: part(limits.bytes),
            cached_keys: part(limits.cached_keys),
            partials_per_rule: part(limits.partials_per_rule),
            ..limits
        }
    }
}

/// What is known of a device in its own share, for the others.
#[derive(Clone, Debug)]
pub struct Lent {
    key: Arc<Key>,
    last: LastValues,
    touched: u64,
}

/// Finds the shares that an input is to be given to.
#[derive(Clone, Copy, Debug)]
pub struct Router {
    of: u32,
    /// By [`Level::number`]: there are rules of that level. A device's own share keeps its last-known values, whatever
    /// the rules.
    used: [bool; 3],
}

impl Router {
    /// For these rules over `of` shares.
    #[must_use]
    pub fn new(packs: &[Pack], of: u32) -> Self {
        let mut used = [true, false, false];
        for rule in packs.iter().flat_map(|pack| &pack.rules) {
            if let Some(used) = used.get_mut(rule.level.number()) {
                *used = true;
            }
        }
        Self { of, used }
    }

    /// The shares to which an event, a birth or a death of a device or node means something.
    pub fn shares(&self, key: &Key) -> impl Iterator<Item = u32> + use<> {
        let share = Share::new(0, self.of);
        let mut found = [None; 3];
        for level in Level::ALL {
            let number = level.number();
            let used = self.used.get(number).copied().unwrap_or(false);
            let holder = Some(share.holder(level, key)).filter(|_| used);
            if !found.contains(&holder)
                && let Some(place) = found.get_mut(number)
            {
                *place = holder;
            }
        }
        found.into_iter().flatten()
    }

    /// The share that can [`check`](Engine::check) a command's condition: that of its rule's key.
    #[must_use]
    pub fn holder_of(&self, guard: &Guard) -> u32 {
        let level = match &*guard.key {
            key if key.is_group() => Level::Group,
            key if key.device.is_none() => Level::Node,
            _ => Level::Device,
        };
        self.holder(level, &guard.key)
    }

    /// The share that holds the state of a key. That of a node itself is the same at both of its levels.
    pub(crate) fn holder(&self, level: Level, key: &Key) -> u32 {
        Share::new(0, self.of).holder(level, key)
    }
}

impl Engine {
    /// Gives the next inputs their number, which places what they lead to.
    pub fn number_inputs(&mut self, input: u64) {
        self.input = input;
    }

    /// What all shares raised, in the order of their places: engine time, rule and key. The first share alone counts
    /// them, and says so when they are a flood, or when one is over by `engine_ms`.
    pub fn note_raises(&mut self, raises: &[(u64, Arc<str>, Key)], engine_ms: u64) {
        for (at, rule, key) in raises {
            self.calm(*at);
            if self.flood.raise(*at) {
                let output = flood_begins(&mut self.flood_alarm, rule, key, *at);
                self.out.push(output);
            }
        }
        self.calm(engine_ms);
    }

    /// A flood that was over by then is over.
    pub(super) fn calm(&mut self, until: u64) {
        let Some(at) = self.flood.deadline().filter(|at| *at <= until) else {
            return;
        };
        self.own_dirty = true;
        if self.flood.advance(at)
            && let Some((id, key)) = self.flood_alarm.take()
        {
            self.out.push(flood_event(&id, &key, false, at));
        }
    }

    /// When a flood may be over, ms of engine time.
    #[must_use]
    pub fn flood_deadline(&self) -> Option<u64> {
        self.flood.deadline()
    }

    /// Last-known values of devices that other shares may want after a reload; see [`borrow`](Self::borrow).
    #[must_use]
    pub fn lend_all(&self) -> Vec<Lent> {
        let asks = |def: &Arc<RuleDef>| def.level != Level::Device && !def.uses.current.is_empty();
        if self.share.alone() || !self.defs.iter().any(asks) {
            return Vec::new();
        }
        let slots = self.slots.iter().flatten();
        let own = slots.filter(|slot| !slot.is_lent() && !slot.last.is_empty());
        own.map(|slot| Lent {
            key: slot.key.clone(),
            last: slot.last.clone(),
            touched: slot.touched,
        })
        .collect()
    }

    /// Takes of it what rules over the device's node or group want to know here.
    pub fn borrow(&mut self, lent: &[Lent]) {
        for lent in lent {
            let own = self.share.own(Level::Device, &lent.key);
            if own != Own::default() && !own.has(Level::Device) {
                self.lend(lent.key.clone(), lent.last.clone(), lent.touched);
            }
        }
    }

    /// Takes what rules over its node or group want to know of a key that is another share's.
    pub(super) fn lend(&mut self, key: Arc<Key>, mut last: LastValues, touched: u64) {
        let id = self.device_slot(&key);
        let table = self.table(id);
        let Some(slot) = self.slot_mut(id) else {
            return;
        };
        let own = slot.own;
        last.retain(|(metric, _)| own.keeps(table.metric(metric)));
        let before = slot.reckon();
        slot.last = last;
        let cost = slot.reckon() - before;
        self.changed(id, Some(cost));
        if let Some(slot) = self.slot_mut(id) {
            slot.touched = touched;
        }
    }

    /// Whether an entry is this share's to count; the first one's where it can't be told.
    pub(super) fn is_own(&self, key: &[u8]) -> bool {
        match read_key_bytes(key) {
            Ok((level, key)) => self.share.own(level, &key).has(level),
            Err(_) => self.share.is_first(),
        }
    }
}
