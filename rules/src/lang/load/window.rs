//! Windows.

use std::sync::Arc;

use super::expression;
use super::pattern::bad_name;
use super::rule::Found;
use crate::lang::def::{Kind, WindowDef, WindowKind};
use crate::lang::expr::{Names, Uses};
use crate::lang::reader::{At, Table, wrong};
use crate::lang::source::{Problem, Source};

const KINDS: [&str; 5] = ["tumbling", "hopping", "sliding", "session", "count"];
/// Most samples in a window that counts.
const MOST_COUNT: i64 = 100_000;
/// A hopping window may be in so many panes at most.
const MOST_PANES: u64 = 1_000;

pub(super) fn read(source: &mut Source<'_>, mut table: Table<'_, '_>) -> Option<Found> {
    let before = source.errors.len();
    if !table.has("kind") {
        table.missing(source, "kind");
    }
    let word = table.word(source, "kind", &KINDS, |w| {
        KINDS.into_iter().find(|known| *known == w)
    });
    let kind = word.and_then(|word| read_kind(source, &mut table, word));
    let metric = table.required_text(source, "metric");
    let mut uses = Uses::default();
    let mut columns = Vec::new();
    if !table.has("emit") {
        table.missing(source, "emit");
    }
    if let Some(emit) = table.table(source, "emit") {
        for (name, item) in emit.all() {
            if let Some(why) = bad_name(name.value) {
                let (name_text, what) = (name.value.to_owned(), "column");
                let problem = Problem::BadName {
                    name: name_text,
                    what,
                    why,
                };
                source.error(name.range, problem);
                continue;
            }
            let Some(text) = item.get_ref().as_str() else {
                let _: Option<()> = wrong(source, name.value, item, "an expression");
                continue;
            };
            let at = At {
                value: text,
                range: item.span(),
            };
            if let Some(expr) = column(source, &at, &mut uses) {
                columns.push((Arc::<str>::from(name.value), expr));
            }
        }
    }
    let names = columns.iter().map(|(name, _)| name.to_string()).collect();
    let names = Names::columns(names);
    let when = table.text(source, "when");
    let when = when.and_then(|at| expression(source, &at, &names, true));
    table.finish(source);
    if source.errors.len() > before {
        return None;
    }
    let metric: Arc<str> = metric?.value.into();
    Some(Found {
        kind: Kind::Window(WindowDef {
            metric: metric.clone(),
            kind: kind?,
            aggregates: std::mem::take(&mut uses.aggregates),
            columns,
            when,
        }),
        names,
        uses,
        main_metric: Some(metric),
    })
}

/// Columns share one list of aggregates, so that each is kept once; the number of an aggregate in a
/// column is moved to its place in that list.
fn column(
    source: &mut Source<'_>,
    at: &At<&str>,
    uses: &mut Uses,
) -> Option<crate::lang::expr::Expr> {
    let names = Names::column_after(uses.aggregates.clone());
    let mut expr = expression(source, at, &names, false)?;
    uses.aggregates = std::mem::take(&mut expr.uses.aggregates);
    Some(expr)
}

fn read_kind(
    source: &mut Source<'_>,
    table: &mut Table<'_, '_>,
    word: &'static str,
) -> Option<WindowKind> {
    let needs = |source: &mut Source<'_>, table: &Table<'_, '_>, key| {
        table.missing(source, key);
        None::<u64>
    };
    match word {
        "count" => {
            if !table.has("size") {
                table.missing(source, "size");
            }
            let size = table.integer(source, "size");
            let every = table.integer(source, "every");
            let mut count = |at: Option<At<i64>>, key: &str| {
                let at = at?;
                if (1..=MOST_COUNT).contains(&at.value) {
                    return u32::try_from(at.value).ok();
                }
                let (key, needed) = (key.to_owned(), "from 1 to 100000");
                source.error(at.range, Problem::Range { key, needed });
                None
            };
            let size = count(size, "size")?;
            let every = count(every, "every").unwrap_or(size);
            Some(WindowKind::Count { size, every })
        }
        "session" => {
            let gap = match table.has("gap") {
                true => table.positive(source, "gap"),
                false => needs(source, table, "gap"),
            };
            Some(WindowKind::Session { gap: gap? })
        }
        _ => {
            let size = match table.has("size") {
                true => table.positive(source, "size"),
                false => needs(source, table, "size"),
            };
            match word {
                "tumbling" => Some(WindowKind::Tumbling { size: size? }),
                "sliding" => Some(WindowKind::Sliding { size: size? }),
                _ => {
                    let range = table.get("every").map(toml::Spanned::span);
                    let every = match range.is_some() {
                        true => table.positive(source, "every"),
                        false => needs(source, table, "every"),
                    };
                    let (size, every) = (size?, every?);
                    if every > size || size.div_ceil(every) > MOST_PANES {
                        let key = "every".to_owned();
                        let needed = "at most `size`, and at least a thousandth of it";
                        source.error(range.unwrap_or(0..1), Problem::Range { key, needed });
                        return None;
                    }
                    Some(WindowKind::Hopping { size, every })
                }
            }
        }
    }
}
