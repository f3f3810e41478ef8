//! The server itself: version, room, clock, and what its acknowledgement is worth.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::{Level, Patient, Report};
use crate::bridge::config::{Config, Durability};

/// Clocks further apart than this are told.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(5);
/// Oldest server with what the bridge needs.
const OLDEST: (u32, u32) = (2, 9);
/// First server whose `sync_interval` can be set; before, it is [`FIXED_SYNC`].
const SYNC_SET: (u32, u32) = (2, 10);
const FIXED_SYNC: Duration = Duration::from_secs(120);
/// First server with atomic batches.
const BATCHES: (u32, u32) = (2, 12);

fn numbers(version: &str) -> (u32, u32) {
    let mut numbers = version
        .split(['.', '-'])
        .map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

pub(super) fn version(report: &mut Report, config: &Config, version: &str) {
    let found = numbers(version);
    if found < OLDEST {
        let finding = report.say(Level::Error, "server version", version);
        finding.should = Some(format!("at least {}.{}", OLDEST.0, OLDEST.1));
    } else if config.durability == Durability::Strict && found < BATCHES {
        let finding = report.say(Level::Error, "server version", version);
        finding.should = Some(format!(
            "at least {}.{} for durability = \"strict\"",
            BATCHES.0, BATCHES.1
        ));
    } else {
        report.say(Level::Ok, "server version", version);
    }
}

pub(super) fn limits(report: &mut Report, config: &Config, account: &Value) {
    let number = |pointer: &str| account.pointer(pointer).and_then(Value::as_i64);
    report.say(Level::Ok, "JetStream", "enabled");
    let (used, most) = (number("/storage"), number("/limits/max_storage"));
    if let (Some(used), Some(most)) = (used, most.filter(|most| *most > 0)) {
        let wanted = config
            .max_bytes
            .and_then(|bytes| i64::try_from(bytes.0).ok())
            .map_or(0, |bytes| bytes.saturating_mul(2));
        let level = if used >= most {
            Level::Error
        } else if wanted > most {
            Level::Warning
        } else {
            Level::Ok
        };
        report.say(
            level,
            "account storage",
            format!("{used} of {most} bytes used"),
        );
    }
}

/// How far the server's acknowledgements may be ahead of its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sync {
    /// Not at all.
    Always,
    /// As much as this.
    Every(Duration),
    /// The server does not say so here.
    Unknown,
}

/// `VARZ` has had it since 2.10, where it can be set.
fn sync(version: &str, varz: Option<&Value>) -> Sync {
    if numbers(version) < SYNC_SET {
        return Sync::Every(FIXED_SYNC);
    }
    let Some(config) = varz.and_then(|said| said.pointer("/jetstream/config")) else {
        return Sync::Unknown;
    };
    if config.get("sync_always") == Some(&Value::Bool(true)) {
        return Sync::Always;
    }
    match config.get("sync_interval").and_then(Value::as_u64) {
        Some(ns) => Sync::Every(Duration::from_nanos(ns)),
        None => Sync::Unknown,
    }
}

/// What an acknowledgement means, and whether what is kept here makes up for the difference.
pub(super) fn durability(
    report: &mut Report,
    patient: Patient<'_>,
    version: &str,
    varz: Option<&Value>,
) {
    let (config, kept) = (patient.config, patient.kept);
    let strict = config.durability == Durability::Strict;
    // Replicas stand in for a disk; a lone server has nothing else.
    let alone = if config.replicas == 1 {
        Level::Warning
    } else {
        Level::Note
    };
    let seconds = kept.as_secs();
    let always =
        "on a single server: jetstream { sync_interval: always } and durability = \"strict\"";
    let (level, is, mend) = match sync(version, varz) {
        Sync::Always => (
            Level::Ok,
            "what is acknowledged is on the server's disk (sync_interval: always)".to_owned(),
            None,
        ),
        Sync::Every(interval) if strict => (
            Level::Error,
            format!(
                "durability = \"strict\", and the server syncs every {} s: a power cut there takes what it acknowledged",
                interval.as_secs_f64()
            ),
            Some("jetstream { sync_interval: always } in the server's configuration".to_owned()),
        ),
        Sync::Every(interval) if interval >= kept => (
            Level::Error,
            format!(
                "an acknowledgement may be {} s ahead of the server's disk, and records are kept here for {seconds} s after it: a power cut there loses the rest",
                interval.as_secs_f64()
            ),
            Some(format!(
                "[buffer] warm = {{ keep_delivered = \"{}s\" }} or more, or a shorter sync_interval",
                interval.as_secs().saturating_mul(2).max(1)
            )),
        ),
        Sync::Every(interval) => (
            alone,
            format!(
                "an acknowledgement may be {} s ahead of the server's disk; records are kept here for {seconds} s after it and sent again when the stream went backwards",
                interval.as_secs_f64()
            ),
            Some(always.to_owned()),
        ),
        Sync::Unknown => (
            if strict { Level::Warning } else { alone },
            format!(
                "the server's sync_interval can't be known here (2 min unless set): an acknowledgement may be ahead of its disk by as much; records are kept here for {seconds} s after it"
            ),
            Some(format!(
                "compare sync_interval in the server's configuration, or let doctor ask: [bridge] monitor = \"http://HOST:8222\"{}",
                if strict {
                    "; durability = \"strict\" needs sync_interval: always"
                } else {
                    ""
                }
            )),
        ),
    };
    report.say(level, "durability", is).mend = mend;
}

/// How far the clocks are apart, by the server's word on a stream that has just come; stamped since 2.10.
pub(super) fn apart_by_stream(info: &Value) -> Option<Duration> {
    apart(info.get("ts")?.as_str()?)
}

/// The same by `VARZ`, which has a stamp in every version.
pub(super) fn apart_by_varz(said: &Value) -> Option<Duration> {
    apart(said.get("now")?.as_str()?)
}

fn apart(stamp: &str) -> Option<Duration> {
    let there = Duration::from_secs(unix_seconds(stamp)?);
    let here = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    Some(here.abs_diff(there))
}

/// The server's clock against this one.
pub(super) fn clocks(report: &mut Report, apart: Option<Duration>) {
    let Some(apart) = apart else {
        report
            .say(
                Level::Note,
                "clocks",
                "the offset can't be known: the server stamps no answer (before 2.10, or there is no stream)",
            )
            .mend = Some("date -u on both machines, or [bridge] monitor = \"http://HOST:8222\"".to_owned());
        return;
    };
    let level = if apart > CLOCK_TOLERANCE {
        Level::Warning
    } else {
        Level::Ok
    };
    let finding = report.say(
        level,
        "clocks",
        format!("{:.0} s apart", apart.as_secs_f64()),
    );
    if level == Level::Warning {
        finding.mend = Some("timedatectl set-ntp true on the machine that is wrong".to_owned());
    }
}

/// Seconds since 1970 of `YYYY-MM-DDTHH:MM:SS…Z`.
fn unix_seconds(text: &str) -> Option<u64> {
    let (date, time) = text.split_once('T')?;
    let mut date = date.split('-').map(str::parse::<u64>);
    let (year, month, day) = (date.next()?.ok()?, date.next()?.ok()?, date.next()?.ok()?);
    let mut time = time.get(..8)?.split(':').map(str::parse::<u64>);
    let (hour, minute, second) = (time.next()?.ok()?, time.next()?.ok()?, time.next()?.ok()?);
    // Days from the civil calendar, years beginning in March.
    let year = if month <= 2 {
        year.checked_sub(1)?
    } else {
        year
    };
    let month = if month <= 2 {
        month + 9
    } else {
        month.checked_sub(3)?
    };
    let (era, yoe) = (year / 400, year % 400);
    let doy = (153 * month + 2) / 5 + day.checked_sub(1)?;
    let days = (era * 146_097 + yoe * 365 + yoe / 4 + doy).checked_sub(yoe / 100 + 719_468)?;
    Some(days * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn stamps_are_read() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2000-02-29T00:00:00.123456789Z", Some(951_782_400)),
            ("2025-11-29T16:25:00.123Z", Some(1_764_433_500)),
            ("yesterday", None),
            ("2025-00-00T00:00:00Z", None),
        ] {
            assert_eq!(unix_seconds(text), seconds, "{text}");
        }
    }

    fn check_version(version: &str, durability: Durability, safe: bool) {
        let mut report = Report::default();
        let config = Config {
            durability,
            ..Config::default()
        };
        super::version(&mut report, &config, version);
        assert_eq!(report.is_safe(), safe, "{version}");
    }

    #[test]
    fn versions_are_judged_by_what_is_asked_of_them() {
        check_version("2.8.4", Durability::Normal, false);
        check_version("2.9.10", Durability::Normal, true);
        check_version("2.11.0-RC.1", Durability::Strict, false);
        check_version("2.15.1", Durability::Strict, true);
    }

    fn check(sync: &Value, durability: Durability, replicas: u8, level: Level, words: &str) {
        let mut report = Report::default();
        let config = Config {
            durability,
            replicas,
            ..Config::default()
        };
        let patient = Patient {
            config: &config,
            gateway: "site-a",
            kept: Duration::from_secs(300),
        };
        let varz = (!sync.is_null()).then(|| json!({ "jetstream": { "config": sync } }));
        super::durability(&mut report, patient, "2.15.1", varz.as_ref());
        let found = report.findings.first().unwrap();
        assert_eq!(found.level, level, "{report}");
        assert!(report.to_string().contains(words), "{report}");
    }

    #[test]
    fn an_acknowledgement_is_worth_what_the_server_syncs() {
        let (normal, strict) = (Durability::Normal, Durability::Strict);
        let always = json!({ "sync_interval": 120_000_000_000u64, "sync_always": true });
        let default = json!({ "sync_interval": 120_000_000_000u64 });
        let late = json!({ "sync_interval": 600_000_000_000u64 });
        check(&always, normal, 1, Level::Ok, "sync_interval: always");
        check(&always, strict, 1, Level::Ok, "sync_interval: always");
        check(&default, normal, 1, Level::Warning, "120 s ahead");
        check(&default, normal, 3, Level::Note, "120 s ahead");
        check(
            &default,
            strict,
            1,
            Level::Error,
            "takes what it acknowledged",
        );
        check(&late, normal, 3, Level::Error, "keep_delivered = \"1200s\"");
        check(&Value::Null, normal, 1, Level::Warning, "can't be known");
        check(&Value::Null, normal, 3, Level::Note, "monitor = ");
        check(
            &Value::Null,
            strict,
            3,
            Level::Warning,
            "needs sync_interval: always",
        );
        assert_eq!(sync("2.9.10", None), Sync::Every(FIXED_SYNC));
    }
}
