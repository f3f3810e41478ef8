//! Which alarms mean nearly the same: the newest of them, with their vectors, over restarts too.
//!
//! Each alarm is one entry of a checkpoint, under its place in the order: a line of JSON, a line feed, and the vector
//! (f32, little-endian). Entries of another space of vectors are given up.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use models::DeviceKey;
use models::text::{Alarm, Neighbour, Neighbours, TextConfig};
use serde::{Deserialize, Serialize};

use super::Related;

/// Alarms that are kept; the oldest goes.
pub(super) const MOST: usize = 2_000;

/// An alarm and what is known of it.
#[derive(Debug)]
struct Member {
    place: u64,
    alarm: Alarm,
    related: Related,
}

/// The newest alarms by id.
#[derive(Debug, Default)]
pub(super) struct Families {
    /// Vectors of different versions are never compared.
    vector_version: Arc<str>,
    members: HashMap<Arc<str>, Member>,
    order: VecDeque<Arc<str>>,
    next: u64,
    /// Changed since the last checkpoint, by place: `None` where it is gone.
    dirty: BTreeMap<u64, Option<Arc<str>>>,
}

#[derive(Deserialize, Serialize)]
struct Stored {
    vector_version: String,
    id: String,
    record: u64,
    key: [String; 3],
    text: String,
    family: String,
    neighbours: Vec<StoredNeighbour>,
}

#[derive(Deserialize, Serialize)]
struct StoredNeighbour {
    id: String,
    record: u64,
    key: [String; 3],
    text: String,
    similarity: f32,
}

fn names(key: &DeviceKey) -> [String; 3] {
    [&key.group, &key.node, &key.device].map(|name| name.to_string())
}

fn key([group, node, device]: &[String; 3]) -> DeviceKey {
    DeviceKey::new(group, node, device)
}

impl Families {
    pub(super) fn new(vector_version: Arc<str>) -> Self {
        Self {
            vector_version,
            ..Self::default()
        }
    }

    pub(super) fn related(&self, alarm: &str) -> Option<&Related> {
        self.members.get(alarm).map(|member| &member.related)
    }

    /// An alarm joins the family of its nearest neighbour, or founds one.
    pub(super) fn relate(&mut self, alarm: Alarm, neighbours: Vec<Neighbour>) {
        let family = neighbours
            .first()
            .map(|nearest| {
                self.related(&nearest.alarm)
                    .map_or_else(|| nearest.alarm.clone(), |known| known.family.clone())
            })
            .unwrap_or_else(|| alarm.id.clone());
        self.add(alarm, Related { family, neighbours });
    }

    fn add(&mut self, alarm: Alarm, related: Related) {
        let (id, place) = (alarm.id.clone(), self.next);
        self.next += 1;
        let member = Member {
            place,
            alarm,
            related,
        };
        if let Some(before) = self.members.insert(id.clone(), member) {
            self.dirty.insert(before.place, None);
            self.order.retain(|known| *known != id);
        }
        self.dirty.insert(place, Some(id.clone()));
        self.order.push_back(id);
        while self.order.len() > MOST {
            let oldest = self.order.pop_front();
            let gone = oldest.and_then(|oldest| self.members.remove(&oldest));
            if let Some(gone) = gone {
                self.dirty.insert(gone.place, None);
            }
        }
    }

    /// All of them, the oldest first.
    pub(super) fn alarms(&self) -> impl Iterator<Item = &Alarm> {
        let members = self.order.iter().filter_map(|id| self.members.get(id));
        members.map(|member| &member.alarm)
    }

    /// As the embedder finds them among all that are known.
    pub(super) fn nearest(&self, vector: &[f32]) -> Vec<Neighbour> {
        let mut index = Neighbours::new(MOST);
        self.alarms().for_each(|alarm| index.push(alarm.clone()));
        let config = TextConfig::default();
        index.nearest(vector, config.neighbours, config.least_similarity)
    }

    /// What changed since the last call: places, each with its entry, or `None` where it is gone.
    pub(super) fn take_dirty(&mut self) -> Vec<(u64, Option<Vec<u8>>)> {
        let dirty = std::mem::take(&mut self.dirty);
        let entry = |(place, id): (u64, Option<Arc<str>>)| {
            let member = id.and_then(|id| self.members.get(&id));
            (place, member.and_then(|member| self.encode(member)))
        };
        dirty.into_iter().map(entry).collect()
    }

    /// Takes an entry back; in the order of places.
    pub(super) fn restore(&mut self, place: u64, bytes: &[u8]) {
        self.next = self.next.max(place);
        match self.decode(bytes) {
            Some((alarm, related)) => {
                self.add(alarm, related);
                self.dirty.remove(&place);
            }
            None => {
                self.dirty.insert(place, None);
                self.next = self.next.max(place + 1);
            }
        }
    }

    fn encode(&self, member: &Member) -> Option<Vec<u8>> {
        let Member { alarm, related, .. } = member;
        let neighbours = related.neighbours.iter().map(|near| StoredNeighbour {
            id: near.alarm.to_string(),
            record: near.record,
            key: names(&near.key),
            text: near.text.to_string(),
            similarity: near.similarity,
        });
        let stored = Stored {
            vector_version: self.vector_version.to_string(),
            id: alarm.id.to_string(),
            record: alarm.record,
            key: names(&alarm.key),
            text: alarm.text.to_string(),
            family: related.family.to_string(),
            neighbours: neighbours.collect(),
        };
        let mut bytes = serde_json::to_vec(&stored).ok()?;
        bytes.push(b'\n');
        bytes.extend(models::text::to_bytes(&alarm.vector));
        Some(bytes)
    }

    fn decode(&self, bytes: &[u8]) -> Option<(Alarm, Related)> {
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let (line, vector) = bytes.split_at_checked(end)?;
        let stored: Stored = serde_json::from_slice(line).ok()?;
        if *stored.vector_version != *self.vector_version {
            return None;
        }
        let (numbers, []) = vector.get(1..)?.as_chunks::<4>() else {
            return None;
        };
        let neighbours = stored.neighbours.iter().map(|near| Neighbour {
            alarm: near.id.as_str().into(),
            record: near.record,
            key: key(&near.key),
            text: near.text.as_str().into(),
            similarity: near.similarity,
        });
        let related = Related {
            family: stored.family.into(),
            neighbours: neighbours.collect(),
        };
        let alarm = Alarm {
            id: stored.id.into(),
            record: stored.record,
            key: key(&stored.key),
            text: stored.text.into(),
            vector: numbers.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        };
        Some((alarm, related))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alarm(id: &str, x: f32) -> Alarm {
        Alarm {
            id: id.into(),
            record: 1,
            key: DeviceKey::new("g", "n", "d"),
            text: format!("text of {id}\n").into(),
            vector: [x, (1.0 - x * x).sqrt()].into(),
        }
    }

    fn neighbour(alarm: &str) -> Neighbour {
        Neighbour {
            alarm: alarm.into(),
            record: 1,
            key: DeviceKey::new("g", "n", "d"),
            text: "t".into(),
            similarity: 0.9,
        }
    }

    #[test]
    fn alarms_join_the_family_of_their_nearest_neighbour() {
        let mut families = Families::default();
        families.relate(alarm("a", 1.0), Vec::new());
        families.relate(alarm("b", 1.0), vec![neighbour("a")]);
        families.relate(alarm("c", 1.0), vec![neighbour("b"), neighbour("a")]);
        families.relate(alarm("x", 0.0), Vec::new());
        // The neighbour itself is forgotten: it is the family's name all the same.
        families.relate(alarm("y", 0.0), vec![neighbour("gone")]);
        let family = |id: &str| families.related(id).map(|r| &*r.family);
        assert_eq!(
            ["a", "b", "c", "x", "y", "z"].map(family),
            [
                Some("a"),
                Some("a"),
                Some("a"),
                Some("x"),
                Some("gone"),
                None
            ]
        );
    }

    /// What a state store holds after a checkpoint.
    fn checkpoint(families: &mut Families, store: &mut BTreeMap<u64, Vec<u8>>) {
        for (place, entry) in families.take_dirty() {
            match entry {
                Some(bytes) => store.insert(place, bytes),
                None => store.remove(&place),
            };
        }
    }

    fn restored(store: &BTreeMap<u64, Vec<u8>>, version: &str) -> Families {
        let mut families = Families::new(version.into());
        for (place, bytes) in store {
            families.restore(*place, bytes);
        }
        families
    }

    #[test]
    fn what_is_kept_is_bounded_and_comes_back_as_it_was() {
        let (mut store, mut families) = (BTreeMap::new(), Families::new("v1".into()));
        for n in 0..MOST + 10 {
            let near = if n == 7 {
                vec![neighbour("3")]
            } else {
                Vec::new()
            };
            families.relate(alarm(&n.to_string(), 1.0), near);
            families.relate(alarm("again", 0.6), vec![neighbour("7")]);
            if n.is_multiple_of(400) {
                checkpoint(&mut families, &mut store);
            }
        }
        checkpoint(&mut families, &mut store);
        assert_eq!((families.alarms().count(), store.len()), (MOST, MOST));
        assert!(families.related("0").is_none() && families.related("again").is_some());

        let mut again = restored(&store, "v1");
        assert!(again.alarms().eq(families.alarms()));
        assert_eq!(again.related("again"), families.related("again"));
        assert_eq!(again.take_dirty(), []);
        let nearest = again.nearest(&[0.6, 0.8]);
        assert_eq!(&*nearest[0].alarm, "again");
        // It goes on where it was.
        again.relate(alarm("new", 1.0), Vec::new());
        families.relate(alarm("new", 1.0), Vec::new());
        assert_eq!(again.take_dirty(), families.take_dirty());
    }

    #[test]
    fn entries_of_another_space_or_damaged_are_given_up() {
        let (mut store, mut families) = (BTreeMap::new(), Families::new("v1".into()));
        families.relate(alarm("a", 1.0), Vec::new());
        families.relate(alarm("b", 1.0), Vec::new());
        checkpoint(&mut families, &mut store);
        let mut other = restored(&store, "v2");
        assert_eq!(other.alarms().count(), 0);
        other.relate(alarm("c", 1.0), Vec::new());
        let mut kept = store.clone();
        checkpoint(&mut other, &mut kept);
        assert_eq!(kept.len(), 1);
        store.values_mut().next().unwrap().pop();
        assert_eq!(restored(&store, "v1").alarms().count(), 1);
    }
}
