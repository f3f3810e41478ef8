//! One share and its thread.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use rules::{DeathCause, Engine, Event, Key, Output, Place};

/// Inputs in one piece for a worker.
const PIECE: usize = 16;
/// Pieces that may wait at a worker; then the core waits for it.
const PIECES: usize = 64;
/// What moves the keys of one worker.
pub(super) enum Input {
    Event(Box<Event>),
    Birth(Key, u64),
    Death(Key, u64, DeathCause),
}

enum Job {
    /// Inputs with their numbers.
    Inputs(Vec<(u64, Input)>),
    /// Time has come to so many ms; what was put out is to be handed over.
    Join(u64),
    Ask(Box<dyn FnOnce(&mut Engine) + Send>),
}

/// What a worker has put out, and when it wants to be called next.
#[derive(Default)]
pub(super) struct Done {
    pub(super) outputs: Vec<(Place, Output)>,
    pub(super) timeout: Option<u64>,
    pub(super) flood: Option<u64>,
}

/// One share.
pub(super) enum Holder {
    Here(Box<Engine>),
    Thread(Worker),
}

pub(super) struct Worker {
    jobs: Option<SyncSender<Job>>,
    pub(super) done: Receiver<Done>,
    thread: Option<std::thread::JoinHandle<()>>,
    piece: Vec<(u64, Input)>,
}

impl Holder {
    /// Whether it could be asked.
    pub(super) fn ask_to_join(&mut self, now: u64) -> bool {
        match self {
            Self::Here(_) => true,
            Self::Thread(worker) => worker.hand_over() && worker.send(Job::Join(now)),
        }
    }
}

impl Worker {
    /// Gives an engine a thread of its own.
    pub(super) fn start(number: usize, engine: Engine) -> std::io::Result<Self> {
        let (jobs, work) = sync_channel(PIECES);
        let (tell, done) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name(format!("rules-{number}"))
            .spawn(move || work_off(engine, &work, &tell))?;
        Ok(Self {
            jobs: Some(jobs),
            done,
            thread: Some(thread),
            piece: Vec::new(),
        })
    }

    /// Takes an input; hands over a piece when it is full. Whether there is anybody to take it.
    pub(super) fn give(&mut self, number: u64, input: Input) -> bool {
        self.piece.push((number, input));
        self.piece.len() < PIECE || self.hand_over()
    }

    fn send(&mut self, job: Job) -> bool {
        self.jobs
            .as_ref()
            .is_some_and(|jobs| jobs.send(job).is_ok())
    }

    fn hand_over(&mut self) -> bool {
        if self.piece.is_empty() {
            return true;
        }
        let piece = std::mem::take(&mut self.piece);
        self.send(Job::Inputs(piece))
    }

    pub(super) fn ask<T: Send + 'static>(
        &mut self,
        question: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Option<T> {
        let (answer, got) = sync_channel(1);
        let ask = Job::Ask(Box::new(move |engine| {
            // Whoever asked waits for it.
            let _ = answer.send(question(engine));
        }));
        if self.hand_over() && self.send(ask) {
            got.recv().ok()
        } else {
            None
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("a worker of the rules panicked");
        }
    }
}

fn work_off(mut engine: Engine, jobs: &Receiver<Job>, done: &SyncSender<Done>) {
    while let Ok(job) = jobs.recv() {
        match job {
            Job::Inputs(inputs) => {
                for (number, input) in inputs {
                    run(&mut engine, number, input);
                }
            }
            Job::Join(now) => {
                if done.send(harvest(&mut engine, now)).is_err() {
                    return;
                }
            }
            Job::Ask(question) => question(&mut engine),
        }
    }
}

pub(super) fn run(engine: &mut Engine, number: u64, input: Input) {
    engine.number_inputs(number);
    match input {
        Input::Event(event) => engine.handle_event(&event),
        Input::Birth(key, at) => engine.handle_birth(&key, at),
        Input::Death(key, at, cause) => engine.handle_death(&key, at, cause),
    }
}

pub(super) fn harvest(engine: &mut Engine, now: u64) -> Done {
    engine.advance_to(now);
    Done {
        outputs: std::iter::from_fn(|| engine.poll_placed()).collect(),
        timeout: engine.poll_timeout(),
        flood: engine.flood_deadline(),
    }
}
