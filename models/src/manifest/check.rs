//! What the text of a manifest alone can tell to be wrong.

use super::{MAX_INPUTS, MAX_POINTS, Manifest, ManifestError, TensorKind, Variant, Window};

/// Every bad value, in the order of the sections.
pub(super) fn problems(manifest: &Manifest) -> Vec<ManifestError> {
    let mut list = Problems::default();
    list.names(manifest);
    list.files(manifest);
    list.window(&manifest.window);
    list.inputs(manifest);
    list.outputs(manifest);
    list.limits(manifest);
    list.0
}

#[derive(Default)]
struct Problems(Vec<ManifestError>);

impl Problems {
    fn unless(&mut self, good: bool, key: &str, problem: impl Into<String>) {
        if !good {
            self.0.push(ManifestError::Value {
                key: key.to_owned(),
                problem: problem.into(),
            });
        }
    }

    fn names(&mut self, m: &Manifest) {
        let token = |s: &str| {
            !s.is_empty()
                && s.len() <= 64
                && s.bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
        };
        self.unless(token(&m.name), "name", "1 to 64 of A-Z a-z 0-9 - . _");
        self.unless(token(&m.version), "version", "1 to 64 of A-Z a-z 0-9 - . _");
        self.unless(
            m.lighter.as_ref() != Some(&m.name),
            "lighter",
            "a model cannot be its own lighter one",
        );
        self.unless(
            !m.provenance.licence.trim().is_empty(),
            "provenance.licence",
            "name the licence",
        );
    }

    fn files(&mut self, m: &Manifest) {
        let files = std::iter::once(m.file.clone()).chain(m.variants.iter().map(Variant::file));
        for file in files {
            for name in [&file.path, &file.golden] {
                let plain =
                    !name.is_empty() && !name.contains(['/', '\\', '\0']) && !name.starts_with('.');
                self.unless(
                    plain,
                    "file.path",
                    format!("`{name}` must be a file name in the manifest's folder"),
                );
            }
            let hex = file.sha256.len() == 64 && file.sha256.bytes().all(|b| b.is_ascii_hexdigit());
            self.unless(hex, "file.sha256", "64 hex digits (`sha256sum model.onnx`)");
        }
        for variant in &m.variants {
            self.unless(
                !variant.backends.is_empty(),
                "variant.backends",
                "name at least one backend",
            );
        }
    }

    fn window(&mut self, w: &Window) {
        self.unless(
            (2..=MAX_POINTS).contains(&w.points),
            "window.points",
            format!("2 to {MAX_POINTS}"),
        );
        self.unless(
            (1..=w.points).contains(&w.hop),
            "window.hop",
            "1 to window.points",
        );
        let millis = w.period.0.subsec_nanos().is_multiple_of(1_000_000) && w.period.millis() >= 1;
        self.unless(millis, "window.period", "a multiple of 1ms, at least 1ms");
        let gap_points = w.max_gap.millis() / w.period.millis().max(1);
        self.unless(
            w.max_gap >= w.period && gap_points <= MAX_POINTS as i64,
            "window.max_gap",
            format!("at least window.period and at most {MAX_POINTS} periods"),
        );
        self.unless(w.hold <= w.max_gap, "window.hold", "at most window.max_gap");
        self.unless(
            w.max_age >= w.period,
            "window.max_age",
            "at least window.period",
        );
    }

    fn inputs(&mut self, m: &Manifest) {
        self.unless(
            (1..=MAX_INPUTS).contains(&m.inputs.len()),
            "input",
            format!("1 to {MAX_INPUTS} metrics"),
        );
        for (i, input) in m.inputs.iter().enumerate() {
            self.unless(
                !input.metric.is_empty(),
                "input.metric",
                "must not be empty",
            );
            let twice = m
                .inputs
                .iter()
                .take(i)
                .any(|other| other.metric == input.metric);
            self.unless(
                !twice,
                "input.metric",
                format!("`{}` is named twice", input.metric),
            );
            self.range("input.range", input.range);
        }
        let t = &m.tensor;
        self.unless(
            t.scale.is_finite() && t.scale > 0.0,
            "tensor.scale",
            "above 0",
        );
        self.unless(
            t.floor.is_finite() && t.floor > 0.0,
            "tensor.floor",
            "above 0",
        );
        match t.kind {
            TensorKind::Window => {
                self.unless(
                    t.features.is_empty(),
                    "tensor.features",
                    "only for kind = \"features\"",
                );
            }
            TensorKind::Features => {
                let count = (1..=256).contains(&t.features.len());
                self.unless(count, "tensor.features", "1 to 256 features");
                for feature in &t.features {
                    if let Err(problem) = feature.check(m) {
                        self.unless(false, "tensor.features", problem);
                    }
                }
            }
        }
    }

    fn outputs(&mut self, m: &Manifest) {
        self.unless(
            (1..=64).contains(&m.outputs.len()),
            "output",
            "1 to 64 outputs",
        );
        for output in &m.outputs {
            self.range("output.range", output.range);
        }
        let decides = m.outputs.iter().any(|o| o.name == m.verdict.output);
        self.unless(
            decides,
            "verdict.output",
            format!("`{}` is not an output", m.verdict.output),
        );
        let levels = &m.verdict.levels;
        self.unless(!levels.is_empty(), "verdict.levels", "at least one level");
        let finite = levels.iter().all(|l| l.at.is_finite());
        let rising = levels
            .iter()
            .zip(levels.iter().skip(1))
            .all(|(a, b)| a.at < b.at);
        self.unless(finite && rising, "verdict.levels", "finite and rising");
        self.unless(m.references.len() <= 64, "reference", "at most 64");
        for reference in &m.references {
            let known = m.outputs.iter().any(|o| o.name == reference.of)
                || m.figures().contains(&reference.of);
            self.unless(
                known,
                "reference.of",
                format!("`{}` is no output and no figure of an input", reference.of),
            );
            let rising = reference
                .bins
                .iter()
                .zip(reference.bins.iter().skip(1))
                .all(|(a, b)| a < b);
            let sum: f64 = reference.shares.iter().sum();
            let fits = reference.shares.len() == reference.bins.len() + 1
                && (sum - 1.0).abs() < 0.01
                && reference.shares.iter().all(|s| *s >= 0.0);
            let count = (1..=64).contains(&reference.bins.len());
            self.unless(
                rising && fits && count,
                "reference",
                "1 to 64 rising bins, one share more, summing to 1",
            );
        }
    }

    fn limits(&mut self, m: &Manifest) {
        self.unless(
            (1..=65_536).contains(&m.limits.queue),
            "limits.queue",
            "1 to 65536",
        );
        self.unless(
            (1..=1024).contains(&m.limits.batch),
            "limits.batch",
            "1 to 1024",
        );
        self.unless(m.limits.memory.0 > 0, "limits.memory", "above 0");
        self.unless(
            m.limits.batch_wait.millis() <= 1000,
            "limits.batch_wait",
            "at most 1s",
        );
        self.unless(
            m.objective.latency_p95.micros() > 0,
            "objective.latency_p95",
            "above 0",
        );
        let window = m.objective.window.millis();
        self.unless(
            (100..=3_600_000).contains(&window),
            "objective.window",
            "100ms to 1h",
        );
    }

    fn range(&mut self, key: &str, [low, high]: [f64; 2]) {
        self.unless(
            low.is_finite() && high.is_finite() && low < high,
            key,
            "two finite numbers, rising",
        );
    }
}
