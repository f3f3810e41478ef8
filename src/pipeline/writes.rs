//! Local writes: from a rule's commands or a person's request to plans, and from their steps to records and replies.
//!
//! Order of a step: what leaves at once is published first and its record follows; a step of a sequence becomes a
//! record first, and [`Core::handle_durable`] lets it leave.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::Ports;
use super::bodies;
use super::convert::{record_key, stable_hash, target_of_rule, value_json, write_value};
use super::core::Core;
use super::gate::HostGate;
use super::latency::Stamp;
use super::open_writes::{Interlocked, OpenWrites, plan_json, target_from};
use super::own::{self, Own};
use crate::actuation::{
    Actuation, Confirm, Expect, Gate, Hold, HoldError, Interlock, Notice, OnRestart, Plan, Refusal,
    Status, Step, Target, Write,
};
use crate::buffer::record::{Cause, Class, RecordId};
use crate::clock::Now;

/// Writes whose cause or interlock is remembered, and commands that wait for the disk, at most.
const MOST: usize = 4_096;
/// Steps kept for listings.
const MOST_RECENT: usize = 1_000;

/// Who waits for the outcome of a write.
pub(super) type Reply = tokio::sync::oneshot::Sender<Json>;

/// What is kept beside the local writes in flight.
#[derive(Default)]
pub(super) struct Writes {
    /// Writes that asked for a reply, by plan id.
    replies: HashMap<Arc<str>, Reply>,
    /// When the bytes that caused a write passed the stages, by plan id.
    stamps: HashMap<Arc<str>, Stamp>,
    /// Interlocks of plans in flight, by plan id.
    guards: HashMap<Arc<str>, Vec<Option<rules::Guard>>>,
    /// Commands of a match that is not complete yet.
    sequence: Vec<rules::CommandRequest>,
    /// Plans of rules with `durable = true` whose cause is not on disk yet.
    awaiting_disk: VecDeque<(Plan, Option<Stamp>)>,
    /// Steps that leave when their record is on disk: record and ticket, in order.
    tickets: VecDeque<(RecordId, u64)>,
    /// What a crash would leave without an end.
    pub(super) open: OpenWrites,
    /// The newest bodies, oldest first.
    recent: VecDeque<Json>,
}

impl Core {
    /// The most recent steps of local writes, as `command` bodies, oldest first. Dry runs are among them, with status
    /// `dry_run` and their plan.
    #[must_use]
    pub fn recent_writes(&self) -> Vec<Json> {
        self.writes.recent.iter().cloned().collect()
    }

    /// Takes a body of before a restart: it is listed, and its id is not carried out again.
    pub fn recall_write(&mut self, body: &Json) {
        let id = body
            .pointer("/sequence/plan")
            .or_else(|| body.get("id"))
            .and_then(Json::as_str);
        if let Some(id) = id {
            self.actuation.remember(&id.into());
        }
        self.list(body.clone());
    }

    /// Something waits for the disk before it leaves.
    #[must_use]
    pub fn disk_wanted(&self) -> bool {
        !self.writes.tickets.is_empty() || !self.writes.awaiting_disk.is_empty()
    }

    fn list(&mut self, body: Json) {
        if self.writes.recent.len() >= MOST_RECENT {
            self.writes.recent.pop_front();
        }
        self.writes.recent.push_back(body);
    }

    /// Commands of one match come one by one; the last one completes the plan.
    pub(super) fn command(
        &mut self,
        now: Now,
        request: rules::CommandRequest,
        stamp: Option<Stamp>,
        ports: &mut dyn Ports,
    ) {
        let of = request.of;
        if request.position == 0 {
            self.writes.sequence.clear();
        }
        self.writes.sequence.push(request);
        if self.writes.sequence.len() < of as usize {
            return;
        }
        let sequence = std::mem::take(&mut self.writes.sequence);
        let Some(first) = sequence.first() else {
            return;
        };
        let id: Arc<str> = format!(
            "{}-{}-{}-{}-{}",
            self.settings.gateway, self.settings.epoch, first.rule, first.cause.0, first.cause.1
        )
        .into();
        let dry_run = first.dry_run || self.settings.dry_run;
        let durable = first.durable;
        let plan = Plan {
            id: id.clone(),
            by: format!("rule:{}@{}", first.rule, first.version).into(),
            cause: first.cause.0,
            priority: first.priority,
            deadline_ms: first.engine_ms.saturating_add(first.ttl_ms),
            on_restart: match first.on_restart {
                rules::OnRestart::Undo => OnRestart::Undo,
                rules::OnRestart::Finish => OnRestart::Finish,
            },
            writes: sequence
                .iter()
                .map(|request| self.write_of(&id, request))
                .collect(),
        };
        let guards: Vec<Option<rules::Guard>> = sequence
            .into_iter()
            .map(|request| request.allow_when)
            .collect();
        if !dry_run && super::rollouts::is_own(&plan) {
            self.roll_out(now, &plan, &guards, ports);
            return;
        }
        if guards.iter().any(Option::is_some) {
            if self.writes.guards.len() >= MOST {
                // Their writes are rejected: an interlock that is not known does not hold.
                self.writes.guards.clear();
            }
            self.writes.guards.insert(id.clone(), guards);
        }
        if dry_run {
            let body = self.explain(now, &plan, ports);
            tracing::info!(plan = %plan.id, by = %plan.by, steps = ?body.get("steps"), "dry run: not written");
            self.writes.guards.remove(&id);
            self.list(body);
            return;
        }
        if durable && plan.cause > self.durable {
            if self.writes.awaiting_disk.len() >= MOST {
                let refusal = Refusal::rejected("busy: too many commands wait for the disk");
                self.with_gate(now, ports, |actuation, gate| {
                    actuation.refuse(now.engine_ms, plan, refusal, gate);
                });
                self.drain_actuation(now, ports);
                return;
            }
            self.writes.awaiting_disk.push_back((plan, stamp));
            return;
        }
        self.request(now, plan, stamp, None, ports);
    }

    fn write_of(&self, plan: &Arc<str>, request: &rules::CommandRequest) -> Write {
        let default_ms = self.settings.confirm_timeout_ms;
        let target = target_of_rule(&request.target);
        Write {
            metric: request.metric.clone(),
            value: write_value(&request.value),
            confirm: request.confirm.as_ref().map_or_else(
                || Confirm::by_echo(default_ms),
                |confirm| Confirm {
                    target: None,
                    metric: Some(confirm.metric.clone()),
                    expect: match &confirm.expect {
                        rules::Expect::Equals(value) => Expect::Equals(write_value(value)),
                        rules::Expect::Between(low, high) => Expect::Between(*low, *high),
                    },
                    within_ms: confirm.within_ms,
                },
            ),
            undo: request.undo.as_ref().map(|undo| {
                Box::new(Write {
                    target: target.clone(),
                    metric: undo.metric.clone(),
                    value: write_value(&undo.value),
                    confirm: Confirm::by_echo(default_ms),
                    undo: None,
                    // Taking back is safe to say twice: it asks for a state, not for a movement. A rule that knows
                    // better says so.
                    repeatable: undo.repeatable,
                    allow_when: None,
                    ttl_ms: None,
                })
            }),
            repeatable: request.repeatable,
            allow_when: request.allow_when.as_ref().map(|_| Interlock {
                plan: plan.clone(),
                position: request.position,
            }),
            ttl_ms: Some(request.ttl_ms),
            target,
        }
    }

    /// What would become of a plan now, as a body with status `dry_run`. Nothing is sent or recorded.
    pub fn explain(&mut self, now: Now, plan: &Plan, ports: &mut dyn Ports) -> Json {
        let judged = self.with_gate(now, ports, |actuation, gate| {
            actuation.explain(now.engine_ms, plan, gate)
        });
        let shown = self.shown(plan);
        let mut steps = shown
            .get("writes")
            .and_then(Json::as_array)
            .cloned()
            .unwrap_or_default();
        for (step, judged) in steps.iter_mut().zip(judged) {
            let Some(step) = step.as_object_mut() else {
                continue;
            };
            match judged {
                Ok(previous) => {
                    step.insert("would".to_owned(), "send".into());
                    if let Some(previous) = previous {
                        step.insert("previous".to_owned(), value_json(&previous));
                    }
                }
                Err(refusal) => {
                    step.insert("would".to_owned(), refusal.status.as_str().into());
                    step.insert("reason".to_owned(), refusal.reason.into());
                }
            }
        }
        let mut body = json!({
            "id": plan.id.as_ref(),
            "by": plan.by.as_ref(),
            "status": "dry_run",
            "steps": steps,
            "timestamp": now.wall_ms,
        });
        if let (Some(object), Some(first)) = (body.as_object_mut(), plan.writes.first()) {
            object.insert("target".to_owned(), bodies::target(&first.target));
            object.insert("metric".to_owned(), first.metric.as_ref().into());
            object.insert("value".to_owned(), value_json(&first.value));
            if plan.cause != 0 {
                object.insert("cause".to_owned(), plan.cause.into());
            }
        }
        body
    }

    /// A plan with its interlocks, as dry runs and the first record of a sequence show it.
    fn shown(&self, plan: &Plan) -> Json {
        let guards = self.writes.guards.get(&plan.id);
        plan_json(plan, guards.map(Vec::as_slice).unwrap_or_default())
    }

    /// Sends what has waited for the disk and is there now.
    pub(super) fn release_durable_commands(&mut self, now: Now, ports: &mut dyn Ports) {
        while let Some((_, ticket)) = self
            .writes
            .tickets
            .pop_front_if(|(record, _)| *record <= self.durable)
        {
            self.with_gate(now, ports, |actuation, gate| {
                actuation.handle_stored(now.engine_ms, ticket, gate);
            });
        }
        while let Some((plan, stamp)) = self
            .writes
            .awaiting_disk
            .pop_front_if(|(plan, _)| plan.cause <= self.durable)
        {
            self.request(now, plan, stamp, None, ports);
        }
    }

    /// Takes a plan from anybody. `reply` gets the body of its last step.
    pub fn request(
        &mut self,
        now: Now,
        plan: Plan,
        stamp: Option<Stamp>,
        reply: Option<Reply>,
        ports: &mut dyn Ports,
    ) {
        let id = plan.id.clone();
        if let Some(stamp) = stamp {
            if self.writes.stamps.len() >= MOST {
                self.writes.stamps.clear();
            }
            self.writes.stamps.insert(id.clone(), stamp);
        }
        let fresh = self.with_gate_at(now, stamp, ports, |actuation, gate| {
            actuation.handle_request(now.engine_ms, plan, gate)
        });
        if let Some(reply) = reply {
            if fresh {
                self.writes.replies.insert(id, reply);
            } else {
                self.answer_repeated(&id, reply);
            }
        }
        self.drain_actuation(now, ports);
    }

    /// A repeated request is answered with how the first one stands.
    fn answer_repeated(&self, id: &str, reply: Reply) {
        let of_plan = |body: &&Json| {
            let plan = body.pointer("/sequence/plan").or_else(|| body.get("id"));
            plan.and_then(Json::as_str) == Some(id)
        };
        let stands = self.writes.recent.iter().rev().find(of_plan);
        // Without one its id is too old to say more; the caller is told that it was taken.
        let _ = reply.send(stands.cloned().unwrap_or_else(|| {
            json!({"id": id, "status": "rejected", "reason": "duplicate: this id was carried out before"})
        }));
    }

    /// Takes the steps of local writes; whether there was any.
    pub(super) fn drain_actuation(&mut self, now: Now, ports: &mut dyn Ports) -> bool {
        let mut any = false;
        while let Some(step) = self.actuation.poll_step() {
            any = true;
            self.record_step(now, &step, ports);
        }
        while let Some(notice) = self.actuation.poll_notice() {
            any = true;
            let (word, of, message) = (notice.word(), notice.of(), notice.to_string());
            if notice.is_end() {
                tracing::info!(word, message, "local writes");
                self.untell(now, own::WRITES, word, &of, ports);
                continue;
            }
            tracing::error!(word, message, "local writes");
            let told = Own::event(own::WRITES, word, &of, &message, true);
            let until_ack = matches!(notice, Notice::NotUndone { .. });
            self.tell(now, Own { until_ack, ..told }, ports);
        }
        any
    }

    fn record_step(&mut self, now: Now, step: &Step, ports: &mut dyn Ports) {
        let latency_us = match step.status {
            Status::Sent => self.writes.stamps.get(&step.plan).map(|stamp| {
                let taken = ports.mark().saturating_duration_since(stamp.read);
                u64::try_from(taken.as_micros()).unwrap_or(u64::MAX)
            }),
            _ => Some(step.after_ms.saturating_mul(1000)),
        };
        let mut body = bodies::command(step, latency_us, now.wall_ms);
        let opens = step.ticket.is_some() && step.position == 0 && !step.undo;
        if opens
            && let Some(plan) = step.ticket.and_then(|ticket| self.actuation.plan(ticket))
            && let Some(object) = body.as_object_mut()
        {
            object.insert("plan".to_owned(), self.shown(plan));
        }
        let cause = Cause {
            record: step.cause,
            rule: stable_hash(&step.id) ^ stable_hash(step.status.as_str()),
            index: 0,
        };
        let to = &step.target;
        let record = self.append_derived(
            now,
            Class::Command,
            record_key(&to.group, &to.node, to.device.as_ref()),
            Some(cause),
            &body,
            ports,
        );
        self.note_command(&body);
        if step.last {
            self.writes.stamps.remove(&step.plan);
            self.writes.guards.remove(&step.plan);
            if let Some(reply) = self.writes.replies.remove(&step.plan) {
                // A caller that went away needs no answer.
                let _ = reply.send(body);
            }
        }
        if let Some(ticket) = step.ticket {
            if record == 0 {
                self.with_gate(now, ports, |actuation, gate| {
                    actuation.handle_unstored(now.engine_ms, ticket, gate);
                });
            } else {
                self.writes.tickets.push_back((record, ticket));
            }
        }
    }

    /// Keeps account of which writes have no end yet, and of what listings show.
    pub(super) fn note_command(&mut self, body: &Json) {
        self.writes.open.note(body);
        self.recall_write(body);
    }

    /// After a restart: single writes without an outcome are told as timed out and never sent again, sequences are
    /// taken back or go on, as they say.
    pub fn take_up(&mut self, now: Now, ports: &mut dyn Ports) {
        // Who wrote what is not known any more; those who go on fighting are told again.
        for of in self.told(own::WRITES, "write_fight") {
            self.untell(now, own::WRITES, "write_fight", &of, ports);
        }
        if self.texts().is_none() {
            self.untell(now, own::MODELS, own::TEXT, "", ports);
        }
        let left = self.writes.open.left(now);
        for body in left.singles {
            self.close_single(now, body, ports);
        }
        for (interrupted, interlocks) in left.sequences {
            let on_restart = interrupted.plan.on_restart;
            tracing::warn!(plan = %interrupted.plan.id, ?on_restart, "a sequence was interrupted");
            self.restore_guards(&interrupted.plan, interlocks);
            self.with_gate(now, ports, |actuation, gate| {
                actuation.resume(now.engine_ms, interrupted, gate);
            });
        }
        self.settle(now, ports);
    }

    /// The interlocks of a sequence that goes on. One that can't be told any more does not hold.
    fn restore_guards(&mut self, plan: &Plan, interlocks: Vec<Option<Interlocked>>) {
        let rule = plan.by.strip_prefix("rule:").unwrap_or_default();
        let rule = rule.rsplit_once('@').map_or(rule, |(rule, _)| rule);
        let guards: Vec<Option<rules::Guard>> = interlocks
            .into_iter()
            .enumerate()
            .map(|(position, interlock)| {
                let Interlocked { text, source } = interlock?;
                self.rules.guard(rule, position, &text, source)
            })
            .collect();
        if guards.iter().any(Option::is_some) {
            self.writes.guards.insert(plan.id.clone(), guards);
        }
    }

    fn close_single(&mut self, now: Now, mut body: Json, ports: &mut dyn Ports) {
        let reason =
            "restart: the gateway stopped before the device confirmed; nothing was sent again";
        let Some(object) = body.as_object_mut() else {
            return;
        };
        object.insert("status".to_owned(), "timeout".into());
        object.insert("reason".to_owned(), reason.into());
        object.insert("timestamp".to_owned(), now.wall_ms.into());
        object.remove("latency_us");
        object.remove("plan");
        if let Some(sequence) = object.get_mut("sequence").and_then(Json::as_object_mut) {
            sequence.insert("last".to_owned(), true.into());
        }
        let id = body
            .get("id")
            .and_then(Json::as_str)
            .unwrap_or_default()
            .to_owned();
        let Some(target) = body.get("target").and_then(target_from) else {
            return;
        };
        let cause = Cause {
            record: body.get("cause").and_then(Json::as_u64).unwrap_or(0),
            rule: stable_hash(&id) ^ stable_hash("restart"),
            index: 0,
        };
        let key = record_key(&target.group, &target.node, target.device.as_ref());
        self.append_derived(now, Class::Command, key, Some(cause), &body, ports);
        self.note_command(&body);
        tracing::warn!(id, "a write had no outcome when the gateway stopped");
    }

    /// Holds a target, or releases it when `for_ms` is 0. Returns the record of it, which must be durable before the
    /// operator may rely on the hold, and whether anything is different now.
    ///
    /// # Errors
    /// Too many holds.
    pub fn hold(
        &mut self,
        now: Now,
        target: Target,
        for_ms: u64,
        by: &str,
        ports: &mut dyn Ports,
    ) -> Result<(RecordId, bool), HoldError> {
        let action = json!({
            "verb": if for_ms == 0 { "release" } else { "hold" },
            "target": bodies::target(&target), "for_ms": for_ms, "by": by, "timestamp": now.wall_ms,
        });
        let changed = self.apply_hold(now.engine_ms, target, for_ms, by)?;
        Ok((self.note_action(now, action, ports), changed))
    }

    fn apply_hold(
        &mut self,
        engine_ms: u64,
        target: Target,
        for_ms: u64,
        by: &str,
    ) -> Result<bool, HoldError> {
        let holds = self.actuation.holds();
        if for_ms == 0 {
            return Ok(holds.release(&target));
        }
        holds.set(Hold {
            target,
            until_ms: engine_ms.saturating_add(for_ms),
            by: by.into(),
        })?;
        Ok(true)
    }

    /// An operator's action from the journal: holds, and rules switched off or on, are state.
    pub(super) fn replay_action(&mut self, engine_ms: u64, action: &Json) {
        let text = |key: &str| action.get(key).and_then(Json::as_str);
        if let (Some(verb @ ("enable_rule" | "disable_rule")), Some(rule)) =
            (text("verb"), text("rule"))
        {
            self.rules.set_enabled(rule, verb == "enable_rule");
            return;
        }
        let (Some(target), Some(for_ms), Some(by)) = (
            action.get("target").and_then(target_from),
            action.get("for_ms").and_then(Json::as_u64),
            action.get("by").and_then(Json::as_str),
        ) else {
            return;
        };
        // Their number was bounded when they were taken.
        let _ = self.apply_hold(engine_ms, target, for_ms, by);
    }

    /// Runs something of the actuation that may send.
    pub(super) fn with_gate<T>(
        &mut self,
        now: Now,
        ports: &mut dyn Ports,
        run: impl FnOnce(&mut Actuation, &mut dyn Gate) -> T,
    ) -> T {
        self.with_gate_at(now, None, ports, run)
    }

    fn with_gate_at<T>(
        &mut self,
        now: Now,
        stamp: Option<Stamp>,
        ports: &mut dyn Ports,
        run: impl FnOnce(&mut Actuation, &mut dyn Gate) -> T,
    ) -> T {
        let mut gate = HostGate {
            host: &mut self.host,
            rules: &mut self.rules,
            guards: &self.writes.guards,
            ports,
            now,
            stamp,
        };
        run(&mut self.actuation, &mut gate)
    }
}
