//! Compares what is declared with what the server has, and names the command that mends each difference.
//! Unless asked to mend, nothing is changed; and nothing is ever stored: permissions are tried with requests
//! that the server must refuse.

mod monitor;
mod question;
mod report;
mod rights;
mod server;
mod streams;

use std::time::Duration;

use serde_json::Value;

pub(super) use self::question::{Questions, Trouble};
pub use self::report::{Finding, Level, Report};
use super::ask::{Ask, AskError};
use super::config::{Config, Hub};
use super::connect::{ConnectError, connect};
use super::stream::Declared;
use super::{hub, kv};
use crate::buffer::record::LANES;

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

/// Whom it is about.
#[derive(Debug, Clone, Copy)]
pub struct Patient<'a> {
    /// `[bridge]`.
    pub config: &'a Config,
    /// The gateway's id.
    pub gateway: &'a str,
    /// How long acknowledged records are kept here (`[buffer] warm.keep_delivered`).
    pub kept: Duration,
}

/// Looks at the first server that can be reached, and at the hub's where there is one. With `fix`, streams,
/// buckets and the hub are first made as declared.
///
/// # Errors
/// None can be reached.
pub async fn examine(patient: Patient<'_>, fix: bool) -> Result<Report, DoctorError> {
    let config = patient.config;
    let (url, mut questions) = reach(config, &config.urls).await?;
    let mut report = Report::default();
    report.say(Level::Ok, "connection", url);
    if fix {
        mend(&mut report, patient, &questions.client).await;
    }
    look(&mut report, patient, &mut questions).await;
    let Some(hub) = &config.hub else {
        return Ok(report);
    };
    if hub.urls.is_empty() {
        look_at_hub(&mut report, patient, hub, &mut questions, fix).await;
        return Ok(report);
    }
    match reach(config, &hub.urls).await {
        Ok((url, mut questions)) => {
            report.say(Level::Ok, "connection to the hub", url);
            look_at_hub(&mut report, patient, hub, &mut questions, fix).await;
        }
        Err(error) => {
            report.say(Level::Error, "connection to the hub", error.to_string());
        }
    }
    Ok(report)
}

async fn reach(config: &Config, urls: &[String]) -> Result<(String, Questions), DoctorError> {
    let mut failed = None;
    for url in urls {
        match connect(config, url, "sparkgate doctor").await {
            Ok((client, words)) => return Ok((url.clone(), Questions::new(client, words))),
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

async fn look(report: &mut Report, patient: Patient<'_>, questions: &mut Questions) {
    let config = patient.config;
    let info = questions.client.server_info();
    server::version(report, config, &info.version);
    let payload = format!("{} bytes", info.max_payload);
    report.say(Level::Ok, "largest message", payload);
    let said = monitor::ask(
        report,
        questions,
        config.monitor.as_deref(),
        &info.server_id,
    )
    .await;
    let mut apart = said.as_ref().and_then(server::apart_by_varz);
    server::durability(report, patient, &info.version, said.as_ref());
    match questions.api("INFO", &Value::Null).await {
        Ok(account) => server::limits(report, config, &account),
        Err(trouble @ Trouble::Refused(_)) => {
            trouble.tell(report, "JetStream", patient.gateway);
            return;
        }
        // One question that is not permitted says nothing about the others.
        Err(trouble) => trouble.tell(report, "JetStream", patient.gateway),
    }
    for lane in LANES {
        let info = streams::stream(report, patient, questions, lane).await;
        apart = apart.or_else(|| server::apart_by_stream(info.as_ref()?));
        rights::of_lane(report, patient, questions, lane, info.as_ref()).await;
    }
    rights::beside_the_lanes(report, patient, questions).await;
    streams::overlaps(report, patient, questions).await;
    if config.state.enabled {
        for bucket in [kv::STATE, kv::SCHEMA] {
            streams::bucket(report, patient, questions, bucket).await;
        }
    }
    server::clocks(report, apart);
}

async fn look_at_hub(
    report: &mut Report,
    patient: Patient<'_>,
    hub: &Hub,
    questions: &mut Questions,
    fix: bool,
) {
    let (config, gateway) = (patient.config, patient.gateway);
    let ask = Ask(questions.client.clone());
    if fix && let Err(error) = hub::mend(&ask, config, hub, gateway).await {
        report.say(Level::Error, "mending the hub", words_of(&error));
    }
    hub::look(report, questions, config, hub, gateway).await;
}

/// Makes streams and buckets as `manage = true` does.
async fn mend(report: &mut Report, patient: Patient<'_>, client: &async_nats::Client) {
    let ask = Ask(client.clone());
    for lane in LANES {
        let declared = Declared::of(patient.config, patient.gateway, lane);
        if let Err(error) = ask.manage(&declared, true).await {
            let what = format!("mending stream {}", declared.name);
            report.say(Level::Error, what, words_of(&error));
        }
    }
    if patient.config.state.enabled
        && let Err(error) = kv::prepare(client, patient.config.replicas, true).await
    {
        report.say(Level::Error, "mending buckets", words_of(&error));
    }
}

fn words_of(error: &AskError) -> String {
    match error {
        AskError::Refused(refusal) => refusal.description.clone(),
        AskError::Lost(detail) => detail.clone(),
    }
}
