//! The cold tier: what leaves the local disk lies in a store, once, and comes back.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;

use crate::harness::fleet::{Fleet, Plan, setting};
use crate::harness::gateway::{Gateway, free_address};
use crate::harness::mqtt::Client;
use crate::harness::nats::Nats;
use crate::harness::proxy::{Cut, Proxy};
use crate::harness::{export, tools, until};

/// Small segments that leave the disk as soon as they may.
fn config(cold: &str) -> String {
    format!(
        "[buffer]\nwarm = {{ ttl = \"1s\", max = \"64MiB\", segment = \"64KiB\", keep_delivered = \"0s\" }}\ncold = {{ {cold} }}\n"
    )
}

/// Of `cold` in `/api/buffer`.
fn cold(gateway: &Gateway) -> Value {
    gateway.json("/api/buffer")["cold"].clone()
}

fn objects(gateway: &Gateway) -> u64 {
    gateway.check_identity()["buffer"]["cold_objects"]
        .as_u64()
        .expect("a number")
}

/// Waits until every sealed segment is stored and has left the disk.
fn all_cold(gateway: &Gateway) {
    until("every sealed segment is in the store alone", 180, || {
        gateway.check_identity();
        let buffer = gateway.json("/api/buffer");
        // Each lane keeps the segment that it writes.
        let all = buffer["cold"]["waiting"] == 0 && buffer["segments"].as_u64()? <= 2;
        (all && buffer["cold"]["error"].is_null()).then_some(())
    });
}

/// What a script of Python's own libraries says of a file or folder.
fn foreign(name: &str, place: &Path) -> Value {
    let output = Command::new(tools::cold_python())
        .arg(script(name))
        .arg(place)
        .output()
        .expect("Python runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// What a foreign reader finds in a folder of objects: all whole, none overlapping another.
fn read_foreign(folder: &Path, least: u64) {
    let told = foreign("cold_table.py", folder);
    let objects = told["objects"].as_array().expect("objects");
    assert!(objects.len() as u64 >= least, "{} objects", objects.len());
    let mut ends: BTreeMap<&str, u64> = BTreeMap::new();
    for object in objects {
        assert_eq!(object["whole"], true, "{object}");
        assert_eq!(object["codec"], "ZSTD");
        assert_eq!(object["dictionary"], true);
        let id = |key: &str| object[key].as_u64().expect("an id");
        let end = ends
            .entry(object["lane"].as_str().expect("a lane"))
            .or_default();
        assert!(id("first") > *end, "{object} overlaps");
        *end = id("last");
    }
    let records = told["records"].as_array().expect("records");
    let once: BTreeSet<u64> = records.iter().filter_map(Value::as_u64).collect();
    assert_eq!(once.len(), records.len(), "no record is there twice");
    for (device, values) in told["values"].as_object().expect("values") {
        let values = values.as_array().expect("numbers");
        assert!(values.len() > 100, "{device}");
    }
}

/// Parquet files and manifests, by name.
fn files(folder: &Path) -> (BTreeSet<PathBuf>, BTreeSet<PathBuf>) {
    let (mut tables, mut manifests, mut open) =
        (BTreeSet::new(), BTreeSet::new(), vec![folder.to_owned()]);
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            match path.extension().and_then(|e| e.to_str()) {
                _ if path.is_dir() => open.push(path),
                Some("parquet") => _ = tables.insert(path.with_extension("")),
                Some("json") => _ = manifests.insert(path.with_extension("")),
                // What a kill left of an upload has a name that no reader takes for an object.
                _ => {}
            }
        }
    }
    (tables, manifests)
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/it/foreign")
        .join(name)
}

#[test]
fn a_folder_takes_what_leaves_the_disk_and_gives_it_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = format!(
        "url = \"file://{}\", max = \"1GiB\"",
        folder.path().display()
    );
    let mut gateway = Gateway::builder().config(&config(&place)).start();
    let plan = Plan::of(setting("SPARKGATE_COLD", 12_000), 3, 2);
    let fleet = Fleet::start(gateway.mqtt, plan);
    // Killed at any step of an upload: encoding, object, manifest, index.
    for at in 1..=5 {
        fleet.reach(plan.records() * at / 6);
        gateway.restart();
        gateway.check_identity();
    }
    fleet.finish();
    all_cold(&gateway);
    assert!(objects(&gateway) > 5, "{}", objects(&gateway));
    let (tables, manifests) = files(folder.path());
    assert_eq!(tables, manifests);
    assert_eq!(tables.len() as u64, objects(&gateway));
    export::is_complete(&gateway, plan);
    let now = crate::harness::mqtt::now_ms();
    let past = gateway.json(&format!(
        "/api/history?device=crash/n0/d0-0&metric=n&from=0&to={now}"
    ));
    assert!(!past.as_array().expect("points").is_empty(), "{past}");
    read_foreign(folder.path(), 6);

    assert!(gateway.stop().success());
    let lines = export::lines(&gateway);
    assert!(lines.len() as u64 > plan.records());
    assert_eq!(
        export::values(&lines).len(),
        plan.nodes * plan.devices,
        "with the gateway stopped, too"
    );

    // Without its index the gateway finds again what is stored.
    let (_, stored) = files(folder.path());
    std::fs::remove_file(gateway.folder().join("data/journal/cold")).expect("the index");
    gateway.restart();
    until("the objects are known again", 60, || {
        (objects(&gateway) >= stored.len() as u64).then_some(())
    });
    export::is_complete(&gateway, plan);
}

/// moto's S3 server.
struct S3 {
    port: u16,
    /// Over TLS.
    secure: bool,
    child: Child,
}

impl Drop for S3 {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl S3 {
    fn start() -> Self {
        Self::start_with(&[])
    }

    /// Over TLS, with a certificate and its key.
    fn start_tls(cert: &Path, key: &Path) -> Self {
        let (cert, key) = (cert.display().to_string(), key.display().to_string());
        Self::start_with(&["-s", "-c", &cert, "-k", &key])
    }

    fn start_with(more: &[&str]) -> Self {
        let port = free_address().port();
        let child = Command::new(tools::cold_python())
            .args(["-m", "moto.server", "-H", "127.0.0.1", "-p"])
            .arg(port.to_string())
            .args(more)
            .env("INITIAL_NO_AUTH_ACTION_COUNT", "1000000")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("moto starts");
        until("moto listens", 180, || {
            std::net::TcpStream::connect(("127.0.0.1", port)).ok()
        });
        let secure = !more.is_empty();
        Self {
            port,
            secure,
            child,
        }
    }

    /// What `s3_setup.py` prints.
    fn setup(&self, args: &[&str]) -> String {
        let output = Command::new(tools::cold_python())
            .arg(script("s3_setup.py"))
            .arg(format!(
                "{}://127.0.0.1:{}",
                if self.secure { "https" } else { "http" },
                self.port
            ))
            .args(args)
            .output()
            .expect("Python runs");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("text")
    }
}

/// Waits until the cold tier fails for this reason; nothing has left the disk then.
fn fails_with(gateway: &Gateway, what: &str) {
    until(&format!("the cold tier says {what}"), 120, || {
        gateway.check_identity();
        let error = cold(gateway)["error"].as_str()?.to_owned();
        error.contains(what).then_some(())
    });
    assert_eq!(objects(gateway), 0);
}

#[test]
fn an_s3_server_may_be_away_and_refuse_and_nothing_is_lost() {
    let dead = free_address().port();
    let proxy = Proxy::to(dead);
    let home = tempfile::tempdir().expect("a folder");
    let keys = home.path().join("s3.keys");
    std::fs::write(
        &keys,
        "aws_access_key_id = nobody\naws_secret_access_key = nothing\n",
    )
    .expect("keys");
    let place = format!(
        "url = \"s3://plant/line-1\", endpoint = \"http://127.0.0.1:{}\", path_style = true, credentials_file = \"{}\", upload_per_second = \"24KiB\"",
        proxy.port(),
        keys.display()
    );
    let mut gateway = Gateway::builder().config(&config(&place)).start();
    let plan = Plan::of(setting("SPARKGATE_COLD", 12_000), 3, 2);
    Fleet::start(gateway.mqtt, plan).finish();
    fails_with(&gateway, "object store");
    let waiting = cold(&gateway)["waiting"].as_u64().expect("a number");
    assert!(waiting > 5, "{waiting}");

    let s3 = S3::start();
    let good = s3.setup(&["user"]);
    proxy.lead_to(s3.port);
    fails_with(&gateway, "InvalidAccessKeyId");
    std::fs::write(&keys, good).expect("keys");
    gateway.restart();
    fails_with(&gateway, "NoSuchBucket");
    s3.setup(&["bucket", "plant"]);
    until("the first objects", 120, || {
        (objects(&gateway) >= 2).then_some(())
    });

    // Killed with an upload under way, and cut off in another.
    for round in 0..4 {
        let (known, sent) = (objects(&gateway), proxy.up());
        until("the next upload is under way", 120, || {
            (proxy.up() > sent + 2_000 || objects(&gateway) > known + 1).then_some(())
        });
        if round % 2 == 0 {
            gateway.restart();
        } else {
            proxy.lead_to(dead);
            proxy.cut(Cut::Reset);
            until("the outage shows", 120, || {
                cold(&gateway)["error"].as_str().map(|_| ())
            });
            proxy.lead_to(s3.port);
        }
        gateway.check_identity();
    }
    all_cold(&gateway);
    export::is_complete(&gateway, plan);
    let loaded = home.path().join("loaded");
    s3.setup(&["load", "plant", &loaded.display().to_string()]);
    let (tables, manifests) = files(&loaded);
    assert_eq!(tables, manifests);
    assert_eq!(tables.len() as u64, objects(&gateway));
    read_foreign(&loaded, waiting);
}

/// A server of instance metadata (IMDSv2): hands out `keys` to whoever shows the token.
struct Metadata {
    address: std::net::SocketAddr,
    served: Arc<AtomicU64>,
}

impl Metadata {
    fn start(access: String, secret: String, session: String) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let served = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&served);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut stream = std::io::BufReader::new(stream);
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).unwrap_or(0) > 0 {}
                let authorised = head
                    .to_lowercase()
                    .contains("x-aws-ec2-metadata-token: open-sesame");
                let body = match head.split(' ').nth(1).unwrap_or_default() {
                    "/latest/api/token" if head.starts_with("PUT ") => "open-sesame".to_owned(),
                    "/latest/meta-data/iam/security-credentials/" if authorised => {
                        "edge-box".to_owned()
                    }
                    "/latest/meta-data/iam/security-credentials/edge-box" if authorised => {
                        count.fetch_add(1, Ordering::Relaxed);
                        format!(
                            r#"{{"Code":"Success","LastUpdated":"2026-01-01T00:00:00Z","Type":"AWS-HMAC","AccessKeyId":"{access}","SecretAccessKey":"{secret}","Token":"{session}","Expiration":"2099-01-01T00:00:00Z"}}"#
                        )
                    }
                    _ => String::new(),
                };
                let status = if body.is_empty() {
                    "404 Not Found"
                } else {
                    "200 OK"
                };
                let _ = write!(
                    stream.get_mut(),
                    "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                    body.len()
                );
            }
        });
        Self { address, served }
    }
}

/// An authority of this test alone, and a certificate of it for 127.0.0.1: files of authority, certificate, key.
fn certificate(folder: &Path) -> [PathBuf; 3] {
    let mut params = rcgen::CertificateParams::new(Vec::new()).expect("a name");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().expect("a key");
    let authority = params.self_signed(&key).expect("an authority");
    let issuer = rcgen::Issuer::new(params, key);
    let key = rcgen::KeyPair::generate().expect("a key");
    let certificate = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()])
        .expect("a name")
        .signed_by(&key, &issuer)
        .expect("a certificate");
    let files = ["ca.pem", "cert.pem", "key.pem"].map(|name| folder.join(name));
    for (path, text) in files
        .iter()
        .zip([authority.pem(), certificate.pem(), key.serialize_pem()])
    {
        std::fs::write(path, text).expect("a file");
    }
    files
}

#[test]
fn a_store_of_the_plants_own_authority_takes_the_instances_credentials() {
    let home = tempfile::tempdir().expect("a folder");
    let [ca, cert, key] = certificate(home.path());
    let s3 = S3::start_tls(&cert, &key);
    let good = s3.setup(&["role"]);
    s3.setup(&["bucket", "plant"]);
    let field = |name: &str| {
        let line = good.lines().find(|line| line.starts_with(name));
        let (_, value) = line.and_then(|line| line.split_once('=')).expect("a key");
        value.trim().to_owned()
    };
    let metadata = Metadata::start(
        field("aws_access_key_id"),
        field("aws_secret_access_key"),
        field("aws_session_token"),
    );
    let place = |trust: &str| {
        format!(
            "url = \"s3://plant/line-1\", endpoint = \"https://127.0.0.1:{}\", path_style = true, metadata_endpoint = \"http://{}\"{trust}",
            s3.port, metadata.address
        )
    };
    let mut gateway = Gateway::builder().config(&config(&place(""))).start();
    let plan = Plan::of(3_000, 2, 1);
    Fleet::start(gateway.mqtt, plan).finish();
    fails_with(&gateway, "certificate");
    let trust = format!(", ca = \"{}\"", ca.display());
    gateway.edit(&place(""), &place(&trust));
    gateway.restart();
    all_cold(&gateway);
    assert!(objects(&gateway) > 2);
    assert!(metadata.served.load(Ordering::Relaxed) > 0);
    export::is_complete(&gateway, plan);
}

/// Topics and payloads of `buffer export --format payloads`, read by a foreign decoder.
fn foreign_payloads(text: &str) -> BTreeMap<String, Vec<sparkplug_rs::Payload>> {
    use base64::Engine as _;
    use sparkplug_rs::protobuf::Message as _;
    let mut found: BTreeMap<String, Vec<sparkplug_rs::Payload>> = BTreeMap::new();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let payload = base64::engine::general_purpose::STANDARD
            .decode(line["payload"].as_str().expect("a payload"))
            .expect("base64");
        let payload = sparkplug_rs::Payload::parse_from_bytes(&payload).expect("a payload");
        let topic = line["topic"].as_str().expect("a topic").to_owned();
        found.entry(topic).or_default().push(payload);
    }
    found
}

/// Rows of `buffer export --format parquet`, read by pyarrow.
fn rows(gateway: &Gateway) -> Vec<Value> {
    let place = tempfile::tempdir().expect("a folder");
    let table = place.path().join("records.parquet");
    let status = Command::new(env!("CARGO_BIN_EXE_sparkgate"))
        .args(["buffer", "export", "--format", "parquet"])
        .env("SPARKGATE_CONFIG", gateway.config_file())
        .stdout(std::fs::File::create(&table).expect("a file"))
        .status()
        .expect("the tool runs");
    assert!(status.success());
    let told = foreign("table_rows.py", &table);
    told.as_array().expect("rows").clone()
}

#[test]
fn an_export_is_a_table_or_messages_that_others_read() {
    let gateway = Gateway::builder().start();
    let plan = Plan::of(600, 1, 2);
    Fleet::start(gateway.mqtt, plan).finish();
    export::is_complete(&gateway, plan);
    let found = until("the node's will is exported", 60, || {
        let (code, out, errors) = gateway.tool(&["buffer", "export", "--format", "payloads"]);
        assert_eq!(code, 0, "{errors}");
        let found = foreign_payloads(&out);
        found
            .contains_key("spBv1.0/crash/NDEATH/n0")
            .then_some(found)
    });
    let data = &found["spBv1.0/crash/DDATA/n0/d0-0"];
    assert!(data.len() >= 300);
    let values: BTreeSet<u64> = data
        .iter()
        .flat_map(|payload| &payload.metrics)
        .map(|metric| {
            assert_eq!((metric.name(), metric.has_alias()), ("n", false));
            assert_eq!(metric.datatype(), sparkplug_rs::DataType::Int64 as u32);
            metric.long_value()
        })
        .collect();
    assert_eq!(values, (plan.from..plan.to).collect());
    let birth = &found["spBv1.0/crash/NBIRTH/n0"][0];
    assert!(birth.metrics.iter().any(|metric| metric.name() == "bdSeq"));
    assert_eq!(birth.seq(), 0);
    let will = &found["spBv1.0/crash/NDEATH/n0"][0];
    assert!(!will.has_seq());
    assert_eq!(will.metrics[0].name(), "bdSeq");

    let rows = until("both exports have the same records", 60, || {
        let rows = rows(&gateway);
        let records = rows.iter().filter(|row| row["part"] == 0).count();
        // A presence record may come in between.
        (records == export::lines(&gateway).len()).then_some(rows)
    });
    let values: BTreeSet<u64> = rows
        .iter()
        .filter(|row| row["device"] == "d0-1" && row["class"] == "data")
        .filter_map(|row| row["value_int"].as_u64())
        .collect();
    assert_eq!(values, (plan.from..plan.to).collect());
}

#[test]
fn a_large_object_goes_up_in_pieces_and_is_made_once() {
    let s3 = S3::start();
    let home = tempfile::tempdir().expect("a folder");
    let keys = home.path().join("s3.keys");
    std::fs::write(&keys, s3.setup(&["user"])).expect("keys");
    s3.setup(&["bucket", "plant"]);
    let config = format!(
        "raw = [\"factory/#\"]\n[buffer]\nwarm = {{ ttl = \"1s\", segment = \"12MiB\", keep_delivered = \"0s\" }}\n\
         cold = {{ url = \"s3://plant\", endpoint = \"http://127.0.0.1:{}\", path_style = true, credentials_file = \"{}\" }}\n",
        s3.port,
        keys.display()
    );
    // Nothing is delivered, so that the files stay on the disk.
    let nats = Nats::absent();
    let mut gateway = Gateway::builder()
        .bridge(&nats.url())
        .config(&config)
        .start();
    let mut client = Client::connect(gateway.mqtt, "camera", None);
    // Bytes that don't compress: a xorshift.
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    for _ in 0..15 {
        let mut picture = Vec::with_capacity(1 << 20);
        while picture.len() < 1 << 20 {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            picture.extend_from_slice(&seed.to_le_bytes());
        }
        client.publish_acked("factory/camera", &picture, false);
    }
    until("a large object is stored", 120, || {
        (cold(&gateway)["bytes"].as_u64()? > 9 << 20).then_some(())
    });
    let pieces = |text: String| {
        let etags: BTreeMap<String, String> = serde_json::from_str(&text).expect("JSON");
        let large = etags.into_iter().filter(|(_, etag)| etag.contains("-2"));
        large.collect::<BTreeMap<_, _>>()
    };
    let stored = pieces(s3.setup(&["etags", "plant"]));
    assert!(!stored.is_empty());
    // As after a kill before the manifest: it is found, and not made anew.
    gateway.kill();
    for object in stored.keys() {
        s3.setup(&["delete", "plant", &object.replace(".parquet", ".json")]);
    }
    std::fs::remove_file(gateway.folder().join("data/journal/cold")).expect("the index");
    gateway.restart();
    until("the object is known again", 120, || {
        (cold(&gateway)["bytes"].as_u64()? > 9 << 20).then_some(())
    });
    let again = s3.setup(&["etags", "plant"]);
    assert!(
        stored
            .keys()
            .all(|object| again.contains(&object.replace(".parquet", ".json")))
    );
    assert_eq!(pieces(again), stored);
    let lines = export::lines(&gateway);
    let pictures = lines.iter().filter(|line| line["class"] == "raw").count();
    assert_eq!(pictures, 15);
}
