//! Configuration as a person meets it: the example, mistakes, and what `validate` says of them.

use std::process::Command;

use sparkgate::config::Config;
use sparkgate::config::load::Source;

fn example() -> String {
    std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/examples/sparkgate.toml"
    ))
    .unwrap()
}

#[test]
fn the_example_loads_and_names_every_key() {
    let loaded = Config::from_sources(&[Source {
        file: "sparkgate.toml".into(),
        text: example(),
    }])
    .unwrap();
    // What the example shows as a value is the default, but for what has none.
    let mut plain = Config::default();
    plain.gateway.id = "site-a".into();
    plain.rules.paths = vec!["/etc/sparkgate/rules.d".into()];
    plain.models.paths = vec!["/etc/sparkgate/models.d".into()];
    plain.bridge.clone_from(&loaded.value.bridge);
    assert_eq!(
        toml::to_string(&loaded.value).unwrap(),
        toml::to_string(&plain).unwrap()
    );
    // Every key that the program knows stands in the example, commented out or not.
    let all: toml::Table = toml::to_string(&plain).unwrap().parse().unwrap();
    let text = example();
    fn keys(table: &toml::Table, out: &mut Vec<String>) {
        for (key, value) in table {
            out.push(key.clone());
            if let toml::Value::Table(inner) = value {
                keys(inner, out);
            }
        }
    }
    let mut names = Vec::new();
    keys(&all, &mut names);
    for key in names {
        assert!(
            text.contains(&key),
            "examples/sparkgate.toml does not mention `{key}`"
        );
    }
}

fn validate(text: &str) -> (i32, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sparkgate.toml");
    let text = text.replace("DATA", &folder.path().join("data").display().to_string());
    std::fs::write(&file, text).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_sparkgate"))
        .args(["validate", "-c"])
        .arg(&file)
        .output()
        .unwrap();
    let shown =
        String::from_utf8_lossy(&output.stderr).replace(&folder.path().display().to_string(), "");
    (output.status.code().unwrap(), shown)
}

#[test]
fn validate_accepts_a_small_file() {
    let (code, shown) =
        validate("[gateway]\nid = \"a\"\ndata_dir = \"DATA\"\n[rules]\nuse_shipped = [\"*\"]\n");
    assert_eq!((code, shown.as_str()), (0, ""));
}

#[test]
fn validate_shows_every_mistake_with_its_place() {
    let (code, shown) = validate(
        "[gateway]\nid = \"a b\"\ndata_dir = \"DATA\"\n[buffer]\nhot = { ttl = 60, max = \"64MiB\" }\n[mqtt]\nmax_packt = \"1MiB\"\nack = \"durabel\"\n",
    );
    assert_eq!(code, 78, "{shown}");
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines.len(), 4, "{shown}");
    assert!(lines[0].contains(":2:6: `a b` is not a token"), "{shown}");
    assert!(lines[1].contains(":5:15: `60` has no unit"), "{shown}");
    assert!(
        lines[2].contains(":7:1: unknown key `max_packt`; did you mean `max_packet`?"),
        "{shown}"
    );
    assert!(
        lines[3].contains(":8:7: unknown value `durabel`; did you mean `durable`?"),
        "{shown}"
    );
}

#[test]
fn a_missing_file_is_a_configuration_error() {
    let output = Command::new(env!("CARGO_BIN_EXE_sparkgate"))
        .args(["run", "-c", "/nonexistent/x.toml"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(78));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nonexistent/x.toml: can't be read"));
}

#[test]
fn wrong_usage_exits_with_2() {
    let output = Command::new(env!("CARGO_BIN_EXE_sparkgate"))
        .arg("frobnicate")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn an_unknown_shipped_pack_has_a_nearest_name() {
    let (code, shown) = validate(
        "[gateway]\nid = \"a\"\ndata_dir = \"DATA\"\n[rules]\nuse_shipped = [\"press-coolin\"]\n",
    );
    assert_eq!(code, 78);
    assert!(shown.contains("did you mean `press-cooling`?"), "{shown}");
}

#[test]
fn a_typo_does_not_hide_the_mistakes_of_packs_and_models() {
    let folder = tempfile::tempdir().unwrap();
    let pack = folder.path().join("p.toml");
    std::fs::write(
        &pack,
        "[pack]\nid = \"p\"\nversion = \"1\"\n[[rule]]\nid = \"r\"\n[rule.threshold]\nmetrik = \"x\"\n",
    )
    .unwrap();
    let (code, shown) = validate(&format!(
        "[gateway]\nid = \"a\"\ndata_dir = \"DATA\"\n[mqtt]\nmax_packt = \"1MiB\"\n\
         [rules]\npaths = [{:?}]\n[models]\nuse_shipped = [\"nothing-like-it\"]\n",
        pack.display().to_string()
    ));
    assert_eq!(code, 78);
    for part in ["did you mean `max_packet`?", "p.toml:7:", "nothing-like-it"] {
        assert!(shown.contains(part), "{part} is missing in\n{shown}");
    }
}

#[test]
fn data_of_a_newer_version_is_refused_by_validate_and_by_run() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir_all(&data).unwrap();
    std::fs::write(data.join("format"), "sparkgate-data 99 7.8.9\n").unwrap();
    let file = folder.path().join("sparkgate.toml");
    std::fs::write(
        &file,
        format!(
            "[gateway]\nid = \"a\"\ndata_dir = {:?}\n",
            data.display().to_string()
        ),
    )
    .unwrap();
    for verb in ["validate", "run"] {
        let output = Command::new(env!("CARGO_BIN_EXE_sparkgate"))
            .args([verb, "-c"])
            .arg(&file)
            .output()
            .unwrap();
        let shown = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(78), "{verb}: {shown}");
        assert!(shown.contains("install sparkgate 7.8.9 again"), "{shown}");
    }
}
