//! The shipped models against onnxruntime from PyPI, on tract and on onnxruntime itself.

#[cfg(test)]
mod agreement;
#[cfg(test)]
mod extremes;
#[cfg(test)]
mod python;
#[cfg(test)]
mod soak;
#[cfg(test)]
mod text;
#[cfg(test)]
mod tokenizer;
