//! `tests/mqtt/behave.py` speaks raw MQTT to the broker and says what it saw; here is what it must see.

use std::path::Path;
use std::process::Command;

use crate::harness::gateway::Gateway;

/// Test of the script, and parts of its line that must be there.
const EXPECTED: &[(&str, &[&str])] = &[
    (
        "qos_matrix",
        &[
            "sub0/pub0->0 sub0/pub1->0 sub0/pub2->0 sub1/pub0->0 sub1/pub1->1 sub1/pub2->1 sub2/pub0->0 sub2/pub1->1 sub2/pub2->2",
        ],
    ),
    (
        "retained_basic",
        &[
            "new-sub=[('r/",
            "b'v1', 'q1', 'r1')] live=",
            "b'v2', 'q1', 'r0')] resubscribe=",
            "b'v2', 'q1', 'r1')] after-empty=[]",
        ],
    ),
    (
        "retained_250_topics",
        &["sub q0 got 250 of 250; sub q1 got 250 of 250"],
    ),
    (
        "will_abrupt",
        &[
            "close retain=0: live=[('w/",
            "'r0')] late=[]; close retain=1: live=[('w/",
            "'r0')] late=[('w/",
            "'r1')]; rst retain=0: live=[('w/",
            "'r0')] late=[]; rst retain=1: live=[('w/",
        ],
    ),
    (
        "will_keepalive_timeout",
        &["ka=2: will [('w/", "b'dead', 'q1', 'r0')]"],
    ),
    ("will_clean_disconnect", &["will=[] "]),
    (
        "will_takeover_clean",
        &[
            "b'OLD-bdSeq0'",
            "new alive=True; then new dies -> [('w/",
            "b'NEW-bdSeq1'",
        ],
    ),
    (
        "will_takeover_persistent",
        &["b'OLD'", "then new dies -> [('w/", "b'NEW'"],
    ),
    ("will_after_protocol_error", &["will=[('w/", "b'dead'"]),
    ("will_v5_disconnect_with_will", &["will=[('w/", "b'dead'"]),
    (
        "persistent_session",
        &[
            "session_present=1 queued=['m0', 'm1', 'm2', 'm3', 'm4'] unsuback-after-resume=True msgs after unsub=[]",
            "after clean connect sp=0",
        ],
    ),
    (
        "payload_sizes",
        &[
            "256KiB ok=True",
            "1024KiB ok=True",
            "10240KiB ok=True",
            "15360KiB ok=True",
            "17MiB closed=True alive=True",
        ],
    ),
    (
        "dollar_topics",
        &[
            "'#' got $foo: False; '+/n' got: False;",
            "closed=False; publisher closed=False",
        ],
    ),
    (
        "wildcards",
        &[
            "match errors=[]",
            "[('a/#/b', 'suback 80'), ('a#', 'suback 80'), ('a+', 'suback 80'), ('+a/b', 'suback 80'), ('', 'suback 80')]",
            "[('a/+', 'closed'), ('a/#', 'closed'), ('', 'closed')]; alive=True",
        ],
    ),
    (
        "bad_utf8",
        &[
            "[('publish topic', False, True), ('NUL in topic', False, True), ('subscribe', False, True), ('clientid', None, True)]",
        ],
    ),
    (
        "bad_packets",
        &[
            "type0:closed, type15:closed, rl5:closed, pub qos3:closed, pub topic len overrun:closed, sub no filters:closed, \
             sub bad flags:closed, sub qos3:closed, unsolicited puback:open, unsolicited pubrec:open, pubrel:open, \
             pubcomp:open, 2nd connect:closed, connack:closed, suback:closed, pingresp:closed, puback len0:closed, \
             puback 1 byte:closed, sub trunc:closed, disc payload:closed; alive=True after 600 fuzz=True",
        ],
    ),
    ("keepalive_zero", &["connack=b'\\x00\\x00' closed=False"]),
    (
        "long_and_odd_clientid",
        &[
            "('a/b', b'\\x00\\x00', False), ('edge node+1', b'\\x00\\x00', False), ('$x', b'\\x00\\x00', False), ('', b'\\x00\\x00', False)] alive=True",
        ],
    ),
    (
        "v5_on_v4_port",
        &["closed=False; v4 client on v5 port connack=b'\\x00\\x00' closed=False"],
    ),
    (
        "v5_props_to_v5_and_v4",
        &[
            "props=b'&\\x00\\x01k\\x00\\x01v\\x03\\x00\\rapplication/x'",
            "closed=False, next plain msg arrives=True",
        ],
    ),
    ("slowloris_connect", &["others alive=True, dropped=True"]),
    (
        "subscriber_disconnects_under_flood",
        &["broker alive after 30 rounds"],
    ),
];

#[test]
fn raw_sockets_see_what_the_norm_says() {
    let gateway = Gateway::builder()
        .config("[mqtt.limits]\nconnect_timeout = \"5s\"\n")
        .start();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mqtt");
    let port = gateway.mqtt.port().to_string();
    let output = Command::new("python3")
        .current_dir(folder)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .args(["behave.py", &port, &port])
        .output()
        .expect("python3 runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let mut wrong = Vec::new();
    for (test, parts) in EXPECTED {
        let line = said
            .lines()
            .find_map(|line| line.strip_prefix(test)?.strip_prefix(' '))
            .unwrap_or("nothing");
        if let Some(missing) = parts.iter().find(|part| !line.contains(**part)) {
            wrong.push(format!("{test}: {line}\n  lacks {missing}"));
        }
    }
    let ran = said.lines().count();
    assert_eq!(
        ran,
        EXPECTED.len(),
        "a line for each test of the script:\n{said}"
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
