//! The way into NATS JetStream.

pub mod backoff;
pub mod classify;
pub mod drain;
pub mod status;
