//! `src/proto.rs` is what `src/proto/sparkplug_b.proto` generates.

use std::path::Path;

/// Set to write the file instead of comparing it.
const BLESS: &str = "SPARKPLUG_BLESS";

#[test]
fn generated_code_matches_the_schema() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let schema = root.join("src/proto/sparkplug_b.proto");
    let descriptors = protox::compile([&schema], [root.join("src/proto")]).unwrap();
    let out = std::env::temp_dir().join(format!("sparkplug-proto-{}", std::process::id()));
    std::fs::create_dir_all(&out).unwrap();
    prost_build::Config::new()
        .out_dir(&out)
        .compile_fds(descriptors)
        .unwrap();
    let generated = std::fs::read_to_string(out.join("sparkplug_b.rs")).unwrap();
    std::fs::remove_dir_all(&out).unwrap();
    let checked_in = root.join("src/proto/sparkplug_b.rs");
    if std::env::var_os(BLESS).is_some() {
        std::fs::write(&checked_in, &generated).unwrap();
    }
    let current = std::fs::read_to_string(&checked_in).unwrap();
    assert!(
        current == generated,
        "src/proto/sparkplug_b.rs is out of date: run this test with {BLESS}=1"
    );
}
