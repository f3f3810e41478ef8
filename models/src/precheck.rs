//! What is looked at in a model file before any backend sees it.
//!
//! Backends trust the sizes that a file claims; a few bytes can claim terabytes, and
//! a failed allocation is no panic that could be caught. So every claim is held
//! against the bytes that are there and the memory that the manifest allows.

use crate::backend::{BackendError, Element, ModelSource, TensorSpec};
use prost::Message;
use tract_onnx::pb;

const MAX_NODES: usize = 20_000;
const MAX_DEPTH: usize = 8;
/// Operators whose output size is a value and not a shape.
const SIZED_BY_VALUE: [&str; 9] = [
    "ConstantOfShape",
    "Expand",
    "Tile",
    "Range",
    "Pad",
    "Resize",
    "Upsample",
    "OneHot",
    "EyeLike",
];

fn malformed(problem: impl Into<String>) -> BackendError {
    BackendError::Malformed {
        problem: problem.into(),
    }
}

/// Parses and checks a file; the graph when nothing is wrong.
pub(crate) fn precheck(source: &ModelSource) -> Result<pb::ModelProto, BackendError> {
    if source.bytes.is_empty() {
        return Err(malformed("the file is empty"));
    }
    let model =
        pb::ModelProto::decode(&*source.bytes).map_err(|e| malformed(format!("not ONNX: {e}")))?;
    let graph = model
        .graph
        .as_ref()
        .ok_or_else(|| malformed("it holds no graph"))?;
    check_graph(graph, source.memory, 0)?;
    for spec in &source.inputs {
        check_input(graph, spec, &source.batches)?;
    }
    let declared = |name: &str| source.inputs.iter().any(|s| s.name == name);
    let constant = |name: &str| graph.initializer.iter().any(|t| t.name == name);
    if let Some(extra) = graph
        .input
        .iter()
        .find(|i| !declared(&i.name) && !constant(&i.name))
    {
        return Err(BackendError::Input {
            input: extra.name.clone(),
            expected: "no such input".to_owned(),
            found: describe(extra),
        });
    }
    for output in &source.outputs {
        if !graph.output.iter().any(|o| o.name == *output) {
            let found = graph
                .output
                .iter()
                .map(|o| o.name.as_str())
                .collect::<Vec<_>>()
                .join(", ");
            return Err(BackendError::Output {
                output: output.clone(),
                found,
            });
        }
    }
    Ok(model)
}

fn check_graph(graph: &pb::GraphProto, memory: u64, depth: usize) -> Result<(), BackendError> {
    if depth > MAX_DEPTH {
        return Err(malformed(format!(
            "graphs nested more than {MAX_DEPTH} deep"
        )));
    }
    if graph.node.is_empty() && depth == 0 {
        return Err(malformed("the graph has no nodes"));
    }
    if graph.node.len() > MAX_NODES {
        return Err(malformed(format!("more than {MAX_NODES} nodes")));
    }
    if !graph.sparse_initializer.is_empty() {
        return Err(malformed("sparse initializers are not taken"));
    }
    let mut total = 0u64;
    for tensor in &graph.initializer {
        total = total.saturating_add(check_tensor(tensor)?);
    }
    for node in &graph.node {
        for attribute in &node.attribute {
            for tensor in attribute.t.iter().chain(&attribute.tensors) {
                total = total.saturating_add(check_tensor(tensor)?);
            }
            for inner in attribute.g.iter().chain(&attribute.graphs) {
                check_graph(inner, memory, depth + 1)?;
            }
        }
        check_sizes(graph, node, memory)?;
    }
    if total > memory {
        return Err(BackendError::Memory {
            needs: total,
            limit: memory,
        });
    }
    Ok(())
}

/// Bytes of the tensor's data, once the shape and the data agree.
fn check_tensor(tensor: &pb::TensorProto) -> Result<u64, BackendError> {
    let name = &tensor.name;
    if tensor.data_location == Some(pb::tensor_proto::DataLocation::External as i32)
        || !tensor.external_data.is_empty()
    {
        return Err(malformed(format!("tensor `{name}` lies in another file")));
    }
    let count = tensor
        .dims
        .iter()
        .try_fold(1u64, |n, d| {
            u64::try_from(*d).ok().and_then(|d| n.checked_mul(d))
        })
        .ok_or_else(|| {
            malformed(format!(
                "tensor `{name}` claims the shape {:?}",
                tensor.dims
            ))
        })?;
    let width = element_bytes(tensor.data_type).ok_or_else(|| {
        malformed(format!(
            "tensor `{name}` has the element type {}",
            tensor.data_type
        ))
    })?;
    let listed = tensor.float_data.len()
        + tensor.int32_data.len()
        + tensor.int64_data.len()
        + tensor.double_data.len()
        + tensor.uint64_data.len()
        + tensor.string_data.len();
    let there = if tensor.raw_data.is_empty() {
        listed as u64
    } else if (tensor.raw_data.len() as u64).is_multiple_of(width) {
        tensor.raw_data.len() as u64 / width
    } else {
        u64::MAX
    };
    if there != count {
        return Err(malformed(format!(
            "tensor `{name}` claims {count} elements and holds {}",
            if there == u64::MAX {
                "a broken number of bytes".to_owned()
            } else {
                there.to_string()
            }
        )));
    }
    Ok(count.saturating_mul(width))
}

/// ONNX `TensorProto.DataType` to bytes an element; strings count as a pointer.
fn element_bytes(data_type: i32) -> Option<u64> {
    match data_type {
        1 | 6 | 12 => Some(4),
        2 | 3 | 9 => Some(1),
        4 | 5 | 10 | 16 => Some(2),
        7 | 8 | 11 | 13 => Some(8),
        _ => None,
    }
}

/// Refuses a constant that would make a node's output larger than the memory limit.
fn check_sizes(
    graph: &pb::GraphProto,
    node: &pb::NodeProto,
    memory: u64,
) -> Result<(), BackendError> {
    if !SIZED_BY_VALUE.contains(&node.op_type.as_str()) {
        return Ok(());
    }
    let constants = graph
        .node
        .iter()
        .filter(|n| n.op_type == "Constant" && n.output.iter().any(|o| node.input.contains(o)))
        .flat_map(|n| n.attribute.iter().filter_map(|a| a.t.as_ref()));
    let initializers = graph
        .initializer
        .iter()
        .filter(|t| node.input.contains(&t.name));
    for tensor in initializers.chain(constants) {
        let Some(values) = integers(tensor) else {
            continue;
        };
        let product = values
            .iter()
            .fold(1u64, |n, v| n.saturating_mul(v.unsigned_abs().max(1)));
        if product > memory {
            return Err(BackendError::Memory {
                needs: product,
                limit: memory,
            });
        }
    }
    Ok(())
}

fn integers(tensor: &pb::TensorProto) -> Option<Vec<i64>> {
    const INT64: i32 = 7;
    if tensor.data_type != INT64 {
        return None;
    }
    if tensor.raw_data.is_empty() {
        return Some(tensor.int64_data.clone());
    }
    let (chunks, _) = tensor.raw_data.as_chunks::<8>();
    Some(chunks.iter().map(|c| i64::from_le_bytes(*c)).collect())
}

fn tensor_type(info: &pb::ValueInfoProto) -> Option<&pb::type_proto::Tensor> {
    match info.r#type.as_ref()?.value.as_ref()? {
        pb::type_proto::Value::TensorType(tensor) => Some(tensor),
    }
}

fn describe(info: &pb::ValueInfoProto) -> String {
    let Some(tensor) = tensor_type(info) else {
        return "no tensor".to_owned();
    };
    let element = match tensor.elem_type {
        1 => "f32".to_owned(),
        7 => "i64".to_owned(),
        other => format!("element type {other}"),
    };
    let Some(shape) = &tensor.shape else {
        return format!("{element} of any shape");
    };
    let dims = shape.dim.iter().map(|d| match &d.value {
        Some(pb::tensor_shape_proto::dimension::Value::DimValue(n)) => n.to_string(),
        Some(pb::tensor_shape_proto::dimension::Value::DimParam(p)) => p.clone(),
        None => "?".to_owned(),
    });
    format!("{element} [{}]", dims.collect::<Vec<_>>().join(", "))
}

fn check_input(
    graph: &pb::GraphProto,
    spec: &TensorSpec,
    batches: &[usize],
) -> Result<(), BackendError> {
    let row = spec
        .row
        .iter()
        .map(usize::to_string)
        .collect::<Vec<_>>()
        .join(", ");
    let wrong = |found: String| BackendError::Input {
        input: spec.name.clone(),
        expected: format!("{} [batch, {row}]", spec.element),
        found,
    };
    let Some(info) = graph.input.iter().find(|i| i.name == spec.name) else {
        let names = graph
            .input
            .iter()
            .map(|i| i.name.as_str())
            .collect::<Vec<_>>()
            .join(", ");
        return Err(wrong(format!("only {names}")));
    };
    let tensor = tensor_type(info).ok_or_else(|| wrong(describe(info)))?;
    let element = match spec.element {
        Element::F32 => 1,
        Element::I64 => 7,
    };
    if tensor.elem_type != element {
        return Err(wrong(describe(info)));
    }
    let Some(shape) = &tensor.shape else {
        return Ok(());
    };
    let fits = shape.dim.len() == spec.row.len() + 1
        && shape
            .dim
            .iter()
            .enumerate()
            .all(|(axis, dim)| match &dim.value {
                Some(pb::tensor_shape_proto::dimension::Value::DimValue(n)) if axis == 0 => {
                    batches.iter().all(|b| *b as i64 == *n)
                }
                Some(pb::tensor_shape_proto::dimension::Value::DimValue(n)) => spec
                    .row
                    .get(axis - 1)
                    .is_some_and(|want| *want as i64 == *n),
                _ => true,
            });
    if fits {
        Ok(())
    } else {
        Err(wrong(describe(info)))
    }
}

#[cfg(test)]
mod tests;
