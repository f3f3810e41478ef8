//! What the stories share: a gateway process, a NATS server, foreign clients, waiting with a deadline.

#![allow(dead_code, reason = "each story uses what it needs of the harness")]

pub mod export;
pub mod fleet;
pub mod gateway;
pub mod mosquitto;
pub mod mqtt;
pub mod nats;
pub mod ports;
pub mod powercut;
pub mod proxy;
pub mod tools;

use std::time::{Duration, Instant};

/// Polls until `look` returns a value; fails with `what` after the deadline.
pub fn until<T>(what: &str, seconds: u64, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {seconds} s: {what}");
        std::thread::yield_now();
        std::thread::park_timeout(Duration::from_millis(20));
    }
}
