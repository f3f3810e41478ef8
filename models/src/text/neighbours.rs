//! The nearest of the recent alarms, so that a flood is shown as one group.

use super::similarity;
use crate::key::DeviceKey;
use std::collections::VecDeque;
use std::sync::Arc;

/// A recent alarm that means nearly the same.
#[derive(Debug, Clone, PartialEq)]
pub struct Neighbour {
    /// Its id.
    pub alarm: Arc<str>,
    /// Its record.
    pub record: u64,
    /// Its device.
    pub key: DeviceKey,
    /// Its text.
    pub text: Arc<str>,
    /// Cosine, -1 to 1.
    pub similarity: f32,
}

/// An alarm among which neighbours are found.
#[derive(Debug, Clone, PartialEq)]
pub struct Alarm {
    /// Its id.
    pub id: Arc<str>,
    /// Its record.
    pub record: u64,
    /// Its device.
    pub key: DeviceKey,
    /// Its text.
    pub text: Arc<str>,
    /// Length 1.
    pub vector: Arc<[f32]>,
}

/// A bounded list of vectors of one space, the oldest going first. Searching looks at
/// all of them: 2,000 alarms of 384 numbers are under a megaflop.
pub struct Neighbours {
    entries: VecDeque<Alarm>,
    max: usize,
}

impl Neighbours {
    /// Keeps at most `max` vectors.
    pub fn new(max: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            max,
        }
    }

    /// Adds an alarm; the oldest goes when there is no room. One that is raised again stands
    /// at its newest place only.
    pub fn push(&mut self, alarm: Alarm) {
        if self.max == 0 {
            return;
        }
        self.entries.retain(|known| known.id != alarm.id);
        if self.entries.len() >= self.max {
            self.entries.pop_front();
        }
        self.entries.push_back(alarm);
    }

    /// At most `count` alarms at or above `least`, nearest first, newer before older.
    pub fn nearest(&self, vector: &[f32], count: usize, least: f32) -> Vec<Neighbour> {
        let mut found: Vec<(f32, &Alarm)> = self
            .entries
            .iter()
            .rev()
            .map(|e| (similarity(&e.vector, vector), e))
            .filter(|(s, _)| *s >= least)
            .collect();
        found.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        found.truncate(count);
        found
            .into_iter()
            .map(|(similarity, e)| Neighbour {
                alarm: e.id.clone(),
                record: e.record,
                key: e.key.clone(),
                text: e.text.clone(),
                similarity,
            })
            .collect()
    }

    /// Vectors kept.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_come_first_and_the_oldest_go_first() {
        let mut index = Neighbours::new(3);
        assert!(index.is_empty());
        for (record, x) in [(1, 1.0f32), (2, 0.6), (3, 0.0), (4, 0.8)] {
            let vector = [x, (1.0 - x * x).sqrt()];
            index.push(Alarm {
                id: format!("a{record}").into(),
                record,
                key: DeviceKey::new("g", "n", "d"),
                text: "t".into(),
                vector: vector.to_vec().into(),
            });
        }
        assert_eq!(index.len(), 3, "record 1 is gone");
        let found = index.nearest(&[1.0, 0.0], 5, 0.5);
        assert_eq!(found.iter().map(|n| n.record).collect::<Vec<_>>(), [4, 2]);
        assert_eq!(index.nearest(&[1.0, 0.0], 1, 0.5).len(), 1);
    }
}
