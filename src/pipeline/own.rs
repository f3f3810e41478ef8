//! What the gateway has to tell of itself, as alarms of rules `sparkgate.<part>` that no pack holds.
//!
//! They live in the rules' engine beside all others: listed, acknowledged and kept with them. Their records have no
//! group. What a crash leaves after the last checkpoint is taken from the journal, as what people did is.

use serde_json::Value as Json;

use super::Ports;
use super::core::Core;
use crate::clock::Now;

/// Local writes.
pub const WRITES: &str = "writes";
/// The audit log.
pub const AUDIT: &str = "audit";
/// The way to the cloud.
pub const BRIDGE: &str = "bridge";
/// The Sparkplug host.
pub const HOST: &str = "host";
/// Models and texts.
pub const MODELS: &str = "models";

/// A model misses its latency objective.
pub(super) const OBJECTIVE: &str = "objective";
/// A figure of a model has moved.
pub(super) const DRIFT: &str = "drift";
/// Texts get no vectors.
pub(super) const TEXT: &str = "text";

/// The gateway's own alarms stand under rules of this prefix.
const PREFIX: &str = "sparkgate.";

/// Something to tell.
#[derive(Debug, Clone, Copy)]
pub struct Own<'a> {
    /// One of this module's parts.
    pub part: &'a str,
    /// What: a stable word.
    pub word: &'a str,
    /// What it is about; empty where the word says it all.
    pub of: &'a str,
    /// One sentence.
    pub message: &'a str,
    /// How much it matters.
    pub priority: rules::Priority,
    /// It happened, and only a person says that it is dealt with.
    pub until_ack: bool,
}

impl<'a> Own<'a> {
    /// Something that happened and stays until a person acknowledges it.
    #[must_use]
    pub fn event(
        part: &'a str,
        word: &'a str,
        of: &'a str,
        message: &'a str,
        urgent: bool,
    ) -> Self {
        Self {
            part,
            word,
            of,
            message,
            priority: if urgent {
                rules::Priority::High
            } else {
                rules::Priority::Diagnostic
            },
            until_ack: true,
        }
    }

    /// Something that begins and ends.
    #[must_use]
    pub fn condition(part: &'a str, word: &'a str, of: &'a str, message: &'a str) -> Self {
        Self {
            part,
            word,
            of,
            message,
            priority: rules::Priority::Low,
            until_ack: false,
        }
    }
}

/// Whether an alarm is one of the gateway's own.
pub(super) fn is_own(event: &rules::AlarmEvent) -> bool {
    event.key.group.is_empty()
}

impl Core {
    /// Tells people of something, as an alarm of rule `sparkgate.<part>`. Told again while it is active, it is a
    /// change of that alarm, and nothing where the message is the same.
    pub fn tell(&mut self, now: Now, own: Own<'_>, ports: &mut dyn Ports) {
        let alarm = rules::OwnAlarm {
            rule: rule(own.part).into(),
            version: env!("CARGO_PKG_VERSION").into(),
            word: own.word.into(),
            of: own.of.into(),
            priority: own.priority,
            message: own.message.into(),
            until_ack: own.until_ack,
        };
        self.rules.raise_own(alarm, now.engine_ms);
        self.drain_rules(now, ports);
    }

    /// What was told is over.
    pub fn untell(&mut self, now: Now, part: &str, word: &str, of: &str, ports: &mut dyn Ports) {
        self.rules.clear_own(&rule(part), word, of, now.engine_ms);
        self.drain_rules(now, ports);
    }

    pub(super) fn set_own(&mut self, now: Now, own: Own<'_>, on: bool, ports: &mut dyn Ports) {
        if on {
            self.tell(now, own, ports);
        } else {
            self.untell(now, own.part, own.word, own.of, ports);
        }
    }

    /// What a part has told with this word and is still so: what each is about.
    pub(super) fn told(&mut self, part: &str, word: &str) -> Vec<std::sync::Arc<str>> {
        let rule = rule(part);
        let all = self.rules.active_own().into_iter();
        all.filter(|own| *own.rule == *rule && *own.word == *word)
            .map(|own| own.of)
            .collect()
    }

    /// A record of an alarm that the gateway raised, changed or cleared itself.
    pub(super) fn replay_own(&mut self, now: Now, body: &Json) {
        let text = |pointer: &str| body.pointer(pointer).and_then(Json::as_str);
        let (Some(rule), Some(word)) = (text("/rule"), text("/values/word")) else {
            return;
        };
        if !rule.starts_with(PREFIX) {
            return;
        }
        let of = text("/values/of").unwrap_or_default();
        match text("/event") {
            Some("raise" | "change") => {
                let priority = text("/priority").and_then(rules::Priority::parse);
                let alarm = rules::OwnAlarm {
                    rule: rule.into(),
                    version: text("/version").unwrap_or_default().into(),
                    word: word.into(),
                    of: of.into(),
                    priority: priority.unwrap_or_default(),
                    message: text("/message").unwrap_or_default().into(),
                    until_ack: text("/until") == Some("ack"),
                };
                self.rules.raise_own(alarm, now.engine_ms);
            }
            Some("clear") => self.rules.clear_own(rule, word, of, now.engine_ms),
            _ => return,
        }
        // Its record is in the journal already.
        self.rules.join();
        while self.rules.poll_output().is_some() {}
    }
}

fn rule(part: &str) -> String {
    format!("{PREFIX}{part}")
}
