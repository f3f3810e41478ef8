//! The shipped models against onnxruntime from PyPI, on tract and on onnxruntime itself.

mod agreement;
mod extremes;
mod python;
