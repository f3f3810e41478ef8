//! Quantized ONNX models for windows of device samples: what they need, whether
//! they are right on this machine, and running them without delaying anyone.
//!
//! The path of one answer:
//!
//! ```text
//! sample ─ Windower (sans-IO, keyed per device) ─ Request ─ Runner (own threads, bounded queues)
//!        ─ features ─ Backend (tract, or onnxruntime found at run time) ─ range check ─ verdict ─ Event
//! ```
//!
//! * [`manifest`] says what a model reads, means and may cost; [`golden`] holds the
//!   rows that prove it on this machine.
//! * [`registry`] activates a model only when hash, shapes and golden rows hold on
//!   the backend that will run it, and keeps the reason for each backend passed over.
//! * [`windower`] turns irregular samples into requests or into a reason why there is none.
//! * [`runner`] owns the threads; [`slo`] decides, from latencies alone, when the
//!   declared lighter model takes over.
//!
//! Invariants: a missing, stale, null or NaN input never becomes a number; an output
//! outside its declared range never becomes a verdict; a hostile model file is an
//! error value; nothing here waits for a model on the caller's thread.

mod artifacts;
pub mod backend;
pub mod bench;
pub mod features;
pub mod golden;
pub mod key;
mod load;
pub mod manifest;
#[cfg(feature = "ort")]
pub mod ort;
mod precheck;
mod priority;
pub mod quantity;
pub mod registry;
pub mod runner;
pub mod slo;
pub mod text;
pub mod tokenizer;
pub mod tract;
pub mod verdict;
pub mod verify;
pub mod windower;

pub use backend::{Backend, BackendId, BackendPreference};
pub use key::DeviceKey;
pub use manifest::Manifest;
pub use priority::step_back;
pub use registry::{LoadError, Registry, Source};
pub use runner::{Event, Inference, NoVerdict, Request, Runner, RunnerConfig, Skipped};
pub use windower::{Sample, SampleValue, WindowOutcome, Windower, WindowerConfig};
