//! The embedder's thread and queue.

use super::cache::Cache;
use super::manifest::TextManifest;
use super::model::{TextFiles, TextModel};
use super::neighbours::{Neighbour, Neighbours};
use super::{MAX_TEXT, mask};
use crate::backend::{Backend, BackendPreference, panic_message};
use crate::key::DeviceKey;
use crate::registry::{LoadError, PassedOver};
use crate::runner::Skipped;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// How neighbours are chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TextConfig {
    /// Neighbours that an alarm gets at most.
    pub neighbours: usize,
    /// Least cosine of a neighbour.
    pub least_similarity: f32,
}

impl Default for TextConfig {
    fn default() -> Self {
        Self {
            neighbours: 5,
            least_similarity: 0.6,
        }
    }
}

/// What a text is.
#[derive(Debug, Clone, PartialEq)]
pub enum TextSource {
    /// The value of a String metric that the manifest names.
    Metric {
        /// Its name.
        name: Arc<str>,
        /// Its place in the record.
        index: u32,
        /// Its timestamp, ms since the epoch.
        time_ms: i64,
    },
    /// An alarm's message: it gets neighbours and becomes one.
    Alarm {
        /// The alarm's id.
        id: Arc<str>,
        /// The rule that raised it.
        rule: Arc<str>,
        /// When it was raised, ms since the epoch.
        time_ms: i64,
    },
}

/// A text to be embedded.
#[derive(Debug, Clone, PartialEq)]
pub struct TextRequest {
    /// The record that carries it.
    pub record: u64,
    /// Whose text.
    pub key: DeviceKey,
    /// The text.
    pub text: Arc<str>,
    /// Metric or alarm.
    pub source: TextSource,
}

/// A text's vector.
#[derive(Debug, Clone, PartialEq)]
pub struct Embedding {
    /// What was asked.
    pub request: TextRequest,
    /// The masked text that was embedded.
    pub template: Arc<str>,
    /// Model.
    pub model: Arc<str>,
    /// Its version.
    pub version: Arc<str>,
    /// The vector space.
    pub vector_version: Arc<str>,
    /// Where it ran.
    pub backend: &'static str,
    /// Length 1. [`super::to_bytes`] makes it a body.
    pub vector: Arc<[f32]>,
    /// It was known already.
    pub cached: bool,
    /// From request to answer, us.
    pub latency_us: u64,
    /// Recent alarms that mean nearly the same, nearest first.
    pub neighbours: Vec<Neighbour>,
}

/// A text that got no vector; counted.
#[derive(Debug, Clone, PartialEq)]
pub struct TextFailure {
    /// What was asked.
    pub request: TextRequest,
    /// Why.
    pub reason: String,
}

/// What an embedder tells its owner, in the order of the requests.
#[derive(Debug, Clone, PartialEq)]
pub enum TextEvent {
    /// A vector.
    Embedding(Embedding),
    /// None.
    Failed(TextFailure),
}

/// Why a phrase has no vector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PhraseError {
    /// The model did not load or failed.
    #[error("{reason}")]
    Failed {
        /// Why.
        reason: String,
    },
    /// It took too long; the phrase may be asked for again.
    #[error("no vector within {millis} ms")]
    Late {
        /// How long was waited.
        millis: u128,
    },
    /// The embedder is stopping, or its queue is full.
    #[error(transparent)]
    Skipped(#[from] Skipped),
}

/// State and counters.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TextStatus {
    /// Model.
    pub model: Arc<str>,
    /// Its version.
    pub version: Arc<str>,
    /// The vector space.
    pub vector_version: Arc<str>,
    /// Where it runs; none until first use, or when it could not be loaded.
    pub backend: Option<&'static str>,
    /// Backends before it in the preference, and why not.
    pub passed_over: Vec<PassedOver>,
    /// Why it could not be loaded.
    pub error: Option<String>,
    /// Texts embedded, cached or not.
    pub embedded: u64,
    /// Of these, those whose template was known.
    pub cached: u64,
    /// Texts that got no vector.
    pub failed: u64,
    /// Texts not taken, by reason.
    pub skipped: BTreeMap<&'static str, u64>,
    /// Texts that wait.
    pub queued: usize,
    /// Templates kept.
    pub templates: usize,
    /// Alarms among which neighbours are found.
    pub neighbours: usize,
}

type Reply = mpsc::SyncSender<Result<Arc<[f32]>, String>>;

enum Job {
    Text(TextRequest, Instant),
    Phrase(Arc<str>, Reply),
    /// Alarms of before a restart.
    Recall(Vec<super::Alarm>),
}

struct State {
    queue: VecDeque<Job>,
    status: TextStatus,
    stopping: bool,
}

struct Inner {
    state: Mutex<State>,
    wake: Condvar,
    manifest: Arc<TextManifest>,
}

/// A handle; cloning gives another. The thread ends when [`Self::stop`] is called or the
/// last handle is dropped.
#[derive(Clone)]
pub struct Embedder {
    inner: Arc<Inner>,
    _last: Arc<StopOnDrop>,
}

impl std::fmt::Debug for Embedder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Embedder")
            .field("model", &self.inner.manifest.name)
            .finish_non_exhaustive()
    }
}

struct StopOnDrop(Arc<Inner>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stop(&self) {
        self.lock().stopping = true;
        self.wake.notify_all();
    }

    fn push(&self, job: Job) -> Result<(), Skipped> {
        let mut state = self.lock();
        let refused = if state.stopping {
            Some((Skipped::Stopping, "stopping"))
        } else if state.queue.len() >= self.manifest.limits.queue {
            // The newest: dropping an older one would break the order of its source.
            Some((Skipped::QueueFull, "queue-full"))
        } else {
            None
        };
        if let Some((reason, name)) = refused {
            *state.status.skipped.entry(name).or_insert(0) += 1;
            return Err(reason);
        }
        state.queue.push_back(job);
        drop(state);
        self.wake.notify_all();
        Ok(())
    }
}

impl Embedder {
    /// Reads the manifest and starts the thread; the model itself loads on first use.
    pub fn spawn(
        folder: &Path,
        preference: &BackendPreference,
        config: TextConfig,
        sink: impl Fn(TextEvent) + Send + 'static,
    ) -> Result<Self, Vec<LoadError>> {
        let manifest = Arc::new(TextFiles::manifest(folder)?);
        let status = TextStatus {
            model: manifest.name.clone(),
            version: manifest.version.clone(),
            vector_version: manifest.vector_version.clone(),
            backend: None,
            passed_over: Vec::new(),
            error: None,
            embedded: 0,
            cached: 0,
            failed: 0,
            skipped: BTreeMap::new(),
            queued: 0,
            templates: 0,
            neighbours: 0,
        };
        let inner = Arc::new(Inner {
            state: Mutex::new(State {
                queue: VecDeque::new(),
                status,
                stopping: false,
            }),
            wake: Condvar::new(),
            manifest: manifest.clone(),
        });
        let worker = Worker {
            inner: inner.clone(),
            folder: folder.into(),
            backends: preference.backends(),
            model: None,
            cache: Cache::new(manifest.limits.cache),
            index: Neighbours::new(manifest.limits.neighbours),
            config,
            sink: Box::new(sink),
        };
        std::thread::Builder::new()
            .name("model-text".into())
            .spawn(move || {
                crate::step_back();
                worker.run();
            })
            .map_err(|source| {
                vec![LoadError::Read {
                    path: folder.into(),
                    source,
                }]
            })?;
        Ok(Self {
            _last: Arc::new(StopOnDrop(inner.clone())),
            inner,
        })
    }

    /// What it was made from.
    pub fn manifest(&self) -> &TextManifest {
        &self.inner.manifest
    }

    /// Hands a text over; never waits. A refusal is counted.
    pub fn try_submit(&self, request: TextRequest) -> Result<(), Skipped> {
        self.inner.push(Job::Text(request, Instant::now()))
    }

    /// Makes alarms of before a restart neighbours again, the oldest first; before any text is handed over.
    ///
    /// # Errors
    /// The embedder is stopping.
    pub fn recall(&self, alarms: Vec<super::Alarm>) -> Result<(), Skipped> {
        self.inner.push(Job::Recall(alarms))
    }

    /// The vector of a rule's phrase. Waits up to `limit`, since the model may have to
    /// load: for loading rules, not for evaluating them.
    pub fn phrase(&self, text: &str, limit: Duration) -> Result<Arc<[f32]>, PhraseError> {
        let (tx, rx) = mpsc::sync_channel(1);
        self.inner.push(Job::Phrase(text.into(), tx))?;
        match rx.recv_timeout(limit) {
            Ok(Ok(vector)) => Ok(vector),
            Ok(Err(reason)) => Err(PhraseError::Failed { reason }),
            Err(mpsc::RecvTimeoutError::Timeout) => Err(PhraseError::Late {
                millis: limit.as_millis(),
            }),
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(Skipped::Stopping.into()),
        }
    }

    /// State and counters.
    pub fn status(&self) -> TextStatus {
        let state = self.inner.lock();
        TextStatus {
            queued: state.queue.len(),
            ..state.status.clone()
        }
    }

    /// Ends the thread after its current text; what waits is not answered.
    pub fn stop(&self) {
        self.inner.stop();
    }
}

struct Worker {
    inner: Arc<Inner>,
    folder: PathBuf,
    backends: Vec<Arc<dyn Backend>>,
    model: Option<TextModel>,
    cache: Cache,
    index: Neighbours,
    config: TextConfig,
    sink: Box<dyn Fn(TextEvent) + Send>,
}

impl Worker {
    fn run(mut self) {
        loop {
            let inner = self.inner.clone();
            let mut state = inner.lock();
            let job = loop {
                if state.stopping {
                    return;
                }
                if let Some(job) = state.queue.pop_front() {
                    break job;
                }
                state = inner
                    .wake
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            };
            drop(state);
            match job {
                Job::Text(request, queued) => self.text(request, queued),
                Job::Recall(alarms) => {
                    alarms.into_iter().for_each(|alarm| self.index.push(alarm));
                    self.inner.lock().status.neighbours = self.index.len();
                }
                Job::Phrase(text, reply) => {
                    let result = self.vector(&mask(&text)).map(|(vector, _)| vector);
                    // Who asked may have given up waiting.
                    let _ = reply.send(result);
                }
            }
        }
    }

    fn text(&mut self, request: TextRequest, queued: Instant) {
        let template: Arc<str> = mask(&request.text).into();
        let (vector, cached) = match self.vector(&template) {
            Ok(found) => found,
            Err(reason) => {
                self.inner.lock().status.failed += 1;
                (self.sink)(TextEvent::Failed(TextFailure { request, reason }));
                return;
            }
        };
        let mut neighbours = Vec::new();
        if let TextSource::Alarm { id, .. } = &request.source {
            neighbours = self.index.nearest(
                &vector,
                self.config.neighbours,
                self.config.least_similarity,
            );
            // A bounded copy: a text may be as long as its sender likes.
            let text: String = request.text.chars().take(MAX_TEXT).collect();
            self.index.push(super::Alarm {
                id: id.clone(),
                record: request.record,
                key: request.key.clone(),
                text: text.into(),
                vector: vector.clone(),
            });
        }
        let manifest = &self.inner.manifest;
        let backend = self.model.as_ref().map_or("", |m| m.backend.name());
        let mut state = self.inner.lock();
        state.status.embedded += 1;
        state.status.cached += u64::from(cached);
        state.status.templates = self.cache.len();
        state.status.neighbours = self.index.len();
        drop(state);
        (self.sink)(TextEvent::Embedding(Embedding {
            template,
            model: manifest.name.clone(),
            version: manifest.version.clone(),
            vector_version: manifest.vector_version.clone(),
            backend,
            vector,
            cached,
            latency_us: u64::try_from(queued.elapsed().as_micros()).unwrap_or(u64::MAX),
            neighbours,
            request,
        }));
    }

    fn vector(&mut self, template: &str) -> Result<(Arc<[f32]>, bool), String> {
        if let Some(vector) = self.cache.get(template) {
            return Ok((vector, true));
        }
        if self.model.is_none() {
            self.load()?;
        }
        let Some(model) = &mut self.model else {
            return Err("the model is not loaded".to_owned());
        };
        let vector: Arc<[f32]> = match catch_unwind(AssertUnwindSafe(|| model.embed(template))) {
            Ok(Ok(vector)) => vector.into(),
            Ok(Err(error)) => return Err(error.to_string()),
            Err(payload) => {
                // Not asked again: the next text loads it afresh, without this backend.
                let failed = model.backend;
                self.backends.retain(|b| b.id() != failed);
                self.model = None;
                return Err(format!("{failed} panicked: {}", panic_message(&*payload)));
            }
        };
        self.cache.put(template, vector.clone());
        Ok((vector, false))
    }

    /// Once; a model that cannot be loaded stays so until the embedder is made anew.
    fn load(&mut self) -> Result<(), String> {
        if let Some(error) = &self.inner.lock().status.error {
            return Err(error.clone());
        }
        let opened = TextModel::open(&self.folder, &self.backends);
        let mut state = self.inner.lock();
        match opened {
            Ok(model) => {
                state.status.backend = Some(model.backend.name());
                state.status.passed_over.clone_from(&model.passed_over);
                drop(state);
                self.model = Some(model);
                Ok(())
            }
            Err(errors) => {
                let text = errors
                    .iter()
                    .map(LoadError::to_string)
                    .collect::<Vec<_>>()
                    .join("; ");
                state.status.backend = None;
                state.status.error = Some(text.clone());
                Err(text)
            }
        }
    }
}
