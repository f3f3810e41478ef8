//! A TCP proxy between the gateway and its server that breaks as links do: reset, silence, half a close, a
//! trickle, a server that never greets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Mutex, watch};

/// What the link does to everything that goes through it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// Bytes of both ways wait, as behind a dead link, until the fault ends; connections stay open.
    Blackhole,
    /// The server's bytes wait until the fault ends: a connection is accepted and nobody greets.
    Mute,
    /// This many bytes a second, all connections and both ways together.
    Slow(u32),
}

/// What happens once to every connection that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// RST to both sides.
    Reset,
    /// The gateway is told that the server will send no more; its own bytes still flow.
    HalfClose,
}

struct Shared {
    to: AtomicU16,
    fault: watch::Sender<Fault>,
    cut: watch::Sender<Option<Cut>>,
    line: Mutex<()>,
    accepted: AtomicU64,
    up: AtomicU64,
}

/// A running proxy. Its thread ends with it.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Proxy {
    /// Listens on a port of its own and connects to `port`.
    pub fn to(port: u16) -> Self {
        let shared = Arc::new(Shared {
            to: AtomicU16::new(port),
            fault: watch::channel(Fault::None).0,
            cut: watch::channel(None).0,
            line: Mutex::new(()),
            accepted: AtomicU64::new(0),
            up: AtomicU64::new(0),
        });
        let (stop, stopped) = watch::channel(false);
        let (told, port) = std::sync::mpsc::channel();
        let thread = std::thread::spawn({
            let shared = shared.clone();
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("a runtime");
                runtime.block_on(async {
                    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
                    let port = listener.local_addr().expect("its address").port();
                    told.send(port).expect("the test waits");
                    serve(listener, shared, stopped).await;
                });
            }
        });
        Self {
            port: port.recv().expect("the proxy's port"),
            shared,
            stop,
            thread: Some(thread),
        }
    }

    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where new connections lead from now on.
    pub fn lead_to(&self, port: u16) {
        self.shared.to.store(port, Ordering::Relaxed);
    }

    /// From now on, for connections that are there and new ones.
    pub fn set(&self, fault: Fault) {
        self.shared.fault.send_replace(fault);
    }

    /// Once, to the connections that are there.
    pub fn cut(&self, cut: Cut) {
        self.shared.cut.send_replace(Some(cut));
    }

    /// Connections that were accepted so far.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// Bytes that reached the server so far.
    pub fn up(&self) -> u64 {
        self.shared.up.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>, mut stopped: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            _ = stopped.changed() => return,
            accepted = listener.accept() => {
                let Ok((near, _)) = accepted else { continue };
                shared.accepted.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(carry(near, shared.clone()));
            }
        }
    }
}

/// A small socket buffer: what a slow link holds is little, or the test would measure the kernel's memory.
async fn dial(port: u16) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_send_buffer_size(16 << 10)?;
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    socket.connect(address).await
}

async fn carry(near: TcpStream, shared: Arc<Shared>) {
    let Ok(far) = dial(shared.to.load(Ordering::Relaxed)).await else {
        let _ = near.set_zero_linger();
        return;
    };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    tokio::join!(
        pump(near_read, far_write, &shared, true),
        pump(far_read, near_write, &shared, false),
    );
}

/// One way of one connection.
async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shared: &Shared, up: bool) {
    let mut cuts = shared.cut.subscribe();
    cuts.mark_unchanged();
    let mut faults = shared.fault.subscribe();
    {
        let moving = async {
            let mut buffer = [0; 2048];
            while let Ok(count @ 1..) = from.read(&mut buffer).await {
                if up {
                    shared.up.fetch_add(count as u64, Ordering::Relaxed);
                }
                let mut rest = &buffer[..count];
                while !rest.is_empty() {
                    let fault = *faults.borrow_and_update();
                    let now = match fault {
                        Fault::None => rest.len(),
                        Fault::Mute if up => rest.len(),
                        Fault::Mute | Fault::Blackhole => {
                            // What is on its way waits, as TCP sends it again until the link is back.
                            if faults.changed().await.is_err() {
                                return;
                            }
                            continue;
                        }
                        Fault::Slow(rate) => {
                            let now = rest.len().min((rate / 20).max(1) as usize);
                            let _one_after_another = shared.line.lock().await;
                            let seconds = now as f64 / f64::from(rate.max(1));
                            tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
                            now
                        }
                    };
                    if to.write_all(&rest[..now]).await.is_err() {
                        return;
                    }
                    rest = &rest[now..];
                }
            }
        };
        tokio::pin!(moving);
        loop {
            tokio::select! {
                () = &mut moving => return,
                changed = cuts.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let cut = *cuts.borrow_and_update();
                    match cut {
                        Some(Cut::HalfClose) if up => {}
                        Some(Cut::HalfClose) => return,
                        Some(Cut::Reset) | None => break,
                    }
                }
            }
        }
    }
    let _ = to.as_ref().set_zero_linger();
    to.forget();
}
