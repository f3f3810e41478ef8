use crate::python;
use models::backend::{Element, ModelSource, TensorData, TensorSpec};
use models::features::write_row;
use models::golden::Golden;
use models::manifest::{File, Variant};
use models::{BackendId, BackendPreference, Manifest, Registry, Source};
use std::path::{Path, PathBuf};

fn artifacts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("artifacts")
}

fn preference() -> BackendPreference {
    BackendPreference {
        ort_library: Some(python::library()),
        ..BackendPreference::default()
    }
}

/// Windows of a seeded generator: quiet, lively, with steps and spikes.
fn windows(manifest: &Manifest, count: usize) -> Vec<f32> {
    let mut state = 42u64;
    let mut random = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let mut rows = Vec::new();
    for i in 0..count {
        let mut points = Vec::new();
        for _ in &manifest.inputs {
            let (level, swing, noise) = (random() * 50.0, random() * 2.0, random() * 0.3);
            let pace = 0.05 + random();
            for t in 0..manifest.window.points {
                let spike = if i % 3 == 0 && t == 40 % manifest.window.points {
                    5.0
                } else {
                    0.0
                };
                points.push(
                    level + swing * (pace * t as f64).sin() + noise * (random() - 0.5) + spike,
                );
            }
        }
        let ages = vec![0.0; manifest.inputs.len()];
        write_row(manifest, &points, &ages, &mut rows).unwrap();
    }
    rows
}

/// Largest share of the tolerance that the difference to onnxruntime takes up.
fn worst(manifest: &Manifest, file: &Path, golden: &str, backend: BackendId, folder: &Path) -> f64 {
    const COUNT: usize = 128;
    let rows = windows(manifest, COUNT);
    let shape = manifest.row_shape();
    let output = &manifest.outputs[0].name;
    let expected = python::reference(file, &manifest.tensor.name, output, &rows, &shape);
    assert_eq!(expected.len(), COUNT);
    let source = ModelSource {
        bytes: std::fs::read(file).unwrap().into(),
        inputs: vec![TensorSpec {
            name: manifest.tensor.name.clone(),
            element: Element::F32,
            row: shape.clone(),
        }],
        outputs: vec![output.to_string()],
        batches: vec![1, 64],
        memory: manifest.limits.memory.0,
    };
    let mut model = preference().backend(backend).load(&source).unwrap();
    let golden = Golden::parse(&std::fs::read(folder.join(golden)).unwrap(), manifest).unwrap();
    let width: usize = shape.iter().product();
    let mut worst = 0f64;
    for batch in [1, 64] {
        let mut found = Vec::new();
        let mut outputs = Vec::new();
        for chunk in rows.chunks(batch * width) {
            model
                .run(batch, &[TensorData::F32(chunk)], &mut outputs)
                .unwrap();
            found.extend_from_slice(&outputs[0]);
        }
        assert_eq!(found.len(), COUNT);
        for (a, b) in expected.iter().zip(&found) {
            let (a, b) = (f64::from(*a), f64::from(*b));
            let allowed = golden.tolerance.absolute + golden.tolerance.relative * a.abs();
            worst = worst.max((a - b).abs() / allowed);
        }
    }
    worst
}

#[test]
fn every_shipped_file_agrees_with_onnxruntime_on_both_backends() {
    let mut files = 0;
    for entry in std::fs::read_dir(artifacts()).unwrap() {
        let folder = entry.unwrap().path();
        let manifest =
            Manifest::parse(&std::fs::read_to_string(folder.join("manifest.toml")).unwrap())
                .unwrap();
        let list: Vec<File> = std::iter::once(manifest.file.clone())
            .chain(manifest.variants.iter().map(Variant::file))
            .collect();
        for file in list {
            for backend in [BackendId::TractCpu, BackendId::OrtCpu] {
                let share = worst(
                    &manifest,
                    &folder.join(&file.path),
                    &file.golden,
                    backend,
                    &folder,
                );
                assert!(
                    share <= 1.0,
                    "{} on {backend}: {share} of the tolerance",
                    file.path
                );
                files += 1;
            }
        }
    }
    assert_eq!(files, 10, "three w8 and two int8 files on two backends");
}

/// Dynamic int8 is not shipped, since its answers change with the batch; that it runs
/// and agrees row by row is held here.
#[test]
fn dynamic_int8_runs_on_both_backends() {
    let folder = artifacts().join("vibration-ae");
    let manifest =
        Manifest::parse(&std::fs::read_to_string(folder.join("manifest.toml")).unwrap()).unwrap();
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/vibration-ae.dynamic.onnx");
    let rows = windows(&manifest, 64);
    let shape = manifest.row_shape();
    let width: usize = shape.iter().product();
    let source = ModelSource {
        bytes: std::fs::read(&file).unwrap().into(),
        inputs: vec![TensorSpec {
            name: "window".to_owned(),
            element: Element::F32,
            row: shape.clone(),
        }],
        outputs: vec!["score".to_owned()],
        batches: vec![1],
        memory: manifest.limits.memory.0,
    };
    let expected = python::reference(&file, "window", "score", &rows, &shape);
    for backend in [BackendId::TractCpu, BackendId::OrtCpu] {
        let mut model = preference().backend(backend).load(&source).unwrap();
        let mut outputs = Vec::new();
        for (row, expected) in rows.chunks(width).zip(&expected) {
            model.run(1, &[TensorData::F32(row)], &mut outputs).unwrap();
            let (a, b) = (f64::from(*expected), f64::from(outputs[0][0]));
            assert!(
                (a - b).abs() <= 0.02 + 0.05 * a.abs(),
                "{backend}: {b} is not {a}"
            );
        }
    }
}

/// The preference list against a library without a GPU: every entry before the one that
/// runs is named with its reason.
#[test]
fn without_a_gpu_the_preference_ends_on_the_cpu_with_reasons() {
    let registry = Registry::load(&[Source::Embedded], &preference()).unwrap();
    for model in registry.models() {
        assert_eq!(model.backend, BackendId::OrtCpu);
        let reasons: Vec<_> = model
            .passed_over
            .iter()
            .map(|p| (p.backend.name(), p.reason.to_string()))
            .collect();
        assert_eq!(reasons.len(), 3, "{reasons:?}");
        assert!(reasons[0].0 == "ort:tensorrt" && reasons[0].1.contains("without the provider"));
        assert!(reasons[1].0 == "ort:cuda" && reasons[1].1.contains("without the provider"));
        assert!(
            reasons[2].0 == "tract:cuda" && reasons[2].1.contains("not built into this binary")
        );
    }
}
