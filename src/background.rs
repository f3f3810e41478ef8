//! The runtime of what may wait: the bridge, the page and uploads to the cold tier.
//!
//! Data, rules and local writes never wait for these, so they have threads of their own behind the others
//! ([`models::step_back`]): with few cores a back-filling bridge would otherwise take its share of the CPU from the very
//! decisions that it reports.

use tokio::runtime::{Builder, Handle, Runtime};

/// Threads that serve the bridge and the page.
const WORKERS: usize = 2;

/// Ends with this value, without waiting for what still runs on it.
#[derive(Debug)]
pub struct Background {
    handle: Handle,
    /// Taken at the end.
    runtime: Option<Runtime>,
}

impl Background {
    /// Starts its threads.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start() -> std::io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .thread_name("background")
            .on_thread_start(models::step_back)
            .enable_all()
            .build()?;
        Ok(Self {
            handle: runtime.handle().clone(),
            runtime: Some(runtime),
        })
    }

    /// Where to spawn.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // Inside of another runtime this one may not be waited for.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn niceness() -> i32 {
        rustix::process::getpriority_process(None).expect("a thread has a priority")
    }

    #[test]
    fn its_threads_stand_behind_the_caller() {
        let background = Background::start().expect("threads");
        let own = niceness();
        let (tell, told) = std::sync::mpsc::channel();
        let blocking = tell.clone();
        background.handle().spawn(async move {
            let _ = tell.send(niceness());
            let _ = tokio::task::spawn_blocking(move || blocking.send(niceness())).await;
        });
        for _ in 0..2 {
            let theirs = told.recv().expect("it runs");
            assert_eq!(theirs, (own + 5).min(19));
        }
        assert_eq!(niceness(), own);
    }
}
