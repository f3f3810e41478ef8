//! tract-onnx: built in, pure Rust, on every machine.
//!
//! A plan with fixed shapes is made for each batch size: fixed shapes are 1.5 to 1.8
//! times faster than one plan with an open batch. Weight-only int8 files are
//! dequantised while the plan is made and run in f32.

use crate::backend::{
    Backend, BackendError, BackendId, Element, Model, ModelSource, RunError, TensorData, TensorSpec,
};
use crate::precheck::precheck;
use tract_onnx::prelude::*;
use tract_onnx::tract_core::plan::SimpleState;
use tract_onnx::tract_hir::infer::InferenceModel;

type State = SimpleState<TypedFact, Box<dyn TypedOp>>;

/// tract on the CPU.
#[derive(Debug, Clone, Copy)]
pub struct Tract;

fn refused(error: &TractError) -> BackendError {
    // The whole chain: the outer words name the node, the inner ones the reason.
    let mut reason = format!("{error:#}");
    if reason.len() > 600 {
        let end = (0..=600)
            .rev()
            .find(|i| reason.is_char_boundary(*i))
            .unwrap_or(0);
        reason.truncate(end);
        reason.push('…');
    }
    BackendError::Refused { reason }
}

impl Backend for Tract {
    fn id(&self) -> BackendId {
        BackendId::TractCpu
    }

    fn load(&self, source: &ModelSource) -> Result<Box<dyn Model>, BackendError> {
        let proto = precheck(source)?;
        // Inner shapes that a quantiser wrote with a symbolic batch contradict a fixed one.
        let framework = tract_onnx::onnx()
            .with_ignore_value_info(true)
            .with_ignore_output_shapes(true);
        if let Some(graph) = &proto.graph {
            for node in &graph.node {
                if !framework.op_register.0.contains_key(&node.op_type) {
                    let name = if node.name.is_empty() {
                        node.output.first()
                    } else {
                        Some(&node.name)
                    };
                    return Err(BackendError::Operator {
                        op: node.op_type.clone(),
                        node: name.cloned().unwrap_or_default(),
                    });
                }
            }
        }
        let parsed = framework.parse(&proto, None).map_err(|e| refused(&e))?;
        if let Some(missing) = parsed.unresolved_inputs.first() {
            return Err(BackendError::Malformed {
                problem: format!("no node makes `{missing}`"),
            });
        }
        let mut needs = 0;
        let mut plans = Vec::with_capacity(source.batches.len());
        for &batch in &source.batches {
            let (plan, bytes) = plan(parsed.model.clone(), source, batch)?;
            needs += bytes;
            if needs > source.memory {
                return Err(BackendError::Memory {
                    needs,
                    limit: source.memory,
                });
            }
            plans.push((batch, plan));
        }
        Ok(Box::new(TractModel {
            plans,
            inputs: source.inputs.clone(),
        }))
    }
}

fn plan(
    mut model: InferenceModel,
    source: &ModelSource,
    batch: usize,
) -> Result<(State, u64), BackendError> {
    let mut build = || -> TractResult<(State, u64)> {
        model.set_input_names(source.inputs.iter().map(|i| &i.name))?;
        model.select_outputs_by_name(&source.outputs)?;
        for (i, input) in source.inputs.iter().enumerate() {
            let shape: Vec<usize> = std::iter::once(batch)
                .chain(input.row.iter().copied())
                .collect();
            let fact = match input.element {
                Element::F32 => f32::fact(&shape),
                Element::I64 => i64::fact(&shape),
            };
            model.set_input_fact(i, fact.into())?;
        }
        let typed = std::mem::take(&mut model).into_optimized()?;
        let bytes = typed
            .nodes()
            .iter()
            .flat_map(|n| &n.outputs)
            .filter_map(|o| {
                let count = o
                    .fact
                    .shape
                    .as_concrete()?
                    .iter()
                    .map(|d| *d as u64)
                    .product::<u64>();
                Some(count.saturating_mul(o.fact.datum_type.size_of() as u64))
            })
            .fold(0u64, u64::saturating_add);
        Ok((typed.into_runnable()?.spawn()?, bytes))
    };
    build().map_err(|e| refused(&e))
}

struct TractModel {
    plans: Vec<(usize, State)>,
    inputs: Vec<TensorSpec>,
}

fn tensor(spec: &TensorSpec, batch: usize, data: &TensorData<'_>) -> Option<TractResult<Tensor>> {
    let shape: Vec<usize> = std::iter::once(batch)
        .chain(spec.row.iter().copied())
        .collect();
    let count: usize = shape.iter().product();
    match (spec.element, data) {
        (Element::F32, TensorData::F32(d)) if d.len() == count => {
            Some(Tensor::from_shape(&shape, d))
        }
        (Element::I64, TensorData::I64(d)) if d.len() == count => {
            Some(Tensor::from_shape(&shape, d))
        }
        _ => None,
    }
}

impl Model for TractModel {
    fn run(
        &mut self,
        batch: usize,
        inputs: &[TensorData<'_>],
        outputs: &mut Vec<Vec<f32>>,
    ) -> Result<(), RunError> {
        let failed = |e: TractError| RunError::Backend {
            reason: format!("{e:#}"),
        };
        let Self {
            plans,
            inputs: specs,
        } = self;
        let (_, state) = plans
            .iter_mut()
            .find(|(n, _)| *n == batch)
            .ok_or(RunError::Shape)?;
        if inputs.len() != specs.len() {
            return Err(RunError::Shape);
        }
        let mut values = TVec::new();
        for (spec, data) in specs.iter().zip(inputs) {
            values.push(
                tensor(spec, batch, data)
                    .ok_or(RunError::Shape)?
                    .map_err(failed)?
                    .into_tvalue(),
            );
        }
        let results = state.run(values).map_err(failed)?;
        outputs.resize_with(results.len(), Vec::new);
        for (out, value) in outputs.iter_mut().zip(&results) {
            let view = value.to_plain_array_view::<f32>().map_err(failed)?;
            out.clear();
            out.extend(view.iter());
        }
        Ok(())
    }
}
