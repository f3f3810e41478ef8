//! The place of a model's threads among the others of the process.

/// Steps of niceness behind the threads that take data and decide. At 5 a thread gets a third of the time of one of
/// those while both are busy, so that it goes on under any load.
const STEPS: i32 = 5;

/// The last of Linux's steps.
const LOWEST: i32 = 19;

/// Puts the calling thread behind those that take data and decide: what may wait must not take its share of the CPU from
/// what may not. Needs no privilege; where the system refuses all the same, the thread goes on as it is.
pub fn step_back() {
    use rustix::process::{getpid, getpriority_process, setpriority_process};
    // Counted from the main thread's: one that is behind already stays where it is, and so do the threads that it starts.
    if let Ok(main) = getpriority_process(Some(getpid())) {
        let _ = setpriority_process(None, main.saturating_add(STEPS).min(LOWEST));
    }
}
