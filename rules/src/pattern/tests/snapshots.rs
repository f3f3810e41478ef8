//! State as bytes: the cut does not show, and nothing read back can lead astray.

use super::*;

fn write(event: &Event, to: &mut Vec<u8>) {
    to.extend([event.kind, event.value]);
    to.extend(event.seq.to_le_bytes());
}

fn read(from: &mut &[u8]) -> Option<Event> {
    let (bytes, rest) = from.split_first_chunk::<6>()?;
    *from = rest;
    let [kind, value, seq @ ..] = *bytes;
    Some(Event {
        kind,
        value,
        seq: u32::from_le_bytes(seq),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    #[test]
    fn a_cut_anywhere_changes_no_output(
        spec in patterns(),
        stream in streams(30),
        cut in 0usize..30,
        end in 0i64..80,
    ) {
        let Ok(plan) = spec.compile() else { return Ok(()) };
        let cut = cut.min(stream.len());
        let (before, after) = stream.split_at(cut);
        let mut uncut = KeyState::new();
        let mut expected = feed(&plan, &mut uncut, before, &SMALL);
        let mut bytes = Vec::new();
        uncut.encode(&plan, &mut bytes, write);
        let mut restored = KeyState::decode(&plan, &bytes, read).unwrap();
        let mut again = Vec::new();
        restored.encode(&plan, &mut again, write);
        prop_assert_eq!(&bytes, &again);
        prop_assert_eq!(restored.events(), uncut.events());
        let mut actual = expected.clone();
        expected.extend(feed(&plan, &mut uncut, after, &SMALL));
        actual.extend(feed(&plan, &mut restored, after, &SMALL));
        let end = stream.last().map_or(0, |(ts, _)| *ts) + end;
        plan.advance_to(&mut uncut, end, &mut |o| expected.push(Seen::of(o)));
        plan.advance_to(&mut restored, end, &mut |o| actual.push(Seen::of(o)));
        prop_assert_eq!(expected, actual);
    }

    #[test]
    fn damaged_bytes_are_refused_or_harmless(
        spec in patterns(),
        stream in streams(20),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        keep in any::<prop::sample::Index>(),
        truncate in any::<bool>(),
    ) {
        let Ok(plan) = spec.compile() else { return Ok(()) };
        let mut state = KeyState::new();
        feed(&plan, &mut state, &stream, &SMALL);
        let mut bytes = Vec::new();
        state.encode(&plan, &mut bytes, write);
        // Behind the version and the shape, which would refuse nearly everything.
        let body = bytes.len().min(11);
        for (at, byte) in damage {
            let at = body + at.index((bytes.len() - body).max(1));
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        if truncate {
            bytes.truncate(keep.index(bytes.len()));
        }
        if let Ok(mut state) = KeyState::decode(&plan, &bytes, read) {
            feed(&plan, &mut state, &stream, &SMALL);
            plan.advance_to(&mut state, i64::MAX, &mut |_| ());
            state.encode(&plan, &mut bytes, write);
        }
    }
}

#[test]
fn another_pattern_or_version_is_refused() {
    let one = example::plan(&["a", "b"]);
    let other = example::plan(&["a", "b", "c"]);
    let mut bytes = Vec::new();
    KeyState::<Event>::new().encode(&one, &mut bytes, write);
    assert!(KeyState::decode(&one, &bytes, read).unwrap().is_idle());
    assert_eq!(
        KeyState::decode(&other, &bytes, read).unwrap_err(),
        SnapshotError::Shape {
            found: one.shape(),
            expected: other.shape()
        }
    );
    let trailing = [&bytes[..], &[0]].concat();
    assert_eq!(
        KeyState::decode(&one, &trailing, read).unwrap_err(),
        SnapshotError::Trailing { bytes: 1 }
    );
    assert_eq!(
        KeyState::decode(&one, &bytes[..bytes.len() - 1], read).unwrap_err(),
        SnapshotError::Truncated
    );
    bytes[0] = 9;
    assert_eq!(
        KeyState::decode(&one, &bytes, read).unwrap_err(),
        SnapshotError::Version { found: 9 }
    );
}
