//! The wire schema as generated types, from `proto/sparkplug_b.proto` by prost.
//!
//! The sessions read and write through [`crate::payload`], which costs no allocation a number; these types are
//! for tools that want the raw fields, and the tests hold the two against each other.

#![allow(missing_docs, reason = "generated; the schema has the words")]

include!("proto/sparkplug_b.rs");
