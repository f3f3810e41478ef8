use crate::python;
use models::runner::{Event, Request, Runner, RunnerConfig, Skipped};
use models::{BackendId, BackendPreference, DeviceKey, Registry, Source};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

/// Whatever the numbers, an answer is in its declared range or there is none.
fn check(preference: &BackendPreference, backend: BackendId) {
    let registry = Registry::load(&[Source::Embedded], preference).unwrap();
    let manifests = registry.manifests();
    let (tx, rx) = mpsc::channel();
    let tx = Mutex::new(tx);
    let runner = Runner::spawn(registry, RunnerConfig::default(), move |event| {
        tx.lock().unwrap().send(event).unwrap();
    })
    .unwrap();
    let values = [
        0.0,
        -0.0,
        1e4,
        -1e4,
        1e30,
        -1e30,
        1e300,
        -1e300,
        f64::MIN_POSITIVE,
        5e-324,
        1e-40,
        f64::MAX,
        f64::MIN,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
    ];
    let (mut answers, mut refusals) = (0, 0);
    for manifest in &manifests {
        let count = manifest.inputs.len() * manifest.window.points;
        for (i, a) in values.iter().enumerate() {
            for b in [*a, values[(i + 1) % values.len()], 1.0] {
                // Constant, one spike, and alternating.
                for shape in 0..3 {
                    let point = |k: usize| match shape {
                        0 => *a,
                        1 if k == count / 2 => *a,
                        1 => b,
                        _ if k.is_multiple_of(2) => *a,
                        _ => b,
                    };
                    let request = Request {
                        model: manifest.name.clone(),
                        key: DeviceKey::new("g", "n", "d"),
                        points: (0..count).map(point).collect(),
                        ages: vec![0.0; manifest.inputs.len()].into(),
                        span_ms: (0, 1),
                        record: 1,
                    };
                    match runner.try_submit(request) {
                        Ok(()) => {}
                        // A busy machine may miss an objective; that is not asked here.
                        Err(Skipped::Thinned) => continue,
                        Err(other) => panic!("{other:?}"),
                    }
                    let event = loop {
                        match rx.recv_timeout(Duration::from_secs(60)).unwrap() {
                            Event::Objective { .. } | Event::Drift { .. } => {}
                            event => break event,
                        }
                    };
                    match event {
                        Event::Inference(inference) => {
                            assert_eq!(inference.backend, backend);
                            for ((_, value), output) in
                                inference.outputs.iter().zip(&manifest.outputs)
                            {
                                assert!((output.range[0]..=output.range[1]).contains(value));
                            }
                            answers += 1;
                        }
                        Event::NoVerdict(_) => refusals += 1,
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
    }
    assert!(
        answers > 50 && refusals > 50,
        "{answers} answers, {refusals} without a verdict"
    );
}

#[test]
fn extreme_inputs_give_a_number_in_range_or_no_verdict_on_tract() {
    check(&BackendPreference::builtin(), BackendId::TractCpu);
}

#[test]
fn extreme_inputs_give_a_number_in_range_or_no_verdict_on_onnxruntime() {
    let preference = BackendPreference {
        order: vec![BackendId::OrtCpu],
        ort_library: Some(python::library()),
        ..BackendPreference::default()
    };
    check(&preference, BackendId::OrtCpu);
}
