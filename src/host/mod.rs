//! The host application on brokers of others, as a network client (`[[host.server]]`).
//!
//! Each server has a connection of its own (`link`), with its own will, birth and bookkeeping in
//! [`sparkplug::host::HostSession`], under the server's number: 0 is the embedded broker, entry `i` of the list is
//! `i + 1`. A connection ends with its client, and the next one starts from nothing (`wire`).

mod config;
mod link;
mod tls;
mod wire;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sparkplug::host::ServerId;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

pub use config::{Protocol, Server, Tls, UrlError, check};
pub use link::LinkStatus;
pub use tls::TlsError;

use crate::broker::TopicCheck;
use crate::pipeline::remote::{Outbox, Remotes};

/// Arrivals between all connections and the pipeline; when it is full, no connection is read.
const INBOX: usize = 4_096;
/// Messages to publish on one connection.
const OUTBOX: usize = 1_024;

/// Why a connection can't even be prepared.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The URL is of no use.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// Certificates.
    #[error("host.server {url}: TLS")]
    Tls {
        /// The server.
        url: String,
        /// Why.
        source: TlsError,
    },
    /// The password file can't be read.
    #[error("host.server {url}: password_file")]
    Password {
        /// The server.
        url: String,
        /// Why.
        source: std::io::Error,
    },
}

/// Connections that are prepared and not yet made.
pub struct Prepared {
    links: Vec<link::Link>,
}

/// All connections.
pub struct Links {
    tasks: Mutex<Option<JoinSet<()>>>,
    status: Vec<(link::Status, Arc<AtomicU64>)>,
}

/// The numbers of the servers in the list.
pub fn servers(servers: &[Server]) -> impl Iterator<Item = ServerId> {
    (1..).take(servers.len()).map(ServerId)
}

/// Reads what the servers' entries name, and makes the pipeline's side of the connections.
///
/// # Errors
/// [`StartError`]; [`check`] finds the same before anything starts.
pub fn prepare(
    servers: &[Server],
    host_id: &str,
    max_packet: usize,
    topic_check: &TopicCheck,
) -> Result<(Prepared, Remotes), StartError> {
    let (sink, arrivals) = mpsc::channel(INBOX);
    let mut outgoing = HashMap::new();
    let mut links = Vec::new();
    for (server, entry) in self::servers(servers).zip(servers) {
        let address = entry.address()?;
        let tls = match address.tls {
            false => None,
            true => Some(tls::load(&entry.tls).map_err(|source| StartError::Tls {
                url: entry.url.clone(),
                source,
            })?),
        };
        let password = config::password(entry).map_err(|source| StartError::Password {
            url: entry.url.clone(),
            source,
        })?;
        let (queue, taken) = mpsc::channel(OUTBOX);
        let outbox = Outbox::new(queue);
        links.push(link::Link {
            lost: outbox.lost(),
            server,
            settings: wire::Settings {
                address,
                protocol: entry.protocol,
                client_id: entry
                    .client_id
                    .clone()
                    .unwrap_or_else(|| format!("sparkgate-{host_id}")),
                credentials: entry.user.clone().map(|user| (user, password)),
                keep_alive: entry.keep_alive.0,
                tls,
                max_packet,
            },
            check: topic_check.clone(),
            arrivals: sink.clone(),
            outgoing: taken,
            status: Arc::new(Mutex::new(LinkStatus {
                url: entry.url.clone(),
                state: "down",
                since_ms: crate::clock::wall_ms(),
                detail: None,
                connects: 0,
                received: 0,
                sent: 0,
                lost: 0,
            })),
        });
        outgoing.insert(server, outbox);
    }
    Ok((Prepared { links }, Remotes { arrivals, outgoing }))
}

impl Prepared {
    /// Starts to connect, on the current runtime.
    #[must_use]
    pub fn start(self) -> Links {
        let status = self
            .links
            .iter()
            .map(|link| (link.status.clone(), link.lost.clone()))
            .collect();
        let mut tasks = JoinSet::new();
        for link in self.links {
            tasks.spawn(link.run());
        }
        Links {
            tasks: Mutex::new(Some(tasks)),
            status,
        }
    }
}

impl Links {
    /// State of each connection, in the order of the configuration.
    #[must_use]
    pub fn status(&self) -> Vec<LinkStatus> {
        self.status
            .iter()
            .map(|(status, lost)| LinkStatus {
                lost: lost.load(Ordering::Relaxed),
                ..status
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .clone()
            })
            .collect()
    }

    /// How people know a server: the URL of its entry, or `embedded`.
    #[must_use]
    pub fn name(&self, server: ServerId) -> String {
        let entry = usize::from(server.0)
            .checked_sub(1)
            .and_then(|at| self.status.get(at));
        entry.map_or_else(
            || "embedded".to_owned(),
            |(status, _)| {
                let status = status.lock().unwrap_or_else(PoisonError::into_inner);
                status.url.clone()
            },
        )
    }

    /// Waits until every connection has left; the pipeline has ended, so that they are about to. What takes longer is
    /// cut, and its server sends the will.
    pub async fn stop(&self, patience: Duration) {
        let tasks = self
            .tasks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(mut tasks) = tasks {
            let all = async { while tasks.join_next().await.is_some() {} };
            let _ = tokio::time::timeout(patience, all).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::remote::Arrival;
    use sparkplug::host::{Connect, Transmit};

    /// A server that can't be reached: what is meant for it is counted as lost, and the wish to leave is heard.
    #[tokio::test]
    async fn what_waits_for_an_unreachable_server_is_counted_as_lost() {
        // Bound and not listening: connections are refused, and nobody else gets the port.
        let held = tokio::net::TcpSocket::new_v4().unwrap();
        held.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let entry = Server {
            url: format!("mqtt://{}", held.local_addr().unwrap()),
            ..Server::default()
        };
        let check: TopicCheck = Arc::new(|_: &str| true);
        let (prepared, mut remotes) =
            prepare(std::slice::from_ref(&entry), "h", 1 << 20, &check).unwrap();
        let links = prepared.start();
        assert_eq!(links.name(ServerId(0)), "embedded");
        assert_eq!(links.name(ServerId(1)), entry.url);
        let mut lost = 0;
        while lost < 3 {
            let (server, arrival) = remotes.arrivals.recv().await.unwrap();
            match arrival {
                Arrival::Connecting(reply) => {
                    let connect = Connect {
                        will: None,
                        filters: Default::default(),
                    };
                    let _ = reply.send(connect);
                }
                Arrival::Lost => {
                    let transmit = Transmit {
                        server,
                        topic: "spBv1.0/g/NCMD/n".to_owned(),
                        payload: Vec::new(),
                        qos: 0,
                        retain: false,
                    };
                    Remotes::publish(&remotes.outgoing, transmit, None).unwrap();
                }
                other => panic!("{other:?}"),
            }
            lost = links.status()[0].lost;
        }
        let status = links.status().remove(0);
        assert_eq!((status.connects, status.sent), (0, 0));
        assert!(status.detail.is_some());
        drop(remotes);
        links.stop(Duration::from_secs(60)).await;
        assert_eq!(links.status()[0].state, "left");
    }
}
