//! The only door to the disk: a folder of files behind a small trait.
//!
//! [`DiskStorage`] is the real one. [`CrashStorage`](crate::buffer::crash::CrashStorage) keeps what was
//! written and what was made durable apart, so that a power cut is a value in a test.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, fallocate, fdatasync, statvfs};

/// One file in the folder and its length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Name relative to the folder.
    pub name: String,
    /// Length in bytes.
    pub len: u64,
}

/// An open file. Positions are explicit, so that one handle serves several readers.
pub trait StorageFile: Send + Sync {
    /// Reads up to `buf.len()` bytes; fewer only at the end of the file.
    ///
    /// # Errors
    /// As the system says.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;
    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// As the system says; `StorageFull` where there is no room.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Cuts the file to `len` bytes and gives back what was allocated behind it.
    ///
    /// # Errors
    /// As the system says.
    fn truncate(&self, len: u64) -> io::Result<()>;
    /// Makes content and length durable.
    ///
    /// # Errors
    /// As the system says. After one, nothing is known of any write since the last success.
    fn sync(&self) -> io::Result<()>;
    /// Length in bytes.
    ///
    /// # Errors
    /// As the system says.
    fn len(&self) -> io::Result<u64>;
    /// Whether there is nothing in it.
    ///
    /// # Errors
    /// As the system says.
    fn is_empty(&self) -> io::Result<bool> {
        self.len().map(|len| len == 0)
    }
}

/// A folder of files.
pub trait Storage: Send + Sync {
    /// Makes `name`, which must not exist, with `len` bytes of zeroes allocated on the disk, so that later
    /// writes inside can't run out of space. On failure nothing is left.
    ///
    /// # Errors
    /// As the system says; `StorageFull` where there is no room.
    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn StorageFile>>;
    /// Opens `name` for reading and writing.
    ///
    /// # Errors
    /// As the system says.
    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>>;
    /// Files of the folder, without those of folders inside it.
    ///
    /// # Errors
    /// As the system says.
    fn list(&self) -> io::Result<Vec<Entry>>;
    /// Unlinks `name`. Open handles go on reading.
    ///
    /// # Errors
    /// As the system says.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Gives `name` the name `to`, in the place of a file that has it. Open handles go on.
    ///
    /// # Errors
    /// As the system says.
    fn rename(&self, name: &str, to: &str) -> io::Result<()>;
    /// Moves `name` into the folder `quarantine/` and says what it is called there.
    ///
    /// # Errors
    /// As the system says.
    fn quarantine(&self, name: &str) -> io::Result<String>;
    /// Makes creations, removals and moves durable.
    ///
    /// # Errors
    /// As the system says.
    fn sync_dir(&self) -> io::Result<()>;
    /// Bytes that an unprivileged process can still allocate.
    ///
    /// # Errors
    /// As the system says.
    fn free_space(&self) -> io::Result<u64>;
}

/// Why a folder can't be used as storage.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The folder can't be made or read.
    #[error("cannot use folder {}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Another process has the journal open.
    #[error("{} is in use by another process", path.display())]
    InUse {
        /// The lock file.
        path: PathBuf,
    },
}

/// A folder on a real filesystem, held by an exclusive lock on its file `lock`.
#[derive(Debug)]
pub struct DiskStorage {
    dir: PathBuf,
    /// Held for its lock; `None` for the tools that only read.
    lock: Option<File>,
}

impl Drop for DiskStorage {
    fn drop(&mut self) {
        // Closing is not enough: a child process between fork and exec holds a copy of the descriptor, and with
        // it the lock. Unlocking ends the lock of every copy.
        if let Some(lock) = &self.lock {
            let _ = lock.unlock();
        }
    }
}

impl DiskStorage {
    /// Makes `dir` when it is missing and takes its lock.
    ///
    /// # Errors
    /// The folder can't be made, or another process holds it.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, StorageError> {
        let dir = dir.into();
        let folder = |source| StorageError::Folder {
            path: dir.clone(),
            source,
        };
        std::fs::create_dir_all(&dir).map_err(folder)?;
        let path = dir.join("lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(folder)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StorageError::InUse { path }),
            Err(TryLockError::Error(source)) => return Err(StorageError::Folder { path, source }),
        }
        if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            // The folder's own name must survive a power cut as well.
            File::open(parent)
                .and_then(|parent| parent.sync_all())
                .map_err(folder)?;
        }
        Ok(Self {
            dir,
            lock: Some(lock),
        })
    }

    /// `dir` without a lock, for tools that only read.
    ///
    /// # Errors
    /// There is no such folder.
    pub fn read_only(dir: impl Into<PathBuf>) -> Result<Self, StorageError> {
        let dir = dir.into();
        match std::fs::read_dir(&dir) {
            Ok(_) => Ok(Self { dir, lock: None }),
            Err(source) => Err(StorageError::Folder { path: dir, source }),
        }
    }

    /// The folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

struct DiskFile(File);

impl StorageFile for DiskFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.0.read_at(rest, offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        crate::stall::at(crate::stall::Part::Fsync);
        Ok(fdatasync(&self.0)?)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}

impl Storage for DiskStorage {
    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn StorageFile>> {
        let path = self.dir.join(name);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        if len > 0
            && let Err(error) = fallocate(&file, FallocateFlags::empty(), 0, len)
        {
            let unsupported = error == rustix::io::Errno::OPNOTSUPP;
            let result = if unsupported {
                write_zeroes(&file, len)
            } else {
                Err(error.into())
            };
            if let Err(error) = result {
                // Nothing may be left: a half-made segment would only be cleared by the next start.
                let _ = std::fs::remove_file(&path);
                return Err(error);
            }
        }
        Ok(Arc::new(DiskFile(file)))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(self.lock.is_some());
        Ok(Arc::new(DiskFile(options.open(self.dir.join(name))?)))
    }

    fn list(&self) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(&self.dir)? {
            let entry = entry?;
            let meta = match entry.metadata() {
                Ok(meta) => meta,
                // Removed between the two calls, by a running daemon that a tool looks at.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            if let (true, Ok(name)) = (meta.is_file(), entry.file_name().into_string()) {
                entries.push(Entry {
                    name,
                    len: meta.len(),
                });
            }
        }
        Ok(entries)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.dir.join(name))
    }

    fn rename(&self, name: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.dir.join(name), self.dir.join(to))
    }

    fn quarantine(&self, name: &str) -> io::Result<String> {
        let folder = self.dir.join("quarantine");
        std::fs::create_dir_all(&folder)?;
        let mut target = format!("quarantine/{name}");
        let mut n = 0u32;
        while self.dir.join(&target).exists() {
            n += 1;
            target = format!("quarantine/{name}.{n}");
        }
        std::fs::rename(self.dir.join(name), self.dir.join(&target))?;
        File::open(&folder)?.sync_all()?;
        Ok(target)
    }

    fn sync_dir(&self) -> io::Result<()> {
        File::open(&self.dir)?.sync_all()
    }

    fn free_space(&self) -> io::Result<u64> {
        let stat = statvfs(&self.dir)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

/// Preallocation for filesystems without `fallocate`.
fn write_zeroes(file: &File, len: u64) -> io::Result<()> {
    let zeroes = vec![0; 64 << 10];
    let mut at = 0;
    while at < len {
        let n = (len - at).min(zeroes.len() as u64);
        file.write_all_at(zeroes.get(..n as usize).unwrap_or_default(), at)?;
        at += n;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::DiskStorage;

    #[test]
    fn copy_of_the_lock_descriptor_does_not_keep_the_folder() {
        let dir = tempfile::tempdir().expect("a folder");
        let storage = DiskStorage::open(dir.path()).expect("a folder");
        // What a child process holds between fork and exec.
        let copy = storage.lock.as_ref().map(std::fs::File::try_clone);
        drop(storage);
        DiskStorage::open(dir.path()).expect("free again");
        drop(copy);
    }
}
