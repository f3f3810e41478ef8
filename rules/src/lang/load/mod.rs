//! From the text of packs to checked rules.

mod actions;
mod pattern;
mod rule;
#[cfg(test)]
mod tests;
mod wants;
mod window;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::def::Pack;
use super::expr::{self, Expr, Names};
use super::reader::{self, Table};
use super::source::{LoadError, Problem, Source};
use super::template::Template;

/// Largest pack file, bytes.
const MOST_TEXT: usize = 4 << 20;

/// Loads packs: each a name for messages (its path) and its text.
///
/// # Errors
/// Every error of every file at once, in the order of the files. Rules may not share an id, even in
/// different packs, and packs may not either.
pub fn load_packs(files: &[(String, String)]) -> Result<Vec<Pack>, Vec<LoadError>> {
    let mut packs = Vec::new();
    let mut errors = Vec::new();
    let mut seen = Seen::default();
    for (name, text) in files {
        let mut source = Source::new(name, text);
        let pack = read_pack(&mut source, &mut seen);
        source.errors.sort_by_key(|e| e.place);
        errors.append(&mut source.errors);
        packs.extend(pack);
    }
    if errors.is_empty() {
        Ok(packs)
    } else {
        Err(errors)
    }
}

/// Ids that are taken, and where.
#[derive(Default)]
struct Seen {
    packs: BTreeMap<String, String>,
    rules: BTreeMap<String, String>,
}

fn read_pack(source: &mut Source<'_>, seen: &mut Seen) -> Option<Pack> {
    if source.text.len() > MOST_TEXT {
        let (key, needed) = ("file".to_owned(), "at most 4 MiB long");
        source.error(0..1, Problem::Range { key, needed });
        return None;
    }
    let document = reader::parse(source);
    if !source.errors.is_empty() {
        return None;
    }
    let mut root = Table::new(document.get_ref(), 0..1);
    let Some(mut head) = root.table(source, "pack") else {
        if !root.has("pack") {
            root.missing(source, "pack");
        }
        return None;
    };
    let id = head.required_text(source, "id");
    let version = head.required_text(source, "version");
    // For people; nothing reads it.
    let _ = head.text(source, "description");
    head.finish(source);
    let mut pack = Pack {
        id: Arc::from(id.as_ref().map_or("", |at| at.value)),
        version: Arc::from(version.as_ref().map_or("", |at| at.value)),
        rules: Vec::new(),
    };
    if let Some(id) = id {
        check_id(source, "pack", id.value, &id.range);
        unique(source, "pack", id.value, &id.range, &mut seen.packs);
    }
    for item in root.array(source, "rule") {
        if let Some(table) = reader::as_table(source, "rule", item) {
            let rule = rule::read(source, table, &pack, seen);
            pack.rules.extend(rule.map(Arc::new));
        }
    }
    root.finish(source);
    Some(pack)
}

/// Ids stand in subjects, paths and command lines.
fn check_id(source: &mut Source<'_>, what: &'static str, id: &str, range: &Range<usize>) {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let why = if id.is_empty() {
        "it is empty"
    } else if id.len() > 128 {
        "it is longer than 128 characters"
    } else if !id.chars().all(fits) {
        "use A-Z a-z 0-9 - _ ."
    } else {
        return;
    };
    let name = id.to_owned();
    source.error(range.clone(), Problem::BadName { name, what, why });
}

fn unique(
    source: &mut Source<'_>,
    what: &'static str,
    name: &str,
    range: &Range<usize>,
    seen: &mut BTreeMap<String, String>,
) {
    if let Some(first) = seen.get(name) {
        let (name, first) = (name.to_owned(), first.clone());
        source.error(range.clone(), Problem::Duplicate { what, name, first });
    } else {
        seen.insert(name.to_owned(), source.place(range.start));
    }
}

/// Compiles an expression that stands in a file; its errors are noted where they are.
fn expression(
    source: &mut Source<'_>,
    text: &reader::At<&str>,
    names: &Names,
    condition: bool,
) -> Option<Expr> {
    match expr::compile(text.value, names, condition) {
        Ok(expr) => Some(expr),
        Err(problems) => {
            for expr::At { problem, range } in problems {
                let range = source.inside(&text.range, text.value, &range);
                source.error(range, problem);
            }
            None
        }
    }
}

fn template(source: &mut Source<'_>, text: &reader::At<&str>, names: &Names) -> Option<Template> {
    match Template::parse(text.value, names) {
        Ok(template) => Some(template),
        Err(errors) => {
            for (range, problem) in errors {
                let range = source.inside(&text.range, text.value, &range);
                source.error(range, problem);
            }
            None
        }
    }
}
