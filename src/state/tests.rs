//! One suite for every backend, and what only the one on disk can suffer.

use std::collections::BTreeMap;
use std::path::Path;

use proptest::prelude::*;

use crate::state::{
    Backend, Batch, MAX_KEY, MemoryStore, OpenError, Options, Source, StateError, StateStore, open,
    snapshot,
};

fn options() -> Options {
    of(Backend::default())
}

fn of(backend: Backend) -> Options {
    Options {
        backend,
        cache_bytes: 1 << 20,
        ballast_bytes: 64 << 10,
    }
}

/// The database's file of `backend` under `dir`.
fn file_of(backend: Backend, dir: &Path) -> std::path::PathBuf {
    dir.join(backend.folder()).join(Backend::FILE)
}

fn batch(puts: &[(&str, &[u8])], deletes: &[&str]) -> Batch {
    Batch {
        puts: puts
            .iter()
            .map(|(key, value)| (key.as_bytes().to_vec(), value.to_vec()))
            .collect(),
        deletes: deletes.iter().map(|key| key.as_bytes().to_vec()).collect(),
    }
}

fn all(store: &dyn StateStore, prefix: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    store
        .scan_prefix(prefix)
        .map(|pair| pair.expect("intact"))
        .collect()
}

/// Values around the size at which they are split.
fn long(n: usize) -> Vec<u8> {
    (0..n).map(|n| ((n * 31) >> 3) as u8).collect()
}

/// What every backend must do.
fn suite(store: &dyn StateStore) {
    assert_eq!(store.get(b"a").expect("reads"), None);
    store
        .commit(&batch(&[("a", b"1"), ("ab", b"2"), ("b", b"")], &[]))
        .expect("writes");
    assert_eq!(
        store.get(b"ab").expect("reads").as_deref(),
        Some(b"2".as_slice())
    );
    assert_eq!(
        store.get(b"b").expect("reads").as_deref(),
        Some(b"".as_slice())
    );
    assert_eq!(all(store, b"a").len(), 2);
    assert_eq!(
        all(store, b"")
            .iter()
            .map(|(key, _)| key.clone())
            .collect::<Vec<_>>(),
        [&b"a"[..], b"ab", b"b"]
    );
    // Deletes come before puts; the later of two puts wins.
    store
        .commit(&batch(&[("a", b"3"), ("a", b"4")], &["a", "b", "unknown"]))
        .expect("writes");
    assert_eq!(
        store.get(b"a").expect("reads").as_deref(),
        Some(b"4".as_slice())
    );
    assert_eq!(store.get(b"b").expect("reads"), None);
    for len in [
        1,
        (60 << 10) - 1,
        60 << 10,
        (60 << 10) + 1,
        200_000,
        3,
        130_000,
        0,
    ] {
        let value = long(len);
        store
            .commit(&batch(&[("long", &value)], &[]))
            .expect("writes");
        assert_eq!(
            store.get(b"long").expect("reads"),
            Some(value.clone()),
            "{len} bytes"
        );
        assert_eq!(
            all(store, b"l"),
            [(b"long".to_vec(), value)],
            "parts are no keys"
        );
    }
    store.commit(&batch(&[], &["long"])).expect("writes");
    assert_eq!(all(store, b"l"), []);
    for key in [&[][..], &[7; MAX_KEY + 1]] {
        let result = store.commit(&Batch {
            puts: vec![(key.to_vec(), vec![])],
            deletes: vec![],
        });
        assert!(matches!(result, Err(StateError::Key(len)) if len == key.len()));
    }
    assert_eq!(
        all(store, b"").len(),
        2,
        "a refused batch changes nothing and the store goes on"
    );
}

#[test]
fn memory_store_passes_the_suite() {
    suite(&MemoryStore::default());
}

#[test]
fn every_backend_passes_the_suite() {
    for backend in Backend::ALL.iter().copied() {
        let dir = tempfile::tempdir().expect("a folder");
        let store = open(dir.path(), of(backend)).expect("opens");
        assert_eq!(store.source, Source::New);
        suite(&store);
        drop(store);
        let store = open(dir.path(), of(backend)).expect("opens again at once");
        assert_eq!(store.source, Source::Database);
        assert_eq!(all(&store, b"").len(), 2);
    }
}

fn filled(dir: &Path, backend: Backend, n: u32) {
    let store = open(dir, of(backend)).expect("opens");
    for n in 0..n {
        let key = format!("key {n:04}");
        store
            .commit(&batch(
                &[
                    (&key, &long(n as usize * 100)),
                    ("offset", &n.to_le_bytes()),
                ],
                &[],
            ))
            .expect("writes");
    }
}

#[test]
fn committed_state_survives_without_a_clean_end() {
    for backend in Backend::ALL.iter().copied() {
        let dir = tempfile::tempdir().expect("a folder");
        let store = open(dir.path(), of(backend)).expect("opens");
        store
            .commit(&batch(&[("a", b"1"), ("long", &long(100_000))], &[]))
            .expect("writes");
        // What kill -9 leaves: the files as they are, while the process still has them open.
        let copy = tempfile::tempdir().expect("a folder");
        let folder = backend.folder();
        copy_dir(&dir.path().join(folder), &copy.path().join(folder));
        let again = open(copy.path(), of(backend)).expect("opens");
        assert_eq!(again.source, Source::Database);
        assert_eq!(again.get(b"long").expect("reads"), Some(long(100_000)));
    }
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("a copy");
        }
    }
}

#[test]
fn damaged_database_is_set_aside_and_rebuilt_from_the_newest_snapshot() {
    for backend in Backend::ALL.iter().copied() {
        let dir = tempfile::tempdir().expect("a folder");
        filled(dir.path(), backend, 50);
        let store = open(dir.path(), of(backend)).expect("opens");
        let kept = store.snapshot(49).expect("writes");
        assert_eq!(kept, 0, "one snapshot alone frees nothing");
        store
            .commit(&batch(&[("after", b"the snapshot")], &[]))
            .expect("writes");
        let expect = all(&store, b"key");
        drop(store);
        let db = file_of(backend, dir.path());
        let len = std::fs::metadata(&db).expect("a file").len();
        std::fs::write(&db, vec![0x5a; len as usize]).expect("writes");
        let store = open(dir.path(), of(backend)).expect("always opens");
        let Source::Rebuilt {
            aside,
            snapshot: Some(snapshot),
            ..
        } = &store.source
        else {
            panic!("{backend:?}: {:?}", store.source)
        };
        assert_eq!(snapshot.mark, 49);
        assert!(aside.join(Backend::FILE).exists());
        assert_eq!(all(&store, b"key"), expect);
        assert_eq!(
            store.get(b"after").expect("reads"),
            None,
            "the journal brings that back"
        );
    }
}

#[test]
fn database_damaged_anywhere_opens_or_is_rebuilt() {
    for backend in Backend::ALL.iter().copied() {
        let dir = tempfile::tempdir().expect("a folder");
        filled(dir.path(), backend, 40);
        open(dir.path(), of(backend))
            .expect("opens")
            .snapshot(1)
            .expect("writes");
        let db = file_of(backend, dir.path());
        let len = std::fs::metadata(db).expect("a file").len() as usize;
        for at in (0..len.min(400_000)).step_by(len.min(400_000) / 12) {
            let copy = tempfile::tempdir().expect("a folder");
            copy_dir(dir.path(), copy.path());
            let db = file_of(backend, copy.path());
            let mut bytes = std::fs::read(&db).expect("reads");
            bytes[at..(at + 64).min(len)].fill(0xa5);
            std::fs::write(&db, bytes).expect("writes");
            let store = open(copy.path(), of(backend)).expect("always opens");
            for pair in store.scan_prefix(b"key") {
                let (key, value) = pair.expect("what opens is intact");
                let n: usize = String::from_utf8_lossy(&key[4..])
                    .parse()
                    .expect("a number");
                assert_eq!(value, long(n * 100));
            }
            store
                .commit(&batch(&[("goes", b"on")], &[]))
                .expect("writes");
        }
    }
}

/// Files of each backend's folder.
fn files_of(backend: Backend) -> &'static [&'static str] {
    match backend {
        Backend::Sled => &["db", "conf"],
        #[cfg(feature = "redb")]
        Backend::Redb => &["db"],
    }
}

#[test]
fn empty_or_missing_files_of_the_database() {
    for backend in Backend::ALL.iter().copied() {
        let files = files_of(backend).iter();
        for (name, empty) in files.flat_map(|name| [(name, true), (name, false)]) {
            let dir = tempfile::tempdir().expect("a folder");
            filled(dir.path(), backend, 5);
            open(dir.path(), of(backend))
                .expect("opens")
                .snapshot(4)
                .expect("writes");
            let path = dir.path().join(backend.folder()).join(name);
            if empty {
                std::fs::write(&path, b"").expect("writes")
            } else {
                std::fs::remove_file(&path).expect("removes")
            }
            let store = open(dir.path(), of(backend)).expect("always opens");
            store
                .commit(&batch(&[("goes", b"on")], &[]))
                .expect("writes");
            let left = all(&store, b"key").len();
            let lost_all = left == 0 && store.source == Source::Database;
            assert!(
                left == 5 && !lost_all,
                "{backend:?} {name} empty={empty}: {left} keys, {:?}",
                store.source
            );
        }
    }
}

#[test]
fn database_without_its_file_is_not_taken_for_a_new_one() {
    for backend in Backend::ALL.iter().copied() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(dir.path().join(backend.folder())).expect("a folder");
        let store = open(dir.path(), of(backend)).expect("opens");
        assert!(
            matches!(store.source, Source::Rebuilt { snapshot: None, .. }),
            "{:?}",
            store.source
        );
        store
            .commit(&batch(&[("goes", b"on")], &[]))
            .expect("writes");
        drop(store);
        assert_eq!(
            open(dir.path(), of(backend)).expect("opens").source,
            Source::Database
        );
    }
}

#[test]
fn half_made_files_go() {
    let dir = tempfile::tempdir().expect("a folder");
    filled(dir.path(), Backend::Sled, 5);
    let half = [
        dir.path().join("sled/snap.00000000000000FF.generating"),
        dir.path().join("snapshot-7.tmp"),
    ];
    for path in &half {
        std::fs::write(path, b"half").expect("writes");
    }
    let making = dir.path().join("sled.making");
    std::fs::create_dir(&making).expect("a folder");
    let store = open(dir.path(), of(Backend::Sled)).expect("opens");
    assert_eq!(store.source, Source::Database);
    assert!(half.iter().all(|path| !path.exists()) && !making.exists());
}

#[cfg(feature = "redb")]
#[test]
fn state_goes_over_to_another_backend_and_back() {
    let dir = tempfile::tempdir().expect("a folder");
    filled(dir.path(), Backend::Sled, 30);
    let expect = all(&open(dir.path(), of(Backend::Sled)).expect("opens"), b"");
    for (from, to) in [
        (Backend::Sled, Backend::Redb),
        (Backend::Redb, Backend::Sled),
    ] {
        let store = open(dir.path(), of(to)).expect("opens");
        assert_eq!(store.source, Source::Converted { from });
        assert_eq!(all(&store, b""), expect);
        assert!(!dir.path().join(from.folder()).exists());
    }
    // A copy that was cut off before the old folder was set aside: the old one is not believed later.
    let stale = dir.path().join(Backend::Redb.folder());
    copy_dir(&dir.path().join("aside-2"), &stale);
    let store = open(dir.path(), of(Backend::Sled)).expect("opens");
    assert_eq!(store.source, Source::Database);
    assert!(!stale.exists());
}

#[cfg(not(feature = "redb"))]
#[test]
fn state_that_this_build_cannot_read_is_rebuilt_from_the_snapshot() {
    let dir = tempfile::tempdir().expect("a folder");
    filled(dir.path(), Backend::Sled, 5);
    let store = open(dir.path(), options()).expect("opens");
    store.snapshot(4).expect("writes");
    let expect = all(&store, b"");
    drop(store);
    std::fs::rename(dir.path().join("sled"), dir.path().join("redb")).expect("renames");
    let store = open(dir.path(), options()).expect("always opens");
    assert!(
        matches!(&store.source, Source::Rebuilt { reason, .. } if reason.contains("redb")),
        "{:?}",
        store.source
    );
    assert_eq!(all(&store, b""), expect);
}

#[test]
fn second_process_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let first = open(dir.path(), options()).expect("opens");
    assert!(matches!(
        open(dir.path(), options()),
        Err(OpenError::InUse { .. })
    ));
    drop(first);
    open(dir.path(), options()).expect("opens once it is free");
}

#[test]
fn ballast_is_there() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(dir.path(), options()).expect("opens");
    assert_eq!(
        std::fs::metadata(dir.path().join("ballast"))
            .expect("a file")
            .len(),
        64 << 10
    );
    std::fs::remove_file(dir.path().join("ballast")).expect("removes");
    store.restore_ballast();
    assert!(dir.path().join("ballast").exists());
}

#[test]
fn two_snapshots_are_kept_and_the_older_one_says_what_the_journal_must_keep() {
    let dir = tempfile::tempdir().expect("a folder");
    filled(dir.path(), Backend::default(), 3);
    let store = open(dir.path(), options()).expect("opens");
    assert_eq!(store.snapshot(10).expect("writes"), 0);
    assert_eq!(store.snapshot(20).expect("writes"), 10);
    assert_eq!(store.snapshot(30).expect("writes"), 20);
    let marks: Vec<_> = snapshot::intact(dir.path())
        .expect("lists")
        .iter()
        .map(|snapshot| snapshot.mark)
        .collect();
    assert_eq!(marks, [20, 30]);
}

#[test]
fn snapshot_that_is_cut_or_changed_anywhere_is_not_used() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = MemoryStore::default();
    store
        .commit(&batch(&[("a", b"1"), ("b", &long(300))], &[]))
        .expect("writes");
    let good = snapshot::export(&store, dir.path(), 7).expect("writes");
    assert_eq!((good.mark, good.entries), (7, 2));
    let bytes = std::fs::read(&good.path).expect("reads");
    for at in 0..bytes.len() {
        std::fs::write(&good.path, &bytes[..at]).expect("writes");
        assert_eq!(
            snapshot::intact(dir.path()).expect("lists"),
            [],
            "cut at {at}"
        );
        let mut changed = bytes.clone();
        changed[at] ^= 0x40;
        std::fs::write(&good.path, &changed).expect("writes");
        assert_eq!(
            snapshot::intact(dir.path()).expect("lists"),
            [],
            "changed at {at}"
        );
    }
    std::fs::write(&good.path, &bytes).expect("writes");
    let copy = MemoryStore::default();
    snapshot::load(&good, &copy).expect("loads");
    assert_eq!(all(&copy, b""), all(&store, b""));
}

#[test]
fn value_under_a_wrong_key_is_damaged() {
    use crate::state::value::{decode, encode};
    for len in [10, 100_000] {
        let (stored, _) = encode(b"right", &long(len));
        let head = stored.values().next_back().expect("a head");
        assert!(decode(b"right", head).is_some());
        assert!(decode(b"wrong", head).is_none());
    }
}

#[derive(Debug, Clone)]
enum Action {
    Put(u8, usize),
    Delete(u8),
    Reopen,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn store_agrees_with_a_map(batches in proptest::collection::vec(proptest::collection::vec(prop_oneof![
        6 => (0u8..12, prop_oneof![0usize..200, 50_000usize..140_000]).prop_map(|(key, len)| Action::Put(key, len)),
        2 => (0u8..12).prop_map(Action::Delete),
        1 => Just(Action::Reopen),
    ], 1..6), 1..12), which in 0..Backend::ALL.len()) {
        let options = || of(Backend::ALL[which]);
        let dir = tempfile::tempdir().expect("a folder");
        let mut store = open(dir.path(), options()).expect("opens");
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        for actions in batches {
            let mut batch = Batch::default();
            let reopen = actions.iter().any(|action| matches!(action, Action::Reopen));
            for action in &actions {
                if let Action::Delete(key) = action {
                    batch.delete([*key]);
                    model.remove([*key].as_slice());
                }
            }
            for action in &actions {
                if let Action::Put(key, len) = action {
                    batch.put([*key], long(*len));
                    model.insert(vec![*key], long(*len));
                }
            }
            store.commit(&batch).expect("writes");
            if reopen {
                drop(store);
                store = open(dir.path(), options()).expect("opens");
                prop_assert_eq!(&store.source, &Source::Database);
            }
            prop_assert_eq!(all(&store, b""), model.clone().into_iter().collect::<Vec<_>>());
        }
    }
}
