//! Quantized ONNX models: manifests, features, backends and a bounded runner.
