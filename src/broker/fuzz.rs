//! What `fuzz/` feeds with any bytes. A test replays its corpus, so that what was found once stays found.

pub(crate) use super::codec::fuzz::packets;
pub(crate) use super::router::fuzz::sessions;

/// Bytes of a client at the codec's boundary.
pub fn mqtt_codec(bytes: &[u8]) {
    packets(bytes);
}

/// A story of packets, time limits and lost connections, read from the bytes.
pub fn mqtt_session(bytes: &[u8]) {
    sessions(bytes);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    /// Runs each file of a target's corpus.
    fn replay(target: &str, run: fn(&[u8])) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("fuzz/corpus")
            .join(target);
        let mut n = 0;
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            // Printed where the run ends in a panic.
            println!("{}", path.display());
            run(&std::fs::read(&path).unwrap());
            n += 1;
        }
        assert!(n >= 10, "{}: {n} files", folder.display());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_story(bytes in proptest::collection::vec(any::<u8>(), 0..900)) {
            super::mqtt_session(&bytes);
        }
    }

    #[test]
    fn the_corpus_of_the_codec_is_replayed() {
        replay("mqtt_codec", super::mqtt_codec);
    }

    #[test]
    fn the_corpus_of_the_session_is_replayed() {
        replay("mqtt_session", super::mqtt_session);
    }
}
