//! Host session.
