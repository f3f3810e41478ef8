//! The router behind its lock, and the ways into and out of it.

use std::collections::HashMap;
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc, watch};

use super::auth::Access;
use super::clients::Refusal;
use super::codec::reason;
use super::link::{Cause, Link};
use super::persist::Outbox;
use super::router::{Exactly, Router, Settings, Tokens};
use super::{AckOutcome, Delivery, PubackToken};

/// The engine can't go on; the process has to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A task panicked while it held the router.
    #[error("the broker's core broke")]
    Core,
    /// The pipeline no longer takes what the broker hands it.
    #[error("the pipeline stopped taking messages")]
    Pipeline,
    /// Retained messages and sessions can't be written to disk.
    #[error("the broker's state can't be written")]
    Storage,
    /// A listener ended by itself.
    #[error("a listener ended")]
    Listener,
}

struct Guarded {
    router: Router,
    /// What the timer task waits for.
    armed: Option<Instant>,
}

/// See the module. Shared by all tasks of the engine.
pub(crate) struct Shell {
    guarded: Mutex<Guarded>,
    sink: mpsc::Sender<Delivery>,
    /// The pipeline is behind: connections do not read.
    paused: AtomicBool,
    /// Connections that wait for the pipeline.
    waiting: Mutex<HashMap<u64, Arc<Link>>>,
    pump: Notify,
    timer: Notify,
    next_link: AtomicU64,
    failure: watch::Sender<Option<Failure>>,
    pub(crate) access: RwLock<Arc<Access>>,
    /// Connections by address, half-open ones included.
    addresses: Mutex<HashMap<IpAddr, usize>>,
    open: AtomicUsize,
    /// Bytes of packets that are not complete yet.
    partial: AtomicUsize,
    /// Where changes go that outlive the process.
    outbox: Option<Arc<Outbox>>,
}

/// How often the messages of connected persistent sessions are saved.
const SAVE: std::time::Duration = std::time::Duration::from_secs(1);

impl Shell {
    pub(crate) fn new(
        router: Router,
        sink: mpsc::Sender<Delivery>,
        access: Access,
        outbox: Option<Arc<Outbox>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            guarded: Mutex::new(Guarded {
                router,
                armed: None,
            }),
            sink,
            paused: AtomicBool::new(false),
            waiting: Mutex::default(),
            pump: Notify::new(),
            timer: Notify::new(),
            next_link: AtomicU64::new(1),
            failure: watch::Sender::new(None),
            access: RwLock::new(Arc::new(access)),
            addresses: Mutex::default(),
            open: AtomicUsize::new(0),
            partial: AtomicUsize::new(0),
            outbox,
        })
    }

    /// Bytes of retained messages and sessions that are not on the disk yet.
    pub(crate) fn unsaved(&self) -> u64 {
        self.outbox.as_ref().map_or(0, |outbox| outbox.unsaved())
    }

    /// Works on the router, then passes on what came out of it.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Router) -> R) -> Result<R, Failure> {
        // Tokens must not be dropped under the lock: they come back to the router.
        let mut rejected = Vec::new();
        let mut guarded = self.guarded.lock().map_err(|_| self.fail(Failure::Core))?;
        let result = work(&mut guarded.router);
        self.flush(&mut guarded.router, &mut rejected);
        if let Some(outbox) = &self.outbox {
            let mut encoded = Vec::new();
            guarded.router.encode_changes(&mut encoded);
            if !encoded.is_empty() {
                outbox.put(&encoded);
            }
        }
        let mut first = None;
        let mut rest = Vec::new();
        while let Some(link) = guarded.router.poll_wake() {
            match first {
                None => first = Some(link),
                Some(_) => rest.push(link),
            }
        }
        let next = guarded.router.poll_timeout();
        let sooner = next.is_some_and(|next| guarded.armed.is_none_or(|armed| next < armed));
        if sooner {
            guarded.armed = next;
        }
        let refusals = guarded.router.clients.take_due();
        drop(guarded);
        // A log that is slow holds up nobody else.
        refusals.iter().for_each(Refusal::log);
        for link in first.into_iter().chain(rest) {
            link.wake();
        }
        if sooner {
            self.timer.notify_one();
        }
        if !rejected.is_empty() {
            self.fail(Failure::Pipeline);
        }
        Ok(result)
    }

    /// Hands deliveries to the pipeline in order, as far as it has room.
    fn flush(&self, router: &mut Router, rejected: &mut Vec<Delivery>) {
        while let Some(delivery) = router.poll_delivery() {
            match self.sink.try_send(delivery) {
                Ok(()) => {}
                Err(TrySendError::Full(delivery)) => {
                    router.unpoll_delivery(delivery);
                    if !self.paused.swap(true, Ordering::AcqRel) {
                        self.pump.notify_one();
                    }
                    return;
                }
                Err(TrySendError::Closed(delivery)) => rejected.push(delivery),
            }
        }
    }

    /// Waits for the pipeline where it is behind, and lets connections go on when it has caught up.
    pub(crate) async fn run_pump(self: Arc<Self>) {
        loop {
            self.pump.notified().await;
            loop {
                let Ok(permit) = self.sink.reserve().await else {
                    self.fail(Failure::Pipeline);
                    return;
                };
                let left = self.with(|router| {
                    if let Some(delivery) = router.poll_delivery() {
                        permit.send(delivery);
                    }
                    router.waiting_deliveries()
                });
                match left {
                    // `with` may have emptied the rest meanwhile; one more turn finds out.
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(_) => return,
                }
            }
            self.paused.store(false, Ordering::Release);
            // A flush that found no room just before has told nobody: this one tries again, and calls if it must.
            if self.with(|_| ()).is_err() {
                return;
            }
            let waiting =
                std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
            for link in waiting.into_values() {
                link.wake();
            }
        }
    }

    /// The instant that the timer task has to wait for.
    fn arm(&self) -> Result<Option<Instant>, Failure> {
        let mut guarded = self.guarded.lock().map_err(|_| self.fail(Failure::Core))?;
        guarded.armed = guarded.router.poll_timeout();
        Ok(guarded.armed)
    }

    /// Runs the router's timers.
    pub(crate) async fn run_timers(self: Arc<Self>) {
        loop {
            let Ok(next) = self.arm() else {
                return;
            };
            let far = Instant::now() + std::time::Duration::from_secs(3600);
            tokio::select! {
                () = tokio::time::sleep_until(next.unwrap_or(far).into()) => {}
                () = self.timer.notified() => continue,
            }
            if self
                .with(|router| router.handle_timeout(Instant::now()))
                .is_err()
            {
                return;
            }
        }
    }

    /// Saves the messages of connected persistent sessions from time to time.
    pub(crate) async fn run_saves(self: Arc<Self>, outbox: Arc<Outbox>) {
        loop {
            tokio::time::sleep(SAVE).await;
            let mut next = Some(0);
            while let Some(from) = next {
                let mut encoded = Vec::new();
                let saved = self.with(|router| {
                    let next = router.save_connected(from, &mut encoded);
                    if !encoded.is_empty() {
                        outbox.put(&encoded);
                    }
                    next
                });
                let Ok(rest) = saved else {
                    return;
                };
                next = rest;
                // Others had to wait for the router: now it is their turn.
                tokio::task::yield_now().await;
            }
        }
    }

    /// Whether connections must not read now; one that must not is woken when it may again.
    pub(crate) fn is_paused(&self, link: &Arc<Link>) -> bool {
        if !self.paused.load(Ordering::Acquire) {
            return false;
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.entry(link.id).or_insert_with(|| Arc::clone(link));
        drop(waiting);
        // Caught up in between: the pump may not have seen this link.
        self.paused.load(Ordering::Acquire)
    }

    pub(crate) fn new_link(&self) -> Arc<Link> {
        Link::new(self.next_link.fetch_add(1, Ordering::Relaxed))
    }

    /// Records a failure; the first one stands.
    pub(crate) fn fail(&self, failure: Failure) -> Failure {
        self.failure.send_if_modified(|current| {
            let first = current.is_none();
            current.get_or_insert(failure);
            first
        });
        failure
    }

    pub(crate) fn failure(&self) -> watch::Receiver<Option<Failure>> {
        self.failure.subscribe()
    }

    /// Counts a connection in; `Err`: one too many, in total or from its address.
    pub(crate) fn admit(
        self: &Arc<Self>,
        address: IpAddr,
        total: usize,
        each: usize,
    ) -> (Admission, Result<(), u8>) {
        let mut addresses = self
            .addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let count = addresses.entry(address).or_default();
        *count += 1;
        let open = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        let fits = if open > total {
            Err(reason::SERVER_UNAVAILABLE)
        } else if *count > each {
            Err(reason::QUOTA_EXCEEDED)
        } else {
            Ok(())
        };
        (
            Admission {
                shell: Arc::clone(self),
                address,
            },
            fits,
        )
    }

    /// Connections now, half-open ones included.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Changes the count of bytes in incomplete packets; the new sum.
    pub(crate) fn hold(&self, before: usize, after: usize) -> usize {
        if after >= before {
            self.partial.fetch_add(after - before, Ordering::Relaxed) + (after - before)
        } else {
            self.partial
                .fetch_sub(before - after, Ordering::Relaxed)
                .saturating_sub(before - after)
        }
    }

    /// Bytes in incomplete packets, and in those that have to wait.
    pub(crate) fn held(&self) -> usize {
        self.partial.load(Ordering::Relaxed)
    }

    /// Counts and logs a connection that ended before it was anybody's.
    pub(crate) fn turn_away(&self, why: &'static str, address: SocketAddr, error: &dyn Display) {
        let what = format!("{address}: {error}");
        // A failure is recorded by `with` itself.
        let _ = self.with(|router| router.clients.refuse(Instant::now(), why, "", &what));
    }

    pub(crate) fn settings(&self) -> Result<Settings, Failure> {
        self.with(|router| router.settings().clone())
    }
}

/// A counted connection; counts it out when dropped.
pub(crate) struct Admission {
    shell: Arc<Shell>,
    address: IpAddr,
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.shell.open.fetch_sub(1, Ordering::Relaxed);
        let mut addresses = self
            .shell
            .addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = addresses.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                addresses.remove(&self.address);
            }
        }
    }
}

impl Tokens for Arc<Shell> {
    fn token(&self, link: &Arc<Link>, slot: u64, exactly_once: Option<Exactly>) -> PubackToken {
        let link = Arc::clone(link);
        let Some(exactly) = exactly_once else {
            return PubackToken::new(move |outcome| answer(&link, slot, outcome));
        };
        let shell = Arc::clone(self);
        PubackToken::new(move |outcome| {
            let repeated = shell
                .with(|router| router.settle(exactly, outcome))
                .ok()
                .flatten();
            answer(&link, slot, outcome);
            if let Some((link, slot)) = repeated {
                answer(&link, slot, outcome);
            }
        })
    }
}

/// Fills the place of an acknowledgement, or closes the session that would wait for it.
fn answer(link: &Arc<Link>, slot: u64, outcome: AckOutcome) {
    match outcome {
        AckOutcome::Accepted => link.complete_ack(slot, reason::SUCCESS),
        AckOutcome::Refused => link.complete_ack(slot, reason::PAYLOAD_FORMAT_INVALID),
        AckOutcome::Dropped => link.stop(Cause::AckLost),
    }
}
