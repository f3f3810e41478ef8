//! Stories of the whole gateway: a real process, real sockets, real servers, foreign clients.
//!
//! What the stories need is installed under the target folder by the harness; a test that can't get what it needs
//! fails and says how to get it.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]

mod harness;

mod backlog;
mod backup;
mod behaviour;
mod cloud;
#[cfg(feature = "cold")]
mod cold;
mod config;
mod consuming;
mod crash;
mod delivery;
mod faults;
mod fifo;
mod foreign;
mod hostile;
mod house;
mod models;
mod notify;
#[cfg(feature = "otlp")]
mod otlp;
mod power;
mod profiles;
#[path = "../../models/tests/it/python.rs"]
#[allow(dead_code)]
mod python;
mod rules;
mod servers;
mod service;
mod siege;
mod traces;
mod uplink;
mod writes;
