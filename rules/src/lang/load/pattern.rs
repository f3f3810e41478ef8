//! Patterns: stages, quantifiers, groups.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::expression;
use super::rule::{Found, uses_of};
use crate::lang::def::{Kind, PatternDef};
use crate::lang::expr::{Expr, Names, VARIABLES};
use crate::lang::nearest::nearest;
use crate::lang::reader::{At, Item, Table, as_table, integer, unknown_word};
use crate::lang::source::{Problem, Source};
use crate::pattern::{
    CondId, Condition, Contiguity, Inner, PatternSpec, Quantifier, Repeat, Skip, StageKind,
    StageSpec,
};

const CONTIGUITIES: [&str; 5] = [
    "next",
    "followed-by",
    "followed-by-any",
    "not-next",
    "not-followed-by",
];
const SKIPS: [&str; 5] = [
    "none",
    "next",
    "past-last-event",
    "first:STAGE",
    "last:STAGE",
];

/// Most conditions in one pattern.
const MOST_CONDITIONS: usize = 1_024;

struct Reader<'s, 't> {
    source: &'s mut Source<'t>,
    names: Names,
    conditions: Vec<Expr>,
    of_stages: BTreeMap<u16, u16>,
    /// Applies between all neighbours.
    gap: Option<i64>,
    main_metric: Option<Arc<str>>,
}

pub(super) fn read(source: &mut Source<'_>, mut table: Table<'_, '_>) -> Option<Found> {
    let before = source.errors.len();
    let within = table.positive(source, "within").map(signed);
    let gap = table.positive(source, "within_gap").map(signed);
    if !table.has("stages") {
        table.missing(source, "stages");
    }
    let items = table.array(source, "stages");
    let mut names = Vec::new();
    stage_names(source, items, &mut names);
    let skip = table.text(source, "skip");
    let skip = skip.map_or(Some(Skip::None), |at| read_skip(source, &at, &names));
    let range = table.range.clone();
    table.finish(source);
    let names: Vec<String> = names.into_iter().map(|at| at.value).collect();
    let mut reader = Reader {
        source,
        names: Names::with_stages(names),
        conditions: Vec::new(),
        of_stages: BTreeMap::new(),
        gap,
        main_metric: None,
    };
    let mut stages = reader.stages(items);
    let Reader {
        source,
        names,
        conditions,
        of_stages,
        main_metric,
        ..
    } = reader;
    if source.errors.len() > before {
        return None;
    }
    if let (Some(within), Some(last)) = (within, stages.last_mut()) {
        last.within = Some(last.within.map_or(within, |own| own.min(within)));
    }
    let spec = PatternSpec {
        stages,
        skip: skip?,
    };
    let plan = match spec.compile() {
        Ok(plan) => plan,
        Err(error) => {
            source.error(range, error);
            return None;
        }
    };
    Some(Found {
        uses: uses_of(&conditions),
        kind: Kind::Pattern(PatternDef {
            plan,
            conditions,
            of_stages,
        }),
        names,
        main_metric,
    })
}

fn signed(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

/// All stage names first, since any condition may name any stage.
fn stage_names(source: &mut Source<'_>, items: &[Item<'_>], names: &mut Vec<At<String>>) {
    for item in items {
        let Some(entries) = item.get_ref().as_table() else {
            continue;
        };
        let mut table = Table::new(entries, item.span());
        if let Some(group) = table.get("group").and_then(|g| g.get_ref().as_array()) {
            stage_names(source, group, names);
            continue;
        }
        // Its type is checked where the stage is read.
        let Some(name) = table.get("name").filter(|n| n.get_ref().is_str()) else {
            continue;
        };
        let text = name.get_ref().as_str().unwrap_or_default();
        if let Some(why) = bad_name(text) {
            let (name_text, what) = (text.to_owned(), "stage");
            let problem = Problem::BadName {
                name: name_text,
                what,
                why,
            };
            source.error(name.span(), problem);
        } else if let Some(first) = names.iter().find(|n| n.value == text) {
            let (what, first) = ("stage", source.place(first.range.start));
            let problem = Problem::Duplicate {
                what,
                name: text.to_owned(),
                first,
            };
            source.error(name.span(), problem);
        } else {
            names.push(At {
                value: text.to_owned(),
                range: name.span(),
            });
        }
    }
}

/// Why a name can't stand in an expression.
pub(super) fn bad_name(name: &str) -> Option<&'static str> {
    const RESERVED: [&str; 4] = ["true", "false", "null", "in"];
    let mut chars = name.chars();
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    match chars.next() {
        Some(c) if (c.is_ascii_alphabetic() || c == '_') && chars.all(fits) => {}
        _ => return Some("use a letter, then letters, digits and _"),
    }
    if VARIABLES.contains(&name) || RESERVED.contains(&name) {
        return Some("it means something else in an expression");
    }
    None
}

fn read_skip(source: &mut Source<'_>, at: &At<&str>, names: &[At<String>]) -> Option<Skip> {
    let stage = |source: &mut Source<'_>, name: &str| {
        let known = names.iter().map(|n| n.value.as_str());
        if known.clone().any(|n| n == name) {
            return Some(name.to_owned());
        }
        let (what, nearest) = ("stage", nearest(name, known));
        let name = name.to_owned();
        source.error(
            at.range.clone(),
            Problem::UnknownName {
                what,
                name,
                nearest,
            },
        );
        None
    };
    let strict = false;
    Some(match (at.value, at.value.split_once(':')) {
        ("none", _) => Skip::None,
        ("next", _) => Skip::ToNext,
        ("past-last-event", _) => Skip::PastLast,
        (_, Some(("first", name))) => Skip::ToFirst {
            stage: stage(source, name)?,
            strict,
        },
        (_, Some(("last", name))) => Skip::ToLast {
            stage: stage(source, name)?,
            strict,
        },
        _ => {
            let problem = unknown_word("skip", at.value, &SKIPS);
            source.error(at.range.clone(), problem);
            return None;
        }
    })
}

impl Reader<'_, '_> {
    fn stages(&mut self, items: &[Item<'_>]) -> Vec<StageSpec> {
        items.iter().filter_map(|item| self.stage(item)).collect()
    }

    fn stage(&mut self, item: &Item<'_>) -> Option<StageSpec> {
        let mut table = as_table(self.source, "stages", item)?;
        let contiguity = table
            .word(self.source, "contiguity", &CONTIGUITIES, |w| {
                Some(match w {
                    "next" => Contiguity::Next,
                    "followed-by" => Contiguity::FollowedBy,
                    "followed-by-any" => Contiguity::FollowedByAny,
                    "not-next" => Contiguity::NotNext,
                    "not-followed-by" => Contiguity::NotFollowedBy,
                    _ => return None,
                })
            })
            .unwrap_or(Contiguity::FollowedBy);
        let within = table.positive(self.source, "within").map(signed);
        let own_gap = table.positive(self.source, "within_gap").map(signed);
        let quantifier = self.quantifier(&mut table);
        let kind = if table.has("group") {
            let group = table.array(self.source, "group");
            StageKind::Group(self.stages(group))
        } else {
            let name = table.required_text(self.source, "name");
            let when = table.text(self.source, "when");
            let condition = when.and_then(|when| self.condition(&when));
            if self.main_metric.is_none()
                && let Some(condition) = &condition
                && let Some(expr) = self.conditions.get(usize::from(condition.id.0))
                && !contiguity.is_absence()
            {
                self.main_metric = expr.uses.metrics.first().cloned();
            }
            let name = name?.value.to_owned();
            if let (Some(stage), Some(condition)) = (self.names.stage(&name), &condition) {
                self.of_stages.insert(stage, condition.id.0);
            }
            StageKind::Event { name, condition }
        };
        let until = table.text(self.source, "until");
        let until = until.and_then(|until| self.condition(&until));
        table.finish(self.source);
        let gap = own_gap.or(self.gap);
        Some(StageSpec {
            kind,
            contiguity,
            quantifier: Quantifier {
                gap: gap.filter(|_| quantifier.repeat != Repeat::Once),
                ..quantifier
            },
            until,
            within,
            within_gap: gap,
        })
    }

    fn condition(&mut self, text: &At<&str>) -> Option<Condition> {
        let expr = expression(self.source, text, &self.names, true)?;
        if self.conditions.len() >= MOST_CONDITIONS {
            let (key, needed) = ("stages".to_owned(), "a list with at most 1024 conditions");
            let range = text.range.clone();
            self.source.error(range, Problem::Range { key, needed });
            return None;
        }
        let id = CondId(u16::try_from(self.conditions.len()).ok()?);
        let iterative = !expr.uses.stages.is_empty();
        self.conditions.push(expr);
        Some(Condition { id, iterative })
    }

    fn quantifier(&mut self, table: &mut Table<'_, '_>) -> Quantifier {
        let times = table.get("times");
        let at_least = table.integer(self.source, "at_least");
        let mut flag = |key| table.boolean(self.source, key);
        let (optional, greedy) = (flag("optional"), flag("greedy"));
        let (consecutive, combinations) = (flag("consecutive"), flag("combinations"));
        if consecutive && combinations {
            let what = "consecutive and combinations exclude each other";
            let range = table.range.clone();
            self.source.error(range, Problem::Combination { what });
        }
        let repeat = match (times, at_least) {
            (Some(item), Some(_)) => {
                let what = "times and at_least exclude each other";
                self.source
                    .error(item.span(), Problem::Combination { what });
                Repeat::Once
            }
            (Some(item), None) => self.times(item),
            (None, Some(at)) if at.value == 1 => Repeat::OneOrMore,
            (None, Some(at)) if at.value > 1 => Repeat::AtLeast(at.value),
            (None, Some(at)) => self.bad_count(at.range),
            (None, None) => Repeat::Once,
        };
        Quantifier {
            repeat,
            inner: match (consecutive, combinations) {
                (true, _) => Inner::Consecutive,
                (false, true) => Inner::Combinations,
                (false, false) => Inner::Relaxed,
            },
            greedy,
            optional,
            gap: None,
        }
    }

    /// `3` or `[2, 4]`.
    fn times(&mut self, item: &Item<'_>) -> Repeat {
        if let Some(at) = integer(item).filter(|at| at.value > 0) {
            return Repeat::Times(at.value);
        }
        if let Some([from, to]) = item.get_ref().as_array().map(|a| &**a)
            && let (Some(from), Some(to)) = (integer(from), integer(to))
            && from.value >= 0
            && to.value >= from.value.max(1)
        {
            return Repeat::Range(from.value, to.value);
        }
        self.bad_count(item.span())
    }

    fn bad_count(&mut self, range: Range<usize>) -> Repeat {
        let (key, needed) = (
            "times".to_owned(),
            "a count above zero, or a range such as [2, 4]",
        );
        self.source.error(range, Problem::Range { key, needed });
        Repeat::Once
    }
}
