//! Edge session.
