//! The broker's state file: `<data_dir>/mqtt/state.log`, an append-only log of [`Record`]s.
//!
//! Changes are encoded under the router's lock, so that the log has them in the order in which they happened, and
//! written and synced by a thread of its own. A message of a session is written once, and after it only how far the
//! session has come ([`Record::Queued`], [`Record::Progress`]); for connected sessions that is done once a second, in
//! slices, so that a message which is acknowledged at once is never written. A power cut takes at most what happened since the last sync, which
//! begins as soon as something waits. When the log is much larger than what it describes, or when the disk does not
//! keep up, the whole state is written anew beside it and put in its place; so it is when a full disk has room again.
//! A failed sync is not tried again.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::record::{Record, decode_all};
use super::shell::{Failure, Shell};
use crate::data_folder::replace;

/// Bytes that may wait for the disk; beyond, they are dropped and the whole state is written instead.
const WAITING: usize = 32 << 20;
/// Bytes that the log may hold beyond twice the size it had when it was last written anew.
const SLACK: u64 = 16 << 20;
/// Name of the file.
const FILE: &str = "state.log";
/// How often a full disk is tried again.
const FULL: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct State {
    waiting: Vec<u8>,
    /// Bytes that are being written and synced.
    writing: usize,
    overrun: bool,
    stop: bool,
}

/// Where encoded changes wait for the writer.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    state: Mutex<State>,
    ready: Condvar,
}

impl Outbox {
    /// Queues encoded records.
    pub(crate) fn put(&self, encoded: &[u8]) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.overrun || state.waiting.len() + encoded.len() > WAITING {
            state.overrun = true;
            state.waiting = Vec::new();
        } else {
            state.waiting.extend_from_slice(encoded);
        }
        drop(state);
        self.ready.notify_one();
    }

    /// Bytes that are not on the disk yet.
    pub(crate) fn unsaved(&self) -> u64 {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = if state.overrun {
            WAITING
        } else {
            state.waiting.len()
        };
        (waiting + state.writing) as u64
    }

    /// What was taken last is on the disk.
    fn saved(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.writing = 0;
    }

    /// Everything that waits is in what is written anew from now on.
    fn forget(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.waiting, state.overrun) = (Vec::new(), false);
        // Until that is done.
        state.writing = state.writing.max(1);
    }

    /// Has the writer write what waits and end.
    pub(crate) fn stop(&self) {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .stop = true;
        self.ready.notify_one();
    }

    /// Lets go of what waits, since all of it is to be written anew, and waits before that is tried again.
    fn rest(&self) -> (Vec<u8>, bool, bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.waiting, state.overrun) = (Vec::new(), true);
        let (state, _) = self
            .ready
            .wait_timeout_while(state, FULL, |state| !state.stop)
            .unwrap_or_else(PoisonError::into_inner);
        (Vec::new(), true, state.stop)
    }

    /// Waits for something to write: bytes, whether the state has to be written anew, whether to end.
    fn take(&self) -> (Vec<u8>, bool, bool) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = |s: &mut State| s.waiting.is_empty() && !s.overrun && !s.stop;
        let mut state = self
            .ready
            .wait_while(state, idle)
            .unwrap_or_else(PoisonError::into_inner);
        // The whole state stands for more than waits.
        state.writing = state.waiting.len().max(usize::from(state.overrun));
        (
            std::mem::take(&mut state.waiting),
            state.overrun,
            state.stop,
        )
    }
}

/// Reads the state file; a missing one is an empty one. Bytes that are damaged are told and left out.
pub(crate) fn load(dir: &Path) -> io::Result<Vec<Record>> {
    fs::create_dir_all(dir)?;
    let mut bytes = Vec::new();
    match File::open(dir.join(FILE)) {
        Ok(mut file) => file.read_to_end(&mut bytes)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    let (records, lost) = decode_all(&Bytes::from(bytes));
    if lost > 0 {
        tracing::warn!(
            bytes = lost,
            records = records.len(),
            "the broker's state file was damaged; the rest is kept"
        );
    }
    Ok(records)
}

/// The writer, on a thread of its own until [`Outbox::stop`].
pub(crate) fn run(shell: &Arc<Shell>, outbox: &Outbox, dir: &Path) {
    if let Err(error) = write(shell, outbox, dir) {
        tracing::error!(%error, dir = %dir.display(), "the broker's state can't be written");
        shell.fail(Failure::Storage);
    }
}

/// The state file that is being added to.
struct Log {
    file: File,
    /// Its size when it was last written anew.
    base: u64,
    size: u64,
}

impl Log {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !bytes.is_empty() {
            self.file.write_all(bytes)?;
            self.file.sync_data()?;
            self.size += bytes.len() as u64;
        }
        Ok(())
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// Writes the whole state; `None`: there is no room for it now, and what is on the disk stays.
fn anew(shell: &Shell, outbox: &Outbox, dir: &Path) -> io::Result<Option<Log>> {
    let content = shell.with(|router| {
        outbox.forget();
        router.snapshot()
    });
    let content = content.map_err(io::Error::other)?.encode();
    match replace(&dir.join(FILE), &content) {
        Ok(file) => Ok(Some(Log {
            file,
            base: content.len() as u64,
            size: content.len() as u64,
        })),
        Err(error) if is_full(&error) => {
            // The half of a file is of no use and may be what filled the disk.
            let _ = fs::remove_file(dir.join("state.log.new"));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn write(shell: &Arc<Shell>, outbox: &Outbox, dir: &Path) -> io::Result<()> {
    let mut log = anew(shell, outbox, dir)?;
    let mut full = false;
    loop {
        if full != log.is_none() {
            full = log.is_none();
            tracing::warn!(
                full,
                "room for retained messages and sessions on the disk changed"
            );
        }
        let (bytes, overrun, stop) = match &log {
            Some(_) => {
                outbox.saved();
                outbox.take()
            }
            None => outbox.rest(),
        };
        log = match log.take() {
            Some(mut open) if !overrun => match open.append(&bytes) {
                Ok(()) if open.size <= open.base * 2 + SLACK => Some(open),
                Ok(()) => anew(shell, outbox, dir)?,
                // What was to be added may be there in part: all of it is written anew.
                Err(error) if is_full(&error) => None,
                Err(error) => return Err(error),
            },
            _ => anew(shell, outbox, dir)?,
        };
        if stop {
            return Ok(());
        }
    }
}
