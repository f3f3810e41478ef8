//! Globs over names: `*` for any run of characters, `?` for one.

/// A glob over one name: `*` for any run of characters, `?` for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    text: String,
    any: bool,
    literal: bool,
}

impl Glob {
    /// Every text is a glob.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self {
            any: text == "*",
            literal: !text.contains(['*', '?']),
            text: text.to_owned(),
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the whole name fits. Time is at most pattern length times name length.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        if self.any {
            return true;
        }
        if self.literal {
            return self.text == name;
        }
        fits(&self.text, name)
    }
}

/// Greedy walk that remembers the last `*` and lengthens what it took on a mismatch.
fn fits(pattern: &str, name: &str) -> bool {
    let (mut p, mut n) = (pattern.chars(), name.chars());
    let mut retry: Option<(std::str::Chars<'_>, std::str::Chars<'_>)> = None;
    loop {
        let before = (p.clone(), n.clone());
        match (p.next(), n.next()) {
            (None, None) => return true,
            (Some('*'), _) => {
                n = before.1;
                retry = Some((p.clone(), n.clone()));
                continue;
            }
            (Some('?'), Some(_)) => continue,
            (Some(a), Some(b)) if a == b => continue,
            _ => {}
        }
        let Some((behind, mut rest)) = retry.take() else {
            return false;
        };
        if rest.next().is_none() {
            return false;
        }
        p = behind.clone();
        n = rest.clone();
        retry = Some((behind, rest));
    }
}

#[cfg(test)]
mod tests {
    use super::Glob;

    #[test]
    fn globs() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("*", "press-1", true),
            ("press-*", "press-1", true),
            ("press-*", "press-", true),
            ("press-*", "pump-1", false),
            ("press-?", "press-1", true),
            ("press-?", "press-12", false),
            ("*-1", "press-1-1", true),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b", "xxaxxbxx", false),
            ("_", "_", true),
            ("ä*", "äöü", true),
            ("a?c", "aöc", true),
        ] {
            assert_eq!(
                Glob::new(pattern).matches(name),
                expected,
                "{pattern} {name}"
            );
        }
    }

    #[test]
    fn many_stars_stay_fast() {
        let pattern = "*a".repeat(30);
        assert!(!Glob::new(&pattern).matches(&"a".repeat(29)));
        assert!(!Glob::new(&format!("{pattern}b")).matches(&"a".repeat(2_000)));
    }
}
