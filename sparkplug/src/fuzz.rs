//! Bodies of the fuzz targets, and a test that replays their corpus and mutations of it.
//!
//! A target in `fuzz/` is one call into here. None of them may panic, and each keeps an invariant of its own.

use crate::host::{HostConfig, HostLimits, HostSession, Message, ServerId};
use crate::payload::{Limits, decode, decode_resolved, encode_resolved};
use crate::state::HostState;
use crate::topic::Topic;

/// A topic that parses prints as itself.
pub fn fuzz_topic(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(topic) = Topic::parse(text)
    {
        assert_eq!(topic.to_string(), text);
    }
}

/// A STATE body that parses is one that we could have written, but for its further keys.
pub fn fuzz_state(data: &[u8]) {
    if let Ok(state) = HostState::parse(data) {
        let body = HostState::body(state.online, state.timestamp.unwrap_or_default());
        assert_eq!(HostState::parse(&body), Ok(state));
    }
}

/// Small enough that hitting a limit is common.
const TIGHT: Limits = Limits {
    max_metrics: 64,
    max_elements: 256,
    max_depth: 8,
    max_inflated: 4096,
};

/// Any bytes are a payload within limits, or an error.
pub fn fuzz_payload(data: &[u8]) {
    if let Ok(payload) = decode(data, &TIGHT) {
        assert!(payload.metrics.len() + payload.rejected.len() <= TIGHT.max_metrics);
    }
}

/// The bytes as the body of a compressed payload.
pub fn fuzz_compressed(data: &[u8]) {
    let (algorithm, body) = match data.split_first() {
        Some((0, rest)) => (Some("GZIP"), rest),
        Some((1, rest)) => (Some("DEFLATE"), rest),
        _ => (None, data),
    };
    let mut bytes = Vec::new();
    if let Some(name) = algorithm {
        crate::wire::put_message(&mut bytes, 2, |out| {
            crate::wire::put_bytes(out, 1, b"algorithm");
            crate::wire::put_bytes(out, 15, name.as_bytes());
        });
    }
    crate::wire::put_bytes(&mut bytes, 4, crate::compress::COMPRESSED.as_bytes());
    crate::wire::put_bytes(&mut bytes, 5, body);
    fuzz_payload(&bytes);
}

/// What is read as the journal's form is written as bytes that read as the same again.
pub fn fuzz_resolved(data: &[u8]) {
    let Ok(payload) = decode_resolved(data) else {
        return;
    };
    let bytes = encode_resolved(
        payload.timestamp,
        payload.seq,
        payload.bdseq,
        &payload.metrics,
    );
    let again = decode_resolved(&bytes).map(|it| format!("{it:?}"));
    assert_eq!(again.ok(), Some(format!("{payload:?}")));
}

/// Operations on a host session: each is a byte that says which, a length and an argument.
pub fn fuzz_host(data: &[u8]) {
    let config = HostConfig {
        limits: HostLimits {
            payload: TIGHT,
            max_nodes: 3,
            max_devices: 2,
            max_metrics: 32,
            max_parked: 4,
            max_parked_bytes: 512,
            max_parked_total: 800,
            max_metrics_total: 48,
        },
        ..HostConfig::default()
    };
    let mut session = HostSession::new(config.clone(), 0);
    let (mut now, mut tag, mut settled) = (0u64, 0u64, 0usize);
    let mut rest = data;
    while let [op, len, tail @ ..] = rest {
        let (argument, tail) = tail.split_at(usize::from(*len).min(tail.len()));
        rest = tail;
        match op % 8 {
            0 => {
                now += u64::from(*len) * 100;
                session.handle_timeout(now);
            }
            1 => drop(session.connect(ServerId(u16::from(op / 8 % 2)), now, now)),
            2 => session.subscribed(ServerId(u16::from(op / 8 % 2)), now),
            3 => session.disconnected(ServerId(u16::from(op / 8 % 2)), now, now),
            4 => {
                let mut fresh = HostSession::new(config.clone(), now);
                for snapshot in session.dirty_nodes() {
                    let restored = fresh.restore_node(now, now, &snapshot.bytes);
                    assert_eq!(restored, Ok(()));
                }
                let _ = fresh.restore_node(now, now, argument);
                assert_eq!(fresh.check_invariants(), Ok(()));
            }
            _ => {
                const VERBS: [&str; 7] = [
                    "NBIRTH/n",
                    "NDATA/n",
                    "NDEATH/n",
                    "DBIRTH/n/d",
                    "DDATA/n/d",
                    "DDEATH/n/d",
                    "NBIRTH/m",
                ];
                let verb = VERBS.get(usize::from(op / 8) % VERBS.len());
                let topic = format!("spBv1.0/g/{}", verb.unwrap_or(&"NCMD/n"));
                tag += 1;
                session.handle_message(
                    now,
                    &Message {
                        topic: &topic,
                        payload: argument,
                        received_ms: now,
                        client: None,
                        server: ServerId(0),
                        retained: false,
                        will: false,
                        tag,
                    },
                );
            }
        }
        while let Some(event) = session.poll_event() {
            settled += usize::from(event.tag().is_some());
        }
        while session.poll_transmit().is_some() {}
        assert_eq!(session.check_invariants(), Ok(()));
    }
    let waiting: usize = session.nodes().map(|it| it.parked()).sum();
    assert_eq!(settled + waiting, tag as usize);
}

#[cfg(test)]
mod tests {
    use super::*;

    type Target = (&'static str, fn(&[u8]));

    const TARGETS: [Target; 6] = [
        ("topic", fuzz_topic),
        ("state", fuzz_state),
        ("payload", fuzz_payload),
        ("compressed", fuzz_compressed),
        ("resolved", fuzz_resolved),
        ("host", fuzz_host),
    ];

    fn corpus(target: &str) -> Vec<Vec<u8>> {
        let folder = format!(
            "{}/../fuzz/corpus/sparkplug_{target}",
            env!("CARGO_MANIFEST_DIR")
        );
        let mut paths: Vec<_> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|it| it.unwrap().path())
            .collect();
        paths.sort();
        assert!(!paths.is_empty(), "{folder} is empty");
        paths.iter().map(|it| std::fs::read(it).unwrap()).collect()
    }

    #[test]
    fn the_corpus_and_its_neighbours_break_nothing() {
        let set = std::env::var("SPARKGATE_FUZZ");
        let neighbours = set.ok().and_then(|it| it.parse().ok()).unwrap_or(300);
        let mut state = 1u64;
        let mut random = |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below.max(1)
        };
        for (name, target) in TARGETS {
            for seed in corpus(name) {
                target(&seed);
                for _ in 0..neighbours {
                    let mut bytes = seed.clone();
                    for _ in 0..=random(4) {
                        let at = random(bytes.len() + 1);
                        match random(4) {
                            0 => bytes.truncate(at),
                            1 => bytes.insert(at, random(256) as u8),
                            2 if at < bytes.len() => bytes[at] = random(256) as u8,
                            _ if at < bytes.len() => bytes[at] ^= 1 << random(8),
                            _ => {}
                        }
                    }
                    target(&bytes);
                }
            }
        }
    }
}
