//! What the engine shows of itself.

use std::fmt::Write as _;
use std::sync::Arc;

use super::Engine;
use super::context::Rule;
use super::merge::{Explained, MOST_KEYS};
use super::state::{KindState, RuleState};
use crate::alarm::Alarm;
use crate::event::{Cause, Key};
use crate::lang::def::{CommandValue, Kind, RuleDef, Time, WindowKind};
use crate::lang::duration::format as ms;
use crate::output::{AlarmStatus, Priority, Values};

/// A rule as listings show it. Counts are since the engine was made.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleInfo {
    /// Id of the rule.
    pub id: Arc<str>,
    /// Id of its pack.
    pub pack: Arc<str>,
    /// Version of its pack.
    pub version: Arc<str>,
    /// `pattern`, `threshold`, `absence` or `window`.
    pub kind: &'static str,
    /// Whether it runs.
    pub enabled: bool,
    /// Whether its commands are only reported.
    pub dry_run: bool,
    /// How often its condition came true.
    pub fires: u64,
    /// How often an expression of it had no result.
    pub errors: u64,
    /// Events that came too late for it.
    pub late: u64,
    /// Partial matches that ran out of time.
    pub timed_out: u64,
    /// Partial matches, samples and events that were given up.
    pub evicted: u64,
    /// Partial matches there are, over all keys.
    pub partials: usize,
    /// Engine time of the last time it fired, ms.
    pub last_fire_ms: Option<u64>,
    /// What births showed that does not fit the rule.
    pub findings: Vec<super::Finding>,
}

/// An alarm as listings show it.
#[derive(Clone, Debug, PartialEq)]
pub struct AlarmInfo {
    /// Id of the occurrence.
    pub id: Arc<str>,
    /// Id of the rule.
    pub rule: Arc<str>,
    /// Version of its pack.
    pub version: Arc<str>,
    /// Key of the rule's state; without a group for an alarm of the program itself.
    pub key: Key,
    /// State.
    pub status: AlarmStatus,
    /// State below shelving, suppression and service.
    pub beneath: AlarmStatus,
    /// Priority.
    pub priority: Priority,
    /// Message.
    pub message: Arc<str>,
    /// Values when it was raised or last changed.
    pub values: Values,
    /// Record and position that led to it.
    pub cause: Cause,
    /// Event time of the cause, ms UTC.
    pub timestamp: Option<i64>,
    /// Engine time at which it was raised, ms.
    pub since_engine_ms: u64,
    /// Whether its condition holds.
    pub active: bool,
    /// Whether somebody still has to acknowledge it.
    pub unacknowledged: bool,
    /// Its source is dead: what it says may be out of date.
    pub stale: bool,
    /// Raised from history.
    pub historical: bool,
    /// Who acknowledged it or, if nobody did, who shelved it.
    pub by: Option<Arc<str>>,
    /// What was written with the acknowledgement.
    pub note: Option<Arc<str>>,
    /// Engine time at which shelving ends, ms.
    pub shelved_until_ms: Option<u64>,
    /// What usually causes it, from the rule.
    pub cause_text: Option<Arc<str>>,
    /// What happens if nobody reacts, from the rule.
    pub consequence: Option<Arc<str>>,
    /// What to do, from the rule.
    pub response: Option<Arc<str>>,
}

/// Counts of the whole engine, since it was made, and what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Keys that hold state.
    pub keys: usize,
    /// Bytes of state, as the engine reckons them.
    pub bytes: usize,
    /// Keys given up because of a limit or their age.
    pub evicted_keys: u64,
    /// Timestamps that were ahead of the wall clock and were set back.
    pub future_timestamps: u64,
    /// Outputs that nobody took and that found no room.
    pub dropped_outputs: u64,
    /// States in snapshots that fit no rule any more, or could not be read.
    pub unreadable_states: u64,
    /// Whether there is an alarm flood.
    pub flood: bool,
}

impl Engine {
    /// Every rule, in the order of the packs.
    #[must_use]
    pub fn list(&self) -> Vec<RuleInfo> {
        self.rules.iter().map(info).collect()
    }

    /// Number of rules.
    #[must_use]
    pub fn rule_count(&self) -> usize {
        self.rules.len()
    }

    /// Counts of the whole engine.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            keys: self.stateful.saturating_sub(self.lent),
            bytes: self.bytes,
            evicted_keys: self.evicted_keys,
            future_timestamps: self.future,
            dropped_outputs: self.out.dropped,
            unreadable_states: self.unreadable,
            flood: self.flood.is_on(),
        }
    }

    /// Every alarm that is not normal: unacknowledged first, then by priority, then the oldest.
    #[must_use]
    pub fn alarms(&self) -> Vec<AlarmInfo> {
        let mut alarms: Vec<AlarmInfo> = self
            .every_alarm()
            .filter_map(|(rule, key, history, failing, alarm)| {
                alarm_info(&rule.def, key, history, failing, alarm)
            })
            .chain(self.owns.iter().filter_map(|own| self.own_info(own)))
            .collect();
        alarms.sort_by(AlarmInfo::cmp_urgency);
        alarms
    }

    fn own_info(&self, own: &super::own::Own) -> Option<AlarmInfo> {
        let about = &own.about;
        bare_info(
            &about.rule,
            &about.version,
            &self.owns.key,
            about.priority,
            &own.alarm,
        )
    }

    /// How many alarms are active, and how many somebody still has to acknowledge. Shelved,
    /// suppressed and out-of-service ones ask for nothing and don't count.
    #[must_use]
    pub fn alarm_counts(&self) -> (usize, usize) {
        let mut counts = (0, 0);
        let of_rules = self.every_alarm().map(|(_, _, _, _, alarm)| alarm);
        for alarm in of_rules.chain(self.owns.iter().map(|own| &own.alarm)) {
            if alarm.status() == alarm.bare_status() {
                counts.0 += usize::from(alarm.is_active());
                counts.1 += usize::from(alarm.is_unacked());
            }
        }
        counts
    }

    /// Alarms of rules and of their failures.
    pub(super) fn every_alarm(&self) -> impl Iterator<Item = (&Rule, &Key, bool, bool, &Alarm)> {
        self.slots.iter().flatten().flat_map(move |slot| {
            slot.states().flat_map(move |(lane, state)| {
                let rule = self.rules.get(lane.rule as usize);
                let own = state.alarm.as_deref().map(|alarm| (false, alarm));
                let failing = state.failures.as_ref().map(|f| (true, &f.alarm));
                rule.into_iter().flat_map(move |rule| {
                    let both = own.into_iter().chain(failing);
                    both.map(move |(failing, alarm)| {
                        (rule, &*slot.key, lane.history, failing, alarm)
                    })
                })
            })
        })
    }

    /// Keys for which a rule holds something, with the number of partial matches, sorted.
    #[must_use]
    pub fn keys_of(&self, rule: &str) -> Vec<(Key, usize)> {
        let mut keys: Vec<(Key, usize)> = self
            .states_of(rule)
            .map(|(key, state)| (key.clone(), state.partials()))
            .collect();
        keys.sort();
        keys
    }

    fn states_of(&self, rule: &str) -> impl Iterator<Item = (&Key, &RuleState)> {
        let number = self.rules.iter().position(|r| &*r.def.id == rule);
        self.slots.iter().flatten().flat_map(move |slot| {
            slot.states()
                .filter(move |(lane, _)| Some(lane.rule as usize) == number)
                .map(|(_, state)| (&*slot.key, state))
        })
    }

    /// A rule's compiled plan and what it holds, as text; `None` for an unknown rule.
    #[must_use]
    pub fn explain(&self, rule: &str) -> Option<Explained> {
        let found = self.rules.iter().find(|r| &*r.def.id == rule)?;
        let mut states: Vec<(&Key, &RuleState)> = self.states_of(rule).collect();
        states.sort_by_key(|(key, _)| *key);
        let held = states.iter().enumerate().map(|(n, (key, state))| {
            let shown = n < MOST_KEYS;
            let text = shown.then(|| describe(&found.def, state, self.now));
            (Key::clone(key), text.unwrap_or_default())
        });
        Some(Explained::new(
            plan(&found.def),
            info(found),
            held.collect(),
        ))
    }
}

fn info(rule: &Rule) -> RuleInfo {
    let def = &rule.def;
    RuleInfo {
        id: def.id.clone(),
        pack: def.pack.clone(),
        version: def.version.clone(),
        kind: def.kind.word(),
        enabled: rule.enabled,
        dry_run: def.dry_run,
        fires: rule.fires,
        errors: rule.errors,
        late: rule.late,
        timed_out: rule.timed_out,
        evicted: rule.evicted,
        partials: rule.partials,
        last_fire_ms: rule.last_fire_ms,
        findings: rule.findings.clone(),
    }
}

fn alarm_info(
    def: &RuleDef,
    key: &Key,
    historical: bool,
    failing: bool,
    alarm: &Alarm,
) -> Option<AlarmInfo> {
    let own = def.alarm.as_ref().filter(|_| !failing);
    let priority = own.map_or(Priority::Diagnostic, |own| own.priority);
    let mut info = bare_info(&def.id, &def.version, key, priority, alarm)?;
    info.historical = historical;
    info.cause_text = own.and_then(|own| own.cause.clone());
    info.consequence = own.and_then(|own| own.consequence.clone());
    info.response = own.and_then(|own| own.response.clone());
    Some(info)
}

/// What an alarm says of itself, without its rule's texts.
fn bare_info(
    rule: &Arc<str>,
    version: &Arc<str>,
    key: &Key,
    priority: Priority,
    alarm: &Alarm,
) -> Option<AlarmInfo> {
    let occurrence = alarm.occurrence()?;
    let acked = alarm.acked();
    Some(AlarmInfo {
        id: occurrence.id.clone(),
        rule: rule.clone(),
        version: version.clone(),
        key: key.clone(),
        status: alarm.status(),
        beneath: alarm.bare_status(),
        priority,
        message: occurrence.message.clone(),
        values: occurrence.values.clone(),
        cause: occurrence.cause,
        timestamp: occurrence.time_ms,
        since_engine_ms: occurrence.since,
        active: alarm.is_active(),
        unacknowledged: alarm.is_unacked(),
        stale: alarm.is_stale(),
        historical: false,
        by: acked
            .map(|a| a.by.clone())
            .or_else(|| alarm.shelf().map(|s| s.by.clone())),
        note: acked
            .map(|a| a.note.clone())
            .filter(|note| !note.is_empty()),
        shelved_until_ms: alarm.shelf().and_then(|s| s.until),
        cause_text: None,
        consequence: None,
        response: None,
    })
}

fn plan(def: &RuleDef) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "rule    {} ({} {})", def.id, def.pack, def.version);
    let scope = [&def.scope.group, &def.scope.node, &def.scope.device].map(|g| g.as_str());
    let [group, node, device] = scope;
    let _ = writeln!(
        text,
        "scope   {group} / {node} / {device}, state by {}",
        def.level.as_str()
    );
    let _ = match def.time {
        Time::Arrival => writeln!(text, "time    arrival"),
        Time::Event {
            out_of_order,
            lateness,
        } => writeln!(
            text,
            "time    event, {} out of order, {} late",
            ms(out_of_order),
            ms(lateness)
        ),
    };
    let mut streams: Vec<String> = Vec::new();
    if def.streams.all {
        streams.push("every metric".to_owned());
    }
    streams.extend(def.streams.metrics.iter().map(|m| format!("`{m}`")));
    streams.extend(
        def.streams
            .models
            .iter()
            .map(|m| format!("scores of `{m}`")),
    );
    if def.streams.embeddings {
        streams.push("embeddings".to_owned());
    }
    let _ = writeln!(text, "streams {}", streams.join(", "));
    for metric in &def.uses.current {
        let _ = writeln!(text, "reads   current(`{metric}`)");
    }
    kind(&mut text, def);
    if let Some(alarm) = &def.alarm {
        let _ = write!(text, "alarm   {}", alarm.priority);
        for (word, value) in [("on after", alarm.on_delay), ("off after", alarm.off_delay)] {
            if value > 0 {
                let _ = write!(text, ", {word} {}", ms(value));
            }
        }
        if alarm.latch {
            let _ = write!(text, ", latched");
        }
        if let Some(clear) = &alarm.clear {
            let _ = write!(text, ", clears when {}", clear.expr.text());
        }
        text.push('\n');
    }
    for (n, command) in def.commands.iter().enumerate() {
        let value = match &command.value {
            CommandValue::Fixed(value) => value.to_string(),
            CommandValue::Computed(expr) => expr.text().to_owned(),
        };
        let _ = write!(text, "command {} {} = {value}", n + 1, command.metric);
        if let Some(guard) = &command.allow_when {
            let _ = write!(text, ", if {}", guard.text());
        }
        text.push('\n');
    }
    if def.dry_run {
        text.push_str("dry run: commands are only reported\n");
    }
    text
}

fn kind(text: &mut String, def: &RuleDef) {
    let _ = match &def.kind {
        Kind::Pattern(def) => {
            for (n, condition) in def.conditions.iter().enumerate() {
                let _ = writeln!(text, "c{n}      {}", condition.text());
            }
            let way = if def.plan.is_chain() {
                "chain"
            } else {
                "automaton"
            };
            writeln!(text, "pattern {way}\n{}", def.plan)
        }
        Kind::Threshold(def) => {
            let limits: Vec<String> = def
                .limits
                .iter()
                .map(|l| format!("{} {}", l.name, l.value))
                .collect();
            let _ = write!(text, "limit   {}: {}", def.metric, limits.join(", "));
            let _ = write!(text, ", deadband {}", def.deadband);
            if let Some((m, n)) = def.m_of_n {
                let _ = write!(text, ", {m} of {n}");
            }
            let (on, off) = (ms(def.on_delay), ms(def.off_delay));
            writeln!(text, ", on after {on}, off after {off}")
        }
        Kind::Absence(def) => {
            let metric = def.metric.as_deref().unwrap_or("any metric");
            writeln!(text, "absence of {metric} for {}", ms(def.wait))
        }
        Kind::Window(def) => {
            let shape = match def.kind {
                WindowKind::Tumbling { size } => format!("tumbling, {}", ms(size)),
                WindowKind::Hopping { size, every } => {
                    format!("hopping, {} every {}", ms(size), ms(every))
                }
                WindowKind::Sliding { size } => format!("sliding, {}", ms(size)),
                WindowKind::Session { gap } => format!("session, gap {}", ms(gap)),
                WindowKind::Count { size, every } => {
                    format!("count, {size} samples every {every}")
                }
            };
            let _ = writeln!(text, "window  {shape} of {}", def.metric);
            for (name, expr) in &def.columns {
                let _ = writeln!(text, "  {name} = {}", expr.text());
            }
            match &def.when {
                Some(when) => writeln!(text, "when    {}", when.text()),
                None => Ok(()),
            }
        }
    };
}

fn describe(def: &RuleDef, state: &RuleState, now: u64) -> String {
    let mut text = match &state.kind {
        KindState::Pattern(None) => "0 partial matches".to_owned(),
        KindState::Pattern(Some(key)) => {
            let mut parts = vec![format!("{} partial matches", key.partial_matches())];
            for (path, started) in key.partials().take(3) {
                let stages = path.forward().map(|(stage, _)| {
                    let name = def.stages.get(usize::from(stage.0));
                    name.map_or("?", |name| &**name)
                });
                let stages: Vec<&str> = stages.collect();
                parts.push(format!("{} since {started}", stages.join(" ")));
            }
            parts.join("; ")
        }
        KindState::Threshold(threshold) => {
            let word = if threshold.active() {
                "over"
            } else {
                "within limits"
            };
            match threshold.deadline() {
                Some(due) => format!("{word}, changes in {}", ms(due.saturating_sub(now))),
                None => word.to_owned(),
            }
        }
        KindState::Absence(Some(absence)) => {
            let silent = ms(now.saturating_sub(absence.last()));
            if absence.absent() {
                format!("absent, silent for {silent}")
            } else {
                format!("silent for {silent}")
            }
        }
        KindState::Absence(None) => "never heard of".to_owned(),
        KindState::Window(window) => format!("{} samples", window.held()),
    };
    if let Some(clock) = &state.clock {
        let _ = write!(
            text,
            ", watermark {}, {} wait",
            clock.watermark,
            clock.waiting.len()
        );
    }
    if let Some(alarm) = &state.alarm {
        let _ = write!(text, ", alarm {}", alarm.status());
    }
    text
}
