//! Hostile files go through the way that a daemon takes: guarded load on tract.

use super::*;
use crate::backend::{Backend, BackendId};
use crate::load::{ModelFiles, PassReason, PassedOver, open_on};
use crate::manifest::Manifest;
use crate::registry::LoadError;
use crate::tract::Tract;
use pb::tensor_proto::DataLocation;
use pb::tensor_shape_proto::dimension::Value as Dim;
use proptest::prelude::*;
use std::sync::Arc;

const VALID: &[u8] = include_bytes!("../../artifacts/vibration-ae/model.onnx");

fn valid() -> pb::ModelProto {
    pb::ModelProto::decode(VALID).unwrap()
}

/// What the guarded load says of these bytes under the manifest of `vibration-ae`.
fn load(bytes: Vec<u8>) -> Option<PassReason> {
    load_with(bytes, |_| ())
}

fn load_with(bytes: Vec<u8>, change: impl Fn(&mut Manifest)) -> Option<PassReason> {
    let mut manifest =
        Manifest::parse(include_str!("../../artifacts/vibration-ae/manifest.toml")).unwrap();
    let golden = include_bytes!("../../artifacts/vibration-ae/golden.json");
    change(&mut manifest);
    let golden = crate::golden::Golden::parse(golden, &manifest).unwrap();
    let files = ModelFiles {
        models: [(manifest.file.path.clone(), bytes.into())].into(),
        goldens: [(manifest.file.golden.clone(), Arc::new(golden))].into(),
        manifest: Arc::new(manifest),
        origin: "test".to_owned(),
    };
    let tract: Arc<dyn Backend> = Arc::new(Tract);
    match open_on(&Arc::new(files), &[tract], Vec::new()) {
        Ok(_) => None,
        Err(LoadError::NoBackend {
            mut passed_over, ..
        }) => {
            let PassedOver { backend, reason } = passed_over.remove(0);
            assert_eq!(backend, BackendId::TractCpu);
            Some(reason)
        }
        Err(other) => panic!("{other}"),
    }
}

fn changed(change: impl Fn(&mut pb::GraphProto)) -> Vec<u8> {
    let mut model = valid();
    change(model.graph.as_mut().unwrap());
    model.encode_to_vec()
}

fn backend_error(bytes: Vec<u8>) -> BackendError {
    match load(bytes) {
        Some(PassReason::Backend(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_shipped_file_loads() {
    assert_eq!(load(VALID.to_vec()), None);
}

#[test]
fn truncated_files_are_refused_at_every_length() {
    for length in (0..VALID.len()).step_by(97).chain([VALID.len() - 1]) {
        assert!(load(VALID[..length].to_vec()).is_some(), "{length} bytes");
    }
}

#[test]
fn empty_zero_and_text_files_are_malformed() {
    for bytes in [
        Vec::new(),
        vec![0; 100_000],
        b"not a model".repeat(1000),
        vec![0xff; 4096],
    ] {
        let error = backend_error(bytes);
        assert!(matches!(error, BackendError::Malformed { .. }), "{error}");
    }
}

#[test]
fn an_unknown_operator_is_named_with_its_node() {
    let error = backend_error(changed(|g| {
        let node = g.node.iter_mut().find(|n| n.op_type == "Conv").unwrap();
        node.op_type = "ConvOfTheFuture".to_owned();
    }));
    let BackendError::Operator { op, node } = error else {
        panic!("{error}")
    };
    assert_eq!((&*op, &*node), ("ConvOfTheFuture", "layer0"));
}

#[test]
fn a_wrong_rank_shape_or_type_names_the_input() {
    let check = |change: fn(&mut pb::type_proto::Tensor)| {
        let bytes = changed(|g| {
            let Some(pb::type_proto::Value::TensorType(tensor)) =
                &mut g.input[0].r#type.as_mut().unwrap().value
            else {
                unreachable!()
            };
            change(tensor);
        });
        let error = backend_error(bytes);
        assert!(
            matches!(&error, BackendError::Input { input, .. } if input == "window"),
            "{error}"
        );
    };
    check(|t| {
        t.shape.as_mut().unwrap().dim.pop();
    });
    check(|t| t.shape.as_mut().unwrap().dim[2].value = Some(Dim::DimValue(65)));
    check(|t| t.shape.as_mut().unwrap().dim[0].value = Some(Dim::DimValue(3)));
    check(|t| t.elem_type = 7);
}

#[test]
fn a_renamed_input_or_output_is_named() {
    let error = backend_error(changed(|g| g.output[0].name = "other".to_owned()));
    assert!(
        matches!(&error, BackendError::Output { output, found } if output == "score" && found == "other")
    );
    let error = backend_error(changed(|g| g.input[0].name = "other".to_owned()));
    assert!(matches!(&error, BackendError::Input { input, .. } if input == "window"));
}

#[test]
fn data_that_is_not_as_long_as_its_shape_is_malformed() {
    let check = |change: fn(&mut pb::TensorProto)| {
        let error = backend_error(changed(|g| change(&mut g.initializer[0])));
        assert!(matches!(error, BackendError::Malformed { .. }), "{error}");
    };
    check(|t| {
        t.raw_data = t.raw_data[..t.raw_data.len() - 1].to_vec();
    });
    check(|t| t.dims[0] += 1);
    check(|t| t.dims = vec![i64::MAX, i64::MAX]);
    check(|t| t.dims[0] = -1);
    check(|t| t.data_type = 99);
    check(|t| t.raw_data = Vec::new());
}

#[test]
fn weights_in_another_file_are_refused() {
    let error = backend_error(changed(|g| {
        let tensor = &mut g.initializer[0];
        tensor.data_location = Some(DataLocation::External as i32);
        tensor.raw_data = Vec::new();
        tensor.external_data = vec![pb::StringStringEntryProto {
            key: "location".to_owned(),
            value: "../../../../dev/zero".to_owned(),
        }];
    }));
    assert!(matches!(error, BackendError::Malformed { .. }), "{error}");
}

/// A few bytes that would make a tensor of terabytes.
#[test]
fn a_size_given_by_value_is_held_against_the_memory_limit() {
    let error = backend_error(changed(|g| {
        let mut sizes = g
            .initializer
            .iter()
            .find(|t| t.data_type == 7)
            .unwrap()
            .clone();
        sizes.name = "huge".to_owned();
        sizes.dims = vec![3];
        sizes.raw_data = Vec::new();
        sizes.int64_data = vec![1 << 20, 1 << 20, 4];
        g.initializer.push(sizes);
        g.node.push(pb::NodeProto {
            input: vec!["huge".to_owned()],
            output: vec!["zeros".to_owned()],
            name: "bomb".to_owned(),
            op_type: "ConstantOfShape".to_owned(),
            ..Default::default()
        });
    }));
    assert!(matches!(error, BackendError::Memory { .. }), "{error}");
}

#[test]
fn a_model_that_needs_more_than_its_manifest_allows_is_refused() {
    let reason = load_with(VALID.to_vec(), |m| {
        m.limits.memory = crate::quantity::Bytes(100_000)
    });
    let Some(PassReason::Backend(BackendError::Memory { needs, limit })) = reason else {
        panic!("{reason:?}")
    };
    assert!(limit == 100_000 && needs > limit);
}

#[test]
fn a_graph_with_a_hole_or_a_loop_is_refused() {
    assert!(load(changed(|g| g.node[2].input[0] = "nowhere".to_owned())).is_some());
    assert!(
        load(changed(|g| {
            let last = g.node.last().unwrap().output[0].clone();
            g.node[2].input[0] = last;
        }))
        .is_some()
    );
    assert!(load(changed(|g| g.node.clear())).is_some());
}

#[test]
fn a_model_that_answers_otherwise_is_not_activated() {
    let reason = load(changed(|g| {
        let bias = g
            .initializer
            .iter_mut()
            .find(|t| t.name == "layer7.b" || t.name == "layer6.b")
            .unwrap();
        let zeros = vec![0u8; bias.raw_data.len()];
        bias.raw_data = zeros.into_iter().map(|_| 0x3f).collect();
    }));
    assert!(matches!(reason, Some(PassReason::Golden(_))), "{reason:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever is flipped in the file, loading comes back.
    #[test]
    fn flipped_bytes_never_take_the_process_down(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        // Structure lies outside the weights: half of the flips go there.
        early in any::<bool>(),
    ) {
        let mut bytes = VALID.to_vec();
        for (at, value) in flips {
            let range = if early { 1500 } else { bytes.len() };
            let at = at.index(range);
            bytes[at] = value;
        }
        let _ = load_with(bytes, |m| m.limits.batch = 1);
    }

    #[test]
    fn mutated_graphs_never_take_the_process_down(
        node in any::<prop::sample::Index>(),
        attribute in any::<prop::sample::Index>(),
        ints in prop::collection::vec(any::<i64>(), 0..4),
        op in prop::sample::select(vec![
            "Conv", "MatMul", "Reshape", "Tile", "Expand", "Pad", "Gather", "Concat", "Slice", "Loop", "If",
            "Transpose", "Squeeze", "DequantizeLinear", "ReduceMean", "TopK", "ConstantOfShape", "Resize", "LSTM",
        ]),
        rename in any::<bool>(),
    ) {
        let bytes = changed(|g| {
            let i = node.index(g.node.len());
            let node = &mut g.node[i];
            if rename {
                node.op_type = op.to_owned();
            }
            if !node.attribute.is_empty() {
                let i = attribute.index(node.attribute.len());
                node.attribute[i].ints = ints.clone();
                node.attribute[i].i = ints.first().copied().unwrap_or(-1);
            }
        });
        let _ = load_with(bytes, |m| m.limits.batch = 1);
    }
}
