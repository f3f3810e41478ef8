//! How much the engine keeps.

/// Bounds of keyed state. When one is reached, the oldest goes, is counted, and is put out as
/// [`Output::Evicted`](crate::Output::Evicted).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most keys that hold state. The key that was silent longest goes.
    pub keys: usize,
    /// Most bytes of state over all keys, as the engine reckons them. The key that was silent
    /// longest goes.
    pub bytes: usize,
    /// Most keys of which only the matching rules are remembered; those cost nothing to forget.
    pub cached_keys: usize,
    /// Most partial matches of one rule for one key.
    pub partials_per_key: usize,
    /// Most bytes of one rule for one key.
    pub bytes_per_key: usize,
    /// Most partial matches of one rule over all keys.
    pub partials_per_rule: usize,
    /// Most events of one rule and key that wait for the watermark.
    pub buffered: usize,
    /// Most samples in one window.
    pub window_samples: usize,
    /// A key that nothing happened to for this long is forgotten, ms of engine time.
    pub idle_ms: u64,
    /// A timestamp further ahead of the gateway's wall clock than this is taken as the wall clock's
    /// time, ms.
    pub future_ms: i64,
    /// Longest shelving of an alarm, ms.
    pub shelve_ms: u64,
    /// Most outputs that wait to be taken.
    pub outputs: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            keys: 200_000,
            bytes: 256 << 20,
            cached_keys: 200_000,
            partials_per_key: 1_000,
            bytes_per_key: 1 << 20,
            partials_per_rule: 200_000,
            buffered: 10_000,
            window_samples: 100_000,
            idle_ms: 7 * 86_400_000,
            future_ms: 60_000,
            shelve_ms: 7 * 86_400_000,
            outputs: 100_000,
        }
    }
}
