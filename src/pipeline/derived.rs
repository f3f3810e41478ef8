//! What rules and models make: alarms and inferences become records, commands go to [`super::writes`].

use super::Ports;
use super::bodies;
use super::convert::{key_of_rule, record_key, rule_key, stable_hash};
use super::core::Core;
use super::latency::Stamp;
use super::own::{DRIFT, MODELS, OBJECTIVE, Own};
use crate::buffer::record::{Cause, Class};
use crate::clock::Now;

impl Core {
    /// Takes what rules have to tell; whether there was anything.
    pub(super) fn drain_rules(&mut self, now: Now, ports: &mut dyn Ports) -> bool {
        self.drain_rules_at(now, None, ports)
    }

    /// As [`Core::drain_rules`]; `stamp` says when the bytes that moved the rules were read.
    pub(super) fn drain_rules_at(
        &mut self,
        now: Now,
        stamp: Option<Stamp>,
        ports: &mut dyn Ports,
    ) -> bool {
        if self.rules.is_shared() {
            if let Some(stamp) = stamp {
                self.stamps.push((self.last_record, stamp));
            }
            if self.is_gathering() {
                return false;
            }
            self.rules.join();
        }
        let any = self.take_outputs(now, stamp, ports);
        self.stamps.clear();
        any
    }

    fn take_outputs(&mut self, now: Now, stamp: Option<Stamp>, ports: &mut dyn Ports) -> bool {
        let mut any = false;
        while let Some(output) = self.rules.poll_output() {
            any = true;
            match output {
                rules::Output::Match(found) => {
                    self.counters.matches += 1;
                    tracing::debug!(rule = %found.rule, key = %found.key, "match");
                }
                rules::Output::Alarm(event) => self.raise(now, &event, ports),
                rules::Output::Command(request) => {
                    let mut stamps = self.stamps.iter();
                    let own = stamps.find(|(record, _)| *record == request.cause.0);
                    let stamp = own.map_or(stamp, |(_, stamp)| Some(*stamp));
                    self.command(now, request, stamp, ports);
                }
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
        if !super::own::is_own(event) {
            self.embed_alarm(now, event, record, ports);
        }
        tracing::info!(alarm = %event.id, event = event.event.as_str(), message = %event.message, "alarm");
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
                from,
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
                // Thinned more or less is the same alarm.
                if late != (from != models::slo::Mode::Own) {
                    let own = Own::condition(MODELS, OBJECTIVE, &model, &message);
                    self.set_own(now, own, late, ports);
                }
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
                self.tell(
                    now,
                    Own::event(MODELS, "backend", &model, &message, to.is_none()),
                    ports,
                );
            }
            models::Event::Drift {
                model,
                of,
                index,
                moved,
            } => {
                tracing::warn!(%model, %of, index, moved, "model input drift");
                let message = format!(
                    "model `{model}`: `{of}` has moved away from where it was validated (population stability index {index:.2})"
                );
                let of = format!("{model}/{of}");
                self.set_own(
                    now,
                    Own::condition(MODELS, DRIFT, &of, &message),
                    moved,
                    ports,
                );
            }
            models::Event::Swapped { model, from, to } => {
                tracing::info!(%model, %from, %to, "model version changed");
                // Nothing that a person has to acknowledge: whoever asked for it is in the record of that.
                let action = serde_json::json!({
                    "verb": "model_version", "model": &*model, "from": &*from, "to": &*to, "timestamp": now.wall_ms,
                });
                self.note_action(now, action, ports);
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
