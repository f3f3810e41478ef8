//! What is kept has bounds: by age, by number of keys, by bytes.

use super::slot::{Slot, signed};
use super::{Engine, SlotId};
use crate::event::{Key, Level};
use crate::output::{EvictReason, Evicted, Output};

impl Engine {
    /// State of a key changed by so many bytes; `None`: nothing changed. It is saved with the next
    /// snapshot.
    pub(super) fn changed(&mut self, id: SlotId, cost: Option<isize>) {
        let (Some(mut cost), now) = (cost, self.now) else {
            return;
        };
        let Some(slot) = self.slots.get_mut(id as usize).and_then(Option::as_mut) else {
            return;
        };
        slot.touched = now;
        if !std::mem::replace(&mut slot.dirty, true) {
            self.dirty.push(id);
        }
        let holds = !slot.is_empty();
        if holds != slot.counted {
            slot.counted = holds;
            let base = signed(slot.base_cost());
            let lent = usize::from(slot.is_lent());
            if holds {
                self.stateful += 1;
                self.lent += lent;
                cost += base;
            } else {
                self.stateful = self.stateful.saturating_sub(1);
                self.lent = self.lent.saturating_sub(lent);
                cost -= base;
            }
        }
        slot.cost = slot.cost.saturating_add_signed(cost);
        self.bytes = self.bytes.saturating_add_signed(cost);
        if self.stateful > self.limits.keys || self.bytes > self.limits.bytes {
            self.relieve(id);
        }
    }

    /// Gives up the keys that were silent longest, `keep` excepted: a sixteenth over the limit in
    /// one go, so that looking for them is paid by many.
    fn relieve(&mut self, keep: SlotId) {
        let (keys, bytes) = (self.limits.keys, self.limits.bytes);
        let reason = if self.stateful > keys {
            EvictReason::TotalKeys
        } else {
            EvictReason::TotalBytes
        };
        let mut oldest: Vec<(u64, Level, Key, SlotId)> = self
            .stateful_slots()
            .filter(|(id, _)| *id != keep)
            .map(|(id, slot)| (slot.touched, slot.level, Key::clone(&slot.key), id))
            .collect();
        oldest.sort_unstable();
        for (_, _, _, id) in oldest {
            if self.stateful <= keys - keys / 16 && self.bytes <= bytes - bytes / 16 {
                break;
            }
            self.evict(id, reason);
        }
    }

    fn stateful_slots(&self) -> impl Iterator<Item = (SlotId, &Slot)> {
        let all = (0u32..).zip(&self.slots);
        all.filter_map(|(id, slot)| Some((id, slot.as_ref()?)))
            .filter(|(_, slot)| !slot.is_empty())
    }

    /// Forgets keys of which only the matching rules are known, when there are too many.
    pub(super) fn make_room(&mut self, keep: Option<SlotId>) {
        let most = self.limits.cached_keys.max(1);
        let used = self.slots.len() - self.free.len();
        if used.saturating_sub(self.stateful) < most {
            return;
        }
        let mut empty: Vec<(u64, SlotId)> = (0u32..)
            .zip(&self.slots)
            .filter_map(|(id, slot)| Some((id, slot.as_ref()?)))
            .filter(|(id, slot)| slot.is_empty() && Some(*id) != keep)
            .map(|(id, slot)| (slot.touched, id))
            .collect();
        empty.sort_unstable();
        let go = empty.len().div_ceil(16).max(1);
        for (_, id) in empty.into_iter().take(go) {
            self.remove(id);
        }
    }

    /// Gives up keys that nothing happened to for too long. Alarms that somebody still has to look
    /// at keep their key.
    pub(super) fn sweep(&mut self) {
        let before = self.now.saturating_sub(self.limits.idle_ms);
        if before == 0 {
            return;
        }
        let mut old: Vec<(Level, Key, SlotId)> = self
            .stateful_slots()
            .filter(|(_, slot)| slot.touched < before)
            .filter(|(_, slot)| slot.states().all(|(_, state)| state.alarm.is_none()))
            .map(|(id, slot)| (slot.level, Key::clone(&slot.key), id))
            .collect();
        old.sort_unstable();
        for (_, _, id) in old {
            self.evict(id, EvictReason::Age);
        }
    }

    fn evict(&mut self, id: SlotId, reason: EvictReason) {
        let Some(slot) = self.slot(id) else {
            return;
        };
        let (key, lent) = (Key::clone(&slot.key), slot.is_lent());
        let count = slot.states.len() as u64;
        self.remove(id);
        if lent {
            // Its own share says what becomes of it.
            return;
        }
        self.evicted_keys += 1;
        self.out.push(Output::Evicted(Evicted {
            rule: None,
            key,
            reason,
            count,
            engine_ms: self.now,
        }));
    }

    /// Forgets a key and its snapshot.
    pub(super) fn remove(&mut self, id: SlotId) {
        self.disarm(id);
        let Some(slot) = self.slots.get_mut(id as usize).and_then(Option::take) else {
            return;
        };
        self.free.push(id);
        self.index_mut(slot.level).remove(&slot.key);
        self.bytes = self.bytes.saturating_sub(slot.cost);
        if slot.counted {
            self.stateful = self.stateful.saturating_sub(1);
            self.lent = self.lent.saturating_sub(usize::from(slot.is_lent()));
        }
        for (lane, state) in slot.states() {
            if let Some(rule) = self.rules.get_mut(lane.rule as usize) {
                rule.partials = rule.partials.saturating_sub(state.partials());
            }
        }
        if slot.saved {
            self.gone
                .insert(super::persist::key_bytes(slot.level, &slot.key));
        }
    }

    /// What must hold between any two calls.
    #[cfg(test)]
    pub(super) fn check_invariants(&self) {
        let slots: Vec<&Slot> = self.slots.iter().flatten().collect();
        let bytes: usize = slots.iter().map(|slot| slot.cost).sum();
        assert_eq!(self.bytes, bytes, "bytes");
        for slot in &slots {
            let base = if slot.is_empty() { 0 } else { slot.base_cost() };
            let reckoned = base.saturating_add_signed(slot.reckon());
            assert_eq!(slot.cost, reckoned, "cost of {}", slot.key);
            assert_eq!(slot.counted, !slot.is_empty());
            assert!(slot.states.iter().all(|(_, state)| state.is_some()));
        }
        let held = slots.iter().filter(|slot| !slot.is_empty()).count();
        assert_eq!(self.stateful, held, "keys");
        let lent = slots.iter().filter(|slot| slot.is_lent());
        let lent: Vec<&&Slot> = lent.filter(|slot| !slot.is_empty()).collect();
        assert_eq!(self.lent, lent.len(), "keys of other shares");
        assert!(
            lent.iter()
                .all(|slot| slot.states.is_empty() && !slot.saved)
        );
        let indexed = self.devices.len() + self.nodes.len() + self.groups.len();
        assert_eq!(slots.len(), indexed, "index");
        for (number, rule) in self.rules.iter().enumerate() {
            let states = slots.iter().flat_map(|slot| slot.states());
            let of = states.filter(|(lane, _)| lane.rule as usize == number);
            let partials: usize = of.map(|(_, state)| state.partials()).sum();
            assert_eq!(
                rule.partials, partials,
                "partial matches of {}",
                rule.def.id
            );
        }
        for (at, id) in &self.timers {
            assert_eq!(self.slot(*id).map(|slot| slot.armed), Some(*at), "timer");
        }
    }
}
