//! Sparkplug B 3.0: topics, payloads and the host and edge sessions, without I/O.
//!
//! Nothing in here owns a socket, a clock, a thread or a file. [`host::HostSession`] and [`edge::EdgeSession`]
//! take messages and the time as arguments and give back what to publish, what happened and when to call again.

pub mod alias;
pub mod array;
pub mod compress;
pub mod dataset;
pub mod datatype;
pub mod edge;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod host;
pub mod metric;
pub mod payload;
pub mod property;
pub mod proto;
pub mod seq;
pub mod state;
pub mod template;
pub mod topic;
pub mod value;
mod wire;

pub use array::Array;
pub use dataset::DataSet;
pub use datatype::DataType;
pub use metric::{MetaData, Metric, MetricFlags, TimeSource};
pub use property::{Property, PropertySet};
pub use seq::Seq;
pub use template::Template;
pub use topic::{DeviceId, DeviceVerb, NodeId, NodeVerb, Topic, TopicError};
pub use value::Value;
pub use wire::WireError;
