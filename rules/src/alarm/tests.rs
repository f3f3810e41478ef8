//! The state machine of one alarm.

use proptest::prelude::*;

use super::*;
use crate::snapshot::{Reader, Writer};

fn occurrence(n: u64) -> Occurrence {
    Occurrence {
        id: format!("id{n}").into(),
        message: "m".into(),
        values: vec![("v".into(), crate::Value::UInt(n))],
        cause: (n, 0),
        time_ms: Some(5),
        since: 0,
    }
}

#[test]
fn delays_want_the_condition_to_last() {
    let timing = Timing {
        on_delay: 10,
        off_delay: 20,
        ..Timing::default()
    };
    let mut alarm = Alarm::default();
    assert_eq!(alarm.on(&timing, 0, || occurrence(1)), None);
    assert_eq!(alarm.deadline(), Some(10));
    assert_eq!(alarm.off(&timing, 5), []);
    assert_eq!(alarm.deadline(), None);
    alarm.on(&timing, 6, || occurrence(2));
    assert_eq!(alarm.advance(&timing, 16), [AlarmAction::Raise]);
    assert_eq!(alarm.occurrence().unwrap().since, 16);
    assert_eq!(alarm.off(&timing, 30), []);
    assert_eq!(alarm.on(&timing, 40, || occurrence(2)), None);
    assert_eq!(alarm.advance(&timing, 60), [], "it came back in time");
    alarm.off(&timing, 70);
    assert_eq!(alarm.advance(&timing, 90), [AlarmAction::Clear]);
    assert_eq!(alarm.status(), AlarmStatus::RtnUnack);
}

/// Every state, by every way the table in the module names.
#[test]
fn the_table_of_states() {
    let latch = Timing {
        latch: true,
        ..Timing::default()
    };
    for (timing, acked_first, states) in [
        (
            Timing::default(),
            false,
            [AlarmStatus::RtnUnack, AlarmStatus::Normal],
        ),
        (
            Timing::default(),
            true,
            [AlarmStatus::Normal, AlarmStatus::Normal],
        ),
        (
            latch,
            false,
            [AlarmStatus::LatchedUnack, AlarmStatus::LatchedAck],
        ),
        (
            latch,
            true,
            [AlarmStatus::LatchedAck, AlarmStatus::LatchedAck],
        ),
    ] {
        let mut alarm = Alarm::default();
        assert_eq!(
            alarm.on(&timing, 0, || occurrence(1)),
            Some(AlarmAction::Raise)
        );
        assert_eq!(alarm.status(), AlarmStatus::Unack);
        if acked_first {
            alarm.ack(&timing, "eve", "", 1).unwrap();
            assert_eq!(alarm.status(), AlarmStatus::Ack);
        }
        assert_eq!(alarm.off(&timing, 2), [AlarmAction::Clear]);
        assert_eq!(alarm.status(), states[0]);
        assert_eq!(alarm.ack(&timing, "eve", "", 3).is_ok(), !acked_first);
        assert_eq!(alarm.status(), states[1]);
        assert_eq!(alarm.reset().is_ok(), timing.latch);
        assert_eq!(alarm.status(), AlarmStatus::Normal);
    }
    let mut alarm = Alarm::default();
    alarm.on(&latch, 0, || occurrence(1));
    alarm.off(&latch, 1);
    assert_eq!(alarm.reset(), Ok(AlarmAction::Reset));
    assert_eq!(
        alarm.status(),
        AlarmStatus::RtnUnack,
        "still to be acknowledged"
    );
}

proptest! {
    /// Whatever happens: what is active has an occurrence, and a snapshot loses nothing.
    #[test]
    fn any_story_keeps_its_invariants(steps in proptest::collection::vec((0u8..11, 0u64..30), 0..60)) {
        let timing = Timing {
            on_delay: 5,
            off_delay: 7,
            latch: true,
            until_ack: false,
            flap: Some(Flap { count: 3, within: 40 }),
        };
        let mut alarm = Alarm::default();
        let mut now = 0;
        for (step, gap) in steps {
            now += gap;
            alarm.advance(&timing, now);
            match step {
                0 | 1 => drop(alarm.on(&timing, now, || occurrence(now))),
                2 | 3 => drop(alarm.off(&timing, now)),
                4 => drop(alarm.ack(&timing, "eve", "n", now)),
                5 => drop(alarm.reset()),
                6 => drop(alarm.shelve("eve", Some(10), 100, now)),
                7 => drop(alarm.unshelve()),
                8 => drop(alarm.suppress(gap % 2 == 0)),
                9 => drop(alarm.service(gap % 2 == 0)),
                _ => drop(alarm.set_stale(gap % 2 == 0)),
            }
            prop_assert!(alarm.occurrence().is_some() || !alarm.is_active());
            prop_assert!(alarm.deadline().is_none_or(|due| due >= now));
            let mut bytes = Writer::new();
            alarm.encode(&mut bytes);
            let bytes = bytes.finish();
            let again = Alarm::decode(&mut Reader::open(&bytes).unwrap()).unwrap();
            prop_assert_eq!(&again, &alarm);
        }
    }
}
