//! Birth and death of devices and nodes.

use super::slot::Lane;
use super::{DeathCause, Engine, SlotId};
use crate::event::{Key, Level};

impl Engine {
    /// The device or node was born, or born again.
    pub fn handle_birth(&mut self, key: &Key, engine_ms: u64) {
        self.advance_to(engine_ms);
        let source = self.device_slot(key);
        let table = self.table(source);
        let own = self.slot(source).map(|slot| slot.own).unwrap_or_default();
        for rule in &table.rules {
            let Some(found) = self.rules.get(*rule as usize).filter(|r| r.enabled) else {
                continue;
            };
            let (level, lane) = (
                found.def.level,
                Lane {
                    rule: *rule,
                    history: false,
                },
            );
            // A node is not missed for what its devices measure: of a named metric it is waited for from its first
            // value on, a device from its birth on.
            let named = matches!(&found.def.kind, crate::lang::def::Kind::Absence(def) if def.metric.is_some());
            if key.device.is_none()
                && named
                && level == Level::Device
                && !self
                    .slot(source)
                    .is_some_and(|slot| slot.states.iter().any(|(known, _)| *known == lane))
            {
                continue;
            }
            if !own.has(level) {
                continue;
            }
            self.out.place.order = u64::from(*rule);
            let target = match level {
                Level::Device => source,
                level => self.slot_of(level, key, source),
            };
            let cost = self.step(target, source, lane, |context, state| context.born(state));
            self.changed(target, cost);
        }
    }

    /// The device or node died. A node's devices die with it: call this for each.
    pub fn handle_death(&mut self, key: &Key, engine_ms: u64, cause: DeathCause) {
        self.advance_to(engine_ms);
        let source = match self.devices.get(key) {
            Some(source) => *source,
            // Of a node itself there may be nothing but what rules keep over all of it.
            None if key.device.is_none() && self.nodes.contains_key(key) => self.device_slot(key),
            None => return,
        };
        let mut lanes: Vec<(SlotId, Lane)> = Vec::new();
        if let Some(slot) = self.slot_mut(source) {
            lanes.extend(slot.states.iter().map(|(lane, _)| (source, *lane)));
            let cost = slot.forget_values();
            self.changed(source, (cost < 0).then_some(cost));
        }
        // What is kept for a whole node dies with the node itself, not with one of its devices.
        if key.device.is_none()
            && let Some(node) = self.nodes.get(key).copied()
            && let Some(slot) = self.slot(node)
        {
            lanes.extend(slot.states.iter().map(|(lane, _)| (node, *lane)));
        }
        for (target, lane) in lanes {
            if !lane.history {
                let level = u64::from(target != source) << 32;
                self.out.place.order = level | u64::from(lane.rule);
                let cost = self.step(target, source, lane, |context, state| {
                    context.died(state, cause.as_str());
                });
                self.changed(target, cost);
            }
        }
    }
}
