use super::*;

const TEXT: &str = include_str!("../../artifacts/vibration-ae/manifest.toml");

fn problems(from: &str, to: &str) -> Vec<String> {
    assert!(TEXT.contains(from), "{from}");
    match Manifest::parse(&TEXT.replacen(from, to, 1)) {
        Ok(_) => Vec::new(),
        Err(list) => list.iter().map(ManifestError::to_string).collect(),
    }
}

#[test]
fn shipped_manifests_say_everything() {
    for text in [
        TEXT,
        include_str!("../../artifacts/vibration-ae-mlp/manifest.toml"),
        include_str!("../../artifacts/univariate-anomaly/manifest.toml"),
    ] {
        let m = Manifest::parse(text).unwrap();
        assert!(m.demonstration && m.provenance.licence == "Apache-2.0");
        assert!(m.objective.latency_p95.micros() > 0 && m.limits.memory.0 > 0);
        let written = toml::to_string(&m).unwrap();
        assert_eq!(
            Manifest::parse(&written).unwrap(),
            m,
            "what is written is read again"
        );
    }
}

#[test]
fn a_syntax_error_has_its_place() {
    let error = Manifest::parse("name = \"a\"\nversion = 1 2\n")
        .unwrap_err()
        .remove(0);
    let ManifestError::Syntax { line, column, .. } = error else {
        panic!("{error}")
    };
    assert_eq!((line, column), (2, 11));
}

#[test]
fn a_bad_value_is_named_with_its_key() {
    let check = |from: &str, to: &str, expect: &str| {
        let list = problems(from, to);
        assert!(list.iter().any(|p| p.contains(expect)), "{to}: {list:?}");
    };
    check("hop = 16", "hop = 65", "window.hop");
    check("points = 64", "points = 1000000", "window.points");
    check("period = \"100ms\"", "period = \"1us\"", "window.period");
    check("period = \"100ms\"", "period = \"100\"", "one of the units");
    check("max_gap = \"5s\"", "max_gap = \"24h\"", "window.max_gap");
    check("hold = \"1500ms\"", "hold = \"10s\"", "window.hold");
    check("\"Vibration/Y\"", "\"Vibration/X\"", "named twice");
    check("range = [-1e4, 1e4]", "range = [1e4, -1e4]", "input.range");
    check("range = [0.0, 1e8]", "range = [0.0, inf]", "output.range");
    check("output = \"score\"", "output = \"other\"", "verdict.output");
    check(
        "lighter = \"vibration-ae-mlp\"",
        "lighter = \"vibration-ae\"",
        "its own lighter",
    );
    check("name = \"vibration-ae\"", "name = \"a b\"", "name");
    check("sha256 = \"", "sha256 = \"x", "sha256");
    check(
        "path = \"model.onnx\"",
        "path = \"/etc/passwd\"",
        "file name",
    );
    check("scale = 1.0", "scale = 0.0", "tensor.scale");
    check("queue = 256", "queue = 0", "limits.queue");
    check("batch = 64", "batch = 100000", "limits.batch");
    check("memory = \"32MiB\"", "memory = \"0B\"", "limits.memory");
    check(
        "latency_p95 = \"50ms\"",
        "latency_p95 = \"0ms\"",
        "objective.latency_p95",
    );
    check("window = \"10s\"", "window = \"1ms\"", "objective.window");
    check("shares = [0.1,", "shares = [0.9,", "reference");
    check(
        "of = \"score\"",
        "of = \"Vibration/Z:mean\"",
        "reference.of",
    );
    check(
        "when_full = \"drop-oldest\"",
        "when_full = \"wait\"",
        "unknown variant",
    );
    check("demonstration = true", "demo = true", "unknown field");
}

#[test]
fn every_bad_value_is_told_at_once() {
    let text = TEXT
        .replacen("hop = 16", "hop = 0", 1)
        .replacen("queue = 256", "queue = 0", 1);
    assert_eq!(Manifest::parse(&text).unwrap_err().len(), 2);
}

#[test]
fn variants_are_chosen_by_backend() {
    let m = Manifest::parse(TEXT).unwrap();
    assert_eq!(m.file_for("ort:tensorrt").arithmetic, Arithmetic::QdqInt8);
    assert_eq!(m.file_for("tract:cpu").arithmetic, Arithmetic::W8);
    assert_eq!(m.batches(), [1, 8, 64]);
}
