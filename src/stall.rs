//! Debug builds only: parts of the process that stand still while a file is there, as if they were caught in a deadlock
//! or by a disk that does not answer. What the watchdog and the operator see of that is what the service's tests look
//! at. In a release build there is nothing of it.

use std::time::Duration;

/// A part that can be made to stand still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The pipeline's thread; file in `SPARKGATE_TEST_STALL`.
    Pipeline,
    /// An fsync of the journal; file in `SPARKGATE_TEST_STALL_FSYNC`.
    Fsync,
    /// A commit of the state store; file in `SPARKGATE_TEST_STALL_STORE`.
    Store,
}

/// Time between two looks at the file.
#[cfg(debug_assertions)]
const LOOK: Duration = Duration::from_millis(20);

/// Returns at once, but in a test that says otherwise.
#[cfg(debug_assertions)]
pub fn at(part: Part) {
    use std::path::PathBuf;
    use std::sync::LazyLock;
    static FILES: LazyLock<[Option<PathBuf>; 3]> = LazyLock::new(|| {
        [
            "SPARKGATE_TEST_STALL",
            "SPARKGATE_TEST_STALL_FSYNC",
            "SPARKGATE_TEST_STALL_STORE",
        ]
        .map(|name| std::env::var_os(name).map(PathBuf::from))
    });
    let [pipeline, fsync, store] = &*FILES;
    let file = match part {
        Part::Pipeline => pipeline,
        Part::Fsync => fsync,
        Part::Store => store,
    };
    while file.as_ref().is_some_and(|file| file.exists()) {
        std::thread::sleep(LOOK);
    }
}

/// Returns at once.
#[cfg(not(debug_assertions))]
pub fn at(_: Part) {}

/// How long a part may stand still: `usual`, or what `SPARKGATE_TEST_PATIENCE_S` says to a debug build.
#[must_use]
pub fn patience(usual: Duration) -> Duration {
    if cfg!(debug_assertions) {
        std::env::var("SPARKGATE_TEST_PATIENCE_S")
            .ok()
            .and_then(|seconds| seconds.parse().ok())
            .map_or(usual, Duration::from_secs)
    } else {
        usual
    }
}
