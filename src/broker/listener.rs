//! Accepting connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpSocket};

use super::connection::{Origin, serve};
use super::shell::Shell;

/// Connections that the kernel keeps for us while we are busy.
const BACKLOG: u32 = 4096;
/// Pause after a failed accept (no file descriptors left), so that the loop does not spin.
const BREATH: Duration = Duration::from_millis(100);

/// Limits of a listener.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Door {
    pub(crate) connections: usize,
    pub(crate) connections_per_address: usize,
    pub(crate) connect_timeout: Duration,
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

/// Accepts plain-TCP connections until the task is dropped.
pub(crate) async fn accept_plain(listener: TcpListener, shell: Arc<Shell>, door: Door) {
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
        let (admission, fits) = shell.admit(address.ip(), door.connections, door.connections_per_address);
        // Some room is left to tell those that are one too many.
        if fits.is_err() && shell.open() > door.connections.saturating_add(door.connections / 8 + 64) {
            continue;
        }
        let shell = Arc::clone(&shell);
        tokio::spawn(async move {
            // Small packets must not wait for each other; a socket that refuses this still works.
            let _ = stream.set_nodelay(true);
            let origin = Origin { address, certificate: None, refuse: fits.err() };
            serve(stream, shell, origin, deadline).await;
            drop(admission);
        });
    }
}
