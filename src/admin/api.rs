//! Rules, alarms, models, buffer, commands and history.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Shared;
use super::auth::Operator;
use crate::buffer::Selection;
use crate::buffer::record::{Class, Key};
use crate::pipeline::convert::{rule_json, value_json};
use crate::pipeline::own::{self, Own};
use crate::pipeline::task::{CoreHandle, Gone};

/// Records that one history request looks at and returns, at most.
const MOST_HISTORY: usize = 10_000;

/// An answer that is not 2xx: `{"error": …}`.
#[derive(Debug)]
pub struct ApiError {
    status: StatusCode,
    message: String,
}

impl ApiError {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
        }
    }

    /// 400.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// 401.
    pub fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, message)
    }

    /// 403.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, message)
    }

    /// 404.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    /// 409: well-formed, and not possible now.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, message)
    }

    /// 504.
    pub fn timeout(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, message)
    }

    /// The words.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl From<Gone> for ApiError {
    fn from(error: Gone) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(json!({"error": self.message}))).into_response()
    }
}

/// Any other path.
pub async fn not_found() -> ApiError {
    ApiError::not_found("no such path; the API is described in docs/api.md")
}

/// `GET /api/rules`.
///
/// # Errors
/// The core is gone.
pub async fn rules(State(shared): State<Arc<Shared>>) -> Result<Json<Value>, ApiError> {
    let list = shared
        .core
        .ask(|core, now, _| {
            let dry_run = core.dry_run();
            core.rules()
                .list()
                .into_iter()
                .map(|rule| {
                    json!({
                        "id": rule.id.as_ref(),
                        "pack": rule.pack.as_ref(),
                        "version": rule.version.as_ref(),
                        "kind": rule.kind,
                        "enabled": rule.enabled,
                        "dry_run": rule.dry_run || dry_run,
                        "fires": rule.fires,
                        "errors": rule.errors,
                        "late": rule.late,
                        "timed_out": rule.timed_out,
                        "evicted": rule.evicted,
                        "partials": rule.partials,
                        "findings": rule.findings.iter().map(ToString::to_string).collect::<Vec<_>>(),
                        "last_fire_ms": rule.last_fire_ms.map(|at| now.wall_ms.saturating_sub(now.engine_ms.saturating_sub(at))),
                    })
                })
                .collect::<Vec<_>>()
        })
        .await?;
    Ok(Json(Value::Array(list)))
}

/// `GET /api/rules/{id}`: the compiled plan and the live state.
///
/// # Errors
/// Unknown rule.
pub async fn rule(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let name = id.clone();
    shared
        .core
        .ask(move |core, _, _| core.rules().explain(&id))
        .await?
        .map(|plan| Json(json!({"id": name, "plan": plan.to_string()})))
        .ok_or_else(|| ApiError::not_found(format!("no rule {name}")))
}

/// `POST /api/rules/{id}/{enable|disable}`.
///
/// # Errors
/// Unknown rule or action.
pub async fn rule_action(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    Path((id, action)): Path<(String, String)>,
) -> Result<Json<Value>, ApiError> {
    let on = match action.as_str() {
        "enable" => true,
        "disable" => false,
        _ => {
            return Err(ApiError::not_found(format!(
                "no action {action}; known: enable, disable"
            )));
        }
    };
    tracing::info!(rule = id, on, by = operator.by, "rule switched");
    let name = id.clone();
    let known = shared
        .core
        .ask(move |core, now, ports| {
            let known = core.rules().set_enabled(&id, on);
            if known {
                let verb = if on { "enable_rule" } else { "disable_rule" };
                let action =
                    json!({"verb": verb, "rule": id, "by": operator.by, "timestamp": now.wall_ms});
                core.note_action(now, action, ports);
            }
            core.settle(now, ports);
            known
        })
        .await?;
    if known {
        Ok(Json(json!({"id": name, "enabled": on})))
    } else {
        Err(ApiError::not_found(format!("no rule {name}")))
    }
}

/// `GET /api/alarms`: what is active or not acknowledged, unacknowledged first.
///
/// # Errors
/// The core is gone.
pub async fn alarms(State(shared): State<Arc<Shared>>) -> Result<Json<Value>, ApiError> {
    let list = shared
        .core
        .ask(|core, now, _| {
            let alarms = core.rules().alarms();
            let texts = core.texts();
            alarms
                .into_iter()
                .map(|alarm| {
                    // An alarm of the gateway itself has neither, one of a group no node.
                    let name = |name: &Arc<str>| Some(name.to_string()).filter(|n| !n.is_empty());
                    let related = texts.and_then(|texts| texts.related(&alarm.id));
                    let values: serde_json::Map<String, Value> = alarm
                        .values
                        .iter()
                        .map(|(k, v)| (k.to_string(), rule_json(v)))
                        .collect();
                    let age = now.engine_ms.saturating_sub(alarm.since_engine_ms);
                    json!({
                        "id": alarm.id.as_ref(),
                        "rule": alarm.rule.as_ref(),
                        "version": alarm.version.as_ref(),
                        "group": name(&alarm.key.group),
                        "node": name(&alarm.key.node),
                        "device": alarm.key.device.as_deref(),
                        "state": alarm.status.as_str(),
                        "priority": alarm.priority.as_str(),
                        "message": alarm.message.as_ref(),
                        "timestamp": now.wall_ms.saturating_sub(age),
                        "stale": alarm.stale,
                        "active": alarm.active,
                        "by": alarm.by.as_deref(),
                        "note": alarm.note.as_deref(),
                        "shelved_until": alarm.shelved_until_ms.map(|until| {
                            let left = until.saturating_sub(now.engine_ms);
                            now.wall_ms.saturating_add(left)
                        }),
                        "cause_text": alarm.cause_text.as_deref(),
                        "consequence": alarm.consequence.as_deref(),
                        "response": alarm.response.as_deref(),
                        "values": values,
                        "family": related.map(|related| &*related.family),
                        "neighbours": related.map(neighbours).unwrap_or_default(),
                    })
                })
                .collect::<Vec<_>>()
        })
        .await?;
    Ok(Json(Value::Array(list)))
}

/// Recent alarms that mean nearly the same, nearest first.
fn neighbours(related: &crate::pipeline::texts::Related) -> Vec<Value> {
    let near = related.neighbours.iter();
    near.map(|near| {
        json!({
            "id": &*near.alarm,
            "record": near.record,
            "group": &*near.key.group,
            "node": &*near.key.node,
            "device": Some(&*near.key.device).filter(|device| *device != "_"),
            "message": &*near.text,
            "similarity": (f64::from(near.similarity) * 1e3).round() / 1e3,
        })
    })
    .collect()
}

/// What an alarm action may say.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AlarmBody {
    note: String,
    for_ms: Option<u64>,
}

/// `POST /api/alarms/{id}/{ack|shelve|unshelve|suppress|unsuppress|out-of-service|in-service|reset}`.
///
/// # Errors
/// Unknown alarm or action, or an action that its state does not allow.
pub async fn alarm_action(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    Path((id, action)): Path<(String, String)>,
    body: Option<Json<AlarmBody>>,
) -> Result<Json<Value>, ApiError> {
    let body = body.map(|Json(body)| body).unwrap_or_default();
    shared
        .core
        .ask(move |core, now, ports| {
            let (at, by) = (now.engine_ms, operator.by.as_str());
            let rules = core.rules();
            let done = match action.as_str() {
                "ack" => rules.ack_alarm(&id, by, &body.note, at),
                "shelve" => match body.for_ms {
                    Some(for_ms) => rules.shelve_alarm(&id, by, for_ms, at),
                    None => return Err(ApiError::bad_request("shelve needs `for_ms`")),
                },
                "unshelve" => rules.unshelve_alarm(&id, by, at),
                "out-of-service" => rules.service_alarm(&id, by, true, at),
                "in-service" => rules.service_alarm(&id, by, false, at),
                "suppress" => rules.suppress_alarm(&id, by, true, at),
                "unsuppress" => rules.suppress_alarm(&id, by, false, at),
                "reset" => rules.reset_alarm(&id, by, at),
                _ => {
                    return Err(ApiError::not_found(format!(
                        "no action {action}; known: ack, shelve, unshelve, suppress, unsuppress, out-of-service, in-service, reset"
                    )));
                }
            };
            core.settle(now, ports);
            match done {
                Ok(state) => Ok(Json(json!({"id": id, "state": state.as_str()}))),
                Err(error) => Err(ApiError::refused(error.to_string())),
            }
        })
        .await?
}

/// `GET /api/buffer`.
pub async fn buffer(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let lanes: serde_json::Map<String, Value> = crate::buffer::record::LANES
        .iter()
        .map(|lane| {
            let state =
                serde_json::to_value(shared.journal.lane_state(*lane)).unwrap_or(Value::Null);
            (lane.as_str().to_owned(), state)
        })
        .collect();
    let stat = shared.journal.stat();
    let mut out = serde_json::to_value(&stat).unwrap_or(Value::Null);
    if let Some(object) = out.as_object_mut() {
        object.insert("lanes".into(), Value::Object(lanes));
        object.insert(
            "cold_objects".into(),
            json!(stat.cold.as_ref().map_or(0, |cold| cold.objects)),
        );
    }
    Json(out)
}

/// `GET /api/commands`: the most recent steps of local writes, oldest first, those of before a restart too.
///
/// # Errors
/// The core is gone.
pub async fn commands(State(shared): State<Arc<Shared>>) -> Result<Json<Value>, ApiError> {
    let list = shared.core.ask(|core, _, _| core.recent_writes()).await?;
    Ok(Json(Value::Array(list)))
}

/// Which history.
#[derive(Debug, Deserialize)]
pub struct HistoryQuery {
    /// `group/node` or `group/node/device`, names percent-encoded.
    device: String,
    metric: String,
    /// ms UTC.
    from: u64,
    /// ms UTC.
    to: u64,
}

/// `GET /api/history?device=&metric=&from=&to=`: `[[timestamp, value], …]`, oldest first.
///
/// # Errors
/// A malformed device, or the journal can't be read.
pub async fn history(
    State(shared): State<Arc<Shared>>,
    Query(query): Query<HistoryQuery>,
) -> Result<Json<Value>, ApiError> {
    let parts: Vec<String> = query.device.split('/').map(percent_decode).collect();
    let (group, node, device) = match parts.as_slice() {
        [group, node] => (group.clone(), node.clone(), None),
        [group, node, device] => (group.clone(), node.clone(), Some(device.clone())),
        _ => {
            return Err(ApiError::bad_request(
                "`device` is group/node or group/node/device",
            ));
        }
    };
    let journal = shared.journal.clone();
    // Reads from disk: not on the server's own threads.
    let points = tokio::task::spawn_blocking(move || {
        let key = Key {
            group: Some(group.into()),
            node: Some(node.into()),
            device: device.map(Into::into),
        };
        let records = journal
            .history(&Selection::between(query.from, query.to).of(key))
            .filter(|record| {
                record.as_ref().map_or(true, |record| {
                    matches!(record.class, Class::Data | Class::Birth)
                })
            })
            .take(MOST_HISTORY);
        let mut points = Vec::new();
        for record in records {
            let record = record?;
            let Ok(payload) = sparkplug::payload::decode_resolved(&record.body) else {
                continue;
            };
            for metric in payload.metrics.iter().filter(|m| *m.name == *query.metric) {
                points.push(json!([
                    metric.timestamp.unwrap_or(record.received_ms),
                    value_json(&metric.value)
                ]));
            }
        }
        Ok::<_, crate::buffer::ReadError>(points)
    })
    .await
    .map_err(|error| ApiError::refused(error.to_string()))?
    .map_err(|error| ApiError::refused(error.to_string()))?;
    Ok(Json(Value::Array(points)))
}

/// What the bridge tells and asks, carried to the core.
#[must_use]
pub fn cloud_hooks(core: CoreHandle, gateway: String) -> crate::bridge::Hooks {
    let (telling, writing, acking) = (core.clone(), core.clone(), core);
    crate::bridge::Hooks {
        notice: Arc::new(move |notice| {
            let (word, message, urgent) = (notice.id(), notice.message(), notice.is_urgent());
            let lane = format!("{:?}", notice.lane).to_lowercase();
            let over = notice.ends();
            let core = telling.clone();
            tokio::spawn(async move {
                let told = core
                    .ask(move |core, now, ports| {
                        if let Some(over) = over {
                            return core.untell(now, own::BRIDGE, over, &lane, ports);
                        }
                        let own = Own::event(own::BRIDGE, word, &lane, &message, urgent);
                        core.tell(now, own, ports);
                    })
                    .await;
                if told.is_err() {
                    tracing::debug!(
                        "the pipeline has stopped; a notice of the bridge is only in the log"
                    );
                }
            });
        }),
        write: Arc::new(move |request| {
            let (core, gateway) = (writing.clone(), gateway.clone());
            Box::pin(async move {
                let (Some(group), Some(node)) = (request.target.group, request.target.node) else {
                    return Err("a write needs a group and a node".to_owned());
                };
                let target = crate::actuation::Target {
                    group,
                    node,
                    device: request.target.device,
                };
                let body =
                    super::devices::WriteBody::new(request.id, request.metrics, request.ttl_ms);
                let by = cloud_name(&request.by);
                super::devices::submit(&core, &gateway, &by, target, body)
                    .await
                    .map_err(|error| error.message)
            })
        }),
        ack: Arc::new(move |request| {
            let core = acking.clone();
            Box::pin(async move {
                let by = cloud_name(&request.by);
                let note = request.note.unwrap_or_default();
                let id = request.id;
                core.ask(move |core, now, ports| {
                    let done = core.rules().ack_alarm(&id, &by, &note, now.engine_ms);
                    core.settle(now, ports);
                    done.map(|state| json!({"id": id, "state": state.as_str()}))
                        .map_err(|error| error.to_string())
                })
                .await
                .map_err(|error| error.to_string())?
            })
        }),
    }
}

/// Who asks from the cloud, as the audit names them.
fn cloud_name(by: &str) -> String {
    format!("cloud:{}", if by.is_empty() { "unnamed" } else { by })
}

fn percent_decode(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let digits: Vec<u8> = bytes.clone().take(2).collect();
        match std::str::from_utf8(&digits)
            .ok()
            .and_then(|d| u8::from_str_radix(d, 16).ok())
        {
            Some(decoded) if digits.len() == 2 => {
                out.push(decoded);
                bytes.next();
                bytes.next();
            }
            _ => out.push(byte),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_decoding_keeps_what_is_not_encoded() {
        for (text, decoded) in [
            ("a%2Fb", "a/b"),
            ("Pumpe%20S%C3%BCd", "Pumpe Süd"),
            ("50%", "50%"),
            ("%zz", "%zz"),
        ] {
            assert_eq!(percent_decode(text), decoded);
        }
    }
}
