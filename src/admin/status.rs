//! Health: `/livez`, `/readyz`, `/api/status`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::Shared;
use super::api::ApiError;
use super::certificates::Certificate;
use super::models::models_json;
use crate::broker::{ClientStats, Event, Handle, Validity};
use crate::pipeline::core::Counters;
use crate::pipeline::latency::{Latency, STAGES};

/// What one short question to the core brings.
pub(super) struct CoreView {
    pub(super) counters: Counters,
    pub(super) nodes: (usize, usize),
    pub(super) devices: (usize, usize),
    pub(super) active: usize,
    pub(super) unacknowledged: usize,
    pub(super) writes: BTreeMap<&'static str, u64>,
    pub(super) rules: usize,
    pub(super) latency: Latency,
}

/// Looks at the core; constant time a node.
pub(super) async fn look(shared: &Shared) -> Result<CoreView, ApiError> {
    let view = shared
        .core
        .ask(|core, _, _| {
            let mut view = CoreView {
                counters: core.counters().clone(),
                nodes: (0, 0),
                devices: (0, 0),
                active: 0,
                unacknowledged: 0,
                writes: BTreeMap::new(),
                rules: 0,
                latency: Latency::default(),
            };
            for node in core.host().nodes() {
                view.nodes.0 += 1;
                view.nodes.1 += usize::from(node.own().online());
                for device in node.devices() {
                    view.devices.0 += 1;
                    view.devices.1 += usize::from(device.online());
                }
            }
            (view.active, view.unacknowledged) = core.rules().alarm_counts();
            view.rules = core.rules().rule_count();
            view.writes = core.actuation().counts().clone();
            if let Ok(latency) = core.latency().lock() {
                view.latency = latency.clone();
            }
            view
        })
        .await?;
    Ok(view)
}

/// `GET /livez`: the process answers.
pub async fn livez() -> &'static str {
    "ok\n"
}

/// `GET /readyz`: listeners are bound and the journal takes records. An unreachable cloud is `degraded`, not unready.
pub async fn readyz(State(shared): State<Arc<Shared>>) -> Response {
    let bound = *shared.ready.borrow();
    let disk = shared.journal.stat().disk_state;
    let uplink = shared.bridge.as_ref().map(|bridge| bridge.status().state);
    let ready = bound && disk != crate::buffer::DiskState::Stopped;
    let degraded = disk != crate::buffer::DiskState::Ok
        || uplink.is_some_and(|state| state != crate::bridge::status::UplinkState::Ok);
    let body = json!({
        "ready": ready,
        "degraded": degraded,
        "listeners": bound,
        "disk": disk,
        "uplink": uplink.map_or("none", |state| state.as_str()),
    });
    let code = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (code, Json(body)).into_response()
}

/// `GET /api/status`.
///
/// # Errors
/// The core is gone.
pub async fn status(State(shared): State<Arc<Shared>>) -> Result<Json<Value>, ApiError> {
    Ok(Json(status_json(&shared).await?))
}

/// The status object of the contract.
///
/// # Errors
/// The core is gone.
pub async fn status_json(shared: &Shared) -> Result<Value, ApiError> {
    let view = look(shared).await?;
    // One snapshot under one lock: the identity of counters holds in it.
    let counts = shared.journal.counts();
    let stat = shared.journal.stat();
    let broker = shared.broker.stats();
    let now_ms = crate::clock::wall_ms();
    let uplink = shared.bridge.as_ref().map_or_else(
        || json!({"state": "none", "since": shared.started_ms, "oldest_pending_s": null, "drain_eta_s": null}),
        |bridge| {
            let status = bridge.status();
            let lane = |lane: &crate::bridge::status::LaneStatus| {
                json!({
                    "state": lane.state.as_str(), "detail": lane.detail, "pending": lane.pending,
                    "pending_bytes": lane.pending_bytes, "in_flight": lane.in_flight, "window": lane.window,
                    "rate": lane.rate, "published": lane.published, "filtered": lane.filtered,
                    "unsendable": lane.unsendable, "duplicates": lane.duplicates, "resyncs": lane.resyncs,
                    "connects": lane.connects, "drain_eta_s": lane.drain_eta_s.map(f64::ceil),
                    "acked": lane.acked,
                })
            };
            let eta = match (status.data.drain_eta_s, status.alarms.drain_eta_s) {
                (Some(a), Some(b)) => Some(a.max(b).ceil()),
                _ => None,
            };
            json!({
                "state": status.state.as_str(),
                "since": status.since_ms,
                "oldest_pending_s": status.oldest_pending_s(now_ms).map(f64::floor),
                "drain_eta_s": eta,
                "lanes": {"data": lane(&status.data), "alarms": lane(&status.alarms)},
            })
        },
    );
    let mut out = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "gateway": shared.gateway,
        "config_hash": shared.configured.hash(),
        "started": shared.started_ms,
        "uptime_s": shared.started.elapsed().as_secs(),
        "time": now_ms,
        "received": counts.received,
        "derived": counts.derived,
        "published": counts.published,
        "pending": counts.pending,
        "filtered": counts.filtered,
        "dropped": counts.dropped,
        "duplicates": view.counters.ignored.get("duplicate").copied().unwrap_or(0),
        "invalid": view.counters.invalid,
        "ignored": view.counters.ignored,
        "messages": view.counters.messages,
        "metrics": view.counters.metrics,
        "matches": view.counters.matches,
        "rule_errors": view.counters.rule_errors,
        "inferences": view.counters.inferences,
        "no_verdict": view.counters.no_verdict,
        "rebirths": view.counters.rebirths,
        "duplicate_identities": view.counters.duplicate_identities,
        "withheld": view.counters.withheld,
        "commands": view.writes,
        "rules": view.rules,
        "host": {
            "nodes": view.nodes.0, "nodes_online": view.nodes.1,
            "devices": view.devices.0, "devices_online": view.devices.1,
            "servers": shared.links.status().iter().map(|link| json!({
                "url": link.url, "state": link.state, "since": link.since_ms, "detail": link.detail,
                "connects": link.connects, "received": link.received, "sent": link.sent, "lost": link.lost,
            })).collect::<Vec<_>>(),
        },
        "decision_us": decision_json(&view.latency),
        "uplink": uplink,
        "buffer": {
            "hot_bytes": stat.hot_bytes, "warm_bytes": stat.warm_bytes, "cold_objects": stat.cold.as_ref().map_or(0, |cold| cold.objects),
            "warm_max_bytes": stat.warm_max_bytes, "segments": stat.segments, "disk": stat.disk_state,
            "served_hot": stat.served_hot, "served_warm": stat.served_warm, "served_cold": stat.served_cold,
            "cold": stat.cold,
        },
        "mqtt": {
            "engine": broker.engine, "connections": broker.connections, "sessions": broker.sessions,
            "retained": broker.retained, "unsaved_bytes": broker.unsaved_bytes, "publishes": broker.publishes,
            "dropped": broker.dropped.into_iter().collect::<BTreeMap<_, _>>(),
            "refused": broker.refused.into_iter().collect::<BTreeMap<_, _>>(),
            "clients": broker.clients.map(|clients| clients_json(clients, now_ms)),
            "certificates": certificates_json(&broker.certificates),
        },
        "models": models_json(shared),
        "alarms": {"unacknowledged": view.unacknowledged, "active": view.active},
        "notify": shared.notifier.status(),
    });
    if let Some(object) = out.as_object_mut() {
        object.insert("configured".into(), shared.configured.json());
        let broker = broker.certificates.into_iter().map(Certificate::from);
        let certificates: Vec<Certificate> = broker.chain(shared.certificates.seen()).collect();
        object.insert("certificates".into(), json!(certificates));
    }
    Ok(out)
}

/// `GET /api/log`: the newest lines of the log, oldest first. They hold no secrets and no values of metrics.
pub async fn log() -> Json<Vec<crate::telemetry::Line>> {
    Json(crate::telemetry::lines())
}

/// `GET /api/traces`: the newest decisions, oldest first.
pub async fn traces(
    State(shared): State<Arc<Shared>>,
) -> Json<Vec<crate::pipeline::decisions::Decision>> {
    Json(shared.core.decisions().after(0))
}

/// Longest wait for an export of the state.
const EXPORT_WAIT: std::time::Duration = std::time::Duration::from_secs(25);

/// `POST /api/backup`: exports the state and says where the file lies, for `sparkgate backup`.
///
/// # Errors
/// No right to, or the state store refuses.
pub async fn export(
    State(shared): State<Arc<Shared>>,
    _operator: super::auth::Operator,
) -> Result<Json<Value>, ApiError> {
    let mut exports = shared.exports.clone();
    match tokio::time::timeout(EXPORT_WAIT, exports.fresh()).await {
        Ok(Some(snapshot)) => Ok(Json(json!({
            "snapshot": snapshot.path.display().to_string(),
            "record": snapshot.mark,
            "entries": snapshot.entries,
        }))),
        Ok(None) => Err(ApiError::refused(
            "the state could not be exported; the log has the reason",
        )),
        Err(_) => Err(ApiError::timeout(
            "the state store did not answer in time; is its disk slow?",
        )),
    }
}

/// Comings and goings of MQTT clients; the newest first.
fn clients_json(clients: ClientStats, now_ms: u64) -> Value {
    let recent: Vec<Value> = clients
        .recent
        .into_iter()
        .map(|recent| {
            let age = u64::try_from(recent.age.as_millis()).unwrap_or(u64::MAX);
            let at = now_ms.saturating_sub(age);
            match recent.event {
                Event::Connected {
                    client,
                    user,
                    address,
                    protocol,
                } => json!({
                    "event": "connected", "at": at, "client": client, "user": user,
                    "address": address, "protocol": protocol,
                }),
                Event::Disconnected { client, reason } => json!({
                    "event": "disconnected", "at": at, "client": client, "reason": reason,
                }),
            }
        })
        .collect();
    json!({
        "connects": clients.connects.into_iter().collect::<BTreeMap<_, _>>(),
        "disconnects": clients.disconnects.into_iter().collect::<BTreeMap<_, _>>(),
        "recent": recent,
    })
}

/// Files of `[mqtt.tls]` and the days that they are still good for.
fn certificates_json(certificates: &[Validity]) -> Vec<Value> {
    let now = SystemTime::now();
    certificates
        .iter()
        .map(|c| {
            json!({
                "what": c.what, "file": c.file, "not_after": c.ends.saturating_mul(1000),
                "days_left": c.left(now).div_euclid(86_400),
            })
        })
        .collect()
}

/// Latency from the socket read of a cause to the socket write of the command, µs, whole and by stage.
fn decision_json(latency: &Latency) -> Value {
    let of = |histogram: &crate::pipeline::latency::Histogram| {
        json!({
            "p50": histogram.quantile(0.5), "p99": histogram.quantile(0.99), "p999": histogram.quantile(0.999),
            "max": histogram.max_us(), "count": histogram.count(),
        })
    };
    let mut out = of(&latency.total);
    let stages: serde_json::Map<String, Value> = STAGES
        .iter()
        .zip(&latency.stages)
        .map(|(name, stage)| ((*name).to_owned(), of(stage)))
        .collect();
    if let Some(object) = out.as_object_mut() {
        object.insert("stages".to_owned(), Value::Object(stages));
    }
    out
}
