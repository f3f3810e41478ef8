//! A fleet of conforming Sparkplug edge nodes, with faults on request.
//!
//! [`node::Node`] is one edge node without I/O: it takes commands, connection events and time, and gives back the
//! bytes to publish. [`transport`] puts a node on a real connection (rumqttc), [`fleet::Fleet`] runs many.
//!
//! Payloads are written and read by `sparkplug-rs`, not by the gateway's own codec, so that simulator and gateway can't
//! agree with each other on a mistake.

pub mod codec;
pub mod device;
pub mod fault;
pub mod fleet;
pub mod link;
mod mqtt5;
pub mod node;
pub mod scenario;
pub mod signal;
pub mod tls;
pub mod transport;
