//! `seq`, the reorder window and rebirth requests.

use super::*;

/// One step of a scenario.
enum Step {
    Birth(u8),
    DeviceBirth(u8),
    Data(u8),
    Death(u64),
    Wait(u64),
}

fn check(steps: &[Step], expected: &[&str]) {
    let mut bench = Bench::new();
    for step in steps {
        match step {
            Step::Birth(seq) => drop(bench.nbirth(0, *seq)),
            Step::DeviceBirth(seq) => drop(bench.dbirth(*seq)),
            Step::Data(seq) => drop(bench.ddata(*seq, f64::from(*seq))),
            Step::Death(bdseq) => drop(bench.ndeath(*bdseq)),
            Step::Wait(ms) => bench.advance(*ms),
        }
        bench.now += 1;
    }
    assert_eq!(bench.story(), expected);
}

#[test]
fn operational_behavior_host_reordering_success() {
    use Step::*;
    check(
        &[
            Birth(0),
            DeviceBirth(1),
            Data(3),
            Wait(1000),
            Data(2),
            Wait(5000),
        ],
        &["nbirth", "dbirth", "ddata 2", "ddata 3"],
    );
}

#[test]
fn operational_behavior_host_reordering_rebirth() {
    use Step::*;
    check(
        &[
            Birth(0),
            DeviceBirth(1),
            Data(3),
            Wait(2000),
            Data(4),
            Wait(2000),
        ],
        &[
            "nbirth",
            "dbirth",
            "invalid sequence_gap",
            "rebirth reorder_timeout 1",
            "invalid awaiting_rebirth",
        ],
    );
}

#[test]
fn death_in_the_window_is_handled_at_once() {
    use Step::*;
    check(
        &[Birth(0), DeviceBirth(1), Data(3), Death(0), Wait(9000)],
        &["nbirth", "dbirth", "ignored superseded", "ndeath death"],
    );
}
