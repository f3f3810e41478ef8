//! The cold tier: what leaves the local disk lies in a store, once, and comes back.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::harness::fleet::{Fleet, Plan, setting};
use crate::harness::gateway::{Gateway, free_address};
use crate::harness::proxy::{Cut, Proxy};
use crate::harness::{tools, until};

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

/// Ids of all records, and the values of `n` by device, as `buffer export` tells them.
fn export(gateway: &Gateway) -> (Vec<u64>, BTreeMap<String, BTreeSet<u64>>) {
    let (code, out, errors) = gateway.tool(&["buffer", "export"]);
    assert_eq!(code, 0, "{errors}");
    let mut values: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    let ids = out
        .lines()
        .map(|line| {
            let line: Value = serde_json::from_str(line).expect("JSON");
            if line["class"] == "data" {
                let device = line["device"].as_str().expect("a device").to_owned();
                let metrics = line["body"]["metrics"].as_array().expect("metrics");
                let found = metrics.iter().filter_map(|metric| metric["value"].as_u64());
                values.entry(device).or_default().extend(found);
            }
            line["record"].as_u64().expect("an id")
        })
        .collect();
    (ids, values)
}

/// What was acknowledged is exported, each record once, and there is none that the counters don't know.
fn everything_is_exported(gateway: &Gateway, plan: Plan) {
    let (ids, values) = until("the export and the counters agree", 60, || {
        // A presence record may come in between, and what was just taken is not in a file yet.
        let count =
            |status: Value| Some(status["received"].as_u64()? + status["derived"].as_u64()?);
        let before = count(gateway.check_identity())?;
        let (ids, values) = export(gateway);
        let after = count(gateway.check_identity())?;
        (before == after && ids.len() as u64 == after).then_some((ids, values))
    });
    assert!(
        ids.windows(2).all(|pair| pair[0] < pair[1]),
        "each once, in order"
    );
    assert_eq!(values.len(), plan.nodes * plan.devices);
    for (device, values) in values {
        let missing = (plan.from..plan.to).find(|n| !values.contains(n));
        assert_eq!(missing, None, "{device}");
    }
}

/// What a foreign reader finds in a folder of objects: all whole, none overlapping another.
fn read_foreign(folder: &Path, least: u64) {
    let output = Command::new(tools::cold_python())
        .arg(script("cold_table.py"))
        .arg(folder)
        .output()
        .expect("Python runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
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
    everything_is_exported(&gateway, plan);
    let now = crate::harness::mqtt::now_ms();
    let past = gateway.json(&format!(
        "/api/history?device=crash/n0/d0-0&metric=n&from=0&to={now}"
    ));
    assert!(!past.as_array().expect("points").is_empty(), "{past}");
    read_foreign(folder.path(), 6);

    assert!(gateway.stop().success());
    let (ids, values) = export(&gateway);
    assert!(ids.len() as u64 > plan.records());
    assert_eq!(
        values.len(),
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
    everything_is_exported(&gateway, plan);
}

/// moto's S3 server.
struct S3 {
    port: u16,
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
        let port = free_address().port();
        let child = Command::new(tools::cold_python())
            .args([
                "-m",
                "moto.server",
                "-H",
                "127.0.0.1",
                "-p",
                &port.to_string(),
            ])
            .env("INITIAL_NO_AUTH_ACTION_COUNT", "1000000")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("moto starts");
        until("moto listens", 180, || {
            std::net::TcpStream::connect(("127.0.0.1", port)).ok()
        });
        Self { port, child }
    }

    /// What `s3_setup.py` prints.
    fn setup(&self, args: &[&str]) -> String {
        let output = Command::new(tools::cold_python())
            .arg(script("s3_setup.py"))
            .arg(self.port.to_string())
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
    everything_is_exported(&gateway, plan);
    let loaded = home.path().join("loaded");
    s3.setup(&["load", "plant", &loaded.display().to_string()]);
    let (tables, manifests) = files(&loaded);
    assert_eq!(tables, manifests);
    assert_eq!(tables.len() as u64, objects(&gateway));
    read_foreign(&loaded, waiting);
}
