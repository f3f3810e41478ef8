//! What docs/consuming.md tells consumers to do: its programs are run as they stand there.

use std::path::PathBuf;
use std::process::Command;

use crate::harness::gateway::Gateway;
use crate::harness::mqtt::Node;
use crate::harness::nats::{Nats, block_on};
use crate::harness::{tools, until};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Built by cargo along with the tests.
fn rust_example() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    exe.ancestors().nth(2).unwrap().join("examples/consume")
}

fn consumers(nats: &Nats, stream: &str) -> [Command; 2] {
    let mut rust = Command::new(rust_example());
    rust.args([&nats.url(), stream]);
    let mut python = Command::new(tools::nats_py());
    python
        .arg(root().join("examples/consume/consume.py"))
        .args([&nats.url(), stream]);
    [rust, python]
}

fn check(nats: &Nats, stream: &str, code: i32, said: &str) {
    for mut consumer in consumers(nats, stream) {
        let output = consumer
            .output()
            .expect("the consumer runs (cargo build --examples)");
        let out = String::from_utf8_lossy(&output.stdout);
        assert_eq!(
            (output.status.code(), out.contains(said)),
            (Some(code), true),
            "{consumer:?}: {out}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn consumers_prove_that_nothing_is_missing_and_see_what_is() {
    let nats = Nats::start();
    let gateway = Gateway::builder().bridge(&nats.url()).start();
    let mut node = Node::birth(gateway.mqtt, "g", "n", "d");
    for i in 0..100 {
        node.temp(f64::from(i));
    }
    until("everything is taken", 60, || {
        (gateway.status()["received"].as_u64()? >= 102).then_some(())
    });
    gateway.drained();
    check(&nats, "SPARKGATE_test", 0, " records, 0 breaks, 0 lost");
    let victim = nats.messages("SPARKGATE_test")[50].clone();
    block_on(async {
        let stream = nats
            .jetstream()
            .await
            .get_stream("SPARKGATE_test")
            .await
            .unwrap();
        stream.delete_message(victim.seq).await.unwrap();
    });
    let said = format!("which follows {}", victim.record());
    check(&nats, "SPARKGATE_test", 1, &said);
}

#[test]
fn the_page_shows_the_programs_that_run() {
    let page = std::fs::read_to_string(root().join("docs/consuming.md")).unwrap();
    for file in ["examples/consume/consume.py", "examples/consume/main.rs"] {
        let program = std::fs::read_to_string(root().join(file)).unwrap();
        assert!(
            page.contains(&program),
            "docs/consuming.md shows {file} as it is"
        );
    }
}
