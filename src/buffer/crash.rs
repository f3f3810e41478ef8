//! Storage in memory that tells what was written from what is durable: a power cut is a value.
//!
//! Contents become durable with [`StorageFile::sync`], names with [`Storage::sync_dir`]. Writes between two
//! syncs may be kept or lost piece by piece, as a disk does it. Faults are injected through [`Faults`].

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::buffer::storage::{Entry, Storage, StorageFile};

/// What goes wrong, and when. All at once is possible.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Faults {
    /// Bytes of the whole disk; `None` is endless. What is allocated counts.
    pub capacity: Option<u64>,
    /// Fail each fsync.
    pub fail_sync: bool,
    /// Fail each write.
    pub fail_write: bool,
    /// Fail each read.
    pub fail_read: bool,
}

/// A write that is not durable yet.
#[derive(Debug, Clone)]
enum Change {
    Write(u64, Vec<u8>),
    Len(u64),
}

impl Change {
    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Self::Len(len) => content.resize(*len as usize, 0),
            Self::Write(offset, bytes) => {
                let end = *offset as usize + bytes.len();
                if content.len() < end {
                    content.resize(end, 0);
                }
                if let Some(slot) = content.get_mut(*offset as usize..end) {
                    slot.copy_from_slice(bytes);
                }
            }
        }
    }
}

#[derive(Debug, Default)]
struct Content {
    live: Vec<u8>,
    durable: Vec<u8>,
    changes: Vec<Change>,
}

#[derive(Debug, Default)]
struct Disk {
    live: BTreeMap<String, Arc<Mutex<Content>>>,
    durable: BTreeMap<String, Arc<Mutex<Content>>>,
    faults: Faults,
    syncs: u64,
    written: u64,
    read: u64,
}

impl Disk {
    fn used(&self) -> u64 {
        self.live
            .values()
            .map(|content| lock(content).live.len() as u64)
            .sum()
    }

    fn check(&self, fail: bool) -> io::Result<()> {
        if fail {
            Err(io::Error::other("injected fault"))
        } else {
            Ok(())
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder in memory. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct CrashStorage {
    disk: Arc<Mutex<Disk>>,
}

impl CrashStorage {
    /// An empty folder.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets what goes wrong from now on.
    pub fn set_faults(&self, faults: Faults) {
        lock(&self.disk).faults = faults;
    }

    /// What a power cut leaves. Of the writes that were not synced, `keep` decides one by one which ones
    /// reached the disk (it is given a running number); with `|_| false`, none.
    #[must_use]
    pub fn crash(&self, mut keep: impl FnMut(usize) -> bool) -> Self {
        let disk = lock(&self.disk);
        let mut n = 0;
        let mut after = Disk::default();
        for (name, content) in &disk.durable {
            let content = lock(content);
            let mut bytes = content.durable.clone();
            for change in &content.changes {
                if keep(n) {
                    change.apply(&mut bytes);
                }
                n += 1;
            }
            after.put(name, bytes);
        }
        Self {
            disk: Arc::new(Mutex::new(after)),
        }
    }

    /// What kill -9 leaves: everything that was written.
    #[must_use]
    pub fn kill(&self) -> Self {
        let disk = lock(&self.disk);
        let mut after = Disk::default();
        for (name, content) in &disk.live {
            after.put(name, lock(content).live.clone());
        }
        Self {
            disk: Arc::new(Mutex::new(after)),
        }
    }

    /// Names and contents, as a process sees them.
    #[must_use]
    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let disk = lock(&self.disk);
        disk.live
            .iter()
            .map(|(name, content)| (name.clone(), lock(content).live.clone()))
            .collect()
    }

    /// Puts a file there, durable at once.
    pub fn put(&self, name: &str, bytes: Vec<u8>) {
        lock(&self.disk).put(name, bytes);
    }

    /// Takes a file away, durable at once.
    pub fn delete(&self, name: &str) {
        let mut disk = lock(&self.disk);
        disk.live.remove(name);
        disk.durable.remove(name);
    }

    /// Successful fsyncs of files.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        lock(&self.disk).syncs
    }

    /// Bytes written to files.
    #[must_use]
    pub fn written(&self) -> u64 {
        lock(&self.disk).written
    }

    /// Bytes read from files.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        lock(&self.disk).read
    }

    /// Bytes of all files.
    #[must_use]
    pub fn used(&self) -> u64 {
        lock(&self.disk).used()
    }
}

impl Disk {
    fn put(&mut self, name: &str, bytes: Vec<u8>) {
        let content = Content {
            live: bytes.clone(),
            durable: bytes,
            changes: Vec::new(),
        };
        let content = Arc::new(Mutex::new(content));
        self.live.insert(name.to_owned(), Arc::clone(&content));
        self.durable.insert(name.to_owned(), content);
    }
}

struct CrashFile {
    disk: Arc<Mutex<Disk>>,
    content: Arc<Mutex<Content>>,
}

impl CrashFile {
    fn change(&self, change: Change) {
        let mut content = lock(&self.content);
        change.apply(&mut content.live);
        content.changes.push(change);
    }
}

impl StorageFile for CrashFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut disk = lock(&self.disk);
        disk.check(disk.faults.fail_read)?;
        let content = lock(&self.content);
        let rest = content.live.get(offset as usize..).unwrap_or_default();
        let n = rest.len().min(buf.len());
        if let (Some(to), Some(from)) = (buf.get_mut(..n), rest.get(..n)) {
            to.copy_from_slice(from);
        }
        disk.read += n as u64;
        Ok(n)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        {
            let mut disk = lock(&self.disk);
            disk.check(disk.faults.fail_write)?;
            let len = lock(&self.content).live.len() as u64;
            let more = (offset + bytes.len() as u64).saturating_sub(len);
            if disk
                .faults
                .capacity
                .is_some_and(|capacity| more > 0 && disk.used() + more > capacity)
            {
                return Err(io::ErrorKind::StorageFull.into());
            }
            disk.written += bytes.len() as u64;
        }
        self.change(Change::Write(offset, bytes.to_vec()));
        Ok(())
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.change(Change::Len(len));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut disk = lock(&self.disk);
        disk.check(disk.faults.fail_sync)?;
        disk.syncs += 1;
        let mut content = lock(&self.content);
        content.durable = content.live.clone();
        content.changes.clear();
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(lock(&self.content).live.len() as u64)
    }
}

impl Storage for CrashStorage {
    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn StorageFile>> {
        let mut disk = lock(&self.disk);
        if disk.live.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if disk
            .faults
            .capacity
            .is_some_and(|capacity| disk.used() + len > capacity)
        {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let content = Content {
            live: vec![0; len as usize],
            durable: Vec::new(),
            changes: vec![Change::Len(len)],
        };
        let content = Arc::new(Mutex::new(content));
        disk.live.insert(name.to_owned(), Arc::clone(&content));
        Ok(Arc::new(CrashFile {
            disk: Arc::clone(&self.disk),
            content,
        }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        let content = lock(&self.disk)
            .live
            .get(name)
            .cloned()
            .ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(CrashFile {
            disk: Arc::clone(&self.disk),
            content,
        }))
    }

    fn list(&self) -> io::Result<Vec<Entry>> {
        let disk = lock(&self.disk);
        let top = disk.live.iter().filter(|(name, _)| !name.contains('/'));
        Ok(top
            .map(|(name, content)| Entry {
                name: name.clone(),
                len: lock(content).live.len() as u64,
            })
            .collect())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let gone = lock(&self.disk).live.remove(name);
        gone.map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn rename(&self, name: &str, to: &str) -> io::Result<()> {
        let mut disk = lock(&self.disk);
        let content = disk.live.remove(name).ok_or(io::ErrorKind::NotFound)?;
        disk.live.insert(to.to_owned(), content);
        Ok(())
    }

    fn quarantine(&self, name: &str) -> io::Result<String> {
        let mut disk = lock(&self.disk);
        let content = disk.live.remove(name).ok_or(io::ErrorKind::NotFound)?;
        let mut target = format!("quarantine/{name}");
        while disk.live.contains_key(&target) {
            target.push_str(".1");
        }
        disk.live.insert(target.clone(), content);
        Ok(target)
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut disk = lock(&self.disk);
        disk.check(disk.faults.fail_sync)?;
        disk.durable = disk.live.clone();
        Ok(())
    }

    fn free_space(&self) -> io::Result<u64> {
        let disk = lock(&self.disk);
        Ok(disk.faults.capacity.map_or(u64::MAX / 2, |capacity| {
            capacity.saturating_sub(disk.used())
        }))
    }
}
