//! Topic names and filters: what is valid, what matches, what fits into the gateway's subjects.

use std::sync::Arc;

/// A check of topic names beyond MQTT's own rules; `false` refuses the publish.
pub type TopicCheck = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// Bytes of a NATS subject that nothing may exceed.
const SUBJECT_LIMIT: usize = 1000;
/// Bytes of the longest record class, `inference` or `embedding`.
const LONGEST_CLASS: usize = 9;

/// A check that refuses Sparkplug topics whose subject
/// `sparkgate.<gateway>.<class>.<group>.<node>.<device>` would be longer than 1,000 bytes.
#[must_use]
pub fn subject_check(gateway: &str) -> TopicCheck {
    let fixed = "sparkgate.".len() + gateway.len() + LONGEST_CLASS + ".....".len();
    Arc::new(move |topic| {
        let Some(names) = topic.strip_prefix("spBv1.0/") else {
            return true;
        };
        let mut levels = names.split('/');
        let group = levels.next().unwrap_or_default();
        let _verb = levels.next();
        let names = levels.take(2).chain([group]);
        fixed + names.map(escaped_len).sum::<usize>() <= SUBJECT_LIMIT
    })
}

/// Bytes of a name as one subject token: `A-Z a-z 0-9 -` stay, any other byte becomes `=XX`.
fn escaped_len(name: &str) -> usize {
    name.bytes()
        .map(|b| {
            if b.is_ascii_alphanumeric() || b == b'-' {
                1
            } else {
                3
            }
        })
        .sum()
}

/// A filter as subscribed: shared (`$share/<group>/<filter>`) or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Filter<'a> {
    pub(crate) share: Option<&'a str>,
    pub(crate) filter: &'a str,
}

impl<'a> Filter<'a> {
    /// Reads a filter; `None`: not valid (MQTT 5.0 sections 4.7 and 4.8.2).
    pub(crate) fn parse(text: &'a str) -> Option<Self> {
        let (share, filter) = match text.strip_prefix("$share/") {
            Some(rest) => {
                let (group, filter) = rest.split_once('/')?;
                if group.is_empty() || group.contains(['+', '#']) {
                    return None;
                }
                (Some(group), filter)
            }
            None => (None, text),
        };
        is_filter(filter).then_some(Self { share, filter })
    }
}

/// Whether wildcards stand alone in their level and `#` is last.
pub(crate) fn is_filter(filter: &str) -> bool {
    if filter.is_empty() {
        return false;
    }
    let mut levels = filter.split('/').peekable();
    while let Some(level) = levels.next() {
        let wildcard = level.contains(['+', '#']);
        if (wildcard && level.len() > 1) || (level == "#" && levels.peek().is_some()) {
            return false;
        }
    }
    true
}

/// Whether a filter matches a topic name (section 4.7), with the rule that a leading wildcard does not match
/// names that begin with `$`.
pub(crate) fn matches(filter: &str, topic: &str) -> bool {
    if topic.starts_with('$') && (filter.starts_with('+') || filter.starts_with('#')) {
        return false;
    }
    let mut names = topic.split('/');
    for level in filter.split('/') {
        if level == "#" {
            return true;
        }
        match names.next() {
            Some(name) if level == "+" || level == name => {}
            _ => return false,
        }
    }
    names.next().is_none()
}

/// Whether everything that `filter` can match is matched by `pattern` too.
pub(crate) fn covers(pattern: &str, filter: &str) -> bool {
    if filter.starts_with('$') && (pattern.starts_with('+') || pattern.starts_with('#')) {
        return false;
    }
    let mut levels = filter.split('/');
    for wanted in pattern.split('/') {
        if wanted == "#" {
            return true;
        }
        match levels.next() {
            Some("#") | None => return false,
            Some(level) if wanted == "+" || wanted == level => {}
            Some(_) => return false,
        }
    }
    levels.next().is_none()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(filter: &str, topic: &str, expected: bool) {
        assert_eq!(matches(filter, topic), expected, "{filter} against {topic}");
    }

    #[test]
    fn filters_match_as_the_norm_says() {
        check("a/#", "a", true);
        check("a/#", "a/b/c", true);
        check("+", "a/b", false);
        check("+/+", "/b", true);
        check("/+", "/b", true);
        check("a/+", "a/", true);
        check("a/+", "a", false);
        check("a/+/c", "a//c", true);
        check("#", "$SYS/x", false);
        check("+/x", "$SYS/x", false);
        check("$SYS/#", "$SYS/x", true);
        check("a/b", "a/b/c", false);
    }

    #[test]
    fn invalid_filters_are_refused() {
        for bad in [
            "",
            "a/#/b",
            "a#",
            "a+",
            "+a/b",
            "$share//a",
            "$share/g",
            "$share/+/a",
            "$share/g/a#",
        ] {
            assert_eq!(Filter::parse(bad), None, "{bad}");
        }
        assert_eq!(
            Filter::parse("$share/g/a/+"),
            Some(Filter {
                share: Some("g"),
                filter: "a/+"
            })
        );
    }

    #[test]
    fn a_pattern_covers_only_what_it_matches_in_full() {
        assert!(covers("spBv1.0/g/NCMD/n/#", "spBv1.0/g/NCMD/n/#"));
        assert!(covers("spBv1.0/STATE/+", "spBv1.0/STATE/host"));
        assert!(covers("a/#", "a"));
        assert!(!covers("a/+", "a/#"));
        assert!(!covers("a/b", "a/+"));
        assert!(!covers("#", "$SYS/x"));
    }

    #[test]
    fn names_whose_subject_is_too_long_are_refused() {
        let fits = subject_check("site-a");
        assert!(fits("spBv1.0/g/DDATA/n/d"));
        assert!(fits(&"x".repeat(3000)));
        assert!(fits(&format!("spBv1.0/g/DDATA/n/{}", "d".repeat(968))));
        assert!(!fits(&format!("spBv1.0/g/DDATA/n/{}", "d".repeat(969))));
        assert!(!fits(&format!("spBv1.0/g/DDATA/n/{}", "é".repeat(170))));
    }

    /// The norm's text, word by word, on vectors of levels.
    fn naive(filter: &[&str], topic: &[&str]) -> bool {
        match (filter.split_first(), topic.split_first()) {
            (Some((&"#", _)), _) => true,
            (Some((f, fs)), Some((t, ts))) => (*f == "+" || f == t) && naive(fs, ts),
            (None, None) => true,
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn matching_agrees_with_the_naive_reading(
            filter in proptest::collection::vec(prop_oneof!["a", "b", "", "\\+"], 1..5),
            hash in any::<bool>(),
            topic in proptest::collection::vec(prop_oneof!["a", "b", "", "c"], 1..6),
        ) {
            let mut f: Vec<&str> = filter.iter().map(|s| if s == "\\+" { "+" } else { s.as_str() }).collect();
            if hash {
                f.push("#");
            }
            let t: Vec<&str> = topic.iter().map(String::as_str).collect();
            let (filter, topic) = (f.join("/"), t.join("/"));
            prop_assume!(!filter.is_empty() && !topic.is_empty());
            prop_assert_eq!(matches(&filter, &topic), naive(&f, &t));
            if covers("a/+/#", &filter) && matches(&filter, &topic) {
                prop_assert!(matches("a/+/#", &topic));
            }
        }
    }
}
