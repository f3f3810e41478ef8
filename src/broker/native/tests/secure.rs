//! TLS and WebSocket: the same broker behind other doors.

use std::path::{Path, PathBuf};

use futures_util::{SinkExt, StreamExt};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer,
    KeyIdMethod, KeyPair, KeyUsagePurpose, RevocationReason, RevokedCertParams, SerialNumber,
    date_time_ymd,
};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};
use tokio_tungstenite::client_async;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use super::*;
use crate::broker::config::{Tls, Websocket};

const SERVER: u64 = 1;
const CLIENT: u64 = 2;

/// An authority with a folder of files.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    folder: tempfile::TempDir,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.not_after = date_time_ymd(2090, 1, 1);
        let folder = tempfile::tempdir().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        std::fs::write(folder.path().join("ca.pem"), pem).unwrap();
        Self {
            issuer: Issuer::new(params, key),
            folder,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes `<name>.pem` and `<name>.key`.
    fn issue(&self, name: &str, serial: u64, year: i32) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.serial_number = Some(SerialNumber::from(serial));
        params.not_after = date_time_ymd(year, 1, 1);
        let pem = params.signed_by(&key, &self.issuer).unwrap().pem();
        std::fs::write(self.path(&format!("{name}.pem")), pem).unwrap();
        std::fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    /// Writes `crl.pem`.
    fn revoke(&self, serials: &[u64]) {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: Some(RevocationReason::KeyCompromise),
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(2080, 1, 1),
            crl_number: SerialNumber::from(1u64),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let pem = list.signed_by(&self.issuer).unwrap().pem().unwrap();
        std::fs::write(self.path("crl.pem"), pem).unwrap();
    }

    fn tls(&self) -> Tls {
        Tls {
            listen: vec![([127, 0, 0, 1], 0).into()],
            cert: self.path("server.pem"),
            key: self.path("server.key"),
            client_ca: Some(self.path("ca.pem")),
            crl: Some(self.path("crl.pem")),
        }
    }

    fn connector(&self, client: &str) -> TlsConnector {
        let read = |path: &Path| CertificateDer::from_pem_file(path).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(read(&self.path("ca.pem"))).unwrap();
        let key = PrivateKeyDer::from_pem_file(self.path(&format!("{client}.key"))).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![read(&self.path(&format!("{client}.pem")))], key)
            .unwrap();
        TlsConnector::from(Arc::new(config))
    }
}

async fn secured(
    authority: &Authority,
    address: SocketAddr,
) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = authority.connector("client").connect(name, stream).await?;
    stream
        .write_all(b"\x10\x0D\0\x04MQTT\x04\x02\0\0\0\x01s")
        .await?;
    let mut connack = [0; 4];
    stream.read_exact(&mut connack).await?;
    assert_eq!(connack, [0x20, 2, 0, 0]);
    Ok(stream)
}

async fn pings<S: AsyncReadExt + AsyncWriteExt + Unpin>(stream: &mut S) -> bool {
    let mut answer = [0; 2];
    stream.write_all(b"\xc0\0").await.is_ok() && stream.read_exact(&mut answer).await.is_ok()
}

/// Waits until a refusal for this reason is counted, which may be after its client knows.
async fn refuses(broker: &NativeBroker, reason: &str) {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let refused = broker.stats().refused;
        if refused.iter().any(|(why, n)| *why == reason && *n > 0) {
            return;
        }
        assert!(Instant::now() < deadline, "no {reason} in {refused:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A broker with these doors, and what keeps its pipeline open.
async fn broker(config: Config) -> (NativeBroker, mpsc::Receiver<crate::broker::Delivery>) {
    let (sink, deliveries) = mpsc::channel(1024);
    let setup = Setup {
        config,
        state_dir: None,
        taps: Vec::new(),
        topic_check: None,
        sink,
    };
    let broker = NativeBroker::start(setup).unwrap();
    broker.listen().await.unwrap();
    (broker, deliveries)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_and_revocations_are_exchanged_while_sessions_go_on() {
    let authority = Authority::new();
    authority.issue("server", SERVER, 2060);
    authority.issue("client", CLIENT, 2061);
    authority.revoke(&[77]);
    let config = Config {
        listen: Vec::new(),
        tls: Some(authority.tls()),
        ..Config::default()
    };
    let (broker, _deliveries) = broker(config.clone()).await;
    let address = broker.tls_addrs()[0];
    let mut session = secured(&authority, address).await.unwrap();
    let recent = broker.stats().clients.unwrap().recent;
    let user = recent.iter().find_map(|recent| match &recent.event {
        crate::broker::Event::Connected { user, .. } => user.clone(),
        crate::broker::Event::Disconnected { .. } => None,
    });
    assert_eq!(
        user.as_deref(),
        Some("client"),
        "the certificate names the user"
    );
    let ends = |broker: &NativeBroker, what: &str| {
        let all = broker.stats().certificates;
        all.iter().find(|c| c.what == what).unwrap().ends
    };
    assert_eq!(ends(&broker, "server"), 2_840_140_800);
    assert_eq!(ends(&broker, "client_ca"), 3_786_912_000);
    assert_eq!(ends(&broker, "crl"), 3_471_292_800);

    // A key that is not the certificate's: refused as a whole, the old pair stays.
    let good = std::fs::read(authority.path("server.key")).unwrap();
    std::fs::copy(authority.path("client.key"), authority.path("server.key")).unwrap();
    authority.revoke(&[CLIENT]);
    assert!(matches!(broker.reload(&config), Err(StartError::Tls(_))));
    assert!(
        secured(&authority, address).await.is_ok(),
        "the old revocations hold too"
    );
    // The session of that name was taken over just now.
    let deadline = Instant::now() + DEADLINE;
    while pings(&mut session).await {
        assert!(Instant::now() < deadline, "it goes on");
    }
    let mut session = secured(&authority, address).await.unwrap();

    std::fs::write(authority.path("server.key"), good).unwrap();
    authority.revoke(&[77]);
    authority.issue("server", SERVER, 2070);
    broker.reload(&config).unwrap();
    assert_eq!(ends(&broker, "server"), 3_155_760_000);
    assert!(pings(&mut session).await, "sessions go on");

    authority.revoke(&[CLIENT]);
    broker.reload(&config).unwrap();
    assert!(secured(&authority, address).await.is_err(), "revoked");
    assert!(
        pings(&mut session).await,
        "a session that is open stays open"
    );
    refuses(&broker, "tls_handshake").await;
    broker.stop(Instant::now() + DEADLINE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_versions_come_over_websockets_with_and_without_tls() {
    let authority = Authority::new();
    authority.issue("server", SERVER, 2060);
    authority.issue("client", CLIENT, 2061);
    for tls in [false, true] {
        let config = Config {
            listen: Vec::new(),
            // Nobody shows a certificate here, or would have the rights of its name alone.
            tls: tls.then(|| Tls {
                client_ca: None,
                crl: None,
                ..authority.tls()
            }),
            websocket: Some(Websocket {
                listen: vec![([127, 0, 0, 1], 0).into()],
                tls,
                origins: Vec::new(),
            }),
            ..Config::default()
        };
        let (broker, _deliveries) = broker(config).await;
        let address = broker.websocket_addrs()[0];
        for level in [4, 5] {
            let plain = TcpStream::connect(address).await.unwrap();
            if tls {
                let name = ServerName::try_from("localhost").unwrap();
                let stream = authority.connector("client").connect(name, plain);
                conversation(stream.await.unwrap(), level).await;
            } else {
                conversation(plain, level).await;
            }
        }
        // Without the subprotocol nobody is let in.
        if !tls {
            let plain = TcpStream::connect(address).await.unwrap();
            assert!(client_async("ws://localhost/", plain).await.is_err());
            refuses(&broker, "websocket_handshake").await;
        }
        broker.stop(Instant::now() + DEADLINE).await;
    }
}

/// Subscribes and publishes to itself, with packets cut across messages at every place.
async fn conversation<S>(stream: S, level: u8)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let mut request = "ws://localhost/mqtt".into_client_request().unwrap();
    request
        .headers_mut()
        .insert("sec-websocket-protocol", "mqtt".parse().unwrap());
    let (mut socket, response) = client_async(request, stream).await.unwrap();
    assert_eq!(response.headers()["sec-websocket-protocol"], "mqtt");
    let properties: &[u8] = if level == 5 { b"\0" } else { b"" };
    let packet = |first: u8, parts: &[&[u8]]| {
        let body = parts.concat();
        [&[first, u8::try_from(body.len()).unwrap()], &body[..]].concat()
    };
    let connect = packet(
        0x10,
        &[b"\0\x04MQTT", &[level, 2, 0, 0], properties, b"\0\x01w"],
    );
    let subscribe = packet(0x82, &[b"\0\x01", properties, b"\0\x01t\0"]);
    let publish = packet(0x30, &[b"\0\x01t", properties, b"hello"]);
    let all = [connect, subscribe, publish.clone()].concat();
    for piece in all.chunks(3) {
        let message = Message::Binary(piece.to_vec().into());
        socket.send(message).await.unwrap();
    }
    let mut got = Vec::new();
    while !got.ends_with(&publish) {
        let message = timeout(DEADLINE, socket.next()).await.unwrap();
        got.extend_from_slice(&message.unwrap().unwrap().into_data());
    }
    assert_eq!(got[0], 0x20, "CONNACK comes first");
    socket
        .send(Message::Binary(b"\xe0\0".to_vec().into()))
        .await
        .unwrap();
}
