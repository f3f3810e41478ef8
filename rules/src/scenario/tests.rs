//! Scenario files, and those of every pack that ships.

use super::*;
use crate::load_packs;

fn shipped_pack(folder: &std::path::Path) -> Vec<Pack> {
    let file = folder.join("pack.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    load_packs(&[(file.display().to_string(), text)]).unwrap_or_else(|errors| {
        panic!(
            "{}",
            errors
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("\n")
        )
    })
}

#[test]
fn every_shipped_scenario_passes() {
    let packs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("packs");
    let mut failed = Vec::new();
    for folder in std::fs::read_dir(packs).unwrap() {
        let folder = folder.unwrap().path();
        let pack = shipped_pack(&folder);
        let mut scenarios = 0;
        let mut negative = false;
        for file in std::fs::read_dir(&folder).unwrap() {
            let file = file.unwrap().path();
            let name = file.file_name().unwrap().to_string_lossy().into_owned();
            if !name.ends_with(".scenario.toml") {
                continue;
            }
            scenarios += 1;
            let text = std::fs::read_to_string(&file).unwrap();
            negative |= text.contains("nothing = true");
            let report = run(&pack, &file.display().to_string(), &text).unwrap();
            assert!(!report.outcomes.is_empty(), "{name} expects nothing at all");
            if !report.passed() {
                failed.push(report.to_string());
            }
        }
        assert!(
            scenarios >= 2 && negative,
            "{} lacks scenarios",
            folder.display()
        );
        assert!(folder.join("README.md").exists());
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn the_packs_that_are_built_in_are_those_in_the_folder() {
    let packs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("packs");
    let mut folders: Vec<String> = std::fs::read_dir(packs)
        .unwrap()
        .map(|f| f.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    folders.sort();
    let built_in: Vec<&str> = crate::shipped().iter().map(|(id, _)| *id).collect();
    assert_eq!(folders, built_in);
    let files: Vec<(String, String)> = crate::shipped()
        .iter()
        .map(|(id, text)| ((*id).to_owned(), (*text).to_owned()))
        .collect();
    let packs = load_packs(&files).unwrap();
    assert!(packs.iter().map(Pack::id).eq(built_in));
}

const PACK: &str = r#"
[pack]
id = "p"
version = "1"
[[rule]]
id = "hot"
[rule.threshold]
metric = "T"
high = 80
[rule.alarm]
message = "{value}"
"#;

fn report(scenario: &str) -> Report {
    let packs = load_packs(&[("p".to_owned(), PACK.to_owned())]).unwrap();
    run(&packs, "s", scenario).unwrap_or_else(|errors| panic!("{errors}"))
}

#[test]
fn what_is_missing_and_what_else_happened_is_shown() {
    let report = report(
        r#"
        device = "g/n/d"
        strict = true
        [[at]]
        t = "5s"
        set = { T = 81 }
        [[expect]]
        t = "4s"
        rule = "hot"
        nothing = true
        [[expect]]
        t = "6s"
        rule = "hot"
        alarm = "raise"
        "#,
    );
    assert!(!report.passed());
    let shown = "s: FAILED\n  ok            4s  hot: nothing\n  +             5s  hot: match\n  \
                 +             5s  hot: alarm raise \"81\"\n  MISSING       6s  hot: alarm raise";
    assert_eq!(report.to_string(), shown);
}

#[test]
fn a_tolerance_is_as_long_as_it_says() {
    for (within, passes) in [("1s", false), ("2s", true)] {
        let report = report(&format!(
            r#"
            device = "g/n/d"
            [[at]]
            t = "5s"
            set = {{ T = 81 }}
            [[expect]]
            t = "3s"
            within = "{within}"
            rule = "hot"
            match = true
            "#
        ));
        assert_eq!(report.passed(), passes, "{within}");
    }
}

#[test]
fn a_wrong_scenario_says_where() {
    let packs = load_packs(&[("p".to_owned(), PACK.to_owned())]).unwrap();
    let text = "device = \"g\"\n[[at]]\nt = \"5\"\nset = { T = 1 }\ndeath = true\n[[expect]]\nt = \"1s\"\nrule = \"hit\"\nalarm = \"rise\"\nfoo = 1\n";
    let error = run(&packs, "s.toml", text).unwrap_err().to_string();
    for part in [
        "s.toml:1:10: `device` must be group/node/device",
        "s.toml:3:5: `5` is no duration",
        "an entry has one of set, score, death and silence",
        "s.toml:8:8: unknown rule `hit`",
        "did you mean `hot`?",
        "did you mean `raise`?",
        "s.toml:10:1: unknown key `foo`",
    ] {
        assert!(error.contains(part), "{part} is not in\n{error}");
    }
}
