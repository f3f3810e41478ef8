//! docs/conformance.md lists every id of our profiles with a test that exists, or with a reason.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

/// Profiles whose ids the gateway has to obey.
const PROFILES: [&str; 5] = [
    "host-application",
    "payload",
    "topics",
    "broker",
    "aware-broker",
];

/// Places where implementations go wrong, numbered in the page.
const TRAPS: u8 = 38;

/// Names of all test functions below `folder`.
fn tests(folder: &Path, names: &mut HashSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            tests(&path, names);
        } else if path.extension().is_some_and(|it| it == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let mut is_test = false;
            for line in text.lines().map(str::trim) {
                if line == "#[test]" || line.starts_with("#[tokio::test") {
                    is_test = true;
                } else if let Some((name, _)) = line
                    .strip_prefix("async ")
                    .unwrap_or(line)
                    .strip_prefix("fn ")
                    .and_then(|it| it.split_once('('))
                {
                    // Inside of `proptest!` the attribute stands there as well.
                    if std::mem::take(&mut is_test) {
                        names.insert(name.to_owned());
                    }
                }
            }
        }
    }
}

#[test]
fn every_id_is_shown_or_has_its_reason() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let gateway = root.parent().unwrap();
    let mut names = HashSet::new();
    for folder in [
        root.join("src"),
        root.join("tests"),
        gateway.join("src"),
        gateway.join("tests"),
        gateway.join("firmware-sim"),
    ] {
        tests(&folder, &mut names);
    }

    let page = std::fs::read_to_string(gateway.join("docs/conformance.md")).unwrap();
    let mut traps = Vec::new();
    let mut listed: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    for line in page.lines().filter(|it| it.starts_with("| ")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [id, test, reason] = cells[..] else {
            panic!("three cells a row: {line}");
        };
        if let Some((number, _)) = id.strip_prefix("trap ").and_then(|it| it.split_once(':')) {
            assert!(
                names.contains(test.trim_matches('`')),
                "{id}: no test {test}"
            );
            traps.extend(number.parse::<u8>());
        } else if !["id", "place"].contains(&id) {
            let earlier = listed.insert(id, (test.trim_matches('`'), reason));
            assert_eq!(earlier, None, "{id} is listed twice");
        }
    }

    assert_eq!(traps, (1..=TRAPS).collect::<Vec<_>>());
    let mut wrong = Vec::new();
    let norm = std::fs::read_to_string(root.join("tests/conformance.tsv")).unwrap();
    let mut wanted = HashSet::new();
    for line in norm.lines().skip(1) {
        let mut cells = line.split('\t');
        let (id, profile) = (cells.next().unwrap(), cells.next().unwrap());
        if !PROFILES.contains(&profile) {
            continue;
        }
        let id = id.strip_prefix("tck-id-").unwrap_or(id);
        wanted.insert(id);
        match listed.get(id) {
            None => wrong.push(format!("{id} is not listed")),
            Some(("", reason)) if reason.split_whitespace().count() < 6 => {
                wrong.push(format!("{id} has neither test nor reason"));
            }
            Some((test, _)) if !test.is_empty() && !names.contains(*test) => {
                wrong.push(format!("{id}: no test {test}"));
            }
            Some(_) => {}
        }
    }
    for id in listed.keys().filter(|it| !wanted.contains(**it)) {
        wrong.push(format!("{id} is not an id of these profiles"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
