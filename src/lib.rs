//! sparkgate: an edge gateway for MQTT Sparkplug B.
//!
//! `docs/ARCHITECTURE.md` is the map. The library exists for the binary and its tests; it promises no stable API.

pub mod actuation;
pub mod admin;
pub mod audit;
pub mod background;
pub mod backoff;
pub mod backup;
pub mod bridge;
pub mod broker;
pub mod buffer;
pub mod cli;
pub mod clock;
pub mod config;
pub mod daemon;
pub mod data_folder;
pub mod digest;
pub mod host;
pub mod http;
pub mod notify;
pub mod packs;
pub mod pipeline;
pub mod prepare;
pub mod rollout;
pub mod stall;
pub mod state;
pub mod telemetry;
pub mod texts;
pub mod tls;
