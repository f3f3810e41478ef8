//! The audit log: its newest entries, and whether it is whole.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Shared;
use super::api::ApiError;
use crate::audit::{Heads, Log, verify};

/// Entries of one answer, at most.
const MOST: usize = 10_000;

/// Where the log is.
pub struct Place {
    /// Its folder.
    pub folder: PathBuf,
    /// Its newest entry.
    pub heads: Heads,
}

/// How many entries.
#[derive(Debug, Deserialize)]
pub struct ListQuery {
    #[serde(default = "some")]
    limit: usize,
}

fn some() -> usize {
    200
}

/// Runs what reads files off the server's own threads.
async fn off<T: Send + 'static>(
    read: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(read)
        .await
        .map_err(|error| ApiError::refused(error.to_string()))?
        .map_err(|error| ApiError::refused(format!("the audit log can't be read: {error}")))
}

/// `GET /api/audit?limit=`: the newest entries, oldest first.
///
/// # Errors
/// The files can't be read.
pub async fn list(
    State(shared): State<Arc<Shared>>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Value>, ApiError> {
    let folder = shared.audit.folder.clone();
    let limit = query.limit.min(MOST);
    let entries = off(move || Log::tail(&folder, limit)).await?;
    Ok(Json(Value::Array(entries)))
}

/// `GET /api/audit/verify`: reads the whole log, and tells what was removed or altered.
///
/// # Errors
/// The files can't be read.
pub async fn check(State(shared): State<Arc<Shared>>) -> Result<Json<Value>, ApiError> {
    let folder = shared.audit.folder.clone();
    // The head first: the log only grows.
    let head = shared.audit.heads.get();
    let report = off(move || verify(&folder, Some(&head))).await?;
    Ok(Json(report_json(&report)))
}

/// A report with each problem in words as well.
#[must_use]
pub fn report_json(report: &crate::audit::Report) -> Value {
    let mut out = serde_json::to_value(report).unwrap_or(Value::Null);
    if let Some(object) = out.as_object_mut() {
        let words: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
        object.insert("whole".to_owned(), json!(report.problem_count == 0));
        object.insert("found".to_owned(), json!(words));
    }
    out
}
