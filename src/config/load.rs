//! Reading TOML files into a configuration, with every mistake at once.
//!
//! Serde stops at its first error. So each file is read again and again, each time without the entry that was
//! just complained about, until it is accepted: the complaints met on the way are the list that a person sees.
//! Each file alone must be a valid (partial) configuration, which is why every section has defaults; this is
//! what gives each complaint its file, line and column.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A mistake in a file, shown as `file:line:col: message`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// The file it is in.
    pub file: PathBuf,
    /// 1-based line and column (in characters); `None` where the whole file is meant.
    pub place: Option<(usize, usize)>,
    /// What is wrong, and what to do.
    pub message: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Some((line, column)) => {
                write!(
                    f,
                    "{}:{line}:{column}: {}",
                    self.file.display(),
                    self.message
                )
            }
            None => write!(f, "{}: {}", self.file.display(), self.message),
        }
    }
}

/// A configuration that was read, and where each of its values comes from.
#[derive(Debug, Clone)]
pub struct Loaded<T> {
    /// The merged configuration.
    pub value: T,
    /// For each dotted key that a file sets: that file and line.
    pub sources: BTreeMap<String, (PathBuf, usize)>,
}

/// One file's name and text.
#[derive(Debug, Clone)]
pub struct Source {
    /// Where it was read from.
    pub file: PathBuf,
    /// Its text.
    pub text: String,
}

/// A limit on complaints a file, so that a binary file by mistake does not print for ever.
const MOST_DIAGNOSTICS: usize = 64;

/// Reads the files in order; later ones win: tables merge, scalars and arrays replace.
///
/// # Errors
/// Every mistake of every file.
pub fn load<T: DeserializeOwned>(sources: &[Source]) -> Result<Loaded<T>, Vec<Diagnostic>> {
    match load_usable(sources) {
        (Some(loaded), diagnostics) if diagnostics.is_empty() => Ok(loaded),
        (_, diagnostics) => Err(diagnostics),
    }
}

/// As [`load`], but what is right is kept beside the mistakes: each entry that was complained about is left out, as if
/// it were not there. A checker goes on with it, so that a typo does not hide the mistakes of the files it names.
/// `None`: not even that makes a configuration.
pub fn load_usable<T: DeserializeOwned>(
    sources: &[Source],
) -> (Option<Loaded<T>>, Vec<Diagnostic>) {
    let mut diagnostics = Vec::new();
    let mut merged = toml::Table::new();
    let mut origins = BTreeMap::new();
    for source in sources {
        let (found, usable) = sift::<T>(source);
        diagnostics.extend(found);
        let Some(usable) = usable else { continue };
        record_sources(source, &usable, "", &mut origins);
        let table = Spanned::new(0..source.text.len(), usable);
        if let Ok(table) =
            <toml::Table as serde::Deserialize>::deserialize(toml::de::Deserializer::from(table))
        {
            merge(&mut merged, table);
        }
    }
    match merged.try_into::<T>() {
        Ok(value) => (
            Some(Loaded {
                value,
                sources: origins,
            }),
            diagnostics,
        ),
        Err(error) => {
            diagnostics.push(Diagnostic {
                file: sources.last().map_or_else(PathBuf::new, |s| s.file.clone()),
                place: None,
                message: error.message().to_owned(),
            });
            (None, diagnostics)
        }
    }
}

/// Every mistake of one file, in order of place.
#[must_use]
pub fn check<T: DeserializeOwned>(source: &Source) -> Vec<Diagnostic> {
    sift::<T>(source).0
}

/// Every mistake of one file, and the file without them; `None` where it is no TOML at all.
fn sift<T: DeserializeOwned>(source: &Source) -> (Vec<Diagnostic>, Option<DeTable<'_>>) {
    let (mut table, errors) = DeTable::parse_recoverable(&source.text);
    let mut found: Vec<Diagnostic> = errors
        .iter()
        .map(|error| diagnose(source, error.span(), error.message()))
        .collect();
    if !found.is_empty() {
        return (found, None);
    }
    let mut usable = true;
    while let Err(error) = T::deserialize(toml::de::Deserializer::from(table.clone())) {
        let span = error.span();
        found.push(diagnose(source, span.clone(), error.message()));
        usable = found.len() < MOST_DIAGNOSTICS
            && span.is_some_and(|span| remove_at(table.get_mut(), span.start));
        if !usable {
            break;
        }
    }
    found.sort_by_key(|d| d.place);
    (found, usable.then(|| table.into_inner()))
}

fn diagnose(source: &Source, span: Option<std::ops::Range<usize>>, message: &str) -> Diagnostic {
    Diagnostic {
        file: source.file.clone(),
        place: span.map(|span| line_column(&source.text, span.start)),
        message: with_nearest(message),
    }
}

/// 1-based line and column of a byte offset.
fn line_column(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |l| l.chars().count()) + 1;
    (line, column)
}

/// Adds the nearest known name to serde's "unknown field" message.
fn with_nearest(message: &str) -> String {
    let mut quoted = message.split('`').skip(1).step_by(2);
    let Some(written) = quoted.next() else {
        return message.to_owned();
    };
    if !(message.starts_with("unknown field") || message.starts_with("unknown variant")) {
        return message.to_owned();
    }
    let what = if message.starts_with("unknown field") {
        "key"
    } else {
        "value"
    };
    let known: Vec<&str> = quoted.collect();
    match nearest(written, known.iter().copied()) {
        Some(name) => format!("unknown {what} `{written}`; did you mean `{name}`?"),
        None => format!(
            "unknown {what} `{written}`; known here: {}",
            known.join(", ")
        ),
    }
}

/// The known name that is closest to what was written, when it is close enough to be meant.
pub fn nearest<'a>(written: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|name| (strsim::jaro_winkler(written, name), name))
        .filter(|(score, _)| *score > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

/// Removes the innermost entry whose key or value covers the offset.
fn remove_at(table: &mut DeTable<'_>, offset: usize) -> bool {
    let mut doomed = None;
    for (key, value) in table.iter_mut() {
        if key.span().contains(&offset) || key.span().start == offset {
            doomed = Some(key.clone());
            break;
        }
        if value.span().contains(&offset) || value.span().start == offset || covers(value, offset) {
            let inner = match value.get_mut() {
                DeValue::Table(inner) => remove_at(inner, offset),
                DeValue::Array(items) => items.iter_mut().any(|item| match item.get_mut() {
                    DeValue::Table(inner) => remove_at(inner, offset),
                    _ => false,
                }),
                _ => false,
            };
            if inner {
                return true;
            }
            doomed = Some(key.clone());
            break;
        }
    }
    match doomed {
        Some(key) => table.remove(&key).is_some(),
        None => false,
    }
}

/// Whether any entry inside a table that was written with headers or dotted keys covers the offset: such a
/// table's own span is its header alone.
fn covers(value: &Spanned<DeValue<'_>>, offset: usize) -> bool {
    match value.get_ref() {
        DeValue::Table(table) => table.iter().any(|(key, inner)| {
            key.span().contains(&offset) || inner.span().contains(&offset) || covers(inner, offset)
        }),
        DeValue::Array(items) => items
            .iter()
            .any(|item| item.span().contains(&offset) || covers(item, offset)),
        _ => false,
    }
}

fn record_sources(
    source: &Source,
    table: &DeTable<'_>,
    prefix: &str,
    origins: &mut BTreeMap<String, (PathBuf, usize)>,
) {
    for (key, value) in table {
        let path = if prefix.is_empty() {
            key.get_ref().to_string()
        } else {
            format!("{prefix}.{}", key.get_ref())
        };
        if let DeValue::Table(inner) = value.get_ref() {
            record_sources(source, inner, &path, origins);
        } else {
            let (line, _) = line_column(&source.text, key.span().start);
            origins.insert(path, (source.file.clone(), line));
        }
    }
}

fn merge(base: &mut toml::Table, over: toml::Table) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(toml::Value::Table(old)), toml::Value::Table(new)) => merge(old, new),
            (_, value) => {
                base.insert(key, value);
            }
        }
    }
}

/// Reads the configuration's files from disk: the main file, then each `*.toml` of the folder in name order.
///
/// # Errors
/// A file that can't be read, with the reason.
pub fn read_sources(main: &Path, folder: Option<&Path>) -> Result<Vec<Source>, Vec<Diagnostic>> {
    let mut files = vec![main.to_path_buf()];
    let mut failed = Vec::new();
    if let Some(folder) = folder {
        match std::fs::read_dir(folder) {
            Ok(entries) => {
                let mut more: Vec<PathBuf> = entries
                    .filter_map(Result::ok)
                    .map(|entry| entry.path())
                    .filter(|path| path.extension().is_some_and(|e| e == "toml"))
                    .collect();
                more.sort();
                files.extend(more);
            }
            Err(error) => failed.push(unreadable(folder, &error)),
        }
    }
    let mut sources = Vec::new();
    for file in files {
        match std::fs::read_to_string(&file) {
            Ok(text) => sources.push(Source { file, text }),
            Err(error) => failed.push(unreadable(&file, &error)),
        }
    }
    if failed.is_empty() {
        Ok(sources)
    } else {
        Err(failed)
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> Diagnostic {
    Diagnostic {
        file: path.to_path_buf(),
        place: None,
        message: format!("can't be read: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields, default)]
    struct Sample {
        name: String,
        inner: Inner,
        list: Vec<Inner>,
    }

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields, default)]
    struct Inner {
        size: u8,
        colour: String,
    }

    fn source(name: &str, text: &str) -> Source {
        Source {
            file: name.into(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn every_mistake_is_shown_with_its_place() {
        let text =
            "nmae = \"x\"\n[inner]\nsize = \"large\"\ncolor = \"red\"\n[[list]]\nsize = 300\n";
        let shown: Vec<String> = check::<Sample>(&source("a.toml", text))
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(shown.len(), 4, "{shown:#?}");
        assert!(
            shown[0].starts_with("a.toml:1:1: unknown key `nmae`; did you mean `name`?"),
            "{}",
            shown[0]
        );
        assert!(
            shown[1].starts_with("a.toml:3:8: invalid type"),
            "{}",
            shown[1]
        );
        assert!(
            shown[2].starts_with("a.toml:4:1: unknown key `color`; did you mean `colour`?"),
            "{}",
            shown[2]
        );
        assert!(
            shown[3].starts_with("a.toml:6:8: invalid value"),
            "{}",
            shown[3]
        );
    }

    #[test]
    fn syntax_errors_are_shown_with_their_place() {
        let shown = check::<Sample>(&source("a.toml", "name = \n"));
        assert_eq!(shown[0].place.map(|p| p.0), Some(1), "{shown:?}");
    }

    #[test]
    fn tables_merge_and_scalars_replace() {
        let loaded = load::<Sample>(&[
            source(
                "a.toml",
                "name = \"a\"\n[inner]\nsize = 1\ncolour = \"red\"\n[[list]]\nsize = 1\n",
            ),
            source("b.toml", "[inner]\nsize = 2\n"),
        ])
        .unwrap();
        assert_eq!(
            loaded.value.inner,
            Inner {
                size: 2,
                colour: "red".into()
            }
        );
        assert_eq!(loaded.value.list.len(), 1);
        assert_eq!(loaded.sources["inner.size"], (PathBuf::from("b.toml"), 2));
        assert_eq!(loaded.sources["inner.colour"], (PathBuf::from("a.toml"), 4));
    }
}
