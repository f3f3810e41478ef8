//! The rule language: packs in TOML, conditions in CEL, checked whole when they are loaded.

pub(crate) mod def;
pub(crate) mod duration;
pub(crate) mod expr;
pub(crate) mod glob;
mod load;
pub(crate) mod nearest;
pub(crate) mod reader;
pub(crate) mod source;
pub(crate) mod template;

pub use def::Pack;
pub use expr::{EvalError, ExprProblem};
pub use glob::Glob;
pub use load::load_packs;
pub use source::{LoadError, Problem};
