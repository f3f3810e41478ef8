//! Streams and buckets against what is declared.

use serde_json::{Value, json};

use super::{Level, Patient, Questions, Report, Trouble};
use crate::bridge::kv;
use crate::bridge::stream::Declared;
use crate::buffer::record::{LANES, Lane};
use crate::pipeline::subject::ROOT;

/// Compares the lane's stream; the server's word on it where there is one.
pub(super) async fn stream(
    report: &mut Report,
    patient: Patient<'_>,
    questions: &mut Questions,
    lane: Lane,
) -> Option<Value> {
    let declared = Declared::of(patient.config, patient.gateway, lane);
    let what = format!("stream {}", declared.name);
    let asked = questions
        .api(&format!("STREAM.INFO.{}", declared.name), &Value::Null)
        .await;
    let info = match asked {
        Ok(info) => info,
        Err(Trouble::Missing) => {
            report.say(Level::Error, what, "not there").mend = Some(declared.create_command());
            return None;
        }
        Err(trouble) => {
            trouble.tell(report, what, patient.gateway);
            return None;
        }
    };
    let actual = info.get("config").cloned().unwrap_or(Value::Null);
    let differences = declared.differences(&actual);
    if differences.is_empty() {
        let state = |name: &str| {
            info.pointer(&format!("/state/{name}"))
                .and_then(Value::as_u64)
                .unwrap_or(0)
        };
        let window = actual.get("duplicate_window").and_then(Value::as_u64);
        report.say(
            Level::Ok,
            what,
            format!(
                "as declared, {} messages, {} bytes, dedupe window {} s",
                state("messages"),
                state("bytes"),
                window.unwrap_or(0) / 1_000_000_000
            ),
        );
        return Some(info);
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
    Some(info)
}

/// Streams of others that take this gateway's subjects, too, or in their place.
pub(super) async fn overlaps(report: &mut Report, patient: Patient<'_>, questions: &mut Questions) {
    let (config, gateway) = (patient.config, patient.gateway);
    let request = json!({ "subject": format!("{ROOT}.{gateway}.>") });
    let answer = match questions.api("STREAM.NAMES", &request).await {
        Ok(answer) => answer,
        Err(trouble) => {
            trouble.tell(report, "subjects", gateway);
            return;
        }
    };
    let ours = LANES.map(|lane| Declared::of(config, gateway, lane).name);
    let others: Vec<&str> = answer
        .get("streams")
        .and_then(Value::as_array)
        .map(|names| names.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    let mut alone = true;
    for other in others
        .into_iter()
        .filter(|name| ours.iter().all(|our| our != name))
    {
        alone = false;
        let finding = report.say(
            Level::Error,
            "subjects",
            format!("stream {other} takes subjects of this gateway"),
        );
        finding.mend = Some(format!(
            "nats stream edit {other} --subjects '<subjects outside {ROOT}.{gateway}.>>' (a hub collects by sources)"
        ));
    }
    if alone {
        report.say(Level::Ok, "subjects", "no other stream takes them");
    }
}

/// Compares a bucket's stream.
pub(super) async fn bucket(
    report: &mut Report,
    patient: Patient<'_>,
    questions: &mut Questions,
    bucket: &str,
) {
    let config = patient.config;
    let what = format!("bucket {bucket}");
    let info = match questions
        .api(&format!("STREAM.INFO.KV_{bucket}"), &Value::Null)
        .await
    {
        Ok(info) => info,
        Err(Trouble::Missing) => {
            // It comes into being with the first value when streams are managed.
            let level = if config.manage {
                Level::Note
            } else {
                Level::Error
            };
            report.say(level, what, "not there").mend = Some(format!(
                "nats kv add {bucket} --history 1 --replicas {} --storage file",
                config.replicas
            ));
            return;
        }
        Err(trouble) => {
            trouble.tell(report, what, patient.gateway);
            return;
        }
    };
    let declared = kv::declared(bucket, config.replicas);
    let edit = |flags: String| format!("nats kv edit {bucket} {flags}");
    let mut good = true;
    for (field, level, mend) in [
        (
            "num_replicas",
            Level::Warning,
            edit(format!("--replicas {}", config.replicas)),
        ),
        // Older values take room; newer ones must replace them, not be refused.
        (
            "max_msgs_per_subject",
            Level::Warning,
            edit("--history 1".to_owned()),
        ),
        ("subjects", Level::Error, rebuild(bucket, config.replicas)),
        ("storage", Level::Warning, rebuild(bucket, config.replicas)),
    ] {
        let actual = info
            .pointer(&format!("/config/{field}"))
            .unwrap_or(&Value::Null);
        let wanted = declared.get(field).unwrap_or(&Value::Null);
        if actual != wanted {
            good = false;
            let finding = report.say(level, format!("{what}, {field}"), actual.to_string());
            finding.should = Some(wanted.to_string());
            finding.mend = Some(mend);
        }
    }
    let number = |pointer: &str| info.pointer(pointer).and_then(Value::as_i64).unwrap_or(-1);
    let (used, most) = (number("/state/bytes"), number("/config/max_bytes"));
    if most > 0 && used >= most / 10 * 9 {
        good = false;
        let finding = report.say(
            Level::Warning,
            format!("{what}, room"),
            format!("{used} of {most} bytes used"),
        );
        finding.mend = Some(edit(format!(
            "--max-bucket-size {}",
            most.saturating_mul(2)
        )));
    }
    if good {
        report.say(Level::Ok, what, "there");
    }
}

/// What is fixed when a bucket is made; its values come again with the records.
fn rebuild(bucket: &str, replicas: u8) -> String {
    format!(
        "nats kv del {bucket} --force && nats kv add {bucket} --history 1 --replicas {replicas} --storage file"
    )
}
