//! The operator's page: static files inside the binary, nothing from outside.

use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

/// A browser takes no module of another media type.
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Name, media type and content of every file below `/assets/`.
const ASSETS: &[(&str, &str, &str)] = &[
    ("app.js", SCRIPT, include_str!("web/app.js")),
    ("api.js", SCRIPT, include_str!("web/api.js")),
    ("devices.js", SCRIPT, include_str!("web/devices.js")),
    ("dom.js", SCRIPT, include_str!("web/dom.js")),
    ("trend.js", SCRIPT, include_str!("web/trend.js")),
    ("views.js", SCRIPT, include_str!("web/views.js")),
    (
        "style.css",
        "text/css; charset=utf-8",
        include_str!("web/style.css"),
    ),
];

/// `GET /`.
pub async fn index() -> Response {
    (
        [(header::CONTENT_TYPE, "text/html; charset=utf-8")],
        include_str!("web/index.html"),
    )
        .into_response()
}

/// `GET /assets/{file}`.
pub async fn asset(Path(file): Path<String>) -> Response {
    match ASSETS.iter().find(|(name, _, _)| *name == file) {
        Some((_, media, content)) => ([(header::CONTENT_TYPE, *media)], *content).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}
