//! onnxruntime, found at run time: the CPU, and CUDA and TensorRT on a Jetson.
//!
//! The binary does not link it. Every call goes through `environment`, which opens
//! the library first; any other call of crate `ort` before that would panic. A
//! provider must register, or opening fails: never silently the CPU.

use crate::backend::{
    Backend, BackendError, BackendId, Element, Model, ModelSource, RunError, TensorData, TensorSpec,
};
use crate::precheck::precheck;
use ort::environment::Environment;
use ort::ep::{self, ExecutionProvider};
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};
use ort::session::{Session, SessionInputValue};
use ort::value::TensorRef;
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// One provider of onnxruntime.
#[derive(Debug, Clone)]
pub struct Ort {
    id: BackendId,
    library: Option<PathBuf>,
    cache_dir: Option<PathBuf>,
}

fn unavailable(reason: impl ToString) -> BackendError {
    BackendError::Unavailable {
        reason: reason.to_string(),
    }
}

/// The library is opened once in a process; a second path is not looked at.
fn environment(library: Option<&Path>) -> Result<&'static Environment, BackendError> {
    static OPENED: OnceLock<Result<Environment, String>> = OnceLock::new();
    OPENED
        .get_or_init(|| {
            let path = library
                .map(Path::to_path_buf)
                .or_else(|| {
                    std::env::var_os("ORT_DYLIB_PATH")
                        .filter(|p| !p.is_empty())
                        .map(PathBuf::from)
                })
                .unwrap_or_else(|| PathBuf::from("libonnxruntime.so"));
            ort::init_from(&path)
                .map_err(|e| format!("{}: {e}", path.display()))?
                .with_name("sparkgate")
                .with_telemetry(false)
                .build()
                .map_err(|e| format!("{}: {e}", path.display()))
        })
        .as_ref()
        .map_err(unavailable)
}

impl Ort {
    /// A provider of the library at `library`, else of `ORT_DYLIB_PATH`, else of what the
    /// dynamic linker finds. `cache_dir` keeps TensorRT's engines.
    pub fn new(id: BackendId, library: Option<PathBuf>, cache_dir: Option<PathBuf>) -> Self {
        Self {
            id,
            library,
            cache_dir,
        }
    }

    fn providers(&self, builder: SessionBuilder) -> Result<SessionBuilder, BackendError> {
        let missing = || unavailable("this libonnxruntime was built without the provider");
        let cuda = || {
            ep::CUDA::default()
                .with_device_id(0)
                .build()
                .error_on_failure()
        };
        match self.id {
            BackendId::OrtCuda => {
                if !ep::CUDA::is_available().map_err(unavailable)? {
                    return Err(missing());
                }
                builder
                    .with_execution_providers([cuda()])
                    .map_err(unavailable)
            }
            BackendId::OrtTensorRt => {
                if !ep::TensorRT::is_available().map_err(unavailable)? {
                    return Err(missing());
                }
                let mut tensorrt = ep::TensorRT::default()
                    .with_device_id(0)
                    .with_fp16(true)
                    .with_int8(true);
                if let Some(folder) = self.cache_dir.as_deref().and_then(Path::to_str) {
                    tensorrt = tensorrt
                        .with_engine_cache(true)
                        .with_engine_cache_path(folder);
                }
                builder
                    .with_execution_providers([tensorrt.build().error_on_failure(), cuda()])
                    .map_err(unavailable)
            }
            BackendId::OrtCpu => Ok(builder),
            other => Err(unavailable(format!(
                "{other} is not a provider of onnxruntime"
            ))),
        }
    }
}

impl Backend for Ort {
    fn id(&self) -> BackendId {
        self.id
    }

    fn load(&self, source: &ModelSource) -> Result<Box<dyn Model>, BackendError> {
        precheck(source)?;
        let environment = environment(self.library.as_deref())?;
        let refused = |e: ort::Error| BackendError::Refused {
            reason: e.to_string(),
        };
        // One thread: parallelism comes from the models' own threads. Accuracy level 1:
        // else the optimiser turns weight-only int8 into integer arithmetic, which is up
        // to 7e-2 off the file's own.
        let builder = Session::builder(environment)
            .map_err(refused)?
            .with_intra_threads(1)
            .map_err(unavailable)?
            .with_inter_threads(1)
            .map_err(unavailable)?
            .with_optimization_level(GraphOptimizationLevel::All)
            .map_err(unavailable)?
            .with_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
            .map_err(unavailable)?;
        let session = self
            .providers(builder)?
            .commit_from_memory(&source.bytes)
            .map_err(refused)?;
        Ok(Box::new(OrtModel {
            session,
            inputs: source.inputs.clone(),
            outputs: source.outputs.clone(),
            batches: source.batches.clone(),
        }))
    }
}

struct OrtModel {
    session: Session,
    inputs: Vec<TensorSpec>,
    outputs: Vec<String>,
    batches: Vec<usize>,
}

impl Model for OrtModel {
    fn run(
        &mut self,
        batch: usize,
        inputs: &[TensorData<'_>],
        outputs: &mut Vec<Vec<f32>>,
    ) -> Result<(), RunError> {
        let failed = |e: ort::Error| RunError::Backend {
            reason: e.to_string(),
        };
        let Self {
            session,
            inputs: specs,
            outputs: names,
            batches,
        } = self;
        if !batches.contains(&batch) || inputs.len() != specs.len() {
            return Err(RunError::Shape);
        }
        let mut feeds: Vec<(Cow<'_, str>, SessionInputValue<'_>)> = Vec::with_capacity(specs.len());
        for (spec, data) in specs.iter().zip(inputs) {
            let shape: Vec<usize> = std::iter::once(batch)
                .chain(spec.row.iter().copied())
                .collect();
            let count: usize = shape.iter().product();
            let value: SessionInputValue<'_> = match (spec.element, data) {
                (Element::F32, TensorData::F32(d)) if d.len() == count => {
                    TensorRef::from_array_view((shape, *d))
                        .map_err(failed)?
                        .into()
                }
                (Element::I64, TensorData::I64(d)) if d.len() == count => {
                    TensorRef::from_array_view((shape, *d))
                        .map_err(failed)?
                        .into()
                }
                _ => return Err(RunError::Shape),
            };
            feeds.push((spec.name.as_str().into(), value));
        }
        let results = session.run(feeds).map_err(failed)?;
        outputs.resize_with(names.len(), Vec::new);
        for (out, name) in outputs.iter_mut().zip(names.iter()) {
            let value = results
                .get(name.as_str())
                .ok_or_else(|| RunError::Backend {
                    reason: format!("no output `{name}`"),
                })?;
            let (_, data) = value.try_extract_tensor::<f32>().map_err(failed)?;
            out.clear();
            out.extend_from_slice(data);
        }
        Ok(())
    }
}
