//! Models: what runs, and which version.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Shared;
use super::api::ApiError;
use super::auth::Operator;
use crate::rollout::{Action, Refused, Rollouts};

/// `GET /api/models`.
pub async fn list(State(shared): State<Arc<Shared>>) -> Json<Value> {
    Json(models_json(&shared))
}

/// The models' status as a JSON array; the text model stands last, with `"kind": "text"`.
#[must_use]
pub fn models_json(shared: &Shared) -> Value {
    let mut out = Vec::new();
    for status in shared.models.iter().flat_map(|runner| runner.status()) {
        out.extend(of_kind("sensor", serde_json::to_value(status)));
    }
    if let Some(embedder) = &shared.embedder {
        let manifest = embedder.manifest();
        let mut text = of_kind("text", serde_json::to_value(embedder.status()));
        if let Some(object) = text.as_mut().and_then(Value::as_object_mut) {
            object.insert("title".into(), manifest.title.clone().into());
            object.insert("arithmetic".into(), manifest.file.arithmetic.name().into());
            object.insert("metrics".into(), json!(manifest.metrics));
            let runs = object.get("embedded").cloned().unwrap_or_default();
            object.insert("runs".into(), runs);
        }
        out.extend(text);
    }
    Value::Array(out)
}

fn of_kind(kind: &str, status: serde_json::Result<Value>) -> Option<Value> {
    let mut status = status.ok()?;
    status.as_object_mut()?.insert("kind".into(), kind.into());
    Some(status)
}

fn refuse(error: &Refused) -> ApiError {
    match error {
        Refused::Path(_) => ApiError::bad_request(error.to_string()),
        Refused::Runner(::models::runner::RolloutError::UnknownModel { .. }) => {
            ApiError::not_found(error.to_string())
        }
        _ => ApiError::refused(error.to_string()),
    }
}

/// Loading a model takes seconds: not on the server's own threads.
async fn change<T: Send + 'static>(
    shared: &Shared,
    change: impl FnOnce(&Rollouts) -> Result<T, Refused> + Send + 'static,
) -> Result<T, ApiError> {
    let rollouts = shared
        .rollouts
        .clone()
        .ok_or_else(|| ApiError::refused("no model runs"))?;
    tokio::task::spawn_blocking(move || change(&rollouts))
        .await
        .map_err(|error| ApiError::refused(error.to_string()))?
        .map_err(|error| refuse(&error))
}

/// A candidate.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShadowBody {
    /// Its model folder on the gateway.
    path: PathBuf,
    /// Devices that it answers for; 0 scores beside the active version and nothing acts on it.
    #[serde(default)]
    canary_percent: u8,
}

/// `POST /api/models/shadow`.
///
/// # Errors
/// A folder that is not right on this machine, an unknown model, other inputs.
pub async fn shadow(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    Json(body): Json<ShadowBody>,
) -> Result<Json<Value>, ApiError> {
    let percent = body.canary_percent;
    if percent > 100 {
        return Err(ApiError::bad_request("`canary_percent` is from 0 to 100"));
    }
    tracing::info!(path = %body.path.display(), percent, by = operator.by, "candidate");
    let name = change(&shared, move |rollouts| {
        rollouts.shadow(&body.path, percent)
    })
    .await?;
    Ok(Json(json!({"model": &*name, "canary_percent": percent})))
}

/// `POST /api/models/{name}/{promote|rollback|cancel}`.
///
/// # Errors
/// Unknown model or action, no candidate, no version before.
pub async fn action(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    Path((name, action)): Path<(String, String)>,
) -> Result<Json<Value>, ApiError> {
    let action = Action::parse(&action).ok_or_else(|| {
        ApiError::not_found(format!(
            "no action {action}; known: promote, rollback, cancel"
        ))
    })?;
    tracing::info!(
        model = name,
        action = action.as_str(),
        by = operator.by,
        "model version"
    );
    let model = name.clone();
    change(&shared, move |rollouts| rollouts.apply(&model, action)).await?;
    Ok(Json(json!({"model": name, "done": action.as_str()})))
}
