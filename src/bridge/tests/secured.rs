//! Every way to sign in and every kind of TLS, against real servers, and credentials that change under way.

use std::process::Command;

use super::*;
use crate::bridge::ask::Ask;
use crate::bridge::config::Tls;

/// A certificate authority, a server's certificate and a client's, PEM, made by openssl.
struct Pki {
    folder: tempfile::TempDir,
}

impl Pki {
    fn new() -> Self {
        let pki = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        std::fs::write(
            pki.path("ext"),
            "subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth\n",
        )
        .unwrap();
        pki.openssl(&format!(
            "req -x509 {key} -days 30 -subj /CN=ca -keyout ca.key -out ca.pem"
        ));
        for name in ["server", "client"] {
            pki.openssl(&format!(
                "req {key} -subj /CN={name} -keyout {name}.key -out {name}.csr"
            ));
            pki.openssl(&format!(
                "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -extfile ext -out {name}.pem"
            ));
        }
        pki
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn openssl(&self, args: &str) {
        let output = Command::new("openssl")
            .args(args.split(' '))
            .current_dir(self.folder.path())
            .output()
            .expect("openssl (apt-get install openssl)");
        assert!(
            output.status.success(),
            "openssl {args}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    fn server(&self, more: &str) -> String {
        format!(
            "tls {{ cert_file: {:?}, key_file: {:?}, ca_file: {:?} {more} }}",
            self.path("server.pem"),
            self.path("server.key"),
            self.path("ca.pem")
        )
    }

    fn client(&self, with_certificate: bool, first: bool) -> Option<Tls> {
        Some(Tls {
            ca: Some(self.path("ca.pem")),
            cert: with_certificate.then(|| self.path("client.pem")),
            key: with_certificate.then(|| self.path("client.key")),
            first,
        })
    }
}

/// 200 records through a server with `extra` in its configuration, and its word for what it stored.
async fn check(extra: &str, config: impl FnOnce(Config) -> Config) {
    let nats = Server::start_with(extra);
    let config = config(to(&nats));
    let rig = Rig::start(config.clone());
    rig.journal.append_data(200, 5);
    rig.drained().await;
    assert_eq!(stored(&config).await, 200, "{extra}");
}

async fn stored(config: &Config) -> u64 {
    let (client, _reports) = connect::connect(config, &config.urls[0], "reader")
        .await
        .unwrap();
    let info = Ask(client)
        .api(&format!("STREAM.INFO.{DATA}"), &serde_json::Value::Null)
        .await
        .unwrap();
    info["state"]["messages"].as_u64().unwrap()
}

fn file(folder: &tempfile::TempDir, name: &str, text: &str) -> Option<std::path::PathBuf> {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    Some(path)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_tls() {
    let pki = Pki::new();
    check(&pki.server(""), |config| Config {
        tls: pki.client(false, false),
        ..config
    })
    .await;
    check(&pki.server(", verify: true"), |config| Config {
        tls: pki.client(true, false),
        ..config
    })
    .await;
    // The client's certificate is its name and needs no password.
    let mapped = format!(
        "{}\nauthorization {{ users: [{{ user: \"CN=client\" }}] }}",
        pki.server(", verify_and_map: true")
    );
    check(&mapped, |config| Config {
        tls: pki.client(true, false),
        ..config
    })
    .await;
}

/// nats-server has it since 2.10.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_before_the_greeting() {
    let pki = Pki::new();
    check(
        &pki.server(", handshake_first: true, verify: true"),
        |config| Config {
            tls: pki.client(true, true),
            ..config
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_is_not_trusted_is_named_and_mended_by_its_file() {
    let (pki, other) = (Pki::new(), Pki::new());
    let nats = Server::start_with(&pki.server(""));
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("ca.pem");
    std::fs::copy(other.path("ca.pem"), &ca).unwrap();
    let rig = Rig::start(Config {
        tls: Some(Tls {
            ca: Some(ca.clone()),
            ..Tls::default()
        }),
        ..to(&nats)
    });
    rig.journal.append_data(50, 5);
    rig.until("an untrusted certificate", |data, _| {
        data.state == UplinkState::TlsFailed
    })
    .await;
    std::fs::copy(pki.path("ca.pem"), &ca).unwrap();
    rig.drained().await;
    assert_eq!(stored(&rig.config).await, 50);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_way_to_sign_in() {
    let folder = tempfile::tempdir().unwrap();
    check("authorization { token: \"s3cret\" }", |config| Config {
        token_file: file(&folder, "token", "s3cret\n"),
        ..config
    })
    .await;
    check("authorization { user: gw, password: \"p w\" }", |config| {
        Config {
            user: Some("gw".to_owned()),
            password_file: file(&folder, "password", "p w\n"),
            ..config
        }
    })
    .await;
    let pair = nkeys::KeyPair::new_user();
    check(
        &format!(
            "authorization {{ users: [{{ nkey: {} }}] }}",
            pair.public_key()
        ),
        |config| Config {
            nkey_file: file(&folder, "nkey", &pair.seed().unwrap()),
            ..config
        },
    )
    .await;
    let authority = Authority::new();
    check(&authority.server(), |config| Config {
        creds_file: file(&folder, "creds", &authority.credentials()),
        ..config
    })
    .await;
}

/// An operator, a system account and an account, as `nsc` would make them.
struct Authority {
    operator: nkeys::KeyPair,
    system: nkeys::KeyPair,
    account: nkeys::KeyPair,
}

fn jwt(issuer: &nkeys::KeyPair, subject: &str, nats: &serde_json::Value) -> String {
    use base64::Engine as _;
    let encode = |bytes: &[u8]| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes);
    let claims = serde_json::json!({
        "jti": "TEST", "iat": 1_764_433_500, "iss": issuer.public_key(), "name": "test",
        "sub": subject, "nats": nats,
    });
    let text = format!(
        "{}.{}",
        encode(br#"{"typ":"JWT","alg":"ed25519-nkey"}"#),
        encode(claims.to_string().as_bytes())
    );
    let signature = issuer.sign(text.as_bytes()).unwrap();
    format!("{text}.{}", encode(&signature))
}

impl Authority {
    fn new() -> Self {
        Self {
            operator: nkeys::KeyPair::new_operator(),
            system: nkeys::KeyPair::new_account(),
            account: nkeys::KeyPair::new_account(),
        }
    }

    fn server(&self) -> String {
        let account = |pair: &nkeys::KeyPair, storage: i64| {
            jwt(
                &self.operator,
                &pair.public_key(),
                &serde_json::json!({
                    "type": "account", "version": 2,
                    "limits": {
                        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true,
                        "conn": -1, "leaf": -1, "mem_storage": storage, "disk_storage": storage,
                        "streams": storage, "consumer": storage,
                    },
                }),
            )
        };
        let operator = jwt(
            &self.operator,
            &self.operator.public_key(),
            &serde_json::json!({ "type": "operator", "version": 2 }),
        );
        format!(
            "operator: {operator}\nsystem_account: {0}\nresolver: MEMORY\nresolver_preload: {{ {0}: {1}, {2}: {3} }}",
            self.system.public_key(),
            account(&self.system, 0),
            self.account.public_key(),
            account(&self.account, -1),
        )
    }

    fn credentials(&self) -> String {
        let user = nkeys::KeyPair::new_user();
        let token = jwt(
            &self.account,
            &user.public_key(),
            &serde_json::json!({
                "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1, "pub": {}, "sub": {},
            }),
        );
        format!(
            "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
            user.seed().unwrap()
        )
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_credentials_are_read_again_and_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let mut nats = Server::start_with("authorization { user: gw, password: old }");
    let rig = Rig::start(Config {
        user: Some("gw".to_owned()),
        password_file: file(&folder, "password", "old"),
        ..to(&nats)
    });
    rig.journal.append_data(3_000, 5);
    rig.until("under way", |data, _| data.acked >= 500).await;
    nats.configure("authorization { user: gw, password: new }");
    nats.restart();
    rig.until("refused", |data, _| {
        data.state == UplinkState::BadCredentials
    })
    .await;
    rig.journal.append_data(3_000, 5);
    file(&folder, "password", "new");
    rig.drained().await;
    nats.configure("");
    nats.restart();
    check_complete(&nats.read_all(DATA).await, &rig.journal, Lane::Data);
}
