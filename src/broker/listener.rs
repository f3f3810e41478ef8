//! Accepting connections.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout_at;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use super::connection::{Origin, serve};
use super::shell::Shell;
use super::tls::common_name;
use super::websocket::{self, Gate};

/// Connections that the kernel keeps for us while we are busy.
const BACKLOG: u32 = 4096;
/// Pause after a failed accept (no file descriptors left), so that the loop does not spin.
const BREATH: Duration = Duration::from_millis(100);

/// Limits of a listener, and what it speaks below MQTT.
#[derive(Clone)]
pub(crate) struct Door {
    pub(crate) connections: usize,
    pub(crate) connections_per_address: usize,
    pub(crate) connect_timeout: Duration,
    pub(crate) tls: Option<SharedTls>,
    pub(crate) websocket: Option<Gate>,
}

/// Binds an address.
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// The certificate that a TLS listener shows, exchangeable while running.
pub(crate) type SharedTls = Arc<RwLock<Arc<ServerConfig>>>;

/// Accepts connections until the task is dropped.
pub(crate) async fn accept(listener: TcpListener, shell: Arc<Shell>, door: Door) {
    loop {
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(BREATH).await;
                continue;
            }
        };
        let deadline = Instant::now() + door.connect_timeout;
        let (admission, fits) =
            shell.admit(address.ip(), door.connections, door.connections_per_address);
        // Some room is left to tell those that are one too many.
        if fits.is_err()
            && shell.open() > door.connections.saturating_add(door.connections / 8 + 64)
        {
            shell.turn_away("connections", address, &"closed at once: far too many");
            continue;
        }
        // Small packets must not wait for each other; a socket that refuses this still works.
        let _ = stream.set_nodelay(true);
        let shell = Arc::clone(&shell);
        let origin = Origin {
            address,
            certificate: None,
            refuse: fits.err(),
        };
        let tls = door
            .tls
            .as_ref()
            .map(|tls| Arc::clone(&tls.read().unwrap_or_else(PoisonError::into_inner)));
        // A task each: what an idle plain connection takes must not grow by what the others need.
        match (tls, door.websocket.clone()) {
            (None, None) => tokio::spawn(async move {
                serve(stream, shell, origin, deadline).await;
                drop(admission);
            }),
            (None, Some(gate)) => tokio::spawn(async move {
                serve_websocket(stream, shell, origin, deadline, gate).await;
                drop(admission);
            }),
            (Some(config), gate) => tokio::spawn(async move {
                serve_tls(stream, shell, origin, deadline, config, gate).await;
                drop(admission);
            }),
        };
    }
}

/// The handshake runs in the connection's own task and time: a silent peer holds nobody up.
async fn serve_tls(
    stream: TcpStream,
    shell: Arc<Shell>,
    mut origin: Origin,
    deadline: Instant,
    config: Arc<ServerConfig>,
    gate: Option<Gate>,
) {
    match timeout_at(deadline.into(), TlsAcceptor::from(config).accept(stream)).await {
        Ok(Ok(stream)) => {
            let shown = stream
                .get_ref()
                .1
                .peer_certificates()
                .and_then(<[_]>::first);
            if let Some(certificate) = shown {
                // A certificate without a name is nobody we know.
                let Some(name) = common_name(certificate) else {
                    return;
                };
                origin.certificate = Some(name);
            }
            match gate {
                None => serve(stream, shell, origin, deadline).await,
                Some(gate) => serve_websocket(stream, shell, origin, deadline, gate).await,
            }
        }
        // Somebody looked whether the port is open.
        Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {}
        Ok(Err(error)) => shell.turn_away("tls_handshake", origin.address, &error),
        Err(_) => shell.turn_away(
            "connect_timeout",
            origin.address,
            &"no TLS handshake in time",
        ),
    }
}

/// The WebSocket handshake runs in the same time as everything else before CONNECT.
async fn serve_websocket<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    shell: Arc<Shell>,
    origin: Origin,
    deadline: Instant,
    gate: Gate,
) {
    match timeout_at(deadline.into(), websocket::upgrade(stream, &gate)).await {
        Ok(Ok(stream)) => serve(stream, shell, origin, deadline).await,
        Ok(Err(error)) => shell.turn_away("websocket_handshake", origin.address, &error),
        Err(_) => shell.turn_away(
            "connect_timeout",
            origin.address,
            &"no WebSocket handshake in time",
        ),
    }
}
