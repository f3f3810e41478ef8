use crate::python;
use models::text::{
    Embedder, Embedding, PhraseError, TextConfig, TextEvent, TextModel, TextRequest, TextSource,
    mask, similarity,
};
use models::{BackendId, BackendPreference, DeviceKey};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

/// Generous: unoptimised kernels are slow.
const LIMIT: Duration = Duration::from_secs(300);

fn on_onnxruntime() -> BackendPreference {
    BackendPreference {
        ort_library: Some(python::library()),
        ..BackendPreference::default()
    }
}

fn start(preference: &BackendPreference) -> (Embedder, mpsc::Receiver<TextEvent>) {
    let (tx, rx) = mpsc::channel();
    let embedder = Embedder::spawn(
        &python::text_model(),
        preference,
        TextConfig::default(),
        move |e| {
            tx.send(e).unwrap();
        },
    );
    (embedder.unwrap(), rx)
}

fn alarm(record: u64, text: &str) -> TextRequest {
    TextRequest {
        record,
        key: DeviceKey::new("g", "n", "d"),
        text: text.into(),
        source: TextSource::Alarm {
            id: format!("a{record}").into(),
            rule: "r".into(),
            time_ms: 0,
        },
    }
}

fn next(rx: &mpsc::Receiver<TextEvent>) -> Embedding {
    match rx.recv_timeout(LIMIT).unwrap() {
        TextEvent::Embedding(embedding) => embedding,
        TextEvent::Failed(failure) => panic!("{failure:?}"),
    }
}

/// Loading compares every golden row's tokens and vector, and which alarm is nearest to
/// each paraphrase; the vectors come from onnxruntime with its optimiser off.
#[test]
fn both_backends_hold_the_golden_rows() {
    let preference = on_onnxruntime();
    for id in [BackendId::TractCpu, BackendId::OrtCpu] {
        let mut model = TextModel::open(&python::text_model(), &[preference.backend(id)]).unwrap();
        assert_eq!(model.backend, id);
        assert_eq!(model.golden_rows(), 9);
        let one = model.embed("bearing noise").unwrap();
        let other = model.embed("unusual sound from the bearing").unwrap();
        let far = model.embed("user logged in").unwrap();
        assert!(similarity(&one, &other) > similarity(&one, &far) + 0.2);
    }
}

#[test]
fn alarms_are_embedded_in_order_and_find_their_neighbours() {
    let (embedder, rx) = start(&on_onnxruntime());
    assert_eq!(
        embedder.status().backend,
        None,
        "nothing is loaded before the first use"
    );
    let texts = [
        "pump 12 bearing temperature high: 95.2 C",
        "disk usage on gateway 3 at 93 percent",
        "bearing of pump 7 is overheating",
        "pump 99 bearing temperature high: 101.0 C",
    ];
    for (record, text) in (1..).zip(texts) {
        embedder.try_submit(alarm(record, text)).unwrap();
    }
    let answers: Vec<_> = texts.iter().map(|_| next(&rx)).collect();
    let records: Vec<_> = answers.iter().map(|e| e.request.record).collect();
    assert_eq!(records, [1, 2, 3, 4]);
    assert!(answers[1].neighbours.is_empty());
    assert_eq!(answers[2].neighbours[0].record, 1);
    let last = &answers[3];
    assert!(
        last.cached && last.vector == answers[0].vector,
        "only the figures differ"
    );
    assert_eq!(
        (last.neighbours[0].record, &*last.template),
        (1, "pump # bearing temperature high: # C")
    );
    assert_eq!(last.vector.len(), 384);
    let phrase = embedder.phrase("overheated bearing", LIMIT).unwrap();
    assert!(similarity(&phrase, &answers[2].vector) > 0.6);
    assert!(similarity(&phrase, &answers[1].vector) < 0.3);
    let status = embedder.status();
    assert_eq!(
        (status.embedded, status.cached, status.backend),
        (4, 1, Some("ort:cpu"))
    );
    embedder.stop();
    assert!(matches!(
        embedder.phrase("late", LIMIT),
        Err(PhraseError::Skipped(_))
    ));
}

#[test]
fn a_folder_without_its_model_fails_each_text_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["embedding.toml", "vocab.txt", "golden.json"] {
        std::fs::copy(python::text_model().join(name), folder.path().join(name)).unwrap();
    }
    std::fs::write(folder.path().join("model.onnx"), "no model").unwrap();
    let (tx, rx) = mpsc::channel();
    let embedder = Embedder::spawn(
        folder.path(),
        &BackendPreference::builtin(),
        TextConfig::default(),
        move |e| tx.send(e).unwrap(),
    )
    .unwrap();
    for record in 0..2 {
        embedder.try_submit(alarm(record, "text")).unwrap();
        let TextEvent::Failed(failure) = rx.recv_timeout(LIMIT).unwrap() else {
            panic!("no failure")
        };
        assert!(failure.reason.contains("SHA-256"), "{}", failure.reason);
    }
    assert_eq!(embedder.status().failed, 2);
    let report = models::verify::verify(folder.path(), &BackendPreference::builtin());
    assert!(
        !report.ok && report.models[0].errors[0].contains("SHA-256"),
        "{report:?}"
    );
    let nowhere = Path::new("/nonexistent");
    let preference = BackendPreference::builtin();
    assert!(Embedder::spawn(nowhere, &preference, TextConfig::default(), |_| ()).is_err());
}

#[test]
fn the_script_masks_as_the_gateway_does() {
    let golden = std::fs::read_to_string(python::text_model().join("golden.json")).unwrap();
    let golden: serde_json::Value = serde_json::from_str(&golden).unwrap();
    for row in golden["rows"].as_array().unwrap() {
        let text = row["text"].as_str().unwrap();
        assert_eq!(mask(text), text);
    }
}
