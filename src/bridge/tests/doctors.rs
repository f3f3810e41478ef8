//! What the doctor says of real servers: each fault has a line and a command of its own.

use super::*;
use crate::bridge::doctor::{DoctorError, Level, Patient, Report, examine};

/// Of a gateway that keeps delivered records as long as the default does.
pub(super) async fn examine_as(
    config: &Config,
    gateway: &str,
    fix: bool,
) -> Result<Report, DoctorError> {
    let kept = Duration::from_secs(300);
    examine(
        Patient {
            config,
            gateway,
            kept,
        },
        fix,
    )
    .await
}

async fn report(config: &Config) -> Report {
    examine_as(config, GATEWAY, false).await.unwrap()
}

/// The one finding about `what`.
fn of<'a>(report: &'a Report, what: &str) -> &'a crate::bridge::doctor::Finding {
    let mut found = report.findings.iter().filter(|it| it.what == what);
    let first = found.next();
    assert!(found.next().is_none(), "{what} twice in\n{report}");
    first.unwrap_or_else(|| panic!("nothing of {what} in\n{report}"))
}

fn check(report: &Report, what: &str, level: Level, is: &str, mend: &str) {
    let found = of(report, what);
    assert_eq!(found.level, level, "{report}");
    assert!(found.is.contains(is), "{is} in\n{report}");
    let there = found.mend.as_deref().unwrap_or("");
    assert!(there.contains(mend), "{mend} in\n{report}");
}

/// A gateway's streams and buckets as they should be, and the configuration.
async fn well(nats: &Server) -> Config {
    let config = to(nats);
    let made = examine_as(&config, GATEWAY, true).await.unwrap();
    assert!(made.is_safe(), "{made}");
    config
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_missing_is_made_by_the_command_that_is_named_or_by_the_doctor() {
    let nats = Server::start();
    let config = Config {
        manage: false,
        ..to(&nats)
    };
    let found = report(&config).await;
    assert!(!found.is_safe());
    for (stream, subjects) in [
        (DATA, "sparkgate.site-a.data.>"),
        (ALARMS, "sparkgate.site-a.alarm.>"),
    ] {
        let what = format!("stream {stream}");
        let add = format!("nats stream add {stream} --subjects '{subjects}");
        check(&found, &what, Level::Error, "not there", &add);
    }
    check(
        &found,
        "bucket SPARKGATE_STATE",
        Level::Error,
        "not there",
        "nats kv add SPARKGATE_STATE",
    );
    check(&found, "clocks", Level::Note, "can't be known", "date -u");
    let found = report(&well(&nats).await).await;
    assert!(found.is_safe(), "{found}");
    check(
        &found,
        &format!("stream {DATA}"),
        Level::Ok,
        "dedupe window 120 s",
        "",
    );
    check(&found, "clocks", Level::Ok, "s apart", "");
    check(&found, "subjects", Level::Ok, "no other stream", "");
    check(
        &found,
        "right to publish to SPARKGATE_site-a",
        Level::Ok,
        "granted",
        "",
    );
    check(
        &found,
        "right to write SPARKGATE_STATE",
        Level::Ok,
        "granted",
        "",
    );
    check(
        &found,
        "right to hear sparkgate.site-a.write.*.*.*",
        Level::Ok,
        "granted",
        "",
    );
    // It looked and tried its rights; nothing is stored or made by that.
    assert_eq!(nats.count(DATA), 0);
    assert_eq!(nats.count("KV_SPARKGATE_STATE"), 0);
    assert!(
        examine_as(&to(&Server::absent()), GATEWAY, false)
            .await
            .is_err()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_difference_has_its_command() {
    let nats = Server::start();
    let config = Config {
        replicas: 1,
        max_bytes: Some(crate::config::quantity::ByteSize(1 << 30)),
        ..well(&nats).await
    };
    nats.change_async(DATA, |stream| {
        stream.discard = async_nats::jetstream::stream::DiscardPolicy::Old;
        stream.duplicate_window = Duration::from_secs(1);
        stream.subjects.pop();
    })
    .await;
    let context = nats.jetstream().await;
    context
        .create_stream(async_nats::jetstream::stream::Config {
            name: "GREEDY".to_owned(),
            subjects: vec!["sparkgate.*.raw.>".to_owned()],
            ..Default::default()
        })
        .await
        .unwrap();
    let found = report(&config).await;
    assert!(!found.is_safe());
    let of_stream = |field: &str| format!("stream {DATA}, {field}");
    check(
        &found,
        &of_stream("discard"),
        Level::Error,
        "old",
        "nats stream edit SPARKGATE_site-a --discard new",
    );
    check(
        &found,
        &of_stream("duplicate_window"),
        Level::Warning,
        "1000000000",
        "--dupe-window 2m",
    );
    check(
        &found,
        &of_stream("subjects"),
        Level::Error,
        "sparkgate.site-a.status.>",
        "--subjects",
    );
    check(
        &found,
        &of_stream("max_bytes"),
        Level::Warning,
        "-1",
        "--max-bytes 1073741824",
    );
    check(
        &found,
        "subjects",
        Level::Error,
        "stream GREEDY",
        "nats stream edit GREEDY",
    );
    nats.change_async("KV_SPARKGATE_STATE", |stream| {
        stream.max_messages_per_subject = 5
    })
    .await;
    let found = report(&config).await;
    check(
        &found,
        "bucket SPARKGATE_STATE, max_msgs_per_subject",
        Level::Warning,
        "5",
        "nats kv edit SPARKGATE_STATE --history 1",
    );
}

/// Only what is not there is to be made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_permitted_is_not_taken_for_missing() {
    let mut nats = Server::start();
    well(&nats).await;
    let folder = tempfile::tempdir().unwrap();
    let password = folder.path().join("password");
    std::fs::write(&password, "pw\n").unwrap();
    let config = Config {
        user: Some("gw".to_owned()),
        password_file: Some(password),
        ..to(&nats)
    };
    let user = |deny: &str| {
        format!(
            "authorization {{ users: [{{ user: gw, password: pw, permissions: {{ {deny} }} }}] }}"
        )
    };
    nats.configure(&user(
        "publish: { deny: [\"$JS.API.STREAM.INFO.SPARKGATE_site-a\", \"sparkgate.site-a.birth.>\", \"$KV.SPARKGATE_SCHEMA.>\"] }, \
         subscribe: { deny: [\"sparkgate.site-a.write.*.*.*\"] }",
    ));
    nats.restart();
    let found = report(&config).await;
    assert!(!found.is_safe());
    let denied = "Permissions Violation";
    check(
        &found,
        &format!("stream {DATA}"),
        Level::Error,
        denied,
        "allow: [\"sparkgate.site-a.>\"",
    );
    check(
        &found,
        &format!("stream {ALARMS}"),
        Level::Ok,
        "as declared",
        "",
    );
    check(
        &found,
        "right to publish birth",
        Level::Error,
        denied,
        "permissions: {",
    );
    check(
        &found,
        "right to write SPARKGATE_SCHEMA",
        Level::Error,
        denied,
        "permissions: {",
    );
    check(
        &found,
        "right to write SPARKGATE_STATE",
        Level::Ok,
        "granted",
        "",
    );
    check(
        &found,
        "right to hear sparkgate.site-a.write.*.*.*",
        Level::Error,
        denied,
        "permissions: {",
    );
    check(
        &found,
        "right to hear sparkgate.site-a.ack",
        Level::Ok,
        "granted",
        "",
    );
    assert!(!found.to_string().contains("nats stream add"), "{found}");

    // Not even the answers can be heard.
    nats.configure(&user("subscribe: { deny: [\"_INBOX.>\"] }"));
    nats.restart();
    let found = report(&config).await;
    check(
        &found,
        &format!("stream {DATA}"),
        Level::Error,
        "",
        "_INBOX.>",
    );
    assert!(!found.to_string().contains("nats stream add"), "{found}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_jetstream_nothing_is_offered_to_be_made() {
    let mut nats = Server::start();
    nats.configure(
        "accounts { A: { users: [{user: a, password: b}], jetstream: enabled }, B: { users: [{user: c, password: d}] } }\nno_auth_user: c",
    );
    nats.restart();
    let found = report(&to(&nats)).await;
    check(
        &found,
        "JetStream",
        Level::Error,
        "",
        "enable JetStream for this account",
    );
    assert!(!found.to_string().contains("nats stream add"), "{found}");
}

/// Over the connection where the account may ask, from the monitoring port where one is given.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_acknowledgement_is_worth_is_read_from_the_server() {
    let mut nats = Server::start();
    let config = well(&nats).await;
    check(
        &report(&config).await,
        "durability",
        Level::Warning,
        "can't be known",
        "monitor = ",
    );

    let port = Server::absent().port();
    let monitored = Config {
        monitor: Some(format!("http://127.0.0.1:{port}")),
        ..config.clone()
    };
    let found = report(&monitored).await;
    check(
        &found,
        &format!("monitoring port http://127.0.0.1:{port}"),
        Level::Warning,
        "refused",
        "http: ",
    );
    check(&found, "durability", Level::Warning, "can't be known", "");
    nats.configure(&format!("http: \"127.0.0.1:{port}\""));
    nats.restart();
    let found = report(&monitored).await;
    check(
        &found,
        "durability",
        Level::Warning,
        "120 s ahead of the server's disk",
        "sync_interval: always",
    );
    let strict = Config {
        durability: config::Durability::Strict,
        ..monitored.clone()
    };
    check(
        &report(&strict).await,
        "durability",
        Level::Error,
        "takes what it acknowledged",
        "sync_interval: always",
    );

    nats.configure_jetstream("sync_interval: always");
    nats.restart();
    check(
        &report(&monitored).await,
        "durability",
        Level::Ok,
        "sync_interval: always",
        "",
    );

    nats.configure_jetstream("sync_interval: \"10m\"");
    nats.configure(
        "accounts { SYS: { users: [{ user: admin, password: a }], exports: [{ service: \"$SYS.REQ.SERVER.*.VARZ\" }] }, \
         A: { jetstream: enabled, users: [{ user: gw, password: pw }], imports: [{ service: { account: SYS, subject: \"$SYS.REQ.SERVER.*.VARZ\" } }] } }\n\
         system_account: SYS\nno_auth_user: gw",
    );
    nats.restart();
    check(
        &report(&config).await,
        "durability",
        Level::Error,
        "600 s ahead",
        "keep_delivered = \"1200s\"",
    );
}
