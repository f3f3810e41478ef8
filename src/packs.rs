//! Rule packs on disk: finding and reading them. What they mean is `rules`' business.

use std::path::{Path, PathBuf};

use crate::config::load::Diagnostic;

/// Folders below a path that are looked into.
const DEPTH: usize = 4;

/// The pack files at a path: the file itself, or every `*.toml` below a folder that is not a scenario.
///
/// # Errors
/// The path can't be read.
pub fn find(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    if path.is_file() {
        return Ok(vec![path.to_path_buf()]);
    }
    let mut found = Vec::new();
    walk(path, DEPTH, &mut found)?;
    found.retain(|file| !is_scenario(file));
    found.sort();
    Ok(found)
}

/// The scenario files beside a pack.
#[must_use]
pub fn scenarios(pack: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = pack
        .parent()
        .and_then(|folder| {
            std::fs::read_dir(if folder.as_os_str().is_empty() {
                Path::new(".")
            } else {
                folder
            })
            .ok()
        })
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|file| is_scenario(file))
        .collect();
    found.sort();
    found
}

fn is_scenario(file: &Path) -> bool {
    file.file_name()
        .is_some_and(|name| name.to_string_lossy().ends_with(".scenario.toml"))
}

fn walk(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            if depth > 0 {
                walk(&path, depth - 1, found)?;
            }
        } else if path.extension().is_some_and(|e| e == "toml") {
            found.push(path);
        }
    }
    Ok(())
}

/// Reads and checks packs.
///
/// # Errors
/// Every mistake of every file.
pub fn load(files: &[PathBuf]) -> Result<Vec<rules::Pack>, Vec<Diagnostic>> {
    let mut sources = Vec::new();
    let mut unreadable = Vec::new();
    for file in files {
        match std::fs::read_to_string(file) {
            Ok(text) => sources.push((file.display().to_string(), text)),
            Err(error) => unreadable.push(Diagnostic {
                file: file.clone(),
                place: None,
                message: format!("can't be read: {error}"),
            }),
        }
    }
    load_texts(&sources, unreadable)
}

fn load_texts(
    sources: &[(String, String)],
    mut wrong: Vec<Diagnostic>,
) -> Result<Vec<rules::Pack>, Vec<Diagnostic>> {
    match rules::load_packs(sources) {
        Ok(packs) if wrong.is_empty() => Ok(packs),
        Ok(_) => Err(wrong),
        Err(errors) => {
            wrong.extend(errors.into_iter().map(|error| Diagnostic {
                file: PathBuf::from(&error.file),
                place: error.place,
                message: error.message,
            }));
            Err(wrong)
        }
    }
}

/// The packs that a configuration names: files and folders, and those built into the binary.
///
/// # Errors
/// Every mistake of every file, unknown shipped names with the nearest one. A folder that does not exist is no
/// mistake: the default one is empty on a fresh machine.
pub fn configured(config: &crate::config::Rules) -> Result<Vec<rules::Pack>, Vec<Diagnostic>> {
    let mut sources = Vec::new();
    let mut wrong = Vec::new();
    for path in &config.paths {
        match find(path) {
            Ok(files) => {
                for file in files {
                    match std::fs::read_to_string(&file) {
                        Ok(text) => sources.push((file.display().to_string(), text)),
                        Err(error) => wrong.push(Diagnostic {
                            file,
                            place: None,
                            message: format!("can't be read: {error}"),
                        }),
                    }
                }
            }
            Err(error)
                if error.kind() == std::io::ErrorKind::NotFound && path.extension().is_none() =>
            {
                tracing::info!(path = %path.display(), "rules folder does not exist");
            }
            Err(error) => wrong.push(Diagnostic {
                file: path.clone(),
                place: None,
                message: format!("can't be read: {error}"),
            }),
        }
    }
    for name in &config.use_shipped {
        let mut known = false;
        for (id, text) in rules::shipped() {
            if name == "*" || name == id {
                known = true;
                sources.push((format!("shipped:{id}"), (*text).to_owned()));
            }
        }
        if !known {
            let near =
                crate::config::load::nearest(name, rules::shipped().iter().map(|(id, _)| *id));
            wrong.push(Diagnostic {
                file: PathBuf::from("rules.use_shipped"),
                place: None,
                message: near.map_or_else(
                    || format!("no pack `{name}` is built in"),
                    |near| format!("no pack `{name}` is built in; did you mean `{near}`?"),
                ),
            });
        }
    }
    load_texts(&sources, wrong)
}
