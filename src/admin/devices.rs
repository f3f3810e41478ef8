//! Nodes and devices: listings, rebirths, writes, holds.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Query, State};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sparkplug::host::{DeviceView, HostSession, NodeView, RebirthCause};
use sparkplug::topic::NodeId;

use super::Shared;
use super::api::ApiError;
use super::auth::Operator;
use crate::actuation::{Confirm, Plan, Target, Write};
use crate::host::Links;
use crate::pipeline::convert::{json_value, value_json};

/// Nodes read from the core between two of its messages: a listing of thousands must not delay data.
const PAGE: usize = 32;
/// Longest a write waits for its outcome.
const WRITE_WAIT: Duration = Duration::from_secs(20);
/// Longest a hold waits for the disk.
const DISK_WAIT: Duration = Duration::from_secs(5);
/// Metrics of one write request.
const MOST_WRITES: usize = 64;

/// What a listing may ask for.
#[derive(Debug, Default, Deserialize)]
pub struct ListQuery {
    /// `true`: with all metrics, as `/api/devices/{g}/{n}/{d}` gives them.
    #[serde(default)]
    metrics: bool,
}

fn device_json(
    links: &Links,
    node: &NodeView<'_>,
    device: &DeviceView<'_>,
    metrics: bool,
) -> Value {
    let mut out = Map::new();
    let id = node.id();
    out.insert("group".into(), json!(id.group.as_ref()));
    out.insert("node".into(), json!(id.node.as_ref()));
    if let Some(name) = device.name() {
        out.insert("device".into(), json!(name.as_ref()));
    }
    out.insert("online".into(), json!(device.online()));
    out.insert("since".into(), json!(device.since_ms()));
    out.insert("births".into(), json!(device.births()));
    out.insert("deaths".into(), json!(device.deaths()));
    out.insert("bdseq".into(), json!(node.bdseq()));
    out.insert("last_seq".into(), json!(node.last_seq()));
    out.insert(
        "last_rebirth_cause".into(),
        json!(node.last_rebirth_cause().map(RebirthCause::as_str)),
    );
    out.insert("rebirth_pending".into(), json!(node.rebirth_pending()));
    out.insert("unverified".into(), json!(node.unverified()));
    out.insert("latency_ms".into(), json!(device.latency_ms()));
    out.insert("schema".into(), json!(device.schema()));
    out.insert("client".into(), json!(node.client().map(AsRef::as_ref)));
    out.insert("server".into(), json!(links.name(node.server())));
    let states = device.metrics();
    out.insert(
        "stale_metrics".into(),
        json!(states.iter().filter(|m| m.stale).count()),
    );
    if metrics {
        let list: Vec<Value> = states
            .iter()
            .map(|m| {
                json!({
                    "name": m.name.as_ref(),
                    "type": m.datatype.as_str(),
                    "value": value_json(&m.value),
                    "timestamp": m.timestamp,
                    "quality": m.quality.unwrap_or(192),
                    "stale": m.stale,
                })
            })
            .collect();
        out.insert("metrics".into(), Value::Array(list));
    } else {
        out.insert("metric_count".into(), json!(states.len()));
    }
    Value::Object(out)
}

fn node_json(links: &Links, node: &NodeView<'_>) -> Value {
    let mut out = device_json(links, node, &node.own(), true);
    if let Some(object) = out.as_object_mut() {
        let devices: Vec<Value> = node
            .devices()
            .map(|d| device_json(links, node, &d, false))
            .collect();
        object.insert("devices".into(), Value::Array(devices));
    }
    out
}

fn find<'a>(host: &'a HostSession, group: &str, node: &str) -> Option<NodeView<'a>> {
    host.node(&NodeId {
        group: group.into(),
        node: node.into(),
    })
}

/// `GET /api/devices`: one object a node and device, nodes first.
///
/// # Errors
/// The core is gone.
pub async fn list(
    State(shared): State<Arc<Shared>>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Vec<Value>>, ApiError> {
    let mut all = Vec::new();
    let mut from = 0;
    loop {
        let with = query.metrics;
        let links = shared.links.clone();
        let page = shared
            .core
            .ask(move |core, _, _| {
                let mut out = Vec::new();
                let mut nodes = 0;
                for node in core.host().nodes().skip(from).take(PAGE) {
                    nodes += 1;
                    out.push(device_json(&links, &node, &node.own(), with));
                    out.extend(node.devices().map(|d| device_json(&links, &node, &d, with)));
                }
                (nodes, out)
            })
            .await?;
        all.extend(page.1);
        if page.0 < PAGE {
            return Ok(Json(all));
        }
        from += PAGE;
    }
}

/// `GET /api/devices/{group}/{node}`: the node with its metrics and devices.
///
/// # Errors
/// Unknown node.
pub async fn node(
    State(shared): State<Arc<Shared>>,
    Path((group, node)): Path<(String, String)>,
) -> Result<Json<Value>, ApiError> {
    let name = format!("{group}/{node}");
    let links = shared.links.clone();
    shared
        .core
        .ask(move |core, _, _| find(core.host(), &group, &node).map(|n| node_json(&links, &n)))
        .await?
        .map(Json)
        .ok_or_else(|| ApiError::not_found(format!("no node {name}")))
}

/// `GET /api/devices/{group}/{node}/{device}`.
///
/// # Errors
/// Unknown device.
pub async fn device(
    State(shared): State<Arc<Shared>>,
    Path((group, node, device)): Path<(String, String, String)>,
) -> Result<Json<Value>, ApiError> {
    let name = format!("{group}/{node}/{device}");
    let links = shared.links.clone();
    shared
        .core
        .ask(move |core, _, _| {
            let node = find(core.host(), &group, &node)?;
            let device = node.device(&device)?;
            Some(device_json(&links, &node, &device, true))
        })
        .await?
        .map(Json)
        .ok_or_else(|| ApiError::not_found(format!("no device {name}")))
}

/// A device whose name is also an action's: `GET` of it is still the device.
///
/// # Errors
/// Unknown device.
pub async fn named<const ACTION: usize>(
    state: State<Arc<Shared>>,
    Path((group, node)): Path<(String, String)>,
) -> Result<Json<Value>, ApiError> {
    let name = ["rebirth", "write", "hold"]
        .get(ACTION)
        .copied()
        .unwrap_or_default();
    device(state, Path((group, node, name.to_owned()))).await
}

/// `POST /api/devices/{group}/{node}/rebirth`.
///
/// # Errors
/// Unknown node, or commands are switched off.
pub async fn rebirth(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    Path((group, node)): Path<(String, String)>,
) -> Result<Json<Value>, ApiError> {
    let id = NodeId {
        group: group.into(),
        node: node.into(),
    };
    tracing::info!(node = %id, by = operator.by, "rebirth asked for");
    shared
        .core
        .ask(move |core, now, ports| {
            let asked = core
                .host_mut()
                .rebirth(&id, now.engine_ms, RebirthCause::Operator);
            if asked.is_ok() {
                let node = json!({"group": id.group.as_ref(), "node": id.node.as_ref()});
                let action = json!({"verb": "rebirth", "of": node, "by": operator.by, "timestamp": now.wall_ms});
                core.note_action(now, action, ports);
            }
            core.settle(now, ports);
            asked
        })
        .await?
        .map_err(|error| ApiError::refused(error.to_string()))?;
    Ok(Json(json!({"status": "requested"})))
}

/// A write request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteBody {
    /// Caller's id; a repeated one is not carried out again.
    id: Option<String>,
    /// What to write, in order.
    metrics: Vec<WriteMetric>,
    /// Never sent later than this.
    ttl_ms: Option<u64>,
    /// Whom it is for, when a program asks on behalf of a person.
    by: Option<String>,
    /// Say what would be sent, or why not, and send nothing.
    #[serde(default)]
    dry_run: bool,
}

impl WriteBody {
    /// A request that came by another way than HTTP.
    #[must_use]
    pub fn new(id: String, metrics: Vec<(String, Value)>, ttl_ms: Option<u64>) -> Self {
        Self {
            id: Some(id).filter(|id| !id.is_empty()),
            metrics: metrics
                .into_iter()
                .map(|(name, value)| WriteMetric { name, value })
                .collect(),
            ttl_ms,
            by: None,
            dry_run: false,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WriteMetric {
    name: String,
    value: Value,
}

/// `POST …/write` of a node.
///
/// # Errors
/// A malformed request; what becomes of the write is in the answer.
pub async fn write_node(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    Path((group, node)): Path<(String, String)>,
    Json(body): Json<WriteBody>,
) -> Result<Json<Value>, ApiError> {
    let target = Target {
        group: group.into(),
        node: node.into(),
        device: None,
    };
    write(&shared, &operator.by, target, body).await.map(Json)
}

/// `POST …/write` of a device.
///
/// # Errors
/// As [`write_node`].
pub async fn write_device(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    Path((group, node, device)): Path<(String, String, String)>,
    Json(body): Json<WriteBody>,
) -> Result<Json<Value>, ApiError> {
    let target = Target {
        group: group.into(),
        node: node.into(),
        device: Some(device.into()),
    };
    write(&shared, &operator.by, target, body).await.map(Json)
}

/// Carries a write out and waits for its outcome: a `command` body.
///
/// # Errors
/// A malformed request, or no outcome in time.
pub async fn write(
    shared: &Shared,
    by: &str,
    target: Target,
    body: WriteBody,
) -> Result<Value, ApiError> {
    submit(&shared.core, &shared.gateway, by, target, body).await
}

/// As [`write()`], for callers without the page's state.
///
/// # Errors
/// As [`write()`].
pub async fn submit(
    core: &crate::pipeline::task::CoreHandle,
    gateway: &str,
    by: &str,
    target: Target,
    body: WriteBody,
) -> Result<Value, ApiError> {
    if body.metrics.is_empty() || body.metrics.len() > MOST_WRITES {
        return Err(ApiError::bad_request(format!(
            "`metrics` must hold 1 to {MOST_WRITES} entries"
        )));
    }
    let mut values = Vec::new();
    for metric in &body.metrics {
        let value = json_value(&metric.value).ok_or_else(|| {
            ApiError::bad_request(format!(
                "{}: a value is null, a boolean, a number or a text",
                metric.name
            ))
        })?;
        values.push((Arc::<str>::from(metric.name.as_str()), value));
    }
    let by = match &body.by {
        Some(name) => format!("{by} for {name}"),
        None => by.to_owned(),
    };
    let ttl_ms = body.ttl_ms.unwrap_or(5_000).min(600_000);
    let id: Arc<str> = match body.id {
        Some(id) if id.is_empty() || id.len() > 200 => {
            return Err(ApiError::bad_request(
                "`id` must hold 1 to 200 bytes".to_owned(),
            ));
        }
        Some(id) => id.into(),
        None => fresh_id(gateway).into(),
    };
    let dry_run = body.dry_run;
    let (reply, outcome) = tokio::sync::oneshot::channel();
    core.ask(move |core, now, ports| {
        let within_ms = core.confirm_timeout_ms();
        let writes = values
            .into_iter()
            .map(|(metric, value)| Write {
                target: target.clone(),
                metric,
                value,
                confirm: Confirm::by_echo(within_ms),
                undo: None,
                repeatable: false,
                allow_when: None,
                ttl_ms: None,
            })
            .collect();
        let plan = Plan {
            id,
            by: by.into(),
            cause: 0,
            // A person outranks a rule.
            priority: 100,
            deadline_ms: now.engine_ms.saturating_add(ttl_ms),
            writes,
            // A person who asks for a movement is there to ask again.
            on_restart: crate::actuation::OnRestart::Undo,
        };
        if dry_run {
            let _ = reply.send(core.explain(now, &plan, ports));
        } else {
            core.request(now, plan, None, Some(reply), ports);
        }
    })
    .await?;
    match tokio::time::timeout(WRITE_WAIT, outcome).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(_)) => Err(ApiError::refused(
            "the write was not taken; is its id in use?".to_owned(),
        )),
        Err(_) => Err(ApiError::timeout(
            "no outcome yet; look at /api/commands".to_owned(),
        )),
    }
}

/// An id for a write whose caller gave none: unique in a process and, with its start time, over restarts.
fn fresh_id(gateway: &str) -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_micros());
    format!(
        "{gateway}-w-{now:x}-{}",
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

/// A hold request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HoldBody {
    /// How long; 0 releases.
    for_ms: u64,
}

/// `POST …/hold` of a node.
///
/// # Errors
/// Too many holds.
pub async fn hold_node(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    Path((group, node)): Path<(String, String)>,
    Json(body): Json<HoldBody>,
) -> Result<Json<Value>, ApiError> {
    hold(
        &shared,
        operator,
        Target {
            group: group.into(),
            node: node.into(),
            device: None,
        },
        body.for_ms,
    )
    .await
}

/// `POST …/hold` of a device.
///
/// # Errors
/// Too many holds.
pub async fn hold_device(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    Path((group, node, device)): Path<(String, String, String)>,
    Json(body): Json<HoldBody>,
) -> Result<Json<Value>, ApiError> {
    let target = Target {
        group: group.into(),
        node: node.into(),
        device: Some(device.into()),
    };
    hold(&shared, operator, target, body.for_ms).await
}

async fn hold(
    shared: &Shared,
    operator: Operator,
    target: Target,
    for_ms: u64,
) -> Result<Json<Value>, ApiError> {
    tracing::info!(%target, for_ms, by = operator.by, "hold");
    let (record, changed, now_ms) = shared
        .core
        .ask(move |core, now, ports| {
            core.hold(now, target, for_ms, &operator.by, ports)
                .map(|(record, changed)| (record, changed, now.wall_ms))
        })
        .await?
        .map_err(|error| ApiError::refused(error.to_string()))?;
    // Someone may put a hand into the machine on the strength of this answer: it holds over a power cut.
    let durable = on_disk(shared, record).await;
    Ok(Json(if for_ms == 0 {
        json!({"held": false, "released": changed, "durable": durable})
    } else {
        json!({"held": true, "until": now_ms.saturating_add(for_ms), "durable": durable})
    }))
}

/// Waits until a record is on disk; `false`: it is not, within [`DISK_WAIT`].
async fn on_disk(shared: &Shared, record: u64) -> bool {
    if record == 0 {
        return false;
    }
    let mut durable = shared.journal.durable();
    shared.journal.want_sync();
    let wait = durable.wait_for(|id| *id >= record);
    matches!(tokio::time::timeout(DISK_WAIT, wait).await, Ok(Ok(_)))
}
