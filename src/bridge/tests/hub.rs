//! Many gateways, one stream to read: sources of one account, and over a leaf node's domain.

use super::doctors::examine_as;
use super::*;
use crate::bridge::config::Hub;

/// A gateway with records in its streams.
async fn gateway(id: &str, config: &Config) -> (Arc<Journal>, BridgeHandle) {
    let journal = Arc::new(Journal::new());
    let folder = tempfile::tempdir().unwrap();
    let bridge = launch_as(id, config, &journal, &Arc::default(), folder.path());
    journal.append_data(300, 5);
    journal.append(Class::Alarm, "{\"id\":\"a1\"}");
    let deadline = Instant::now() + Duration::from_secs(180);
    while bridge.status().data.published < 300 || bridge.status().alarms.published < 1 {
        assert!(Instant::now() < deadline, "{:#?}", bridge.status());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    (journal, bridge)
}

/// Every gateway's records, each lane's chain whole.
async fn check_hub(nats: &Server, gateways: &[&str]) {
    let deadline = Instant::now() + Duration::from_secs(180);
    let messages = loop {
        let messages = nats.read_all("SPARKGATE").await;
        if messages.len() >= gateways.len() * 301 {
            break messages;
        }
        assert!(Instant::now() < deadline, "{} messages", messages.len());
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(messages.len(), gateways.len() * 301);
    for gateway in gateways {
        let (mut last, mut count) = (0, 0);
        let of = format!("sparkgate.{gateway}.data.");
        for message in messages.iter().filter(|m| m.subject.starts_with(&of)) {
            assert_eq!(message.prev(), last, "{gateway}");
            last = message.record();
            count += 1;
        }
        assert_eq!(count, 300, "{gateway}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hub_collects_gateways_and_the_doctor_makes_it() {
    let nats = Server::start();
    let config = Config {
        hub: Some(Hub::default()),
        ..to(&nats)
    };
    let mut running = Vec::new();
    for id in ["a", "b", "c"] {
        running.push(gateway(id, &config).await);
        let report = examine_as(&config, id, false).await.unwrap();
        assert!(!report.is_safe(), "{report}");
        assert!(
            report.to_string().contains("nats req '$JS.API.STREAM."),
            "{report}"
        );
        let report = examine_as(&config, id, true).await.unwrap();
        assert!(report.is_safe(), "{report}");
    }
    check_hub(&nats, &["a", "b", "c"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hub_collects_from_a_leaf_node_that_was_cut_off() {
    let leaves = Server::absent().port();
    let mut hub = Server::start_with(&format!(
        "server_name: hub\nleafnodes {{ listen: \"127.0.0.1:{leaves}\" }}"
    ));
    let leaf = Server::start_in_domain(
        "site",
        &format!(
            "server_name: leaf\nleafnodes {{ remotes: [{{ url: \"nats-leaf://127.0.0.1:{leaves}\" }}] }}"
        ),
    );
    let config = Config {
        hub: Some(Hub {
            urls: vec![hub.url()],
            domain: Some("site".to_owned()),
            ..Hub::default()
        }),
        ..to(&leaf)
    };
    // The site works on while the hub is away.
    hub.kill();
    let _running = gateway("a", &config).await;
    let report = examine_as(&config, "a", false).await.unwrap();
    assert!(!report.is_safe(), "{report}");
    hub.restart();
    let report = examine_as(&config, "a", true).await.unwrap();
    assert!(report.is_safe(), "{report}");
    check_hub(&hub, &["a"]).await;
}
