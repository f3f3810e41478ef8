//! The format of the data folder, so that an upgrade keeps data and a step back is refused before it harms.
//!
//! `<data_dir>/format` holds one line, `sparkgate-data <format> <version>`: the number of the format and the program
//! that wrote it last. The number rises when an older program would misread what a newer one wrote. A folder with a
//! lower number is brought up step by step (`STEPS`) before anything in it is opened; one with a higher number is
//! refused, and the refusal names the way back. A folder without the file is format 0: new, or of a version that
//! wrote none.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The format that this program writes.
pub const FORMAT: u32 = 1;
/// Name of the file.
const FILE: &str = "format";
const WORD: &str = "sparkgate-data";

/// Brings a folder from format `index` to `index + 1`. A step may be cut off by a crash and is then run again: it must
/// give the same result twice.
type Step = fn(&Path) -> io::Result<()>;

/// One step a format. The journal and the state store carry version bytes of their own; format 1 adds nothing but this
/// file.
const STEPS: [Step; FORMAT as usize] = [|_| Ok(())];

/// What is written in the folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp {
    /// Format number; 0 where there is no file.
    pub format: u32,
    /// Version of the program that wrote it; empty where there is no file.
    pub version: String,
}

/// Why a data folder can't be used.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// A newer program wrote it.
    #[error(
        "{}: written by sparkgate {version} in data format {format}; this is sparkgate {own}, which knows formats up to \
         {FORMAT}. The way back: install sparkgate {version} again, which loses nothing; or stop, move the folder away and \
         `sparkgate restore` a backup that this version made",
        folder.display(), own = env!("CARGO_PKG_VERSION")
    )]
    Newer {
        /// The data folder.
        folder: PathBuf,
        /// Its format.
        format: u32,
        /// Who wrote it.
        version: String,
    },
    /// The file is there and says nothing that can be understood.
    #[error("{}: not a line `{WORD} <format> <version>`; if the folder is of this version, remove the file", .0.display())]
    Unreadable(PathBuf),
    /// The filesystem refused.
    #[error("{}: cannot {doing}: {source}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// Which file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// Reads the stamp and refuses a newer format. Changes nothing.
///
/// # Errors
/// [`FormatError`].
pub fn check(folder: &Path) -> Result<Stamp, FormatError> {
    let path = folder.join(FILE);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Stamp {
                format: 0,
                version: String::new(),
            });
        }
        Err(source) => {
            return Err(FormatError::Io {
                doing: "read",
                path,
                source,
            });
        }
    };
    let mut words = text.split_whitespace();
    let stamp = match (
        words.next(),
        words.next().and_then(|w| w.parse().ok()),
        words.next(),
    ) {
        (Some(WORD), Some(format), Some(version)) => Stamp {
            format,
            version: version.to_owned(),
        },
        _ => return Err(FormatError::Unreadable(path)),
    };
    if stamp.format > FORMAT {
        return Err(FormatError::Newer {
            folder: folder.to_owned(),
            format: stamp.format,
            version: stamp.version,
        });
    }
    Ok(stamp)
}

/// Brings the folder to [`FORMAT`] and stamps it; returns what it was before. Called before anything in it is opened.
///
/// # Errors
/// [`FormatError`]; the folder is then as far as the last finished step.
pub fn open(folder: &Path) -> Result<Stamp, FormatError> {
    std::fs::create_dir_all(folder).map_err(|source| FormatError::Io {
        doing: "make",
        path: folder.to_owned(),
        source,
    })?;
    migrate(folder, &STEPS)
}

fn migrate(folder: &Path, steps: &[Step]) -> Result<Stamp, FormatError> {
    let before = check(folder)?;
    for (from, step) in (0u32..).zip(steps).skip(before.format as usize) {
        step(folder).map_err(|source| FormatError::Io {
            doing: "migrate",
            path: folder.to_owned(),
            source,
        })?;
        stamp(folder, from + 1)?;
    }
    if before.version != env!("CARGO_PKG_VERSION") {
        stamp(folder, u32::try_from(steps.len()).unwrap_or(FORMAT))?;
    }
    Ok(before)
}

/// Writes a file beside and puts it in place, durable, so that a crash leaves the old bytes or the new ones. It keeps the
/// owner and permissions of the file it replaces; a new one is for its owner alone. Returns the file, open for writing at its end.
///
/// # Errors
/// What the system says; the file that was there is as it was.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<File> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let half = path.with_file_name(name);
    // What a crash left, or somebody put there: it is not written through.
    match std::fs::remove_file(&half) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&half)?;
    file.write_all(bytes)?;
    if let Ok(old) = std::fs::metadata(path) {
        // Root writes files that the service's group must still be able to read; nobody else may give a file away.
        let _ = std::os::unix::fs::fchown(&file, Some(old.uid()), Some(old.gid()));
        file.set_permissions(old.permissions())?;
    }
    file.sync_all()?;
    std::fs::rename(&half, path)?;
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
    Ok(file)
}

fn stamp(folder: &Path, format: u32) -> Result<(), FormatError> {
    let path = folder.join(FILE);
    let line = format!("{WORD} {format} {}\n", env!("CARGO_PKG_VERSION"));
    replace(&path, line.as_bytes())
        .map(drop)
        .map_err(|source| FormatError::Io {
            doing: "write",
            path: path.clone(),
            source,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_folder_and_one_without_a_stamp_are_stamped() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        assert_eq!(open(&data).unwrap().format, 0);
        let stamp = check(&data).unwrap();
        assert_eq!(
            (stamp.format, stamp.version.as_str()),
            (FORMAT, env!("CARGO_PKG_VERSION"))
        );
        assert_eq!(open(&data).unwrap(), stamp);
    }

    #[test]
    fn a_newer_format_is_refused_with_the_way_back_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let line = "sparkgate-data 99 7.8.9\n";
        std::fs::write(folder.path().join(FILE), line).unwrap();
        let said = open(folder.path()).unwrap_err().to_string();
        for part in ["7.8.9", "format 99", "install", "sparkgate restore"] {
            assert!(said.contains(part), "{said}");
        }
        assert_eq!(
            std::fs::read_to_string(folder.path().join(FILE)).unwrap(),
            line
        );
    }

    #[test]
    fn a_step_that_was_cut_off_is_run_again_and_finished_ones_are_not() {
        fn leave_a_mark(folder: &Path) -> io::Result<()> {
            std::fs::write(folder.join("first"), "once")
        }
        fn fail_once(folder: &Path) -> io::Result<()> {
            let mark = folder.join("second");
            if mark.exists() {
                // The first step is not run again: what it made may have been changed since.
                return std::fs::rename(folder.join("first"), folder.join("kept"));
            }
            std::fs::write(mark, "begun")?;
            Err(io::Error::other("power cut"))
        }
        let folder = tempfile::tempdir().unwrap();
        let steps: [Step; 2] = [leave_a_mark, fail_once];
        let cut = migrate(folder.path(), &steps).unwrap_err();
        assert!(matches!(
            cut,
            FormatError::Io {
                doing: "migrate",
                ..
            }
        ));
        std::fs::write(folder.path().join("first"), "changed").unwrap();
        // Format 1 is known and finished; only the second step is left.
        assert_eq!(check(folder.path()).unwrap().format, 1);
        migrate(folder.path(), &steps).unwrap();
        assert_eq!(
            std::fs::read_to_string(folder.path().join("kept")).unwrap(),
            "changed"
        );
    }

    #[test]
    fn a_replaced_file_keeps_its_permissions_and_follows_no_link() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (path, victim) = (folder.path().join("users"), folder.path().join("victim"));
        let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        let mut file = replace(&path, b"one").unwrap();
        assert_eq!(mode(), 0o600);
        file.write_all(b" and more").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"one and more");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        std::fs::write(&victim, "untouched").unwrap();
        std::os::unix::fs::symlink(&victim, folder.path().join("users.new")).unwrap();
        replace(&path, b"two").unwrap();
        assert_eq!(
            (mode(), std::fs::read(&path).unwrap()),
            (0o640, b"two".to_vec())
        );
        assert_eq!(std::fs::read(&victim).unwrap(), b"untouched");
    }

    #[test]
    fn nonsense_is_named() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(FILE), "hello\n").unwrap();
        assert!(matches!(
            check(folder.path()),
            Err(FormatError::Unreadable(_))
        ));
    }
}
