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

    /// Changed copies that are run of each file: `SPARKGATE_FUZZ`, else a few.
    fn neighbours() -> usize {
        let set = std::env::var("SPARKGATE_FUZZ");
        set.ok().and_then(|text| text.parse().ok()).unwrap_or(40)
    }

    /// Prints the bytes where their run ends in a panic.
    struct Shown<'a>(&'a [u8]);

    impl Drop for Shown<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                println!("{:?}", self.0);
            }
        }
    }

    /// A few bytes cut, put in, overwritten or flipped.
    fn change(bytes: &mut Vec<u8>, random: &mut impl FnMut(usize) -> usize) {
        for _ in 0..=random(4) {
            let at = random(bytes.len() + 1);
            let byte = u8::try_from(random(256)).unwrap();
            match random(4) {
                0 if random(8) == 0 => bytes.truncate(at),
                1 => bytes.insert(at, byte),
                2 if at < bytes.len() => bytes[at] = byte,
                _ if at < bytes.len() => bytes[at] ^= 1 << random(8),
                _ => {}
            }
        }
    }

    /// Runs each file of a target's corpus, and changed copies of it.
    fn replay(target: &str, run: fn(&[u8])) {
        let mut state = 1u64;
        let mut random = |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            usize::try_from((state >> 33) % below as u64).unwrap()
        };
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("fuzz/corpus")
            .join(target);
        let mut n = 0;
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            // Printed where the run ends in a panic.
            println!("{}", path.display());
            let bytes = std::fs::read(&path).unwrap();
            run(&bytes);
            for _ in 0..neighbours() {
                let mut changed = bytes.clone();
                change(&mut changed, &mut random);
                let shown = Shown(&changed);
                run(&changed);
                drop(shown);
            }
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
