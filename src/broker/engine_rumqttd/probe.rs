//! Asks a listener from time to time whether it still takes clients. A panic in one of rumqttd's connection tasks can
//! leave a listener that accepts and closes, and that nothing else tells from a quiet one.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// Time between two questions.
const EVERY: Duration = Duration::from_secs(15);
/// Time for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Questions without an answer after which a listener counts as dead.
const TRIES: u32 = 3;

/// A password that this process alone knows.
pub(super) struct Secret {
    text: String,
    state: RandomState,
}

impl Secret {
    pub(super) fn new() -> Self {
        let half = || RandomState::new().hash_one(0);
        Self {
            text: format!("{:016x}{:016x}", half(), half()),
            state: RandomState::new(),
        }
    }

    /// Compares keyed hashes, so that the time it takes tells nothing of the text.
    pub(super) fn is(&self, password: &str) -> bool {
        self.state.hash_one(password) == self.state.hash_one(&self.text) && password == self.text
    }
}

/// See the module.
pub(super) struct Probe {
    address: SocketAddr,
    v5: bool,
    secret: Arc<Secret>,
}

impl Probe {
    /// A probe of the listener that is bound to `address`.
    pub(super) fn new(address: SocketAddr, v5: bool, secret: Arc<Secret>) -> Self {
        let ip = match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        Self {
            address: SocketAddr::new(ip, address.port()),
            v5,
            secret,
        }
    }

    /// Returns when several questions in a row had no answer.
    pub(super) async fn until_silent(self) {
        // An id whose connection failed is not used again: rumqttd does not survive that.
        let mut used = 0_u32;
        let mut failed = 0;
        while failed < TRIES {
            sleep(EVERY / (failed * 15).max(1)).await;
            let id = format!("sparkgate-probe-{}-{used}", self.address.port());
            if matches!(timeout(PATIENCE, self.ask(&id)).await, Ok(Ok(true))) {
                failed = 0;
            } else {
                (failed, used) = (failed + 1, used.wrapping_add(1));
            }
        }
    }

    /// Connects and disconnects; whether it was let in.
    async fn ask(&self, id: &str) -> std::io::Result<bool> {
        let mut stream = TcpStream::connect(self.address).await?;
        stream
            .write_all(&connect(self.v5, id, &self.secret.text))
            .await?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await?;
        let [first, _, _, code] = answer;
        stream.write_all(&[0xE0, 0]).await?;
        Ok(first == 0x20 && code == 0)
    }
}

/// CONNECT with a clean session (MQTT section 3.1); its parts are far shorter than the 127 bytes of a one-byte length.
fn connect(v5: bool, id: &str, password: &str) -> Vec<u8> {
    let mut body = b"\0\x04MQTT".to_vec();
    body.extend([if v5 { 5 } else { 4 }, 0xC2, 0, 60]);
    if v5 {
        body.push(0);
    }
    for text in [id, "sparkgate-probe", password] {
        let length = u8::try_from(text.len()).unwrap_or(u8::MAX);
        body.extend([0, length]);
        body.extend(text.bytes());
    }
    let mut packet = vec![0x10, u8::try_from(body.len()).unwrap_or(0x7F)];
    packet.append(&mut body);
    packet
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::codec::{Packet, Version, decode};

    #[test]
    fn the_question_is_a_valid_connect() {
        let secret = Secret::new();
        for v5 in [false, true] {
            let packet = connect(v5, "sparkgate-probe-65535-4294967295", &secret.text);
            assert_eq!(usize::from(packet[1]), packet.len() - 2);
            assert!(packet[1] < 0x80);
            let decoded = decode(Version::V311, packet[0], &packet[2..], None).unwrap();
            let Packet::Connect(connect) = decoded else {
                panic!("not a CONNECT");
            };
            assert_eq!(connect.version == Version::V5, v5);
            assert!(secret.is(std::str::from_utf8(&connect.password.unwrap()).unwrap()));
        }
        assert!(!secret.is(&Secret::new().text));
    }
}
