//! The host on brokers of others: mosquitto over TCP and TLS, both versions of MQTT, rumqttd.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;

use crate::harness::gateway::Gateway;
use crate::harness::mosquitto::Mosquitto;
use crate::harness::mqtt::{Client, Node, Packet};
use crate::harness::until;

/// The retained STATE of host `test` on a broker, if there is one.
fn state(broker: SocketAddr) -> Option<Value> {
    let mut client = Client::connect(broker, "state-reader", None);
    let soon = Some(Duration::from_millis(500));
    client.subscribe("spBv1.0/STATE/test", 1);
    client.stream().set_read_timeout(soon).unwrap();
    match client.read()? {
        Packet::Publish { topic, payload } => {
            assert_eq!(topic, "spBv1.0/STATE/test");
            Some(serde_json::from_slice(&payload).expect("JSON"))
        }
        _ => None,
    }
}

fn online(broker: SocketAddr, wanted: bool) -> u64 {
    until(&format!("STATE online = {wanted}"), 60, || {
        let state = state(broker)?;
        (state["online"] == wanted).then(|| state["timestamp"].as_u64().expect("a JSON integer"))
    })
}

fn server(gateway: &Gateway, at: usize) -> Value {
    gateway.status()["host"]["servers"][at].clone()
}

/// Online and stale metrics of `plant/<node>/press`.
fn press(gateway: &Gateway, node: &str) -> Option<(bool, bool)> {
    let (status, body) =
        crate::harness::gateway::get(gateway.admin, &format!("/api/devices/plant/{node}/press"))
            .ok()?;
    let device: Value = (status == 200).then(|| serde_json::from_str(&body).unwrap())?;
    let stale = device["metrics"]
        .as_array()?
        .iter()
        .all(|metric| metric["stale"] == true);
    Some((device["online"] == true, stale))
}

/// Reads until a command for the node or its device comes.
fn command(client: &mut Client) -> String {
    loop {
        match client.read().expect("a command comes") {
            Packet::Publish { topic, .. } => return topic,
            _ => continue,
        }
    }
}

/// Writes `temp` while the node answers as a node should; the command's topic.
fn write(gateway: &Gateway, node: &mut Node, value: f64) -> String {
    std::thread::scope(|scope| {
        let target = format!("plant/{}/press", node.name);
        let tool = scope.spawn(move || gateway.tool(&["write", &target, &format!("temp={value}")]));
        let topic = command(&mut node.client);
        node.temp(value);
        let (code, out, err) = tool.join().expect("the tool ends");
        assert_eq!(code, 0, "{out}{err}");
        topic
    })
}

fn subscribed(broker: SocketAddr, name: &str) -> Node {
    let mut node = Node::birth(broker, "plant", name, "press");
    node.client
        .subscribe(&format!("spBv1.0/plant/NCMD/{name}"), 1);
    node.client
        .subscribe(&format!("spBv1.0/plant/DCMD/{name}/+"), 1);
    node
}

/// ch. 5: per-server STATE, loss of one link, the same node through two servers, writes by the node's server.
#[test]
fn several_servers_each_have_their_own_state_and_bookkeeping() {
    let (mut a, b) = (Mosquitto::start(false), Mosquitto::start(true));
    let config = format!(
        "[writes]\nconfirm_timeout = \"15s\"\n[[host.server]]\nurl = \"mqtt://{}\"\n[[host.server]]\nurl = \"mqtts://localhost:{}\"\nprotocol = \"5\"\ntls.ca = \"{}\"\n",
        a.plain,
        b.tls.expect("TLS").port(),
        b.ca().display(),
    );
    let mut gateway = Gateway::builder().config(&config).start();
    let (first_a, first_b) = (online(a.plain, true), online(b.plain, true));
    assert!(first_a > 1_600_000_000_000 && first_b > 1_600_000_000_000);

    let mut n1 = subscribed(a.plain, "n1");
    let mut n2 = subscribed(b.plain, "n2");
    for node in ["n1", "n2"] {
        until(&format!("{node} is online"), 60, || {
            (press(&gateway, node)? == (true, false)).then_some(())
        });
    }
    // Each write leaves by the server that its node came by.
    assert_eq!(
        write(&gateway, &mut n1, 41.0),
        "spBv1.0/plant/DCMD/n1/press"
    );
    assert_eq!(
        write(&gateway, &mut n2, 42.0),
        "spBv1.0/plant/DCMD/n2/press"
    );

    // One link is lost: what came through it is stale, and only that; the other's STATE is untouched.
    a.kill();
    until("n1 is stale", 60, || press(&gateway, "n1")?.1.then_some(()));
    assert_eq!(press(&gateway, "n2"), Some((true, false)));
    until("the lost link is told", 60, || {
        let lost = server(&gateway, 0);
        (lost["state"] != "up" && lost["detail"].is_string()).then_some(())
    });
    assert_eq!(server(&gateway, 1)["state"], "up");
    let (code, _, _) = gateway.tool(&["write", "plant/n1/press", "temp=1.0"]);
    assert_eq!(code, 1, "nothing can be written through a lost link");

    // It comes back with a new CONNECT and a new timestamp, and asks what it may have missed.
    a.restart();
    let second_a = online(a.plain, true);
    assert!(second_a > first_a);
    assert_eq!(online(b.plain, true), first_b);
    let mut n1 = subscribed(a.plain, "n1");
    until("n1 is back", 60, || {
        (press(&gateway, "n1")? == (true, false)).then_some(())
    });

    // The node walks to the other server: its birth there is the session in force.
    let mut moved = subscribed(b.plain, "n1");
    until("n1 is live through b", 60, || {
        n1.temp(77.0);
        let ignored = gateway.status()["ignored"]["other_server"].as_u64()?;
        (ignored > 0).then_some(())
    });
    assert_eq!(
        write(&gateway, &mut moved, 43.0),
        "spBv1.0/plant/DCMD/n1/press"
    );

    // A foreign death of this host is answered where it came, with that server's timestamp.
    let mut rogue = Client::connect(b.plain, "rogue", None);
    rogue.publish(
        "spBv1.0/STATE/test",
        br#"{"online":false,"timestamp":1}"#,
        0,
    );
    until("the answer", 60, || {
        let sent = server(&gateway, 1)["sent"].as_u64()?;
        (sent >= 2).then_some(())
    });
    assert_eq!(online(b.plain, true), first_b);

    // A clean stop leaves its death, newer than its birth, on both.
    assert!(gateway.stop().success());
    assert!(online(a.plain, false) > second_a);
    assert!(online(b.plain, false) > first_b);
}

/// The will stands for a host that is killed, and a retained birth of a bad node is no live birth.
#[test]
fn a_killed_host_leaves_its_will_and_retained_births_are_not_live() {
    let broker = Mosquitto::start(false);
    let mut bad = Client::connect(broker.plain, "bad", None);
    let (mut retained, id) = bad.publish_bytes("spBv1.0/plant/NBIRTH/old", b"\x18\x00", 1);
    retained[0] |= 1;
    bad.send(&retained);
    assert_eq!(bad.read(), Some(Packet::Puback(id)));
    for protocol in ["3.1.1", "5"] {
        let config = format!(
            "[[host.server]]\nurl = \"mqtt://{}\"\nprotocol = \"{protocol}\"\n",
            broker.plain
        );
        let mut gateway = Gateway::builder().config(&config).start();
        let born = online(broker.plain, true);
        until("the retained birth is refused", 60, || {
            (gateway.status()["invalid"]["retained"].as_u64()? > 0).then_some(())
        });
        gateway.kill();
        // The will shares its timestamp with the birth of the same CONNECT.
        assert_eq!(online(broker.plain, false), born, "{protocol}");
    }
}

/// QoS 1 on another broker is acknowledged to it; the message is a record like any other.
#[test]
fn qos_1_is_acknowledged_to_the_other_broker() {
    let broker = Mosquitto::start(false);
    for protocol in ["3.1.1", "5"] {
        let config = format!(
            "[[host.server]]\nurl = \"mqtt://{}\"\nprotocol = \"{protocol}\"\n",
            broker.plain
        );
        let gateway = Gateway::builder().config(&config).start();
        online(broker.plain, true);
        let mut node = Node::birth(broker.plain, "plant", "n1", "press");
        // More than mosquitto's window of 20: without acknowledgements it would stop there.
        for n in 1..=100 {
            let (bytes, _) = node.count_bytes(n, 1);
            node.client.send(&bytes);
        }
        until("all are records", 60, || {
            (gateway.status()["received"].as_u64()? >= 102).then_some(())
        });
        gateway.check_identity();
    }
}

/// A server that asks for a certificate gets the gateway's, in both versions; without one the link says why it is down.
#[test]
fn a_server_that_demands_a_certificate_gets_one() {
    let broker = Mosquitto::start_demanding();
    let (certificate, key) = broker.client();
    let tls = |own: &str| {
        let (port, ca) = (broker.tls.expect("TLS").port(), broker.ca());
        format!(
            "[writes]\nconfirm_timeout = \"15s\"\n[[host.server]]\nurl = \"mqtts://localhost:{port}\"\ntls.ca = \"{}\"\n{own}",
            ca.display()
        )
    };
    let own = format!(
        "tls.cert = \"{}\"\ntls.key = \"{}\"\n",
        certificate.display(),
        key.display()
    );
    for protocol in ["3.1.1", "5"] {
        let config = tls(&format!("{own}protocol = \"{protocol}\"\n"));
        let mut gateway = Gateway::builder().config(&config).start();
        until("the link is up", 60, || {
            (server(&gateway, 0)["state"] == "up").then_some(())
        });
        let mut node = subscribed(broker.plain, "n1");
        until("n1 is online", 60, || {
            (press(&gateway, "n1")? == (true, false)).then_some(())
        });
        let seen = gateway.json("/api/devices/plant/n1")["server"].clone();
        assert_eq!(seen, server(&gateway, 0)["url"]);
        assert_eq!(
            write(&gateway, &mut node, 41.0),
            "spBv1.0/plant/DCMD/n1/press",
            "{protocol}"
        );
        assert_eq!(server(&gateway, 0)["lost"], 0);
        assert!(gateway.stop().success());
    }
    let gateway = Gateway::builder().config(&tls("")).start();
    let detail = until("the reason is told", 60, || {
        server(&gateway, 0)["detail"].as_str().map(str::to_owned)
    });
    assert_eq!(server(&gateway, 0)["connects"], 0, "{detail}");
}

#[test]
fn mistakes_of_a_server_entry_are_told_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sparkgate.toml");
    std::fs::write(
        &file,
        format!(
            "[gateway]\nid = \"t\"\ndata_dir = \"{}\"\n[[host.server]]\nurl = \"ws://a\"\nkeep_alive = \"1s\"\n",
            folder.path().display()
        ),
    )
    .unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_sparkgate"))
        .args(["validate", "-c"])
        .arg(&file)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(78), "{text}");
    assert!(
        text.contains("mqtt://host:port") && text.contains("between 5s"),
        "{text}"
    );
}

/// rumqttd, embedded in another gateway.
#[cfg(feature = "rumqttd")]
#[test]
fn rumqttd_is_a_server_like_any_other() {
    let v5 = crate::harness::gateway::free_address();
    let broker = Gateway::builder()
        .id("broker")
        .mqtt(&format!("engine = \"rumqttd\"\nlisten_v5 = [\"{v5}\"]\n"))
        .start();
    for (protocol, address) in [("3.1.1", broker.mqtt), ("5", v5)] {
        let config =
            format!("[[host.server]]\nurl = \"mqtt://{address}\"\nprotocol = \"{protocol}\"\n");
        let mut gateway = Gateway::builder().config(&config).start();
        until("the link is up", 60, || {
            (server(&gateway, 0)["state"] == "up").then_some(())
        });
        let mut node = subscribed(broker.mqtt, "n1");
        until("n1 is online", 60, || {
            (press(&gateway, "n1")? == (true, false)).then_some(())
        });
        assert_eq!(
            write(&gateway, &mut node, 41.0),
            "spBv1.0/plant/DCMD/n1/press"
        );
        assert!(gateway.stop().success());
    }
}
