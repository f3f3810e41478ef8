use super::*;
use crate::verify::verify;

/// A copy of a built-in model that a test may spoil.
fn copy(to: &Path, name: &str) -> PathBuf {
    let folder = to.join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("artifacts")
        .join(name);
    for entry in std::fs::read_dir(source).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
    }
    folder
}

fn edit(folder: &Path, from: &str, to: &str) {
    let path = folder.join("manifest.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{from}");
    std::fs::write(path, text.replace(from, to)).unwrap();
}

fn errors(path: &Path) -> Vec<LoadError> {
    let builtin = BackendPreference::builtin();
    let (_, errors) = Registry::load_usable(&[Source::Dir(path.into())], &builtin);
    let report = verify(path, &builtin);
    let lighter = errors
        .iter()
        .any(|e| matches!(e, LoadError::Lighter { .. } | LoadError::Duplicate { .. }));
    assert_eq!(
        report.ok,
        errors.is_empty() || lighter,
        "verify comes to the daemon's verdict: {report:?}"
    );
    errors
}

#[test]
fn each_fault_of_a_folder_is_named_with_its_place() {
    let root = tempfile::tempdir().unwrap();
    let check = |spoil: &dyn Fn(&Path), expect: &str| {
        let folder = copy(root.path(), "univariate-anomaly");
        spoil(&folder);
        let list = errors(&folder);
        let text: Vec<_> = list.iter().map(LoadError::to_string).collect();
        assert!(
            text.iter().any(|t| t.contains(expect)),
            "{expect}: {text:?}"
        );
        std::fs::remove_dir_all(folder).unwrap();
    };
    let truncate = |folder: &Path| {
        let path = folder.join("model.onnx");
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
    };
    check(&truncate, "SHA-256 is");
    check(
        &|f| std::fs::remove_file(f.join("model.onnx")).unwrap(),
        "model.onnx: No such file",
    );
    check(
        &|f| std::fs::remove_file(f.join("golden.json")).unwrap(),
        "golden.json: No such file",
    );
    // A sparse file: 1 GiB that takes no room.
    let grow = |f: &Path| {
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(f.join("model.onnx"))
            .unwrap();
        file.set_len(1 << 30).unwrap();
    };
    check(&grow, "larger than");
    check(
        &|f| edit(f, "points = 32", "points = 33"),
        "does not fit the manifest",
    );
    check(&|f| edit(f, "hop = 8", "hop = 0"), "window.hop");
    check(&|f| edit(f, "version =", "versoin ="), "manifest.toml:");
    check(
        &|f| edit(f, "path = \"model.onnx\"", "path = \"../model.onnx\""),
        "file name in the manifest's folder",
    );
    check(
        &|f| edit(f, "is = \"kurtosis\"", "is = \"skewness\""),
        "golden row",
    );
    check(
        &|f| edit(f, "name = \"features\"", "name = \"other\""),
        "input `other`",
    );
    check(
        &|f| std::fs::write(f.join("golden.json"), "{}").unwrap(),
        "golden rows cannot be read",
    );
    check(
        &|f| std::fs::write(f.join("manifest.toml"), [0xff, 0xfe]).unwrap(),
        "not UTF-8",
    );
    let flip = |f: &Path| {
        let path = f.join("golden.json");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(
            path,
            text.replace("\"label\":\"anomaly\"", "\"label\":\"normal\""),
        )
        .unwrap();
    };
    check(&flip, "verdict `anomaly`, expected `normal`");
    let no_label = |f: &Path| {
        let path = f.join("golden.json");
        let text = std::fs::read_to_string(&path).unwrap();
        let text = text
            .replace("\"label\":\"anomaly\",", "")
            .replace("\"label\":\"normal\",", "");
        std::fs::write(path, text).unwrap();
    };
    check(&no_label, "at least one with a label");
}

#[test]
fn the_second_folder_of_a_name_and_a_missing_lighter_model_are_errors() {
    let root = tempfile::tempdir().unwrap();
    let folder = copy(root.path(), "vibration-ae");
    let list = errors(&folder);
    assert!(
        matches!(&list[..], [LoadError::Lighter { lighter, .. }] if &**lighter == "vibration-ae-mlp")
    );
    copy(root.path(), "vibration-ae-mlp");
    assert!(errors(root.path()).is_empty());
    std::fs::rename(folder, root.path().join("another")).unwrap();
    copy(root.path(), "vibration-ae");
    assert!(matches!(
        &errors(root.path())[..],
        [LoadError::Duplicate { .. }]
    ));
}

#[test]
fn a_folder_replaces_a_built_in_model_and_a_bad_one_leaves_the_others() {
    let root = tempfile::tempdir().unwrap();
    let folder = copy(root.path(), "univariate-anomaly");
    edit(&folder, "version = \"1.0.0\"", "version = \"9.0.0\"");
    let sources = [Source::Embedded, Source::Dir(root.path().into())];
    let builtin = BackendPreference::builtin();
    let registry = Registry::load(&sources, &builtin).unwrap();
    assert_eq!(
        &*registry
            .get("univariate-anomaly")
            .unwrap()
            .files
            .manifest
            .version,
        "9.0.0"
    );
    assert_eq!(registry.models().count(), 3);
    std::fs::write(folder.join("model.onnx"), "").unwrap();
    let (registry, errors) = Registry::load_usable(&sources, &builtin);
    assert_eq!(errors.len(), 1);
    assert_eq!(
        &*registry
            .get("univariate-anomaly")
            .unwrap()
            .files
            .manifest
            .version,
        "1.0.0"
    );
}

#[test]
fn a_path_that_is_not_there_is_an_error() {
    let list = errors(Path::new("/nonexistent/models"));
    assert!(matches!(&list[..], [LoadError::Read { .. }]));
}

#[test]
fn a_version_that_is_open_stands_in_the_place_of_the_source_s() {
    let root = tempfile::tempdir().unwrap();
    let builtin = BackendPreference::builtin();
    let promoted = copy(root.path(), "univariate-anomaly");
    edit(&promoted, "version = \"1.0.0\"", "version = \"1.1.0\"");
    let open = || vec![open_folder(&promoted, &builtin).unwrap()];
    let (mut registry, errors) = Registry::load_in_place(&[Source::Embedded], &builtin, open());
    assert!(errors.is_empty(), "{errors:?}");
    let version = |registry: &Registry| {
        let model = registry.get("univariate-anomaly")?;
        Some(model.files.manifest.version.to_string())
    };
    assert_eq!(version(&registry).as_deref(), Some("1.1.0"));
    // It is still the built-in model's place.
    registry.keep(|name| name == "vibration-ae");
    assert_eq!(version(&registry), None);
    // Nobody asked for a model of that name.
    let (registry, _) = Registry::load_in_place(&[], &builtin, open());
    assert_eq!(registry.models().count(), 0);
}
