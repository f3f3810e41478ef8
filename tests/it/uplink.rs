//! Whatever answers in the place of a good NATS server has a name; none of it ends the gateway or costs a record,
//! and what was wrong is mended without a restart.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use crate::harness::fleet::check_chain;
use crate::harness::gateway::{Gateway, free_address};
use crate::harness::mqtt::{Node, metric};
use crate::harness::nats::Nats;
use crate::harness::proxy::Proxy;
use crate::harness::until;

/// Something that accepts connections, says this, and holds them without another word.
struct Impostor {
    port: u16,
    held: Arc<Mutex<Vec<TcpStream>>>,
}

impl Impostor {
    fn says(greeting: Vec<u8>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let held = Arc::new(Mutex::new(Vec::new()));
        let kept = held.clone();
        // It waits for connections until the test's process ends.
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let _ = stream.write_all(&greeting);
                kept.lock().expect("connections").push(stream);
            }
        });
        Self { port, held }
    }

    fn connections(&self) -> usize {
        self.held.lock().expect("connections").len()
    }
}

/// Waits until the data lane says this of itself, with these words.
fn names(gateway: &Gateway, state: &str, words: &str) {
    until(&format!("{state}: {words}"), 120, || {
        let lane = &gateway.status()["uplink"]["lanes"]["data"];
        let detail = lane["detail"].as_str()?;
        (lane["state"] == state && detail.contains(words)).then_some(())
    });
}

#[test]
fn every_broken_server_has_a_name_and_none_ends_the_gateway() {
    let mut nats = Nats::absent();
    let proxy = Proxy::to(nats.port());
    let folder = tempfile::tempdir().unwrap();
    let password = folder.path().join("password");
    std::fs::write(&password, "old").unwrap();
    let gateway = Gateway::builder()
        .bridge(&proxy.url())
        .config(&format!(
            "manage = false\nuser = \"gw\"\npassword_file = \"{}\"\n",
            password.display()
        ))
        .start();
    let pid = gateway.pid();
    let mut node = Node::birth(gateway.mqtt, "g", "n", "d");

    // The proxy takes the connection and finds nobody behind it.
    names(&gateway, "not_nats", "connection");
    let mut endless = b"INFO {\"server_id\":\"".to_vec();
    endless.resize(1 << 20, b'x');
    for (greeting, words) in [
        (Vec::new(), "does not greet"),
        (endless, "does not end"),
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
            "not that of a NATS server",
        ),
    ] {
        let impostor = Impostor::says(greeting);
        proxy.lead_to(impostor.port);
        node.temp(1.0);
        names(&gateway, "not_nats", words);
        assert!(impostor.connections() > 0);
    }

    proxy.lead_to(nats.port());
    nats.configure("authorization { user: gw, password: new }");
    nats.restart();
    names(&gateway, "bad_credentials", "");
    // A changed file is read with the next attempt.
    std::fs::write(&password, "new").unwrap();
    names(&gateway, "no_stream", "");
    nats.configure(
        "accounts { WITH: { jetstream: enabled, users: [{ user: ops, password: ops }] }, WITHOUT: { users: [{ user: gw, password: new }] } }",
    );
    nats.restart();
    names(&gateway, "no_jetstream", "");
    nats.configure("");
    nats.restart();
    names(&gateway, "no_stream", "");
    node.temp(2.0);

    assert_eq!(gateway.pid(), pid);
    let (_, said, _) = gateway.tool(&["doctor"]);
    assert!(said.contains("nats stream add SPARKGATE_test "), "{said}");
    let (_, said, errors) = gateway.tool(&["doctor", "--fix"]);
    assert!(
        said.contains("stream SPARKGATE_test: as declared"),
        "{said}{errors}"
    );
    until("everything has left", 120, || {
        let status = gateway.check_identity();
        (status["received"].as_u64()? >= 6 && status["pending"] == 0).then_some(())
    });
    let messages = nats.messages("SPARKGATE_test");
    assert_eq!(messages[0].prev(), 0);
    check_chain(&messages);
    let values = messages.iter().filter(|m| m.subject.contains(".data."));
    assert_eq!(values.count(), 4);
}

#[test]
fn a_name_that_is_not_known_and_a_port_where_nobody_listens_are_told_apart() {
    for (url, state, words) in [
        (
            "nats://no.such.host.invalid:4222".to_owned(),
            "no_dns",
            "no.such.host.invalid",
        ),
        (format!("nats://{}", free_address()), "refused", "refused"),
    ] {
        let gateway = Gateway::builder().bridge(&url).start();
        names(&gateway, state, words);
        assert_eq!(gateway.json("/readyz")["ready"], true);
    }
}

/// A birth of 1.5 MB against a server that takes messages of 1 MB: it goes in parts, and the rest flows on.
#[test]
fn a_birth_larger_than_the_servers_messages_goes_in_parts() {
    const METRICS: usize = 26_000;
    let nats = Nats::start();
    let gateway = Gateway::builder().bridge(&nats.url()).start();
    let mut node = Node::birth(gateway.mqtt, "g", "n", "d");
    let metrics: Vec<_> = (0..METRICS)
        .map(|i| {
            let name = format!("Line/Station {}/Actuator/{i}/Position", i % 40);
            let mut it = metric(&name, 100 + i as u64, sparkplug_rs::DataType::Double);
            it.set_double_value(i as f64);
            it
        })
        .collect();
    let size: usize = metrics
        .iter()
        .map(|it| sparkplug_rs::protobuf::Message::compute_size(it) as usize)
        .sum();
    assert!(size > 1_500_000, "{size} bytes");
    node.device = "large".to_owned();
    node.send("DBIRTH", true, metrics, 1);
    node.device = "d".to_owned();
    for i in 0..100 {
        node.temp(f64::from(i));
    }
    until("everything has left", 120, || {
        let status = gateway.check_identity();
        (status["received"].as_u64()? >= 103 && status["pending"] == 0).then_some(())
    });
    let messages = nats.messages("SPARKGATE_test");
    let parts: Vec<_> = messages
        .iter()
        .filter(|m| m.subject == "sparkgate.test.birth.g.n.large")
        .collect();
    assert!(parts.len() >= 2, "{} parts", parts.len());
    let mut names = std::collections::HashSet::new();
    for (i, part) in parts.iter().enumerate() {
        let place = format!("{}/{}", i + 1, parts.len());
        assert_eq!(part.header("Sparkgate-Part"), place);
        assert!(part.header("Nats-Msg-Id").ends_with(&format!(".{}", i + 1)));
        for metric in part.json()["metrics"].as_array().unwrap() {
            assert!(names.insert(metric["name"].as_str().unwrap().to_owned()));
        }
    }
    assert_eq!(names.len(), METRICS);
    let after: Vec<f64> = messages
        .iter()
        .skip_while(|m| m.seq <= parts[parts.len() - 1].seq)
        .filter(|m| m.subject == "sparkgate.test.data.g.n.d")
        .map(|m| m.json()["metrics"][0]["value"].as_f64().unwrap())
        .collect();
    assert_eq!(after, (0..100).map(f64::from).collect::<Vec<_>>());
}
