use std::path::Path;

use serde_json::json;

use super::log::files;
use super::*;

fn entry(n: u64) -> Entry {
    Entry {
        record: n,
        at_ms: 1_000 + n,
        what: "command",
        // A body that holds the mark which the hash is looked for with.
        body: json!({"id": format!("w{n}"), "reason": ",\"hash\":\"", "value": n}),
    }
}

fn written(folder: &Path, max: u64, entries: impl Iterator<Item = u64>) -> Head {
    let mut log = Log::open(folder, max, &Head::default()).unwrap();
    for n in entries {
        log.append(&[entry(n)]).unwrap();
    }
    log.head()
}

fn lines(folder: &Path) -> Vec<String> {
    let path = files(folder).unwrap().pop().unwrap();
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(str::to_owned).collect()
}

fn put(folder: &Path, lines: &[String]) {
    let path = files(folder).unwrap().pop().unwrap();
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(path, text).unwrap();
}

#[test]
fn a_whole_log_verifies_and_goes_on_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let head = written(folder.path(), 1 << 30, 1..=5);
    let mut log = Log::open(folder.path(), 1 << 30, &head).unwrap();
    assert_eq!((log.is_broken(), log.last_record()), (false, 5));
    log.append(&[entry(6), entry(7)]).unwrap();
    let report = verify(folder.path(), Some(&log.head())).unwrap();
    assert_eq!((report.entries, report.first, report.last), (7, 1, 7));
    assert_eq!(report.problems, []);
    let tail = Log::tail(folder.path(), 2).unwrap();
    assert_eq!(tail[1]["body"]["id"], "w7");
    assert_eq!(tail.len(), 2);
}

#[test]
fn any_altered_or_removed_entry_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let head = written(folder.path(), 1 << 30, 1..=6);
    let good = lines(folder.path());
    for n in 0..good.len() {
        let mut without = good.clone();
        without.remove(n);
        let mut altered = good.clone();
        altered[n] = altered[n].replacen("\"value\":", "\"value\":1", 1);
        let mut rehashed = good.clone();
        let forged = Entry {
            body: json!("forged"),
            ..entry(n as u64 + 1)
        };
        let prev = parse(good[n].as_bytes()).unwrap().prev;
        rehashed[n] = line(n as u64 + 1, &prev, &forged).0;
        let mut blank = good.clone();
        blank[n] = String::new();
        for (what, bad) in [
            ("removed", without),
            ("altered", altered),
            ("rehashed", rehashed),
            ("blanked", blank),
        ] {
            put(folder.path(), &bad);
            let report = verify(folder.path(), Some(&head)).unwrap();
            assert!(report.problem_count > 0, "entry {n} {what}: {report:?}");
        }
    }
    for n in 1..good.len() {
        let mut exchanged = good.clone();
        exchanged.swap(n - 1, n);
        put(folder.path(), &exchanged);
        let report = verify(folder.path(), Some(&head)).unwrap();
        assert!(report.problem_count > 0, "exchanged {n}");
    }
    put(folder.path(), &good);
    assert_eq!(verify(folder.path(), Some(&head)).unwrap().problem_count, 0);
    std::fs::remove_file(files(folder.path()).unwrap().pop().unwrap()).unwrap();
    assert_eq!(verify(folder.path(), Some(&head)).unwrap().problem_count, 1);
}

#[test]
fn a_cut_tail_is_found_and_stays_visible() {
    let folder = tempfile::tempdir().unwrap();
    let head = written(folder.path(), 1 << 30, 1..=6);
    let mut cut = lines(folder.path());
    cut.truncate(4);
    put(folder.path(), &cut);
    let report = verify(folder.path(), Some(&head)).unwrap();
    assert_eq!(
        report.problems,
        [Problem::Tail {
            seq: 6,
            hash: head.hash.clone()
        }]
    );
    let mut log = Log::open(folder.path(), 1 << 30, &head).unwrap();
    assert!(log.is_broken());
    log.append(&[entry(7)]).unwrap();
    let report = verify(folder.path(), Some(&log.head())).unwrap();
    assert_eq!(report.problems, [Problem::Missing { from: 5, to: 6 }]);
}

#[test]
fn a_rewritten_tail_stays_visible() {
    let folder = tempfile::tempdir().unwrap();
    let head = written(folder.path(), 1 << 30, 1..=3);
    std::fs::remove_file(files(folder.path()).unwrap().pop().unwrap()).unwrap();
    written(folder.path(), 1 << 30, 2..=4);
    assert!(verify(folder.path(), Some(&head)).unwrap().problem_count > 0);
    let mut log = Log::open(folder.path(), 1 << 30, &head).unwrap();
    log.append(&[entry(9)]).unwrap();
    let report = verify(folder.path(), Some(&log.head())).unwrap();
    assert!(matches!(report.problems[0], Problem::Unchained { .. }));
}

#[test]
fn a_torn_line_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let head = written(folder.path(), 1 << 30, 1..=3);
    let path = files(folder.path()).unwrap().pop().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.extend_from_slice(b"{\"seq\":4,\"prev\":\"");
    std::fs::write(&path, &bytes).unwrap();
    let report = verify(folder.path(), Some(&head)).unwrap();
    assert_eq!((report.torn, report.problem_count), (true, 0));
    let mut log = Log::open(folder.path(), 1 << 30, &head).unwrap();
    log.append(&[entry(4)]).unwrap();
    let report = verify(folder.path(), Some(&log.head())).unwrap();
    assert_eq!((report.entries, report.problem_count), (4, 0));
}

#[test]
fn trimmed_files_are_vouched_for() {
    let folder = tempfile::tempdir().unwrap();
    let head = written(folder.path(), 16_384, 1..=200);
    let all = files(folder.path()).unwrap();
    let bytes: u64 = all.iter().map(|f| f.metadata().unwrap().len()).sum();
    assert!(all.len() > 2 && bytes < 32_768, "{bytes}");
    let report = verify(folder.path(), Some(&head)).unwrap();
    assert_eq!(report.problems, [], "{report:?}");
    assert!(report.first > 1);
    std::fs::remove_file(&all[0]).unwrap();
    let report = verify(folder.path(), Some(&head)).unwrap();
    assert_eq!(report.problem_count, 1, "{report:?}");
    std::fs::remove_file(&all[2]).unwrap();
    assert!(verify(folder.path(), Some(&head)).unwrap().problem_count > 1);
}
