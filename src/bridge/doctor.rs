//! Compares what is declared with what the server has, and names the command that mends each difference.
//! Unless asked to mend, nothing is changed; and nothing is ever stored: permissions are tried with messages
//! that the server must refuse.

mod report;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::HeaderMap;
use serde_json::{Value, json};
use tokio::sync::mpsc;

pub use self::report::{Finding, Level, Report};
use super::config::{Config, Durability, Hub};
use super::connect::{ConnectError, Report as Word, connect};
use super::publisher::{self, Ask, AskError};
use super::stream::Declared;
use super::{hub, kv};
use crate::buffer::record::{LANES, Lane};
use crate::pipeline::subject::ROOT;

/// Clocks further apart than this are told.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(5);
/// How long the server may take to refuse a test message.
const PATIENCE: Duration = Duration::from_secs(2);
/// Oldest server with what the bridge needs.
const OLDEST: (u32, u32) = (2, 9);
/// First server with atomic batches.
const BATCHES: (u32, u32) = (2, 12);

/// Why nothing could be looked at.
#[derive(Debug, thiserror::Error)]
pub enum DoctorError {
    /// No server could be reached.
    #[error("no connection ({state}): {source}")]
    Connect {
        /// The state that the bridge shows for it.
        state: &'static str,
        /// Why.
        source: ConnectError,
    },
    /// `urls` is empty.
    #[error("bridge.urls is empty")]
    NoUrls,
}

/// Looks at the first server that can be reached, and at the hub's where there is one. With `fix`, streams,
/// buckets and the hub are first made as declared.
///
/// # Errors
/// None can be reached.
pub async fn examine(config: &Config, gateway: &str, fix: bool) -> Result<Report, DoctorError> {
    let (url, client, words) = reach(config, &config.urls).await?;
    let mut report = Report::default();
    report.say(Level::Ok, "connection", url);
    if fix {
        mend(&mut report, config, gateway, &client).await;
    }
    look(&mut report, config, gateway, &client, words).await;
    let Some(hub) = &config.hub else {
        return Ok(report);
    };
    if hub.urls.is_empty() {
        look_at_hub(&mut report, config, hub, gateway, &client, fix).await;
        return Ok(report);
    }
    match reach(config, &hub.urls).await {
        Ok((url, client, _words)) => {
            report.say(Level::Ok, "connection to the hub", url);
            look_at_hub(&mut report, config, hub, gateway, &client, fix).await;
        }
        Err(error) => {
            report.say(Level::Error, "connection to the hub", error.to_string());
        }
    }
    Ok(report)
}

async fn look_at_hub(
    report: &mut Report,
    config: &Config,
    hub: &Hub,
    gateway: &str,
    client: &async_nats::Client,
    fix: bool,
) {
    let ask = Ask(client.clone());
    if fix && let Err(error) = hub::mend(&ask, config, hub, gateway).await {
        report.say(Level::Error, "mending the hub", words_of(&error));
    }
    hub::look(report, &ask, config, hub, gateway).await;
}

/// Makes streams and buckets as `manage = true` does.
async fn mend(report: &mut Report, config: &Config, gateway: &str, client: &async_nats::Client) {
    let ask = Ask(client.clone());
    for lane in LANES {
        let declared = Declared::of(config, gateway, lane);
        if let Err(error) = publisher::manage(&ask, &declared, true).await {
            let what = format!("mending stream {}", declared.name);
            report.say(Level::Error, what, words_of(&error));
        }
    }
    if config.state.enabled
        && let Err(error) = kv::prepare(client, config.replicas, true).await
    {
        report.say(Level::Error, "mending buckets", words_of(&error));
    }
}

async fn reach(
    config: &Config,
    urls: &[String],
) -> Result<(String, async_nats::Client, mpsc::Receiver<Word>), DoctorError> {
    let mut failed = None;
    for url in urls {
        match connect(config, url, "sparkgate doctor").await {
            Ok((client, words)) => return Ok((url.clone(), client, words)),
            Err(source) => {
                failed = Some(DoctorError::Connect {
                    state: source.state().as_str(),
                    source,
                });
            }
        }
    }
    Err(failed.unwrap_or(DoctorError::NoUrls))
}

async fn look(
    report: &mut Report,
    config: &Config,
    gateway: &str,
    client: &async_nats::Client,
    mut words: mpsc::Receiver<Word>,
) {
    let ask = Ask(client.clone());
    let info = client.server_info();
    version(report, config, &info.version);
    let payload = format!("{} bytes", info.max_payload);
    report.say(Level::Ok, "largest message", payload);
    match ask.api("INFO", &Value::Null).await {
        Ok(account) => limits(report, config, &account),
        Err(error) => {
            let finding = report.say(Level::Error, "JetStream", words_of(&error));
            finding.mend = Some(
                "enable JetStream for this account (jetstream { } in the server's configuration)"
                    .to_owned(),
            );
            return;
        }
    }
    for lane in LANES {
        stream(report, config, gateway, &ask, lane).await;
        permission(report, gateway, client, &mut words, lane).await;
    }
    overlaps(report, config, gateway, &ask).await;
    if config.state.enabled {
        for bucket in [kv::STATE, kv::SCHEMA] {
            self::bucket(report, config, &ask, bucket).await;
        }
    }
    if config.durability == Durability::Normal {
        // Replicas stand in for a disk; a lone server has nothing else.
        let level = if config.replicas == 1 {
            Level::Warning
        } else {
            Level::Note
        };
        let finding = report.say(
            level,
            "durability",
            "an acknowledgement may be up to the server's sync_interval (2 minutes unless set) ahead of its disk; acknowledged records are kept here for longer",
        );
        finding.mend = Some(
            "on a single server: jetstream { sync_interval: always } and durability = \"strict\""
                .to_owned(),
        );
    }
}

fn version(report: &mut Report, config: &Config, version: &str) {
    let mut numbers = version
        .split(['.', '-'])
        .map(|part| part.parse::<u32>().unwrap_or(0));
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
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

fn limits(report: &mut Report, config: &Config, account: &Value) {
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

async fn stream(report: &mut Report, config: &Config, gateway: &str, ask: &Ask, lane: Lane) {
    let declared = Declared::of(config, gateway, lane);
    let what = format!("stream {}", declared.name);
    let info = match ask
        .api(&format!("STREAM.INFO.{}", declared.name), &Value::Null)
        .await
    {
        Ok(info) => info,
        Err(error) => {
            let finding = report.say(Level::Error, what, words_of(&error));
            finding.mend = Some(declared.create_command());
            return;
        }
    };
    if lane == Lane::Data {
        clock(report, &info);
    }
    let actual = info.get("config").cloned().unwrap_or(Value::Null);
    let differences = declared.differences(&actual);
    if differences.is_empty() {
        let state = |name: &str| {
            info.pointer(&format!("/state/{name}"))
                .and_then(Value::as_u64)
        };
        report.say(
            Level::Ok,
            what,
            format!(
                "as declared, {} messages, {} bytes",
                state("messages").unwrap_or(0),
                state("bytes").unwrap_or(0)
            ),
        );
        return;
    }
    for difference in differences {
        let level = if difference.unsafe_now {
            Level::Error
        } else {
            Level::Warning
        };
        let finding = report.say(
            level,
            format!("{what}, {}", difference.field),
            difference.actual.to_string(),
        );
        finding.should = Some(difference.declared.to_string());
        finding.mend = Some(declared.mend_command(&difference));
    }
}

/// The server stamps its answers since 2.10.
fn clock(report: &mut Report, info: &Value) {
    let Some(stamp) = info
        .get("ts")
        .and_then(Value::as_str)
        .and_then(unix_seconds)
    else {
        return;
    };
    let here = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let apart = here.abs_diff(Duration::from_secs(stamp));
    let level = if apart > CLOCK_TOLERANCE {
        Level::Warning
    } else {
        Level::Ok
    };
    report.say(
        level,
        "clocks",
        format!("{:.0} s apart", apart.as_secs_f64()),
    );
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

/// Publishes what no stream can take: it expects a stream of another name.
async fn permission(
    report: &mut Report,
    gateway: &str,
    client: &async_nats::Client,
    words: &mut mpsc::Receiver<Word>,
    lane: Lane,
) {
    let class = match lane {
        Lane::Data => "data",
        Lane::Alarms => "alarm",
    };
    let subject = format!("{ROOT}.{gateway}.{class}._._._");
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Expected-Stream", "sparkgate-doctor-stores-nothing");
    let asked = client.request_with_headers(subject.clone(), headers, bytes::Bytes::new());
    tokio::select! {
        answered = tokio::time::timeout(PATIENCE, asked) => {
            // Refused by the stream, or nobody listens: either way it was permitted.
            if answered.is_ok() {
                report.say(Level::Ok, format!("right to publish {class}"), "granted");
            } else {
                report.say(Level::Warning, format!("right to publish {class}"), "no answer");
            }
        }
        Some(Word::Server(detail)) = words.recv() => {
            let finding = report.say(Level::Error, format!("right to publish {class}"), detail);
            finding.mend = Some(format!("permissions: {{ publish: {{ allow: [\"{ROOT}.{gateway}.>\", \"$JS.API.>\", \"$KV.>\"] }} }} for this user"));
        }
    }
}

/// Streams of others that take this gateway's subjects, too, or in their place.
async fn overlaps(report: &mut Report, config: &Config, gateway: &str, ask: &Ask) {
    let request = json!({ "subject": format!("{ROOT}.{gateway}.>") });
    let Ok(answer) = ask.api("STREAM.NAMES", &request).await else {
        return;
    };
    let ours = LANES.map(|lane| Declared::of(config, gateway, lane).name);
    let others: Vec<&str> = answer
        .get("streams")
        .and_then(Value::as_array)
        .map(|names| names.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    for other in others
        .into_iter()
        .filter(|name| ours.iter().all(|our| our != name))
    {
        let finding = report.say(
            Level::Error,
            "subjects",
            format!("stream {other} takes subjects of this gateway"),
        );
        finding.mend = Some(format!(
            "nats stream edit {other} --subjects '<subjects outside {ROOT}.{gateway}.>>' (a hub collects by sources)"
        ));
    }
}

async fn bucket(report: &mut Report, config: &Config, ask: &Ask, bucket: &str) {
    let what = format!("bucket {bucket}");
    let add = format!(
        "nats kv add {bucket} --history 1 --replicas {} --storage file",
        config.replicas
    );
    match ask
        .api(&format!("STREAM.INFO.KV_{bucket}"), &Value::Null)
        .await
    {
        Ok(info) => {
            let replicas = info.pointer("/config/num_replicas").and_then(Value::as_u64);
            if replicas == Some(u64::from(config.replicas)) {
                report.say(Level::Ok, what, "there");
            } else {
                let finding = report.say(
                    Level::Warning,
                    format!("{what}, replicas"),
                    replicas.unwrap_or(0).to_string(),
                );
                finding.should = Some(config.replicas.to_string());
                finding.mend = Some(format!(
                    "nats kv edit {bucket} --replicas {}",
                    config.replicas
                ));
            }
        }
        Err(error) => {
            // It comes into being with the first value when streams are managed.
            let level = if config.manage {
                Level::Note
            } else {
                Level::Error
            };
            report.say(level, what, words_of(&error)).mend = Some(add);
        }
    }
}

pub(super) fn words_of(error: &AskError) -> String {
    match error {
        AskError::Refused(refusal) => refusal.description.clone(),
        AskError::Lost(detail) => detail.clone(),
    }
}

#[cfg(test)]
mod tests {
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

    fn check(version: &str, durability: Durability, safe: bool) {
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
        check("2.8.4", Durability::Normal, false);
        check("2.9.10", Durability::Normal, true);
        check("2.11.0-RC.1", Durability::Strict, false);
        check("2.15.1", Durability::Strict, true);
    }
}
