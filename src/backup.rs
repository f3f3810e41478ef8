//! One file that makes a gateway again: configuration, rules, models, users and rights, and the state that is not in
//! the journal (devices with their last values, rule and alarm state, holds). Records that wait for the cloud are not
//! in it, nor is the audit log, which belongs to the machine that wrote it; neither are secrets: keys, tokens, passwords and credentials are named in the manifest and left out.
//!
//! ```text
//! manifest.json      who made it, when, from which paths, what was left out
//! part-N/…           one file or folder that the configuration names
//! state              an export of the state store (src/state/snapshot.rs)
//! ```
//!
//! A gzipped tar, so that any tool can look into it. [`Manifest`] says where each part goes back to; nothing in the
//! archive chooses a path by itself.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::pipeline::checkpoint::{COMMANDS, META, Meta};
use crate::state::snapshot::{self, SnapshotError};
use crate::state::{Batch, OpenError, StateError, StateStore};

/// Format of the archive.
pub const FORMAT: u32 = 1;
const MANIFEST: &str = "manifest.json";
const STATE: &str = "state";
/// Folders below a part that are followed.
const DEPTH: usize = 16;
/// A manifest is small; a larger one is not ours.
const MOST_MANIFEST: u64 = 1 << 20;

/// What a backup is and where its parts belong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`] of the program that made it.
    pub format: u32,
    /// Version of that program.
    pub version: String,
    /// Gateway id.
    pub gateway: String,
    /// When, ms UTC.
    pub made_ms: u64,
    /// Data folder that the state belongs to.
    pub data_dir: PathBuf,
    /// Journal record that the state is true for; `None`: there was no state.
    pub record: Option<u64>,
    /// Where `part-N` lay, in order.
    pub parts: Vec<PathBuf>,
    /// Secrets that are not in the archive and have to be put in place by hand.
    pub left_out: Vec<PathBuf>,
}

/// Why a backup can't be made or used.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The filesystem or the archive refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It is no backup of ours.
    #[error("{}: not a sparkgate backup: {reason}", path.display())]
    Foreign {
        /// Which file.
        path: PathBuf,
        /// What was met.
        reason: String,
    },
    /// A newer program made it.
    #[error(
        "made by sparkgate {version} in backup format {format}, and this one knows formats up to {FORMAT}: install sparkgate {version}"
    )]
    Newer {
        /// Its format.
        format: u32,
        /// Who made it.
        version: String,
    },
    /// The data folder is in use, or holds data.
    #[error("{}: {reason}", folder.display())]
    Occupied {
        /// The data folder.
        folder: PathBuf,
        /// What is there.
        reason: &'static str,
    },
    /// The export in the archive is damaged or can't be loaded.
    #[error("state")]
    Snapshot(#[from] SnapshotError),
    /// The state folder can't be made.
    #[error("state")]
    Open(#[from] OpenError),
    /// The new store refuses.
    #[error("state")]
    State(#[from] StateError),
}

fn at(path: &Path) -> impl Fn(io::Error) -> BackupError + '_ {
    move |source| BackupError::Io {
        path: path.to_owned(),
        source,
    }
}

/// The files and folders that belong into a backup, and the secrets that don't.
#[must_use]
pub fn parts(config: &Config, sources: &[PathBuf]) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let mut parts: Vec<PathBuf> = sources.to_vec();
    parts.extend(config.rules.paths.iter().cloned());
    parts.extend(config.models.paths.iter().cloned());
    let mqtt = &config.mqtt;
    // Users are argon2 hashes, rights are no secret.
    parts.extend(
        [&mqtt.users_file, &mqtt.acl_file]
            .into_iter()
            .flatten()
            .cloned(),
    );
    let mut secrets: Vec<PathBuf> = config.admin.token_file.iter().cloned().collect();
    secrets.extend(mqtt.tls.iter().map(|tls| tls.key.clone()));
    if let Some(bridge) = &config.bridge {
        let files = [
            &bridge.creds_file,
            &bridge.nkey_file,
            &bridge.password_file,
            &bridge.token_file,
        ];
        secrets.extend(files.into_iter().flatten().cloned());
        secrets.extend(bridge.tls.iter().filter_map(|tls| tls.key.clone()));
    }
    for server in &config.host.server {
        let files = server.password_file.iter().chain(&server.tls.key);
        secrets.extend(files.cloned());
    }
    let webhooks = config.notify.webhook.iter();
    secrets.extend(webhooks.filter_map(|to| to.token_file.clone()));
    let mails = config.notify.smtp.iter();
    secrets.extend(mails.filter_map(|to| to.password_file.clone()));
    #[cfg(feature = "cold")]
    if let Some(cold) = &config.buffer.cold {
        secrets.extend(cold.credentials_file.clone());
    }
    parts.retain(|part| part.exists());
    parts.dedup();
    (parts, secrets)
}

/// Writes an archive; `state` is an export of the state store. Nobody but the owner can read it.
///
/// # Errors
/// [`BackupError`]; a half-written file is removed.
pub fn write(
    path: &Path,
    manifest: &Manifest,
    state: Option<&mut File>,
) -> Result<(), BackupError> {
    use std::os::unix::fs::OpenOptionsExt;
    let half = path.with_extension("part");
    let file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&half)
        .map_err(at(&half))?;
    let done = write_into(&file, manifest, state)
        .and_then(|()| file.sync_all().map_err(at(&half)))
        .and_then(|()| std::fs::rename(&half, path).map_err(at(path)));
    if done.is_err() {
        // The half of an archive is of no use.
        let _ = std::fs::remove_file(&half);
    }
    done
}

fn write_into(
    file: &File,
    manifest: &Manifest,
    state: Option<&mut File>,
) -> Result<(), BackupError> {
    let zip =
        flate2::write::GzEncoder::new(io::BufWriter::new(file), flate2::Compression::default());
    let mut tar = tar::Builder::new(zip);
    let text = serde_json::to_vec_pretty(manifest)
        .map_err(io::Error::other)
        .map_err(at(Path::new(MANIFEST)))?;
    let mut head = tar::Header::new_gnu();
    head.set_size(text.len() as u64);
    head.set_mode(0o600);
    head.set_mtime(manifest.made_ms / 1000);
    tar.append_data(&mut head, MANIFEST, text.as_slice())
        .map_err(at(Path::new(MANIFEST)))?;
    for (number, part) in manifest.parts.iter().enumerate() {
        append(
            &mut tar,
            part,
            &PathBuf::from(format!("part-{number}")),
            &manifest.left_out,
            DEPTH,
        )?;
    }
    if let Some(state) = state {
        tar.append_file(STATE, state)
            .map_err(at(Path::new(STATE)))?;
    }
    let mut buffered = tar
        .into_inner()
        .and_then(flate2::write::GzEncoder::finish)
        .map_err(at(Path::new(MANIFEST)))?;
    buffered.flush().map_err(at(Path::new(MANIFEST)))
}

/// A file, or a folder with what is in it. A secret that lies in a rules folder stays out, too.
fn append<W: Write>(
    tar: &mut tar::Builder<W>,
    from: &Path,
    name: &Path,
    secrets: &[PathBuf],
    depth: usize,
) -> Result<(), BackupError> {
    if secrets.iter().any(|secret| secret == from) {
        return Ok(());
    }
    if !from.is_dir() {
        let mut file = File::open(from).map_err(at(from))?;
        return tar.append_file(name, &mut file).map_err(at(from));
    }
    if depth == 0 {
        return Ok(());
    }
    tar.append_dir(name, from).map_err(at(from))?;
    let mut inside: Vec<PathBuf> = std::fs::read_dir(from)
        .map_err(at(from))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<_>>()
        .map_err(at(from))?;
    inside.sort();
    for path in inside {
        if let Some(last) = path.file_name() {
            append(tar, &path, &name.join(last), secrets, depth - 1)?;
        }
    }
    Ok(())
}

/// Reads the manifest, which is the first entry.
///
/// # Errors
/// [`BackupError`].
pub fn manifest(path: &Path) -> Result<Manifest, BackupError> {
    let foreign = |reason: String| BackupError::Foreign {
        path: path.to_owned(),
        reason,
    };
    let mut tar = open(path)?;
    let first = tar
        .entries()
        .and_then(|mut entries| entries.next().transpose())
        .map_err(|error| foreign(error.to_string()))?
        .ok_or_else(|| foreign("it is empty".to_owned()))?;
    if first.path().ok().as_deref() != Some(Path::new(MANIFEST)) {
        return Err(foreign(format!("it does not begin with {MANIFEST}")));
    }
    let mut text = String::new();
    first
        .take(MOST_MANIFEST)
        .read_to_string(&mut text)
        .map_err(|error| foreign(error.to_string()))?;
    // The format first: a newer manifest may have other keys.
    let value: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| foreign(error.to_string()))?;
    let word = |key: &str| value.get(key).and_then(serde_json::Value::as_u64);
    match word("format") {
        Some(format) if format > u64::from(FORMAT) => Err(BackupError::Newer {
            format: u32::try_from(format).unwrap_or(u32::MAX),
            version: value
                .get("version")
                .and_then(serde_json::Value::as_str)
                .unwrap_or("unknown")
                .to_owned(),
        }),
        Some(_) => serde_json::from_value(value).map_err(|error| foreign(error.to_string())),
        None => Err(foreign("its manifest has no format".to_owned())),
    }
}

fn open(
    path: &Path,
) -> Result<tar::Archive<flate2::read::GzDecoder<io::BufReader<File>>>, BackupError> {
    let file = File::open(path).map_err(at(path))?;
    Ok(tar::Archive::new(flate2::read::GzDecoder::new(
        io::BufReader::new(file),
    )))
}

/// Puts everything back where the manifest says, below `root` (`/` for a real restore). Files that are there are kept
/// as `<name>.before-restore`; a data folder that holds a state or a journal is refused unless `replace`, and then what
/// it held moves into its `before-restore-<n>/`. Returns what was written.
///
/// # Errors
/// [`BackupError`].
pub fn restore(path: &Path, root: &Path, replace: bool) -> Result<Vec<PathBuf>, BackupError> {
    let manifest = manifest(path)?;
    let data = below(root, &manifest.data_dir);
    make_room(&data, replace)?;
    let mut written = Vec::new();
    let mut tar = open(path)?;
    for entry in tar.entries().map_err(at(path))? {
        let mut entry = entry.map_err(at(path))?;
        let name = entry.path().map_err(at(path))?.into_owned();
        if name == Path::new(STATE) {
            restore_state(&mut entry, &data)?;
            written.push(data.join("state"));
            continue;
        }
        let Some((number, inside)) = part_of(&name) else {
            continue;
        };
        let Some(part) = manifest.parts.get(number) else {
            continue;
        };
        if entry.header().entry_type().is_file() {
            let mut to = below(root, part);
            if !inside.as_os_str().is_empty() {
                to = to.join(&inside);
            }
            put(&mut entry, &to)?;
            written.push(to);
        }
    }
    Ok(written)
}

/// An absolute path below another root.
fn below(root: &Path, path: &Path) -> PathBuf {
    let inside: PathBuf = path
        .components()
        .filter(|c| matches!(c, Component::Normal(_)))
        .collect();
    root.join(inside)
}

/// `part-3/a/b` is `(3, a/b)`; anything that could lead out of the part is nothing.
fn part_of(name: &Path) -> Option<(usize, PathBuf)> {
    let mut components = name.components();
    let Some(Component::Normal(first)) = components.next() else {
        return None;
    };
    let number = first.to_str()?.strip_prefix("part-")?.parse().ok()?;
    let inside = components.as_path();
    inside
        .components()
        .all(|c| matches!(c, Component::Normal(_)))
        .then(|| (number, inside.to_path_buf()))
}

fn make_room(data: &Path, replace: bool) -> Result<(), BackupError> {
    std::fs::create_dir_all(data).map_err(at(data))?;
    let held: Vec<PathBuf> = ["journal", "state", "mqtt", "audit"]
        .iter()
        .map(|name| data.join(name))
        .filter(|path| path.exists())
        .collect();
    if held.is_empty() {
        return Ok(());
    }
    if !replace {
        return Err(BackupError::Occupied {
            folder: data.to_owned(),
            reason: "holds the data of a gateway; --replace moves it into before-restore-1/, or the next number that is free",
        });
    }
    // A running gateway holds this lock.
    // Held until everything is moved.
    let lock = File::open(data.join("state/lock")).ok();
    if lock.as_ref().is_some_and(|file| file.try_lock().is_err()) {
        return Err(BackupError::Occupied {
            folder: data.to_owned(),
            reason: "is in use: stop the gateway first",
        });
    }
    let aside = (1..)
        .map(|n| data.join(format!("before-restore-{n}")))
        .find(|aside| !aside.exists())
        .unwrap_or_else(|| data.join("before-restore"));
    std::fs::create_dir(&aside).map_err(at(&aside))?;
    for path in held {
        if let Some(name) = path.file_name() {
            std::fs::rename(&path, aside.join(name)).map_err(at(&path))?;
        }
    }
    drop(lock);
    own(&aside, data)
}

/// The new state, true for a journal that begins after it: record ids and the journal's epoch start anew.
fn restore_state(from: &mut impl Read, data: &Path) -> Result<(), BackupError> {
    let export = data.join("restore.tmp");
    let mut file = File::create(&export).map_err(at(&export))?;
    io::copy(from, &mut file).map_err(at(&export))?;
    let loaded = snapshot::examine(&export)
        .map_err(BackupError::from)
        .and_then(|snapshot| {
            let folder = data.join("state");
            let store = crate::state::open(&folder, crate::state::Options::default())?;
            snapshot::load(&snapshot, &store)?;
            let mut batch = Batch::default();
            if let Some(meta) = store.get(META)?.and_then(|bytes| Meta::decode(&bytes)) {
                batch.put(META, Meta { record: 0, ..meta }.encode());
            }
            // Writes that were open when the backup was made are nobody's any more.
            batch.delete(COMMANDS);
            // The audit log begins anew; its old head would accuse somebody of having removed it.
            batch.delete(crate::audit::KEY);
            store.commit(&batch)?;
            drop(store);
            own_all(&folder, data)
        });
    std::fs::remove_file(&export).map_err(at(&export))?;
    loaded
}

fn put(from: &mut impl Read, to: &Path) -> Result<(), BackupError> {
    let folder = to.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(folder).map_err(at(folder))?;
    let half = folder.join(".restore.tmp");
    let mut file = File::create(&half).map_err(at(&half))?;
    io::copy(from, &mut file).map_err(at(&half))?;
    file.sync_all().map_err(at(&half))?;
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&half, std::fs::Permissions::from_mode(0o640)).map_err(at(&half))?;
    own(&half, folder)?;
    if to.exists() {
        let mut kept = to.as_os_str().to_owned();
        kept.push(".before-restore");
        std::fs::rename(to, &kept).map_err(at(to))?;
    }
    std::fs::rename(&half, to).map_err(at(to))
}

/// Gives a file the owner of the folder that it belongs to: the service's own user, which root restores for.
fn own(path: &Path, like: &Path) -> Result<(), BackupError> {
    use std::os::unix::fs::MetadataExt;
    let owner = std::fs::metadata(like).map_err(at(like))?;
    let now = std::fs::metadata(path).map_err(at(path))?;
    if (owner.uid(), owner.gid()) == (now.uid(), now.gid()) {
        return Ok(());
    }
    std::os::unix::fs::chown(path, Some(owner.uid()), Some(owner.gid())).map_err(at(path))
}

fn own_all(folder: &Path, like: &Path) -> Result<(), BackupError> {
    own(folder, like)?;
    for entry in std::fs::read_dir(folder).map_err(at(folder))? {
        let path = entry.map_err(at(folder))?.path();
        if path.is_dir() {
            own_all(&path, like)?;
        } else {
            own(&path, like)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(folder: &Path, parts: Vec<PathBuf>, left_out: Vec<PathBuf>) -> Manifest {
        Manifest {
            format: FORMAT,
            version: "0".into(),
            gateway: "a".into(),
            made_ms: 1_000,
            data_dir: folder.join("data"),
            record: None,
            parts,
            left_out,
        }
    }

    #[test]
    fn folders_come_back_where_they_were_and_secrets_stay_out() {
        let folder = tempfile::tempdir().unwrap();
        let rules = folder.path().join("rules.d");
        std::fs::create_dir_all(rules.join("deep")).unwrap();
        std::fs::write(rules.join("deep/p.toml"), "old").unwrap();
        std::fs::write(rules.join("key.pem"), "secret").unwrap();
        let manifest = some(
            folder.path(),
            vec![rules.clone()],
            vec![rules.join("key.pem")],
        );
        let file = folder.path().join("b.tar.gz");
        write(&file, &manifest, None).unwrap();
        assert_eq!(super::manifest(&file).unwrap(), manifest);

        std::fs::write(rules.join("deep/p.toml"), "new").unwrap();
        std::fs::remove_file(rules.join("key.pem")).unwrap();
        restore(&file, Path::new("/"), false).unwrap();
        let read = |name: &str| std::fs::read_to_string(rules.join(name)).unwrap();
        assert_eq!(
            (read("deep/p.toml"), read("deep/p.toml.before-restore")),
            ("old".into(), "new".into())
        );
        assert!(!rules.join("key.pem").exists());
    }

    #[test]
    fn a_data_folder_with_data_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let manifest = some(folder.path(), Vec::new(), Vec::new());
        let file = folder.path().join("b.tar.gz");
        write(&file, &manifest, None).unwrap();
        let journal = folder.path().join("data/journal");
        std::fs::create_dir_all(&journal).unwrap();
        assert!(matches!(
            restore(&file, Path::new("/"), false),
            Err(BackupError::Occupied { .. })
        ));
        restore(&file, Path::new("/"), true).unwrap();
        assert!(!journal.exists());
        assert!(folder.path().join("data/before-restore-1/journal").is_dir());
    }

    #[test]
    fn no_name_in_an_archive_leads_out_of_its_part() {
        for (name, expected) in [
            ("part-2/a/b", Some((2, "a/b"))),
            ("part-0", Some((0, ""))),
            ("part-0/../x", None),
            ("/part-0/x", None),
            ("part-x/a", None),
            ("other", None),
        ] {
            assert_eq!(
                part_of(Path::new(name)),
                expected.map(|(n, inside)| (n, PathBuf::from(inside))),
                "{name}"
            );
        }
        assert_eq!(
            below(Path::new("/r"), Path::new("/a/../../etc/x")),
            Path::new("/r/a/etc/x")
        );
    }

    #[test]
    fn what_is_no_backup_or_a_newer_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("b.tar.gz");
        std::fs::write(&file, "hello").unwrap();
        assert!(matches!(
            super::manifest(&file),
            Err(BackupError::Foreign { .. })
        ));
        let newer = Manifest {
            format: 99,
            ..some(folder.path(), Vec::new(), Vec::new())
        };
        write(&file, &newer, None).unwrap();
        assert!(matches!(
            super::manifest(&file),
            Err(BackupError::Newer { format: 99, .. })
        ));
    }
}
