//! Watching pack files, so that a changed rule runs without a signal.
//!
//! By looking every two seconds: that works on every filesystem and for every way in which editors and deployment tools
//! replace files. A change counts when two looks in a row agree, so that a file that is being written is not read half.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use crate::config::Rules;
use crate::packs;

/// Time between two looks.
pub(super) const PERIOD: Duration = Duration::from_secs(2);

/// When each pack was changed, and its size.
type Looks = BTreeMap<PathBuf, (Option<SystemTime>, u64)>;

/// What was seen last.
#[derive(Debug)]
pub(super) struct Watch {
    known: Looks,
    /// Differs from what is known, and was not seen twice yet.
    fresh: Option<Looks>,
}

impl Watch {
    /// Takes what lies there now as known.
    pub(super) fn new(rules: &Rules) -> Self {
        Self {
            known: look(rules),
            fresh: None,
        }
    }

    /// Whether packs have changed since they were last read.
    pub(super) fn changed(&mut self, rules: &Rules) -> bool {
        self.settled(look(rules))
    }

    fn settled(&mut self, seen: Looks) -> bool {
        if seen == self.known {
            self.fresh = None;
            return false;
        }
        if self.fresh.as_ref() != Some(&seen) {
            self.fresh = Some(seen);
            return false;
        }
        self.known = seen;
        self.fresh = None;
        true
    }
}

fn look(rules: &Rules) -> Looks {
    let files = rules
        .paths
        .iter()
        .flat_map(|path| packs::find(path).unwrap_or_default());
    let seen = files.map(|file| {
        let meta = std::fs::metadata(&file).ok();
        let changed = meta.as_ref().and_then(|meta| meta.modified().ok());
        (file, (changed, meta.map_or(0, |meta| meta.len())))
    });
    seen.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_counts_once_it_stands_still() {
        let folder = tempfile::tempdir().unwrap();
        let pack = folder.path().join("a.toml");
        std::fs::write(&pack, "one").unwrap();
        let rules = Rules {
            paths: vec![folder.path().to_path_buf()],
            ..Rules::default()
        };
        let mut watch = Watch::new(&rules);
        assert!(!watch.changed(&rules));
        std::fs::write(&pack, "three").unwrap();
        assert!(!watch.changed(&rules), "perhaps still being written");
        std::fs::write(&pack, "eleven").unwrap();
        assert!(!watch.changed(&rules));
        assert!(watch.changed(&rules));
        assert!(!watch.changed(&rules));
        std::fs::write(folder.path().join("b.toml"), "").unwrap();
        std::fs::write(folder.path().join("a.scenario.toml"), "").unwrap();
        assert!(!watch.changed(&rules) && watch.changed(&rules));
        std::fs::remove_file(&pack).unwrap();
        assert!(!watch.changed(&rules) && watch.changed(&rules));
    }
}
