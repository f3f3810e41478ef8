//! The bridge against real servers, with a journal in memory.
//!
//! Servers are killed with SIGKILL, their stores rolled back, their streams purged, deleted, filled.

#[path = "../../tests/it/harness/nats.rs"]
#[allow(dead_code, unreachable_pub, missing_docs)]
mod nats;
#[path = "../../tests/it/harness/ports.rs"]
#[allow(unreachable_pub, missing_docs)]
mod ports;

mod cluster;
mod doctors;
mod hub;
mod journal;
mod secured;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use self::journal::{Journal, Notes};
use self::nats::{Nats as Server, Stored};
use super::config::Config;
use super::drain::Event;
use super::status::{LaneStatus, UplinkState};
use super::*;
use crate::buffer::record::Class;

const GATEWAY: &str = "site-a";
const DATA: &str = "SPARKGATE_site-a";
const ALARMS: &str = "SPARKGATE_site-a_ALARMS";

struct Rig {
    journal: Arc<Journal>,
    notes: Arc<Notes>,
    bridge: BridgeHandle,
    config: Config,
    folder: tempfile::TempDir,
    /// How long a story may wait for something, s.
    patience: u64,
}

impl Rig {
    fn start(config: Config) -> Self {
        Self::with(config, Arc::new(Journal::new()))
    }

    fn with(config: Config, journal: Arc<Journal>) -> Self {
        let notes = Arc::new(Notes::default());
        let folder = tempfile::tempdir().unwrap();
        let bridge = launch(&config, &journal, &notes, folder.path());
        Self {
            journal,
            notes,
            bridge,
            config,
            folder,
            // After failures the bridge itself waits for up to half a minute.
            patience: 180,
        }
    }

    /// kill -9 of the gateway: nothing is drained, nothing more is kept.
    async fn kill(&mut self) {
        for task in self.bridge.tasks.lock().unwrap().drain(..) {
            task.abort();
        }
        tokio::task::yield_now().await;
        self.bridge = launch(&self.config, &self.journal, &self.notes, self.folder.path());
    }

    async fn until(&self, what: &str, mut done: impl FnMut(&LaneStatus, &LaneStatus) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(self.patience);
        loop {
            let status = self.bridge.status();
            if done(&status.data, &status.alarms) {
                return;
            }
            assert!(Instant::now() < deadline, "never {what}: {status:#?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn drained(&self) {
        let (data, alarms) = (
            self.journal.head(Lane::Data),
            self.journal.head(Lane::Alarms),
        );
        self.until("drained", |d, a| d.acked >= data && a.acked >= alarms)
            .await;
    }

    fn events(&self, wanted: impl Fn(&Event) -> bool) -> usize {
        self.notes
            .all()
            .iter()
            .filter(|notice| wanted(&notice.event))
            .count()
    }
}

fn launch(
    config: &Config,
    journal: &Arc<Journal>,
    notes: &Arc<Notes>,
    folder: &Path,
) -> BridgeHandle {
    launch_as(GATEWAY, config, journal, notes, folder)
}

fn launch_as(
    gateway: &str,
    config: &Config,
    journal: &Arc<Journal>,
    notes: &Arc<Notes>,
    folder: &Path,
) -> BridgeHandle {
    let notes = notes.clone();
    let config = config.clone();
    let uplink = Nats::new(config.clone(), gateway, "e1");
    spawn(
        Parts {
            limits: Limits {
                // Long enough to be seen, short enough for a test.
                fence_hold: Duration::from_secs(4),
                ..config.limits()
            },
            config,
            gateway: gateway.to_owned(),
            source: journal.clone(),
            memory: journal.clone(),
            data_dir: folder.to_owned(),
            hooks: Hooks {
                notice: Arc::new(move |notice| notes.add(notice)),
                write: Arc::new(|request| {
                    let metric = request.metrics[0].0.clone();
                    Box::pin(async move {
                        Ok(serde_json::json!({ "status": "confirmed", "metric": metric }))
                    })
                }),
                ack: Arc::new(|request| {
                    Box::pin(async move { Ok(serde_json::json!({ "id": request.id })) })
                }),
            },
        },
        uplink,
    )
}

fn to(nats: &Server) -> Config {
    Config {
        urls: vec![nats.url()],
        ..Config::default()
    }
}

/// Every record of the lane once, in order, linked by `Sparkgate-Prev`; per-device values rising by one.
fn check_complete(messages: &[Stored], journal: &Journal, lane: Lane) {
    let mut prev = 0;
    let mut ids = Vec::new();
    let mut devices: HashMap<String, u64> = HashMap::new();
    for message in messages {
        let record = message.record();
        assert!(
            record > prev,
            "record {record} behind {prev} at {}",
            message.seq
        );
        assert_eq!(message.prev(), prev, "link of record {record}");
        prev = record;
        ids.push(record);
        if message.subject.contains(".data.")
            && let Some(n) = message.json()["metrics"][0]["value"].as_u64()
        {
            let last = devices.insert(message.subject.clone(), n);
            assert_eq!(n, last.map_or(0, |last| last + 1), "{}", message.subject);
        }
    }
    assert_eq!(ids, journal.ids(lane));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_arrive_once_and_in_order_with_their_headers() {
    let nats = Server::start();
    let rig = Rig::start(to(&nats));
    rig.journal.append_data(2000, 20);
    rig.journal.append(Class::Alarm, "{\"id\":\"a1\"}");
    rig.drained().await;
    let messages = nats.read_all(DATA).await;
    check_complete(&messages, &rig.journal, Lane::Data);
    check_complete(&nats.read_all(ALARMS).await, &rig.journal, Lane::Alarms);
    let first = &messages[0];
    assert_eq!(first.subject, "sparkgate.site-a.data.plantA.gw-07.press-0");
    assert_eq!(first.header("Nats-Msg-Id"), "site-a-e1-1");
    assert_eq!(first.header("ce-type"), "sparkgate.data.v1");
    let status = rig.bridge.status();
    assert_eq!(status.state, UplinkState::Ok);
    assert_eq!((status.data.published, status.data.duplicates), (2000, 0));
    rig.bridge.stop(Duration::from_secs(60)).await;
    assert_eq!(rig.bridge.status().state, UplinkState::Stopped);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_of_server_and_gateway_leave_no_trace() {
    let mut nats = Server::start();
    let mut rig = Rig::start(to(&nats));
    for round in 0..6u64 {
        rig.journal.append_data(4000, 50);
        let mark = rig.journal.head(Lane::Data) - 2500;
        rig.until("under way", |data, _| data.acked >= mark).await;
        if round % 2 == 0 {
            nats.kill();
            rig.journal.append_data(500, 50);
            nats.restart();
        } else {
            rig.kill().await;
        }
    }
    rig.drained().await;
    check_complete(&nats.read_all(DATA).await, &rig.journal, Lane::Data);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_longer_than_the_dedupe_window_makes_no_duplicates() {
    let mut nats = Server::start();
    let mut rig = Rig::start(to(&nats));
    rig.journal.append_data(100, 5);
    rig.drained().await;
    let context = nats.jetstream().await;
    let mut config = nats.stream_config(DATA).await;
    config.duplicate_window = Duration::from_secs(1);
    context.update_stream(config).await.unwrap();
    for _ in 0..4 {
        rig.journal.append_data(3000, 5);
        let mark = rig.journal.head(Lane::Data) - 1500;
        rig.until("under way", |data, _| data.acked >= mark).await;
        nats.kill();
        tokio::time::sleep(Duration::from_millis(1200)).await;
        nats.restart();
        rig.kill().await;
    }
    rig.drained().await;
    check_complete(&nats.read_all(DATA).await, &rig.journal, Lane::Data);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_and_a_restart_go_on_where_they_were() {
    let nats = Server::start();
    let mut rig = Rig::start(to(&nats));
    rig.journal.append_data(500, 5);
    rig.drained().await;
    let context = nats.jetstream().await;
    context
        .get_stream(DATA)
        .await
        .unwrap()
        .purge()
        .await
        .unwrap();
    rig.kill().await;
    rig.journal.append_data(500, 5);
    rig.drained().await;
    let messages = nats.read_all(DATA).await;
    assert_eq!(messages.len(), 500);
    assert_eq!((messages[0].record(), messages[0].prev()), (501, 500));
    assert_eq!(messages[499].record(), 1000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_store_is_filled_again_and_people_hear_of_it() {
    let mut nats = Server::start();
    let rig = Rig::start(to(&nats));
    rig.journal.append_data(1000, 5);
    rig.drained().await;
    nats.kill();
    let copy = nats.snapshot();
    nats.restart();
    rig.journal.append_data(1000, 5);
    rig.drained().await;
    nats.kill();
    nats.restore(&copy);
    nats.restart();
    rig.journal.append_data(10, 5);
    rig.drained().await;
    check_complete(&nats.read_all(DATA).await, &rig.journal, Lane::Data);
    assert_eq!(rig.events(|event| matches!(event, Event::StreamLost(_))), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_stream_is_made_and_filled_again() {
    let nats = Server::start();
    let rig = Rig::start(to(&nats));
    rig.journal.append_data(1000, 5);
    rig.drained().await;
    nats.jetstream().await.delete_stream(DATA).await.unwrap();
    rig.journal.append_data(1000, 5);
    rig.drained().await;
    check_complete(&nats.read_all(DATA).await, &rig.journal, Lane::Data);
    assert_eq!(rig.events(|event| matches!(event, Event::StreamLost(_))), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_longer_kept_is_told_by_a_gap_record() {
    let nats = Server::start();
    let rig = Rig::start(to(&nats));
    rig.journal.append_data(1000, 5);
    rig.drained().await;
    rig.journal.forget_to(400);
    nats.jetstream().await.delete_stream(DATA).await.unwrap();
    rig.journal.append_data(10, 5);
    rig.drained().await;
    let messages = nats.read_all(DATA).await;
    assert_eq!(messages[0].subject, "sparkgate.site-a.gap._._._");
    assert_eq!(messages[0].json()["to"], 400);
    assert_eq!((messages[1].record(), messages[1].prev()), (401, 400));
    assert_eq!(messages.len(), 1 + 610);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_stream_keeps_everything_until_it_is_enlarged() {
    let nats = Server::start();
    let rig = Rig::start(Config {
        manage: true,
        ..to(&nats)
    });
    rig.journal.append_data(10, 5);
    rig.drained().await;
    let context = nats.jetstream().await;
    let mut config = nats.stream_config(DATA).await;
    config.max_bytes = 300_000;
    context.update_stream(config.clone()).await.unwrap();
    rig.journal.append_data(3000, 5);
    rig.until("full", |data, _| data.state == UplinkState::Full)
        .await;
    rig.journal.append(Class::Alarm, "{\"id\":\"a1\"}");
    rig.until("alarm sent", |_, alarms| alarms.published == 1)
        .await;
    config.max_bytes = -1;
    context.update_stream(config).await.unwrap();
    rig.drained().await;
    rig.until("well again", |data, _| data.state == UplinkState::Ok)
        .await;
    check_complete(&nats.read_all(DATA).await, &rig.journal, Lane::Data);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_birth_larger_than_a_message_goes_in_parts_and_the_rest_flows_on() {
    let nats = Server::start();
    let rig = Rig::start(to(&nats));
    rig.journal.append_birth(20_000);
    rig.journal.append_data(100, 1);
    // One string that no message holds.
    rig.journal.append_text(2 << 20);
    rig.journal.append_data(100, 1);
    rig.drained().await;
    let messages = nats.read_all(DATA).await;
    let parts: Vec<_> = messages
        .iter()
        .filter(|m| m.subject.contains(".birth."))
        .collect();
    assert!(parts.len() >= 2);
    let mut metrics = 0;
    for (index, part) in parts.iter().enumerate() {
        assert_eq!(
            part.header("Sparkgate-Part"),
            format!("{}/{}", index + 1, parts.len())
        );
        assert_eq!(
            part.header("Nats-Msg-Id"),
            format!("site-a-e1-1.{}", index + 1)
        );
        metrics += part.json()["metrics"].as_array().unwrap().len();
    }
    assert_eq!(metrics, 20_000);
    let gaps: Vec<_> = messages
        .iter()
        .filter(|m| m.subject.contains(".gap."))
        .collect();
    assert_eq!(gaps.len(), 1);
    assert_eq!(
        (gaps[0].record(), gaps[0].json()["count"].as_u64()),
        (102, Some(1))
    );
    assert_eq!(messages.len(), parts.len() + 201);
    let kept = rig.folder.path().join("quarantine/e1-102.bin");
    assert!(std::fs::metadata(kept).unwrap().len() > 2 << 20);
    assert_eq!(
        rig.events(|event| matches!(event, Event::Unsendable { record: 102, .. })),
        1
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_publisher_fences_this_one_until_it_is_silent() {
    let nats = Server::start();
    let rig = Rig::start(to(&nats));
    rig.journal.append_data(100, 5);
    rig.drained().await;
    let client = nats.client().await;
    client
        .publish("sparkgate.site-a.data.x.y._", "intruder".into())
        .await
        .unwrap();
    client.flush().await.unwrap();
    rig.journal.append_data(100, 5);
    rig.until("fenced", |_, _| {
        rig.events(|event| *event == Event::Fenced) == 1
    })
    .await;
    rig.until("going on", |data, _| data.acked == 200).await;
    let messages = nats.read_all(DATA).await;
    assert_eq!(messages.len(), 201);
    let ours: Vec<u64> = messages
        .iter()
        .map(Stored::record)
        .filter(|id| *id > 0)
        .collect();
    assert_eq!(ours, rig.journal.ids(Lane::Data));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_jetstream_or_stream_or_rights_is_named() {
    let mut nats = Server::absent();
    let rig = Rig::start(Config {
        manage: false,
        ..to(&nats)
    });
    rig.journal.append_data(10, 1);
    rig.until("refused", |data, _| data.state == UplinkState::Refused)
        .await;
    nats.restart();
    rig.until("no stream", |data, _| data.state == UplinkState::NoStream)
        .await;
    nats.configure("authorization { user: a, password: b }");
    nats.restart();
    rig.until("bad credentials", |data, _| {
        data.state == UplinkState::BadCredentials
    })
    .await;
    nats.configure(
        "accounts { A: { users: [{user: a, password: b}], jetstream: enabled }, B: { users: [{user: c, password: d}] } }\nno_auth_user: c",
    );
    nats.restart();
    rig.until("no JetStream", |data, _| {
        data.state == UplinkState::NoJetStream
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_forbidden_subject_does_not_stop_the_others() {
    let nats = Server::start_with(
        "authorization { users: [{user: a, password: b}, {user: gw, password: pw, permissions: { publish: { deny: [\"sparkgate.site-a.data.plantA.gw-07.press-3\"] } } }] }\nno_auth_user: a",
    );
    let folder = tempfile::tempdir().unwrap();
    let password = folder.path().join("password");
    std::fs::write(&password, "pw\n").unwrap();
    let rig = Rig::start(Config {
        user: Some("gw".to_owned()),
        password_file: Some(password),
        ..to(&nats)
    });
    rig.journal.append_data(8, 8);
    rig.drained().await;
    let messages = nats.read_all(DATA).await;
    assert_eq!(messages.len(), 8);
    assert_eq!(
        messages[3].subject,
        "sparkgate.site-a.gap.plantA.gw-07.press-3"
    );
    assert_eq!(
        rig.events(|event| matches!(event, Event::Unsendable { record: 4, .. })),
        1
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn atomic_batches_arrive_whole_over_kills() {
    let mut nats = Server::start();
    let mut rig = Rig::start(Config {
        durability: config::Durability::Strict,
        ..to(&nats)
    });
    for round in 0..4u64 {
        rig.journal.append_data(4000, 50);
        let mark = rig.journal.head(Lane::Data) - 2500;
        rig.until("under way", |data, _| data.acked >= mark).await;
        if round % 2 == 0 {
            nats.kill();
            nats.restart();
        } else {
            rig.kill().await;
        }
    }
    rig.drained().await;
    check_complete(&nats.read_all(DATA).await, &rig.journal, Lane::Data);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_strict_order_an_alarm_waits_for_the_data_before_it() {
    let nats = Server::start();
    let journal = Arc::new(Journal::new());
    journal.append_data(20_000, 50);
    journal.append(Class::Alarm, "{\"id\":\"a1\"}");
    let rig = Rig::with(
        Config {
            order: config::Order::Strict,
            ..to(&nats)
        },
        journal,
    );
    rig.until("an alarm was sent", |_, alarms| alarms.published == 1)
        .await;
    // The data lane's status may be a tick old; the stream itself is the witness.
    assert_eq!(nats.read_all(DATA).await.len(), 20_000);
    rig.drained().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_buckets_follow_the_stream() {
    let nats = Server::start();
    let rig = Rig::start(to(&nats));
    rig.journal.append_birth(3);
    rig.journal.append_data(1, 1);
    rig.journal.append(Class::Schema, "{\"version\":1}");
    rig.drained().await;
    let context = nats.jetstream().await;
    let deadline = Instant::now() + Duration::from_secs(60);
    let entry = |bucket: &'static str, device: &'static str| {
        let context = context.clone();
        async move {
            loop {
                if let Ok(store) = context.get_key_value(bucket).await
                    && let Ok(Some(value)) =
                        store.get(format!("site-a.plantA.gw-07.{device}")).await
                {
                    return serde_json::from_slice::<serde_json::Value>(&value).unwrap();
                }
                assert!(Instant::now() < deadline, "{bucket} has no {device}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    };
    let big = entry(kv::STATE, "big").await;
    assert_eq!(
        (big["online"].as_bool(), big["record"].as_u64()),
        (Some(true), Some(1))
    );
    assert_eq!(big["metrics"].as_array().unwrap().len(), 3);
    assert_eq!(entry(kv::STATE, "press-0").await["record"], 2);
    assert_eq!(entry(kv::SCHEMA, "press-0").await["version"], 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_from_the_cloud_are_answered() {
    let nats = Server::start();
    let rig = Rig::start(to(&nats));
    rig.until("connected", |_, alarms| alarms.state == UplinkState::Ok)
        .await;
    let client = nats.client().await;
    let deadline = Instant::now() + Duration::from_secs(60);
    let ask = async |subject: &'static str, body: &'static str| loop {
        match client.request(subject, body.into()).await {
            Ok(answer) => {
                return serde_json::from_slice::<serde_json::Value>(&answer.payload).unwrap();
            }
            // Not subscribed yet.
            Err(_) => assert!(Instant::now() < deadline, "nobody answers"),
        }
    };
    let write = "{\"id\":\"r1\",\"metrics\":[{\"name\":\"Setpoint\",\"value\":5}]}";
    let answer = ask("sparkgate.site-a.write.plantA.gw-07.press-0", write).await;
    assert_eq!(answer["status"], "confirmed");
    assert_eq!(answer["metric"], "Setpoint");
    let answer = ask("sparkgate.site-a.write.plantA.gw-07.press-0", "{}").await;
    assert!(answer["error"].as_str().unwrap().contains("missing field"));
    let answer = ask("sparkgate.site-a.ack", "{\"id\":\"a1\",\"by\":\"ops\"}").await;
    assert_eq!(answer["id"], "a1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_audit_reads_the_streams_back() {
    let nats = Server::start();
    let rig = Rig::start(to(&nats));
    rig.journal.append_birth(20_000);
    rig.journal.append_data(500, 5);
    rig.journal.append(Class::Alarm, "{}");
    rig.drained().await;
    let found = audit::streams(&nats.url(), GATEWAY).await.unwrap();
    assert_eq!(
        found,
        audit::Audit {
            records: 502,
            ..audit::Audit::default()
        }
    );
}
