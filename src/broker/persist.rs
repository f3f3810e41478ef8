//! The broker's state file: `<data_dir>/mqtt/state.log`, an append-only log of [`Record`]s.
//!
//! Changes are encoded under the router's lock, so that the log has them in the order in which they happened, and
//! written and synced by a thread of its own. A message of a session is written once, and after it only how far the
//! session has come ([`Record::Queued`], [`Record::Progress`]); for connected sessions that is done once a second, in
//! slices, so that a message which is acknowledged at once is never written. A power cut takes at most what happened since the last sync, which
//! begins as soon as something waits. When the log is much larger than what it describes, or when the disk does not
//! keep up, the whole state is written anew beside it and put in its place. A failed sync is not tried again.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use bytes::Bytes;

use super::record::{Record, decode_all};
use super::shell::{Failure, Shell};
use crate::data_folder::replace;

/// Bytes that may wait for the disk; beyond, they are dropped and the whole state is written instead.
const WAITING: usize = 32 << 20;
/// Bytes that the log may hold beyond twice the size it had when it was last written anew.
const SLACK: u64 = 16 << 20;

#[derive(Debug, Default)]
struct State {
    waiting: Vec<u8>,
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

    /// Everything that waits is in what is written anew from now on.
    fn forget(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.waiting, state.overrun) = (Vec::new(), false);
    }

    /// Has the writer write what waits and end.
    pub(crate) fn stop(&self) {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .stop = true;
        self.ready.notify_one();
    }

    /// Waits for something to write: bytes, whether the state has to be written anew, whether to end.
    fn take(&self) -> (Vec<u8>, bool, bool) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = |s: &mut State| s.waiting.is_empty() && !s.overrun && !s.stop;
        let mut state = self
            .ready
            .wait_while(state, idle)
            .unwrap_or_else(PoisonError::into_inner);
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
    match File::open(dir.join("state.log")) {
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

fn write(shell: &Arc<Shell>, outbox: &Outbox, dir: &Path) -> io::Result<()> {
    let whole = || {
        let content = shell.with(|router| {
            outbox.forget();
            router.snapshot()
        });
        Ok::<_, io::Error>(content.map_err(io::Error::other)?.encode())
    };
    let log = dir.join("state.log");
    let content = whole()?;
    let mut file = replace(&log, &content)?;
    let mut base = content.len() as u64;
    let mut size = base;
    drop(content);
    loop {
        let (bytes, overrun, stop) = outbox.take();
        if !bytes.is_empty() {
            file.write_all(&bytes)?;
            file.sync_data()?;
            size += bytes.len() as u64;
        }
        if overrun || size > base * 2 + SLACK {
            let content = whole()?;
            file = replace(&log, &content)?;
            base = content.len() as u64;
            size = base;
        }
        if stop {
            return Ok(());
        }
    }
}
