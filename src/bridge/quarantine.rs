//! Bytes that no stream takes, kept on the box for a person to look at.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::buffer::record::Record;
use crate::pipeline::subject;

/// Bytes that the folder holds at most; beyond, records are named in the log only.
const MAX_BYTES: u64 = 256 << 20;

/// The folder `quarantine/` of the data directory.
#[derive(Debug, Clone)]
pub struct Quarantine {
    folder: PathBuf,
}

/// What became of the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kept {
    /// In this file.
    At(PathBuf),
    /// There already, from an earlier attempt.
    Already,
    /// The folder is full.
    NoRoom,
}

impl Quarantine {
    /// The folder below `data_dir`; made when it is first needed.
    #[must_use]
    pub fn below(data_dir: &Path) -> Self {
        Self {
            folder: data_dir.join("quarantine"),
        }
    }

    /// Writes the body of `record` as `<epoch>-<id>.bin`, with a `.json` beside it that says whose it is and
    /// why it is here.
    ///
    /// # Errors
    /// The file system's.
    pub fn keep(
        &self,
        gateway: &str,
        epoch: &str,
        record: &Record,
        cause: &str,
    ) -> std::io::Result<Kept> {
        std::fs::create_dir_all(&self.folder)?;
        let stem = format!("{epoch}-{}", record.id);
        let path = self.folder.join(format!("{stem}.bin"));
        if path.exists() {
            return Ok(Kept::Already);
        }
        let mut used = record.body.len() as u64;
        for entry in std::fs::read_dir(&self.folder)? {
            used += entry?.metadata()?.len();
        }
        if used > MAX_BYTES {
            return Ok(Kept::NoRoom);
        }
        let about = serde_json::json!({
            "record": record.id,
            "subject": subject::subject(gateway, record.class, &record.key),
            "received_at": record.received_ms,
            "cause": cause,
        });
        std::fs::write(
            self.folder.join(format!("{stem}.json")),
            format!("{about}\n"),
        )?;
        let part = self.folder.join(format!("{stem}.part"));
        let mut file = std::fs::File::create(&part)?;
        file.write_all(&record.body)?;
        file.sync_all()?;
        std::fs::rename(&part, &path)?;
        Ok(Kept::At(path))
    }
}
