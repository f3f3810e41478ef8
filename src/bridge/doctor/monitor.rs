//! What the server says of itself (`VARZ`): over the connection where the account may ask `$SYS`, else from its
//! monitoring port where one is configured.

use std::time::Duration;

use async_nats::RequestErrorKind;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use super::{Level, Questions, Report};
use crate::bridge::ask::AskError;

/// How long it may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// Largest answer; usual are 10 KiB.
const MOST: usize = 4 << 20;

/// The server's `VARZ`, where it can be had.
pub(super) async fn ask(
    report: &mut Report,
    questions: &mut Questions,
    monitor: Option<&str>,
    server: &str,
) -> Option<Value> {
    if let Some(said) = over_system_account(questions, server).await {
        return Some(said);
    }
    let monitor = monitor?;
    let what = format!("monitoring port {monitor}");
    let said = match tokio::time::timeout(PATIENCE, get(monitor)).await {
        Ok(Ok(said)) => said,
        Ok(Err(reason)) => {
            report.say(Level::Warning, what, reason).mend =
                Some("http: 127.0.0.1:8222 in the server's configuration".to_owned());
            return None;
        }
        Err(_) => {
            report.say(Level::Warning, what, "no answer");
            return None;
        }
    };
    match said.get("server_id").and_then(Value::as_str) {
        Some(id) if id == server => Some(said),
        Some(id) => {
            report.say(
                Level::Warning,
                what,
                format!("of server {id}, while the connection is to {server}"),
            );
            None
        }
        None => {
            report.say(Level::Warning, what, "not that of a NATS server");
            None
        }
    }
}

/// Users of the system account may ask, and accounts that import this service.
async fn over_system_account(questions: &mut Questions, server: &str) -> Option<Value> {
    let subject = format!("$SYS.REQ.SERVER.{server}.VARZ");
    let client = questions.client.clone();
    let asked = async {
        let sent = client.request(subject.clone(), Bytes::new());
        match tokio::time::timeout(PATIENCE, sent).await {
            Ok(Ok(answer)) => Ok(Some(answer.payload)),
            Ok(Err(error)) if error.kind() == RequestErrorKind::NoResponders => Ok(None),
            Ok(Err(error)) => Err(AskError::Lost(error.to_string())),
            Err(_) => Err(AskError::Lost("no answer".to_owned())),
        }
    };
    let answer = questions.watched(&subject, asked).await.ok()??;
    let answer: Value = serde_json::from_slice(&answer).ok()?;
    answer.get("data").cloned()
}

async fn get(monitor: &str) -> Result<Value, String> {
    let uri: Uri = monitor
        .parse()
        .map_err(|error: hyper::http::uri::InvalidUri| error.to_string())?;
    let authority = uri.authority().ok_or("no host")?.clone();
    let host = authority.host().trim_matches(['[', ']']).to_owned();
    let stream = TcpStream::connect((host, authority.port_u16().unwrap_or(8222)))
        .await
        .map_err(|error| error.to_string())?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    let connection = tokio::spawn(connection);
    let request = Request::get("/varz")
        .header("host", authority.as_str())
        .body(Empty::<Bytes>::new())
        .map_err(|error| error.to_string())?;
    let answer = async {
        let answer = sender
            .send_request(request)
            .await
            .map_err(|error| error.to_string())?;
        let body = Limited::new(answer.into_body(), MOST).collect().await;
        body.map(|body| body.to_bytes())
            .map_err(|error| error.to_string())
    }
    .await;
    connection.abort();
    serde_json::from_slice(&answer?).map_err(|error| format!("unreadable answer: {error}"))
}
