//! Who wrote a metric last, and writers that fight over one.
//!
//! A writer of lower priority is held off for a while after a higher one wrote another value. Writers that take a
//! metric from each other again and again are told as a fight, however slowly they do it; while it lasts, the lower
//! priority is held off altogether.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use sparkplug::value::Value;

use super::{Notice, Refusal, Target};

/// Changes of hand within [`WINDOW_MS`] that make a fight.
const CHANGES: u32 = 3;
/// Time over which changes of hand are counted, how long a fight is taken to last, and the least time between two
/// notices about one metric, ms.
const WINDOW_MS: u64 = 60_000;
/// Metrics remembered; beyond, those of the past [`WINDOW_MS`] only, then none new.
const MOST: usize = 4_096;
/// Notices that wait to be taken; more are dropped, the next one comes after [`WINDOW_MS`].
const MOST_NOTICES: usize = 64;

#[derive(Debug)]
struct Owner {
    by: Arc<str>,
    priority: i32,
    value: Value,
    at_ms: u64,
    /// Changes of hand to another value, counted since `since_ms`.
    changes: u32,
    since_ms: u64,
    /// Until then writers below this priority are held off.
    fight: Option<(u64, i32)>,
    told_ms: Option<u64>,
    /// When two last wanted different values while that was told.
    fought_ms: u64,
}

/// Owners of metrics.
#[derive(Debug, Default)]
pub(super) struct Owners {
    by_metric: HashMap<(Target, Arc<str>), Owner>,
    notices: VecDeque<Notice>,
    /// Told, and not over.
    fights: Vec<(Target, Arc<str>)>,
}

/// A writer and what it wants.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim<'a> {
    pub(super) target: &'a Target,
    pub(super) metric: &'a Arc<str>,
    pub(super) by: &'a Arc<str>,
    pub(super) priority: i32,
    pub(super) value: &'a Value,
}

impl Owners {
    /// Whether a writer of higher priority keeps this one off; with `tell`, people hear of it.
    pub(super) fn judge(
        &mut self,
        now_ms: u64,
        hold_off_ms: u64,
        claim: Claim<'_>,
        tell: bool,
    ) -> Result<(), Refusal> {
        let key = (claim.target.clone(), claim.metric.clone());
        let Some(owner) = self.by_metric.get_mut(&key) else {
            return Ok(());
        };
        if owner.by == *claim.by || owner.value == *claim.value {
            return Ok(());
        }
        let recent = owner.priority > claim.priority && now_ms < owner.at_ms + hold_off_ms;
        let fought = owner
            .fight
            .is_some_and(|(until, priority)| now_ms < until && claim.priority < priority);
        if !recent && !fought {
            return Ok(());
        }
        let by = owner.by.clone();
        if tell {
            owner.tell(now_ms, claim, true, &mut self.notices);
            note(&mut self.fights, claim);
        }
        Err(Refusal::passing(format!(
            "priority: {by} wrote this metric just now with a higher priority"
        )))
    }

    /// A write left.
    pub(super) fn sent(&mut self, now_ms: u64, claim: Claim<'_>) {
        let key = (claim.target.clone(), claim.metric.clone());
        let Some(owner) = self.by_metric.get_mut(&key) else {
            if self.by_metric.len() >= MOST {
                self.by_metric
                    .retain(|_, owner| owner.at_ms + WINDOW_MS > now_ms);
            }
            if self.by_metric.len() < MOST {
                self.by_metric.insert(
                    key,
                    Owner {
                        by: claim.by.clone(),
                        priority: claim.priority,
                        value: claim.value.clone(),
                        at_ms: now_ms,
                        changes: 0,
                        since_ms: now_ms,
                        fight: None,
                        told_ms: None,
                        fought_ms: now_ms,
                    },
                );
            }
            return;
        };
        if owner.by != *claim.by && owner.value != *claim.value {
            if now_ms >= owner.since_ms + WINDOW_MS {
                (owner.changes, owner.since_ms) = (0, now_ms);
            }
            owner.changes += 1;
            if owner.changes >= CHANGES {
                let top = owner.priority.max(claim.priority);
                owner.fight = Some((now_ms + WINDOW_MS, top));
                owner.tell(now_ms, claim, false, &mut self.notices);
                note(&mut self.fights, claim);
            }
        }
        owner.by = claim.by.clone();
        owner.priority = claim.priority;
        owner.value = claim.value.clone();
        owner.at_ms = now_ms;
    }

    pub(super) fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// When the first fight may be over, ms.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.fights.iter().map(|key| self.over_at(key)).min()
    }

    /// Tells which fights are over.
    pub(super) fn advance(&mut self, now_ms: u64) {
        let fights = std::mem::take(&mut self.fights);
        let (over, on) = fights
            .into_iter()
            .partition(|key| self.over_at(key) <= now_ms);
        self.fights = on;
        for (target, metric) in over {
            self.notices.push_back(Notice::FightOver { target, metric });
        }
    }

    /// 0 for one whose metric is not remembered any more.
    fn over_at(&self, key: &(Target, Arc<str>)) -> u64 {
        let owner = self.by_metric.get(key);
        owner.map_or(0, |owner| owner.fought_ms.saturating_add(WINDOW_MS))
    }
}

/// A fight was told; it is looked after until it is over. Their number is that of the metrics remembered at most.
fn note(fights: &mut Vec<(Target, Arc<str>)>, claim: Claim<'_>) {
    let is =
        |(target, metric): &(Target, Arc<str>)| target == claim.target && metric == claim.metric;
    if !fights.iter().any(is) {
        fights.push((claim.target.clone(), claim.metric.clone()));
    }
}

impl Owner {
    fn tell(&mut self, now_ms: u64, claim: Claim<'_>, held: bool, notices: &mut VecDeque<Notice>) {
        self.fought_ms = now_ms;
        if self.told_ms.is_some_and(|at| now_ms < at + WINDOW_MS) || notices.len() >= MOST_NOTICES {
            return;
        }
        self.told_ms = Some(now_ms);
        // The one with the higher priority is the holder, whoever wrote last.
        let claims_more = claim.priority > self.priority;
        let (holder, rival) = if claims_more {
            (claim.by.clone(), self.by.clone())
        } else {
            (self.by.clone(), claim.by.clone())
        };
        notices.push_back(Notice::Fight {
            target: claim.target.clone(),
            metric: claim.metric.clone(),
            holder,
            rival,
            held: held || claim.priority != self.priority,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Arena {
        owners: Owners,
        target: Target,
        metric: Arc<str>,
    }

    impl Arena {
        fn new() -> Self {
            Self {
                owners: Owners::default(),
                target: Target {
                    group: "g".into(),
                    node: "n".into(),
                    device: None,
                },
                metric: "Valve".into(),
            }
        }

        /// Judges and, where allowed, sends; whether it was.
        fn write(&mut self, now_ms: u64, by: &str, priority: i32, value: i64) -> bool {
            let (by, value) = (Arc::from(by), Value::Int(value));
            let claim = Claim {
                target: &self.target,
                metric: &self.metric,
                by: &by,
                priority,
                value: &value,
            };
            let allowed = self.owners.judge(now_ms, 2_000, claim, true).is_ok();
            if allowed {
                self.owners.sent(now_ms, claim);
            }
            allowed
        }
    }

    #[test]
    fn a_lower_priority_is_held_off_and_told_once() {
        let mut arena = Arena::new();
        assert!(arena.write(0, "high", 9, 1));
        assert!(!arena.write(100, "low", 1, 0));
        assert!(!arena.write(200, "low", 1, 0));
        assert!(arena.write(300, "low", 1, 1), "the same value is no fight");
        let told = arena.owners.poll_notice().unwrap().to_string();
        assert_eq!(
            told,
            "low and high write different values to Valve of g/n; low has the lower priority and is held off"
        );
        assert_eq!(arena.owners.poll_notice(), None);
    }

    #[test]
    fn a_slow_fight_is_noticed_and_then_held() {
        let mut arena = Arena::new();
        let mut allowed = Vec::new();
        for turn in 0..6 {
            let now = turn * 9_000;
            allowed.push(if turn % 2 == 0 {
                arena.write(now, "high", 9, 1)
            } else {
                arena.write(now, "low", 1, 0)
            });
        }
        assert_eq!(allowed, [true, true, true, true, true, false]);
        assert!(matches!(
            arena.owners.poll_notice(),
            Some(Notice::Fight { held: true, holder, .. }) if &*holder == "high"
        ));
        arena.owners.advance(100_000);
        assert_eq!(arena.owners.poll_notice(), None, "it was fought at 45 s");
        assert_eq!(arena.owners.deadline(), Some(105_000));
        arena.owners.advance(105_000);
        assert!(matches!(
            arena.owners.poll_notice(),
            Some(Notice::FightOver { .. })
        ));
        assert_eq!(arena.owners.deadline(), None);
        // One that goes quiet lets the other one in again.
        assert!(arena.write(200_000, "low", 1, 0));
    }

    #[test]
    fn equals_are_told_and_the_later_one_wins() {
        let mut arena = Arena::new();
        for turn in 0..8 {
            assert!(arena.write(
                turn * 3_000,
                ["a", "b"][turn as usize % 2],
                5,
                (turn % 2) as i64
            ));
        }
        assert!(matches!(
            arena.owners.poll_notice(),
            Some(Notice::Fight { held: false, .. })
        ));
    }
}
