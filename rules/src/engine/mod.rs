//! The engine.
/// A guard.
#[derive(Clone, Debug)]
pub struct Guard {}
