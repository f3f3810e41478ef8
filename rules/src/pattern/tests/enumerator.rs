//! The engine against an enumerator that tries every way to assign events to stages.
//!
//! Covers single stages and relaxed repetitions, joined by every contiguity, absences between stages,
//! and a window. It knows nothing of automata: it is the definition, spelt out.

use super::*;

/// All matches of `spec` in a stream, each with the position of its last event, sorted.
fn enumerate(spec: &PatternSpec, stream: &[(i64, Event)]) -> Vec<(usize, Vec<(u16, u32)>)> {
    let mut search = Search {
        spec,
        stream,
        found: Vec::new(),
    };
    search.stage(0, &mut Vec::new());
    let mut found = search.found;
    found.sort();
    found
}

struct Search<'a> {
    spec: &'a PatternSpec,
    stream: &'a [(i64, Event)],
    found: Vec<(usize, Vec<(u16, u32)>)>,
}

impl Search<'_> {
    fn fits(&self, stage: usize, at: usize) -> bool {
        match &self.spec.stages[stage].kind {
            StageKind::Event {
                condition: Some(c), ..
            } => {
                let arena = arena::Arena::default();
                holds(c.id, &self.stream[at].1, Path::new(&arena, arena::NONE))
            }
            _ => true,
        }
    }

    /// Tries every event for the first event of `stage`; `taken` holds (stage, position).
    fn stage(&mut self, stage: usize, taken: &mut Vec<(usize, usize)>) {
        let stages = &self.spec.stages;
        if stage == stages.len() {
            self.report(taken);
            return;
        }
        // Absences between the last stage and the next that takes an event.
        let mut target = stage;
        while stages[target].contiguity.is_absence() && target > 0 {
            target += 1;
        }
        let absences: Vec<usize> = (stage..target).collect();
        let from = taken.last().map_or(0, |(_, at)| at + 1);
        for at in from..self.stream.len() {
            let next_hit = absences.iter().any(|a| {
                stages[*a].contiguity == Contiguity::NotNext && at == from && self.fits(*a, at)
            });
            if next_hit {
                return;
            }
            if self.fits(target, at) {
                let is_last = target + 1 == stages.len()
                    && matches!(stages[target].quantifier.repeat, Repeat::Once);
                let hit = absences.iter().any(|a| self.follows(*a, at));
                // An event that ends the match counts even if it is the one that must not come.
                if !hit || is_last {
                    taken.push((target, at));
                    self.repeat(target, 1, taken);
                    taken.pop();
                }
            }
            if absences.iter().any(|a| self.follows(*a, at)) {
                return;
            }
            let contiguity = stages[target].contiguity;
            let stop = taken.is_empty();
            match contiguity {
                _ if stop => {}
                Contiguity::Next => return,
                Contiguity::FollowedBy if self.fits(target, at) => return,
                _ => {}
            }
        }
    }

    fn follows(&self, absence: usize, at: usize) -> bool {
        self.spec.stages[absence].contiguity == Contiguity::NotFollowedBy && self.fits(absence, at)
    }

    /// Goes on to the next stage, or takes one more event for a repetition.
    fn repeat(&mut self, stage: usize, count: i64, taken: &mut Vec<(usize, usize)>) {
        let (from, to) = match self.spec.stages[stage].quantifier.repeat {
            Repeat::OneOrMore => (1, i64::MAX),
            Repeat::Times(n) => (n, n),
            _ => (1, 1),
        };
        if count >= from {
            self.stage(stage + 1, taken);
        }
        if count < to {
            let after = taken.last().map_or(0, |(_, at)| at + 1);
            let next = (after..self.stream.len()).find(|at| self.fits(stage, *at));
            if let Some(at) = next {
                taken.push((stage, at));
                self.repeat(stage, count + 1, taken);
                taken.pop();
            }
        }
    }

    fn report(&mut self, taken: &[(usize, usize)]) {
        let (Some((_, first)), Some((_, last))) = (taken.first(), taken.last()) else {
            return;
        };
        let window = self.spec.stages.last().and_then(|s| s.within);
        if window.is_some_and(|w| self.stream[*last].0 - self.stream[*first].0 >= w) {
            return;
        }
        let pairs = taken
            .iter()
            .map(|(stage, at)| (*stage as u16, self.stream[*at].1.seq))
            .collect();
        self.found.push((*last, pairs));
    }
}

/// Patterns the enumerator knows. An absence stands between two stages and not next to a repetition.
fn simple() -> impl Strategy<Value = PatternSpec> {
    let contiguity = prop_oneof![
        Just(Contiguity::Next),
        Just(Contiguity::FollowedBy),
        Just(Contiguity::FollowedByAny),
    ];
    let absence = prop_oneof![Just(Contiguity::NotNext), Just(Contiguity::NotFollowedBy)];
    let repeat = prop_oneof![
        3 => Just(Repeat::Once),
        1 => Just(Repeat::OneOrMore),
        1 => (1i64..4).prop_map(Repeat::Times),
    ];
    let stage = (
        contiguity,
        0u16..6,
        repeat,
        proptest::option::weighted(0.3, (absence, 0u16..5)),
    );
    (
        proptest::collection::vec(stage, 1..4),
        proptest::option::of(10i64..60),
    )
        .prop_map(|(list, within)| {
            let mut stages: Vec<StageSpec> = Vec::new();
            for (contiguity, id, repeat, absence) in list {
                let repeated = stages
                    .last()
                    .is_some_and(|s| s.quantifier.repeat != Repeat::Once);
                let mut stage = StageSpec::event("", contiguity, condition(id));
                match absence {
                    Some((kind, id)) if !stages.is_empty() && !repeated => {
                        stages.push(StageSpec::event("", kind, condition(id)));
                    }
                    _ => stage.quantifier.repeat = repeat,
                }
                stages.push(stage);
            }
            if let Some(last) = stages.last_mut() {
                last.within = within;
            }
            let mut names = 0;
            name(&mut stages, &mut names);
            PatternSpec {
                stages,
                skip: Skip::None,
            }
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn finds_what_trying_everything_finds(spec in simple(), stream in streams(14)) {
        let plan = spec.compile().unwrap();
        let mut state = KeyState::new();
        let mut found = Vec::new();
        for (at, item) in stream.iter().enumerate() {
            for seen in feed(&plan, &mut state, &[*item], &Limits::NONE) {
                if let Seen::Match(pairs, ts) = seen {
                    prop_assert_eq!(ts, item.0);
                    found.push((at, pairs));
                }
            }
        }
        found.sort();
        prop_assert_eq!(found, enumerate(&spec, &stream));
    }
}
