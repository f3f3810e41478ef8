//! What runs a model: one trait, and the order in which backends are tried.

use std::ffi::OsStr;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// An engine and the device that it runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BackendId {
    /// onnxruntime with TensorRT (and CUDA for what TensorRT leaves).
    OrtTensorRt,
    /// onnxruntime on CUDA.
    OrtCuda,
    /// tract on CUDA; named so that it can stand in a preference, not built in.
    TractCuda,
    /// onnxruntime on the CPU.
    OrtCpu,
    /// tract on the CPU: always there.
    TractCpu,
}

impl BackendId {
    /// Every backend, in the default order of preference.
    pub const ALL: [Self; 5] = [
        Self::OrtTensorRt,
        Self::OrtCuda,
        Self::TractCuda,
        Self::OrtCpu,
        Self::TractCpu,
    ];

    /// As configuration, status and records write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::OrtTensorRt => "ort:tensorrt",
            Self::OrtCuda => "ort:cuda",
            Self::TractCuda => "tract:cuda",
            Self::OrtCpu => "ort:cpu",
            Self::TractCpu => "tract:cpu",
        }
    }
}

impl fmt::Display for BackendId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A backend name that is not one of [`BackendId::ALL`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown backend `{name}`; known: ort:tensorrt, ort:cuda, tract:cuda, ort:cpu, tract:cpu")]
pub struct UnknownBackend {
    /// What was written.
    pub name: String,
}

impl FromStr for BackendId {
    type Err = UnknownBackend;

    fn from_str(text: &str) -> Result<Self, UnknownBackend> {
        Self::ALL
            .into_iter()
            .find(|id| id.name() == text)
            .ok_or_else(|| UnknownBackend {
                name: text.to_owned(),
            })
    }
}

/// Which backends are tried, in order, and where onnxruntime is looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendPreference {
    /// In order. `tract:cpu` closes the list whether named or not.
    pub order: Vec<BackendId>,
    /// libonnxruntime; none leaves it to `ORT_DYLIB_PATH`, then the dynamic linker.
    pub ort_library: Option<PathBuf>,
    /// Folder for what GPU backends compile; none turns their caches off.
    pub cache_dir: Option<PathBuf>,
}

impl Default for BackendPreference {
    fn default() -> Self {
        Self {
            order: BackendId::ALL.to_vec(),
            ort_library: None,
            cache_dir: None,
        }
    }
}

/// The first of the folders that a service manager names, when it can be written: a cache
/// that cannot must not cost the backend.
fn service_cache(folders: Option<&OsStr>) -> Option<PathBuf> {
    let folder = std::env::split_paths(folders?).next()?;
    let probe = folder.join(".write-probe");
    std::fs::write(&probe, b"").ok()?;
    std::fs::remove_file(&probe).ok()?;
    Some(folder)
}

impl BackendPreference {
    /// From the names of a configuration. GPU backends keep what they compile in the first
    /// folder of `CACHE_DIRECTORY`, which systemd sets.
    pub fn parse<S: AsRef<str>>(names: &[S]) -> Result<Self, UnknownBackend> {
        let order = names
            .iter()
            .map(|n| n.as_ref().parse())
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            order,
            cache_dir: service_cache(std::env::var_os("CACHE_DIRECTORY").as_deref()),
            ..Self::default()
        })
    }

    /// tract on the CPU and nothing else.
    pub fn builtin() -> Self {
        Self {
            order: vec![BackendId::TractCpu],
            ..Self::default()
        }
    }

    /// The order with `tract:cpu` at the end and nothing twice.
    pub fn resolved(&self) -> Vec<BackendId> {
        let mut order = Vec::with_capacity(self.order.len() + 1);
        for id in self.order.iter().copied().chain([BackendId::TractCpu]) {
            if !order.contains(&id) {
                order.push(id);
            }
        }
        order
    }

    /// The backends of [`Self::resolved`]; one that this binary lacks is there too and
    /// says so when asked to load.
    pub fn backends(&self) -> Vec<Arc<dyn Backend>> {
        self.resolved()
            .into_iter()
            .map(|id| self.backend(id))
            .collect()
    }

    /// One backend, whether in the order or not.
    pub fn backend(&self, id: BackendId) -> Arc<dyn Backend> {
        match id {
            BackendId::TractCpu => Arc::new(crate::tract::Tract),
            #[cfg(feature = "ort")]
            BackendId::OrtTensorRt | BackendId::OrtCuda | BackendId::OrtCpu => Arc::new(
                crate::ort::Ort::new(id, self.ort_library.clone(), self.cache_dir.clone()),
            ),
            other => Arc::new(NotBuilt(other)),
        }
    }
}

/// Element type of an input tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// 32-bit float.
    F32,
    /// 64-bit signed integer.
    I64,
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::I64 => "i64",
        })
    }
}

/// One input of the graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name in the graph.
    pub name: String,
    /// Element type.
    pub element: Element,
    /// Shape without the batch, which is the first dimension.
    pub row: Vec<usize>,
}

/// A model file and what is expected of it.
#[derive(Debug, Clone)]
pub struct ModelSource {
    /// The ONNX file.
    pub bytes: Arc<[u8]>,
    /// Inputs in the order in which [`Model::run`] gets them.
    pub inputs: Vec<TensorSpec>,
    /// Outputs in the order in which [`Model::run`] fills them; f32, batch first.
    pub outputs: Vec<String>,
    /// Batch sizes for which [`Model::run`] is called.
    pub batches: Vec<usize>,
    /// Most bytes for weights and intermediate values.
    pub memory: u64,
}

/// Data of one input tensor, row-major.
#[derive(Debug, Clone, Copy)]
pub enum TensorData<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// 64-bit signed integers.
    I64(&'a [i64]),
}

/// Why a backend did not take a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// Its library, driver or device is missing, or it is not in this binary.
    #[error("not available: {reason}")]
    Unavailable {
        /// In the library's words.
        reason: String,
    },
    /// Not an ONNX graph, or one that contradicts itself.
    #[error("malformed model file: {problem}")]
    Malformed {
        /// What and where.
        problem: String,
    },
    /// An operator that the backend does not have.
    #[error("operator `{op}` of node `{node}` is not supported")]
    Operator {
        /// Operator type.
        op: String,
        /// Node name.
        node: String,
    },
    /// The graph's input is not what the manifest declares.
    #[error("input `{input}`: the manifest declares {expected}, the file has {found}")]
    Input {
        /// Name in the manifest.
        input: String,
        /// Element type and shape of the manifest.
        expected: String,
        /// What the file has.
        found: String,
    },
    /// The graph lacks an output.
    #[error("output `{output}` is not in the file, which has {found}")]
    Output {
        /// Name in the manifest.
        output: String,
        /// Names that the file has.
        found: String,
    },
    /// More memory than the manifest allows.
    #[error("needs {needs} bytes of memory, the manifest allows {limit}")]
    Memory {
        /// Weights and intermediate values, estimated.
        needs: u64,
        /// From the manifest.
        limit: u64,
    },
    /// The backend refused the graph.
    #[error("refused: {reason}")]
    Refused {
        /// In the backend's words, naming the node.
        reason: String,
    },
    /// The backend panicked; the panic was contained.
    #[error("panicked: {message}")]
    Panicked {
        /// The panic's message.
        message: String,
    },
}

/// Why one run gave nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// The batch or the length of an input is none that was asked for at load.
    #[error("no plan for this batch or input length")]
    Shape,
    /// The backend failed.
    #[error("{reason}")]
    Backend {
        /// In the backend's words.
        reason: String,
    },
    /// The backend panicked; the panic was contained.
    #[error("panicked: {message}")]
    Panicked {
        /// The panic's message.
        message: String,
    },
}

/// Opens models.
pub trait Backend: Send + Sync {
    /// Which one it is.
    fn id(&self) -> BackendId;
    /// Checks and opens a model. May panic or take long; the caller guards it.
    fn load(&self, source: &ModelSource) -> Result<Box<dyn Model>, BackendError>;
}

/// An open model. One thread at a time uses it.
pub trait Model: Send {
    /// Runs `batch` rows, one of the sizes asked for at load. `outputs` gets one
    /// row-major vector for each declared output, old content replaced.
    fn run(
        &mut self,
        batch: usize,
        inputs: &[TensorData<'_>],
        outputs: &mut Vec<Vec<f32>>,
    ) -> Result<(), RunError>;
}

struct NotBuilt(BackendId);

impl Backend for NotBuilt {
    fn id(&self) -> BackendId {
        self.0
    }

    fn load(&self, _: &ModelSource) -> Result<Box<dyn Model>, BackendError> {
        Err(BackendError::Unavailable {
            reason: format!("{} is not built into this binary", self.0),
        })
    }
}

/// The message of a caught panic.
pub(crate) fn panic_message(payload: &(dyn std::any::Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_used_where_it_can_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let both = std::env::join_paths([folder.path(), "/nonexistent".as_ref()]).unwrap();
        assert_eq!(service_cache(Some(&both)), Some(folder.path().into()));
        assert_eq!(service_cache(Some(OsStr::new("/nonexistent"))), None);
        assert_eq!(service_cache(None), None);
    }

    #[test]
    fn tract_cpu_closes_every_list_once() {
        let check = |names: &[&str], expect: &[BackendId]| {
            assert_eq!(BackendPreference::parse(names).unwrap().resolved(), expect);
        };
        check(&[], &[BackendId::TractCpu]);
        check(
            &["tract:cpu", "ort:cpu"],
            &[BackendId::TractCpu, BackendId::OrtCpu],
        );
        check(
            &["ort:cuda", "ort:cuda"],
            &[BackendId::OrtCuda, BackendId::TractCpu],
        );
    }

    #[test]
    fn an_unknown_backend_is_named() {
        let error = BackendPreference::parse(&["ort:tpu"]).unwrap_err();
        assert_eq!(error.name, "ort:tpu");
    }
}
