//! sparkgate.
