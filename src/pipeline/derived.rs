//! What rules, writes and models make: alarms, commands and inferences become records, commands become messages.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use serde_json::Value as Json;
use sparkplug::value::Value;

use super::Ports;
use super::bodies;
use super::convert::{key_of_rule, record_key, rule_key, stable_hash, target_of_rule, write_value};
use super::core::Core;
use crate::actuation::{
    Actuation, Confirm, Expect, Gate, Interlock, Plan, Status, Step, Target, Write,
};
use crate::buffer::record::{Cause, Class};
use crate::clock::Now;

/// Writes whose cause is remembered for the latency of their outcome, at most.
const MOST_STAMPS: usize = 4_096;

impl Core {
    /// Takes what rules have to tell; whether there was anything.
    pub(super) fn drain_rules(&mut self, now: Now, ports: &mut dyn Ports) -> bool {
        self.drain_rules_at(now, None, ports)
    }

    /// As [`Core::drain_rules`]; `read_at` is when the bytes that moved the rules were read.
    pub(super) fn drain_rules_at(
        &mut self,
        now: Now,
        read_at: Option<Instant>,
        ports: &mut dyn Ports,
    ) -> bool {
        let mut any = false;
        while let Some(output) = self.rules.poll_output() {
            any = true;
            match output {
                rules::Output::Match(found) => {
                    self.counters.matches += 1;
                    tracing::debug!(rule = %found.rule, key = %found.key, "match");
                }
                rules::Output::Alarm(event) => self.raise(now, &event, ports),
                rules::Output::Command(request) => self.command(now, request, read_at, ports),
                rules::Output::EvalError(error) => {
                    self.counters.rule_errors += 1;
                    tracing::debug!(rule = %error.rule, key = %error.key, reason = %error.reason, "rule evaluation failed");
                }
                rules::Output::TimedOut(_) | rules::Output::Late(_) | rules::Output::Evicted(_) => {
                    // Counted by the engine, shown by `rules show`.
                }
            }
        }
        any
    }

    fn raise(&mut self, now: Now, event: &rules::AlarmEvent, ports: &mut dyn Ports) {
        let cause = alarm_cause(event);
        let mut body = bodies::alarm(event, now.wall_ms);
        if event.event == rules::AlarmAction::Shelve
            && let Some(object) = body.as_object_mut()
        {
            // A replay shelves for as long again: 0 is until it clears.
            let until = self
                .rules
                .alarms()
                .iter()
                .find(|alarm| alarm.id == event.id)
                .and_then(|a| a.shelved_until_ms);
            let for_ms = until.map_or(0, |until| until.saturating_sub(event.engine_ms));
            object.insert("for_ms".to_owned(), for_ms.into());
        }
        let record = self.append_derived(
            now,
            Class::Alarm,
            key_of_rule(&event.key),
            Some(cause),
            &body,
            ports,
        );
        self.embed_alarm(now, event, record, ports);
        tracing::info!(alarm = %event.id, event = event.event.as_str(), message = %event.message, "alarm");
    }

    /// Commands of one match come one by one; the last one completes the plan.
    fn command(
        &mut self,
        now: Now,
        request: rules::CommandRequest,
        read_at: Option<Instant>,
        ports: &mut dyn Ports,
    ) {
        let of = request.of;
        if request.position == 0 {
            self.sequence.clear();
        }
        self.sequence.push(request);
        if self.sequence.len() < of as usize {
            return;
        }
        let sequence = std::mem::take(&mut self.sequence);
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
            writes: sequence
                .iter()
                .map(|request| self.write_of(&id, request))
                .collect(),
        };
        if dry_run {
            tracing::info!(plan = %plan.id, by = %plan.by, writes = plan.writes.len(), "dry run: not written");
            return;
        }
        let guards: Vec<Option<rules::Guard>> = sequence
            .into_iter()
            .map(|request| request.allow_when)
            .collect();
        if super::rollouts::is_own(&plan) {
            self.roll_out(now, &plan, &guards, ports);
            return;
        }
        if guards.iter().any(Option::is_some) {
            if self.guards.len() >= MOST_STAMPS {
                self.guards.clear();
            }
            self.guards.insert(id, guards);
        }
        if durable && plan.cause > self.durable {
            if self.awaiting_disk.len() >= MOST_STAMPS {
                tracing::warn!(plan = %plan.id, "too many commands wait for the disk; this one is dropped");
                return;
            }
            self.awaiting_disk.push_back((plan, read_at));
            return;
        }
        self.request(now, plan, read_at, None, ports);
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
                    // Taking back is safe to say twice: it asks for a state, not for a movement.
                    repeatable: true,
                    allow_when: None,
                })
            }),
            repeatable: request.repeatable,
            allow_when: request.allow_when.as_ref().map(|_| Interlock {
                plan: plan.clone(),
                position: request.position,
            }),
            target,
        }
    }

    /// Sends the commands whose causing record has become durable.
    pub(super) fn release_durable_commands(&mut self, now: Now, ports: &mut dyn Ports) {
        while self
            .awaiting_disk
            .front()
            .is_some_and(|(plan, _)| plan.cause <= self.durable)
        {
            if let Some((plan, read_at)) = self.awaiting_disk.pop_front() {
                self.request(now, plan, read_at, None, ports);
            }
        }
    }

    /// Takes a plan from anybody. `reply` gets the body of its last step.
    pub fn request(
        &mut self,
        now: Now,
        plan: Plan,
        read_at: Option<Instant>,
        reply: Option<tokio::sync::oneshot::Sender<Json>>,
        ports: &mut dyn Ports,
    ) {
        let id = plan.id.clone();
        if let Some(read_at) = read_at {
            if self.stamps.len() >= MOST_STAMPS {
                self.stamps.clear();
            }
            self.stamps.insert(id.clone(), read_at);
        }
        if let Some(reply) = reply {
            self.replies.insert(id.clone(), reply);
        }
        let fresh = self.with_gate_at(now, read_at, ports, |actuation, gate| {
            actuation.handle_request(now.engine_ms, plan, gate)
        });
        if !fresh && let Some(reply) = self.replies.remove(&id) {
            // A repeated request is answered with how the first one stands.
            let stands = self.actuation.history().rev().find(|step| step.plan == id);
            let _ = reply
                .send(stands.map_or(Json::Null, |step| bodies::command(step, None, now.wall_ms)));
        }
        self.drain_actuation(now, ports);
    }

    /// Takes the steps of local writes; whether there was any.
    pub(super) fn drain_actuation(&mut self, now: Now, ports: &mut dyn Ports) -> bool {
        let mut any = false;
        while let Some(step) = self.actuation.poll_step() {
            any = true;
            self.record_step(now, &step, ports);
        }
        any
    }

    fn record_step(&mut self, now: Now, step: &Step, ports: &mut dyn Ports) {
        let latency_us = match step.status {
            Status::Sent => self
                .stamps
                .get(&step.plan)
                .map(|at| u64::try_from(at.elapsed().as_micros()).unwrap_or(u64::MAX)),
            _ => Some(step.after_ms.saturating_mul(1000)),
        };
        let body = bodies::command(step, latency_us, now.wall_ms);
        let cause = Cause {
            record: step.cause,
            rule: stable_hash(&step.id) ^ stable_hash(step.status.as_str()),
            index: 0,
        };
        let to = &step.target;
        self.append_derived(
            now,
            Class::Command,
            record_key(&to.group, &to.node, to.device.as_ref()),
            Some(cause),
            &body,
            ports,
        );
        self.note_command(&body);
        if step.last {
            self.stamps.remove(&step.plan);
            self.guards.remove(&step.plan);
            if let Some(reply) = self.replies.remove(&step.plan) {
                let _ = reply.send(body);
            }
        }
    }

    /// Keeps account of which writes have no outcome yet.
    pub(super) fn note_command(&mut self, body: &Json) {
        let text = |key: &str| body.get(key).and_then(Json::as_str);
        let (Some(id), Some(status)) = (text("id"), text("status")) else {
            return;
        };
        if status == Status::Sent.as_str() {
            self.open_commands.insert(id.to_owned(), body.clone());
        } else {
            self.open_commands.remove(id);
        }
        self.commands_changed = true;
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
        read_at: Option<Instant>,
        ports: &mut dyn Ports,
        run: impl FnOnce(&mut Actuation, &mut dyn Gate) -> T,
    ) -> T {
        let mut gate = HostGate {
            host: &mut self.host,
            rules: &mut self.rules,
            guards: &self.guards,
            ports,
            now,
            read_at,
        };
        run(&mut self.actuation, &mut gate)
    }

    /// Something that the gateway itself must tell people, as an alarm of rule `sparkgate.<part>`.
    pub fn tell(
        &mut self,
        now: Now,
        part: &str,
        word: &str,
        message: &str,
        urgent: bool,
        ports: &mut dyn Ports,
    ) {
        let occurrence = format!("{word}/{}", now.engine_ms);
        let priority = if urgent { "high" } else { "diagnostic" };
        self.own_alarm(now, part, word, &occurrence, priority, message, true, ports);
    }

    /// As [`Core::tell`] for what begins and ends: raised and cleared under one id, rule `sparkgate.models`.
    fn condition(&mut self, now: Now, word: &str, message: &str, on: bool, ports: &mut dyn Ports) {
        self.own_alarm(now, "models", word, word, "low", message, on, ports);
    }

    #[expect(clippy::too_many_arguments, reason = "each field of one body")]
    fn own_alarm(
        &mut self,
        now: Now,
        part: &str,
        word: &str,
        occurrence: &str,
        priority: &str,
        message: &str,
        on: bool,
        ports: &mut dyn Ports,
    ) {
        let rule = format!("sparkgate.{part}");
        let body = serde_json::json!({
            "id": format!("{:016x}", stable_hash(&format!("{rule}/{occurrence}"))),
            "rule": rule,
            "version": env!("CARGO_PKG_VERSION"),
            "event": if on { "raise" } else { "clear" },
            "state": if on { "unack" } else { "normal" },
            "priority": priority,
            "message": message,
            "timestamp": now.wall_ms,
            "values": {"word": word},
        });
        let key = crate::buffer::record::Key {
            group: None,
            node: None,
            device: None,
        };
        self.append_derived(now, Class::Alarm, key, None, &body, ports);
    }

    /// Another thread answered.
    pub fn handle_answer(&mut self, now: Now, answer: super::Answer, ports: &mut dyn Ports) {
        match answer {
            super::Answer::Model(event) => self.handle_model(now, event, ports),
            super::Answer::Text(event) => self.handle_text(now, event, ports),
            super::Answer::Rollout(outcome) => self.handle_rollout(now, outcome, ports),
        }
        self.settle(now, ports);
    }

    /// A model answered.
    fn handle_model(&mut self, now: Now, event: models::Event, ports: &mut dyn Ports) {
        match event {
            models::Event::Inference(inference) => self.inferred(now, &inference, ports),
            models::Event::NoVerdict(none) => self.count_no_verdict(&none),
            models::Event::Objective {
                model,
                lighter,
                from: _,
                to,
                p95_us,
                objective_us,
            } => {
                tracing::warn!(%model, ?lighter, mode = ?to, p95_us, objective_us, "latency objective");
                let late = to != models::slo::Mode::Own;
                let instead = match (&lighter, late) {
                    (_, false) => "it answers itself again".to_owned(),
                    (Some(lighter), true) => format!("`{lighter}` answers instead"),
                    (None, true) => "each device loses the same share of its windows".to_owned(),
                };
                let message = format!(
                    "model `{model}`: p95 {p95_us} µs, objective {objective_us} µs; {instead}"
                );
                self.condition(now, &format!("objective/{model}"), &message, late, ports);
            }
            models::Event::BackendChanged {
                model,
                from,
                to,
                reason,
            } => {
                tracing::error!(%model, %from, ?to, reason, "model backend changed");
                let now_on = to.map_or("nothing runs it any more".to_owned(), |to| {
                    format!("{to} runs it now")
                });
                let message = format!("model `{model}`: {from} failed ({reason}); {now_on}");
                self.tell(now, "models", "backend", &message, to.is_none(), ports);
            }
            models::Event::Drift {
                model,
                of,
                index,
                moved,
            } => {
                tracing::warn!(%model, %of, index, moved, "model input drift");
                let message = format!(
                    "model `{model}`: `{of}` {} where it was validated (population stability index {index:.2})",
                    if moved {
                        "has moved away from"
                    } else {
                        "is back"
                    }
                );
                self.condition(now, &format!("drift/{model}/{of}"), &message, moved, ports);
            }
            models::Event::Swapped { model, from, to } => {
                tracing::info!(%model, %from, %to, "model version changed");
                let message = format!("model `{model}`: version {to} answers, {from} before");
                self.tell(now, "models", "version", &message, false, ports);
            }
        }
    }

    /// A window came to nothing: counted by reason, and by model for the rules.
    pub(super) fn count_no_verdict(&mut self, none: &models::NoVerdict) {
        *self
            .counters
            .no_verdict
            .entry(none.reason.name())
            .or_default() += 1;
        // As many as there are models.
        *self.unanswered.entry(none.model.clone()).or_default() += 1;
    }

    fn inferred(&mut self, now: Now, inference: &models::Inference, ports: &mut dyn Ports) {
        self.counters.inferences += 1;
        let key = &inference.key;
        let device = (&*key.device != "_").then(|| key.device.clone());
        let cause = Cause {
            record: inference.record,
            rule: stable_hash(&inference.model) ^ u64::from(inference.shadow),
            index: 0,
        };
        let body = bodies::inference(inference);
        let id = self.append_derived(
            now,
            Class::Inference,
            record_key(&key.group, &key.node, device.as_ref()),
            Some(cause),
            &body,
            ports,
        );
        if inference.shadow {
            return;
        }
        let rule_key = rule_key(&key.group, &key.node, device.as_ref());
        self.rules.handle_event(&super::convert::score_event(
            rule_key,
            inference,
            id,
            now.engine_ms,
        ));
        self.drain_rules(now, ports);
    }
}

/// What makes an alarm record unique: the record and place that led to it, the rule, the key, the occurrence and what
/// happened to it. A replay gives the same.
pub(super) fn alarm_cause(event: &rules::AlarmEvent) -> Cause {
    let what = format!(
        "{}\0{}\0{}\0{}\0{}",
        event.rule,
        event.key,
        event.id,
        event.event.as_str(),
        event.engine_ms
    );
    Cause {
        record: event.cause.0,
        rule: stable_hash(&what),
        index: event.cause.1,
    }
}

/// The gate of the actuation: the host checks against the birth, the ports send.
struct HostGate<'a> {
    host: &'a mut sparkplug::host::HostSession,
    rules: &'a mut rules::Engine,
    guards: &'a HashMap<Arc<str>, Vec<Option<rules::Guard>>>,
    ports: &'a mut dyn Ports,
    now: Now,
    read_at: Option<Instant>,
}

impl Gate for HostGate<'_> {
    fn send(&mut self, write: &Write) -> Result<Option<Value>, String> {
        let previous = current(self.host, &write.target, &write.metric);
        let transmit = self
            .host
            .write(
                self.now.engine_ms,
                &node_id(&write.target),
                write.target.device.as_deref(),
                &write.metric,
                &write.value,
            )
            .map_err(|error| error.to_string())?;
        self.ports.publish(transmit, self.read_at);
        Ok(previous)
    }

    fn allowed(&mut self, interlock: &Interlock) -> Result<bool, String> {
        let guard = self
            .guards
            .get(&interlock.plan)
            .and_then(|guards| guards.get(interlock.position as usize))
            .and_then(Option::as_ref)
            .ok_or("its condition is not known any more")?;
        Ok(self.rules.check(guard))
    }
}

fn node_id(target: &Target) -> sparkplug::topic::NodeId {
    sparkplug::topic::NodeId {
        group: target.group.clone(),
        node: target.node.clone(),
    }
}

fn current(host: &sparkplug::host::HostSession, target: &Target, metric: &str) -> Option<Value> {
    host.metric(&node_id(target), target.device.as_deref(), metric)
        .map(|state| state.value.clone())
}
