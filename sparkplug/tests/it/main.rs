//! The crate against what it did not write itself: generated code, other encoders, hostile links.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a failed unwrap in a test is a failed test"
)]

mod allocation;
mod bombs;
mod conformance;
mod proto;
mod roundtrip;
mod simulation;
mod vectors;
