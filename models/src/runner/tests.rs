use super::*;
use crate::backend::{BackendError, BackendId, Model, ModelSource, RunError, TensorData};
use crate::golden::Golden;
use crate::key::DeviceKey;
use crate::load::{ModelFiles, open_on};
use crate::manifest::Manifest;
use crate::registry::{PassReason, read_source};
use crate::slo::Mode;
use crate::windower::Reason;
use crate::{BackendPreference, Source};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What a scripted backend does; shared with the test, changed while it runs.
#[derive(Default)]
struct Script {
    /// Each run takes this long, us.
    delay_us: AtomicU64,
    panics: AtomicBool,
    nan: AtomicBool,
    runs: AtomicU64,
    largest_batch: AtomicU64,
    open: AtomicU64,
}

/// Answers a fixed number, read from the "file": its text.
struct Scripted {
    id: BackendId,
    script: Arc<Script>,
}

struct ScriptedModel {
    value: f32,
    script: Arc<Script>,
}

impl Drop for ScriptedModel {
    fn drop(&mut self) {
        self.script.open.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Backend for Scripted {
    fn id(&self) -> BackendId {
        self.id
    }

    fn load(&self, source: &ModelSource) -> Result<Box<dyn Model>, BackendError> {
        let value = std::str::from_utf8(&source.bytes).unwrap().parse().unwrap();
        self.script.open.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(ScriptedModel {
            value,
            script: self.script.clone(),
        }))
    }
}

impl Model for ScriptedModel {
    fn run(
        &mut self,
        batch: usize,
        _: &[TensorData<'_>],
        outputs: &mut Vec<Vec<f32>>,
    ) -> Result<(), RunError> {
        let script = &self.script;
        script.runs.fetch_add(1, Ordering::SeqCst);
        script
            .largest_batch
            .fetch_max(batch as u64, Ordering::SeqCst);
        // A slow model burns its time, like a real one.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_micros(script.delay_us.load(Ordering::SeqCst)) {
            std::thread::yield_now();
        }
        assert!(!script.panics.load(Ordering::SeqCst), "scripted panic");
        let value = if script.nan.load(Ordering::SeqCst) {
            f32::NAN
        } else {
            self.value
        };
        *outputs = vec![vec![value; batch]];
        Ok(())
    }
}

fn files(name: &str, version: &str, value: f32, change: impl Fn(&mut Manifest)) -> Arc<ModelFiles> {
    let mut m =
        Manifest::parse(include_str!("../../artifacts/vibration-ae/manifest.toml")).unwrap();
    m.name = name.into();
    m.version = version.into();
    m.lighter = None;
    m.variants.clear();
    m.window.points = 2;
    m.window.hop = 1;
    m.limits.batch_wait = crate::quantity::Span::parse("0ms").unwrap();
    m.objective.latency_p95 = crate::quantity::Span::parse("1h").unwrap();
    m.objective.window = crate::quantity::Span::parse("400ms").unwrap();
    change(&mut m);
    let label = m
        .verdict
        .levels
        .iter()
        .rev()
        .find(|l| f64::from(value) >= l.at);
    let label = label.map_or(&m.verdict.normal, |l| &l.label);
    let golden = format!(
        r#"{{"source":"test","tolerance":{{"absolute":1e-6,"relative":0}},"rows":[{{"label":"{label}",
        "window":{{"Vibration/X":[0,0],"Vibration/Y":[0,0]}},"outputs":{{"score":[{value}]}}}}]}}"#
    );
    let golden = Arc::new(Golden::parse(golden.as_bytes(), &m).unwrap());
    let bytes: Arc<[u8]> = value.to_string().into_bytes().into();
    Arc::new(ModelFiles {
        models: [(m.file.path.clone(), bytes)].into(),
        goldens: [(m.file.golden.clone(), golden)].into(),
        manifest: Arc::new(m),
        origin: "test".to_owned(),
    })
}

/// The same model with all the time it may need: unoptimised, on a busy machine.
fn unhurried(files: &ModelFiles) -> Arc<ModelFiles> {
    let mut manifest = (*files.manifest).clone();
    manifest.objective.latency_p95 = crate::quantity::Span::parse("1h").unwrap();
    Arc::new(ModelFiles {
        models: files.models.clone(),
        goldens: files.goldens.clone(),
        manifest: Arc::new(manifest),
        origin: files.origin.clone(),
    })
}

struct Bench {
    runner: Runner,
    events: Arc<Mutex<Vec<Event>>>,
    backends: Vec<Arc<dyn Backend>>,
}

impl Bench {
    fn new(models: &[Arc<ModelFiles>], backends: Vec<Arc<dyn Backend>>) -> Self {
        let models = models
            .iter()
            .map(|f| {
                (
                    f.manifest.name.clone(),
                    open_on(f, &backends, Vec::new()).unwrap(),
                )
            })
            .collect();
        let events = Arc::new(Mutex::new(Vec::new()));
        let sink = events.clone();
        let registry = Registry {
            models,
            backends: backends.clone(),
            built_in: Default::default(),
        };
        let runner = Runner::spawn(registry, RunnerConfig::default(), move |e| {
            sink.lock().unwrap().push(e);
        })
        .unwrap();
        Self {
            runner,
            events,
            backends,
        }
    }

    fn submit(&self, model: &str, device: u64) -> Result<(), Skipped> {
        self.runner.try_submit(request(model, device))
    }

    fn take(&self) -> Vec<Event> {
        std::mem::take(&mut *self.events.lock().unwrap())
    }

    fn inferences(&self) -> usize {
        let events = self.events.lock().unwrap();
        events
            .iter()
            .filter(|e| matches!(e, Event::Inference(_)))
            .count()
    }

    fn status(&self, model: &str) -> ModelStatus {
        self.runner
            .status()
            .into_iter()
            .find(|s| &*s.model == model)
            .unwrap()
    }
}

fn request(model: &str, device: u64) -> Request {
    Request {
        model: model.into(),
        key: DeviceKey::new("g", "n", &device.to_string()),
        points: vec![0.0; 4].into(),
        ages: vec![0.0; 2].into(),
        span_ms: (0, 100),
        record: device,
    }
}

/// On a machine that is busy with everything else.
const PATIENCE: Duration = Duration::from_secs(120);

/// Polls until `f` gives something; fails after [`PATIENCE`].
fn until<T>(what: &str, mut f: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = f() {
            return value;
        }
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::yield_now();
    }
}

/// An objective that a [`SLOW`] run misses, and a run without delay holds on a busy machine too.
fn hurry(m: &mut Manifest) {
    m.objective.latency_p95 = crate::quantity::Span::parse("200ms").unwrap();
}

/// A scripted delay, us.
const SLOW: u64 = 400_000;

/// The time between two requests of the load that a test drives.
fn pace(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::thread::yield_now();
    }
}

fn scripted(id: BackendId) -> (Arc<Script>, Arc<dyn Backend>) {
    let script = Arc::new(Script::default());
    (script.clone(), Arc::new(Scripted { id, script }))
}

#[test]
fn the_built_in_models_answer_with_their_labels() {
    let builtin = BackendPreference::builtin();
    let backends = vec![builtin.backend(BackendId::TractCpu)];
    let all: Vec<_> = read_source(&Source::Embedded)
        .into_iter()
        .map(|(_, files)| unhurried(&files.unwrap()))
        .collect();
    let models = all.iter().map(|files| {
        let model = open_on(files, &backends, Vec::new()).unwrap();
        (files.manifest.name.clone(), model)
    });
    let registry = Registry {
        models: models.collect(),
        backends: backends.clone(),
        built_in: std::collections::BTreeSet::new(),
    };
    let (tx, rx) = mpsc::channel();
    let tx = Mutex::new(tx);
    let runner = Runner::spawn(registry, RunnerConfig::default(), move |e| {
        tx.lock().unwrap().send(e).unwrap();
    })
    .unwrap();
    for files in all {
        let golden = &files.goldens[&files.manifest.file.golden];
        for row in &golden.rows {
            let request = Request {
                model: files.manifest.name.clone(),
                points: golden.points(row, &files.manifest).into(),
                ages: vec![0.0; files.manifest.inputs.len()].into(),
                ..request("", 7)
            };
            runner.try_submit(request).unwrap();
            let Event::Inference(inference) = rx.recv_timeout(PATIENCE).unwrap() else {
                panic!("no inference")
            };
            assert_eq!(inference.model, files.manifest.name);
            assert_eq!(inference.backend, BackendId::TractCpu);
            assert!(!inference.fallback && !inference.shadow && inference.record == 7);
            assert_eq!(inference.inputs.len(), 5 * files.manifest.inputs.len());
            if let Some(label) = &row.label {
                assert_eq!(**label, *inference.verdict);
            }
            let expected = row.outputs[&*inference.outputs[0].0][0];
            assert!(golden.tolerance.allows(expected, inference.score));
        }
    }
    assert!(runner.stop(PATIENCE));
}

#[test]
fn many_devices_share_a_run() {
    let (script, backend) = scripted(BackendId::TractCpu);
    let patient = |m: &mut Manifest| {
        // A full batch does not wait for it.
        m.limits.batch_wait = crate::quantity::Span::parse("60s").unwrap();
        m.limits.batch = 16;
    };
    let bench = Bench::new(&[files("m", "1", 0.5, patient)], vec![backend]);
    let before = script.runs.load(Ordering::SeqCst);
    for device in 0..16 {
        bench.submit("m", device).unwrap();
    }
    until("16 answers", || {
        (bench.status("m").runs == 16).then_some(())
    });
    assert_eq!(script.runs.load(Ordering::SeqCst) - before, 1);
    assert_eq!(script.largest_batch.load(Ordering::SeqCst), 16);
}

#[test]
fn a_model_that_hangs_blocks_neither_submitting_nor_the_others() {
    let (slow, slow_backend) = scripted(BackendId::OrtCpu);
    let (_, fast_backend) = scripted(BackendId::TractCpu);
    let refuse = |m: &mut Manifest| {
        m.limits.queue = 4;
        m.limits.when_full = crate::manifest::WhenFull::RefuseNew;
        m.limits.batch = 1;
    };
    let slow_files = files("slow", "1", 0.5, refuse);
    let fast_files = files("fast", "1", 0.5, |_| ());
    let models = [
        (
            "slow".into(),
            open_on(&slow_files, std::slice::from_ref(&slow_backend), Vec::new()).unwrap(),
        ),
        (
            "fast".into(),
            open_on(&fast_files, &[fast_backend], Vec::new()).unwrap(),
        ),
    ];
    let registry = Registry {
        models: models.into(),
        backends: vec![slow_backend],
        built_in: Default::default(),
    };
    let answers = Arc::new(AtomicU64::new(0));
    let counter = answers.clone();
    let runner = Runner::spawn(registry, RunnerConfig::default(), move |e| {
        if matches!(e, Event::Inference(i) if &*i.model == "fast") {
            counter.fetch_add(1, Ordering::SeqCst);
        }
    })
    .unwrap();
    let before = slow.runs.load(Ordering::SeqCst);
    slow.delay_us.store(600_000_000, Ordering::SeqCst);
    runner.try_submit(request("slow", 0)).unwrap();
    until("the slow run has begun", || {
        (slow.runs.load(Ordering::SeqCst) > before).then_some(())
    });
    let mut refused = 0;
    for i in 0..1000 {
        refused += u64::from(runner.try_submit(request("slow", i)) == Err(Skipped::QueueFull));
        until("the fast model takes it", || {
            runner.try_submit(request("fast", i)).ok()
        });
    }
    until("the fast model answers", || {
        (answers.load(Ordering::SeqCst) > 100).then_some(())
    });
    assert_eq!(refused, 996, "four wait, the rest is counted");
    let status = runner.status();
    let slow_status = status.iter().find(|s| &*s.model == "slow").unwrap();
    assert_eq!(
        (slow_status.skipped["queue-full"], slow_status.queued),
        (996, 4)
    );
    assert!(
        !runner.stop(Duration::from_millis(50)),
        "the hung thread is left behind"
    );
    slow.delay_us.store(0, Ordering::SeqCst);
}

#[test]
fn a_slow_model_falls_back_to_its_lighter_one_and_comes_back() {
    let (slow, slow_backend) = scripted(BackendId::OrtCpu);
    let (_, light_backend) = scripted(BackendId::TractCpu);
    let heavy = files("heavy", "1", 0.5, |m| {
        m.lighter = Some("light".into());
        hurry(m);
    });
    let light = files("light", "1", 0.5, |_| ());
    let models = [
        (
            "heavy".into(),
            open_on(&heavy, std::slice::from_ref(&slow_backend), Vec::new()).unwrap(),
        ),
        (
            "light".into(),
            open_on(&light, &[light_backend], Vec::new()).unwrap(),
        ),
    ];
    let registry = Registry {
        models: models.into(),
        backends: vec![slow_backend],
        built_in: Default::default(),
    };
    let events = Arc::new(Mutex::new(Vec::new()));
    let sink = events.clone();
    let runner = Runner::spawn(registry, RunnerConfig::default(), move |e| {
        sink.lock().unwrap().push(e);
    })
    .unwrap();
    let changed = |to: Mode| {
        events
            .lock()
            .unwrap()
            .iter()
            .any(|e| matches!(e, Event::Objective { to: t, .. } if *t == to))
    };
    let mut device = 0;
    let mut drive = |what: &str, done: &dyn Fn() -> bool| {
        until(what, || {
            device += 1;
            // Refusals are part of what is driven here.
            let _ = runner.try_submit(request("heavy", device % 10));
            pace(Duration::from_micros(500));
            done().then_some(())
        });
    };
    drive("the heavy model answers", &|| {
        events
            .lock()
            .unwrap()
            .iter()
            .any(|e| matches!(e, Event::Inference(i) if &*i.model == "heavy"))
    });
    slow.delay_us.store(SLOW, Ordering::SeqCst);
    drive("the lighter one takes over", &|| changed(Mode::Lighter));
    drive("the lighter one answers, marked", &|| {
        events.lock().unwrap().iter().any(|e| {
            matches!(e, Event::Inference(i) if i.fallback && &*i.model == "light" && &*i.asked == "heavy")
        })
    });
    drive("the status says so", &|| {
        let all = runner.status();
        let status = all.iter().find(|s| &*s.model == "heavy").unwrap();
        status.fallback_active && status.degraded >= 1 && status.mode == Mode::Lighter
    });
    slow.delay_us.store(0, Ordering::SeqCst);
    drive("the heavy one comes back", &|| changed(Mode::Own));
    assert!(runner.stop(PATIENCE));
}

#[test]
fn without_a_lighter_model_devices_are_thinned_and_counted() {
    let (script, backend) = scripted(BackendId::TractCpu);
    let bench = Bench::new(
        &[files("m", "1", 0.5, |m| {
            m.limits.batch = 1;
            hurry(m);
        })],
        vec![backend],
    );
    script.delay_us.store(SLOW, Ordering::SeqCst);
    let mut device = 0;
    until("windows are left out", || {
        device += 1;
        let _ = bench.submit("m", device % 10);
        pace(Duration::from_millis(1));
        let status = bench.status("m");
        let thinned = status.skipped.contains_key("thinned");
        (thinned && matches!(status.mode, Mode::Thin(_))).then_some(())
    });
    script.delay_us.store(0, Ordering::SeqCst);
}

#[test]
fn a_lighter_model_that_is_slow_too_is_thinned() {
    let (script, backend) = scripted(BackendId::TractCpu);
    let slow = |m: &mut Manifest| {
        m.limits.batch = 1;
        hurry(m);
    };
    let heavy = files("heavy", "1", 0.5, |m| {
        m.lighter = Some("light".into());
        slow(m);
    });
    let bench = Bench::new(&[heavy, files("light", "1", 0.5, slow)], vec![backend]);
    script.delay_us.store(SLOW, Ordering::SeqCst);
    let mut device = 0;
    until("the lighter model leaves windows out", || {
        device += 1;
        let _ = bench.submit("heavy", device % 10);
        pace(Duration::from_millis(1));
        let thinned = bench.status("light").skipped.contains_key("thinned");
        (thinned && bench.status("heavy").fallback_active).then_some(())
    });
    script.delay_us.store(0, Ordering::SeqCst);
}

#[test]
fn a_panicking_backend_gives_way_to_the_next_one() {
    let (bad, bad_backend) = scripted(BackendId::OrtCuda);
    let (_, good_backend) = scripted(BackendId::TractCpu);
    let bench = Bench::new(
        &[files("m", "1", 0.5, |_| ())],
        vec![bad_backend, good_backend],
    );
    assert_eq!(bench.status("m").backend, Some("ort:cuda"));
    bad.panics.store(true, Ordering::SeqCst);
    bench.submit("m", 1).unwrap();
    let changed = until("the backend changes", || {
        bench
            .take()
            .into_iter()
            .find(|e| matches!(e, Event::BackendChanged { .. }))
    });
    let Event::BackendChanged {
        from, to, reason, ..
    } = changed
    else {
        unreachable!()
    };
    assert_eq!((from, to), (BackendId::OrtCuda, Some(BackendId::TractCpu)));
    assert!(reason.contains("scripted panic"));
    let status = until("the failure is counted", || {
        let status = bench.status("m");
        (status.no_verdict.get("backend-failed") == Some(&1)).then_some(status)
    });
    assert!(matches!(
        status.passed_over[0].reason,
        PassReason::Failed { .. }
    ));
    bench.submit("m", 2).unwrap();
    until("it answers again", || {
        bench
            .take()
            .into_iter()
            .find(|e| matches!(e, Event::Inference(i) if i.backend == BackendId::TractCpu))
    });
}

#[test]
fn when_no_backend_is_left_requests_are_refused_and_counted() {
    let (script, backend) = scripted(BackendId::TractCpu);
    let bench = Bench::new(&[files("m", "1", 0.5, |_| ())], vec![backend]);
    script.panics.store(true, Ordering::SeqCst);
    bench.submit("m", 1).unwrap();
    until("it is given up", || {
        bench.status("m").backend.is_none().then_some(())
    });
    assert_eq!(bench.submit("m", 2), Err(Skipped::Unavailable));
    assert_eq!(bench.status("m").skipped["unavailable"], 1);
}

#[test]
fn an_output_that_cannot_be_is_no_verdict() {
    let (script, backend) = scripted(BackendId::TractCpu);
    let bench = Bench::new(&[files("m", "1", 0.5, |_| ())], vec![backend]);
    script.nan.store(true, Ordering::SeqCst);
    bench.submit("m", 1).unwrap();
    let event = until("an event", || bench.take().pop());
    assert!(matches!(event, Event::NoVerdict(n) if n.reason == Reason::Output && n.record == 1));
    until("it is counted", || {
        let counted = bench.status("m").no_verdict;
        (counted.get("output-out-of-range") == Some(&1)).then_some(())
    });
}

#[test]
fn what_does_not_fit_is_refused_at_the_door() {
    let (_, backend) = scripted(BackendId::TractCpu);
    let bench = Bench::new(&[files("m", "1", 0.5, |_| ())], vec![backend]);
    let wrong = Request {
        points: vec![0.0; 3].into(),
        ..request("m", 1)
    };
    assert_eq!(bench.runner.try_submit(wrong), Err(Skipped::WrongShape));
    assert_eq!(bench.submit("other", 1), Err(Skipped::UnknownModel));
    assert_eq!(bench.runner.unknown(), 1);
    bench.runner.stop(PATIENCE);
    assert_eq!(bench.submit("m", 1), Err(Skipped::Stopping));
}

/// Each version answers another number: an answer whose number and version disagree is
/// a wrong-version answer. Every version that was swapped out is closed in the end.
#[test]
fn a_thousand_swaps_under_load_never_mix_versions_and_leak_nothing() {
    let (script, backend) = scripted(BackendId::TractCpu);
    let bench = Bench::new(&[files("m", "v0", 0.0, |_| ())], vec![backend]);
    let stop = AtomicBool::new(false);
    let answered = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut device = 0;
            while !stop.load(Ordering::SeqCst) {
                device += 1;
                let _ = bench.submit("m", device % 100);
                std::thread::yield_now();
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                for event in bench.take() {
                    match event {
                        Event::Inference(i) => {
                            let value: f32 = i.version[1..].parse().unwrap();
                            assert_eq!(i.score as f32, value / 10_000.0, "version {}", i.version);
                            answered.fetch_add(1, Ordering::SeqCst);
                        }
                        Event::NoVerdict(n) => panic!("{n:?}"),
                        _ => {}
                    }
                }
                std::thread::yield_now();
            }
        });
        for i in 1..=1000u32 {
            let version = format!("v{}", i * 10);
            let files = files("m", &version, i as f32 * 10.0 / 10_000.0, |m| {
                m.verdict.levels[0].at = 0.5;
                m.verdict.levels[1].at = 0.6;
            });
            bench
                .runner
                .swap(open_on(&files, &bench.backends, Vec::new()).unwrap())
                .unwrap();
            until("the swap is taken", || {
                (*bench.status("m").version == *version).then_some(())
            });
        }
        until("answers under load", || {
            (answered.load(Ordering::SeqCst) > 1000).then_some(())
        });
        stop.store(true, Ordering::SeqCst);
    });
    // The active one and the one before it.
    until("the others are closed", || {
        (script.open.load(Ordering::SeqCst) == 2).then_some(())
    });
    assert!(bench.runner.stop(PATIENCE));
    drop(bench);
    until("all are closed", || {
        (script.open.load(Ordering::SeqCst) == 0).then_some(())
    });
}

#[test]
fn a_shadow_scores_beside_and_is_promoted_and_rolled_back() {
    let (_, backend) = scripted(BackendId::TractCpu);
    let bench = Bench::new(&[files("m", "1", 0.0, |_| ())], vec![backend]);
    let open = |version: &str, value: f32| {
        open_on(
            &files("m", version, value, |_| ()),
            &bench.backends,
            Vec::new(),
        )
        .unwrap()
    };
    bench.runner.shadow(open("2", 0.01), 0).unwrap();
    for device in 0..50 {
        bench.submit("m", device).unwrap();
    }
    let candidate = until("both have scored", || {
        bench.status("m").candidate.filter(|c| c.compared == 50)
    });
    assert_eq!((candidate.agreed, candidate.canary_percent), (50, 0));
    assert!((candidate.mean_difference - 0.01).abs() < 1e-6);
    let events = until("100 answers", || {
        let count = bench.events.lock().unwrap().len();
        (count == 100).then(|| bench.take())
    });
    for event in events {
        let Event::Inference(i) = event else {
            panic!("{event:?}")
        };
        assert_eq!(i.shadow, &*i.version == "2", "a shadow's answer is marked");
    }
    let version = |v: &str| {
        until("the version changes", || {
            (&*bench.status("m").version == v).then_some(())
        })
    };
    bench.runner.promote("m").unwrap();
    version("2");
    assert!(bench.status("m").candidate.is_none());
    assert!(matches!(
        bench.runner.promote("m"),
        Err(RolloutError::NoCandidate { .. })
    ));
    bench.runner.rollback("m").unwrap();
    version("1");
    bench.runner.rollback("m").unwrap();
    version("2");
    assert!(matches!(
        bench.runner.rollback("other"),
        Err(RolloutError::UnknownModel { .. })
    ));
}

#[test]
fn a_canary_answers_for_its_share_of_the_devices() {
    let (_, backend) = scripted(BackendId::TractCpu);
    let roomy = |m: &mut Manifest| m.limits.queue = 1000;
    let bench = Bench::new(&[files("m", "1", 0.0, roomy)], vec![backend]);
    let candidate = open_on(&files("m", "2", 0.0, roomy), &bench.backends, Vec::new()).unwrap();
    bench.runner.shadow(candidate, 30).unwrap();
    for round in 0..2 {
        for device in 0..300 {
            bench.submit("m", device).unwrap();
        }
        until("answers", || {
            (bench.inferences() == 300 * (round + 1)).then_some(())
        });
    }
    let mut by_device: BTreeMap<u64, Vec<Arc<str>>> = BTreeMap::new();
    let mut drifted = 0;
    for event in bench.take() {
        let i = match event {
            Event::Inference(i) => i,
            // The scripted score is always the same one: far from the reference.
            Event::Drift { moved: true, .. } => {
                drifted += 1;
                continue;
            }
            other => panic!("{other:?}"),
        };
        assert!(!i.shadow);
        by_device.entry(i.record).or_default().push(i.version);
    }
    assert!(
        by_device.values().all(|v| v[0] == v[1]),
        "a device stays with one version"
    );
    assert!(drifted > 0 && bench.status("m").drift["score"] > 0.25);
    let share = by_device.values().filter(|v| &*v[0] == "2").count();
    assert!((50..130).contains(&share), "{share} of 300");
}

#[test]
fn a_version_that_reads_other_inputs_is_not_swapped_in() {
    let (_, backend) = scripted(BackendId::TractCpu);
    let bench = Bench::new(&[files("m", "1", 0.0, |_| ())], vec![backend]);
    let other = files("m", "2", 0.0, |m| {
        m.window.period = crate::quantity::Span::parse("7ms").unwrap()
    });
    let model = open_on(&other, &bench.backends, Vec::new()).unwrap();
    assert!(matches!(
        bench.runner.swap(model),
        Err(RolloutError::InputsDiffer { .. })
    ));
}

#[test]
fn an_unreachable_preference_ends_on_tract_with_reasons() {
    let preference = BackendPreference {
        ort_library: Some("/nonexistent/libonnxruntime.so".into()),
        ..BackendPreference::default()
    };
    let registry = Registry::load(&[Source::Embedded], &preference).unwrap();
    for model in registry.models() {
        assert_eq!(model.backend, BackendId::TractCpu);
        let passed: Vec<_> = model.passed_over.iter().map(|p| p.backend.name()).collect();
        assert_eq!(
            passed,
            ["ort:tensorrt", "ort:cuda", "tract:cuda", "ort:cpu"]
        );
    }
}
