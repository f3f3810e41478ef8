//! Another set of rules, in one step.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::context::Rule;
use super::slot::Lane;
use super::{Engine, SlotId};
use crate::event::Key;
use crate::lang::def::{Pack, RuleDef};
use crate::output::{AlarmAction, AlarmEvent, AlarmStatus, EvictReason, Evicted, Output};

impl Engine {
    /// Replaces all rules. State is kept where a rule has the same pack, id and shape (the same
    /// kind, stages, metric and window; limits and conditions may differ); the rest goes, and its
    /// alarms are cleared. Counts of rules that stay go on.
    pub fn reload(&mut self, packs: Vec<Pack>) {
        let defs: Vec<Arc<RuleDef>> = packs.into_iter().flat_map(|pack| pack.rules).collect();
        let mut old: BTreeMap<(Arc<str>, Arc<str>), (u32, Rule)> = BTreeMap::new();
        for (number, rule) in (0u32..).zip(std::mem::take(&mut self.rules)) {
            let name = (rule.def.pack.clone(), rule.def.id.clone());
            old.insert(name, (number, rule));
        }
        let mut moved = BTreeMap::new();
        for (number, def) in (0u32..).zip(&defs) {
            let mut rule = Rule::new(def.clone());
            if let Some((before, known)) = old.remove(&(def.pack.clone(), def.id.clone())) {
                if known.def.shape() == def.shape() {
                    moved.insert(before, number);
                    rule.partials = known.partials;
                }
                rule.fires = known.fires;
                rule.errors = known.errors;
                rule.late = known.late;
                rule.timed_out = known.timed_out;
                rule.evicted = known.evicted;
                rule.last_fire_ms = known.last_fire_ms;
            }
            rule.enabled = !self.disabled.contains(&def.id);
            self.rules.push(rule);
        }
        let before = std::mem::replace(&mut self.defs, defs);
        self.tables.clear();
        self.checked.clear();
        for id in (0u32..).take(self.slots.len()) {
            self.carry(id, &before, &moved);
        }
    }

    /// Carries one key's states over.
    fn carry(&mut self, id: SlotId, before: &[Arc<RuleDef>], moved: &BTreeMap<u32, u32>) {
        self.disarm(id);
        let Some(slot) = self.slot_mut(id) else {
            return;
        };
        slot.table = None;
        let states = std::mem::take(&mut slot.states);
        let key = slot.key.clone();
        let mut kept = Vec::new();
        let mut gone = Vec::new();
        for (lane, state) in states {
            let Some(state) = state else { continue };
            let cost = super::slot::signed(state.cost());
            match moved.get(&lane.rule) {
                Some(rule) => {
                    let lane = Lane {
                        rule: *rule,
                        history: lane.history,
                    };
                    kept.push((lane, Some(state)));
                }
                None => gone.push((lane, state, cost)),
            }
        }
        kept.sort_by_key(|(lane, _)| *lane);
        slot.states = kept;
        let freed: isize = gone.iter().map(|(_, _, cost)| cost).sum();
        if !gone.is_empty() {
            self.changed(id, Some(-freed));
        }
        for (lane, state, _) in gone {
            let Some(def) = before.get(lane.rule as usize) else {
                continue;
            };
            let own = state.alarm.as_deref();
            let failing = state.failures.as_ref().map(|f| &f.alarm);
            for alarm in own.into_iter().chain(failing) {
                let Some(occurrence) = alarm.occurrence() else {
                    continue;
                };
                self.out.push(Output::Alarm(AlarmEvent {
                    id: occurrence.id.clone(),
                    rule: def.id.clone(),
                    version: def.version.clone(),
                    event: AlarmAction::Clear,
                    state: AlarmStatus::Normal,
                    priority: def.alarm.as_ref().map(|a| a.priority).unwrap_or_default(),
                    message: occurrence.message.clone(),
                    key: Key::clone(&key),
                    timestamp: None,
                    engine_ms: self.now,
                    values: occurrence.values.clone(),
                    cause: occurrence.cause,
                    by: None,
                    note: Some("the rule is gone or has changed its shape".into()),
                    stale: alarm.is_stale(),
                    historical: lane.history,
                    until_ack: false,
                }));
            }
            self.out.push(Output::Evicted(Evicted {
                rule: Some(def.id.clone()),
                key: Key::clone(&key),
                reason: EvictReason::RuleChanged,
                count: 1,
                engine_ms: self.now,
            }));
        }
        self.arm(id);
    }
}
