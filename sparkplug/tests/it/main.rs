//! The crate against what it did not write itself: generated code, other encoders, hostile links.

mod proto;
