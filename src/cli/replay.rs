//! `sparkgate rules replay`: what rules would have done with what was stored.

use std::io::Write;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::offline::{Place, progress};
use super::{Output, table};
use crate::buffer::Selection;
use crate::buffer::record::{Class, Record};
use crate::buffer::tools;
use crate::clock::wall_ms;
use crate::config::Config;
use crate::config::quantity::Span;
use crate::packs;
use crate::pipeline::convert::rule_json;
use crate::pipeline::shard::Rules;
use crate::pipeline::{bodies, feed};

/// Which history, and which rules.
#[derive(Debug, clap::Args)]
pub(super) struct ReplayArgs {
    #[command(flatten)]
    place: Place,
    /// From then on: RFC 3339, ms since 1970 UTC, or so long ago (`2h`)
    #[arg(long, value_parser = moment)]
    from: u64,
    /// What happened so long before is run through the rules first, unseen, so that they know what they would have known
    #[arg(long, default_value = "1h")]
    warm_up: Span,
    /// Until just before then [default: now]
    #[arg(long, value_parser = moment)]
    to: Option<u64>,
    /// Pack file, or a folder that is searched for packs [default: the configuration's]
    #[arg(long)]
    rules: Vec<PathBuf>,
}

/// A point in time as people write it.
fn moment(text: &str) -> Result<u64, String> {
    if let Ok(ms) = text.parse() {
        return Ok(ms);
    }
    if let Ok(at) = text.parse::<jiff::Timestamp>() {
        return u64::try_from(at.as_millisecond()).map_err(|_| "before 1970".to_owned());
    }
    text.parse::<Span>()
        .map(|ago| wall_ms().saturating_sub(ago.as_millis()))
        .map_err(|_| format!("`{text}` is no time; write 2026-11-29T08:00:00Z, ms since 1970, or 2h for two hours ago"))
}

/// How a replay ended.
pub(super) enum Done {
    /// It ran through.
    Fine,
    /// Packs or the configuration can't be used.
    Unusable,
}

/// Runs stored records through rules. Nothing is sent or written: commands are only shown.
pub(super) fn replay(args: &ReplayArgs) -> anyhow::Result<Done> {
    let packs = match load(args) {
        Ok(packs) => packs,
        Err(errors) => {
            for error in errors {
                eprintln!("{error}");
            }
            return Ok(Done::Unusable);
        }
    };
    let to = args.to.unwrap_or_else(wall_ms);
    let begin = args.from.saturating_sub(args.warm_up.as_millis());
    let selection = Selection::between(begin, to);
    let mut run = Run {
        rules: Rules::new(packs, rules::Limits::default(), 1),
        out: std::io::BufWriter::new(std::io::stdout().lock()),
        output: args.place.output(),
        from: args.from,
        now: (0, 0),
        warmed: 0,
        events: 0,
        counts: [0; 4],
    };
    let records = tools::export(
        args.place.history(selection)?,
        &mut progress("replay"),
        &mut |record| run.record(record),
    )?;
    if records > 0 {
        run.finish(to)?;
    }
    run.out.flush()?;
    if let Some(phrase) = run.rules.phrases().first() {
        eprintln!(
            "rules that compare texts (similar(\"{phrase}\")) see no vectors in a replay and match nothing"
        );
    }
    let [matches, alarms, commands, failures] = run.counts;
    let (warmed, records) = (run.warmed, records - run.warmed);
    if warmed > 0 {
        eprintln!(
            "{warmed} records of the {} before were run first, unseen (--warm-up)",
            args.warm_up
        );
    } else if args.warm_up.as_millis() > 0 {
        eprintln!(
            "nothing is stored of the {} before: the rules begin without state",
            args.warm_up
        );
    }
    eprintln!(
        "{records} records, {} metrics: {matches} matches, {alarms} alarms raised, {commands} commands suppressed, {failures} failures",
        run.events
    );
    Ok(Done::Fine)
}

fn load(args: &ReplayArgs) -> Result<Vec<rules::Pack>, Vec<crate::config::load::Diagnostic>> {
    if args.rules.is_empty() {
        let config = args.place.config();
        let loaded = Config::read(config.config.as_deref(), config.config_dir.as_deref())?;
        return packs::configured(&loaded.value.rules);
    }
    packs::configured(&crate::config::Rules {
        paths: args.rules.clone(),
        ..crate::config::Rules::default()
    })
}

struct Run<W: Write> {
    rules: Rules,
    out: W,
    output: Output,
    /// From when on what happens is shown, ms UTC.
    from: u64,
    /// Engine time and wall time of the record at hand, ms.
    now: (u64, u64),
    /// Records before `from`.
    warmed: u64,
    /// Metrics from `from` on.
    events: u64,
    /// Matches, alarms raised, commands and failures.
    counts: [u64; 4],
}

impl<W: Write> Run<W> {
    fn record(&mut self, record: &Record) -> std::io::Result<()> {
        feed::time(&mut self.rules, record);
        self.now = (record.engine_ms, record.received_ms);
        let payload = match record.class {
            Class::Birth | Class::Data => sparkplug::payload::decode_resolved(&record.body).ok(),
            _ => None,
        };
        if record.received_ms < self.from {
            self.warmed += 1;
        } else {
            self.events += payload.as_ref().map_or(0, |p| p.metrics.len() as u64);
        }
        feed::record(&mut self.rules, record, payload.as_ref());
        self.drain()
    }

    /// Time goes on to the end of what was asked for: absences and windows that are due by then come out.
    fn finish(&mut self, to: u64) -> std::io::Result<()> {
        let (engine_ms, wall_ms) = self.now;
        let end = engine_ms.saturating_add(to.saturating_sub(wall_ms));
        self.now = (end, to.max(wall_ms));
        self.rules.advance_to(end);
        self.drain()
    }

    fn drain(&mut self) -> std::io::Result<()> {
        while let Some(output) = self.rules.poll_output() {
            self.told(&output)?;
        }
        Ok(())
    }

    fn told(&mut self, output: &rules::Output) -> std::io::Result<()> {
        let at = |engine_ms: u64| {
            self.now
                .1
                .saturating_sub(self.now.0.saturating_sub(engine_ms))
        };
        if when(output).is_some_and(|engine_ms| at(engine_ms) < self.from) {
            return Ok(());
        }
        let (kind, line, object) = match output {
            rules::Output::Match(found) => {
                let values: serde_json::Map<String, Value> = found
                    .values
                    .iter()
                    .map(|(name, value)| (name.to_string(), rule_json(value)))
                    .collect();
                let shown = Value::Object(values);
                let at = at(found.engine_ms);
                let line = format!("{} match   {} {} {shown}", time(at), found.rule, found.key);
                (
                    Some(0),
                    line,
                    json!({"at": at, "kind": "match", "rule": *found.rule, "version": *found.version, "key": found.key.to_string(), "values": shown, "cause": found.cause.0}),
                )
            }
            rules::Output::Alarm(event) => {
                let at = at(event.engine_ms);
                let raised = event.event == rules::AlarmAction::Raise;
                let line = format!(
                    "{} alarm   {} {} {}: {}",
                    time(at),
                    event.rule,
                    event.key,
                    event.event.as_str(),
                    event.message
                );
                let body = bodies::alarm(event, at);
                (
                    raised.then_some(1),
                    line,
                    json!({"at": at, "kind": "alarm", "rule": *event.rule, "key": event.key.to_string(), "alarm": body}),
                )
            }
            rules::Output::Command(request) => {
                let at = at(request.engine_ms);
                let value = rule_json(&request.value);
                let line = format!(
                    "{} command {} {} {} = {value} (suppressed)",
                    time(at),
                    request.rule,
                    request.target,
                    request.metric
                );
                (
                    Some(2),
                    line,
                    json!({"at": at, "kind": "command", "rule": *request.rule, "target": request.target.to_string(), "metric": *request.metric, "value": value, "suppressed": true}),
                )
            }
            rules::Output::EvalError(failure) => {
                let at = at(failure.engine_ms);
                let line = format!(
                    "{} failure {} {} {}",
                    time(at),
                    failure.rule,
                    failure.key,
                    failure.reason
                );
                (
                    Some(3),
                    line,
                    json!({"at": at, "kind": "failure", "rule": *failure.rule, "key": failure.key.to_string(), "reason": failure.reason.to_string()}),
                )
            }
            rules::Output::TimedOut(_) | rules::Output::Late(_) | rules::Output::Evicted(_) => {
                return Ok(());
            }
        };
        if let Some(count) = kind.and_then(|kind: usize| self.counts.get_mut(kind)) {
            *count += 1;
        }
        match self.output {
            Output::Json => writeln!(self.out, "{object}"),
            Output::Table => writeln!(self.out, "{}", table::printable(&line)),
        }
    }
}

/// Engine time of an output that is shown, ms.
fn when(output: &rules::Output) -> Option<u64> {
    match output {
        rules::Output::Match(found) => Some(found.engine_ms),
        rules::Output::Alarm(event) => Some(event.engine_ms),
        rules::Output::Command(request) => Some(request.engine_ms),
        rules::Output::EvalError(failure) => Some(failure.engine_ms),
        rules::Output::TimedOut(_) | rules::Output::Late(_) | rules::Output::Evicted(_) => None,
    }
}

fn time(ms: u64) -> String {
    let at = i64::try_from(ms)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    at.map_or_else(|| ms.to_string(), |at| format!("{at:.3}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_in_three_ways() {
        assert_eq!(moment("1780272000000"), Ok(1_780_272_000_000));
        assert_eq!(moment("2026-06-01T00:00:00Z"), Ok(1_780_272_000_000));
        let ago = moment("2h").unwrap();
        assert!(wall_ms().abs_diff(ago + 7_200_000) < 60_000);
        assert!(moment("yesterday").unwrap_err().contains("2h"));
        assert_eq!(time(1_780_272_000_005), "2026-06-01T00:00:00.005Z");
    }
}
