//! The nearest known name, for error messages.

/// The candidate that a person most likely meant; `None` when nothing is near.
pub(crate) fn nearest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<String> {
    let len = word.chars().count();
    let allowed = (len / 3).max(1);
    candidates
        .into_iter()
        // Lengths alone tell most of them apart.
        .filter(|candidate| candidate.chars().count().abs_diff(len) <= allowed)
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min()
        .map(|(_, candidate)| candidate.to_owned())
}

fn distance(a: &str, b: &str) -> usize {
    if a.eq_ignore_ascii_case(b) {
        return 0;
    }
    strsim::damerau_levenshtein(a, b)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn a_slip_is_recognised_and_nonsense_is_not() {
        let known = ["value", "metric", "within", "within_gap"];
        for (word, expected) in [
            ("vlaue", Some("value")),
            ("Metric", Some("metric")),
            ("whithin", Some("within")),
            ("pressure", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, known).as_deref(), expected, "{word}");
        }
    }
}
