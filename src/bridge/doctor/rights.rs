//! Whether this user may do what the gateway does: each right is tried with a request that can't change anything.

use std::time::Duration;

use async_nats::{HeaderMap, RequestErrorKind};
use bytes::Bytes;
use serde_json::{Value, json};

use super::question::permissions;
use super::{Level, Patient, Questions, Report, Trouble};
use crate::bridge::ask::AskError;
use crate::bridge::connect::Report as Word;
use crate::bridge::kv;
use crate::bridge::stream::{self, Declared};
use crate::buffer::record::{Class, Lane};
use crate::pipeline::subject::ROOT;

/// How long the server may take to answer a test message.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long its word on a subscription may take behind the answer that follows it.
const WORD: Duration = Duration::from_millis(300);
/// No stream has this name.
const NOWHERE: &str = "sparkgate-doctor-changes-nothing";

/// To publish the lane's records, to read where its stream ends, and to make or change it where that is to come.
pub(super) async fn of_lane(
    report: &mut Report,
    patient: Patient<'_>,
    questions: &mut Questions,
    lane: Lane,
    info: Option<&Value>,
) {
    let (config, gateway) = (patient.config, patient.gateway);
    let declared = Declared::of(config, gateway, lane);
    let name = &declared.name;
    let mut granted = true;
    for class in stream::classes(lane).map(Class::as_str) {
        let subject = format!("{ROOT}.{gateway}.{class}._._._");
        if let Err(trouble) = publish(questions, subject).await {
            granted = false;
            trouble.tell(report, format!("right to publish {class}"), gateway);
        }
    }
    if granted {
        report.say(Level::Ok, format!("right to publish to {name}"), "granted");
    }
    // Sequences begin at 1: there is no such message, or no such stream.
    let what = format!("STREAM.MSG.GET.{name}");
    let read = questions.api(&what, &json!({ "seq": u64::MAX })).await;
    judge(
        report,
        gateway,
        format!("right to read {name}"),
        answered(read),
    );
    let config_there = info.and_then(|info| info.get("config"));
    let verb = match config_there {
        None => "CREATE",
        Some(actual) if declared.update(actual).is_some() => "UPDATE",
        Some(_) => return,
    };
    if config.manage {
        // Refused: the name in the request is not that of the subject.
        let what = format!("STREAM.{verb}.{name}");
        let tried = questions.api(&what, &json!({ "name": NOWHERE })).await;
        let line = format!("right to {} {name}", verb.to_lowercase());
        judge(report, gateway, line, answered(tried));
    }
}

/// To write the buckets and to hear requests from the cloud.
pub(super) async fn beside_the_lanes(
    report: &mut Report,
    patient: Patient<'_>,
    questions: &mut Questions,
) {
    let (config, gateway) = (patient.config, patient.gateway);
    if config.state.enabled {
        for bucket in [kv::STATE, kv::SCHEMA] {
            let subject = format!("$KV.{bucket}.{gateway}._._._");
            let tried = publish(questions, subject).await;
            judge(report, gateway, format!("right to write {bucket}"), tried);
        }
    }
    if config.writes.enabled {
        for subject in [
            format!("{ROOT}.{gateway}.write.*.*.*"),
            format!("{ROOT}.{gateway}.ack"),
        ] {
            subscribe(report, questions, gateway, subject).await;
        }
    }
}

/// Publishes what no stream can take: it expects a stream of another name.
async fn publish(questions: &mut Questions, subject: String) -> Result<(), Trouble> {
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Expected-Stream", NOWHERE);
    let client = questions.client.clone();
    let asked = async {
        let sent = client.request_with_headers(subject.clone(), headers, Bytes::new());
        match tokio::time::timeout(PATIENCE, sent).await {
            // Refused by the stream, or nobody listens: either way it was permitted.
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) if error.kind() == RequestErrorKind::NoResponders => Ok(()),
            Ok(Err(error)) => Err(AskError::Lost(error.to_string())),
            Err(_) => Err(AskError::Lost("no answer".to_owned())),
        }
    };
    questions.watched(&subject, asked).await
}

/// A refusal is an answer: the question was permitted.
fn answered(asked: Result<Value, Trouble>) -> Result<(), Trouble> {
    match asked {
        Ok(_) | Err(Trouble::Missing | Trouble::Refused(_)) => Ok(()),
        Err(trouble) => Err(trouble),
    }
}

fn judge(report: &mut Report, gateway: &str, what: String, tried: Result<(), Trouble>) {
    match tried {
        Ok(()) => {
            report.say(Level::Ok, what, "granted");
        }
        Err(trouble) => trouble.tell(report, what, gateway),
    }
}

async fn subscribe(report: &mut Report, questions: &mut Questions, gateway: &str, subject: String) {
    let what = format!("right to hear {subject}");
    let client = questions.client.clone();
    // Dropped, and so ended, right away; who asks meanwhile is answered by the gateway.
    let held = client.subscribe(subject.clone()).await;
    let flushed = client.flush().await.map_err(|error| error.to_string());
    if let Err(error) = held.map_err(|error| error.to_string()).and(flushed) {
        report.say(Level::Error, what, error);
        return;
    }
    // However slow the server is: its word on the subscription leaves before its answer to what was asked behind it.
    let behind = client.request("$JS.API.INFO", Bytes::new());
    let _ = tokio::time::timeout(PATIENCE, behind).await;
    let forbidden = format!("Permissions Violation for Subscription to \"{subject}\"");
    let heard = async {
        loop {
            match questions.words.recv().await {
                Some(Word::Server(detail)) if detail.contains(&forbidden) => return detail,
                Some(_) => {}
                None => std::future::pending().await,
            }
        }
    };
    match tokio::time::timeout(WORD, heard).await {
        Ok(detail) => {
            report
                .say(Level::Error, what, format!("not permitted: {detail}"))
                .mend = Some(permissions(gateway));
        }
        Err(_) => {
            report.say(Level::Ok, what, "granted");
        }
    }
}
