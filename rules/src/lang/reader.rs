//! Reads TOML tables key by key, so that every error of a file is found in one go.

use std::collections::BTreeSet;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::nearest::nearest;
use super::source::{Problem, Source};
use super::{duration, source};
use crate::value::Value;

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct At<T> {
    pub(crate) value: T,
    pub(crate) range: Range<usize>,
}

pub(crate) type Item<'d> = Spanned<DeValue<'d>>;

/// Parses a file; its syntax errors are noted in the source.
pub(crate) fn parse<'t>(source: &mut Source<'t>) -> Spanned<DeTable<'t>> {
    let (table, errors) = DeTable::parse_recoverable(source.text);
    for error in errors {
        let range = error.span().unwrap_or(0..1);
        let detail = error.message().to_owned();
        source.error(range, Problem::Toml { detail });
    }
    table
}

/// A table that notes which keys were asked for; [`finish`](Self::finish) reports the others.
pub(crate) struct Table<'d, 't> {
    entries: &'d DeTable<'t>,
    pub(crate) range: Range<usize>,
    known: BTreeSet<&'static str>,
}

impl<'d, 't> Table<'d, 't> {
    pub(crate) fn new(entries: &'d DeTable<'t>, range: Range<usize>) -> Self {
        Self {
            entries,
            range,
            known: BTreeSet::new(),
        }
    }

    pub(crate) fn get(&mut self, key: &'static str) -> Option<&'d Item<'t>> {
        self.known.insert(key);
        self.entries.get(key)
    }

    pub(crate) fn has(&mut self, key: &'static str) -> bool {
        self.get(key).is_some()
    }

    /// Reports what was never asked for.
    pub(crate) fn finish(self, source: &mut Source<'_>) {
        for (key, _) in self.entries {
            let name = key.get_ref().as_ref();
            if !self.known.contains(name) {
                let nearest = nearest(name, self.known.iter().copied());
                let key_name = name.to_owned();
                source.error(
                    key.span(),
                    Problem::UnknownKey {
                        key: key_name,
                        nearest,
                    },
                );
            }
        }
    }

    /// Every key and value in the order of the file; no key counts as unknown after this.
    pub(crate) fn all(&self) -> impl Iterator<Item = (At<&'d str>, &'d Item<'t>)> + use<'d, 't> {
        let mut entries: Vec<_> = self.entries.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        entries.into_iter().map(|(key, value)| {
            let at = At {
                value: key.get_ref().as_ref(),
                range: key.span(),
            };
            (at, value)
        })
    }

    pub(crate) fn missing(&self, source: &mut Source<'_>, key: &'static str) {
        // A table of its own points at its header, an inline one at itself.
        source.error(self.range.clone(), Problem::MissingKey { key });
    }

    pub(crate) fn text(
        &mut self,
        source: &mut Source<'_>,
        key: &'static str,
    ) -> Option<At<&'d str>> {
        let item = self.get(key)?;
        match item.get_ref().as_str() {
            Some(value) => Some(At {
                value,
                range: item.span(),
            }),
            None => wrong(source, key, item, "a text"),
        }
    }

    pub(crate) fn required_text(
        &mut self,
        source: &mut Source<'_>,
        key: &'static str,
    ) -> Option<At<&'d str>> {
        if !self.has(key) {
            self.missing(source, key);
        }
        self.text(source, key)
    }

    pub(crate) fn boolean(&mut self, source: &mut Source<'_>, key: &'static str) -> bool {
        let Some(item) = self.get(key) else {
            return false;
        };
        match item.get_ref().as_bool() {
            Some(value) => value,
            None => wrong(source, key, item, "true or false").unwrap_or(false),
        }
    }

    pub(crate) fn duration(&mut self, source: &mut Source<'_>, key: &'static str) -> Option<u64> {
        self.duration_at(source, key).map(|at| at.value)
    }

    pub(crate) fn duration_at(
        &mut self,
        source: &mut Source<'_>,
        key: &'static str,
    ) -> Option<At<u64>> {
        let item = self.get(key)?;
        let Some(text) = item.get_ref().as_str() else {
            return wrong(source, key, item, "a duration such as \"30s\"");
        };
        let range = item.span();
        match duration::parse(text) {
            Some(value) => Some(At { value, range }),
            None => {
                let text = text.to_owned();
                source.error(range, Problem::Duration { text });
                None
            }
        }
    }

    /// A duration above zero.
    pub(crate) fn positive(&mut self, source: &mut Source<'_>, key: &'static str) -> Option<u64> {
        let at = self.duration_at(source, key)?;
        if at.value == 0 {
            let (key, needed) = (key.to_owned(), "longer than zero");
            source.error(at.range, Problem::Range { key, needed });
            return None;
        }
        Some(at.value)
    }

    pub(crate) fn number(&mut self, source: &mut Source<'_>, key: &'static str) -> Option<At<f64>> {
        let item = self.get(key)?;
        match scalar(item.get_ref()).and_then(|v| v.as_f64()) {
            Some(value) => Some(At {
                value,
                range: item.span(),
            }),
            None => wrong(source, key, item, "a number"),
        }
    }

    pub(crate) fn integer(
        &mut self,
        source: &mut Source<'_>,
        key: &'static str,
    ) -> Option<At<i64>> {
        let item = self.get(key)?;
        match integer(item) {
            Some(at) => Some(at),
            None => wrong(source, key, item, "a whole number"),
        }
    }

    /// One value that a metric can have.
    pub(crate) fn scalar(&mut self, source: &mut Source<'_>, key: &'static str) -> Option<Value> {
        let item = self.get(key)?;
        match scalar(item.get_ref()) {
            Some(value) => Some(value),
            None => wrong(source, key, item, "a number, a text, true or false"),
        }
    }

    pub(crate) fn table(
        &mut self,
        source: &mut Source<'_>,
        key: &'static str,
    ) -> Option<Table<'d, 't>> {
        let item = self.get(key)?;
        as_table(source, key, item)
    }

    pub(crate) fn array(&mut self, source: &mut Source<'_>, key: &'static str) -> &'d [Item<'t>] {
        let Some(item) = self.get(key) else {
            return &[];
        };
        match item.get_ref().as_array() {
            Some(array) => array,
            None => wrong(source, key, item, "a list").unwrap_or(&[]),
        }
    }

    pub(crate) fn texts(&mut self, source: &mut Source<'_>, key: &'static str) -> Vec<At<&'d str>> {
        let items = self.array(source, key).iter();
        items
            .filter_map(|item| match item.get_ref().as_str() {
                Some(value) => Some(At {
                    value,
                    range: item.span(),
                }),
                None => wrong(source, key, item, "a list of texts"),
            })
            .collect()
    }

    /// A word out of a fixed set.
    pub(crate) fn word<T>(
        &mut self,
        source: &mut Source<'_>,
        key: &'static str,
        known: &[&'static str],
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let at = self.text(source, key)?;
        let parsed = parse(at.value);
        if parsed.is_none() {
            source.error(at.range, unknown_word(key, at.value, known));
        }
        parsed
    }
}

pub(crate) fn unknown_word(key: &str, word: &str, known: &[&'static str]) -> source::Problem {
    Problem::UnknownWord {
        key: key.to_owned(),
        word: word.to_owned(),
        nearest: nearest(word, known.iter().copied()),
        known: known.join(", "),
    }
}

pub(crate) fn as_table<'d, 't>(
    source: &mut Source<'_>,
    key: &str,
    item: &'d Item<'t>,
) -> Option<Table<'d, 't>> {
    match item.get_ref().as_table() {
        Some(entries) => Some(Table::new(entries, item.span())),
        None => wrong(source, key, item, "a table"),
    }
}

pub(crate) fn wrong<T>(
    source: &mut Source<'_>,
    key: &str,
    item: &Item<'_>,
    needed: &'static str,
) -> Option<T> {
    source.error(
        item.span(),
        Problem::WrongType {
            key: key.to_owned(),
            needed,
            found: item.get_ref().type_str(),
        },
    );
    None
}

pub(crate) fn integer(item: &Item<'_>) -> Option<At<i64>> {
    let integer = item.get_ref().as_integer()?;
    let value = i64::from_str_radix(integer.as_str(), integer.radix()).ok()?;
    Some(At {
        value,
        range: item.span(),
    })
}

pub(crate) fn scalar(value: &DeValue<'_>) -> Option<Value> {
    Some(match value {
        DeValue::Boolean(v) => Value::Bool(*v),
        DeValue::String(v) => Value::String(v.as_ref().into()),
        DeValue::Float(v) => Value::Double(v.as_str().parse().ok()?),
        DeValue::Integer(v) => {
            let (text, radix) = (v.as_str(), v.radix());
            match i64::from_str_radix(text, radix) {
                Ok(v) => Value::Int(v),
                Err(_) => Value::UInt(u64::from_str_radix(text, radix).ok()?),
            }
        }
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => return None,
    })
}
