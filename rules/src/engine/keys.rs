//! Which keys are known, and where their state is.

use std::sync::Arc;

use hashbrown::HashMap;

use super::route::Table;
use super::slot::Slot;
use super::{Engine, SlotId};
use crate::event::{Key, Level};

impl Engine {
    pub(super) fn slot(&self, id: SlotId) -> Option<&Slot> {
        self.slots.get(id as usize)?.as_ref()
    }

    pub(super) fn slot_mut(&mut self, id: SlotId) -> Option<&mut Slot> {
        self.slots.get_mut(id as usize)?.as_mut()
    }

    pub(super) fn index(&self, level: Level) -> &HashMap<Arc<Key>, SlotId> {
        match level {
            Level::Device => &self.devices,
            Level::Node => &self.nodes,
            Level::Group => &self.groups,
        }
    }

    pub(super) fn index_mut(&mut self, level: Level) -> &mut HashMap<Arc<Key>, SlotId> {
        match level {
            Level::Device => &mut self.devices,
            Level::Node => &mut self.nodes,
            Level::Group => &mut self.groups,
        }
    }

    pub(super) fn device_slot(&mut self, key: &Key) -> SlotId {
        match self.devices.get(key) {
            Some(id) => *id,
            None => self.add_slot(Level::Device, Arc::new(key.clone()), None),
        }
    }

    /// The entry of a device's node or group.
    pub(super) fn slot_of(&mut self, level: Level, key: &Key, source: SlotId) -> SlotId {
        let key = level.of(key);
        match self.index(level).get(&key) {
            Some(id) => *id,
            None => self.add_slot(level, Arc::new(key), Some(source)),
        }
    }

    pub(super) fn add_slot(&mut self, level: Level, key: Arc<Key>, keep: Option<SlotId>) -> SlotId {
        self.make_room(keep);
        let own = self.share.own(level, &key);
        let mut slot = Slot::new(level, key.clone(), own);
        slot.touched = self.now;
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                self.slots.push(None);
                u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
            }
        };
        if let Some(place) = self.slots.get_mut(id as usize) {
            *place = Some(slot);
            self.index_mut(level).insert(key, id);
        }
        id
    }

    pub(super) fn table(&mut self, id: SlotId) -> Arc<Table> {
        let Some(slot) = self.slot(id) else {
            return Arc::default();
        };
        if let Some(table) = &slot.table {
            return table.clone();
        }
        let rules: Box<[u32]> = (0u32..)
            .zip(&self.defs)
            .filter(|(_, def)| def.scope.contains(&slot.key))
            .map(|(n, _)| n)
            .collect();
        let table = match self.tables.get(&rules) {
            Some(table) => table.clone(),
            None => {
                let table = Arc::new(Table::new(&rules, &self.defs));
                self.tables.insert(rules, table.clone());
                table
            }
        };
        if let Some(slot) = self.slot_mut(id) {
            slot.table = Some(table.clone());
        }
        table
    }
}
