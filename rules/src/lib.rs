//! Keyed complex event processing for Sparkplug metrics, without I/O.

pub mod pattern;
