//! The sensor models that are part of the binary, so that it can show them without a
//! file on disk.

/// Manifest and files of one built-in model.
pub(crate) struct Embedded {
    pub(crate) name: &'static str,
    pub(crate) manifest: &'static str,
    pub(crate) files: &'static [(&'static str, &'static [u8])],
}

macro_rules! embedded {
    ($name:literal: $($file:literal),+) => {
        Embedded {
            name: $name,
            manifest: include_str!(concat!("../artifacts/", $name, "/manifest.toml")),
            files: &[$(($file, include_bytes!(concat!("../artifacts/", $name, "/", $file)))),+],
        }
    };
}

pub(crate) static EMBEDDED: [Embedded; 3] = [
    embedded!("univariate-anomaly": "model.onnx", "golden.json"),
    embedded!("vibration-ae": "model.onnx", "golden.json", "model.qdq.onnx", "golden.qdq.json"),
    embedded!("vibration-ae-mlp": "model.onnx", "golden.json", "model.qdq.onnx", "golden.qdq.json"),
];
