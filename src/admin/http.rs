//! Listeners and routes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::extract::connect_info::ConnectInfo;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::{Next, from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tokio::net::{TcpListener, UnixListener};

use super::auth::Door;
use super::{Shared, api, audit, devices, events, metrics, models, page, status};

/// Largest request body, bytes.
const MAX_BODY: usize = 256 * 1024;

/// Why the admin doors could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The TCP address.
    #[error("admin.listen {0}: {1}")]
    Tcp(std::net::SocketAddr, #[source] std::io::Error),
    /// The socket or its folder.
    #[error("admin socket {0}: {1}")]
    Socket(PathBuf, #[source] std::io::Error),
}

/// Both doors, bound and not yet serving.
#[derive(Debug)]
pub struct Doors {
    tcp: TcpListener,
    socket: UnixListener,
}

impl Doors {
    /// Binds both. A socket file that nobody listens on any more is replaced.
    ///
    /// # Errors
    /// [`BindError`].
    pub async fn bind(listen: std::net::SocketAddr, folder: &Path) -> Result<Self, BindError> {
        let tcp = TcpListener::bind(listen)
            .await
            .map_err(|e| BindError::Tcp(listen, e))?;
        let path = folder.join("admin.sock");
        let at = |e| BindError::Socket(path.clone(), e);
        std::fs::create_dir_all(folder).map_err(at)?;
        if path.exists() && tokio::net::UnixStream::connect(&path).await.is_err() {
            std::fs::remove_file(&path).map_err(at)?;
        }
        let socket = UnixListener::bind(&path).map_err(at)?;
        // Same user or group, nobody else.
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o660)).map_err(at)?;
        Ok(Self { tcp, socket })
    }

    /// The TCP address, with the port the system chose.
    #[must_use]
    pub fn address(&self) -> Option<std::net::SocketAddr> {
        self.tcp.local_addr().ok()
    }

    /// Serves until the process ends or `stop` completes.
    pub async fn serve(self, shared: Arc<Shared>, stop: tokio::sync::watch::Receiver<bool>) {
        let app = routes(shared).into_make_service_with_connect_info::<Door>();
        let (a, b) = (stop.clone(), stop);
        let tcp = axum::serve(self.tcp, app.clone()).with_graceful_shutdown(stopped(a));
        let socket = axum::serve(self.socket, app).with_graceful_shutdown(stopped(b));
        let (tcp, socket) = tokio::join!(tcp.into_future(), socket.into_future());
        for error in [tcp.err(), socket.err()].into_iter().flatten() {
            tracing::error!(%error, "admin listener ended");
        }
    }
}

async fn stopped(mut stop: tokio::sync::watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

fn routes(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/", get(page::index))
        .route("/assets/{file}", get(page::asset))
        .route("/livez", get(status::livez))
        .route("/readyz", get(status::readyz))
        .route("/metrics", get(metrics::metrics))
        .route("/api/status", get(status::status))
        .route("/api/devices", get(devices::list))
        .route("/api/devices/{group}/{node}", get(devices::node))
        .route(
            "/api/devices/{group}/{node}/rebirth",
            post(devices::rebirth).get(devices::named::<0>),
        )
        .route(
            "/api/devices/{group}/{node}/write",
            post(devices::write_node).get(devices::named::<1>),
        )
        .route(
            "/api/devices/{group}/{node}/hold",
            post(devices::hold_node).get(devices::named::<2>),
        )
        .route("/api/devices/{group}/{node}/{device}", get(devices::device))
        .route(
            "/api/devices/{group}/{node}/{device}/write",
            post(devices::write_device),
        )
        .route(
            "/api/devices/{group}/{node}/{device}/hold",
            post(devices::hold_device),
        )
        .route("/api/rules", get(api::rules))
        .route("/api/rules/{id}", get(api::rule))
        .route("/api/rules/{id}/{action}", post(api::rule_action))
        .route("/api/alarms", get(api::alarms))
        .route("/api/alarms/{id}/{action}", post(api::alarm_action))
        .route("/api/models", get(models::list))
        .route("/api/models/shadow", post(models::shadow))
        .route("/api/models/{name}/{action}", post(models::action))
        .route("/api/buffer", get(api::buffer))
        .route("/api/commands", get(api::commands))
        .route("/api/audit", get(audit::list))
        .route("/api/audit/verify", get(audit::check))
        .route("/api/history", get(api::history))
        .route("/api/events", get(events::events))
        .route("/api/backup", post(status::export))
        .route("/api/log", get(status::log))
        .route("/api/traces", get(status::traces))
        .fallback(api::not_found)
        .layer(axum::extract::DefaultBodyLimit::max(MAX_BODY))
        .layer(from_fn_with_state(shared.hosts.clone(), own_host))
        .layer(map_response(harden))
        .with_state(shared)
}

/// A page of another site can make a browser ask a loopback address by a name of its own (DNS rebinding), and then read
/// the answer. So on loopback the name must be one of this machine's own.
async fn own_host(State(hosts): State<Arc<[String]>>, request: Request, next: Next) -> Response {
    let over_loopback = matches!(
        request.extensions().get::<ConnectInfo<Door>>(),
        Some(ConnectInfo(Door::Tcp(peer))) if peer.ip().is_loopback()
    );
    let host = request
        .headers()
        .get(header::HOST)
        .and_then(|host| host.to_str().ok())
        .unwrap_or("");
    if over_loopback && !is_own_name(host, &hosts) {
        return api::ApiError::forbidden(format!(
            "`{host}` is not a name of this gateway; use localhost or its address, or list it in [admin] hosts"
        ))
        .into_response();
    }
    next.run(request).await
}

/// `localhost`, an address or a listed name, with or without a port.
fn is_own_name(host: &str, listed: &[String]) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(""),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<std::net::IpAddr>().is_ok()
        || listed.iter().any(|own| name.eq_ignore_ascii_case(own))
}

/// Headers that keep a browser from doing anything but show the page.
async fn harden(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        ),
    );
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    headers.insert(
        header::REFERRER_POLICY,
        HeaderValue::from_static("no-referrer"),
    );
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::is_own_name;

    #[test]
    fn only_addresses_and_localhost_are_own_names() {
        for (host, own) in [
            ("localhost", true),
            ("LOCALHOST:8780", true),
            ("127.0.0.1:8780", true),
            ("[::1]:8780", true),
            ("gw.example", true),
            ("evil.example:8780", false),
            ("localhost.evil.example", false),
            ("", false),
        ] {
            assert_eq!(is_own_name(host, &["gw.example".to_owned()]), own, "{host}");
        }
    }
}
