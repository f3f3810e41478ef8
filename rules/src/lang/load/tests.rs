//! Pack files: every error at once, each with its place.

use super::*;

fn load(text: &str) -> Result<Vec<Pack>, Vec<LoadError>> {
    load_packs(&[("rules.d/p.toml".to_owned(), text.to_owned())])
}

/// The place and first line of each error.
fn errors(text: &str) -> Vec<String> {
    let errors = load(text).expect_err("an error");
    let first = |e: &LoadError| {
        let (line, column) = e.place.unwrap();
        let near = e.nearest().map_or(String::new(), |n| format!(" ({n})"));
        format!("{line}:{column} {}{near}", e.problem)
    };
    errors.iter().map(first).collect()
}

const HEAD: &str = "[pack]\nid = \"p\"\nversion = \"1\"\n[[rule]]\nid = \"r\"\n";

fn in_rule(text: &str, expected: &[&str]) {
    assert_eq!(errors(&format!("{HEAD}{text}")), expected, "{text}");
}

#[test]
fn the_contract_s_own_example_loads() {
    let packs = load(
        r#"
[pack]
id = "press-cooling"
version = "1.2.0"
[[rule]]
id = "overheat-confirmed"
scope = { group = "plantA", node = "*", device = "press-*" }
key = "device"
time = "arrival"
historical = false
dry_run = false
durable = false
metrics = ["Temperature", "Alert"]
[rule.pattern]
within = "30s"
skip = "past-last-event"
stages = [
  { name = "hot",   when = 'metric == "Temperature" && value > 85.0' },
  { name = "alert", contiguity = "next", when = 'metric == "Alert" && value == "ALERT"' },
]
[rule.alarm]
priority = "high"
message = "press {device} overheated: {hot.value} °C"
[[rule.command]]
target = { device = "chiller-1" }
metric = "Cooling/Enable"
value = true
ttl = "2s"
priority = 5
repeatable = false
allow_when = 'current("Mode") == "AUTO"'
confirm = { metric = "Cooling/State", equals = true, within = "2s" }
undo = { metric = "Cooling/Enable", value = false }
"#,
    )
    .unwrap();
    assert_eq!(packs[0].id(), "press-cooling");
    assert_eq!(packs[0].rules().collect::<Vec<_>>(), ["overheat-confirmed"]);
}

#[test]
fn an_error_shows_line_caret_and_the_nearest_name() {
    let text = format!(
        "{HEAD}[rule.pattern]\nstages = [\n  {{ name = \"hot\", when = 'metric == \"T\" && vlaue > 1.0' }},\n]\n"
    );
    let error = load(&text).unwrap_err().remove(0);
    let shown = "rules.d/p.toml:8:44: unknown name `vlaue`\n   |\n 8 |   { name = \"hot\", when = 'metric == \"T\" && vlaue > 1.0' },\n   |                                            ^^^^^\n   = did you mean `value`?";
    assert_eq!(error.to_string(), shown);
}

#[test]
fn every_error_at_once() {
    let text = "[pack]\nid = \"a b\"\n[[rule]]\nid = \"r\"\nscop = {}\nkey = \"devise\"\n[rule.threshold]\nmetric = \"T\"\nhigh = \"80\"\non_delay = 5\n[[rule]]\nid = \"r\"\n[rule.absence]\nfor = \"soon\"\n";
    assert_eq!(
        errors(text),
        [
            "1:1 `version` is missing",
            "2:6 `a b` can't be the name of a pack: use A-Z a-z 0-9 - _ .",
            "5:1 unknown key `scop` (scope)",
            "6:7 `key` can't be `devise`; it is one of device, node, group (device)",
            "7:1 a threshold needs at least one of high, low, high_high and low_low",
            "9:8 `high` must be a number, not string",
            "10:12 `on_delay` must be a duration such as \"30s\", not integer",
            "12:6 rule `r` is defined twice; the first is at rules.d/p.toml:4:6",
            "14:7 `soon` is no duration; write for example \"30s\"",
        ]
    );
}

#[test]
fn rules_may_not_share_an_id_across_files() {
    let text = format!("{HEAD}[rule.absence]\nfor = \"1s\"\n");
    let files = [("a".to_owned(), text.clone()), ("b".to_owned(), text)];
    let errors = load_packs(&files).unwrap_err();
    let files: Vec<&str> = errors.iter().map(|e| e.file.as_str()).collect();
    assert_eq!(files, ["b", "b"], "pack and rule");
}

#[test]
fn what_does_not_go_together() {
    in_rule(
        "",
        &["4:1 a rule has exactly one of pattern, threshold, absence and window"],
    );
    in_rule(
        "out_of_order = \"1s\"\n[rule.absence]\nfor = \"1s\"\n",
        &["6:16 out_of_order and allowed_lateness need time = \"event\""],
    );
    in_rule(
        "[rule.threshold]\nmetric = \"T\"\nhigh = 1\nlow = 2\n",
        &["6:1 limits must rise: low_low < low < high < high_high"],
    );
    in_rule(
        "[rule.threshold]\nmetric = \"T\"\nhigh = 1\nm_of_n = [4, 3]\n",
        &["9:10 `m_of_n` must be [m, n] with 1 <= m <= n <= 64"],
    );
    in_rule(
        "key = \"group\"\n[rule.absence]\nfor = \"1s\"\n[[rule.command]]\nmetric = \"X\"\nvalue = 1\n",
        &["9:1 a rule over a group has no node of its own; name one in `target`"],
    );
    in_rule(
        "[rule.absence]\nfor = \"1s\"\n[rule.alarm]\nclear = 'value < 1.0'\n",
        &["9:9 only a pattern's alarm has `clear`; others clear when their condition is over"],
    );
}

#[test]
fn what_is_to_be_finished_after_a_restart_asks_only_what_is_known_then() {
    let pack = |commands: &[&str]| {
        let kind = "on_restart = \"finish\"\n[rule.threshold]\nmetric = \"T\"\nhigh = 1.0\n";
        let one = |more: &&str| format!("[[rule.command]]\nmetric = \"A\"\nvalue = 1\n{more}\n");
        let commands: String = commands.iter().map(one).collect();
        load(&format!("{HEAD}{kind}{commands}"))
    };
    let check = |commands: &[&str], expected: &str| {
        let all = pack(commands).expect_err(expected);
        let first = all[0].problem.to_string();
        assert!(first.contains(expected), "{first}");
    };
    let known = "allow_when = 'current(\"Mode\") == \"AUTO\" && device != \"x\"'";
    assert_eq!(pack(&["", known]).err(), None);
    check(&["", "allow_when = 'value > 3.0'"], "`value`");
    check(&[""], "several commands");
    in_rule(
        "on_restart = \"repeat\"\n[rule.absence]\nfor = \"1s\"\n[[rule.command]]\nmetric = \"A\"\nvalue = 1\n\
         [[rule.command]]\nmetric = \"A\"\nvalue = 1\n",
        &["6:14 `on_restart` can't be `repeat`; it is one of undo, finish"],
    );
}

#[test]
fn patterns_are_checked_whole() {
    in_rule(
        "[rule.pattern]\nskip = \"first:hto\"\nstages = [{ name = \"hot\", contiguty = \"next\", when = 'value > 1' }]\n",
        &[
            "7:8 unknown stage `hto` (hot)",
            "8:27 unknown key `contiguty` (contiguity)",
        ],
    );
    in_rule(
        "[rule.pattern]\nstages = [{ name = \"a\", when = 'value > 1' }, { name = \"a\" }, { name = \"b-c\" }]\n",
        &[
            "7:56 stage `a` is defined twice; the first is at rules.d/p.toml:7:20",
            "7:72 `b-c` can't be the name of a stage: use a letter, then letters, digits and _",
        ],
    );
    in_rule(
        "[rule.pattern]\nstages = [{ name = \"a\", times = 0 }]\n",
        &["7:33 `times` must be a count above zero, or a range such as [2, 4]"],
    );
    in_rule(
        "[rule.pattern]\nstages = [{ name = \"a\" }, { name = \"b\", contiguity = \"not-followed-by\" }]\n",
        &["6:1 `b`: not-followed-by at the end needs within"],
    );
}

#[test]
fn windows_are_checked_whole() {
    in_rule(
        "[rule.window]\nkind = \"hopping\"\nsize = \"1s\"\nevery = \"2s\"\nmetric = \"T\"\nemit = { value = 'avg(value)', n = 'cuont()', p = 'percentile(value, 101)' }\nwhen = 'm > 1'\n",
        &[
            "9:9 `every` must be at most `size`, and at least a thousandth of it",
            "11:10 `value` can't be the name of a column: it means something else in an expression",
            "11:42 unknown function `cuont` (count)",
            "11:62 `percentile` takes `value` and a number from 0 to 100",
            "12:9 unknown name `m`",
        ],
    );
}

#[test]
fn messages_are_checked() {
    in_rule(
        "[rule.absence]\nfor = \"1s\"\n[rule.alarm]\nmessage = \"{devise} {\"\n",
        &[
            "9:13 unknown name `devise` (device)",
            "9:21 `{` without `}`; write `{{` for a brace itself",
        ],
    );
}

#[test]
fn text_that_is_no_toml() {
    let errors = errors("[pack\nid = 1\nversion = \n");
    assert!(!errors.is_empty(), "{errors:?}");
}

#[test]
fn the_streams_are_what_the_stages_name() {
    let text = format!(
        "{HEAD}[rule.pattern]\nstages = [\n{{ name = \"a\", when = 'metric in [\"X\", \"Y\"] && current(\"Z\") > 1' }},\n{{ name = \"b\", when = 'value > 1 || metric == \"W\"' }}]\n"
    );
    let packs = load(&text).unwrap();
    let streams = &packs[0].rules[0].streams;
    let named: Vec<&str> = streams.metrics.iter().map(|m| &**m).collect();
    assert_eq!(named, ["W", "X", "Y"]);
    assert!(!streams.all);
    let text = format!("{HEAD}[rule.pattern]\nstages = [{{ name = \"a\", when = 'value > 1' }}]\n");
    assert!(
        load(&text).unwrap()[0].rules[0].streams.all,
        "no metric is named"
    );
}

proptest::proptest! {
    #[test]
    fn no_text_is_fatal(cut in 0usize..2_000, with in ".{0,4}") {
        let text = crate::shipped()[1].1;
        let cut = (0..=cut.min(text.len())).rev().find(|n| text.is_char_boundary(*n)).unwrap();
        let _ = load(&format!("{}{with}{}", &text[..cut], &text[cut..]));
        let _ = load(&text[..cut]);
    }
}
