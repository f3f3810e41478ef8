//! The configuration in force: what it is, what the last reload changed, and what waits for a restart.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use serde_json::{Value, json};

use crate::config::Config;
use crate::config::change::{self, Change};

/// Changes that a log line names; the page and `/api/status` have all.
const MOST_NAMED: usize = 20;

/// What is in force.
#[derive(Debug)]
pub struct Configured(RwLock<State>);

#[derive(Debug)]
struct State {
    config: Config,
    hash: String,
    /// Version of each pack.
    packs: BTreeMap<String, String>,
    /// When the files were last read, ms UTC.
    at: u64,
    /// Mistakes that kept all or a part of what was read from being taken.
    mistakes: usize,
    /// What the last reload that was taken changed.
    changed: Vec<Change>,
    /// What the files say otherwise, and a restart would bring.
    waiting: Vec<Change>,
}

/// Version of each pack, by id.
#[must_use]
pub fn versions(packs: &[rules::Pack]) -> BTreeMap<String, String> {
    let of = |pack: &rules::Pack| (pack.id().to_owned(), pack.version().to_owned());
    packs.iter().map(of).collect()
}

impl Configured {
    /// As it was started with.
    #[must_use]
    pub fn new(config: Config, packs: &[rules::Pack]) -> Self {
        Self(RwLock::new(State {
            hash: change::hash(&config),
            config,
            packs: versions(packs),
            at: crate::clock::wall_ms(),
            mistakes: 0,
            changed: Vec::new(),
            waiting: Vec::new(),
        }))
    }

    fn state(&self) -> std::sync::RwLockWriteGuard<'_, State> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> Config {
        self.state().config.clone()
    }

    /// Files were read and not taken: `mistakes` of them.
    pub fn refused(&self, mistakes: usize) {
        let mut state = self.state();
        (state.at, state.mistakes) = (crate::clock::wall_ms(), mistakes);
    }

    /// `next` is in force now, of `fresh` that was read; `mistakes` parts of it were refused. Says in the log what
    /// changed and what waits for a restart.
    pub fn taken(
        &self,
        next: Config,
        fresh: &Config,
        packs: BTreeMap<String, String>,
        mistakes: usize,
    ) {
        let mut state = self.state();
        let mut changed = change::between(&state.config, &next);
        changed.extend(pack_changes(&state.packs, &packs));
        let waiting = change::between(&next, fresh);
        if changed.is_empty() {
            tracing::info!("configuration read again: no key and no pack's version differs");
        } else {
            tracing::info!(changed = named(&changed), "configuration reloaded");
        }
        if !waiting.is_empty() {
            tracing::warn!(keys = named(&waiting), "a restart is needed for these");
        }
        *state = State {
            hash: change::hash(&next),
            config: next,
            packs,
            at: crate::clock::wall_ms(),
            mistakes,
            changed,
            waiting,
        };
    }

    /// Other packs are in force, taken without a signal.
    pub fn packs_taken(&self, fresh: BTreeMap<String, String>) {
        let mut state = self.state();
        let changed = pack_changes(&state.packs, &fresh);
        tracing::info!(changed = named(&changed), "changed packs are in force");
        (state.changed, state.packs, state.at) = (changed, fresh, crate::clock::wall_ms());
    }

    /// SHA-256 of what is in force, hex.
    #[must_use]
    pub fn hash(&self) -> String {
        self.state().hash.clone()
    }

    /// For `/metrics`: when the files were last read in ms UTC, whether all was taken, and how many keys wait.
    #[must_use]
    pub fn figures(&self) -> (u64, bool, usize) {
        let state = self.state();
        (state.at, state.mistakes == 0, state.waiting.len())
    }

    /// For `/api/status`.
    #[must_use]
    pub fn json(&self) -> Value {
        let state = self.state();
        json!({"at": state.at, "mistakes": state.mistakes, "changed": state.changed, "restart": state.waiting})
    }
}

fn named(changes: &[Change]) -> String {
    let mut text: Vec<String> = changes
        .iter()
        .take(MOST_NAMED)
        .map(Change::to_string)
        .collect();
    if let Some(more) = changes
        .len()
        .checked_sub(MOST_NAMED)
        .filter(|more| *more > 0)
    {
        text.push(format!("and {more} more"));
    }
    text.join("; ")
}

fn pack_changes(
    before: &BTreeMap<String, String>,
    after: &BTreeMap<String, String>,
) -> Vec<Change> {
    let ids: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    ids.into_iter()
        .filter(|id| before.get(*id) != after.get(*id))
        .map(|id| Change {
            key: format!("pack {id}"),
            from: before.get(id).cloned(),
            to: after.get(id).cloned(),
        })
        .collect()
}
