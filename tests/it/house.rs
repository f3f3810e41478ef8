//! The rules of the house that a compiler does not check: which way imports run, how long files are, what the docs
//! name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(&folder)
            .expect("a folder")
            .map(Result::unwrap)
        {
            let path = entry.path();
            if path.is_dir() {
                if path.file_name().is_none_or(|name| name != "target") {
                    open.push(path);
                }
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn is_test(path: &Path) -> bool {
    path.components().any(|c| c.as_os_str() == "tests")
        || path.file_name().is_some_and(|n| n == "tests.rs")
}

/// Rank of each part of the daemon; a part may use what has a lower rank, and itself.
fn ranks() -> BTreeMap<&'static str, u8> {
    [
        ("main", 9),
        ("lib", 9),
        ("cli", 8),
        ("daemon", 7),
        ("prepare", 6),
        ("admin", 6),
        ("backup", 6),
        ("bridge", 5),
        ("host", 5),
        ("texts", 5),
        ("notify", 5),
        ("pipeline", 4),
        ("actuation", 3),
        ("rollout", 3),
        ("audit", 3),
        ("broker", 2),
        ("buffer", 2),
        ("state", 2),
        ("packs", 2),
        ("backoff", 1),
        ("clock", 1),
        ("background", 1),
        ("tls", 1),
        ("http", 1),
        ("data_folder", 1),
        ("digest", 1),
        ("telemetry", 1),
        ("config", 0),
        ("stall", 0),
    ]
    .into()
}

/// The edges that the plain order has no place for, each with its reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "config",
        "broker",
        "the file is made of each part's own section",
    ),
    (
        "config",
        "buffer",
        "the file is made of each part's own section",
    ),
    (
        "config",
        "bridge",
        "the file is made of each part's own section",
    ),
    (
        "config",
        "host",
        "the file is made of each part's own section",
    ),
    (
        "config",
        "notify",
        "the file is made of each part's own section",
    ),
    (
        "prepare",
        "admin",
        "the token file is checked before anything starts",
    ),
];

#[test]
fn imports_run_one_way() {
    let ranks = ranks();
    let mut wrong = Vec::new();
    for file in rust_files(&root().join("src")) {
        let inside = file.strip_prefix(root().join("src")).unwrap();
        let part = inside
            .components()
            .next()
            .unwrap()
            .as_os_str()
            .to_string_lossy()
            .replace(".rs", "");
        let own = *ranks
            .get(part.as_str())
            .unwrap_or_else(|| panic!("{part}: give it a rank in tests/it/house.rs"));
        let text = std::fs::read_to_string(&file).unwrap();
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or("");
            for used in code.split("crate::").skip(1) {
                let name: String = used
                    .chars()
                    .take_while(|c| c.is_alphanumeric() || *c == '_')
                    .collect();
                let Some(rank) = ranks.get(name.as_str()) else {
                    continue;
                };
                let allowed = name == part
                    || *rank < own
                    || EXCEPTIONS
                        .iter()
                        .any(|(from, to, _)| *from == part && *to == name);
                if !allowed {
                    wrong.push(format!(
                        "{}:{}: {part} uses {name}",
                        inside.display(),
                        number + 1
                    ));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "imports run main → daemon → admin → bridge → pipeline → actuation → broker, buffer, state:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn crates_know_neither_each_other_nor_the_daemon() {
    for (name, allowed) in [
        ("sparkplug", &[][..]),
        ("rules", &[]),
        ("models", &[]),
        ("firmware-sim", &["sparkplug"]),
    ] {
        let manifest = std::fs::read_to_string(root().join(name).join("Cargo.toml")).unwrap();
        let table: toml::Table = manifest.parse().unwrap();
        let Some(dependencies) = table.get("dependencies").and_then(toml::Value::as_table) else {
            continue;
        };
        for ours in ["sparkgate", "sparkplug", "rules", "models", "firmware-sim"] {
            assert!(
                !dependencies.contains_key(ours) || allowed.contains(&ours),
                "{name} must not depend on {ours}"
            );
        }
    }
}

#[test]
fn only_the_demo_reaches_the_simulator() {
    for file in rust_files(&root().join("src")) {
        let text = std::fs::read_to_string(&file).unwrap();
        if text.contains("firmware_sim::") {
            assert!(file.ends_with("cli/demo.rs"), "{}", file.display());
        }
    }
}

#[test]
fn only_convert_speaks_two_vocabularies() {
    // The pipeline joins the crates; elsewhere a file that names two of them mixes their words.
    for file in rust_files(&root().join("src")) {
        let inside = file.strip_prefix(root().join("src")).unwrap().to_path_buf();
        if is_test(&file)
            || ["pipeline", "cli", "admin"]
                .iter()
                .any(|p| inside.starts_with(p))
            || ["daemon.rs", "prepare.rs", "packs.rs", "lib.rs"]
                .iter()
                .any(|p| inside == Path::new(p))
        {
            continue;
        }
        let text = std::fs::read_to_string(&file).unwrap();
        let named: Vec<&str> = ["sparkplug::", "rules::", "models::"]
            .into_iter()
            .filter(|n| {
                text.lines().any(|l| {
                    !l.trim_start().starts_with("//")
                        && l.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'))
                            .any(|w| w.starts_with(n))
                })
            })
            .collect();
        assert!(named.len() < 2, "{} names {named:?}", inside.display());
    }
}

#[test]
fn no_file_is_longer_than_800_lines() {
    let mut long = Vec::new();
    for folder in [
        "src",
        "sparkplug/src",
        "rules/src",
        "models/src",
        "firmware-sim/src",
    ] {
        for file in rust_files(&root().join(folder)) {
            if is_test(&file)
                || file.components().any(|c| c.as_os_str() == "proto")
                || file.file_name().is_some_and(|n| n == "proto.rs")
            {
                continue;
            }
            let text = std::fs::read_to_string(&file).unwrap();
            let lines = text
                .split("#[cfg(test)]\nmod tests {")
                .next()
                .unwrap_or("")
                .lines()
                .count();
            if lines > 800 {
                long.push(format!("{}: {lines}", file.display()));
            }
        }
    }
    assert!(long.is_empty(), "split by concern:\n{}", long.join("\n"));
}

#[test]
fn every_metric_is_in_the_docs() {
    let docs = std::fs::read_to_string(root().join("docs/metrics.md")).unwrap();
    let listed: Vec<&str> = docs
        .split('`')
        .filter(|w| w.starts_with("sparkgate_") && !w.contains(' '))
        .collect();
    for (name, _, _) in sparkgate::admin::metrics::NAMES {
        assert!(
            listed.contains(name),
            "{name} is missing in docs/metrics.md"
        );
    }
    for name in listed {
        assert!(
            sparkgate::admin::metrics::NAMES
                .iter()
                .any(|(n, _, _)| *n == name),
            "docs/metrics.md lists {name}, which nothing emits"
        );
    }
}

#[test]
fn the_architecture_names_files_that_exist() {
    let text = std::fs::read_to_string(root().join("docs/ARCHITECTURE.md")).unwrap();
    assert!(text.lines().count() <= 130, "two pages at most");
    for word in text.split('`').skip(1).step_by(2) {
        let is_path = word.contains('/')
            && (word.ends_with(".rs") || word.ends_with('/'))
            && !word.contains('*');
        if is_path {
            assert!(root().join(word).exists(), "{word} does not exist");
        }
    }
}

/// Names of the foreign crates that a manifest uses, by its tables of dependencies.
fn foreign(manifest: &Path) -> Vec<String> {
    let table: toml::Table = std::fs::read_to_string(manifest).unwrap().parse().unwrap();
    let ours = ["sparkgate", "sparkplug", "rules", "models", "firmware-sim"];
    ["dependencies", "dev-dependencies", "build-dependencies"]
        .iter()
        .filter_map(|kind| table.get(*kind).and_then(toml::Value::as_table))
        .flat_map(|table| table.keys().cloned())
        .filter(|name| !ours.contains(&name.as_str()))
        .collect()
}

#[test]
fn every_dependency_has_a_reason() {
    let docs = std::fs::read_to_string(root().join("docs/dependencies.md")).unwrap();
    let named: Vec<&str> = docs
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next())
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect();
    let mut used = Vec::new();
    for folder in [".", "sparkplug", "rules", "models", "firmware-sim"] {
        used.extend(foreign(&root().join(folder).join("Cargo.toml")));
    }
    for name in &used {
        assert!(
            named.contains(&name.as_str()),
            "docs/dependencies.md does not say what `{name}` is for"
        );
    }
    for name in named {
        assert!(
            used.iter().any(|used| used == name),
            "docs/dependencies.md names `{name}`, which no manifest uses"
        );
    }
}

#[test]
fn alerts_and_dashboard_use_metrics_that_exist() {
    for file in ["docs/alerts.yml", "docs/grafana-dashboard.json"] {
        let text = std::fs::read_to_string(root().join(file)).unwrap();
        if file.ends_with(".json") {
            let _: serde_json::Value = serde_json::from_str(&text).unwrap();
        }
        let mut used = 0;
        for word in text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')) {
            if word.starts_with("sparkgate_") {
                used += 1;
                assert!(
                    sparkgate::admin::metrics::NAMES
                        .iter()
                        .any(|(n, _, _)| *n == word),
                    "{file} uses {word}, which nothing emits"
                );
            }
        }
        assert!(used > 5, "{file} names no metrics");
    }
    // Each alert leads to a section that is there.
    let sections = std::fs::read_to_string(root().join("docs/troubleshooting.md")).unwrap();
    let alerts = std::fs::read_to_string(root().join("docs/alerts.yml")).unwrap();
    for line in alerts.lines() {
        if let Some(section) = line.trim().strip_prefix("troubleshooting: ") {
            let section = section.trim_matches('"');
            assert!(
                sections
                    .lines()
                    .any(|l| l.starts_with("## ") && l.contains(section)),
                "docs/troubleshooting.md has no section `{section}`"
            );
        }
    }
}

#[test]
fn links_in_the_book_lead_somewhere() {
    let mut pages: Vec<PathBuf> = ["docs", "docs/adr"]
        .iter()
        .flat_map(|folder| std::fs::read_dir(root().join(folder)).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "md"))
        .collect();
    pages.push(root().join("README.md"));
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        let folder = page.parent().unwrap();
        for link in text.split("](").skip(1) {
            let target = link.split([')', '#']).next().unwrap_or("");
            if !target.is_empty() && !target.contains("://") {
                assert!(
                    folder.join(target).exists(),
                    "{}: {target} does not exist",
                    page.display()
                );
            }
        }
    }
}
